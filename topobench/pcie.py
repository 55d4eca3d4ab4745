"""PCI addresses, PCIe links and CPU masks as kernels and tools write them; pure text."""

from __future__ import annotations

import re

_ADDRESS = re.compile(
    r"(?:([0-9a-f]{1,8}):)?([0-9a-f]{1,2}):([0-9a-f]{1,2})\.([0-7])", re.IGNORECASE
)
_LAST_DEVICE = 0x1F


def normalise_address(text: str) -> str | None:
    """
    Canonical PCI address of any spelling: sysfs, NVML's 8-digit domain, upper case.

    Lower case, four domain digits, or more where the number needs them. None if it is
    no address.
    """
    match = _ADDRESS.fullmatch(text.strip())
    if not match:
        return None
    domain, bus, device, function = (int(p or "0", 16) for p in match.groups())
    if device > _LAST_DEVICE:
        return None
    return f"{domain:04x}:{bus:02x}:{device:02x}.{function:x}"


def link_bytes_per_second(speed_gts: float | None, width: float | None) -> float | None:
    """
    One direction of a PCIe link after encoding; None if either input is unknown.

    8b/10b up to 5 GT/s, 128b/130b up to 32 GT/s, 242/256 (FLIT) from 64 GT/s.
    """
    if not speed_gts or not width:
        return None
    coding = 8 / 10 if speed_gts <= 5 else 128 / 130 if speed_gts <= 32 else 242 / 256
    return speed_gts * 1e9 * width * coding / 8


def parse_speed(text: str | None) -> float | None:
    """GT/s of "8 GT/s", "8.0 GT/s PCIe"; None for "Unknown" and absent."""
    match = re.match(r"(\d{1,4}(?:\.\d{1,6})?) GT/s", text or "")
    return float(match[1]) if match and float(match[1]) > 0 else None


def parse_width(text: str | None) -> int | None:
    """Lanes; 0 and 255 are the kernel's "unknown"."""
    known = text is not None and re.fullmatch(r"[0-9]{1,3}", text) is not None
    return int(text) if known and text and int(text) not in (0, 255) else None


def parse_cpu_mask(text: str) -> tuple[int, ...]:
    """
    CPUs of a kernel mask: comma groups of 32 bits, highest first; an empty group is 0.

    Raises:
        ValueError: It is not a hexadecimal mask.
    """
    bits = 0
    for group in text.strip(" \n\0").split(","):
        bits = bits << 32 | int(group or "0", 16)
    return bits_set(bits)


def bits_set(bits: int) -> tuple[int, ...]:
    """Positions of the bits set, ascending."""
    return tuple(i for i in range(bits.bit_length()) if bits >> i & 1)
