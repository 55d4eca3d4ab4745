"""What the probes' tests share: a worker's context that records, and gangs of real processes."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import queue
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from topobench.errors import ProbeError
from topobench.probes import all_reduce, collectives, patterns
from topobench.probes.protocol import WorkerContext, check_metrics
from topobench.reading import Binding, Reading, to_json

GANG_SECONDS = 120.0
SERVER = multiprocessing.get_context("forkserver")
# Imported once, not once a rank or writer; a test process has one such server for all.
SERVER.set_forkserver_preload(["torch", "torch.distributed", "topobench.db.store"])


@dataclass
class Listener:
    """Keeps what a probe tells its worker."""

    notes: dict[str, Any] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    buffers: list[tuple[int, int]] = field(default_factory=list)
    published: list[str] = field(default_factory=list)

    def context(
        self,
        *,
        threads: int = 1,
        devices: tuple[str, ...] = (),
        rank: int = 0,
        ranks: int = 1,
        interface: str | None = None,
        publish: Callable[[str], None] | None = None,
        wait: Callable[[], str] | None = None,
        deadline_seconds: float = 2.0,
    ) -> WorkerContext:
        """A worker's context, unbound; a short deadline shortens the sampling."""
        return WorkerContext(
            binding=Binding("none", threads=threads),
            devices=devices,
            rank=rank,
            ranks=ranks,
            local_rank=rank,
            publish=publish or self.published.append,
            wait=wait or self._nobody,
            interface=interface,
            deadline_seconds=deadline_seconds,
            buffer_ready=lambda address, size: self.buffers.append((address, size)),
            note=self.notes.__setitem__,
            warn=self.warnings.append,
        )

    def _nobody(self) -> str:
        raise AssertionError("nobody publishes an address to this rank")


def measure(probe: Any, context: WorkerContext) -> list[Reading]:
    """All readings of a probe, whose metrics it must have declared."""
    readings = list(probe.measure(context))
    check_metrics(type(probe), readings)
    return readings


@dataclass(frozen=True)
class RankResult:
    """
    What one rank of a gang gave.

    Args:
        outcomes: For each case its readings as JSON, or the error as (class, code, text).
        listener: What the rank told its worker.
        exit_code: Of the process.
    """

    outcomes: list[Any]
    listener: Listener
    exit_code: int | None


def run_gang(
    ranks: int,
    cases: Sequence[Mapping[str, Any]],
    *,
    fault: str = "",
    interface: str | None = None,
    devices: tuple[str, ...] = (),
    probe: type[Any] = all_reduce.AllReduce,
) -> list[RankResult]:
    """
    Run cases in turn in real processes, one a rank; the results by rank.

    Args:
        probe: Its class; the number of ranks is given to those that have it as a parameter.
        fault: Of the last rank; see :func:`_break`.
    """
    addresses, results = SERVER.Queue(), SERVER.Queue()
    workers = [
        SERVER.Process(
            target=_rank,
            args=(probe, r, ranks, cases, fault, interface, devices, addresses, results),
            daemon=True,
        )
        for r in range(ranks)
    ]
    for worker in workers:
        worker.start()
    found: dict[int, tuple[list[Any], Listener]] = {}
    expected = ranks - (fault == "dies")
    try:
        while len(found) < expected:
            rank, outcomes, told = _next_result(results, workers)
            found[rank] = outcomes, Listener(*told)
        for worker in workers:
            worker.join(GANG_SECONDS)
    except queue.Empty:
        raise AssertionError(f"only ranks {sorted(found)} of {ranks} came to an end") from None
    finally:
        for worker in workers:
            worker.kill()
    return [RankResult(*found.get(r, ([], Listener())), workers[r].exitcode) for r in range(ranks)]


def _next_result(results: Any, workers: Sequence[Any]) -> Any:
    """What the next rank gave; ``queue.Empty`` if none comes, at once if all have ended."""
    deadline = time.monotonic() + GANG_SECONDS
    while time.monotonic() < deadline:
        running = any(worker.is_alive() for worker in workers)
        with contextlib.suppress(queue.Empty):
            return results.get(timeout=1.0)
        if not running:
            break
    raise queue.Empty


def _rank(
    probe: type[Any],
    rank: int,
    ranks: int,
    cases: Sequence[Mapping[str, Any]],
    fault: str,
    interface: str | None,
    devices: tuple[str, ...],
    addresses: Any,
    results: Any,
) -> None:
    listener = Listener()

    def publish(address: str) -> None:
        listener.published.append(address)
        for _ in range(ranks - 1):
            addresses.put(address)

    context = listener.context(
        rank=rank,
        ranks=ranks,
        interface=interface,
        devices=devices,
        publish=publish,
        wait=lambda: str(addresses.get(timeout=GANG_SECONDS)),
        deadline_seconds=2.0 if devices else 0.4,  # gloo spins; its speed is nobody's business
    )
    if not devices:  # as a worker does: ranks do not take each other's CPUs
        import torch

        torch.set_num_threads(context.binding.threads)
    if fault and rank == ranks - 1:
        _break(fault)
    outcomes: list[Any] = []
    given = {"ranks": ranks} if "ranks" in {f.name for f in fields(probe)} else {}
    for case in cases:
        made = probe(**{**given, **case})
        try:
            outcomes.append(to_json(measure(made, context)))
        except ProbeError as error:
            outcomes.append((type(error).__name__, error.code, error.text))
    told = (listener.notes, listener.warnings, listener.buffers, listener.published)
    results.put((rank, outcomes, told))


def _break(fault: str) -> None:
    """
    Break this rank.

    garbage, absent: its data is off by one, or zero. later: off by one once timing began.
    dies: the process ends in the midst of timing.
    """
    spread = patterns.spread
    refills = {kind: kind.refill for kind in (all_reduce.Buffers, collectives.Exchange)}
    armed = fault != "later"

    def wrong_spread(pattern: Any, buffer: Any) -> None:
        spread(pattern, buffer)
        if armed:
            buffer.mul_(0) if fault == "absent" else buffer.add_(1)

    def wrong_refill(self: Any, count: int) -> None:
        nonlocal armed
        armed = True
        if fault == "dies":
            os._exit(9)
        next(refill for kind, refill in refills.items() if isinstance(self, kind))(self, count)

    for kind in refills:
        kind.refill = wrong_refill  # type: ignore[method-assign]
    if fault != "dies":
        patterns.spread = wrong_spread
