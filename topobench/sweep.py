"""
Drives one sweep: plan -> agents -> store. Hosts side by side, workers of a host in turn.

What several hosts measure together (``joint``) comes when each is done with its own.
The agents and the store are given as arguments; this module is the only place where they
meet. One thread a host asks its agent for runs; only the calling thread writes.
"""

from __future__ import annotations

import collections
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from topobench.errors import AgentError
from topobench.joint import Event, Joint, PartAgent, failed_run
from topobench.plan import batches
from topobench.reading import BENIGN, MEASURED, Cell, Reason, ReasonCode, Run, Status, utc_now

__all__ = ["Agent", "Recorder", "Watcher", "drive", "exit_code", "utc_now"]


class Agent(PartAgent, Protocol):
    """What a sweep needs of a host's agent."""

    def run(self, cells: Sequence[Cell], attempts: Mapping[str, int]) -> Iterator[Run]:
        """Run cells of one batch; one Run a cell, as it ends."""
        ...

    def cancel(self) -> None:
        """End the running worker at once."""
        ...


class Recorder(Protocol):
    """What a sweep needs of the store."""

    def put_run(self, run: Run) -> object:
        """Commit a run; never loses one."""
        ...


class Watcher(Protocol):
    """What a sweep tells while it goes on."""

    def cell_started(self, cell: Cell) -> None:
        """Called when a cell's worker is about to start."""

    def run_finished(self, cell: Cell, run: Run) -> None:
        """Called after the run was committed."""


_Done = str
MOST_WAITING = 2000
"""Runs that may wait for the store. With more, hosts wait with their next worker."""


class _Events:
    """What happens on all hosts, for the one thread that writes; senders wait if it is behind."""

    def __init__(self) -> None:
        self._waiting: collections.deque[Event | _Done] = collections.deque()
        self._lock = threading.Lock()
        self._some, self._room = threading.Condition(self._lock), threading.Condition(self._lock)
        self._deaf = False

    def put(self, event: Event | _Done) -> None:
        """Give one, however long that takes; nothing once nobody listens."""
        with self._lock:
            self._room.wait_for(lambda: self._deaf or len(self._waiting) < MOST_WAITING)
            if not self._deaf:
                self._waiting.append(event)
                self._some.notify()

    def get(self, seconds: float) -> Event | _Done | None:
        """The next one, or None if there is none in time."""
        with self._lock:
            if not self._some.wait_for(lambda: self._waiting, seconds):
                return None
            self._room.notify()
            return self._waiting.popleft()

    def close(self) -> None:
        """Nobody listens any more."""
        with self._lock:
            self._deaf = True
            self._room.notify_all()


def drive(
    cells: Iterable[Cell],
    agents: Sequence[Agent],
    recorder: Recorder,
    watcher: Watcher,
    *,
    stop: threading.Event,
    attempts: Mapping[str, int] | None = None,
) -> list[Run]:
    """
    Run every planned cell and commit each run as it arrives.

    Args:
        stop: Set by a signal handler: workers are ended, their runs stored as aborted,
            cells not yet started stay ``planned``.
        attempts: Attempt number by cell; 1 where absent.

    Returns:
        The runs of cells that span several hosts, in the order committed, with nothing but
        their figures; of all cells there may be a million.
    """
    planned = [c for c in cells if c.status is Status.PLANNED]
    by_host: dict[str, list[Cell]] = {}
    for cell in planned:
        if not cell.hosts:
            by_host.setdefault(cell.host, []).append(cell)
    events = _Events()
    numbers = attempts or {}
    lost: dict[str, str] = {}
    workers = [
        threading.Thread(
            target=_run_host, args=(a, by_host[a.host.key], numbers, events, stop, lost),
            daemon=True,
        )
        for a in agents
        if a.host.key in by_host
    ]  # fmt: skip
    for worker in workers:
        worker.start()
    together = Joint({a.host.key: a for a in agents}, numbers, events.put, stop, lost)
    last = threading.Thread(
        target=_run_together, args=(together, planned, workers, events), daemon=True
    )
    last.start()
    return _collect(len(workers) + 1, agents, events, recorder, watcher, stop)


def _run_together(
    together: Joint, cells: Sequence[Cell], before: Sequence[threading.Thread], events: _Events
) -> None:
    """Run what several hosts measure together, once each is done with its own."""
    try:
        for worker in before:
            worker.join()
        together.run(batches([c for c in cells if c.hosts]))
    finally:
        events.put("together")


def _collect(
    hosts: int,
    agents: Sequence[Agent],
    events: _Events,
    recorder: Recorder,
    watcher: Watcher,
    stop: threading.Event,
) -> list[Run]:
    runs: list[Run] = []
    cancelled = False
    try:
        while hosts:
            if stop.is_set() and not cancelled:
                cancelled = True
                _cancel(agents)
            event = events.get(0.2)
            if event is None:
                continue
            if isinstance(event, _Done):
                hosts -= 1
                continue
            cell, run = event
            if run is None:
                watcher.cell_started(cell)
                continue
            recorder.put_run(run)
            watcher.run_finished(cell, run)
            if cell.hosts:
                runs.append(_figures_of(run))
    except BaseException:  # nobody listens any more: no worker may go on measuring
        stop.set()
        events.close()
        _cancel(agents)
        raise
    return runs


def _figures_of(run: Run) -> Run:
    """A run without its samples and surroundings."""
    readings = tuple(replace(r, samples=()) for r in run.readings)
    return replace(run, readings=readings, environment={}, conditions={}, log_tail="")


def _cancel(agents: Sequence[Agent]) -> None:
    """End running workers: a call to every host, so never one for each event."""
    for agent in agents:
        agent.cancel()


def _run_host(
    agent: Agent,
    cells: Sequence[Cell],
    attempts: Mapping[str, int],
    events: _Events,
    stop: threading.Event,
    lost: dict[str, str],
) -> None:
    try:
        for batch in batches(cells):
            if stop.is_set():
                break
            why = _run_batch(agent, batch, attempts, events, lost.get(agent.host.key))
            if why is not None:
                lost[agent.host.key] = why
    finally:
        events.put(agent.host.key)


def _run_batch(
    agent: Agent,
    batch: Sequence[Cell],
    attempts: Mapping[str, int],
    events: _Events,
    lost: str | None,
) -> str | None:
    """Run one batch; returns why the host is lost, if it is. A lost host fails its cells."""
    waiting = {c.id: c for c in batch}
    if lost is None:
        events.put((batch[0], None))
        try:
            for run in agent.run(batch, {c.id: attempts.get(c.id, 1) for c in batch}):
                cell = waiting.pop(run.cell)
                events.put((cell, run))
                if waiting:
                    events.put((next(iter(waiting.values())), None))
        except AgentError as error:
            lost = str(error)
        except Exception as error:  # a fault of ours on that host; its next batch may do
            fault = Reason(ReasonCode.INTERNAL, f"{type(error).__name__}: {error}")
            _give_up(waiting, attempts, events, fault)
            return None
    _give_up(waiting, attempts, events, Reason(ReasonCode.HOST_LOST, lost or "no result came back"))
    return lost


def _give_up(
    waiting: Mapping[str, Cell],
    attempts: Mapping[str, int],
    events: _Events,
    reason: Reason,
) -> None:
    for cell in waiting.values():
        events.put((cell, failed_run(cell, attempts.get(cell.id, 1), reason)))


def exit_code(counts: Mapping[str, int], failures: int = 0) -> int:
    """
    The exit code of ``probe`` and ``sweep`` for a finished sweep.

    Args:
        counts: Cells by status.
        failures: Hosts that could not take part.

    Returns:
        0 every planned cell ran, 1 some failed, 3 nothing was measured.
    """
    if not any(counts.get(s) for s in MEASURED):
        return 3
    bad = sum(n for s, n in counts.items() if s not in BENIGN)
    return 1 if bad or failures else 0
