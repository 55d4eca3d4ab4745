"""The smallest of several settings that is enough: chunks of a copy, threads of a reader."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from topobench.advice.words import Outlook, outlook_of
from topobench.comparison import Comparison, compare_paired
from topobench.fit import smallest_at_peak
from topobench.reading import Better

Apart = dict[tuple[int, int], dict[str, float]]
"""Bandwidth by block and number of the process, then by GPU: only what the same GPUs did is
ever compared."""

TOLERANCE = 0.03
MIN_SETTINGS = 3


@dataclass(frozen=True, slots=True)
class Enough:
    """
    The smallest setting that reaches nearly the peak, and what it gains.

    Args:
        usual: The setting that it is held against: what one takes who measured nothing.
        peak: Highest median of a GPU.
        settings: How many were measured on the same GPUs.
        gpus: How many those are.
        found: Of ``best`` against ``usual``; None where the usual one is enough, or where no
            block holds both.
    """

    best: int
    usual: int
    peak: float
    settings: int
    gpus: int
    found: Comparison | None

    @property
    def outlook(self) -> Outlook:
        """What is known of taking the best instead of the usual one."""
        if self.usual >= self.best:
            return Outlook.NO_GAIN
        return Outlook.UNDECIDED if self.found is None else outlook_of(self.found)


def enough(measured: Mapping[int, Apart], usual: int) -> Enough | None:
    """
    The smallest setting at the peak, over the GPUs that all were measured on.

    Args:
        measured: By setting; empty ones do not count.
        usual: The largest measured one up to it is held against.

    Returns:
        None with fewer than three settings on the same GPUs.
    """
    known = {setting: apart for setting, apart in measured.items() if apart}
    everywhere = _everywhere([*known.values()])
    if len(known) < MIN_SETTINGS or not everywhere:
        return None
    rates = {
        s: statistics.median(v for d in p.values() for g, v in d.items() if g in everywhere)
        for s, p in known.items()
    }
    best = int(smallest_at_peak([*rates], [*rates.values()]))
    before = max((s for s in rates if s <= usual), default=min(rates))
    found = paired(known[before], known[best]) if before < best else None
    return Enough(best, before, max(rates.values()), len(rates), len(everywhere), found)


def paired(a: Apart, b: Apart) -> Comparison | None:
    """Process by process, each by the median of the GPUs that both have."""
    both: list[tuple[float, float]] = []
    for key in sorted(a.keys() & b.keys()):
        gpus = a[key].keys() & b[key].keys()
        if gpus:
            both.append(
                (
                    statistics.median(a[key][g] for g in gpus),
                    statistics.median(b[key][g] for g in gpus),
                )
            )
    if not both:
        return None
    return compare_paired(
        [before for before, _ in both],
        [after for _, after in both],
        tolerance=TOLERANCE,
        better=Better.HIGHER,
        with_p=False,
    )


def _everywhere(found: Sequence[Apart]) -> set[str]:
    """The GPUs that were measured in all of these."""
    sets = [{gpu for devices in apart.values() for gpu in devices} for apart in found]
    return set.intersection(*sets) if sets else set()
