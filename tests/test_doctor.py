"""Doctor against made-up and real hosts: each level, and the exact lines that mend and undo."""

from __future__ import annotations

import dataclasses
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from topobench.agents import doctor
from topobench.agents.doctor import Finding, Level
from topobench.errors import DiscoveryError
from topobench.host import HostFacts
from topobench.topology import (
    Cpus,
    Gpu,
    Known,
    Machine,
    Nic,
    NodeKind,
    NumaNode,
    NvLink,
    NvLinks,
    PciDevice,
    Topology,
)

DEBIAN = 'PRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\nID=debian\n'
CLOSED = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Tue Sep 23 10:11:16 UTC 2025\n"
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build\n"
CPU = "sys/devices/system/cpu"
THP = "sys/kernel/mm/transparent_hugepage"

FACTS = HostFacts(
    hostname="h1",
    interpreter="/opt/py/bin/python",
    topobench="1.0",
    source_digest="0" * 64,
    python="3.12.3",
    numactl="/usr/bin/numactl",
    torch="2.11.0+cu130",
    inherited_cpus="0-7",
    shm_bytes=16 << 30,
    free_disk_bytes=100 << 30,
)


def node(number: int) -> NumaNode:
    return NumaNode(number, NodeKind.CPU_MEMORY, f"{4 * number}-{4 * number + 3}", 2 << 30, True)


def gpu(number: int, **changes: Any) -> Gpu:
    known = Gpu(number, f"GPU-{number}", f"0000:0{number + 1}:00.0", "H200", 141 << 30, Known(0))
    return dataclasses.replace(known, **changes)


def function(address: str, pci_class: str = "0x060400", **changes: Any) -> PciDevice:
    made = PciDevice(address, pci_class, "0x10b5", "0x8747", None, "downstream", Known(0))
    return dataclasses.replace(made, **changes)


PLAIN = Topology(
    taken_at="2026-01-01T00:00:00Z",
    root="/",
    virtualization="none",
    trust="full",
    machine=Machine(kernel="6.1.0"),
    cpus=Cpus(online="0-7", allowed="0-7"),
    numa_nodes=(node(0), node(1)),
)
GPUS = dataclasses.replace(
    PLAIN,
    machine=Machine(kernel="6.1.0", driver="580.95.05", cuda="13.0"),
    gpus=(gpu(0), gpu(1)),
    pci=(
        function("0000:00:01.0"),
        function("0000:01:00.0", "0x030200", parent="0000:00:01.0", vendor="0x10de"),
    ),
)
RDMA = (Nic("mlx5_0", None, Known(0), 5e10, "InfiniBand", "active"),)

Examine = Callable[..., dict[str, Finding]]


@pytest.fixture
def examine(tmp_path: Path) -> Examine:
    """Examines a host made of the files given; the answer is keyed by check."""

    def run(
        files: Mapping[str, str] | None = None,
        *,
        topology: Topology = PLAIN,
        machine: Mapping[str, Any] | None = None,
        cpus: Mapping[str, Any] | None = None,
        facts: Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
        smi: Mapping[str, str] | None = None,
    ) -> dict[str, Finding]:
        for name, text in {"etc/os-release": DEBIAN, **(files or {})}.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        topology = dataclasses.replace(
            topology,
            machine=dataclasses.replace(topology.machine, **(machine or {})),
            cpus=dataclasses.replace(topology.cpus, **(cpus or {})),
        )
        found = doctor.examine(
            tmp_path,
            topology=topology,
            facts=dataclasses.replace(FACTS, **(facts or {})),
            env=env or {},
            run=None if smi is None else recorded(smi),
        )
        assert len({f.check for f in found}) == len(found)
        return {f.check: f for f in found}

    return run


def recorded(
    answers: Mapping[str, str],
) -> Callable[[Sequence[str]], subprocess.CompletedProcess[str]]:
    """Answers as nvidia-smi printed them, by the first word of its options that is a key."""

    def run(argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
        for key, text in answers.items():
            if any(key in option for option in argv[1:]):
                code = 0 if text.startswith("GPU") else 18
                return subprocess.CompletedProcess(argv, code, text, "")
        raise DiscoveryError("nvidia-smi cannot be run: No such file or directory")

    return run


def lines(finding: Finding) -> tuple[Level, str | None, str | None]:
    return finding.level, finding.fix, finding.undo


# --- binding -------------------------------------------------------------------------------


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
    examine: Examine, release: str, fix: str | None, undo: str | None
) -> None:
    found = examine({"etc/os-release": release}, facts={"numactl": None})["numactl"]
    assert lines(found) == (Level.WARN, fix, undo)
    assert found.found == "not found"


def test_present_numactl_is_ok(examine: Examine) -> None:
    found = examine()["numactl"]
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
    examine: Examine,
    container: str | None,
    env: dict[str, str],
    fix: str | None,
    undo: str | None,
) -> None:
    denied = {"memory_policy": "denied: set_mempolicy: Operation not permitted"}
    found = examine(machine={"container": container}, env=env, facts=denied)["memory_policy"]
    assert lines(found) == (Level.ERROR, fix, undo)
    assert "Operation not permitted" in found.found


def test_quota_below_the_allowed_cpus_is_lifted_where_it_is_set(examine: Examine) -> None:
    files = {
        "proc/self/cgroup": "0::/batch/job7\n",
        "sys/fs/cgroup/batch/cpu.max": "250000 100000\n",
        "sys/fs/cgroup/batch/job7/cpu.max": "max 100000\n",
    }
    found = examine(files, cpus={"quota_cpus": 2.5})["cpu_quota"]
    assert found.found == "the time of 2.5 CPUs for 8 allowed CPUs"
    assert lines(found) == (
        Level.WARN,
        "echo max | sudo tee /sys/fs/cgroup/batch/cpu.max",
        "echo '250000 100000' | sudo tee /sys/fs/cgroup/batch/cpu.max",
    )


def test_quota_of_cgroup_v1_is_lifted_by_minus_one(examine: Examine) -> None:
    files = {
        "proc/self/cgroup": "4:cpuset:/\n2:cpu,cpuacct:/job\n",
        "sys/fs/cgroup/cpu/job/cpu.cfs_quota_us": "200000\n",
    }
    assert lines(examine(files, cpus={"quota_cpus": 2.0})["cpu_quota"]) == (
        Level.WARN,
        "echo -1 | sudo tee /sys/fs/cgroup/cpu/job/cpu.cfs_quota_us",
        "echo 200000 | sudo tee /sys/fs/cgroup/cpu/job/cpu.cfs_quota_us",
    )


def test_quota_of_a_container_is_lifted_from_outside(examine: Examine) -> None:
    found = examine(machine={"container": "docker"}, cpus={"quota_cpus": 1.5})["cpu_quota"]
    assert lines(found) == (
        Level.WARN,
        "docker update --cpus 8 CONTAINER",
        "docker update --cpus 1.5 CONTAINER",
    )


def test_no_quota_or_a_large_one_is_ok(examine: Examine) -> None:
    assert examine()["cpu_quota"].found == "no quota"
    assert examine(cpus={"quota_cpus": 8.0})["cpu_quota"].level is Level.OK


def test_inherited_affinity_narrower_than_the_cpuset_is_widened(examine: Examine) -> None:
    files = {
        "proc/self/cgroup": "0::/s\n",
        "sys/fs/cgroup/s/cpuset.cpus.effective": "0-5\n",
    }
    found = examine(files, facts={"inherited_cpus": "2-3"})["inherited_affinity"]
    assert found.found == "CPUs 2-3 of 0-5"
    assert lines(found) == (Level.WARN, "taskset -pc 0-5 $$", "taskset -pc 2-3 $$")


def test_affinity_as_wide_as_the_cpuset_is_ok(examine: Examine) -> None:
    """CPUs outside the cpuset are not inheritance's to give."""
    files = {
        "proc/self/cgroup": "0::/s\n",
        "sys/fs/cgroup/s/cpuset.cpus.effective": "0-5\n",
    }
    assert examine(files, facts={"inherited_cpus": "0-5"})["inherited_affinity"].level is Level.OK


def test_unread_affinity_is_unknown(examine: Examine) -> None:
    found = examine(facts={"inherited_cpus": None})["inherited_affinity"]
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
    examine: Examine, check: str, path: str, value: str
) -> None:
    found = examine({path.lstrip("/"): f"{value}\n"})[check]
    assert lines(found) == (
        Level.WARN,
        f"echo 0 | sudo tee {path}",
        f"echo {value} | sudo tee {path}",
    )
    assert examine({path.lstrip("/"): "0\n"})[check].level is Level.OK


def test_kernel_settings_for_several_nodes_are_left_out_on_one_node(examine: Examine) -> None:
    one = dataclasses.replace(PLAIN, numa_nodes=(node(0),))
    files = {"proc/sys/kernel/numa_balancing": "1\n", "proc/sys/vm/zone_reclaim_mode": "1\n"}
    assert not {"numa_balancing", "zone_reclaim"} & set(examine(files, topology=one))


# --- machine -------------------------------------------------------------------------------


def test_huge_pages_switched_off_are_offered_and_put_back(examine: Examine) -> None:
    found = examine({f"{THP}/enabled": "always madvise [never]\n"})["huge_pages"]
    assert lines(found) == (
        Level.WARN,
        f"echo madvise | sudo tee /{THP}/enabled",
        f"echo never | sudo tee /{THP}/enabled",
    )


def test_defrag_at_every_fault_is_a_warning(examine: Examine) -> None:
    text = "[always] defer defer+madvise madvise never\n"
    assert lines(examine({f"{THP}/defrag": text})["huge_page_defrag"]) == (
        Level.WARN,
        f"echo madvise | sudo tee /{THP}/defrag",
        f"echo always | sudo tee /{THP}/defrag",
    )


def test_huge_pages_at_madvise_are_ok_and_absent_ones_left_out(examine: Examine) -> None:
    assert "huge_pages" not in examine()
    found = examine({f"{THP}/enabled": "always [madvise] never\n"})["huge_pages"]
    assert (found.level, found.found) == (Level.OK, "madvise")


def test_unheard_of_huge_page_text_is_unknown(examine: Examine) -> None:
    found = examine({f"{THP}/enabled": "garbage\n"})["huge_pages"]
    assert found.level is Level.UNKNOWN
    assert "'garbage'" in found.found


def test_one_governor_for_all_cpus_is_restored_by_one_line(examine: Examine) -> None:
    files = {f"{CPU}/cpu{n}/cpufreq/scaling_governor": "powersave\n" for n in range(4)}
    found = examine(files)["cpu_governor"]
    pattern = f"/{CPU}/cpu*/cpufreq/scaling_governor"
    assert found.found == "powersave x4"
    assert lines(found) == (
        Level.WARN,
        f"echo performance | sudo tee {pattern}",
        f"echo powersave | sudo tee {pattern}",
    )


def test_mixed_governors_are_restored_cpu_by_cpu(examine: Examine) -> None:
    names = ["powersave", "schedutil", "powersave"]
    files = {f"{CPU}/cpu{n}/cpufreq/scaling_governor": name for n, name in enumerate(names)}
    path = f"/{CPU}/cpu{{}}/cpufreq/scaling_governor"
    assert examine(files)["cpu_governor"].undo == (
        f"echo powersave | sudo tee {path.format(0)} {path.format(2)}; "
        f"echo schedutil | sudo tee {path.format(1)}"
    )


def test_governor_is_ok_at_performance_and_left_out_without_clock_control(
    examine: Examine,
) -> None:
    assert "cpu_governor" not in examine()
    files = {f"{CPU}/cpu0/cpufreq/scaling_governor": "performance\n"}
    assert examine(files)["cpu_governor"].level is Level.OK


def idle_states(*latencies: int, disabled: Sequence[int] = ()) -> dict[str, str]:
    files = {f"{CPU}/cpuidle/current_driver": "intel_idle\n"}
    for cpu in (0, 1):
        for number, latency in enumerate(latencies):
            state = f"{CPU}/cpu{cpu}/cpuidle/state{number}"
            files[f"{state}/latency"] = f"{latency}\n"
            files[f"{state}/disable"] = "1\n" if number in disabled else "0\n"
    return files


def test_deep_idle_states_are_disabled_and_enabled_again(examine: Examine) -> None:
    found = examine(idle_states(0, 2, 170))["cpu_idle"]
    pattern = f"/{CPU}/cpu*/cpuidle/state2/disable"
    assert found.found == "driver intel_idle, deepest enabled state 170 us"
    assert lines(found) == (
        Level.WARN,
        f"echo 1 | sudo tee {pattern}",
        f"echo 0 | sudo tee {pattern}",
    )


def test_disabled_deep_idle_state_is_ok(examine: Examine) -> None:
    found = examine(idle_states(0, 2, 170, disabled=[2]))["cpu_idle"]
    assert (found.level, found.found) == (
        Level.OK,
        "driver intel_idle, deepest enabled state 2 us",
    )


def test_swap_in_use_is_emptied_and_restored_with_its_priority(examine: Examine) -> None:
    text = (
        "Filename\tType\tSize\tUsed\tPriority\n"
        "/dev/sda2 partition 8388604 1048576 -2\n"
        "/swap.img file 8388604 2048 10\n"
        "/dev/zram0 partition 8388604 0 100\n"
    )
    found = examine({"proc/swaps": text})["swap"]
    assert found.found == "/dev/sda2: 1024 MiB in use, /swap.img: 2 MiB in use"
    assert lines(found) == (
        Level.WARN,
        "sudo swapoff /dev/sda2; sudo swapoff /swap.img",
        "sudo swapon /dev/sda2; sudo swapon -p 10 /swap.img",
    )


def test_unused_swap_is_ok_and_unread_swap_unknown(examine: Examine) -> None:
    assert examine()["swap"].level is Level.UNKNOWN
    assert examine({"proc/swaps": "Filename Type Size Used Priority\n"})["swap"].found == "no swap"


def test_garbled_swap_table_is_unknown_not_a_crash(examine: Examine) -> None:
    found = examine({"proc/swaps": "Filename Type Size Used Priority\n/dev/sda2 partition\n"})
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
    examine: Examine, soft: str, hard: str, container: str | None, fix: str, undo: str
) -> None:
    host = dataclasses.replace(PLAIN, nics=RDMA)
    found = examine(limits(soft, hard), topology=host, machine={"container": container})
    assert lines(found["memlock"]) == (Level.ERROR, fix, undo)


def test_memlock_matters_only_with_rdma(examine: Examine) -> None:
    assert "memlock" not in examine(limits("65536", "65536"))
    host = dataclasses.replace(PLAIN, nics=RDMA)
    found = examine(limits("unlimited", "unlimited"), topology=host)["memlock"]
    assert found.level is Level.OK


# --- GPUs ----------------------------------------------------------------------------------

GPU_CHECKS = {
    "gpu_library",
    "gpu_persistence",
    "gpu_clocks",
    "gpu_ecc",
    "gpu_remapped_rows",
    "fabric_manager",
    "gpu_direct_rdma",
    "pcie_acs",
    "iommu",
}


def test_host_without_gpu_gets_one_line_about_it(examine: Examine) -> None:
    found = examine()
    assert (found["gpu_driver"].level, found["gpu_driver"].found) == (Level.OK, "no NVIDIA GPU")
    assert not GPU_CHECKS & set(found)


@pytest.mark.parametrize(
    ("files", "container", "fix", "undo"),
    [
        (
            {"lib/modules/6.1.0/modules.dep": "updates/dkms/nvidia.ko: kernel/drm.ko\n"},
            None,
            "sudo modprobe nvidia",
            "sudo modprobe -r nvidia",
        ),
        (
            {},
            None,
            "sudo apt-get install -y nvidia-driver",
            "sudo apt-get remove -y nvidia-driver",
        ),
        ({}, "docker", "docker run --gpus all IMAGE", "docker run IMAGE"),
    ],
)
def test_gpu_without_driver_is_an_error(
    examine: Examine, files: dict[str, str], container: str | None, fix: str, undo: str
) -> None:
    changes = {"driver": None, "container": container}
    found = examine(files, topology=GPUS, machine=changes)["gpu_driver"]
    assert found.found == "1 GPUs on the bus, held by no driver"
    assert lines(found) == (Level.ERROR, fix, undo)


def put_library(root: Path, version: str) -> None:
    """The library file and its link, as distributions lay them."""
    folder = root / "usr/lib/x86_64-linux-gnu"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"libnvidia-ml.so.{version}").touch()
    (folder / "libnvidia-ml.so.1").symlink_to(f"libnvidia-ml.so.{version}")


def test_library_of_another_version_than_the_module_asks_for_a_restart(
    examine: Examine, tmp_path: Path
) -> None:
    put_library(tmp_path, "580.105.08")
    found = examine(topology=GPUS)["gpu_library"]
    assert found.found == "library 580.105.08, kernel module 580.95.05"
    assert lines(found) == (Level.ERROR, "sudo systemctl reboot", None)


def test_mismatch_that_only_nvml_tells_asks_for_a_restart(examine: Examine, tmp_path: Path) -> None:
    """NVML's error 18, when the file's name tells no version."""
    folder = tmp_path / "usr/lib64"
    folder.mkdir(parents=True)
    (folder / "libnvidia-ml.so.1").touch()
    text = (
        "Failed to initialize NVML: Driver/library version mismatch\n"
        "NVML library version: 580.105\n"
    )
    nameless = dataclasses.replace(GPUS, gpus=(gpu(0, uuid=None),))
    found = examine(topology=nameless, smi={"-L": text}, machine={"container": "docker"})
    assert "NVML library version: 580.105" in found["gpu_library"].found
    assert lines(found["gpu_library"]) == (Level.ERROR, "docker restart CONTAINER", None)


@pytest.mark.parametrize(
    ("os_name", "container", "fix", "undo"),
    [
        (
            "Ubuntu 24.04",
            None,
            "sudo apt-get install -y libnvidia-compute-580",
            "sudo apt-get remove -y libnvidia-compute-580",
        ),
        (
            "Debian 12",
            None,
            "sudo apt-get install -y libnvidia-ml1",
            "sudo apt-get remove -y libnvidia-ml1",
        ),
        (
            "Debian 12",
            "docker",
            "docker run --gpus all -e NVIDIA_DRIVER_CAPABILITIES=compute,utility IMAGE",
            "docker run --gpus all IMAGE",
        ),
    ],
)
def test_driver_without_its_library_is_an_error(
    examine: Examine, os_name: str, container: str | None, fix: str, undo: str
) -> None:
    nameless = dataclasses.replace(GPUS, gpus=(gpu(0, uuid=None),))
    found = examine(topology=nameless, machine={"os": os_name, "container": container})
    assert found["gpu_library"].found == "libnvidia-ml.so.1 not found, kernel module 580.95.05"
    assert lines(found["gpu_library"]) == (Level.ERROR, fix, undo)


def test_library_of_the_modules_version_is_ok(examine: Examine, tmp_path: Path) -> None:
    put_library(tmp_path, "580.95.05")
    found = examine(topology=GPUS)["gpu_library"]
    assert (found.level, found.found) == (
        Level.OK,
        "library 580.95.05, kernel module 580.95.05",
    )


@pytest.mark.parametrize(
    ("version", "cuda", "fix", "undo"),
    [
        (
            "2.13.0+cpu",
            "12.8",
            "/opt/py/bin/python -m pip install --force-reinstall torch "
            "--index-url https://download.pytorch.org/whl/cu128",
            "/opt/py/bin/python -m pip install --force-reinstall torch==2.13.0+cpu "
            "--index-url https://download.pytorch.org/whl/cpu",
        ),
        (
            "2.13.0",
            "12.4",
            "/opt/py/bin/python -m pip install --force-reinstall torch "
            "--index-url https://download.pytorch.org/whl/cu126",
            "/opt/py/bin/python -m pip install --force-reinstall torch==2.13.0",
        ),
        ("2.13.0+cu130", "13.0", None, None),
        ("2.13.0+cu126", "11.4", None, None),
    ],
)
def test_torch_that_cannot_use_the_gpus_gets_a_build_the_driver_can_run(
    examine: Examine, version: str, cuda: str, fix: str | None, undo: str | None
) -> None:
    facts = {"torch": version, "torch_error": "the driver is too old"}
    found = examine(topology=GPUS, machine={"cuda": cuda}, facts=facts)["torch"]
    assert found.found == f"torch {version}: the driver is too old"
    assert lines(found) == (Level.ERROR, fix, undo)


def test_absent_torch_is_an_error(examine: Examine) -> None:
    assert lines(examine(facts={"torch": None})["torch"]) == (
        Level.ERROR,
        "/opt/py/bin/python -m pip install torch",
        "/opt/py/bin/python -m pip uninstall -y torch",
    )


def test_settings_that_only_nvidia_smi_tells_are_unknown_without_it(examine: Examine) -> None:
    captured = examine(topology=GPUS)["gpu_persistence"]
    assert (captured.level, captured.found) == (
        Level.UNKNOWN,
        "nvidia-smi is not run for a captured tree",
    )
    missing = examine(topology=GPUS, smi={})["gpu_ecc"]
    assert (missing.level, missing.found) == (
        Level.UNKNOWN,
        "nvidia-smi cannot be run: No such file or directory",
    )


def test_field_that_nvidia_smi_does_not_know_is_unknown(examine: Examine) -> None:
    text = 'Field "persistence_mode" is not a valid field to query.\n\n'
    found = examine(topology=GPUS, smi={"persistence_mode": text})["gpu_persistence"]
    assert found.level is Level.UNKNOWN
    assert found.found == ('nvidia-smi: Field "persistence_mode" is not a valid field to query.')


def test_persistence_is_switched_on_only_where_it_is_off(examine: Examine) -> None:
    both = {"persistence_mode": "GPU-0, Disabled\nGPU-1, Disabled\n"}
    assert lines(examine(topology=GPUS, smi=both)["gpu_persistence"]) == (
        Level.WARN,
        "sudo nvidia-smi -pm 1",
        "sudo nvidia-smi -pm 0",
    )
    one = {"persistence_mode": "GPU-0, Enabled\nGPU-1, Disabled\n"}
    assert lines(examine(topology=GPUS, smi=one)["gpu_persistence"]) == (
        Level.WARN,
        "sudo nvidia-smi -i GPU-1 -pm 1",
        "sudo nvidia-smi -i GPU-1 -pm 0",
    )


def test_clock_lock_is_offered_at_each_models_maximum(examine: Examine) -> None:
    one = {"clocks.sm": "GPU-0, 345, 1980\nGPU-1, 1980, 1980\n"}
    found = examine(topology=GPUS, smi=one)["gpu_clocks"]
    assert found.found == "SM clock now 345 of 1980 MHz, 1980 of 1980 MHz"
    assert lines(found) == (
        Level.UNKNOWN,
        "sudo nvidia-smi -lgc 1980,1980",
        "sudo nvidia-smi -rgc",
    )
    two = {"clocks.sm": "GPU-0, 345, 1980\nGPU-1, 210, 1410\n"}
    assert examine(topology=GPUS, smi=two)["gpu_clocks"].fix == (
        "sudo nvidia-smi -i GPU-0 -lgc 1980,1980; sudo nvidia-smi -i GPU-1 -lgc 1410,1410"
    )


def test_ecc_off_and_uncorrected_errors_are_told_apart(examine: Examine) -> None:
    off = {"ecc.mode": "GPU-0, Disabled, [N/A]\nGPU-1, Enabled, 0\n"}
    assert lines(examine(topology=GPUS, smi=off)["gpu_ecc"]) == (
        Level.WARN,
        "sudo nvidia-smi -i GPU-0 -e 1",
        "sudo nvidia-smi -i GPU-0 -e 0",
    )
    bad = {"ecc.mode": "GPU-0, Enabled, 0\nGPU-1, Enabled, 3\n"}
    assert lines(examine(topology=GPUS, smi=bad)["gpu_ecc"]) == (
        Level.ERROR,
        "sudo nvidia-smi --gpu-reset -i GPU-1",
        None,
    )
    without = {"ecc.mode": "GPU-0, [N/A], [N/A]\nGPU-1, [N/A], [N/A]\n"}
    assert examine(topology=GPUS, smi=without)["gpu_ecc"].level is Level.OK


def test_pending_remapping_asks_for_a_reset_and_a_failed_one_for_a_new_gpu(
    examine: Examine,
) -> None:
    pending = {"remapped": "GPU-0, 1, 0\nGPU-1, 0, 0\n"}
    assert lines(examine(topology=GPUS, smi=pending)["gpu_remapped_rows"]) == (
        Level.ERROR,
        "sudo nvidia-smi --gpu-reset -i GPU-0",
        None,
    )
    failed = examine(topology=GPUS, smi={"remapped": "GPU-0, No, No\nGPU-1, No, Yes\n"})
    assert failed["gpu_remapped_rows"].found == "failed on GPU-1"
    assert failed["gpu_remapped_rows"].fix is None


# --- peers ---------------------------------------------------------------------------------


def switched(fabric: str | None) -> tuple[Gpu, ...]:
    links = (NvLink(0, "active", "nvswitch"),)
    return tuple(gpu(n, fabric=fabric, nvlink=NvLinks(1, 1, "4.0", 2.5e10, links)) for n in (0, 1))


def test_switches_without_fabric_manager_are_an_error(examine: Examine) -> None:
    host = dataclasses.replace(GPUS, gpus=switched("in progress"), nvswitches=("0000:05:00.0",))
    assert lines(examine(topology=host)["fabric_manager"]) == (
        Level.ERROR,
        "sudo systemctl enable --now nvidia-fabricmanager",
        "sudo systemctl disable --now nvidia-fabricmanager",
    )
    running = {"proc/812/comm": "nv-fabricmanage\n"}  # the kernel keeps 15 letters
    assert examine(running, topology=host)["fabric_manager"].level is Level.OK


def test_fabric_manager_of_a_guests_host_is_judged_by_the_fabric(examine: Examine) -> None:
    joined = dataclasses.replace(GPUS, gpus=switched("completed"))
    assert examine(topology=joined)["fabric_manager"].level is Level.OK
    waiting = dataclasses.replace(GPUS, gpus=switched("in progress"))
    found = examine(topology=waiting)["fabric_manager"]
    assert (found.level, found.found) == (
        Level.UNKNOWN,
        "it runs outside of what is seen here; fabric: in progress x2",
    )


def test_gpus_without_switches_need_no_fabric_manager(examine: Examine) -> None:
    assert "fabric_manager" not in examine(topology=GPUS)


def test_rdma_without_a_way_to_gpu_memory_loads_peermem(examine: Examine) -> None:
    host = dataclasses.replace(GPUS, nics=RDMA)
    closed = {"proc/driver/nvidia/version": CLOSED}
    assert lines(examine(closed, topology=host)["gpu_direct_rdma"]) == (
        Level.WARN,
        "sudo modprobe nvidia_peermem",
        "sudo modprobe -r nvidia_peermem",
    )
    loaded = {**closed, "sys/module/nvidia_peermem/refcnt": "0\n"}
    assert examine(loaded, topology=host)["gpu_direct_rdma"].found == "nvidia_peermem loaded"


def test_open_module_needs_no_peermem_and_no_rdma_needs_neither(examine: Examine) -> None:
    files = {"proc/driver/nvidia/version": OPEN}
    host = dataclasses.replace(GPUS, nics=RDMA)
    assert examine(files, topology=host)["gpu_direct_rdma"].found == "open kernel module"
    assert "gpu_direct_rdma" not in examine(files, topology=GPUS)


def config_space(control: int) -> bytes:
    """Extended configuration space: error reporting at 0x100, then ACS at 0x148."""
    space = bytearray(4096)
    space[0x100:0x104] = (0x0001 | 2 << 16 | 0x148 << 20).to_bytes(4, "little")
    space[0x148:0x14C] = (0x000D | 1 << 16).to_bytes(4, "little")
    space[0x14E:0x150] = control.to_bytes(2, "little")
    return bytes(space)


def with_acs(acs: str) -> Topology:
    return dataclasses.replace(GPUS, pci=(function("0000:00:01.0", acs=acs), *GPUS.pci[1:]))


def test_acs_redirection_is_cleared_and_its_word_restored(examine: Examine, tmp_path: Path) -> None:
    """Bits that redirect nothing (source validation) stay as they are."""
    folder = tmp_path / "sys/bus/pci/devices/0000:00:01.0"
    folder.mkdir(parents=True)
    (folder / "config").write_bytes(config_space(0x001D))
    assert lines(examine(topology=with_acs("on"))["pcie_acs"]) == (
        Level.WARN,
        "sudo setpci -s 0000:00:01.0 ECAP_ACS+6.w=0001",
        "sudo setpci -s 0000:00:01.0 ECAP_ACS+6.w=001d",
    )


def test_acs_off_is_ok_and_unreadable_acs_unknown(examine: Examine) -> None:
    assert examine(topology=with_acs("off"))["pcie_acs"].level is Level.OK
    found = examine(topology=with_acs("unknown"))["pcie_acs"]
    assert (found.level, found.found) == (Level.UNKNOWN, "only root may read it")
    alone = dataclasses.replace(with_acs("on"), gpus=(gpu(0),))
    assert "pcie_acs" not in examine(topology=alone)


GROUP = "sys/bus/pci/devices/0000:01:00.0/iommu_group/type"


@pytest.mark.parametrize(
    ("files", "fix", "undo"),
    [
        (
            {"usr/sbin/grubby": ""},
            'sudo grubby --update-kernel=ALL --args="iommu=pt"',
            'sudo grubby --update-kernel=ALL --remove-args="iommu=pt"',
        ),
        (
            {"etc/default/grub": 'GRUB_CMDLINE_LINUX=""\n'},
            "sudo sed -i 's/^GRUB_CMDLINE_LINUX=\"/&iommu=pt /' /etc/default/grub"
            " && sudo update-grub",
            "sudo sed -i 's/^GRUB_CMDLINE_LINUX=\"iommu=pt /GRUB_CMDLINE_LINUX=\"/'"
            " /etc/default/grub && sudo update-grub",
        ),
        ({}, None, None),
    ],
)
def test_translating_iommu_is_passed_through_by_the_boot_loader(
    examine: Examine, files: dict[str, str], fix: str | None, undo: str | None
) -> None:
    found = examine({GROUP: "DMA-FQ\n", **files}, topology=GPUS)["iommu"]
    assert found.found == "translated for 0000:01:00.0"
    assert lines(found) == (Level.WARN, fix, undo)


def test_boot_loader_lines_change_the_file_and_change_it_back(
    examine: Examine, tmp_path: Path
) -> None:
    before = 'GRUB_DEFAULT=0\nGRUB_CMDLINE_LINUX_DEFAULT="quiet"\nGRUB_CMDLINE_LINUX="nosmt"\n'
    files = {GROUP: "DMA\n", "etc/default/grub": before}
    found = examine(files, topology=GPUS)["iommu"]
    grub = tmp_path / "etc/default/grub"
    for line, wanted in ((found.fix, "iommu=pt nosmt"), (found.undo, "nosmt")):
        assert line is not None
        edit = line.removeprefix("sudo ").removesuffix(" && sudo update-grub")
        subprocess.run(edit.replace("/etc/default/grub", str(grub)), shell=True, check=True)
        assert f'GRUB_CMDLINE_LINUX="{wanted}"\n' in grub.read_text()
    assert grub.read_text() == before


def test_pass_through_iommu_is_ok(examine: Examine) -> None:
    assert examine({GROUP: "identity\n"}, topology=GPUS)["iommu"].level is Level.OK


# --- what Ray and topobench stand on -------------------------------------------------------

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
    examine: Examine, container: str | None, fix: str, undo: str | None
) -> None:
    files = {"proc/self/mounts": MOUNTS}
    facts = {"shm_bytes": 64 << 20}
    found = examine(files, machine={"container": container}, facts=facts)["shared_memory"]
    assert found.found == "64 MiB"
    assert lines(found) == (Level.WARN, fix, undo)


def test_small_shared_memory_beside_several_gpus_is_an_error(examine: Examine) -> None:
    found = examine(topology=GPUS, facts={"shm_bytes": 64 << 20})["shared_memory"]
    assert found.level is Level.ERROR
    assert found.undo == "sudo mount -o remount,size=50% /dev/shm"
    unread = examine(topology=GPUS, facts={"shm_bytes": None})["shared_memory"]
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
def test_lock_folder_must_come_from_the_host(examine: Examine, mounts: str, level: Level) -> None:
    files = {"proc/self/mountinfo": mounts}
    found = examine(files, machine={"container": "docker"})["lock_folder"]
    assert found.level is level
    if level is Level.WARN:
        assert found.fix == "docker run -v /run/lock/topobench:/run/lock/topobench IMAGE"
        assert found.undo == "docker run IMAGE"


def test_lock_folder_follows_the_environment(examine: Examine) -> None:
    files = {"proc/self/mountinfo": ROOT_MOUNT}
    env = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "TOPOBENCH_RUN_DIR": "/var/tb"}
    assert lines(examine(files, env=env)["lock_folder"]) == (
        Level.WARN,
        "{name: lock, hostPath: {path: /var/tb, type: DirectoryOrCreate}}",
        None,
    )
    assert "lock_folder" not in examine(files)


def test_home_that_ray_cannot_write_is_replaced_and_put_back(
    examine: Examine, tmp_path: Path
) -> None:
    new = 'export HOME="$(mktemp -d)"'
    assert lines(examine()["ray_home"]) == (Level.ERROR, new, "unset HOME")
    gone = examine(env={"HOME": "/nonexistent"})["ray_home"]
    assert lines(gone) == (Level.ERROR, new, "export HOME=/nonexistent")
    assert gone.found == "/nonexistent does not exist"
    (tmp_path / "root").mkdir()
    assert examine(env={"HOME": "/root"})["ray_home"].level is Level.OK
    assert examine(env={"RAY_AUTH_TOKEN_PATH": "/t"})["ray_home"].level is Level.OK


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write into every folder")
def test_home_without_write_permission_is_an_error(examine: Examine, tmp_path: Path) -> None:
    (tmp_path / "root").mkdir(mode=0o555)
    assert examine(env={"HOME": "/root"})["ray_home"].found == "/root cannot be written"


TCP = (
    "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt\n"
    "   0: 00000000:{port:04X} 00000000:0000 {state} 00000000:00000000 00:00000000 00000000\n"
)


def test_port_held_by_another_program_offers_the_next_one(examine: Examine) -> None:
    files = {"proc/net/tcp": TCP.format(port=6379, state="0A")}
    assert lines(examine(files)["ray_port"]) == (
        Level.WARN,
        "ray start --head --port=6380",
        "ray start --head",
    )
    ray = {**files, "proc/77/comm": "gcs_server\n"}
    assert examine(ray)["ray_port"].found == "held by a Ray head on this host"


def test_port_of_a_mere_connection_is_free(examine: Examine) -> None:
    assert examine()["ray_port"].level is Level.UNKNOWN
    files = {"proc/net/tcp": TCP.format(port=6379, state="01")}
    assert examine(files)["ray_port"].found == "free"


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
    examine: Examine, free: int | None, env: dict[str, str], level: Level, undo: str | None
) -> None:
    found = examine(facts={"free_disk_bytes": free}, env=env)["disk"]
    assert (found.level, found.undo) == (level, undo)


# --- the whole -----------------------------------------------------------------------------


def test_unusual_host_gives_no_fix_without_a_reason(examine: Examine) -> None:
    """Nothing but a full description comes out, whatever is missing."""
    for finding in examine(topology=GPUS).values():
        assert finding.found
        assert finding.wanted
        assert finding.why
        assert finding.undo is None or finding.fix is not None
        assert finding.level is not Level.OK or finding.fix is None


def test_live_host_is_examined_and_left_as_it_was() -> None:
    """Every check gives a finding, or says that it does not apply; settings stay."""
    from topobench.agents.discover import discover

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
