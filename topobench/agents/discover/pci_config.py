"""What only a PCI function's configuration space tells: port type and ACS."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass

from topobench.agents.discover.tree import READ_FLAGS, Tree

_STATUS, _CAPABILITIES = 0x06, 0x34
_HAS_CAPABILITIES = 0x10
_PCI_EXPRESS = 0x10
_EXTENDED, _ACS = 0x100, 0x000D
_MOST_CAPABILITIES = 96
_REDIRECTS = 0x1C
"""Request, completion and upstream redirection: the ACS bits that send peer traffic to the root."""


@dataclass(frozen=True, slots=True)
class Config:
    """
    Facts of a bridge.

    Args:
        port_type: Of the PCI Express capability (4 root port, 5 upstream, 6 downstream);
            None if this user may not read it.
        acs: ``on`` if peer traffic is redirected, ``off``, or ``unknown``.
    """

    port_type: int | None = None
    acs: str = "unknown"


def read_config(tree: Tree, folder: str) -> Config:
    """Configuration space of a function; users other than root see 64 bytes of it."""
    with _opened(tree.path(f"{folder}/config")) as handle:
        if handle is None:
            return Config()
        offset = _express(handle)
        flags = _word(handle, offset + 2) if offset else None
        return Config(None if flags is None else flags >> 4 & 0xF, _acs(handle))


@contextlib.contextmanager
def _opened(path: str) -> Iterator[int | None]:
    try:
        handle = os.open(path, READ_FLAGS)
    except OSError:
        yield None
        return
    try:
        yield handle
    finally:
        os.close(handle)


def _read(handle: int, offset: int, size: int) -> int | None:
    try:
        data = os.pread(handle, size, offset)
    except OSError:
        return None
    return int.from_bytes(data, "little") if len(data) == size else None


def _word(handle: int, offset: int) -> int | None:
    return _read(handle, offset, 2)


def _express(handle: int) -> int | None:
    """Offset of the PCI Express capability."""
    status = _word(handle, _STATUS)
    if status is None or not status & _HAS_CAPABILITIES:
        return None
    offset = _read(handle, _CAPABILITIES, 1)
    for _ in range(_MOST_CAPABILITIES):
        header = _word(handle, offset & ~3) if offset else None
        if header is None or offset is None:
            return None
        if header & 0xFF == _PCI_EXPRESS:
            return offset & ~3
        offset = header >> 8
    return None


def _acs(handle: int) -> str:
    offset = _EXTENDED
    for _ in range(_MOST_CAPABILITIES):
        header = _read(handle, offset, 4)
        if header is None or header == 0xFFFFFFFF:
            return "unknown"
        if header & 0xFFFF == _ACS:
            control = _word(handle, offset + 6)
            if control is None:
                return "unknown"
            return "on" if control & _REDIRECTS else "off"
        offset = header >> 20
        if offset < _EXTENDED:
            return "off"
    return "unknown"
