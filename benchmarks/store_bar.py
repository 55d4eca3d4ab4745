"""
How many readings a second a store takes, at one commit a run.

Usage: python benchmarks/store_bar.py [--url URL] [--runs N] [--readings N] [--samples N]

Without ``--url``: a SQLite file in a temporary folder. Prints readings per second by the
wall clock and by this process's CPU time; on a shared machine the second is the steadier. Also
the bytes on disk that a reading takes; with ``--samples 0`` without its samples.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
import uuid

from topobench.db.store import Store
from topobench.host import Host, HostFacts
from topobench.reading import Arm, Binding, Case, Cell, Member, Reading, Run, Status, Summary
from topobench.topology import Cpus, Machine, Topology

STARTED = "2026-11-02T01:00:00.000000Z"
METRICS = ("bandwidth_bytes_per_second", "latency_seconds")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.strip().splitlines()[0])
    parser.add_argument("--url", help="store; default: a SQLite file in a temporary folder")
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--readings", type=int, default=60, help="readings of each run")
    parser.add_argument("--samples", type=int, default=30, help="samples of each reading")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        url = options.url or f"sqlite:///{folder}/bar.db"
        wall, cpu, size = measure(url, options.runs, options.readings, options.samples)
    total = options.runs * options.readings
    print(
        f"{url.partition(':')[0]}: {total} readings of {options.samples} samples in "
        f"{options.runs} commits: {total / wall:,.0f} readings/s by the wall clock, "
        f"{total / cpu:,.0f} by our CPU time, {cpu / options.runs * 1e3:.2f} ms CPU a run, "
        f"{size / total:.0f} bytes a reading"
    )


def measure(url: str, runs: int, readings: int, samples: int) -> tuple[float, float, int]:
    """Wall and CPU seconds of storing the runs, without making them, and what they take on disk."""
    made = random.Random(1)
    cells = [_cell(n) for n in range(runs)]
    todo = [_run(made, c, readings, samples) for c in cells]
    with Store.open(url) as store:
        store.begin_sweep(
            id=str(uuid.uuid4()),
            cluster="bar",
            profile="full",
            trigger="manual",
            seed=1,
            tool_version="0",
            started_at=STARTED,
            hosts=[_host()],
            cells=cells,
        )
        before = _size(store)
        wall, cpu = time.perf_counter(), time.process_time()
        for run in todo:
            store.put_run(run)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        return wall, cpu, _size(store) - before


def _size(store: Store) -> int:
    """Bytes of the database without what still waits in SQLite's log."""
    if store.path is not None:
        with store.engine.connect() as connection:
            connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
            connection.rollback()
    return store.size_bytes() or 0


def _host() -> Host:
    topology = Topology(STARTED, "/", "none", "full", Machine(), Cpus(online="0-1"))
    return Host("bar", "id", "bar", "127.0.0.1", HostFacts("bar", "python", "0", "", ""), topology)


def _cell(number: int) -> Cell:
    case = Case("host_memory", 1, {"bytes": 1 << (10 + number % 20)})
    return Cell(str(uuid.uuid4()), case, "bar", Arm(Binding("none")), process_no=number)


def _run(made: random.Random, cell: Cell, readings: int, samples: int) -> Run:
    return Run(
        id=str(uuid.uuid4()),
        cell=cell.id,
        status=Status.OK,
        reason=None,
        started_at=STARTED,
        duration_seconds=1.0,
        readings=tuple(_reading(made, n, samples) for n in range(readings)),
        members=(Member(0, "bar", None, 4711, "0-1", 0, 0, "default"),),
        environment={"torch": "2.13.0"},
        conditions={"load": 0.5},
    )


def _reading(made: random.Random, number: int, samples: int) -> Reading:
    values = tuple(made.gauss(1e9, 1e7) for _ in range(samples))
    low, high = (min(values), max(values)) if values else (9.7e8, 1.03e9)
    summary = Summary(
        n=samples or 30, median=1e9, minimum=low, maximum=high, mad=1e7, ci_lo=9.9e8,
        ci_hi=1.01e9, p90=1.02e9, stop_reason="converged",
    )  # fmt: skip
    return Reading(METRICS[number % 2], summary, values, {"point": number // 2})


if __name__ == "__main__":
    main()
