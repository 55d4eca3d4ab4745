"""hwloc's tables: latencies between NUMA nodes, and the bandwidth of NVLinks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from topobench.importers.hwloc_numbers import link_mbps
from topobench.topology import NumaDistances, Topology

_LATENCY, _BANDWIDTH = 5, 25
"""From the operating system; latency, or bandwidth between objects of several types."""
_ITSELF = 1_000_000
"""What hwloc puts for the bandwidth of an object to itself."""


def distance_table(distances: NumaDistances, nodes: set[int]) -> Iterator[str]:
    """Latencies, where every node of them is in the topology."""
    count = len(distances.nodes)
    if count < 2 or not nodes.issuperset(distances.nodes):
        return
    yield (
        f'  <distances2 type="NUMANode" nbobjs="{count}" kind="{_LATENCY}" '
        'name="NUMALatency" indexing="os">'
    )
    yield from _numbers("indexes", [str(n) for n in distances.nodes])
    yield from _numbers("u64values", [str(v) for row in distances.matrix for v in row])
    yield "  </distances2>"


def nvlink_table(topology: Topology, names: Mapping[str, str]) -> Iterator[str]:
    """
    MB/s between GPUs, and GPUs and NVSwitches that this host sees.

    Args:
        names: GPU key or PCI address -> how tables call the object.
    """
    gpus = [g for g in topology.gpus if g.nvlink and g.key in names]
    keys = {g.pci_address: g.key for g in gpus}
    counts: Counter[tuple[str, str]] = Counter()
    for gpu in gpus:
        each = link_mbps(gpu.model)
        for link in gpu.nvlink.links if gpu.nvlink else ():
            end = keys.get(link.remote) or link.remote
            if link.state == "active" and end in names:
                counts[gpu.key, str(end)] += each
    if not counts:
        return
    switches = sorted({b for _, b in counts} - {g.key for g in gpus})
    ends = [*(g.key for g in gpus), *switches]
    for gpu in gpus:
        for switch in switches:
            counts[switch, gpu.key] = counts[gpu.key, switch]
    yield f'  <distances2hetero nbobjs="{len(ends)}" kind="{_BANDWIDTH}" name="NVLinkBandwidth">'
    yield from _numbers("indexes", [names[e] for e in ends])
    values = [str(_ITSELF if a == b else counts[a, b]) for a in ends for b in ends]
    yield from _numbers("u64values", values)
    yield "  </distances2hetero>"


def _numbers(tag: str, words: Sequence[str]) -> Iterator[str]:
    """Ten a line, with the length of the text, as hwloc's reader wants it."""
    for start in range(0, len(words), 10):
        text = "".join(f"{word} " for word in words[start : start + 10])
        yield f'    <{tag} length="{len(text)}">{text}</{tag}>'
