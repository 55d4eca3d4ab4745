"""
The workers that run a cell together: one alone, or one per rank.

They go through the cells in step. The launcher relays the address that rank 0 publishes;
when one rank is lost the others are ended soon after, because a collective without it
would only wait. Of a gang over several hosts each agent has its own ranks here; a
:class:`Meeting` carries what the others must know.
"""

from __future__ import annotations

import math
import re
import selectors
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from topobench import processes
from topobench.agents import so_far
from topobench.agents.so_far import SoFar
from topobench.agents.worker_process import KILL_GRACE_SECONDS, WorkerProcess, end_all
from topobench.processes import Process
from topobench.reading import (
    MEASURED,
    SAMPLES_KEPT,
    Member,
    Reading,
    Reason,
    ReasonCode,
    Status,
    utc_now,
)

_TICK_SECONDS = 0.1
_LOST_SECONDS = 1.0  # a dead rank's peers may say what they saw
_ENDED_SECONDS = 5.0  # ranks that fail alike do so about together
_LEAVE_SECONDS = 5.0
_ECHO = re.compile(r"Connection (closed|reset)|Read error|Write error|Broken pipe|remote process")
_NUMACTL_WORDS = (
    (r"not permitted|not implemented|[Nn]ot supported", ReasonCode.MEM_POLICY_DENIED),
    (r"cpu argument|sched_setaffinity", ReasonCode.CPU_NOT_ALLOWED),
    (r"node argument|set_mempolicy|setting membind", ReasonCode.MEM_NOT_ALLOWED),
)
_STATES = {
    **dict.fromkeys("Tt", "stopped by a signal"),
    "D": "waiting in the kernel, where nothing can interrupt it",
}
_NOT_ALLOWED = frozenset({ReasonCode.CPU_NOT_ALLOWED, ReasonCode.MEM_NOT_ALLOWED})
_WORST_FIRST = (Status.FAILED, Status.INVALID, Status.SKIPPED, Status.PARTIAL, Status.OK)


@dataclass(frozen=True, slots=True)
class Seat:
    """
    What one rank is started with.

    Args:
        command: Program and arguments, numactl and all.
        spec: First line on the worker's stdin.
        member: What is known of it before it starts.
        wrapped: numactl stands before the interpreter.
    """

    command: tuple[str, ...]
    log: Path
    spec: Mapping[str, Any]
    member: Member
    wrapped: bool


@dataclass(frozen=True, slots=True)
class Outcome:
    """
    What became of a cell; a run without the launcher's own facts.

    Args:
        for_all: The other cells of the batch cannot fare better.
    """

    status: Status
    reason: Reason | None = None
    started_at: str | None = None
    seconds: float = 0.0
    readings: tuple[Reading, ...] = ()
    members: tuple[Member, ...] = ()
    environment: Mapping[str, Any] = field(default_factory=dict)
    conditions: Mapping[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    log_tail: str = ""
    for_all: bool = False


@dataclass(frozen=True, slots=True)
class Allowed:
    """
    How long a cell may take, in seconds.

    Args:
        start: For imports and first use of devices, on top, until these workers have told
            samples of the cell's probe.
        work: For everything else.
    """

    start: float
    work: float

    @property
    def most(self) -> float:
        """From the moment its worker is told to begin."""
        return self.start + self.work


class Meeting:
    """
    What the parts of a gang on several hosts tell each other; the driver carries it.

    Safe to use from several threads: one runs the gang, others bring news. All is kept by the
    cell it is about, since the parts begin it at different moments.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._published: dict[str, str | None] = {}
        self._told: dict[str, str] = {}
        self._lost: dict[str, tuple[str, float]] = {}

    def publish(self, cell: str, address: str | None) -> None:
        """Rank 0 says where to meet; None when its cell is over. The first word counts."""
        with self._changed:
            self._published.setdefault(cell, address)
            self._changed.notify_all()

    def published(self, cell: str, seconds: float) -> str | None:
        """Wait for what rank 0 published; None if there is nothing in time."""
        with self._changed:
            self._changed.wait_for(lambda: cell in self._published, seconds)
            return self._published.get(cell)

    def tell(self, cell: str, address: str) -> None:
        """Bring the address that rank 0 published on another host."""
        self._told[cell] = address

    def told(self, cell: str | None) -> str | None:
        """The address brought for a cell."""
        return self._told.get(cell) if cell else None

    def lose(self, cell: str, text: str, seconds: float) -> None:
        """Another part of the gang will give no result; own ranks have so long to say theirs."""
        self._lost.setdefault(cell, (text, seconds))

    def lost(self, cell: str | None) -> tuple[str, float] | None:
        """What became of another part of a cell's gang, if it is lost."""
        return self._lost.get(cell) if cell else None


KILLED = frozenset({ReasonCode.SIGNAL, ReasonCode.OOM})
"""Reasons of workers that somebody ended: the next one may well live."""
CANCELLED = Outcome(Status.ABORTED, Reason(ReasonCode.CANCELLED, "the sweep was stopped"))


class Gang:
    """
    Starts one worker per seat; end it with :meth:`finish` or :meth:`end`.

    Args:
        seats: In order of their ranks: all, or those of this host.
        meeting: Of a gang over several hosts.
    """

    def __init__(
        self,
        seats: Sequence[Seat],
        environment: Mapping[str, str],
        meeting: Meeting | None = None,
    ) -> None:
        self._seats = {seat.member.rank: seat for seat in seats}
        self._first = seats[0].member.rank
        self._ranks: int = seats[0].spec["ranks"]
        self._meeting = meeting
        self._introduced: str | None = None
        self._disturbed: Callable[[], Reason | None] = lambda: None
        self._workers: list[WorkerProcess] = []
        self._selector = selectors.DefaultSelector()
        self._got: dict[int, Mapping[str, Any]] = {}
        self._ends: dict[int, Mapping[str, Any]] = {}
        self._readings: list[Reading] = []
        self._so_far = SoFar()
        self._allowed = Allowed(math.inf, math.inf)
        self._late_at = math.inf
        self._probe = ""
        self._sampled: set[str] = set()  # probes that have told samples
        self._refusal: Outcome | None = None
        self._cell: str | None = None
        self._in_step = False
        try:
            for rank, seat in self._seats.items():
                self._start(rank, seat, environment)
        except OSError as error:
            self._refusal = _no_start(seats[0], error)

    def usable(self) -> bool:
        """Whether these workers live and may run another cell."""
        for worker in self._workers:
            worker.look()
        return self._in_step and all(w.fault is None and w.guarded for w in self._workers)

    def ready(self, seconds: float, stop: threading.Event) -> Outcome | None:
        """Wait until every rank has its binding; the outcome of a cell if one has not."""
        began = time.monotonic()
        if self._refusal is None:
            self._follow(lambda: len(self._got) == len(self._seats), seconds, stop)
        self._in_step = len(self._got) == len(self._seats)
        if self._in_step or self._refusal:
            return self._refusal
        if stop.is_set():
            return CANCELLED
        worker = next(w for w in self._workers if w.rank not in self._got)
        reason = worker.fault or Reason(
            ReasonCode.DEADLINE, f"the worker said nothing for {seconds:.0f} s after its start"
        )
        killed = reason.code in KILLED  # says nothing of numactl
        unbound = worker.died and self._seats[worker.rank].wrapped and not killed
        if unbound:
            reason = _numactl_failed(reason, worker.log_tail())
        status = Status.FAILED if worker.fault else Status.TIMEOUT
        return Outcome(
            Status.SKIPPED if reason.code in _NOT_ALLOWED else status,
            reason,
            seconds=time.monotonic() - began,
            members=self._members(),
            log_tail=worker.log_tail(),
            for_all=unbound,
        )

    def measure(
        self,
        go: Mapping[str, Any],
        allowed: Allowed,
        stop: threading.Event,
        disturbed: Callable[[], Reason | None] = lambda: None,
    ) -> Outcome:
        """
        Have every rank run one cell; always gives its outcome, in time.

        Args:
            disturbed: Why the cell should be given up by now, if it should.
        """
        self._disturbed = disturbed
        self._ends.clear()
        self._readings.clear()
        self._so_far.clear()
        if go["probe"] in self._sampled:
            allowed = replace(allowed, start=0.0)
        self._allowed, self._late_at = allowed, math.inf
        self._cell, self._probe = go["cell"], go["probe"]
        started_at, began = utc_now(), time.monotonic()
        for worker in self._workers:
            worker.begin()
            worker.send("go", **go, deadline_seconds=allowed.most)
        self._follow(lambda: len(self._ends) == len(self._workers), allowed.most, stop)
        outcome, rank = self._judge(time.monotonic() - began, stop)
        kept = self._so_far.readings() if outcome.status in SAMPLES_KEPT else ()
        self._in_step = self._ended_alike()
        end = self._ends.get(self._first, {})
        return replace(
            outcome,
            started_at=started_at,
            seconds=end.get("seconds", time.monotonic() - began),
            readings=(*self._readings, *kept),
            members=self._members(),
            environment=end.get("environment", {}),
            conditions=self._conditions(),
            warnings=(*self._warnings(), *so_far.told(kept)),
            log_tail=next(w for w in self._workers if w.rank == rank).log_tail(),
        )

    def finish(self) -> tuple[str, ...]:
        """
        Let workers that are sound leave by themselves, then end what is left.

        Returns:
            A warning if something could not be ended.
        """
        if self.usable():
            for worker in self._workers:
                worker.send("bye")
            patience = time.monotonic() + _LEAVE_SECONDS
            for worker in self._workers:
                worker.wait(max(0.0, patience - time.monotonic()))
        if left := self.end():
            pids = ", ".join(str(p.pid) for p in left)
            return (f"left_behind: these processes hang in the kernel and cannot be ended: {pids}",)
        return ()

    def kill(self) -> None:
        """End the processes and touch nothing else: for a thread other than the owner's."""
        families = [w.family for w in self._workers]
        processes.end(lambda: processes.members(families), grace_seconds=KILL_GRACE_SECONDS)

    def end(self) -> list[Process]:
        """End what is left of the workers and all they started; those that cannot be ended."""
        workers, self._workers, self._in_step = self._workers, [], False
        left = end_all(workers) if workers else []
        self._selector.close()
        return left

    def _ended_alike(self) -> bool:
        """Whether every rank ended the cell alike and can go on; a failed gang cannot."""
        ends = self._ends.values()
        statuses = {e["status"] for e in ends}
        return (
            len(ends) == len(self._workers)
            and not any(e["leaving"] for e in ends)
            and (len(ends) == 1 or (len(statuses) == 1 and Status.FAILED not in statuses))
        )

    def _start(self, rank: int, seat: Seat, environment: Mapping[str, str]) -> None:
        worker = WorkerProcess(seat.command, environment=environment, log=seat.log, rank=rank)
        self._workers.append(worker)
        worker.watch(self._selector)
        worker.send("spec", **seat.spec)

    def _follow(self, done: Callable[[], bool], seconds: float, stop: threading.Event) -> None:
        """Listen until done, stopped, late, or until a loss has been understood."""
        until = time.monotonic() + seconds
        while not done() and not stop.is_set() and (now := time.monotonic()) < until:
            for key, _ in self._selector.select(min(_TICK_SECONDS, until - now)):
                key.data.read()
            for worker in self._workers:
                worker.look()
                self._take(worker)
            self._introduce()
            if self._refusal is not None or self._disturbed() is not None:
                return
            until = min(until, self._late_at, time.monotonic() + self._patience())

    def _patience(self) -> float:
        """How long to wait for the other ranks once one is lost or has failed."""
        if any(w.fault and w.rank not in self._ends for w in self._workers):
            return 0.0 if len(self._workers) == 1 else _LOST_SECONDS
        if any(e["status"] not in MEASURED for e in self._ends.values()):
            return _ENDED_SECONDS
        elsewhere = self._meeting and self._meeting.lost(self._cell)
        return elsewhere[1] if elsewhere else math.inf

    def _take(self, worker: WorkerProcess) -> None:
        while worker.messages:
            message = worker.messages.popleft()
            try:
                self._handle(worker, message)
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                text = f"its message {message['type']!r} cannot be read ({error!r})"
                worker.reject(ReasonCode.PARSE, text)

    def _handle(self, worker: WorkerProcess, message: Mapping[str, Any]) -> None:
        kind = message["type"]
        if kind == "got":
            self._got[worker.rank] = message
        elif kind == "refused":
            self._refusal = Outcome(
                Status.SKIPPED, Reason.from_text(message["reason"]), for_all=True
            )
        elif kind == "bye":
            return
        elif message["cell"] != self._cell:
            raise ValueError("it is about another cell")
        elif kind == "publish":
            self._relay(message["cell"], message["address"])
        elif kind == "so_far":
            self._so_far.take(message)
            self._begun()
        elif kind == "reading":
            reading = Reading.from_json(message["reading"])
            self._readings.append(reading)
            self._so_far.settle(reading)
        elif kind == "end":
            Status(message["status"])
            Member(rank=worker.rank, host="", **message["member"])
            self._ends[worker.rank] = message
        else:
            raise ValueError("unknown type")

    def _begun(self) -> None:
        """Samples have come: what a start is allowed is used up, for later cells as well."""
        self._late_at = min(self._late_at, time.monotonic() + self._allowed.work)
        self._sampled.add(self._probe)

    def _relay(self, cell: str, address: str) -> None:
        if self._meeting is not None:
            self._meeting.publish(cell, address)
        for worker in self._workers[1:]:
            worker.send("address", cell=cell, address=address)

    def _introduce(self) -> None:
        """Pass on, once a cell, the address that came from rank 0's host."""
        address = self._meeting and self._meeting.told(self._cell)
        if address and self._introduced != self._cell:
            self._introduced = self._cell
            for worker in self._workers:
                worker.send("address", cell=self._cell, address=address)

    def _judge(self, seconds: float, stop: threading.Event) -> tuple[Outcome, int]:
        """The outcome, and the rank whose log explains it."""
        silent = [w for w in self._workers if w.rank not in self._ends]
        if silent and (reason := self._disturbed()):
            return Outcome(Status.ABORTED, reason), silent[0].rank
        if silent and stop.is_set():
            return CANCELLED, silent[0].rank
        lost = sorted((w for w in silent if w.fault), key=lambda w: not w.died)
        if lost:
            return Outcome(Status.FAILED, self._loss(lost[0])), lost[0].rank
        for status in _WORST_FIRST:
            alike = [r for r, end in self._ends.items() if end["status"] == status]
            if alike and not (silent and status in MEASURED):
                rank = min(alike, key=lambda r: (_is_echo(self._ends[r]["reason"]), r))
                return Outcome(status, self._reason(rank, self._ends[rank])), rank
        elsewhere = self._meeting and self._meeting.lost(self._cell)
        if elsewhere:
            reason = Reason(ReasonCode.RANK_LOST, elsewhere[0])
            return Outcome(Status.FAILED, reason), silent[0].rank
        ranks = ", ".join(str(w.rank) for w in silent)
        who = f"rank {ranks}" if self._ranks > 1 else "the worker"
        text = f"{who} gave no result within {seconds:.0f} s and was ended"
        text = "; ".join([text, *filter(None, map(_found, silent))])
        return Outcome(Status.TIMEOUT, Reason(ReasonCode.DEADLINE, text)), silent[0].rank

    def _loss(self, worker: WorkerProcess) -> Reason:
        assert worker.fault is not None
        if self._ranks == 1:
            return worker.fault
        text = f"rank {worker.rank} of {self._ranks} was lost: {worker.fault}"
        return Reason(ReasonCode.RANK_LOST, text)

    def _reason(self, rank: int, end: Mapping[str, Any]) -> Reason | None:
        if end["reason"] is None:
            return None
        reason = Reason.from_text(end["reason"])
        if not rank or reason.text.startswith(f"rank {rank} "):
            return reason
        return replace(reason, text=f"rank {rank}: {reason.text}")

    def _members(self) -> tuple[Member, ...]:
        """Every rank as the kernel placed it; as it was started, where nothing is known."""
        found = []
        for worker in self._workers:
            member = replace(self._seats[worker.rank].member, pid=worker.pid)
            if got := self._got.get(worker.rank):
                member = replace(member, cpus=got["cpus"], memory_policy=got["memory_policy"])
            if end := self._ends.get(worker.rank):
                member = replace(member, **end["member"])
            found.append(member)
        return tuple(found)

    def _conditions(self) -> dict[str, Any]:
        found = dict(self._ends.get(self._first, {}).get("conditions", {}))
        others = {
            str(rank): end["conditions"]
            for rank, end in sorted(self._ends.items())
            if rank != self._first and end["conditions"]
        }
        if not self._seats[self._first].wrapped and self._first in self._got:
            found["inherited"] = self._got[self._first]["inherited"]
        return found | ({"ranks": others} if others else {})

    def _warnings(self) -> tuple[str, ...]:
        found: dict[str, None] = {}
        for source in (self._got, self._ends):
            for rank, message in sorted(source.items()):
                for text in message["warnings"]:
                    found[f"rank {rank}: {text}" if rank else text] = None
        return tuple(found)


def _found(worker: WorkerProcess) -> str | None:
    """What a worker that gave no result was found at, where the kernel can tell."""
    found = _STATES.get(processes.state(worker.pid) or "")
    return found and f"rank {worker.rank} was found {found}"


def _is_echo(reason: str | None) -> bool:
    """Whether a rank only tells that it lost its peers, which has a cause elsewhere."""
    return reason is not None and _ECHO.search(reason) is not None


def _no_start(seat: Seat, error: OSError) -> Outcome:
    code = ReasonCode.NO_NUMACTL if seat.wrapped else ReasonCode.CRASHED
    text = f"{seat.command[0]} cannot be started: {error.strerror or error}"
    return Outcome(Status.FAILED, Reason(code, text), for_all=True)


def _numactl_failed(reason: Reason, log: str) -> Reason:
    """What numactl's own words mean, since it is still numactl that ended."""
    lines = [line for line in log.splitlines() if line.strip()]
    said = next((line for line in lines if "usage:" not in line), reason.text)
    code = next((code for words, code in _NUMACTL_WORDS if re.search(words, log)), None)
    return Reason(
        code or ReasonCode.NO_NUMACTL, f"numactl could not bind the worker: {said.strip()}"
    )
