"""The machine itself: vendor, kernel, driver, virtualisation, container. No serial numbers."""

from __future__ import annotations

import os
import re

from topobench.agents.discover.tree import Tree
from topobench.topology import Machine

_DMI_KINDS = {
    "QEMU": "kvm",
    "KVM": "kvm",
    "Amazon EC2": "kvm",
    "Google": "kvm",
    "Alibaba Cloud": "kvm",
    "OpenStack": "kvm",
    "DigitalOcean": "kvm",
    "VMware": "vmware",
    "Microsoft Corporation": "hyperv",
    "Xen": "xen",
    "innotek": "virtualbox",
    "Parallels": "parallels",
    "Apple Virtualization": "apple",
}
_CLOCKS = {"kvm-clock": "kvm", "hyperv_clocksource_tsc_page": "hyperv", "xen": "xen"}
_PCI_VENDORS = {"0x1af4": "kvm", "0x1b36": "kvm", "0x15ad": "vmware", "0x1414": "hyperv"}
_CONTAINERS = {
    "kubepods": "kubernetes",
    "docker": "docker",
    "containerd": "containerd",
    "libpod": "podman",
    "lxc": "lxc",
}
"""Marks in the path of our control group."""
_TOLD = "container"
"""Set by podman, lxc and systemd-nspawn to their own names."""


def read_machine(tree: Tree) -> Machine:
    """What the machine is; CUDA is NVML's to tell."""
    info = tree.text("proc/cpuinfo") or ""
    return Machine(
        arch=_arch(tree, info),
        vendor=_dmi(tree, "sys_vendor"),
        product=_dmi(tree, "product_name") or tree.text("proc/device-tree/model"),
        bios=_dmi(tree, "bios_version"),
        kernel=_kernel(tree),
        os=_os_name(tree),
        driver=_driver(tree),
        container=_container(tree),
        iommu=_iommu(tree),
    )


def virtualization(tree: Tree) -> str:
    """
    Kind of hypervisor below: ``none``, ``kvm``, ``vmware`` ...; ``vm`` if it hides its name.

    ``unknown`` where a capture holds neither CPU flags, DMI nor a virtual device.
    """
    if "microsoft" in (_kernel(tree) or "").lower():
        return "wsl"
    if kind := tree.text("sys/hypervisor/type"):
        return kind
    flags = re.search(r"^flags\s*:(.*)$", tree.text("proc/cpuinfo") or "", re.MULTILINE)
    if flags and "fpu" in flags[1].split():  # x86, where every hypervisor sets the flag
        return (_hypervisor(tree) or "vm") if "hypervisor" in flags[1].split() else "none"
    known = _hypervisor(tree)
    return known or ("none" if _dmi(tree, "sys_vendor") or flags else "unknown")


def _iommu(tree: Tree) -> str:
    """Whether the kernel uses an IOMMU; ``unknown`` where a capture kept neither folder."""
    folders = ("sys/class/iommu", "sys/kernel/iommu_groups")
    if any(tree.names(folder) for folder in folders):
        return "on"
    return "off" if any(tree.exists(folder) for folder in folders) else "unknown"


def _hypervisor(tree: Tree) -> str | None:
    """The hypervisor by its clock, its DMI names or its virtual devices."""
    base = "sys/devices/system/clocksource/clocksource0/available_clocksource"
    clocks = (tree.text(base) or "").split()
    found = [_CLOCKS[c] for c in clocks if c in _CLOCKS]
    product = _dmi(tree, "product_name") or ""
    if "metal" not in product:
        names = f"{_dmi(tree, 'sys_vendor')} {product} {_dmi(tree, 'bios_vendor')}"
        found += [kind for text, kind in _DMI_KINDS.items() if text in names]
    devices = "sys/bus/pci/devices"
    vendors = (tree.text(f"{devices}/{n}/vendor") for n in tree.names(devices))
    found += [_PCI_VENDORS[v] for v in vendors if v in _PCI_VENDORS]
    return found[0] if found else None


def _dmi(tree: Tree, name: str) -> str | None:
    for folder in ("sys/class/dmi/id", "sys/devices/virtual/dmi/id"):
        if text := tree.text(f"{folder}/{name}"):
            return text
    return None


def _kernel(tree: Tree) -> str | None:
    if tree.live:
        return os.uname().release
    match = re.match(r"Linux version (\S+)", tree.text("proc/version") or "")
    return tree.text("proc/sys/kernel/osrelease") or (match[1] if match else None)


def _arch(tree: Tree, info: str) -> str | None:
    """The architecture; a capture without it is told by the shape of its cpuinfo."""
    if tree.live:
        return os.uname().machine
    if named := tree.text("proc/sys/kernel/arch"):
        return named
    shapes = {
        r"^flags\s*:.*\blm\b": "x86_64",
        r"^flags\s*:.*\bfpu\b": "i686",
        r"^CPU architecture\s*:\s*8": "aarch64",
        r"^CPU architecture\s*:": "arm",
        r"^cpu\s*:\s*POWER": "ppc64le",
        r"^arch\s*:\s*IA-64": "ia64",
        r"^vendor_id\s*:\s*IBM/S390": "s390x",
    }
    found = (arch for shape, arch in shapes.items() if re.search(shape, info, re.MULTILINE))
    return next(found, None)


def _os_name(tree: Tree) -> str | None:
    text = tree.text("etc/os-release") or tree.text("usr/lib/os-release") or ""
    match = re.search(r'^PRETTY_NAME="?([^"\n]*)"?$', text, re.MULTILINE)
    return match[1] if match else None


def _driver(tree: Tree) -> str | None:
    """Version of the loaded NVIDIA kernel module."""
    text = tree.text("proc/driver/nvidia/version") or ""
    match = re.search(r"^NVRM version:.*?\b(\d{3,}\.\d+(?:\.\d+)*)\b", text, re.MULTILINE)
    return match[1] if match else tree.text("sys/module/nvidia/version")


def _container(tree: Tree) -> str | None:
    """Kind of container this process is in, as far as marks tell."""
    if "KUBERNETES_SERVICE_HOST" in tree.environment:
        return "kubernetes"
    if tree.exists("run/.containerenv"):
        return "podman"
    if tree.exists(".dockerenv"):
        return "docker"
    if told := tree.environment.get(_TOLD):
        return told
    groups = tree.text("proc/self/cgroup") or ""
    return next((name for mark, name in _CONTAINERS.items() if mark in groups), None)
