"""
What the driver of a sweep over very many hosts costs: planning, scheduling, storing.

Usage: python -m benchmarks.scale_bar [--hosts N] [--profile NAME] [--probes A,B]
           [--cells N] [--pace SECONDS] [--url URL] [--ray N]

Hosts are simulated: eight GPUs on two NUMA nodes each. Their agents are threads that give a
run of the usual size for each cell, made of the bytes a real agent would send, and measure
nothing. Planner, scheduler (``sweep.drive``), progress and store are the real ones; the store
is a SQLite file unless ``--url`` names another. Memory is what this process held at most (it
holds the simulated hosts, too).

``--pace`` has each cell take so long, as measuring would; without it runs come as fast as they
can be taken. ``--cells`` drives only the first cells of each host; planning and the rows of the
plan are whole. ``--ray N`` measures something else: N agents reached through a real Ray, all in
one actor, to see what its calls and signs of life add for each cell.

Bars: 1,000 hosts of the quick profile planned in 5 s, at most 5 ms of driver CPU a cell and
1 GB. CPU time counts, so that a busy machine does not change the answer.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import os
import pickle
import platform
import random
import resource
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.plan_bar import simulated_host
from topobench import __version__, config, pairs, sweep
from topobench.db.recorder import Recorder
from topobench.host import Host
from topobench.plan import Plan, batches, make_plan
from topobench.reading import Cell, Member, Reading, Run, Status, Summary, to_json

PLAN_SECONDS, CELL_SECONDS, MOST_BYTES = 5.0, 5e-3, 1e9
READINGS, SAMPLES = 4, 30
CONDITIONS = {
    "monitor": {"seconds": 1.4, "readings": 12},
    "gpus": {
        "GPU-0": {
            "sm_hertz": [1.98e9, 1.98e9, 1.98e9],
            "power_watts": [310.0, 420.0, 512.0],
            "temperature_celsius": [41, 44, 47],
            "clock_reasons": {"idle": 0.1},
            "pcie": {"generation": [1, 5, 5], "width": [16, 16, 16], "loaded_readings": 9},
            "limits": {"sm_hertz": 1.98e9, "power_watts": 700.0, "pcie_generation": 5},
            "counted": {"pcie_replay_count": 0, "ecc_corrected_count": 0},
            "nvlinks": {str(n): {"sent_bytes": n, "received_bytes": n} for n in range(18)},
            "users": {"visible": True, "own": [4711], "foreign": []},
        }
    },
    "host": {"load_1m": [0.4, 0.9], "cpu_count": 128, "steal_ratio": 0.0, "counted": {}},
}
"""About what is gathered around a run on one GPU."""


def main() -> int:
    """Measure and print; 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__.strip().splitlines()[0])
    parser.add_argument("--hosts", type=int, default=1000)
    parser.add_argument("--profile", default="quick")
    parser.add_argument("--probes", help="only these")
    parser.add_argument("--cells", type=int, help="drive so many of each host; default: all")
    parser.add_argument("--pace", type=float, default=0.0, help="seconds a cell takes")
    parser.add_argument("--url", help="store; default: a SQLite file in a temporary folder")
    parser.add_argument("--ray", type=int, help="so many agents through a real Ray instead")
    options = parser.parse_args()
    print(
        f"{_cpu_model()}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}, Python "
        f"{platform.python_version()}, topobench {__version__}"
    )
    if options.ray:
        return _through_ray(options.ray, options.cells or 100)
    overrides = config.Overrides(profile=options.profile, probes=options.probes)
    wanted = config.load(None, overrides=overrides, environ={})
    hosts = [simulated_host(number) for number in range(options.hosts)]
    print(f"{len(hosts)} hosts: {_gigabytes()}")
    _rounds(len(hosts))
    plan, planning = _planned(wanted, hosts)
    with tempfile.TemporaryDirectory() as folder:
        url = options.url or f"sqlite:///{folder}/scale.db"
        a_cell = _driven(plan, hosts, url, Path(folder), options.cells, options.pace)
    held = _most_bytes()
    missed = planning > PLAN_SECONDS or a_cell > CELL_SECONDS or held > MOST_BYTES
    print(f"bars {'missed' if missed else 'held'} (they are those of 1,000 hosts, quick)")
    return int(missed)


def _rounds(count: int) -> None:
    begun = time.process_time()
    drawn = pairs.rounds(count, random.Random(1), every=False)
    took = time.process_time() - begun
    met = sum(map(len, drawn))
    print(f"pair rounds: {len(drawn)} of {met} pairs, {took:.3f} s CPU")


def _planned(wanted: config.ClusterConfig, hosts: Sequence[Host]) -> tuple[Plan, float]:
    begun = time.process_time()
    plan = make_plan(wanted, hosts, seed=1)
    seconds = time.process_time() - begun
    counts = ", ".join(f"{n} {status}" for status, n in sorted(plan.counts.items()))
    print(
        f"plan: {seconds:.2f} s CPU, {counts}; estimated to run for "
        f"{plan.estimated_seconds / 60:.0f} min; {_gigabytes()}"
    )
    return plan, seconds


def _driven(
    plan: Plan, hosts: Sequence[Host], url: str, folder: Path, most: int | None, pace: float
) -> float:
    """Store the plan, drive it; CPU seconds of the driver for each cell driven."""
    id = str(uuid.uuid4())
    chosen = list(_first(plan.cells, most))
    crowd = Crowd(pace)
    agents = [Simulated(host, crowd) for host in hosts]
    warnings: list[str] = []
    with Recorder.open(url, folder=folder / "spool", warn=warnings.append) as store:
        begun, start = time.process_time(), time.perf_counter()
        store.begin_sweep(
            id=id, cluster="scale", profile="quick", trigger="manual", seed=1,
            tool_version=__version__, config_text="", started_at=sweep.utc_now(),
            estimated_seconds=plan.estimated_seconds, hosts=hosts, cells=plan.cells,
        )  # fmt: skip
        stored = time.process_time() - begun
        print(
            f"plan stored: {stored:.2f} s CPU, {1e3 * stored / len(plan.cells):.3f} ms a cell; "
            f"{_gigabytes()}"
        )
        before, start = time.process_time(), time.perf_counter()
        runs = sweep.drive(chosen, agents, store, crowd, stop=threading.Event())
        driven, wall = time.process_time() - before, time.perf_counter() - start
        before = time.process_time()
        store.end_sweep(id)
        ended = time.process_time() - before
    joint = sum(1 for c in chosen if c.hosts)
    assert (crowd.stored, len(runs)) == (len(chosen), joint)
    assert not warnings, warnings[:3]
    a_cell = stored / len(plan.cells) + (driven + ended) / len(chosen)
    print(
        f"driven: {len(chosen)} cells ({joint} of several hosts) in {wall:.0f} s, "
        f"{driven:.1f} s CPU; {len(chosen) / driven:.0f} runs a CPU second; at most "
        f"{crowd.most_waiting} runs waited for the store, {crowd.most_threads} threads; "
        f"{_gigabytes()}"
    )
    print(f"ended: {ended:.2f} s CPU. Together {1e3 * a_cell:.2f} ms of CPU a cell")
    return a_cell


def _first(cells: Sequence[Cell], most: int | None) -> Iterator[Cell]:
    """The first cells of each host, whole workers together, and of those of several hosts."""
    planned = [c for c in cells if c.status is Status.PLANNED]
    seen: dict[str, int] = {}
    for batch in batches(planned):
        for cell in batch:
            owners = set(cell.hosts) or {cell.host}
            if most is None or all(seen.get(h, 0) < most for h in owners):
                seen.update((h, seen.get(h, 0) + 1) for h in owners)
                yield cell


class Crowd:
    """What simulated agents share: the run they send; and a watcher that counts."""

    def __init__(self, pace: float) -> None:
        self.pace = pace
        self.most_waiting = self.most_threads = 0
        self.made = itertools.count(1)
        self.last_made = self.stored = 0
        self._bytes = pickle.dumps(to_json(_run()))

    def run(self, cell: Cell, *, counts: bool = True) -> Run:
        """A run as it comes out of the bytes of an agent."""
        if self.pace:
            time.sleep(self.pace)
        value = {**pickle.loads(self._bytes), "id": str(uuid.uuid4()), "cell": cell.id}
        if counts:
            self.last_made = next(self.made)
        return Run.from_json(value)

    def cell_started(self, cell: Cell) -> None:
        """As the progress display is told."""

    def run_finished(self, cell: Cell, run: Run) -> None:
        """Count what waits."""
        self.stored += 1
        self.most_waiting = max(self.most_waiting, self.last_made - self.stored)
        if self.stored % 100 == 0:
            self.most_threads = max(self.most_threads, threading.active_count())


class Simulated:
    """A host's agent that measures nothing."""

    def __init__(self, host: Host, crowd: Crowd) -> None:
        self.host = host
        self.lost: str | None = None
        self._crowd = crowd

    def run(self, cells: Sequence[Cell], attempts: Mapping[str, int]) -> Iterator[Run]:
        """One run a cell; the cells are serialised as for a real agent."""
        sent = pickle.dumps([to_json(c) for c in cells])
        assert sent
        for cell in cells:
            yield self._crowd.run(cell)

    def run_part(self, cell: Cell, *, attempt: int, fresh: bool, last: bool) -> tuple[Run, bool]:
        """This host's part of a cell of several hosts."""
        assert pickle.dumps(to_json(cell))
        run = self._crowd.run(cell, counts=cell.hosts[0] == self.host.key)
        own = [rank for rank, host in enumerate(cell.hosts) if host == self.host.key]
        (member,) = run.members
        members = (dataclasses.replace(member, rank=n, host=self.host.key) for n in own)
        return dataclasses.replace(run, members=tuple(members)), True

    def published(self, cell: str, seconds: float) -> str | None:
        """Where rank 0 is met."""
        return "10.0.0.1:29500"

    def tell(self, cell: str, address: str) -> None:
        """Nobody listens."""

    def lose(self, cell: str, text: str, seconds: float) -> None:
        """Nobody listens."""

    def cancel(self) -> None:
        """Nothing runs."""


def _run() -> Run:
    made = random.Random(1)
    return Run(
        id="",
        cell="",
        status=Status.OK,
        reason=None,
        started_at=sweep.utc_now(),
        duration_seconds=1.4,
        readings=tuple(_reading(made, number) for number in range(READINGS)),
        members=(Member(0, "h0000", "GPU-0", 4711, "0-31", 0, 0, "bind:0"),),
        environment={"torch": "2.13.0", "cuda": "13.0", "host_settings": {"governor": "x"}},
        conditions=CONDITIONS,
    )


def _reading(made: random.Random, number: int) -> Reading:
    values = tuple(made.gauss(5e10, 1e8) for _ in range(SAMPLES))
    summary = Summary(
        n=SAMPLES, median=5e10, minimum=min(values), maximum=max(values), mad=1e8,
        ci_lo=4.99e10, ci_hi=5.01e10, p90=5.02e10, stop_reason="converged",
    )  # fmt: skip
    metric = ("bandwidth_bytes_per_second", "latency_seconds")[number % 2]
    return Reading(metric, summary, values, {"point": number // 2})


def _through_ray(count: int, each: int) -> int:
    """CPU of the driver for each cell that comes through Ray; the store is left out."""
    from topobench.agents import embedded

    hosts = [simulated_host(number) for number in range(count)]
    wanted = config.load(None, overrides=config.Overrides(profile="quick"), environ={})
    plan = make_plan(wanted, hosts, seed=1)
    own = [c for c in plan.cells if not c.hosts]
    cells = list(_first(own, each))
    with embedded.surroundings("local", "scale") as options:
        import ray

        from topobench.agents import ray_agent

        ray.init(address="local", logging_level="ERROR", log_to_driver=False, **options)
        try:
            actor = ray.remote(_Sender).options(max_concurrency=count, num_cpus=0).remote()
            ray.get(actor.pid.remote())
            agents = [ray_agent.RayAgent(host, actor) for host in hosts]
            crowd = Crowd(0.0)
            before, start = time.process_time(), time.perf_counter()
            with ray_agent.Pulse(agents):
                sweep.drive(cells, agents, _Nowhere(), crowd, stop=threading.Event())
            cpu, wall = time.process_time() - before, time.perf_counter() - start
        finally:
            ray.shutdown()
    assert crowd.stored == len(cells)
    workers = len(batches(cells))
    print(
        f"{count} agents through Ray: {len(cells)} cells of {workers} workers in {wall:.0f} s, "
        f"{1e3 * cpu / len(cells):.2f} ms of CPU a cell without the store; {_gigabytes()}"
    )
    return int(cpu / len(cells) > CELL_SECONDS)


class _Sender:
    """The actor: every host's agent at once."""

    def __init__(self) -> None:
        self._crowd = Crowd(0.0)

    def run(self, cells: list[dict[str, Any]], attempts: dict[str, int]) -> Iterator[Any]:
        """Stream the runs of a batch, as ``ray_agent.HostAgent`` does."""
        for cell in (Cell.from_json(c) for c in cells):
            yield to_json(self._crowd.run(cell))

    def pid(self) -> int:
        """A sign of life."""
        return os.getpid()


class _Nowhere:
    def put_run(self, run: Run) -> object:
        return dataclasses.replace(run)


def _most_bytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0


def _gigabytes() -> str:
    return f"{_most_bytes() / 1e9:.2f} GB held at most so far"


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


if __name__ == "__main__":
    raise SystemExit(main())
