"""CPUs: which exist, which this process may use, packages, cores, model."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import threading
from collections.abc import Iterable

from topobench.agents.discover.cgroups import Limits
from topobench.agents.discover.cpu_layout import read_caches, read_groups, read_kinds
from topobench.agents.discover.tree import Tree, cpu_list
from topobench.topology import Cpus, parse_cpu_list

_CPU = "sys/devices/system/cpu"

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
    groups = read_groups(tree, online)
    caches = read_caches(tree, online)
    counts = {g.level: len(g.sets) for g in groups}
    cores = next((g.sets for g in groups if g.level == "core"), ())
    return Cpus(
        possible=cpu_list(tree.cpus(f"{_CPU}/possible")),
        online=cpu_list(online),
        allowed=cpu_list(_allowed(tree, online, limits)),
        model=_model(info) or (_model_by_cpuinfo() if tree.live else None),
        vendor=_field(info, "vendor_id", "vendor"),
        packages=counts.get("package"),
        physical_cores=counts.get("core"),
        threads_per_core=max((len(parse_cpu_list(c)) for c in cores), default=None),
        last_level_cache_bytes=caches[-1].bytes if caches else None,
        quota_cpus=limits.quota_cpus,
        offline=_offline(tree, online),
        isolated=cpu_list(tree.cpus(f"{_CPU}/isolated")),
        family=_number(info, "cpu family"),
        model_number=_number(info, "model"),
        stepping=_number(info, "stepping"),
        dies=counts.get("die"),
        clusters=counts.get("cluster"),
        groups=groups,
        kinds=read_kinds(tree, online),
        caches=caches,
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


def _offline(tree: Tree, online: tuple[int, ...] | None) -> str | None:
    """CPUs that are there but switched off; the kernel's own list holds absent ones too."""
    present = tree.cpus(f"{_CPU}/present")
    if present is None or online is None:
        return None
    return cpu_list(tuple(sorted(set(present).difference(online))))


def _number(info: str, name: str) -> int | None:
    """A field of /proc/cpuinfo that is a number, as on x86."""
    found = _field(info, name)
    return int(found) if found and found.isdigit() else None


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
