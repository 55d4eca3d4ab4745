"""Registers of a guest's cards, changed from outside: of itself QEMU has no degraded link."""

from __future__ import annotations

import contextlib
import re
import struct
import time
from collections.abc import Iterator
from pathlib import Path

_SPACE = 4096
_CAPABILITIES, _PCI_EXPRESS = 0x34, 0x10
_LINK_CAPABILITIES, _LINK_CAPABILITIES_2 = 0x0C, 0x2C
_SIXTEEN_GTS_X16, _UP_TO_SIXTEEN_GTS = 4 | 16 << 4, 0x1E
_LARGEST = 1 << 28


def raise_maximum(launcher: int, card: tuple[int, int], *, deadline: float) -> None:
    """
    Let an emulated card say that it can do 16 GT/s x16; its link stays as it was trained.

    A guest may not write these registers, so this is done in the emulator's memory, where the
    configuration space of the card is.

    Args:
        launcher: Process whose child the emulator is.
        card: Its vendor and device, which no other card has.
        deadline: Monotonic time until which the card may take to appear.

    Raises:
        OSError: The emulator's memory may not be written, or the card did not appear.
    """
    known = struct.pack("<HH", *card)
    while time.monotonic() < deadline:
        children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
        if any(_raised(int(pid), known) for pid in children):
            return
        time.sleep(0.1)
    raise TimeoutError(f"no card {card} in any child of {launcher}")


def _raised(pid: int, known: bytes) -> bool:
    """Whether the card was there, and is changed now."""
    with Path(f"/proc/{pid}/mem").open("r+b", buffering=0) as memory:
        for start, size in _private(pid):
            data = b""
            with contextlib.suppress(OSError):  # unmapped meanwhile
                memory.seek(start)
                data = memory.read(size)
            for match in re.finditer(re.escape(known), data):
                offset = _express(data, match.start())
                if offset is None:
                    continue
                memory.seek(start + offset + _LINK_CAPABILITIES)
                memory.write(struct.pack("<H", _SIXTEEN_GTS_X16))
                memory.seek(start + offset + _LINK_CAPABILITIES_2)
                memory.write(struct.pack("<H", _UP_TO_SIXTEEN_GTS))
                return True
    return False


def _private(pid: int) -> Iterator[tuple[int, int]]:
    """Start and size of its writable memory; what is large is the guest's."""
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        span, rights = line.split()[:2]
        start, end = (int(text, 16) for text in span.split("-"))
        if rights == "rw-p" and end - start < _LARGEST:
            yield start, end - start


def _express(data: bytes, base: int) -> int | None:
    """Where the PCI Express capability is, if a configuration space begins here."""
    space = data[base : base + _SPACE]
    if len(space) < _SPACE:
        return None
    offset = space[_CAPABILITIES]
    while 0x40 <= offset < 0x100:
        if space[offset] == _PCI_EXPRESS:
            return base + offset
        if space[offset + 1] <= offset:
            return None
        offset = space[offset + 1]
    return None
