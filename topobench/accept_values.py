"""Values of processes or hosts against a limit, or against a reference sweep. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from topobench import ranks
from topobench.accept_criteria import Rule
from topobench.accept_words import Answer, Found
from topobench.comparability import refusal
from topobench.compare_cases import devices_of, host_of, process_of
from topobench.comparison import MIN_PROCESSES, Comparison, compare, detectable_centre
from topobench.measured import Value, collapsed, grouped
from topobench.reading import Better, CiLevel


def numbers(rule: Rule, group: Sequence[Value]) -> tuple[str, list[float]]:
    """
    The values that vary: of hosts where there are several, else of processes.

    Returns:
        ``hosts`` or ``processes``, and a value of each in the metric's unit; none where the
        statistic is a P99 that no process has.
    """
    known = [v for v in group if rule.statistic == "median" or v.p99 is not None]
    hosts, processes = grouped(known, host_of), grouped(known, process_of)
    of = _statistic(rule)
    if len(hosts) > 1:
        return "hosts", [collapsed(g, (devices_of, process_of), of) for g in hosts.values()]
    return "processes", [collapsed(g, (devices_of,), of) for g in processes.values()]


def _statistic(rule: Rule) -> Callable[[Value], float]:
    return _p99 if rule.statistic == "p99" else _median


def against_value(rule: Rule, found: Found, values: Sequence[float]) -> Found:
    """Lay the interval of the values against the limit."""
    assert rule.value is not None
    if len(values) < MIN_PROCESSES:
        reason = f"{len(values)} of the {MIN_PROCESSES} {found.unit_of} that are needed to decide"
        return replace(found, reason=reason)
    positive = min(values) > 0
    estimate = ranks.paired_ratio([1.0] * len(values), values) if positive else ranks.centre(values)
    lo, hi = estimate.lo, estimate.hi
    assert lo is not None  # six values have an interval
    assert hi is not None
    met, missed = (lo >= rule.value, hi < rule.value)
    if rule.op == "<=":
        met, missed = (hi <= rule.value, lo > rule.value)
    answer = Answer.PASS if met else Answer.FAIL if missed else Answer.INCONCLUSIVE
    words = {
        Answer.PASS: "the whole interval meets the limit",
        Answer.FAIL: "the whole interval misses the limit",
        Answer.INCONCLUSIVE: "the interval holds the limit; more processes would narrow it",
    }
    return replace(
        found,
        answer=answer,
        reason=words[answer],
        value=estimate.value,
        lo=lo,
        hi=hi,
        mde=_mde(values) if positive else None,
    )


def _mde(values: Sequence[float]) -> float | None:
    shift = detectable_centre(len(values))
    return None if shift is None else math.expm1(shift * ranks.log_spread([values]))


def against_reference(
    rule: Rule, found: Found, group: Sequence[Value], reference: Sequence[Value]
) -> Found:
    """Against what a reference sweep measured of the same case."""
    assert rule.margin is not None
    same = [v for v in reference if _is_same_case(v, group[0])]
    if not same:
        reason = f"sweep {rule.reference} did not measure this case"
        return replace(found, answer=Answer.NOT_MEASURED, reason=reason)
    why = refusal(same, group, same_hosts=False, force=False, hardware=True)
    if why is not None:
        return replace(found, reason=why.partition("; --force")[0])
    own = numbers(rule, group)[1]
    others = _reference_numbers(rule, same, pooled=found.unit_of == "processes")
    if not others:
        return replace(found, reason="no process of the reference has the samples of a P99")
    if group[0].better is Better.NEITHER:
        return replace(found, reason=f"{group[0].metric} is good in neither direction")
    if min(*others, *own) <= 0:
        return replace(found, reason="values of zero have no relative change")
    result = compare(
        others,
        own,
        tolerance=rule.margin,
        better=group[0].better,
        level=CiLevel.BETWEEN,
        with_p=False,
    )
    return _within_margin(found, result, rule.margin)


def _is_same_case(a: Value, b: Value) -> bool:
    """Whether two values are of one metric, case, arm and number of devices."""
    one, other = a.subject, b.subject
    return (
        a.metric == b.metric
        and one.probe == other.probe
        and one.params_hash == other.params_hash
        and one.arm == other.arm
        and (a.rank is None) == (b.rank is None)
        and len(one.devices) == len(other.devices)
    )


def _within_margin(found: Found, result: Comparison, margin: float) -> Found:
    """What the interval of the change from the reference says of the margin."""
    found = replace(found, effect_ratio=result.effect_ratio, mde=result.mde)
    if result.lo is None or result.hi is None:
        text = f"{result.n_a} values of the reference against {result.n_b} {found.unit_of}"
        return replace(found, reason=f"{text}; at least {MIN_PROCESSES} a side are needed")
    met, missed = result.lo >= -margin, result.hi < -margin
    answer = Answer.PASS if met else Answer.FAIL if missed else Answer.INCONCLUSIVE
    words = {
        Answer.PASS: "the whole interval of the change is better than the margin",
        Answer.FAIL: "the whole interval of the change is worse than the margin",
        Answer.INCONCLUSIVE: "the interval of the change holds the margin; measure more processes",
    }
    return replace(found, answer=answer, reason=words[answer], lo=result.lo, hi=result.hi)


def _reference_numbers(rule: Rule, values: Sequence[Value], *, pooled: bool) -> list[float]:
    """The reference's own variation: of its typical host and device, or of its hosts."""
    known = [v for v in values if rule.statistic == "median" or v.p99 is not None]
    of = _statistic(rule)
    if not pooled:
        hosts = grouped(known, host_of).values()
        return [collapsed(g, (devices_of, process_of), of) for g in hosts]
    processes = grouped(known, process_of).values()
    return [collapsed(g, (host_of, devices_of), of) for g in processes]


def _median(value: Value) -> float:
    return value.median


def _p99(value: Value) -> float:
    assert value.p99 is not None  # those without were left out
    return value.p99
