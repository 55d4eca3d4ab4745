"""Doctor on CPUs, memory, folders and limits: levels, and the exact lines that mend and undo."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from examining import (
    CPU,
    DEBIAN,
    FACTS,
    GPUS,
    PLAIN,
    RDMA,
    THP,
    examine,
    lines,
    node,
)
from topobench.agents import doctor
from topobench.agents.discover import discover
from topobench.agents.doctor import Level
from topobench.errors import DiscoveryError


@pytest.mark.parametrize(
    ("release", "fix", "undo"),
    [
        (DEBIAN, "sudo apt-get install -y numactl", "sudo apt-get remove -y numactl"),
        (
            'ID="rocky"\nID_LIKE="rhel centos fedora"\n',
            "sudo dnf install -y numactl",
            "sudo dnf remove -y numactl",
        ),
        ("ID=sles\n", "sudo zypper install -y numactl", "sudo zypper remove -y numactl"),
        ("ID=nixos\n", None, None),
    ],
)
def test_missing_numactl_is_installed_by_the_hosts_own_tool(
    tmp_path: Path, release: str, fix: str | None, undo: str | None
) -> None:
    found = examine(tmp_path, {"etc/os-release": release}, facts={"numactl": None})["numactl"]
    assert lines(found) == (Level.WARN, fix, undo)
    assert found.found == "not found"


def test_present_numactl_is_ok(tmp_path: Path) -> None:
    found = examine(tmp_path)["numactl"]
    assert (found.level, found.found, found.fix) == (Level.OK, "/usr/bin/numactl", None)


@pytest.mark.parametrize(
    ("container", "env", "fix", "undo"),
    [
        ("docker", {}, "docker run --cap-add SYS_NICE IMAGE", "docker run IMAGE"),
        ("podman", {}, "podman run --cap-add SYS_NICE IMAGE", "podman run IMAGE"),
        (
            "containerd",
            {"KUBERNETES_SERVICE_HOST": "10.0.0.1"},
            "securityContext: {capabilities: {add: [SYS_NICE]}}",
            "securityContext: {}",
        ),
        (None, {}, None, None),
    ],
)
def test_denied_memory_policy_names_the_capability_of_the_container(
    tmp_path: Path,
    container: str | None,
    env: dict[str, str],
    fix: str | None,
    undo: str | None,
) -> None:
    denied = {"memory_policy": "denied: set_mempolicy: Operation not permitted"}
    found = examine(tmp_path, machine={"container": container}, env=env, facts=denied)[
        "memory_policy"
    ]
    assert lines(found) == (Level.ERROR, fix, undo)
    assert "Operation not permitted" in found.found


def test_quota_below_the_allowed_cpus_is_lifted_where_it_is_set(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "0::/batch/job7\n",
        "sys/fs/cgroup/batch/cpu.max": "250000 100000\n",
        "sys/fs/cgroup/batch/job7/cpu.max": "max 100000\n",
    }
    found = examine(tmp_path, files, cpus={"quota_cpus": 2.5})["cpu_quota"]
    assert found.found == "the time of 2.5 CPUs for 8 allowed CPUs"
    assert lines(found) == (
        Level.WARN,
        "echo max | sudo tee /sys/fs/cgroup/batch/cpu.max",
        "echo '250000 100000' | sudo tee /sys/fs/cgroup/batch/cpu.max",
    )


def test_quota_of_cgroup_v1_is_lifted_by_minus_one(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "4:cpuset:/\n2:cpu,cpuacct:/job\n",
        "sys/fs/cgroup/cpu/job/cpu.cfs_quota_us": "200000\n",
    }
    assert lines(examine(tmp_path, files, cpus={"quota_cpus": 2.0})["cpu_quota"]) == (
        Level.WARN,
        "echo -1 | sudo tee /sys/fs/cgroup/cpu/job/cpu.cfs_quota_us",
        "echo 200000 | sudo tee /sys/fs/cgroup/cpu/job/cpu.cfs_quota_us",
    )


def test_quota_of_a_container_is_lifted_from_outside(tmp_path: Path) -> None:
    found = examine(tmp_path, machine={"container": "docker"}, cpus={"quota_cpus": 1.5})[
        "cpu_quota"
    ]
    assert lines(found) == (
        Level.WARN,
        "docker update --cpus 8 CONTAINER",
        "docker update --cpus 1.5 CONTAINER",
    )


def test_no_quota_or_a_large_one_is_ok(tmp_path: Path) -> None:
    assert examine(tmp_path)["cpu_quota"].found == "no quota"
    assert examine(tmp_path, cpus={"quota_cpus": 8.0})["cpu_quota"].level is Level.OK


def test_inherited_affinity_narrower_than_the_cpuset_is_widened(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "0::/s\n",
        "sys/fs/cgroup/s/cpuset.cpus.effective": "0-5\n",
    }
    found = examine(tmp_path, files, facts={"inherited_cpus": "2-3"})["inherited_affinity"]
    assert found.found == "CPUs 2-3 of 0-5"
    assert lines(found) == (Level.WARN, "taskset -pc 0-5 $$", "taskset -pc 2-3 $$")


def test_affinity_as_wide_as_the_cpuset_is_ok(tmp_path: Path) -> None:
    """CPUs outside the cpuset are not inheritance's to give."""
    files = {
        "proc/self/cgroup": "0::/s\n",
        "sys/fs/cgroup/s/cpuset.cpus.effective": "0-5\n",
    }
    assert (
        examine(tmp_path, files, facts={"inherited_cpus": "0-5"})["inherited_affinity"].level
        is Level.OK
    )


def test_unread_affinity_is_unknown(tmp_path: Path) -> None:
    found = examine(tmp_path, facts={"inherited_cpus": None})["inherited_affinity"]
    assert (found.level, found.found) == (
        Level.UNKNOWN,
        "the inherited affinity could not be read",
    )


@pytest.mark.parametrize(
    ("check", "path", "value"),
    [
        ("numa_balancing", "/proc/sys/kernel/numa_balancing", "1"),
        ("numa_balancing", "/proc/sys/kernel/numa_balancing", "2"),
        ("zone_reclaim", "/proc/sys/vm/zone_reclaim_mode", "3"),
    ],
)
def test_kernel_setting_for_several_nodes_is_put_to_zero_and_back(
    tmp_path: Path, check: str, path: str, value: str
) -> None:
    found = examine(tmp_path, {path.lstrip("/"): f"{value}\n"})[check]
    assert lines(found) == (
        Level.WARN,
        f"echo 0 | sudo tee {path}",
        f"echo {value} | sudo tee {path}",
    )
    assert examine(tmp_path, {path.lstrip("/"): "0\n"})[check].level is Level.OK


def test_kernel_settings_for_several_nodes_are_left_out_on_one_node(tmp_path: Path) -> None:
    one = dataclasses.replace(PLAIN, numa_nodes=(node(0),))
    files = {"proc/sys/kernel/numa_balancing": "1\n", "proc/sys/vm/zone_reclaim_mode": "1\n"}
    assert not {"numa_balancing", "zone_reclaim"} & set(examine(tmp_path, files, topology=one))


def test_huge_pages_switched_off_are_offered_and_put_back(tmp_path: Path) -> None:
    found = examine(tmp_path, {f"{THP}/enabled": "always madvise [never]\n"})["huge_pages"]
    assert lines(found) == (
        Level.WARN,
        f"echo madvise | sudo tee /{THP}/enabled",
        f"echo never | sudo tee /{THP}/enabled",
    )


def test_defrag_at_every_fault_is_a_warning(tmp_path: Path) -> None:
    text = "[always] defer defer+madvise madvise never\n"
    assert lines(examine(tmp_path, {f"{THP}/defrag": text})["huge_page_defrag"]) == (
        Level.WARN,
        f"echo madvise | sudo tee /{THP}/defrag",
        f"echo always | sudo tee /{THP}/defrag",
    )


def test_huge_pages_at_madvise_are_ok_and_absent_ones_left_out(tmp_path: Path) -> None:
    assert "huge_pages" not in examine(tmp_path)
    found = examine(tmp_path, {f"{THP}/enabled": "always [madvise] never\n"})["huge_pages"]
    assert (found.level, found.found) == (Level.OK, "madvise")


def test_unheard_of_huge_page_text_is_unknown(tmp_path: Path) -> None:
    found = examine(tmp_path, {f"{THP}/enabled": "garbage\n"})["huge_pages"]
    assert found.level is Level.UNKNOWN
    assert "'garbage'" in found.found


def test_one_governor_for_all_cpus_is_restored_by_one_line(tmp_path: Path) -> None:
    files = {f"{CPU}/cpu{n}/cpufreq/scaling_governor": "powersave\n" for n in range(4)}
    found = examine(tmp_path, files)["cpu_governor"]
    pattern = f"/{CPU}/cpu*/cpufreq/scaling_governor"
    assert found.found == "powersave x4"
    assert lines(found) == (
        Level.WARN,
        f"echo performance | sudo tee {pattern}",
        f"echo powersave | sudo tee {pattern}",
    )


def test_mixed_governors_are_restored_cpu_by_cpu(tmp_path: Path) -> None:
    names = ["powersave", "schedutil", "powersave"]
    files = {f"{CPU}/cpu{n}/cpufreq/scaling_governor": name for n, name in enumerate(names)}
    path = f"/{CPU}/cpu{{}}/cpufreq/scaling_governor"
    assert examine(tmp_path, files)["cpu_governor"].undo == (
        f"echo powersave | sudo tee {path.format(0)} {path.format(2)}; "
        f"echo schedutil | sudo tee {path.format(1)}"
    )


def test_governor_is_ok_at_performance_and_left_out_without_clock_control(
    tmp_path: Path,
) -> None:
    assert "cpu_governor" not in examine(tmp_path)
    files = {f"{CPU}/cpu0/cpufreq/scaling_governor": "performance\n"}
    assert examine(tmp_path, files)["cpu_governor"].level is Level.OK


def idle_states(*latencies: int, disabled: Sequence[int] = ()) -> dict[str, str]:
    files = {f"{CPU}/cpuidle/current_driver": "intel_idle\n"}
    for cpu in (0, 1):
        for number, latency in enumerate(latencies):
            state = f"{CPU}/cpu{cpu}/cpuidle/state{number}"
            files[f"{state}/latency"] = f"{latency}\n"
            files[f"{state}/disable"] = "1\n" if number in disabled else "0\n"
    return files


def test_deep_idle_states_are_disabled_and_enabled_again(tmp_path: Path) -> None:
    found = examine(tmp_path, idle_states(0, 2, 170))["cpu_idle"]
    pattern = f"/{CPU}/cpu*/cpuidle/state2/disable"
    assert found.found == "driver intel_idle, deepest enabled state 170 us"
    assert lines(found) == (
        Level.WARN,
        f"echo 1 | sudo tee {pattern}",
        f"echo 0 | sudo tee {pattern}",
    )


def test_disabled_deep_idle_state_is_ok(tmp_path: Path) -> None:
    found = examine(tmp_path, idle_states(0, 2, 170, disabled=[2]))["cpu_idle"]
    assert (found.level, found.found) == (
        Level.OK,
        "driver intel_idle, deepest enabled state 2 us",
    )


def test_swap_in_use_is_emptied_and_restored_with_its_priority(tmp_path: Path) -> None:
    text = (
        "Filename\tType\tSize\tUsed\tPriority\n"
        "/dev/sda2 partition 8388604 1048576 -2\n"
        "/swap.img file 8388604 2048 10\n"
        "/dev/zram0 partition 8388604 0 100\n"
    )
    found = examine(tmp_path, {"proc/swaps": text})["swap"]
    assert found.found == "/dev/sda2: 1024 MiB in use, /swap.img: 2 MiB in use"
    assert lines(found) == (
        Level.WARN,
        "sudo swapoff /dev/sda2; sudo swapoff /swap.img",
        "sudo swapon /dev/sda2; sudo swapon -p 10 /swap.img",
    )


def test_unused_swap_is_ok_and_unread_swap_unknown(tmp_path: Path) -> None:
    assert examine(tmp_path)["swap"].level is Level.UNKNOWN
    assert (
        examine(tmp_path, {"proc/swaps": "Filename Type Size Used Priority\n"})["swap"].found
        == "no swap"
    )


def test_garbled_swap_table_is_unknown_not_a_crash(tmp_path: Path) -> None:
    found = examine(
        tmp_path, {"proc/swaps": "Filename Type Size Used Priority\n/dev/sda2 partition\n"}
    )
    assert found["swap"].level is Level.UNKNOWN


def limits(soft: str, hard: str) -> dict[str, str]:
    return {"proc/self/limits": f"Max locked memory         {soft}    {hard}     bytes\n"}


@pytest.mark.parametrize(
    ("soft", "hard", "container", "fix", "undo"),
    [
        ("65536", "unlimited", None, "ulimit -S -l unlimited", "ulimit -S -l 64"),
        (
            "8388608",
            "8388608",
            "docker",
            "docker run --ulimit memlock=-1 IMAGE",
            "docker run IMAGE",
        ),
        (
            "8388608",
            "8388608",
            None,
            "echo '* - memlock unlimited' | sudo tee "
            "/etc/security/limits.d/90-topobench-memlock.conf",
            "sudo rm /etc/security/limits.d/90-topobench-memlock.conf",
        ),
    ],
)
def test_memlock_limit_with_rdma_is_an_error(
    tmp_path: Path, soft: str, hard: str, container: str | None, fix: str, undo: str
) -> None:
    found = examine(tmp_path, {**limits(soft, hard), **RDMA}, machine={"container": container})
    assert lines(found["memlock"]) == (Level.ERROR, fix, undo)


def test_memlock_matters_only_with_rdma(tmp_path: Path) -> None:
    assert "memlock" not in examine(tmp_path, limits("65536", "65536"))
    found = examine(tmp_path, {**limits("unlimited", "unlimited"), **RDMA})["memlock"]
    assert found.level is Level.OK


MOUNTS = "tmpfs /dev/shm tmpfs rw,nosuid,size=65536k,inode64 0 0\n"


@pytest.mark.parametrize(
    ("container", "fix", "undo"),
    [
        (
            None,
            "sudo mount -o remount,size=8G /dev/shm",
            "sudo mount -o remount,size=65536k /dev/shm",
        ),
        ("docker", "docker run --shm-size 8g IMAGE", "docker run IMAGE"),
        ("kubernetes", "{name: shm, emptyDir: {medium: Memory, sizeLimit: 8Gi}}", None),
    ],
)
def test_small_shared_memory_is_enlarged(
    tmp_path: Path, container: str | None, fix: str, undo: str | None
) -> None:
    files = {"proc/self/mounts": MOUNTS}
    facts = {"shm_bytes": 64 << 20}
    found = examine(tmp_path, files, machine={"container": container}, facts=facts)["shared_memory"]
    assert found.found == "64 MiB"
    assert lines(found) == (Level.WARN, fix, undo)


def test_small_shared_memory_beside_several_gpus_is_an_error(tmp_path: Path) -> None:
    found = examine(tmp_path, topology=GPUS, facts={"shm_bytes": 64 << 20})["shared_memory"]
    assert found.level is Level.ERROR
    assert found.undo == "sudo mount -o remount,size=50% /dev/shm"
    unread = examine(tmp_path, topology=GPUS, facts={"shm_bytes": None})["shared_memory"]
    assert unread.level is Level.UNKNOWN


ROOT_MOUNT = "30 1 0:40 / / rw - overlay overlay rw,lowerdir=/x\n"


@pytest.mark.parametrize(
    ("mounts", "level"),
    [
        (ROOT_MOUNT, Level.WARN),
        (f"{ROOT_MOUNT}31 30 0:41 / /run rw - tmpfs tmpfs rw\n", Level.WARN),
        (
            f"{ROOT_MOUNT}31 30 0:24 /lock/topobench /run/lock/topobench rw - tmpfs tmpfs rw\n",
            Level.OK,
        ),
        (f"{ROOT_MOUNT}31 30 0:24 /lock /run/lock rw - tmpfs tmpfs rw\n", Level.OK),
        (
            f"{ROOT_MOUNT}31 30 8:1 /var/lib/kubelet/pods/p/volumes/kubernetes.io~empty-dir/l"
            " /run/lock/topobench rw - ext4 /dev/sda1 rw\n",
            Level.WARN,
        ),
    ],
)
def test_lock_folder_must_come_from_the_host(tmp_path: Path, mounts: str, level: Level) -> None:
    files = {"proc/self/mountinfo": mounts}
    found = examine(tmp_path, files, machine={"container": "docker"})["lock_folder"]
    assert found.level is level
    if level is Level.WARN:
        assert found.fix == "docker run -v /run/lock/topobench:/run/lock/topobench IMAGE"
        assert found.undo == "docker run IMAGE"


def test_lock_folder_follows_the_environment(tmp_path: Path) -> None:
    files = {"proc/self/mountinfo": ROOT_MOUNT}
    env = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "TOPOBENCH_RUN_DIR": "/var/tb"}
    assert lines(examine(tmp_path, files, env=env)["lock_folder"]) == (
        Level.WARN,
        "{name: lock, hostPath: {path: /var/tb, type: DirectoryOrCreate}}",
        None,
    )
    assert "lock_folder" not in examine(tmp_path, files)


def test_home_that_ray_cannot_write_is_replaced_and_put_back(tmp_path: Path) -> None:
    new = 'export HOME="$(mktemp -d)"'
    assert lines(examine(tmp_path)["ray_home"]) == (Level.ERROR, new, "unset HOME")
    gone = examine(tmp_path, env={"HOME": "/nonexistent"})["ray_home"]
    assert lines(gone) == (Level.ERROR, new, "export HOME=/nonexistent")
    assert gone.found == "/nonexistent does not exist"
    spaced = examine(tmp_path, env={"HOME": "/no such home"})["ray_home"]
    assert spaced.undo == "export HOME='/no such home'"
    (tmp_path / "root").mkdir()
    assert examine(tmp_path, env={"HOME": "/root"})["ray_home"].level is Level.OK
    assert examine(tmp_path, env={"RAY_AUTH_TOKEN_PATH": "/t"})["ray_home"].level is Level.OK


@contextlib.contextmanager
def plain_user() -> Iterator[None]:
    """access(2) asks for the real user, and root may write everywhere: be another one."""
    if os.getuid() != 0:
        yield
        return
    os.setresuid(65534, -1, -1)
    try:
        yield
    finally:
        os.setresuid(0, -1, -1)


def test_home_without_write_permission_is_an_error() -> None:
    with tempfile.TemporaryDirectory() as root:  # unlike tmp_path open to other users
        home = Path(root, "home")
        home.mkdir()
        Path(root).chmod(0o755)
        found = []
        for mode in (0o777, 0o555):
            home.chmod(mode)
            with plain_user():
                found.append(examine(Path(root), env={"HOME": "/home"})["ray_home"])
    assert (found[0].level, found[0].found) == (Level.OK, "/home")
    assert (found[1].level, found[1].found) == (Level.ERROR, "/home cannot be written")
    assert found[1].undo == "export HOME=/home"


TCP = (
    "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt\n"
    "   0: 00000000:{port:04X} 00000000:0000 {state} 00000000:00000000 00:00000000 00000000\n"
)


def test_port_held_by_another_program_offers_the_next_one(tmp_path: Path) -> None:
    files = {"proc/net/tcp": TCP.format(port=6379, state="0A")}
    assert lines(examine(tmp_path, files)["ray_port"]) == (
        Level.WARN,
        "ray start --head --port=6380",
        "ray start --head",
    )
    ray = {**files, "proc/77/comm": "gcs_server\n"}
    assert examine(tmp_path, ray)["ray_port"].found == "held by a Ray head on this host"


def test_port_of_a_mere_connection_is_free(tmp_path: Path) -> None:
    assert examine(tmp_path)["ray_port"].level is Level.UNKNOWN
    files = {"proc/net/tcp": TCP.format(port=6379, state="01")}
    assert examine(tmp_path, files)["ray_port"].found == "free"


@pytest.mark.parametrize(
    ("free", "env", "level", "undo"),
    [
        (20 << 30, {}, Level.OK, None),
        (5 << 30, {}, Level.WARN, "unset RAY_TMPDIR"),
        (100 << 20, {"RAY_TMPDIR": "/small"}, Level.ERROR, "export RAY_TMPDIR=/small"),
        (None, {}, Level.UNKNOWN, None),
    ],
)
def test_disk_space(
    tmp_path: Path, free: int | None, env: dict[str, str], level: Level, undo: str | None
) -> None:
    found = examine(tmp_path, facts={"free_disk_bytes": free}, env=env)["disk"]
    assert (found.level, found.undo) == (level, undo)


def test_unusual_host_gives_no_fix_without_a_reason(tmp_path: Path) -> None:
    """Nothing but a full description comes out, whatever is missing."""
    for finding in examine(tmp_path, topology=GPUS).values():
        assert finding.found
        assert finding.wanted
        assert finding.why
        assert finding.undo is None or finding.fix is not None
        assert finding.level is not Level.OK or finding.fix is None


def test_live_host_is_examined_and_left_as_it_was() -> None:
    """Every check gives a finding, or says that it does not apply; settings stay."""
    watched = ["/proc/sys/kernel/numa_balancing", f"/{THP}/enabled", "/proc/swaps"]
    before = [Path(p).read_text() for p in watched if Path(p).exists()]
    found = doctor.examine(
        topology=discover(),
        facts=dataclasses.replace(FACTS, inherited_cpus=None),
        env=dict(os.environ),
        run=doctor.run_program,
    )
    assert [Path(p).read_text() for p in watched if Path(p).exists()] == before
    names = [c.name for c in doctor.CHECKS]
    assert [f.check for f in found] == [n for n in names if n in {f.check for f in found}]
    by_check = {f.check: f for f in found}
    assert by_check["inherited_affinity"].level is Level.UNKNOWN
    assert by_check["swap"].level in (Level.OK, Level.WARN)
    assert by_check["ray_port"].level in (Level.OK, Level.WARN)


def test_program_that_is_absent_is_a_discovery_error() -> None:
    with pytest.raises(DiscoveryError, match="no-such-program cannot be run: No such file"):
        doctor.run_program(["no-such-program"])
