"""
Which probes exist. Import-light: naming and declaring them loads no torch.

One explicit table; other packages add theirs by the entry point group
``topobench.probes`` (name -> ``module:Class``).
"""

from __future__ import annotations

import functools
import importlib

from topobench.errors import UsageError
from topobench.probes.metrics import COMMON, LOCALITY
from topobench.probes.protocol import Probe
from topobench.reading import Metric

PROBES = {
    "host_memory": "topobench.probes.host_memory:HostMemory",
    "host_to_device": "topobench.probes.host_to_device:HostToDevice",
    "weight_load": "topobench.probes.weight_load:WeightLoad",
    "device_memory": "topobench.probes.device_memory:DeviceMemory",
    "gemm": "topobench.probes.gemm:Gemm",
    "kernel_launch": "topobench.probes.kernel_launch:KernelLaunch",
    "prefill": "topobench.probes.prefill:Prefill",
    "decode": "topobench.probes.decode:Decode",
    "peer": "topobench.probes.peer:Peer",
    "all_reduce": "topobench.probes.all_reduce:AllReduce",
    "all_gather": "topobench.probes.collectives:AllGather",
    "reduce_scatter": "topobench.probes.collectives:ReduceScatter",
    "all_to_all": "topobench.probes.collectives:AllToAll",
    "broadcast": "topobench.probes.collectives:Broadcast",
    "send_recv": "topobench.probes.collectives:SendRecv",
    "ring_p2p": "topobench.probes.ring_p2p:RingP2p",
    "host_network": "topobench.probes.host_network:HostNetwork",
    "nvbandwidth": "topobench.probes.nvbandwidth:Nvbandwidth",
    "nccl_tests": "topobench.probes.nccl_tests:NcclTests",
    "serving": "topobench.probes.serving:Serving",
    "command": "topobench.probes.command:Command",
}


def names() -> tuple[str, ...]:
    """Every probe's name, ours first."""
    return (*PROBES, *sorted(set(_foreign()) - set(PROBES)))


@functools.cache
def load(name: str, target: str | None = None) -> type[Probe]:
    """
    The class of a probe.

    Args:
        target: ``module:Class`` of a probe that no table names.

    Raises:
        UsageError: No probe has that name, or a foreign one cannot be imported.
    """
    target = target or PROBES.get(name) or _foreign().get(name)
    if target is None:
        raise UsageError(f"no probe named {name!r}; there are {', '.join(names())}")
    module, _, attribute = target.partition(":")
    try:
        found: type[Probe] = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise UsageError(f"probe {name!r} ({target}) cannot be loaded: {error}") from error
    return found


def metric(probe: str, name: str) -> Metric | None:
    """
    A metric of a probe's readings: one it declares, or a common one.

    None when nobody here declares it: another installation measured it.
    """
    try:
        declared = load(probe).metrics
    except UsageError:
        declared = ()
    return next((m for m in (*declared, *COMMON) if m.name == name), None)


def is_foreign(probe: str, version: int, name: str) -> bool:
    """
    Whether a metric is surely another probe's.

    Nothing is sure of probes, versions and metrics that nobody here declares.
    """
    try:
        known = load(probe)
    except UsageError:
        return False
    if known.version != version or getattr(known, "own_metrics", False):
        return False
    return name in _declared() - _ANYWHERE and name not in {m.name for m in known.metrics}


_ANYWHERE = {LOCALITY.name, "power_watts"}
"""Metrics that may stand beside those of any probe; query ``energy`` reads the second so."""


@functools.cache
def _declared() -> frozenset[str]:
    """Metrics of all our probes, by name."""
    return frozenset(m.name for probe in PROBES for m in load(probe).metrics)


@functools.cache
def _foreign() -> dict[str, str]:
    from importlib.metadata import entry_points  # a quarter of what a worker imports

    return {e.name: e.value for e in entry_points(group="topobench.probes")}
