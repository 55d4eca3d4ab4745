"""Network and RDMA interfaces, and NVMe controllers."""

from __future__ import annotations

import collections
import re
from dataclasses import replace

from topobench.agents.discover.pci import Pci
from topobench.agents.discover.tree import Tree
from topobench.pcie import normalise_address
from topobench.topology import Known, Nic, Nvme

_NET, _RDMA, _NVME = "sys/class/net", "sys/class/infiniband", "sys/class/nvme"
_NOT_PCI = Known(None, None, "not a PCI device")


def read_nics(tree: Tree, pci: Pci) -> tuple[Nic, ...]:
    """
    RDMA ports, then network interfaces without one.

    Virtual functions and interfaces without hardware (loopback, bridges, bonds) are no
    capacity and are left out.
    """
    rdma = [nic for name in tree.names(_RDMA) for nic in _rdma_ports(tree, pci, name)]
    net = [nic for name in tree.names(_NET) if (nic := _net(tree, pci, name))]
    names = collections.defaultdict(list)
    for nic in net:
        names[nic.pci_address].append(nic.name)
    ports = (replace(n, interfaces=tuple(names[n.pci_address])) for n in rdma if n.pci_address)
    taken = {nic.pci_address for nic in rdma if nic.pci_address}
    return (
        *ports,
        *(n for n in rdma if n.pci_address is None),
        *(n for n in net if n.pci_address not in taken),
    )


def read_nvme(tree: Tree, pci: Pci) -> tuple[Nvme, ...]:
    """NVMe controllers with their models; network-attached ones have no PCI address."""
    found = []
    for name in tree.names(_NVME):
        if re.fullmatch(r"nvme\d+", name):
            address = _pci_address(tree, f"{_NVME}/{name}")
            model = tree.text(f"{_NVME}/{name}/model")
            state = tree.text(f"{_NVME}/{name}/state")
            transport = tree.text(f"{_NVME}/{name}/transport")
            node = _numa_node(pci, address)
            found.append(Nvme(name, address, node, model, state, transport))
    return tuple(found)


def _rdma_ports(tree: Tree, pci: Pci, name: str) -> list[Nic]:
    base = f"{_RDMA}/{name}"
    address = _pci_address(tree, base)
    if _is_virtual_function(pci, address):
        return []
    return [
        Nic(
            name=name if port == 1 else f"{name}:{port}",
            pci_address=address,
            numa_node=_numa_node(pci, address),
            rate_bytes_per_second=_rdma_rate(tree.text(f"{base}/ports/{port}/rate")),
            link_layer=tree.text(f"{base}/ports/{port}/link_layer"),
            state=_rdma_state(tree.text(f"{base}/ports/{port}/state")),
            rdma=True,
            port=port,
            physical_state=_rdma_state(tree.text(f"{base}/ports/{port}/phys_state")),
            speed_name=_speed_name(tree.text(f"{base}/ports/{port}/rate")),
        )
        for port in tree.numbered(f"{base}/ports", "")
    ]


def _net(tree: Tree, pci: Pci, name: str) -> Nic | None:
    base = f"{_NET}/{name}"
    if not tree.exists(f"{base}/device"):
        return None
    address = _pci_address(tree, base)
    if _is_virtual_function(pci, address):
        return None
    megabits = tree.integer(f"{base}/speed")
    state = tree.text(f"{base}/operstate")
    return Nic(
        name=name,
        pci_address=address,
        numa_node=_numa_node(pci, address),
        rate_bytes_per_second=megabits * 125e3 if megabits and megabits > 0 else None,
        link_layer="Ethernet" if tree.integer(f"{base}/type") == 1 else None,
        state={"up": "active"}.get(state or "", state),
    )


def _pci_address(tree: Tree, base: str) -> str | None:
    """The PCI function a class device hangs off; USB devices have none of their own."""
    folder = tree.resolve(f"{base}/device") or tree.resolve(base) or ""
    if re.search(r"/usb\d+/", folder):
        return None
    addresses = [a for part in folder.split("/") if (a := normalise_address(part))]
    return addresses[-1] if addresses else None


def _is_virtual_function(pci: Pci, address: str | None) -> bool:
    device = pci.devices.get(address or "")
    return device is not None and device.role == "vf"


def _numa_node(pci: Pci, address: str | None) -> Known:
    device = pci.devices.get(address or "")
    return device.numa_node if device else _NOT_PCI


def _rdma_rate(text: str | None) -> float | None:
    """B/s of "400 Gb/sec (4X NDR)"."""
    match = re.match(r"(\d+(?:\.\d+)?) Gb/sec", text or "")
    return float(match[1]) * 125e6 if match else None


def _speed_name(text: str | None) -> str | None:
    """Lanes and generation of "400 Gb/sec (4X NDR)"."""
    match = re.search(r"\((.+)\)", text or "")
    return match[1] if match else None


def _rdma_state(text: str | None) -> str | None:
    """Active of "4: ACTIVE"."""
    return text.rpartition(":")[2].strip().lower() if text else None
