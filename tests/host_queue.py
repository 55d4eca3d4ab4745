"""A queue and a gang without a GPU: threads, real clocks, the interfaces of the real ones."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Device:
    """
    An in-order queue on a virtual clock: exact, and without a GPU.

    The host pays ``enqueue_seconds`` for each operation, the device ``run_seconds``; with
    ``blocking`` (as a kernel's first use, or a pageable copy) enqueueing waits for the
    queue to be empty.

    Args:
        depth: Operations the queue holds before enqueueing waits for the oldest.
    """

    enqueue_seconds: float = 4e-6
    run_seconds: float = 1e-6
    blocking: bool = False
    depth: int = 1024
    now: float = 0.0
    free_at: float = 0.0
    enqueued: int = 0
    _ends: list[float] = field(default_factory=list)

    def spin(self, seconds: float) -> None:
        self.free_at = max(self.free_at, self.now) + seconds

    def mark(self) -> float:
        return max(self.free_at, self.now)

    def passed(self, mark: float) -> bool:
        return mark <= self.now

    def between(self, start: float, end: float) -> float:
        return end - start

    def reach(self, mark: float) -> None:
        self.now = max(self.now, mark)

    def wait(self) -> None:
        self.now = max(self.now, self.free_at)

    def enqueue(self, count: int) -> None:
        for _ in range(count):
            self.enqueued += 1
            self.now += self.enqueue_seconds
            self._ends = [e for e in self._ends if e > self.now]
            if self.blocking:
                self.wait()
            elif len(self._ends) >= self.depth:
                self.now = self._ends[0]
            self.free_at = max(self.free_at, self.now) + self.run_seconds
            self._ends.append(self.free_at)


@dataclass
class Mark:
    passed: threading.Event = field(default_factory=threading.Event)
    at: float = 0.0

    def stamp(self) -> None:
        self.at = time.monotonic()
        self.passed.set()


class HostQueue:
    """Runs tasks in order on a thread of its own, as a device works through its stream."""

    def __init__(self) -> None:
        self._tasks: queue.SimpleQueue[Callable[[], Any] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def put(self, task: Callable[[], Any]) -> None:
        self._tasks.put(task)

    def spin(self, seconds: float) -> None:
        self.put(lambda: time.sleep(seconds))

    def mark(self) -> Mark:
        mark = Mark()
        self.put(mark.stamp)
        return mark

    def passed(self, mark: Mark) -> bool:
        return mark.passed.is_set()

    def between(self, start: Mark, end: Mark) -> float:
        return end.at - start.at

    def reach(self, mark: Mark) -> None:
        mark.passed.wait()

    def wait(self) -> None:
        self.mark().passed.wait()

    def close(self) -> None:
        self._tasks.put(None)
        self._thread.join()

    def _serve(self) -> None:
        while (task := self._tasks.get()) is not None:
            task()


class ThreadGroup:
    """One rank of a gang whose ranks are threads (``collective.Group`` joins processes)."""

    def __init__(self, rank: int, rows: list[list[float]], barrier: threading.Barrier) -> None:
        self.rank = rank
        self._rows = rows
        self._barrier = barrier

    def agree(self, values: Sequence[int]) -> list[int]:
        return [int(v) for v in self.gather(values)[0]]

    def gather(self, values: Sequence[float]) -> list[list[float]]:
        self._rows[self.rank] = list(values)
        self._barrier.wait(60.0)
        rows = [list(row) for row in self._rows]
        self._barrier.wait(60.0)
        return rows


def on_ranks(ranks: int, work: Callable[[ThreadGroup], Any]) -> list[Any]:
    """What ``work`` gave on each rank, or the exception it raised."""
    rows: list[list[float]] = [[] for _ in range(ranks)]
    barrier = threading.Barrier(ranks)
    results: list[Any] = [None] * ranks

    def run(rank: int) -> None:
        try:
            results[rank] = work(ThreadGroup(rank, rows, barrier))
        except Exception as error:
            results[rank] = error

    threads = [threading.Thread(target=run, args=(r,)) for r in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


@contextlib.contextmanager
def host_queue() -> Iterator[HostQueue]:
    made = HostQueue()
    try:
        yield made
    finally:
        made.close()
