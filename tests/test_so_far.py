"""Samples told while they are made: what, when, and what the launcher makes of them."""

from __future__ import annotations

import types
from collections.abc import Sequence
from typing import Any

import pytest

from topobench.agents.so_far import SoFar, told
from topobench.probes import at_once, so_far
from topobench.probes.gemm import Endurance
from topobench.probes.kernel_launch import Calls
from topobench.probes.timing import Bursts, Sampler
from topobench.reading import Reading
from topobench.stats import summarise

SPEED, TIME = "bandwidth_bytes_per_second", "latency_seconds"


class Heard:
    """Somebody who listens, and a clock that goes on by a millisecond a look."""

    def __init__(self) -> None:
        self.now = 0.0
        self.messages: list[dict[str, Any]] = []
        self.teller = so_far.Teller(lambda news: self.messages.append(dict(news)), {SPEED, TIME})

    def clock(self) -> float:
        self.now += 1e-3
        return self.now

    def samples(self, kind: str) -> list[float]:
        return [value for message in self.messages for value in message[kind]]


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> Heard:
    found = Heard()
    monkeypatch.setattr(so_far, "time", types.SimpleNamespace(monotonic=found.clock))
    found.teller.flush()  # by this clock
    return found


def sampler(kind: str, heard: Heard) -> Sampler:
    if kind == "bursts":
        return Bursts(0.0, 0.5, 60, heard.clock, sleep=lambda seconds: None)
    return {"plain": Sampler, "endurance": Endurance, "calls": Calls}[kind](
        0.0, 0.5, 60, heard.clock
    )


@pytest.mark.parametrize("kind", ["plain", "bursts", "endurance", "calls"])
def test_what_is_told_is_what_the_reading_will_hold(heard: Heard, kind: str) -> None:
    """In its unit, warm-ups apart, each sample once, however the sampler decides."""
    with so_far.listening(heard.teller), so_far.rates(SPEED, 100.0, point={"part": "a"}):
        taking = sampler(kind, heard)
    number = 0
    while not taking.done():
        number += 1
        taking.add(0.5 + number % 7)
    heard.teller.flush()
    reading = taking.timed().rates(SPEED, 100.0)
    warmups = reading.summary.warmups
    assert heard.samples("warm") == list(reading.samples[:warmups])
    assert heard.samples("counted") == list(reading.samples[warmups:])
    assert {(m["metric"], m["point"]["part"]) for m in heard.messages} == {(SPEED, "a")}
    assert heard.messages[-1]["stop_reason"] == reading.summary.stop_reason


def test_the_first_sample_is_told_at_once_and_others_seldom(heard: Heard) -> None:
    with so_far.listening(heard.teller), so_far.durations(TIME, parts=4):
        taking = Sampler(0.0, 1e9)
    taking.add(8.0)
    assert heard.samples("warm") == [2.0]
    for _ in range(99):
        taking.add(8.0)
    assert len(heard.messages) == 1, "less than a tenth of a second, by the clock"
    for _ in range(99):
        taking.add(8.0)
    assert len(heard.messages) == 2


def test_of_gpus_at_once_a_rate_is_the_sum_and_a_duration_the_slowest(heard: Heard) -> None:
    """Two laps of two segments: one GPU takes 1 s for a segment of 5, the other 2 s."""

    class Group:
        rank = 0

        def agree(self, values: Sequence[int]) -> list[int]:
            return list(values)

        def gather(self, values: Sequence[float]) -> list[list[float]]:
            return [list(values), [2 * v for v in values]]

    def race() -> None:
        at_once.race(Group(), lambda start: [0.0, 1.0, 2.0, 3.0, 4.0],
                     Sampler(0.0, 0.0, n_max=1), operations=5)  # fmt: skip

    with so_far.listening(heard.teller):
        for named in (so_far.rates(SPEED, 10.0), so_far.durations(TIME)):
            with named:
                race()
    heard.teller.flush()
    values = {m["metric"]: {*m["warm"], *m["counted"]} for m in heard.messages}
    assert values == {SPEED: {75.0}, TIME: {0.4}}


def test_a_reading_takes_the_place_of_its_samples_and_only_of_those(heard: Heard) -> None:
    with so_far.listening(heard.teller):
        for metric in (SPEED, TIME):
            with so_far.durations(metric):
                taking = Sampler(0.0, 1e9)
            taking.add(1.0)
            taking.add(2.0)
    done = Reading(TIME, summarise([3.0]), (3.0,))
    heard.teller.settle(done)
    heard.teller.flush()
    assert [(m["metric"], m["warm"]) for m in heard.messages] == [
        *((SPEED, [1.0]), (SPEED, [2.0]), (TIME, [1.0])),
    ]
    kept = SoFar()
    for message in heard.messages:
        kept.take(message)
    kept.settle(done)
    (left,) = kept.readings()
    assert (left.metric, left.samples, left.summary.n) == (SPEED, (1.0, 2.0), 2)
    assert told((left,)) == (
        f"partial: the samples taken until then are kept as raw values ({SPEED}: 2)",
    )
    kept.clear()
    assert kept.readings() == ()
    assert told(()) == ()


def test_a_later_series_of_the_same_begins_anew(heard: Heard) -> None:
    """As where a queue could not be timed and another way is taken."""
    with so_far.listening(heard.teller), so_far.durations(TIME):
        first, second = Sampler(0.0, 1e9), Sampler(0.0, 1e9)
    first.add(1.0)
    second.add(5.0)
    kept = SoFar()
    for message in heard.messages:
        kept.take(message)
    assert [r.samples for r in kept.readings()] == [(5.0,)]


def test_nothing_is_told_of_what_has_no_name_or_no_listener(heard: Heard) -> None:
    with so_far.listening(heard.teller):
        Sampler(0.0, 1e9).add(1.0)
    with so_far.durations(TIME):
        Sampler(0.0, 1e9).add(1.0)
    heard.teller.flush()
    assert heard.messages == []


def test_a_metric_that_the_probe_does_not_declare_is_refused(heard: Heard) -> None:
    with (
        so_far.listening(heard.teller),
        so_far.durations("power_watts"),
        pytest.raises(ValueError, match="undeclared metric 'power_watts'"),
    ):
        Sampler(0.0, 1.0)


def test_what_no_clock_can_give_is_not_told(heard: Heard) -> None:
    """The reading itself is refused for it, with its reason."""
    with so_far.listening(heard.teller), so_far.rates(SPEED, 1.0):
        taking = Sampler(0.0, 1e9)
    for sample in (0.0, float("inf"), float("nan"), 4.0):
        taking.add(sample)
    heard.teller.flush()
    assert heard.samples("warm") == [0.25]


@pytest.mark.parametrize(
    "change",
    [{"warm": ["x"]}, {"warm": [float("nan")]}, {"warm": []}, {"point": 3}, {"series": None}],
)
def test_a_message_that_is_none_of_a_workers_is_refused(change: dict[str, Any]) -> None:
    message = {"series": 1, "metric": TIME, "point": {}, "warm": [1.0], "counted": [],
               "stop_reason": None}  # fmt: skip
    SoFar().take(message)
    kept = SoFar()
    with pytest.raises((KeyError, TypeError, ValueError)):
        kept.take({**message, **change})
    with pytest.raises(KeyError):
        kept.take({k: v for k, v in message.items() if k != "counted"})
    assert kept.readings() == ()
