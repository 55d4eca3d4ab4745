"""
Host memory: copy and triad bandwidth, and the latency of dependent loads.

One engine for each operation, the same on every host, so that figures compare: numpy's
copy and torch's fused multiply-add, one call a thread and pass, which let all threads
run at once (benchmarks/versus_peers.py holds them against STREAM's loops in C). Latency
needs compiled code: numba.
"""

from __future__ import annotations

import contextlib
import functools
import mmap
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from topobench import stats
from topobench.errors import ProbeError, ProbeUnavailable, ResultInvalid
from topobench.probes import cuda, so_far
from topobench.probes.metrics import BANDWIDTH, LATENCY
from topobench.probes.protocol import Arms, Kind, WorkerContext, parameter
from topobench.probes.timing import collect
from topobench.reading import Metric, Reading, ReasonCode
from topobench.units import parse_cpu_list

MIB = 1 << 20
SMALLEST_BYTES = 256 * MIB
BUDGET_SECONDS = 1.0
STREAMS = {"copy": 2, "triad": 3}
"""Arrays that an operation moves, each counted once, as STREAM counts."""
FIRST_USES = {"triad": {"torch": 2.0}, "latency": {"numba": 0.6}}
"""Seconds to load the module of an operation, and to compile what it needs."""
SCALAR = 3.0
LARGEST = 2.0**50
"""Sources hold whole numbers below this: every sum is exact, fused or not."""
CHECK_BLOCK = 1 << 15
LINE_BYTES = 64
CHASE_STEPS = 1 << 14


@dataclass(frozen=True, slots=True)
class HostMemory:
    """Bandwidth or latency between the CPUs of one NUMA node and the memory of another."""

    name: ClassVar[str] = "host_memory"
    version: ClassVar[int] = 1
    summary: ClassVar[str] = "memory bandwidth and latency, NUMA node x NUMA node"
    needs: ClassVar[frozenset[str]] = frozenset()
    metrics: ClassVar[tuple[Metric, ...]] = (BANDWIDTH, LATENCY)
    arms: ClassVar[Arms] = Arms.NUMA_MATRIX

    op: str = parameter(
        "copy",
        kind=Kind.CHOICE,
        choices=("copy", "triad", "latency"),
        help="copy (b = a), triad (a = b + 3c), or latency (dependent loads; needs numba)",
    )
    bytes: int | None = parameter(
        None,
        kind=Kind.BYTES,
        minimum=MIB,
        help="size of each array; None is 4 x the caches the threads reach, at least 256 MiB",
    )
    cpu_node: int | None = parameter(
        None, minimum=0, help="NUMA node of the CPUs, set by the planner; None is unbound"
    )
    memory_node: int | None = parameter(
        None, minimum=0, help="NUMA node of the memory, set by the planner; None is unbound"
    )

    def measure(self, context: WorkerContext) -> Iterator[Reading]:
        """
        Measure this operation in the threads of the binding.

        Raises:
            ProbeUnavailable: ``no_package`` (latency without numba).
            ProbeError: ``not_enough_memory``.
            ResultInvalid: ``wrong_data``.
        """
        arrays = STREAMS.get(self.op, 2)
        size = array_bytes(self.bytes, threads=context.binding.threads, arrays=arrays)
        context.note("array_bytes", size)
        budget = min(BUDGET_SECONDS, context.deadline_seconds / 4)
        if self.op == "latency":
            yield _latency(size, context, budget)
        else:
            yield _bandwidth(self.op, size, context, budget)

    def estimated_seconds(self) -> float:
        """Samples, and half a second for each 256 MiB to fill and check the arrays."""
        arrays = (self.bytes or SMALLEST_BYTES) / SMALLEST_BYTES
        return BUDGET_SECONDS + 0.15 + arrays / 2

    def first_uses(self) -> Mapping[str, float]:
        """The module that an operation needs."""
        return FIRST_USES.get(self.op, {})


def array_bytes(wanted: int | None, *, threads: int, arrays: int) -> int:
    """
    Bytes of each array: a multiple of a page for every thread.

    Raises:
        ProbeError: ``not_enough_memory``: the arrays would not fit into half of what is
            available, or a default cut to fit would not exceed the caches.
    """
    caches = reachable_cache_bytes(os.sched_getaffinity(0), threads)
    size = wanted or max(4 * caches, SMALLEST_BYTES)
    room = available_bytes() // 2 // arrays
    if size > room:
        if wanted or room < max(2 * caches, MIB * threads):
            raise ProbeError(
                ReasonCode.NOT_ENOUGH_MEMORY,
                f"{arrays} arrays of {size} bytes need more than half of the available memory; "
                "set host_memory.bytes smaller",
            )
        size = room
    unit = mmap.PAGESIZE * threads
    return max(unit, size // unit * unit)


def reachable_cache_bytes(
    cpus: set[int], threads: int, root: Path = Path("/sys/devices/system/cpu")
) -> int:
    """Last-level cache that so many threads on these CPUs can hold data in; 0 if unknown."""
    caches: dict[tuple[int, ...], int] = {}
    for cpu in cpus:
        level = 0
        found: tuple[tuple[int, ...], int] | None = None
        for index in sorted((root / f"cpu{cpu}" / "cache").glob("index*")):
            here = int(_read(index / "level") or 0)
            size = _read(index / "size")
            if here > level and size and _read(index / "type") != "Instruction":
                level = here
                shared = parse_cpu_list(_read(index / "shared_cpu_list") or str(cpu))
                found = shared, int(size.rstrip("K")) * 1024
        if found:
            caches[found[0]] = found[1]
    return sum(sorted(caches.values(), reverse=True)[:threads])


def available_bytes() -> int:
    """Memory this process may still use: the host's, or less by its control group."""
    import psutil

    room = int(psutil.virtual_memory().available)
    limit, used = (_read(Path("/sys/fs/cgroup") / f"memory.{x}") for x in ("max", "current"))
    if limit and used and limit.isdigit():
        room = min(room, int(limit) - int(used))
    return room


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None


def _bandwidth(op: str, size: int, context: WorkerContext, budget: float) -> Reading:
    threads = context.binding.threads
    arrays = [pages(size) for _ in range(STREAMS[op])]
    share = len(arrays[0]) // threads
    slices = [[a[i * share : (i + 1) * share] for a in arrays] for i in range(threads)]
    with step_of(op) as step, Team(threads) as team:

        def everywhere(work: Callable[[Sequence[Any]], None]) -> float:
            return team.run([functools.partial(work, own) for own in slices])

        everywhere(fill)
        for array in arrays:
            context.buffer_ready(array.ctypes.data, size)
        everywhere(step)
        everywhere(check)
        everywhere(poison)
        with so_far.rates(BANDWIDTH.name, float(STREAMS[op] * size)):
            timed = collect(
                lambda: everywhere(step),
                tolerance=stats.BANDWIDTH_TOLERANCE,
                budget_seconds=budget,
            )
        everywhere(check)
    context.note("bytes_convention", f"{STREAMS[op]} x array, write-allocate not counted")
    return timed.rates(BANDWIDTH.name, float(STREAMS[op] * size))


def pages(size: int) -> Any:
    """
    A page-aligned array of doubles, untouched, on huge pages where the kernel gives them.

    Raises:
        ProbeError: ``not_enough_memory``.
    """
    import numpy as np

    try:
        mapped = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise ProbeError(ReasonCode.NOT_ENOUGH_MEMORY, f"mmap of {size} bytes: {error}") from error
    if hasattr(mmap, "MADV_HUGEPAGE"):
        mapped.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(mapped, dtype=np.float64)


def fill(arrays: Sequence[Any]) -> None:
    """First touch by the thread that works here: poison in the target, random sources."""
    import numpy as np

    poison(arrays)
    for source in arrays[1:]:
        np.random.default_rng().random(out=source)
        np.multiply(source, LARGEST, out=source)
        np.floor(source, out=source)


def poison(arrays: Sequence[Any]) -> None:
    """Make the target wrong throughout."""
    arrays[0].fill(float("nan"))


def _copy(arrays: Sequence[Any]) -> None:
    import numpy as np

    np.copyto(arrays[0], arrays[1])


@contextlib.contextmanager
def step_of(op: str) -> Iterator[Callable[[Sequence[Any]], None]]:
    """The operation on one thread's slices, in one pass over memory."""
    if op == "copy":
        yield _copy
        return
    torch = cuda.require_torch()

    def triad(arrays: Sequence[Any]) -> None:
        a, b, c = map(torch.from_numpy, arrays)
        torch.add(b, c, alpha=SCALAR, out=a)

    before = torch.get_num_threads()
    torch.set_num_threads(1)  # in each of our threads; they are the parallelism
    try:
        yield triad
    finally:
        torch.set_num_threads(before)


def check(arrays: Sequence[Any]) -> None:
    """
    Compare every element with what the sources say, in cache-sized blocks.

    Raises:
        ResultInvalid: ``wrong_data``.
    """
    import numpy as np

    target, *sources = arrays
    wrong = 0
    for low in range(0, len(target), CHECK_BLOCK):
        first, *rest = (s[low : low + CHECK_BLOCK] for s in sources)
        expected = first + SCALAR * rest[0] if rest else first
        wrong += int(np.count_nonzero(target[low : low + CHECK_BLOCK] != expected))
    if wrong:
        raise ResultInvalid(
            ReasonCode.WRONG_DATA, f"{wrong} of {len(target)} elements of a thread are wrong"
        )


class Team:
    """
    Threads that start each task together; used as a context manager.

    They are made once, after binding, so that they inherit affinity and memory policy.
    """

    def __init__(self, threads: int) -> None:
        self._barrier = threading.Barrier(threads + 1)
        self._tasks: list[Callable[[], None]] | None = []
        self._spans = [(0, 0)] * threads
        self._errors: list[BaseException] = []
        self._threads = [
            threading.Thread(target=self._work, args=(i,), daemon=True) for i in range(threads)
        ]

    def __enter__(self) -> Team:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._tasks = None
        self._barrier.wait()
        for thread in self._threads:
            thread.join()

    def run(self, tasks: list[Callable[[], None]]) -> float:
        """
        Run one task a thread; seconds from the first start to the last end.

        Raises whatever a task raised.
        """
        self._tasks = tasks
        self._barrier.wait()
        self._barrier.wait()
        if self._errors:
            raise self._errors.pop()
        return (max(e for _, e in self._spans) - min(s for s, _ in self._spans)) * 1e-9

    def _work(self, number: int) -> None:
        while True:
            self._barrier.wait()
            if self._tasks is None:
                return
            try:
                started = time.perf_counter_ns()
                self._tasks[number]()
                self._spans[number] = (started, time.perf_counter_ns())
            except BaseException as error:
                self._errors.append(error)
            self._barrier.wait()


def _latency(size: int, context: WorkerContext, budget: float) -> Reading:
    """Walk a random cycle through one array; each load needs the one before it."""
    try:
        import numba
    except ImportError as error:
        raise ProbeUnavailable(
            ReasonCode.NO_PACKAGE, f"latency needs numba ({error}); pip install numba"
        ) from error
    links, order = _cycle(size)
    context.buffer_ready(links.ctypes.data, size)

    @numba.njit("int64(int64[::1], int64, int64)")  # the signature compiles it here, untimed
    def chase(links, at, steps):  # type: ignore[no-untyped-def]
        for _ in range(steps):
            at = links[at]
        return at

    walked, at = 0, int(order[0])

    def sample() -> float:
        nonlocal walked, at
        started = time.perf_counter_ns()
        at = int(chase(links, at, CHASE_STEPS))
        took = time.perf_counter_ns() - started
        walked += CHASE_STEPS
        return took * 1e-9 / CHASE_STEPS

    with so_far.durations(LATENCY.name):
        timed = collect(
            sample,
            tolerance=stats.LATENCY_TOLERANCE,
            budget_seconds=budget,
            operations=CHASE_STEPS,
        )
    if at != int(order[walked % len(order)]):
        raise ResultInvalid(ReasonCode.WRONG_DATA, "the walk ended at the wrong element")
    return timed.durations(LATENCY.name)


def _cycle(size: int) -> tuple[Any, Any]:
    """Links that join the cache lines of an array to one random cycle, and its order."""
    import numpy as np

    words = LINE_BYTES // 8
    links = pages(size).view(np.int64)
    order = np.random.default_rng().permutation(len(links) // words) * words
    links[order] = np.roll(order, -1)
    return links, order
