"""Devices of hwloc's XML: their place in the PCI tree, GPUs, NICs and disks."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from topobench.importers.xml_text import Element
from topobench.topology import Known, Nic, Nvme, PciLink

OWN = "topobench"
"""Beginning of the names of what our exporter adds, as hwloc has no place for it."""
_ROLES = frozenset({"root_port", "upstream", "downstream", "endpoint", "pf", "vf"})
_PORT_STATES = {"1": "down", "2": "init", "3": "armed", "4": "active"}


def role(element: Element, depth: int, infos: Mapping[str, str]) -> str:
    """What a PCI function is in the tree; a bridge is told by its depth."""
    told = infos.get(f"{OWN}Role", "")
    if told in _ROLES:
        return told
    if element.get("type") == "Bridge":
        return "root_port" if depth == 0 else "upstream" if depth % 2 else "downstream"
    return "vf" if "Virtual Function" in infos.get("PCIDevice", "") else "endpoint"


def link(text: str) -> PciLink | None:
    """GB/s of the link as it runs."""
    if not re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,12})?", text) or not float(text):
        return None
    return PciLink(bytes_per_second=round(float(text) * 1e9, 0))


def is_nvidia(osdev: Element) -> bool:
    """Whether NVIDIA's libraries named this device."""
    return re.fullmatch(r"(nvml|cuda)[0-9]+", osdev.get("name")) is not None


def index_of(osdevs: Sequence[Element], prefix: str) -> int | None:
    """Number of the device that a library named: 3 of ``nvml3``."""
    names = (re.fullmatch(rf"{prefix}([0-9]{{1,4}})", e.get("name")) for e in osdevs)
    return next((int(m[1]) for m in names if m), None)


def rdma_ports(name: str, address: str | None, near: Known, infos: Mapping[str, str]) -> list[Nic]:
    """Ports of an RDMA device, of which the file names each by its state."""
    found = (re.fullmatch(rf"(?:{OWN})?Port([0-9]{{1,3}})(?:State|Rate)", n) for n in infos)
    ports = sorted({int(m[1]) for m in found if m})
    return [
        replace(plain_nic(name, port, address, near, infos), rdma=True, port=port)
        for port in ports or [1]
    ]


def plain_nic(
    name: str, port: int, address: str | None, near: Known, infos: Mapping[str, str]
) -> Nic:
    """A network interface, or a port of one."""
    rate = integer(infos.get(f"{OWN}Port{port}Rate", ""))
    state = _PORT_STATES.get(infos.get(f"Port{port}State", ""))
    return Nic(
        name=name if port == 1 else f"{name}:{port}",
        pci_address=address,
        numa_node=near,
        rate_bytes_per_second=None if rate is None else float(rate),
        link_layer=infos.get(f"{OWN}Port{port}LinkLayer"),
        state=state or infos.get(f"{OWN}Port{port}State"),
    )


def integer(text: str) -> int | None:
    """A whole number from 0, or None."""
    return int(text) if re.fullmatch(r"[0-9]{1,18}", text) else None


def bus_order(address: str) -> tuple[int, ...]:
    """A PCI address as numbers, to sort by."""
    return tuple(int(part, 16) for part in re.split("[:.]", address))


def device_name(device: Nic | Nvme) -> str:
    """A name, to sort by."""
    return device.name
