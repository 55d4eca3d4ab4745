"""CPUs: which exist, which this process may use, packages, cores, model."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import threading
from collections.abc import Iterable

from topobench.agents.discover.cgroups import Limits
from topobench.agents.discover.tree import Tree, cpu_list
from topobench.topology import Cpus, parse_cpu_list

_CPU = "sys/devices/system/cpu"
_SIZES = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}

_ARM_PARTS = {
    (0x41, 0xD0C): "Arm Neoverse-N1",
    (0x41, 0xD40): "Arm Neoverse-V1",
    (0x41, 0xD49): "Arm Neoverse-N2",
    (0x41, 0xD4F): "Arm Neoverse-V2",
    (0x41, 0xD84): "Arm Neoverse-V3",
    (0x41, 0xD85): "Arm Cortex-X925",
    (0x41, 0xD87): "Arm Cortex-A725",
    (0x41, 0xD8E): "Arm Neoverse-N3",
    (0x48, 0xD01): "HiSilicon Kunpeng-920",
    (0xC0, 0xAC3): "Ampere-1",
    (0xC0, 0xAC4): "Ampere-1a",
}
"""(implementer, part) of MIDR_EL1, which is all an Arm kernel tells."""


def read_cpus(tree: Tree, limits: Limits) -> Cpus:
    """CPUs of the tree; counts are None where the kernel does not say."""
    online = _online(tree)
    info = tree.text("proc/cpuinfo") or ""
    cores = _groups(tree, online, "core_cpus", "thread_siblings")
    packages = _groups(tree, online, "package_cpus", "core_siblings")
    sizes = {len(core) for core in cores or ()}
    return Cpus(
        possible=cpu_list(tree.cpus(f"{_CPU}/possible")),
        online=cpu_list(online),
        allowed=cpu_list(_allowed(tree, online, limits)),
        model=_model(info) or (_model_by_cpuinfo() if tree.live else None),
        vendor=_field(info, "vendor_id", "vendor"),
        packages=len(packages) if packages else None,
        physical_cores=len(cores) if cores else None,
        threads_per_core=max(sizes) if sizes else None,
        last_level_cache_bytes=_last_level_cache(tree, online),
        quota_cpus=limits.quota_cpus,
    )


def status_list(tree: Tree, key: str) -> tuple[int, ...] | None:
    """A list of /proc/self/status (``Cpus_allowed_list``, ``Mems_allowed_list``)."""
    match = re.search(rf"^{key}:\s*(\S+)", tree.text("proc/self/status") or "", re.MULTILINE)
    return parse_cpu_list(match[1]) if match else None


def _online(tree: Tree) -> tuple[int, ...] | None:
    listed = tree.cpus(f"{_CPU}/online")
    folders = tree.numbered(_CPU, "cpu")
    if listed is not None:  # a capture may hold fewer folders than the machine had CPUs
        return tuple(sorted(set(folders).intersection(listed))) or listed
    found = tuple(c for c in folders if tree.integer(f"{_CPU}/cpu{c}/online") != 0)
    if found:
        return found
    numbers = re.findall(r"^processor\s*:?\s*(\d+)", tree.text("proc/cpuinfo") or "", re.MULTILINE)
    return tuple(sorted({int(n) for n in numbers})) or None


def _allowed(tree: Tree, online: tuple[int, ...] | None, limits: Limits) -> tuple[int, ...] | None:
    if tree.live and online:
        return widest_affinity(online)
    sets = [set(s) for s in (status_list(tree, "Cpus_allowed_list"), limits.cpus, online) if s]
    return tuple(sorted(set.intersection(*sets))) if sets else None


def widest_affinity(cpus: Iterable[int]) -> tuple[int, ...]:
    """
    The part of ``cpus`` the kernel lets this process run on.

    An inherited affinity does not narrow it (a process may widen its own again); a
    cpuset does. Asked by a thread of its own, so nobody's affinity changes.
    """
    wanted, granted = set(cpus), os.sched_getaffinity(0)

    def ask() -> None:
        nonlocal granted
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, wanted)
            granted = os.sched_getaffinity(0)

    thread = threading.Thread(target=ask, name="affinity")
    thread.start()
    thread.join()
    return tuple(sorted(granted))


def _groups(tree: Tree, online: tuple[int, ...] | None, *names: str) -> set[frozenset[int]] | None:
    """
    The sets of CPUs that share a core or package.

    By their masks, since core numbers repeat between packages; each set is read once.
    """
    seen: set[int] = set()
    found = set()
    for cpu in online or ():
        if cpu in seen:
            continue
        group = _siblings(tree, cpu, names)
        if group is None:
            return None
        members = frozenset(group).intersection(online or ()) | {cpu}
        seen |= members
        found.add(members)
    return found or None


def _siblings(tree: Tree, cpu: int, names: tuple[str, ...]) -> tuple[int, ...] | None:
    for name in names:
        base = f"{_CPU}/cpu{cpu}/topology/{name}"
        found = tree.cpus(f"{base}_list")
        if found is None:
            found = tree.cpu_mask(base)
        if found is not None:
            return found
    return None


def _last_level_cache(tree: Tree, online: tuple[int, ...] | None) -> int | None:
    if not online:
        return None
    base = f"{_CPU}/cpu{online[0]}/cache"
    levels = {}
    for index in tree.numbered(base, "index"):
        level = tree.integer(f"{base}/index{index}/level")
        match = re.fullmatch(r"(\d+)([KMG]?)", tree.text(f"{base}/index{index}/size") or "")
        if level is not None and match:
            levels[level] = int(match[1]) * _SIZES.get(match[2], 1)
    return levels[max(levels)] if levels else None


def _field(info: str, *names: str) -> str | None:
    """The first such field of /proc/cpuinfo."""
    for name in names:
        if match := re.search(rf"^{name}\s*:\s*(\S.*?)\s*$", info, re.MULTILINE):
            return match[1]
    return None


def _model(info: str) -> str | None:
    """CPU model by /proc/cpuinfo: x86; POWER; ia64; MIPS and old Arm; Arm by part number."""
    named = _field(info, "model name", "cpu model", "cpu", "family", "Processor")
    if named and not named.isdigit():
        return re.sub(r"\s+", " ", named)
    implementer, part = _field(info, "CPU implementer"), _field(info, "CPU part")
    if implementer and part:
        return _ARM_PARTS.get((int(implementer, 16), int(part, 16)))
    return None


@functools.cache
def _model_by_cpuinfo() -> str | None:
    """What py-cpuinfo says; it may start programs, so it is asked last, and once."""
    try:
        import cpuinfo

        brand = cpuinfo.get_cpu_info().get("brand_raw")
    except Exception:  # it parses what other programs print; no failure of it is ours
        return None
    return str(brand) if brand else None
