"""
Our figures beside those of the programs people trust, in one run, taking turns.

    python -m benchmarks.versus_peers [--nvbandwidth PROGRAM] [--nccl-tests FOLDER]

* host memory: copy and triad at least 0.9 of STREAM's loops compiled by gcc;
* queued copies of 64 KiB: within 3 % of a bare cudaMemcpyAsync loop behind the same spin,
  and at least 3 times the plain torch loop that waits for each copy;
* peaks, H2D and D2H: at least 0.99 of a bare loop, and of nvbandwidth;
* a spin that is too short is noticed, never timed;
* copies within a GPU and between two: at least 0.99 of nvbandwidth;
* bf16 products: at least 0.98 of the fastest kernel that cuBLASLt proposes for them;
* all-reduce: at least 0.99 of nccl-tests' bus bandwidth from 128 MiB on, and at 8 KiB at most
  1.1 times its time in a CUDA graph;
* prefill of an 8B model beside transformers (versus_transformers.py).

What this machine lacks (a GPU, two GPUs, gcc, a program) is said and not compared. Exit code 1
if a bar is missed.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import functools
import itertools
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks import peer_programs, versus_transformers
from topobench.probes import cublaslt, cuda, device_memory, gemm, host_memory, peer
from topobench.probes.host_to_device import Copies, HostToDevice
from topobench.probes.protocol import REST_SECONDS
from topobench.probes.timing import (
    QUEUE_MAX,
    QueueTimer,
    behind_spin,
    mark_overhead,
    wall,
)

KIB, MIB = 1 << 10, 1 << 20
TO_DEVICE, TO_HOST = 1, 2  # cudaMemcpyKind
GIB = 1 << 30
NVBANDWIDTH = {"h2d": "host_to_device_memcpy_ce", "d2h": "device_to_host_memcpy_ce"}
PEER = {"read": "device_to_device_memcpy_read_ce", "write": "device_to_device_memcpy_write_ce"}
SMALL, LARGE = 8 * KIB, (128 * MIB, GIB, 8 * GIB)
GRAPH_LAUNCHES = "100"
STREAM = Path(__file__).parent / "stream.c"
Sample = Callable[[], float]


def main() -> int:
    """Print every pair of figures; 0 if no bar was missed."""
    parser = argparse.ArgumentParser(description=__doc__.strip().splitlines()[0])
    parser.add_argument("--rounds", type=int, default=30, help="samples of each way")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--nvbandwidth", default=shutil.which("nvbandwidth"), metavar="PROGRAM")
    parser.add_argument("--nccl-tests", metavar="FOLDER", help="that holds all_reduce_perf")
    options = parser.parse_args()
    held = list(memory(options.rounds, options.threads))
    if torch.cuda.is_available():
        # First, while this process is no stranger on the GPUs.
        held += all_reduce(options.nccl_tests)
        torch.cuda.set_device(0)
        print(f"{torch.cuda.get_device_name(0)}, torch {torch.__version__}")
        held += small_copies(options.rounds)
        held += peaks(options.rounds, options.nvbandwidth)
        held += short_spins()
        held += products(options.rounds)
        held += device_copies(options.rounds, options.nvbandwidth)
        held += versus_transformers.bars()
    else:
        print("torch finds no usable GPU: copies and collectives are not compared")
    return 0 if all(held) else 1


def compared(
    what: str,
    ours: float,
    theirs: float,
    least: float,
    most: float | None = None,
    *,
    unit: str = "GB/s",
    scale: float = 1e9,
) -> bool:
    """Print one pair of rates, of base units a second, and whether the bar holds."""
    ratio = ours / theirs
    ok = ratio >= least and (most is None or ratio <= most)
    bar = f"{least}" if most is None else f"{least} to {most}"
    print(
        f"{what}: {ours / scale:.2f} against {theirs / scale:.2f} {unit}, ratio {ratio:.4f} "
        f"(bar {bar})  {'ok' if ok else 'MISSED'}"
    )
    return ok


def in_turn(
    ways: Mapping[str, Sample],
    amount: float,
    rounds: int,
    *,
    unit: str = "GB/s",
    scale: float = 1e9,
    before: Callable[[int], None] = lambda _: None,
) -> dict[str, list[float]]:
    """
    Rates of each way; they take turns, so that all see the same noise.

    Args:
        before: Done before each round, of which it gets the number.
    """
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for index in range(rounds):
        before(index)
        for name, sample in ways.items():
            rates[name].append(amount / sample())
    for name, found in rates.items():
        middle, low, high = (f(found) / scale for f in (statistics.median, min, max))
        print(f"  {name:24} {middle:8.2f} {unit}, {low:.2f} to {high:.2f}, n {rounds}")
    return rates


def memory(rounds: int, threads: int) -> Iterator[bool]:
    """
    The probe's engines against STREAM's loops: same arrays, pages, threads, bytes and moment.

    The loops do not alias, as STREAM's static arrays do not, so that gcc is free to call the C
    library for the copy. STREAM's figure is the best pass; so it is here, for both.
    """
    with compiled() as library:
        if library is None:
            print("gcc is not on PATH: host memory is not compared with STREAM's loops")
            return
        size = host_memory.array_bytes(None, threads=threads, arrays=3)
        for op in host_memory.STREAMS:
            print(f"host memory, {op}, {threads} threads, arrays of {size >> 20} MiB")
            rates = in_turn_in_memory(op, size, threads, getattr(library, op), rounds)
            yield compared(
                f"  {op}, best pass against C", max(rates["probe"]), max(rates["C loop"]), 0.9
            )


def in_turn_in_memory(
    op: str, size: int, threads: int, loop: Callable[..., None], rounds: int
) -> dict[str, list[float]]:
    """Rates of the probe's step and of the C loop over the same slices."""
    arrays = [host_memory.pages(size) for _ in range(host_memory.STREAMS[op])]
    share = len(arrays[0]) // threads
    slices = [[a[i * share : (i + 1) * share] for a in arrays] for i in range(threads)]

    def in_c(own: list[object]) -> None:
        loop(*(ctypes.c_void_p(a.ctypes.data) for a in own), ctypes.c_long(share))  # type: ignore[attr-defined]

    with host_memory.step_of(op) as step, host_memory.Team(threads) as team:

        def everywhere(work: Callable[..., None]) -> float:
            return team.run([functools.partial(work, own) for own in slices])

        everywhere(host_memory.fill)
        for work in (step, in_c):
            everywhere(host_memory.poison)
            everywhere(work)
            everywhere(host_memory.check)
        ways = {"probe": lambda: everywhere(step), "C loop": lambda: everywhere(in_c)}
        return in_turn(ways, float(host_memory.STREAMS[op] * size), rounds)


@contextlib.contextmanager
def compiled() -> Iterator[ctypes.CDLL | None]:
    """STREAM's loops as a library; None where there is no gcc."""
    gcc = shutil.which("gcc")
    if gcc is None:
        yield None
        return
    with tempfile.TemporaryDirectory() as folder:
        library = f"{folder}/stream.so"
        flags = ["-O3", "-march=native", "-funroll-loops", "-fPIC", "-shared"]
        subprocess.run([gcc, *flags, STREAM, "-o", library], check=True)
        yield ctypes.CDLL(library)


def small_copies(rounds: int) -> Iterator[bool]:
    """Queued copies of 64 KiB against a bare loop and the plain torch loop."""
    copies = Copies.make(torch, HostToDevice(bytes=64 * KIB))
    copies.verify()
    ours, bare = timer(copies.enqueue, QUEUE_MAX), timer(bare_enqueue(copies), QUEUE_MAX)
    call = copies.caller(torch)
    print(f"64 KiB H2D; two marks alone read {mark_overhead(ours.queue) or 0:.2e} s")
    rates = in_turn(
        {
            "queued by the probe": ours.sample,
            "bare cudaMemcpyAsync": bare.sample,
            "plain torch loop": lambda: wall(call, QUEUE_MAX) / QUEUE_MAX,
        },
        copies.moved,
        rounds,
    )
    copies.check()
    queued, plain_async, plain = (statistics.median(r) for r in rates.values())
    yield compared("  queued against bare", queued, plain_async, 0.97, 1.03)
    yield compared("  queued against plain", queued, plain, 3.0)


def peaks(rounds: int, nvbandwidth: str | None) -> Iterator[bool]:
    """Copies of 256 MiB against a bare loop, and against nvbandwidth if it is here."""
    for direction in NVBANDWIDTH:
        copies = Copies.make(torch, HostToDevice(bytes=256 * MIB, direction=direction))
        copies.verify()
        ours, bare = timer(copies.enqueue, 4), timer(bare_enqueue(copies), 4)
        print(f"256 MiB {direction.upper()}")
        ways = {"probe": ours.sample, "bare cudaMemcpyAsync": bare.sample}
        rates = in_turn(ways, copies.moved, max(5, rounds // 3))
        copies.check()
        probe, plain = (statistics.median(r) for r in rates.values())
        yield compared("  peak against bare", probe, plain, 0.99)
        if nvbandwidth:
            theirs = peer_programs.nvbandwidth(nvbandwidth, NVBANDWIDTH[direction])
            yield compared("  peak against nvbandwidth", probe, theirs, 0.99)
    if nvbandwidth is None:
        print("nvbandwidth is not on PATH: peaks are compared with the bare loop only")


def short_spins() -> Iterator[bool]:
    """A spin that ends before everything is enqueued must never give a time."""
    copies = Copies.make(torch, HostToDevice(bytes=64 * KIB))
    queue = cuda.CudaQueue(torch)
    copies.enqueue(QUEUE_MAX)
    queue.wait()
    enqueueing = wall(lambda: copies.enqueue(QUEUE_MAX))
    queue.wait()
    tries = 50
    timed = [
        behind_spin(queue, copies.enqueue, QUEUE_MAX, spin_seconds=enqueueing / 20)
        for _ in range(tries)
    ]
    noticed = sum(t is None for t in timed)
    ok = noticed == tries
    print(f"spins of 1/20 of the enqueueing: {noticed} of {tries} noticed  {_word(ok)}")
    yield ok


def timer(enqueue: Callable[[int], None], count: int) -> QueueTimer:
    """A timer of queues of a length, each behind a spin."""
    found = QueueTimer.fit(cuda.CudaQueue(torch), enqueue, count)
    if found is None or found.count != count:
        sys.exit(f"no spin outlasts {count} copies: {found}")
    return found


def bare_enqueue(copies: Copies) -> Callable[[int], None]:
    """Enqueues the same chunks by calling cudaMemcpyAsync itself."""
    path = cublaslt.loaded("libcudart")
    if path is None:
        sys.exit("torch loaded no shared libcudart here, so there is no bare loop to compare with")
    copy = ctypes.CDLL(path).cudaMemcpyAsync
    pointer = ctypes.c_void_p
    copy.argtypes = [pointer, pointer, ctypes.c_size_t, ctypes.c_int, pointer]
    way = copies.ways[0]
    kind = TO_DEVICE if way.to_device else TO_HOST
    to, source = way.target.data_ptr(), way.source.data_ptr()
    stream = torch.cuda.current_stream().cuda_stream
    offsets = itertools.cycle(range(0, way.host.numel(), copies.chunk))

    def enqueue(count: int) -> None:
        for offset in itertools.islice(offsets, count):
            if copy(to + offset, source + offset, copies.chunk, kind, stream):
                sys.exit("cudaMemcpyAsync failed")

    return enqueue


def products(rounds: int) -> Iterator[bool]:
    """bf16 products of the gemm probe against every kernel that cuBLASLt proposes for them."""
    size = 8192
    ours = gemm.Products(torch, "bf16", size, 2)
    ours.try_once()
    print(f"bf16 products of {size}; the probe chose {ours.choose()}")
    ours.verify()
    ways = {"probe": timer(ours.enqueue, 10).sample}
    for place, kernel in enumerate(cublaslt.kernels(torch, "bf16", size)):
        ways[f"cuBLASLt {place}"] = timer(over(ours.sets, kernel), 10).sample
    rates = in_turn(
        ways, 2.0 * size**3, rounds, unit="TFLOP/s", scale=1e12, before=lambda i: rested(i, ways)
    )
    ours.check()
    probe, *proposed = (statistics.median(r) for r in rates.values())
    best = max(proposed, default=probe)
    yield compared("  against the fastest", probe, best, 0.98, unit="TFLOP/s", scale=1e12)


def rested(index: int, ways: Mapping[str, Sample]) -> None:
    """
    Two rounds of products after each rest, so that no kernel meets the power limit.

    Under it the clock swings by several percent within a second, more than kernels differ.
    """
    if index % 2 == 0:
        time.sleep(REST_SECONDS)
        settled = time.monotonic() + gemm.SETTLING_SECONDS
        while time.monotonic() < settled:
            ways["probe"]()


def over(sets: Sequence[Any], kernel: cublaslt.Multiply) -> Callable[[int], None]:
    """Enqueues products of the same operands by one kernel."""
    walk = itertools.cycle(sets)

    def enqueue(count: int) -> None:
        for operands in itertools.islice(walk, count):
            kernel(*operands)

    return enqueue


def device_copies(rounds: int, nvbandwidth: str | None) -> Iterator[bool]:
    """Copies within a GPU, and from the first to the second, against nvbandwidth."""
    if nvbandwidth is None:
        return
    arrays = device_memory.Arrays(torch, "copy", GIB)
    arrays.verify()
    ours = in_turn({"probe": timer(arrays.enqueue, 4).sample}, float(GIB), rounds)["probe"]
    arrays.check()
    del arrays
    # Both count a byte that is copied once here; the probe itself counts its read and write.
    theirs = peer_programs.nvbandwidth(nvbandwidth, "device_local_copy")
    yield compared("copy within a GPU", statistics.median(ours), theirs, 0.99)
    if torch.cuda.device_count() < 2:
        print("one GPU: copies between GPUs are not compared")
        return
    for op, case in PEER.items():
        # As large as nvbandwidth's buffers: what a copy costs at its start counts alike.
        copies = peer.Copies.make(torch, peer.Peer(op=op, bytes=512 * MIB), (0, 1))
        copies.grant(on=True)
        with torch.cuda.stream(copies.ways[0].stream):
            copies.verify()
            found = in_turn({f"probe, {op}": timer(copies.enqueue, 8).sample}, copies.moved, rounds)
            copies.check()
        theirs = peer_programs.nvbandwidth(nvbandwidth, case, column=1)
        (own,) = found.values()
        yield compared(f"copy between GPUs, {op}", statistics.median(own), theirs, 0.99)


def all_reduce(folder: str | None) -> Iterator[bool]:
    """The main job's all-reduce against nccl-tests, on all GPUs of this host, in turn."""
    gpus = torch.cuda.device_count()
    if folder is None or gpus < 2:
        print("no --nccl-tests, or one GPU: collectives are not compared")
        return
    program = str(Path(folder) / "all_reduce_perf")
    before = peer_programs.nccl_tests(program, LARGE, gpus)
    sizes = ",".join(map(str, (SMALL, *LARGE)))
    # As nccl-tests does, all operations take one buffer, which small ones find in the caches.
    cells = peer_programs.topobench("all_reduce", f"bytes={sizes}", f"ranks={gpus}", "pool=warm")
    after = peer_programs.nccl_tests(program, LARGE, gpus)
    for size in LARGE:
        ours = peer_programs.median(cells, "busbw_bytes_per_second", bytes=size)
        theirs = statistics.mean(rows[size].busbw for rows in (before, after))
        yield compared(f"all-reduce of {size >> 20} MiB", ours, theirs, 0.99)
    ours = peer_programs.median(cells, "latency_seconds", bytes=SMALL)
    graph = peer_programs.nccl_tests(program, [SMALL], gpus, "-G", GRAPH_LAUNCHES)[SMALL].seconds
    eager = peer_programs.nccl_tests(program, [SMALL], gpus)[SMALL].seconds
    print(f"  nccl-tests, 8 KiB: {eager * 1e6:.2f} us without a graph")
    ok = ours <= 1.1 * graph
    print(
        f"all-reduce of 8 KiB: {ours * 1e6:.2f} against {graph * 1e6:.2f} us in a graph, "
        f"ratio {ours / graph:.4f} (bar 1.1 at most)  {_word(ok)}"
    )
    yield ok


def _word(ok: bool) -> str:
    return "ok" if ok else "MISSED"


if __name__ == "__main__":
    sys.exit(main())
