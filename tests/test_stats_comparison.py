from __future__ import annotations

import dataclasses
import functools
import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import mannwhitneyu, wilcoxon

from drawing import SHAPES, noise, process_medians
from topobench import comparison
from topobench.comparison import Change, Comparison, compare, compare_paired
from topobench.reading import Better, CiLevel

CALM = [99.7, 100.2, 99.9, 100.1, 100.3, 99.8]
DECIDED = {Change.REGRESSED, Change.IMPROVED}


def judged(
    a: list[float], b: list[float], tolerance: float = 0.03, better: Better = Better.HIGHER
) -> Comparison:
    return compare(a, b, tolerance=tolerance, better=better, level=CiLevel.BETWEEN)


def word(a: list[float], b: list[float], tolerance: float = 0.03) -> Change:
    """The verdict alone, thousands of times: without the p value, which decides nothing."""
    found = compare(
        a, b, tolerance=tolerance, better=Better.HIGHER, level=CiLevel.BETWEEN, with_p=False
    )
    return found.verdict


@pytest.mark.parametrize(
    ("factor", "better", "verdict", "effect"),
    [
        (0.90, Better.HIGHER, "regressed", -0.10),
        (1.10, Better.HIGHER, "improved", 0.10),
        (1.10, Better.LOWER, "regressed", -0.10),
        (0.90, Better.LOWER, "improved", 0.10),
        (1.01, Better.HIGHER, "equivalent", 0.01),
        (1.01, Better.LOWER, "equivalent", -0.01),
        (0.97, Better.HIGHER, "inconclusive", -0.03),
    ],
)
def test_the_interval_decides_against_the_tolerance(
    factor: float, better: Better, verdict: str, effect: float
) -> None:
    """A negative effect is worse, whichever way the metric is good."""
    found = judged(CALM, [factor * x for x in CALM], better=better)
    assert found.verdict == verdict
    assert found.effect_ratio == pytest.approx(effect)
    assert found.lo is not None
    assert found.hi is not None
    assert found.lo <= found.effect_ratio <= found.hi
    assert (found.n_a, found.n_b, found.level) == (6, 6, CiLevel.BETWEEN)
    assert found.mde is not None
    assert 0.03 < found.mde < 0.05


def test_the_reason_names_the_interval_and_the_tolerance() -> None:
    worse = judged(CALM, [0.9 * x for x in CALM])
    assert worse.reason == (
        "all of the interval, -10.36 % to -9.64 %, is worse than the tolerance of 3 %"
    )
    unclear = judged(CALM, [0.97 * x for x in CALM])
    assert "crosses the tolerance of 3 %; more processes would narrow it" in unclear.reason


def test_samples_of_one_process_never_decide() -> None:
    """However many there are and however clear they look."""
    rng = random.Random(1)
    a = [rng.gauss(100, 0.1) for _ in range(200)]
    found = compare(
        a, [x / 2 for x in a], tolerance=0.03, better=Better.HIGHER, level=CiLevel.WITHIN
    )
    assert found.verdict is Change.INCONCLUSIVE
    assert (found.lo, found.hi, found.mde, found.p) == (None, None, None, None)
    assert found.effect_ratio == pytest.approx(-0.5)
    assert found.reason == (
        "samples of one process a side: how much processes differ is unknown; "
        "measure at least 6 processes a side"
    )


def test_five_processes_a_side_never_decide() -> None:
    found = judged(CALM[:5], [x / 2 for x in CALM])
    assert found.verdict is Change.INCONCLUSIVE
    assert found.reason == "5 against 6 processes or blocks; at least 6 a side are needed"


@pytest.mark.parametrize("n", range(6, 13))
@pytest.mark.parametrize("m", range(6, 13))
@pytest.mark.parametrize("confidence", [0.95, 0.99])
def test_no_group_sizes_are_blind_to_a_clear_change(n: int, m: int, confidence: float) -> None:
    """
    Groups that do not overlap differ, whatever their sizes.

    In another tool, a guard on the smallest possible p value makes 6 against 6 the one pair
    of sizes that can never differ.
    """
    rng = random.Random(n * m)
    a = [rng.gauss(100, 0.5) for _ in range(n)]
    b = [rng.gauss(80, 0.5) for _ in range(m)]
    found = compare(
        a,
        b,
        tolerance=0.03,
        better=Better.HIGHER,
        level=CiLevel.BETWEEN,
        confidence=confidence,
    )
    assert found.verdict is Change.REGRESSED


def test_a_confidence_out_of_reach_is_inconclusive_and_says_so() -> None:
    """6 against 6 can give 99.78 % at most: 1 - 2 / 924."""
    found = compare(
        CALM,
        [x / 2 for x in CALM],
        tolerance=0.03,
        better=Better.HIGHER,
        level=CiLevel.BETWEEN,
        confidence=0.999,
    )
    assert found.verdict is Change.INCONCLUSIVE
    assert found.reason == "6 against 6 values cannot give 99.9 % confidence"


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("n", [6, 12])
def test_equal_groups_are_called_different_at_most_as_often_as_stated(shape: str, n: int) -> None:
    """Two levels, zero tolerance: at most 5 %. With a tolerance of 3 %: never in 1500."""
    generator = np.random.default_rng(31 + n)
    a = process_medians(shape, generator, (1500, n)).tolist()
    b = process_medians(shape, generator, (1500, n)).tolist()
    strict = [word(x, y, 0.0) in DECIDED for x, y in zip(a, b, strict=True)]
    assert sum(strict) / 1500 <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 1500)
    assert sum(strict) > 0
    real = [word(x, y) for x, y in zip(a[:500], b[:500], strict=True)]
    assert not DECIDED & set(real)
    if shape == "normal":
        assert real.count(Change.EQUIVALENT) / 500 > 0.9


def test_a_change_of_exactly_the_tolerance_is_called_at_most_as_often_as_stated() -> None:
    """The worst case of both errors: half of the rate on each side."""
    generator = np.random.default_rng(5)
    a = np.exp(0.01 * generator.standard_normal((1500, 8)))
    b = 0.97 * np.exp(0.01 * generator.standard_normal((1500, 8)))
    words = [word(x, y) for x, y in zip(a.tolist(), b.tolist(), strict=True)]
    limit = 1500 * 0.025 + 3 * math.sqrt(1500 * 0.025 * 0.975)
    assert words.count(Change.REGRESSED) <= limit
    assert words.count(Change.EQUIVALENT) <= limit


@pytest.mark.parametrize("n", [6, 10, 20])
@pytest.mark.parametrize("tolerance", [0.0, 0.03])
def test_a_change_of_the_minimum_detectable_effect_is_called_as_often_as_stated(
    n: int, tolerance: float
) -> None:
    """Both ways, with 2 % between processes; no better than needed either."""
    effect = comparison.detectable_effect(n, n, 0.02, tolerance=tolerance)
    assert effect is not None
    generator = np.random.default_rng(n)
    error = 3 * math.sqrt(0.9 * 0.1 / 800)
    a = np.exp(0.02 * generator.standard_normal((800, n))).tolist()
    for factor, wanted in ((1 + effect, Change.IMPROVED), (1 - effect, Change.REGRESSED)):
        b = (factor * np.exp(0.02 * generator.standard_normal((800, n)))).tolist()
        found = [word(x, y, tolerance) is wanted for x, y in zip(a, b, strict=True)]
        assert 0.9 - error <= sum(found) / 800 <= 0.97


@pytest.mark.parametrize(("n", "m"), [(6, 6), (6, 40), (15, 15), (25, 25), (40, 25), (60, 60)])
@pytest.mark.parametrize(("confidence", "power"), [(0.95, 0.9), (0.99, 0.8)])
def test_a_detectable_shift_is_detected_as_often_as_stated(
    n: int, m: int, confidence: float, power: float
) -> None:
    """By scipy's Mann-Whitney test, which shares no line with ours."""
    shift = comparison.detectable_shift(n, m, confidence, power)
    assert shift is not None
    generator = np.random.default_rng(n + m)
    a = generator.standard_normal((4000, n))
    b = shift + generator.standard_normal((4000, m))
    p = mannwhitneyu(a, b, axis=1, method="exact" if n * m < 400 else "asymptotic").pvalue
    share = np.mean(p <= 1 - confidence)
    assert power - 3 * math.sqrt(power * (1 - power) / 4000) <= share <= power + 0.04


@pytest.mark.parametrize("n", [6, 8, 20, 50, 80])
def test_a_detectable_centre_is_detected_as_often_as_stated(n: int) -> None:
    centre = comparison.detectable_centre(n)
    assert centre is not None
    effects = centre + np.random.default_rng(n).standard_normal((4000, n))
    p = wilcoxon(effects, axis=1, method="exact" if n <= 20 else "approx").pvalue
    assert 0.9 - 3 * math.sqrt(0.09 / 4000) <= np.mean(p <= 0.05) <= 0.94


@pytest.mark.parametrize(("n", "at_most"), [(7, 3), (10, 2.5), (20, 1.5), (30, 1.25)])
def test_detectable_shifts_stay_below_the_published_bounds(n: int, at_most: float) -> None:
    """Upper bounds from a coarse simulation, in standard deviations, at 99 % and power 0.9."""
    shift = comparison.detectable_shift(n, n, 0.99)
    assert shift is not None
    assert 0.7 * at_most < shift <= at_most


def test_heavy_tails_cost_little_power() -> None:
    """The spread that a comparison estimates is robust, so t4 noise is found as often."""
    generator = np.random.default_rng(12)
    found = 0
    for _ in range(600):
        a = np.exp(0.02 * noise("t4", generator, (12,))).tolist()
        effect = judged(a, a[::-1], 0.0).mde
        assert effect is not None
        b = ((1 + effect) * np.exp(0.02 * noise("t4", generator, (12,)))).tolist()
        found += word(a, b, 0.0) is Change.IMPROVED
    assert found / 600 >= 0.8


def test_paired_arms_are_compared_block_by_block() -> None:
    """Drift of 20 % over the blocks, an effect of 5 % inside them."""
    blocks = [100 + 20 * i / 7 for i in range(8)]
    wobble = [0.1, -0.2, 0.05, 0.15, -0.1, 0.2, -0.15, -0.05]
    other = [x * (0.95 + w / 100) for x, w in zip(blocks, wobble, strict=True)]
    found = compare_paired(blocks, other, tolerance=0.03, better=Better.HIGHER)
    assert found.verdict is Change.REGRESSED
    assert found.effect_ratio == pytest.approx(-0.05, abs=0.001)
    assert found.mde is not None
    assert found.mde < 0.04
    assert judged(blocks, other).verdict is Change.INCONCLUSIVE


def test_five_blocks_never_decide() -> None:
    found = compare_paired(CALM[:5], [50.0] * 5, tolerance=0.03, better=Better.HIGHER)
    assert found.verdict is Change.INCONCLUSIVE
    assert "5 against 5 processes or blocks" in found.reason


@pytest.mark.parametrize("shape", SHAPES)
def test_equal_arms_are_called_different_at_most_as_often_as_stated(shape: str) -> None:
    generator = np.random.default_rng(3)
    a = process_medians(shape, generator, (1000, 8)).tolist()
    b = process_medians(shape, generator, (1000, 8)).tolist()
    false = sum(
        compare_paired(x, y, tolerance=0.0, better=Better.HIGHER, with_p=False).verdict in DECIDED
        for x, y in zip(a, b, strict=True)
    )
    assert 0 < false / 1000 <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 1000)


def test_a_p_value_left_out_changes_nothing_else() -> None:
    other = [0.95 * x for x in CALM]
    for judge in (functools.partial(compare, level=CiLevel.BETWEEN), compare_paired):
        told, brief = (
            judge(CALM, other, tolerance=0.03, better=Better.HIGHER, with_p=p)
            for p in (True, False)
        )
        assert told.p is not None
        assert brief == dataclasses.replace(told, p=None)


def test_a_power_that_was_never_reached_is_not_promised() -> None:
    assert comparison.detectable_effect(5, 8, 0.01) is None
    assert comparison.detectable_effect(6, 6, 0.01, confidence=0.999) is None


def test_noiseless_groups_see_all_that_exceeds_the_tolerance() -> None:
    found = judged([100.0] * 6, [100.0] * 6)
    assert (found.verdict, found.effect_ratio, found.p) == (Change.EQUIVALENT, 0.0, 1.0)
    assert found.mde == pytest.approx(0.03)


@settings(deadline=None)
@given(
    st.lists(st.floats(1e-3, 1e3), min_size=6, max_size=9),
    st.lists(st.floats(1e-3, 1e3), min_size=6, max_size=9),
    st.floats(0, 0.5),
)
def test_a_verdict_always_follows_from_its_own_numbers(
    a: list[float], b: list[float], tolerance: float
) -> None:
    found = judged(a, b, tolerance)
    assert found.lo is not None
    assert found.hi is not None
    assert found.mde is not None
    assert found.mde >= tolerance * (1 - 1e-9)
    wanted = Change.INCONCLUSIVE
    if found.hi < -tolerance:
        wanted = Change.REGRESSED
    elif found.lo > tolerance:
        wanted = Change.IMPROVED
    elif -tolerance <= found.lo and found.hi <= tolerance:
        wanted = Change.EQUIVALENT
    assert found.verdict is wanted
    assert found == judged(a, b, tolerance)


def test_impossible_requests_are_refused_in_a_sentence() -> None:
    with pytest.raises(ValueError, match="good in neither direction"):
        judged(CALM, CALM, better=Better.NEITHER)
    for tolerance in (-0.01, 1.0, math.nan):
        with pytest.raises(ValueError, match="at least 0 and below 1"):
            judged(CALM, CALM, tolerance)
    with pytest.raises(ValueError, match="first group: value 0 is -1; ratios need"):
        judged([-1.0, *CALM], CALM)
    with pytest.raises(ValueError, match="second group: 0 values"):
        judged(CALM, [])
    with pytest.raises(ValueError, match=r"variation -0\.1 must not be negative"):
        comparison.detectable_effect(6, 6, -0.1)
    with pytest.raises(ValueError, match="power 1"):
        comparison.detectable_effect(6, 6, 0.1, power=1.0)
