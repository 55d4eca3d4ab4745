"""
The report of a sweep, for a terminal or a mail.

Important things first: how it went, what the hosts are, the figures, then what is missing
and where the data lies. The last line is the whole sweep in one line.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from topobench.reading import BENIGN, MEASURED, Status
from topobench.report import (
    arms_text,
    copy_fits,
    gpu_limits,
    prefill_text,
    problems,
    records,
    shared_text,
)
from topobench.report.bindings_text import bindings_section
from topobench.report.conditions import conditions_section
from topobench.report.figures import UNKNOWN
from topobench.report.gangs import collectives_section
from topobench.report.hosts import hosts_section
from topobench.report.nccl_table import CollectiveTables, is_collective
from topobench.report.network import network_section
from topobench.report.notes import notes
from topobench.report.probe_tables import ProbeTables
from topobench.report.safe import clean, command
from topobench.report.serving import ServingTables
from topobench.report.sheet import Prose
from topobench.report.verdict_text import verdicts_section
from topobench.report.words import counts_text, minute, took, warning_text
from topobench.server_definition import PROBE as SERVING
from topobench.units import count, format_span

Document = Mapping[str, Any]

_LEGEND = (
    "GB/s = 1e9 bytes a second; KiB, MiB, GiB = 2^10, 2^20, 2^30 bytes. Numbers are medians; "
    "spread and n (samples, 4x20: of 4 processes) are the widest and the fewest of a row."
)
_UNFINISHED = frozenset({*Status} - BENIGN)
MOST_ALIKE = 3
"""Warnings of one code that are shown one by one."""
_QUANTITY = re.compile(r"(?<=\s)(\d+\.\d+)(?=[\s,;]|$)")
"""A number with decimals: whole ones may be names of GPUs and ranks."""
_UNJUDGED = "Differences between arms are judged from six blocks on (--profile full)."


def render_sweep(
    document: Document, *, exit_code: int | None = None, verdicts: Sequence[Document] = ()
) -> RenderableType:
    """
    The report of a sweep document (``data`` of ``topobench probe --format json``).

    Args:
        exit_code: Of the command that ran it; None leaves it out of the last line.
        verdicts: What ``check`` said of it: ``name``, ``device``, ``level``, ``reason``,
            ``policy_version``, worst first.
    """
    return Group(*_parts(document, exit_code, verdicts))


def summary_line(document: Document, exit_code: int | None = None) -> str:
    """``12 ok, 3 skipped, 1 failed; sweep 1a2b3c4d; exit 1``."""
    parts = [counts_text(document["counts"]), f"sweep {clean(document['sweep']['id'])[:8]}"]
    return "; ".join(parts + ([f"exit {exit_code}"] if exit_code is not None else []))


def _parts(
    document: Document, exit_code: int | None, verdicts: Sequence[Document]
) -> Iterator[RenderableType]:
    sweep, hosts, cells = document["sweep"], document["hosts"], document["cells"]
    places = records.Places.of(hosts)
    yield from _headline(document)
    title = "HOST" if len(hosts) == 1 else f"HOSTS ({len(hosts)})"
    yield from section(title, hosts_section(hosts, cells))
    yield from section("VERDICTS", verdicts_section(verdicts, hosts))
    yield from section("MEASURED", _measured(cells, places))
    prefill = prefill_text.knees_section(cells, places), bindings_section(cells, places)
    yield from section("PREFILL", itertools.chain(*prefill))
    yield from section("SEVERAL GPUS", shared_text.shared_section(cells, places))
    yield from section("ARMS", arms_text.arms_section(cells))
    yield from section("COLLECTIVES", collectives_section(cells, places))
    yield from section("ROOFLINE", gpu_limits.roofline_section(cells, places))
    yield from section("ALL AT ONCE", gpu_limits.contention_section(cells, hosts, places))
    yield from section("EXPECTED", gpu_limits.expectations_section(cells, hosts, places))
    yield from section("NETWORK", network_section(cells, places))
    yield from section("CONDITIONS", conditions_section(cells, places))
    yield from section("FAILED OR INVALID", problems.problems(cells, places))
    yield from section("LEFT OUT", problems.left_out(cells, len(hosts)))
    yield from section("WARNINGS", cell_warnings(cells))
    yield from section("NEXT", _next_commands(sweep, cells))
    yield Text(f"Stored in {clean(document['store'])}", overflow="fold")
    yield Prose(_by_probe(cells), indent=0)
    yield Text(summary_line(document, exit_code), style="bold")


def section(title: str, parts: Iterable[RenderableType]) -> Iterator[RenderableType]:
    """The parts under a title, with a blank line after; nothing at all when there are none."""
    found = list(parts)
    if found:
        yield Text(title, style="bold")
        yield from found
        yield Text("")


def _headline(document: Document) -> Iterator[RenderableType]:
    sweep = document["sweep"]
    yield Text(f"topobench sweep {clean(sweep['id'])[:8]} {clean(sweep['status'])}", style="bold")
    if sweep.get("synthetic"):
        yield Text("SYNTHETIC: made up by `topobench demo`, not measured", style="bold yellow")
    parts = [f"cluster {clean(document['cluster'])}", f"profile {clean(sweep['profile'])}"]
    if sweep["started_at"]:
        parts.append(f"started {minute(sweep['started_at'])} UTC")
    if spent := took(sweep):
        parts.append(f"took {spent} (estimated {format_span(sweep['estimated_seconds'] or 0)})")
    yield Prose(", ".join(parts), indent=0)
    yield Prose(counts_text(document["counts"]), indent=0)
    for warning in sweep["warnings"]:
        yield Prose(f"warning: {warning_text(warning)}", indent=0, style="yellow")
    yield Text("")


def _measured(cells: Sequence[Document], places: records.Places) -> Iterator[RenderableType]:
    """The tables of each probe, then what their words mean."""
    found: list[records.Record] = []
    for probe in dict.fromkeys(c["probe"] for c in cells):
        own = [c for c in cells if c["probe"] == probe]
        if (figures := records.records(own, places)) and probe == SERVING:
            yield ServingTables(figures, list(notes(own)), own, places)
            yield Text("")
            found += figures
        elif figures:
            tables = ProbeTables(probe, figures, _unit(own, places), list(notes(own)))
            yield CollectiveTables(tables, own, places) if is_collective(own) else tables
            if parts := records.records(own, places, each_gpu=True):
                yield Text("")
                yield ProbeTables(f"{probe}, each GPU", parts, "GPU")
            if probe == copy_fits.PROBE:
                yield from copy_fits.copy_fits(own, places)
            yield Text("")
            found += figures
    if not found:
        yield Text("  Nothing: no cell gave a number that may be used.")
        return
    yield Prose(_LEGEND, style="dim")
    bases = dict.fromkeys(r.figure.basis for r in found)
    for basis in bases:
        yield Prose(records.MEANINGS[basis], style="dim")
    if records.Basis.INTERVAL not in bases and _has_arms(cells):
        yield Prose(_UNJUDGED)


def _unit(cells: Sequence[Document], places: records.Places) -> str:
    """What the rows of a summary are, in a word to count them by."""
    if all(len(c["devices"]) == 1 for c in cells):
        return "GPU"
    if all(len(set(c.get("hosts") or ())) == 2 for c in cells):
        return "host pair"
    if all(c["ranks"] == 1 and len(c["devices"]) == 2 for c in cells):
        return "GPU pair"
    sets = {(c["host"], *c["devices"]) for c in cells}
    whole = len(sets) == len({host for host, *_ in sets})
    return "host" if whole and len(places.hosts) > 1 else "GPU set"


def _has_arms(cells: Sequence[Document]) -> bool:
    """Whether alternatives on the same devices stand side by side."""
    arms: dict[tuple[str, ...], set[str]] = {}
    for cell in cells:
        if cell["status"] in MEASURED:
            arms.setdefault((cell["probe"], cell["host"], *cell["devices"]), set()).add(cell["arm"])
    return any(len(a) > 1 for a in arms.values())


def cell_warnings(cells: Sequence[Document]) -> Iterator[RenderableType]:
    """
    Each text once; of many of one code the commonest, or one from the lowest to the highest.

    That is where they differ in one quantity alone.
    What every cell has tells none from another, and comes last.
    """
    every = sum(1 for c in cells if c["status"] in MEASURED or c.get("warnings"))
    found = Counter(warning_text(w) for c in cells for w in c.get("warnings") or ())
    by_code: dict[str, list[tuple[str, int]]] = {}
    for warning, times in found.most_common():
        code = warning.partition(": ")[0]
        by_code.setdefault(code if code.isidentifier() else warning, []).append((warning, times))
    for alike in sorted(by_code.values(), key=lambda a: a[0][1] == every > 1):
        if len(alike) > MOST_ALIKE and (ranged := _from_to([warning for warning, _ in alike])):
            alike = [(ranged, sum(times for _, times in alike))]
        shown = alike if len(alike) <= MOST_ALIKE else alike[:1]
        for warning, times in shown:
            where = "every cell" if times == every > 1 else count(times, "cell")
            yield Prose(f"{where}: {warning}", style="yellow")
        if hidden := sum(times for _, times in alike[len(shown) :]):
            code = alike[0][0].partition(": ")[0]
            yield Prose(f"{count(hidden, 'cell')} more: {code}, with other numbers", style="yellow")


def _from_to(texts: Sequence[str]) -> str | None:
    """One text for several that are alike but for one quantity: ``gave 2.0 to 6.0 % of ...``."""
    parts = [_QUANTITY.split(text) for text in texts]
    if len({len(part) for part in parts}) > 1:
        return None
    differing = [i for i, words in enumerate(zip(*parts, strict=True)) if len({*words}) > 1]
    if len(differing) != 1 or differing[0] % 2 == 0:  # the even ones are the words between
        return None
    at = differing[0]
    values = sorted((part[at] for part in parts), key=float)
    return "".join([*parts[0][:at], f"{values[0]} to {values[-1]}", *parts[0][at + 1 :]])


def _next_commands(sweep: Document, cells: Sequence[Document]) -> Iterator[RenderableType]:
    short = clean(sweep["id"])[:8]
    lines = []
    several = len({h for c in cells for h in (c["host"], *(c.get("hosts") or ()))}) > 1
    file = " --cluster cluster.yaml" if several else ""
    if any(c["status"] in _UNFINISHED for c in cells):
        lines.append((f"topobench probe --resume {short}{file}", "run again what did not end well"))
    lines.append((f"topobench report {short}", "this report again"))
    lines.append((f"topobench report {short} --html report.html", "with charts"))
    if any(c["devices"] and c["status"] in MEASURED for c in cells):
        host = "" if len({c["host"] for c in cells}) == 1 else " HOST"
        lines.append((f"topobench advise{host}", "what to do with a host"))
    lines.append(("topobench query --list", "questions to ask of the data"))
    if sweep["profile"] == "quick":
        lines.append(
            (f"topobench plan --profile full{file}", "what a sweep that can judge arms costs")
        )
    longest = max(len(line) for line, _ in lines)
    for line, why in lines:
        yield command(f"{line:{longest}}  # {why}")


def _by_probe(cells: Sequence[Document]) -> str:
    """``host_memory 4 ok; all_reduce 6 ok, 1 failed``."""
    counts: dict[str, Counter[str]] = {}
    for cell in cells:
        counts.setdefault(cell["probe"], Counter())[cell["status"]] += 1
    shown = "; ".join(f"{clean(p)} {counts_text(c)}" for p, c in counts.items())
    return f"Cells by probe: {shown or UNKNOWN}."
