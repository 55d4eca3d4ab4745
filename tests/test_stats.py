from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topobench import stats
from topobench.errors import ResultInvalid


@pytest.mark.parametrize(
    ("n", "confidence", "ranks"),
    [
        (5, 0.95, None),
        (6, 0.95, (1, 6)),
        (8, 0.95, (1, 8)),
        (9, 0.95, (2, 8)),
        (10, 0.95, (2, 9)),
        (20, 0.95, (6, 15)),
        (30, 0.95, (10, 21)),
        (100, 0.95, (40, 61)),
        (7, 0.99, None),
        (8, 0.99, (1, 8)),
        (0, 0.95, None),
    ],
)
def test_interval_ranks_are_the_published_ones(
    n: int, confidence: float, ranks: tuple[int, int] | None
) -> None:
    """Tables of binomial confidence limits for the median."""
    assert stats.interval_ranks(n, confidence) == ranks


@pytest.mark.parametrize("n", [6, 7, 20, 33, 151, 1000])
def test_interval_ranks_are_the_narrowest_that_cover(n: int) -> None:
    def coverage(k: int) -> Fraction:
        return 1 - 2 * Fraction(sum(math.comb(n, j) for j in range(k)), 2**n)

    ranks = stats.interval_ranks(n)
    assert ranks is not None
    low, high = ranks
    assert high == n + 1 - low
    assert coverage(low) >= Fraction(95, 100) > coverage(low + 1)


@pytest.mark.parametrize(("n", "spread"), [(10, "normal"), (20, "skewed"), (41, "heavy")])
def test_interval_covers_the_median_as_often_as_it_says(n: int, spread: str) -> None:
    """4,000 seeded experiments; coverage may exceed 95 % because ranks are whole numbers."""
    rng = random.Random(11)
    draws: dict[str, tuple[Callable[[], float], float]] = {
        "normal": (lambda: rng.gauss(5, 1), 5.0),
        "skewed": (lambda: rng.expovariate(1.0), math.log(2)),
        "heavy": (lambda: math.tan(math.pi * (rng.random() - 0.5)), 0.0),
    }
    draw, truth = draws[spread]
    hits = 0
    for _ in range(4000):
        low_high = stats.interval([draw() for _ in range(n)])
        assert low_high is not None
        hits += low_high[0] <= truth <= low_high[1]
    low, _ = stats.interval_ranks(n) or (0, 0)
    exact = 1 - 2 * sum(math.comb(n, j) for j in range(low)) / 2**n
    assert hits / 4000 == pytest.approx(exact, abs=0.011)  # 3 standard errors


def test_summary_of_ten_known_values() -> None:
    summary = stats.summarise([3, 1, 4, 1, 5, 9, 2, 6, 5, 10])
    assert (summary.n, summary.median, summary.minimum, summary.maximum) == (10, 4.5, 1, 10)
    assert (summary.ci_lo, summary.ci_hi) == (1, 9)
    assert summary.mad == 2.0  # deviations 3.5 3.5 2.5 1.5 .5 .5 .5 1.5 4.5 5.5
    assert (summary.p90, summary.p99) == (9, None)
    assert (summary.ci_level, summary.stop_reason, summary.warmups) == ("within", "fixed", 0)


def test_warmups_are_counted_but_not_summarised() -> None:
    summary = stats.summarise([100, 100, 1, 2, 3], warmups=2, stop_reason="budget")
    assert (summary.n, summary.warmups, summary.median, summary.maximum) == (3, 2, 2, 3)
    assert summary.stop_reason == "budget"


def test_fewer_than_six_samples_have_no_interval() -> None:
    summary = stats.summarise([1, 2, 3, 4, 5])
    assert (summary.ci_lo, summary.ci_hi, summary.p90) == (None, None, None)


@pytest.mark.parametrize(("n", "p99"), [(298, None), (299, 297)])
def test_p99_needs_299_samples(n: int, p99: float | None) -> None:
    """ceil(0.99 * 299) = 297."""
    assert stats.summarise(range(1, n + 1)).p99 == p99


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_sample_that_is_no_number_is_invalid(bad: float) -> None:
    with pytest.raises(ResultInvalid, match="invalid_value"):
        stats.summarise([1.0, bad, 2.0])


def test_nothing_to_summarise_is_an_error() -> None:
    with pytest.raises(ValueError, match="2 samples, 2 warm-ups"):
        stats.summarise([1.0, 2.0], warmups=2)


@given(st.lists(st.floats(1e-9, 1e12), min_size=1, max_size=60))
def test_summary_is_ordered_and_made_of_measured_values(samples: list[float]) -> None:
    s = stats.summarise(samples)
    assert s.minimum <= s.median <= s.maximum
    assert s.median == statistics.median(samples)
    if s.ci_lo is not None and s.ci_hi is not None:
        assert s.ci_lo in samples
        assert s.ci_hi in samples
        assert s.ci_lo <= s.median <= s.ci_hi
    assert s.p90 is None or s.p90 in samples


def test_percentile_is_nearest_rank() -> None:
    values = [15.0, 20.0, 35.0, 40.0, 50.0]
    assert [stats.percentile(values, p) for p in (0.05, 0.3, 0.4, 0.5, 1.0)] == [15, 20, 20, 35, 50]


def test_a_ramp_is_not_steady_and_noise_is() -> None:
    rng = random.Random(3)
    ramp = [100 * 0.98**i for i in range(10)]
    noise = [rng.gauss(100, 3) for _ in range(10)]
    assert not stats.is_steady(ramp, 0.02)
    assert stats.is_steady(noise, 0.02)
    assert not stats.is_steady([1.0] * 5, 0.02)


def test_warm_up_ends_when_the_slow_start_has_left_the_window() -> None:
    samples = [50.0, 20.0, 15.0, 13.0, 12.0] + [10.0 + 0.01 * (i % 3) for i in range(20)]
    ends = next(n for n in range(len(samples)) if stats.warmed_up(samples[:n], 0.02))
    assert 10 < ends <= 15


def test_sampling_stops_at_the_first_look_when_the_interval_is_narrow() -> None:
    calm = [100.0 + 0.1 * (i % 5) for i in range(20)]
    assert not stats.should_stop(calm[:19], stats.BANDWIDTH_TOLERANCE)
    assert stats.should_stop(calm, stats.BANDWIDTH_TOLERANCE)


def test_sampling_goes_on_while_the_interval_is_wide_or_between_looks() -> None:
    wild = [100.0 + 10 * (i % 5) for i in range(20)]
    assert not stats.should_stop(wild, stats.BANDWIDTH_TOLERANCE)
    calm = [100.0] * 25
    assert not stats.should_stop(calm, stats.BANDWIDTH_TOLERANCE)
    assert stats.should_stop(calm + calm[:5], stats.BANDWIDTH_TOLERANCE)


def test_drifting_samples_never_converge_and_are_called_drift() -> None:
    drift = [100.0 + 0.15 * i for i in range(20)]
    width = stats.relative_half_width(drift)
    assert width is not None
    assert width < 0.01
    assert not stats.should_stop(drift, 0.01)
    assert stats.end_reason(drift, 0.01, "budget") == "drift"
    assert stats.end_reason([100.0] * 20, 0.01, "budget") == "budget"


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_statistics_of_values_that_are_no_numbers_are_refused(bad: float) -> None:
    values = [1.0, 2.0, bad, 4.0, 5.0, 6.0]
    for call in (stats.mad, stats.interval, lambda v: stats.percentile(v, 0.5)):
        with pytest.raises(ValueError, match=r"samples: value 2 is .*only finite numbers"):
            call(values)


def test_statistics_of_nothing_are_refused() -> None:
    assert stats.interval([]) is None
    with pytest.raises(ValueError, match="samples: 0 values; at least 1"):
        stats.mad([])
    with pytest.raises(ValueError, match="samples: 0 values; at least 1"):
        stats.percentile([], 0.5)


@pytest.mark.parametrize("share", [0.0, -0.1, 1.01, 99.0, math.nan])
def test_a_percentile_needs_a_share(share: float) -> None:
    with pytest.raises(ValueError, match="above 0 and at most 1"):
        stats.percentile([1.0], share)


@pytest.mark.parametrize("confidence", [0.0, 1.0, 95.0, math.nan])
def test_a_confidence_is_a_share(confidence: float) -> None:
    with pytest.raises(ValueError, match=r"must be between 0 and 1, such as 0\.95"):
        stats.interval_ranks(10, confidence)


def test_sampling_goes_on_while_a_sample_is_no_number() -> None:
    """The summary refuses it in the end; the loop that asks whether to stop must not fall over."""
    assert not stats.should_stop([1.0] * 19 + [math.inf], 0.01)
    assert stats.relative_half_width([1.0] * 19 + [math.nan]) is None


def test_finite_returns_the_values_or_names_the_one_that_is_unfit() -> None:
    assert stats.finite(range(1, 4), "sizes", positive=True) == [1.0, 2.0, 3.0]
    with pytest.raises(ValueError, match="sizes: value 1 is 0; ratios need values above zero"):
        stats.finite([1, 0], "sizes", positive=True)
    with pytest.raises(ValueError, match="sizes: 2 values; at least 3 are needed"):
        stats.finite([1, 2], "sizes", at_least=3)
