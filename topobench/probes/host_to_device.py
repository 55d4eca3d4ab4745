"""
Copies between host memory and GPUs, by chunk size.

Two figures for a size: *queued*, where copies run back to back on the device's queue
and the hardware is the limit, and *per call*, where each copy is waited for, as a loader
does. Copies walk through pools larger than the caches, so no chunk is warm. One GPU is
measured alone, or all GPUs of a host at once, each by a worker of its own.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from topobench import stats
from topobench.errors import ProbeError, ProbeUnavailable, ResultInvalid
from topobench.probes import at_once, collective, cuda, so_far
from topobench.probes.host_memory import available_bytes
from topobench.probes.metrics import BANDWIDTH, PER_CALL_BANDWIDTH
from topobench.probes.protocol import Arms, Kind, WorkerContext, one_or_all, parameter
from topobench.probes.timing import (
    QUEUE_MAX,
    QueueTimer,
    Sampler,
    Timed,
    batch_size,
    collect,
    note_queued,
    wall,
)
from topobench.reading import Metric, Reading, ReasonCode
from topobench.units import format_bytes

MIB, GIB = 1 << 20, 1 << 30
POOL_BYTES = 256 * MIB
BUDGET_SECONDS = 0.4
CHUNKS_MAX = 1 << 16
REFUSED_SECONDS = 0.02
POISON = 0xA5
LARGE_BYTES = 64 * MIB
"""A segment of a lap is long enough with one such chunk, and four segments are enough."""


@dataclass(frozen=True, slots=True)
class HostToDevice:
    """Bandwidth of copies of one size between host memory and the GPU of each worker."""

    name: ClassVar[str] = "host_to_device"
    version: ClassVar[int] = 1
    summary: ClassVar[str] = "copies between host memory and GPUs, queued and per call"
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
    at_once: str = one_or_all()

    def measure(self, context: WorkerContext) -> Iterator[Reading]:
        """
        Measure queued copies (pinned memory only), then single calls.

        In a gang rank 0 yields the sum of all ranks, and each rank's own at the point
        ``rank`` and ``device``.

        Raises:
            ProbeUnavailable: The cell has no GPU, torch is not installed, the memory does not
                suffice, or pageable memory was asked for both ways (such copies never overlap).
            ProbeError: ``torch_cannot_use_gpu``, ``oom``, ``cuda_error``, ``rank_lost``.
            ResultInvalid: ``wrong_data``, on every rank.
        """
        if self._never_overlaps:
            raise ProbeUnavailable(
                ReasonCode.UNSUPPORTED, "pageable copies block the host, so two never overlap"
            )
        torch = cuda.require_gpu(context)
        group = collective.join(context, "gloo") if context.ranks > 1 else None
        with collective.errors_named() if group else cuda.errors_named():
            torch.cuda.set_device(context.rank % torch.cuda.device_count())
            copies = self._prepare(torch, context, group)
            if group:
                readings = _gang(torch, copies, context, group, queued=self.memory == "pinned")
            else:
                readings = _alone(torch, copies, context, queued=self.memory == "pinned")
            yield from readings
            at_once.on_all(group, copies.check)

    def _prepare(
        self, torch: Any, context: WorkerContext, group: collective.Group | None
    ) -> Copies:
        """Pools that are filled, proven to be copied right, and poisoned again."""
        self._require_memory(torch, group)
        copies = _allocate(torch, self)
        for way in copies.ways:
            context.buffer_ready(way.host.data_ptr(), way.host.numel())
        at_once.on_all(group, copies.verify)
        context.note("bytes_convention", f"{len(copies.ways)} x chunk, each copy once")
        return copies

    def _require_memory(self, torch: Any, group: collective.Group | None) -> None:
        """Refuse, on all ranks alike, pools that would not fit."""
        torch.cuda.empty_cache()  # what an earlier size held is free again
        pools = pool_bytes(self)
        own = [float(pools), float(torch.cuda.mem_get_info()[0]), float(available_bytes())]
        rows = group.gather(own) if group else [own]
        host, device = (min(row[i] for row in rows) for i in (2, 1))
        # On the device lie the pools and, to compare with, as much again.
        for what, asked, free in (("host", pools * len(rows), host), ("device", 2 * pools, device)):
            if asked > free:
                raise ProbeUnavailable(
                    ReasonCode.NOT_ENOUGH_MEMORY,
                    f"{format_bytes(asked)} of {what} memory asked for, {format_bytes(free)} free",
                )

    def estimated_seconds(self) -> float:
        """As an H200 behind PCIe 5 took: pools and their checks, then samples of each figure."""
        if self._never_overlaps:
            return REFUSED_SECONDS
        size, pools = self.bytes / GIB, pool_bytes(self) / GIB
        figures = 2 if self.memory == "pinned" else 1
        if self.at_once == "all":
            return 0.1 + figures * (0.3 + 0.1 * size) + 0.6 * pools
        slow = 0.0 if self.memory == "pinned" else 1.0 * size
        return 0.05 + figures * 0.15 + slow + 0.4 * pools

    @property
    def _never_overlaps(self) -> bool:
        return self.memory == "pageable" and self.direction == "both"


def pool_bytes(probe: HostToDevice) -> int:
    """Bytes of the pools in host memory; as many lie on the device."""
    ways = 2 if probe.direction == "both" else 1
    return ways * probe.bytes * min(CHUNKS_MAX, max(1, POOL_BYTES // probe.bytes))


def _allocate(torch: Any, probe: HostToDevice) -> Copies:
    """
    The pools of a probe.

    Raises:
        ProbeUnavailable: ``not_enough_memory``, though there seemed to be enough.
    """
    try:
        with cuda.errors_named():
            return Copies.make(torch, probe)
    except ProbeError as error:
        if error.code != ReasonCode.OOM:
            raise
        asked, free = format_bytes(pool_bytes(probe)), format_bytes(torch.cuda.mem_get_info()[0])
        raise ProbeUnavailable(
            ReasonCode.NOT_ENOUGH_MEMORY,
            f"{asked} of host and of device memory asked for, {free} free on the device: "
            f"{error.text}",
        ) from error


@dataclass(frozen=True, slots=True)
class Way:
    """
    One direction: a pool of chunks in host memory and one on the device.

    Args:
        original: The random bytes as they were made, on the device, where comparing is fast.
    """

    host: Any
    device: Any
    to_device: bool
    original: Any

    @classmethod
    def make(cls, torch: Any, size: int, *, to_device: bool, pinned: bool) -> Way:
        """Pools of ``size`` bytes, the target poisoned, every host page touched."""
        host = torch.empty(size, dtype=torch.uint8, pin_memory=pinned)
        original = torch.empty(size, dtype=torch.uint8, device="cuda").random_(0, 256)
        if to_device:
            host.copy_(original)
            return cls(host, torch.full_like(original, POISON), True, original)
        return cls(host.fill_(POISON), original, False, original)

    def arrived(self, count: int) -> Any:
        """The first bytes of the target, on the device."""
        target = self.target[:count]
        return target if self.to_device else target.to(self.device.device)

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
        directions = ("h2d", "d2h") if probe.direction == "both" else (probe.direction,)
        ways = [
            Way.make(
                torch,
                pool_bytes(probe) // len(directions),
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

    @property
    def moved(self) -> float:
        """Bytes that one operation moves: a chunk in every direction."""
        return float(self.chunk * len(self.ways))

    def caller(self, torch: Any) -> Callable[[], None]:
        """Copies the next chunk of every direction and waits for it."""
        stream = torch.cuda.current_stream()

        def call() -> None:
            self.enqueue(1)
            stream.synchronize()

        return call

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
            arrived, original = way.arrived(covered), way.original[:covered]
            if not self._torch.equal(arrived, original):
                wrong = int((arrived != original).sum())
                name = "host to device" if way.to_device else "device to host"
                raise ResultInvalid(
                    ReasonCode.WRONG_DATA, f"{wrong} of {covered} bytes are wrong, {name}"
                )

    def _poison(self) -> None:
        for way in self.ways:
            way.target.fill_(POISON)
        self._torch.cuda.synchronize()
        self.done = 0


def _alone(
    torch: Any, copies: Copies, context: WorkerContext, *, queued: bool
) -> Iterator[Reading]:
    budget = min(BUDGET_SECONDS, context.deadline_seconds / 8)
    if queued:
        with so_far.rates(BANDWIDTH.name, copies.moved):
            timed = _queued(torch, copies, budget, context)
        if timed is not None:
            yield timed.rates(BANDWIDTH.name, copies.moved)
    with so_far.rates(PER_CALL_BANDWIDTH.name, copies.moved):
        called = _per_call(torch, copies, budget)
    yield called.rates(PER_CALL_BANDWIDTH.name, copies.moved)


def _queued(torch: Any, copies: Copies, budget: float, context: WorkerContext) -> Timed | None:
    queue = cuda.CudaQueue(torch)
    timer = QueueTimer.fit(
        queue, copies.enqueue, min(QUEUE_MAX, max(1, POOL_BYTES // copies.chunk))
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
    note_queued(context, queue, operations=timer.count, discarded=timer.discarded)
    return timed


def _per_call(torch: Any, copies: Copies, budget: float) -> Timed:
    call = copies.caller(torch)
    count = batch_size(lambda n: wall(call, n))
    return collect(
        lambda: wall(call, count) / count,
        tolerance=stats.BANDWIDTH_TOLERANCE,
        budget_seconds=budget,
        operations=count,
    )


def _gang(
    torch: Any, copies: Copies, context: WorkerContext, group: collective.Group, *, queued: bool
) -> Iterator[Reading]:
    """The same figures on all ranks at once."""
    segments = 4 if copies.chunk >= LARGE_BYTES else 8
    if queued:
        queue = cuda.CudaQueue(torch)
        count = max(1, min(QUEUE_MAX, POOL_BYTES // copies.chunk) // segments)
        found = at_once.race(
            group,
            at_once.queued_lap(queue, copies.enqueue, count, segments),
            _sampler(context, BANDWIDTH.name, copies.moved),
            operations=count,
            lead_seconds=3 * at_once.enqueueing_seconds(queue, copies.enqueue, count * segments),
        )
        if found is None:
            context.note("queued", "not measured: enqueueing outlasted every spin")
        else:
            note_queued(context, queue, operations=count * segments, discarded=found.discarded)
            yield from _by_rank(found, BANDWIDTH.name, copies.moved, context)
    call = copies.caller(torch)
    took = wall(call, 4) / 4
    slowest = max(row[0] for row in group.gather([took]))
    count = max(1, math.ceil(at_once.SEGMENT_SECONDS / slowest))
    sampler = _sampler(context, PER_CALL_BANDWIDTH.name, copies.moved)
    lap = at_once.call_lap(call, count, segments)
    calls = at_once.race(group, lap, sampler, operations=count)
    if calls is not None:
        yield from _by_rank(calls, PER_CALL_BANDWIDTH.name, copies.moved, context)


def _sampler(context: WorkerContext, metric: str, moved: float) -> Sampler:
    budget = min(BUDGET_SECONDS, context.deadline_seconds / 8)
    with so_far.rates(metric, moved):
        return Sampler(stats.BANDWIDTH_TOLERANCE, budget)


def _by_rank(
    race: at_once.Race, metric: str, amount: float, context: WorkerContext
) -> Iterator[Reading]:
    if context.rank == 0 and (warning := race.warning()):
        context.warn(warning)
    yield race.total.rates(metric, amount)
    for rank, (timed, device) in enumerate(zip(race.by_rank, context.devices, strict=True)):
        yield timed.rates(metric, amount, point={"rank": rank, "device": device})
