"""
From numbers of nights to flags: logarithms, last measured nights, both gates. Pure.

Everything is an array over tracks, so that a fleet is judged in one go. Levels are logarithms
turned so that lower is always worse.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from topobench.verdict_words import Evidence, Track

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from topobench.policy import Policy
    from topobench.verdict_words import Indices, Matrix

    Mask = NDArray[np.bool_]

MAD_TO_SIGMA = 1.4826
_POWER_OF_NIGHTS = 0.857
"""Two of three nights agree with probability 0.9 if each does with 0.804: this quantile."""


@dataclass(frozen=True, slots=True)
class Nights:
    """
    The evidence as arrays.

    Args:
        levels: Tracks x nights: better * log(value); NaN where not measured.
        recent: Tracks x ``policy.nights``: columns of the last measured nights, newest
            last; -1 where there are fewer.
        better: 1 or -1 by track.
        delta: Smallest relative change that matters, by track.
        host: Index of the host by track.
        tonight: Newest measured column by host; -1 where there is none.
        judged: Tracks measured on the newest night of their host.
    """

    levels: Matrix
    days: Indices
    recent: Indices
    better: Matrix
    delta: Matrix
    host: Indices
    tonight: Indices
    judged: Mask


@dataclass(frozen=True, slots=True)
class Flags:
    """
    What the gates say, by track.

    Args:
        nights: Recent nights that could be judged.
        confirmed: Those of them that fail both gates.
        flagged: ``confirm`` or more of them do.
        now: The newest one does.
        effect: What ``confirm`` nights agree on: the effect that so many reach or exceed.
            NaN with fewer nights.
        last: Effect of the newest night.
        reference: Level compared with on that night.
    """

    nights: Indices
    confirmed: Indices
    flagged: Mask
    now: Mask
    effect: Matrix
    last: Matrix
    reference: Matrix
    mde: Matrix


def arrange(evidence: Evidence, policy: Policy) -> Nights:
    """The arrays of tracks that the policy judges; others have a delta of NaN."""
    import numpy as np

    tracks = evidence.tracks
    better = np.array([t.better for t in tracks], dtype=np.float64)
    host = np.array([t.host for t in tracks], dtype=np.intp)
    delta = np.array([policy.delta(t.unit) or math.nan for t in tracks], dtype=np.float64)
    fresh = evidence.days >= evidence.as_of_day - policy.stale_days
    with np.errstate(invalid="ignore", divide="ignore"):
        levels = better[:, None] * np.log(evidence.values)
    levels[~np.isfinite(levels)] = np.nan
    recent = _recent(~np.isnan(levels), policy.nights)
    tonight = np.full(len(evidence.hosts), -1, dtype=np.intp)
    np.maximum.at(tonight, host, recent[:, -1])
    if len(fresh):
        tonight[~fresh[tonight]] = -1
    judged = (recent[:, -1] >= 0) & (recent[:, -1] == tonight[host]) & ~np.isnan(delta)
    return Nights(levels, evidence.days, recent, better, delta, host, tonight, judged)


def _recent(measured: Mask, count: int) -> Indices:
    """Columns of the last ``count`` True of each row, ascending; -1 in front where missing."""
    import numpy as np

    rows, columns = measured.shape
    found = np.full((rows, count), -1, dtype=np.intp)
    if not columns:
        return found
    left = np.where(measured, np.arange(columns), -1)
    for place in range(count - 1, -1, -1):
        newest = left.max(axis=1)
        found[:, place] = newest
        left[np.arange(rows), newest] = -1
    return found


def recent_levels(nights: Nights) -> Matrix:
    """Levels of the recent nights; NaN where there are fewer."""
    import numpy as np

    taken = np.take_along_axis(nights.levels, np.maximum(nights.recent, 0), axis=1)
    taken[nights.recent < 0] = np.nan
    return taken


def flag(nights: Nights, reference: Matrix, sigma: Matrix, policy: Policy) -> Flags:
    """
    Lay the gates against references.

    Args:
        reference: Tracks x recent nights, or tracks x 1; NaN abstains.
        sigma: The same shape: robust standard deviation of the reference.
    """
    import numpy as np

    levels = recent_levels(nights)
    reference, sigma = np.broadcast_arrays(reference, sigma, levels)[:2]
    away = levels - reference
    with np.errstate(invalid="ignore", divide="ignore"):
        effects = nights.better[:, None] * np.expm1(nights.better[:, None] * away)
        beyond = (away / sigma < -policy.z) & (effects < -nights.delta[:, None])
    beyond &= nights.judged[:, None]
    confirmed = beyond.sum(axis=1)
    agreed = np.sort(effects, axis=1)[:, policy.confirm - 1]  # NaN sorts last
    spread = np.maximum(policy.z * sigma[:, -1], nights.delta)
    return Flags(
        nights=np.where(nights.judged, (~np.isnan(away)).sum(axis=1), 0),
        confirmed=confirmed,
        flagged=confirmed >= policy.confirm,
        now=beyond[:, -1],
        effect=agreed,
        last=effects[:, -1],
        reference=reference[:, -1],
        mde=np.expm1(spread + _POWER_OF_NIGHTS * sigma[:, -1]),
    )


def in_unit(level: float, track: Track) -> float | None:
    """A level in the unit of its metric."""
    return None if math.isnan(level) else math.exp(track.better * level)


def median(values: Matrix, axis: int = 0) -> Matrix:
    """Median without the NaN; NaN of nothing."""
    import numpy as np

    ordered = np.sort(values, axis=axis)
    count = (~np.isnan(ordered)).sum(axis=axis, keepdims=True)
    low = np.take_along_axis(ordered, np.maximum((count - 1) // 2, 0), axis=axis)
    high = np.take_along_axis(ordered, np.minimum(count // 2, values.shape[axis] - 1), axis=axis)
    return np.squeeze(np.where(count > 0, (low + high) / 2, np.nan), axis=axis)


def spread_of(values: Matrix, middle: Matrix, policy: Policy, axis: int = 0) -> Matrix:
    """Robust standard deviation about a middle, not below the policy's floor."""
    import numpy as np

    away = np.abs(values - np.expand_dims(middle, axis))
    mad = median(away, axis)
    return MAD_TO_SIGMA * np.maximum(mad, policy.mad_floor)
