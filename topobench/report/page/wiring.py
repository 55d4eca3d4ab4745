"""How a host is wired: its picture, the classes and speeds of its paths."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from topobench.exporters import svg
from topobench.report.figures import UNKNOWN
from topobench.report.page import plots
from topobench.report.page.parts import Figure, Head, Part, Picture, Table
from topobench.report.safe import clean
from topobench.topology import Topology

CLASSES = (
    ("X", "#b9c2cd"),
    ("NV", "#b58cf2"),
    ("PIX", "#6cc08b"),
    ("PXB", "#c3d45c"),
    ("PHB", "#ecca4a"),
    ("NODE", "#f0a35e"),
    ("SYS", "#cf8f80"),
    (UNKNOWN, "#e4e8ed"),
)
"""Path classes, nearest first, in the colours of the picture, light enough for dark text."""
_KNOWN = frozenset(word for word, _ in CLASSES)


def wiring(name: str, topology: Topology) -> Iterator[Part]:
    """
    The parts of a host's section.

    Args:
        name: Prefix of element names; unique per host on a page.
    """
    picture = svg.export(topology).text
    yield Picture(picture, "Wiring of the host: NUMA nodes, PCIe roots and switches, devices")
    if figure := path_matrix(name, topology):
        yield figure


def path_matrix(name: str, topology: Topology) -> Figure | None:
    """Path classes between GPUs and NICs; None without a GPU."""
    gpus = [g for g in topology.gpus if not g.is_slice]
    if not gpus:
        return None
    ends = [*(g.name for g in gpus), *(f"nic:{n.name}" for n in topology.nics)]
    found = {(p.a, p.b): _class(p.smi) for p in topology.paths}
    found |= {(b, a): word for (a, b), word in found.items()}
    starts = [g.name for g in gpus]
    rows = [["X" if a == b else found.get((a, b), UNKNOWN) for b in ends] for a in starts]
    shown, first = [_shown(e) for e in ends], [_shown(e) for e in starts]
    return Figure(
        name=f"{name}-paths",
        title="Paths between devices",
        lead="The class of the path from each GPU to each GPU and NIC, as nvidia-smi names it. "
        "X itself, NV# that many NVLinks, PIX one PCIe switch, PXB several, PHB one host bridge, "
        "NODE several host bridges of one NUMA node, SYS between NUMA nodes.",
        traces=[plots.classes(shown, rows, first, CLASSES)],
        layout=plots.matrix_layout(len(first), len(shown)),
        table=Table(
            [Head("from"), *(Head(e) for e in shown)],
            [[a, *row] for a, row in zip(first, rows, strict=True)],
        ),
    )


def names_of(topologies: Mapping[str, Any]) -> dict[str, Topology]:
    """Stored topology documents as values; one that cannot be read is left out."""
    found = {}
    for key, document in topologies.items():
        try:
            found[key] = Topology.from_json(document)
        except (KeyError, ValueError):  # of a version that wrote another form
            continue
    return found


def slowest(topology: Topology, devices: Sequence[str]) -> list[tuple[float, str]]:
    """
    What the wiring allows a ring through these GPUs: bytes per second, and in words whose.

    Args:
        devices: GPU keys.
    """
    names = {g.key: g.name for g in topology.gpus}
    ends = {names[d] for d in devices if d in names}
    paths = [p for p in topology.paths if {p.a, p.b} <= ends]
    found = []
    for attribute, words in (
        ("nominal_bytes_per_second", "nominal speed of the slowest path"),
        ("nccl_bytes_per_second", "what NCCL assumes of the slowest path"),
    ):
        speeds = [getattr(p, attribute) for p in paths if getattr(p, attribute)]
        if speeds and len(speeds) == len(paths):
            found.append((min(speeds), words))
    return found


def _class(smi: str | None) -> str:
    word = clean(smi or UNKNOWN)
    numbered = word.startswith("NV") and word[2:].isdigit()
    return word if numbered or word in _KNOWN else UNKNOWN


def _shown(end: str) -> str:
    kind, _, rest = clean(end).partition(":")
    return f"GPU {rest}" if kind == "gpu" else rest
