"""A graph in Graphviz's language: NUMA nodes as clusters, PCIe links and NVLinks as edges."""

from __future__ import annotations

import re
from collections.abc import Iterator

from topobench.exporters.exported import Exported, printable
from topobench.exporters.fabric import fabric
from topobench.exporters.matrix import link_text
from topobench.exporters.places import Home, Leaf, Place, homes, is_degraded
from topobench.topology import Topology

_SHAPES = {"gpu": "box3d", "nic": "component", "nvme": "cylinder", "nvswitch": "hexagon"}
_RED, _VIOLET, _GREY = "#d7263d", "#8e44ec", "#8a7a6d"


def export(topology: Topology) -> Exported:
    """The graph; ``dot -Tsvg`` draws it."""
    found = homes(topology)
    lines = ["graph topology {", "  graph [rankdir=TB, fontname=Helvetica];"]
    lines += ["  node [fontname=Helvetica, shape=box];", "  edge [fontname=Helvetica];"]
    for home in found:
        lines += _home(home)
    lines += _distances(topology, {h.number for h in found})
    lines += _fabric(topology)
    return Exported("\n".join([*lines, "}"]) + "\n")


def _home(home: Home) -> Iterator[str]:
    key = "unknown" if home.number is None else str(home.number)
    title = "NUMA node unknown" if home.number is None else f"NUMA node {home.number}"
    cpus = f"CPUs {home.node.cpus}" if home.node and home.node.cpus else title
    yield f"  subgraph {quoted(f'cluster_numa_{key}')} {{"
    yield f"    label={quoted(title)};"
    yield f"    {quoted(f'numa:{key}')} [label={quoted(cpus)}, shape=ellipse];"
    yield from _inside(home.place, f"numa:{key}", f"numa:{key}")
    yield "  }"


def _inside(place: Place, above: str, home: str) -> Iterator[str]:
    for leaf in place.leaves:
        label = f"{leaf.name}\\n{leaf.address}" if leaf.address else leaf.name
        yield f"    {quoted(leaf.name)} [label={quoted(label)}, shape={_SHAPES[leaf.kind]}];"
        if leaf.address or place.kind != "node":  # else nobody told where it hangs
            yield f"    {quoted(above)} -- {quoted(leaf.name)}{_link(leaf)};"
    for inner in place.places.values():
        key = f"{home} {inner.kind} {inner.address}"
        name = f"PCIe root {inner.address}" if inner.kind == "root" else f"switch {inner.address}"
        yield f"    {quoted(key)} [label={quoted(name)}];"
        yield f"    {quoted(above)} -- {quoted(key)}{_link(inner)};"
        yield from _inside(inner, key, home)


def _link(end: Leaf | Place) -> str:
    text = link_text(end.link, end.short)
    if text is None:
        return ""
    red = f", color={quoted(_RED)}, fontcolor={quoted(_RED)}, penwidth=3"
    colour = red if is_degraded(end) else ""
    return f" [label={quoted(text)}{colour}]"


def _distances(topology: Topology, shown: set[int | None]) -> Iterator[str]:
    nodes = [n for n in topology.numa_distances.nodes if n in shown]
    for i, a in enumerate(nodes):
        for b in nodes[i + 1 :]:
            label = f"distance {topology.distance(a, b)}"
            style = f"label={quoted(label)}, color={quoted(_GREY)}, style=dashed"
            yield f"  {quoted(f'numa:{a}')} -- {quoted(f'numa:{b}')} [{style}];"


def _fabric(topology: Topology) -> Iterator[str]:
    found = fabric(topology)
    if found.spokes:
        yield f"  {quoted('NVLink fabric')} [shape=hexagon, color={quoted(_VIOLET)}];"
    for name, spoke in found.spokes.items():
        yield f"  {quoted(name)} -- {quoted('NVLink fabric')} [{_nv(spoke.text, spoke.slow)}];"
    for (a, b), count in found.pairs.items():
        yield f"  {quoted(a)} -- {quoted(b)} [{_nv(f'NV{count}', False)}];"


def _nv(text: str, slow: bool) -> str:
    colour = quoted(_RED if slow else _VIOLET)
    return f"label={quoted(text)}, color={colour}, fontcolor={colour}, penwidth=2"


def quoted(text: str) -> str:
    r"""A string of the language: quotes escaped; ``\n`` stays a line break."""
    parts = [printable(part).replace("\\", "/") for part in text.split("\\n")]
    return '"' + "\\n".join(re.sub('"', "'", part) for part in parts) + '"'
