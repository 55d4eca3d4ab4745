"""NUMA nodes and their distances."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from topobench.agents.discover.tree import Tree
from topobench.topology import (
    MemoryAccess,
    NodeKind,
    NumaDistances,
    NumaNode,
    TopologyWarning,
    format_cpu_list,
    parse_cpu_list,
)

_NODE = "sys/devices/system/node"
_LOCAL = 10
"""Distance of a node to itself, by definition."""


@dataclass(frozen=True, slots=True)
class Numa:
    """The nodes of a host, and what to say about them."""

    nodes: tuple[NumaNode, ...]
    distances: NumaDistances
    warnings: tuple[TopologyWarning, ...] = ()

    def node_of(self, cpus: tuple[int, ...] | None) -> int | None:
        """The one node that holds all of ``cpus``; None for several, all, or no CPUs."""
        if not cpus:
            return None
        found = [n.id for n in self.nodes if set(cpus) <= set(parse_cpu_list(n.cpus))]
        return found[0] if len(found) == 1 else None


def read_numa(
    tree: Tree,
    online: tuple[int, ...] | None,
    *,
    allowed: tuple[int, ...] | None,
    gpus: Mapping[int, str],
) -> Numa:
    """
    NUMA nodes of the tree.

    Args:
        online: CPUs that are online; a node's CPUs are cut to them.
        allowed: Nodes whose memory this process may use; None when not restricted.
        gpus: Node -> GPU whose memory it is.
    """
    ids = _ids(tree)
    if not ids:
        return _one_node(tree, online, allowed)
    cpus = {i: _cpus(tree, i, online) for i in ids}
    if _all_claim_all(cpus, online):
        merged = _one_node(tree, online, allowed)
        text = f"all {len(ids)} NUMA nodes claim every CPU, so they are shown as one"
        return Numa(merged.nodes, merged.distances, (TopologyWarning("numa_merged", "host", text),))
    nodes = tuple(
        NumaNode(
            id=i,
            kind=_kind(cpus[i], _memory(tree, i), i in gpus),
            cpus=format_cpu_list(cpus[i]),
            memory_bytes=_memory(tree, i),
            allowed=allowed is None or i in allowed,
            gpu=None if cpus[i] else gpus.get(i),
            access=_access(tree, i),
            memory_side_cache_bytes=_memory_side_cache(tree, i),
        )
        for i in ids
    )
    return Numa(nodes, *_distances(tree, ids))


def _ids(tree: Tree) -> tuple[int, ...]:
    folders = tree.numbered(_NODE, "node")
    listed = tree.cpus(f"{_NODE}/online")
    return folders if listed is None else tuple(sorted(set(folders).intersection(listed)))


def _cpus(tree: Tree, node: int, online: tuple[int, ...] | None) -> tuple[int, ...]:
    found = tree.cpus(f"{_NODE}/node{node}/cpulist")
    if found is None:
        found = tree.cpu_mask(f"{_NODE}/node{node}/cpumap") or ()
    return found if online is None else tuple(sorted(set(found).intersection(online)))


def _memory(tree: Tree, node: int | None) -> int | None:
    """MemTotal of a node, or of the host."""
    text = tree.text("proc/meminfo" if node is None else f"{_NODE}/node{node}/meminfo") or ""
    match = re.search(r"MemTotal:\s*(\d+) kB", text)
    return int(match[1]) << 10 if match else None


def _access(tree: Tree, node: int) -> MemoryAccess | None:
    """What firmware says of the nearest initiators, of those with CPUs if it tells them apart."""
    for access in (1, 0):
        base = f"{_NODE}/node{node}/access{access}/initiators"
        initiators = tree.numbered(base, "node")
        rates = [tree.integer(f"{base}/{way}_bandwidth") for way in ("read", "write")]
        delays = [tree.integer(f"{base}/{way}_latency") for way in ("read", "write")]
        if initiators or any(rates) or any(delays):
            # MB/s and nanoseconds; 0 is "not told"
            return MemoryAccess(
                initiators,
                *(rate * 1e6 if rate else None for rate in rates),
                *(delay / 1e9 if delay else None for delay in delays),
            )
    return None


def _memory_side_cache(tree: Tree, node: int) -> int | None:
    """Size of all caches in front of a node's memory together."""
    base = f"{_NODE}/node{node}/memory_side_cache"
    sizes = [tree.integer(f"{base}/index{i}/size") for i in tree.numbered(base, "index")]
    return sum(s for s in sizes if s) or None


def _kind(cpus: tuple[int, ...], memory_bytes: int | None, gpu: bool) -> NodeKind:
    if gpu and not cpus:
        return NodeKind.GPU
    if cpus:
        return NodeKind.CPU if memory_bytes == 0 else NodeKind.CPU_MEMORY
    return NodeKind.MEMORY if memory_bytes else NodeKind.EMPTY


def _all_claim_all(cpus: Mapping[int, tuple[int, ...]], online: tuple[int, ...] | None) -> bool:
    sets = {frozenset(c) for c in cpus.values()}
    return len(cpus) > 1 and bool(online) and sets == {frozenset(online or ())}


def _one_node(tree: Tree, online: tuple[int, ...] | None, allowed: tuple[int, ...] | None) -> Numa:
    """A host whose kernel tells of no nodes is one node."""
    cpus = online or ()
    memory = _memory(tree, None)
    node = NumaNode(
        id=0,
        kind=_kind(cpus, memory, gpu=False),
        cpus=format_cpu_list(cpus),
        memory_bytes=memory,
        allowed=allowed is None or 0 in allowed,
    )
    text = "the kernel tells of no NUMA nodes; the host is shown as one"
    warning = TopologyWarning("numa_absent", "host", text)
    return Numa((node,), NumaDistances((0,), ((_LOCAL,),)), (warning,))


def _distances(
    tree: Tree, ids: tuple[int, ...]
) -> tuple[NumaDistances, tuple[TopologyWarning, ...]]:
    """Rows are as long as there are nodes online, in that order, whatever their numbers."""
    if len(ids) == 1:
        return NumaDistances(ids, ((_LOCAL,),)), ()
    rows = []
    for i in ids:
        row = (tree.text(f"{_NODE}/node{i}/distance") or "").split()
        if len(row) != len(ids) or not all(v.isdigit() for v in row):
            text = f"node{i}/distance holds {len(row)} numbers for {len(ids)} nodes"
            return NumaDistances(), (TopologyWarning("numa_distances", f"numa:{i}", text),)
        rows.append(tuple(int(v) for v in row))
    return NumaDistances(ids, tuple(rows)), ()
