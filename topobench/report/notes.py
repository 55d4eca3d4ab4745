"""What must be known beside a probe's figures: what was really used, and what did not settle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from topobench import env_arms, stats
from topobench.reading import MEASURED
from topobench.report.figures import label
from topobench.report.safe import clean
from topobench.units import count, format_percent

Cell = Mapping[str, Any]

PROOFS = frozenset({"locality_ratio"})
"""Metrics that prove a binding; told in a sentence, as they are no results."""
_SETTLED = frozenset({"converged", "fixed", None})
_OUT_OF_TIME = frozenset({"budget", "n_max"})


def notes(cells: Sequence[Cell]) -> Iterator[str]:
    """
    Sentences about the measured cells of one probe.

    Args:
        cells: Of one probe, measured or not.
    """
    measured = [c for c in cells if c["status"] in MEASURED]
    used: dict[str, set[str]] = {}
    for cell in measured:
        for name, value in cell["conditions"].items():
            if isinstance(value, str):
                used.setdefault(name, set()).add(clean(value))
    if used:
        parts = [f"{label(name)} {' | '.join(sorted(v))}" for name, v in sorted(used.items())]
        yield f"found: {', '.join(parts)}"
    if set_by := environments(measured):
        told = (f"{clean(arm)} sets {clean(text)}" for arm, text in sorted(set_by.items()))
        yield f"arms: {'; '.join(told)}"
    yield from _without_effect(measured)
    for proof in sorted(PROOFS):
        yield from _proof(proof, measured)
    yield from _unsettled(measured)


def environments(cells: Sequence[Cell]) -> dict[str, str] | None:
    """
    Arm -> the variables it sets, of arms that set any; None where a name has two meanings.

    A name without variables and the same one with some are two meanings, too. A name that says
    its variables itself needs no more words.
    """
    found = {(c["arm"], env_arms.text_of(c["env"])) for c in cells}
    if len({arm for arm, _ in found}) < len(found):
        return None
    return {arm: text for arm, text in found if text and not arm.endswith(f"+{text}")}


def _without_effect(cells: Sequence[Cell]) -> Iterator[str]:
    """Environments that every host always had without the arm, too: both arms measured the same."""
    in_force: dict[tuple[str, str], dict[str, Any]] = {}
    for cell in cells:
        own = cell["conditions"].get("env") or {}
        both = in_force.setdefault((cell["host"], cell["arm"]), dict(own))
        in_force[cell["host"], cell["arm"]] = {k: v for k, v in both.items() if own.get(k) == v}
    told: dict[tuple[str, str], bool] = {}
    for cell in cells:
        if cell["env"]:
            bare = in_force.get((cell["host"], _without_settings(cell)), {})
            key = cell["arm"], env_arms.text_of(cell["env"])
            told[key] = told.get(key, True) and cell["env"].items() <= bare.items()
    for arm, text in sorted(key for key, everywhere in told.items() if everywhere):
        yield f"{clean(arm)} changes nothing here: {clean(text)} was in force without it, too"


def _without_settings(cell: Cell) -> str:
    """The arm beside it whose environment is the host's own."""
    bare, plus, _ = str(cell["arm"]).partition("+")
    return bare if plus else ""


def _proof(metric: str, cells: Sequence[Cell]) -> Iterator[str]:
    found = [
        r["median"]
        for c in cells
        for r in c["readings"]
        if r["metric"] == metric and r["median"] is not None
    ]
    if found:
        low, high = format_percent(min(found)), format_percent(max(found))
        yield f"{label(metric)}: {low if low == high else f'{low} to {high}'}"


def _unsettled(cells: Sequence[Cell]) -> Iterator[str]:
    """Cells whose sampling ended before their medians were known well enough."""
    reasons: Counter[str] = Counter()
    for cell in cells:
        ends = [r["stop_reason"] for r in cell["readings"] if not _is_settled(r)]
        reasons.update(clean(e) for e in ends[:1])
    if reasons:
        why = ", ".join(reasons)
        of = count(len(cells), "cell")
        yield f"not settled: {reasons.total()} of {of} ended before the median was steady ({why})"


def _is_settled(reading: Mapping[str, Any]) -> bool:
    """Whether sampling converged, or ran out of time with an interval that is as narrow."""
    if reading["stop_reason"] in _SETTLED:
        return True
    low, high = reading["ci_lo"], reading["ci_hi"]
    if reading["stop_reason"] not in _OUT_OF_TIME or low is None or high is None:
        return False
    is_time = reading["metric"].endswith("_seconds")
    tolerance = stats.LATENCY_TOLERANCE if is_time else stats.BANDWIDTH_TOLERANCE
    return bool(high - low < 2 * tolerance * reading["median"])
