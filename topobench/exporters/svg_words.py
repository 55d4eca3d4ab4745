"""Words and colours of the picture."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from topobench.exporters.places import Home, Leaf, is_degraded
from topobench.links import Shortfall
from topobench.topology import Gpu, Nic, NodeKind, NumaNode, Nvme, PciLink, Topology
from topobench.units import format_bytes, format_rate

Words = Iterator[tuple[str, str]]
"""Lines of text with their styles."""

LEGEND = (
    ("pix", "PIX: one switch"),
    ("pxb", "PXB: several switches"),
    ("phb", "PHB: one host bridge"),
    ("node-line", "NODE: host bridges of a NUMA node"),
    ("sys", "SYS: between NUMA nodes, with their distance"),
    ("nv", "NVLink"),
    ("slow", "below what both ends can do"),
)

STYLE = """
text{font-family:system-ui,-apple-system,"Segoe UI",Roboto,Helvetica,Arial,sans-serif}
text{font-size:12px;fill:#1c2430}
.title{font-size:19px;font-weight:700}.strong{font-weight:700;font-size:13px}
.small{font-size:11px}.faint{fill:#5d6877}.red{fill:#c81e35;font-weight:700}
.violet{fill:#7a2fd6;font-weight:700}.on-violet{fill:#fff;font-weight:700}
.paper{fill:#fff}.node{fill:#eef2f7;stroke:#aab6c5;stroke-width:1.5}
.lost{stroke-dasharray:6 4;stroke:#c79a00}
.root{fill:#fff;stroke:#c5ced9}.switch{fill:#f4f8f1;stroke:#a9c49a}
.leaf{stroke-width:1.2}.gpu{fill:#dff3e4;stroke:#2e9e5b}.nic{fill:#dcebfb;stroke:#3b7dc4}
.nvme{fill:#efeae4;stroke:#9c8b76}.nvswitch{fill:#efe3fc;stroke:#8e44ec}
.fabric{fill:#8e44ec}
line,path{fill:none;stroke-linecap:round}
.pix{stroke:#2e9e5b}.pxb{stroke:#9bb51c}.phb{stroke:#d3a400}.node-line{stroke:#e07a1f}
.plain{stroke:#aab6c5}.sys{stroke:#8a7a6d}.nv{stroke:#8e44ec}.slow{stroke:#d7263d}
@media (prefers-color-scheme:dark){
text{fill:#e4e9f0}.faint{fill:#97a3b3}.red{fill:#ff6b7d}.violet{fill:#c79bff}.on-violet{fill:#fff}
.paper{fill:#12161c}.node{fill:#1b222c;stroke:#4a5667}.lost{stroke:#d3a400}
.root{fill:#151b23;stroke:#3d4856}.switch{fill:#18231c;stroke:#48643f}
.gpu{fill:#173524;stroke:#3fbf74}.nic{fill:#152c45;stroke:#5a9fe6}
.nvme{fill:#2c2720;stroke:#a8967f}.nvswitch{fill:#2a1c40;stroke:#a66bf5}
.sys{stroke:#a89789}.slow{stroke:#ff4d63}}
""".replace("\n", "")


_SIZES = {"title": 19.0, "strong": 13.0, "small": 11.0}
"""Pixels of letters, by style; others have 12."""


def title_lines(topology: Topology) -> Words:
    """What the host is, in two lines; no name and no serial number."""
    models = Counter((g.model or "GPU of unknown model") for g in topology.gpus if not g.is_slice)
    parts = [f"{n} x {model}" for model, n in models.items()] or ["no GPU"]
    nodes = len(topology.cpu_nodes)
    parts.append(f"{nodes} NUMA node{'s' * (nodes != 1)}" if nodes else "NUMA nodes unknown")
    if topology.nics:
        parts.append(f"{len(topology.nics)} NIC{'s' * (len(topology.nics) != 1)}")
    yield " · ".join(parts), "title"
    machine, cpus = topology.machine, topology.cpus
    driver = f"driver {machine.driver}" if machine.driver else None
    guest = topology.virtualization
    more = [machine.vendor, machine.product, cpus.model, machine.kernel, driver]
    more.append(None if guest in ("none", "unknown") else f"guest of {guest}")
    yield " · ".join(m for m in [*more, topology.taken_at] if m), "faint"


def node_lines(home: Home) -> Words:
    """A NUMA node's title, CPUs and memory."""
    node = home.node
    if home.number is None:
        yield "NUMA node unknown", "strong"
        return
    memory = f" · {format_bytes(node.memory_bytes)}" if node and node.memory_bytes else ""
    yield f"NUMA node {home.number}{memory}", "strong"
    if node is None:
        yield "the kernel shows nothing of it", "small red"
        return
    allowed = "" if node.allowed else " (not allowed here)"
    yield f"CPUs {node.cpus or 'none'}{allowed}", "small"


def leaf_lines(leaf: Leaf) -> Words:
    """Name, what it is, and its link."""
    item = leaf.item
    if isinstance(item, Gpu):
        yield _gpu_name(item), "strong"
        yield from _gpu_line(item)
    elif isinstance(item, Nic):
        yield item.name, "strong"
        yield from _nic_line(item)
    elif isinstance(item, Nvme):
        yield item.name, "strong"
        yield item.model or "NVMe", "small faint"
    else:
        yield "NVSwitch", "strong"
        yield item, "small faint"
    if words := link_words(leaf.link, leaf.short):
        yield words, "small red" if is_degraded(leaf) else "small faint"
    elif leaf.address:
        yield leaf.address, "small faint"


def _gpu_name(gpu: Gpu) -> str:
    return f"GPU {gpu.index}" if gpu.index is not None else "GPU"


def _gpu_line(gpu: Gpu) -> Words:
    if gpu.state not in ("ok", "unknown"):
        yield f"state {gpu.state}", "small red"
    elif gpu.model:
        yield gpu.model.removeprefix("NVIDIA ").removeprefix("Tesla "), "small"
    else:
        yield (f"CPUs {gpu.cpus}" if gpu.cpus else gpu.pci_address or ""), "small faint"


def _nic_line(nic: Nic) -> Words:
    rate = nic.rate_bytes_per_second
    speed = f"{rate * 8 / 1e9:g} Gb/s" if rate else ""
    words = f"{speed} {nic.link_layer or ''}".strip()
    if nic.state not in ("active", None):
        yield f"{nic.state} {words}".strip(), "small red"
    else:
        yield words or "NIC", "small"


def link_words(link: PciLink | None, short: Shortfall | None) -> str | None:
    """``32 GT/s x16``; of a link that could do more, that too: ``32 GT/s x8 of x16``."""
    if link is None:
        return None
    if link.speed_gts and link.width:
        return _words(link.speed_gts, link.width, short)
    if link.max_speed_gts and link.max_width:
        return f"up to {link.max_speed_gts:g} GT/s x{link.max_width}"
    return format_rate(link.bytes_per_second) if link.bytes_per_second else None


def _words(speed: float, width: int, short: Shortfall | None) -> str:
    """Short enough for a device's box."""
    fastest = short.fastest if short and not (short.may_rest and short.widest) else None
    widest = short.widest if short else None
    if fastest and widest:
        return f"{speed:g} x{width} of {fastest:g} GT/s x{widest}"
    if fastest:
        return f"{speed:g} of {fastest:g} GT/s x{width}"
    return f"{speed:g} GT/s x{width}" + (f" of x{widest}" if widest else "")


def memory_line(node: NumaNode, topology: Topology) -> str:
    """A node without CPUs: what it is, and how large."""
    size = f", {format_bytes(node.memory_bytes)}" if node.memory_bytes else ""
    if node.kind == NodeKind.GPU:
        owner = next((g for g in topology.gpus if node.gpu in (g.key, g.pci_address)), None)
        return f"{node.id}: memory of {_gpu_name(owner) if owner else 'a GPU'}{size}"
    return f"{node.id}: {'empty' if node.kind == NodeKind.EMPTY else 'memory alone'}{size}"


def width_of(words: str, style: str) -> float:
    """Pixels that a text takes in a wide font; narrower fonts leave some free."""
    size = next((_SIZES[part] for part in style.split() if part in _SIZES), 12.0)
    bold = 1.12 if {"title", "strong", "red", "violet", "on-violet"} & set(style.split()) else 1.0
    return sum(_share(letter) for letter in words) * size * bold


def _share(letter: str) -> float:
    if letter in "_@%mwMW":
        return 0.92
    if letter in " .,:;|il/·":
        return 0.34
    return 0.7 if letter.isupper() else 0.63


def clipped(words: str, width: float, style: str) -> str:
    """Text cut to a width in pixels."""
    if width_of(words, style) <= width:
        return words
    shown = len(words)
    while shown > 1 and width_of(f"{words[:shown]}…", style) > width:
        shown -= 1
    return f"{words[:shown]}…"
