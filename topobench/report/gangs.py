"""
What the collectives of a sweep say together: by class of path, arm against arm, lines, ranks.

The terminal and the page show the same tables; both draw them from here.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from topobench import fits, rings
from topobench.effects import Bench, benches, compared
from topobench.fit import AlphaBeta
from topobench.probes.metrics import BUSBW, LATENCY
from topobench.reading import MEASURED
from topobench.report import figures
from topobench.report.figures import UNKNOWN, half_width
from topobench.report.records import Places
from topobench.report.safe import clean
from topobench.report.sheet import Column, Prose, Sheet
from topobench.units import format_bytes, format_percent, format_seconds

Cell = Mapping[str, Any]
SMALL, MIDDLE, LARGE = 8 << 10, 1 << 20, 128 << 20
"""Sizes at which classes of paths are compared: latency at the first two, bandwidth at the last."""
MANY_ROWS = 40
STANDS_OUT = 0.01
"""A rank whose own time is this much above the median rank's may be the straggler."""


@dataclass(frozen=True, slots=True)
class Facts:
    """
    A table for terminal and page.

    Args:
        heads: Title of each column and whether it holds numbers.
        query: The named query that has all rows where these are too many, or None.
    """

    title: str
    lead: str
    heads: Sequence[tuple[str, bool]]
    rows: Sequence[Sequence[str]]
    query: str | None = None


def collectives_section(cells: Sequence[Cell], places: Places) -> Iterator[RenderableType]:
    """The tables for a terminal; of long ones the beginning."""
    for number, facts in enumerate(gang_facts(cells, places)):
        if number:
            yield Text("")
        yield Prose(facts.title, style="bold")
        yield Prose(facts.lead)
        columns = [Column(title, number=is_number) for title, is_number in facts.heads]
        same = _same(facts)
        if same:
            told = (f"{columns[i].name} {facts.rows[0][i]}" for i in same)
            yield Prose(f"in all rows: {', '.join(told)}")
        kept = [i for i in range(len(columns)) if i not in same]
        rows = [[row[i] for i in kept] for row in facts.rows[:MANY_ROWS]]
        yield Sheet([columns[i] for i in kept], rows)
        if (left := len(facts.rows) - MANY_ROWS) > 0:
            where = f"; query {facts.query} has them all" if facts.query else ""
            yield Prose(f"{left} more rows{where}")


def _same(facts: Facts) -> list[int]:
    """Columns of words with one value in all of several rows: told once, they leave room."""
    if len(facts.rows) < 2:
        return []
    words = [i for i, (_, is_number) in enumerate(facts.heads) if not is_number]
    return [i for i in words if len({row[i] for row in facts.rows}) == 1]


def gang_facts(cells: Sequence[Cell], places: Places) -> Iterator[Facts]:
    """The tables that a sweep's collectives have data for."""
    own = [c for c in cells if c["status"] in MEASURED and _whole(c, BUSBW.name)]
    for facts in (by_class(own), of_rings(own, places), lines(own, places), of_ranks(own, places)):
        if facts.rows:
            yield facts


def by_class(cells: Sequence[Cell]) -> Facts:
    """Latency and bandwidth by the slowest class of path between the ranks of a gang."""
    found: dict[tuple[str, ...], dict[int, list[float]]] = {}
    for cell in cells:
        size = cell["params"].get("bytes")
        metric = {SMALL: LATENCY, MIDDLE: LATENCY, LARGE: BUSBW}.get(size)
        value = metric and _whole(cell, metric.name)
        if cell.get("path_class") and value:
            words = clean(cell["path_class"]), what(cell), str(cell["ranks"]), clean(cell["arm"])
            found.setdefault(words, {}).setdefault(size, []).append(value)
    latency = "latency", _seconds
    columns = {SMALL: latency, MIDDLE: latency, LARGE: ("bus GB/s", _gigabytes)}
    measured = {s: c for s, c in columns.items() if any(s in sizes for sizes in found.values())}
    rows = [
        [*words, *(shown(sizes.get(size)) for size, (_, shown) in measured.items())]
        for words, sizes in sorted(found.items())
    ]
    heads = [
        *(("path\nclass", False), ("what", False), ("ranks", True), ("arm", False)),
        *((f"{name}\n{format_bytes(size)}", True) for size, (name, _) in measured.items()),
    ]
    lead = "The class of the slowest path between the ranks of a gang; medians."
    return Facts("By class of path", lead, heads, rows, "hop-classes")


def of_rings(cells: Sequence[Cell], places: Places) -> Facts:
    """Rings against NCCL's own search for rings, and that against what users get."""
    rows = [
        _effect(bench, reference, arm, places)
        for bench in _told(benches(cells))
        for reference, arm in _pairs(bench)
        if bench.arms[reference].keys() & bench.arms[arm].keys()
    ]
    heads = [
        *(("what", False), ("size", True), ("on", False), ("arm", False), ("against", False)),
        *(("median", True), ("effect", True), ("95 %\ninterval", True)),
        *(("seen from\n(MDE)", True), ("verdict", False)),
    ]
    lead = (
        "Paired block by block; above 0 is better. MDE: the smallest effect that these blocks "
        "would call one, the tolerance included. Fewer than six blocks decide nothing."
    )
    return Facts("Rings", lead, heads, rows, "ring-gain")


def lines(cells: Sequence[Cell], places: Places) -> Facts:
    """The line t = alpha + S / beta of every gang under every arm."""
    found = fits.collective_lines(cells)
    rows = [_line(gang, line, places) for gang, line in found.items()]
    heads = [
        *(("what", False), ("on", False), ("arm", False), ("alpha", True)),
        *(("95 %\ninterval", True), ("beta\nGB/s", True), ("95 %\ninterval", True)),
        *(("half\nreached at", True), ("farthest off", True)),
    ]
    lead = (
        "time = alpha + size / beta, fitted over the sizes; beta is the bandwidth of the payload. "
        "Farthest off: the size whose time lies farthest from the line; where it is far, a "
        "protocol changes and the line is not the curve: neither alpha nor beta is what any size "
        "gets. Half of beta is not told where a measured size says otherwise."
    )
    return Facts("Fixed cost and bandwidth", lead, heads, rows, "alpha-beta")


def of_ranks(cells: Sequence[Cell], places: Places) -> Facts:
    """How steady each rank is, and which one is behind."""
    gangs: dict[tuple[Any, ...], dict[int, list[tuple[float, float]]]] = {}
    for cell in cells:
        for reading in cell["readings"]:
            rank = reading["point"].get("rank")
            if reading["metric"] == LATENCY.name and rank is not None and reading["median"]:
                size, devices = cell["params"].get("bytes") or 0, tuple(cell["devices"])
                hosts = tuple(cell.get("hosts") or ())
                key = what(cell), _on(cell, places), clean(cell["arm"]), devices, hosts, size
                pair = reading["median"], (reading["mad"] or 0.0) / reading["median"]
                gangs.setdefault(key, {}).setdefault(rank, []).append(pair)
    sizes: dict[Any, set[int]] = {}
    for *gang, size in gangs:
        sizes.setdefault(tuple(gang), set()).add(size)
    rows = [
        _ranks(key, found, places)
        for key, found in gangs.items()
        if len(found) > 1 and key[-1] in (min(sizes[key[:-1]]), max(sizes[key[:-1]]))
    ]
    heads = [
        *(("what", False), ("size", True), ("on", False), ("arm", False)),
        *(("jitter of\nmost ranks", True), ("largest\njitter", False), ("slowest rank", False)),
    ]
    lead = (
        "At the smallest and the largest size. Jitter: median absolute deviation of a rank's own "
        "times, as a share of their median. The slowest rank is a straggler where it lies beyond "
        "the spread of the others and its own."
    )
    return Facts("Ranks", lead, heads, rows)


def _whole(cell: Cell, metric: str) -> float | None:
    """The median of a metric of all ranks together."""
    return next(
        (r["median"] for r in cell["readings"] if r["metric"] == metric and not r["point"]), None
    )


def what(cell: Cell) -> str:
    """What was measured, but for the size: ``all_gather out_of float32``."""
    params = cell["params"]
    place = {True: "in", False: "out_of"}.get(params.get("in_place"), params.get("place"))
    more = (params.get(key) for key in ("mode", "pool", "order"))
    words = (params.get("op") or cell["probe"], place, *more, params.get("dtype"))
    return " ".join(clean(w) for w in words if w)


def _on(cell: Cell, places: Places) -> str:
    return places.unit(cell) or f"{cell['ranks']} processes"


def _seconds(values: Sequence[float] | None) -> str:
    return format_seconds(statistics.median(values)) if values else UNKNOWN


def _gigabytes(values: Sequence[float] | None) -> str:
    return f"{statistics.median(values) / 1e9:.2f}" if values else UNKNOWN


def _told(found: Sequence[Bench]) -> Iterator[Bench]:
    """Latency of sizes below 1 MiB and bandwidth from there: the smallest, 1 MiB, the largest."""
    sizes: dict[Any, set[int]] = {}
    for bench in found:
        sizes.setdefault(_family(bench), set()).add(_size(bench))
    for bench in found:
        known = sizes[_family(bench)]
        small, middle = (s if s in known else min(known) for s in (SMALL, MIDDLE))
        metric = LATENCY.name if _size(bench) < MIDDLE else BUSBW.name
        if bench.metric == metric and _size(bench) in (small, middle, max(known)):
            yield bench


def _family(bench: Bench) -> Any:
    fixed = tuple((k, v) for k, v in bench.params if k != "bytes")
    return bench.host, bench.probe, fixed, bench.devices, bench.ranks


def _size(bench: Bench) -> int:
    return int(str(bench.param("bytes") or 0))


def _pairs(bench: Bench) -> Iterator[tuple[str, str]]:
    """Reference and arm, which differ in nothing but the ring."""
    for arm in bench.arms:
        binding, _, ring = arm.partition("/")
        other = rings.AUTO if ring == rings.AUTO_RING else rings.AUTO_RING
        reference = f"{binding}/{other}"
        if ring not in ("", rings.AUTO) and "+" not in arm and reference in bench.arms:
            yield reference, arm


def _effect(bench: Bench, reference: str, arm: str, places: Places) -> list[str]:
    found = compared(bench, reference, arm)
    ends = "none"
    if found.lo is not None and found.hi is not None:
        ends = f"{100 * found.lo:+.1f}..{100 * found.hi:+.1f} %"
    cell = {
        "host": bench.host,
        "devices": bench.devices,
        "ranks": bench.ranks,
        "params": dict(bench.params),
        "probe": bench.probe,
    }
    return [
        what(cell),
        format_bytes(_size(bench)),
        _on(cell, places),
        clean(arm),
        clean(reference),
        figures.quantity(bench.metric, bench.median(arm)),
        f"{100 * found.effect_ratio:+.1f} %",
        ends,
        UNKNOWN if found.mde is None else format_percent(found.mde),
        found.verdict.value,
    ]


def _line(gang: fits.Gang, line: AlphaBeta, places: Places) -> list[str]:
    alpha, beta, half = line.alpha_seconds, line.beta_bytes_per_second, line.n_half_bytes
    cell = {
        "host": gang.host,
        "devices": gang.devices,
        "ranks": gang.ranks,
        "params": dict(gang.params),
        "probe": gang.probe,
    }
    return [
        what(cell),
        _on(cell, places),
        clean(gang.arm),
        format_seconds(alpha.value) if alpha.value > 0 else UNKNOWN,
        half_width(alpha),
        f"{beta.value / 1e9:.2f}",
        half_width(beta),
        format_bytes(half.value) if half else UNKNOWN,
        f"{format_bytes(line.worst_bytes)} {100 * line.worst_ratio:+.0f} %",
    ]


def _ranks(
    key: tuple[Any, ...], found: Mapping[int, Sequence[tuple[float, float]]], places: Places
) -> list[str]:
    what, on, arm, devices, hosts, size = key
    times = {r: statistics.median(t for t, _ in pairs) for r, pairs in found.items()}
    jitters = {r: statistics.median(j for _, j in pairs) for r, pairs in found.items()}
    unsteady = max(jitters, key=lambda r: jitters[r])
    slowest = max(times, key=lambda r: times[r])
    middle = statistics.median(times.values())
    spread = statistics.median(abs(t - middle) for t in times.values()) / middle
    behind = times[slowest] / middle - 1
    told = f"{_rank(slowest, devices, hosts, places)} +{format_percent(behind)}"
    if behind > max(STANDS_OUT, 3 * 1.4826 * spread, 3 * jitters[slowest]):
        told += ", straggler"
    return [
        what,
        format_bytes(size),
        on,
        arm,
        format_percent(statistics.median(jitters.values())),
        f"{_rank(unsteady, devices, hosts, places)} {format_percent(jitters[unsteady])}",
        told if behind > 0 else "none",
    ]


def _rank(rank: int, devices: Sequence[str], hosts: Sequence[str], places: Places) -> str:
    """``rank 3 (GPU 3)``; ``rank 11 (h02 GPU 3)`` where the ranks are on several hosts."""
    host = (places.hosts.get(hosts[rank]) or clean(hosts[rank])) if rank < len(hosts) else ""
    gpu = places.devices([devices[rank]]) if rank < len(devices) else ""
    where = " ".join(word for word in (host, gpu) if word)
    return f"rank {rank} ({where})" if where else f"rank {rank}"
