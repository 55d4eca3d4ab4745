"""
Loading weights: file -> pinned memory -> GPU, chunk by chunk.

Two buffers take turns: while one is copied to the device, the other is filled from the file.
Each stage is measured alone and both together, so that the time of the whole can be held
against T_min = W / min(B, P): W bytes, B from storage, P to the device.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import ctypes
import math
import mmap
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

from topobench.errors import ProbeUnavailable, ResultInvalid
from topobench.probes import cuda, so_far
from topobench.probes.metrics import DURATION
from topobench.probes.protocol import Arms, Kind, WorkerContext, parameter
from topobench.probes.timing import Timed
from topobench.reading import Better, Metric, Reading, ReasonCode
from topobench.units import format_bytes, format_percent

MIB, GIB = 1 << 20, 1 << 30
PASSES = 3
BUFFERS = 2
BLOCK_BYTES = 4096
"""Reads past the page cache start and end at multiples of this."""
POISON = 0xA5
RESIDENT_RATIO = 0.02
"""More of the file than this still in the page cache: storage was not measured."""
FOLDER = "/var/tmp"  # on a disk where /tmp often is memory

STORAGE = Metric(
    "storage_bandwidth_bytes_per_second", Better.HIGHER, "file to pinned memory, alone"
)
TRANSFER = Metric(
    "transfer_bandwidth_bytes_per_second", Better.HIGHER, "pinned memory to device, alone"
)
LOAD = Metric("load_bandwidth_bytes_per_second", Better.HIGHER, "file to device, both stages")
STAGES = {"storage": STORAGE, "transfer": TRANSFER, "pipeline": LOAD}
PREDICTED = Metric(
    "predicted_duration_seconds", Better.LOWER, "bytes by the bandwidth of the slower stage"
)
OVERLAP = Metric(
    "overlap_ratio", Better.HIGHER, "predicted by measured time; 1 if the faster stage is hidden"
)


@dataclass(frozen=True, slots=True)
class WeightLoad:
    """Time to bring a file to the worker's first GPU, and of its two stages alone."""

    name: ClassVar[str] = "weight_load"
    version: ClassVar[int] = 1
    summary: ClassVar[str] = "file to pinned memory to GPU in chunks, against its slower stage"
    needs: ClassVar[frozenset[str]] = frozenset({"torch", "cuda"})
    metrics: ClassVar[tuple[Metric, ...]] = (STORAGE, TRANSFER, LOAD, DURATION, PREDICTED, OVERLAP)
    arms: ClassVar[Arms] = Arms.BINDINGS

    bytes: int = parameter(
        GIB, kind=Kind.BYTES, minimum=BLOCK_BYTES, help="size of the file, written for the run"
    )
    chunk_bytes: int = parameter(
        16 * MIB, kind=Kind.BYTES, minimum=BLOCK_BYTES, help="size of each of the two buffers"
    )
    readers: int = parameter(4, minimum=1, maximum=64, help="threads that read a chunk together")
    io: str = parameter(
        "buffered",
        kind=Kind.CHOICE,
        choices=("buffered", "direct"),
        help="through the page cache, emptied of the file before each pass, or past it (O_DIRECT)",
    )
    folder: str | None = parameter(
        None, kind=Kind.TEXT, help=f"where the file is written; None is {FOLDER}"
    )

    def measure(self, context: WorkerContext) -> Iterator[Reading]:
        """
        Measure storage, transfer and both together, in turn.

        Raises:
            ProbeUnavailable: The cell has no GPU, torch is not installed, disk or memory do not
                suffice, or the page cache cannot be emptied there (``io=direct`` may work).
            ProbeError: ``torch_cannot_use_gpu``, ``cuda_error``.
            ResultInvalid: ``wrong_data``.
        """
        torch = cuda.require_gpu(context)
        with cuda.errors_named():
            torch.cuda.set_device(0)
            free = torch.cuda.mem_get_info()[0]
            if self.bytes > free:
                raise ProbeUnavailable(
                    ReasonCode.NOT_ENOUGH_MEMORY,
                    f"{format_bytes(self.bytes)} of device memory asked for, "
                    f"{format_bytes(free)} free",
                )
            target = CudaTarget(torch, self.bytes, self.chunk_bytes)
            for address in target.addresses:
                context.buffer_ready(address, self.chunk_bytes)
            yield from self.load(target, context.note)

    def load(self, target: Target, note: Callable[[str, Any], None]) -> Iterator[Reading]:
        """
        Measure the stages and the pipeline into a target.

        Raises:
            ProbeUnavailable: As :meth:`measure`.
            ResultInvalid: ``wrong_data``.
        """
        stages = Stages(self.bytes, self.chunk_bytes, target)
        with contextlib.closing(Weights.write(self)) as weights:
            note("filesystem", weights.filesystem)
            times: dict[str, list[float]] = {stage: [] for stage in STAGES}
            told = {stage: _series(metric, self.bytes) for stage, metric in STAGES.items()}

            def took(stage: str, seconds: float) -> None:
                times[stage].append(seconds)
                if (series := told[stage]) is not None:
                    series.take(seconds)

            for number in range(PASSES):
                weights.forget()
                took("storage", stages.storage(weights))
                took("transfer", stages.transfer())
                target.poison(POISON)
                weights.forget()
                took("pipeline", stages.pipeline(weights))
                if number in (0, PASSES - 1):
                    weights.check(target)
        slower = max(("storage", "transfer"), key=lambda stage: statistics.median(times[stage]))
        note("limited_by", slower)
        note("bytes_convention", "each byte of the file once")
        yield from _readings(float(self.bytes), times, statistics.median(times[slower]))

    def estimated_seconds(self) -> float:
        """Writing at a cautious 0.5 GB/s, reading twice a pass at 1 GB/s, checking."""
        return 1.0 + self.bytes * (1 / 0.5e9 + 2 * PASSES / 1e9 + 2 / 1e9)


def _series(metric: Metric, size: int) -> so_far.Series | None:
    with so_far.rates(metric.name, float(size)):
        return so_far.series()


def _readings(size: float, times: dict[str, list[float]], predicted: float) -> Iterator[Reading]:
    timed = {stage: Timed(tuple(seconds), 0, "fixed") for stage, seconds in times.items()}
    for stage, metric in STAGES.items():
        yield timed[stage].rates(metric.name, size)
    yield timed["pipeline"].durations(DURATION.name)
    yield Timed((predicted,), 0, "fixed").durations(PREDICTED.name)
    yield timed["pipeline"].rates(OVERLAP.name, predicted)


class Target(Protocol):
    """Where chunks go: two buffers in host memory, and the memory behind them."""

    @property
    def buffers(self) -> Sequence[memoryview]:
        """The two buffers, page-aligned."""
        ...

    def send(self, slot: int, offset: int) -> None:
        """Begin to copy a buffer to its place; :meth:`wait` says when it may be refilled."""
        ...

    def wait(self, slot: int) -> None:
        """Block until the buffer's last copy is done."""
        ...

    def read(self, offset: int, size: int) -> Any:
        """Bytes that arrived, as a NumPy array."""
        ...

    def poison(self, value: int) -> None:
        """Overwrite everything, so that what never arrives is seen."""
        ...


class CudaTarget:
    """Pinned buffers and the memory of the current GPU."""

    def __init__(self, torch: Any, size: int, chunk: int) -> None:
        self._torch = torch
        self._device = torch.empty(size, dtype=torch.uint8, device="cuda")
        self._pinned = [
            torch.empty(chunk, dtype=torch.uint8, pin_memory=True).fill_(POISON)
            for _ in range(BUFFERS)
        ]
        self.buffers = [memoryview(p.numpy()) for p in self._pinned]
        self._sent = [torch.cuda.Event() for _ in range(BUFFERS)]

    @property
    def addresses(self) -> list[int]:
        """Where the buffers begin."""
        return [p.data_ptr() for p in self._pinned]

    def send(self, slot: int, offset: int) -> None:
        """Begin to copy a buffer to its place."""
        pinned = self._pinned[slot]
        self._device[offset : offset + len(pinned)].copy_(pinned, non_blocking=True)
        self._sent[slot].record()

    def wait(self, slot: int) -> None:
        """Block until the buffer's last copy is done."""
        self._sent[slot].synchronize()

    def read(self, offset: int, size: int) -> Any:
        """Bytes that arrived, as a NumPy array."""
        return self._device[offset : offset + size].cpu().numpy()

    def poison(self, value: int) -> None:
        """Overwrite everything."""
        self._device.fill_(value)
        self._torch.cuda.synchronize()


class Stages:
    """The two stages over all chunks, alone and overlapped; each method gives seconds."""

    def __init__(self, size: int, chunk: int, target: Target) -> None:
        self._offsets = range(0, size, chunk)
        self._target = target

    def storage(self, weights: Weights) -> float:
        """Fill the buffers from the file."""
        started = time.perf_counter()
        for number, offset in enumerate(self._offsets):
            weights.read_into(self._target.buffers[number % BUFFERS], offset)
        return time.perf_counter() - started

    def transfer(self) -> float:
        """Copy the buffers, as they are, to every place."""
        started = time.perf_counter()
        for number, offset in enumerate(self._offsets):
            self._target.wait(number % BUFFERS)
            self._target.send(number % BUFFERS, offset)
        return self._drained(started)

    def pipeline(self, weights: Weights) -> float:
        """Fill one buffer while the other is on its way."""
        started = time.perf_counter()
        for number, offset in enumerate(self._offsets):
            slot = number % BUFFERS
            self._target.wait(slot)
            weights.read_into(self._target.buffers[slot], offset)
            self._target.send(slot, offset)
        return self._drained(started)

    def _drained(self, started: float) -> float:
        for slot in range(BUFFERS):
            self._target.wait(slot)
        return time.perf_counter() - started


class Weights:
    """A file of random bytes without a name: it is gone with the process, however that ends."""

    def __init__(self, file: Any, probe: WeightLoad, folder: Path, pattern: Any) -> None:
        self._file = file
        self._chunk = probe.chunk_bytes
        self._size = probe.bytes
        self._readers = probe.readers
        self._folder = folder
        self._pattern = pattern
        self._direct = probe.io == "direct"
        self._fd = _reopened_direct(file.fileno(), folder) if self._direct else file.fileno()
        self._pool = concurrent.futures.ThreadPoolExecutor(probe.readers)

    @classmethod
    def write(cls, probe: WeightLoad) -> Weights:
        """
        Write the file of a probe.

        Raises:
            ProbeUnavailable: ``not_enough_disk``, with what was asked for and what is free;
                ``unsupported``: sizes that no whole number of chunks makes, no such folder.
        """
        import numpy as np

        if probe.bytes % probe.chunk_bytes or probe.chunk_bytes % BLOCK_BYTES:
            raise ProbeUnavailable(
                ReasonCode.UNSUPPORTED,
                f"weight_load.bytes ({probe.bytes}) must be a multiple of chunk_bytes "
                f"({probe.chunk_bytes}), and that of {BLOCK_BYTES}",
            )
        folder = Path(probe.folder or FOLDER)
        pattern = np.frombuffer(os.urandom(probe.chunk_bytes), dtype=np.uint8)
        try:
            free = shutil.disk_usage(folder).free
            if free < probe.bytes:
                raise ProbeUnavailable(
                    ReasonCode.NOT_ENOUGH_DISK,
                    f"{format_bytes(probe.bytes)} asked for in {folder}, {format_bytes(free)} "
                    "free; set weight_load.bytes smaller or weight_load.folder elsewhere",
                )
            file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115
            for number in range(probe.bytes // probe.chunk_bytes):
                _write_all(file, _chunk(pattern, number))
            os.fsync(file.fileno())
        except OSError as error:
            raise ProbeUnavailable(
                ReasonCode.UNSUPPORTED,
                f"no file of {format_bytes(probe.bytes)} can be written in {folder}: {error}; "
                "set weight_load.folder",
            ) from error
        return cls(file, probe, folder, pattern)

    @property
    def filesystem(self) -> str:
        """Type of the file system the file lies on, as /proc/mounts names it."""
        device = os.fstat(self._file.fileno()).st_dev
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            fields, _, rest = line.partition(" - ")
            if fields.split()[2] == f"{os.major(device)}:{os.minor(device)}":
                return rest.split()[0]
        return "unknown"

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Read one chunk, in slices that the readers share."""
        size = len(buffer)
        step = math.ceil(size / self._readers / BLOCK_BYTES) * BLOCK_BYTES
        parts = [
            self._pool.submit(_read_all, self._fd, buffer[at : at + step], offset + at)
            for at in range(0, size, step)
        ]
        for part in parts:
            part.result()

    def forget(self) -> None:
        """
        Have the kernel drop the file from the page cache.

        Raises:
            ProbeUnavailable: ``unsupported``: it stays there, so reads would not reach storage.
        """
        os.posix_fadvise(self._file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        resident = resident_ratio(self._file.fileno(), self._size)
        if resident > RESIDENT_RATIO and not self._direct:
            raise ProbeUnavailable(
                ReasonCode.UNSUPPORTED,
                f"{format_percent(resident)} of a file in {self._folder} ({self.filesystem}) stays "
                "in memory, so storage cannot be measured there; set weight_load.folder",
            )

    def check(self, target: Target) -> None:
        """
        Compare every byte that arrived.

        Raises:
            ResultInvalid: ``wrong_data``, with the number of wrong bytes.
        """
        wrong = 0
        for number in range(self._size // self._chunk):
            found = target.read(number * self._chunk, self._chunk)
            wrong += int((found != _chunk(self._pattern, number)).sum())
        if wrong:
            raise ResultInvalid(
                ReasonCode.WRONG_DATA, f"{wrong} of {self._size} bytes are wrong on the device"
            )

    def close(self) -> None:
        """End the readers; the file is gone."""
        self._pool.shutdown()
        if self._direct:
            os.close(self._fd)
        self._file.close()


def resident_ratio(fd: int, size: int) -> float:
    """
    Share of a file's pages in the page cache, as mincore(2) says.

    Raises:
        OSError: The kernel does not say.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    with mmap.mmap(fd, size) as pages:
        count = -(-size // mmap.PAGESIZE)
        here = (ctypes.c_ubyte * count)()
        first = ctypes.c_char.from_buffer(pages)
        failed = libc.mincore(ctypes.byref(first), ctypes.c_size_t(size), here)
        del first  # a mapping with a user cannot be closed
    if failed:
        number = ctypes.get_errno()
        raise OSError(number, f"mincore: {os.strerror(number)}")
    return sum(page & 1 for page in bytes(here)) / count


def _chunk(pattern: Any, number: int) -> Any:
    """The bytes of one chunk: unlike those of its neighbours, and random on storage."""
    import numpy as np

    return np.bitwise_xor(pattern, np.uint8(number * 167 % 256))


def _write_all(file: Any, data: Any) -> None:
    left = memoryview(data)
    while left:
        left = left[file.write(left) :]


def _read_all(fd: int, buffer: memoryview, offset: int) -> None:
    while buffer:
        count = os.preadv(fd, [buffer], offset)
        if count == 0:
            raise OSError(f"the file ends at {offset}")
        buffer, offset = buffer[count:], offset + count


def _reopened_direct(fd: int, folder: Path) -> int:
    try:
        return os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_DIRECT)
    except OSError as error:
        raise ProbeUnavailable(
            ReasonCode.UNSUPPORTED,
            f"files in {folder} cannot be read past the page cache ({error.strerror}); "
            "set weight_load.io=buffered or another weight_load.folder",
        ) from error
