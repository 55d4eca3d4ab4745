"""All ranks at once: what counts, on hand-made clocks and between real threads."""

from __future__ import annotations

import math
import time
from typing import Any

import pytest

from host_queue import ThreadGroup, host_queue, on_ranks
from topobench.errors import ResultInvalid
from topobench.probes import at_once
from topobench.probes.timing import QueueTimer, Sampler, behind_spin, mark_overhead


def test_only_segments_while_all_are_busy_count() -> None:
    """The second rank is slowed while the first is busy, and fast once it is alone."""
    first = [0.0, 1.0, 2.0, 3.0, 4.0]
    second = [0.5, 2.5, 4.0, 4.1, 4.2]
    assert at_once.common_rates([first, second]) == ([1.0, 2 / 3.5], set())


def test_a_late_start_of_one_rank_cuts_the_others() -> None:
    late = [2.5, 3.0, 3.5, 4.0]
    early = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    assert at_once.common_rates([early, late]) == ([1.0, 2.0], set())


def test_a_rank_without_a_whole_segment_shows_the_one_it_began() -> None:
    """A degraded link, ten times slower than the rest; that this happened is told."""
    assert at_once.common_rates([[0.0, 1.0, 2.0], [0.0, 10.0, 20.0]]) == ([1.0, 0.1], {1})


def test_ranks_that_are_alike_are_not_uneven_though_they_begin_and_end_apart() -> None:
    """Of two segments, rank 1 has none that lies between the last start and the first end."""
    rows = [[2e-5, 1.0, 1.99], [0.0, 1.01, 2.02], [1e-5, 1.0, 2.08]]
    found = at_once.common_rates(rows)
    assert found is not None
    rates, uneven = found
    assert rates == pytest.approx([1 / 0.995, 1 / 1.01, 1 / 1.08], rel=1e-3)
    assert uneven == set()


@pytest.mark.parametrize(
    "rows",
    [[[0.0, 1.0], [math.nan, math.nan]], [[0.0, 1.0], [5.0, 6.0]]],
    ids=["a spin ended early", "no time in common"],
)
def test_a_lap_without_a_common_time_means_nothing(rows: list[list[float]]) -> None:
    assert at_once.common_rates(rows) is None


def sampler() -> Sampler:
    return Sampler(tolerance=0.5, budget_seconds=0.3, n_max=20)


def test_ranks_race_and_agree_on_every_rate() -> None:
    """Rank 1 needs four times as long for each operation."""
    milliseconds = (1, 4, 1)

    def work(group: ThreadGroup) -> Any:
        with host_queue() as queue:
            step = milliseconds[group.rank] * 1e-3

            def enqueue(count: int) -> None:
                for _ in range(count):
                    queue.put(lambda: time.sleep(step))

            lap = at_once.queued_lap(queue, enqueue, 1, 8)
            return at_once.race(group, lap, sampler())

    races = on_ranks(3, work)
    found = races[0]
    assert races[1].total.samples == found.total.samples
    assert [t.samples for t in races[1].by_rank] == [t.samples for t in found.by_rank]
    for ms, timed in zip(milliseconds, found.by_rank, strict=True):
        assert len(timed.samples) == len(found.total.samples) >= 10
        assert min(timed.samples) >= ms * 1e-3  # a sleep never ends early
    for number, total in enumerate(found.total.samples):
        assert 1 / total == pytest.approx(sum(1 / t.samples[number] for t in found.by_rank))
    assert min(found.by_rank[0].samples) < min(found.by_rank[1].samples)


def test_calls_are_raced_by_the_hosts_clock() -> None:
    def work(group: ThreadGroup) -> Any:
        lap = at_once.call_lap(lambda: time.sleep(1e-3), 2, 4)
        return at_once.race(group, lap, sampler())

    for found in on_ranks(2, work):
        assert min(found.by_rank[0].samples) >= 2e-3
        assert found.discarded <= len(found.total.samples)


def test_laps_are_as_long_as_the_queue_of_launches_is_deep() -> None:
    """Graphs of a short model: once 16 of them waited, enqueueing took as long as they did."""
    deep = 4

    def work(group: ThreadGroup) -> Any:
        with host_queue() as queue:
            waiting: list[Any] = []

            def enqueue(count: int) -> None:
                for _ in range(count):
                    while sum(not queue.passed(mark) for mark in waiting[-deep:]) >= deep:
                        time.sleep(1e-4)
                    queue.put(lambda: time.sleep(2e-3))
                    waiting.append(queue.mark())

            return at_once.queued_race(
                group, queue, enqueue, sampler(), count=8, segments=4, least_segments=2
            )

    found = on_ranks(2, work)
    assert [race.total.operations for race in found] == [deep, deep]
    assert all(min(t.samples) >= 2e-3 for race in found for t in race.by_rank)


def test_work_that_no_spin_outlasts_is_given_up_by_all_ranks() -> None:
    def work(group: ThreadGroup) -> Any:
        with host_queue() as queue:
            return at_once.queued_race(
                group,
                queue,
                lambda _: queue.wait(),
                sampler(),
                count=2,
                segments=2,
                least_segments=2,
            )

    assert on_ranks(2, work) == [None, None]


def test_wrong_bytes_on_one_rank_are_told_by_all() -> None:
    def work(group: ThreadGroup) -> None:
        def check() -> None:
            if group.rank == 1:
                raise ResultInvalid("wrong_data", "3 of 9 bytes are wrong")

        at_once.on_all(group, check)

    right, wrong, other = on_ranks(3, work)
    assert str(wrong) == "wrong_data: 3 of 9 bytes are wrong"
    assert str(right) == str(other) == "wrong_data: rank 1 of this gang got wrong bytes"


def test_the_twin_of_a_stream_hides_enqueueing_behind_a_spin() -> None:
    with host_queue() as queue:

        def enqueue(count: int) -> None:
            for _ in range(count):
                queue.put(lambda: time.sleep(1e-3))

        timer = QueueTimer.fit(queue, enqueue, 4)
        assert timer is not None
        assert timer.sample() >= 1e-3
        assert behind_spin(queue, lambda _: queue.wait(), 1, spin_seconds=1e-3) is None
        overhead = mark_overhead(queue)
        assert overhead is not None
        assert overhead >= 0


def test_a_race_that_was_uneven_says_which_rank_fell_behind() -> None:
    """Rank 1's only segment takes as long as twenty of rank 0's whole laps."""

    def work(group: ThreadGroup) -> Any:
        step = 0.2 if group.rank else 5e-3
        lap = at_once.call_lap(lambda: time.sleep(step), 1, 2)
        return at_once.race(group, lap, Sampler(tolerance=0.5, budget_seconds=0.1, n_max=2))

    found, _ = on_ranks(2, work)
    assert found.uneven == (1,)
    assert "rank 1 ended nothing in some lap while all were at it" in found.warning()
