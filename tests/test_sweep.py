"""Driving a sweep: what becomes of cells when a host is lost or our own code fails."""

from __future__ import annotations

import dataclasses
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence

import pytest

from launching import cell, host
from topobench import sweep
from topobench.errors import AgentError, StoreUnreachable
from topobench.reading import Binding, Cell, ReasonCode, Run, Status

Behaviour = Callable[[Sequence[Cell]], Iterator[Run]]


class Agent:
    """An agent in this process whose batches end as told, one behaviour each."""

    def __init__(self, key: str, *behaviours: Behaviour) -> None:
        self.host = dataclasses.replace(host(), key=key)
        self.batches: list[list[str]] = []
        self.cancelled = threading.Event()
        self._behaviours = list(behaviours)

    def run(self, cells: Sequence[Cell], attempts: Mapping[str, int]) -> Iterator[Run]:
        self.batches.append([c.id for c in cells])
        yield from self._behaviours.pop(0)(cells)

    def cancel(self) -> None:
        self.cancelled.set()


class Store:
    """Keeps the runs, or refuses them."""

    def __init__(self, error: Exception | None = None) -> None:
        self.runs: list[Run] = []
        self.error = error

    def put_run(self, run: Run) -> None:
        if self.error is not None:
            raise self.error
        self.runs.append(run)

    def cell_started(self, cell: Cell) -> None:
        """A sweep tells its watcher."""

    def run_finished(self, cell: Cell, run: Run) -> None:
        """A sweep tells its watcher."""


def good(cells: Sequence[Cell]) -> Iterator[Run]:
    for c in cells:
        yield Run(str(uuid.uuid4()), c.id, Status.OK, None, sweep.utc_now(), 0.1)


def lost_after_one(cells: Sequence[Cell]) -> Iterator[Run]:
    yield from good(cells[:1])
    raise AgentError("host h1: its agent died")


def our_fault(cells: Sequence[Cell]) -> Iterator[Run]:
    yield from good(cells[:1])
    raise ZeroDivisionError("planted")


def plan(key: str, batches: int = 2, size: int = 3) -> list[Cell]:
    """Cells of one host: each arm is a batch."""
    return [
        dataclasses.replace(cell("steady", binding=Binding(f"arm{b}")), host=key)
        for b in range(batches)
        for _ in range(size)
    ]


def drive(cells: Sequence[Cell], agents: Sequence[Agent], store: Store) -> dict[str, Run]:
    runs = sweep.drive(cells, agents, store, store, stop=threading.Event())
    return {r.cell: r for r in runs}


def test_every_cell_has_one_run_and_hosts_work_side_by_side() -> None:
    together = threading.Barrier(2, timeout=10)

    def meet(cells: Sequence[Cell]) -> Iterator[Run]:
        together.wait()
        yield from good(cells)

    agents = [Agent("h1", meet, good), Agent("h2", meet, good)]
    cells = plan("h1") + plan("h2")
    found = drive(cells, agents, Store())
    assert set(found) == {c.id for c in cells}
    assert {r.status for r in found.values()} == {Status.OK}
    assert [len(a.batches) for a in agents] == [2, 2]


def test_a_lost_host_fails_its_own_cells_only() -> None:
    agents = [Agent("h1", lost_after_one), Agent("h2", good, good)]
    cells = plan("h1") + plan("h2")
    store = Store()
    found = drive(cells, agents, store)
    states = [found[c.id] for c in cells[:6]]
    assert [r.status for r in states] == [Status.OK, *[Status.FAILED] * 5]
    assert {r.reason.code for r in states if r.reason} == {ReasonCode.HOST_LOST}
    assert all("its agent died" in r.reason.text for r in states if r.reason)
    assert {found[c.id].status for c in cells[6:]} == {Status.OK}
    assert len(agents[0].batches) == 1, "a lost host was asked again"
    assert len(store.runs) == len(cells)


def test_a_fault_of_ours_fails_its_batch_and_the_next_one_runs() -> None:
    cells = plan("h1")
    found = drive(cells, [Agent("h1", our_fault, good)], Store())
    states = [found[c.id] for c in cells]
    assert [r.status for r in states] == [
        *(Status.OK, Status.FAILED, Status.FAILED),
        *(Status.OK, Status.OK, Status.OK),
    ]
    assert str(states[1].reason) == "internal: ZeroDivisionError: planted"


def test_a_store_that_takes_nothing_ends_the_sweep_and_its_workers() -> None:
    agent = Agent("h1", good, good)
    with pytest.raises(StoreUnreachable):
        drive(plan("h1"), [agent], Store(StoreUnreachable("gone")))
    assert agent.cancelled.wait(5)


def test_a_stop_leaves_later_batches_planned() -> None:
    stop = threading.Event()

    def stopping(cells: Sequence[Cell]) -> Iterator[Run]:
        stop.set()
        yield from good(cells)

    agent = Agent("h1", stopping, good)
    cells = plan("h1")
    runs = sweep.drive(cells, [agent], Store(), Store(), stop=stop)
    assert [r.cell for r in runs] == [c.id for c in cells[:3]]
    assert agent.cancelled.is_set()


@pytest.mark.parametrize(
    ("counts", "failures", "code"),
    [
        ({"ok": 3}, 0, 0),
        ({"ok": 3, "skipped": 2, "not_applicable": 1, "partial": 1}, 0, 0),
        ({"ok": 3}, 1, 1),
        *(({"ok": 1, bad: 1}, 0, 1) for bad in ("failed", "timeout", "invalid", "aborted")),
        ({"ok": 1, "planned": 1}, 0, 1),
        ({"failed": 4}, 0, 3),
        ({"skipped": 4}, 0, 3),
        ({}, 0, 3),
    ],
)
def test_the_exit_code_of_a_sweep(counts: dict[str, int], failures: int, code: int) -> None:
    assert sweep.exit_code(counts, failures) == code
