"""Passes without rest between them, on a virtual clock and on a real thread."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from host_queue import Device, HostQueue, host_queue
from probing import Listener
from topobench.probes import cuda
from topobench.probes.accelerator import PASSES_SECONDS, QUEUED_GRAPHS, Gpu, passes_of
from topobench.probes.back_to_back import Chain
from topobench.probes.device_work import Site
from topobench.probes.passes import DEVICE_SECONDS
from topobench.probes.prefill import sampling_rows
from topobench.probes.timing import BURST_SECONDS, PAUSE_SECONDS, Bursts, Timed

PASS, SLOWER, MEMORY = 51e-3, 0.08, 0.05
EAGER, GRAPH = 15e-3, 1e-3
"""Seconds to launch a pass."""


@dataclass
class Limited(Device):
    """
    A device whose passes take up to 8 % longer the less it rested; a spin is rest.

    Args:
        warmth: 1 under load without end, 0 after long rest.
    """

    run_seconds: float = PASS
    warmth: float = 0.0
    ended: float = 0.0

    def enqueue(self, count: int) -> None:
        for _ in range(count):
            rest = max(self.free_at, self.now + self.enqueue_seconds) - self.ended
            self.warmth *= math.exp(-rest / MEMORY)
            self.run_seconds = PASS * (1 + SLOWER * self.warmth)
            self.warmth = 1 - (1 - self.warmth) * math.exp(-self.run_seconds / MEMORY)
            super().enqueue(1)
            self.ended = self.free_at


@dataclass
class Case:
    """A chain over a device of a virtual clock, and its sampler."""

    device: Device
    chain: Chain
    sampler: Bursts
    pauses: list[float]

    def run(self) -> Timed:
        while not self.sampler.done():
            self.sampler.add(self.chain.follow(self.sampler))
        return self.sampler.timed()


def sampling(device: Device, budget: float) -> tuple[Bursts, list[float]]:
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        device.now += seconds
        pauses.append(seconds)

    return Bursts(0.0, budget, clock=lambda: device.now, sleep=sleep), pauses


def case(
    monkeypatch: pytest.MonkeyPatch, device: Device, *, count: int = 1, budget: float = 0.5
) -> Case:
    monkeypatch.setattr(time, "perf_counter", lambda: device.now)
    chain = Chain.fit(device, device.enqueue, count)
    assert chain is not None
    return Case(device, chain, *sampling(device, budget))


def middle(timed: Timed) -> float:
    return statistics.median(timed.samples[timed.warmups :])


def test_modes_that_take_longer_to_launch_get_no_more_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each behind a spin of its own, which is longer for eager passes, they differ."""
    chained, spun = [], []
    for launch in (EAGER, GRAPH):
        found = case(monkeypatch, Limited(enqueue_seconds=launch))
        chained.append(middle(found.run()))
        assert (found.chain.hidden, found.chain.rest_share, found.chain.discarded) == (True, 0.0, 0)
        other = case(monkeypatch, Limited(enqueue_seconds=launch))
        other.chain.hidden = False
        spun.append(middle(other.run()))
        assert other.chain.rest_share == pytest.approx(3 * launch / (3 * launch + PASS), rel=0.1)
    assert chained[0] == pytest.approx(chained[1], rel=1e-3)
    assert chained[1] == pytest.approx(PASS * (1 + SLOWER), rel=0.01)
    assert spun[0] < 0.96 * spun[1]


def test_launches_longer_than_the_pass_get_a_spin_each_and_the_rest_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """25 passes of 1 ms take 50 ms to launch, behind spins of 60 ms."""
    device = Device(enqueue_seconds=2e-3, run_seconds=1e-3)
    found = case(monkeypatch, device, count=50)
    timed = found.run()
    assert found.chain.count == 25
    assert not found.chain.hidden
    assert timed.samples == pytest.approx([1e-3] * len(timed.samples))
    assert found.chain.rest_share == pytest.approx(60 / 85)


def test_a_sample_that_fills_the_queue_of_launches_is_halved_so_that_the_next_fits_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else the last launch of the next waits for the end of this one, and each gets a spin."""
    found = case(monkeypatch, Device(run_seconds=11e-3, depth=15), count=15)
    timed = found.run()
    assert (found.chain.count, found.chain.hidden, found.chain.rest_share) == (7, True, 0.0)
    assert timed.samples == pytest.approx([11e-3] * len(timed.samples))


def test_launches_longer_than_the_pass_are_no_reason_for_shorter_samples(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The spin of the first would hide those of a second one, too, if it were short."""
    found = case(monkeypatch, Device(enqueue_seconds=15e-3, run_seconds=14e-3), count=2)
    assert (found.chain.count, found.chain.hidden) == (2, False)


@pytest.mark.parametrize(
    ("seconds", "counted", "pauses"), [(0.048, 7, 1), (0.1, 6, 2), (0.215, 6, 3), (0.008, 44, 1)]
)
def test_bursts_of_a_chain_are_those_of_single_samples(
    monkeypatch: pytest.MonkeyPatch, seconds: float, counted: int, pauses: int
) -> None:
    """As in ``test_timing``: load without spins, and a pause with nothing under way."""
    budget = max(0.5, 3 * seconds)
    device = Device(enqueue_seconds=seconds / 4, run_seconds=seconds)
    found = case(monkeypatch, device, budget=budget)
    timed = found.run()
    assert len(timed.samples) - timed.warmups == counted
    assert found.pauses == [PAUSE_SECONDS] * pauses
    assert timed.samples == pytest.approx([seconds] * len(timed.samples))
    assert found.chain.rest_share == 0.0
    assert timed.stop_reason == "budget"


@pytest.mark.parametrize("seconds", [3.5e-3, 13e-3, 0.055, 0.112, 0.24, 0.5])
def test_rows_of_replays_take_as_long_as_is_estimated(
    monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    """With finding out how many passes are a row, which is most of it for short ones."""
    device = Device(enqueue_seconds=1e-4, run_seconds=seconds, depth=QUEUED_GRAPHS)
    count, budget = passes_of(PASSES_SECONDS, seconds), max(DEVICE_SECONDS, 3 * seconds)
    case(monkeypatch, device, count=count, budget=budget).run()
    assert sampling_rows(seconds, DEVICE_SECONDS) == pytest.approx(device.now, rel=0.1)


def test_nothing_runs_in_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device(enqueue_seconds=EAGER, run_seconds=0.1)
    found = case(monkeypatch, device)
    busy: list[float] = []

    def sleep(seconds: float) -> None:
        busy.append(device.free_at - device.now)
        device.now += seconds

    found.sampler.sleep = sleep
    found.run()
    assert len(busy) == 2
    assert max(busy) <= 0


def test_a_pass_longer_than_half_a_burst_has_no_share_of_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = case(monkeypatch, Device(enqueue_seconds=EAGER, run_seconds=0.5), budget=1.5)
    assert found.device.enqueued == 5  # none to try whether another would follow
    timed = found.run()
    assert timed.samples == pytest.approx([0.5] * 7)
    assert found.pauses == [PAUSE_SECONDS] * 6
    assert found.chain.rest_share is None


def test_a_queue_that_ran_dry_ends_the_burst(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sample is launched too late: it is thrown away; after a pause the clock settles anew."""
    device = Device(enqueue_seconds=EAGER, run_seconds=PASS)
    found = case(monkeypatch, device)
    slow, enqueue = iter((False,) * 4 + (True,)), device.enqueue
    busy: list[float] = []

    def hiccup(count: int) -> None:
        device.enqueue_seconds = 0.07 if next(slow, False) else EAGER
        enqueue(count)

    def sleep(seconds: float) -> None:
        busy.append(device.free_at - device.now)
        device.now += seconds

    found.chain.enqueue, found.sampler.sleep = hiccup, sleep
    timed = found.run()
    assert len(busy) == 2
    assert max(busy) <= 0, "what was thrown away has ended before the pause"
    assert found.chain.discarded == 1
    assert found.chain.hidden
    assert found.chain.rest_share == 0.0
    assert timed.samples == pytest.approx([PASS] * len(timed.samples))
    assert timed.warmups == 1 + 3 + 3


def test_a_host_that_stays_too_slow_gives_each_sample_a_spin(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device = Device(enqueue_seconds=EAGER, run_seconds=PASS)
    found = case(monkeypatch, device)
    device.enqueue_seconds = 55e-3  # more than the pass, less than the longest spin
    timed = found.run()
    assert not found.chain.hidden
    assert found.chain.discarded == 1 + 3  # a spin that was too short, and three of a chain
    assert found.chain.rest_share == pytest.approx(60 / 111)
    assert timed.samples == pytest.approx([PASS] * len(timed.samples))
    assert device.now < 4 * (BURST_SECONDS + PAUSE_SECONDS)


def test_samples_with_rest_are_not_mixed_with_those_without(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The host becomes too slow half-way: what it gave before, without rest, was 8 % slower."""
    device = Limited(enqueue_seconds=EAGER)
    monkeypatch.setattr(time, "perf_counter", lambda: device.now)
    monkeypatch.setattr(cuda, "CudaQueue", lambda torch: device)
    samplers: list[Bursts] = []

    def enqueue(count: int) -> None:
        enough = samplers and len(samplers[0].counted) >= 3
        device.enqueue_seconds = 57e-3 if enough else EAGER
        device.enqueue(count)

    def begin() -> Bursts:
        samplers.append(sampling(device, 0.5)[0])
        return samplers[-1]

    site = Site(SimpleNamespace(), Listener().context(), None)
    figures, rest = site.back_to_back(enqueue, 1, begin)
    mixed, alike = samplers
    assert min(mixed.counted) == pytest.approx(PASS * (1 + SLOWER), rel=0.01)
    assert figures.total.samples == alike.timed().samples
    assert max(alike.counted) < 0.97 * min(mixed.counted)
    assert rest == pytest.approx(60 / (60 + 52.5), rel=0.02)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Gpu, HostQueue, Listener]]:
    """The class for GPUs, whose stream is a thread."""
    with host_queue() as queue:
        monkeypatch.setattr(cuda, "CudaQueue", lambda torch: queue)
        named = SimpleNamespace(name="a thread")
        torch: Any = SimpleNamespace(
            cuda=SimpleNamespace(
                current_device=lambda: 0,
                get_device_properties=lambda device: named,
                get_device_capability=lambda: (9, 0),
                synchronize=queue.wait,
            )
        )
        listener = Listener()
        yield Gpu(Site(torch, listener.context(), None)), queue, listener


def test_a_gpus_passes_follow_each_other(gpu: tuple[Gpu, HostQueue, Listener]) -> None:
    device, queue, listener = gpu
    figures, how = device.times(lambda: queue.put(lambda: time.sleep(5e-3)), 0.1)
    assert min(figures.total.samples) >= 5e-3  # a sleep never ends early
    assert figures.total.operations == listener.notes["queued_operations"] > 1
    if listener.notes["queued_discarded"] == 0:  # a busy host is late
        assert (how, listener.notes["rest_share"]) == ("queued", 0.0)


def test_passes_behind_a_spin_each_are_told(gpu: tuple[Gpu, HostQueue, Listener]) -> None:
    """Launching takes twice as long as the pass."""
    device, queue, listener = gpu

    def call() -> None:
        time.sleep(4e-3)
        queue.put(lambda: time.sleep(2e-3))

    figures, how = device.times(call, 0.1)
    assert how == "queued, each sample behind a spin"
    assert min(figures.total.samples) >= 2e-3
    assert 0.3 < listener.notes["rest_share"] < 1


def test_calls_that_wait_for_the_gpu_tell_nothing_of_rest(
    gpu: tuple[Gpu, HostQueue, Listener],
) -> None:
    device, queue, listener = gpu

    def call() -> None:
        queue.put(lambda: time.sleep(2e-3))
        queue.wait()

    figures, how = device.times(call, 0.1)
    assert how == "events"
    assert min(figures.total.samples) >= 2e-3
    assert listener.notes["rest_share"] is None


def test_the_quickest_call_is_the_devices_own(gpu: tuple[Gpu, HostQueue, Listener]) -> None:
    """Launching takes ten times as long as the work, and is not counted."""
    device, queue, _ = gpu

    def call() -> None:
        time.sleep(20e-3)
        queue.put(lambda: time.sleep(2e-3))

    assert 2e-3 <= device.least(call) < 20e-3


def test_the_quickest_call_that_no_spin_outlasts_includes_its_launch(
    gpu: tuple[Gpu, HostQueue, Listener],
) -> None:
    device, queue, _ = gpu

    def call() -> None:
        queue.put(lambda: time.sleep(2e-3))
        queue.wait()

    assert device.least(call) >= 2e-3
