"""NCCL's topology files as systems: no more than its oracle needs."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

from topobench.nccl_paths import Device, Net, Switch, System, cpu_gbps, pcie_gbps

_ARCHITECTURES = {"arm64": "aarch64", "ppc64": "ppc64le"}


def read(path: Path) -> System:
    """The system of a topology file."""
    root = ElementTree.fromstring(re.sub(r"^<!--.*?-->", "", path.read_text(), flags=re.DOTALL))
    cpus = root.findall("cpu")
    told = cpus[0].attrib
    arch = told.get("arch")
    vendor = told.get("vendor", "").strip()
    system = System(
        cpus=tuple(f"cpu:{cpu.get('numaid')}" for cpu in cpus),
        cpu_gbps=cpu_gbps(
            _ARCHITECTURES.get(arch or "", arch),
            vendor,
            int(told.get("familyid", "0")),
            int(told.get("modelid", "0")),
        ),
        amd=vendor == "AuthenticAMD",
    )
    for cpu in cpus:
        system = _add(system, cpu, f"cpu:{cpu.get('numaid')}")
    return _named(system)


def _add(system: System, element: ElementTree.Element, parent: str) -> System:
    for nic in element.findall("nic"):
        system = _nets(system, nic, f"card:{parent}", parent, None)
    for pci in element.findall("pci"):
        key = pci.attrib["busid"]
        speed = re.match(r"[\d.]+", pci.get("link_speed", ""))
        gbps = pcie_gbps(float(speed[0]) if speed else None, int(pci.get("link_width") or 0))
        if pci.attrib["class"].startswith("0x0604"):
            switch = Switch(key, parent, gbps, _ids(pci))
            system = _add(replace(system, switches=(*system.switches, switch)), pci, key)
        for gpu in pci.findall("gpu"):
            system = replace(system, gpus=(*system.gpus, _gpu(gpu, key, parent, gbps)))
        for nic in pci.findall("nic"):
            system = _nets(system, nic, key.rpartition(".")[0], parent, gbps)
    return system


def _ids(pci: ElementTree.Element) -> int:
    names = ("vendor", "device", "subsystem_vendor", "subsystem_device")
    return sum(int(pci.get(n, "0"), 16) << 16 * (3 - i) for i, n in enumerate(names))


def _gpu(gpu: ElementTree.Element, key: str, parent: str, gbps: float) -> Device:
    links: dict[str, int] = {}
    for link in gpu.findall("nvlink"):
        switch = link.get("tclass", "").startswith("0x0680")
        target = "nvswitch" if switch else link.attrib["target"]
        links[target] = links.get(target, 0) + int(link.attrib["count"])
    c2c = gpu.find("c2c")
    return Device(
        key,
        parent,
        gbps,
        index=int(gpu.attrib["dev"]),
        compute_capability=int(gpu.attrib["sm"]),
        gdr=gpu.get("gdr") == "1",
        nvlinks=links,
        c2c_gbps=None if c2c is None else int(c2c.attrib["count"]) * int(c2c.attrib["bw"]) / 1000,
    )


def _nets(
    system: System, nic: ElementTree.Element, card: str, parent: str, gbps: float | None
) -> System:
    found = [
        Net(
            f"nic:{net.get('dev')}",
            card,
            parent,
            gbps,
            float(net.get("speed", "10000")) / 8000,
            gdr=net.get("gdr") == "1",
        )
        for net in nic.findall("net")
    ]
    return replace(system, nets=(*system.nets, *found))


def _named(system: System) -> System:
    """GPUs by their number, as the oracle calls them."""
    names = {gpu.key: f"gpu:{gpu.index}" for gpu in system.gpus}
    return replace(
        system,
        gpus=tuple(
            replace(
                gpu,
                key=names[gpu.key],
                nvlinks={names.get(k, k): n for k, n in gpu.nvlinks.items()},
            )
            for gpu in system.gpus
        ),
    )
