"""
What the byte counters of NVLinks say of a gang's rings, beside NCCL's own log; pure.

Where NVLinks join GPUs directly, bytes on a link between two GPUs that are no neighbours in any
ring contradict the log. Links into an NVSwitch do not tell whom they reach; there the links of a
GPU are only held against each other.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from topobench.conditions import LinkBytes, link_bytes
from topobench.reading import Reason, ReasonCode
from topobench.rings import Order, name_of
from topobench.topology import Topology
from topobench.units import format_bytes, format_percent

OUTSIDE_SHARE = 0.05
"""Share of a GPU's bytes that flags and set-up may put on links outside its rings."""
LEAST_BYTES = 64 << 20
"""Sent by a GPU in a run, below which its links say nothing."""
LEAST_BYTES_BESIDE = 10**9
"""The same for links beside each other: small messages lie in few buffers, those on few links."""
UNEVEN = 0.1
"""A link that carried this much less than the median of its GPU's is told."""


@dataclass(frozen=True, slots=True)
class Counted:
    """
    What the links of a gang carried.

    Args:
        document: For the run's conditions: ``counted`` links, ``sent_bytes``, ``known_peers``,
            ``outside_bytes``, ``imbalance_ratio`` and ``least`` (device and link); or
            ``unavailable``, the reason.
        contradiction: Why the run must fail.
        warnings: Links that carried much less than those beside them.
    """

    document: Mapping[str, Any]
    contradiction: Reason | None = None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Link:
    """Bytes that a rank's GPU sent over one of its links; peer: the rank it reaches."""

    rank: int
    device: str
    index: int
    sent: int
    peer: int | None


def counted(
    conditions: Mapping[str, Any],
    topology: Topology,
    devices: Sequence[str],
    rings: Sequence[Order],
) -> Counted:
    """
    Hold the links of a run's GPUs against its rings and each other.

    Args:
        conditions: Of the run, with what the monitor counted.
        devices: GPU UUIDs, by rank.
        rings: Of every channel, as ranks, as NCCL's log proves them; empty proves nothing.
    """
    links = [*_links(conditions, topology, devices)]
    if not links:
        return Counted({"unavailable": _why_not(conditions, topology, devices)})
    sent = sum(link.sent for link in links)
    outside = [*_outside(links, rings)] if rings else []
    least, imbalance = _least(links)
    document: dict[str, Any] = {
        "counted": len(links),
        "sent_bytes": sent,
        "known_peers": sum(link.peer is not None for link in links),
        "outside_bytes": sum(link.sent for link in outside),
        "imbalance_ratio": imbalance,
        "least": None if least is None else {"device": least.device, "link": least.index},
    }
    warnings = []
    if least is not None and imbalance is not None and imbalance >= UNEVEN:
        warnings.append(
            f"nvlink_uneven: link {least.index} of {least.device} carried "
            f"{format_percent(imbalance)} less than the links beside it"
        )
    return Counted(document, _contradiction(links, outside, rings), tuple(warnings))


def _links(
    conditions: Mapping[str, Any], topology: Topology, devices: Sequence[str]
) -> Iterator[_Link]:
    ranks = {device: rank for rank, device in enumerate(devices)}
    gpus = {gpu.key: gpu for gpu in topology.gpus}
    at = {gpu.pci_address: gpu.key for gpu in topology.gpus}
    for one in link_bytes(conditions):
        if not _is_counted(one) or one.device not in ranks:
            continue
        gpu = gpus.get(one.device)
        known = gpu.nvlink.links if gpu is not None and gpu.nvlink is not None else ()
        remote = {link.index: link.remote for link in known if link.remote_kind == "gpu"}
        peer = ranks.get(at.get(remote.get(one.link or 0) or "", ""))
        yield _Link(ranks[one.device], one.device, one.link or 0, one.sent or 0, peer)


def _is_counted(one: LinkBytes) -> bool:
    return one.kind == "nvlink" and one.link is not None and one.sent is not None


def _why_not(conditions: Mapping[str, Any], topology: Topology, devices: Sequence[str]) -> str:
    wanted = [gpu for gpu in topology.gpus if gpu.key in devices]
    if wanted and all(gpu.nvlink is None for gpu in wanted):
        return "these GPUs have no NVLinks; nothing counts bytes between them"
    for device in devices:
        told = ((conditions.get("gpus") or {}).get(device) or {}).get("unavailable") or {}
        for name in ("nvml", "nvlink_bytes", "nvlink_counters"):
            if name in told:
                return f"{name}: {told[name]}"
    return "the byte counters of the NVLinks were not read"


def _outside(links: Sequence[_Link], rings: Sequence[Order]) -> Iterator[_Link]:
    """Links that carried something between ranks which are neighbours in no ring."""
    near = {
        frozenset(pair) for ring in rings for pair in zip(ring, (*ring[1:], ring[0]), strict=True)
    }
    for link in links:
        if link.peer is not None and frozenset((link.rank, link.peer)) not in near:
            yield link


def _contradiction(
    links: Sequence[_Link], outside: Sequence[_Link], rings: Sequence[Order]
) -> Reason | None:
    """The pair of GPUs that exchanged the most outside of every ring, if that is much."""
    total: dict[int, int] = {}
    for link in links:
        total[link.rank] = total.get(link.rank, 0) + link.sent
    strange: dict[tuple[int, int], int] = {}
    for link in outside:
        pair = link.rank, link.peer if link.peer is not None else link.rank
        strange[pair] = strange.get(pair, 0) + link.sent
    bad = {
        pair: size
        for pair, size in strange.items()
        if total[pair[0]] >= LEAST_BYTES and size > OUTSIDE_SHARE * total[pair[0]]
    }
    if not bad:
        return None
    (rank, peer), size = max(bad.items(), key=lambda item: item[1])
    orders = ", ".join(dict.fromkeys(map(name_of, rings)))
    return Reason(
        ReasonCode.RING_MISMATCH,
        f"{format_bytes(size)} went from rank {rank} over NVLinks to rank {peer}, which is not "
        f"beside it in the ring {orders} that NCCL's log tells of",
    )


def _least(links: Sequence[_Link]) -> tuple[_Link | None, float | None]:
    """The link farthest below the median of those beside it (same GPU, same peer)."""
    beside: dict[tuple[int, int | None], list[_Link]] = {}
    for link in links:
        beside.setdefault((link.rank, link.peer), []).append(link)
    worst: tuple[float, _Link] | None = None
    for group in beside.values():
        middle = statistics.median(link.sent for link in group)
        if len(group) < 2 or sum(link.sent for link in group) < LEAST_BYTES_BESIDE or not middle:
            continue
        low = min(group, key=lambda link: link.sent)
        below = 1 - low.sent / middle
        if worst is None or below > worst[0]:
            worst = below, low
    return (None, None) if worst is None else (worst[1], worst[0])
