"""Settings of a host that explain numbers: stored once for all runs that share them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from topobench.agents.discover.cgroups import read_limits
from topobench.agents.discover.tree import Tree
from topobench.topology import parse_cpu_list

_CPUS = "sys/devices/system/cpu"


def host_settings(tree: Tree) -> dict[str, str | float | None]:
    """
    What the host is set to; None where it does not say.

    Keys: governor (of all CPUs, ``mixed: a, b`` if they differ), boost, thp and
    thp_defrag, huge_pages, numa_balancing, mitigations (on, or those the boot line turns
    off), quota_cpus (CPU time the control group grants, as a number of CPUs).
    """
    return {
        "governor": _governor(tree),
        "boost": _boost(tree),
        "thp": _chosen(tree.text("sys/kernel/mm/transparent_hugepage/enabled")),
        "thp_defrag": _chosen(tree.text("sys/kernel/mm/transparent_hugepage/defrag")),
        "huge_pages": tree.integer("proc/sys/vm/nr_hugepages"),
        "numa_balancing": tree.integer("proc/sys/kernel/numa_balancing"),
        "mitigations": _mitigations(tree),
        "quota_cpus": read_limits(tree).quota_cpus,
    }


def _governor(tree: Tree) -> str | None:
    online: Sequence[int] = parse_cpu_list(tree.text(f"{_CPUS}/online"))
    names = {tree.text(f"{_CPUS}/cpu{cpu}/cpufreq/scaling_governor") for cpu in online}
    known = sorted(name for name in names if name)
    if len(known) > 1:
        return f"mixed: {', '.join(known)}"
    return known[0] if known else None


def _boost(tree: Tree) -> str | None:
    boost, no_turbo = (
        tree.integer(f"{_CPUS}/{name}") for name in ("cpufreq/boost", "intel_pstate/no_turbo")
    )
    if boost is None and no_turbo is None:
        return None
    return "on" if boost or no_turbo == 0 else "off"


def _chosen(text: str | None) -> str | None:
    """The word in brackets of ``always [madvise] never``."""
    match = re.search(r"\[(\S+)\]", text or "")
    return match[1] if match else None


def _mitigations(tree: Tree) -> str | None:
    """What the boot line turns off, or how many weaknesses are left open."""
    names = tree.names(f"{_CPUS}/vulnerabilities")
    if not names:
        return None
    boot = re.findall(r"\b(mitigations=\S+|no\w*(?:spectre|pti|mds|l1tf)\w*)", _boot_line(tree))
    if boot:
        return " ".join(boot)
    states = {name: tree.text(f"{_CPUS}/vulnerabilities/{name}") or "" for name in names}
    left_open = sorted(name for name, state in states.items() if state.startswith("Vulnerable"))
    return f"on, but open: {', '.join(left_open)}" if left_open else "on"


def _boot_line(tree: Tree) -> str:
    return tree.text("proc/cmdline") or ""
