from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.signal import lfilter

from drawing import SHAPES, noise
from topobench.reading import CiLevel
from topobench.resampling import autocorrelation, block_length, hierarchical_bootstrap

RUNS = 300


def processes(
    shape: str, generator: np.random.Generator, number: int, samples: int = 20
) -> list[list[float]]:
    """1 % between processes, 0.3 % inside; the truth is 100."""
    levels = 100 * (1 + 0.01 * noise(shape, generator, (number, 1)))
    inside = 1 + 0.003 * generator.standard_normal((number, samples))
    return (levels * inside).tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("number", [6, 12])
def test_interval_between_processes_covers_the_truth(shape: str, number: int) -> None:
    """Few processes cannot give exactly 95 %; the interval errs to the wide side."""
    generator = np.random.default_rng(number)
    hits = 0
    for seed in range(RUNS):
        found = hierarchical_bootstrap(
            processes(shape, generator, number), seed=seed, resamples=1000
        )
        assert found.lo is not None
        assert found.hi is not None
        hits += found.lo <= 100 <= found.hi
    assert 0.93 <= hits / RUNS <= 0.99


@pytest.mark.parametrize("shape", SHAPES)
def test_interval_within_one_process_covers_its_own_median(shape: str) -> None:
    generator = np.random.default_rng(17)
    hits = 0
    for seed in range(1000):
        samples = (50 + noise(shape, generator, (30,))).tolist()
        found = hierarchical_bootstrap([samples], seed=seed, resamples=1000)
        assert found.level is CiLevel.WITHIN
        assert found.lo is not None
        assert found.hi is not None
        hits += found.lo <= 50 <= found.hi
    assert 0.93 <= hits / 1000 <= 0.97


def test_interval_within_one_process_says_little_about_processes() -> None:
    """Why samples of one process never decide: a 95 % interval of them is right 1 time in 8."""
    generator = np.random.default_rng(3)
    hits = 0
    for seed in range(RUNS):
        found = hierarchical_bootstrap(processes("normal", generator, 1), seed=seed, resamples=1000)
        assert found.lo is not None
        assert found.hi is not None
        hits += found.lo <= 100 <= found.hi
    assert hits / RUNS < 0.25


def test_samples_with_memory_are_drawn_in_blocks() -> None:
    generator = np.random.default_rng(1)
    waves = [remembering(generator, 0.6, 125).tolist() for _ in range(6)]
    assert block_length(waves) == 5  # 125^(1/3)
    assert block_length(generator.standard_normal((6, 125)).tolist()) == 1
    assert block_length([[1.0, 2.0], [3.0]]) == 1
    assert block_length([[1.0] * 20] * 6) == 1


def test_blocks_mend_most_of_what_memory_costs() -> None:
    """Rho = 0.5: the plain interval covers 3 in 4; blocks of n^(1/3) come within some percent."""
    generator = np.random.default_rng(7)
    blocks = plain = 0
    for seed in range(RUNS):
        samples = remembering(generator, 0.5, 200)
        found = hierarchical_bootstrap([samples.tolist()], seed=seed, resamples=1000)
        assert found.block_length == 6
        shuffled = hierarchical_bootstrap(
            [generator.permutation(samples).tolist()], seed=seed, resamples=1000
        )
        for one, weight in ((found, True), (shuffled, False)):
            assert one.lo is not None
            assert one.hi is not None
            blocks += weight and one.lo <= 0 <= one.hi
            plain += not weight and one.lo <= 0 <= one.hi
    assert plain / RUNS < 0.88
    assert blocks / RUNS > 0.87
    assert (blocks - plain) / RUNS > 0.05


def test_autocorrelation_of_known_series() -> None:
    """Deviations -1.5 -0.5 0.5 1.5: neighbours 1.25 of 5."""
    assert autocorrelation([1, 2, 3, 4]) == pytest.approx(0.25)
    assert autocorrelation([1, -1, 1, -1]) == pytest.approx(-0.75)
    assert autocorrelation([3, 3, 3]) is None


@pytest.mark.parametrize("number", [2, 5])
def test_two_to_five_processes_have_no_interval(number: int) -> None:
    found = hierarchical_bootstrap([[1.0, 2.0, 3.0]] * number, seed=1)
    assert (found.value, found.lo, found.hi, found.level) == (2.0, None, None, CiLevel.BETWEEN)
    assert found.n_samples == 3 * number


def test_the_same_seed_gives_the_same_interval_and_is_kept() -> None:
    data = processes("normal", np.random.default_rng(1), 8)
    first, again = (hierarchical_bootstrap(data, seed=4) for _ in range(2))
    assert first == again
    assert (first.seed, first.resamples, first.n_processes, first.block_length) == (4, 2000, 8, 1)
    other = hierarchical_bootstrap(data, seed=5)
    assert first.value == other.value
    assert (first.lo, first.hi) != (other.lo, other.hi)


def test_the_global_random_state_is_left_alone() -> None:
    state = np.random.get_state()[1].tolist()  # type: ignore[index]
    hierarchical_bootstrap([[1.0, 2.0, 3.0]] * 6, seed=1)
    assert np.random.get_state()[1].tolist() == state  # type: ignore[index]


def test_processes_may_have_different_numbers_of_samples() -> None:
    found = hierarchical_bootstrap([[float(i)] * (i + 1) for i in range(7)], seed=2)
    assert found.value == 3.0
    assert found.lo is not None
    assert found.hi is not None
    assert 0 <= found.lo < 3 < found.hi <= 6


def test_impossible_requests_are_refused_in_a_sentence() -> None:
    with pytest.raises(ValueError, match="no process"):
        hierarchical_bootstrap([], seed=1)
    with pytest.raises(ValueError, match="process 1: 0 values"):
        hierarchical_bootstrap([[1.0], []], seed=1)
    with pytest.raises(ValueError, match="process 0: value 1 is nan"):
        hierarchical_bootstrap([[1.0, math.nan]], seed=1)
    with pytest.raises(ValueError, match="take 1000"):
        hierarchical_bootstrap([[1.0]], seed=1, resamples=100)
    with pytest.raises(ValueError, match="at least 3"):
        autocorrelation([1.0, 2.0])


def remembering(generator: np.random.Generator, rho: float, n: int) -> NDArray[np.float64]:
    """AR(1) around 0, started far enough back."""
    wave: NDArray[np.float64] = lfilter([1], [1, -rho], generator.standard_normal(n + 100))[100:]
    return wave
