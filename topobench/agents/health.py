"""What ails this host's GPUs just now, and what the kernel's log says of them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator

from topobench import health
from topobench.agents.conditions.nvml_counters import GpuReader, Session
from topobench.conditions import reason_names
from topobench.health import REBOOT, RESET, RESET_ALL, Event, Trouble
from topobench.links import shortfalls
from topobench.reading import ReasonCode
from topobench.topology import Gpu, Topology
from topobench.units import format_span

KERNEL_LOG = "/dev/kmsg"
HARDWARE_SLOWDOWN = 0x8 | 0x40 | 0x80
"""Clocks cut by heat or by the power supply; an idle GPU has no reason for them."""
SLOWDOWN_LOOKS, SLOWDOWN_PAUSE_SECONDS = 3, 0.3
_RECOVERY_ACTIONS = {
    1: ("a reset of the GPU", RESET),
    2: ("a reboot of the host", REBOOT),
    3: ("its peers to be drained, then a reset", RESET_ALL),
    4: ("programs to be drained, then a reset", RESET),
    5: ("its IMEX domain to be recovered", "restart nvidia-imex on the hosts of the domain"),
    6: ("a reset of the bus", REBOOT),
    7: ("a reboot of the system", REBOOT),
}
"""NVML's recovery action -> what it asks for; 0 is nothing."""


def look(
    topology: Topology,
    session: Session,
    *,
    log: str = KERNEL_LOG,
    now: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> tuple[tuple[Trouble, ...], dict[str, str]]:
    """
    Everything wrong with the GPUs, the gravest kinds first.

    Args:
        log: The kernel's log, as /dev/kmsg gives it.
        now: Seconds since the kernel started.

    Returns:
        Troubles, and kind -> why it could not be looked at.
    """
    gpus = [g for g in topology.gpus if not g.is_slice]
    if not gpus:
        return (), {}
    unread: dict[str, str] = {}
    events = _events(log, unread)
    readers = {g.key: session.gpu(g.uuid) for g in gpus if g.uuid and g.state == "ok"}
    if session.error is not None:
        unread["nvml"] = session.error
    settled = {key for key, reader in readers.items() if reader.recovery_action() == 0}
    found = [*_of_events(events, gpus, settled, now())]
    for gpu in gpus:
        if gpu.key in readers:
            found += _of_nvml(gpu, readers[gpu.key], sleep)
        found += _of_fabric(gpu)
    return (*found, *_of_links(topology, gpus)), unread


def _events(log: str, unread: dict[str, str]) -> list[Event]:
    try:
        return health.kernel_events(read_log(log))
    except OSError as error:
        unread["xid"] = f"{log}: {error.strerror}"
        return []


def read_log(path: str) -> str:
    """
    All that a kernel log holds now, without waiting for more.

    Raises:
        OSError: It is not there or may not be read.
    """
    records: list[bytes] = []
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        while True:
            try:
                record = os.read(handle, 1 << 16)
            except BlockingIOError:
                break
            except BrokenPipeError:  # overwritten before it was read; the next one is there
                continue
            if not record:
                break
            records.append(record)
    finally:
        os.close(handle)
    return b"".join(records).decode("utf-8", "replace")


def _of_events(
    events: list[Event], gpus: list[Gpu], settled: set[str], now: float
) -> Iterator[Trouble]:
    """The newest event of each kind and device; one that NVML asks nothing for is no obstacle."""
    newest = {(e.address, e.xid): e for e in events}
    for event in newest.values():
        age = max(0.0, now - event.at)
        ago = f"{format_span(age)} ago"
        if event.switch:
            text = f"{event.text}, {ago}"
            yield Trouble("fabric", ReasonCode.FABRIC, text, event.fix, age_seconds=age)
            continue
        gpu = next((g for g in gpus if event.is_of(g.pci_address)), None)
        device = gpu.key if gpu else event.address
        yield Trouble(
            "xid",
            ReasonCode.XID,
            f"{device}: Xid {event.xid} {ago}: {event.text}",
            event.fix.format(gpu=device),
            device,
            grave=device not in settled,
            age_seconds=age,
        )


def _of_nvml(gpu: Gpu, reader: GpuReader, sleep: Callable[[float], None]) -> Iterator[Trouble]:
    reset = RESET.format(gpu=gpu.key)
    action = reader.recovery_action()
    if action:
        wish, fix = _RECOVERY_ACTIONS.get(action, (f"recovery action {action}", reset))
        text = f"the driver asks for {wish} ({gpu.key})"
        yield Trouble("xid", ReasonCode.RESET_NEEDED, text, fix.format(gpu=gpu.key), gpu.key)
    pending, failed = reader.row_remapping()
    if failed:
        text = f"{gpu.key} could not replace a bad memory row"
        yield Trouble("memory", ReasonCode.ROW_REMAP, text, "have it replaced", gpu.key)
    elif pending:
        text = f"{gpu.key} waits for a reset to replace bad memory rows"
        yield Trouble("memory", ReasonCode.ROW_REMAP, text, reset, gpu.key)
    if bad := reader.counters().get("ecc_uncorrected_count"):
        text = f"{gpu.key} had {bad} uncorrectable memory errors since its driver was loaded"
        yield Trouble("memory", ReasonCode.ECC_ERROR, text, reset, gpu.key)
    if reasons := _slowdown(reader, sleep):
        text = (
            f"{gpu.key} is slowed down by {', '.join(reason_names(reasons))}, with or without work"
        )
        fix = "check its cooling, its power cables and the power supplies"
        yield Trouble("throttle", ReasonCode.THROTTLED, text, fix, gpu.key)
    if reader.lost:
        text = f"{gpu.key} does not answer the driver any more"
        yield Trouble("xid", ReasonCode.GPU_LOST, text, REBOOT, gpu.key)


def _slowdown(reader: GpuReader, sleep: Callable[[float], None]) -> int:
    """The hardware's reasons that hold at every look; a moment's is left to the runs to tell."""
    held = HARDWARE_SLOWDOWN
    for number in range(SLOWDOWN_LOOKS):
        if number:
            sleep(SLOWDOWN_PAUSE_SECONDS)
        held &= reader.glance().reasons or 0
        if not held:
            break
    return held


def _of_fabric(gpu: Gpu) -> Iterator[Trouble]:
    fix = "see  systemctl status nvidia-fabricmanager, restart it, then reset the GPUs"
    if gpu.nvlink and gpu.fabric not in (None, "completed"):
        text = f"the registration of {gpu.key} with the NVLink fabric is {gpu.fabric}"
        yield Trouble("fabric", ReasonCode.FABRIC, text, fix, gpu.key)
    elif gpu.fabric_health:
        text = f"the NVLink fabric reports of {gpu.key}: {', '.join(gpu.fabric_health)}"
        yield Trouble("fabric", ReasonCode.FABRIC, text, fix, gpu.key, grave=False)


def _of_links(topology: Topology, gpus: list[Gpu]) -> Iterator[Trouble]:
    """NVLinks that are down, slots below what both ends can do, ports that are down."""
    short = shortfalls(topology.pci, topology.gpus)
    links = {d.address: d.link for d in topology.pci}
    for gpu in gpus:
        nv = gpu.nvlink
        if nv and nv.expected is not None and nv.active < nv.expected:
            text = f"{gpu.key} has {nv.active} of {nv.expected} NVLinks active"
            fix = RESET.format(gpu=gpu.key)
            yield Trouble("links", ReasonCode.DEGRADED_LINK, text, fix, gpu.key)
        found, link = short.get(gpu.pci_address or ""), links.get(gpu.pci_address or "")
        if found and link and found.widest is not None:
            text = f"the slot of {gpu.key} runs at x{link.width} of x{found.widest}"
            fix = "reseat the card, or look at its riser"
            yield Trouble("links", ReasonCode.DEGRADED_LINK, text, fix, gpu.key)
    for nic in topology.nics:
        alike = [n for n in topology.nics if n.rdma and n.link_layer == nic.link_layer]
        up = [n for n in alike if n.state == "active"]
        if nic.rdma and nic.state in ("down", "init") and len(up) * 2 > len(alike):
            others = f"{len(up)} of {len(alike)} such ports are active"
            text = f"the port of nic:{nic.name} is {nic.state}, {others}"
            fix = "check its cable and its switch port"
            yield Trouble(
                "links", ReasonCode.DEGRADED_LINK, text, fix, f"nic:{nic.name}", grave=False
            )
