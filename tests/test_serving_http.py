"""The HTTP of the probe serving: framing of answers, and connections to real servers."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topobench.errors import ProbeError
from topobench.probes import serving_client, serving_http
from topobench.probes.serving_client import Target
from topobench.probes.serving_framing import BadAnswer, Framing, head_of
from topobench.probes.serving_http import Address, NotConnected, Pool

OK = b"HTTP/1.1 200 OK\r\nContent-Type: Text/Event-Stream; charset=utf-8\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"


def chunked(parts: list[bytes], extension: bytes = b"", trailer: bytes = b"") -> bytes:
    body = b"".join(b"%x%b\r\n%b\r\n" % (len(p), extension, p) for p in parts if p)
    return body + b"0\r\n" + trailer + b"\r\n"


def fed(framing: Framing, data: bytes, cuts: list[int]) -> bytes:
    ends = sorted({min(c, len(data)) for c in cuts} | {0, len(data)})
    return b"".join(framing.feed(data[a:b]) for a, b in itertools.pairwise(ends))


class TestFraming:
    @given(
        parts=st.lists(st.binary(max_size=30), max_size=6),
        extension=st.sampled_from([b"", b";a=b", b" ;x"]),
        trailer=st.sampled_from([b"", b"X-Sum: 1\r\n"]),
        surplus=st.sampled_from([b"", b"x", b"HTTP/1.1 200 OK\r\n"]),
        cuts=st.lists(st.integers(0, 200), max_size=8),
    )
    @settings(max_examples=150, deadline=None)
    def test_chunks_are_the_same_however_they_are_cut(
        self,
        parts: list[bytes],
        extension: bytes,
        trailer: bytes,
        surplus: bytes,
        cuts: list[int],
    ) -> None:
        framing = head_of(CHUNKED[:-4]).framing()
        data = chunked(parts, extension, trailer)
        assert fed(framing, data, cuts) == b"".join(parts)
        assert (framing.done, framing.surplus) == (True, False)
        framing = head_of(CHUNKED[:-4]).framing()
        assert framing.feed(data + surplus) == b"".join(parts)
        assert framing.surplus == bool(surplus)

    @given(body=st.binary(max_size=50), cuts=st.lists(st.integers(0, 60), max_size=5))
    @settings(max_examples=50, deadline=None)
    def test_a_counted_body_ends_where_it_was_told(self, body: bytes, cuts: list[int]) -> None:
        framing = head_of(OK + b"content-LENGTH:  %d" % len(body)).framing()
        assert framing.done is (body == b"")
        assert fed(framing, body, cuts) == body
        assert (framing.done, framing.surplus) == (True, False)

    def test_without_a_length_the_body_ends_with_the_connection(self) -> None:
        framing = head_of(OK.rstrip()).framing()
        assert framing.feed(b"all of it") == b"all of it"
        assert (framing.ends_with_it, framing.done) == (True, False)

    @pytest.mark.parametrize(
        ("head", "keeps"),
        [
            *((b"HTTP/1.1 200 OK", True), (b"HTTP/1.1 200 OK\r\nConnection: Close", False)),
            *((b"HTTP/1.0 200 OK", False), (b"HTTP/1.0 200\r\nConnection: Keep-Alive", True)),
        ],
    )
    def test_a_connection_is_kept_as_the_version_and_the_server_say(
        self, head: bytes, keeps: bool
    ) -> None:
        assert head_of(head).keeps is keeps

    @pytest.mark.parametrize(
        ("head", "said"),
        [
            (b"SSH-2.0-OpenSSH_9.2", "begins with b'SSH-2.0"),
            (b"HTTP/2 200 OK", "begins with"),
            (b"HTTP/1.1 20 OK", "begins with"),
            (OK + b"no header", "is no header"),
            (OK + b"Content-Length : 5", "is no header"),
            (OK + b" folded: yes", "is no header"),
            (OK + b"Content-Length: 5\r\nContent-Length: 6", "two headers content-length"),
            (OK + b"Content-Length: -5", "its length is b'-5'"),
            (OK + b"Content-Length: 5, 5", "its length is"),
            (OK + b"Transfer-Encoding: gzip, chunked", "its transfer is coded"),
            (OK + b"Content-Length: 5\r\nTransfer-Encoding: chunked", "tells a length as well"),
            (OK + b"Content-Encoding: gzip", "content is coded"),
            (OK + b"X: a\rb", "is no header"),
            (OK + b"X: a\0b", "is no header"),
        ],
    )
    def test_a_head_that_has_two_readings_is_refused(self, head: bytes, said: str) -> None:
        with pytest.raises(BadAnswer, match=said):
            head_of(head).framing()

    @pytest.mark.parametrize(
        "data",
        [
            *(b"-5\r\n", b"+5\r\n", b"0x5\r\n", b"1_0\r\n", b"\r\n", b"3\r\nabcd\r\n", b"f" * 5000),
            b"0\r\n3\r\nabc\r\n0\r\n\r\n",
        ],
    )
    def test_chunks_that_cannot_be_are_refused(self, data: bytes) -> None:
        with pytest.raises(BadAnswer):
            head_of(CHUNKED[:-4]).framing().feed(data)


@pytest.mark.parametrize(
    ("base", "shown", "prefix"),
    [
        ("http://10.9.0.20:8000", "10.9.0.20:8000", ""),
        ("https://models.example/a b/", "models.example", "/a%20b"),
        ("http://[fd00::1]", "[fd00::1]", ""),
        ("http://b\u00fccher.example:80/v", "xn--bcher-kva.example", "/v"),
    ],
)
def test_an_address_is_as_a_request_must_name_it(base: str, shown: str, prefix: str) -> None:
    found = Address.parse(base)
    assert (found.shown, found.prefix) == (shown, prefix)


@pytest.mark.parametrize("base", ["http://", "http://a:99999", "http://a:x", "http://a\x01b"])
def test_what_is_no_address_is_refused(base: str) -> None:
    with pytest.raises(ValueError, match=r"names no host|[Pp]ort"):
        Address.parse(base)


@pytest.mark.parametrize("key", ["sk\r\nX-Evil: 1", "sk-\u00fc"])
def test_a_key_that_no_header_can_hold_is_refused_and_not_told(key: str) -> None:
    async def open_() -> None:
        async with serving_client.opened(Target("http://127.0.0.1:1", "m", key=key)):
            pass

    with pytest.raises(ProbeError, match="holds characters that no header can") as error:
        asyncio.run(open_())
    assert key not in str(error.value)


@dataclass
class Taken:
    """What an answer said."""

    status: int = 0
    kind: str = ""
    data: bytes = b""
    enough: bytes = b"[DONE]"
    times: list[float] = field(default_factory=list)

    def begin(self, status: int, content_type: str) -> None:
        self.status, self.kind = status, content_type

    def take(self, data: bytes, now: float) -> bool:
        self.data += data
        self.times.append(now)
        return self.enough in self.data


@dataclass
class Raw:
    """
    A server that answers each request with given pieces, and counts connections.

    Args:
        closing: Numbers of the requests after which it closes the connection.
    """

    answers: list[list[bytes]]
    connections: int = 0
    closing: frozenset[int] = frozenset()
    requests: list[bytes] = field(default_factory=list)
    closes: bool = False
    handlers: list[asyncio.Task[Any]] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.handlers.append(task)
        self.connections += 1
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                while True:
                    self.requests.append(await reader.readuntil(b"\r\n\r\n"))
                    await self._answer(writer)
                    if self.closes or len(self.requests) in self.closing:
                        break
        finally:
            writer.close()

    async def _answer(self, writer: asyncio.StreamWriter) -> None:
        for piece in self.answers[min(len(self.requests), len(self.answers)) - 1]:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0.001)


@contextlib.asynccontextmanager
async def pooled(raw: Raw) -> AsyncIterator[Pool]:
    server = await asyncio.start_server(raw.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    pool = Pool(Address.parse(f"http://127.0.0.1:{port}"), None)
    try:
        yield pool
    finally:
        await pool.close()
        server.close()
        await asyncio.gather(*raw.handlers)  # each finds its connection closed
        await asyncio.sleep(0)


def talk(raw: Raw, what: Callable[[Pool], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        async with asyncio.timeout(30), pooled(raw) as pool:
            return await what(pool)

    return asyncio.run(run())


async def asked(pool: Pool, *, seconds: float = 20.0) -> Taken:
    taken = Taken()
    await pool.exchange(b"GET / HTTP/1.1\r\n\r\n", taken, seconds)
    return taken


ANSWER = CHUNKED + chunked([b"data: 1\n\n", b"data: [DONE]\n\n"])


class TestConnections:
    def test_one_byte_at_a_time_is_the_same_answer(self) -> None:
        """Each byte is a read of its own; answers that only announce another are passed over."""
        bytes_ = [bytes([b]) for b in b"HTTP/1.1 100 Continue\r\n\r\n" + ANSWER]
        found = talk(Raw([bytes_]), asked)
        assert (found.status, found.kind) == (200, "text/event-stream")
        assert found.data == b"data: 1\n\ndata: [DONE]"
        assert found.times == sorted(set(found.times))

    def test_a_connection_is_used_again_when_its_answer_was_whole(self) -> None:
        async def four(pool: Pool) -> list[Taken]:
            first = [await asked(pool) for _ in range(2)]
            return first + list(await asyncio.gather(asked(pool), asked(pool)))

        raw = Raw([[ANSWER]])
        assert {t.data for t in talk(raw, four)} == {b"data: 1\n\ndata: [DONE]\n\n"}
        assert (len(raw.requests), raw.connections) == (4, 2)

    @pytest.mark.parametrize(
        ("answer", "closes"),
        [
            (ANSWER.replace(b"200 OK\r\n", b"200 OK\r\nConnection: close\r\n"), False),
            (ANSWER + b"and more", False),
            (ANSWER, True),
            (OK + b"\r\nto its end", True),
        ],
    )
    def test_a_connection_that_ended_or_said_too_much_is_not(
        self, answer: bytes, closes: bool
    ) -> None:
        async def two(pool: Pool) -> list[Taken]:
            first = await asked(pool)
            await asyncio.sleep(0.05)
            return [first, await asked(pool)]

        raw = Raw([[answer]], closes=closes)
        one, other = talk(raw, two)
        assert one.data == other.data != b""
        assert (len(raw.requests), raw.connections) == (2, 2)

    def test_an_old_connection_is_not_met_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(serving_http, "_IDLE_SECONDS", 0.0)

        async def two(pool: Pool) -> None:
            await asked(pool)
            await asked(pool)

        raw = Raw([[ANSWER]])
        talk(raw, two)
        assert raw.connections == 2

    @pytest.mark.parametrize("more", [[b""] * 200, [b"4\r\nmore\r\n"] * 2000, [b"8000\r\n"]])
    def test_what_follows_the_end_of_a_stream_is_not_waited_for(
        self, monkeypatch: pytest.MonkeyPatch, more: list[bytes]
    ) -> None:
        """Nothing, further chunks, and a chunk that never comes."""
        monkeypatch.setattr(serving_http, "LINGER_SECONDS", 0.05)
        raw = Raw([[ANSWER.removesuffix(b"0\r\n\r\n"), *more, b"0\r\n\r\n"], [ANSWER]])

        async def two(pool: Pool) -> list[Taken]:
            return [await asked(pool), await asked(pool)]

        one, other = talk(raw, two)
        assert one.data == other.data
        assert raw.connections == 2

    @pytest.mark.parametrize(
        ("pieces", "error"),
        [
            ([CHUNKED + b"5\r\nabc"], ConnectionResetError),
            ([OK + b"Content-Length: 10\r\n\r\nabc"], ConnectionResetError),
            ([b"HTTP/1.1 200"], ConnectionResetError),
            ([b"SSH-2.0-OpenSSH\r\n\r\n"], BadAnswer),
            ([CHUNKED + b"zz\r\n"], BadAnswer),
            ([b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70_000], BadAnswer),
            ([b"HTTP/1.1 100 Continue\r\n\r\n" * 60_000], BadAnswer),
        ],
    )
    def test_half_an_answer_is_none(self, pieces: list[bytes], error: type[Exception]) -> None:
        with pytest.raises(error):
            talk(Raw([pieces], closes=True), asked)

    @pytest.mark.parametrize(
        "begin", [b"220 mail\r\n", b"\x15\x03\x03", OK.replace(b"\r", b"") + b"\n"]
    )
    def test_what_can_be_no_head_is_not_waited_for(self, begin: bytes) -> None:
        """The connection stays open, as that of a server which waits for more words does."""
        with pytest.raises(BadAnswer, match=r"begins with|carriage return"):
            talk(Raw([[begin]]), asked)

    def test_a_connection_that_the_server_closed_meanwhile_is_made_again(self) -> None:
        """Only if it was used before, and nothing of an answer came."""
        raw = Raw([[ANSWER], [], [ANSWER], [OK[:20]]], closing=frozenset({2, 4}))

        async def three(pool: Pool) -> list[Taken]:
            found = [await asked(pool), await asked(pool)]
            with pytest.raises(ConnectionResetError):
                await asked(pool)
            return found

        one, other = talk(raw, three)
        assert one.data == other.data != b""
        assert (len(raw.requests), raw.connections) == (4, 2)

    def test_a_new_connection_that_is_closed_at_once_is_told(self) -> None:
        raw = Raw([[]], closes=True)
        with pytest.raises(ConnectionResetError):
            talk(raw, asked)
        assert raw.connections == 1

    def test_the_end_of_a_stream_is_read_aside(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """An answer counts as it has said all; its connection is used again once it ended."""
        monkeypatch.setattr(serving_http, "GRACE_SECONDS", 0.0)
        end = b"0\r\n\r\n"
        raw = Raw([[ANSWER.removesuffix(end), *[b""] * 50, end], [ANSWER]])

        async def three(pool: Pool) -> list[int]:
            counts = []
            for pause in (0.0, 0.5, 0.0):
                await asked(pool)
                counts.append(raw.connections)
                await asyncio.sleep(pause)
            return counts

        assert talk(raw, three) == [1, 2, 2]
        assert len(raw.requests) == 3

    def test_a_late_answer_never_reaches_the_next_request(self) -> None:
        """After a time-out and after a cancelled request the connection is closed."""
        late = [ANSWER[:20], *[b""] * 300, ANSWER[20:]]
        raw = Raw([late, late, [ANSWER.replace(b"data: 1", b"data: 2")]])

        async def three(pool: Pool) -> Taken:
            with pytest.raises(TimeoutError):
                await asked(pool, seconds=0.05)
            task = asyncio.create_task(asked(pool))
            while len(raw.requests) < 2:
                await asyncio.sleep(0.01)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            return await asked(pool)

        assert talk(raw, three).data == b"data: 2\n\ndata: [DONE]\n\n"
        assert raw.connections == 3

    def test_a_name_that_leads_nowhere_is_told(self) -> None:
        async def ask(base: str) -> None:
            await asked(Pool(Address.parse(base), None))

        with pytest.raises(NotConnected, match=r"\d"):
            asyncio.run(ask("http://no-such-host.invalid"))
