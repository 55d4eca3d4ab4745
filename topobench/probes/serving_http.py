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
from dataclasses import dataclass
from typing import Protocol, cast

from topobench.probes.serving_framing import BadAnswer, Framing, head_of

clock = time.perf_counter
LINGER_SECONDS = 1.0
"""An answer that said all may go on for so long; then its connection is closed."""
LONGEST_REST = 1 << 20
"""Bytes of such an answer that are read and dropped."""
_LONGEST_HEAD = 1 << 16
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
        self._open: set[_Connection] = set()
        self._busy: set[_Connection] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._buffer = memoryview(bytearray(_BUFFER_BYTES))
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
        connection = self._take()
        if connection is None:
            began = clock()
            async with asyncio.timeout(seconds):
                connection = await self._connect()
            seconds -= clock() - began
        connection.deadline = clock() + seconds
        self._busy.add(connection)
        if self._timer is None:
            self._look()
        try:
            ended = await connection.exchange(request, taker)
        finally:
            self._busy.discard(connection)
        if connection.reusable:
            connection.idle_since = ended
            self._idle.append(connection)
        else:
            connection.abort()
        return ended

    async def close(self) -> None:
        """Close every connection."""
        self._idle.clear()
        if self._timer is not None:
            self._timer.cancel()
        for connection in self._open:
            connection.abort()
        while self._open:
            await asyncio.sleep(0)

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
                    lambda: _Connection(self._open, self._buffer),
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


class _Connection(asyncio.BufferedProtocol):
    """
    One request after the other; each answer goes to its taker as it comes.

    Args:
        buffer: That all connections read into: what was read is taken before another one reads.
            A buffer for each read, as a plain protocol has it, costs more than all else of it.
    """

    def __init__(self, open_: set[_Connection], buffer: memoryview) -> None:
        self._open = open_
        self._buffer = buffer
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._ended: asyncio.Future[float] | None = None
        self._taker: Taker | None = None
        self._framing: Framing | None = None
        self._head = b""
        self._rest = 0
        self._enough = self._keep = False
        self.deadline = math.inf
        self.idle_since = 0.0

    @property
    def reusable(self) -> bool:
        """Whether another request may be sent."""
        return self._keep and self._transport is not None and not self._transport.is_closing()

    def abort(self) -> None:
        """Close it at once."""
        if self._transport is not None:
            self._transport.abort()

    async def exchange(self, request: bytes, taker: Taker) -> float:
        """See :meth:`Pool.exchange`; until ``deadline``."""
        if self._transport is None:
            raise ConnectionResetError("the connection was closed as soon as it was made")
        self._taker, self._framing, self._head, self._rest = taker, None, b"", 0
        self._enough = self._keep = False
        self._ended = self._loop.create_future()
        self._transport.write(request)
        try:
            return await self._ended
        except BaseException:  # a cancelled request's answer must not reach the next one
            self.abort()
            raise
        finally:
            self._taker = self._ended = None

    def expire(self) -> None:
        """It is late: an answer that said all counts, its connection does not."""
        if not self._enough:
            self._fail(TimeoutError())
        elif self._ended is not None and not self._ended.done():
            self._keep = False
            self._ended.set_result(clock())

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Is told by the loop."""
        self._transport = cast(asyncio.Transport, transport)
        self._open.add(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Is asked by the loop: where to read to."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Is told by the loop: so many bytes came."""
        now = clock()
        data = bytes(self._buffer[:nbytes])
        taker = self._taker
        if taker is None or self._ended is None or self._ended.done():
            self._keep = False  # bytes that nobody asked for
            self.abort()
            return
        try:
            if self._framing is None:
                rest = self._begin(self._head + data, taker)
                if rest is None:
                    return
                data = rest
            self._body(data, taker, now)
        except Exception as error:
            self._fail(error)

    def connection_lost(self, error: Exception | None) -> None:
        """Is told by the loop: the connection is closed."""
        self._transport, self._keep = None, False
        self._open.discard(self)
        if self._ended is None or self._ended.done():
            return
        if self._enough or (error is None and self._framing and self._framing.ends_with_it):
            self._ended.set_result(clock())
        else:
            text = "the connection was closed before the answer was whole"
            self._fail(error or ConnectionResetError(text))

    def _begin(self, data: bytes, taker: Taker) -> bytes | None:
        """Read the head; the bytes after it, or None if it is not whole yet."""
        while True:
            end = data.find(b"\r\n\r\n")
            if end < 0:
                if len(data) > _LONGEST_HEAD:
                    raise BadAnswer(f"a head of more than {_LONGEST_HEAD} bytes")
                self._head = data
                return None
            head = head_of(data[:end])
            data = data[end + 4 :]
            if head.status >= 200:  # others come before the answer
                break
        self._framing, self._keep = head.framing(), head.keeps
        taker.begin(head.status, head.content_type)
        return data

    def _body(self, data: bytes, taker: Taker, now: float) -> None:
        framing = self._framing
        assert framing is not None
        assert self._ended is not None
        payload = framing.feed(data)
        if self._enough:
            self._rest += len(payload)
            if self._rest > LONGEST_REST:
                self.expire()
                return
        elif payload and taker.take(payload, now):
            self._enough = True
            self.deadline = min(self.deadline, now + LINGER_SECONDS)
        if framing.done:
            self._keep = self._keep and not framing.surplus
            self._ended.set_result(now)

    def _fail(self, error: Exception) -> None:
        self._keep = False
        if self._ended is not None and not self._ended.done():
            self._ended.set_exception(error)
