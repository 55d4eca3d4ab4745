"""What the importers of topologies share: values of foreign text, and a topology around them."""

from __future__ import annotations

import re
from typing import Any

from topobench.errors import ImportFailed
from topobench.importers.document import clean
from topobench.topology import Cpus, Machine, Topology

MOST_CPUS = 1 << 16
MOST_NODES = 1 << 12
MOST_NVLINKS = 256
UNKNOWN_CLASS, UNKNOWN_ID = "0x000000", "0x0000"
"""What discovery, too, calls a class or an id that nobody tells."""


def imported(source: str, **parts: Any) -> Topology:
    """
    A topology of what a text says.

    Args:
        source: Format, which stands as its root ("import:nccl").
        parts: Fields of :class:`Topology`; the text has no date, and little trust.
    """
    defaults: dict[str, Any] = {
        "taken_at": "",
        "virtualization": "unknown",
        "trust": "low",
        "machine": Machine(),
        "cpus": Cpus(),
    }
    return Topology(root=f"import:{source}", **{**defaults, **parts})


def number(text: str, what: str, most: int) -> int:
    """
    A whole number from 0.

    Raises:
        ImportFailed: It is none, or too large to be true.
    """
    if not re.fullmatch(r"[0-9]{1,18}", text) or int(text) > most:
        raise ImportFailed(f"{what} is {clean(text)!r}, expected a number up to {most}")
    return int(text)


def hexadecimal(text: str, digits: int) -> str | None:
    """``0x`` and so many digits, lower case; None if the text is no such number."""
    match = re.fullmatch(r"(?:0x)?([0-9a-fA-F]{1,8})", text.strip())
    if not match or len(match[1].lstrip("0")) > digits:
        return None
    return f"0x{int(match[1], 16):0{digits}x}"
