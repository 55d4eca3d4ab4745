"""The words of advice, and how a comparison becomes one."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from topobench.comparison import Change, Comparison
from topobench.effects import Bench
from topobench.reading import Reason, Status

Cell = Mapping[str, Any]


class Outlook(enum.StrEnum):
    """What is known of a piece of advice."""

    GAIN = "gain"
    NO_GAIN = "no measurable gain"
    UNDECIDED = "not decided"
    NOT_MEASURED = "not measured"
    NOT_APPLICABLE = "does not apply"
    FOUND = "found"


@dataclass(frozen=True, slots=True)
class RingFile:
    """
    A graph file for NCCL, exactly as it was measured.

    Args:
        name: Of the file to write, without a folder.
        text: Of the file.
        variables: What must be set beside ``NCCL_GRAPH_FILE``.
        valid_for: UUIDs of the only GPUs it is valid for, in the order of the ranks.
    """

    name: str
    text: str
    variables: Mapping[str, str]
    valid_for: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Advice:
    """
    One piece of advice.

    Args:
        kind: ``binding``, ``order``, ``ring``, ``nic``, ``chunk``, ``pinned``, ``readers`` or
            ``out_of_service``.
        subject: What it is about, for people: "GPU 3".
        devices: UUIDs of the GPUs it is about.
        text: What to do, or why nothing.
        lines: To copy.
        effect_ratio: Relative change by following it; 0.2 is 20 % better.
        lo: Lower end of its interval; None if it has none.
        evidence: What was measured, and how often.
        ring: The graph file that goes with it.
    """

    kind: str
    subject: str
    devices: tuple[str, ...]
    outlook: Outlook
    text: str
    lines: tuple[str, ...] = ()
    effect_ratio: float | None = None
    lo: float | None = None
    hi: float | None = None
    mde: float | None = None
    evidence: str = ""
    ring: RingFile | None = None

    def showing(self, found: Comparison | None) -> Advice:
        """The same with the effect of a comparison, its interval and what could be seen."""
        if found is None:
            return self
        return replace(
            self, effect_ratio=found.effect_ratio, lo=found.lo, hi=found.hi, mde=found.mde
        )


ONE_GPU = "this host has one GPU"


def no_choice(cells: Iterable[Cell]) -> str | None:
    """
    Why alternatives of these cells do not apply, the commonest reason.

    None if they might: one that failed or was left out is an alternative, too.
    """
    found = list(cells)
    if not found or any(c["status"] != Status.NOT_APPLICABLE for c in found):
        return None
    reasons = Counter(c["reason"] for c in found)
    return Reason.from_text(reasons.most_common(1)[0][0] or "").text


def outlook_of(found: Comparison) -> Outlook:
    """What a comparison says of following the arm that was compared."""
    if found.verdict is Change.IMPROVED:
        return Outlook.GAIN
    return Outlook.UNDECIDED if found.verdict is Change.INCONCLUSIVE else Outlook.NO_GAIN


def signed(found: Comparison) -> str:
    """``+3.0 % (+2.8 to +3.2 %)``; without an interval where there is none."""
    effect = f"{round(100 * found.effect_ratio, 1) + 0.0:+.1f} %"  # never -0.0
    if found.lo is None or found.hi is None:
        return f"{effect}, no interval"
    return f"{effect} ({100 * found.lo:+.1f} to {100 * found.hi:+.1f} %)"


def evidence_of(bench: Bench, found: Comparison) -> str:
    """What a comparison rests on."""
    blocks = f"{found.n_b} block{'' if found.n_b == 1 else 's'}"
    seen = "" if found.mde is None else f", {100 * found.mde:.1f} % could have been seen"
    return f"{bench.words}, {bench.metric}, {blocks}{seen}"


def gravest(found: Sequence[Comparison]) -> Comparison:
    """The comparison with the largest effect, either way."""
    return max(found, key=lambda c: abs(c.effect_ratio))
