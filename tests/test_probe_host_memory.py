from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from probing import Listener, measure
from topobench.errors import ProbeError, ProbeUnavailable, ResultInvalid
from topobench.probes import host_memory
from topobench.probes.host_memory import HostMemory

SIZE = 8 << 20


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(("op", "arrays"), [("copy", 2), ("triad", 3)])
def test_bandwidth_of_real_memory_is_measured(op: str, arrays: int, threads: int) -> None:
    """Between what a floppy and what a rack of HBM could give; every buffer was announced."""
    listener = Listener()
    (reading,) = measure(HostMemory(op=op, bytes=SIZE), listener.context(threads=threads))
    summary = reading.summary
    assert reading.metric == "bandwidth_bytes_per_second"
    assert 1e8 < summary.median < 1e13
    assert summary.n >= 3
    assert len(reading.samples) == summary.n + summary.warmups
    size = listener.notes["array_bytes"]
    assert SIZE - 4096 * threads < size <= SIZE
    assert size % (8 * threads) == 0
    assert [b for _, b in listener.buffers] == [size] * arrays
    assert listener.notes["bytes_convention"].startswith(f"{arrays} x array")


def test_bytes_are_counted_as_stream_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass that takes 1 s: 2 arrays for copy, 3 for triad."""
    run = host_memory.Team.run
    monkeypatch.setattr(host_memory.Team, "run", lambda self, tasks: run(self, tasks) * 0 + 1.0)
    for op, arrays in (("copy", 2), ("triad", 3)):
        (reading,) = measure(HostMemory(op=op, bytes=SIZE), Listener().context())
        assert reading.summary.median == arrays * SIZE


def test_triad_computes_a_triad() -> None:
    rng = np.random.default_rng(1)
    a, b, c = np.zeros(1000), rng.integers(0, 99, 1000) * 1.0, rng.integers(0, 99, 1000) * 1.0
    with host_memory.step_of("triad") as step:
        step([a, b, c])
    assert np.array_equal(a, b + 3 * c)


@pytest.mark.parametrize("op", ["copy", "triad"])
def test_one_wrong_element_is_found(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A memory that loses one element in the timed part, and only there."""
    passes = 0
    real = host_memory.Team.run

    def run(self: host_memory.Team, tasks: list[Any]) -> float:
        nonlocal passes
        passes += 1
        seconds = real(self, tasks)
        if passes > 5:  # fill, first pass, check, poison, then the samples
            arrays = tasks[-1].args[0]
            arrays[0][-7] += 1
        return seconds

    monkeypatch.setattr(host_memory.Team, "run", run)
    with pytest.raises(ResultInvalid, match=r"wrong_data: 1 of \d+ elements"):
        measure(HostMemory(op=op, bytes=SIZE), Listener().context())


def test_an_untouched_target_is_found() -> None:
    """A copy that did nothing leaves the poison, which equals nothing."""
    with pytest.raises(ResultInvalid, match="100 of 100 elements"):
        host_memory.check([np.full(100, np.nan), np.zeros(100)])


def test_latency_walks_every_line_of_one_cycle() -> None:
    pytest.importorskip("numba", reason="latency needs numba")
    (reading,) = measure(HostMemory(op="latency", bytes=SIZE), Listener().context())
    assert reading.metric == "latency_seconds"
    assert 3e-10 < reading.summary.median < 1e-4


def test_the_chase_is_one_random_cycle_over_all_lines() -> None:
    links, order = host_memory._cycle(1 << 16)
    at, seen = int(order[0]), set()
    for _ in range(len(order)):
        seen.add(at)
        at = int(links[at])
    assert at == int(order[0])
    assert seen == set(range(0, (1 << 16) // 8, 8))
    jumps = np.diff(order)
    assert np.count_nonzero(jumps == 8) < len(order) / 100


def test_latency_without_numba_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numba", None)
    with pytest.raises(ProbeUnavailable, match="no_package: latency needs numba"):
        measure(HostMemory(op="latency", bytes=SIZE), Listener().context())


def test_arrays_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ProbeError, match=r"not_enough_memory.*set host_memory.bytes smaller"):
        measure(HostMemory(bytes=1 << 50), Listener().context())


def test_default_size_is_four_times_the_caches_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_memory, "available_bytes", lambda: 1 << 40)
    monkeypatch.setattr(host_memory, "reachable_cache_bytes", lambda cpus, threads: 96 << 20)
    assert host_memory.array_bytes(None, threads=1, arrays=2) == 384 << 20
    monkeypatch.setattr(host_memory, "reachable_cache_bytes", lambda cpus, threads: 1 << 20)
    assert host_memory.array_bytes(None, threads=1, arrays=2) == 256 << 20


def test_default_size_is_cut_to_memory_but_never_into_the_caches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(host_memory, "reachable_cache_bytes", lambda cpus, threads: 64 << 20)
    monkeypatch.setattr(host_memory, "available_bytes", lambda: 800 << 20)
    assert host_memory.array_bytes(None, threads=1, arrays=2) == 200 << 20
    monkeypatch.setattr(host_memory, "available_bytes", lambda: 400 << 20)
    with pytest.raises(ProbeError, match="not_enough_memory"):
        host_memory.array_bytes(None, threads=1, arrays=2)


def write_cache(root: Path, cpu: int, index: int, level: int, size: str, shared: str) -> None:
    folder = root / f"cpu{cpu}/cache/index{index}"
    folder.mkdir(parents=True)
    for name, text in (
        ("level", f"{level}"),
        ("size", size),
        ("type", "Unified"),
        ("shared_cpu_list", shared),
    ):
        (folder / name).write_text(text + "\n")


def test_threads_reach_one_cache_each_and_every_cache_once(tmp_path: Path) -> None:
    """Four CPUs, two L3 of 32 MiB: one thread reaches one of them, four threads both."""
    for cpu in range(4):
        write_cache(tmp_path, cpu, 2, 2, "1024K", str(cpu))
        write_cache(tmp_path, cpu, 3, 3, "32768K", "0-1" if cpu < 2 else "2-3")
    reach = host_memory.reachable_cache_bytes
    assert reach({0, 1, 2, 3}, 1, tmp_path) == 32 << 20
    assert reach({0, 1, 2, 3}, 4, tmp_path) == 64 << 20
    assert reach({0, 1}, 4, tmp_path) == 32 << 20
    assert reach({9}, 4, tmp_path) == 0


def test_an_error_in_one_thread_comes_out_of_run() -> None:
    def fail() -> None:
        raise ResultInvalid("wrong_data", "here")

    with host_memory.Team(2) as team:
        with pytest.raises(ResultInvalid, match="here"):
            team.run([lambda: None, fail])
        assert team.run([lambda: None, lambda: None]) >= 0


def test_threads_inherit_the_affinity_of_the_worker() -> None:
    """A process bound to one CPU measures on that CPU only."""
    cpu = min(os.sched_getaffinity(0))
    code = (
        "import os\n"
        f"os.sched_setaffinity(0, [{cpu}])\n"
        "from topobench.probes.host_memory import Team\n"
        "got = []\n"
        "with Team(3) as team:\n"
        "    team.run([lambda: got.append(os.sched_getaffinity(0))] * 3)\n"
        "print(got)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str([{cpu}] * 3)
