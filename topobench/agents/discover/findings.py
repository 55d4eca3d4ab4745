"""What a user should know about a discovered topology."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from topobench.agents.discover.facts import NvmlFacts
from topobench.agents.discover.numa import Numa
from topobench.agents.discover.numa_file import PATH, NumaFile
from topobench.agents.discover.pci import Pci
from topobench.links import shortfalls
from topobench.topology import Gpu, PciDevice, TopologyWarning

_PLACED = ("0x02", "0x0108", "0x0300", "0x0302", "0x12")
"""Classes of devices whose NUMA node matters: network, NVMe, GPUs, accelerators."""
_MODES = {
    "exclusive": "its compute mode lets one process at a time use it: another's makes cells fail",
    "prohibited": "its compute mode lets no process use it; nvidia-smi -c DEFAULT ends that",
}
_LOW_TRUST = "a guest sees the bus its hypervisor made up; NUMA nodes of devices are not known"


def gpu_findings(gpus: Sequence[Gpu], facts: NvmlFacts | None) -> Iterator[TopologyWarning]:
    """Unknown NUMA nodes, lost GPUs, missing NVLinks, and NVML that cannot be asked."""
    if gpus and facts and facts.error:
        yield TopologyWarning("nvml", "host", f"NVML cannot be used: {facts.error}")
    for gpu in gpus:
        if gpu.is_slice:
            continue
        if gpu.cpu_node.value is None:
            text = f"its NUMA node is unknown: {gpu.cpu_node.reason}; /{PATH} can name it"
            yield TopologyWarning("numa_unknown", gpu.name, text)
        if gpu.compute_mode in _MODES:
            yield TopologyWarning("compute_mode", gpu.name, _MODES[gpu.compute_mode])
        if gpu.state == "lost":
            yield TopologyWarning("gpu_lost", gpu.name, "it is off the bus or needs a reset")
        links = gpu.nvlink
        if links and links.expected and links.active < links.expected:
            text = f"{links.active} of {links.expected} NVLinks are active"
            yield TopologyWarning("nvlink_degraded", gpu.name, text)
        if links and gpu.fabric not in (None, "completed"):
            text = f"its registration with the NVLink fabric is: {gpu.fabric}"
            yield TopologyWarning("fabric", gpu.name, text)
        if gpu.fabric_health:
            text = f"the NVLink fabric reports {', '.join(gpu.fabric_health)}"
            yield TopologyWarning("fabric", gpu.name, text)


def link_findings(devices: Sequence[PciDevice], gpus: Sequence[Gpu]) -> Iterator[TopologyWarning]:
    """
    Links trained narrower or slower than both of their ends can.

    The speed of GPUs, accelerators and switches is left to readings under load.
    """
    names = {g.pci_address: g.name for g in gpus if not g.is_slice}
    by_address = {d.address: d for d in devices}
    for address, short in shortfalls(devices, gpus).items():
        link = by_address[address].link
        if link is None or not short.is_fault:
            continue
        subject = names.get(address, f"pci:{address}")
        ends = "both ends can do" if short.slot_known else "it can do"
        if short.widest:
            text = f"its link runs at x{link.width}, {ends} x{short.widest}"
            yield TopologyWarning("link_width", subject, text)
        if short.fastest and not short.may_rest:
            text = f"its link runs at {link.speed_gts:g} GT/s, {ends} {short.fastest:g}"
            yield TopologyWarning("link_speed", subject, text)


def locality_findings(pci: Pci, numa: Numa, facts: NvmlFacts | None) -> Iterator[TopologyWarning]:
    """Devices whose NUMA node differs by source: the kernel's number, its CPUs, NVML."""
    nodes = {n.id for n in numa.nodes}
    near = {g.pci_address: g.memory_nodes for g in facts.gpus} if facts else {}
    for address, function in pci.functions.items():
        given = function.numa_node
        if given not in nodes or not function.pci_class.startswith(_PLACED):
            continue
        by_cpus = numa.node_of(function.local_cpus)
        if by_cpus is not None and by_cpus != given:
            text = f"sysfs says NUMA node {given}, but its local CPUs are node {by_cpus}'s"
            yield TopologyWarning("numa_disagrees", f"pci:{address}", text)
        told = near.get(address)
        if told and given not in told:
            text = f"sysfs says NUMA node {given}, NVML {', '.join(map(str, told))}"
            yield TopologyWarning("numa_disagrees", f"pci:{address}", text)


def numa_file_findings(told: NumaFile, pci: Pci) -> Iterator[TopologyWarning]:
    """Lines of the operator's NUMA file for no device, or against the kernel's word."""
    for address, node in told.nodes.items():
        function = pci.functions.get(address)
        if function is None:
            text = f"{told.file} names it, but there is no such device"
            yield TopologyWarning("numa_file", f"pci:{address}", text)
        elif function.numa_node not in (None, -1, node):
            text = f"{told.file} says NUMA node {node}, sysfs {function.numa_node}"
            yield TopologyWarning("numa_disagrees", f"pci:{address}", f"{text}; the file counts")


def trust(virtualization: str, devices: Sequence[PciDevice]) -> str:
    """``low`` where a guest's GPUs and NICs have no NUMA node by sysfs, else ``full``."""
    shown = [d for d in devices if d.pci_class.startswith(("0x02", "0x03", "0x12"))]
    blind = any(d.numa_node.source != "sysfs" for d in shown)
    return "low" if blind and virtualization not in ("none", "unknown") else "full"


def guest_findings(trust_word: str) -> Iterator[TopologyWarning]:
    """Why the trust is low."""
    if trust_word == "low":
        yield TopologyWarning("guest_view", "host", _LOW_TRUST)
