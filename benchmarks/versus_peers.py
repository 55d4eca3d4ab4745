"""
Our figures beside those of the programs people trust, in one run, taking turns.

    python benchmarks/versus_peers.py [--nvbandwidth PROGRAM] [--nccl-tests FOLDER]

* host memory: copy and triad at least 0.9 of STREAM's loops compiled by gcc;
* queued copies of 64 KiB: within 3 % of a bare cudaMemcpyAsync loop behind the same spin,
  and at least 3 times the plain torch loop that waits for each copy;
* peaks, H2D and D2H: at least 0.99 of a bare loop, and of nvbandwidth;
* a spin that is too short is noticed, never timed;
* all-reduce at 128 MiB: at least 0.99 of nccl-tests' bus bandwidth.

What this machine lacks (a GPU, two GPUs, gcc, a program) is said and not compared. Exit code 1
if a bar is missed.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import functools
import itertools
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import torch

from topobench.probes import cuda, host_memory
from topobench.probes.host_to_device import Copies, HostToDevice
from topobench.probes.timing import QUEUE_MAX, QueueTimer, behind_spin, mark_overhead, wall

KIB, MIB = 1 << 10, 1 << 20
TO_DEVICE, TO_HOST = 1, 2  # cudaMemcpyKind
NVBANDWIDTH = {"h2d": "host_to_device_memcpy_ce", "d2h": "device_to_host_memcpy_ce"}
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
        torch.cuda.set_device(0)
        print(f"{torch.cuda.get_device_name(0)}, torch {torch.__version__}")
        held += small_copies(options.rounds)
        held += peaks(options.rounds, options.nvbandwidth)
        held += short_spins()
        held += all_reduce(options.nccl_tests)
    else:
        print("torch finds no usable GPU: copies and collectives are not compared")
    return 0 if all(held) else 1


def compared(
    what: str, ours: float, theirs: float, least: float, most: float | None = None
) -> bool:
    """Print one pair of rates, in bytes a second, and whether the bar holds."""
    ratio = ours / theirs
    ok = ratio >= least and (most is None or ratio <= most)
    bar = f"{least}" if most is None else f"{least} to {most}"
    print(
        f"{what}: {ours / 1e9:.2f} against {theirs / 1e9:.2f} GB/s, ratio {ratio:.4f} "
        f"(bar {bar})  {'ok' if ok else 'MISSED'}"
    )
    return ok


def in_turn(ways: Mapping[str, Sample], amount: float, rounds: int) -> dict[str, list[float]]:
    """Rates of each way; they take turns, so that all see the same noise."""
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, sample in ways.items():
            rates[name].append(amount / sample())
    for name, found in rates.items():
        middle, low, high = statistics.median(found) / 1e9, min(found) / 1e9, max(found) / 1e9
        print(f"  {name:24} {middle:8.2f} GB/s, {low:.2f} to {high:.2f}, n {rounds}")
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
            theirs = statistics.median(peer_peak(nvbandwidth, direction) for _ in range(3))
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
    copy = _runtime().cudaMemcpyAsync
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


def _runtime() -> ctypes.CDLL:
    """The CUDA runtime that torch loaded into this process."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = line.rpartition(" ")[2]
        if "libcudart" in path:
            return ctypes.CDLL(path)
    sys.exit("torch loaded no shared libcudart here, so there is no bare loop to compare with")


def peer_peak(program: str, direction: str) -> float:
    """What nvbandwidth gives for GPU 0, in bytes per second."""
    command = [program, "-t", NVBANDWIDTH[direction], "-j"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    document = json.loads(done.stdout[done.stdout.index("{") :])
    (found,) = document["nvbandwidth"]["testcases"]
    return float(found["bandwidth_matrix"][0][0]) * 1e9


def all_reduce(folder: str | None) -> Iterator[bool]:
    """The main job's all-reduce at 128 MiB against nccl-tests, on all GPUs of this host."""
    gpus = torch.cuda.device_count()
    if folder is None or gpus < 2:
        print("no --nccl-tests, or one GPU: collectives are not compared")
        return
    size = "128M"
    with tempfile.TemporaryDirectory() as store:
        settings = [f"--set=all_reduce.bytes={size}", "--bindings=none", "--format=json"]
        done = subprocess.run(
            [sys.executable, "-m", "topobench", "probe", "--probes=all_reduce", *settings],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "TOPOBENCH_STORE": f"sqlite:///{store}/bar.db"},
        )
    readings = [r for c in json.loads(done.stdout)["data"]["cells"] for r in c["readings"]]
    ours = next(r["median"] for r in readings if r["metric"] == "busbw_bytes_per_second")
    program = str(Path(folder) / "all_reduce_perf")
    told = subprocess.run(
        [program, "-b", size, "-e", size, "-g", str(gpus)],
        capture_output=True,
        text=True,
        check=True,
    )
    average = next(line for line in told.stdout.splitlines() if "Avg bus bandwidth" in line)
    yield compared("128 MiB all-reduce", ours, float(average.rpartition(":")[2]) * 1e9, 0.99)


def _word(ok: bool) -> str:
    return "ok" if ok else "MISSED"


if __name__ == "__main__":
    sys.exit(main())
