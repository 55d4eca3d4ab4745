from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from topobench.knee import FALSE_RATE, MIN_POINTS, WIDTHS, Knee, find_knee
from topobench.reading import CiLevel

Values = NDArray[np.floating[Any]]
Curve = Callable[[Values], Values]
HALF_OCTAVES = 128 * 2.0 ** np.arange(0, 8.5, 0.5)
"""128 ... 32K."""
OCTAVES = 128 * 2.0 ** np.arange(0, 9)
RUNS = 300


def knee(x: Values, y: Values) -> Knee:
    return find_knee(x.tolist(), y.tolist(), level=CiLevel.BETWEEN)


def corner(x: Values) -> Values:
    """Doubles with the size, then stands still."""
    return np.minimum(x / 2000, 1.0)


def corner_of_powers(x: Values) -> Values:
    return np.minimum((x / 2000) ** 0.8, (x / 2000) ** 0.1)


def saturating(x: Values) -> Values:
    """Bandwidth of t = alpha + S / beta; half of it at 2000."""
    return 1 / (1 + 2000 / x)


@pytest.mark.parametrize("sizes", [HALF_OCTAVES, OCTAVES], ids=["half octaves", "octaves"])
@pytest.mark.parametrize("curve", [corner, corner_of_powers, saturating])
@pytest.mark.parametrize("relative", [0.003, 0.01])
def test_planted_knees_are_found_with_intervals_that_cover(
    curve: Curve, sizes: Values, relative: float
) -> None:
    """The knee lies at 2000, between the sizes measured."""
    generator = np.random.default_rng(len(sizes))
    found = covered = 0
    for _ in range(RUNS):
        y = curve(sizes) * np.exp(relative * generator.standard_normal(len(sizes)))
        size = knee(sizes, y).size
        if size is None:
            continue
        found += 1
        covered += (size.lo or 0) <= 2000 <= (size.hi or math.inf)
    assert found / RUNS >= (0.9 if sizes is HALF_OCTAVES else 0.6)
    # Planted widths lie on the edge of those tried, so the interval may be a little wide.
    assert covered / found >= 0.93


def test_an_exact_corner_is_found_where_it_is() -> None:
    found = knee(HALF_OCTAVES, corner(HALF_OCTAVES))
    assert found.size is not None
    assert found.size.value == pytest.approx(2000, rel=0.01)
    assert found.by_chord == 2048
    assert found.width_octaves == 0
    assert found.slope_before == pytest.approx(1, abs=0.01)
    assert found.slope_after == pytest.approx(0, abs=0.01)
    assert found.level is CiLevel.BETWEEN
    assert found.reason == "both methods agree within one step of the sizes"


def test_a_saturating_curve_bends_at_n_half_whatever_the_range_of_sizes() -> None:
    """Kneedle alone moves with the ends of the range; 2000 is 2^10.97."""
    for first in (4, 6, 8):
        x = 2.0 ** np.arange(first, first + 10, 0.5)
        found = knee(x, saturating(x))
        assert found.size is not None
        assert found.size.value == pytest.approx(2000, rel=0.02)
        assert found.width_octaves == 1


@pytest.mark.parametrize("slope", [0.0, 0.3, 1.0, -0.4])
@pytest.mark.parametrize("sizes", [HALF_OCTAVES, OCTAVES], ids=["half octaves", "octaves"])
def test_straight_lines_have_no_knee(slope: float, sizes: Values) -> None:
    generator = np.random.default_rng(7)
    false = 0
    for _ in range(500):
        y = sizes**slope * np.exp(0.02 * generator.standard_normal(len(sizes)))
        false += knee(sizes, y).size is not None
    assert false / 500 <= FALSE_RATE + 3 * math.sqrt(FALSE_RATE / 500)


def test_straight_lines_with_much_noise_have_no_knee() -> None:
    """The two methods must agree, so far fewer than the 1 % of one of them remain."""
    generator = np.random.default_rng(8)
    false = 0
    for _ in range(3000):
        y = np.exp(0.3 * generator.standard_normal(17))
        false += knee(HALF_OCTAVES, y * HALF_OCTAVES).size is not None
    assert false / 3000 <= FALSE_RATE


def test_exact_straight_lines_have_no_knee() -> None:
    for slope in (0.0, 0.5, 1.0):
        found = knee(HALF_OCTAVES, HALF_OCTAVES**slope)
        assert found.size is None
        assert found.reason == "no knee: a straight line describes the curve as well"


def test_a_curve_that_bends_everywhere_has_no_knee() -> None:
    """A parabola on logarithmic axes: any place is as good as another."""
    u = np.log2(HALF_OCTAVES / 128)
    found = knee(HALF_OCTAVES, 2.0 ** (u - u**2 / 17))
    assert found.size is None
    assert "bends gradually" in found.reason


@pytest.mark.parametrize("slope_after", [0.5, 0.42])
def test_a_curve_that_bends_upwards_or_hardly_has_no_knee(slope_after: float) -> None:
    """However clear the bend is: there is no noise at all."""
    slope = 0.3 if slope_after == 0.5 else 0.5
    x = HALF_OCTAVES / 2000
    found = knee(HALF_OCTAVES, np.where(x < 1, x**slope, x**slope_after))
    assert found.size is None
    assert found.by_bend == pytest.approx(2000, rel=0.02)
    assert found.reason == "no knee: the slope falls by less than 0.1"


def test_methods_that_disagree_by_more_than_a_step_give_no_knee() -> None:
    generator = np.random.default_rng(13)
    agreed = disagreed = 0
    for _ in range(300):
        y = saturating(HALF_OCTAVES) * np.exp(0.06 * generator.standard_normal(17))
        found = knee(HALF_OCTAVES, y)
        if found.by_bend is None or found.by_chord is None or found.width_octaves == WIDTHS[-1]:
            assert found.size is None
            continue
        near = abs(math.log2(found.by_bend / found.by_chord)) <= 0.5 + 1e-6
        assert (found.size is not None) == near
        agreed += near
        disagreed += not near
    assert agreed > 10
    assert disagreed > 10


def test_growth_is_searched_up_to_the_last_size_near_the_peak() -> None:
    """Grows up to 700; what declines from 9000 on is no part of it."""
    x = 64 * 2.0 ** np.arange(0, 11, 0.5)
    found = knee(x, np.minimum(np.minimum(x / 700, 1.0), (9000 / x) ** 0.5))
    assert found.size is not None
    assert found.size.value == pytest.approx(700, rel=0.02)


def test_a_curve_that_only_falls_has_nothing_to_search() -> None:
    found = knee(HALF_OCTAVES, HALF_OCTAVES**-0.8)
    assert found.size is None
    assert found.reason == f"no knee: 1 size on the rising side; {MIN_POINTS} are needed"


def test_an_interval_that_the_sizes_do_not_bound_has_no_end() -> None:
    generator = np.random.default_rng(11)
    seen = []
    for _ in range(200):
        y = corner(OCTAVES) ** 0.5 * np.exp(0.06 * generator.standard_normal(9))
        size = knee(OCTAVES, y).size
        if size is not None:
            seen.append(size)
    assert any(size.hi is None or size.lo is None for size in seen)


@pytest.mark.parametrize("bad", [math.nan, math.inf, 0.0, -1.0])
def test_values_that_are_no_positive_numbers_are_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="throughputs: value 1"):
        knee(np.array([1.0, 2.0]), np.array([1.0, bad]))
    with pytest.raises(ValueError, match="sizes: value 0"):
        knee(np.array([bad, 2.0]), np.array([1.0, 2.0]))


def test_impossible_requests_are_refused_in_a_sentence() -> None:
    with pytest.raises(ValueError, match="2 sizes and 1 throughputs"):
        knee(np.array([1.0, 2.0]), np.array([1.0]))
    with pytest.raises(ValueError, match="must ascend"):
        knee(np.array([1.0, 2.0, 2.0]), np.array([1.0, 2.0, 3.0]))
