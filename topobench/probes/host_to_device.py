"""
Copies between host memory and one GPU, by chunk size.

Two figures for a size: *queued*, where copies run back to back on the device's queue
and the hardware is the limit, and *per call*, where each copy is waited for, as a loader
does. Copies walk through pools larger than the caches, so no chunk is warm.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from topobench import stats
from topobench.errors import ProbeUnavailable, ResultInvalid
from topobench.probes import cuda
from topobench.probes.metrics import BANDWIDTH, PER_CALL_BANDWIDTH
from topobench.probes.protocol import Arms, Kind, WorkerContext, parameter
from topobench.probes.timing import (
    QUEUE_MAX,
    QueueTimer,
    Timed,
    batch_size,
    collect,
    wall,
)
from topobench.reading import Metric, Reading, ReasonCode

MIB, GIB = 1 << 20, 1 << 30
POOL_BYTES = 256 * MIB
BUDGET_SECONDS = 0.4
CHUNKS_MAX = 1 << 16
POISON = 0xA5


@dataclass(frozen=True, slots=True)
class HostToDevice:
    """Bandwidth of copies of one size between host memory and the worker's first GPU."""

    name: ClassVar[str] = "host_to_device"
    version: ClassVar[int] = 1
    summary: ClassVar[str] = "copies between host memory and a GPU, queued and per call"
    needs: ClassVar[frozenset[str]] = frozenset({"torch", "cuda"})
    metrics: ClassVar[tuple[Metric, ...]] = (BANDWIDTH, PER_CALL_BANDWIDTH)
    arms: ClassVar[Arms] = Arms.BINDINGS

    bytes: int = parameter(
        256 * MIB, kind=Kind.BYTES, minimum=1, maximum=4 * GIB, help="size of one copy"
    )
    direction: str = parameter(
        "h2d",
        kind=Kind.CHOICE,
        choices=("h2d", "d2h", "both"),
        help="to the device, from it, or both ways at once (bytes of both ways counted)",
    )
    memory: str = parameter(
        "pinned",
        kind=Kind.CHOICE,
        choices=("pinned", "pageable"),
        help="host memory; pageable copies block the host, so they have no queued figure",
    )

    def measure(self, context: WorkerContext) -> Iterator[Reading]:
        """
        Measure queued copies (pinned memory only), then single calls.

        Raises:
            ProbeUnavailable: The cell has no GPU, torch is not installed, or pageable
                memory was asked for both ways (such copies never overlap).
            ProbeError: ``torch_cannot_use_gpu``, ``oom``, ``cuda_error``.
            ResultInvalid: ``wrong_data``.
        """
        if self.memory == "pageable" and self.direction == "both":
            raise ProbeUnavailable(
                ReasonCode.UNSUPPORTED, "pageable copies block the host, so two never overlap"
            )
        torch = cuda.require_gpu(context)
        budget = min(BUDGET_SECONDS, context.deadline_seconds / 8)
        with cuda.errors_named():
            torch.cuda.set_device(0)
            copies = Copies.make(torch, self)
            for way in copies.ways:
                context.buffer_ready(way.host.data_ptr(), way.host.numel())
            copies.verify()
            moved = float(self.bytes * len(copies.ways))
            context.note("bytes_convention", f"{len(copies.ways)} x chunk, each copy once")
            queued = _queued(torch, copies, budget, context) if self.memory == "pinned" else None
            if queued:
                yield queued.rates(BANDWIDTH.name, moved)
            yield _per_call(torch, copies, budget).rates(PER_CALL_BANDWIDTH.name, moved)
            copies.check()

    def estimated_seconds(self) -> float:
        """Making, filling and checking the pools, beside the samples."""
        pools = max(POOL_BYTES, self.bytes) * (2 if self.direction == "both" else 1)
        sampling = BUDGET_SECONDS * (2 if self.memory == "pinned" else 1)
        return 0.2 + sampling + pools / GIB


@dataclass(frozen=True, slots=True)
class Way:
    """One direction: a pool of chunks in host memory and one on the device."""

    host: Any
    device: Any
    to_device: bool

    @classmethod
    def make(cls, torch: Any, size: int, *, to_device: bool, pinned: bool) -> Way:
        """Pools of ``size`` bytes, random in the source, every host page touched."""
        host = torch.empty(size, dtype=torch.uint8, pin_memory=pinned).fill_(POISON)
        device = torch.empty(size, dtype=torch.uint8, device="cuda:0").random_(0, 256)
        if to_device:
            host.copy_(device)
        return cls(host, device, to_device)

    @property
    def source(self) -> Any:
        """The pool that is read."""
        return self.host if self.to_device else self.device

    @property
    def target(self) -> Any:
        """The pool that is written."""
        return self.device if self.to_device else self.host


class Copies:
    """
    Walks the pools of one or two directions, chunk by chunk.

    Args:
        done: Chunks copied since the targets were poisoned.
    """

    def __init__(self, torch: Any, ways: list[Way], chunk: int) -> None:
        self.ways = ways
        self.chunk = chunk
        self.done = 0
        self._torch = torch
        self._side = torch.cuda.Stream() if len(ways) > 1 else None
        self._walks = [
            itertools.cycle(list(zip(w.target.split(chunk), w.source.split(chunk), strict=True)))
            for w in ways
        ]

    @classmethod
    def make(cls, torch: Any, probe: HostToDevice) -> Copies:
        """The copies that a probe's parameters describe."""
        chunks = min(CHUNKS_MAX, max(1, POOL_BYTES // probe.bytes))
        directions = ("h2d", "d2h") if probe.direction == "both" else (probe.direction,)
        ways = [
            Way.make(
                torch,
                chunks * probe.bytes,
                to_device=name == "h2d",
                pinned=probe.memory == "pinned",
            )
            for name in directions
        ]
        return cls(torch, ways, probe.bytes)

    @property
    def chunks(self) -> int:
        """Chunks in a pool."""
        return int(self.ways[0].host.numel()) // self.chunk

    def enqueue(self, count: int) -> None:
        """Enqueue the next ``count`` chunks of every direction; the directions overlap."""
        stream = self._torch.cuda.current_stream()
        if self._side:
            self._side.wait_stream(stream)
            with self._torch.cuda.stream(self._side):
                for target, source in itertools.islice(self._walks[1], count):
                    target.copy_(source, non_blocking=True)
        for target, source in itertools.islice(self._walks[0], count):
            target.copy_(source, non_blocking=True)
        if self._side:
            stream.wait_stream(self._side)
        self.done += count

    def verify(self) -> None:
        """Copy everything once and check it; leaves the targets poisoned for the timed copies."""
        self._poison()
        self.enqueue(self.chunks)
        self.check()
        self._poison()

    def check(self) -> None:
        """
        Compare every byte copied since the targets were poisoned.

        Raises:
            ResultInvalid: ``wrong_data``, with the number of wrong bytes.
        """
        self._torch.cuda.synchronize()
        covered = min(self.done, self.chunks) * self.chunk
        for way in self.ways:
            source, target = (x[:covered].cpu() for x in (way.source, way.target))
            if not self._torch.equal(source, target):
                wrong = int((source != target).sum())
                name = "host to device" if way.to_device else "device to host"
                raise ResultInvalid(
                    ReasonCode.WRONG_DATA, f"{wrong} of {covered} bytes are wrong, {name}"
                )

    def _poison(self) -> None:
        for way in self.ways:
            way.target.fill_(POISON)
        self._torch.cuda.synchronize()
        self.done = 0


def _queued(torch: Any, copies: Copies, budget: float, context: WorkerContext) -> Timed | None:
    timer = QueueTimer.fit(
        cuda.CudaQueue(torch), copies.enqueue, min(QUEUE_MAX, max(1, POOL_BYTES // copies.chunk))
    )
    if timer is None:
        context.note("queued", "not measured: enqueueing outlasted every spin")
        return None
    timed = collect(
        timer.sample,
        tolerance=stats.BANDWIDTH_TOLERANCE,
        budget_seconds=budget,
        operations=timer.count,
    )
    context.note("queued_operations", timer.count)
    context.note("queued_discarded", timer.discarded)
    return timed


def _per_call(torch: Any, copies: Copies, budget: float) -> Timed:
    stream = torch.cuda.current_stream()

    def call() -> None:
        copies.enqueue(1)
        stream.synchronize()

    count = batch_size(lambda n: wall(call, n))
    return collect(
        lambda: wall(call, count) / count,
        tolerance=stats.BANDWIDTH_TOLERANCE,
        budget_seconds=budget,
        operations=count,
    )
