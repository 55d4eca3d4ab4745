"""
Comparing two groups against a tolerance, and what a comparison is able to see. Pure.

A verdict rests on the interval of the effect, never on a p value: ``regressed`` and
``improved`` need the whole interval beyond the tolerance, ``equivalent`` the whole interval
inside it. What is left is ``inconclusive``, with the reason. Only variation between
processes (or nights) can decide; samples of one process cannot.
"""

from __future__ import annotations

import enum
import functools
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from topobench import ranks
from topobench.reading import Better, CiLevel
from topobench.stats import CONFIDENCE, Estimate, finite, known_confidence

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MIN_PROCESSES = 6
"""Processes (or nights, or blocks) a side, below which nothing is decided."""
POWER = 0.9

_SIMULATED = 10_000
"""Simulated comparisons behind a detectable shift."""
_LARGE_GROUP = 25
"""Size of the smaller group from which the formula for large groups serves."""
_CHUNK = 4_000_000
"""Numbers held at once while simulating: 32 MB."""
_SEED = 20_261_129


class Change(enum.StrEnum):
    """The word for a comparison."""

    REGRESSED = "regressed"
    IMPROVED = "improved"
    EQUIVALENT = "equivalent"
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True, slots=True)
class Comparison:
    """
    How b differs from a, and whether that matters.

    Args:
        effect_ratio: Relative change of b from a, turned so that negative is worse:
            -0.03 = 3 % less bandwidth, or 3 % more latency.
        lo: Lower end of its interval; None if there is none.
        hi: Upper end of its interval.
        mde: Minimum detectable effect: a true change of this size, either way, is called
            regressed or improved with probability ``power``, judged by the spread seen.
            None where nothing could be decided at all.
        p: p value of "no difference"; for the record, it decides nothing.
        level: What the values were: ``between`` processes, or ``within`` one.
    """

    effect_ratio: float
    lo: float | None
    hi: float | None
    mde: float | None
    verdict: Change
    reason: str
    n_a: int
    n_b: int
    tolerance: float
    p: float | None = None
    level: CiLevel = CiLevel.BETWEEN
    confidence: float = CONFIDENCE
    power: float = POWER


@dataclass(frozen=True, slots=True)
class _Rule:
    """How a comparison is decided."""

    tolerance: float
    better: Better
    level: CiLevel
    confidence: float
    power: float

    def __post_init__(self) -> None:
        if not 0 <= self.tolerance < 1:
            raise ValueError(
                f"tolerance {self.tolerance} must be at least 0 and below 1, such as 0.03"
            )
        if self.better is Better.NEITHER:
            raise ValueError("a metric that is good in neither direction cannot be judged")
        known_confidence(self.confidence)
        if not 0 < self.power < 1:
            raise ValueError(f"power {self.power} must be between 0 and 1, such as 0.9")


def compare(
    a: Sequence[float],
    b: Sequence[float],
    *,
    tolerance: float,
    better: Better,
    level: CiLevel,
    confidence: float = CONFIDENCE,
    power: float = POWER,
    with_p: bool = True,
) -> Comparison:
    """
    Compare two independent groups by the Hodges-Lehmann shift of their logarithms.

    Args:
        a: Reference: medians of processes (``between``) or samples of one (``within``).
        b: What is judged.
        tolerance: Largest relative change that does not matter (0.03 = 3 %).
        better: Which direction of the metric is good.
        with_p: False leaves the p value out, which decides nothing and takes the longest.

    Raises:
        ValueError: An empty group, a value that is not above zero, a tolerance outside
            0 <= tolerance < 1, a metric without a good direction.
    """
    rule = _Rule(tolerance, better, level, confidence, power)
    estimate = ranks.ratio(a, b, confidence)
    sizes = (len(a), len(b))
    refusal = _refusal(sizes, estimate, level)
    if refusal:
        return _undecided(estimate, sizes, rule, refusal)
    return _decided(
        estimate,
        sizes,
        rule,
        shift=detectable_shift(*sizes, confidence, power),
        spread=ranks.log_spread([a, b]),
        p=ranks.mann_whitney_p(a, b) if with_p else None,
    )


def compare_paired(
    a: Sequence[float],
    b: Sequence[float],
    *,
    tolerance: float,
    better: Better,
    confidence: float = CONFIDENCE,
    power: float = POWER,
    with_p: bool = True,
) -> Comparison:
    """
    Compare two arms block by block, by the signed-rank interval of paired log ratios.

    ``a[i]`` and ``b[i]`` are the medians of the two arms' processes in block i. Drift that
    mirrored blocks cancel does not widen the interval. Arguments and errors as
    :func:`compare`.

    Raises:
        ValueError: As :func:`compare`, or groups of different sizes.
    """
    rule = _Rule(tolerance, better, CiLevel.BETWEEN, confidence, power)
    effects = ranks.log_ratios(a, b)
    estimate = ranks.paired_ratio(a, b, confidence)
    sizes = (len(a), len(b))
    refusal = _refusal(sizes, estimate, rule.level)
    if refusal:
        return _undecided(estimate, sizes, rule, refusal)
    return _decided(
        estimate,
        sizes,
        rule,
        shift=detectable_centre(len(effects), confidence, power),
        spread=ranks.log_spread([[math.exp(x) for x in effects]]),
        p=ranks.signed_rank_p(effects) if with_p else None,
    )


def detectable_effect(
    n_a: int,
    n_b: int,
    variation: float,
    *,
    tolerance: float = 0.0,
    confidence: float = CONFIDENCE,
    power: float = POWER,
) -> float | None:
    """
    Minimum detectable effect of a comparison that is still to be made.

    Args:
        n_a: Processes of the reference.
        n_b: Processes of what is judged.
        variation: Coefficient of variation between processes (0.01 = 1 %).

    Returns:
        Relative change; None if groups of these sizes cannot decide anything.

    Raises:
        ValueError: Negative variation, or tolerance, confidence or power out of range.
    """
    _Rule(tolerance, Better.HIGHER, CiLevel.BETWEEN, confidence, power)
    if finite([variation], "variation")[0] < 0:
        raise ValueError(f"variation {variation} must not be negative")
    if min(n_a, n_b) < MIN_PROCESSES:
        return None
    return _mde(detectable_shift(n_a, n_b, confidence, power), variation, tolerance)


@functools.lru_cache(maxsize=1024)
def detectable_shift(
    n: int, m: int, confidence: float = CONFIDENCE, power: float = POWER
) -> float | None:
    """
    Shift, in standard deviations, that the interval of :func:`ranks.shift` excludes zero for.

    It does so with probability ``power``, or a little more, for normal values. The lower end
    moves with the shift, so its distribution without one tells all: simulated for small
    groups, by the formula for large ones (asymptotic efficiency 3 / pi). None where the
    groups are too small for the confidence.
    """
    rank = ranks.shift_rank(n, m, confidence)
    if rank is None:
        return None
    if min(n, m) >= _LARGE_GROUP:
        return _large_shift(1 / n + 1 / m, min(n, m), confidence, power)

    def pairs(generator: np.random.Generator, rows: int) -> NDArray[np.float64]:
        a = generator.standard_normal((rows, n, 1))
        b = generator.standard_normal((rows, 1, m))
        return (b - a).reshape(rows, -1)

    return _simulated_shift(pairs, n * m, rank, power)


@functools.lru_cache(maxsize=1024)
def detectable_centre(n: int, confidence: float = CONFIDENCE, power: float = POWER) -> float | None:
    """The same as :func:`detectable_shift` for the centre of n per-block effects."""
    import numpy as np

    rank = ranks.block_rank(n, confidence)
    if rank is None:
        return None
    if n >= 2 * _LARGE_GROUP:
        return _large_shift(1 / n, n, confidence, power)
    rows_of, columns_of = np.triu_indices(n)

    def pairs(generator: np.random.Generator, rows: int) -> NDArray[np.float64]:
        effects = generator.standard_normal((rows, n))
        return (effects[:, rows_of] + effects[:, columns_of]) / 2

    return _simulated_shift(pairs, n * (n + 1) // 2, rank, power)


def _large_shift(variance: float, smaller: int, confidence: float, power: float) -> float:
    """Noether's formula for normal values, a little raised: it is the limit, from below."""
    quantile = statistics.NormalDist().inv_cdf
    both = quantile((1 + confidence) / 2) + quantile(power)
    return both * math.sqrt(variance * math.pi / 3) * (1 + 1 / smaller)


def _simulated_shift(
    pairs: Callable[[np.random.Generator, int], NDArray[np.float64]],
    width: int,
    rank: int,
    power: float,
) -> float:
    """The shift that lifts the lower end above zero in a share ``power`` of simulations."""
    import numpy as np

    generator = np.random.default_rng(_SEED)
    rows = max(1, _CHUNK // width)
    ends: list[NDArray[np.float64]] = []
    for done in range(0, _SIMULATED, rows):
        values = pairs(generator, min(rows, _SIMULATED - done))
        ends.append(np.partition(values, rank - 1, axis=1)[:, rank - 1])
    # Two standard errors to the safe side: the power promised is a lower bound.
    missed = (1 - power) - 2 * math.sqrt(power * (1 - power) / _SIMULATED)
    return float(-np.quantile(np.concatenate(ends), max(missed, 0.0)))


def _mde(shift: float | None, spread: float, tolerance: float) -> float | None:
    """The rise whose interval clears the tolerance; a fall needs a little less."""
    if shift is None:
        return None
    return (1 + tolerance) * math.exp(shift * spread) - 1


def _refusal(sizes: tuple[int, int], estimate: Estimate, level: CiLevel) -> str | None:
    """Why nothing may be decided on these groups, or None."""
    if level is CiLevel.WITHIN:
        return (
            "samples of one process a side: how much processes differ is unknown; "
            f"measure at least {MIN_PROCESSES} processes a side"
        )
    if min(sizes) < MIN_PROCESSES:
        return (
            f"{sizes[0]} against {sizes[1]} processes or blocks; "
            f"at least {MIN_PROCESSES} a side are needed"
        )
    if estimate.lo is None:
        return (
            f"{sizes[0]} against {sizes[1]} values cannot give "
            f"{100 * estimate.confidence:.4g} % confidence"
        )
    return None


def _undecided(estimate: Estimate, sizes: tuple[int, int], rule: _Rule, reason: str) -> Comparison:
    return Comparison(
        effect_ratio=rule.better * (estimate.value - 1),
        lo=None,
        hi=None,
        mde=None,
        verdict=Change.INCONCLUSIVE,
        reason=reason,
        n_a=sizes[0],
        n_b=sizes[1],
        tolerance=rule.tolerance,
        level=rule.level,
        confidence=rule.confidence,
        power=rule.power,
    )


def _decided(
    estimate: Estimate,
    sizes: tuple[int, int],
    rule: _Rule,
    *,
    shift: float | None,
    spread: float,
    p: float | None,
) -> Comparison:
    """Lay the interval against the tolerance."""
    ends = [rule.better * (end - 1) for end in (estimate.lo, estimate.hi) if end is not None]
    verdict, reason = _word(min(ends), max(ends), rule.tolerance)
    return replace(
        _undecided(estimate, sizes, rule, reason),
        lo=min(ends),
        hi=max(ends),
        mde=_mde(shift, spread, rule.tolerance),
        verdict=verdict,
        p=p,
    )


def _word(lo: float, hi: float, tolerance: float) -> tuple[Change, str]:
    """The verdict on an interval whose negative side is worse, and why."""
    allowed = f"the tolerance of {100 * tolerance:.3g} %"
    found = f"the interval, {100 * lo:+.2f} % to {100 * hi:+.2f} %,"
    if hi < -tolerance:
        return Change.REGRESSED, f"all of {found} is worse than {allowed}"
    if lo > tolerance:
        return Change.IMPROVED, f"all of {found} is better than {allowed}"
    if -tolerance <= lo and hi <= tolerance:
        return Change.EQUIVALENT, f"all of {found} lies within {allowed}"
    return Change.INCONCLUSIVE, f"{found} crosses {allowed}; more processes would narrow it"
