"""An answer in server-sent events, read as it comes: when tokens came, and what it says of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from topobench.probes.serving_windows import Served

_decoded = json.JSONDecoder().raw_decode  # without a look for white space, which is cut already
_LONGEST_EVENT = 1 << 20
_LONGEST_ERROR = 300
_LONGEST_MALFORMED = 100
_ENDLESS_FACTOR, _ENDLESS_MORE = 4, 64
"""More chunks than so many times the tokens asked for, and some: the stream has no end."""
_SAID = ("content", "reasoning_content", "reasoning", "refusal", "tool_calls")
_MOST_TOKENS = 1 << 30
"""Of a prompt or an answer; no server has counted as many."""


class RequestFailed(Exception):
    """A request that gave no usable answer; told by its class of error."""

    def __init__(self, kind: str, text: str) -> None:
        self.kind = kind
        super().__init__(text)


class Stream:
    """
    The state of one answer: what its events said so far, and when tokens came.

    Args:
        served: Is filled in.
        mask: Hides the key in what a server says.
        gap: Is told each gap between two arrivals of tokens.
    """

    def __init__(
        self, served: Served, mask: Callable[[str], str], gap: Callable[[float], None]
    ) -> None:
        self._served = served
        self._mask = mask
        self._gap = gap
        self._most = _ENDLESS_FACTOR * served.wanted_output + _ENDLESS_MORE
        self._buffer = b""
        self._refused = 0
        self._last = 0.0
        self._done = self._finished = False

    def begin(self, status: int, content_type: str) -> None:
        """See :class:`serving_http.Taker`."""
        if status != 200:
            self._refused = status
        elif content_type != "text/event-stream":
            kind = self._shown(content_type) or "of no type"
            raise RequestFailed("not_streaming", f"the answer is {kind}")

    def take(self, data: bytes, now: float) -> bool:
        """See :class:`serving_http.Taker`; all was said once the stream says that it is done."""
        if self._refused:
            self._buffer += data
            return len(self._buffer) > _LONGEST_ERROR * 4
        served = self._served
        before = served.chunks
        self._feed(data)
        if served.chunks > before:
            if self._last:
                self._gap(now - self._last)
            else:
                served.first = now
            self._last = now
            served.arrivals += 1
            if served.chunks > self._most:
                raise RequestFailed("endless", f"more than {self._most} chunks")
        elif self._finished and served.wanted_output == 1 and not served.first:
            served.first = now  # half a letter is a token without text
        if self._done:
            served.ended = now
        return self._done

    def _feed(self, data: bytes) -> None:
        # A line ends with either, or both; an empty one between them says nothing.
        *lines, self._buffer = (self._buffer + data.replace(b"\r", b"\n")).split(b"\n")
        if len(self._buffer) > _LONGEST_EVENT:
            raise RequestFailed("malformed", f"an event of more than {_LONGEST_EVENT} bytes")
        for line in lines:
            if line.startswith(b"data:") and not self._done:
                payload = line[5:].strip()
                if payload == b"[DONE]":
                    self._done = True
                else:
                    self._event(payload)

    def _event(self, payload: bytes) -> None:
        try:
            event, end = _decoded(said := str(payload, "utf-8"))
            if end != len(said):
                raise ValueError("more follows")
            error = event if event.get("object") == "error" else event.get("error")
            if error is not None:
                raise RequestFailed("server_error", self._shown(str(error)))
            for choice in event.get("choices") or ():
                delta = choice.get("delta")
                text = choice.get("text") if delta is None else _said(delta)
                self._served.chunks += bool(text)
                self._finished = self._finished or choice.get("finish_reason") is not None
            if usage := event.get("usage"):
                self._usage(usage)
        except (ValueError, TypeError, AttributeError, KeyError, RecursionError) as wrong:
            said = self._shown(payload.decode(errors="replace"))
            raise RequestFailed("malformed", said[:_LONGEST_MALFORMED]) from wrong

    def _usage(self, usage: Mapping[str, Any]) -> None:
        served = self._served
        served.input_tokens = _count(usage["prompt_tokens"], 1, _MOST_TOKENS)
        served.output_tokens = _count(usage["completion_tokens"], 0, _MOST_TOKENS)
        details = usage.get("prompt_tokens_details") or {}
        cached = details.get("cached_tokens")
        served.cached = None if cached is None else _count(cached, 0, served.input_tokens)

    def _shown(self, text: str) -> str:
        """What a server said as a message may hold it: without the key, on one line, cut."""
        plain = "".join(c if c.isprintable() else " " for c in self._mask(text))
        return " ".join(plain.split())[:_LONGEST_ERROR]

    def check(self) -> None:
        """
        Whether the server took the request, the answer is whole, its token count can be.

        Raises:
            RequestFailed: It is not.
        """
        served = self._served
        if self._refused:
            text = self._buffer[: _LONGEST_ERROR * 4].decode(errors="replace")
            raise RequestFailed(f"http_{self._refused}", self._shown(text))
        if not (self._done or self._finished):
            raise RequestFailed("incomplete", "the stream broke off")
        told = served.output_tokens
        if not served.chunks and not (served.first and told == 1):
            raise RequestFailed("no_tokens", "the answer holds no text")
        if told is not None and not served.chunks <= told <= served.wanted_output + 1:
            text = f"{told} tokens told, {served.chunks} chunks came, {served.wanted_output} asked"
            raise RequestFailed("wrong_usage", text)


def _said(delta: Mapping[str, Any]) -> Any:
    """What a chat delta holds of the answer; reasoning is waited for, too, as are calls."""
    return next((told for name in _SAID if (told := delta.get(name))), None)


def _count(value: Any, least: int, most: int) -> int:
    """
    A number of tokens.

    Raises:
        ValueError: It is no whole number, or one that cannot be.
    """
    if type(value) is not int or not least <= value <= most:
        raise ValueError("that cannot be")
    return value
