"""What tests ask of a topology: a path, a PCI function, what it warns of."""

from __future__ import annotations

from topobench.topology import Path, PciDevice, Topology


def between(topology: Topology, a: str, b: str) -> Path:
    return next(p for p in topology.paths if (p.a, p.b) == (a, b))


def device(topology: Topology, address: str) -> PciDevice:
    return next(d for d in topology.pci if d.address == address)


def warned(topology: Topology) -> list[tuple[str, str]]:
    """Codes of its warnings, and what each is about."""
    return [(w.code, w.subject) for w in topology.warnings]
