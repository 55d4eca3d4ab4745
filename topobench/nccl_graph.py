"""
NCCL's graph files: read NCCL's own dump, permute it, write what it may be given; pure.

``NCCL_GRAPH_FILE`` is the one way to give NCCL a ring order. NCCL reads it with a parser of its
own and falls back to its own search, or overwrites memory, where a file is wrong in certain
ways; so everything it would not refuse by itself is refused here, before a process starts.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from topobench.errors import ImportFailed

RING, TREE, NVLS = 0, 1, 3
"""Ids of graphs; NCCL takes the smaller channel count of the first two for both. Of the last it
reads one GPU a channel."""
PATTERNS = {RING: (4,), TREE: (1, 2, 3), 2: (1, 2, 3), 3: (5,), 4: (6,)}
"""Id -> patterns; those above the tree are of collectives in the network and the NVSwitch."""
TYPES = ("LOC", "NVL", "NVB", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS")
"""Path types that NCCL reads; it takes any other for LOC without a word."""
MAX_CHANNELS = 32
"""NCCL repeats a file's channels once without a look at its 64 places."""
LONGEST_VALUE = 255
MAX_TEXT = 4 << 20

_ROOT = "graphs"
_ATTRIBUTES = (
    "id",
    "pattern",
    "crossnic",
    "nchannels",
    "speedintra",
    "speedinter",
    "latencyinter",
    "typeintra",
    "typeinter",
    "samechannels",
)
_TAG = re.compile(r'<(/?)([a-z]+)((?: [a-z]+="[^"<>\n]*")*)(/?)>')
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_ATTRIBUTE = re.compile(r' ([a-z]+)="([^"]*)"')
_REAL = re.compile(r"-?[0-9]+(\.[0-9]*)?([eE][-+]?[0-9]+)?")
_DEVICE = re.compile(r"[0-9]|0x[0-9a-f]{1,16}")


@dataclass(frozen=True, slots=True)
class Graph:
    """
    One graph: how the GPUs of a host are joined, channel by channel.

    Args:
        id: 0 ring, 1 tree, 2 collnet chain, 3 NVLS, 4 collnet direct.
        settings: NCCL's other attributes as they stand in the file, in its order.
        channels: NVML indices of the GPUs, in order; of a ring the last joins the first.
        nets: Of each channel the network devices around its GPUs; empty on one host.
    """

    id: int
    settings: Mapping[str, str]
    channels: tuple[tuple[int, ...], ...]
    nets: tuple[tuple[int, ...], ...]


def parse(text: str) -> tuple[Graph, ...]:
    """
    Read a graph file as strictly as NCCL's own parser needs it.

    ``rank`` of a GPU, which NCCL writes from 2.30 on, is left out: it holds for one node only.

    Raises:
        ImportFailed: NCCL could not read it, or would silently take it for another.
    """
    tags = _tags(text)
    _, name, attributes = _next(tags)
    if name != _ROOT:
        raise _bad(f"the first tag is <{name}>, not <{_ROOT}>: NCCL would ignore the file")
    if attributes.get("version") != "1":
        raise _bad(f"version is {attributes.get('version')!r}; NCCL reads version 1")
    graphs = []
    while (tag := _next(tags))[:2] != ("/", _ROOT):
        graphs.append(_graph(tag, tags))
    if left := next(tags, None):
        raise _bad(f"<{left[1]}> stands after </{_ROOT}>")
    return tuple(graphs)


def render(graphs: Sequence[Graph]) -> str:
    """Graphs as NCCL writes and reads them."""
    lines = ['<graphs version="1">']
    for graph in graphs:
        settings = "".join(f' {key}="{value}"' for key, value in graph.settings.items())
        head = f'  <graph id="{graph.id}"{settings}'
        if not graph.channels:
            lines.append(f"{head}/>")
            continue
        lines.append(f"{head}>")
        for gpus, nets in zip(graph.channels, graph.nets, strict=True):
            ends = [f'      <net dev="{_hex(net)}"/>' for net in nets]
            inner = [f'      <gpu dev="{_hex(dev)}"/>' for dev in gpus]
            lines += ["    <channel>", *ends[:1], *inner, *ends[1:], "    </channel>"]
        lines.append("  </graph>")
    return "\n".join([*lines, "</graphs>", ""])


def check(
    graphs: Sequence[Graph], devices: Sequence[int], *, cross_nic: bool = True, own: bool = True
) -> None:
    """
    Refuse what NCCL would handle silently or wrongly when it is given these graphs.

    Args:
        devices: NVML indices of the GPUs that take part on the host.
        cross_nic: False where ``NCCL_CROSS_NIC=0`` is set.
        own: Made by us. Those of others may have more graphs, and unlike numbers of rings and
            trees, of which NCCL takes the first ones.

    Raises:
        ImportFailed: One sentence on what is wrong and what NCCL would do.
    """
    ids = [graph.id for graph in graphs]
    for wanted, kind in ((RING, "ring"), (TREE, "tree")):
        if ids.count(wanted) != 1:
            raise _bad(
                f"graph {wanted} ({kind}) is there {ids.count(wanted)} times; NCCL needs it "
                "exactly once, or takes its own search for it"
            )
    others = [graph for graph in graphs if graph.id not in (RING, TREE)]
    if others and own:
        told = ", ".join(str(graph.id) for graph in others)
        raise _bad(f"only graphs 0 and 1 may be given; graph {told} is there, too")
    for graph in others:
        if graph.id not in PATTERNS or ids.count(graph.id) > 1:
            raise _bad(f"graph {graph.id} is unknown, or there more than once")
    for graph in graphs:
        if graph.channels or graph.id in (RING, TREE):  # NCCL searches for what has none
            _check_settings(graph, cross_nic=cross_nic)
            _check_channels(graph, devices)
    counts = {graph.id: len(graph.channels) for graph in graphs}
    if own and counts[RING] != counts[TREE]:
        raise _bad(
            f"graph 0 has {counts[RING]} channels and graph 1 has {counts[TREE]}; NCCL would "
            "silently drop those above the smaller number"
        )


def check_ranks(text: str, devices: Sequence[int]) -> None:
    """
    Refuse ranks in a file that are not those of their GPUs: NCCL from 2.30 on believes them.

    Args:
        text: Of a file that :func:`parse` reads.
        devices: NVML index of each rank's GPU.

    Raises:
        ImportFailed: With the first that is another.
    """
    for _, name, attributes in _tags(text):
        if name == "gpu" and "rank" in attributes:
            dev, rank = int(attributes["dev"], 16), _number(attributes["rank"], "rank")
            if rank >= len(devices) or devices[rank] != dev:
                raise _bad(
                    f"dev={attributes['dev']} has rank={rank}, and its GPU has another; NCCL would "
                    "take the rank unseen: leave it out"
                )


def reinjected(graphs: Sequence[Graph]) -> tuple[Graph, ...]:
    """
    What of NCCL's own dump it is given back: the rings and the trees.

    Unchanged, but for channels above the smaller of both counts, which NCCL itself drops.
    """
    kept = [graph for graph in graphs if graph.id in (RING, TREE)]
    count = min((len(graph.channels) for graph in kept), default=0)
    return tuple(
        replace(
            graph,
            settings={**graph.settings, "nchannels": str(count)},
            channels=graph.channels[:count],
            nets=graph.nets[:count],
        )
        for graph in kept
    )


def permuted(graphs: Sequence[Graph], orders: Sequence[Sequence[int]]) -> tuple[Graph, ...]:
    """
    NCCL's own dump with its GPUs in other orders; channels, speeds and types stay.

    Each ring becomes the next of the orders in turn, backwards where NCCL ran it against its
    first ring. The trees, which a ring all-reduce never takes, get the same exchange of GPUs.

    Args:
        orders: NVML indices of the GPUs, one order or several.

    Raises:
        ImportFailed: The dump has no such rings, they are not of these GPUs, or they are too
            few for all orders.
    """
    given = reinjected(graphs)
    check(given, orders[0])
    first = rings(given)[0]
    if len(orders) > len(rings(given)):
        raise _bad(
            f"{len(orders)} orders need as many channels; NCCL found {len(rings(given))} of its own"
        )
    found = []
    for graph in given:
        turns = zip(graph.channels, itertools.cycle(orders), strict=False)
        channels = tuple(
            _along(order, channel, first)
            if graph.id == RING
            else tuple(dict(zip(first, order, strict=True))[dev] for dev in channel)
            for channel, order in turns
        )
        found.append(replace(graph, channels=channels))
    return tuple(found)


def _along(order: Sequence[int], channel: Sequence[int], first: Sequence[int]) -> tuple[int, ...]:
    """An order as a channel runs it."""
    return (order[0], *order[:0:-1]) if _reversed(channel, first) else tuple(order)


def rings(graphs: Sequence[Graph]) -> tuple[tuple[int, ...], ...]:
    """The rings, channel by channel, as NVML indices; empty if there are none."""
    return next((graph.channels for graph in graphs if graph.id == RING), ())


def _hex(number: int) -> str:
    """As NCCL's printf has it: a bare 0 for zero."""
    return f"{number:#x}" if number else "0"


def _reversed(channel: Sequence[int], first: Sequence[int]) -> bool:
    """Whether a channel is the first one backwards; two GPUs have one ring only."""
    start = channel.index(first[0])
    turned = [*channel[start:], *channel[:start]]
    return turned == [first[0], *first[:0:-1]] and turned != list(first)


def _bad(text: str) -> ImportFailed:
    return ImportFailed(f"NCCL graph: {text}")


_Tag = tuple[str, str, dict[str, str]]
"""``""``, ``/`` (closing) or ``/>`` (empty); name; attributes."""


def _tags(text: str) -> Iterator[_Tag]:
    if len(text) > MAX_TEXT:
        raise _bad(f"{len(text)} characters are no graph file")
    if "\t" in text:
        raise _bad("there is a tab, which NCCL's parser takes for a letter")
    at = 0
    while at < len(text):
        if text[at] in " \n\r":
            at += 1
        elif comment := _COMMENT.match(text, at):
            at = comment.end()
        elif tag := _TAG.match(text, at):
            yield _tag(tag)
            at = tag.end()
        else:
            line = text.count("\n", 0, at) + 1
            hint = " (no <?xml ...?> line is allowed)" if text[at : at + 2] == "<?" else ""
            shown = text[at : at + 40].partition("\n")[0]
            raise _bad(f"line {line}: NCCL's parser cannot read {shown!r}{hint}")


def _tag(match: re.Match[str]) -> _Tag:
    closing, name, body, empty = match.groups()
    pairs = _ATTRIBUTE.findall(body)
    attributes = dict(pairs)
    if len(attributes) < len(pairs):
        raise _bad(f"<{name}> names an attribute twice")
    if long := [key for key, value in pairs if len(value) > LONGEST_VALUE]:
        raise _bad(f"{long[0]} of <{name}> is longer than {LONGEST_VALUE} characters")
    if closing and (empty or pairs):
        raise _bad(f"</{name}> is no closing tag")
    return closing or (empty and "/>"), name, attributes


def _next(tags: Iterator[_Tag]) -> _Tag:
    tag = next(tags, None)
    if tag is None:
        raise _bad("the file ends too early; NCCL would take its own search, or fail")
    return tag


def _shown(tag: _Tag) -> str:
    kind, name, _ = tag
    return f"</{name}>" if kind == "/" else f"<{name}{kind or '>'}"


def _graph(tag: _Tag, tags: Iterator[_Tag]) -> Graph:
    kind, name, attributes = tag
    if name != "graph" or kind == "/":
        raise _bad(f"{_shown(tag)} stands where a <graph> is expected")
    if missing := [key for key in _ATTRIBUTES if key not in attributes]:
        raise _bad(f"<graph> lacks {', '.join(missing)}")
    if strange := sorted(attributes.keys() - set(_ATTRIBUTES)):
        raise _bad(f"<graph> has the unknown attribute {strange[0]}")
    settings = {key: attributes[key] for key in attributes if key != "id"}
    number = _number(attributes["id"], "id")
    channels: list[tuple[int, ...]] = []
    nets: list[tuple[int, ...]] = []
    while kind != "/>" and (inner := _next(tags))[:2] != ("/", "graph"):
        gpus, ends = _channel(inner, tags)
        channels.append(gpus)
        nets.append(ends)
    if (told := _number(settings["nchannels"], "nchannels")) != len(channels):
        raise _bad(
            f"graph {number} says nchannels={told} and has {len(channels)}; NCCL would believe "
            "the number and read memory that nobody wrote"
        )
    return Graph(number, settings, tuple(channels), tuple(nets))


def _channel(tag: _Tag, tags: Iterator[_Tag]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    kind, name, attributes = tag
    if name != "channel" or kind == "/" or attributes:
        raise _bad(f"{_shown(tag)} stands where a <channel> is expected")
    parts: list[tuple[str, int]] = []
    while kind != "/>" and (inner := _next(tags))[:2] != ("/", "channel"):
        parts.append(_end(inner))
    gpus = tuple(dev for name, dev in parts if name == "gpu")
    nets = tuple(dev for name, dev in parts if name == "net")
    names = [name for name, _ in parts]
    if nets and names != ["net", *["gpu"] * len(gpus), "net"]:
        raise _bad("a channel's two <net> must stand before and after its GPUs")
    return gpus, nets


def _end(tag: _Tag) -> tuple[str, int]:
    kind, name, attributes = tag
    if kind != "/>" or name not in ("gpu", "net"):
        raise _bad(f"{_shown(tag)} stands where <gpu .../> is expected")
    if strange := sorted(attributes.keys() - {"dev", "rank"}):
        raise _bad(f"<{name}> has the unknown attribute {strange[0]}")
    dev = attributes.get("dev", "")
    if not _DEVICE.fullmatch(dev):
        raise _bad(f"dev={dev!r} of <{name}> is not written as 0x...; NCCL reads it as hexadecimal")
    return name, int(dev, 16)


def _number(text: str, what: str) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", text):
        raise _bad(f"{what}={text!r} is no whole number")
    return int(text)


def _check_settings(graph: Graph, *, cross_nic: bool) -> None:
    where, values = f"graph {graph.id}", graph.settings
    pattern = _number(values["pattern"], "pattern")
    if pattern not in PATTERNS[graph.id]:
        allowed = ", ".join(map(str, PATTERNS[graph.id]))
        raise _bad(f"{where} has pattern {pattern}; it takes {allowed}")
    if not cross_nic and values["crossnic"] == "1":
        raise _bad(f"{where} says crossnic=1 and NCCL_CROSS_NIC=0 is set: NCCL would skip it")
    for key, accepted in (("crossnic", "012"), ("samechannels", "01")):
        if len(values[key]) != 1 or values[key] not in accepted:
            raise _bad(f"{where} has {key}={values[key]!r}; it takes {', '.join(accepted)}")
    for key in ("typeintra", "typeinter"):
        if values[key] not in TYPES:
            raise _bad(
                f"{where} has {key}={values[key]!r}, which NCCL would take for LOC; it takes "
                f"{', '.join(TYPES)}"
            )
    for key in ("speedintra", "speedinter", "latencyinter"):
        value = _real(values[key], key)
        if value < 0 or (value == 0 and key == "speedintra"):
            raise _bad(f"{where} has {key}={values[key]}; NCCL could choose no algorithm")


def _real(text: str, what: str) -> float:
    value = float(text) if _REAL.fullmatch(text) else math.nan
    if not math.isfinite(value):
        raise _bad(f"{what}={text!r} is no number")
    return value


def _check_channels(graph: Graph, devices: Sequence[int]) -> None:
    count = len(graph.channels)
    if not 1 <= count <= MAX_CHANNELS:
        would = "take its own search" if count == 0 else "write beyond its memory"
        raise _bad(f"graph {graph.id} has {count} channels; NCCL would {would}")
    for number, (gpus, nets) in enumerate(zip(graph.channels, graph.nets, strict=True)):
        where = f"channel {number} of graph {graph.id}"
        if nets:
            raise _bad(f"{where} names network devices; all its GPUs are in one host")
        if strange := sorted(set(gpus) - set(devices)):
            raise _bad(f"{where} has the GPU {strange[0]}, which does not take part")
        missing = sorted(set(devices) - set(gpus))
        if missing and graph.id != NVLS:
            raise _bad(f"{where} lacks the GPU {missing[0]}; NCCL would not form a ring")
        if len(gpus) != len(set(gpus)):
            twice = next(dev for dev in gpus if gpus.count(dev) > 1)
            raise _bad(f"{where} has the GPU {twice} twice; NCCL would write beyond its memory")
