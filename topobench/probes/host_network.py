"""
The network between two hosts: bandwidth of TCP streams in one direction, and latency.

Plain sockets between two pinned processes; no library, no GPU, no RDMA. Rank 0 leads: it says
over a control connection when a sample begins; whoever sends, times it, from the first byte
sent to the last receiver's word that all has come.
"""

from __future__ import annotations

import contextlib
import functools
import random
import secrets
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from topobench import stats
from topobench.errors import ProbeError, ResultInvalid
from topobench.probes import collective, reach, so_far
from topobench.probes.metrics import BANDWIDTH, LATENCY
from topobench.probes.protocol import Arms, Kind, WorkerContext, parameter
from topobench.probes.timing import Sampler, Timed
from topobench.reading import Metric, Reading, ReasonCode

MIB = 1 << 20
BUDGET_SECONDS = 0.8
LATENCY_SECONDS = 0.2
PING_BYTES = 8
PIECE_BYTES = MIB
"""A stream sends a piece over and over; the receiver keeps the last one to check it."""
MEET_SECONDS = 60.0
_TIME = struct.Struct("!d")
_TOKEN_BYTES = 16
_STOP, _PING, _SEND, _RECEIVE, _BOTH = b"q", b"p", b"s", b"r", b"b"
_SIGNALS = {"out": _RECEIVE, "in": _SEND, "both": _BOTH}
"""What rank 1 is told to do for each direction as rank 0 sees it."""


@dataclass(frozen=True, slots=True)
class HostNetwork:
    """Bandwidth and latency of TCP between the hosts of two ranks."""

    name: ClassVar[str] = "host_network"
    version: ClassVar[int] = 1
    summary: ClassVar[str] = "network bandwidth and latency, pair of hosts x direction"
    needs: ClassVar[frozenset[str]] = frozenset({"hosts>=2"})
    metrics: ClassVar[tuple[Metric, ...]] = (BANDWIDTH, LATENCY)
    arms: ClassVar[Arms] = Arms.HOST_PAIRS

    direction: str = parameter(
        "out",
        kind=Kind.CHOICE,
        choices=("out", "in", "both"),
        help="out: the first host sends; in: the second; both: each to the other at once",
    )
    bytes: int = parameter(
        16 * MIB,
        kind=Kind.BYTES,
        minimum=64 << 10,
        maximum=1 << 34,
        help="payload of a sample and direction, over all streams",
    )
    streams: int = parameter(4, minimum=1, maximum=64, help="TCP connections side by side")

    def measure(self, context: WorkerContext) -> Iterator[Reading]:
        """
        Measure from both hosts; only rank 0 yields readings.

        Raises:
            ProbeError: ``unreachable``: the other host cannot be; ``rank_lost``: it was lost.
            ResultInvalid: ``wrong_data``: a piece arrived changed.
        """
        with _errors_named(), _meet(context, self.streams) as links:
            context.note("interface", links.interface)
            context.note("addresses", [links.own, links.other])
            if context.rank:
                _follow(links, self)
                return
            with so_far.durations(LATENCY.name):
                pings = _timed(lambda: _ping(links), stats.LATENCY_TOLERANCE, LATENCY_SECONDS)
            lead = _Lead(links, self)
            budget = min(BUDGET_SECONDS, context.deadline_seconds / 8)
            moved = float((2 if self.direction == "both" else 1) * _size(self) * self.streams)
            with so_far.rates(BANDWIDTH.name, moved):
                transfers = _timed(lead.sample, stats.BANDWIDTH_TOLERANCE, budget)
            links.control.sendall(_STOP)
            _agree_on_data(links, lead.received, _size(self), True)
            context.note("streams", self.streams)
        yield transfers.rates(BANDWIDTH.name, moved)
        yield pings.durations(LATENCY.name)

    def estimated_seconds(self) -> float:
        """Meeting, pings, samples."""
        return 0.5 + LATENCY_SECONDS + BUDGET_SECONDS


@dataclass(frozen=True, slots=True)
class _Links:
    """The connections of one rank: one for control, the others for data."""

    control: socket.socket
    data: tuple[socket.socket, ...]
    interface: str | None
    own: str
    other: str


class _Lead:
    """Rank 0's end of a sample."""

    def __init__(self, links: _Links, probe: HostNetwork) -> None:
        self._links = links
        self._size = _size(probe)
        self._direction = probe.direction
        self.received = [bytearray(PIECE_BYTES) for _ in links.data]

    def sample(self) -> float:
        """Seconds of one transfer, by the clock of whoever sends; of the slower if both do."""
        signal = _SIGNALS[self._direction]
        self._links.control.sendall(signal)
        own = _transfer(self._links, signal, self._size, self.received, first=True)
        theirs = _TIME.unpack(_exactly(self._links.control, _TIME.size))[0]
        return max(own, float(theirs))


def _follow(links: _Links, probe: HostNetwork) -> None:
    """Rank 1: do what rank 0 says until it says stop."""
    received = [bytearray(PIECE_BYTES) for _ in links.data]
    while (signal := _exactly(links.control, 1)) != _STOP:
        if signal == _PING:
            links.control.sendall(_exactly(links.control, PING_BYTES))
            continue
        took = _transfer(links, signal, _size(probe), received, first=False)
        links.control.sendall(_TIME.pack(took))
    _agree_on_data(links, received, _size(probe), False)


def _size(probe: HostNetwork) -> int:
    """Bytes that each stream sends in a sample."""
    return max(1, probe.bytes // probe.streams)


def _ping(links: _Links) -> float:
    """Half of a round trip, in seconds."""
    began = time.perf_counter()
    links.control.sendall(_PING + bytes(PING_BYTES))
    _exactly(links.control, PING_BYTES)
    return (time.perf_counter() - began) / 2


def _transfer(
    links: _Links, signal: bytes, size: int, received: Sequence[bytearray], *, first: bool
) -> float:
    """
    This rank's part of a sample: send, receive, or both, on all streams at once.

    Returns:
        Seconds from the first byte sent to the last word that all has come; 0 for a receiver.
    """
    sends = signal == _BOTH or (signal == _RECEIVE) is first
    gets = signal == _BOTH or not sends
    work: list[Callable[[], None]] = []
    for number, stream in enumerate(links.data):
        if gets:
            work.append(_receiver(stream, size, received[number]))
        if sends:
            work.append(_sender(stream, size, _pattern(first, number)))
    began = time.perf_counter()
    _side_by_side(work)
    for stream in links.data if gets else ():
        stream.sendall(b"k")
    for stream in links.data if sends else ():
        _exactly(stream, 1)
    return time.perf_counter() - began if sends else 0.0


def _sender(stream: socket.socket, size: int, pattern: bytes) -> Callable[[], None]:
    def send() -> None:
        view, left = memoryview(pattern), size
        while left:
            stream.sendall(view[: min(left, PIECE_BYTES)])
            left -= min(left, PIECE_BYTES)

    return send


def _receiver(stream: socket.socket, size: int, piece: bytearray) -> Callable[[], None]:
    """Each piece lands in the same buffer, so the last whole one can be looked at."""

    def receive() -> None:
        view, left = memoryview(piece), size
        while left:
            wanted = min(left, PIECE_BYTES)
            _fill(stream, view[:wanted])
            left -= wanted

    return receive


def _side_by_side(work: Sequence[Callable[[], None]]) -> None:
    errors: list[BaseException] = []

    def guarded(task: Callable[[], None]) -> None:
        try:
            task()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(t,), daemon=True) for t in work[1:]]
    for thread in threads:
        thread.start()
    guarded(work[0])
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def _timed(sample: Callable[[], float], tolerance: float, seconds: float) -> Timed:
    sampler = Sampler(tolerance, seconds)
    while not sampler.done():
        sampler.add(sample())
    return sampler.timed()


def _agree_on_data(links: _Links, received: Sequence[bytearray], size: int, first: bool) -> None:
    """
    Hold the last pieces against what the other rank sends, on both ranks alike.

    Raises:
        ResultInvalid: A piece is not what was sent, here or there.
    """
    came = any(any(piece) for piece in received)
    bad = [
        number
        for number, piece in enumerate(received)
        if came and piece[:size] != _pattern(not first, number)[:size]
    ]
    links.control.sendall(b"0" if bad else b"1")
    theirs_bad = _exactly(links.control, 1) == b"0"
    if bad or theirs_bad:
        where = f"stream {bad[0]}" if bad else "the other host"
        raise ResultInvalid(ReasonCode.WRONG_DATA, f"a piece arrived changed ({where})")


@functools.cache
def _pattern(first: bool, stream: int) -> bytes:
    """What a rank sends on a stream: never zeros, and different for each."""
    return random.Random(f"{first} {stream}").randbytes(PIECE_BYTES)


@contextlib.contextmanager
def _meet(context: WorkerContext, streams: int) -> Iterator[_Links]:
    """Connect the two ranks; every connection shows the token that rank 0 published."""
    patience = max(10.0, context.deadline_seconds)
    with contextlib.ExitStack() as kept:
        if context.rank == 0:
            sockets = _accept(context, streams + 1, kept)
        else:
            sockets = _connect(context, streams + 1, kept)
        for one in sockets:
            one.settimeout(patience)
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        control = sockets[0]
        own, other = control.getsockname()[0], control.getpeername()
        towards = collective.interface_towards(other[0], other[1])
        yield _Links(control, tuple(sockets[1:]), context.interface or towards, own, other[0])


def _accept(context: WorkerContext, count: int, kept: contextlib.ExitStack) -> list[socket.socket]:
    address = collective.local_address(context.interface)
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    token = secrets.token_bytes(_TOKEN_BYTES)
    found: dict[int, socket.socket] = {}
    until = time.monotonic() + MEET_SECONDS
    with socket.socket(family) as listener:
        listener.bind((address, 0))
        listener.listen(count)
        context.publish(f"{address} {listener.getsockname()[1]} {token.hex()}")
        while len(found) < count:
            listener.settimeout(max(0.1, until - time.monotonic()))
            stream, _ = listener.accept()
            stream.settimeout(5.0)
            shown, number = _exactly(stream, _TOKEN_BYTES), _exactly(stream, 1)[0]
            if shown != token:  # a stranger
                stream.close()
                continue
            found[number] = kept.enter_context(stream)
    return [found[n] for n in range(count)]


def _connect(context: WorkerContext, count: int, kept: contextlib.ExitStack) -> list[socket.socket]:
    address, port, token = context.wait().split()
    towards = collective.interface_towards(address, int(port))
    own = collective.local_address(context.interface or towards)
    sockets = []
    for number in range(count):
        stream = kept.enter_context(reach.connect(context.rank, own, 0, address, int(port)))
        stream.sendall(bytes.fromhex(token) + bytes([number]))
        sockets.append(stream)
    return sockets


@contextlib.contextmanager
def _errors_named() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        what = "gave no answer in time" if isinstance(error, TimeoutError) else str(error)
        raise ProbeError(ReasonCode.RANK_LOST, f"the other host: {what}") from error


def _exactly(stream: socket.socket, size: int) -> bytes:
    found = bytearray(size)
    _fill(stream, memoryview(found))
    return bytes(found)


def _fill(stream: socket.socket, view: memoryview) -> None:
    while view:
        count = stream.recv_into(view)
        if not count:
            raise ConnectionResetError("Connection closed by peer")
        view = view[count:]
