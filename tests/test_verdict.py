"""Verdicts: each gate with a case on either side of it, and small simulations of the bars."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from made_nights import (
    BASE,
    POLICY,
    Values,
    evidence,
    flat,
    fleet,
    host,
    judged,
    levels,
    noisy,
    said,
    subject,
    track,
)
from topobench.verdict import judge
from topobench.verdict_words import Level

HOSTS = 12
TRACKS = fleet(HOSTS, 3)


def fallen(cases: int, nights: int, of: int = 3, by: float = 0.03, host: int = 0) -> Values:
    """All equal, but some cases of one host are slower on the last nights."""
    values = flat(TRACKS, of)
    values[3 * host : 3 * host + cases, of - nights :] *= 1 - by
    return values


def test_equal_hosts_are_ok_once_three_nights_are_there() -> None:
    assert set(levels(judged(TRACKS, flat(TRACKS, 3))).values()) == {Level.OK}
    first = judged(TRACKS, flat(TRACKS, 1))
    assert set(levels(first).values()) == {Level.LEARNING}
    assert "learning (1 of 3 nights)" in [c.reason for c in subject(first, "h0").checks]


@pytest.mark.parametrize(
    ("cases", "nights", "by", "level"),
    [
        (2, 2, 0.03, Level.DEGRADED),
        (2, 1, 0.03, Level.OK),
        (2, 3, 0.019, Level.OK),
        (1, 2, 0.03, Level.WATCH),
        (1, 2, 0.05, Level.DEGRADED),
        (1, 2, 0.11, Level.FAIL),
        (3, 1, 0.50, Level.OK),
    ],
)
def test_peers_need_two_nights_and_two_cases_or_one_far_off(
    cases: int, nights: int, by: float, level: Level
) -> None:
    found = judged(TRACKS, fallen(cases, nights, by=by))
    assert levels(found) == {"h0": level} | {f"h{n}": Level.OK for n in range(1, HOSTS)}
    assert said(found, "h0", "peers") is level


def test_a_check_gives_value_reference_effect_and_what_it_would_have_seen() -> None:
    found = judged(TRACKS, fallen(2, 2))
    check = next(c for c in subject(found, "h0").checks if c.name == "peers")
    assert check.value == pytest.approx(0.97 * BASE)
    assert check.reference == pytest.approx(BASE)
    assert check.effect == pytest.approx(-0.03)
    # z = 3.5 with the floor of 0.5 % and the quantile of two nights of three.
    assert check.mde == pytest.approx(np.expm1((3.5 + 0.857) * 1.4826 * 0.005))
    assert check.confirmed == 2
    advice = subject(found, "h0").advice
    assert advice is not None
    assert advice.startswith("scontrol update NodeName=h0 State=DRAIN")


def test_worse_latency_is_more_seconds() -> None:
    slow = [replace(t, unit="s", better=-1, metric="latency_seconds") for t in TRACKS]
    values = fallen(2, 2, by=-0.06)
    assert levels(judged(slow, values))["h0"] is Level.DEGRADED
    assert levels(judged(slow, fallen(2, 2, by=0.06)))["h0"] is Level.OK
    assert levels(judged(slow, fallen(2, 2, by=-0.035)))["h0"] is Level.OK


def test_two_metrics_of_one_case_are_one_case() -> None:
    twice = [replace(t, series=t.series // 1000) for t in TRACKS]
    assert levels(judged(twice, fallen(3, 2)))["h0"] is Level.WATCH


def test_fewer_than_eight_peers_abstain() -> None:
    few = fleet(8, 3)
    values = flat(few, 3)
    values[:3] *= 0.5
    found = judged(few, values)
    assert said(found, "h0", "peers") is Level.UNKNOWN
    reason = next(c.reason for c in subject(found, "h0").checks if c.name == "peers")
    assert reason == "abstains: 7 peers of its class; 8 are needed"


def test_only_hosts_wired_alike_are_peers() -> None:
    values = fallen(3, 3, by=0.3)
    mixed = [host(n, group="class" if n else "another") for n in range(HOSTS)]
    assert said(judged(TRACKS, values, hosts=mixed), "h0", "peers") is Level.UNKNOWN


def test_a_users_command_meets_no_peers() -> None:
    own = [replace(t, has_peers=False) for t in TRACKS]
    assert said(judged(own, fallen(3, 3, by=0.3)), "h0", "peers") is Level.UNKNOWN


def test_a_host_measured_alone_by_day_meets_last_nights_fleet() -> None:
    values = fallen(3, 3)
    values[3:, -1] = np.nan
    assert said(judged(TRACKS, values), "h0", "peers") is Level.DEGRADED
    week_later = np.full((len(TRACKS), 12), np.nan)
    week_later[:, :3] = values
    week_later[:3, -3:] = values[:3]
    assert said(judged(TRACKS, week_later), "h0", "peers") is Level.UNKNOWN


def test_own_history_alone_degrades_and_with_peers_fails() -> None:
    alone = [track(0, case) for case in range(3)]
    values = flat(alone, 12)
    values[:2, 9:] *= 0.96
    found = judged(alone, values)
    assert (said(found, "h0", "history"), levels(found)["h0"]) == (Level.DEGRADED,) * 2
    both = judged(TRACKS, fallen(2, 3, of=12))
    assert levels(both)["h0"] is Level.FAIL
    assert said(both, "h0", "history") is Level.FAIL
    one_case = judged(TRACKS, fallen(1, 3, of=12))
    assert levels(one_case)["h0"] is Level.WATCH


def test_a_change_of_level_is_told_with_its_night_and_size() -> None:
    point = next(p for p in judged(TRACKS, fallen(1, 4, of=20, by=0.05)).changepoints)
    assert (point.track, point.lo, point.hi) == (0, 20_015, 20_016)
    assert point.effect == pytest.approx(-0.05)
    rise = next(p for p in judged(TRACKS, fallen(1, 4, of=20, by=-0.05)).changepoints)
    assert rise.effect == pytest.approx(0.05)


def test_one_or_two_odd_nights_are_no_change_of_level() -> None:
    for odd in ([8], [8, 12], [19]):
        values = flat(TRACKS, 20)
        values[0, odd] *= 0.7
        found = judged(TRACKS, values)
        assert found.changepoints == ()
        assert said(found, "h0", "history") is Level.OK


def test_a_recorded_change_cuts_the_history() -> None:
    stretches = [0] * 9 + [1] * 3
    found = judged(TRACKS, fallen(3, 3, of=12), stretches=stretches)
    assert said(found, "h0", "history") is Level.LEARNING
    assert found.changepoints == ()
    assert levels(found)["h0"] is Level.DEGRADED  # by its peers


def test_nights_without_a_measurement_are_skipped_not_filled() -> None:
    values = fallen(2, 3, of=20)
    values[:, 5:15] = np.nan
    found = judged(TRACKS, values)
    assert levels(found)["h0"] is Level.FAIL
    assert {(p.lo, p.hi) for p in found.changepoints} == {(20_016, 20_017)}


def test_data_older_than_fourteen_days_judge_nothing() -> None:
    old = judged(TRACKS, fallen(3, 3), as_of_day=20_002 + 15)
    assert set(levels(old).values()) == {Level.UNKNOWN}
    last = judged(TRACKS, fallen(3, 3), as_of_day=20_002 + 14)
    assert levels(last)["h0"] is Level.DEGRADED


def test_many_hosts_falling_together_are_one_incident() -> None:
    values = flat(TRACKS, 3)
    values[:6] *= 0.97
    two = judged(TRACKS, values)
    assert two.incidents == ()
    assert levels(two)["h0"] is levels(two)["h1"] is Level.DEGRADED
    values[6:9] *= 0.97
    three = judged(TRACKS, values)
    assert [(i.hosts, i.of) for i in three.incidents] == [(("h0", "h1", "h2"), HOSTS)]
    assert levels(three)["h0"] is Level.WATCH
    assert "part of an incident" in " ".join(c.reason for c in subject(three, "h0").checks)


def test_peers_that_are_no_subjects_are_compared_with_and_not_judged() -> None:
    hosts = [host(n, is_subject=n == 0) for n in range(HOSTS)]
    assert levels(judged(TRACKS, fallen(3, 3), hosts=hosts)) == {"h0": Level.DEGRADED}


def test_the_same_evidence_gives_the_same_verdict() -> None:
    made = evidence(TRACKS, noisy(5, len(TRACKS), 30))
    assert judge(made, POLICY) == judge(made, POLICY)


def test_a_fleet_without_a_fault_stays_silent_and_a_slow_host_is_found() -> None:
    """40 null nights of 32 hosts, then 3 % of one of them; the bars are in benchmarks."""
    tracks = fleet(32, 60)
    values = noisy(1, len(tracks), 60 + 40)
    found: Counter[Level] = Counter()
    for last in range(60, 100, 4):
        found.update(levels(judged(tracks, values[:, last - 60 : last])).values())
    assert found[Level.DEGRADED] + found[Level.FAIL] <= 1
    assert found[Level.OK] >= 315
    values[5 * 60 : 6 * 60, 44:] *= 0.97
    bad = levels(judged(tracks, values[:, :50]))
    assert {h for h, level in bad.items() if level in (Level.DEGRADED, Level.FAIL)} == {"h5"}
