"""NVLinks of a host: GPUs on a switched fabric, and GPUs joined directly."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

from topobench.exporters.places import nv_links
from topobench.topology import Gpu, Topology


@dataclass(frozen=True, slots=True)
class Spoke:
    """A GPU's links into the fabric: ``18``, or ``17 of 18`` where some are down."""

    active: int
    expected: int | None

    @property
    def slow(self) -> bool:
        """Whether links are missing."""
        return self.expected is not None and self.active < self.expected

    @property
    def text(self) -> str:
        """What a picture says of it."""
        return f"{self.active} of {self.expected}" if self.slow else str(self.active)


@dataclass(frozen=True, slots=True)
class Fabric:
    """
    What NVLinks join.

    Args:
        spokes: Path name of a GPU ("gpu:0") -> its links into a switched fabric.
        pairs: Two GPUs -> links between them.
    """

    spokes: Mapping[str, Spoke]
    pairs: Mapping[tuple[str, str], int]


def fabric(topology: Topology) -> Fabric:
    """By the GPUs' own links; where they tell none, by the classes of paths."""
    gpus = [g for g in topology.gpus if not g.is_slice]
    spokes = {g.name: spoke for g in gpus if (spoke := _spoke(g))}
    if spokes:
        return Fabric(spokes, {})
    classes = {(p.a, p.b): n for p in topology.paths if (n := nv_links(p.smi))}
    pairs = list(itertools.combinations([g.name for g in gpus], 2))
    if len(gpus) > 3 and all(classes.get(p) for p in pairs) and len(set(classes.values())) == 1:
        count = next(iter(classes.values()))
        return Fabric({g.name: Spoke(count, None) for g in gpus}, {})
    return Fabric({}, classes or _direct(gpus))


def _spoke(gpu: Gpu) -> Spoke | None:
    links = gpu.nvlink
    if links is None or not any(n.remote_kind == "nvswitch" for n in links.links):
        return None
    return Spoke(links.active, links.expected)


def _direct(gpus: list[Gpu]) -> dict[tuple[str, str], int]:
    names = {g.pci_address: g.name for g in gpus if g.pci_address}
    found: dict[tuple[str, str], int] = {}
    for gpu in gpus:
        for link in gpu.nvlink.links if gpu.nvlink else ():
            other = names.get(link.remote or "")
            if link.state == "active" and other and gpu.name < other:
                found[gpu.name, other] = found.get((gpu.name, other), 0) + 1
    return found
