"""
What collectives share: meeting, agreeing, and timing the same operations on every rank.

Rank 0 decides how many operations come next and tells the others; every rank times its
own part; rank 0 takes the slowest of each. torch is imported inside functions only.
"""

from __future__ import annotations

import atexit
import contextlib
import datetime
import functools
import ipaddress
import math
import os
import re
import socket
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from topobench.errors import ProbeError, ProbeUnavailable
from topobench.probes import cuda, reach
from topobench.probes.protocol import WorkerContext
from topobench.probes.timing import (
    QUEUE_MAX,
    RETRIES,
    SAMPLE_SECONDS,
    SPIN_MAX_SECONDS,
    SPIN_MIN_SECONDS,
    Enqueue,
    Sampler,
    Timed,
    batch_size,
    behind_spin,
    wall,
)
from topobench.reading import ReasonCode

TIMEOUT_SECONDS = 60.0
LEAD = 2
"""Untimed operations before the timed ones, once the ranks have met."""
MARKED_SECONDS = 1e-3
"""Of a sample of small operations between two marks of a GPU, which cost 3 us by themselves."""
ROUND_SAMPLES = 10
"""Samples between two decisions of rank 0."""
_STOP, _GIVE_UP = 0, -1
# NCCL names a lost peer a remote error; every other error of NCCL is of this device.
_DEVICE_WORDS = re.compile(r"cuda error|nccl error(?!.*remote)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Group:
    """The ranks of a gang, joined by torch.distributed."""

    rank: int
    ranks: int
    backend: str
    device: Any

    def agree(self, values: Sequence[int]) -> list[int]:
        """The values of rank 0, on every rank."""
        import torch
        import torch.distributed as dist

        told = torch.tensor(list(values), dtype=torch.int64, device=self.device)
        dist.broadcast(told, src=0)
        return [int(v) for v in told.tolist()]

    def meet(self) -> None:
        """
        Wait for all ranks: gloo's ranks do, NCCL's GPUs will when their queues get there.

        Needed before anything is timed. Operations of the collective itself would not do: the
        root of a broadcast runs ahead of the others until buffers are full, then its time is
        theirs.
        """
        import torch
        import torch.distributed as dist

        dist.all_reduce(torch.zeros(1, device=self.device))

    def gather(self, values: Sequence[float]) -> list[list[float]]:
        """The values of every rank, by rank, on every rank; all give equally many."""
        import torch
        import torch.distributed as dist

        own = torch.tensor(list(values), dtype=torch.float64, device=self.device)
        rows = [torch.empty_like(own) for _ in range(self.ranks)]
        dist.all_gather(rows, own)
        return [[float(v) for v in row.tolist()] for row in rows]

    def require_memory(self, own_bytes: int, available: int) -> None:
        """
        Refuse, on all ranks alike, what would not fit beside the ranks of the same memory.

        Args:
            own_bytes: What this rank is about to allocate.
            available: Free memory of its GPU or host.

        Raises:
            ProbeError: ``not_enough_memory``.
        """
        boot = Path("/proc/sys/kernel/random/boot_id").read_bytes()
        memory = self.rank if self.device.type == "cuda" else zlib.crc32(boot)
        rows = self.gather([memory, own_bytes, available])
        for memory_id, _, room in rows:
            needed = sum(row[1] for row in rows if row[0] == memory_id)
            if needed > 0.8 * room:
                raise ProbeError(
                    ReasonCode.NOT_ENOUGH_MEMORY,
                    f"the ranks of one memory need {needed:.0f} bytes; {room:.0f} are free",
                )


@dataclass
class _Joined:
    group: Group
    store: Any  # rank 0 serves the meeting point for as long as this lives
    broken: str | None = None


_joined: _Joined | None = None


def join(context: WorkerContext, backend: str = "auto") -> Group:
    """
    Meet the other ranks; the cells of one worker keep one group.

    Args:
        backend: ``gloo``, ``nccl``, or ``auto``: nccl if the cell has GPUs.

    Raises:
        ProbeUnavailable: torch has no such backend, or nccl was asked for without a GPU.
        ProbeError: ``rank_lost``: the others did not come, or were lost in an earlier cell.
    """
    global _joined  # a process can be in one default group only
    chosen = ("nccl" if context.devices else "gloo") if backend == "auto" else backend
    if _joined is None:
        device = _device(context, chosen)
        with errors_named():
            _joined = _meet(context, chosen, device)
        atexit.register(_leave)
    group = _joined.group
    if _joined.broken:
        raise ProbeError(ReasonCode.RANK_LOST, f"lost in an earlier cell: {_joined.broken}")
    if (group.rank, group.ranks, group.backend) != (context.rank, context.ranks, chosen):
        raise ProbeError(
            ReasonCode.INTERNAL,
            f"this worker is rank {group.rank} of {group.ranks} over {group.backend}; a cell of "
            f"rank {context.rank} of {context.ranks} over {chosen} needs another worker",
        )
    return group


@contextlib.contextmanager
def errors_named() -> Iterator[None]:
    """
    Turn what torch.distributed raises into ours; the group is unusable afterwards.

    Raises:
        ProbeError: ``rank_lost``, ``oom`` or ``cuda_error``.
    """
    try:
        with cuda.errors_named():
            yield
    except ProbeError as error:
        cause = error.__cause__
        if isinstance(cause, RuntimeError) and _joined:
            _joined.broken = error.text
        if error.code == ReasonCode.CUDA_ERROR and not _DEVICE_WORDS.search(error.text):
            raise ProbeError(ReasonCode.RANK_LOST, _plain(error.text)) from cause
        raise


def _plain(text: str) -> str:
    """A message of gloo without its source position and its advice."""
    return re.sub(r"^\[(?:enforce fail at )?\S+:\d+\] ", "", text).partition(". This is typically")[
        0
    ]


def local_address(interface: str | None) -> str:
    """
    The address to meet at: of a named interface, or loopback when all ranks share this host.

    Raises:
        ProbeError: ``unsupported``: the interface has no address here.
    """
    if interface is None:
        return "127.0.0.1"
    found = dict(_addresses(interface))
    for family in (socket.AF_INET, socket.AF_INET6):
        if family in found:
            return found[family]
    known = ", ".join(name for name in _interfaces() if _addresses(name))
    text = (
        f"interface {interface!r} has no address on this host; those that have: {known or 'none'}"
    )
    raise ProbeError(ReasonCode.UNSUPPORTED, text)


def interface_towards(address: str, port: int) -> str | None:
    """Name of the interface by which packets to an address leave; None if there is no route."""
    family = socket.AF_INET6 if ipaddress.ip_address(address).version == 6 else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((address, port))  # sends nothing
            own = probe.getsockname()[0]
    except OSError:
        return None
    return next((name for name in _interfaces() if (family, own) in _addresses(name)), None)


def _interfaces() -> list[str]:
    return [name for _, name in socket.if_nameindex()]


def _addresses(interface: str) -> list[tuple[int, str]]:
    import psutil

    entries = psutil.net_if_addrs().get(interface, [])
    families = (socket.AF_INET, socket.AF_INET6)
    found = [(e.family, e.address.partition("%")[0]) for e in entries if e.family in families]
    # A link-local address means nothing to other hosts.
    return [(f, a) for f, a in found if f == socket.AF_INET or not _is_link_local(a)]


def _is_link_local(address: str) -> bool:
    return ipaddress.ip_address(address).is_link_local


def _device(context: WorkerContext, backend: str) -> Any:
    torch = cuda.require_torch()
    import torch.distributed as dist

    if not dist.is_available():
        raise ProbeUnavailable(ReasonCode.NO_PACKAGE, "this torch has no torch.distributed")
    if backend == "gloo":
        return torch.device("cpu")
    cuda.require_gpu(context)
    if not dist.is_nccl_available():
        raise ProbeUnavailable(ReasonCode.NO_PACKAGE, "this torch was built without NCCL")
    # A worker sees its own GPU alone, or all of its gang's on this host.
    device = torch.device("cuda", context.local_rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def _meet(context: WorkerContext, backend: str, device: Any) -> _Joined:
    import torch.distributed as dist

    timeout = datetime.timedelta(seconds=TIMEOUT_SECONDS)
    named = _named(backend)
    if context.rank == 0:
        host = own = local_address(context.interface)
        interface = context.interface or "lo"
        store = _serve(own, context, timeout)
    else:
        host, _, text = context.wait().rpartition(":")
        host, port = host.strip("[]"), int(text)
        interface = context.interface or interface_towards(host, port) or "lo"
        own = local_address(named or interface)
        reach.require(context.rank, own, 0, host, port)
        store = dist.TCPStore(host, port, context.ranks, False, timeout)
    elsewhere = _elsewhere(backend, interface)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
    if interface != "lo":
        os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={interface}")
    if not ipaddress.ip_address(host).is_loopback:
        reach.require_both_ways(store, context.rank, context.ranks, own, elsewhere=elsewhere)
    dist.init_process_group(
        backend,
        store=store,
        rank=context.rank,
        world_size=context.ranks,
        timeout=timeout,
        device_id=device if backend == "nccl" else None,
    )
    return _Joined(Group(context.rank, context.ranks, backend, device), store)


def _named(backend: str) -> str | None:
    """
    The first interface that the site names for gloo; None for another backend.

    Raises:
        ProbeError: ``unsupported``: one has no address; gloo would tell its own source position.
    """
    names = os.environ.get("GLOO_SOCKET_IFNAME") if backend == "gloo" else None
    found = names.split(",") if names else []
    for name in found:
        local_address(name)
    return next(iter(found), None)


def _elsewhere(backend: str, interface: str) -> bool:
    """Whether the site gives NCCL other interfaces than the one on which ranks meet."""
    named = os.environ.get("NCCL_SOCKET_IFNAME", "") if backend == "nccl" else ""
    return named.removeprefix("=") not in ("", interface)


def _serve(address: str, context: WorkerContext, timeout: datetime.timedelta) -> Any:
    """
    Rank 0's store, listening on one address only (torch's own would listen on all).

    Raises:
        ProbeError: ``unsupported``: it cannot listen there.
    """
    import torch.distributed as dist

    v6 = ":" in address
    try:
        listener = socket.socket(socket.AF_INET6 if v6 else socket.AF_INET)
        listener.bind((address, 0))
        listener.listen(max(128, context.ranks))
    except OSError as error:
        text = f"rank 0 cannot listen on {address}: {error.strerror}"
        raise ProbeError(ReasonCode.UNSUPPORTED, text) from error
    port = listener.getsockname()[1]
    store = dist.TCPStore(
        address,
        port,
        context.ranks,
        True,
        timeout,
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
        use_libuv=False,  # older torch refuses a ready socket with libuv
    )
    context.publish(f"[{address}]:{port}" if v6 else f"{address}:{port}")
    return store


def _leave() -> None:
    import torch.distributed as dist

    if _joined and not _joined.broken and dist.is_initialized():
        dist.destroy_process_group()


class Operation(Protocol):
    """A collective with its buffers, the same on every rank."""

    def refill(self, count: int) -> None:
        """Renew the data that the next ``count`` operations start from; untimed."""
        ...

    def enqueue(self, count: int) -> None:
        """Run ``count`` operations (gloo) or enqueue them (nccl)."""
        ...


@dataclass(frozen=True, slots=True)
class GangTimes:
    """
    What timing a gang gave.

    Args:
        slowest: For every sample the time of its slowest rank.
        by_rank: Each rank's own times, by rank.
        discarded: Samples in which a rank's spin ended early.
    """

    slowest: Timed
    by_rank: tuple[Timed, ...]
    discarded: int


class Rounds:
    """
    Times one operation on all ranks, in rounds that rank 0 calls.

    Args:
        count: Operations of a sample; None: as many as fill a timed part.
        round_max: Operations that may follow one refill (values grow with each).
        mode: Of NCCL: ``queued`` behind a spin, ``graph`` the same as replays of a CUDA graph,
            ``per_call`` by the host's clock from each call until its GPU is done.
        lead: Untimed operations before the timed ones.
    """

    def __init__(
        self,
        group: Group,
        operation: Operation,
        *,
        count: int | None,
        round_max: int,
        mode: str = "queued",
        lead: int = LEAD,
    ) -> None:
        self._group = group
        self._operation = operation
        self._wanted = count
        self._round_max = round_max
        self._lead_count = lead
        self._samples = _samples(group, mode, round_max, lead)
        self.discarded = 0
        self._fruitless = 0

    def measure(self, sampler: Sampler) -> GangTimes | None:
        """
        Time until ``sampler`` is content; None on every rank but 0.

        Raises:
            ProbeError: ``untimeable``, on every rank.
        """
        if self._group.rank:
            self._follow()
            return None
        try:
            return self._lead(sampler)
        except ProbeError:
            self._group.agree([_GIVE_UP, 0])
            raise

    def _follow(self) -> None:
        while True:
            count, samples = self._group.agree([0, 0])
            if count == _STOP:
                return
            if count == _GIVE_UP:
                raise ProbeError(ReasonCode.UNTIMEABLE, "rank 0 could not time this operation")
            self._round(count, samples)

    def _lead(self, sampler: Sampler) -> GangTimes:
        count = self._fit()
        rows: list[list[float]] = [[] for _ in range(self._group.ranks)]
        while not sampler.done():
            for column in self._call(count, self._samples_a_round(count, sampler)):
                sampler.add(max(column))
                for row, value in zip(rows, column, strict=True):
                    row.append(value)
                if sampler.done():
                    break
        self._group.agree([_STOP, 0])
        slowest = sampler.timed(count)
        by_rank = (replace(slowest, samples=sampler.arranged(r)) for r in rows)
        return GangTimes(slowest, tuple(by_rank), self.discarded)

    def _samples_a_round(self, count: int, sampler: Sampler) -> int:
        taken = [*sampler.warm, *sampler.counted]
        if not taken:
            return 1
        in_time = int(sampler.budget_seconds / 8 / (count * taken[-1]))
        return max(1, min(ROUND_SAMPLES, in_time, (self._round_max - self._lead_count) // count))

    def _fit(self) -> int:
        """Operations in a sample, all of which a spin can outlast."""
        count = self._wanted or self._filling()
        while count > 1 and not self._call(count, 3):
            count //= 2
        return count

    def _filling(self) -> int:
        """Operations that fill a timed part."""

        def timed(count: int) -> float:
            columns = self._call(count, 3)
            return count * max(columns[-1]) if columns else math.inf

        most = max(1, min(QUEUE_MAX, self._round_max - self._lead_count))
        marked = self._group.backend == "nccl"
        return batch_size(timed, most=most, seconds=MARKED_SECONDS if marked else SAMPLE_SECONDS)

    def _call(self, count: int, samples: int) -> list[tuple[float, ...]]:
        """Call a round; the valid samples, each with every rank's seconds per operation."""
        self._group.agree([count, samples])
        columns = list(zip(*self._round(count, samples), strict=True))
        valid = [c for c in columns if not any(map(math.isnan, c))]
        self.discarded += len(columns) - len(valid)
        self._fruitless = 0 if valid else self._fruitless + 1
        if self._fruitless > 2 * RETRIES:
            raise ProbeError(
                ReasonCode.UNTIMEABLE,
                f"no spin of up to {SPIN_MAX_SECONDS * 1e3:.0f} ms outlasts enqueueing {count} "
                "operations on every rank",
            )
        return valid

    def _round(self, count: int, samples: int) -> list[list[float]]:
        self._operation.refill(self._lead_count + count * samples)
        return self._group.gather(self._samples(self._operation, count, samples))


Samples = Callable[[Operation, int, int], list[float]]
"""(operation, operations in a sample, samples) -> seconds per operation; NaN: not outlasted."""


def _samples(group: Group, mode: str, round_max: int, lead: int) -> Samples:
    """How samples are taken on every rank."""
    if group.backend != "nccl":  # its calls come back when they are done
        return functools.partial(_wall_samples, group, _back_to_back, lead)
    if mode == "per_call":
        return functools.partial(_wall_samples, group, _one_by_one, lead)
    return _queued_samples(group, round_max if mode == "graph" else None, lead)


def _wall_samples(
    group: Group,
    call: Callable[[Operation, int], None],
    lead: int,
    operation: Operation,
    count: int,
    samples: int,
) -> list[float]:
    """By the host's clock, from the first call until the last is done."""

    def sample() -> float:
        group.meet()
        return wall(lambda: call(operation, count)) / count

    call(operation, lead)
    return [sample() for _ in range(samples)]


def _back_to_back(operation: Operation, count: int) -> None:
    operation.enqueue(count)


def _one_by_one(operation: Operation, count: int) -> None:
    """Wait for the device after each operation."""
    import torch

    for _ in range(count):
        operation.enqueue(1)
        torch.cuda.synchronize()


def _queued_samples(group: Group, graph_buffers: int | None, led: int) -> Samples:
    """
    Each sample behind a spin, by the device's clock.

    Args:
        graph_buffers: Operations are replayed as a graph; buffers that it may walk through.
        led: Untimed operations before the timed ones.
    """
    import torch

    queue = cuda.CudaQueue(torch)
    spins: dict[int, float] = {}
    graphs: dict[int, Enqueue] = {}

    def samples_of(operation: Operation, count: int, samples: int) -> list[float]:
        enqueue: Enqueue = operation.enqueue
        if graph_buffers is not None:
            if count not in graphs:
                operation.refill(graph_buffers)
                graphs[count] = _once(cuda.captured(torch, operation.enqueue, count))
            enqueue = graphs[count]

        def lead() -> None:
            group.meet()
            if graph_buffers is not None:  # every replay starts from new data
                operation.refill(graph_buffers)
            operation.enqueue(led)

        def unhidden() -> None:
            lead()
            enqueue(count)

        if count not in spins:
            unhidden()  # loads kernels and connects
            queue.wait()
            enqueueing = wall(unhidden)
            queue.wait()
            spins[count] = max(SPIN_MIN_SECONDS, 3 * enqueueing)
        times = []
        for _ in range(samples):
            spin = min(spins[count], SPIN_MAX_SECONDS)
            took = behind_spin(queue, enqueue, count, spin_seconds=spin, lead=lead)
            if took is None:
                spins[count] = 2 * spin
            times.append(math.nan if took is None else took / count)
        return times

    return samples_of


def _once(replay: Enqueue) -> Enqueue:
    """A graph of all operations of a sample, whose number was fixed when it was made."""
    return lambda _: replay(1)
