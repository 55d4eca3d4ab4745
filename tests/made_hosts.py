"""
Whole hosts from small YAML files: their sysfs tree, and an NVML to go with it.

``tests/data/hosts`` holds them. Keys: ``nodes`` (NUMA node -> CPUs), ``gpu`` (what all GPUs
share), ``gpus`` and ``nics`` with their PCI ``path`` and ``node``, ``link`` (largest speed and
width), and for single GPUs ``now`` (current speed and width), ``port`` (of the port above),
``lost``, ``down`` (NVLinks that are inactive), ``mig``, ``fabric``, ``near`` (NVML's node).
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import yaml

from fake_nvml import LOST, NOT_SUPPORTED, FakeNvml, Refusal, fields, mask
from made_machine import BRIDGE, GPU, NIC, add_node, add_pci, add_rdma, write
from topobench.agents.discover import discover, read_nvml
from topobench.topology import Topology, format_cpu_list, parse_cpu_list

HOSTS = Path(__file__).parent / "data/hosts"
_X86 = (
    "vendor_id : GenuineIntel\ncpu family : 6\nmodel : 143\nmodel name : Test CPU\nflags : fpu lm"
)
_ARM = "CPU implementer : 0x41\nCPU architecture: 8\nCPU part : 0xd4f"


@dataclass(frozen=True)
class MadeHost:
    """A host's tree below ``root``, and its NVML."""

    root: Path
    nvml: FakeNvml

    def discover(self) -> Topology:
        """What discovery finds."""
        return discover(self.root, nvml=read_nvml(self.nvml))


def make(name: str, root: Path) -> MadeHost:
    """Write the tree of a host of ``tests/data/hosts``."""
    told = yaml.safe_load((HOSTS / f"{name}.yaml").read_text())
    _cpus(root, told)
    for gpu in told["gpus"]:
        kind = tuple(told.get("ids", GPU))
        _hang(root, gpu, kind, told["link"])
    for nic in told.get("nics", ()):
        _hang(root, nic, NIC, told["link"])
        add_rdma(root, nic["name"], nic["path"])
    shared = told.get("gpu", {})
    gpus = [_gpu(i, {**shared, **gpu}, told) for i, gpu in enumerate(told["gpus"])]
    system = {
        "SystemGetDriverVersion": str(told.get("driver")),
        "SystemGetCudaDriverVersion_v2": told.get("cuda"),
    }
    if "error" in told:
        return MadeHost(root, FakeNvml([], {"Init": Refusal(told["error"])}))
    return MadeHost(root, FakeNvml(gpus, system))


def _cpus(root: Path, told: Mapping[str, Any]) -> None:
    nodes = {number: parse_cpu_list(cpus) for number, cpus in told["nodes"].items()}
    online = sorted(cpu for cpus in nodes.values() for cpu in cpus)
    for name in ("online", "possible", "present"):
        write(root, f"sys/devices/system/cpu/{name}", format_cpu_list(online))
    for number, cpus in nodes.items():
        add_node(root, number, cpus, told.get("memory_gib", {}).get(number, 512) << 20)
        row = " ".join("10" if other == number else "20" for other in nodes)
        write(root, f"sys/devices/system/node/node{number}/distance", row)
        for cpu in cpus:
            base = f"sys/devices/system/cpu/cpu{cpu}/topology"
            write(root, f"{base}/core_cpus_list", str(cpu))
            write(root, f"{base}/package_cpus_list", format_cpu_list(cpus))
    write(root, "sys/devices/system/node/online", format_cpu_list(nodes))
    info = _ARM if told.get("arch") == "aarch64" else _X86
    info += " hypervisor" if told.get("hypervisor") else ""
    write(root, "proc/cpuinfo", f"processor : 0\n{info}")


def _hang(root: Path, device: Mapping[str, Any], kind: Any, link: Any) -> None:
    """A device, and the bridges above it that are not there yet."""
    steps = device["path"].split("/")
    largest = (str(link[0]), str(link[1])) if link else None
    for depth in range(2, len(steps)):
        above = "/".join(steps[:depth])
        if not (root / "sys/devices" / above / "class").exists():
            port = device.get("port") if depth == len(steps) - 1 else None
            most = (str(port[0]), str(port[1])) if port else largest
            links = (*most, *most) if most else None
            add_pci(root, above, BRIDGE, node=device["node"], link=links)
    now = [str(n) for n in device.get("now", largest or ())]
    links = (now[0], now[1], *largest) if largest else None
    add_pci(root, device["path"], kind, node=device["node"], link=links)


def _gpu(index: int, gpu: Mapping[str, Any], told: Mapping[str, Any]) -> Any:
    """NVML's answers for a GPU; a lost one has none."""
    if gpu.get("lost"):
        return Refusal(LOST)
    address = gpu["path"].rpartition("/")[2]
    domain, rest = address.split(":", 1)
    near = gpu.get("near")
    chip = gpu.get("c2c") or {}
    links = gpu.get("nvlink") or {}
    answers: dict[str, Any] = {
        "DeviceGetPciInfo": SimpleNamespace(busId=f"{int(domain, 16):08X}:{rest.upper()}"),
        "DeviceGetUUID": f"GPU-{index:08d}-aaaa-bbbb-cccc-dddddddddddd",
        "DeviceGetName": gpu.get("name"),
        "DeviceGetMemoryInfo": SimpleNamespace(total=gpu.get("memory_mib", 0) << 20),
        "DeviceGetCudaComputeCapability": gpu.get("compute_capability"),
        "DeviceGetMigMode": [int("mig" in gpu), 0],
        "DeviceGetVirtualizationMode": gpu.get("virtualization", 0),
        "DeviceGetP2PStatus": 0,
        "DeviceGetFieldValues": fields(links.get("mbps"), chip.get("links"), chip.get("mbps")),
        **(_links(links, gpu.get("down", ())) if links else {}),
    }
    if near is not None:
        cpus = parse_cpu_list(told["nodes"][near])
        answers |= {"DeviceGetCpuAffinity": mask(cpus), "DeviceGetMemoryAffinity": mask([near])}
    if "own_node" in gpu:
        answers["DeviceGetNumaNodeId"] = gpu["own_node"]
    if chip:
        answers["DeviceGetC2cModeInfoV"] = SimpleNamespace(isC2cEnabled=1)
    if "fabric" in gpu:
        answers["DeviceGetGpuFabricInfoV"] = _fabric(gpu["fabric"])
    if "mig" in gpu:
        answers |= _slices(gpu["mig"], index)
    return answers


def _links(links: Mapping[str, Any], down: Any) -> dict[str, Any]:
    peer = None if links["to"] == "nvswitch" else links["to"]

    def state(link: int) -> Any:
        return Refusal(2) if link >= links["count"] else int(link not in down)

    return {
        "DeviceGetNvLinkState": state,
        "DeviceGetNvLinkCapability": lambda link, kind: int(link < links.get("capable", 18)),
        "DeviceGetNvLinkVersion": links["version"],
        "DeviceGetNvLinkRemoteDeviceType": 0 if peer else 2,
        "DeviceGetNvLinkRemotePciInfo": SimpleNamespace(bus=0, busId=f"0000{peer.upper()}")
        if peer
        else Refusal(NOT_SUPPORTED),
    }


def _fabric(told: Mapping[str, int]) -> Any:
    def answer(pointer: Any) -> int:
        info = ctypes.cast(pointer, ctypes.POINTER(FakeNvml.c_nvmlGpuFabricInfo_v2_t)).contents
        info.state, info.status = told["state"], told.get("status", 0)
        info.healthMask = told.get("health", 0)
        info.clusterUuid[0] = told.get("cluster", 0)
        return 0

    return answer


def _slices(profiles: list[str], index: int) -> dict[str, Any]:
    made = [
        {
            "DeviceGetName": f"NVIDIA A100-SXM4-80GB MIG {profile}",
            "DeviceGetUUID": f"MIG-{index}{number}-aaaa",
            "DeviceGetMemoryInfo": SimpleNamespace(
                total=int(profile.split(".")[1].removesuffix("gb")) << 30
            ),
        }
        for number, profile in enumerate(profiles)
    ]
    return {
        "DeviceGetMaxMigDeviceCount": 7,
        "DeviceGetMigDeviceHandleByIndex": lambda i: made[i] if i < len(made) else Refusal(6),
    }
