"""The machine itself: CPU model, virtualisation, container, versions."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from made_machine import GPU, add_cpus, add_pci, write
from topobench.agents.discover import cpus, discover
from topobench.topology import Topology

X86 = (
    "processor : 0\nvendor_id : GenuineIntel\nmodel name : Intel(R) Xeon(R)  8480C\nflags : fpu lm"
)
CLOCK = "sys/devices/system/clocksource/clocksource0/available_clocksource"
DMI = "sys/class/dmi/id"


def machine(root: Path, files: dict[str, str]) -> Topology:
    (root / "sys").mkdir()
    for name, text in files.items():
        write(root, name, text)
    return discover(root, nvml=None)


@pytest.mark.parametrize(
    ("files", "kind"),
    [
        ({"proc/cpuinfo": X86}, "none"),
        ({"proc/cpuinfo": X86, f"{DMI}/sys_vendor": "Amazon EC2"}, "none"),
        ({"proc/cpuinfo": f"{X86} hypervisor"}, "vm"),
        ({"proc/cpuinfo": f"{X86} hypervisor", CLOCK: "kvm-clock tsc"}, "kvm"),
        ({"proc/cpuinfo": f"{X86} hypervisor", f"{DMI}/sys_vendor": "VMware, Inc."}, "vmware"),
        ({"proc/cpuinfo": f"{X86} hypervisor", f"{DMI}/sys_vendor": "Microsoft Corporation"},
         "hyperv"),
        ({"proc/cpuinfo": X86, "sys/hypervisor/type": "xen"}, "xen"),
        ({"proc/version": "Linux version 5.15.90.1-microsoft-standard-WSL2 (gcc)"}, "wsl"),
        ({f"{DMI}/sys_vendor": "Amazon EC2", f"{DMI}/product_name": "c7g.large"}, "kvm"),
        ({f"{DMI}/sys_vendor": "Amazon EC2", f"{DMI}/product_name": "c7g.metal"}, "none"),
        ({f"{DMI}/sys_vendor": "Supermicro"}, "none"),
        ({}, "unknown"),
    ],
)  # fmt: skip
def test_kind_of_hypervisor(tmp_path: Path, files: dict[str, str], kind: str) -> None:
    assert machine(tmp_path, files).virtualization == kind


@pytest.mark.parametrize(
    ("hypervisor", "node", "trust"),
    [("", -1, "full"), (" hypervisor", -1, "low"), (" hypervisor", 0, "full")],
)
def test_guest_without_numa_nodes_of_devices_is_trusted_less(
    tmp_path: Path, hypervisor: str, node: int, trust: str
) -> None:
    add_cpus(tmp_path, [[0]])
    add_pci(tmp_path, "pci0000:00/0000:00:06.0", GPU, node=node)
    write(tmp_path, "proc/cpuinfo", X86 + hypervisor)
    found = discover(tmp_path, nvml=None)
    assert found.trust == trust
    assert ("guest_view" in [w.code for w in found.warnings]) == (trust == "low")


@pytest.mark.parametrize(
    ("files", "container"),
    [
        ({"proc/self/cgroup": "0::/kubepods.slice/pod1/cri-2"}, "kubernetes"),
        ({"proc/self/cgroup": "12:cpu:/docker/0123"}, "docker"),
        ({"run/.containerenv": ""}, "podman"),
        ({".dockerenv": ""}, "docker"),
        ({"proc/self/cgroup": "0::/user.slice"}, None),
    ],
)
def test_kind_of_container(tmp_path: Path, files: dict[str, str], container: str | None) -> None:
    assert machine(tmp_path, files).machine.container == container


@pytest.mark.parametrize(
    ("info", "model", "arch"),
    [
        (X86, "Intel(R) Xeon(R) 8480C", "x86_64"),
        ("CPU implementer : 0x41\nCPU architecture: 8\nCPU part : 0xd4f", "Arm Neoverse-V2",
         "aarch64"),
        ("CPU implementer : 0x41\nCPU architecture: 8\nCPU part : 0xfff", None, "aarch64"),
        ("processor : 0\ncpu : POWER9, altivec supported", "POWER9, altivec supported",
         "ppc64le"),
        ("", None, None),
    ],
)  # fmt: skip
def test_cpu_model_is_read_without_asking_anyone(
    tmp_path: Path, info: str, model: str | None, arch: str | None
) -> None:
    found = machine(tmp_path, {"proc/cpuinfo": info})
    assert (found.cpus.model, found.machine.arch) == (model, arch)


@pytest.mark.parametrize(
    "answer",
    [
        {"arch": "ARM_8", "arch_string_raw": "aarch64", "count": 72, "flags": ["asimd"]},
        None,
    ],
)
def test_cpuinfo_without_a_brand_or_broken_is_no_model(
    answer: dict[str, object] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked last and once; it lacks the brand on Arm, and its failures are not ours."""
    calls = []

    def get_cpu_info() -> object:
        calls.append(1)
        if answer is None:
            raise OSError("no lscpu")
        return answer

    monkeypatch.setitem(sys.modules, "cpuinfo", SimpleNamespace(get_cpu_info=get_cpu_info))
    cpus._model_by_cpuinfo.cache_clear()
    try:
        assert [cpus._model_by_cpuinfo() for _ in range(3)] == [None] * 3
        assert len(calls) == 1
    finally:
        cpus._model_by_cpuinfo.cache_clear()


def test_versions_of_kernel_driver_and_system(tmp_path: Path) -> None:
    files = {
        "proc/version": "Linux version 6.8.0-31-generic (buildd@x) (gcc)",
        "proc/driver/nvidia/version": (
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build\n"
            "GCC version:  gcc version 15.3.0 (GCC)"
        ),
        "etc/os-release": 'NAME="Ubuntu"\nPRETTY_NAME="Ubuntu 24.04.3 LTS"',
        f"{DMI}/sys_vendor": "Dell Inc.",
        f"{DMI}/bios_version": "2.1.3",
    }
    found = machine(tmp_path, files).machine
    assert (found.kernel, found.driver) == ("6.8.0-31-generic", "580.159.04")
    assert (found.os, found.vendor, found.bios) == ("Ubuntu 24.04.3 LTS", "Dell Inc.", "2.1.3")


def test_pipe_in_a_capture_does_not_block(tmp_path: Path) -> None:
    (tmp_path / "sys/class/dmi/id").mkdir(parents=True)
    os.mkfifo(tmp_path / "sys/class/dmi/id/sys_vendor")
    assert discover(tmp_path, nvml=None).machine.vendor is None


def test_last_level_cache_is_that_of_the_highest_level(tmp_path: Path) -> None:
    add_cpus(tmp_path, [[0]])
    for index, (level, size) in enumerate([("1", "48K"), ("2", "2048K"), ("3", "105M")]):
        base = f"sys/devices/system/cpu/cpu0/cache/index{index}"
        write(tmp_path, f"{base}/level", level)
        write(tmp_path, f"{base}/size", size)
    assert discover(tmp_path, nvml=None).cpus.last_level_cache_bytes == 105 << 20


def test_captured_affinity_and_memory_nodes_are_those_of_its_process(tmp_path: Path) -> None:
    add_cpus(tmp_path, [range(4), range(4, 8)])
    write(tmp_path, "proc/self/status", "Cpus_allowed_list:\t2-5\nMems_allowed_list:\t0")
    found = discover(tmp_path, nvml=None)
    assert found.cpus.allowed == "2-5"
    assert [(n.id, n.cpus, n.allowed) for n in found.numa_nodes] == [
        (0, "0-3", True),
        (1, "4-7", False),
    ]
