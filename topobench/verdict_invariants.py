"""
What must hold whatever the peers do: links, devices, memory; and what physics allows. Pure.

One night is enough here: a link that is trained to half its lanes is broken, not noisy.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from topobench.links import Shortfall, shortfalls
from topobench.topology import PciDevice, PciLink, Topology
from topobench.units import format_rate
from topobench.verdict_gates import Nights
from topobench.verdict_words import (
    CEILING,
    INVARIANTS,
    Check,
    Evidence,
    HostEvidence,
    Level,
    worst,
)

if TYPE_CHECKING:
    from topobench.policy import Policy

FAULTS: Mapping[str, Level] = {
    "ecc_error": Level.FAIL,
    "row_remap": Level.FAIL,
    "xid": Level.FAIL,
    "reset_needed": Level.FAIL,
    "gpu_lost": Level.FAIL,
    "pcie_downtrained": Level.FAIL,
    "rows_remapped": Level.WATCH,
    "ecc_corrected": Level.WATCH,
}
"""Codes of reasons and warnings of runs that speak of broken hardware."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that does not hold, of a device key or (None) of the host."""

    level: Level
    text: str
    device: str | None = None
    value: float | None = None
    reference: float | None = None


def findings(host: HostEvidence, alike: Sequence[HostEvidence]) -> list[Finding]:
    """
    Everything that does not hold on a host.

    Args:
        alike: The hosts of its class, itself included.
    """
    found = list(_faults(host))
    if host.topology is not None:
        found += _gpus(host, host.topology)
        found += _links(host.topology, alike)
    return found


def invariants_check(host: HostEvidence, found: Sequence[Finding], devices: int) -> Check:
    """The check of a host; it abstains where there is no device to look at."""
    if found:
        gravest = max(found, key=lambda f: f.level == Level.FAIL)
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        return Check(
            INVARIANTS,
            worst([f.level for f in found]),
            f"{gravest.text}{more}",
            value=gravest.value,
            reference=gravest.reference,
        )
    if not devices:
        return Check(INVARIANTS, Level.UNKNOWN, "abstains: no GPU or RDMA port is known")
    return Check(
        INVARIANTS, Level.OK, f"GPU count, links, memory: nothing wrong ({devices} devices)"
    )


def watched_devices(host: HostEvidence) -> int:
    """GPUs and RDMA ports whose invariants can be looked at."""
    if host.topology is None:
        return 0
    whole = [g for g in host.topology.gpus if not g.is_slice]
    return len(whole) + sum(n.rdma for n in host.topology.nics)


def ceiling_check(
    evidence: Evidence, nights: Nights, rows: Sequence[int], policy: Policy
) -> tuple[Check, tuple[str, ...]]:
    """
    The best large copy on each path of a host against what the path can carry.

    Args:
        rows: Its tracks.

    Returns:
        The check, and the devices of the path that fails.
    """
    best: dict[tuple[str, ...], tuple[float, float, str, str]] = {}
    for row in rows:
        track = evidence.tracks[row]
        ceiling = track.ceiling_bytes_per_second
        if ceiling is None or not nights.judged[row]:
            continue
        value = math.exp(nights.levels[row, nights.recent[row, -1]])
        if value / ceiling > best.get(track.devices, (-1.0,))[0]:
            best[track.devices] = value / ceiling, ceiling, track.label, track.metric
    if not best:
        return Check(CEILING, Level.UNKNOWN, "abstains: no large copy over a known link"), ()
    devices = min(best, key=lambda d: best[d][0])
    share, ceiling, label, metric = best[devices]
    low = share < policy.ceiling_ratio
    text = (
        f"{label}: {format_rate(share * ceiling)} is {100 * share:.0f} % of what the path can "
        f"carry, {format_rate(ceiling)}"
    )
    check = Check(
        CEILING,
        Level.FAIL if low else Level.OK,
        f"{text}; at least {100 * policy.ceiling_ratio:.0f} % is expected" if low else text,
        value=share * ceiling,
        reference=ceiling,
        effect=share - 1,
        metric=metric,
        case=label,
    )
    return check, devices if low else ()


def _faults(host: HostEvidence) -> Iterator[Finding]:
    seen: set[tuple[str, str | None]] = set()
    for fault in host.faults:
        level = FAULTS.get(fault.code)
        if level is not None and (fault.code, fault.device) not in seen:
            seen.add((fault.code, fault.device))
            yield Finding(level, f"{fault.code}: {fault.text}", fault.device)


def _gpus(host: HostEvidence, topology: Topology) -> Iterator[Finding]:
    whole = [g for g in topology.gpus if not g.is_slice]
    lost = [g for g in whole if g.state == "lost"]
    count, expected = len(whole) - len(lost), host.expected_gpus
    for gpu in lost:
        yield Finding(Level.FAIL, f"{gpu.name} is lost: the driver no longer reaches it", gpu.key)
    if expected is not None and count < expected:
        text = f"{count} GPUs work, {expected} are expected"
        yield Finding(Level.FAIL, text, value=float(count), reference=float(expected))
    for gpu in whole:
        links = gpu.nvlink
        if links and links.expected is not None and links.active < links.expected:
            text = f"{gpu.name} has {links.active} of {links.expected} NVLinks active"
            yield Finding(Level.FAIL, text, gpu.key, float(links.active), float(links.expected))
        if links and gpu.fabric not in (None, "completed"):
            text = f"{gpu.name}: its registration with the NVLink fabric is {gpu.fabric}"
            yield Finding(Level.FAIL, text, gpu.key)
        elif gpu.fabric_health:
            told = ", ".join(gpu.fabric_health)
            yield Finding(Level.FAIL, f"{gpu.name}: the NVLink fabric reports {told}", gpu.key)


def _links(topology: Topology, alike: Sequence[HostEvidence]) -> Iterator[Finding]:
    """
    The slots of GPUs and RDMA ports, and of the switches above them, below what both ends can do.

    A GPU at rest slows its link down, so its speed under load is told by runs
    (``pcie_downtrained``); a width never falls with rest.
    """
    by_address = {d.address: d for d in topology.pci}
    short = shortfalls(topology.pci, topology.gpus)
    told: set[str] = set()
    for name, key, address in _endpoints(topology):
        for device in _upwards(by_address, address):
            found, link = short.get(device.address), device.link
            if device.address in told or found is None or link is None or not found.is_fault:
                continue
            told.add(device.address)
            where = name if device.address == address else f"the switch above {name}"
            usual = not found.slot_known and _all_so(device, link, alike)
            text = f"the PCIe link of {where} {_shortage(found, link)}"
            if usual:
                text += "; so does every like device of its class, and the slot is not visible"
            own = key if device.address == address else None
            wide = found.widest is not None
            yield Finding(
                Level.WATCH if usual else Level.FAIL,
                text,
                own,
                value=None if not wide or link.width is None else float(link.width),
                reference=float(found.widest) if found.widest is not None else None,
            )


def _shortage(found: Shortfall, link: PciLink) -> str:
    if found.widest is not None:
        return f"runs at x{link.width} of x{found.widest}"
    return f"runs at {link.speed_gts:g} of {found.fastest:g} GT/s"


def _endpoints(topology: Topology) -> Iterator[tuple[str, str | None, str]]:
    for gpu in topology.gpus:
        if gpu.pci_address and not gpu.is_slice:
            yield gpu.name, gpu.key, gpu.pci_address
    for nic in topology.nics:
        if nic.rdma and nic.pci_address:
            yield f"nic:{nic.name}", None, nic.pci_address


def _upwards(by_address: Mapping[str, PciDevice], address: str) -> Iterator[PciDevice]:
    """The device and the upstream ports of the switches above it."""
    device = by_address.get(address)
    if device is not None:
        yield device
    seen = {address}
    while device is not None and device.parent and device.parent not in seen:
        seen.add(device.parent)
        device = by_address.get(device.parent)
        if device is not None and device.role == "upstream":
            yield device


def _all_so(device: PciDevice, link: PciLink, alike: Sequence[HostEvidence]) -> bool:
    """Whether every like device of the class, and more than one, is as narrow and slow."""
    kind = (device.vendor, device.device)
    links = [
        d.link
        for host in alike
        if host.topology is not None
        for d in host.topology.pci
        if (d.vendor, d.device) == kind and d.link is not None
    ]
    own = link.width or 0, link.speed_gts or 0.0
    return len(links) > 1 and all(
        (k.width or 0) <= own[0] and (k.speed_gts or 0.0) <= own[1] for k in links
    )
