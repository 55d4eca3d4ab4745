"""
Which process drives a sweep, and whether it is still there (Linux /proc).

A process is known by boot, pid namespace, pid and start time. Of one in another boot or
namespace, which is to say on another machine or in another container, nothing is ever said.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from topobench import processes

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_NAMESPACE = "/proc/self/ns/pid"


@dataclass(frozen=True, slots=True)
class Driver:
    """
    A process that drives a sweep.

    Args:
        host: Name of its machine, for people.
        boot: Id of the boot of its machine.
        namespace: Its pid namespace, as /proc names it.
        start: Clock ticks after boot.
    """

    host: str
    boot: str
    namespace: str
    pid: int
    start: int

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Driver:
        """Read what :meth:`to_json` wrote."""
        return cls(**value)

    def to_json(self) -> dict[str, Any]:
        """As it is stored."""
        return asdict(self)

    @property
    def is_gone(self) -> bool:
        """Whether it surely ended: it ran here, in this boot, and no process is it now."""
        if (self.boot, self.namespace) != _here():
            return False
        found = processes.find(self.pid)
        return found is None or found.start != self.start

    def loss(self, sweep: str) -> str:
        """What to say of a sweep, by its id, that it left behind."""
        return (
            f"driver_gone: sweep {sweep[:8]} says running, but the process that ran it (pid "
            f"{self.pid} on {self.host}) is gone; go on with it: topobench probe --resume "
            f"{sweep[:8]}"
        )


def own_driver() -> Driver | None:
    """This process; None where /proc does not tell."""
    boot, namespace = _here()
    process = processes.find(os.getpid())
    if process is None or not (boot and namespace):
        return None
    return Driver(processes.host_name(), boot, namespace, process.pid, process.start)


def _here() -> tuple[str, str]:
    """Boot and pid namespace of this process, empty where they cannot be told."""
    boot = namespace = ""
    with contextlib.suppress(OSError):
        boot = _BOOT.read_text(encoding="ascii").strip()
    with contextlib.suppress(OSError):
        namespace = os.readlink(_NAMESPACE)
    return boot, namespace
