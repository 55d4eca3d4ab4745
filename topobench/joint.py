"""
Cells whose ranks are on several hosts: run by all their agents together, stored as one run.

Agents never talk to each other: what rank 0 publishes, and the news that a part is lost, goes
through here. Batches start in planned order, as soon as all their hosts are free.
"""

from __future__ import annotations

import collections
import concurrent.futures
import functools
import queue
import threading
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Protocol

from topobench import nccl_log
from topobench.errors import AgentError, ImportFailed
from topobench.host import Host
from topobench.nccl_log import NEIGHBOURS
from topobench.reading import (
    MEASURED,
    SAMPLES_KEPT,
    SAMPLES_TOLD,
    Cell,
    Reason,
    ReasonCode,
    Run,
    Status,
    utc_now,
)

Event = tuple[Cell, Run | None]
MEETING_SECONDS = 300.0
"""Longest wait for rank 0's address; its agent says so earlier if there will be none."""
LOST_SECONDS = 1.0
"""How long the other parts may tell what they saw of a lost host ..."""
FAILED_SECONDS = 5.0
"""... and how long when a part merely failed: ranks that fail alike do so about together."""
_WORST_FIRST = (
    *(Status.FAILED, Status.TIMEOUT, Status.INVALID, Status.ABORTED),
    *(Status.SKIPPED, Status.PARTIAL, Status.OK),
)
NCCL = "nccl"
RANKS_TOLD = 256
"""Rings of more ranks are not stored: every channel may have another."""
_ECHOES = frozenset({ReasonCode.RANK_LOST})
"""Reasons that have their cause in another part."""


class PartAgent(Protocol):
    """What a joint cell needs of a host's agent."""

    host: Host
    lost: str | None

    def run_part(self, cell: Cell, *, attempt: int, fresh: bool, last: bool) -> tuple[Run, bool]:
        """Run this host's ranks; its run, and whether the workers may go on."""
        ...

    def published(self, cell: str, seconds: float) -> str | None:
        """Wait for the address that rank 0 publishes; None if there is none."""
        ...

    def tell(self, cell: str, address: str) -> None:
        """Bring that address to another part."""
        ...

    def lose(self, cell: str, text: str, seconds: float) -> None:
        """Say that another part is lost."""
        ...


@dataclass(frozen=True, slots=True)
class Joint:
    """
    Runs batches of joint cells.

    Args:
        agents: By host key.
        attempts: Attempt number by cell; 1 where absent.
        put: Takes what happens, from several threads.
        lost: Host key -> why it is lost; those found here are added.
    """

    agents: Mapping[str, PartAgent]
    attempts: Mapping[str, int]
    put: Callable[[Event], None]
    stop: threading.Event
    lost: dict[str, str]

    def run(self, batches: Iterable[Sequence[Cell]]) -> None:
        """Run all batches; each starts when its hosts are free, none is overtaken for long."""
        every = [list(b) for b in batches]
        turns = _turns(every)
        ended: queue.SimpleQueue[tuple[int, Future[None]]] = queue.SimpleQueue()
        ready, running = [n for n in range(len(every)) if _is_first(turns, every[n], n)], 0
        with ThreadPoolExecutor(max(1, len(self.agents) // 2 + 1), "joint") as pool:
            while True:
                for number in [] if self.stop.is_set() else ready:
                    future = pool.submit(self._run_batch, every[number])
                    future.add_done_callback(functools.partial(_note, ended, number))
                    running += 1
                if not running:
                    return
                number, future = ended.get()
                running -= 1
                future.result()
                ready = _next(turns, every, number)

    def _run_batch(self, batch: Sequence[Cell]) -> None:
        fresh = True
        for cell in batch:
            if self.stop.is_set():
                return
            self.put((cell, None))
            try:
                run, usable = self._run_cell(cell, fresh=fresh, last=cell is batch[-1])
            except Exception as error:  # a fault of ours; the next cell may do
                fault = Reason(ReasonCode.INTERNAL, f"{type(error).__name__}: {error}")
                run, usable = failed_run(cell, self.attempts.get(cell.id, 1), fault), False
            fresh = not usable
            self.put((cell, run))

    def _run_cell(self, cell: Cell, *, fresh: bool, last: bool) -> tuple[Run, bool]:
        """One cell on all its hosts; its run, and whether every part may go on."""
        attempt = self.attempts.get(cell.id, 1)
        if gone := self._gone(cell):
            reason = Reason(ReasonCode.HOST_LOST, gone)
            return failed_run(cell, attempt, reason), False
        hosts = list(dict.fromkeys(cell.hosts))
        with ThreadPoolExecutor(len(hosts) + 1, "part") as pool:
            parts = {
                pool.submit(
                    self.agents[h].run_part, cell, attempt=attempt, fresh=fresh, last=last
                ): h
                for h in hosts
            }
            first = self.agents[hosts[0]]
            meeting = pool.submit(first.published, cell.id, MEETING_SECONDS)
            found = self._follow(cell, parts, meeting)
        runs = {h: run for h, (run, _) in found.items()}
        names = {h: self.agents[h].host.name for h in hosts}
        return merged(cell, runs, names), all(usable for _, usable in found.values())

    def _gone(self, cell: Cell) -> str | None:
        """Which hosts of a cell are lost, and why."""
        found = {h: self.lost.get(h) or self._why_lost(h) for h in dict.fromkeys(cell.hosts)}
        return "; ".join(why for why in found.values() if why) or None

    def _why_lost(self, host: str) -> str | None:
        agent = self.agents.get(host)
        if agent is None:
            return f"host {host} has no agent"
        return f"host {agent.host.name}: {agent.lost}" if agent.lost else None

    def _follow(
        self,
        cell: Cell,
        parts: Mapping[Future[tuple[Run, bool]], str],
        meeting: Future[str | None],
    ) -> dict[str, tuple[Run, bool]]:
        """Carry news between the parts until each has given its run."""
        found: dict[str, tuple[Run, bool]] = {}
        pending: set[Future[Any]] = {*parts, meeting}
        while len(found) < len(parts):
            done, pending = concurrent.futures.wait(pending, return_when=FIRST_COMPLETED)
            if meeting in done:
                done.discard(meeting)
                self._introduce(cell, meeting)
            for future in done:
                host = parts[future]
                found[host] = self._result(cell, host, future)
                self._spread(cell, host, found)
        return found

    def _introduce(self, cell: Cell, meeting: Future[str | None]) -> None:
        address = None if meeting.exception() else meeting.result()
        if address:
            for host in dict.fromkeys(cell.hosts):
                if host != cell.hosts[0]:
                    self.agents[host].tell(cell.id, address)

    def _result(self, cell: Cell, host: str, future: Future[tuple[Run, bool]]) -> tuple[Run, bool]:
        attempt = self.attempts.get(cell.id, 1)
        try:
            return future.result()
        except AgentError as error:
            self.lost[host] = str(error)
            reason = Reason(ReasonCode.HOST_LOST, str(error))
        except Exception as error:  # a fault of ours on that host
            reason = Reason(ReasonCode.INTERNAL, f"{type(error).__name__}: {error}")
        return failed_run(cell, attempt, reason), False

    def _spread(self, cell: Cell, host: str, found: Mapping[str, tuple[Run, bool]]) -> None:
        """Tell the parts that still work when this one gave nothing that may be used."""
        run, _ = found[host]
        if run.status in MEASURED:
            return
        text = f"host {self.agents[host].host.name} gave no result: {run.reason}"
        seconds = LOST_SECONDS if host in self.lost else FAILED_SECONDS
        for other in dict.fromkeys(cell.hosts):
            if other not in found:
                self.agents[other].lose(cell.id, text, seconds)


def _turns(batches: Sequence[Sequence[Cell]]) -> dict[str, collections.deque[int]]:
    """Host key -> numbers of its batches, in order."""
    found: dict[str, collections.deque[int]] = collections.defaultdict(collections.deque)
    for number, batch in enumerate(batches):
        for host in dict.fromkeys(batch[0].hosts):
            found[host].append(number)
    return found


def _is_first(
    turns: Mapping[str, collections.deque[int]], batch: Sequence[Cell], number: int
) -> bool:
    """Whether it is a batch's turn on all its hosts."""
    return all(turns[host][0] == number for host in batch[0].hosts)


def _next(
    turns: Mapping[str, collections.deque[int]], batches: Sequence[Sequence[Cell]], ended: int
) -> list[int]:
    """The batches whose turn it is now that one has ended."""
    hosts = dict.fromkeys(batches[ended][0].hosts)
    for host in hosts:
        turns[host].popleft()
    wanted = sorted({turns[host][0] for host in hosts if turns[host]})
    return [number for number in wanted if _is_first(turns, batches[number], number)]


def _note(
    ended: queue.SimpleQueue[tuple[int, Future[None]]], number: int, future: Future[None]
) -> None:
    ended.put((number, future))


def merged(cell: Cell, parts: Mapping[str, Run], names: Mapping[str, str]) -> Run:
    """
    The run of a joint cell from what each host saw of it.

    The worst part decides the status and gives the reason, but for echoes on other hosts where
    one has the cause. Readings are rank 0's; what it had sampled before it failed is left out
    where a host says that there is no speed.

    Args:
        parts: By host key; every host of the cell.
        names: Of the hosts, by key.
    """
    first = parts[cell.hosts[0]]
    others = {h: _without_samples(r) for h, r in parts.items() if h != cell.hosts[0]}
    worst = min(dict.fromkeys(cell.hosts), key=lambda h: _rank(parts[h]))
    status, reason = parts[worst].status, parts[worst].reason
    if reason is not None and worst != cell.hosts[0] and names[worst] not in reason.text:
        reason = replace(reason, text=f"host {names[worst]}: {reason.text}")
    if status not in SAMPLES_KEPT or any(r.status is Status.INVALID for r in parts.values()):
        first = _without_samples(first)
    conditions, unproven = _with_rings(cell, {h: dict(r.conditions) for h, r in parts.items()})
    own = conditions.pop(cell.hosts[0])
    seen = {h: of for h, of in conditions.items() if of}
    warnings = [*first.warnings, *unproven]
    warnings += [f"host {names[h]}: {w}" for h, r in others.items() for w in r.warnings]
    return replace(
        first,
        status=status,
        reason=reason,
        members=tuple(sorted((m for r in parts.values() for m in r.members), key=_by_rank)),
        conditions={**own, **({"hosts": seen} if seen else {})},
        warnings=tuple(dict.fromkeys(warnings)),
        log_tail=parts[worst].log_tail,
    )


def _with_rings(
    cell: Cell, conditions: dict[str, dict[str, Any]]
) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """
    Conditions by host with the rings in those of rank 0, in place of each rank's neighbours.

    Only where every host tells of its ranks.

    Returns:
        Those, and a warning where the rings cannot be told.
    """
    parts = {h: dict(of[NCCL]) for h, of in conditions.items() if NEIGHBOURS in of.get(NCCL, {})}
    own = {h: {k: v for k, v in part.items() if k != NEIGHBOURS} for h, part in parts.items()}
    warnings = []
    try:
        if len(parts) == len(conditions) and cell.ranks <= RANKS_TOLD:  # else its host says why
            own[cell.hosts[0]]["rings"] = nccl_log.joined([*parts.values()], cell.ranks)
    except ImportFailed as error:
        warnings = [f"nccl_log: {error}"]
    return {
        h: {**of, **({NCCL: own[h]} if h in own else {})} for h, of in conditions.items()
    }, warnings


def _without_samples(run: Run) -> Run:
    """A run of a part without what it had sampled until it failed."""
    if run.status not in SAMPLES_KEPT:
        return run
    warnings = tuple(w for w in run.warnings if not w.startswith(SAMPLES_TOLD))
    return replace(run, readings=(), warnings=warnings)


def failed_run(cell: Cell, attempt: int, reason: Reason) -> Run:
    """The run of a cell that no worker measured."""
    return Run(
        id=str(uuid.uuid4()),
        cell=cell.id,
        status=Status.FAILED,
        reason=reason,
        started_at=utc_now(),
        duration_seconds=0.0,
        attempt=attempt,
    )


def _rank(run: Run) -> tuple[bool, bool, int]:
    echo = run.reason is not None and run.reason.code in _ECHOES and _second_hand(run.reason)
    return run.status in MEASURED, echo, _WORST_FIRST.index(run.status)


def _second_hand(reason: Reason) -> bool:
    """Whether a lost rank is only told of; where it was lost the text names its number."""
    return " was lost: " not in reason.text


def _by_rank(member: Any) -> int:
    return int(member.rank)
