"""How CPUs are grouped: packages, dies, clusters, cores, kinds and the caches they share."""

from __future__ import annotations

import re

from topobench.agents.discover.tree import Tree
from topobench.topology import Caches, CpuGroups, CpuKind, format_cpu_list

_CPU = "sys/devices/system/cpu"
_SIZES = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}

_LEVELS = {
    "package": ("package_cpus", "core_siblings"),
    "die": ("die_cpus",),
    "cluster": ("cluster_cpus",),
    "core": ("core_cpus", "thread_siblings"),
}
"""Level -> names of its masks, the newer kernels' first."""

_KINDS = ("core", "atom", "lowpower")
_MEASURES = (("cpu_capacity", "capacity {}", 1), ("cpufreq/base_frequency", "base {} MHz", 1000))
"""What tells kinds apart where the kernel has no names for them: file, name, divisor."""

_Online = tuple[int, ...] | None
_CacheKind = tuple[int, str, int]


def read_groups(tree: Tree, online: _Online) -> tuple[CpuGroups, ...]:
    """
    Levels that the kernel tells of, outermost first; CPUs that are offline are left out.

    By masks, since core numbers repeat between packages. Kernels make up dies that are no
    more than cores, and clusters that are no more than cores, dies or packages.
    """
    found = {}
    for level, names in _LEVELS.items():
        name = next((n for n in names if online and _members(tree, online[0], n)), None)
        sets = _sets(tree, online or (), name) if name else None
        if sets and level == "core":
            sets = _cores(tree, sets)
        if sets:
            found[level] = sets
    if found.get("die") == found.get("core") != found.get("package"):
        found.pop("die", None)
    if found.get("cluster") in (found.get("core"), found.get("package"), found.get("die")):
        found.pop("cluster", None)
    return tuple(CpuGroups(level, tuple(map(format_cpu_list, s))) for level, s in found.items())


def read_kinds(tree: Tree, online: _Online) -> tuple[CpuKind, ...]:
    """Kinds of a hybrid host, by the kernel's performance counters, capacity or base frequency."""
    known = set(online or ())
    listed = {kind: tree.cpus(f"sys/devices/cpu_{kind}/cpus") for kind in _KINDS}
    named = [CpuKind(k, format_cpu_list(known.intersection(c))) for k, c in listed.items() if c]
    if len(named) > 1:
        return tuple(named)
    for file, name, divisor in _MEASURES:
        by_value: dict[int, list[int]] = {}
        for cpu in online or ():
            value = tree.integer(f"{_CPU}/cpu{cpu}/{file}")
            if value is None:
                break
            by_value.setdefault(value, []).append(cpu)
        else:
            if len(by_value) > 1:
                ordered = sorted(by_value.items(), reverse=True)
                return tuple(
                    CpuKind(name.format(value // divisor), format_cpu_list(cpus))
                    for value, cpus in ordered
                )
    return ()


def read_caches(tree: Tree, online: _Online) -> tuple[Caches, ...]:
    """Caches by level, type and size; each is read once, by the first of its CPUs."""
    if not online:
        return ()
    found: dict[_CacheKind, list[str]] = {}
    for index in tree.numbered(f"{_CPU}/cpu{online[0]}/cache", "index"):
        seen: set[int] = set()
        kinds: dict[str, _CacheKind | None] = {}
        for cpu in online:
            if cpu not in seen:
                base = f"{_CPU}/cpu{cpu}/cache/index{index}"
                shared = _listed(tree, f"{base}/shared_cpu_list", f"{base}/shared_cpu_map")
                members = set(shared or ()).intersection(online) | {cpu}
                seen |= members
                size = tree.text(f"{base}/size") or ""
                if size not in kinds:  # caches of one index and size are alike
                    kinds[size] = _cache_kind(tree, base, size)
                if kind := kinds[size]:
                    found.setdefault(kind, []).append(format_cpu_list(members))
    return tuple(Caches(*kind, tuple(sets)) for kind, sets in sorted(found.items()))


def _cache_kind(tree: Tree, base: str, size: str) -> _CacheKind | None:
    """Level, type and bytes."""
    level = tree.integer(f"{base}/level")
    match = re.fullmatch(r"(\d+)([KMG]?)", size)
    if level is None or not match:
        return None
    kind = (tree.text(f"{base}/type") or "unified").lower()
    return level, kind, int(match[1]) * _SIZES.get(match[2], 1)


def _sets(tree: Tree, online: tuple[int, ...], name: str) -> list[frozenset[int]] | None:
    """The sets of CPUs that share a mask, in order of their first; each is read once."""
    seen: set[int] = set()
    found = []
    for cpu in online:
        if cpu in seen:
            continue
        group = _members(tree, cpu, name)
        if group is None:
            return None
        members = frozenset(group).intersection(online) | {cpu}
        seen |= members
        found.append(members)
    return found


def _cores(tree: Tree, sets: list[frozenset[int]]) -> list[frozenset[int]]:
    """
    Sets of threads, split where they are cores.

    Kernels call the two cores of an AMD module threads of one, but number them apart.
    """
    first, *others = sorted(sets[0])
    base = f"{_CPU}/cpu{{}}/topology/core_id"
    numbers = {tree.integer(base.format(cpu)) for cpu in (first, *others)}
    if not others or len(numbers) == 1:
        return sets
    return [frozenset({cpu}) for cpu in sorted(frozenset().union(*sets))]


def _members(tree: Tree, cpu: int, name: str) -> tuple[int, ...] | None:
    base = f"{_CPU}/cpu{cpu}/topology/{name}"
    return _listed(tree, f"{base}_list", base)


def _listed(tree: Tree, list_name: str, mask_name: str) -> tuple[int, ...] | None:
    found = tree.cpus(list_name)
    return tree.cpu_mask(mask_name) if found is None else found
