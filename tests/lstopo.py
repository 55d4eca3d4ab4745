"""What hwloc's lstopo prints of a machine: verbose text, or XML."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from dataclasses import dataclass, field

from topobench.pcie import parse_cpu_mask

_UNITS = {"KB": 1 << 10, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_LINE = re.compile(r"( *)([A-Z][A-Za-z0-9]*)(?:\(.*?\))?(?: L#(\d+))?(?: \((.*)\))?")
_MEMORY = ("NUMANode", "MemCache", "MemSideCache")


@dataclass(frozen=True)
class Node:
    """A NUMA node: the CPUs near it; memory in units of ``unit`` bytes, as it was printed."""

    cpus: frozenset[int]
    memory: int
    unit: int = 1

    def holds(self, memory_bytes: int | None) -> bool:
        """Whether that is its memory, to the precision that it was printed in."""
        return abs((memory_bytes or 0) - self.memory * self.unit) <= self.unit // 2


@dataclass(frozen=True)
class Lstopo:
    """Objects that lstopo shows; nodes are in its own order, which distances follow."""

    cpus: set[int]
    cores: int
    packages: int
    nodes: dict[int, Node]
    pci: dict[str, str]
    distances: list[list[int]] = field(default_factory=list)


def read(text: str) -> Lstopo:
    """The machine of an output."""
    return _from_xml(text) if text.startswith("<?xml") else _from_text(text)


def _from_xml(text: str) -> Lstopo:
    objects = list(ElementTree.fromstring(text).iter("object"))
    kinds: dict[str, list[dict[str, str]]] = {}
    for found in objects:
        kinds.setdefault(found.attrib["type"], []).append(found.attrib)
    return Lstopo(
        cpus={int(o["os_index"]) for o in kinds.get("PU", [])},
        cores=len(kinds.get("Core", [])),
        packages=len(kinds.get("Package", [])),
        nodes={
            int(o["os_index"]): Node(
                frozenset(parse_cpu_mask(o["cpuset"].replace("0x", ""))),
                int(o.get("local_memory", "0")),
            )
            for o in kinds.get("NUMANode", [])
        },
        pci={
            o["pci_busid"]: re.sub(r"^(\w{4}) \[(\w+:\w+)\].*", r"\1 \2", o["pci_type"])
            for o in kinds.get("PCIDev", [])
        },
    )


@dataclass
class _Object:
    """A line: kind, logical number, attributes; and the lines below it."""

    kind: str
    indent: int
    number: int = 0
    attributes: str = ""
    parent: _Object | None = None
    below: list[_Object] = field(default_factory=list)

    def walk(self) -> Iterator[_Object]:
        yield self
        for child in self.below:
            yield from child.walk()

    def value(self, pattern: str) -> str:
        match = re.search(pattern, self.attributes)
        return match[1] if match else ""


def _from_text(text: str) -> Lstopo:
    objects = list(_tree(text).walk())
    nodes = sorted((o for o in objects if o.kind == "NUMANode"), key=lambda o: o.number)
    return Lstopo(
        cpus={int(o.value(r"P#(\d+)")) for o in objects if o.kind == "PU"},
        cores=sum(o.kind == "Core" for o in objects),
        packages=sum(o.kind == "Package" for o in objects),
        nodes={int(o.value(r"P#(\d+)")): _node(o) for o in nodes},
        pci={
            o.value(r"busid=(\S+)"): " ".join((o.value(r"class=(\w+)"), o.value(r"\bid=(\w+:\w+)")))
            for o in objects
            if o.kind == "PCI"
        },
        distances=_matrix(text),
    )


def _tree(text: str) -> _Object:
    """Lines by their indentation, up to the summary by depth."""
    root = _Object("root", -1)
    last = root
    for line in text.splitlines():
        if line.startswith(("depth ", "Special ")):
            break
        match = _LINE.match(line)
        if not match:
            continue
        parent = last
        while parent.indent >= len(match[1]) and parent.parent:
            parent = parent.parent
        number = int(match[3] or 0)
        last = _Object(match[2], len(match[1]), number, match[4] or "", parent)
        parent.below.append(last)
    return root


def _node(found: _Object) -> Node:
    """A node stands below the object whose CPUs are near it, maybe behind a cache."""
    place = found.parent
    while place and place.kind in _MEMORY:
        place = place.parent
    inside = place.walk() if place else ()
    cpus = frozenset(int(o.value(r"P#(\d+)")) for o in inside if o.kind == "PU")
    amount = re.search(r"local=(\d+)(\w+)", found.attributes)
    return Node(cpus, int(amount[1]), _UNITS[amount[2]]) if amount else Node(cpus, 0)


def _matrix(text: str) -> list[list[int]]:
    """The latency matrix; each row starts with its index."""
    _, found, rest = text.partition("(name NUMALatency")
    rows = []
    for line in rest.splitlines()[2:] if found else []:
        if not re.fullmatch(r"[\s\d]+", line):
            break
        rows.append([int(n) for n in line.split()][1:])
    return rows
