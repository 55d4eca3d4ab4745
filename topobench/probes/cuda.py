"""
What probes need of a GPU: its queue with a calibrated spin, and its errors by our names.

torch is imported when something here is called, inside a worker process only.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from topobench.errors import ProbeError, ProbeUnavailable
from topobench.probes.protocol import WorkerContext
from topobench.probes.timing import Enqueue
from topobench.reading import ReasonCode

_CALIBRATION_CYCLES = 2_000_000


def require_gpu(context: WorkerContext) -> Any:
    """
    The torch module, able to use this worker's GPU.

    Raises:
        ProbeUnavailable: The cell has no GPU, or torch is not installed.
        ProbeError: ``torch_cannot_use_gpu``: there is a GPU, but torch cannot use it.
    """
    if not context.devices:
        raise ProbeUnavailable(ReasonCode.NO_GPU, "this cell has no GPU")
    torch = require_torch()
    if not torch.cuda.is_available():
        raise ProbeError(
            ReasonCode.TORCH_CANNOT_USE_GPU,
            f"torch {torch.__version__} (built for CUDA {torch.version.cuda or 'none'}) cannot "
            f"use {context.devices[0]}; install a torch built for this driver's CUDA",
        )
    return torch


def require_torch() -> Any:
    """
    The torch module.

    Raises:
        ProbeUnavailable: ``no_package``: it is not installed or cannot be loaded.
    """
    try:
        if "torch" not in sys.modules:
            _import_for_good("torch")
        import torch
    except (ImportError, OSError) as error:
        raise ProbeUnavailable(
            ReasonCode.NO_PACKAGE, f"torch cannot be imported ({error}); pip install torch"
        ) from error
    return torch


def _import_for_good(module: str) -> None:
    """
    Import on a thread of its own.

    Exceptions that a module caught keep its frames, and those the frames that called for it. One
    of them would be the probe's: what the first case of a worker measured with stayed for ever.

    Raises:
        ImportError: As the module does.
    """
    with _for_good(), ThreadPoolExecutor(1) as apart:
        apart.submit(importlib.import_module, module).result()


@contextlib.contextmanager
def _for_good() -> Iterator[None]:
    """
    What is made meanwhile stays: no garbage is looked for in it, now or later.

    Torch brings hundreds of thousands of objects. To look through them takes a tenth of its
    import, and then disturbs whatever is timed when it is done again.
    """
    looked = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if looked:
            gc.enable()


@contextlib.contextmanager
def errors_named() -> Iterator[None]:
    """
    Turn what torch raises for the device into ours.

    Raises:
        ProbeError: ``oom`` or ``cuda_error``.
    """
    try:
        yield
    except RuntimeError as error:  # torch.OutOfMemoryError and torch.AcceleratorError are its kin
        text = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        memory = "out of memory" in text.lower() or "can't allocate memory" in text.lower()
        raise ProbeError(ReasonCode.OOM if memory else ReasonCode.CUDA_ERROR, text) from error


class CudaQueue:
    """The current CUDA stream as a ``timing.Queue``."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._cycles_per_second = _spin_rate(torch.cuda.current_device())

    def spin(self, seconds: float) -> None:
        """Enqueue a kernel that idles for about ``seconds``."""
        self._torch.cuda._sleep(int(seconds * self._cycles_per_second))

    def mark(self) -> Any:
        """Record a timing event."""
        event = self._torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def passed(self, mark: Any) -> bool:
        """Whether the device has passed the event."""
        return bool(mark.query())

    def between(self, start: Any, end: Any) -> float:
        """Seconds between two events (their resolution is about 0.5 us)."""
        return float(start.elapsed_time(end)) * 1e-3

    def reach(self, mark: Any) -> None:
        """Block until the device has passed the event."""
        mark.synchronize()

    def wait(self) -> None:
        """Block until all streams of the device are idle."""
        self._torch.cuda.synchronize()


def captured(torch: Any, enqueue: Enqueue, count: int) -> Enqueue:
    """
    The same operations as a CUDA graph: one launch replays ``count`` of them.

    Everything runs once before, because a kernel's first use cannot be captured. The graph
    has only the addresses of the buffers it was made with, so what enqueues is kept as long as
    the replays are: memory that is gone could be read.

    Args:
        enqueue: Must neither wait for the device nor use memory of the host that changes.

    Returns:
        Enqueues a number of replays, each of ``count`` operations.
    """
    side = side_stream(torch.cuda.current_device())
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        enqueue(count)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    # NCCL's own thread asks for events meanwhile, which would spoil a capture of all threads.
    with torch.cuda.graph(graph, stream=side, capture_error_mode="thread_local"):
        enqueue(count)
    return Replay(graph, enqueue)


@dataclass(frozen=True, slots=True)
class Replay:
    """
    Enqueues replays of a graph.

    Args:
        enqueued: What the graph recorded, with all that it reads and writes.
    """

    graph: Any
    enqueued: Enqueue

    def __call__(self, times: int) -> None:
        """Enqueue so many replays."""
        for _ in range(times):
            self.graph.replay()


@functools.cache
def side_stream(device: int) -> Any:
    """
    The stream of a GPU on which all graphs are made.

    torch keeps 32 MiB of work space for cuBLAS on each stream that ever multiplied.
    """
    import torch

    return torch.cuda.Stream(device)


@functools.cache
def _spin_rate(device: int) -> float:
    """Cycles of ``torch.cuda._sleep`` per second, of the fastest of five measured spins."""
    import torch

    torch.cuda._sleep(_CALIBRATION_CYCLES)  # loads the kernel and wakes the clocks
    torch.cuda.synchronize(device)
    shortest = float("inf")
    for _ in range(5):
        start = torch.cuda.Event(enable_timing=True)
        end = torch.cuda.Event(enable_timing=True)
        start.record()
        torch.cuda._sleep(_CALIBRATION_CYCLES)
        end.record()
        end.synchronize()
        shortest = min(shortest, start.elapsed_time(end) * 1e-3)
    return _CALIBRATION_CYCLES / shortest
