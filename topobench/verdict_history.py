"""
Comparing a track with its own past: changes of level, found on logarithms. Pure.

The history is cut at recorded changes first, then searched. Levels are segments of at least
``segment`` nights that cost least: squared distances from their mean plus a price for each
change (Potts; optimal partitioning). Changes whose two medians differ by less than the gates
are taken back, the weakest first, so that a single odd night is no change.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from topobench.verdict_gates import MAD_TO_SIGMA, Flags, Nights, flag, median, spread_of
from topobench.verdict_words import Changepoint, Evidence

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from topobench.policy import Policy

    Vector = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Past:
    """
    The search's result.

    Args:
        flags: Against the level before the last change of level.
        lengths: Nights in the present stretch, by track.
        judged: Tracks measured on the newest night of their host.
        changepoints: Of the present stretches of all tracks, better and worse.
    """

    flags: Flags
    lengths: NDArray[np.intp]
    judged: NDArray[np.bool_]
    changepoints: tuple[Changepoint, ...]


def own_past(evidence: Evidence, nights: Nights, policy: Policy) -> Past:
    """Flags of each track against its own level before."""
    import numpy as np

    present = _present_stretch(evidence, nights)
    packed, order = _packed(present)
    lengths = (~np.isnan(packed)).sum(axis=1)
    # Where nothing changed the reference is the median of the stretch: no flag, but an MDE.
    reference, sigma = _unchanged(packed, lengths, policy)
    changed = np.zeros(len(packed), dtype=bool)
    found: list[Changepoint] = []
    for row in _candidates(packed, lengths, nights, policy):
        levels = packed[row, packed.shape[1] - lengths[row] :]
        ends = change_points(levels, float(nights.delta[row]), policy)
        if not ends:
            continue
        days = nights.days[order[row, packed.shape[1] - lengths[row] :]]
        found += _told(row, levels, days, ends, float(nights.better[row]))
        before = levels[([0, *ends])[-2] : ends[-1]]
        reference[row, 0] = np.median(before)
        sigma[row, 0] = _sigma(before, policy)
        changed[row] = True
    flags = flag(nights, reference, sigma, policy)
    flags = replace(flags, flagged=flags.flagged & changed, now=flags.now & changed)
    return Past(flags, lengths, nights.judged, tuple(found))


def change_points(levels: Vector, delta: float, policy: Policy) -> list[int]:
    """
    Where new levels begin, ascending.

    Args:
        levels: Logarithms without gaps, in order.
        delta: Smallest relative change that matters.
    """
    ends = _segments(levels, policy)
    while ends:
        strengths = [_strength(levels, ends, i, delta, policy) for i in range(len(ends))]
        weakest = min(range(len(ends)), key=strengths.__getitem__)
        if strengths[weakest] >= 1:
            break
        del ends[weakest]
    return ends


def _segments(levels: Vector, policy: Policy) -> list[int]:
    """Optimal partitioning into segments of at least ``policy.segment`` nights."""
    import numpy as np

    n, least = len(levels), policy.segment
    centred = levels - np.median(levels)
    sums = np.concatenate([[0.0], np.cumsum(centred)])
    squares = np.concatenate([[0.0], np.cumsum(centred**2)])
    steps = np.abs(np.diff(levels))
    noise = max(float(np.median(steps)) / math.sqrt(2), policy.mad_floor) * MAD_TO_SIGMA
    price = policy.penalty * noise**2 * math.log(max(n, 2))
    cost = np.full(n + 1, np.inf)
    cost[0] = -price
    previous = [0] * (n + 1)
    for end in range(least, n + 1):
        starts = np.arange(end - least + 1)
        count = end - starts
        inside = squares[end] - squares[starts] - (sums[end] - sums[starts]) ** 2 / count
        total = cost[starts] + inside + price
        previous[end] = int(np.argmin(total))
        cost[end] = total[previous[end]]
    ends = []
    end = previous[n]
    while end > 0:
        ends.append(end)
        end = previous[end]
    return ends[::-1]


def _strength(levels: Vector, ends: list[int], i: int, delta: float, policy: Policy) -> float:
    """How far a change of level is beyond both gates; below 1 it is none."""
    import numpy as np

    bounds = [0, *ends, len(levels)]
    before, after = levels[bounds[i] : bounds[i + 1]], levels[bounds[i + 1] : bounds[i + 2]]
    away = abs(float(np.median(after) - np.median(before)))
    return min(away / math.log1p(delta), away / (policy.z * _sigma(before, policy)))


def _sigma(levels: Vector, policy: Policy) -> float:
    import numpy as np

    mad = float(np.median(np.abs(levels - np.median(levels))))
    return MAD_TO_SIGMA * max(mad, policy.mad_floor)


def _told(
    row: int, levels: Vector, days: NDArray[np.intp], ends: list[int], better: float
) -> Iterator[Changepoint]:
    import numpy as np

    from topobench import ranks

    bounds = [0, *ends, len(levels)]
    for start, middle, end in zip(bounds, bounds[1:], bounds[2:], strict=False):
        before, after = levels[start:middle], levels[middle:end]
        away = float(np.median(after) - np.median(before))
        yield Changepoint(
            track=row,
            lo=int(days[middle - 1]),
            hi=int(days[middle]),
            effect=better * math.expm1(better * away),
            p=ranks.mann_whitney_p(before.tolist(), after.tolist()),
        )


def _present_stretch(evidence: Evidence, nights: Nights) -> NDArray[np.float64]:
    """Levels with what lies before the last recorded change blanked."""
    import numpy as np

    if not len(nights.days):
        return nights.levels
    measured = ~np.isnan(nights.levels)
    last = np.where(measured, evidence.stretches, -1).max(axis=1)
    return np.where(evidence.stretches == last[:, None], nights.levels, np.nan)


def _packed(levels: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
    """Each row with its gaps moved to the front, and the columns the values came from."""
    import numpy as np

    order = np.argsort(~np.isnan(levels), axis=1, kind="stable")
    return np.take_along_axis(levels, order, axis=1), order


def _unchanged(
    packed: NDArray[np.float64], lengths: NDArray[np.intp], policy: Policy
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Median and spread of stretches that are long enough to be judged."""
    import numpy as np

    if not packed.shape[1]:
        empty = np.full((len(packed), 1), np.nan)
        return empty, empty.copy()
    middle = median(packed, axis=1)
    sigma = spread_of(packed, middle, policy, axis=1)
    middle = np.where(lengths >= 2 * policy.segment, middle, np.nan)
    return middle[:, None], sigma[:, None]


def _candidates(
    packed: NDArray[np.float64], lengths: NDArray[np.intp], nights: Nights, policy: Policy
) -> list[int]:
    """
    Tracks whose level may have changed: medians of three nights in a row that lie far apart.

    A change that passes the gates has a segment before and one after it whose medians differ
    by delta and by z times the smallest spread, so some three nights in each do.
    """
    import numpy as np

    if packed.shape[1] < 2 * policy.segment:
        return []
    a, b, c = packed[:, :-2], packed[:, 1:-1], packed[:, 2:]
    middles = np.maximum(np.minimum(a, b), np.minimum(np.maximum(a, b), c))
    with np.errstate(invalid="ignore"):
        apart = np.where(np.isnan(middles), -np.inf, middles).max(axis=1) - np.where(
            np.isnan(middles), np.inf, middles
        ).min(axis=1)
        least = policy.z * MAD_TO_SIGMA * policy.mad_floor
        far = apart >= np.maximum(np.log1p(nights.delta), least)
    return [int(i) for i in np.flatnonzero(far & (lengths >= 2 * policy.segment))]
