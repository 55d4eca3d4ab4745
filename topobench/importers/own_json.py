"""The project's own document, ``topobench.topology/1``."""

from __future__ import annotations

import json
from collections.abc import Iterable

from topobench.errors import ImportFailed
from topobench.importers.document import clean
from topobench.importers.topology_text import MOST_CPUS
from topobench.topology import SCHEMA, Topology, parse_cpu_list

MAX_BYTES = 16 << 20
_WORDS = {
    "trust": ("full", "low"),
    "state of a GPU": ("ok", "lost", "no_access", "unknown"),
    "state of an NVLink": ("active", "inactive"),
    "role": ("host_bridge", "root_port", "upstream", "downstream", "endpoint", "pf", "vf"),
    "acs": ("on", "off", "unknown"),
}
"""What these keys may say (docs/schemas/topology.json)."""


def parse(text: str) -> Topology:
    """
    The topology of a ``topobench.topology/1`` document.

    Raises:
        ImportFailed: It is no such document, or a value in it can't be true.
    """
    if len(text) > MAX_BYTES:
        raise ImportFailed(f"{len(text)} characters, at most {MAX_BYTES} are read")
    try:
        value = json.loads(text.lstrip("\ufeff"))
    except (ValueError, RecursionError) as error:
        raise ImportFailed(f"not complete JSON: {clean(error)}") from error
    if not isinstance(value, dict):
        raise ImportFailed(f"this is no {SCHEMA} document")
    try:
        topology = Topology.from_json(value)
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise ImportFailed(
            f"{clean(error)}; give what `topo show --format json` printed"
        ) from error
    _check(topology)
    return topology


def _check(topology: Topology) -> None:
    """Lists of CPUs that are lists, distances of the right shape, addresses that are unique."""
    cpus = topology.cpus
    lists = [cpus.possible, cpus.online, cpus.allowed, *(n.cpus for n in topology.numa_nodes)]
    for text in [*lists, *(g.cpus for g in topology.gpus)]:
        _check_cpus(text)
    distances = topology.numa_distances
    rows = [len(row) for row in distances.matrix]
    if rows != [len(distances.nodes)] * len(distances.nodes):
        raise ImportFailed("numa_distances: the matrix does not fit the nodes")
    links = [link for g in topology.gpus if g.nvlink for link in g.nvlink.links]
    _check_words("trust", [topology.trust])
    _check_words("state of a GPU", [g.state for g in topology.gpus])
    _check_words("state of an NVLink", [link.state for link in links])
    _check_words("role", [d.role for d in topology.pci])
    _check_words("acs", [d.acs for d in topology.pci])
    _check_unique("NUMA node", [str(n.id) for n in topology.numa_nodes])
    _check_unique("PCI address", [d.address for d in topology.pci])
    _check_unique("GPU", [g.key for g in topology.gpus])


def _check_words(name: str, values: Iterable[str]) -> None:
    for value in values:
        if value not in _WORDS[name]:
            known = ", ".join(_WORDS[name])
            raise ImportFailed(f"{name}: {clean(value)[:60]!r} is none of {known}")


def _check_cpus(text: str | None) -> None:
    # The largest number first: a list such as 0-9999999999 must not be spelt out.
    numbers = [int(n) for n in "".join(c if c in "0123456789" else " " for c in text or "").split()]
    if len(text or "") > 1 << 16 or max(numbers, default=0) > MOST_CPUS:
        raise ImportFailed(f"CPU list {clean(text)[:60]!r} is too long")
    try:
        parse_cpu_list(text)
    except (ValueError, ZeroDivisionError) as error:
        raise ImportFailed(f"{clean(text)[:60]!r} is no list of CPUs") from error


def _check_unique(what: str, values: list[str]) -> None:
    seen: set[str] = set()
    for value in values:
        if value in seen:
            raise ImportFailed(f"{what} {clean(value)} stands there twice")
        seen.add(value)
