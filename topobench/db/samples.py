"""Single samples: SQL gives them as bytes, here each becomes a row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from topobench.db.records import unpack_samples
from topobench.errors import UsageError

PACKED = ("warmups", "codec", "data")
"""Columns in this order that hold the samples of one reading."""
SPREAD = ("position", "warmup", "value")
"""The columns in their place: number from 0, 1 for a warm-up, in the metric's unit."""

Rows = Sequence[Sequence[Any]]


def are_packed(columns: Sequence[str]) -> bool:
    """Whether an answer holds packed samples."""
    return set(PACKED) <= set(columns)


def spread(columns: Sequence[str], rows: Rows) -> tuple[tuple[str, ...], Rows]:
    """
    One row a sample, in measured order.

    Raises:
        UsageError: There is none, and why that may be.
    """
    if not rows:
        raise UsageError(
            "no such samples are stored: `topobench db vacuum` removes old ones (their medians "
            "stay: query sweep-cells), and imported results may come without; or no metric of "
            "the run matches"
        )
    at = list(columns).index(PACKED[0])
    names = (*columns[:at], *SPREAD, *columns[at + len(PACKED) :])
    return names, [sample for row in rows for sample in _samples(row, at)]


def _samples(row: Sequence[Any], at: int) -> Iterator[tuple[Any, ...]]:
    warmups, codec, data = row[at : at + len(PACKED)]
    before, after = tuple(row[:at]), tuple(row[at + len(PACKED) :])
    for position, value in enumerate(unpack_samples(codec, bytes(data))):
        yield *before, position, int(position < warmups), value, *after
