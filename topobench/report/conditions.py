"""What GPUs went through while they were measured: a line each, faults first where many."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import RenderableType

from topobench import conditions as words
from topobench.report.figures import UNKNOWN
from topobench.report.records import Places
from topobench.report.safe import clean
from topobench.report.sheet import Column, Prose, Sheet
from topobench.units import count, format_percent

Cell = Mapping[str, Any]
Gpu = Mapping[str, Any]

MOST_ROWS = 20
_THROTTLES = tuple(words.reason_names(words.THROTTLING))


def conditions_section(cells: Sequence[Cell], places: Places) -> Iterator[RenderableType]:
    """
    A table of GPUs; nothing if none was watched.

    Args:
        cells: Measured or not: a throttled run is no less a condition.
    """
    seen: dict[tuple[str, str], list[Gpu]] = {}
    for cell in cells:
        for key, gpu in ((cell["conditions"] or {}).get("gpus") or {}).items():
            seen.setdefault((cell["host"], key), []).append(gpu)
    names = {
        place: places.unit({"host": place[0], "devices": [place[1]]})
        for place, found in seen.items()
        if any(g.get("readings") for g in found)
    }
    rows = {name: _row(name, seen[place]) for place, name in names.items()}
    told = [name for place, name in names.items() if _is_noteworthy(seen[place])]
    shown = list(names.values()) if len(names) <= MOST_ROWS else told[:MOST_ROWS]
    if shown:
        yield Sheet(_COLUMNS, [rows[n] for n in sorted(shown, key=_order)])
    if quiet := len(names) - len(told) if len(names) > MOST_ROWS else 0:
        yield Prose(f"{count(quiet, 'GPU')} neither throttled nor on a slow slot, not shown")
    yield from _unwatched(seen, places)


_COLUMNS = (
    Column("GPU"),
    Column("SM clock\nMHz", number=True),
    Column("temp.\nC", number=True),
    Column("power\nW", number=True),
    Column("limit\nW", number=True),
    Column("slot\nunder load"),
    Column("throttled\nshare of readings"),
)


def _row(name: str, found: Sequence[Gpu]) -> list[str]:
    limits = [g["limits"]["power_watts"] for g in found if "power_watts" in g.get("limits", {})]
    return [
        name,
        _range(found, "sm_hertz", 1e-6),
        _range(found, "temperature_celsius", 1),
        _range(found, "power_watts", 1),
        f"{min(limits):.0f}" if limits else UNKNOWN,
        _slot(found),
        _throttles(found),
    ]


def _range(found: Sequence[Gpu], key: str, factor: float) -> str:
    """``1410-1980``: the lowest and the highest of all runs."""
    known = [g[key] for g in found if g.get(key)]
    if not known:
        return UNKNOWN
    low, high = (f"{x * factor:.0f}" for x in (min(k[0] for k in known), max(k[2] for k in known)))
    return low if low == high else f"{low}-{high}"


def _slot(found: Sequence[Gpu]) -> str:
    """``gen 5 x16``, and what it could be where that is more."""
    worst = min(filter(None, map(_reached, found)), default=None)
    if worst is None:
        return UNKNOWN
    (generation, width), best = worst
    text = f"gen {generation} x{width}"
    return text if (generation, width) == best else f"{text} of gen {best[0]} x{best[1]}"


def _reached(gpu: Gpu) -> tuple[tuple[int, int], tuple[int, int]] | None:
    """Generation and width of the slot at its best during a run, and what it could reach."""
    pcie, limits = gpu.get("pcie") or {}, gpu.get("limits") or {}
    if "generation" not in pcie or "width" not in pcie:
        return None
    now = (pcie["generation"][2], pcie["width"][2])
    return now, (limits.get("pcie_generation", now[0]), limits.get("pcie_width", now[1]))


def _throttles(found: Sequence[Gpu]) -> str:
    readings = sum(g.get("readings", 0) for g in found if "clock_reasons" in g)
    if not readings:
        return "not told"
    parts = []
    for name in _THROTTLES:
        hits = sum(g["clock_reasons"].get(name, 0) * g["readings"] for g in found if _told(g))
        if hits:
            parts.append(f"{name} {format_percent(hits / readings)}")
    return ", ".join(parts) or "no"


def _told(gpu: Gpu) -> bool:
    return "clock_reasons" in gpu and "readings" in gpu


def _is_noteworthy(found: Sequence[Gpu]) -> bool:
    slots = filter(None, map(_reached, found))
    return any(now != best for now, best in slots) or _throttles(found) not in ("no", "not told")


def _unwatched(seen: Mapping[tuple[str, str], Sequence[Gpu]], places: Places) -> Iterator[Prose]:
    """Why GPUs could not be watched, each reason once."""
    reasons: dict[str, list[str]] = {}
    for (host, key), found in seen.items():
        for why in {(g.get("unavailable") or {}).get("nvml") for g in found} - {None}:
            name = places.unit({"host": host, "devices": [key]})
            reasons.setdefault(clean(why), []).append(name)
    for why, names in reasons.items():
        shown = ", ".join(names[:MOST_ROWS])
        yield Prose(f"not watched: {shown}: {why}", style="yellow")


def _order(name: str) -> tuple[str, int]:
    """GPU 10 after GPU 9."""
    head = name.rstrip("0123456789")
    return head, int(name[len(head) :] or 0)
