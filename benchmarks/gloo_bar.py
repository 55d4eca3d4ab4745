"""
All-reduce of 64 MiB over gloo between 2 processes, against a bare loop over torch's own calls.

    python -m benchmarks.gloo_bar

Both sides run in turn, in fresh processes, and the median of the rounds' ratios counts: on a
shared machine single rounds say little. The bar: at least 0.95 times the bare loop's bandwidth.
"""

from __future__ import annotations

import multiprocessing
import os
import platform
import statistics
import sys
import tempfile
import threading
import time
import uuid
from pathlib import Path
from typing import Any

from topobench.agents.launch import Launcher
from topobench.agents.service import HostRequest, describe_host
from topobench.host import Host
from topobench.probes.all_reduce import AllReduce
from topobench.probes.metrics import ALGBW
from topobench.reading import Arm, Binding, Case, Cell

SIZE, RANKS, ROUNDS = 64 << 20, 2, 5
WARMUPS, OPERATIONS = 3, 15
BAR = 0.95


def ours(host: Host, logs: Path) -> float:
    """Bytes per second of the probe, in workers as a sweep starts them."""
    launcher = Launcher(sweep=uuid.uuid4().hex, host=host, env={}, log_dir=logs)
    params = {"bytes": SIZE, "dtype": "float32", "ranks": RANKS, "backend": "gloo"}
    cell = Cell(
        id=str(uuid.uuid4()),
        case=Case(AllReduce.name, AllReduce.version, params),
        host=host.key,
        arm=Arm(Binding("none")),
        ranks=RANKS,
        estimated_seconds=5.0,
    )
    (run,) = launcher.run([cell], stop=threading.Event())
    if run.reason is not None:
        raise SystemExit(f"all_reduce: {run.status}: {run.reason}")
    return next(r.summary.median for r in run.readings if r.metric == ALGBW.name and not r.point)


def bare() -> float:
    """Bytes per second of a loop: the slower rank of each operation counts, as in the probe."""
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        meeting = f"file://{folder}/meeting"
        ranks = [
            context.Process(target=_rank, args=(rank, meeting, results)) for rank in range(RANKS)
        ]
        for rank in ranks:
            rank.start()
        times = [results.get(timeout=300) for _ in ranks]
        for rank in ranks:
            rank.join()
    return SIZE / statistics.median(map(max, zip(*times, strict=True)))


def _rank(rank: int, meeting: str, results: Any) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=RANKS)
    buffer = torch.rand(SIZE // 4)
    taken = []
    for _ in range(WARMUPS + OPERATIONS):
        buffer.fill_(1.0)  # else the values grow without end
        dist.barrier()
        began = time.perf_counter()
        dist.all_reduce(buffer)
        taken.append(time.perf_counter() - began)
    results.put(taken[WARMUPS:])
    dist.destroy_process_group()


def main() -> int:
    """Print both and their ratio; 1 below the bar."""
    host = describe_host(HostRequest(sweep="bar"))
    with tempfile.TemporaryDirectory() as logs:
        rounds = [(ours(host, Path(logs)), bare()) for _ in range(ROUNDS)]
    for number, (mine, theirs) in enumerate(rounds):
        print(f"round {number}: topobench {mine / 1e9:.3f} GB/s, bare loop {theirs / 1e9:.3f} GB/s")
    ratio = statistics.median(mine / theirs for mine, theirs in rounds)
    machine = f"{os.cpu_count()} CPUs {platform.machine()}, load {os.getloadavg()[0]:.1f}"
    print(f"median ratio of a round {ratio:.3f} (bar {BAR}); {machine}")
    return 0 if ratio >= BAR else 1


if __name__ == "__main__":
    sys.exit(main())
