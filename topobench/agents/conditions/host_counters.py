"""What the kernel says of a host around a run: load, stolen and withheld CPU time, network."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from topobench.agents.discover.cgroups import read_limits
from topobench.agents.discover.tree import Tree
from topobench.topology import parse_cpu_list

Counters = Mapping[str, float]

_VMSTAT = {
    "pswpin": "swapped_in_pages",
    "pswpout": "swapped_out_pages",
    "numa_pages_migrated": "numa_migrated_pages",
}
_NET_DEV = {
    0: "received_bytes",
    2: "received_errors",
    3: "received_drops",
    8: "sent_bytes",
    10: "sent_errors",
    11: "sent_drops",
}
"""Columns of /proc/net/dev."""
_RDMA_NAMES = {"port_xmit_data": "sent_bytes", "port_rcv_data": "received_bytes"}
_RDMA_WORD = 4
"""The data counters of an RDMA port count words of four bytes."""


@dataclass(frozen=True, slots=True)
class HostCounters:
    """
    Counters of a host at one moment.

    Args:
        load: Runnable and waiting threads, average of the last minute.
        cpu_seconds: Of the CPUs asked for: ``steal``, ``idle`` and ``total``.
        counted: Everything else that only grows.
        unavailable: What could not be read -> why.
    """

    load: float | None = None
    cpu_seconds: Counters = field(default_factory=dict)
    counted: Counters = field(default_factory=dict)
    unavailable: Mapping[str, str] = field(default_factory=dict)


def read_host(tree: Tree, cpus: str | None = None) -> HostCounters:
    """
    Read a host's counters.

    Args:
        cpus: CPUs that matter, as a list string; None for all.
    """
    chosen = parse_cpu_list(cpus)
    unavailable: dict[str, str] = {}
    counted: dict[str, float] = {}
    groups = (
        (_cgroup(tree), "cpu_throttling", "no control group counts it"),
        (_tcp(tree), "tcp", "/proc/net/snmp has no Tcp lines"),
        (_vmstat(tree), "vmstat", "/proc/vmstat cannot be read"),
        (_cpu_heat(tree, chosen), "cpu_heat", "the kernel counts no thermal throttling of CPUs"),
    )
    for found, name, why in groups:
        counted |= found
        if not found:
            unavailable[name] = why
    times = cpu_times(tree, chosen)
    if not times:
        unavailable["cpu_times"] = "/proc/stat has no such lines"
    return HostCounters(_load(tree), times, counted, unavailable)


def read_networks(tree: Tree) -> dict[str, dict[str, int]] | None:
    """Interface, or RDMA device and port (``mlx5_0/1``) -> its counters; None if unreadable."""
    text = tree.text("proc/net/dev")
    if text is None:
        return None
    found = {}
    for line in text.splitlines()[2:]:
        name, _, numbers = line.partition(":")
        fields = numbers.split()
        if len(fields) > max(_NET_DEV):
            found[name.strip()] = {label: int(fields[i]) for i, label in _NET_DEV.items()}
    return found | _rdma(tree)


def cpu_times(tree: Tree, cpus: Iterable[int] = ()) -> dict[str, float]:
    """Seconds since boot that CPUs were idle, kept by a hypervisor, and all together."""
    chosen = set(cpus)
    wanted = re.compile(r"cpu(\d+) (.*)" if chosen else r"cpu() (.*)")
    ticks = [0] * 8
    lines = 0
    for line in (tree.text("proc/stat") or "").splitlines():
        match = wanted.match(line)
        if match is None or (chosen and int(match[1]) not in chosen):
            continue
        numbers = [int(n) for n in match[2].split()[:8]]
        if len(numbers) == 8:
            lines += 1
            ticks = [a + b for a, b in zip(ticks, numbers, strict=True)]
    if not lines:
        return {}
    second = os.sysconf("SC_CLK_TCK")
    return {
        "idle": (ticks[3] + ticks[4]) / second,
        "steal": ticks[7] / second,
        "total": sum(ticks) / second,
    }


def _load(tree: Tree) -> float | None:
    text = tree.text("proc/loadavg")
    return float(text.split()[0]) if text else None


def _cgroup(tree: Tree) -> dict[str, float]:
    limits = read_limits(tree)
    found = {
        "throttled_periods": limits.throttled_count,
        "throttled_seconds": limits.throttled_seconds,
    }
    return {name: value for name, value in found.items() if value is not None}


def _tcp(tree: Tree) -> dict[str, float]:
    lines = [x.split() for x in (tree.text("proc/net/snmp") or "").splitlines()]
    tcp = [x for x in lines if x and x[0] == "Tcp:"]
    if len(tcp) != 2:
        return {}
    values = dict(zip(*tcp, strict=False))
    wanted = {"RetransSegs": "tcp_resent_segments", "OutSegs": "tcp_sent_segments"}
    return {name: int(values[key]) for key, name in wanted.items() if key in values}


def _vmstat(tree: Tree) -> dict[str, float]:
    lines = (tree.text("proc/vmstat") or "").splitlines()
    values = dict(line.split(" ", 1) for line in lines if " " in line)
    return {name: int(values[key]) for key, name in _VMSTAT.items() if key in values}


def _cpu_heat(tree: Tree, cpus: Iterable[int]) -> dict[str, float]:
    """How often the chosen CPUs were slowed because they were hot."""
    base = "sys/devices/system/cpu"
    chosen = tuple(cpus) or tree.cpus(f"{base}/online") or ()
    counts = [
        tree.integer(f"{base}/cpu{cpu}/thermal_throttle/core_throttle_count") for cpu in chosen
    ]
    known = [c for c in counts if c is not None]
    return {"cpu_heat_events": sum(known)} if known else {}


def _rdma(tree: Tree) -> dict[str, dict[str, int]]:
    found = {}
    for device in tree.names("sys/class/infiniband"):
        for port in tree.names(f"sys/class/infiniband/{device}/ports"):
            base = f"sys/class/infiniband/{device}/ports/{port}"
            own = {}
            for folder in ("counters", "hw_counters"):
                for name in tree.names(f"{base}/{folder}"):
                    value = tree.integer(f"{base}/{folder}/{name}")
                    if value is None or name == "lifespan":  # how long a value is cached
                        continue
                    scale = _RDMA_WORD if name in _RDMA_NAMES else 1
                    own[_RDMA_NAMES.get(name, name)] = value * scale
            found[f"{device}/{port}"] = own
    return found
