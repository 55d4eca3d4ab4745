"""
The GPU or the CPUs that a model runs on, by one interface.

What only one of them has (a graph, counted launches, an allocator's peaks) says so instead of
giving a number.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import itertools
import math
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from topobench import stats
from topobench.errors import ProbeError, ProbeUnavailable
from topobench.probes import cuda, device_work, gemm
from topobench.probes.attention import first_line
from topobench.probes.device_work import Figures
from topobench.probes.driver import Driver
from topobench.probes.host_memory import available_bytes
from topobench.probes.protocol import WorkerContext
from topobench.probes.timing import (
    PAUSE_SECONDS,
    QUEUE_MAX,
    SAMPLE_SECONDS,
    SPIN_MAX_SECONDS,
    SPIN_MIN_SECONDS,
    Bursts,
    Sampler,
    behind_spin,
    wall,
)
from topobench.reading import ReasonCode

Call = Callable[[], Any]
Mark = Callable[[str], Any]

CEILING_SECONDS = 1.5
"""Length of the measurement of matrix products, of which the second half counts."""
PASSES_SECONDS, SHARED_PASSES_SECONDS = 0.17, 0.05
"""
Of passes that are a sample on a GPU alone; about, on GPUs that share a model or run at once.

At its power limit the clock of a GPU moves: single passes of 55 ms deviate by 0.9 to 1.8 % on an
H200, rows of three by 0.6 to 0.7. Two bursts hold six such rows. GPUs that share a model wait for
each other, stay below the limit and deviate by 0.2 % with the shorter ones.
"""
QUEUED_GRAPHS = 15
"""Graphs that the queue of launches of an H200 holds, about; for estimates."""
SHARED_REST_FROM = 20e-3
"""Seconds of a pass that GPUs share from which on a pause comes before the first, too."""
CEILING_SIZES = {"cuda": 8192, "cpu": 512}
LEAST_PASSES = 3
PASSES = 5
"""Forward passes whose stages are timed, of which the median counts; calls of :meth:`least`."""


class Accelerator(Protocol):
    """
    What a model needs of its device.

    Attributes:
        torch: The module.
        device: As torch names it.
        model: Name of the GPU; None of CPUs.
        capability: Compute capability; None of CPUs.
    """

    torch: Any
    device: str
    model: str | None
    capability: tuple[int, int] | None

    def free_bytes(self) -> int:
        """Memory that may still be allocated, on every rank."""
        ...

    def ceiling(self, dtype: str) -> float:
        """FLOP a second of large matrix products under steady load, of all ranks together."""
        ...

    def once(self, call: Call) -> float:
        """Seconds of one call, launching it included."""
        ...

    def least(self, call: Call) -> float:
        """Seconds of the quickest of some calls by the device's clock, launching hidden."""
        ...

    def times(self, call: Call, budget_seconds: float) -> tuple[Figures, str]:
        """Seconds of a call by the device's clock, and how it was timed."""
        ...

    def walls(self, call: Call, budget_seconds: float) -> Figures:
        """Seconds of a call that waits for its end, by the host's clock."""
        ...

    def stages(self, run: Callable[[Mark], Any]) -> dict[str, list[float]] | None:
        """Seconds of each stage of a pass, one value a pass; None where they cannot be told."""
        ...

    def captured(self, call: Call) -> Call:
        """
        A replay of the same work by a single launch.

        Raises:
            ProbeUnavailable: ``unsupported``.
        """
        ...

    def launches(self, call: Call) -> int | None:
        """Kernels that a call launches; None where nobody can tell."""
        ...

    def gather(self, value: float) -> list[float]:
        """A value of every rank, on every rank."""
        ...

    def on_all(self, check: Callable[[], None]) -> None:
        """
        Check what every rank got; if one is wrong, all say so.

        Raises:
            ResultInvalid: ``wrong_data``.
        """
        ...

    def wait(self) -> None:
        """Block until everything is done."""
        ...

    def forget(self) -> None:
        """Give back memory that nothing uses, and begin counting peaks anew."""
        ...

    def peaks(self) -> tuple[int, int] | None:
        """Most bytes allocated, and reserved, since :meth:`forget`; None where not counted."""
        ...


@contextlib.contextmanager
def accelerator(context: WorkerContext) -> Iterator[Accelerator]:
    """
    The GPU of a cell, or the CPUs of its binding where it has none.

    Raises:
        ProbeUnavailable: torch is not installed.
        ProbeError: ``torch_cannot_use_gpu``; what torch raises inside, by our names.
    """
    if context.devices:
        with device_work.site(context) as site:
            yield Gpu(site)
    else:
        yield Cpus(cuda.require_torch())


@contextlib.contextmanager
def memory_named(drop: Callable[[], None]) -> Iterator[None]:
    """
    Turn a lack of memory into a refusal of this case; the process goes on with the next.

    Args:
        drop: Frees what the case held.

    Raises:
        ProbeUnavailable: ``not_enough_memory``, with the allocator's words.
    """
    try:
        yield
    except RuntimeError as error:
        words = first_line(error)
        if "out of memory" not in words.lower() and "allocate memory" not in words.lower():
            raise
    else:
        return
    drop()  # outside the handler: its traceback holds the tensors
    raise ProbeUnavailable(ReasonCode.NOT_ENOUGH_MEMORY, words)


def alike(device: Accelerator, ask: Callable[[], float]) -> list[float]:
    """
    A value of every rank, or a refusal on all of them: ranks that part ways would wait for ever.

    Raises:
        ProbeUnavailable: What this rank was refused, or that another one was.
    """
    refusal: ProbeUnavailable | None = None
    value = math.nan
    try:
        value = ask()
    except ProbeUnavailable as error:
        refusal = error
    found = device.gather(value)
    if refusal:
        raise refusal
    if lacking := [str(rank) for rank, told in enumerate(found) if math.isnan(told)]:
        raise ProbeUnavailable(
            ReasonCode.UNSUPPORTED, f"rank {', '.join(lacking)} of this gang cannot run it"
        )
    return found


def passes_of(row: float, once: float) -> int:
    """Passes, or products, of a row of about so many seconds; no more than may be queued."""
    return min(QUEUE_MAX, max(1, round(row / once)))


class Gpu:
    """One GPU, or one of several that do the same at once; see :class:`Accelerator`."""

    device = "cuda"

    def __init__(self, site: device_work.Site) -> None:
        self._site = site
        self.torch = site.torch
        self._queue = cuda.CudaQueue(site.torch)
        properties = site.torch.cuda.get_device_properties(site.torch.cuda.current_device())
        self.model: str | None = str(properties.name)
        self.capability: tuple[int, int] | None = site.torch.cuda.get_device_capability()

    def free_bytes(self) -> int:
        """Of the rank that has least."""
        held = self.torch.cuda.memory_reserved() - self.torch.cuda.memory_allocated()
        return int(min(self._site.gather(float(self.torch.cuda.mem_get_info()[0] + held))))

    def ceiling(self, dtype: str) -> float:
        """By the products of the probe ``gemm``, without a wait between them."""
        size = CEILING_SIZES[self.device]
        count = gemm.sets_beyond_cache(dtype, size, gemm.cache_bytes(self.torch))
        self._site.require_memory(count * gemm.set_bytes(dtype, size))
        with gemm.float32_products(self.torch, dtype == "tf32"):
            products = gemm.Products(self.torch, dtype, size, count)
            products.try_once()
            products.choose()
            each = max(self._site.gather(self.once(lambda: products.enqueue(1))))
            queued = passes_of(gemm.burst_seconds(self._site), each)
            steady = gemm.Endurance(0.0, CEILING_SECONDS)
            figures = self._site.queued(products.enqueue, queued, steady)
        counted = figures.total.samples[figures.total.warmups :]
        return 2.0 * size**3 / stats.summarise(counted, stop_reason="fixed").median

    def once(self, call: Call) -> float:
        """Between two events."""
        start = self._queue.mark()
        call()
        end = self._queue.mark()
        self.wait()
        return self._queue.between(start, end)

    def least(self, call: Call) -> float:
        """Behind a spin; one that no spin outlasts, between events."""
        self.once(call)  # the first one may build what the others reuse
        spin = min(max(SPIN_MIN_SECONDS, 3 * wall(call)), SPIN_MAX_SECONDS)
        enqueue = functools.partial(_repeat, call)
        hidden = (behind_spin(self._queue, enqueue, 1, spin_seconds=spin) for _ in range(PASSES))
        return min(self.once(call) if seconds is None else seconds for seconds in hidden)

    def times(self, call: Call, budget_seconds: float) -> tuple[Figures, str]:
        """
        In bursts of load, launches hidden; if no spin outlasts them, between events.

        Samples of a GPU alone are enqueued while the one before runs, if launching is that quick:
        rest would make them faster. The condition ``rest_share`` says how much there was.
        """
        once = max(self._site.gather(self.once(call)))
        row = PASSES_SECONDS if self._site.group is None else SHARED_PASSES_SECONDS
        count = passes_of(row, once)
        budget_seconds = max(budget_seconds, self._least_passes(once) * once)
        begin = functools.partial(Bursts, stats.BANDWIDTH_TOLERANCE, budget_seconds)
        enqueue = functools.partial(_repeat, call)
        if self._site.group is not None:
            segments = device_work.segments_of(once)
            return self._site.queued(enqueue, count, begin(), segments), "queued"
        note = self._site.context.note
        try:
            figures, rest = self._site.back_to_back(enqueue, count, begin)
            note("rest_share", rest)
            return figures, "queued, each sample behind a spin" if rest else "queued"
        except ProbeError as error:
            if error.code != ReasonCode.UNTIMEABLE:
                raise
        note("rest_share", None)
        sampler = begin()
        while not sampler.done():
            sampler.add(self.once(call))
        return Figures(sampler.timed()), "events"

    def walls(self, call: Call, budget_seconds: float) -> Figures:
        """Of several GPUs, while all do the same; in bursts of load."""
        once = max(self._site.gather(wall(call)))
        budget_seconds = max(budget_seconds, self._least_passes(once) * once)
        sampler = Bursts(stats.LATENCY_TOLERANCE, budget_seconds)
        return self._site.called(call, sampler)

    def stages(self, run: Callable[[Mark], Any]) -> dict[str, list[float]] | None:
        """After a pause, events between the stages, behind a spin; None if none outlasts them."""
        found: dict[str, list[float]] = {}
        self.once(lambda: run(lambda stage: None))
        launching = wall(lambda: run(lambda stage: self._queue.mark()))
        self.wait()
        spin = min(3 * launching, SPIN_MAX_SECONDS)
        time.sleep(PAUSE_SECONDS)
        for _ in range(PASSES):
            marks = Marks(self._queue.mark)
            enqueue = functools.partial(_enqueue_marked, marks, run)
            took = behind_spin(self._queue, enqueue, 1, spin_seconds=spin, lead=self.meet)
            if not self.everywhere(took is not None):
                return None
            for stage, seconds in marks.sums(self._queue.between).items():
                found.setdefault(stage, []).append(seconds)
        return found

    def captured(self, call: Call) -> Call:
        """As a CUDA graph."""
        replay = cuda.captured(self.torch, lambda n: _repeat(call, n), 1)
        return lambda: replay(1)

    def launches(self, call: Call) -> int | None:
        """Kernels of the CUDA graph that records the call."""
        try:
            graph = self.torch.cuda.CUDAGraph(keep_graph=True)
            stream = cuda.side_stream(self.torch.cuda.current_device())
            with self.torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                call()
            return Driver().graph_kernels(graph.raw_cuda_graph())
        except (TypeError, RuntimeError, ProbeError):
            return None  # an older torch keeps no graph, and not every call can be recorded

    def gather(self, value: float) -> list[float]:
        """Of the GPUs that do the same at once."""
        return self._site.gather(value)

    def on_all(self, check: Callable[[], None]) -> None:
        """Of the GPUs that do the same at once."""
        self._site.check(check)

    def meet(self) -> None:
        """Nobody is waited for."""

    def everywhere(self, fine: bool) -> bool:
        """Each GPU goes by itself."""
        return fine

    def wait(self) -> None:
        """Of all streams."""
        self.torch.cuda.synchronize()

    def forget(self) -> None:
        """Of torch's caching allocator."""
        gc.collect()
        self.wait()
        self.torch.cuda.empty_cache()
        self.torch.cuda.reset_peak_memory_stats()

    def peaks(self) -> tuple[int, int] | None:
        """Of torch's caching allocator."""
        memory = self.torch.cuda
        return int(memory.max_memory_allocated()), int(memory.max_memory_reserved())

    def _least_passes(self, once: float) -> int:
        """A budget of so many passes lets long ones be sampled enough: a lap, of several GPUs."""
        return device_work.segments_of(once) if self._site.group else LEAST_PASSES


class Cpus:
    """The CPUs of a binding; see :class:`Accelerator`."""

    device = "cpu"

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.model: str | None = None
        self.capability: tuple[int, int] | None = None

    def free_bytes(self) -> int:
        """Of the host, or less by its control group."""
        return available_bytes()

    def ceiling(self, dtype: str) -> float:
        """Products of operands that the caches may hold."""
        size = CEILING_SIZES[self.device]
        products = gemm.Products(self.torch, dtype, size, 2, device=self.device)
        products.try_once()
        sampler = Sampler(stats.BANDWIDTH_TOLERANCE, CEILING_SECONDS / 10)
        while not sampler.done():
            sampler.add(wall(lambda: products.enqueue(1)))
        samples = sampler.timed().samples[len(sampler.warm) :]
        return 2.0 * size**3 / stats.summarise(samples, stop_reason="fixed").median

    def once(self, call: Call) -> float:
        """By the monotonic clock."""
        return wall(call)

    def least(self, call: Call) -> float:
        """By the monotonic clock."""
        return min(wall(call) for _ in range(PASSES))

    def times(self, call: Call, budget_seconds: float) -> tuple[Figures, str]:
        """The CPUs are the device: their time is the host's."""
        return self.walls(call, budget_seconds), "host"

    def walls(self, call: Call, budget_seconds: float) -> Figures:
        """By the monotonic clock."""
        sampler = Sampler(stats.LATENCY_TOLERANCE, budget_seconds)
        count = max(1, round(SAMPLE_SECONDS / wall(call)))
        while not sampler.done():
            sampler.add(wall(call, count) / count)
        return Figures(sampler.timed(count))

    def stages(self, run: Callable[[Mark], Any]) -> dict[str, list[float]] | None:
        """Reads the clock between the stages."""
        found: dict[str, list[float]] = {}
        run(lambda stage: None)
        for _ in range(PASSES):
            marks = Marks(time.perf_counter)
            self.meet()
            _enqueue_marked(marks, run, 1)
            for stage, seconds in marks.sums(lambda start, end: float(end - start)).items():
                found.setdefault(stage, []).append(seconds)
        return found

    def captured(self, call: Call) -> Call:
        """There is nothing like it."""
        raise ProbeUnavailable(ReasonCode.UNSUPPORTED, "a CUDA graph needs a GPU")

    def launches(self, call: Call) -> int | None:
        """Nothing is launched."""
        return None

    def gather(self, value: float) -> list[float]:
        """There is one."""
        return [value]

    def on_all(self, check: Callable[[], None]) -> None:
        """There is one."""
        check()

    def meet(self) -> None:
        """Nobody is waited for."""

    def wait(self) -> None:
        """Calls end when their work does."""

    def forget(self) -> None:
        """The C library keeps no count."""
        gc.collect()

    def peaks(self) -> tuple[int, int] | None:
        """Not counted."""
        return None


def _repeat(call: Call, times: int) -> None:
    for _ in range(times):
        call()


def _enqueue_marked(marks: Marks, run: Callable[[Mark], Any], _: int) -> None:
    marks.add("")
    run(marks.add)


class Marks:
    """The ends of the stages of a pass, as they come."""

    def __init__(self, mark: Callable[[], Any]) -> None:
        self._mark = mark
        self._found: list[tuple[str, Any]] = []

    def add(self, stage: str) -> None:
        """A stage ends here."""
        self._found.append((stage, self._mark()))

    def sums(self, between: Callable[[Any, Any], float]) -> dict[str, float]:
        """Seconds of each stage, over all layers."""
        found: dict[str, float] = {}
        for (_, start), (stage, end) in itertools.pairwise(self._found):
            found[stage] = found.get(stage, 0.0) + between(start, end)
        return found
