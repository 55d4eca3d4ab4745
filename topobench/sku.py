"""
What was bought, named from discovery: GPUs with their form factor, CPUs, NICs. Pure.

A name does not move when a link degrades: of NICs of one model the fastest rate counts.
"""

from __future__ import annotations

import collections
import re
from collections.abc import Iterable

from topobench.topology import Nic, Topology

_FORM_FACTORS = (
    (r"SXM\d?\b", "SXM"),
    (r"\bPCI-?E\b", "PCIe"),
    (r"\bNVL\b", "NVL"),
    (r"\b(?:HBM3e?|H200|H20|H800|B[23]00|A800-SXM\d?)\b", "SXM"),
    (r"\bG[HB][23]00\b", "superchip"),
    (r"\b(?:A2|A10G?|A16|A30|A40|L4|L40S?|T4|RTX|GeForce|Quadro)\b", "PCIe"),
)
"""Pattern in NVML's name of a GPU -> how it sits in the host, first that is found."""

_MELLANOX = "0x15b3"
_NIC_MODELS = {
    "0x1013": "CX4",
    "0x1015": "CX4-Lx",
    "0x1017": "CX5",
    "0x1019": "CX5-Ex",
    "0x101b": "CX6",
    "0x101d": "CX6-Dx",
    "0x101f": "CX6-Lx",
    "0x1021": "CX7",
    "0x1023": "CX8",
    "0xa2d6": "BF2",
    "0xa2dc": "BF3",
}
"""PCI device of Mellanox -> short name (PCI ID database, pci.ids)."""
_EFA = re.compile(r"0xefa[0-9a-f]$")
_AMAZON = "0x1d0f"


def sku_name(topology: Topology) -> str:
    """
    A name for what was bought, derived from discovery.

    "8x H200-SXM / 2x Xeon 8480C / 8x CX7-400"; a host without GPUs starts with its CPUs, a
    NIC of no model we know is told by its rate ("8x 400 Gb/s").
    """
    parts = []
    models = collections.Counter(gpu_name(g.model) for g in topology.gpus if not g.is_slice)
    parts += [f"{n}x {m}" for m, n in sorted(models.items())]
    if topology.cpus.model:
        parts.append(f"{topology.cpus.packages or 1}x {cpu_name(topology.cpus.model)}")
    nics = collections.Counter(nic_names(topology).values())
    parts += [f"{n}x {name}" for name, n in sorted(nics.items(), key=_fastest_first)]
    return " / ".join(parts) or "unknown"


def form_factor(model: str | None) -> str | None:
    """``SXM``, ``PCIe``, ``NVL``, ``superchip``, or None where NVML's name does not tell."""
    for pattern, found in _FORM_FACTORS:
        if model and re.search(pattern, model, re.IGNORECASE):
            return found
    return None


def gpu_name(model: str | None) -> str:
    """``H200-SXM`` of "NVIDIA H200", ``A100-SXM 80GB`` of "NVIDIA A100-SXM4-80GB"."""
    text = re.sub(r"\b(?:NVIDIA|Tesla|GeForce)\s+", "", model or "unknown GPU")
    text = re.sub(r"[\s-]+(?:SXM\d?|PCI-?E|HBM\d?e?)(?=$|[\s-])", "", text, flags=re.IGNORECASE)
    text = text.replace("-", " ") if re.search(r"-\d+GB$", text) else text
    found = form_factor(model)
    shown = found is not None and found not in ("superchip", "NVL") and not _only_pcie(text)
    family, _, rest = text.strip().partition(" ")
    return " ".join(filter(None, (f"{family}-{found}", rest))) if shown else text.strip()


def _only_pcie(name: str) -> bool:
    """Of a GPU that there is in one form only, the form says nothing."""
    return re.search(_FORM_FACTORS[-1][0], name) is not None


def cpu_name(model: str) -> str:
    """``Xeon 8480C`` of "Intel(R) Xeon(R) Platinum 8480C", ``EPYC 9654`` of AMD's name."""
    text = re.sub(r"\((R|TM)\)|CPU|Processor|\d+-Core|@.*$", " ", model, flags=re.IGNORECASE)
    text = re.sub(r"^\s*(Intel|AMD)\b", "", text)
    text = re.sub(r"\b(?:Platinum|Gold|Silver|Bronze)(?=\s+\S*\d)", "", text)
    return " ".join(text.split())


def nic_names(topology: Topology) -> dict[str, str]:
    """``CX7-400`` of each NIC by its name; one of no known model and rate is left out."""
    models = {n.name: _nic_model(topology, n) for n in topology.nics}
    named: dict[str, str] = {}
    for nic in topology.nics:
        model = models[nic.name]
        if model is None:
            rate = _gigabits([nic])
            if rate:
                named[nic.name] = f"{rate} Gb/s"
            continue
        rate = _gigabits(n for n in topology.nics if models[n.name] == model)
        named[nic.name] = f"{model}-{rate}" if rate else model
    return named


def _nic_model(topology: Topology, nic: Nic) -> str | None:
    device = next((d for d in topology.pci if d.address == nic.pci_address), None)
    if device is None or device.vendor is None or device.device is None:
        return None
    if device.vendor == _AMAZON and _EFA.match(device.device):
        return "EFA"
    return _NIC_MODELS.get(device.device) if device.vendor == _MELLANOX else None


def _gigabits(nics: Iterable[Nic]) -> int:
    """The fastest rate of some NICs; 0 if none is known."""
    rates = [n.rate_bytes_per_second for n in nics if n.rate_bytes_per_second]
    return round(max(rates, default=0.0) * 8 / 1e9)


def _fastest_first(named: tuple[str, int]) -> tuple[int, str]:
    rates = re.findall(r"\d+", named[0])
    return -int(rates[-1]) if rates else 0, named[0]
