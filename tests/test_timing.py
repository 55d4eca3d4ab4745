from __future__ import annotations

import time
from typing import Any

import pytest

from host_queue import Device
from topobench.errors import ProbeError
from topobench.probes import timing
from topobench.probes.timing import QueueTimer, Sampler, Timed, behind_spin, collect


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    device = Device()
    monkeypatch.setattr(time, "perf_counter", lambda: device.now)
    return device


def test_behind_a_spin_only_the_device_is_timed(device: Device) -> None:
    """Unhidden, these operations would read 4 us each: what the host needs to enqueue them."""
    start = device.mark()
    device.enqueue(100)
    assert device.between(start, device.mark()) / 100 == pytest.approx(4e-6, rel=0.02)
    hidden = behind_spin(device, device.enqueue, 100, spin_seconds=1e-3)
    assert hidden is not None
    assert hidden / 100 == pytest.approx(1e-6)


def test_a_spin_that_ends_early_gives_no_time(device: Device) -> None:
    assert behind_spin(device, device.enqueue, 100, spin_seconds=100 * 4e-6 + 1e-7) is not None
    assert behind_spin(device, device.enqueue, 100, spin_seconds=100 * 4e-6 - 1e-7) is None


def test_lead_operations_are_not_timed(device: Device) -> None:
    taken = behind_spin(
        device, device.enqueue, 10, spin_seconds=1e-3, lead=lambda: device.enqueue(2)
    )
    assert device.enqueued == 12
    assert taken == pytest.approx(10e-6)


def test_fit_keeps_the_whole_queue_when_the_device_takes_it(device: Device) -> None:
    timer = QueueTimer.fit(device, device.enqueue, 200)
    assert timer is not None
    assert timer.count == 200
    assert timer.sample() == pytest.approx(1e-6)
    assert timer.discarded == 0


def test_fit_never_queues_more_than_256(device: Device) -> None:
    timer = QueueTimer.fit(device, device.enqueue, 5000)
    assert timer is not None
    assert timer.count == 256


def test_fit_halves_the_queue_until_it_fits_the_device(device: Device) -> None:
    """A queue of depth 50 blocks the 51st enqueueing until the spin ends."""
    device.depth = 50
    timer = QueueTimer.fit(device, device.enqueue, 128)
    assert timer is not None
    assert timer.count == 32
    assert timer.sample() == pytest.approx(1e-6)


def test_fit_gives_up_on_operations_that_wait_for_the_device(device: Device) -> None:
    device.blocking = True
    assert QueueTimer.fit(device, device.enqueue, 64) is None


def test_fit_runs_everything_once_before_the_first_spin(device: Device) -> None:
    """The first use of a kernel waits for the queue; behind a spin it would spoil the fit."""
    first_use = device.enqueue

    def lazy(count: int) -> None:
        device.blocking = device.enqueued == 0
        first_use(count)

    timer = QueueTimer.fit(device, lazy, 64)
    assert timer is not None
    assert timer.count == 64


def test_a_slower_host_gets_a_longer_spin_and_the_sample_is_discarded(device: Device) -> None:
    timer = QueueTimer.fit(device, device.enqueue, 256)
    assert timer is not None
    device.enqueue_seconds *= 5
    assert timer.sample() == pytest.approx(1e-6)
    assert timer.discarded == 1


def test_a_host_that_stays_too_slow_is_untimeable(device: Device) -> None:
    timer = QueueTimer.fit(device, device.enqueue, 256)
    assert timer is not None
    device.enqueue_seconds = 1.0
    with pytest.raises(ProbeError, match="untimeable: enqueueing 256 operations"):
        timer.sample()


@pytest.mark.parametrize(("seconds", "fewest"), [(1e-3, 1), (30e-6, 7), (1e-6, 200)])
def test_a_batch_lasts_at_least_200_microseconds(seconds: float, fewest: int) -> None:
    count = timing.batch_size(lambda n: n * seconds)
    assert fewest <= count <= 2 * fewest
    assert count * seconds >= timing.SAMPLE_SECONDS


def test_a_batch_of_nothing_is_bounded() -> None:
    assert timing.batch_size(lambda n: 0.0, most=4096) == 4096


def test_a_batch_is_not_shortened_by_one_slow_call() -> None:
    slow = iter([1.0])
    assert timing.batch_size(lambda n: next(slow, n * 10e-6)) >= 20


class Clock:
    """A clock that each sample moves on."""

    def __init__(self, step: float) -> None:
        self.now = 0.0
        self.step = step

    def __call__(self) -> float:
        return self.now

    def feed(self, sampler: Sampler, samples: Any) -> None:
        for sample in samples:
            self.now += self.step
            sampler.add(sample)
            if sampler.done():
                return


def test_slow_first_samples_become_warm_ups() -> None:
    clock = Clock(1e-3)
    sampler = Sampler(0.02, 10.0, clock=clock)
    clock.feed(sampler, [9.0, 5.0, 3.0] + [1.0] * 100)
    timed = sampler.timed()
    assert timed.samples[:3] == (9.0, 5.0, 3.0)
    assert 3 < timed.warmups <= 13
    assert timed.stop_reason == "converged"
    reading = timed.durations("latency_seconds")
    assert (reading.summary.median, reading.summary.maximum) == (1.0, 1.0)
    assert reading.summary.n == 20


def test_warm_up_takes_at_most_a_quarter_of_the_budget() -> None:
    clock = Clock(0.1)
    sampler = Sampler(0.001, 4.0, clock=clock)
    clock.feed(sampler, [1.0 + (i % 7) / 3 for i in range(1000)])
    timed = sampler.timed()
    assert timed.warmups == 10  # 1 s of 4 s
    assert timed.stop_reason == "budget"
    assert len(timed.samples) == 40


def test_slow_samples_get_ten_past_the_budget() -> None:
    clock = Clock(0.2)
    sampler = Sampler(0.01, 1.0, clock=clock)
    clock.feed(sampler, [1.0] * 100)
    assert len(sampler.counted) == 10


def test_even_ten_samples_end_at_four_times_the_budget() -> None:
    clock = Clock(1.0)
    sampler = Sampler(0.01, 1.0, clock=clock)
    clock.feed(sampler, [1.0] * 100)
    assert len(sampler.counted) == 3
    assert sampler.timed().stop_reason == "budget"


def test_drift_is_named() -> None:
    clock = Clock(0.01)
    sampler = Sampler(0.01, 1.0, clock=clock)
    clock.feed(sampler, [1.0 + 0.01 * i for i in range(200)])
    assert sampler.timed().stop_reason == "drift"


def test_samples_end_at_n_max() -> None:
    values = iter(range(10**6))
    timed = collect(lambda: 1.0 + next(values) % 5, tolerance=1e-6, budget_seconds=3600, n_max=57)
    assert timed.stop_reason == "n_max"
    assert len(timed.samples) - timed.warmups == 57


class Load:
    """A GPU whose clock settles under load and swings once its power reached the limit."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.now = 0.0
        self.load = 0.0
        self.most = 0.0
        self.pauses: list[float] = []

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.load = 0.0
        self.pauses.append(seconds)

    def run(self) -> float:
        took = self.seconds * (0.9 if self.load < 0.15 else 1.0 if self.load < 0.8 else 1.2)
        self.now += took
        self.load += took
        self.most = max(self.most, self.load)
        return took


def bursts(seconds: float) -> tuple[Timed, Load]:
    load = Load(seconds)
    sampler = timing.Bursts(0.0, max(0.5, 3 * seconds), clock=load.clock, sleep=load.sleep)
    while not sampler.done():
        sampler.add(load.run())
    return sampler.timed(), load


@pytest.mark.parametrize(
    ("seconds", "counted", "pauses"),
    [(0.048, 7, 1), (0.1, 6, 2), (0.18, 6, 2), (0.215, 6, 3), (0.008, 44, 1)],
)
def test_bursts_count_what_lies_between_settling_and_the_power_limit(
    seconds: float, counted: int, pauses: int
) -> None:
    """Each follows a pause; too few samples in one are made up for by others."""
    timed, load = bursts(seconds)
    assert set(timed.samples[timed.warmups :]) == {seconds}
    assert len(timed.samples) - timed.warmups == counted
    assert load.pauses == [timing.PAUSE_SECONDS] * pauses
    assert timed.stop_reason == "budget"
    assert load.most <= timing.BURST_SECONDS + 1e-9


@pytest.mark.parametrize(("lap", "budget"), [(0.17, 0.25), (0.256, 0.5), (0.48, 0.5)])
def test_bursts_go_on_until_there_is_an_interval(lap: float, budget: float) -> None:
    """Laps of GPUs at once are long beside their budget, and many of them settle the clock."""
    load = Load(lap)
    sampler = timing.Bursts(0.0, budget, clock=load.clock, sleep=load.sleep)
    while not sampler.done():
        sampler.add(load.run())
    assert len(sampler.counted) == 6
    assert sampler.timed().durations("prefill_wall_seconds").summary.ci_lo is not None


def test_samples_too_long_for_a_burst_each_follow_a_pause() -> None:
    timed, load = bursts(0.5)
    assert timed.samples == (0.45,) * 7  # each begins at the high clock
    assert timed.warmups == 1
    assert load.pauses == [timing.PAUSE_SECONDS] * 6


def test_samples_that_grow_too_long_for_a_second_one_in_a_burst_still_count() -> None:
    """Else no sample would count any more, and sampling would never end."""
    load = Load(0.37)
    sampler = timing.Bursts(0.0, 1.2, clock=load.clock, sleep=load.sleep)
    sampler.add(load.run())
    sampler.add(load.run())
    load.seconds = 0.43  # 0.387 s at the high clock
    for _ in range(20):
        if not sampler.done():
            sampler.add(load.run())
    assert sampler.done()
    assert sampler.counted[1:] == pytest.approx([0.387] * 5)


@pytest.mark.parametrize(("seconds", "first"), [(0.0125, 0.0), (0.1, timing.PAUSE_SECONDS)])
def test_short_samples_may_begin_without_a_pause(seconds: float, first: float) -> None:
    load = Load(seconds)
    sampler = timing.Bursts(0.0, 0.5, clock=load.clock, sleep=load.sleep, rest_from=20e-3)
    while not sampler.done():
        sampler.add(load.run())
    assert load.pauses[0] == first
    assert set(load.pauses[1:]) <= {timing.PAUSE_SECONDS}


def test_few_samples_of_bursts_converged_if_they_are_alike() -> None:
    for spread, reason in ((0.004, "converged"), (0.04, "budget")):
        load = Load(0.1)
        sampler = timing.Bursts(0.01, 0.5, clock=load.clock, sleep=load.sleep)
        for offset in (-1.0, 1.0) * 20:
            if not sampler.done():
                sampler.add(load.run() * (1 + offset * spread))
        assert (len(sampler.counted), sampler.stop_reason) == (6, reason)


def test_the_estimate_of_bursts_is_near_what_they_take() -> None:
    for seconds in (0.048, 0.1, 0.3, 1.2):
        told = timing.bursts_seconds(seconds, max(0.5, 3 * seconds))
        assert bursts(seconds)[1].now == pytest.approx(told, rel=0.15), seconds


def test_values_beside_bursts_are_put_in_their_order() -> None:
    """Warm-ups of later bursts stand before what counts of earlier ones, with their ends."""
    load = Load(0.215)
    sampler = timing.Bursts(0.0, 0.645, clock=load.clock, sleep=load.sleep)
    values = []
    while not sampler.done():
        values.append(load.run())
        sampler.add(values[-1])
    timed = sampler.timed()
    assert sampler.arranged(values) == timed.samples != tuple(values)
    assert sorted(timed.ends) == sampler.ends != list(timed.ends)
    assert sampler.arranged([*values, 9.9]) == timed.samples


def test_no_sample_is_untimeable() -> None:
    with pytest.raises(ProbeError, match="untimeable"):
        Sampler(0.01, 1.0).timed()


def test_rates_are_amounts_by_seconds_of_each_sample() -> None:
    reading = Timed((4.0, 2.0, 1.0, 0.5), warmups=1, stop_reason="fixed").rates(
        "bandwidth_bytes_per_second", 8.0, point={"rank": 2}
    )
    assert reading.samples == (2.0, 4.0, 8.0, 16.0)
    assert (reading.summary.median, reading.summary.n, reading.summary.warmups) == (8.0, 3, 1)
    assert reading.point == {"rank": 2}


def test_wall_counts_all_operations_of_a_batch() -> None:
    calls = 0

    def call() -> None:
        nonlocal calls
        calls += 1
        time.sleep(0.002)

    assert timing.wall(call, 5) >= 0.01
    assert calls == 5
