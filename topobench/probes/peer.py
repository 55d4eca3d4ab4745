"""
Copies between GPUs of a host, read or written: one way, both ways at once, or all at once.

Whoever does the copy matters: a GPU reads from its peer, or writes to it. torch always has
the source write, so the driver is asked itself. Without peer access the driver brings the
bytes through host memory; that is what a pair gets whose wiring or settings forbid it.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from topobench import stats
from topobench.errors import ProbeError, ProbeUnavailable, ResultInvalid
from topobench.probes import cuda, so_far
from topobench.probes.driver import Driver
from topobench.probes.metrics import BANDWIDTH, LATENCY, PER_CALL_BANDWIDTH
from topobench.probes.protocol import Arms, Kind, WorkerContext, parameter
from topobench.probes.timing import (
    QUEUE_MAX,
    QueueTimer,
    Timed,
    batch_size,
    collect,
    note_queued,
    wall,
)
from topobench.reading import Metric, Reading, ReasonCode
from topobench.units import format_bytes

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
POOL_BYTES = 256 * MIB
BUDGET_SECONDS = 0.2
SAMPLE_BYTES = 2 * GIB
CHUNKS_MAX = 1 << 12
LATENCY_BYTES = 4 * KIB
"""Up to that size the time of a copy is told, too: it hardly depends on the size."""
POISON = 0xA5


@dataclass(frozen=True, slots=True)
class Peer:
    """Bandwidth of copies of one size from each GPU of the cell to the next."""

    name: ClassVar[str] = "peer"
    version: ClassVar[int] = 1
    summary: ClassVar[str] = "copies between two GPUs, read and written, one and both ways"
    needs: ClassVar[frozenset[str]] = frozenset({"torch", "cuda", "gpus>=2"})
    metrics: ClassVar[tuple[Metric, ...]] = (BANDWIDTH, PER_CALL_BANDWIDTH, LATENCY)
    arms: ClassVar[Arms] = Arms.PAIRS

    bytes: int = parameter(
        256 * MIB, kind=Kind.BYTES, minimum=16, maximum=4 * GIB, help="size of one copy"
    )
    op: str = parameter(
        "write",
        kind=Kind.CHOICE,
        choices=("read", "write"),
        help="the GPU that copies reads from its peer, or writes to it",
    )
    ways: str = parameter(
        "one",
        kind=Kind.CHOICE,
        choices=("one", "both", "all"),
        help="first to second GPU; both ways at once; or each GPU of the host to the next, all at "
        "once (the bytes of all ways counted)",
    )
    p2p: str = parameter(
        "on",
        kind=Kind.CHOICE,
        choices=("on", "off"),
        help="peer access, or through host memory as without it",
    )

    def measure(self, context: WorkerContext) -> Iterator[Reading]:
        """
        Measure queued copies; single calls where the driver does not let them be queued.

        Raises:
            ProbeUnavailable: No pair of GPUs, no torch, not enough memory, or no peer access.
            ProbeError: ``torch_cannot_use_gpu``, ``oom``, ``cuda_error``.
            ResultInvalid: ``wrong_data``: peer access can be granted and copy garbage.
        """
        torch = cuda.require_gpu(context)
        if len(context.devices) < 2 or (len(context.devices) > 2 and self.ways != "all"):
            raise ProbeUnavailable(ReasonCode.NEEDS_2_GPUS, "this cell has no pair of GPUs")
        indices = positions(torch, context.devices)
        with cuda.errors_named():
            self._require_memory(torch, indices)
            copies = Copies.make(torch, self, indices)
            copies.grant(on=self.p2p == "on")
            with torch.cuda.stream(copies.ways[0].stream):
                copies.verify()
                context.note("bytes_convention", f"{len(copies.ways)} x copy, each byte once")
                context.note("peer_access", self.p2p == "on")
                yield from self._readings(torch, copies, context)
                copies.check()

    def estimated_seconds(self) -> float:
        """Filling and checking the pools, beside the samples."""
        staged = 0.3 if self.p2p == "off" else 0.0
        return 0.2 + staged + 0.4 * pool_bytes(self.bytes) / GIB

    def _readings(self, torch: Any, copies: Copies, context: WorkerContext) -> Iterator[Reading]:
        budget = min(BUDGET_SECONDS, context.deadline_seconds / 8)
        with so_far.rates(BANDWIDTH.name, copies.moved):
            timed = _queued(torch, copies, context, budget)
        if timed is None:
            context.note("queued", "not measured: the driver blocks the host in such copies")
            with so_far.rates(PER_CALL_BANDWIDTH.name, copies.moved):
                called = _called(torch, copies, budget)
            yield called.rates(PER_CALL_BANDWIDTH.name, copies.moved)
            return
        yield timed.rates(BANDWIDTH.name, copies.moved)
        if self.bytes <= LATENCY_BYTES:
            yield timed.durations(LATENCY.name)

    def _require_memory(self, torch: Any, indices: Sequence[int]) -> None:
        asked = 2 * pool_bytes(self.bytes)
        torch.cuda.empty_cache()  # what an earlier case held is free again
        free = min(int(torch.cuda.mem_get_info(index)[0]) for index in indices)
        if asked > free:
            raise ProbeUnavailable(
                ReasonCode.NOT_ENOUGH_MEMORY,
                f"{format_bytes(asked)} of each device's memory asked for, "
                f"{format_bytes(free)} free",
            )


@dataclass(frozen=True, slots=True)
class End:
    """
    A GPU that copies.

    Args:
        index: torch's number of it.
        context: Handle of its context.
        pattern: The same random bytes on all ends, brought there through host memory.
        target: What a peer's pattern is copied to.
    """

    index: int
    context: int
    pattern: Any
    target: Any


@dataclass(frozen=True, slots=True)
class Way:
    """
    One direction.

    Args:
        stream: Of the device that does the copies. Not the default stream: copies between
            devices in that one wait for everything on both, so two ways would take turns.
    """

    source: End
    target: End
    stream: Any


class Copies:
    """
    Walks the pools of all ways, chunk by chunk.

    Args:
        done: Chunks copied since the targets were poisoned.
    """

    def __init__(self, torch: Any, driver: Driver, ways: Sequence[Way], chunk: int) -> None:
        self.ways = ways
        self.chunk = chunk
        self.done = 0
        self._torch = torch
        self._driver = driver
        self._walk = self._from_start()

    @classmethod
    def make(cls, torch: Any, probe: Peer, indices: Sequence[int]) -> Copies:
        """The copies that a probe's parameters describe."""
        driver, pattern = Driver(), random_bytes(pool_bytes(probe.bytes))
        ends = []
        for index in indices:
            with torch.cuda.device(index):
                own = pattern.to(f"cuda:{index}")
                ends.append(End(index, driver.current_context(), own, torch.empty_like(own)))
        pairs = list(zip(ends, [*ends[1:], ends[0]], strict=True))  # each to the next
        if probe.ways == "one":
            pairs = pairs[:1]
        engines = [(t if probe.op == "read" else s).index for s, t in pairs]
        ways = [
            Way(*pair, torch.cuda.Stream(engine))
            for pair, engine in zip(pairs, engines, strict=True)
        ]
        return cls(torch, driver, ways, probe.bytes)

    @property
    def chunks(self) -> int:
        """Chunks in a pool."""
        return len(self.ways[0].source.pattern) // self.chunk

    @property
    def moved(self) -> float:
        """Bytes that one operation moves: a chunk each way."""
        return float(self.chunk * len(self.ways))

    @property
    def ends(self) -> list[End]:
        """All GPUs that copy or are copied to."""
        return list({end.index: end for w in self.ways for end in (w.source, w.target)}.values())

    def grant(self, *, on: bool) -> None:
        """
        Let source and target of each way reach each other's memory, or no longer.

        Raises:
            ProbeUnavailable: ``unsupported``: the driver allows no peer access.
        """
        reached = {
            (own.index, peer.index): (own, peer)
            for way in self.ways
            for own, peer in ((way.source, way.target), (way.target, way.source))
        }
        for own, peer in reached.values():
            if on and not self._driver.can_access(own.index, peer.index):
                raise ProbeUnavailable(
                    ReasonCode.UNSUPPORTED, "the driver allows no peer access between these GPUs"
                )
            with self._torch.cuda.device(own.index):
                self._driver.set_access(peer.context, on=on)

    def enqueue(self, count: int) -> None:
        """Enqueue the next ``count`` chunks of every way; the ways overlap."""
        offsets = list(itertools.islice(self._walk, count))
        with contextlib.ExitStack() as stack:
            if len(self.ways) > 1:
                stack.enter_context(self._beside())
            for way in self.ways[::-1]:
                self._copy(way, offsets)
        self.done += count

    def verify(self) -> None:
        """Copy everything once and check it; leaves the targets poisoned for the timed copies."""
        self._poison()
        self.enqueue(self.chunks)
        self.check()
        self._poison()

    def check(self) -> None:
        """
        Compare every byte copied since the targets were poisoned, on the device it came to.

        Raises:
            ResultInvalid: ``wrong_data``, with the number of wrong bytes.
        """
        self.wait()
        covered = min(self.done, self.chunks) * self.chunk
        for way in self.ways:
            end = way.target
            if not self._torch.equal(end.target[:covered], end.pattern[:covered]):
                wrong = int((end.target[:covered] != end.pattern[:covered]).sum())
                raise ResultInvalid(
                    ReasonCode.WRONG_DATA,
                    f"{wrong} of {covered} bytes are wrong, copied from device "
                    f"{way.source.index} to {end.index}; peer access is granted and does not work",
                )

    def wait(self) -> None:
        """Block until all GPUs are idle."""
        for end in self.ends:
            self._torch.cuda.synchronize(end.index)

    @contextlib.contextmanager
    def _beside(self) -> Iterator[None]:
        """The other ways start with the first one's queue, which then waits for their end."""
        main, *sides = (way.stream for way in self.ways)
        for side in sides:
            side.wait_stream(main)
        yield
        for side in sides:
            main.wait_stream(side)

    def _copy(self, way: Way, offsets: Sequence[int]) -> None:
        source, target = way.source.pattern.data_ptr(), way.target.target.data_ptr()
        stream = way.stream.cuda_stream
        with self._torch.cuda.device(way.stream.device):
            for offset in offsets:
                self._driver.copy_peer(
                    (target + offset, way.target.context),
                    (source + offset, way.source.context),
                    self.chunk,
                    stream,
                )

    def _poison(self) -> None:
        for way in self.ways:
            way.target.target.fill_(POISON)
        self.wait()
        self._walk, self.done = self._from_start(), 0

    def _from_start(self) -> Iterator[int]:
        """Offsets of the chunks, again and again."""
        return itertools.cycle(range(0, len(self.ways[0].source.pattern), self.chunk))


def pool_bytes(chunk: int) -> int:
    """Bytes of the pool that chunks of one size walk through: beyond the caches if it can be."""
    return chunk * min(CHUNKS_MAX, max(1, POOL_BYTES // chunk))


@functools.lru_cache(maxsize=4)
def random_bytes(size: int) -> Any:
    """Random bytes in host memory; the same ones for all pairs of a worker."""
    import torch

    words = torch.empty(-(-size // 8), dtype=torch.int64).random_()
    return words.view(torch.uint8)[:size]


def positions(torch: Any, devices: Sequence[str]) -> list[int]:
    """
    The numbers by which torch knows GPUs.

    Raises:
        ProbeError: ``torch_cannot_use_gpu``: it does not see one of them.
    """
    seen = {
        _bare(str(torch.cuda.get_device_properties(index).uuid)): index
        for index in range(torch.cuda.device_count())
    }
    for device in devices:
        if _bare(device) not in seen:
            raise ProbeError(ReasonCode.TORCH_CANNOT_USE_GPU, f"torch does not see {device}")
    return [seen[_bare(device)] for device in devices]


def _bare(uuid: str) -> str:
    return uuid.lower().removeprefix("gpu-")


def _queued(torch: Any, copies: Copies, context: WorkerContext, budget: float) -> Timed | None:
    queue = cuda.CudaQueue(torch)
    count = min(QUEUE_MAX, max(1, SAMPLE_BYTES // copies.chunk))
    timer = QueueTimer.fit(queue, copies.enqueue, count)
    if timer is None:
        return None
    latency = copies.chunk <= LATENCY_BYTES
    timed = collect(
        timer.sample,
        tolerance=stats.LATENCY_TOLERANCE if latency else stats.BANDWIDTH_TOLERANCE,
        budget_seconds=budget,
        operations=timer.count,
    )
    note_queued(context, queue, operations=timer.count, discarded=timer.discarded)
    return timed


def _called(torch: Any, copies: Copies, budget: float) -> Timed:
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
