"""
Bars of host-to-device copies, measured side by side in one run on a real GPU.

* queued 64 KiB: within 3 % of a bare cudaMemcpyAsync loop behind the same spin, and at
  least 3 times the plain torch loop that waits for each copy;
* peak, H2D and D2H: at least 0.99 of nvbandwidth, where that is on PATH.

The three ways at 64 KiB take turns, sample by sample, over the same pools.

    python benchmarks/h2d_bar.py [--rounds N] [--pairs N]
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import json
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from topobench.probes import cuda
from topobench.probes.host_to_device import Copies, HostToDevice
from topobench.probes.protocol import WorkerContext
from topobench.probes.timing import QUEUE_MAX, QueueTimer, wall
from topobench.reading import Binding

KIB, MIB = 1 << 10, 1 << 20
HOST_TO_DEVICE = 1  # cudaMemcpyKind
NVBANDWIDTH = {"h2d": "host_to_device_memcpy_ce", "d2h": "device_to_host_memcpy_ce"}


def runtime() -> ctypes.CDLL:
    """The CUDA runtime that torch loaded into this process."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = line.rpartition(" ")[2]
        if "libcudart" in path:
            return ctypes.CDLL(path)
    sys.exit("torch loaded no shared libcudart here, so there is no bare loop to compare with")


def bare_enqueue(copies: Copies) -> Callable[[int], None]:
    """Enqueues the same chunks by calling cudaMemcpyAsync itself."""
    library = runtime()
    copy = library.cudaMemcpyAsync
    pointer = ctypes.c_void_p
    copy.argtypes = [pointer, pointer, ctypes.c_size_t, ctypes.c_int, pointer]
    way = copies.ways[0]
    stream = torch.cuda.current_stream().cuda_stream
    offsets = itertools.cycle(range(0, way.host.numel(), copies.chunk))
    to, source, size = way.device.data_ptr(), way.host.data_ptr(), copies.chunk

    def enqueue(count: int) -> None:
        for offset in itertools.islice(offsets, count):
            if copy(to + offset, source + offset, size, HOST_TO_DEVICE, stream):
                sys.exit("cudaMemcpyAsync failed")

    return enqueue


def timer(enqueue: Callable[[int], None]) -> QueueTimer:
    """A timer of full queues behind a spin."""
    found = QueueTimer.fit(cuda.CudaQueue(torch), enqueue, QUEUE_MAX)
    if found is None or found.count != QUEUE_MAX:
        sys.exit(f"no spin outlasts {QUEUE_MAX} copies: {found}")
    return found


def small_copies(rounds: int) -> bool:
    """The 64 KiB bars."""
    copies = Copies.make(torch, HostToDevice(bytes=64 * KIB))
    copies.verify()
    ours, bare = timer(copies.enqueue), timer(bare_enqueue(copies))
    stream = torch.cuda.current_stream()

    def plain() -> None:
        copies.enqueue(1)
        stream.synchronize()

    ways: dict[str, Callable[[], float]] = {
        "queued by the probe": ours.sample,
        "bare cudaMemcpyAsync": bare.sample,
        "plain torch loop": lambda: wall(plain, QUEUE_MAX) / QUEUE_MAX,
    }
    samples: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, sample in ways.items():
            samples[name].append(copies.chunk / sample())
    copies.check()
    medians = {name: statistics.median(values) for name, values in samples.items()}
    for name, value in medians.items():
        spread = max(samples[name]) - min(samples[name])
        print(f"64 KiB, {name:22} {value / 1e9:6.2f} GB/s, range {spread / 1e9:.2f}, n {rounds}")
    queued, bare_rate, plain_rate = medians.values()
    near = abs(queued / bare_rate - 1) <= 0.03
    print(f"queued / bare  {queued / bare_rate:.4f}  (bar 1 +- 0.03)  {'ok' if near else 'MISSED'}")
    fast = queued >= 3 * plain_rate
    print(f"queued / plain {queued / plain_rate:.2f}  (bar 3)  {'ok' if fast else 'MISSED'}")
    return near and fast


def probed(direction: str) -> float:
    """The probe's median at 256 MiB, as stored."""
    notes: dict[str, Any] = {}
    context = WorkerContext(
        binding=Binding("none"),
        devices=("GPU",),
        rank=0,
        ranks=1,
        publish=lambda address: None,
        wait=str,
        interface=None,
        deadline_seconds=120.0,
        buffer_ready=lambda address, size: None,
        note=notes.__setitem__,
        warn=print,
    )
    reading = next(iter(HostToDevice(bytes=256 * MIB, direction=direction).measure(context)))
    summary = reading.summary
    print(
        f"256 MiB {direction}, probe: {summary.median / 1e9:.2f} GB/s, n {summary.n}, "
        f"{summary.stop_reason}, mad {summary.mad / 1e9:.3f}"
    )
    return summary.median


def nvbandwidth(program: str, direction: str) -> float:
    """What nvbandwidth gives for GPU 0, in bytes per second."""
    case = NVBANDWIDTH[direction]
    done = subprocess.run([program, "-t", case, "-j"], capture_output=True, text=True, check=True)
    document = json.loads(done.stdout[done.stdout.index("{") :])
    (found,) = document["nvbandwidth"]["testcases"]
    return float(found["bandwidth_matrix"][0][0]) * 1e9


def peaks(rounds: int) -> bool:
    """The peak bars; true where nvbandwidth is not there to compare with."""
    program = shutil.which("nvbandwidth")
    held = True
    for direction in NVBANDWIDTH:
        if program is None:
            probed(direction)
            continue
        pairs = [(probed(direction), nvbandwidth(program, direction)) for _ in range(rounds)]
        ours, theirs = (statistics.median(side) for side in zip(*pairs, strict=True))
        ok = ours >= 0.99 * theirs
        held &= ok
        print(
            f"{direction} peak: probe {ours / 1e9:.2f}, nvbandwidth {theirs / 1e9:.2f} GB/s, "
            f"ratio {ours / theirs:.4f}  (bar 0.99)  {'ok' if ok else 'MISSED'}"
        )
    if program is None:
        print("nvbandwidth is not on PATH: the peak bar was not checked")
    return held


def main() -> int:
    """Print every figure; 0 if the bars hold."""
    parser = argparse.ArgumentParser(description=__doc__.strip().splitlines()[0])
    parser.add_argument("--rounds", type=int, default=40, help="samples of each way at 64 KiB")
    parser.add_argument("--pairs", type=int, default=3, help="alternations with nvbandwidth")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("torch finds no usable GPU")
    torch.cuda.set_device(0)
    print(f"{torch.cuda.get_device_name(0)}, torch {torch.__version__}")
    held = [small_copies(options.rounds), peaks(options.pairs)]
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
