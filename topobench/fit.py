"""
Models of time against size: t = alpha + S / beta. Pure.

``alpha`` is what an operation costs whatever its size, ``beta`` the bandwidth that large
ones approach. Errors are relative: over six decades of sizes, 1 % of a microsecond counts
as much as 1 % of a second. numpy and scipy are imported where they are used.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from topobench.reading import CiLevel
from topobench.stats import CONFIDENCE, Estimate, finite, interval, known_confidence

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MIN_SIZES = 5
"""Different sizes a fit needs."""
PEAK_SHARE = 0.95

K = TypeVar("K", bound=Hashable)
Point = tuple[K, tuple[int, int], int, float]
"""What a time is of, block and number of its process, bytes, and seconds."""

_HUBER = 1.345
"""Residuals beyond this many spreads count less; 95 % efficient with normal noise."""
_NEAR_HALF = 0.05
"""A size that is this near to half of a bandwidth neither reaches nor misses it."""
_MAD_TO_SIGMA = 1.4826
_MAX_ROUNDS = 200


@dataclass(frozen=True, slots=True)
class _Line:
    """
    A fitted line alpha + slope x size.

    Args:
        covariance: Of alpha and slope (2, 2).
        residuals: Relative, of each point.
        spread: Robust standard deviation of the residuals.
        free: Degrees of freedom; points whose weight was cut give none.
    """

    alpha: float
    slope: float
    covariance: NDArray[np.float64]
    residuals: NDArray[np.float64]
    spread: float
    free: float


@dataclass(frozen=True, slots=True)
class AlphaBeta:
    """
    The line t = alpha + S / beta, with intervals.

    Args:
        alpha_seconds: Time at size 0; zero or below if it drowns in the noise of the sizes
            measured. The lower end is None where alpha could be zero.
        beta_bytes_per_second: Bandwidth at infinite size. The upper end is None where the
            sizes are too small to bound it.
        n_half_bytes: alpha x beta, the size at which half of beta is reached; None where no
            alpha was seen or a size that was measured says otherwise, and without ends where
            alpha or beta lacks one.
        level: ``within`` one process, or ``between`` the fits of several.
        n: Points, or fits if ``between``.
        residual_ratio: Robust spread of the points about the line, relative.
        worst_bytes: Size of the point farthest from the line.
        worst_ratio: Its time by the line's, minus 1. Far beyond the spread of samples, it
            says that the line is not the curve: a protocol changes, a cache ends.
        smallest_bytes: Range of the sizes; the line says nothing outside.
        largest_bytes: Its upper end.
    """

    alpha_seconds: Estimate
    beta_bytes_per_second: Estimate
    n_half_bytes: Estimate | None
    level: CiLevel
    n: int
    residual_ratio: float
    worst_bytes: float
    worst_ratio: float
    smallest_bytes: float
    largest_bytes: float

    def seconds(self, size_bytes: float) -> float:
        """
        Time of one size by the line.

        Raises:
            ValueError: The size lies outside those that were fitted.
        """
        if not self.smallest_bytes <= size_bytes <= self.largest_bytes:
            raise ValueError(
                f"{size_bytes:g} bytes lie outside the fitted sizes, "
                f"{self.smallest_bytes:g} to {self.largest_bytes:g}"
            )
        return self.alpha_seconds.value + size_bytes / self.beta_bytes_per_second.value


def fit_alpha_beta(
    sizes: Sequence[float], seconds: Sequence[float], confidence: float = CONFIDENCE
) -> AlphaBeta:
    """
    Fit t = alpha + S / beta to the median times of one process.

    Least squares of relative residuals with Huber's weights, so that a few odd sizes move
    little. The intervals are Student's with the spread of the points about the line.

    Args:
        sizes: Bytes of each point; sizes may repeat.
        seconds: Time of each point.

    Raises:
        ValueError: Fewer than :data:`MIN_SIZES` sizes, lists of different lengths, a value
            that is not above zero, or times that do not grow with size.
    """
    import numpy as np
    from scipy.special import stdtrit

    known_confidence(confidence)
    x, t = _points(sizes, seconds)
    line = _huber_line(x, t)
    if line.slope <= 0:
        raise ValueError("times do not grow with size; there is no bandwidth to fit")
    quantile = float(stdtrit(line.free, (1 + confidence) / 2))
    alpha, beta = _alpha(line, quantile, confidence), _beta(line, quantile, confidence)
    half = _n_half(line, quantile, alpha, beta)
    worst = int(np.argmax(np.abs(line.residuals)))
    return AlphaBeta(
        alpha_seconds=alpha,
        beta_bytes_per_second=beta,
        n_half_bytes=half if half and _is_half(half.value, x / t * line.slope, x) else None,
        level=CiLevel.WITHIN,
        n=len(t),
        residual_ratio=line.spread,
        worst_bytes=float(x[worst]),
        worst_ratio=float(line.residuals[worst]),
        smallest_bytes=float(x.min()),
        largest_bytes=float(x.max()),
    )


def combine(fits: Sequence[AlphaBeta], confidence: float = CONFIDENCE) -> AlphaBeta:
    """
    One fit out of those of several processes: medians, and intervals between processes.

    With fewer than 6 fits the intervals have no ends.

    Raises:
        ValueError: No fit.
    """
    if not fits:
        raise ValueError("no fit to combine")
    halves = [f.n_half_bytes.value for f in fits if f.n_half_bytes]
    worst = max(fits, key=lambda f: abs(f.worst_ratio))
    return AlphaBeta(
        alpha_seconds=_between([f.alpha_seconds.value for f in fits], confidence),
        beta_bytes_per_second=_between([f.beta_bytes_per_second.value for f in fits], confidence),
        n_half_bytes=_between(halves, confidence) if len(halves) == len(fits) else None,
        level=CiLevel.BETWEEN,
        n=len(fits),
        residual_ratio=statistics.median(f.residual_ratio for f in fits),
        worst_bytes=worst.worst_bytes,
        worst_ratio=worst.worst_ratio,
        smallest_bytes=max(f.smallest_bytes for f in fits),
        largest_bytes=min(f.largest_bytes for f in fits),
    )


def fit_lines(points: Iterable[Point[K]]) -> dict[K, AlphaBeta]:
    """
    The line of everything that has enough sizes and whose times grow with them.

    Args:
        points: One for each size and process.
    """
    found: dict[K, dict[tuple[int, int], dict[int, float]]] = {}
    for key, process, size, seconds in points:
        found.setdefault(key, {}).setdefault(process, {})[size] = seconds
    lines = {}
    for key, processes in found.items():
        fitted = [line for sizes in processes.values() if (line := _fitted(sizes))]
        if fitted:
            lines[key] = fitted[0] if len(fitted) == 1 else combine(fitted)
    return lines


def smallest_at_peak(
    sizes: Sequence[float], bandwidths: Sequence[float], share: float = PEAK_SHARE
) -> float:
    """
    The smallest measured size whose bandwidth reaches ``share`` of the largest measured.

    A size that was not measured is never named, so the answer is as fine as the sweep.

    Raises:
        ValueError: Lists of different lengths, no value, one that is not above zero, or a
            share outside 0 < share <= 1.
    """
    if len(sizes) != len(bandwidths):
        raise ValueError(f"{len(sizes)} sizes and {len(bandwidths)} bandwidths")
    if not 0 < share <= 1:
        raise ValueError(f"share {share} of the peak must be above 0 and at most 1")
    sizes = finite(sizes, "sizes", positive=True)
    bandwidths = finite(bandwidths, "bandwidths", positive=True)
    needed = share * max(bandwidths)
    return min(s for s, b in zip(sizes, bandwidths, strict=True) if b >= needed)


def _fitted(sizes: Mapping[int, float]) -> AlphaBeta | None:
    if len(sizes) < MIN_SIZES:
        return None
    try:
        return fit_alpha_beta([*sizes], [*sizes.values()])
    except ValueError:  # times that do not grow with the size have no line
        return None


def _points(
    sizes: Sequence[float], seconds: Sequence[float]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    import numpy as np

    if len(sizes) != len(seconds):
        raise ValueError(f"{len(sizes)} sizes and {len(seconds)} times")
    x = finite(sizes, "sizes", positive=True)
    t = finite(seconds, "times", positive=True)
    if len(set(x)) < MIN_SIZES:
        raise ValueError(f"{len(set(x))} different sizes; a fit needs at least {MIN_SIZES}")
    return np.asarray(x), np.asarray(t)


def _huber_line(x: NDArray[np.float64], t: NDArray[np.float64]) -> _Line:
    """Reweighted least squares of relative residuals."""
    import numpy as np

    columns = np.column_stack([np.ones_like(x), x])
    fitted, weights, line = t, np.ones_like(t), np.zeros(2)
    for _ in range(_MAX_ROUNDS):
        before = line
        root = np.sqrt(weights) / fitted
        inverse = _inverse(columns * root[:, None])
        line = inverse @ (columns * root[:, None]).T @ (t * root)
        # A line that dips below zero at small sizes still has to divide the residuals.
        fitted = np.maximum(columns @ line, 0.1 * t)
        residuals = (t - columns @ line) / fitted
        spread = _spread(residuals)
        inside = np.abs(residuals) <= _HUBER * spread
        weights = np.divide(_HUBER * spread, np.abs(residuals), out=np.ones_like(t), where=~inside)
        if (np.abs(line - before) <= 1e-10 * np.abs(before)).all():
            break
    return _Line(
        alpha=float(line[0]),
        slope=float(line[1]),
        covariance=_variance(residuals, weights) * _inverse(columns / fitted[:, None]),
        residuals=residuals,
        spread=spread,
        free=max(float(inside.sum()) - 2, 1.0),
    )


def _variance(residuals: NDArray[np.float64], weights: NDArray[np.float64]) -> float:
    """Variance of a residual as the line feels it (Huber 1981, 7.6)."""
    n = len(residuals)
    clipped = residuals * weights
    share = float((weights == 1).mean())
    factor = (1 + 2 / n * (1 - share) / share) / share
    return factor**2 * float(clipped @ clipped) / (n - 2)


def _inverse(columns: NDArray[np.float64]) -> NDArray[np.float64]:
    """(A'A)^-1, its columns scaled first: sizes and ones are nine decades apart."""
    import numpy as np

    scale = np.sqrt((columns**2).sum(axis=0))
    scaled = columns / scale
    inverse: NDArray[np.float64] = np.linalg.inv(scaled.T @ scaled) / np.outer(scale, scale)
    return inverse


def _spread(residuals: NDArray[np.float64]) -> float:
    """Robust standard deviation; a line through two points makes two residuals too small."""
    import numpy as np

    kept = np.sort(np.abs(residuals))[2:]
    last = len(kept) - 1
    return float(_MAD_TO_SIGMA * (kept[last // 2] + kept[len(kept) // 2]) / 2)


def _alpha(line: _Line, quantile: float, confidence: float) -> Estimate:
    half = quantile * math.sqrt(line.covariance[0, 0])
    lo = line.alpha - half
    return Estimate(line.alpha, lo if lo > 0 else None, line.alpha + half, confidence)


def _beta(line: _Line, quantile: float, confidence: float) -> Estimate:
    half = quantile * math.sqrt(line.covariance[1, 1])
    fastest = 1 / (line.slope - half) if line.slope > half else None
    return Estimate(1 / line.slope, 1 / (line.slope + half), fastest, confidence)


def _n_half(line: _Line, quantile: float, alpha: Estimate, beta: Estimate) -> Estimate | None:
    """Alpha x beta; its interval by the delta method on the logarithm, if both are bounded."""
    if line.alpha <= 0:
        return None
    value = line.alpha / line.slope
    if alpha.lo is None or beta.hi is None:
        return Estimate(value, None, None, alpha.confidence)
    variance = (
        line.covariance[0, 0] / line.alpha**2
        + line.covariance[1, 1] / line.slope**2
        - 2 * line.covariance[0, 1] / (line.alpha * line.slope)
    )
    factor = math.exp(quantile * math.sqrt(max(float(variance), 0.0)))
    return Estimate(value, value / factor, value * factor, alpha.confidence)


def _is_half(half_bytes: float, shares: NDArray[np.float64], sizes: NDArray[np.float64]) -> bool:
    """Whether all sizes up to it reach less than half of beta, and all from it on more."""
    too_fast = (sizes <= half_bytes) & (shares > (1 + _NEAR_HALF) / 2)
    too_slow = (sizes >= half_bytes) & (shares < (1 - _NEAR_HALF) / 2)
    return not (too_fast | too_slow).any()


def _between(values: Sequence[float], confidence: float) -> Estimate:
    lo, hi = interval(values, confidence) or (None, None)
    return Estimate(statistics.median(values), lo, hi, confidence)
