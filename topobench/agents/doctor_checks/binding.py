"""Checks on CPU and memory binding: what the kernel or the container lets a worker have."""

from __future__ import annotations

from topobench.agents.doctor_checks.common import (
    Outcome,
    Subject,
    check,
    engine,
    error,
    install,
    ok,
    unknown,
    warn,
    write_line,
)
from topobench.topology import format_cpu_list, parse_cpu_list


@check(
    wanted="numactl in PATH",
    why="without it topobench binds by system calls, which is proven just the same; "
    "only the commands that `advise` prints need it",
)
def numactl(subject: Subject) -> Outcome:
    """Whether workers are started under numactl."""
    if subject.facts.numactl:
        return ok(subject.facts.numactl)
    families = ("debian", "fedora", "suse", "alpine", "arch")
    return warn("not found", *install(subject, dict.fromkeys(families, "numactl")))


@check(
    wanted="set_mempolicy(2) is allowed",
    why="arms that bind memory are measured with their CPUs bound only, and labelled so",
)
def memory_policy(subject: Subject) -> Outcome:
    """Whether memory can be bound; container engines deny it by default."""
    found = subject.facts.memory_policy
    if not found.startswith("denied"):
        return ok(found)
    if subject.container == "kubernetes":
        return error(
            found,
            "securityContext: {capabilities: {add: [SYS_NICE]}}",
            "securityContext: {}",
            note="the line belongs under the container in the pod's manifest",
        )
    if subject.container:
        start = f"{engine(subject)} run"
        return error(found, f"{start} --cap-add SYS_NICE IMAGE", f"{start} IMAGE")
    return error(found, note="a system call filter denies it, such as a unit's SystemCallFilter=")


@check(
    wanted="no quota below the allowed CPUs",
    why="a worker above its quota is stopped for tens of milliseconds in the middle of a sample",
)
def cpu_quota(subject: Subject) -> Outcome:
    """Whether cpu.max lets a worker use the CPUs that it is allowed."""
    quota = subject.topology.cpus.quota_cpus
    if quota is None:
        return ok("no quota")
    cpus = len(parse_cpu_list(subject.topology.cpus.allowed))
    found = f"the time of {quota:g} CPUs"
    if not cpus:
        return unknown(f"{found}, and the allowed CPUs could not be read")
    found = f"{found} for {cpus} allowed CPUs"
    if quota >= cpus:
        return ok(found)
    if subject.container == "kubernetes":
        return warn(found, note="remove the container's CPU limit from the pod's manifest")
    if subject.container:  # the file lies in the host's tree, under a name not known in here
        update = f"{engine(subject)} update --cpus"
        return warn(found, f"{update} {cpus} CONTAINER", f"{update} {quota:g} CONTAINER")
    return warn(found, *_quota_lines(subject))


def _quota_lines(subject: Subject) -> tuple[str | None, str | None]:
    """Lift the quota at every cgroup that has one, and put each back."""
    fixes: list[str] = []
    undos: list[str] = []
    v2 = [(path, "max") for path in subject.cgroup_files("", "cpu.max")]
    v1 = [(path, "-1") for path in subject.cgroup_files("cpu", "cpu.cfs_quota_us")]
    for path, unlimited in v2 + v1:
        found = subject.read(path)
        if found and not found.startswith(unlimited):
            fixes.append(write_line(unlimited, path))
            undos.insert(0, write_line(found, path))
    return "; ".join(fixes) or None, "; ".join(undos) or None


@check(
    wanted="every CPU that the cpuset allows",
    why="CPUs outside it are never measured; taskset, a unit or a batch system narrowed it",
)
def inherited_affinity(subject: Subject) -> Outcome:
    """Whether topobench was started with fewer CPUs than the host would give it."""
    inherited = parse_cpu_list(subject.facts.inherited_cpus)
    allowed = parse_cpu_list(_cpuset(subject))
    if not inherited or not allowed:
        lacking = "inherited affinity" if not inherited else "cpuset"
        return unknown(f"the {lacking} could not be read")
    narrow, wide = format_cpu_list(inherited), format_cpu_list(allowed)
    if set(inherited) >= set(allowed):
        return ok(f"CPUs {narrow}")
    return warn(f"CPUs {narrow} of {wide}", f"taskset -pc {wide} $$", f"taskset -pc {narrow} $$")


def _cpuset(subject: Subject) -> str | None:
    """The CPUs of this process's cpuset, else those online."""
    online = subject.topology.cpus.online
    for controller, name in (("", "cpuset.cpus.effective"), ("cpuset", "cpuset.effective_cpus")):
        for path in subject.cgroup_files(controller, name):
            return subject.read(path) or online
    return online


@check(
    wanted="0 (off)",
    why="the kernel unmaps pages to see who uses them, and moves them; "
    "what has no memory binding changes while it is measured",
)
def numa_balancing(subject: Subject) -> Outcome | None:
    """Whether the kernel moves pages between NUMA nodes on its own."""
    return _off(subject, "/proc/sys/kernel/numa_balancing")


@check(
    wanted="0 (off)",
    why="an allocation that fills a NUMA node waits for reclaim instead of using the next node",
)
def zone_reclaim(subject: Subject) -> Outcome | None:
    """Whether a full NUMA node drops its page cache before another node is used."""
    return _off(subject, "/proc/sys/vm/zone_reclaim_mode")


def _off(subject: Subject, path: str) -> Outcome | None:
    """A setting that must be 0 where there are several NUMA nodes."""
    if len(subject.topology.numa_nodes) < 2:
        return None
    found = subject.read(path)
    if found is None:
        return None  # a kernel built without it
    return (
        ok(found) if found == "0" else warn(found, write_line("0", path), write_line(found, path))
    )
