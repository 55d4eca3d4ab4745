"""What a user should know about a discovered topology."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from topobench.agents.discover.facts import NvmlFacts
from topobench.topology import Gpu, PciDevice, TopologyWarning

_LOW_TRUST = "a guest sees the bus its hypervisor made up; NUMA nodes of devices are not known"


def gpu_findings(gpus: Sequence[Gpu], facts: NvmlFacts | None) -> Iterator[TopologyWarning]:
    """Unknown NUMA nodes, lost GPUs, missing NVLinks, and NVML that cannot be asked."""
    if gpus and facts and facts.error:
        yield TopologyWarning("nvml", "host", f"NVML cannot be used: {facts.error}")
    for gpu in gpus:
        if gpu.is_slice:
            continue
        if gpu.cpu_node.value is None:
            text = f"its NUMA node is unknown: {gpu.cpu_node.reason}"
            yield TopologyWarning("numa_unknown", gpu.name, text)
        if gpu.state == "lost":
            yield TopologyWarning("gpu_lost", gpu.name, "it is off the bus or needs a reset")
        links = gpu.nvlink
        if links and links.expected and links.active < links.expected:
            text = f"{links.active} of {links.expected} NVLinks are active"
            yield TopologyWarning("nvlink_degraded", gpu.name, text)


def link_findings(devices: Sequence[PciDevice], gpus: Sequence[Gpu]) -> Iterator[TopologyWarning]:
    """
    Links of GPUs and network functions trained narrower than both ends can.

    Speed is left to readings under load: idle links slow down on purpose, but keep
    their width.
    """
    names = {g.pci_address: g.name for g in gpus if not g.is_slice}
    by_address = {d.address: d for d in devices}
    for device in devices:
        if device.address not in names and not device.pci_class.startswith("0x02"):
            continue
        above = by_address.get(device.parent or "")
        widest = [d.link.max_width for d in (device, above) if d and d.link and d.link.max_width]
        link = device.link
        if link and link.width and widest and link.width < min(widest):
            subject = names.get(device.address, f"pci:{device.address}")
            text = f"its link runs at x{link.width}, both ends can do x{min(widest)}"
            yield TopologyWarning("link_width", subject, text)


def trust(virtualization: str, devices: Sequence[PciDevice]) -> str:
    """``low`` where a guest's GPUs and NICs have no NUMA node by sysfs, else ``full``."""
    shown = [d for d in devices if d.pci_class.startswith(("0x02", "0x03", "0x12"))]
    blind = any(d.numa_node.source != "sysfs" for d in shown)
    return "low" if blind and virtualization not in ("none", "unknown") else "full"


def guest_findings(trust_word: str) -> Iterator[TopologyWarning]:
    """Why the trust is low."""
    if trust_word == "low":
        yield TopologyWarning("guest_view", "host", _LOW_TRUST)
