"""
One request after the other to an OpenAI-compatible server, each answer read as it streams.

aiohttp is imported when a session is opened: declaring the probe must not need it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import ssl
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from topobench.errors import ProbeError, ProbeUnavailable
from topobench.masking import MASK
from topobench.probes.serving_windows import Served
from topobench.reading import ReasonCode, Scalar

PATHS = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}
clock = time.perf_counter
_decoded = json.JSONDecoder().decode  # without a look for the encoding, which is UTF-8
_LONGEST_EVENT = 1 << 20
_LONGEST_ERROR = 300
_ENDLESS_FACTOR, _ENDLESS_MORE = 4, 64
"""More chunks than so many times the tokens asked for, and some: the stream has no end."""
_LINGER_SECONDS = 1.0
_FACT_BYTES = 4 << 20
_CLOSING_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Target:
    """
    Where requests go and what each of them says.

    Args:
        base: Address up to the path before ``/v1``.
        api: ``completions`` or ``chat``.
        key: API key; it is in no message, no record and no repr.
        body: Further fields of every request.
        timeout_seconds: Of one request, to its last token.
    """

    base: str
    model: str
    api: str = "completions"
    key: str | None = field(default=None, repr=False)
    body: Mapping[str, Scalar] = field(default_factory=dict)
    ca_file: str | None = None
    timeout_seconds: float = 60.0

    @property
    def headers(self) -> dict[str, str]:
        """Of every request."""
        own = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
        return own | ({"Authorization": f"Bearer {self.key}"} if self.key else {})

    def mask(self, text: str) -> str:
        """Text without the key: servers like to repeat it when they refuse it."""
        return text.replace(self.key, MASK) if self.key else text


def trace_text(traces: int, number: int) -> str:
    """The W3C trace id of a client's request: 32 hexadecimal digits."""
    return f"{traces:016x}{number:016x}"


class RequestFailed(Exception):
    """A request that gave no usable answer; told by its class of error."""

    def __init__(self, kind: str, text: str) -> None:
        self.kind = kind
        super().__init__(text)


class Client:
    """
    Sends requests to one target. Made by :func:`opened`.

    Args:
        session: Of aiohttp.

    Attributes:
        traces: The first half of the trace ids of all its requests.
    """

    def __init__(self, session: Any, target: Target) -> None:
        self._session = session
        self.target = target
        self._url = target.base + PATHS[target.api]
        self._tail = _tail(target)
        self.traces = int.from_bytes(os.urandom(8), "big")
        self._count = 0

    def asking(
        self, *, model: str | None = None, body: Mapping[str, Scalar] | None = None
    ) -> Client:
        """The same connections, asking for another model, or with more fields in the body."""
        target = replace(
            self.target,
            model=model or self.target.model,
            body={**(body or {}), **self.target.body},
        )
        return Client(self._session, target)

    def new(self, due: float | None, wanted_input: int, wanted_output: int) -> Served:
        """A request that is due at that time; now, if None."""
        self._count += 1
        now = clock()
        return Served(self._count, now if due is None else due, now, wanted_input, wanted_output)

    async def send(self, served: Served, prompt: str, gap: Callable[[float], None]) -> None:
        """
        Send a request and read its answer; every failure becomes its ``error``.

        Args:
            prompt: JSON text: a string, or token ids.
            gap: Is told each gap between two arrivals of tokens.
        """
        served.sent = clock()
        try:
            async with asyncio.timeout(self.target.timeout_seconds):
                await self._exchange(served, prompt, gap)
        except Exception as error:  # whatever it is, it is this request's alone
            served.error = _kind(error)
        if served.ended == 0.0 or served.error is not None:
            served.ended = clock()

    async def ask(self, served: Served, prompt: str) -> None:
        """
        As :meth:`send`, but a failure is raised.

        Raises:
            RequestFailed: The answer was refused or cannot be read.
            TimeoutError: It took too long.
            OSError: No connection (aiohttp's errors of connections are of that class too).
        """
        served.sent = clock()
        async with asyncio.timeout(self.target.timeout_seconds):
            await self._exchange(served, prompt, lambda _: None)

    async def get(self, path: str, *, most_bytes: int = _FACT_BYTES) -> tuple[int, str]:
        """Status and text of a plain page, cut at a length."""
        async with (
            asyncio.timeout(self.target.timeout_seconds),
            self._session.get(self.target.base + path, allow_redirects=False) as response,
        ):
            data = b""
            async for part in response.content.iter_any():
                data += part
                if len(data) > most_bytes:
                    response.close()
                    break
            return response.status, data.decode("utf-8", errors="replace")

    async def _exchange(self, served: Served, prompt: str, gap: Callable[[float], None]) -> None:
        body = f'{{"{_PROMPT[self.target.api]}":'
        wrapped = prompt if self.target.api == "completions" else _MESSAGE % prompt
        body += f'{wrapped},"max_tokens":{served.wanted_output}{self._tail}'
        headers = {
            "traceparent": f"00-{trace_text(self.traces, served.trace)}-{served.trace:016x}-01"
        }
        async with self._session.post(
            self._url, data=body.encode(), headers=headers, allow_redirects=False
        ) as response:
            if response.status != 200:
                text = (await response.content.read(_LONGEST_ERROR * 4)).decode(errors="replace")
                said = self.target.mask(" ".join(text.split()))[:_LONGEST_ERROR]
                raise RequestFailed(f"http_{response.status}", said)
            if response.content_type != "text/event-stream":
                raise RequestFailed("not_streaming", f"the answer is {response.content_type}")
            await self._read(response, served, gap)

    async def _read(self, response: Any, served: Served, gap: Callable[[float], None]) -> None:
        """Read the events of a stream until it says that it is done."""
        most = _ENDLESS_FACTOR * served.wanted_output + _ENDLESS_MORE
        stream = _Stream(served, self.target.mask)
        last = 0.0
        async for data in response.content.iter_any():
            now = clock()
            before = served.chunks
            done = stream.feed(data)
            if served.chunks > before:
                if last:
                    gap(now - last)
                else:
                    served.first = now
                last = now
            if done:
                served.ended = clock()
                break
            if served.chunks > most:
                raise RequestFailed("endless", f"more than {most} chunks")
        stream.check()
        if served.ended == 0.0:
            served.ended = clock()
        await _let_go(response)


class _Stream:
    """The state of one answer: what its events said so far."""

    def __init__(self, served: Served, mask: Callable[[str], str]) -> None:
        self._served = served
        self._mask = mask
        self._buffer = b""
        self._done = self._finished = False

    def feed(self, data: bytes) -> bool:
        """Take bytes; true once the stream said that it is done."""
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        if len(self._buffer) > _LONGEST_EVENT:
            raise RequestFailed("malformed", f"an event of more than {_LONGEST_EVENT} bytes")
        for line in lines:
            if line.startswith(b"data:"):
                payload = line[5:].strip()
                if payload == b"[DONE]":
                    self._done = True
                else:
                    self._event(payload)
        return self._done

    def _event(self, payload: bytes) -> None:
        try:
            event = _decoded(str(payload, "utf-8"))
            if "error" in event:
                said = self._mask(str(event["error"]))[:_LONGEST_ERROR]
                raise RequestFailed("server_error", said)
            for choice in event.get("choices") or ():
                delta = choice.get("delta")
                text = choice.get("text") if delta is None else _said(delta)
                self._served.chunks += bool(text)
                self._finished = self._finished or choice.get("finish_reason") is not None
            if usage := event.get("usage"):
                self._usage(usage)
        except (ValueError, TypeError, AttributeError, KeyError) as error:
            raise RequestFailed("malformed", self._mask(repr(payload))[:100]) from error

    def _usage(self, usage: Mapping[str, Any]) -> None:
        served = self._served
        served.input_tokens = int(usage["prompt_tokens"])
        served.output_tokens = int(usage["completion_tokens"])
        details = usage.get("prompt_tokens_details") or {}
        served.cached = details.get("cached_tokens")

    def check(self) -> None:
        """
        Whether the answer is whole and its token count can be.

        Raises:
            RequestFailed: It is not.
        """
        served = self._served
        if not (self._done or self._finished):
            raise RequestFailed("incomplete", "the stream broke off")
        if not served.chunks:
            raise RequestFailed("no_tokens", "the answer holds no text")
        told = served.output_tokens
        if told is not None and not served.chunks <= told <= served.wanted_output + 1:
            text = f"{told} tokens told, {served.chunks} chunks came, {served.wanted_output} asked"
            raise RequestFailed("wrong_usage", text)


_PROMPT = {"completions": "prompt", "chat": "messages"}
_MESSAGE = '[{"role":"user","content":%s}]'


def _said(delta: Mapping[str, Any]) -> Any:
    """The text of a chat delta; reasoning is text that the user waits for too."""
    return delta.get("content") or delta.get("reasoning_content") or delta.get("reasoning")


def _tail(target: Target) -> str:
    """The end of every request's body."""
    more = {
        "model": target.model,
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0,
        **target.body,
    }
    return "," + json.dumps({k: v for k, v in more.items() if v is not None})[1:]


async def _let_go(response: Any) -> None:
    """Read what is left, so that the connection can be used again; close it if there is more."""
    if response.content.at_eof():
        return
    try:
        async with asyncio.timeout(_LINGER_SECONDS):
            while not response.content.at_eof():
                if len(await response.content.readany()) > _LONGEST_EVENT:
                    break
            else:
                return
    except (OSError, TimeoutError):
        pass
    response.close()


def _kind(error: Exception) -> str:
    """The class of a failed request, as it is counted."""
    if isinstance(error, RequestFailed):
        return error.kind
    if isinstance(error, TimeoutError):
        return "timeout"
    name = type(error).__name__
    if name.startswith("ClientConnector") or isinstance(error, ConnectionRefusedError):
        return "connect"
    if isinstance(error, OSError) or name in ("ServerDisconnectedError", "ClientPayloadError"):
        return "reset"
    return "malformed"


@contextlib.asynccontextmanager
async def opened(target: Target) -> AsyncIterator[Client]:
    """
    A client with its connections, as many as are needed at once.

    Raises:
        ProbeUnavailable: ``no_package``.
        ProbeError: ``tls_error``: the file of certificates cannot be read.
    """
    try:
        import aiohttp
    except ImportError as error:
        text = "the Python package aiohttp is not installed on this host; pip install aiohttp"
        raise ProbeUnavailable(ReasonCode.NO_PACKAGE, text) from error
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    connector = aiohttp.TCPConnector(limit=0, ssl=_tls(target), ttl_dns_cache=None)
    try:
        async with aiohttp.ClientSession(
            connector=connector,
            headers=target.headers,
            timeout=aiohttp.ClientTimeout(total=None),
            cookie_jar=aiohttp.DummyCookieJar(),
        ) as session:
            yield Client(session, target)
    finally:  # a closed session's connections need the loop a little longer
        await asyncio.sleep(_CLOSING_SECONDS)


def _tls(target: Target) -> Any:
    if not target.base.startswith("https:"):
        return False
    try:
        return ssl.create_default_context(cafile=target.ca_file)
    except (OSError, ssl.SSLError) as error:
        text = f"the certificates of {target.ca_file} cannot be used: {error}"
        raise ProbeError(ReasonCode.TLS_ERROR, text) from error


def explained(error: Exception, target: Target) -> ProbeError:
    """A failure of the first contact as a stored reason that says what to do."""
    where = target.base
    if isinstance(error, RequestFailed):
        return _refused(error, target)
    if isinstance(error, TimeoutError):
        text = f"{where} gave no whole answer within {target.timeout_seconds:g} s"
        return ProbeError(ReasonCode.DEADLINE, text)
    name = type(error).__name__
    if isinstance(error, ssl.SSLError) or "SSL" in name or "Certificate" in name:
        text = f"no trusted connection to {where}: {error}; name its certificate by ca_file"
        return ProbeError(ReasonCode.TLS_ERROR, target.mask(text))
    text = f"nothing answers at {where}: {str(error) or name}; is the server up, the address right?"
    return ProbeError(ReasonCode.NO_ENDPOINT, target.mask(text))


def _refused(error: RequestFailed, target: Target) -> ProbeError:
    where = target.base + PATHS[target.api]
    if error.kind == "not_streaming":
        text = f"{where} does not stream: {error}; times of tokens need a streaming server"
        return ProbeError(ReasonCode.NOT_STREAMING, text)
    if error.kind == "endless":
        text = f"{where} went on after the tokens asked for: {error}"
        return ProbeError(ReasonCode.ENDLESS_STREAM, text)
    if error.kind == "http_404":
        text = f"{where} has no model {target.model!r}, or no such path: {error}"
        return ProbeError(ReasonCode.WRONG_MODEL, text)
    if error.kind.startswith("http_"):
        status = error.kind.removeprefix("http_")
        return ProbeError(ReasonCode.ENDPOINT_REFUSED, f"{where} answered {status}: {error}")
    return ProbeError(ReasonCode.WRONG_DATA, f"the answer of {where} is {error.kind}: {error}")
