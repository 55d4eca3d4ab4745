"""
What the hardware can do at most, from discovery: links by generation and width, NVLinks, HBM.

Pure. Bounds that no software can pass, so they are on the safe side: a requirement beyond
one cannot be met by this hardware, and a number beyond one is a mistake of ours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from topobench.pcie import link_bytes_per_second
from topobench.reading import Cell, Reading, Run, Scalar
from topobench.topology import Gpu, Topology
from topobench.units import format_rate

COLLECTIVES = frozenset(
    {
        *("all_reduce", "all_gather", "reduce_scatter", "all_to_all"),
        *("broadcast", "reduce", "send_recv", "ring_p2p"),
    }
)
BEYOND = 1.02
"""A number so far beyond a bound is a mistake; less may be rounding of either."""
_COPIES = frozenset(
    {
        "bandwidth_bytes_per_second",
        "per_call_bandwidth_bytes_per_second",
        "transfer_bandwidth_bytes_per_second",
        "load_bandwidth_bytes_per_second",
    }
)


@dataclass(frozen=True, slots=True)
class Limit:
    """
    A bound in the unit of its metric: the most of a speed, the least of a time.

    Args:
        source: Where it comes from, in words.
    """

    value: float
    source: str


@dataclass(frozen=True, slots=True)
class Measurement:
    """
    What is bounded.

    Args:
        devices: GPU keys in order; of one host.
        peak_bytes_per_second: Of a GPU's memory, as its driver tells clock and bus width.
    """

    probe: str
    metric: str
    params: Mapping[str, Scalar]
    devices: tuple[str, ...]
    n_ranks: int = 1
    n_hosts: int = 1
    peak_bytes_per_second: float | None = None


def limit(wanted: Measurement, topology: Topology) -> Limit | None:
    """The bound of a metric; None where discovery does not tell one."""
    gpus = {g.key: g for g in topology.gpus}
    if wanted.n_hosts > 1 or not wanted.devices or not gpus.keys() >= set(wanted.devices):
        return None
    chosen = [gpus[d] for d in wanted.devices]
    if wanted.probe in ("host_to_device", "weight_load") and wanted.metric in _COPIES:
        return _to_device(wanted, chosen, topology)
    if wanted.probe == "device_memory" and wanted.metric == "bandwidth_bytes_per_second":
        return _memory(wanted)
    if wanted.probe == "peer" and wanted.metric in _COPIES and len(chosen) > 1:
        return _between(wanted, chosen, topology)
    if wanted.probe in COLLECTIVES and len(chosen) > 1:
        return _collective(wanted, chosen, topology)
    return None


def held_against(run: Run, cell: Cell, topology: Topology) -> Run:
    """
    The run with the bound of each reading beside it, where discovery tells one.

    A reading of one device (point ``device``) is held against what that device can do.
    """
    peak = run.conditions.get("peak_bytes_per_second")
    wrapped = cell.case.probe == "nccl_tests"
    readings = []
    for reading in run.readings:
        device = reading.point.get("device")
        wanted = Measurement(
            probe=str(cell.case.params.get("op")) if wrapped else cell.case.probe,
            metric=reading.metric,
            params=cell.case.params,
            devices=cell.devices if device is None else (str(device),),
            n_ranks=len(cell.devices) if wrapped else cell.ranks,
            n_hosts=max(1, len(set(cell.hosts))),
            peak_bytes_per_second=peak if isinstance(peak, int | float) and peak > 0 else None,
        )
        if bound := limit(wanted, topology):
            reading = replace(reading, ceiling=bound.value, ceiling_source=bound.source)
        readings.append(reading)
    return replace(run, readings=tuple(readings))


def beyond(run: Run) -> Reading | None:
    """The first reading of a run that is beyond its bound, as no hardware like this can give."""
    return next((r for r in run.readings if _is_beyond(r)), None)


def _is_beyond(reading: Reading) -> bool:
    median, bound = reading.summary.median, reading.ceiling
    if bound is None:
        return False
    if reading.metric.endswith("_per_second"):
        return median > BEYOND * bound
    return median * BEYOND < bound


def slot_bytes_per_second(gpu: Gpu, topology: Topology) -> float | None:
    """
    One direction of the PCIe link of a GPU at its best speed and width.

    A guest's bridges are made up by its hypervisor; there the GPU's own end alone counts.
    """
    device = next((d for d in topology.pci if d.address == gpu.pci_address), None)
    if device is None or device.link is None:
        return None
    own = link_bytes_per_second(device.link.max_speed_gts, device.link.max_width)
    both = device.link.effective_max_bytes_per_second
    guest = topology.trust == "low" or topology.virtualization not in ("none", "unknown")
    return own if guest else both or own


def nvlink_bytes_per_second(gpu: Gpu) -> float | None:
    """One direction of all NVLinks that a GPU should have."""
    links = gpu.nvlink
    if links is None or not links.bytes_per_second or not links.active:
        return None
    return links.bytes_per_second * max(1.0, (links.expected or links.active) / links.active)


def _to_device(wanted: Measurement, chosen: Sequence[Gpu], topology: Topology) -> Limit | None:
    ways = 2 if wanted.params.get("direction") == "both" else 1
    speeds = [_host_link(gpu, topology) for gpu in chosen]
    known = [s for s in speeds if s is not None]
    if len(known) < len(speeds):
        return None
    what = "chip link" if chosen[0].c2c else "PCIe link"
    return Limit(ways * sum(known), _told(what, known[0], len(known), ways))


def _host_link(gpu: Gpu, topology: Topology) -> float | None:
    return gpu.c2c_bytes_per_second if gpu.c2c else slot_bytes_per_second(gpu, topology)


def _memory(wanted: Measurement) -> Limit | None:
    peak, number = wanted.peak_bytes_per_second, len(wanted.devices)
    if peak is None:
        return None
    return Limit(number * peak, _told("memory clock and bus width of the GPU", peak, number, 1))


def _between(wanted: Measurement, chosen: Sequence[Gpu], topology: Topology) -> Limit | None:
    """Each way its NVLinks, or without them what a slot can carry; in a ring one way a GPU."""
    ways = {"both": 2, "all": len(chosen)}.get(str(wanted.params.get("ways")), 1)
    nvlinks = [nvlink_bytes_per_second(gpu) for gpu in chosen]
    direct = wanted.params.get("p2p") != "off"
    if direct and any(nvlinks):
        return _slowest("NVLinks", nvlinks, ways)
    return _slowest("PCIe link", [slot_bytes_per_second(g, topology) for g in chosen], ways)


def _collective(wanted: Measurement, chosen: Sequence[Gpu], topology: Topology) -> Limit | None:
    """
    Each rank must receive what it cannot compute itself, by the links it has.

    That is all S bytes of an all-reduce (hence busbw <= 2 (n - 1) / n of the link, which a
    reducing switch can reach), and no more than busbw counts for the others.
    """
    nvlinks = [nvlink_bytes_per_second(gpu) for gpu in chosen]
    slots = [slot_bytes_per_second(g, topology) for g in chosen]
    found = _slowest("NVLinks", nvlinks, 1) if any(nvlinks) else _slowest("PCIe link", slots, 1)
    if found is None:
        return None
    reduces, n = wanted.probe == "all_reduce", wanted.n_ranks
    size = wanted.params.get("bytes")
    if wanted.metric == "busbw_bytes_per_second":
        return Limit(found.value * (2 * (n - 1) / n if reduces else 1), found.source)
    if reduces and wanted.metric == "algbw_bytes_per_second":
        return found
    if reduces and wanted.metric == "latency_seconds" and isinstance(size, int):
        return Limit(size / found.value, f"{found.source}, for the bytes of one result")
    return None


def _slowest(what: str, speeds: Sequence[float | None], ways: int) -> Limit | None:
    known = [s for s in speeds if s is not None]
    if len(known) < len(speeds):
        return None
    return Limit(ways * min(known), _told(f"{what} of a GPU", min(known), 1, ways))


def _told(what: str, speed: float, number: int, ways: int) -> str:
    parts = [f"{what}, {format_rate(speed)}"]
    parts += [f"{number} of them"] if number > 1 else []
    parts += ["both ways"] if ways == 2 else [f"{ways} ways"] if ways > 2 else []
    return ", ".join(parts)
