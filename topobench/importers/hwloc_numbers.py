"""Sets and tables of hwloc's XML: CPU sets, distances between nodes, bandwidth of NVLinks."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from topobench.errors import ImportFailed
from topobench.importers.topology_text import MOST_CPUS, MOST_NODES, number
from topobench.importers.xml_text import Element
from topobench.pcie import bits_set
from topobench.topology import NumaDistances, NvLink, NvLinks

_LONGEST_SET = MOST_CPUS // 32 * 12
_MOST_OBJECTS = 1 << 11
_MOST_LINKS = 64
_LATENCY = 4
_LINK_MBPS = {r"P100": 20_000, r"\bG?B[123]00\b": 50_000, r"": 25_000}
"""What hwloc takes for one NVLink, one direction, by model of GPU."""


def cpu_set(text: str) -> tuple[int, ...] | None:
    """
    Members of a set ("0x00000303,,0x0303"), None if it is absent or without end.

    Raises:
        ImportFailed: It is no set, or larger than any machine.
    """
    if not text or "f...f" in text:
        return None
    bits = 0
    if len(text) > _LONGEST_SET:
        raise ImportFailed("a set of CPUs is too long to be true")
    for group in text.split(","):
        digits = group.removeprefix("0x")
        if not re.fullmatch(r"[0-9a-fA-F]{0,16}", digits):
            raise ImportFailed(f"{text[:60]!r} is no set of CPUs")
        bits = bits << 32 | int(digits or "0", 16)
    return bits_set(bits)


def distances(root: Element, names: Mapping[str, int]) -> NumaDistances:
    """
    Latencies between NUMA nodes, by their numbers; none where the file has none.

    Raises:
        ImportFailed: A table that does not fit the nodes.
    """
    for table in root.all("distances2"):
        kind = table.get("kind")
        if table.get("type") != "NUMANode" or not kind.isdigit() or not int(kind[:9]) & _LATENCY:
            continue
        prefix = "gp" if table.get("indexing") == "gp" else "os"
        nodes = [names.get(f"{prefix}:{word}", -1) for word in _words(table, "indexes")]
        values = [number(word, "a distance", 1 << 40) for word in _words(table, "u64values")]
        if not nodes or -1 in nodes or len(nodes) > MOST_NODES or len(values) != len(nodes) ** 2:
            raise ImportFailed("the table of distances does not fit the NUMA nodes")
        order = sorted(range(len(nodes)), key=lambda i: nodes[i])
        rows = [tuple(values[i * len(nodes) + j] for j in order) for i in order]
        return NumaDistances(tuple(nodes[i] for i in order), tuple(rows))
    return NumaDistances()


Peers = Sequence[tuple[str, int, bool]]
"""Other ends of a GPU's NVLinks: PCI address, MB/s one way, and whether it is a switch."""


def nvlink_rates(root: Element, names: Mapping[str, str]) -> dict[str, Peers]:
    """
    PCI address of a GPU -> the ends of its NVLinks.

    Args:
        names: How tables call an object ("OSDev:802") -> its PCI address.
    """
    for table in root.all("distances2hetero"):
        if table.get("name") == "NVLinkBandwidth":
            return dict(_by_gpu(table, names))
    return {}


def nvlinks(peers: Peers, model: str | None) -> NvLinks | None:
    """
    The NVLinks of a GPU model; None where it has none.

    hwloc tells the bandwidth between two ends, not the number of links: it counts those, times
    what it takes for one of them.
    """
    each = link_mbps(model)
    links: list[NvLink] = []
    for remote, mbps, switch in sorted(peers):
        if mbps % each or mbps > each * _MOST_LINKS:
            return None
        kind = "nvswitch" if switch else "gpu"
        links += [NvLink(len(links) + i, "active", kind, remote) for i in range(mbps // each)]
    if not links:
        return None
    total = sum(mbps for _, mbps, _ in peers) * 1e6
    return NvLinks(len(links), None, None, total, tuple(links))


def link_mbps(model: str | None) -> int:
    """MB/s that hwloc takes for one NVLink of a GPU model, one direction."""
    return next(rate for pattern, rate in _LINK_MBPS.items() if re.search(pattern, model or ""))


def _by_gpu(table: Element, names: Mapping[str, str]) -> Iterator[tuple[str, Peers]]:
    ends = _words(table, "indexes")
    values = [number(word, "a bandwidth", 1 << 40) for word in _words(table, "u64values")]
    count = len(ends)
    if count > _MOST_OBJECTS or len(values) != count * count:
        raise ImportFailed("the table NVLinkBandwidth does not fit its objects")
    switches = {names.get(e) for e in ends if e.startswith("PCIDev:")}
    for i, end in enumerate(ends):
        row = [(names.get(ends[j]), values[i * count + j]) for j in range(count) if i != j]
        peers = [(to, mbps, to in switches) for to, mbps in row if to and mbps]
        if end in names and names[end] not in switches and peers:
            yield names[end], peers


def _words(table: Element, tag: str) -> list[str]:
    return " ".join(child.text for child in table.all(tag)).split()
