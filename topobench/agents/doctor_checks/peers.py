"""Checks on traffic between devices: NVSwitch fabric, GPUDirect RDMA, ACS, IOMMU."""

from __future__ import annotations

from topobench.agents.doctor_checks.common import (
    Outcome,
    Subject,
    check,
    count,
    error,
    ok,
    unknown,
    warn,
)
from topobench.errors import DiscoveryError
from topobench.topology import PciDevice

_DEVICES = "/sys/bus/pci/devices"
_EXTENDED, _ACS = 0x100, 0x000D
_MOST_CAPABILITIES = 96
_REDIRECTS = 0x1C
"""Request, completion and upstream redirection in the ACS control word."""


@check(
    wanted="nv-fabricmanager runs",
    why="without it GPUs behind NVSwitches are not joined: CUDA does not start, or NVLink is off",
)
def fabric_manager(subject: Subject) -> Outcome | None:
    """Whether the switches between GPUs are managed; only where there are any."""
    gpus = subject.gpus
    kinds = {link.remote_kind or "" for g in gpus if g.nvlink for link in g.nvlink.links}
    if not subject.topology.nvswitches and not any("switch" in kind for kind in kinds):
        return None
    if subject.runs_program("nv-fabricmanager"):
        return ok("running")
    states = [g.fabric or "unknown" for g in gpus]
    if states and all(state.startswith("completed") for state in states):
        return ok("not in sight, but every GPU has joined the fabric")
    if not subject.topology.nvswitches or subject.container:
        return unknown(f"it runs outside of what is seen here; fabric: {count(states)}")
    service = "sudo systemctl {} --now nvidia-fabricmanager"
    return error("not running", service.format("enable"), service.format("disable"))


@check(
    wanted="nvidia_peermem loaded, or an open kernel module (dma-buf)",
    why="without either, traffic between a GPU and an RDMA device is copied through host memory",
)
def gpu_direct_rdma(subject: Subject) -> Outcome | None:
    """Whether an RDMA device can reach GPU memory."""
    version = subject.read("/proc/driver/nvidia/version")
    if not subject.gpus or not subject.has_rdma or version is None:
        return None
    if subject.path("/sys/module/nvidia_peermem").is_dir():
        return ok("nvidia_peermem loaded")
    if "Open Kernel Module" in version:
        return ok("open kernel module")
    return warn("neither", "sudo modprobe nvidia_peermem", "sudo modprobe -r nvidia_peermem")


@check(
    wanted="no ACS redirection on the bridges above GPUs",
    why="traffic between devices climbs to the root complex instead of turning at the switch, "
    "or hangs; only a host that passes devices to guests needs it",
)
def pcie_acs(subject: Subject) -> Outcome | None:
    """Whether bridges send traffic between devices up to the root."""
    bridges = _bridges_above_gpus(subject)
    if not bridges or not _has_peers(subject):
        return None
    on = {d.address: _acs_control(subject, d.address) for d in bridges if d.acs == "on"}
    if on:
        return warn(
            f"on at {', '.join(on)}",
            "; ".join(_setpci(a, control & ~_REDIRECTS) for a, control in on.items()),
            "; ".join(_setpci(a, control) for a, control in on.items()),
        )
    if any(d.acs == "unknown" for d in bridges):
        return unknown("only root may read it")
    return ok("off")


def _bridges_above_gpus(subject: Subject) -> list[PciDevice]:
    by_address = {d.address: d for d in subject.topology.pci}
    found: dict[str, PciDevice] = {}
    for gpu in subject.gpus:
        device = by_address.get(gpu.pci_address or "")
        while device and (device := by_address.get(device.parent or "")):
            found[device.address] = device
    return [found[address] for address in sorted(found)]


def _has_peers(subject: Subject) -> bool:
    """Whether there is a second device for a GPU to talk to over PCIe."""
    return len(subject.gpus) > 1 or subject.has_rdma


def _acs_control(subject: Subject, address: str) -> int:
    """
    The ACS control word of a bridge.

    Raises:
        DiscoveryError: The configuration space cannot be read that far.
    """
    data = subject.path(f"{_DEVICES}/{address}/config").read_bytes()
    offset = _EXTENDED
    for _ in range(_MOST_CAPABILITIES):
        header = int.from_bytes(data[offset : offset + 4], "little")
        if header & 0xFFFF == _ACS:
            return int.from_bytes(data[offset + 6 : offset + 8], "little")
        offset = header >> 20
    raise DiscoveryError(f"{address} has ACS on, but its control word could not be read")


def _setpci(address: str, control: int) -> str:
    return f"sudo setpci -s {address} ECAP_ACS+6.w={control:04x}"


@check(
    wanted="no translation for GPUs (iommu=pt, or none)",
    why="every transfer of a GPU is translated, which slows or breaks traffic between devices",
)
def iommu(subject: Subject) -> Outcome | None:
    """Whether the IOMMU stands between a GPU and what it talks to."""
    addresses = [g.pci_address for g in subject.gpus if g.pci_address]
    if not addresses:
        return None
    kinds = {a: subject.read(f"{_DEVICES}/{a}/iommu_group/type") for a in addresses}
    grouped = {d.address for d in subject.topology.pci if d.iommu is not None}
    unread = [a for a, kind in kinds.items() if kind is None and a in grouped]
    if unread:
        return unknown(f"the kind of the IOMMU group of {', '.join(unread)} could not be read")
    translated = [a for a, kind in kinds.items() if kind and kind.startswith("DMA")]
    if not translated:
        return ok(count([kind or "none" for kind in kinds.values()]))
    found = f"translated for {', '.join(translated)}"
    return warn(found, *_boot_option(subject, "iommu=pt"), note="it takes effect at the next start")


def _boot_option(subject: Subject, option: str) -> tuple[str | None, str | None]:
    """The lines that add an option to the kernel's command line and take it away again."""
    if subject.container:
        return None, None  # the host's boot loader is out of reach
    if subject.path("/usr/sbin/grubby").is_file() or subject.path("/sbin/grubby").is_file():
        grubby = "sudo grubby --update-kernel=ALL"
        return f'{grubby} --args="{option}"', f'{grubby} --remove-args="{option}"'
    if not subject.path("/etc/default/grub").is_file():
        return None, None
    edit = "sudo sed -i 's/{}/{}/' /etc/default/grub && sudo update-grub"
    start = '^GRUB_CMDLINE_LINUX="'
    return edit.format(start, f"&{option} "), edit.format(f"{start}{option} ", start[1:])
