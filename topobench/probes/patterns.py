"""Known data for buffers that travel, and how much of what arrived differs from it."""

from __future__ import annotations

from typing import Any

TILE = 65521
"""Length of the pattern that fills buffers: a prime, so that a misplaced chunk shows."""
LARGEST_VALUE = 16
EXACT_UP_TO = {
    "float32": 1 << 24,
    "float64": 1 << 53,
    "bfloat16": 1 << 8,
    "float16": 1 << 11,
    "int32": (1 << 31) - 1,
    "int64": (1 << 63) - 1,
}
"""Largest whole number up to which a dtype holds every one."""


def largest_value(dtype: str, terms: int) -> int:
    """Largest value that any of ``terms`` terms may have so that their sum is exact."""
    return min(LARGEST_VALUE, EXACT_UP_TO[dtype] // terms)


def tile(seed: int, dtype: str, terms: int = 1) -> Any:
    """
    A pattern of whole numbers from 1, so that nothing can be left out unseen.

    Args:
        seed: Another one gives other values.
        terms: Patterns that will be added; the sum is exact.
    """
    import torch

    generator = torch.Generator().manual_seed(1 + seed)
    high = largest_value(dtype, terms) + 1
    return torch.randint(1, high, (TILE,), generator=generator).to(getattr(torch, dtype))


def spread(pattern: Any, buffer: Any) -> None:
    """Fill a buffer with repeats of a pattern."""
    whole = len(buffer) // len(pattern) * len(pattern)
    buffer[:whole].view(-1, len(pattern)).copy_(pattern)
    buffer[whole:].copy_(pattern[: len(buffer) - whole])


def differing(pattern: Any, buffer: Any) -> int:
    """Elements of a buffer that are not the repeats of a pattern."""
    whole = len(buffer) // len(pattern) * len(pattern)
    wrong = (buffer[:whole].view(-1, len(pattern)) != pattern).sum()
    return int(wrong + (buffer[whole:] != pattern[: len(buffer) - whole]).sum())
