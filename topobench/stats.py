"""
Statistics of the samples of one process. Pure; standard library only.

Exact and free of distribution assumptions. :mod:`topobench.ranks` compares two groups,
:mod:`topobench.comparison` decides.

A sample list holds the warm-ups first, then the samples that count; nothing is dropped
from what is stored. Percentiles are values that were measured, never interpolated.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from topobench.errors import ResultInvalid
from topobench.reading import CiLevel, ReasonCode, Summary

CONFIDENCE = 0.95
BANDWIDTH_TOLERANCE = 0.01
"""Half-width of the interval, as a share of the median, at which bandwidths converged."""
LATENCY_TOLERANCE = 0.02
N_MIN = 20
"""Samples before the first look at the interval."""
LOOK_EVERY = 10
"""Samples between looks; each look costs coverage, so they are few."""
WARMUP_WINDOW = 10
"""Latest samples a warm-up is judged by."""
P90_MIN_N = 10
P99_MIN_N = 299
"""Fewer samples give no 95 % upper bound for the 99th percentile."""

_MAD_TO_SIGMA = 1.4826


@dataclass(frozen=True, slots=True)
class Estimate:
    """
    A value with its interval, in the value's unit.

    Args:
        lo: Lower end; None where the data do not bound it at this confidence.
        hi: Upper end; None likewise.
    """

    value: float
    lo: float | None
    hi: float | None
    confidence: float = CONFIDENCE


def finite(
    values: Iterable[float], what: str, *, at_least: int = 1, positive: bool = False
) -> list[float]:
    """
    The values as a list, once they are known to be fit for statistics.

    Raises:
        ValueError: Fewer than ``at_least``, a NaN or an infinity, or, where ``positive``
            (logarithms and ratios), a value of zero or below. ``what`` names them.
    """
    listed = list(map(float, values))
    if len(listed) < at_least:
        raise ValueError(f"{what}: {len(listed)} values; at least {at_least} are needed")
    if not all(map(math.isfinite, listed)):
        place, bad = next((i, x) for i, x in enumerate(listed) if not math.isfinite(x))
        raise ValueError(f"{what}: value {place} is {bad}; only finite numbers can be used")
    if positive and min(listed, default=1.0) <= 0:
        place, bad = next((i, x) for i, x in enumerate(listed) if x <= 0)
        raise ValueError(f"{what}: value {place} is {bad:g}; ratios need values above zero")
    return listed


def known_confidence(confidence: float) -> float:
    """
    The confidence, once it is known to be one.

    Raises:
        ValueError: It is not between 0 and 1.
    """
    if not 0 < confidence < 1:
        raise ValueError(f"confidence {confidence} must be between 0 and 1, such as 0.95")
    return confidence


def summarise(
    samples: Sequence[float],
    *,
    warmups: int = 0,
    stop_reason: str = "fixed",
    ci_level: CiLevel = CiLevel.WITHIN,
) -> Summary:
    """
    Summarise samples in their own unit.

    Args:
        samples: In measured order; the first ``warmups`` of them do not count.

    Raises:
        ResultInvalid: ``invalid_value``: a sample is NaN or infinite.
        ValueError: No sample is left after the warm-ups.
    """
    counted = samples[warmups:]
    if not counted:
        raise ValueError(f"nothing to summarise: {len(samples)} samples, {warmups} warm-ups")
    if not all(map(math.isfinite, samples)):
        raise ResultInvalid(ReasonCode.INVALID_VALUE, "a sample is not a finite number")
    low_high = interval(counted)
    return Summary(
        n=len(counted),
        median=statistics.median(counted),
        minimum=min(counted),
        maximum=max(counted),
        mad=mad(counted),
        ci_lo=low_high[0] if low_high else None,
        ci_hi=low_high[1] if low_high else None,
        ci_level=ci_level,
        p90=percentile(counted, 0.90) if len(counted) >= P90_MIN_N else None,
        p99=percentile(counted, 0.99) if len(counted) >= P99_MIN_N else None,
        warmups=warmups,
        stop_reason=stop_reason,
    )


def mad(samples: Sequence[float]) -> float:
    """
    Median absolute deviation from the median, unscaled.

    Raises:
        ValueError: No sample, or one that is not finite.
    """
    samples = finite(samples, "samples")
    middle = statistics.median(samples)
    return statistics.median(abs(x - middle) for x in samples)


def percentile(samples: Sequence[float], share: float) -> float:
    """
    The smallest sample that at least ``share`` of all samples do not exceed.

    Raises:
        ValueError: No sample, one that is not finite, or a share outside 0 < share <= 1.
    """
    samples = finite(samples, "samples")
    if not 0 < share <= 1:
        raise ValueError(f"share {share} of a percentile must be above 0 and at most 1")
    # Rounded first: 0.9 * 10 must be 9, whatever the binary fraction says.
    rank = math.ceil(round(share * len(samples), 9))
    return sorted(samples)[max(rank, 1) - 1]


@functools.lru_cache(maxsize=4096)
def interval_ranks(n: int, confidence: float = CONFIDENCE) -> tuple[int, int] | None:
    """
    Ranks (from 1) of the order statistics that enclose the median.

    The narrowest symmetric pair whose coverage is at least ``confidence`` for any
    continuous distribution: exact binomial, P(fewer than k of n below the median).
    None where even the extremes do not reach it (n < 6 at 95 %).

    Raises:
        ValueError: The confidence is not between 0 and 1.
    """
    known_confidence(confidence)
    # Integers keep it exact: tail * 2 <= (1 - confidence) * 2^n, scaled by a million.
    allowed = (10**6 - round(confidence * 10**6)) << n
    term = tail = 1
    k = 0
    while 2 * tail * 10**6 <= allowed:
        k += 1
        term = term * (n - k + 1) // k
        tail += term
    return (k, n + 1 - k) if k else None


def interval(
    samples: Sequence[float], confidence: float = CONFIDENCE
) -> tuple[float, float] | None:
    """
    Order-statistic interval of the median; None with too few samples.

    Raises:
        ValueError: A sample is not finite, or the confidence is not between 0 and 1.
    """
    ranks = interval_ranks(len(samples), confidence)
    if ranks is None:
        return None
    ordered = sorted(finite(samples, "samples"))
    return ordered[ranks[0] - 1], ordered[ranks[1] - 1]


def relative_half_width(samples: Sequence[float]) -> float | None:
    """Half the interval's width as a share of the median; None if either is missing or 0."""
    if not all(map(math.isfinite, samples)):
        return None  # sampling goes on; the summary says what is wrong
    low_high = interval(samples)
    middle = statistics.median(samples) if samples else 0.0
    if low_high is None or middle == 0:
        return None
    return (low_high[1] - low_high[0]) / 2 / abs(middle)


def is_steady(samples: Sequence[float], tolerance: float) -> bool:
    """
    Whether the two halves of the samples agree.

    Their medians may differ by ``tolerance`` of the median, or by what the noise inside
    the halves explains if that is more. Fewer than 6 samples are never steady.
    """
    if len(samples) < 6:
        return False
    half = len(samples) // 2
    first, second = samples[:half], samples[-half:]
    early, late = statistics.median(first), statistics.median(second)
    noise = statistics.median([*(abs(x - early) for x in first), *(abs(x - late) for x in second)])
    # Medians of halves of m normal values differ by sd 1.77 sigma / sqrt(m); twice that.
    explained = 2 * 1.77 * _MAD_TO_SIGMA * noise / math.sqrt(half)
    return abs(early - late) <= max(tolerance * abs(late), explained)


def warmed_up(samples: Sequence[float], tolerance: float) -> bool:
    """Whether a warm-up may end: the latest :data:`WARMUP_WINDOW` samples are steady."""
    return len(samples) >= WARMUP_WINDOW and is_steady(samples[-WARMUP_WINDOW:], tolerance)


def should_stop(samples: Sequence[float], tolerance: float, *, n_min: int = N_MIN) -> bool:
    """
    Whether sampling converged: the interval's half-width is below ``tolerance``.

    Looks only at ``n_min`` samples and every :data:`LOOK_EVERY` after that; between
    looks, and for samples that still drift, the answer is no.
    """
    n = len(samples)
    if n < n_min or (n - n_min) % LOOK_EVERY:
        return False
    width = relative_half_width(samples)
    return width is not None and width < tolerance and is_steady(samples, tolerance)


def end_reason(samples: Sequence[float], tolerance: float, otherwise: str) -> str:
    """Why sampling that did not converge ended: ``drift`` if the halves differ, else as given."""
    if len(samples) >= N_MIN and not is_steady(samples, tolerance):
        return "drift"
    return otherwise
