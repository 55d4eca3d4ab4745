"""GPUs: the PCI tree joined with NVML by PCI address."""

from __future__ import annotations

import collections
import re
from collections.abc import Sequence
from dataclasses import replace

from topobench.agents.discover.facts import GpuFacts, NvmlFacts
from topobench.agents.discover.numa import Numa
from topobench.agents.discover.pci import Pci
from topobench.agents.discover.tree import Tree
from topobench.pcie import normalise_address
from topobench.topology import (
    Gpu,
    Known,
    Mig,
    NvLinks,
    format_cpu_list,
)

_DRIVER = "proc/driver/nvidia/gpus"
_NVLINKS = {
    r"\bP100-SXM": 4,
    r"\bV100-SXM": 6,
    r"\bA100-SXM": 12,
    r"\b(A800|H800)\b(?!.*PCIe)": 8,
    r"\bH100 (80GB|96GB|64GB) HBM": 18,
    r"\bH20\b": 18,
    r"\b(H200|B100|B200|GB200|B300|GB300)\b(?!.*NVL)": 18,
}
"""NVLinks a healthy GPU of that model has."""

_LINK_RATES = {"1": 20e9, "2": 25e9, "3": 25e9, "4": 25e9, "5": 50e9}
"""Nominal B/s of one link, one direction, by generation; used where NVML tells no speed."""


def read_gpus(tree: Tree, pci: Pci, numa: Numa, facts: NvmlFacts | None) -> tuple[Gpu, ...]:
    """
    GPUs in NVML's order, each followed by its MIG slices; then those only PCI shows.

    Args:
        facts: NVML's answers; None where it was not asked.
    """
    own = {gpu: node for node, gpu in gpu_nodes(tree, facts).items()}
    told = _with_addresses(pci, facts.gpus if facts else ())
    addresses = {gpu.pci_address for gpu in told}
    found = []
    for gpu in told:
        whole = _whole(gpu, told, pci, numa)
        whole = replace(whole, own_numa_node=own.get(whole.key))
        found += [whole, *_slices(whole, gpu)]
    state = "unknown" if facts is None else "no_access"
    for address in _addresses(pci):
        if address not in addresses:
            silent = _whole(_by_driver(tree, address, state), (), pci, numa)
            node = own.get(silent.key, own.get(address))
            found.append(replace(silent, index=None, own_numa_node=node))
    return tuple(found)


def gpu_nodes(tree: Tree, facts: NvmlFacts | None) -> dict[int, str]:
    """NUMA node -> UUID or PCI address of the GPU whose memory it is."""
    told = facts.gpus if facts else ()
    uuids = {g.pci_address: g.uuid for g in told if g.uuid}
    found = {}
    for written in tree.names(_DRIVER):
        text = tree.text(f"{_DRIVER}/{written}/numa_status") or ""
        match = re.search(r"^Node:\s*(\d+)", text, re.MULTILINE)
        if match:
            address = normalise_address(written)
            found[int(match[1])] = uuids.get(address) or address or written
    for gpu in told:
        if gpu.own_numa_node is not None and gpu.uuid:
            found[gpu.own_numa_node] = gpu.uuid
    return found


def _by_driver(tree: Tree, address: str, state: str) -> GpuFacts:
    """What the kernel driver's own files tell of a GPU that NVML does not."""
    text = ""
    for written in tree.names(_DRIVER):
        if normalise_address(written) == address:
            text = tree.text(f"{_DRIVER}/{written}/information") or ""
    model = re.search(r"^Model:\s*(.*?)\s*$", text, re.MULTILINE)
    uuid = re.search(r"^GPU UUID:\s*(GPU-[0-9a-f-]{36})\s*$", text, re.MULTILINE)
    return GpuFacts(
        index=-1,
        pci_address=address,
        uuid=uuid[1] if uuid else None,
        state=state,
        model=model[1] if model and model[1] != "Unknown" else None,
    )


def _addresses(pci: Pci) -> list[str]:
    return [address for address, function in pci.functions.items() if function.is_gpu]


def _with_addresses(pci: Pci, gpus: Sequence[GpuFacts]) -> tuple[GpuFacts, ...]:
    """
    Lost GPUs with the PCI addresses that no other GPU has.

    NVML counts in PCI order, so this is certain if as many addresses as GPUs are left.
    """
    taken = {gpu.pci_address for gpu in gpus}
    left = [address for address in _addresses(pci) if address not in taken]
    lost = [gpu.index for gpu in gpus if gpu.pci_address is None]
    if len(left) != len(lost):
        return tuple(gpus)
    addresses = dict(zip(lost, left, strict=True))
    return tuple(replace(g, pci_address=g.pci_address or addresses[g.index]) for g in gpus)


def _whole(gpu: GpuFacts, all_gpus: Sequence[GpuFacts], pci: Pci, numa: Numa) -> Gpu:
    node = _cpu_node(gpu, pci, numa)
    return Gpu(
        index=gpu.index,
        uuid=gpu.uuid,
        pci_address=gpu.pci_address,
        model=gpu.model,
        memory_bytes=gpu.memory_bytes,
        cpu_node=node,
        cpus=_cpus(gpu, node, pci, numa),
        compute_capability=gpu.compute_capability,
        state=gpu.state,
        mig=Mig(gpu.mig_mode) if gpu.mig_mode == "enabled" else None,
        nvlink=_nvlinks(gpu, all_gpus),
        fabric=gpu.fabric,
        c2c=gpu.c2c,
        fabric_multi_node=gpu.fabric_multi_node,
        fabric_health=gpu.fabric_health,
        c2c_links=gpu.c2c_links,
        c2c_bytes_per_second=gpu.c2c_bytes_per_second,
        module_id=gpu.module_id,
        virtualization=gpu.virtualization,
        compute_mode=gpu.compute_mode,
    )


def _slices(whole: Gpu, facts: GpuFacts) -> list[Gpu]:
    """MIG slices: memory is their own; place in the tree is the parent's; no NVLink."""
    return [
        replace(
            whole,
            index=None,
            uuid=part.uuid,
            memory_bytes=part.memory_bytes,
            mig=Mig("enabled", whole.key, part.profile),
            nvlink=None,
        )
        for part in facts.mig
    ]


def _cpu_node(gpu: GpuFacts, pci: Pci, numa: Numa) -> Known:
    """
    The NUMA node with CPUs to bind to; never the node that is the GPU's own memory.

    sysfs, else its local CPUs, else NVML's affinities, else a bridge above, else the only
    node there is.
    """
    with_cpus = {n.id for n in numa.nodes if n.cpus}
    device = pci.devices.get(gpu.pci_address or "")
    given = device.numa_node if device else Known(None, None, "not in the PCI tree")
    if given.value in with_cpus and given.source != "ancestor":
        return given
    near = with_cpus.intersection(gpu.memory_nodes or ())
    by_nvml = near.pop() if len(near) == 1 else numa.node_of(gpu.cpu_affinity)
    if by_nvml is not None:
        return Known(by_nvml, "nvml", None)
    if given.value in with_cpus:
        return given
    if len(with_cpus) == 1:
        return Known(with_cpus.pop(), "only_node", given.reason)
    reason = given.reason or f"NUMA node {given.value} has no CPUs"
    return Known(None, None, f"{reason}; NVML names no single node")


def _cpus(gpu: GpuFacts, node: Known, pci: Pci, numa: Numa) -> str | None:
    for known in numa.nodes:
        if known.id == node.value:
            return known.cpus
    function = pci.functions.get(gpu.pci_address or "")
    near = gpu.cpu_affinity or (function.local_cpus if function else None)
    return format_cpu_list(near) if near else None


def _nvlinks(gpu: GpuFacts, all_gpus: Sequence[GpuFacts]) -> NvLinks | None:
    if not gpu.links:
        return None
    active = _active(gpu)
    rate = gpu.nvlink_bytes_per_second or _LINK_RATES.get((gpu.nvlink_version or "")[:1])
    return NvLinks(
        active=active,
        expected=_expected(gpu, all_gpus),
        version=gpu.nvlink_version,
        bytes_per_second=active * rate if rate else None,
        links=gpu.links,
    )


def _active(gpu: GpuFacts) -> int:
    return sum(link.state == "active" for link in gpu.links)


def _expected(gpu: GpuFacts, all_gpus: Sequence[GpuFacts]) -> int | None:
    """
    Links a healthy GPU of this kind has here: by model, else by most of its like.

    None where all links of all its like are inactive: cards without a bridge are healthy.
    """
    for pattern, count in _NVLINKS.items():
        if re.search(pattern, gpu.model or ""):
            return count
    like = collections.Counter(_active(g) for g in all_gpus if g.model == gpu.model and g.links)
    most = max(like, key=lambda active: (like[active], active), default=0)
    return most or None
