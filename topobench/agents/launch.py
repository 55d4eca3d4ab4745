"""
The launcher: runs cells in fresh pinned workers and always comes back with a run.

Whatever a worker does (dies, hangs, floods its log, writes nonsense), each cell gets one
stored run with a reason, and nothing of the worker is left. ``probes.worker`` is the other
end and describes the messages.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import topobench
from topobench.agents import environment, nccl_run
from topobench.agents.conditions.seen import Seen
from topobench.agents.environment import Environment
from topobench.agents.gang import CANCELLED, KILLED, Allowed, Gang, Outcome, Seat
from topobench.agents.nccl_run import Dump, NcclRun
from topobench.errors import AgentError, ImportFailed
from topobench.host import Host
from topobench.reading import (
    MEASURED,
    Arm,
    Binding,
    Cell,
    Member,
    MemoryPolicy,
    Reason,
    ReasonCode,
    Run,
    Status,
    to_json,
    utc_now,
)
from topobench.topology import format_cpu_list, parse_cpu_list

_WORKER = "topobench.probes.worker"

Watch = Callable[[Cell], AbstractContextManager[Mapping[str, Any]]]
"""Watches the host while a cell is measured; at the end it has what the run's conditions keep."""


def unwatched(cell: Cell) -> AbstractContextManager[Mapping[str, Any]]:
    """A :data:`Watch` that sees nothing."""
    return contextlib.nullcontext({})


def disturbance(seen: Mapping[str, Any]) -> Callable[[], Reason | None]:
    """Asks the monitor of a run whether it should go on."""
    return seen.disturbed if isinstance(seen, Seen) else lambda: None


@dataclass(frozen=True, slots=True)
class Limits:
    """
    How long a cell may take, all in seconds.

    Args:
        least: Every cell may take that long ...
        factor: ... or so many times its estimate.
        start: On top, for imports and first use of devices, until workers tell samples.
        start_gpu: The same with GPUs.
    """

    least: float = 45.0
    factor: float = 10.0
    start: float = 60.0
    start_gpu: float = 120.0

    def start_up(self, cell: Cell) -> float:
        """Allowance for a worker's start."""
        return self.start_gpu if cell.devices else self.start

    def of(self, cell: Cell) -> Allowed:
        """What a cell is allowed."""
        work = max(self.least, self.factor * cell.estimated_seconds)
        return Allowed(start=self.start_up(cell), work=work)


class Launcher:
    """
    Runs cells on this host.

    Args:
        sweep: UUID of the sweep; marks every process started.
        env: The config's ``env:`` block, cluster and host merged.
        log_dir: Folder for the logs of workers that wrote something.
        interface: Network interface that gangs meet on, or None to derive it.
        targets: ``module:Class`` of probes that are in no registry, by name.
        watch: Called around the measurement of each cell.
    """

    def __init__(
        self,
        *,
        sweep: str,
        host: Host,
        env: Mapping[str, str],
        log_dir: Path,
        interface: str | None = None,
        limits: Limits = Limits(),
        targets: Mapping[str, str] | None = None,
        watch: Watch = unwatched,
    ) -> None:
        self._sweep = sweep
        self._host = host
        self._env = env
        self._log_dir = log_dir
        self._interface = interface
        self.limits = limits
        self._targets = targets or {}
        self.watch = watch
        self._gang: Gang | None = None
        self._dumps: dict[tuple[str, ...], Dump] = {}

    def run(
        self,
        cells: Sequence[Cell],
        *,
        stop: threading.Event,
        attempt: int | Mapping[str, int] = 1,
    ) -> Iterator[Run]:
        """
        Run cells that share host, devices, arm, ranks and process number.

        Args:
            stop: When set, workers are ended at once and what is left is ``aborted``.
            attempt: Number of the attempt, or one for each cell's id.

        Returns:
            One run per cell, each as soon as it is complete. Closing the iterator ends
            the workers.

        Raises:
            AgentError: The cells do not belong together, or logs cannot be written.
        """
        check_batch(cells)
        numbers = attempt if isinstance(attempt, Mapping) else {c.id: attempt for c in cells}
        if not cells:
            return iter(())
        return self._run(Batch(list(cells), self.environment(cells[0]), numbers), stop)

    def close(self) -> None:
        """End running workers from another thread; set the run's ``stop`` first."""
        if self._gang is not None:
            self._gang.kill()

    def _run(self, batch: Batch, stop: threading.Event) -> Iterator[Run]:
        first = batch.left[0]
        if (reason := environment.conflict(first, os.environ, batch.setting)) is not None:
            yield from batch.settle(Outcome(Status.NOT_APPLICABLE, reason))
        false_starts = 0
        while batch.left and not stop.is_set():
            with self.given(first, batch.setting, stop) as given:
                if isinstance(given, Outcome):
                    yield from batch.settle(given)
                    return
                variables = {**batch.setting.variables, **given.variables}
                gang = self._gang = Gang(self.seats(first, range(first.ranks)), variables)
                try:
                    refused = gang.ready(self.limits.start_up(first), stop)
                    if refused is None:
                        false_starts = 0
                        yield from self._measure(gang, given, batch, stop)
                    else:
                        false_starts += not _was_killed(refused)
                        gang.finish()
                        hopeless = refused.for_all or false_starts > 1
                        yield from batch.settle(refused, None if hopeless else 1)
                finally:
                    gang.end()
        yield from batch.settle(CANCELLED)

    @contextlib.contextmanager
    def given(
        self, cell: Cell, setting: Environment, stop: threading.Event
    ) -> Iterator[NcclRun | Outcome]:
        """What a gang over NCCL gets; the outcome of its cells if it cannot be had."""
        if not nccl_run.concerns(cell):
            yield NcclRun()
            return
        with nccl_run.private_folder(self._log_dir) as folder:
            try:
                dump = self._dump(cell, setting, stop) if nccl_run.needs_dump(cell) else None
                given: NcclRun | Outcome = (
                    dump
                    if isinstance(dump, Outcome)
                    else nccl_run.prepare(
                        cell,
                        self._host.topology,
                        folder,
                        dump=dump,
                        environment=setting.variables,
                    )
                )
            except ImportFailed as error:
                given = Outcome(Status.SKIPPED, Reason(ReasonCode.UNSUPPORTED, str(error)))
            yield given

    def _dump(self, cell: Cell, setting: Environment, stop: threading.Event) -> Dump | Outcome:
        """NCCL's own graph between these GPUs, from a gang of its own; asked for once."""
        if cell.devices in self._dumps:
            return self._dumps[cell.devices]
        small = nccl_run.smallest(cell)
        with nccl_run.private_folder(self._log_dir) as folder:
            variables = nccl_run.dumping(setting.variables, folder)
            gang = self._gang = Gang(self.seats(small, range(small.ranks)), variables)
            try:
                outcome = gang.ready(self.limits.start_up(small), stop) or gang.measure(
                    self.go(small), self.limits.of(small), stop
                )
                gang.finish()
            finally:
                gang.end()
            if outcome.status not in MEASURED:
                return replace(outcome, readings=(), warnings=())  # those of a cell of its own
            self._dumps[cell.devices] = nccl_run.read_dump(folder)
        return self._dumps[cell.devices]

    def _measure(
        self, gang: Gang, given: NcclRun, batch: Batch, stop: threading.Event
    ) -> Iterator[Run]:
        """Run cells for as long as these workers are fit for it."""
        going = True
        while going and batch.left and not stop.is_set():
            cell = batch.left.pop(0)
            with self.watch(cell) as seen:
                outcome = gang.measure(self.go(cell), self.limits.of(cell), stop, disturbance(seen))
            outcome = replace(outcome, conditions={**outcome.conditions, **seen})
            outcome = given.judged(cell, outcome, batch.setting.mask)
            going = bool(batch.left) and gang.usable()
            if not going:
                outcome = replace(outcome, warnings=(*outcome.warnings, *gang.finish()))
            yield batch.record(cell, outcome)
            going = going and gang.usable()  # it may have taken long to come back

    def environment(self, cell: Cell) -> Environment:
        """What the workers of a cell find in their environment."""
        return environment.build(
            cell,
            os.environ,
            sweep=self._sweep,
            site=self._env,
            package_root=Path(topobench.__file__).parent.parent,
            interface=self._interface,
        )

    def go(self, cell: Cell) -> dict[str, Any]:
        """The message by which workers begin a cell."""
        return {
            "cell": cell.id,
            "probe": cell.case.probe,
            "params": dict(cell.case.params),
            "target": self._targets.get(cell.case.probe),
            "devices": list(cell.devices),
        }

    def seats(self, cell: Cell, ranks: Sequence[int], meets_on: str | None = None) -> list[Seat]:
        """
        What each of the ranks on this host is started with.

        Args:
            cell: Its devices are those of these ranks.
            meets_on: Interface of a gang over several hosts; the launcher's own if None.

        Raises:
            AgentError: There is no folder for logs.
        """
        try:
            self._log_dir.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise AgentError(f"no folder for worker logs: {error}") from error
        name = uuid.uuid4().hex[:12]
        interface = meets_on or self._interface
        return [
            self._seat(cell, (rank, number), self._log_dir / f"worker-{name}-{rank}.log", interface)
            for number, rank in enumerate(ranks)
        ]

    def _seat(self, cell: Cell, place: tuple[int, int], log: Path, interface: str | None) -> Seat:
        rank, local_rank = place
        facts = self._host.facts
        denied = facts.memory_policy != "ok"
        binding = rank_binding(cell.arm, rank, cell.ranks, gpus=bool(cell.devices))
        wrapper = numactl(facts.numactl, binding, denied=denied)
        device = cell.devices[local_rank] if local_rank < len(cell.devices) else None
        return Seat(
            command=(*wrapper, facts.interpreter, "-P", "-m", _WORKER),
            log=log,
            spec={
                "rank": rank,
                "ranks": cell.ranks,
                "local_rank": local_rank,
                "interface": interface,
                "binding": to_json(binding),
                "denied": denied,
            },
            member=Member(rank=rank, host=cell.host, device=device),
            wrapped=bool(wrapper),
        )


def _was_killed(outcome: Outcome) -> bool:
    return outcome.reason is not None and outcome.reason.code in KILLED


@dataclass(frozen=True, slots=True)
class Batch:
    """Cells still to run, and what their runs have in common."""

    left: list[Cell]
    setting: Environment
    numbers: Mapping[str, int]

    def settle(self, outcome: Outcome, count: int | None = None) -> Iterator[Run]:
        """Give the next cells, by default all, the same outcome without running them."""
        for _ in range(len(self.left) if count is None else count):
            yield self.record(self.left.pop(0), outcome)

    def record(self, cell: Cell, outcome: Outcome) -> Run:
        """The run of a cell, with secrets masked."""
        mask, reason = self.setting.mask, outcome.reason
        return Run(
            id=str(uuid.uuid4()),
            cell=cell.id,
            status=outcome.status,
            reason=reason and replace(reason, text=mask(reason.text)),
            started_at=outcome.started_at or utc_now(),
            duration_seconds=outcome.seconds,
            attempt=self.numbers[cell.id],
            readings=outcome.readings,
            members=outcome.members,
            environment={**outcome.environment, "env": dict(self.setting.stored)},
            conditions={**_masked(outcome.conditions), **_sharing(cell)},
            warnings=(*self.setting.warnings, *map(mask, outcome.warnings)),
            log_tail=mask(outcome.log_tail),
        )


def check_batch(cells: Sequence[Cell]) -> None:
    """
    Refuse cells that must not share a worker.

    Raises:
        AgentError: They differ in host, devices, arm, ranks or process number.
    """
    kinds = {
        (
            c.host,
            c.worker_devices,
            json.dumps(to_json(c.arm), sort_keys=True),
            c.ranks,
            c.process_no,
        )
        for c in cells
    }
    if len(kinds) > 1:
        raise AgentError(
            "cells of one batch must share host, devices, arm, ranks and process number; "
            f"these {len(cells)} are of {len(kinds)} kinds"
        )


def numactl(program: str | None, binding: Binding, *, denied: bool) -> tuple[str, ...]:
    """
    The command that binds what follows it; empty if the worker must do it alone.

    Args:
        program: Path of numactl, or None.
        denied: Memory policies are refused here; newer numactl then refuses everything.
    """
    if program is None or denied or binding.cpus is None:
        return ()
    nodes = format_cpu_list(binding.memory_nodes)
    memory = {
        MemoryPolicy.DEFAULT: (),
        MemoryPolicy.BIND: (f"--membind={nodes}",),
        MemoryPolicy.INTERLEAVE: (f"--interleave={nodes}",),
    }
    # --all: CPUs count from the whole cpuset, not from what the agent was started with.
    return (program, "--all", f"--physcpubind={binding.cpus}", *memory[binding.memory], "--")


def _masked(conditions: Mapping[str, Any]) -> dict[str, Any]:
    """Conditions whose ``env``, as a worker found it, holds no secret."""
    env = conditions.get("env") or {}
    masked = {key: environment.mask_value(key, value) for key, value in env.items()}
    return {**conditions, **({"env": masked} if masked else {})}


def _sharing(cell: Cell) -> dict[str, str]:
    """How the ranks of a gang divide the CPUs of their binding."""
    if cell.ranks == 1:
        return {}
    if cell.arm.rank_bindings:
        return {"rank_cpus": "of its GPU's arm"}
    first = rank_binding(cell.arm, 0, cell.ranks, gpus=bool(cell.devices))
    return {"rank_cpus": "shared" if first == cell.arm.binding else "own"}


def rank_binding(arm: Arm, rank: int, ranks: int, *, gpus: bool) -> Binding:
    """
    The binding of one rank of a gang: the planner's, or its slice of the CPUs of all.

    Hyper-threads of a core go to one rank where that is possible. Ranks with a GPU each
    keep the whole set: NCCL narrows it further by itself.
    """
    if arm.rank_bindings:
        return arm.rank_bindings[rank]
    binding = arm.binding
    cpus = sorted(parse_cpu_list(binding.cpus), key=lambda cpu: (_core(cpu), cpu))
    share = len(cpus) // ranks
    if ranks == 1 or gpus or share == 0:
        return binding
    return replace(binding, cpus=format_cpu_list(cpus[rank * share : (rank + 1) * share]))


def _core(cpu: int) -> int:
    """The first CPU of a CPU's core; the CPU itself where the kernel does not say."""
    path = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
    try:
        return parse_cpu_list(path.read_text())[0]
    except (OSError, IndexError):
        return cpu
