"""Tell systemd how a service is: the datagrams of sd_notify(3), without a library."""

from __future__ import annotations

import contextlib
import os
import socket
import time

SOCKET = "NOTIFY_SOCKET"
SETTINGS = (SOCKET, "WATCHDOG_USEC", "WATCHDOG_PID")
"""Variables of the service itself; its children must not have them."""


def notify(*states: str) -> None:
    """Send states such as ``READY=1``; nothing where no supervisor listens."""
    address = os.environ.get(SOCKET, "")
    if not address.startswith(("/", "@")):
        return
    target = "\0" + address[1:] if address.startswith("@") else address
    with (
        contextlib.suppress(OSError),  # a supervisor that went away is no reason to stop
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender,
    ):
        sender.sendto("\n".join(states).encode(), target)


def reloading() -> None:
    """Say that the settings are read again; ``READY=1`` must follow."""
    microseconds = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
    notify("RELOADING=1", f"MONOTONIC_USEC={microseconds}")


def watchdog_seconds() -> float | None:
    """How often the supervisor wants to hear from this process at least; None for never."""
    text, pid = os.environ.get("WATCHDOG_USEC", ""), os.environ.get("WATCHDOG_PID", "")
    if not text.isdecimal() or int(text) == 0 or pid not in ("", str(os.getpid())):
        return None
    return int(text) / 1e6
