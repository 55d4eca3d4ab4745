"""What a host can run, beside its wiring; and its key."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import re
import shutil
import sys
import tempfile
from collections.abc import Iterable

import topobench
from topobench import processes
from topobench.agents import health
from topobench.agents.conditions.nvml_counters import Session
from topobench.agents.discover.cgroups import read_limits
from topobench.agents.discover.tree import Tree
from topobench.agents.handshake import greet
from topobench.agents.memory_policy import memory_policy
from topobench.agents.torch_check import torch_facts
from topobench.health import Trouble
from topobench.host import HostFacts
from topobench.topology import Topology, format_cpu_list

PACKAGES = ("numba",)
"""Optional packages that probes ask for."""
BINARIES = (
    "all_reduce_perf",
    "all_gather_perf",
    "reduce_scatter_perf",
    "alltoall_perf",
    "broadcast_perf",
    "sendrecv_perf",
    "nvbandwidth",
)
"""Optional programs that probes ask for."""

_DUMMIES = re.compile(
    r"(.)\1*|03000200040005000006000700080009|12345678.*|not.*|none|default.*|tobe.*|uninitialized"
)
"""Machine ids that makers and images forgot to set, in lower case without punctuation."""


def facts(topology: Topology) -> HostFacts:
    """What this host can run. Asks torch in a process of its own if there are GPUs."""
    tree = Tree.open("/")
    torch = torch_facts(topology)
    troubles, unread = _health(topology)
    return HostFacts(
        hostname=processes.host_name(),
        interpreter=sys.executable,
        topobench=topobench.__version__,
        source_digest=greet()["source_digest"],
        python=platform.python_version(),
        numactl=shutil.which("numactl"),
        memory_policy=memory_policy(),
        torch=torch.version,
        torch_gpus=torch.gpus,
        torch_error=torch.error,
        packages=_versions(PACKAGES),
        binaries={name: path for name in BINARIES if (path := shutil.which(name))},
        inherited_cpus=format_cpu_list(os.sched_getaffinity(0)),
        available_memory_bytes=available_memory(tree),
        shm_bytes=_size("/dev/shm"),
        free_disk_bytes=shutil.disk_usage(tempfile.gettempdir()).free,
        health=troubles,
        health_unread=unread,
    )


def _health(topology: Topology) -> tuple[tuple[Trouble, ...], dict[str, str]]:
    if not topology.gpus:
        return (), {}
    session = Session()
    try:
        return health.look(topology, session)
    finally:
        session.close()


def host_key(id: str | None, address: str, *, root: str = "/") -> tuple[str, str]:
    """
    A host's key and where it comes from; the same host keeps it across sweeps.

    The config's ``id``, else a digest of the DMI product UUID (root may read it), of
    /etc/machine-id, or of the address; ids that nobody set are passed over. Two hosts may
    still share one (cloned machines, containers of one image): the caller looks for that.

    Args:
        address: As the cluster knows the host.

    Returns:
        Key, and ``id``, ``product_uuid``, ``machine_id`` or ``address``.
    """
    if id:
        return id, "id"
    tree = Tree.open(root)
    files = {
        "product_uuid": (
            "sys/class/dmi/id/product_uuid",
            "sys/devices/virtual/dmi/id/product_uuid",
        ),
        "machine_id": ("etc/machine-id", "var/lib/dbus/machine-id"),
    }
    for source, names in files.items():
        for name in names:
            text = re.sub(r"[^0-9a-z]", "", (tree.text(name) or "").lower())
            if text and not _DUMMIES.fullmatch(text):
                return _digest(text), source
    return _digest(address), "address"


def available_memory(tree: Tree) -> int | None:
    """Bytes a new process may use: MemAvailable, or what a control group leaves."""
    match = re.search(r"^MemAvailable:\s*(\d+) kB", tree.text("proc/meminfo") or "", re.MULTILINE)
    found = [int(match[1]) << 10] if match else []
    headroom = read_limits(tree).memory_bytes
    return min(found + ([] if headroom is None else [headroom]), default=None)


def _versions(packages: Iterable[str]) -> dict[str, str]:
    found = {}
    for name in packages:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _size(folder: str) -> int | None:
    try:
        return shutil.disk_usage(folder).total
    except OSError:
        return None


def _digest(text: str) -> str:
    return "h" + hashlib.sha256(f"topobench host {text}".encode()).hexdigest()[:16]
