"""
Where a curve of throughput against size bends: one knee, or none. Pure.

Two methods look for it on logarithmic axes and must find it in one place. A bent line (two
slopes with a bend of some width between them) must beat a straight one by far more than a
search for bends does by luck; and a point must stand out above the chord (Kneedle, Satopaa
2011) of the widest range that lies evenly about the bend, because the chord of a lopsided
range moves with its ends. numpy and scipy are imported where they are used.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from topobench.reading import CiLevel
from topobench.stats import CONFIDENCE, Estimate, finite
from topobench.units import count

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MIN_POINTS = 7
FALSE_RATE = 0.01
"""Share of straight lines that a bent one may seem to beat."""
MIN_BEND = 0.1
"""Drop of the logarithmic slope, below which a bend does not matter: 7 % per doubling."""
WIDTHS = (0.0, 0.25, 0.5, 1.0, 1.5, 2.0)
"""Widths of a bend in octaves; 0 is a corner, 1 the bend of S / (alpha + S / beta)."""
NEAR_PEAK = 0.95
"""Share of the peak that still belongs to it."""

_STEPS = 8
"""Bends tried between two neighbouring sizes; for the final answer, many more."""
_FINE_STEPS = 64
_SIMULATED = 10_000
_SEED = 20_261_129


@dataclass(frozen=True, slots=True)
class Knee:
    """
    The size at which a curve bends, or why there is none.

    Args:
        size: In the unit of the sizes, with its interval (F statistic of the place, over all
            widths); an end is None where the sizes measured do not bound it. None: no knee.
        reason: What was found, or what speaks against it.
        by_chord: The size that Kneedle names; None if it names none.
        by_bend: The middle of the bend; None if a straight line does as well.
        width_octaves: Width of the bend.
        slope_before: d log throughput / d log size far before the knee.
        slope_after: The same far after it.
        level: What the values were medians of: samples of one process, or processes.
    """

    size: Estimate | None
    reason: str
    level: CiLevel
    by_chord: float | None = None
    by_bend: float | None = None
    width_octaves: float | None = None
    slope_before: float | None = None
    slope_after: float | None = None


@dataclass(frozen=True, slots=True)
class _Bend:
    """A bent line; places are base-2 logarithms of sizes."""

    place: float
    lo: float | None
    hi: float | None
    width: float
    before: float
    after: float


@dataclass(frozen=True, slots=True)
class _Search:
    """
    Bends to try on a set of sizes.

    Args:
        line: Orthonormal basis of straight lines (n, 2).
        hinges: What a bend at each place, of each width, adds to them: unit vectors
            (n_widths, n_places, n).
    """

    tried: NDArray[np.float64]
    line: NDArray[np.float64]
    hinges: NDArray[np.float64]

    def gains(self, y: NDArray[np.float64]) -> NDArray[np.float64]:
        """How much each bend lessens the sum of squares (n_widths, n_places)."""
        gains: NDArray[np.float64] = (self.hinges @ y) ** 2
        return gains


def find_knee(
    sizes: Sequence[float],
    throughputs: Sequence[float],
    *,
    level: CiLevel,
) -> Knee:
    """
    Find where growth ends, in the part of a curve up to the last size near its peak.

    Args:
        sizes: Ascending, at least :data:`MIN_POINTS` in that part.
        throughputs: Median of each size, higher is better (of a latency, the inverse).
        level: What the medians were taken over.

    Raises:
        ValueError: Lists of different lengths, sizes that do not ascend, or a value that is
            not above zero.
    """
    places, logs = _rising(sizes, throughputs)
    if len(places) < MIN_POINTS:
        return Knee(
            None,
            f"no knee: {count(len(places), 'size')} on the rising side; {MIN_POINTS} are needed",
            level,
        )
    bend = _find_bend(places, logs)
    if bend is None:
        return Knee(None, "no knee: a straight line describes the curve as well", level)
    chord = _by_chord(places, logs, bend.place)
    against = _objection(places, bend, chord)
    lo, hi = (None if end is None else 2.0**end for end in (bend.lo, bend.hi))
    return Knee(
        size=None if against else Estimate(2.0**bend.place, lo, hi),
        reason=against or "both methods agree within one step of the sizes",
        level=level,
        by_chord=None if chord is None else 2.0**chord,
        by_bend=2.0**bend.place,
        width_octaves=bend.width,
        slope_before=bend.before,
        slope_after=bend.after,
    )


def _rising(
    sizes: Sequence[float], throughputs: Sequence[float]
) -> tuple[tuple[float, ...], list[float]]:
    """Base-2 logarithms of the points up to the peak, its neighbourhood included."""
    if len(sizes) != len(throughputs):
        raise ValueError(f"{len(sizes)} sizes and {len(throughputs)} throughputs")
    sizes = finite(sizes, "sizes", positive=True)
    throughputs = finite(throughputs, "throughputs", positive=True)
    if any(x >= y for x, y in itertools.pairwise(sizes)):
        raise ValueError("sizes must ascend, each only once")
    needed = NEAR_PEAK * max(throughputs)
    count = 1 + max(i for i, y in enumerate(throughputs) if y >= needed)
    return tuple(map(math.log2, sizes[:count])), list(map(math.log2, throughputs[:count]))


def _find_bend(places: tuple[float, ...], logs: Sequence[float]) -> _Bend | None:
    """The best bend, upwards or downwards, if it is real."""
    import numpy as np
    from scipy.special import fdtri

    y, free = np.asarray(logs), len(logs) - 5
    coarse = _search(places, _STEPS)
    away = y - coarse.line @ (coarse.line.T @ y)
    total = float(away @ away)
    # Rounding leaves about 1e-16 of the values' size in an exact fit.
    floor = 1e-28 * max(float(y @ y), 1.0)
    gain = float(coarse.gains(y).max())
    if gain / max(total - gain, floor) * free < _lucky_gain(places):
        return None
    fine = _search(places, _FINE_STEPS)
    gains = fine.gains(y)
    width, best = np.unravel_index(int(np.argmax(gains)), gains.shape)
    place = float(fine.tried[best])
    before, turn = _slopes(places, y, place, WIDTHS[width])
    error = max(total - float(gains.max()), floor) / free
    needed = float(gains.max()) - error * float(fdtri(1, free, CONFIDENCE))
    inside = np.flatnonzero(gains.max(axis=0) >= needed)
    lo = float(fine.tried[inside[0] - 1]) if inside[0] > 0 else None
    hi = float(fine.tried[inside[-1] + 1]) if inside[-1] < len(fine.tried) - 1 else None
    return _Bend(place, lo, hi, WIDTHS[width], before, before + turn)


def _slopes(
    places: tuple[float, ...], y: NDArray[np.float64], place: float, width: float
) -> tuple[float, float]:
    """The slope before a bend, and what the bend adds to it."""
    import numpy as np

    u = np.asarray(places)
    columns = np.column_stack([np.ones_like(u), u, _hinge(u - place, width)])
    _, before, turn = np.linalg.lstsq(columns, y, rcond=None)[0]
    return float(before), float(turn)


def _hinge(away: NDArray[np.float64], width: float) -> NDArray[np.float64]:
    """0 far before the bend, the distance from it far behind it."""
    import numpy as np

    if width == 0:
        return np.maximum(away, 0.0)
    soft: NDArray[np.float64] = width * np.logaddexp2(0.0, away / width)
    return soft


@functools.lru_cache(maxsize=32)
def _search(places: tuple[float, ...], steps: int) -> _Search:
    """Bends with three sizes on either side, ``steps`` of them from one size to the next."""
    import numpy as np

    u = np.asarray(places)
    line = np.linalg.qr(np.column_stack([np.ones_like(u), u]))[0]
    inner = [np.linspace(x, y, steps, endpoint=False) for x, y in itertools.pairwise(places[2:-2])]
    tried = np.concatenate([*inner, [places[-3]]])
    hinges = np.stack([_hinge(u - tried[:, None], width) for width in WIDTHS])
    hinges -= hinges @ line @ line.T
    return _Search(tried, line, hinges / np.linalg.norm(hinges, axis=2, keepdims=True))


@functools.lru_cache(maxsize=32)
def _lucky_gain(places: tuple[float, ...]) -> float:
    """The F value that the best bend exceeds on a share FALSE_RATE of straight lines."""
    import numpy as np

    search = _search(places, _STEPS)
    hinges = search.hinges.reshape(-1, len(places))
    generator = np.random.default_rng(_SEED)
    values = []
    for _ in range(_SIMULATED // 1000):
        noise = generator.standard_normal((1000, len(places)))
        noise -= noise @ search.line @ search.line.T
        gain = ((noise @ hinges.T) ** 2).max(axis=1)
        values.append(gain / ((noise**2).sum(axis=1) - gain))
    return float(np.quantile(np.concatenate(values), 1 - FALSE_RATE)) * (len(places) - 5)


def _by_chord(places: tuple[float, ...], logs: Sequence[float], middle: float) -> float | None:
    """Kneedle with sensitivity 1 on the widest range about a place; None without a knee."""
    half = min(middle - places[0], places[-1] - middle) * (1 + 1e-9)
    near = [(x, y) for x, y in zip(places, logs, strict=True) if abs(x - middle) <= half]
    (first, low), (last, high) = near[0], near[-1]
    height = max(y for _, y in near) - min(y for _, y in near)
    if len(near) < 3 or height == 0:
        return None
    above = [(y - low - (high - low) * (x - first) / (last - first)) / height for x, y in near]
    best = max(range(len(above)), key=above.__getitem__)
    # The curve ends on its chord, so it always falls below the threshold behind the knee.
    return near[best][0] if above[best] > 1 / (len(near) - 1) else None


def _objection(places: tuple[float, ...], bend: _Bend, chord: float | None) -> str | None:
    """What speaks against a knee, or None."""
    if bend.after - bend.before > -MIN_BEND:
        return f"no knee: the slope falls by less than {MIN_BEND:g}"
    if bend.width == WIDTHS[-1]:
        return f"no knee: the curve bends gradually, over more than {WIDTHS[-2]:g} octaves"
    if chord is None:
        return "no knee: no point stands out above the chord"
    here = places.index(chord)
    step = max(y - x for x, y in itertools.pairwise(places[max(here - 1, 0) : here + 2]))
    if abs(chord - bend.place) > step * (1 + 1e-9):
        return (
            "no knee: the methods disagree; the chord says "
            f"{2.0**chord:.6g}, the bend {2.0**bend.place:.6g}"
        )
    return None
