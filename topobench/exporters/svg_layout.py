"""
Boxes of the picture: how large each is, and where it stands.

A NUMA node holds PCIe roots, a root holds switches, a switch holds devices. Devices of a place
stand in columns, GPUs at the bottom, and all places of a row end at the same height, so that
NVLinks run straight down from the GPUs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from topobench.exporters.places import Home, Leaf, Place

LEAF_WIDTH, LEAF_HEIGHT = 158.0, 58.0
SPINE = 14.0
"""Room left of a column, where its links run."""
GAP = 10.0
PAD = 9.0
HEADER = {"node": 64.0, "root": 32.0, "switch": 44.0}
"""Height of a place's title."""
SMALLEST_NODE = 210.0
WIDEST_ROW = 2200.0


@dataclass(slots=True)
class Box:
    """A rectangle with what stands in it; ``x`` and ``y`` are its upper left corner."""

    item: Leaf | Place | Home
    width: float
    height: float
    x: float = 0.0
    y: float = 0.0
    boxes: list[Box] = field(default_factory=list)
    columns: list[list[Box]] = field(default_factory=list)

    @property
    def header(self) -> float:
        """Height of its title."""
        return HEADER[self.item.kind if isinstance(self.item, Place) else "node"]

    def move(self, x: float, y: float) -> None:
        """Put it somewhere, with everything in it."""
        dx, dy = x - self.x, y - self.y
        self.x, self.y = x, y
        for box in [*self.boxes, *(b for column in self.columns for b in column)]:
            box.move(box.x + dx, box.y + dy)

    def stretch(self, height: float) -> None:
        """Make it higher; what stands in it stays at the bottom, and places grow with it."""
        more = height - self.height
        self.height = height
        for box in self.boxes:
            box.stretch(box.height + more)
        for box in (b for column in self.columns for b in column):
            box.move(box.x, box.y + more)


def rows_of(homes: Sequence[Home]) -> list[list[Box]]:
    """NUMA nodes in rows of equal height, placed from (0, 0) on."""
    rows: list[list[Box]] = [[]]
    for box in (_home(home) for home in homes):
        used = sum(b.width + 3 * GAP for b in rows[-1])
        if rows[-1] and used + box.width > WIDEST_ROW:
            rows.append([])
        rows[-1].append(box)
    top = 0.0
    for row in rows:
        height, left = max((b.height for b in row), default=0.0), 0.0
        for box in row:
            box.stretch(height)
            box.move(left, top)
            left += box.width + 3 * GAP
        top += height + 5 * GAP
    return rows


def _home(home: Home) -> Box:
    box = _container(home, home.place)
    box.width = max(box.width, SMALLEST_NODE)
    return box


def _container(item: Place | Home, place: Place) -> Box:
    """A box around a place's columns of devices and the places in it, side by side."""
    box = Box(item, 0, 0)
    box.boxes = [_container(p, p) for p in place.places.values()]
    box.columns = _columns(place.leaves)
    inside = max(
        [b.height for b in box.boxes]
        + [len(c) * (LEAF_HEIGHT + GAP) - GAP for c in box.columns]
        + [0.0 if place.kind == "node" else LEAF_HEIGHT / 2]
    )
    bottom = box.header + inside
    x = PAD
    for column in box.columns:
        y = bottom - LEAF_HEIGHT
        for leaf in column:
            leaf.move(x + SPINE, y)
            y -= LEAF_HEIGHT + GAP
        x += SPINE + LEAF_WIDTH + GAP
    for inner in box.boxes:
        inner.stretch(inside)
        inner.move(x, box.header)
        x += inner.width + GAP
    box.width, box.height = max(x - GAP + PAD, LEAF_WIDTH + SPINE + 2 * PAD), bottom + PAD
    return box


def _columns(leaves: Sequence[Leaf]) -> list[list[Box]]:
    """Columns from the bottom up: one a GPU, or about as wide as high where there are none."""
    gpus = [leaf for leaf in leaves if leaf.kind == "gpu"]
    others = [leaf for leaf in leaves if leaf.kind != "gpu"]
    count = len(gpus) or math.isqrt(max(0, len(others) - 1)) + bool(others)
    columns: list[list[Box]] = [[Box(g, LEAF_WIDTH, LEAF_HEIGHT)] for g in gpus]
    columns += [[] for _ in range(count - len(gpus))]
    for index, leaf in enumerate(others):
        columns[index % count].append(Box(leaf, LEAF_WIDTH, LEAF_HEIGHT))
    return columns
