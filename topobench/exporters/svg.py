"""
A picture of a host: NUMA nodes, PCIe roots, switches and devices as nested boxes.

Links have the colour of the path class they stand for; a link that runs below what its ends
can do is red and says how fast it is. Colours suit a light and a dark background.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

from topobench.exporters.exported import Exported, attribute
from topobench.exporters.fabric import Fabric, fabric
from topobench.exporters.places import Home, Leaf, Place, homes, is_degraded, memory_nodes
from topobench.exporters.svg_layout import GAP, SPINE, Box, rows_of
from topobench.exporters.svg_words import (
    LEGEND,
    STYLE,
    clipped,
    leaf_lines,
    link_words,
    memory_line,
    node_lines,
    title_lines,
    width_of,
)
from topobench.topology import Topology

_MARGIN = 24.0
_TITLE = 62.0
_LEGEND_HEIGHT = 44.0
_ARC = 26.0
_NOTHING = Place("fabric", "")


def export(topology: Topology) -> Exported:
    """The picture, as one SVG document without scripts or references."""
    rows = rows_of(homes(topology))
    picture = _Picture(topology, rows)
    body = list(picture.draw())
    width, height = picture.width, picture.height
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" role="img" '
        'aria-label="Wiring of a host" style="max-width:100%;height:auto">',
        f"<style>{STYLE}</style>",
        f'<rect class="paper" width="{width:.0f}" height="{height:.0f}"/>',
        *body,
        "</svg>",
    ]
    return Exported("\n".join(lines) + "\n")


class _Picture:
    """Draws boxes and what joins them; knows its own size once it is drawn."""

    def __init__(self, topology: Topology, rows: Sequence[Sequence[Box]]) -> None:
        self.topology, self.rows = topology, rows
        self.fabric: Fabric = fabric(topology)
        self.gpus: dict[str, Box] = {}
        for row in rows:
            for box in row:
                box.move(box.x + _MARGIN, box.y + _MARGIN + _TITLE)
                self._find(box)
        boxes = [box for row in rows for box in row]
        titles = [_MARGIN + width_of(*t) for t in title_lines(topology)]
        self.width = max([b.x + b.width for b in boxes] + [720.0, *titles]) + _MARGIN
        self.height = max([b.y + b.height for b in boxes] + [_MARGIN + _TITLE]) + 2 * GAP

    def _find(self, box: Box) -> None:
        for inner in [*box.boxes, *(b for c in box.columns for b in c)]:
            if isinstance(inner.item, Leaf):
                self.gpus[inner.item.name] = inner
            self._find(inner)

    def draw(self) -> Iterator[str]:
        for number, (words, style) in enumerate(title_lines(self.topology)):
            yield text(_MARGIN, _MARGIN + 18 + 22 * number, words, style)
        for upper, lower in itertools.pairwise(self.rows):
            y = upper[0].y + upper[0].height
            yield line(upper[0].x + 30, y, lower[0].x + 30, lower[0].y, "sys", 5)
        for row in self.rows:
            yield from self._distances(row)
            for box in row:
                yield from self._node(box)
        yield from self._nvlinks()
        yield from self._memory()
        yield from self._legend()

    def _distances(self, row: Sequence[Box]) -> Iterator[str]:
        """A line between neighbouring NUMA nodes."""
        for a, b in itertools.pairwise(row):
            ends = a.item, b.item
            if not all(isinstance(e, Home) and e.number is not None for e in ends):
                continue
            y = a.y + 22
            yield line(a.x + a.width, y, b.x, y, "sys", 5)
            numbers = [e.number for e in ends if isinstance(e, Home) and e.number is not None]
            if found := self.topology.distance(numbers[0], numbers[1]):
                yield text((a.x + a.width + b.x) / 2, y - 8, str(found), "small", anchor="middle")

    def _node(self, box: Box) -> Iterator[str]:
        home = box.item
        assert isinstance(home, Home)
        yield rect(box, "node" if home.number is not None else "node lost", 14)
        for number, (words, style) in enumerate(node_lines(home)):
            shown = clipped(words, box.width - 22, style)
            yield text(box.x + 14, box.y + 24 + 17 * number, shown, style)
        yield from self._children(box, "node")

    def _children(self, box: Box, level: str) -> Iterator[str]:
        """A bar under the title, from which the links of everything inside go down."""
        ways = [b.x + b.width / 2 for b in box.boxes]
        columns = [c for c in box.columns if c and _has_place(c)]
        spines = [column[0].x - SPINE / 2 for column in columns]
        bar, style = box.y + box.header - 7, _style(box, level)
        if len(ways) + len(spines) > 1:
            yield line(min(ways + spines), bar, max(ways + spines), bar, style, 3)
        for x, inner in zip(ways, box.boxes, strict=True):
            assert isinstance(inner.item, Place)
            yield line(x, bar, x, inner.y, "slow" if is_degraded(inner.item) else style, 3)
        leaf_style = "pix" if level == "switch" else style
        for x, column in zip(spines, columns, strict=True):
            yield line(x, bar, x, max(leaf.y for leaf in column) + 14, leaf_style, 2)
            for leaf in column:
                assert isinstance(leaf.item, Leaf)
                now = "slow" if is_degraded(leaf.item) else leaf_style
                yield line(x, leaf.y + 14, leaf.x, leaf.y + 14, now, 3)
        for inner in box.boxes:
            yield from self._place(inner)
        for column in box.columns:
            for leaf in column:
                yield from self._leaf(leaf)

    def _place(self, box: Box) -> Iterator[str]:
        place = box.item
        assert isinstance(place, Place)
        yield rect(box, place.kind, 9)
        name = f"PCIe {place.address}" if place.kind == "root" else f"switch {place.address}"
        yield text(box.x + 9, box.y + 15, clipped(name, box.width - 18, "small"), "small")
        if words := link_words(place.link, place.short):
            style = "small red" if is_degraded(place) else "small faint"
            yield text(box.x + 9, box.y + 29, clipped(words, box.width - 18, style), style)
        yield from self._children(box, place.kind)

    def _leaf(self, box: Box) -> Iterator[str]:
        leaf = box.item
        assert isinstance(leaf, Leaf)
        yield rect(box, f"leaf {leaf.kind}", 6)
        for number, (words, style) in enumerate(leaf_lines(leaf)):
            shown = clipped(words, box.width - 14, style)
            yield text(box.x + 8, box.y + 17 + 14 * number, shown, style)

    def _nvlinks(self) -> Iterator[str]:
        if self.fabric.spokes:
            yield from self._spokes()
        elif self.fabric.pairs:
            yield from self._arcs(self.fabric.pairs)

    def _spokes(self) -> Iterator[str]:
        """Straight lines from the GPUs down to one bar, which is the switched fabric."""
        found = {n: self.gpus[n] for n in self.fabric.spokes if n in self.gpus}
        if not found:
            return
        centres = [b.x + b.width / 2 for b in found.values()]
        top = self.height + 14
        last = max(b.y for b in found.values())
        for name, box in found.items():
            spoke, x = self.fabric.spokes[name], box.x + box.width / 2
            style = "slow" if spoke.slow else "nv"
            if box.y == last:
                yield line(x, box.y + box.height, x, top, style, 5 if spoke.slow else 3)
                yield text(
                    x + 6, top - 5, spoke.text, "small red" if spoke.slow else "small violet"
                )
            else:
                yield line(
                    box.x + 8,
                    box.y + box.height,
                    box.x + box.width - 8,
                    box.y + box.height,
                    style,
                    5,
                )
        count = len(self.topology.nvswitches)
        seen = f"{count} NVSwitches seen" if count else "its switches are not seen from here"
        words = f"NVLink fabric, {seen}"
        least = width_of(words, "on-violet") + 24
        left = max(min(*centres, max(centres) + 80 - least) - 40, _MARGIN)
        width = max(max(centres) + 40 - left, least)
        yield rect(Box(_NOTHING, width, 34, left, top), "fabric", 9)
        yield text(left + width / 2, top + 22, words, "on-violet", anchor="middle")
        self.height = top + 34 + 2 * GAP

    def _arcs(self, pairs: Mapping[tuple[str, str], int]) -> Iterator[str]:
        """Curves below the boxes, one a pair; the farther apart, the deeper."""
        found = [
            (self.gpus[a], self.gpus[b], n)
            for (a, b), n in pairs.items()
            if {a, b} <= self.gpus.keys()
        ]
        if not found:
            return
        base = self.height
        order = sorted({box.x for pair in found for box in pair[:2]})
        deepest = 0.0
        for a, b, count in found:
            left, right = sorted((a, b), key=lambda box: box.x)
            steps = order.index(right.x) - order.index(left.x)
            depth = _ARC * steps + 14
            deepest = max(deepest, depth)
            x1, x2 = left.x + left.width / 2 + 6, right.x + right.width / 2 - 6
            y1, y2 = left.y + left.height, right.y + right.height
            low = base + depth
            yield (
                f'<path class="nv" stroke-width="{min(6.0, 1.5 + count / 4):.1f}" '
                f'd="M{x1:.1f} {y1:.1f}V{base:.1f}'
                f'C{x1:.1f} {low:.1f} {x2:.1f} {low:.1f} {x2:.1f} {base:.1f}V{y2:.1f}"/>'
            )
            yield text(
                (x1 + x2) / 2,
                base + depth * 0.75 - 4,
                f"NV{count}",
                "small violet",
                anchor="middle",
            )
        self.height = base + deepest + GAP

    def _memory(self) -> Iterator[str]:
        """NUMA nodes without CPUs, one line each."""
        nodes = memory_nodes(self.topology)
        if not nodes:
            return
        top = self.height
        yield text(_MARGIN, top + 16, "NUMA nodes without CPUs", "strong")
        for number, node in enumerate(nodes[:12]):
            words = memory_line(node, self.topology)
            yield text(_MARGIN, top + 34 + 16 * number, words, "small")
        rest = len(nodes) - 12
        if rest > 0:
            yield text(_MARGIN, top + 34 + 16 * 12, f"and {rest} more", "small")
        self.height = top + 34 + 16 * min(len(nodes), 13) + GAP

    def _legend(self) -> Iterator[str]:
        x, y = _MARGIN, self.height + 12
        for style, words in LEGEND:
            width = 46 + 6.1 * len(words)
            if x + width > self.width - _MARGIN and x > _MARGIN:
                x, y = _MARGIN, y + 20
            yield line(x, y, x + 24, y, style, 4)
            yield text(x + 31, y + 4, words, "small")
            x += width + 6
        self.height = y + _LEGEND_HEIGHT - 20


def _has_place(column: Sequence[Box]) -> bool:
    """Whether it is known where on the bus these devices are; else no line may claim it."""
    return any(isinstance(box.item, Leaf) and box.item.address for box in column)


def _style(box: Box, level: str) -> str:
    """
    The path class that a bar stands for.

    Inside a NUMA node it is NODE if root buses are known, and no class if they are not.
    """
    if level != "node":
        return {"root": "phb", "switch": "pxb"}[level]
    roots = all(isinstance(b.item, Place) and b.item.kind == "root" for b in box.boxes)
    known = isinstance(box.item, Home) and box.item.number is not None
    return "node-line" if known and roots and box.boxes else "plain"


def rect(box: Box, style: str, radius: float) -> str:
    """A box's outline."""
    return (
        f'<rect class="{style}" x="{box.x:.1f}" y="{box.y:.1f}" width="{box.width:.1f}" '
        f'height="{box.height:.1f}" rx="{radius:g}"/>'
    )


def line(x1: float, y1: float, x2: float, y2: float, style: str, width: float) -> str:
    """A straight line."""
    return (
        f'<line class="{style}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" '
        f'stroke-width="{width:g}"/>'
    )


def text(x: float, y: float, words: str, style: str, *, anchor: str = "start") -> str:
    """One line of text."""
    where = "" if anchor == "start" else f' text-anchor="{anchor}"'
    return f'<text class="{style}" x="{x:.1f}" y="{y:.1f}"{where}>{attribute(words)}</text>'
