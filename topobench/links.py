"""Which PCIe links run below what both of their ends can do, and which may only be at rest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from topobench.topology import Gpu, PciDevice

_UPPER_ENDS = ("root_port", "downstream")
_MAY_REST = ("0x03", "0x12")
"""Classes of devices that slow their links down while idle: displays, accelerators."""


@dataclass(frozen=True, slots=True)
class Shortfall:
    """
    How far a link is below what both of its ends can do.

    Args:
        widest: Lanes that both have, where fewer are used; else None.
        fastest: GT/s that both can do, where it runs slower; else None.
        may_rest: Whether a lower speed may only mean that the device is idle. A width
            does not fall with idleness.
        slot_known: Whether the port above tells what it can do; a guest's bus may hide it.
    """

    widest: int | None
    fastest: float | None
    may_rest: bool
    slot_known: bool

    @property
    def is_fault(self) -> bool:
        """Whether the link is degraded, however idle its device."""
        return self.widest is not None or (self.fastest is not None and not self.may_rest)


def shortfalls(devices: Sequence[PciDevice], gpus: Sequence[Gpu]) -> dict[str, Shortfall]:
    """
    Address of the lower end of each link that is below what it could be -> by how much.

    A card in a slower slot, and a slower card in a fast slot, are no shortfall. Of a card
    that does not tell what it can do, nothing is said.
    """
    own = {g.pci_address for g in gpus}
    by_address = {d.address: d for d in devices}
    found = {}
    for device in devices:
        if device.role in _UPPER_ENDS or device.role == "vf":
            continue  # it has no link of its own to the port above
        rests = (
            device.address in own
            or device.role == "upstream"
            or device.pci_class.startswith(_MAY_REST)
        )
        short = _shortfall(device, by_address.get(device.parent or ""), may_rest=rests)
        if short:
            found[device.address] = short
    return found


def _shortfall(device: PciDevice, above: PciDevice | None, *, may_rest: bool) -> Shortfall | None:
    link = device.link
    if link is None:
        return None
    slot = above.link if above else None
    slot_width, slot_speed = (slot.max_width, slot.max_speed_gts) if slot else (None, None)
    lanes = min(link.max_width or 0, slot_width or link.max_width or 0)
    speed = min(link.max_speed_gts or 0.0, slot_speed or link.max_speed_gts or 0.0)
    narrow = link.width is not None and link.width < lanes
    slow = link.speed_gts is not None and link.speed_gts < speed
    if not narrow and not slow:
        return None
    known = (not narrow or slot_width is not None) and (not slow or slot_speed is not None)
    return Shortfall(lanes if narrow else None, speed if slow else None, may_rest, known)
