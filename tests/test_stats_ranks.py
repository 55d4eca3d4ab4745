from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import mannwhitneyu, ttest_ind

from drawing import SHAPES, noise, process_medians
from topobench import ranks, stats

RUNS = 2000
POSITIVE = st.lists(st.floats(1e-6, 1e9), min_size=1, max_size=20)


@pytest.mark.parametrize(
    ("n", "m", "critical"),
    [(4, 4, 0), (5, 5, 2), (6, 6, 5), (5, 9, 7), (8, 8, 13), (10, 10, 23), (20, 20, 127)],
)
def test_shift_ranks_follow_the_tables_of_mann_whitney(n: int, m: int, critical: int) -> None:
    """Tables give the largest U that is significant at 5 %, two-sided; the rank is one more."""
    assert ranks.shift_rank(n, m) == critical + 1
    assert ranks.shift_rank(m, n) == critical + 1


@pytest.mark.parametrize(
    ("n", "critical"), [(6, 0), (8, 3), (10, 8), (15, 25), (20, 52), (25, 89), (30, 137)]
)
def test_block_ranks_follow_the_tables_of_wilcoxon(n: int, critical: int) -> None:
    assert ranks.block_rank(n) == critical + 1


def test_groups_too_small_for_the_confidence_have_no_rank() -> None:
    assert ranks.shift_rank(3, 3) is None  # 2 / C(6, 3) = 10 %
    assert ranks.block_rank(5) is None  # 2 / 2^5 = 6.25 %
    assert ranks.shift_rank(6, 6, 0.999) is None
    assert ranks.shift_rank(7, 7, 0.999) == 1


def test_large_groups_use_a_normal_rank_next_to_the_exact_one() -> None:
    n = math.isqrt(ranks.EXACT_PAIRS)
    exact, beyond = ranks.shift_rank(n, n), ranks.shift_rank(n + 1, n)
    assert exact is not None
    assert beyond is not None
    assert beyond / (n + 1) == pytest.approx(exact / n, rel=0.002)
    blocks, more = ranks.block_rank(ranks.EXACT_BLOCKS), ranks.block_rank(ranks.EXACT_BLOCKS + 1)
    assert blocks is not None
    assert more is not None
    assert blocks < more < 1.04 * blocks


def test_shift_is_the_median_of_all_differences() -> None:
    found = ranks.shift([1, 2, 4], [10, 20])
    assert found == stats.Estimate(12.5, None, None)  # 6 8 9 16 18 19


def test_centre_is_the_median_of_all_pairwise_means() -> None:
    assert ranks.centre([1, 3, 8]).value == 3.75  # 1 2 3 4.5 5.5 8
    found = ranks.centre([1, 2, 3, 4, 5, 6])
    assert (found.lo, found.hi) == (1, 6)


def test_ratio_of_doubled_values_is_two() -> None:
    found = ranks.ratio([1, 2, 3, 4, 5, 6], [2, 4, 6, 8, 10, 12])
    assert found.value == pytest.approx(2)
    assert found.lo is not None
    assert found.hi is not None
    assert found.lo * found.hi == pytest.approx(4)


@settings(deadline=None)
@given(POSITIVE, POSITIVE)
def test_swapping_the_groups_inverts_the_ratio(a: list[float], b: list[float]) -> None:
    there, back = ranks.ratio(a, b), ranks.ratio(b, a)
    assert there.value == pytest.approx(1 / back.value)
    assert (there.lo is None) == (back.hi is None)
    if there.lo is not None and back.hi is not None:
        assert there.lo == pytest.approx(1 / back.hi)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("n", "m"), [(6, 6), (6, 15), (12, 12), (25, 25)])
def test_ratio_interval_covers_the_truth(shape: str, n: int, m: int) -> None:
    """One level: independent values, 5 % apart."""
    generator = np.random.default_rng(n + m)
    a = np.exp(0.02 * noise(shape, generator, (RUNS, n)))
    b = 1.05 * np.exp(0.02 * noise(shape, generator, (RUNS, m)))
    assert 0.93 <= _share_covered(ranks.ratio, a, b, 1.05) <= 0.97


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("n", [6, 12])
def test_ratio_interval_covers_the_truth_of_processes_with_samples(shape: str, n: int) -> None:
    """Two levels: medians of processes that differ, from samples that differ."""
    generator = np.random.default_rng(n)
    a = process_medians(shape, generator, (RUNS, n))
    b = 0.97 * process_medians(shape, generator, (RUNS, n))
    assert 0.93 <= _share_covered(ranks.ratio, a, b, 0.97) <= 0.97


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("n", [6, 8, 20])
def test_paired_interval_covers_the_truth_in_spite_of_drift(shape: str, n: int) -> None:
    """Blocks differ by 10 %, arms inside a block by 2 % and noise."""
    generator = np.random.default_rng(n)
    blocks = 1 + 0.1 * np.linspace(0, 1, n)
    a = blocks * np.exp(0.01 * noise(shape, generator, (RUNS, n)))
    b = 1.02 * blocks * np.exp(0.01 * noise(shape, generator, (RUNS, n)))
    # 6 blocks allow 96.9 %, no less; hence the margin above.
    assert 0.93 <= _share_covered(ranks.paired_ratio, a, b, 1.02) <= 0.978


def test_pairing_removes_drift_that_hides_the_effect_from_groups() -> None:
    generator = np.random.default_rng(2)
    blocks = 100 * (1 + 0.1 * np.arange(8) / 7)
    a = blocks * np.exp(0.002 * generator.standard_normal(8))
    b = 1.02 * blocks * np.exp(0.002 * generator.standard_normal(8))
    paired = ranks.paired_ratio(a.tolist(), b.tolist())
    grouped = ranks.ratio(a.tolist(), b.tolist())
    assert paired.lo is not None
    assert grouped.lo is not None
    assert paired.lo > 1.01
    assert grouped.lo < 1


@pytest.mark.parametrize(
    ("n", "m", "at_least"), [(6, 6, 0.93), (8, 8, 0.91), (20, 6, 0.95), (6, 20, 0.83)]
)
def test_unequal_spreads_cost_coverage_where_the_smaller_group_is_the_wilder(
    n: int, m: int, at_least: float
) -> None:
    """Not what the interval assumes: a varies three times as much as b."""
    generator = np.random.default_rng(4)
    a = np.exp(0.03 * generator.standard_normal((RUNS, n)))
    b = np.exp(0.01 * generator.standard_normal((RUNS, m)))
    assert _share_covered(ranks.ratio, a, b, 1.0) >= at_least


def test_mann_whitney_p_is_exact_without_ties() -> None:
    assert ranks.mann_whitney_p([1, 2, 3], [4, 5, 6]) == pytest.approx(0.1)  # 2 / C(6, 3)
    assert ranks.mann_whitney_p(range(6), range(10, 16)) == pytest.approx(2 / 924)
    tied = ranks.mann_whitney_p([1, 1, 2, 3, 3, 4], [3, 4, 4, 5, 6, 6])
    wanted = mannwhitneyu([1, 1, 2, 3, 3, 4], [3, 4, 4, 5, 6, 6], method="asymptotic").pvalue
    assert tied == pytest.approx(wanted)
    assert ranks.mann_whitney_p([5, 5], [5, 5, 5]) == 1.0


@pytest.mark.parametrize("n", [4, 6, 7, 9])
def test_the_interval_excludes_no_change_exactly_when_p_is_at_most_five_percent(n: int) -> None:
    """The interval and the exact test are one; neither has a zone in which the other is blind."""
    generator = np.random.default_rng(n)
    seen = set()
    for _ in range(300):
        a = generator.standard_normal(n).tolist()
        b = (1.2 + generator.standard_normal(n)).tolist()
        found = ranks.shift(a, b)
        assert found.lo is not None
        assert found.hi is not None
        excluded = found.lo > 0 or found.hi < 0
        assert excluded == (ranks.mann_whitney_p(a, b) <= 0.05)
        seen.add(excluded)
    assert seen == {True, False}


def test_signed_rank_p_is_exact_without_ties() -> None:
    assert ranks.signed_rank_p([1, 2, 3, 4, 5, 6]) == pytest.approx(2 / 64)
    assert ranks.signed_rank_p([0.0, 0.0, 0.0]) == 1.0
    assert ranks.signed_rank_p([1, -1, 2, -2, 3, -3]) > 0.9


def test_spread_ratio_is_right_on_average() -> None:
    generator = np.random.default_rng(8)
    ratios = []
    for _ in range(400):
        a = 100 * np.exp(0.01 * generator.standard_normal(20))
        b = 50 * np.exp(0.02 * generator.standard_normal(20))
        ratios.append(ranks.spread_ratio(a.tolist(), b.tolist()).ratio)
    assert np.median(np.asarray(ratios, float)) == pytest.approx(2, rel=0.05)


@pytest.mark.parametrize("shape", SHAPES)
def test_equal_spreads_are_seldom_called_different(shape: str) -> None:
    generator = np.random.default_rng(6)
    false = found = 0
    for _ in range(600):
        a, b = np.exp(0.01 * noise(shape, generator, (2, 12)))
        p = ranks.spread_ratio(a.tolist(), (3 * b).tolist()).p
        assert p is not None
        false += p <= 0.05
        p = ranks.spread_ratio(a.tolist(), (b**5).tolist()).p
        assert p is not None
        found += p <= 0.05
    assert false / 600 <= 0.075
    assert found / 600 >= 0.6


def test_groups_without_variation_have_no_spread_to_compare() -> None:
    assert ranks.spread_ratio([5, 5, 5], [7, 7, 7]) == ranks.SpreadRatio(None, None)
    assert ranks.spread_ratio([5, 5, 5], [7, 8, 9]).ratio is None


@pytest.mark.parametrize("n", [3, 6, 20])
def test_log_spread_is_not_too_calm_for_small_groups(n: int) -> None:
    """Its median is the true 2 %; that of the scaled MAD of 6 values is 1.7 %."""
    generator = np.random.default_rng(n)
    found = [
        ranks.log_spread(np.exp(0.02 * generator.standard_normal((2, n))).tolist())
        for _ in range(1000)
    ]
    assert np.median(found) == pytest.approx(0.02, rel=0.08)


def test_adjusted_p_values_of_a_known_case() -> None:
    """Each is p m / rank, made monotone from the largest down."""
    assert ranks.benjamini_hochberg([0.01, 0.04, 0.03, 0.005]) == pytest.approx(
        [0.02, 0.04, 0.04, 0.02]
    )
    assert ranks.benjamini_hochberg([0.04, 0.05]) == [0.05, 0.05]
    assert ranks.benjamini_hochberg([]) == []
    assert ranks.benjamini_hochberg([0.5, 1.0]) == [1.0, 1.0]


@pytest.mark.parametrize("shared", [0.0, 0.7])
def test_false_discoveries_stay_below_the_rate(shared: float) -> None:
    """200 cases a night, 20 of them really worse; independent, or sharing a common noise."""
    generator = np.random.default_rng(9)
    false_shares, found = [], 0
    for _ in range(300):
        common = generator.standard_normal((1, 8))
        own = generator.standard_normal((200, 8))
        a = math.sqrt(shared) * common + math.sqrt(1 - shared) * own
        a[:20] += 2.5
        p = ttest_ind(a, generator.standard_normal((200, 8)), axis=1).pvalue
        flagged = np.asarray(ranks.benjamini_hochberg(p.tolist())) <= 0.05
        false_shares.append(flagged[20:].sum() / max(flagged.sum(), 1))
        found += int(flagged[:20].sum())
    error = np.std(false_shares) / math.sqrt(300)
    assert np.mean(false_shares) <= 0.05 + 3 * error
    assert found / (300 * 20) > 0.8


@pytest.mark.parametrize(
    "call",
    [
        lambda bad: ranks.shift([], [1.0]),
        lambda bad: ranks.shift([1.0, bad], [1.0]),
        lambda bad: ranks.ratio([1.0], [bad]),
        lambda bad: ranks.centre([bad]),
        lambda bad: ranks.centre([]),
        lambda bad: ranks.paired_ratio([1.0, 2.0], [1.0, bad]),
        lambda bad: ranks.mann_whitney_p([bad], [1.0]),
        lambda bad: ranks.signed_rank_p([]),
        lambda bad: ranks.spread_ratio([1.0, 2.0, bad], [1.0, 2.0, 3.0]),
        lambda bad: ranks.log_spread([[1.0, bad]]),
        lambda bad: ranks.benjamini_hochberg([0.5, bad]),
    ],
)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_values_that_are_no_numbers_are_refused(
    call: Callable[[float], object], bad: float
) -> None:
    with pytest.raises(ValueError, match=r"only finite numbers|at least 1 are needed"):
        call(bad)


@pytest.mark.parametrize("bad", [0.0, -3.0])
def test_ratios_refuse_values_that_are_not_above_zero(bad: float) -> None:
    for call in (ranks.ratio, ranks.paired_ratio, ranks.spread_ratio):
        with pytest.raises(ValueError, match="ratios need values above zero"):
            call([1.0, 2.0, bad], [1.0, 2.0, 3.0])


def test_impossible_requests_are_refused_in_a_sentence() -> None:
    with pytest.raises(ValueError, match="cannot be paired block by block"):
        ranks.paired_ratio([1.0, 2.0], [1.0])
    with pytest.raises(ValueError, match="between 0 and 1"):
        ranks.benjamini_hochberg([1.5])
    with pytest.raises(ValueError, match="confidence 95"):
        ranks.shift([1.0], [2.0], 95)
    with pytest.raises(ValueError, match="compare medians of processes"):
        ranks.shift([1.0] * 5000, [1.0] * 5000)
    with pytest.raises(ValueError, match="at least two values"):
        ranks.log_spread([[1.0], [2.0]])


def _share_covered(
    method: Callable[[Sequence[float], Sequence[float]], stats.Estimate],
    a: np.ndarray[tuple[int, ...], np.dtype[np.float64]],
    b: np.ndarray[tuple[int, ...], np.dtype[np.float64]],
    truth: float,
) -> float:
    hits = 0
    for x, y in zip(a.tolist(), b.tolist(), strict=True):
        found = method(x, y)
        assert found.lo is not None
        assert found.hi is not None
        hits += found.lo <= truth <= found.hi
    return hits / len(a)
