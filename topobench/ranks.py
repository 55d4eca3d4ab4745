"""
Rank statistics of two groups, or of paired blocks: shifts, ratios, p values. Pure.

Intervals come from the exact null distributions of the Mann-Whitney and the Wilcoxon
signed-rank statistic, so they hold for any continuous distribution; above the sizes named
below, from their normal approximations. numpy and scipy are imported where they are used.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from topobench.stats import CONFIDENCE, Estimate, finite, known_confidence

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

EXACT_PAIRS = 10_000
"""Pairs up to which the Mann-Whitney distribution is counted exactly."""
EXACT_BLOCKS = 100
"""Blocks up to which the signed-rank distribution is counted exactly."""
MAX_PAIRS = 20_000_000
"""Pairs that a shift may be made of: 160 MB."""

_PAIR_TO_SIGMA = 1.0483
"""Median of |x - y| of normal values -> standard deviation (Shamos 1976)."""


@dataclass(frozen=True, slots=True)
class SpreadRatio:
    """
    How much wider the second group's relative spread is than the first's.

    Args:
        ratio: Spread of b by spread of a; None if a has none.
        p: Brown-Forsythe p value of equal spreads; None if neither group has any.
    """

    ratio: float | None
    p: float | None


def shift(a: Sequence[float], b: Sequence[float], confidence: float = CONFIDENCE) -> Estimate:
    """
    How far b lies above a: Hodges-Lehmann, the median of all b_j - a_i.

    The interval holds if both groups differ by a shift only; it has no ends where the
    groups are too small for the confidence (:func:`shift_rank`).

    Raises:
        ValueError: A group is empty or holds a value that is not finite, or there are more
            than :data:`MAX_PAIRS` pairs.
    """
    import numpy as np

    a, b = finite(a, "first group"), finite(b, "second group")
    if len(a) * len(b) > MAX_PAIRS:
        raise ValueError(
            f"{len(a)} x {len(b)} pairs are too many; compare medians of processes, not samples"
        )
    pairs = np.subtract.outer(np.asarray(b), np.asarray(a)).ravel()
    return _centre(pairs, shift_rank(len(a), len(b), confidence), confidence)


def ratio(a: Sequence[float], b: Sequence[float], confidence: float = CONFIDENCE) -> Estimate:
    """
    How many times a b is: :func:`shift` of the logarithms.

    Raises:
        ValueError: As :func:`shift`, or a value is zero or below.
    """
    return _exponential(shift(_logs(a, "first group"), _logs(b, "second group"), confidence))


def centre(effects: Sequence[float], confidence: float = CONFIDENCE) -> Estimate:
    """
    Centre of per-block effects: Hodges-Lehmann, the median of all pairwise means.

    The interval is the signed-rank one; it holds if effects lie symmetrically about their
    centre, as differences within blocks do when arms differ by a shift.

    Raises:
        ValueError: No effect, or one that is not finite.
    """
    import numpy as np

    values = np.asarray(finite(effects, "effects"))
    if len(values) ** 2 > MAX_PAIRS:
        raise ValueError(f"{len(values)} effects are too many to be taken in pairs")
    rows, columns = np.triu_indices(len(values))
    means = (values[rows] + values[columns]) / 2
    return _centre(means, block_rank(len(values), confidence), confidence)


def paired_ratio(
    a: Sequence[float], b: Sequence[float], confidence: float = CONFIDENCE
) -> Estimate:
    """
    How many times a b is, block by block: :func:`centre` of the paired log ratios.

    Raises:
        ValueError: Groups of different sizes; otherwise as :func:`ratio`.
    """
    return _exponential(centre(log_ratios(a, b), confidence))


def log_ratios(a: Sequence[float], b: Sequence[float]) -> list[float]:
    """
    log(b_i / a_i) of each block.

    Raises:
        ValueError: Groups of different sizes, empty ones, or a value that is not above zero.
    """
    if len(a) != len(b):
        raise ValueError(f"{len(a)} and {len(b)} values cannot be paired block by block")
    return [y - x for x, y in zip(_logs(a, "first arm"), _logs(b, "second arm"), strict=True)]


def mann_whitney_p(a: Sequence[float], b: Sequence[float]) -> float:
    """
    Two-sided p value of "neither group tends to be larger".

    Exact without ties up to :data:`EXACT_PAIRS` pairs, else the normal approximation with
    correction for ties.

    Raises:
        ValueError: A group is empty or holds a value that is not finite.
    """
    from scipy.stats import mannwhitneyu

    a, b = finite(a, "first group"), finite(b, "second group")
    different = len({*a, *b})
    if different == 1:
        return 1.0
    exact = different == len(a) + len(b) and len(a) * len(b) <= EXACT_PAIRS
    return float(mannwhitneyu(a, b, method="exact" if exact else "asymptotic").pvalue)


def signed_rank_p(effects: Sequence[float]) -> float:
    """
    Two-sided p value of "effects lie symmetrically about zero" (Wilcoxon, zeros by Pratt).

    Raises:
        ValueError: No effect, or one that is not finite.
    """
    from scipy.stats import wilcoxon

    effects = finite(effects, "effects")
    if not any(effects):
        return 1.0
    sizes = {abs(x) for x in effects}
    exact = len(sizes) == len(effects) <= EXACT_BLOCKS and 0.0 not in sizes
    method = "exact" if exact else "asymptotic"
    return float(wilcoxon(effects, zero_method="pratt", method=method).pvalue)


def spread_ratio(a: Sequence[float], b: Sequence[float]) -> SpreadRatio:
    """
    Whether b varies more, or less, than a, each relative to its own middle.

    The ratio is of :func:`log_spread`; p is Brown-Forsythe's: an analysis of variance of the
    distances from the group medians, of logarithms.

    Raises:
        ValueError: A group has fewer than 3 values, or one that is not above zero.
    """
    from scipy.stats import levene

    a, b = (
        finite(group, name, at_least=3, positive=True)
        for group, name in ((a, "first group"), (b, "second group"))
    )
    spread_a, spread_b = log_spread([a]), log_spread([b])
    logs = [[math.log(x) for x in group] for group in (a, b)]
    varies = any(len(set(group)) > 1 for group in logs)
    return SpreadRatio(
        ratio=spread_b / spread_a if spread_a > 0 else None,
        p=float(levene(*logs, center="median").pvalue) if varies else None,
    )


def log_spread(groups: Iterable[Sequence[float]]) -> float:
    """
    Standard deviation of the logarithms inside groups, pooled; about the variation ratio.

    Shamos: the median distance between two values of one group. Needs no centre, so groups
    of 6 are not judged too calm, as they are by the median absolute deviation.

    Raises:
        ValueError: No group has two values, or a value is not above zero.
    """
    import numpy as np

    distances = []
    for group in groups:
        logs = np.asarray(_logs(group, "group"))
        rows, columns = np.triu_indices(len(logs), k=1)
        distances.append(np.abs(logs[rows] - logs[columns]))
    pooled = np.concatenate(distances) if distances else np.empty(0)
    if not pooled.size:
        raise ValueError("a spread needs a group of at least two values")
    return float(_PAIR_TO_SIGMA * np.median(pooled))


def benjamini_hochberg(p_values: Sequence[float]) -> list[float]:
    """
    Adjusted p values, in the order given.

    Taking those of at most q as found keeps the expected share of false ones among them at
    q or below, for p values that are independent or positively dependent.

    Raises:
        ValueError: A p value is not between 0 and 1.
    """
    if not p_values:
        return []
    for place, p in enumerate(finite(p_values, "p values")):
        if not 0 <= p <= 1:
            raise ValueError(f"p value {place} is {p:g}; it must be between 0 and 1")
    adjusted = [1.0] * len(p_values)
    least = 1.0
    descending = sorted(range(len(p_values)), key=lambda i: -p_values[i])
    for rank, place in zip(range(len(p_values), 0, -1), descending, strict=True):
        least = min(least, p_values[place] * len(p_values) / rank)
        adjusted[place] = least
    return adjusted


@functools.lru_cache(maxsize=1024)
def shift_rank(n: int, m: int, confidence: float = CONFIDENCE) -> int | None:
    """
    Rank (from 1) of the pair difference that bounds a shift, counted from either end.

    None where even the extremes do not reach the confidence (3 against 3 at 95 %).
    """
    known_confidence(confidence)
    if n * m <= EXACT_PAIRS:
        counts = _mann_whitney_counts(min(n, m), max(n, m))
        return _tail_rank(counts, math.comb(n + m, n), confidence)
    return _normal_rank(n * m / 2, n * m * (n + m + 1) / 12, confidence)


@functools.lru_cache(maxsize=1024)
def block_rank(n: int, confidence: float = CONFIDENCE) -> int | None:
    """
    Rank (from 1) of the pairwise mean that bounds a centre, counted from either end.

    None where even the extremes do not reach the confidence (5 blocks at 95 %).
    """
    known_confidence(confidence)
    if n <= EXACT_BLOCKS:
        return _tail_rank(_signed_rank_counts(n), 2**n, confidence)
    return _normal_rank(n * (n + 1) / 4, n * (n + 1) * (2 * n + 1) / 24, confidence)


def _mann_whitney_counts(n: int, m: int) -> list[int]:
    """Ways to get U = 0, 1, ... n m / 2: coefficients of the Gaussian binomial."""
    counts = [1] + [0] * (n * m // 2)
    for i in range(1, n + 1):
        for u in range(len(counts) - 1, m + i - 1, -1):
            counts[u] -= counts[u - m - i]
        for u in range(i, len(counts)):
            counts[u] += counts[u - i]
    return counts


def _signed_rank_counts(n: int) -> list[int]:
    """Ways to get a rank sum of 0, 1, ... half the largest."""
    counts = [1] + [0] * (n * (n + 1) // 4)
    for rank in range(1, n + 1):
        for total in range(len(counts) - 1, rank - 1, -1):
            counts[total] += counts[total - rank]
    return counts


def _tail_rank(counts: list[int], total: int, confidence: float) -> int | None:
    """The number of values, from the lowest, that both tails together may leave out."""
    # Whole numbers, scaled by a million, keep it exact.
    allowed = (10**6 - round(confidence * 10**6)) * total
    tail = rank = 0
    for count in counts:
        tail += count
        if 2 * tail * 10**6 > allowed:
            break
        rank += 1
    return rank or None


def _normal_rank(mean: float, variance: float, confidence: float) -> int:
    quantile = statistics.NormalDist().inv_cdf((1 + confidence) / 2)
    return math.floor(mean + 0.5 - quantile * math.sqrt(variance))


def _centre(pairs: NDArray[np.float64], rank: int | None, confidence: float) -> Estimate:
    """Median of the pairs and the two of them at that rank from either end."""
    import numpy as np

    middle = float(np.median(pairs))
    if rank is None:
        return Estimate(middle, None, None, confidence)
    ends = np.partition(pairs, [rank - 1, len(pairs) - rank])
    return Estimate(middle, float(ends[rank - 1]), float(ends[-rank]), confidence)


def _logs(values: Sequence[float], what: str) -> list[float]:
    return [math.log(x) for x in finite(values, what, positive=True)]


def _exponential(log: Estimate) -> Estimate:
    return Estimate(
        math.exp(log.value),
        None if log.lo is None else math.exp(log.lo),
        None if log.hi is None else math.exp(log.hi),
        log.confidence,
    )
