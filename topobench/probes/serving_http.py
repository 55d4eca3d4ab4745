"""
HTTP/1.1 as far as a client of streams needs it, on the event loop itself.

The client shares CPUs with the server and is in every number, so it has to be cheap: bytes are
timed and handed on in the call that reads them, without a task or a queue between. A general
client takes twice the CPU (docs/serving.md). Framing is in ``serving_framing``.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import re
import socket
import ssl
import time
import urllib.parse
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, cast

from topobench.probes.serving_framing import BadAnswer, Framing, head_of

clock = time.perf_counter
GRACE_SECONDS = 0.01
"""
An answer that said all is waited for so long to end, so that its connection is used again.

After one that took longer the next are not waited for, until one of them was as fast.
"""
LINGER_SECONDS = 1.0
"""An answer that said all may go on aside for so long; then its connection is closed."""
LONGEST_REST = 1 << 20
"""Bytes of such an answer that are read and dropped; and of those that only announce another."""
_LONGEST_HEAD = 1 << 16
_BEGINNING = b"HTTP/1."
_BUFFER_BYTES = 1 << 16
_LOOK_SECONDS = 0.1
"""Between looks for answers that are late; a timer for each request would cost more."""
_IDLE_SECONDS = 4.0
"""Servers close idle connections, many after 5 s; one that is closed must not be met."""


class NotConnected(OSError):
    """No connection could be made; its cause says why."""


class Taker(Protocol):
    """What reads an answer; whatever it raises fails the exchange."""

    def begin(self, status: int, content_type: str) -> None:
        """Take the status and the content type, in small letters and without parameters."""

    def take(self, data: bytes, now: float) -> bool:
        """Take bytes of the body that arrived at a time; true once no more are wanted."""


@dataclass(frozen=True, slots=True)
class Address:
    """
    Where a server is; made by :meth:`parse`.

    Args:
        prefix: Path before ``/v1``, as it stands in a request.
    """

    host: str
    port: int
    tls: bool
    prefix: str

    @property
    def shown(self) -> str:
        """As the header Host has it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.tls else 80) else f"{host}:{self.port}"

    @classmethod
    def parse(cls, base: str) -> Address:
        """
        Read an address.

        Raises:
            ValueError: It names no host, or no port that can be.
        """
        parts = urllib.parse.urlsplit(base)
        if not parts.hostname:
            raise ValueError(f"{base} names no host")
        tls = parts.scheme == "https"
        host = parts.hostname if ":" in parts.hostname else parts.hostname.encode("idna").decode()
        if re.search(r"[\x00-\x20\x7f]", host):
            raise ValueError(f"{base} names no host")
        prefix = urllib.parse.quote(parts.path.rstrip("/"), safe="/%:@!$&'()*+,;=~")
        return cls(host, parts.port or (443 if tls else 80), tls, prefix)


class Pool:
    """
    Connections to one address, as many as are needed at once.

    Args:
        tls: None for plain HTTP.
    """

    def __init__(self, address: Address, tls: ssl.SSLContext | None) -> None:
        self.address = address
        self._tls = tls
        self._idle: list[_Connection] = []
        self._shared = _Shared(self._rested)
        self._busy: set[_Connection] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._found: list[str] = []
        self._turn = 0

    async def exchange(self, request: bytes, taker: Taker, seconds: float) -> float:
        """
        Send a request and hand its answer to ``taker``; when the last byte of it came.

        Args:
            request: Head and body.
            seconds: Time to the end of the answer, the connection's making included.

        Raises:
            NotConnected: No connection.
            TimeoutError: It took longer.
            OSError: The connection ended before the answer.
            BadAnswer: The answer is not HTTP/1.1.
            Exception: What ``taker`` raised.
        """
        deadline = clock() + seconds
        connection = self._take()
        if connection is not None:
            try:
                return await self._on(connection, request, taker, deadline)
            except ConnectionError:
                # Servers close connections that were idle; one may cross with the request.
                if connection.heard:
                    raise
        async with asyncio.timeout(deadline - clock()):
            connection = await self._connect()
        return await self._on(connection, request, taker, deadline)

    async def close(self) -> None:
        """Close every connection."""
        self._idle.clear()
        if self._timer is not None:
            self._timer.cancel()
        for connection in self._shared.open:
            connection.abort()
        while self._shared.open:
            await asyncio.sleep(0)

    async def _on(
        self, connection: _Connection, request: bytes, taker: Taker, deadline: float
    ) -> float:
        connection.deadline = deadline
        self._busy.add(connection)
        if self._timer is None:
            self._look()
        try:
            ended = await connection.exchange(request, taker)
        finally:
            self._busy.discard(connection)
        if connection.reusable:
            self._rested(connection)
        elif connection.ending:
            self._busy.add(connection)
        else:
            connection.abort()
        return ended

    def _rested(self, connection: _Connection) -> None:
        """Its answer is whole: it may be asked again."""
        self._busy.discard(connection)
        connection.idle_since = clock()
        self._idle.append(connection)

    def _look(self) -> None:
        """End the exchanges that are late, now and every so often, while there are any."""
        now = clock()
        for connection in [c for c in self._busy if c.deadline <= now]:
            connection.expire()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(_LOOK_SECONDS, self._look) if self._busy else None

    def _take(self) -> _Connection | None:
        """The connection that was used last, if it is not too old; older ones are closed then."""
        while self._idle:
            connection = self._idle.pop()
            if clock() - connection.idle_since > _IDLE_SECONDS:
                for old in (connection, *self._idle):
                    old.abort()
                self._idle.clear()
            elif connection.reusable:
                return connection
        return None

    async def _connect(self) -> _Connection:
        try:
            hosts = await self._hosts()
        except OSError as error:
            raise NotConnected(str(error)) from error
        loop, failed = asyncio.get_running_loop(), OSError("it has no address")
        for host in hosts:
            try:
                _, connection = await loop.create_connection(
                    lambda: _Connection(self._shared),
                    host,
                    self.address.port,
                    ssl=self._tls,
                    server_hostname=self.address.host if self._tls else None,
                )
                return connection
            except OSError as error:
                failed = error
                if len(self._found) > 1:
                    with contextlib.suppress(ValueError):  # another request dropped it
                        self._found.remove(host)
        raise NotConnected(str(failed)) from failed

    async def _hosts(self) -> list[str]:
        """The addresses of its name, looked up once; each is the first one in its turn."""
        if not self._found:
            loop = asyncio.get_running_loop()
            found = await loop.getaddrinfo(
                self.address.host, self.address.port, type=socket.SOCK_STREAM
            )
            self._found = list(dict.fromkeys(str(info[4][0]) for info in found))
        self._turn += 1
        at = self._turn % len(self._found)
        return self._found[at:] + self._found[:at]


@dataclass(slots=True)
class _Shared:
    """
    What the connections of a pool have in common.

    Args:
        rested: Is told when an answer ended after its exchange.
        buffer: That all of them read into: what was read is taken before another one reads.
            A buffer for each read, as a plain protocol has it, costs more than all else of it.
        open: Those that are not closed.
        prompt: The server's last answer that said all ended within the grace.
    """

    rested: Callable[[_Connection], None]
    buffer: memoryview = field(default_factory=lambda: memoryview(bytearray(_BUFFER_BYTES)))
    open: set[_Connection] = field(default_factory=set)
    prompt: bool = True


class _Connection(asyncio.BufferedProtocol):
    """
    One request after the other; each answer goes to its taker as it comes.

    Attributes:
        heard: A byte of the answer came.
    """

    def __init__(self, shared: _Shared) -> None:
        self._shared = shared
        self._said = 0.0
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._ended: asyncio.Future[float] | None = None
        self._taker: Taker | None = None
        self._framing: Framing | None = None
        self._head = b""
        self._rest = 0
        self._enough = self._keep = False
        self._grace: asyncio.TimerHandle | None = None
        self.heard = False
        self.deadline = math.inf
        self.idle_since = 0.0

    @property
    def reusable(self) -> bool:
        """Whether another request may be sent."""
        whole = self._framing is not None and self._framing.done
        return whole and self._keep and self._lives

    @property
    def ending(self) -> bool:
        """Whether its answer said all, and may end well."""
        return self._enough and self._lives

    @property
    def _lives(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def abort(self) -> None:
        """Close it at once."""
        if self._transport is not None:
            self._transport.abort()

    async def exchange(self, request: bytes, taker: Taker) -> float:
        """See :meth:`Pool.exchange`; until ``deadline``."""
        if self._transport is None:
            raise ConnectionResetError("the connection was closed as soon as it was made")
        self._taker, self._framing, self._head, self._rest = taker, None, b"", 0
        self._enough = self._keep = self.heard = False
        self._ended = self._loop.create_future()
        self._transport.write(request)
        try:
            return await self._ended
        except BaseException:  # a cancelled request's answer must not reach the next one
            self.abort()
            raise
        finally:
            self._taker = self._ended = None
            if self._grace is not None:
                self._grace.cancel()
                self._grace = None

    def expire(self) -> None:
        """It is late: an answer that said all counts, its connection does not."""
        self._fail(TimeoutError())

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Is told by the loop."""
        self._transport = cast(asyncio.Transport, transport)
        self._shared.open.add(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Is asked by the loop: where to read to."""
        return self._shared.buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Is told by the loop: so many bytes came."""
        now = clock()
        data = bytes(self._shared.buffer[:nbytes])
        self.heard = True
        try:
            if self._enough:
                self._end(data, now)
            elif self._taker is None or self._ended is None or self._ended.done():
                raise BadAnswer("bytes that nobody asked for")
            elif (rest := self._begin(data, self._taker)) is not None:
                self._body(rest, self._taker, now)
        except Exception as error:
            self._fail(error)

    def connection_lost(self, error: Exception | None) -> None:
        """Is told by the loop: the connection is closed."""
        self._transport, self._keep = None, False
        self._shared.open.discard(self)
        if error is None and self._framing is not None and self._framing.ends_with_it:
            self._release(clock())
        else:
            text = "the connection was closed before the answer was whole"
            self._fail(error or ConnectionResetError(text))

    def _begin(self, data: bytes, taker: Taker) -> bytes | None:
        """Bytes of the body among those that came; None while the head is not whole."""
        if self._framing is not None:
            return data
        data = self._head + data
        while True:
            end = data.find(b"\r\n\r\n")
            if end < 0:
                _check_beginning(data)
                self._head = data
                return None
            head = head_of(data[:end])
            data = data[end + 4 :]
            if head.status >= 200:
                break
            self._rest += end  # it only announces the answer
            if self._rest > LONGEST_REST:
                raise BadAnswer(f"more than {LONGEST_REST} bytes announce an answer")
        self._framing, self._keep, self._rest = head.framing(), head.keeps, 0
        taker.begin(head.status, head.content_type)
        return data

    def _body(self, data: bytes, taker: Taker, now: float) -> None:
        framing = self._framing
        assert framing is not None
        payload = framing.feed(data)
        self._enough = bool(payload) and taker.take(payload, now)
        if framing.done:
            self._whole(framing, now)
        elif self._enough:
            self._said, self.deadline = now, min(self.deadline, now + LINGER_SECONDS)
            if self._shared.prompt:
                self._grace = self._loop.call_later(GRACE_SECONDS, self._give_up)
            else:
                self._release(now)

    def _end(self, data: bytes, now: float) -> None:
        """Read on to the end of an answer that said all."""
        framing = self._framing
        assert framing is not None
        self._rest += len(data)
        framing.feed(data)
        if framing.done:
            self._shared.prompt = now - self._said <= GRACE_SECONDS
            self._whole(framing, now)
            if self._taker is None and self.reusable:
                self._shared.rested(self)
        elif self._rest > LONGEST_REST:
            raise BadAnswer(f"more than {LONGEST_REST} bytes after its end")

    def _give_up(self) -> None:
        """The answer is not waited for any longer."""
        self._shared.prompt = False
        self._release(self._said)

    def _whole(self, framing: Framing, now: float) -> None:
        self._keep = self._keep and not framing.surplus
        self._enough = False
        self._release(now)

    def _release(self, now: float) -> None:
        """The answer counts; its last byte came then."""
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(now)

    def _fail(self, error: Exception) -> None:
        """Close it; the answer counts if it said all."""
        self._keep = False
        if self._enough:
            self._enough = False
            self._release(clock())
        elif self._ended is not None and not self._ended.done():
            self._ended.set_exception(error)
        self.abort()


def _check_beginning(data: bytes) -> None:
    """
    Look at a head that is not whole.

    Raises:
        BadAnswer: It will never be one.
    """
    if not data.startswith(_BEGINNING[: len(data)]):
        raise BadAnswer(f"it begins with {data[:60]!r}")
    if b"\n\n" in data:
        raise BadAnswer("the lines of its head end without a carriage return")
    if len(data) > _LONGEST_HEAD:
        raise BadAnswer(f"a head of more than {_LONGEST_HEAD} bytes")
