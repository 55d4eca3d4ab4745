"""What the kernel says of a host around a run, and the way through real workers."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import textwrap
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import launching
from launching import Lab
from made_machine import write
from topobench import validity
from topobench.agents.conditions.host_counters import cpu_times, read_host, read_networks
from topobench.agents.conditions.monitor import Monitor
from topobench.agents.conditions.settings import host_settings
from topobench.agents.discover.tree import Tree
from topobench.agents.launch import Launcher, Limits
from topobench.agents.service import HostRequest, HostService
from topobench.conditions import link_bytes
from topobench.reading import Arm, Binding, Case, Cell, Run, Scalar, Status
from topobench.topology import Cpus, Machine, Topology
from watched_gpu import Watched, cell

HERE = Tree.open("/")
NOWHERE = Topology("2026-01-01T00:00:00Z", "/", "none", "full", Machine(), Cpus())
CPU_GROUP = Path("/sys/fs/cgroup/cpu")


def codes(found: dict[str, Any], chosen: Cell) -> set[str]:
    return {f.code for f in validity.findings(found, chosen, NOWHERE)} - {"host_busy", "steal"}


def test_steal_and_idle_are_those_of_the_cpus_asked_for(tmp_path: Path) -> None:
    write(
        tmp_path,
        "proc/stat",
        "cpu  100 0 0 200 0 0 0 50 0 0\n"
        "cpu0 100 0 0 100 0 0 0 0 0 0\ncpu1 0 0 0 100 0 0 0 50 0 0\nintr 1\n",
    )
    tree, ticks = Tree.open(tmp_path), os.sysconf("SC_CLK_TCK")
    assert cpu_times(tree) == {"idle": 200 / ticks, "steal": 50 / ticks, "total": 350 / ticks}
    assert cpu_times(tree, [1]) == {"idle": 100 / ticks, "steal": 50 / ticks, "total": 150 / ticks}
    assert cpu_times(tree, [7]) == {}
    assert cpu_times(Tree.open(tmp_path / "empty")) == {}


def test_what_a_host_does_not_tell_is_named(tmp_path: Path) -> None:
    found = read_host(Tree.open(tmp_path))
    assert (found.load, found.cpu_seconds, found.counted) == (None, {}, {})
    assert set(found.unavailable) == {"cpu_throttling", "tcp", "vmstat", "cpu_heat", "cpu_times"}
    assert read_networks(Tree.open(tmp_path)) is None


def test_rdma_ports_count_words_of_four_bytes(tmp_path: Path) -> None:
    base = "sys/class/infiniband/mlx5_0/ports/1"
    write(tmp_path, "proc/net/dev", "head\nhead\n")
    for name, value in {
        "counters/port_xmit_data": "1000",
        "counters/port_rcv_data": "250",
        "counters/port_xmit_wait": "7",
        "hw_counters/out_of_sequence": "3",
        "hw_counters/lifespan": "10",
        "counters/unreadable": "N/A",
    }.items():
        write(tmp_path, f"{base}/{name}", value)
    assert read_networks(Tree.open(tmp_path)) == {
        "mlx5_0/1": {
            "sent_bytes": 4000,
            "received_bytes": 1000,
            "port_xmit_wait": 7,
            "out_of_sequence": 3,
        }
    }


def test_hot_cpus_are_counted(tmp_path: Path) -> None:
    for cpu, events in enumerate((2, 40)):
        name = f"sys/devices/system/cpu/cpu{cpu}/thermal_throttle/core_throttle_count"
        write(tmp_path, name, str(events))
    tree = Tree.open(tmp_path)
    assert read_host(tree, "1").counted == {"cpu_heat_events": 40}


def test_settings_of_a_host(tmp_path: Path) -> None:
    for name, text in {
        "sys/devices/system/cpu/online": "0-1",
        "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "performance",
        "sys/devices/system/cpu/cpu1/cpufreq/scaling_governor": "powersave",
        "sys/devices/system/cpu/intel_pstate/no_turbo": "1",
        "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never",
        "proc/sys/kernel/numa_balancing": "1",
        "proc/sys/vm/nr_hugepages": "512",
        "proc/cmdline": "ro quiet",
        "sys/devices/system/cpu/vulnerabilities/mds": "Vulnerable: Clear CPU buffers attempted",
        "sys/devices/system/cpu/vulnerabilities/meltdown": "Mitigation: PTI",
    }.items():
        write(tmp_path, name, text)
    assert host_settings(Tree.open(tmp_path)) == {
        "governor": "mixed: performance, powersave",
        "boost": "off",
        "thp": "madvise",
        "thp_defrag": None,
        "huge_pages": 512,
        "numa_balancing": 1,
        "mitigations": "on, but open: mds",
        "quota_cpus": None,
    }
    write(tmp_path, "proc/cmdline", "ro mitigations=off")
    assert host_settings(Tree.open(tmp_path))["mitigations"] == "mitigations=off"


def test_bytes_over_loopback_are_counted() -> None:
    piece, pieces = b"x" * 65536, 128
    with Monitor(sweep="s").watch(cell("p")) as found:
        server = socket.create_server(("127.0.0.1", 0))
        with server, socket.create_connection(server.getsockname()) as out:
            inward, _ = server.accept()
            with inward:
                for _ in range(pieces):
                    out.sendall(piece)
                    assert len(inward.recv(len(piece), socket.MSG_WAITALL)) == len(piece)
    (lo,) = [b for b in link_bytes(found) if b.device == "lo"]
    assert lo.sent is not None
    assert lo.sent >= pieces * len(piece)
    assert lo.received == lo.sent
    assert found["host"]["counted"]["tcp_sent_segments"] > 0


def test_load_and_cpu_time_of_this_host() -> None:
    with Monitor(sweep="s").watch(cell("p", binding=Binding("own", cpus="0"))) as found:
        until = time.monotonic() + 0.3
        while time.monotonic() < until:
            pass
    host = found["host"]
    assert host["load_1m"] == pytest.approx([os.getloadavg()[0]] * 2, abs=2)
    assert (host["cpus"], host["cpu_count"]) == ("0", os.cpu_count())
    assert 0 <= host["steal_ratio"] <= 1
    assert 0 <= host["busy_ratio"] <= 1
    assert found["monitor"]["seconds"] >= 0.3
    assert "gpus" not in found


@pytest.mark.parametrize("step", [-3600.0, 3600.0])
def test_a_step_of_the_wall_clock_changes_no_duration(
    monkeypatch: pytest.MonkeyPatch, step: float
) -> None:
    real, moved = time.time, [0.0]
    monkeypatch.setattr(time, "time", lambda: real() + moved[0])
    with Monitor(sweep="s").watch(cell("p")) as found:
        moved[0] = step
    assert found["host"]["clock_step_seconds"] == pytest.approx(step, abs=0.2)
    assert 0 < found["monitor"]["seconds"] < 60
    assert codes(found, cell("p")) == {"clock_step"}


@pytest.fixture
def small_group() -> Iterator[Path]:
    """A control group that grants a fifth of a CPU."""
    if not os.access(CPU_GROUP, os.W_OK) or not (CPU_GROUP / "cpu.cfs_quota_us").exists():
        # A version 2 group of our own needs its parent to hand the controller down.
        pytest.skip(f"no writable cpu controller at {CPU_GROUP}")
    group = CPU_GROUP / f"topobench-test-{uuid.uuid4().hex[:8]}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made: {error}")
    (group / "cpu.cfs_period_us").write_text("20000")
    (group / "cpu.cfs_quota_us").write_text("4000")
    yield group
    group.rmdir()


@pytest.mark.root
def test_a_group_that_holds_threads_back_is_seen(small_group: Path) -> None:
    program = """
        import json, time
        from topobench.agents.conditions.monitor import Monitor
        from watched_gpu import cell
        with Monitor(sweep="s").watch(cell("p")) as found:
            until = time.process_time() + 0.15
            while time.process_time() < until:
                pass
        print(json.dumps(found))
    """
    enter = 'echo $$ > "$0/cgroup.procs" && exec "$1" -c "$2"'
    done = subprocess.run(
        ["sh", "-c", enter, str(small_group), sys.executable, textwrap.dedent(program)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stderr == ""
    found = json.loads(done.stdout)
    assert found["host"]["quota_cpus"] == pytest.approx(0.2)
    assert found["host"]["counted"]["throttled_seconds"] > 0.1
    assert codes(found, cell("p")) == {"throttled", "cpu_quota_below_threads"}


COUNT = 24


def run_beside(folder: Path, gpu: Watched) -> Run:
    """A real worker with samples of 50 ms, in a cell of a GPU that a fake NVML tells about."""
    lab = Lab(folder)
    chosen = Cell(
        id=str(uuid.uuid4()),
        case=Case("paced", 1, {"mark": str(folder / "mark"), "count": COUNT}),
        host="key",
        arm=Arm(Binding("none")),
        devices=(gpu.uuid,),
    )
    watching = Monitor(sweep=lab.sweep, session=gpu.session, period_seconds=0.01)
    launcher = Launcher(
        sweep=lab.sweep,
        host=launching.host(),
        env={"PYTHONPATH": str(launching.TESTS)},
        log_dir=lab.logs,
        limits=Limits(least=20.0, start=10.0, start_gpu=10.0),
        targets={"paced": "worker_probes:Paced"},
        watch=watching.watch,
    )
    (run,) = launcher.run([chosen], stop=lab.stop)
    lab.assert_nothing_left()
    times = run.readings[0].times
    assert len(times) == COUNT
    assert list(times) == sorted(times)
    assert 0 < times[0] < times[-1] < run.duration_seconds
    return validity.judge(run, chosen, NOWHERE)


def test_samples_of_a_clean_run_are_all_kept(tmp_path: Path) -> None:
    gpu = Watched()
    run = run_beside(tmp_path, gpu)
    assert (run.status, run.readings[0].summary.n, run.readings[0].times) == (Status.OK, COUNT, ())
    assert run.conditions["gpus"][gpu.uuid]["clock_reasons"] == {}
    assert run.conditions["monitor"]["readings"] >= 5


def test_samples_taken_while_the_gpu_was_throttled_are_set_aside(tmp_path: Path) -> None:
    """The clocks of worker and agent are one: the GPU is slow in the middle of the samples."""
    mark = tmp_path / "mark"
    slow_from, slow_to = 0.3, 0.8

    def reasons() -> int:
        text = mark.read_text() if mark.exists() else ""
        return 0x40 if text and slow_from < time.monotonic() - float(text) < slow_to else 0

    run = run_beside(tmp_path, Watched(DeviceGetCurrentClocksEventReasons=reasons))
    assert run.status is Status.PARTIAL
    assert str(run.reason).startswith("throttled: ")
    (aside,) = run.conditions["set_aside"]
    (kept,) = run.readings
    dropped = [value for _, value in aside["samples"]]
    assert sorted([*kept.samples, *dropped]) == [1.0 + i for i in range(COUNT)]
    assert dropped == [dropped[0] + i for i in range(len(dropped))]
    assert dropped[0] > 1.0
    assert kept.summary.n == len(kept.samples) < COUNT


def test_a_run_on_a_gpu_that_is_always_throttled_is_invalid(tmp_path: Path) -> None:
    run = run_beside(tmp_path, Watched(DeviceGetCurrentClocksEventReasons=0x40))
    assert run.status is Status.INVALID
    assert "hw_thermal_slowdown in 100.0 % of the readings" in str(run.reason)


def test_the_agent_watches_judges_and_tells_its_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOPOBENCH_RUN_DIR", str(tmp_path))
    service = HostService(HostRequest(sweep=str(uuid.uuid4()), id="h"))
    params: dict[str, Scalar] = {"op": "copy", "bytes": 4 << 20}
    chosen = Cell(str(uuid.uuid4()), Case("host_memory", 1, params), "h", Arm(Binding("none")))
    try:
        service.describe()
        (run,) = service.run([chosen], {chosen.id: 1})
    finally:
        service.close()
    assert run.environment["host_settings"] == host_settings(HERE)
    assert run.conditions["monitor"]["seconds"] >= run.duration_seconds * 0.9
    assert run.conditions["host"]["busy_ratio"] > 0
    (reading,) = run.readings
    assert (reading.metric, reading.times) == ("bandwidth_bytes_per_second", ())
    assert len(reading.samples) == reading.summary.n + reading.summary.warmups
