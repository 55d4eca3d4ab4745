"""What bindings and environments are worth, in sentences that also say what was not found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import RenderableType

from topobench.comparison import Change
from topobench.effects import ArmEffect, arm_effects, bare_name, benches
from topobench.reading import MEASURED, Reason, Status
from topobench.report import figures
from topobench.report.figures import UNKNOWN
from topobench.report.safe import clean
from topobench.report.sheet import Column, Prose, Sheet
from topobench.units import format_percent

Cell = Mapping[str, Any]
Kind = tuple[str, str, str, str]
"""Probe, metric with its part, arm, reference."""

_PREFILL = "prefill"
_MEANING = (
    "an arm against another on the same devices, block by block; below 0 is worse. seen from: the "
    "smallest change that these blocks would have called one, the tolerance included. The largest "
    "effect of each line is told."
)
_COLUMNS = (
    Column("what"),
    Column("arm"),
    Column("against"),
    Column("found"),
    Column("largest\neffect", number=True),
    Column("95 %\ninterval", number=True),
    Column("seen\nfrom", number=True),
)


def arms_section(cells: Sequence[Cell]) -> Iterator[RenderableType]:
    """
    A line for each metric and arm, once blocks decide anything, and what does not apply.

    Where a host has one NUMA node, prefill is told to know no binding but that one.
    """
    kinds: dict[Kind, list[ArmEffect]] = {}
    for effect in arm_effects(benches([c for c in cells if c.get("ring") in (None, "auto")])):
        bench = effect.bench
        metric = figures.label(bench.metric) + (f" {clean(bench.part)}" if bench.part else "")
        key = bench.probe, metric, effect.arm, bare_name(effect.reference)
        kinds.setdefault(key, []).append(effect)
    if any(e.found.lo is not None for found in kinds.values() for e in found):
        yield Prose(_MEANING)
        yield Sheet(_COLUMNS, [_row(kind, found) for kind, found in kinds.items()])
    yield from _not_here(cells)


def _row(kind: Kind, found: Sequence[ArmEffect]) -> list[str]:
    probe, metric, arm, reference = kind
    what = metric if metric.startswith(probe) else f"{probe} {metric}"
    decided = [e for e in found if e.found.lo is not None]
    worst = max(decided or found, key=lambda e: abs(e.found.effect_ratio)).found
    seen = [e.found.mde for e in found if e.found.mde is not None]
    ends = UNKNOWN
    if worst.lo is not None and worst.hi is not None:
        ends = f"{100 * worst.lo:+.1f}..{100 * worst.hi:+.1f} %"
    return [
        clean(what),
        clean(arm),
        clean(reference),
        found_text(found),
        f"{100 * worst.effect_ratio:+.1f} %",
        ends,
        format_percent(max(seen)) if seen else UNKNOWN,
    ]


def found_text(found: Sequence[ArmEffect]) -> str:
    """``no effect in 4 cases``, ``better in 1 of 4``, ``not decided: 2 blocks``."""
    counts = Counter(e.found.verdict for e in found)
    number = len(found)
    cases = "1 case" if number == 1 else f"{number} cases"
    if counts[Change.EQUIVALENT] == number:
        return f"no effect beyond {format_percent(found[0].found.tolerance)} in {cases}"
    words = [
        f"{word} in {counts[change]} of {number}"
        for change, word in ((Change.IMPROVED, "better"), (Change.REGRESSED, "worse"))
        if counts[change]
    ]
    if words:
        return ", ".join(words)
    blocks = min(e.found.n_b for e in found)
    return f"not decided in {cases}: {blocks} block{'' if blocks == 1 else 's'}"


def _not_here(cells: Sequence[Cell]) -> Iterator[RenderableType]:
    """Bindings of prefill that do not apply, each reason once."""
    own = [c for c in cells if c["probe"] == _PREFILL and c.get("ring") in (None, "auto")]
    if not any(c["status"] in MEASURED for c in own):
        return
    arms: dict[str, dict[str, None]] = {}
    for cell in own:
        if cell["status"] == Status.NOT_APPLICABLE:
            reason = Reason.from_text(cell["reason"] or "").text
            arms.setdefault(reason, {})[bare_name(cell["arm"])] = None
    for reason, names in arms.items():
        told = ", ".join(clean(n) for n in names)
        yield Prose(f"prefill, {told}: not applicable, {clean(reason)}")
