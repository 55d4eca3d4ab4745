"""hwloc's tree of packages, NUMA nodes, caches, cores and CPUs, nested by the CPUs they hold."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from topobench.topology import Cpus, NumaNode, parse_cpu_list

_ORDER = ("Package", "Group", "Die", "L5Cache", "L4Cache", "L3Cache", "L2Cache", "L1Cache")
_RANKS = {kind: rank for rank, kind in enumerate((*_ORDER, "L1iCache", "Core", "PU"))}
"""Of objects with the same CPUs, the lower rank holds the higher."""
_GROUPS = {"package": "Package", "die": "Die", "core": "Core"}
_CACHE_TYPES = {"unified": "0", "data": "1", "instruction": "2"}


@dataclass(slots=True)
class CpuObject:
    """An object of hwloc's main tree."""

    kind: str
    cpus: frozenset[int]
    attributes: dict[str, str] = field(default_factory=dict)
    nodes: list[NumaNode] = field(default_factory=list)
    children: list[CpuObject] = field(default_factory=list)

    def insert(self, item: CpuObject) -> bool:
        """Put an object of no more CPUs below; False if it crosses another's border."""
        for child in self.children:
            if item.cpus <= child.cpus:
                return child.insert(item)
            if item.cpus & child.cpus:
                return False
        self.children.append(item)
        return True

    def ordered(self) -> list[CpuObject]:
        """Children by their first CPU, which is the order hwloc wants."""
        return sorted(self.children, key=lambda child: min(child.cpus))


def cpu_tree(cpus: Cpus, online: frozenset[int], nodes: Iterable[NumaNode]) -> CpuObject:
    """
    The machine's CPUs.

    Args:
        nodes: NUMA nodes, the CPUs of each its own; those without any stay at the top.
    """
    top = CpuObject("Machine", online)
    found = [*_groups(cpus, online), *_caches(cpus, online)]
    found += [CpuObject("PU", frozenset({c}), {"os_index": str(c)}) for c in online]
    near = {n.id: online.intersection(parse_cpu_list(n.cpus)) for n in nodes}
    holders = {n.id: _holder(n, near[n.id], top, found) for n in nodes}
    found += [h for h in holders.values() if h.kind == "Group"]
    for item in sorted(found, key=lambda o: (-len(o.cpus), _RANKS[o.kind], min(o.cpus))):
        top.insert(item)
    for node in nodes:
        holders[node.id].nodes.append(node)
    return top


def _holder(
    node: NumaNode, cpus: frozenset[int], top: CpuObject, found: list[CpuObject]
) -> CpuObject:
    """What a NUMA node hangs off: the object with just its CPUs, which may have to be made."""
    if not cpus or cpus == top.cpus:
        return top
    same = (o for o in found if o.cpus == cpus and o.kind in ("Package", "Die"))
    return next(same, None) or CpuObject("Group", cpus, {"kind": "0", "subkind": "0"})


def _groups(cpus: Cpus, online: frozenset[int]) -> Iterator[CpuObject]:
    for group in cpus.groups:
        kind = _GROUPS.get(group.level)
        for index, text in enumerate(group.sets if kind else ()):
            members = online.intersection(parse_cpu_list(text))
            if kind and members:
                yield CpuObject(kind, members, {"os_index": str(index)})


def _caches(cpus: Cpus, online: frozenset[int]) -> Iterator[CpuObject]:
    for cache in cpus.caches:
        instruction = cache.type == "instruction"
        kind = f"L{cache.level}{'i' if instruction else ''}Cache"
        if kind not in _RANKS or cache.type not in _CACHE_TYPES:
            continue
        attributes = {
            "cache_size": str(cache.bytes),
            "depth": str(cache.level),
            "cache_linesize": "0",
            "cache_associativity": "0",
            "cache_type": _CACHE_TYPES[cache.type],
        }
        for text in cache.sets:
            members = online.intersection(parse_cpu_list(text))
            if members:
                yield CpuObject(kind, members, attributes)
