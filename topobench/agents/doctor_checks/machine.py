"""Checks on the machine's own settings: pages, clocks, idle states, swap, limits."""

from __future__ import annotations

import re
import shlex

from topobench.agents.doctor_checks.common import (
    Outcome,
    Subject,
    check,
    count,
    engine,
    error,
    ok,
    restore_line,
    unknown,
    warn,
    write_line,
)

_CPU = "/sys/devices/system/cpu"
_GOVERNOR = f"{_CPU}/cpu*/cpufreq/scaling_governor"
_THP = "/sys/kernel/mm/transparent_hugepage"
_DEEP_IDLE_MICROSECONDS = 50
_LIMITS_FILE = "/etc/security/limits.d/90-topobench-memlock.conf"


@check(
    wanted="madvise or always",
    why="with 4 KiB pages only, address translation slows copies of large host buffers",
)
def huge_pages(subject: Subject) -> Outcome | None:
    """Whether large buffers may have large pages."""
    return _huge_page_setting(subject, "enabled", bad="never")


@check(
    wanted="anything but always",
    why="a page fault waits while the kernel compacts memory, which shows as outliers",
)
def huge_page_defrag(subject: Subject) -> Outcome | None:
    """Whether an allocation may stop to gather large pages."""
    return _huge_page_setting(subject, "defrag", bad="always")


def _huge_page_setting(subject: Subject, name: str, *, bad: str) -> Outcome | None:
    """The value in brackets of a file such as "always [madvise] never"."""
    path = f"{_THP}/{name}"
    text = subject.read(path)
    if text is None:
        return None  # a kernel without transparent huge pages
    match = re.search(r"\[([^\]]+)\]", text)
    if match is None:
        return unknown(f"{path} names no value: {text!r}")
    if match[1] != bad:
        return ok(match[1])
    return warn(bad, write_line("madvise", path), write_line(bad, path))


@check(
    wanted="performance",
    why="the clock rises only some milliseconds after a worker starts, so short runs read slow",
)
def cpu_governor(subject: Subject) -> Outcome | None:
    """Whether the CPUs run at full clock without waiting for load."""
    paths = subject.glob(_GOVERNOR)
    if not paths:
        return None  # a guest, or clocks ruled by the firmware
    found = {path: value for path in paths if (value := subject.read(path))}
    if not found:
        return unknown(f"{_GOVERNOR} could not be read")
    text = count(list(found.values()))
    if set(found.values()) == {"performance"}:
        return ok(text)
    return warn(text, write_line("performance", _GOVERNOR), restore_line(found, _GOVERNOR))


@check(
    wanted=f"no enabled idle state that takes over {_DEEP_IDLE_MICROSECONDS} us to leave",
    why="a thread that waits for a device or a message pays for waking its CPU",
)
def cpu_idle(subject: Subject) -> Outcome | None:
    """Whether idle CPUs sleep so deep that waking them shows in a latency."""
    driver = subject.read(f"{_CPU}/cpuidle/current_driver")
    states = subject.glob(f"{_CPU}/cpu0/cpuidle/state*")
    if driver in (None, "none") or not states:
        return None  # a guest that leaves idling to its host
    enabled = {s: _latency(subject, s) for s in states if subject.read(f"{s}/disable") == "0"}
    deep = [s for s, latency in enabled.items() if latency > _DEEP_IDLE_MICROSECONDS]
    found = f"driver {driver}, deepest enabled state {max(enabled.values(), default=0)} us"
    if not deep:
        return ok(found)
    patterns = [f"{s.replace('/cpu0/', '/cpu*/')}/disable" for s in deep]
    files = {p: v for g in patterns for p in subject.glob(g) if (v := subject.read(p))}
    joined = " ".join(patterns)
    return warn(found, write_line("1", joined), restore_line(files, joined))


def _latency(subject: Subject, state: str) -> int:
    """Microseconds it takes to leave an idle state."""
    return int(subject.read(f"{state}/latency") or "not readable")


@check(
    wanted="no swap in use",
    why="a page that comes back from disk in the middle of a sample costs milliseconds",
)
def swap(subject: Subject) -> Outcome:
    """Whether pages of a buffer may have gone to disk."""
    text = subject.read("/proc/swaps")
    if text is None:
        return unknown("/proc/swaps could not be read")
    areas = [line.split() for line in text.splitlines()[1:]]
    used = [area for area in areas if int(area[3]) > 0]
    if not used:
        return ok(f"{len(areas)} areas, none in use" if areas else "no swap")
    return warn(
        ", ".join(f"{area[0]}: {int(area[3]) // 1024} MiB in use" for area in used),
        "; ".join(f"sudo swapoff {shlex.quote(area[0])}" for area in used),
        "; ".join(_swapon(area[0], int(area[4])) for area in used),
    )


def _swapon(name: str, priority: int) -> str:
    # A negative priority is the kernel's own choice and cannot be asked for.
    option = "" if priority < 0 else f"-p {priority} "
    return f"sudo swapon {option}{shlex.quote(name)}"


@check(
    wanted="unlimited",
    why="registering buffers with an RDMA device fails above the limit",
)
def memlock(subject: Subject) -> Outcome | None:
    """Whether RDMA may lock the memory that it registers."""
    if not subject.has_rdma:
        return None  # the CUDA driver locks pages itself and heeds no limit
    limits = subject.read("/proc/self/limits") or ""
    match = re.search(r"^Max locked memory\s+(\S+)\s+(\S+)", limits, re.MULTILINE)
    if match is None:
        return unknown("/proc/self/limits could not be read")
    soft, hard = match.groups()
    if soft == "unlimited":
        return ok(soft)
    found = f"{soft} bytes"
    if hard == "unlimited":
        return error(found, "ulimit -S -l unlimited", f"ulimit -S -l {int(soft) // 1024}")
    if subject.container == "kubernetes":
        return error(found, note="the container runtime of the node sets it (LimitMEMLOCK=)")
    if subject.container:
        start = f"{engine(subject)} run"
        return error(found, f"{start} --ulimit memlock=-1 IMAGE", f"{start} IMAGE")
    return error(
        found,
        f"echo '* - memlock unlimited' | sudo tee {_LIMITS_FILE}",
        f"sudo rm {_LIMITS_FILE}",
        note="log in again afterwards; a service needs LimitMEMLOCK=infinity in its unit",
    )
