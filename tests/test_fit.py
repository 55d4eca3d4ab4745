from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drawing import SHAPES, noise
from topobench import fit
from topobench.reading import CiLevel

H200 = Path(__file__).parents[2] / "shared/data/h200x2/nccl_tests_2.19.6_all_reduce_8B_8G.txt"
ALPHA, BETA = 7e-6, 300e9
RUNS = 600


def sizes(points: int) -> list[float]:
    """8 B to 8 GiB, evenly on a logarithmic axis."""
    return (8 * 2.0 ** np.linspace(0, 30, points)).tolist()  # type: ignore[no-any-return]


def times(x: list[float], alpha: float = ALPHA, beta: float = BETA) -> list[float]:
    return [alpha + s / beta for s in x]


def test_an_exact_line_is_recovered() -> None:
    x = sizes(11)
    found = fit.fit_alpha_beta(x, times(x))
    assert found.alpha_seconds.value == pytest.approx(ALPHA, rel=1e-9)
    assert found.beta_bytes_per_second.value == pytest.approx(BETA, rel=1e-9)
    assert found.n_half_bytes is not None
    assert found.n_half_bytes.value == pytest.approx(ALPHA * BETA, rel=1e-9)
    assert found.residual_ratio < 1e-9
    assert (found.n, found.level) == (11, CiLevel.WITHIN)
    assert found.seconds(2**20) == pytest.approx(ALPHA + 2**20 / BETA)


@settings(deadline=None)
@given(st.floats(1e-7, 1e-2), st.floats(1e6, 1e12), st.integers(0, 12), st.integers(16, 30))
def test_any_exact_line_whose_bend_was_measured_is_recovered(
    alpha: float, beta: float, below: int, above: int
) -> None:
    """The sizes start below alpha x beta and end above it."""
    middle = alpha * beta
    x = [middle * 2.0**k for k in range(-below - 4, above - 8, 2)]
    found = fit.fit_alpha_beta(x, times(x, alpha, beta))
    assert found.alpha_seconds.value == pytest.approx(alpha, rel=1e-6)
    assert found.beta_bytes_per_second.value == pytest.approx(beta, rel=1e-6)


@pytest.mark.parametrize("shape", [*SHAPES, "odd sizes"])
@pytest.mark.parametrize("points", [7, 11, 31])
def test_intervals_cover_alpha_beta_and_n_half(shape: str, points: int) -> None:
    """Medians of nine samples over nine decades of sizes; or one size in 14 far off."""
    generator = np.random.default_rng(points)
    x = sizes(points)
    hits, told = np.zeros(3), np.zeros(3)
    for _ in range(RUNS):
        if shape == "odd sizes":
            relative = noise("normal", generator, (points,))
            relative[generator.random(points) < 0.07] *= 10
        else:
            relative = np.median(noise(shape, generator, (9, points)), axis=0)
        measured = np.asarray(times(x)) * np.exp(0.02 * relative)
        found = fit.fit_alpha_beta(x, measured.tolist())
        for place, (estimate, truth) in enumerate(
            (
                (found.alpha_seconds, ALPHA),
                (found.beta_bytes_per_second, BETA),
                (found.n_half_bytes, ALPHA * BETA),
            )
        ):
            if estimate is None:
                continue
            assert estimate.lo is not None
            assert estimate.hi is not None
            hits[place] += estimate.lo <= truth <= estimate.hi
            told[place] += 1
    assert np.all(hits / told >= 0.92)
    assert np.all(hits / told <= 0.98)
    assert tuple(told[:2]) == (RUNS, RUNS)
    assert told[2] >= (0.9 if shape == "odd sizes" else 1.0) * RUNS


def test_small_and_large_sizes_count_alike() -> None:
    """1 % of noise on milliseconds must not drown microseconds, as plain least squares would."""
    generator = np.random.default_rng(5)
    x = sizes(31)
    errors, plain = [], []
    for _ in range(200):
        measured = np.asarray(times(x)) * np.exp(0.01 * generator.standard_normal(31))
        found = fit.fit_alpha_beta(x, measured.tolist())
        errors.append(abs(found.alpha_seconds.value / ALPHA - 1))
        plain.append(abs(np.polyfit(x, measured, 1)[1] / ALPHA - 1))
    assert np.median(errors) < 0.005
    assert np.median(plain) > 0.3


def test_one_odd_size_moves_little_and_is_named() -> None:
    x = sizes(16)
    measured = times(x)
    measured[3] *= 3
    found = fit.fit_alpha_beta(x, measured)
    assert found.alpha_seconds.value == pytest.approx(ALPHA, rel=0.02)
    assert found.beta_bytes_per_second.value == pytest.approx(BETA, rel=0.02)
    assert found.worst_bytes == x[3]
    assert found.worst_ratio == pytest.approx(2, rel=0.05)


def test_half_of_beta_is_not_told_where_a_measured_size_says_otherwise() -> None:
    """All-reduces between two H200: 4 MiB, twice alpha x beta, reach 45 % of beta."""
    x = [8192.0, 2.0**18, 2.0**22, 2.0**27, 2.0**30]
    measured = [7.0695e-6, 9.1424e-6, 33.8601e-6, 468.0187e-6, 3254.76e-6]
    found = fit.fit_alpha_beta(x, measured)
    alpha, beta = found.alpha_seconds.value, found.beta_bytes_per_second.value
    assert [alpha * 1e6, beta / 1e9] == pytest.approx([8.06, 276.4], rel=0.002)
    assert alpha * beta < 0.6 * x[2]
    assert x[2] / measured[2] / beta == pytest.approx(0.448, abs=0.002)
    assert found.n_half_bytes is None
    measured[2] *= 0.8  # 56 % of beta
    assert fit.fit_alpha_beta(x, measured).n_half_bytes is not None


def test_an_alpha_below_the_noise_has_no_lower_end() -> None:
    """Sizes from 256 MiB on: 7 us are 0.8 % of the shortest time, the noise is 2 %."""
    generator = np.random.default_rng(3)
    x = [2.0**k for k in np.arange(28, 33.5, 0.5)]
    unbounded = 0
    for _ in range(100):
        measured = np.asarray(times(x)) * np.exp(0.02 * generator.standard_normal(11))
        found = fit.fit_alpha_beta(x, measured.tolist())
        unbounded += found.alpha_seconds.lo is None
        half = found.n_half_bytes
        if half is not None:
            assert (half.lo is None) == (found.alpha_seconds.lo is None)
        assert (half is None) == (found.alpha_seconds.value <= 0)
        assert found.alpha_seconds.hi is not None
        assert found.beta_bytes_per_second.hi is not None
        assert found.beta_bytes_per_second.value == pytest.approx(BETA, rel=0.1)
    assert unbounded >= 85


def test_a_beta_beyond_the_sizes_has_no_upper_end() -> None:
    """Sizes up to 32 KiB take alpha and 1.5 % more, the noise is 2 %."""
    generator = np.random.default_rng(4)
    x = [2.0**k for k in range(3, 16)]
    measured = np.asarray(times(x)) * np.exp(0.02 * generator.standard_normal(13))
    found = fit.fit_alpha_beta(x, measured.tolist())
    assert found.beta_bytes_per_second.hi is None
    assert found.beta_bytes_per_second.lo is not None
    assert found.beta_bytes_per_second.lo < BETA


def test_nothing_is_predicted_outside_the_sizes() -> None:
    x = sizes(11)
    found = fit.fit_alpha_beta(x, times(x))
    for outside in (7.0, 2.0**34):
        with pytest.raises(ValueError, match="outside the fitted sizes"):
            found.seconds(outside)


def test_fits_of_six_processes_give_an_interval_between_them() -> None:
    x = sizes(11)
    fits = [fit.fit_alpha_beta(x, times(x, ALPHA * (1 + i / 100))) for i in range(6)]
    found = fit.combine(fits)
    assert (found.level, found.n) == (CiLevel.BETWEEN, 6)
    assert found.alpha_seconds.value == pytest.approx(ALPHA * 1.025)
    assert found.alpha_seconds.lo == pytest.approx(ALPHA)
    assert found.alpha_seconds.hi == pytest.approx(ALPHA * 1.05)
    few = fit.combine(fits[:5])
    assert (few.alpha_seconds.lo, few.alpha_seconds.hi) == (None, None)


def test_intervals_between_processes_cover_where_those_within_do_not() -> None:
    """Processes differ by 3 % in alpha, sizes of one process by 0.5 %."""
    generator = np.random.default_rng(8)
    x = sizes(11)
    between = within = 0
    for _ in range(150):
        fits = []
        for _ in range(6):
            line = times(x, ALPHA * math.exp(0.03 * generator.standard_normal()))
            wobble = np.exp(0.005 * generator.standard_normal(11))
            fits.append(fit.fit_alpha_beta(x, (np.asarray(line) * wobble).tolist()))
        for one in (fit.combine(fits), fits[0]):
            estimate = one.alpha_seconds
            assert estimate.lo is not None
            assert estimate.hi is not None
            covered = estimate.lo <= ALPHA <= estimate.hi
            between += covered and one.level is CiLevel.BETWEEN
            within += covered and one.level is CiLevel.WITHIN
    assert between / 150 >= 0.92
    assert within / 150 < 0.4


def test_the_smallest_size_at_peak_is_a_measured_one() -> None:
    bandwidths = [1.0, 5.0, 9.4, 9.6, 10.0, 9.2]
    assert fit.smallest_at_peak([1, 2, 4, 8, 16, 32], bandwidths) == 8
    assert fit.smallest_at_peak([1, 2, 4, 8, 16, 32], bandwidths, 0.94) == 4
    assert fit.smallest_at_peak([3], [7]) == 3


def test_all_reduces_of_two_h200_follow_the_line() -> None:
    """8 B ... 8 GiB by nccl-tests: 14 to 20 us at small sizes, 349 GB/s at 8 GiB."""
    if not H200.exists():
        pytest.skip(f"no measured data: {H200} is absent")
    rows = [line.split() for line in H200.read_text().splitlines()]
    rows = [row for row in rows if len(row) > 8 and row[0].isdigit()]
    x, t = [float(row[0]) for row in rows], [float(row[5]) * 1e-6 for row in rows]
    assert len(x) == 16
    found = fit.fit_alpha_beta(x, t)
    assert found.alpha_seconds.lo is not None
    assert 14e-6 < found.alpha_seconds.lo < found.alpha_seconds.value < 20e-6
    assert found.beta_bytes_per_second.value == pytest.approx(311e9, rel=0.02)
    assert found.worst_bytes == 8192
    assert fit.smallest_at_peak(x, [s / d for s, d in zip(x, t, strict=True)]) == 2**31


@pytest.mark.parametrize("bad", [math.nan, math.inf, 0.0, -1.0])
def test_values_that_are_no_positive_numbers_are_refused(bad: float) -> None:
    x = sizes(6)
    with pytest.raises(ValueError, match="times: value 2"):
        fit.fit_alpha_beta(x, [1.0, 2.0, bad, 4.0, 5.0, 6.0])
    with pytest.raises(ValueError, match="sizes: value 0"):
        fit.fit_alpha_beta([bad, *x[1:]], times(x))
    with pytest.raises(ValueError, match="bandwidths: value 1"):
        fit.smallest_at_peak([1, 2], [1, bad])


def test_impossible_requests_are_refused_in_a_sentence() -> None:
    with pytest.raises(ValueError, match="6 sizes and 2 times"):
        fit.fit_alpha_beta(sizes(6), [1.0, 2.0])
    with pytest.raises(ValueError, match="4 different sizes; a fit needs at least 5"):
        fit.fit_alpha_beta([1, 2, 3, 4, 4, 4], [1.0] * 6)
    with pytest.raises(ValueError, match="do not grow with size"):
        fit.fit_alpha_beta(sizes(6), [6.0, 5.0, 4.0, 3.0, 2.0, 1.0])
    with pytest.raises(ValueError, match="no fit to combine"):
        fit.combine([])
    with pytest.raises(ValueError, match="share 0 of the peak"):
        fit.smallest_at_peak([1], [1], 0)
    with pytest.raises(ValueError, match="2 sizes and 1 bandwidths"):
        fit.smallest_at_peak([1, 2], [1])
    with pytest.raises(ValueError, match="confidence 95"):
        fit.fit_alpha_beta(sizes(6), times(sizes(6)), 95)
