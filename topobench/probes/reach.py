"""
Whether the ranks of a gang over hosts reach each other, asked before a library waits in vain.

Firewalls often let packets through in one direction. So every other rank calls rank 0, and rank 0
calls every other, on ports that each opened for it.
"""

from __future__ import annotations

import contextlib
import datetime
import socket
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from topobench.errors import ProbeError
from topobench.reading import ReasonCode

CALL_SECONDS = 5.0
_LATE = datetime.timedelta(seconds=120)
"""A host whose torch is not in its page cache yet may come so much later than others."""
_CALLS_AT_ONCE = 32
_MENDING = (
    "open the hosts' ports to each other, both ways, or name another interface: "
    "env: {GLOO_SOCKET_IFNAME: ..., NCCL_SOCKET_IFNAME: ...}"
)


def require(rank: int, own: str, other: int, address: str, port: int) -> None:
    """As :func:`connect`, without the connection."""
    connect(rank, own, other, address, port).close()


def connect(rank: int, own: str, other: int, address: str, port: int) -> socket.socket:
    """
    Call another rank.

    Args:
        own: Address of this rank.

    Raises:
        ProbeError: ``unreachable``, with both addresses.
    """
    try:
        return socket.create_connection((address, port), timeout=CALL_SECONDS)
    except OSError as error:
        text = _failed(rank, own, other, (address, port), error)
        raise ProbeError(ReasonCode.UNREACHABLE, f"{text}; {_MENDING}") from error


def require_both_ways(
    store: Any, rank: int, ranks: int, own: str, *, elsewhere: bool = False
) -> None:
    """
    Call rank 0 from every other rank and every other rank from rank 0.

    Args:
        store: Of torch.distributed, joined by all ranks.
        own: Address of this rank.
        elsewhere: Its library talks over another network, of which a call would prove nothing:
            this rank neither calls nor is called.

    Raises:
        ProbeError: ``unreachable``, on every rank, with both addresses of each call that failed.
    """
    with _listening(own, ranks) as port:
        store.set(f"reach/{rank}", "" if elsewhere else f"{own} {port}")
        if rank:
            found = "" if elsewhere else _call_known(store, rank, own, 0)
            store.set(f"reached/{rank}", found)
        else:
            called = () if elsewhere else range(1, ranks)
            store.set("reached", "; ".join(_gathered(store, ranks, own, called)))
        failed = _told(store, "reached")
    if failed:
        raise ProbeError(ReasonCode.UNREACHABLE, f"{failed}; {_MENDING}")


def _gathered(store: Any, ranks: int, own: str, called: Iterable[int]) -> Iterator[str]:
    with ThreadPoolExecutor(_CALLS_AT_ONCE) as pool:
        here = list(pool.map(lambda other: _call_known(store, 0, own, other), called))
    there = [_told(store, f"reached/{other}") for other in range(1, ranks)]
    return (text for text in (*here, *there) if text)


def _call_known(store: Any, rank: int, own: str, other: int) -> str:
    address, _, port = _told(store, f"reach/{other}").partition(" ")
    return _call(rank, own, other, address, int(port)) if address else ""


def _told(store: Any, key: str) -> str:
    store.wait([key], _LATE)
    return str(store.get(key).decode())


def _call(rank: int, own: str, other: int, address: str, port: int) -> str:
    """Why a call came to nothing; empty if it did not."""
    try:
        socket.create_connection((address, port), timeout=CALL_SECONDS).close()
    except OSError as error:
        return _failed(rank, own, other, (address, port), error)
    return ""


def _failed(rank: int, own: str, other: int, at: tuple[str, int], error: OSError) -> str:
    why = error.strerror or str(error) or type(error).__name__
    return f"rank {rank} ({own}) cannot reach rank {other} ({at[0]} port {at[1]}): {why}"


@contextlib.contextmanager
def _listening(address: str, calls: int) -> Iterator[int]:
    """A port on which calls of others are answered by the kernel."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        listener = socket.create_server((address, 0), family=family, backlog=max(128, calls))
    except OSError as error:
        text = f"this rank cannot listen on {address}: {error.strerror}"
        raise ProbeError(ReasonCode.UNSUPPORTED, text) from error
    with listener:
        yield int(listener.getsockname()[1])
