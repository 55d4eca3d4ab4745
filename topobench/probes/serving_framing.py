"""
Where an answer in HTTP/1.1 ends: its head, and a body by length, in chunks, or to the end. Pure.

By RFC 9112. What that does not allow, or leaves open to two readings, is refused.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass

_LONGEST_LINE = 1 << 12
_STATUS = re.compile(rb"HTTP/1\.([01]) ([1-9][0-9]{2})(?: [^\r\n]*)?\Z")
_NAME = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-zA-Z]+\Z")
_CUT = re.compile(rb"[\r\n\0]")
_LENGTH = re.compile(rb"[0-9]{1,15}\Z")
_SIZE = re.compile(rb"([0-9a-fA-F]{1,15})[ \t]*(?:;.*)?\Z", re.DOTALL)
_ONCE = frozenset({b"content-length", b"transfer-encoding"})
_NO_BODY = frozenset({204, 304})


class BadAnswer(Exception):
    """Bytes that are no answer in HTTP/1.1."""


@dataclass(frozen=True, slots=True)
class Head:
    """
    The beginning of an answer.

    Args:
        minor: 0 or 1, the second number of the version.
        headers: By names in small letters; of several with one name the last.
    """

    status: int
    minor: int
    headers: Mapping[bytes, bytes]

    @property
    def keeps(self) -> bool:
        """Whether the connection may be used again."""
        options = self.headers.get(b"connection", b"").lower()
        return b"close" not in options if self.minor else b"keep-alive" in options

    @property
    def content_type(self) -> str:
        """In small letters, without parameters; empty if it is not told."""
        kind = self.headers.get(b"content-type", b"").partition(b";")[0]
        return kind.strip().lower().decode("latin-1")

    def framing(self) -> Framing:
        """
        How the end of the body is told.

        Raises:
            BadAnswer: In no way that can be read.
        """
        coding = self.headers.get(b"content-encoding", b"").lower()
        if coding not in (b"", b"identity"):
            raise BadAnswer(f"its content is coded ({coding[:20]!r}), which nobody asked for")
        if self.status in _NO_BODY:
            return Counted(0)
        transfer = self.headers.get(b"transfer-encoding")
        length = self.headers.get(b"content-length")
        if transfer is not None:
            if length is not None:
                raise BadAnswer("it comes in chunks and tells a length as well")
            if transfer.lower() != b"chunked":
                raise BadAnswer(f"its transfer is coded ({transfer[:20]!r})")
            return Chunked()
        if length is None:
            return Framing()
        if not _LENGTH.match(length):
            raise BadAnswer(f"its length is {length[:20]!r}")
        return Counted(int(length))


@functools.lru_cache(maxsize=16)  # most heads of a second are the same
def head_of(data: bytes) -> Head:
    """
    Read the bytes before the first empty line.

    Raises:
        BadAnswer: They are no head.
    """
    first, *lines = data.split(b"\r\n")
    found = _STATUS.match(first)
    if found is None:
        raise BadAnswer(f"it begins with {first[:60]!r}")
    headers: dict[bytes, bytes] = {}
    for line in lines:
        name, colon, value = line.partition(b":")
        if not colon or not _NAME.match(name) or _CUT.search(value):
            raise BadAnswer(f"{line[:60]!r} is no header")
        name, value = name.lower(), value.strip(b" \t")
        if name in _ONCE and headers.get(name, value) != value:
            raise BadAnswer(f"it has two headers {name.decode()}")
        headers[name] = value
    return Head(int(found[2]), int(found[1]), headers)


class Framing:
    """A body that ends with the connection."""

    ends_with_it = True

    def __init__(self) -> None:
        self.done = False
        self.surplus = False

    def feed(self, data: bytes) -> bytes:
        """The part of the body in those bytes."""
        return data


class Counted(Framing):
    """A body of a length that was told."""

    ends_with_it = False

    def __init__(self, length: int) -> None:
        super().__init__()
        self._left = length
        self.done = not length

    def feed(self, data: bytes) -> bytes:
        """The part of the body in those bytes."""
        part = data[: self._left]
        self._left -= len(part)
        self.done = not self._left
        self.surplus = len(data) > len(part)
        return part


class Chunked(Framing):
    """A body in chunks, each with its length before it."""

    ends_with_it = False

    def __init__(self) -> None:
        super().__init__()
        self._kept = b""
        self._left = 0
        self._closing = self._last = False

    def feed(self, data: bytes) -> bytes:
        """The part of the body in those bytes."""
        data = self._kept + data if self._kept else data
        parts, at, length = [], 0, len(data)
        while at < length and not self.done:
            if self._left:
                end = at + self._left
                parts.append(data[at:end])
                self._left = max(0, end - length)
                self._closing = not self._left
                at = min(end, length)
                continue
            end = data.find(b"\r\n", at)
            if end < 0:
                if length - at > _LONGEST_LINE or (self._closing and data[at:] != b"\r"):
                    raise BadAnswer("a chunk has no end")
                break
            self._line(data[at:end])
            at = end + 2
        self._kept = data[at:]
        self.surplus = self.done and at < length
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _line(self, line: bytes) -> None:
        """The end of a chunk, its length before it, or a line after the last one."""
        if self._closing:
            if line:
                raise BadAnswer("a chunk is longer than told")
            self._closing = False
        elif self._last:
            name, colon, _ = line.partition(b":")
            if line and not (colon and _NAME.match(name)):
                raise BadAnswer(f"{line[:40]!r} is no header")
            self.done = not line
        else:
            found = _SIZE.match(line)
            if found is None:
                raise BadAnswer(f"{line[:40]!r} is no length of a chunk")
            self._left = int(found[1], 16)
            self._last = not self._left
