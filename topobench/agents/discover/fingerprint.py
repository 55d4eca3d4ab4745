"""
Fingerprints: equal for machines built alike, whatever their numbers and names.

Three SHA-256 hashes, version ``tfp1``: *shape* is what was bought, *config* how it is set
up, *health* how it runs now. The host becomes a graph of NUMA nodes, root buses and PCI
functions; each node's label is hashed again and again with those of its neighbours
(Weisfeiler and Lehman's colouring) until no two more can be told apart. So neither bus
numbers, UUIDs nor the order of GPUs count. Unknown is hashed as "?", never as 0.
"""

from __future__ import annotations

import collections
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from topobench.topology import Gpu, PciDevice, Topology, parse_cpu_list

VERSION = "tfp1"
_COUNTED = ("0x02", "0x0108", "0x0680", "0x0300", "0x0302", "0x12", "0x0c06")
_IDLE_GTS = 2.5
"""An idle GPU lets its link fall to this; under load it is read again elsewhere."""

_Key = tuple[str, str]


def fingerprints(topology: Topology) -> dict[str, str]:
    """
    Fingerprints of a topology: ``shape``, ``config`` and ``health``, and parts of shape.

    The parts (``cpu``, ``numa``, ``pci``, ``nvlink``, ``nic``) tell which of them differs.
    """
    parts = _parts(topology)
    shape = _hash([parts["cpu"], _graph(topology, {}).canonical(), parts["nvlink"], parts["nic"]])
    found = {
        "shape": shape,
        "config": _hash([shape, _config(topology)]),
        "health": _hash([shape, _health(topology)]),
        **parts,
    }
    return {name: f"{VERSION}:{value}" for name, value in found.items()}


@dataclass(slots=True)
class _Graph:
    """Labelled nodes and labelled edges."""

    labels: dict[_Key, str] = field(default_factory=dict)
    edges: dict[_Key, list[tuple[str, _Key]]] = field(
        default_factory=lambda: collections.defaultdict(list)
    )

    def node(self, key: _Key, attributes: Any) -> None:
        self.labels[key] = _hash(attributes)

    def edge(self, a: _Key, b: _Key, there: Any, back: Any = None) -> None:
        self.edges[a].append((json.dumps(there), b))
        self.edges[b].append((json.dumps(there if back is None else back), a))

    def canonical(self) -> str:
        """The same for isomorphic graphs: labels refined until their number stands still."""
        labels, count = self.labels, 0
        while len(set(labels.values())) > count:
            count = len(set(labels.values()))
            labels = {
                key: _hash([label, sorted([w, labels[o]] for w, o in self.edges[key])])
                for key, label in labels.items()
            }
        return _hash(sorted(labels.values()))


def _hash(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _parts(topology: Topology) -> dict[str, str]:
    """Hashes of what was bought, part by part."""
    numa, pci = _Graph(), _Graph()
    _add_nodes(numa, topology)
    for node in topology.numa_nodes:
        pci.node(_numa(node.id), "node")
    _add_functions(pci, topology, {})
    return {
        "cpu": _hash(_cpu(topology)),
        "numa": numa.canonical(),
        "pci": pci.canonical(),
        "nvlink": _nvlinks(topology).canonical(),
        "nic": _hash(_nics(topology)),
    }


def _cpu(topology: Topology) -> Any:
    cpus = topology.cpus
    kinds = sorted(_count(kind.cpus) for kind in cpus.kinds)
    return {
        "arch": topology.machine.arch or "?",
        "cpu": [cpus.vendor or "?", cpus.model or "?", cpus.family or "?"],
        "number": [_known(cpus.model_number), _known(cpus.stepping)],
        "counts": [_known(n) for n in (cpus.packages, cpus.dies, cpus.physical_cores)],
        "caches": sorted([c.level, c.type, c.bytes, len(c.sets)] for c in cpus.caches),
        "kinds": kinds,
        "guest": topology.virtualization,
    }


def _nvlinks(topology: Topology) -> _Graph:
    """GPUs with the links each should have, joined by the chip links to their NUMA nodes."""
    graph = _Graph()
    for address, told in _gpus_by_model(topology).items():
        graph.node(("pci", address), told)
    for gpu in topology.gpus:
        key = ("pci", gpu.pci_address or "")
        if gpu.c2c and key in graph.labels and gpu.cpu_node.value is not None:
            near = _numa(gpu.cpu_node.value)
            graph.labels.setdefault(near, _hash("node"))
            graph.edge(key, near, ["c2c", gpu.c2c_links])
    return graph


def _nics(topology: Topology) -> Any:
    """Kinds of network functions and how many ports each holds, by the NUMA node they are at."""
    devices = {d.address: d for d in topology.pci}
    ports = collections.Counter(n.pci_address for n in topology.nics if n.pci_address in devices)
    by_node = collections.defaultdict(list)
    for address, count in ports.items():
        device = devices[address or ""]
        kind = [device.vendor, device.device, device.subsystem_device or "?", count]
        by_node[device.numa_node.value].append(kind)
    unknown = sorted(by_node.pop(None, []))
    return [unknown, sorted(sorted(kinds) for kinds in by_node.values())]


def _config(topology: Topology) -> Any:
    """Settings and versions that explain different results of machines built alike."""
    machine, cpus = topology.machine, topology.cpus
    ports = collections.Counter(d.acs for d in topology.pci if d.role.endswith(("port", "stream")))
    slices = collections.Counter(g.mig.profile or "?" for g in topology.gpus if g.mig)
    return {
        "versions": [machine.kernel, machine.driver, machine.cuda, machine.bios],
        "container": machine.container,
        "threads": [
            cpus.threads_per_core,
            cpus.quota_cpus,
            _count(cpus.online),
            _count(cpus.allowed),
            _count(cpus.isolated),
        ],
        "nodes": sum(n.allowed for n in topology.numa_nodes),
        "acs": ports,
        "iommu": [machine.iommu, sorted({d.iommu_type or "?" for d in topology.pci})],
        "mig": slices,
    }


def _health(topology: Topology) -> Any:
    """Current widths, speeds, NVLinks and states: the graph with all that may fail."""
    gpus = {g.pci_address: g for g in topology.gpus if not g.is_slice and g.pci_address}
    nics = collections.defaultdict(list)
    for nic in topology.nics:
        nics[nic.pci_address].append([nic.state, _mb(nic.rate_bytes_per_second)])
    shown = _shown(topology)
    quiet = {*gpus, *(shown[a].parent for a in gpus if a in shown)}
    now = {
        address: [_link_now(device, address in quiet), _gpu_now(gpus.get(address)), nics[address]]
        for address, device in shown.items()
    }
    graph = _graph(topology, now)
    for gpu in gpus.values():
        links = gpu.nvlink.links if gpu.nvlink else ()
        peers = collections.Counter(
            k.remote for k in links if k.state == "active" and k.remote in gpus
        )
        for peer, count in peers.items():
            ends = ("pci", gpu.pci_address or ""), ("pci", peer or "")
            if all(end in graph.labels for end in ends):  # a file may leave a class out
                graph.edge(*ends, ["nvlink", count])
    return [graph.canonical(), _peer_access(topology)]


def _graph(topology: Topology, now: Mapping[str, Any]) -> _Graph:
    """NUMA nodes and PCI tree, with ``now`` added to the labels of PCI functions."""
    graph = _Graph()
    _add_nodes(graph, topology)
    _add_functions(graph, topology, now)
    return graph


def _add_nodes(graph: _Graph, topology: Topology) -> None:
    guest = topology.virtualization not in ("none", "unknown")
    for node in topology.numa_nodes:  # a guest's memory may grow and shrink
        graph.node(_numa(node.id), [node.kind, "?" if guest else _installed(node.memory_bytes)])
    distances = topology.numa_distances
    for i, a in enumerate(distances.nodes):
        for j, b in enumerate(distances.nodes):
            if a < b:
                there, back = distances.matrix[i][j], distances.matrix[j][i]
                graph.edge(_numa(a), _numa(b), ["distance", there], ["distance", back])


def _add_functions(graph: _Graph, topology: Topology, now: Mapping[str, Any]) -> None:
    gpus = _gpus_by_model(topology)
    known = {_numa(n.id) for n in topology.numa_nodes}
    for address, device in _shown(topology).items():
        key = ("pci", address)
        link = device.link.effective_max_bytes_per_second if device.link else None
        ids = [device.pci_class[:6], device.vendor, device.device, gpus.get(address)]
        graph.node(key, [ids, _mb(link), now.get(address)])
        bus = address.rpartition(":")[0]
        above = ("pci", device.parent) if device.parent else ("bus", bus)
        graph.labels.setdefault(above, _hash("bus"))
        graph.edge(above, key, "down", "up")
        near = _numa(-1 if device.numa_node.value is None else device.numa_node.value)
        if near in known:
            graph.edge(key, near, "near", "holds")


def _shown(topology: Topology) -> dict[str, PciDevice]:
    """GPUs, NICs, NVMe and NVSwitches, and the bridges above them; no virtual functions."""
    devices = {d.address: d for d in topology.pci}
    shown: dict[str, PciDevice] = {}
    for device in topology.pci:
        if device.role == "vf" or not device.pci_class.startswith(_COUNTED):
            continue
        step: PciDevice | None = device
        while step is not None and step.address not in shown:
            shown[step.address] = step
            step = devices.get(step.parent or "")
    return shown


def _gpus_by_model(topology: Topology) -> dict[str, Any]:
    """
    Address -> what a GPU of its PCI ids is.

    By the best-known GPU with the same ids, so that one lost GPU changes no shape.
    """
    ids = {d.address: (d.vendor, d.device) for d in topology.pci}
    whole = [g for g in topology.gpus if g.pci_address in ids and not g.is_slice]
    best: dict[tuple[str, str], list[Any]] = {}
    for gpu in whole:
        memory = _installed(gpu.memory_bytes)
        links = gpu.nvlink.expected if gpu.nvlink else None
        told = [gpu.model or "?", memory, gpu.compute_capability or "?", links or "?"]
        kind = ids[gpu.pci_address or ""]
        if kind not in best or told.count("?") < best[kind].count("?"):
            best[kind] = told
    return {g.pci_address or "": best[ids[g.pci_address or ""]] for g in whole}


def _link_now(device: PciDevice, may_idle: bool) -> Any:
    """Width and speed; a link that slowed down since its GPU is idle counts as healthy."""
    link = device.link
    if link is None:
        return None
    idle = may_idle and link.speed_gts == _IDLE_GTS
    return [link.width, link.max_speed_gts if idle else link.speed_gts]


def _gpu_now(gpu: Gpu | None) -> Any:
    if gpu is None:
        return None
    links = (
        collections.Counter((k.state, k.remote_kind or "?") for k in gpu.nvlink.links)
        if gpu.nvlink
        else {}
    )
    rate = _mb(gpu.nvlink.bytes_per_second) if gpu.nvlink else None
    fabric = [gpu.fabric, list(gpu.fabric_health or ())]
    return [gpu.state, fabric, sorted([*k, n] for k, n in links.items()), rate]


def _peer_access(topology: Topology) -> Any:
    """How often each peer status occurs between GPUs."""
    words = (f"{p.p2p.read}/{p.p2p.write}" for p in topology.paths if p.p2p)
    return collections.Counter(words)


def _numa(node: int) -> _Key:
    return ("numa", str(node))


def _mb(bytes_per_second: float | None) -> int | str:
    return "?" if bytes_per_second is None else round(bytes_per_second / 1e6)


def _known(number: int | None) -> int | str:
    return "?" if number is None else number


def _count(cpus: str | None) -> int | str:
    return "?" if cpus is None else len(parse_cpu_list(cpus))


def _installed(memory_bytes: int | None) -> int | str:
    """
    Memory rounded up to a sixteenth of the next power of two.

    Modules come in such sizes, and the kernel keeps a few per cent of them for itself.
    """
    if not memory_bytes:
        return "?" if memory_bytes is None else 0
    step = max(1, (1 << memory_bytes.bit_length()) // 16)
    return -(-memory_bytes // step) * step
