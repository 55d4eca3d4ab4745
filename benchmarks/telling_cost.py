"""
What telling samples while they are made costs them (probes/so_far.py).

    python -m benchmarks.telling_cost [--rounds N]

The same short measurements with and without a listener, in turn and in the same processes:
all-reduces of 8 B and 8 KiB over gloo between 2 processes, and copies of 64 KiB, called as
host_to_device does. This process reads what is told, as the launcher does. The median of the
rounds' ratios counts, beside the ratios of two rounds without: what the machine does by itself.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import platform
import statistics
import threading
from collections.abc import Callable
from typing import Any

from topobench import stats
from topobench.agents.so_far import SoFar
from topobench.probes import so_far
from topobench.probes.all_reduce import AllReduce
from topobench.probes.metrics import LATENCY
from topobench.probes.protocol import WorkerContext
from topobench.probes.timing import batch_size, collect, wall
from topobench.probes.worker import Channel
from topobench.reading import Binding

RANKS, SIZES = 2, (8, 8 << 10)
COPY_BYTES = 64 << 10
TURNS = ("silent", "told", "told", "silent")
Figure = Callable[[], float]


def all_reduces(context: WorkerContext) -> dict[str, Figure]:
    """Median seconds of each size; only rank 0 has them."""

    def figure(size: int) -> float:
        probe = AllReduce(bytes=size, ranks=RANKS, backend="gloo")
        readings = list(probe.measure(context))
        return readings[0].summary.median if readings else 0.0

    return {f"all_reduce of {size} B": lambda size=size: figure(size) for size in SIZES}


def copies() -> float:
    """Median seconds of a copy between two tensors, each call by itself."""
    import torch

    source, target = (torch.rand(COPY_BYTES // 4) for _ in range(2))
    count = batch_size(lambda n: wall(lambda: target.copy_(source), n))
    with so_far.durations(LATENCY.name):
        timed = collect(
            lambda: wall(lambda: target.copy_(source), count) / count,
            tolerance=stats.BANDWIDTH_TOLERANCE,
            budget_seconds=0.5,
        )
    return timed.durations(LATENCY.name).summary.median


def _rank(rank: int, rounds: int, pipe: Any, addresses: Any, results: Any) -> None:
    import torch

    torch.set_num_threads(1)
    context = WorkerContext(
        binding=Binding("none"), devices=(), rank=rank, ranks=RANKS, publish=addresses.put,
        wait=addresses.get, interface=None, deadline_seconds=60.0,
        buffer_ready=lambda address, size: None, note=lambda key, value: None,
        warn=lambda text: None,
    )  # fmt: skip
    figures = all_reduces(context)
    if rank == 0:
        figures[f"copies of {COPY_BYTES} B"] = copies
        channel = Channel(os.dup(pipe.fileno()))
    for number in range(-1, rounds):
        for name, figure in figures.items():
            for turn in TURNS:
                teller = None
                if rank == 0 and turn == "told":
                    teller = so_far.Teller(lambda n: channel.send("so_far", **n), {LATENCY.name})
                with so_far.listening(teller):
                    seconds = figure()
                if rank == 0 and number >= 0:
                    results.put((name, turn, seconds))
    results.put(None)


def listen(pipe: Any, heard: list[int]) -> None:
    """Read what is told, and count the messages and samples."""
    kept = SoFar()
    with contextlib.closing(pipe), os.fdopen(os.dup(pipe.fileno()), "rb") as lines:
        for line in lines:
            message = json.loads(line)
            kept.take(message)
            heard[0] += 1
            heard[1] += len(message["warm"]) + len(message["counted"])


def main() -> None:
    """Print for each measurement the ratio of told to silent, and of silent to silent."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    rounds = parser.parse_args().rounds
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe(duplex=False)
    addresses, results, heard = spawn.Queue(), spawn.Queue(), [0, 0]
    ranks = [
        spawn.Process(target=_rank, args=(rank, rounds, theirs, addresses, results))
        for rank in range(RANKS)
    ]
    for rank in ranks:
        rank.start()
    theirs.close()
    threading.Thread(target=listen, args=(ours, heard), daemon=True).start()
    found: dict[str, dict[str, list[float]]] = {}
    for _ in ranks:
        while (row := results.get(timeout=600)) is not None:
            name, turn, seconds = row
            found.setdefault(name, {}).setdefault(turn, []).append(seconds)
    for rank in ranks:
        rank.join()
    for name, turns in found.items():
        silent, told = turns["silent"], turns["told"]
        pairs = list(zip(silent[::2], silent[1::2], told[::2], told[1::2], strict=True))
        between = statistics.median((c + d) / (a + b) for a, b, c, d in pairs)
        alike = sorted(max(a, b) / min(a, b) for a, b, _, _ in pairs)
        print(
            f"{name}: {statistics.median(silent) * 1e6:.2f} us silent, told / silent "
            f"{between:.4f}; two silent ones differ by {alike[len(alike) // 2] - 1:.1%}"
        )
    print(f"{heard[0]} messages with {heard[1]} samples were told")
    print(f"{os.cpu_count()} CPUs {platform.machine()}, load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
