"""Driving a sweep: what becomes of cells when a host is lost or our own code fails."""

from __future__ import annotations

import dataclasses
import queue
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence

import pytest

from launching import cell, host
from topobench import sweep
from topobench.errors import AgentError, StoreUnreachable
from topobench.reading import Binding, Cell, Member, Reason, ReasonCode, Run, Status

Behaviour = Callable[[Sequence[Cell]], Iterator[Run]]


class Agent:
    """An agent in this process whose batches end as told, one behaviour each."""

    def __init__(self, key: str, *behaviours: Behaviour) -> None:
        self.host = dataclasses.replace(host(), key=key)
        self.lost: str | None = None
        self.batches: list[list[str]] = []
        self.cancelled = threading.Event()
        self._behaviours = list(behaviours)

    def run(self, cells: Sequence[Cell], attempts: Mapping[str, int]) -> Iterator[Run]:
        self.batches.append([c.id for c in cells])
        yield from self._behaviours.pop(0)(cells)

    def cancel(self) -> None:
        self.cancelled.set()

    def run_part(self, cell: Cell, *, attempt: int, fresh: bool, last: bool) -> tuple[Run, bool]:
        raise AssertionError("no cell here spans hosts")

    def published(self, cell: str, seconds: float) -> str | None:
        raise AssertionError("no cell here spans hosts")

    def tell(self, cell: str, address: str) -> None:
        raise AssertionError("no cell here spans hosts")

    def lose(self, cell: str, text: str, seconds: float) -> None:
        raise AssertionError("no cell here spans hosts")


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
    """The runs that were stored, by their cell."""
    sweep.drive(cells, agents, store, store, stop=threading.Event())
    return {r.cell: r for r in store.runs}


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


def test_hosts_wait_for_a_store_that_is_slower_than_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else the runs of many hosts would pile up in the driver's memory."""
    monkeypatch.setattr(sweep, "MOST_WAITING", 4)
    made: list[Run] = []
    ahead: list[int] = []

    def counted(cells: Sequence[Cell]) -> Iterator[Run]:
        for run in good(cells):
            made.append(run)
            yield run

    class Slow(Store):
        def put_run(self, run: Run) -> None:
            time.sleep(0.005)
            super().put_run(run)
            ahead.append(len(made) - len(self.runs))

    store = Slow()
    drive(plan("h1", batches=1, size=40), [Agent("h1", counted)], store)
    assert [r.id for r in store.runs] == [r.id for r in made]
    assert 0 < max(ahead) <= 4


def test_a_stop_leaves_later_batches_planned() -> None:
    stop = threading.Event()

    def stopping(cells: Sequence[Cell]) -> Iterator[Run]:
        stop.set()
        yield from good(cells)

    agent = Agent("h1", stopping, good)
    cells = plan("h1")
    store = Store()
    sweep.drive(cells, [agent], store, store, stop=stop)
    assert [r.cell for r in store.runs] == [c.id for c in cells[:3]]
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


class Joined(Agent):
    """An agent whose part of every joint cell ends as told."""

    def __init__(self, key: str, part: Callable[[Joined, Cell], Run], *behaviours: Behaviour):
        super().__init__(key, *behaviours)
        self.fresh: list[bool] = []
        self.told: list[str] = []
        self.introduced: queue.Queue[str] = queue.Queue()
        self.lost_parts: list[str] = []
        self.ended = threading.Event()
        self._part = part

    def run_part(self, cell: Cell, *, attempt: int, fresh: bool, last: bool) -> tuple[Run, bool]:
        self.fresh.append(fresh)
        self.ended.clear()
        run = self._part(self, cell)
        self.ended.set()
        return run, run.status is Status.OK and not last

    def published(self, cell: str, seconds: float) -> str | None:
        return f"10.0.0.1 for {cell}"

    def tell(self, cell: str, address: str) -> None:
        self.told.append(address)
        self.introduced.put(address)

    def lose(self, cell: str, text: str, seconds: float) -> None:
        self.lost_parts.append(text)
        self.ended.set()


def joint_cells(*hosts: str, count: int = 2) -> list[Cell]:
    """Cells of one gang over hosts."""
    made = [cell("steady", ranks=len(hosts)) for _ in range(count)]
    return [dataclasses.replace(c, host=hosts[0], hosts=hosts) for c in made]


def part_ok(agent: Joined, cell: Cell) -> Run:
    if agent.host.key != cell.hosts[0]:
        assert agent.introduced.get(timeout=10).endswith(cell.id)
    run = next(iter(good([cell])))
    members = (Member(cell.hosts.index(agent.host.key), agent.host.key),)
    return dataclasses.replace(run, members=members, conditions={"of": agent.host.key})


def part_waits_to_be_lost(agent: Joined, cell: Cell) -> Run:
    assert agent.ended.wait(10), "nobody told this part that another is lost"
    reason = Reason(ReasonCode.RANK_LOST, "Connection closed by peer")
    return dataclasses.replace(part_ok(agent, cell), status=Status.FAILED, reason=reason)


def part_dies(agent: Joined, cell: Cell) -> Run:
    raise AgentError(f"host {agent.host.name}: its agent died")


def test_a_joint_cell_is_one_run_made_of_all_its_parts() -> None:
    agents = [Joined(k, part_ok) for k in ("h1", "h2", "h3")]
    cells = joint_cells("h1", "h2", "h3")
    store = Store()
    told = sweep.drive(cells, agents, store, store, stop=threading.Event())
    found = {run.cell: run for run in store.runs}
    assert [found[c.id].status for c in cells] == [Status.OK, Status.OK]
    run = found[cells[0].id]
    assert told[0] == dataclasses.replace(run, conditions={}), "figures alone are kept"
    assert [(m.rank, m.host) for m in run.members] == [(0, "h1"), (1, "h2"), (2, "h3")]
    assert run.conditions == {
        "of": "h1",
        "hosts": {"h2": {"of": "h2"}, "h3": {"of": "h3"}},
    }
    assert [a.fresh for a in agents] == [[True, False]] * 3, "the second cell has the same workers"
    assert agents[0].told == []
    assert agents[1].told == agents[2].told == [f"10.0.0.1 for {c.id}" for c in cells]


def test_a_lost_part_fails_its_cells_names_the_host_and_spares_other_pairs() -> None:
    agents = [
        Joined("h1", part_ok),
        Joined("h2", part_waits_to_be_lost),
        Joined("h3", part_dies),
        Joined("h4", part_ok),
    ]
    agents[2].host = dataclasses.replace(agents[2].host, name="third")
    with_lost, others = joint_cells("h2", "h3"), joint_cells("h1", "h4")
    found = drive([*with_lost, *others], agents, Store())
    for c in with_lost:
        assert found[c.id].status is Status.FAILED
        assert str(found[c.id].reason) == "host_lost: host third: its agent died"
    assert [found[c.id].status for c in others] == [Status.OK, Status.OK]
    assert len(agents[1].lost_parts) == 1
    assert "third gave no result: host_lost" in agents[1].lost_parts[0]
    assert len(agents[2].fresh) == 1, "a lost host was asked again"


def test_the_cause_is_told_and_not_its_echo_on_other_hosts() -> None:
    def crashed(agent: Joined, cell: Cell) -> Run:
        reason = Reason(ReasonCode.RANK_LOST, "rank 1 of 2 was lost: signal: SIGKILL")
        return dataclasses.replace(part_ok(agent, cell), status=Status.FAILED, reason=reason)

    agents = [Joined("h1", part_waits_to_be_lost), Joined("h2", crashed)]
    cells = joint_cells("h1", "h2", count=1)
    reason = drive(cells, agents, Store())[cells[0].id].reason
    assert reason is not None
    assert "rank 1 of 2 was lost: signal: SIGKILL" in reason.text


def test_joint_cells_wait_until_their_hosts_are_done_with_their_own() -> None:
    done: list[str] = []

    def alone(cells: Sequence[Cell]) -> Iterator[Run]:
        yield from good(cells)
        done.append("alone")

    def part(agent: Joined, cell: Cell) -> Run:
        done.append("joint")
        return part_ok(agent, cell)

    agents = [Joined("h1", part, alone, alone), Joined("h2", part)]
    drive([*joint_cells("h1", "h2", count=1), *plan("h1")], agents, Store())
    assert done == ["alone", "alone", "joint", "joint"]


def test_a_pair_never_overtakes_a_gang_that_waits_for_its_host() -> None:
    order: list[tuple[str, ...]] = []

    def part(agent: Joined, cell: Cell) -> Run:
        if agent.host.key == cell.hosts[0]:
            order.append(cell.hosts)
        return part_ok(agent, cell)

    agents = [Joined(k, part) for k in ("h1", "h2", "h3")]
    wanted = [("h1", "h2"), ("h1", "h2", "h3"), ("h2", "h3")]
    cells = [c for hosts in wanted for c in joint_cells(*hosts, count=1)]
    drive(cells, agents, Store())
    assert order == wanted
