"""CPU and memory limits of a control group: cgroup v1, v2 and the old cpuset mount."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from topobench.agents.discover.tree import Tree

_NO_LIMIT = 1 << 60
"""cgroup v1 writes "none" as a number near 2^63."""


@dataclass(frozen=True, slots=True)
class Limits:
    """
    What the control group of a process grants; None where nothing limits it.

    Args:
        quota_cpus: CPU time per wall time ("cpu.max"), as a number of CPUs.
        throttled_seconds: Time the group was held back since it was made.
        memory_bytes: What the group may still use, its page cache counted as free.
    """

    cpus: tuple[int, ...] | None = None
    nodes: tuple[int, ...] | None = None
    quota_cpus: float | None = None
    throttled_count: int | None = None
    throttled_seconds: float | None = None
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class _Group:
    """A mounted hierarchy and our place in it; ``version`` 0 is the old cpuset mount."""

    version: int
    controllers: frozenset[str]
    mount: str
    path: str

    def folders(self) -> Iterator[str]:
        """Our group's folder, then its parents'."""
        parts = [p for p in self.path.split("/") if p and p != ".."]
        for depth in range(len(parts), -1, -1):
            yield "/".join([self.mount, *parts[:depth]])


def read_limits(tree: Tree) -> Limits:
    """Limits of the process that reads ("self" of the tree's procfs)."""
    groups = _groups(tree)
    count, seconds = _throttling(tree, groups)
    return Limits(
        cpus=_cpuset(tree, groups, "cpus"),
        nodes=_cpuset(tree, groups, "mems"),
        quota_cpus=_quota(tree, groups),
        throttled_count=count,
        throttled_seconds=seconds,
        memory_bytes=_memory(tree, groups),
    )


def _groups(tree: Tree) -> tuple[_Group, ...]:
    places = _places(tree)
    old_path = tree.text("proc/self/cpuset")
    found = []
    for line in (tree.text("proc/self/mounts") or tree.text("proc/mounts") or "").splitlines():
        fields = line.split()
        if len(fields) < 4:
            continue
        mount, kind, options = fields[1].lstrip("/"), fields[2], frozenset(fields[3].split(","))
        if kind == "cgroup2":
            found.append(_Group(2, frozenset(), mount, places.get("", old_path or "/")))
        elif kind == "cpuset" or (kind == "cgroup" and "noprefix" in options):
            path = places.get("cpuset", old_path or "/")
            found.append(_Group(0, frozenset({"cpuset"}), mount, path))
        elif kind == "cgroup":
            path = next((places[c] for c in sorted(options) if c in places), old_path or "/")
            found.append(_Group(1, options, mount, path))
    return tuple(found)


def _places(tree: Tree) -> dict[str, str]:
    """Controller ("" for v2) -> path of our group."""
    places = {}
    for line in (tree.text("proc/self/cgroup") or "").splitlines():
        fields = line.split(":", 2)
        if len(fields) == 3:
            for controller in fields[1].split(","):
                places[controller] = fields[2]
    return places


def _cpuset(tree: Tree, groups: tuple[_Group, ...], what: str) -> tuple[int, ...] | None:
    names = {2: f"cpuset.{what}.effective", 1: f"cpuset.{what}", 0: what}
    for group in groups:
        if group.version == 1 and "cpuset" not in group.controllers:
            continue
        for folder in group.folders():
            if found := tree.cpus(f"{folder}/{names[group.version]}"):
                return found
    return None


def _quota(tree: Tree, groups: tuple[_Group, ...]) -> float | None:
    found = []
    for group in groups:
        for folder in group.folders():
            if group.version == 2:
                quota, _, period = (tree.text(f"{folder}/cpu.max") or "").partition(" ")
            elif "cpu" in group.controllers:
                quota = tree.text(f"{folder}/cpu.cfs_quota_us") or ""
                period = tree.text(f"{folder}/cpu.cfs_period_us") or ""
            else:
                continue
            if quota.isdigit() and period.isdigit() and int(quota) and int(period):
                found.append(int(quota) / int(period))
    return min(found, default=None)


def _throttling(tree: Tree, groups: tuple[_Group, ...]) -> tuple[int | None, float | None]:
    for group in groups:
        if group.version == 1 and "cpu" not in group.controllers:
            continue
        values = _statistics(tree, f"{next(group.folders())}/cpu.stat")
        count, micro, nano = (
            values.get(k) for k in ("nr_throttled", "throttled_usec", "throttled_time")
        )
        if count is not None:
            seconds = int(micro) / 1e6 if micro else int(nano) / 1e9 if nano else None
            return int(count), seconds
    return None, None


def _memory(tree: Tree, groups: tuple[_Group, ...]) -> int | None:
    """The least headroom of our group and its parents; None if none has a limit."""
    names = {
        2: ("memory.max", "memory.current", "inactive_file"),
        1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    }
    found = []
    for group in groups:
        if group.version == 0 or (group.version == 1 and "memory" not in group.controllers):
            continue
        limit_name, usage_name, cache_name = names[group.version]
        for folder in group.folders():
            limit = tree.integer(f"{folder}/{limit_name}")
            usage = tree.integer(f"{folder}/{usage_name}")
            if limit is None or usage is None or limit >= _NO_LIMIT:
                continue
            cache = int(_statistics(tree, f"{folder}/memory.stat").get(cache_name, "0"))
            found.append(max(0, limit - usage + cache))
    return min(found, default=None)


def _statistics(tree: Tree, name: str) -> dict[str, str]:
    lines = (tree.text(name) or "").splitlines()
    return dict(line.split(" ", 1) for line in lines if " " in line)
