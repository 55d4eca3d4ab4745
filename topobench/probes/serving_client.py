"""One request after the other to an OpenAI-compatible server, each answer read as it streams."""

from __future__ import annotations

import contextlib
import functools
import html
import json
import os
import re
import resource
import ssl
import urllib.parse
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from topobench import user_files
from topobench.errors import ProbeError
from topobench.masking import MASK
from topobench.probes.serving_framing import BadAnswer
from topobench.probes.serving_http import Address, NotConnected, Pool, clock
from topobench.probes.serving_stream import RequestFailed, Stream
from topobench.probes.serving_windows import Served
from topobench.reading import ReasonCode, Scalar

PATHS = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}
REDIRECTS = "it leads to another address, which is not followed; name that one (curl -I shows it)"
_FACT_BYTES = 4 << 20
_LARGEST_CA_FILE = 16 << 20
_UNPRINTED = re.compile(r"[\x00-\x1f\x7f]")
_TLS_ALERT = "it begins with b'\\x15\\x03"
_TOLD_BEGINNING = 8
"""So many characters are enough to take what follows for the key, cut or changed as it may be."""


@dataclass(frozen=True, slots=True)
class Target:
    """
    Where requests go and what each of them says.

    Args:
        base: Address up to the path before ``/v1``.
        api: ``completions`` or ``chat``.
        key: API key; it is in no message, no record and no repr.
        body: Further fields of every request; None leaves one of ours out.
        length_field: Names the most tokens of an answer.
        timeout_seconds: Of one request, to its last token.
    """

    base: str
    model: str
    api: str = "completions"
    key: str | None = field(default=None, repr=False)
    body: Mapping[str, Scalar] = field(default_factory=dict)
    ca_file: str | None = None
    length_field: str = "max_tokens"
    timeout_seconds: float = 60.0

    def mask(self, text: str) -> str:
        """Text without the key: servers like to repeat it when they refuse it."""
        return _hidden(self.key).sub(MASK, text) if self.key else text


@functools.lru_cache(maxsize=4)
def _hidden(key: str) -> re.Pattern[str]:
    """What may be the key: as it is, as JSON, a URL or HTML have it, quoted twice, or cut off."""
    escaped = [r"\\+" if c == "\\" else re.escape(c) for c in key]
    parts = [r"\\*".join(escaped)]
    parts += [re.escape(form) for form in (urllib.parse.quote(key, safe=""), html.escape(key))]
    if len(key) >= 2 * _TOLD_BEGINNING:
        parts.append(r"\\*".join(escaped[:_TOLD_BEGINNING]) + r"[^\s\"'<>]*")
    return re.compile("|".join(parts))


def trace_text(traces: int, number: int) -> str:
    """The W3C trace id of a client's request: 32 hexadecimal digits."""
    return f"{traces:016x}{number:016x}"


class Client:
    """
    Sends requests to one target. Made by :func:`opened`.

    Attributes:
        traces: The first half of the trace ids of all its requests.
    """

    def __init__(self, pool: Pool, target: Target) -> None:
        self._pool = pool
        self.target = target
        self.traces = int.from_bytes(os.urandom(8), "big")
        self._count = 0
        head = _head("POST", PATHS[target.api], pool.address, target)
        self._head = f"{head}Content-Type: application/json\r\ntraceparent: 00-{self.traces:016x}"
        before, after = _WRAPPED[target.api]
        self._before, self._after = before, f'{after}"{target.length_field}":'
        self._tail = _tail(target)

    def asking(
        self,
        *,
        model: str | None = None,
        body: Mapping[str, Scalar] | None = None,
        length_field: str | None = None,
    ) -> Client:
        """The same connections, asking for another model, or in another form."""
        target = replace(
            self.target,
            model=model or self.target.model,
            body={**(body or {}), **self.target.body},
            length_field=length_field or self.target.length_field,
        )
        return Client(self._pool, target)

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
        try:
            await self._exchange(served, prompt, gap)
        except Exception as error:  # whatever it is, it is this request's alone
            served.error = _kind(error)
            served.ended = clock()

    async def ask(self, served: Served, prompt: str) -> None:
        """
        As :meth:`send`, but a failure is raised.

        Raises:
            RequestFailed: The answer was refused or cannot be read.
            BadAnswer: It is not even HTTP.
            TimeoutError: It took too long.
            OSError: No connection, or it ended too early.
        """
        await self._exchange(served, prompt, lambda _: None)

    async def get(self, path: str) -> tuple[int, str]:
        """Status and text of a plain page, cut at a length."""
        page = _Page(_FACT_BYTES)
        request = _head("GET", path, self._pool.address, self.target) + "\r\n"
        await self._pool.exchange(request.encode(), page, self.target.timeout_seconds)
        return page.status, page.data.decode("utf-8", errors="replace")

    async def _exchange(self, served: Served, prompt: str, gap: Callable[[float], None]) -> None:
        number, wanted = served.trace, served.wanted_output
        body = f"{self._before}{prompt}{self._after}{wanted}{self._tail}".encode()
        head = f"{self._head}{number:016x}-{number:016x}-01\r\nContent-Length: {len(body)}\r\n\r\n"
        stream = Stream(served, self.target.mask, gap)
        served.sent = clock()
        ended = await self._pool.exchange(head.encode() + body, stream, self.target.timeout_seconds)
        stream.check()
        if served.ended == 0.0:
            served.ended = ended


class _Page:
    """A plain page as it is read."""

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self.status = 0
        self.data = b""

    def begin(self, status: int, content_type: str) -> None:
        """See :class:`serving_http.Taker`."""
        self.status = status

    def take(self, data: bytes, now: float) -> bool:
        """See :class:`serving_http.Taker`."""
        self.data += data
        return len(self.data) > self._most


_WRAPPED = {
    "completions": ('{"prompt":', ","),
    "chat": ('{"messages":[{"role":"user","content":', "}],"),
}
"""What stands before and after the prompt."""


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


def _head(method: str, path: str, address: Address, target: Target) -> str:
    """The beginning of a request's head."""
    lines = [
        f"{method} {address.prefix}{path} HTTP/1.1",
        f"Host: {address.shown}",
        "User-Agent: topobench",
        "Accept: */*",
        "Accept-Encoding: identity",
    ]
    if target.key:
        lines.append(f"Authorization: Bearer {target.key}")
    return "".join(f"{line}\r\n" for line in lines)


def _kind(error: Exception) -> str:
    """The class of a failed request, as it is counted."""
    if isinstance(error, RequestFailed):
        return error.kind
    if isinstance(error, TimeoutError):
        return "timeout"
    if isinstance(error, NotConnected):
        return "connect"
    return "reset" if isinstance(error, OSError) else "malformed"


@contextlib.asynccontextmanager
async def opened(target: Target) -> AsyncIterator[Client]:
    """
    A client with its connections, as many as are needed at once.

    Raises:
        ProbeError: ``tls_error``: the file of certificates cannot be read; ``no_endpoint``,
            ``endpoint_refused``: the address or the key cannot be sent.
    """
    try:
        address = Address.parse(target.base)
    except ValueError as error:
        raise ProbeError(ReasonCode.NO_ENDPOINT, f"{target.base} is no address: {error}") from error
    if target.key and (_UNPRINTED.search(target.key) or not target.key.isascii()):
        text = "the API key holds characters that no header can; look at the variable of key_env"
        raise ProbeError(ReasonCode.ENDPOINT_REFUSED, text)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    pool = Pool(address, _tls(target))
    try:
        yield Client(pool, target)
    finally:
        await pool.close()


def _tls(target: Target) -> ssl.SSLContext | None:
    if not target.base.startswith("https:"):
        return None
    try:
        if target.ca_file is not None:  # OpenSSL would wait for a pipe
            user_files.read_regular(Path(target.ca_file), _LARGEST_CA_FILE)
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
    if isinstance(error, BadAnswer):
        hint = "; it speaks TLS, so take https:" if str(error).startswith(_TLS_ALERT) else ""
        text = f"what answers at {where} cannot be read as HTTP/1.1: {error}{hint}"
        return ProbeError(ReasonCode.WRONG_DATA, target.mask(text))
    tls = error if isinstance(error, ssl.SSLError) else error.__cause__
    if isinstance(tls, ssl.SSLError):
        trusted = isinstance(tls, ssl.SSLCertVerificationError)
        hint = (
            "name its certificate by ca_file" if trusted else "does it speak TLS, or is it http:?"
        )
        text = f"no trusted connection to {where}: {error}; {hint}"
        return ProbeError(ReasonCode.TLS_ERROR, target.mask(text))
    said = str(error) or type(error).__name__
    if not isinstance(error, OSError):
        return ProbeError(ReasonCode.WRONG_DATA, target.mask(f"the answer of {where}: {said}"))
    text = f"nothing answers at {where}: {said}; is the server up, the address right?"
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
        if status.startswith("3"):
            return ProbeError(
                ReasonCode.ENDPOINT_REFUSED, f"{where} answered {status}: {REDIRECTS}"
            )
        return ProbeError(ReasonCode.ENDPOINT_REFUSED, f"{where} answered {status}: {error}")
    return ProbeError(ReasonCode.WRONG_DATA, f"the answer of {where} is {error.kind}: {error}")
