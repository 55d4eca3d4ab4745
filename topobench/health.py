"""
What ails a host's GPUs before anything is measured, and what becomes of them then; pure.

``agents.health`` looks; the planner skips or labels by the rules of the configuration.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from topobench.reading import ReasonCode

RESET = "stop what uses it, then  sudo nvidia-smi --gpu-reset -i {gpu}"
REBOOT = "reboot the host; if it comes back, have the card reseated or replaced"
RESET_ALL = "stop what uses the GPUs, then reset all of them and the switches at once, or reboot"
OFF_THE_BUS = 79
XIDS: Mapping[int, tuple[str, str]] = {
    48: ("uncorrectable memory error", RESET),
    54: ("a power cable is missing", "check the card's power cables, then reboot the host"),
    61: ("internal microcontroller warning", RESET),
    62: ("internal microcontroller halt", RESET),
    64: ("a row remapping could not be recorded", RESET),
    74: ("NVLink error", RESET),
    OFF_THE_BUS: ("it has fallen off the bus", REBOOT),
    95: ("uncontained memory error", RESET),
    109: ("context switch time-out", RESET),
    110: ("security fault", RESET),
    119: ("its system processor does not answer", RESET),
    120: ("error of its system processor", RESET),
    121: ("error on the link to the CPU", RESET),
    140: ("memory error that was not recovered", RESET),
    143: ("it could not be initialised", RESET),
    **dict.fromkeys(range(144, 151), ("NVLink error", RESET)),
}
"""
Xid -> what it says, what mends it, after NVIDIA's catalogue of Xid errors.

Only those that leave a GPU unfit until somebody acts. The others are faults of programs
(13, 31, 43, 45 ...) or are told by counters (63, 92, 94).
"""
_RECOVERY_CHANGED = 154

_XID = re.compile(r"NVRM: Xid \(PCI:([0-9a-fA-F:.]+)\): (\d+)(?:, *(.*))?")
_FATAL_SXID = re.compile(r"SXid \(PCI:([0-9a-fA-F:.]+)\): (\d+), Fatal")
_FALLEN = re.compile(r"NVRM: (?:The NVIDIA )?GPU (?:at PCI:)?([0-9a-fA-F]{4,8}:[0-9a-fA-F:.]+)")
_FALLEN_END = re.compile(r"fallen off the bus")
_LOADED = re.compile(r"NVRM: loading NVIDIA UNIX")
_RECOVERY = re.compile(r"to 0x([0-9a-fA-F]+) \(([^)]*)\)")
_RECORD = re.compile(r"\d+,\d+,(\d+),[^;]*;(.*)")
_PRINTED = re.compile(r"(?:<\d+>)?\[ *(\d+\.\d+)\] (.*)")


class Action(enum.StrEnum):
    """What becomes of a GPU that something is wrong with."""

    SKIP = "skip"
    LABEL = "label"
    OFF = "off"


@dataclass(frozen=True, slots=True)
class Trouble:
    """
    Something wrong with a GPU, or (``device`` None) with what all GPUs of the host hang on.

    Args:
        kind: Field of :class:`Rules` that decides what becomes of it.
        fix: What mends it, for a person or a shell.
        device: Key of the GPU; its PCI address where the driver shows it no more.
        grave: Measuring makes no sense; else it is only ever labelled.
        age_seconds: How long ago, where it is an event; None where it is so now.
    """

    kind: str
    code: ReasonCode
    text: str
    fix: str
    device: str | None = None
    grave: bool = True
    age_seconds: float | None = None

    def __str__(self) -> str:
        return f"{self.text}; {self.fix}"

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Trouble:
        """Read what ``reading.to_json`` wrote."""
        return cls(**{**value, "code": ReasonCode(value["code"])})


@dataclass(frozen=True, slots=True)
class Rules:
    """
    What becomes of what ails; a field for each kind of trouble.

    Args:
        since_seconds: Xid errors longer ago count no more.
    """

    xid: Action = Action.SKIP
    memory: Action = Action.SKIP
    fabric: Action = Action.SKIP
    links: Action = Action.LABEL
    throttle: Action = Action.SKIP
    since_seconds: float = 86400.0

    def of(self, trouble: Trouble) -> Action:
        """What becomes of one."""
        if trouble.age_seconds is not None and trouble.age_seconds > self.since_seconds:
            return Action.OFF
        action: Action = getattr(self, trouble.kind)
        return Action.LABEL if action is Action.SKIP and not trouble.grave else action


STANDARD = Rules()
KINDS = ("xid", "memory", "fabric", "links", "throttle")


def skipping(rules: Rules, troubles: Iterable[Trouble], device: str) -> Trouble | None:
    """The first trouble because of which a GPU is not measured."""
    mine = (t for t in troubles if t.device in (None, device))
    return next((t for t in mine if rules.of(t) is Action.SKIP), None)


def labelled(
    rules: Rules, troubles: Iterable[Trouble], devices: Sequence[str]
) -> Iterator[Trouble]:
    """Troubles to be told with what is measured on these GPUs."""
    for trouble in troubles:
        concerned = trouble.device in devices or (trouble.device is None and devices)
        if concerned and rules.of(trouble) is not Action.OFF:
            yield trouble


@dataclass(frozen=True, slots=True)
class Event:
    """
    An error that the driver wrote to the kernel's log.

    Args:
        at: Seconds since the kernel started.
        address: PCI address as written, in lower case; it may lack the function.
        switch: The address is an NVSwitch's.
    """

    at: float
    xid: int
    address: str
    text: str
    fix: str
    switch: bool = False

    def is_of(self, pci_address: str | None) -> bool:
        """Whether a device's address is the one named."""
        return pci_address is not None and _short(pci_address) == _short(self.address)


@dataclass(slots=True)
class _Log:
    """The events so far, and a message over several lines that has begun."""

    events: list[Event] = field(default_factory=list)
    fallen: str | None = None

    def add(self, at: float, message: str) -> None:
        if _LOADED.search(message):  # the driver began anew, and so did the GPUs
            self.events.clear()
        elif match := _XID.search(message):
            self._xid(at, match[1].lower(), int(match[2]), match[3] or "")
        elif match := _FATAL_SXID.search(message):
            text = f"NVSwitch {match[1].lower()} reported the fatal SXid {match[2]}"
            self.events.append(Event(at, int(match[2]), match[1].lower(), text, RESET_ALL, True))
        elif match := _FALLEN.search(message):
            self.fallen = match[1].lower().rstrip(".")
        if self.fallen and _FALLEN_END.search(message):
            self._xid(at, self.fallen, OFF_THE_BUS, "")
            self.fallen = None

    def _xid(self, at: float, address: str, xid: int, rest: str) -> None:
        if xid == _RECOVERY_CHANGED and (match := _RECOVERY.search(rest)):
            self.events = [e for e in self.events if e.switch or not e.is_of(address)]
            if int(match[1], 16):
                text = f"the driver asks for: {match[2]}"
                fix = REBOOT if "boot" in match[2].lower() else RESET
                self.events.append(Event(at, xid, address, text, fix))
        elif xid in XIDS:
            text, fix = XIDS[xid]
            self.events.append(Event(at, xid, address, text, fix))


def kernel_events(text: str) -> list[Event]:
    """
    Errors of GPUs and NVSwitches since the driver was last loaded, oldest first.

    What a reset took back (Xid 154 to "None") is left out.

    Args:
        text: Of /dev/kmsg, or as dmesg prints it.
    """
    log = _Log()
    for line in text.splitlines():
        if match := _RECORD.match(line):
            log.add(int(match[1]) / 1e6, match[2])
        elif match := _PRINTED.match(line):
            log.add(float(match[1]), match[2])
    return log.events


def _short(address: str) -> str:
    """Domain, bus and device: Xids leave the function out, and write domains in 4 or 8 digits."""
    domain, _, rest = address.lower().partition(":")
    return f"{int(domain, 16):04x}:{rest.partition('.')[0]}"
