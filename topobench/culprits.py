"""
Which host or path explains the slow ones among measured pairs of hosts; pure.

A host that is fast with anyone is cleared in that direction, as in group testing: what one
good partner shows, no bad one can take away. A slow flow is then put down to whichever of its
ends is not cleared; to the path between them, if both are.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from topobench.reading import MEASURED, Cell, Run

SLOW_RATIO = 2 / 3
"""Of the typical bandwidth: a flow below is slow."""
BANDWIDTH = "bandwidth_bytes_per_second"


@dataclass(frozen=True, slots=True)
class Flow:
    """What one host sent to another: hosts by key, bytes per second."""

    sender: str
    receiver: str
    value: float


class Fault(StrEnum):
    """What is slow about a culprit."""

    SENDS = "sends"
    RECEIVES = "receives"
    PATH = "path"
    EITHER = "either"


@dataclass(frozen=True, slots=True)
class Culprit:
    """
    What explains some slow flows.

    Args:
        hosts: The host; of a path, or where it may be either, the sender and the receiver.
        value: The fastest of its slow flows, bytes per second.
        flows: How many slow flows it explains.
    """

    fault: Fault
    hosts: tuple[str, ...]
    value: float
    flows: int


@dataclass(frozen=True, slots=True)
class Finding:
    """
    What the flows of some hosts show.

    Args:
        typical: Median over the hosts of their best flow, bytes per second; None without flows.
        slow: How many flows are slow.
        culprits: The slowest first; together they explain every slow flow.
    """

    typical: float | None
    slow: int
    culprits: tuple[Culprit, ...]


def find(flows: Sequence[Flow]) -> Finding:
    """Name what explains the slow flows."""
    best_out, best_in = _best(flows, "sender"), _best(flows, "receiver")
    best = [*best_out.values(), *best_in.values()]
    if not best:
        return Finding(None, 0, ())
    typical = statistics.median(best)
    limit = SLOW_RATIO * typical
    slow = [f for f in flows if f.value < limit]
    # Sure is an end that is slow with a partner who is fast with somebody else.
    out = {f.sender for f in slow if best_out[f.sender] < limit <= best_in[f.receiver]}
    into = {f.receiver for f in slow if best_in[f.receiver] < limit <= best_out[f.sender]}
    found = [_host(Fault.SENDS, h, [f for f in slow if f.sender == h]) for h in sorted(out)]
    found += [_host(Fault.RECEIVES, h, [f for f in slow if f.receiver == h]) for h in sorted(into)]
    rest = [f for f in slow if f.sender not in out and f.receiver not in into]
    for flow in rest:
        cleared = best_out[flow.sender] >= limit
        fault = Fault.PATH if cleared else Fault.EITHER
        found.append(Culprit(fault, (flow.sender, flow.receiver), flow.value, 1))
    return Finding(typical, len(slow), tuple(sorted(found, key=lambda c: (c.value, c.hosts))))


def suspects(finding: Finding) -> tuple[str, ...]:
    """Hosts whose part in slow flows one more measurement with a good host would settle."""
    unsure = (c for c in finding.culprits if c.fault is not Fault.PATH)
    return tuple(dict.fromkeys(h for c in unsure for h in c.hosts))


def flows(cells: Sequence[Cell], runs: Sequence[Run]) -> list[Flow]:
    """The flows that runs of pairs of hosts measured; of parameters alike, the last counts."""
    by_id = {c.id: c for c in cells if len(set(c.hosts)) == 2}
    found = []
    for run in runs:
        cell = by_id.get(run.cell)
        if cell is None or run.status not in MEASURED:
            continue
        for reading in run.readings:
            if reading.metric == BANDWIDTH:
                found += directed(cell.hosts, cell.case.params, reading.summary.median)
    return found


def directed(hosts: Sequence[str], params: Mapping[str, object], value: float) -> list[Flow]:
    """The flow of a pair in the direction that its case names; none if both ways at once."""
    first, second = hosts[0], hosts[-1]
    ends = {"out": (first, second), "in": (second, first)}.get(str(params.get("direction")))
    return [Flow(*ends, value)] if ends else []


def _best(flows: Sequence[Flow], end: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for flow in flows:
        host = getattr(flow, end)
        found[host] = max(found.get(host, 0.0), flow.value)
    return found


def _host(fault: Fault, host: str, own: Sequence[Flow]) -> Culprit:
    return Culprit(fault, (host,), max(f.value for f in own), len(own))
