"""
Column types and the plain values that go into them.

Times are UTC text in SQLite and ``timestamptz`` in PostgreSQL, ISO 8601 text with
microseconds and ``Z`` in Python. JSON is canonical text in both, so that a value read
back is the value written; no shipped query filters on it.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Mapping
from datetime import UTC, date, datetime
from typing import Any

from sqlalchemy import BigInteger, Date, Dialect, Double, Integer, Text
from sqlalchemy.dialects.postgresql import TIMESTAMP
from sqlalchemy.types import TypeDecorator, TypeEngine

from topobench.errors import StoreError

ID = BigInteger().with_variant(Integer(), "sqlite")
"""A surrogate key; SQLite only numbers rows itself for INTEGER."""

Number = Double
"""A quantity in base SI units."""


class UtcTime(TypeDecorator[str]):
    """A moment; ISO 8601 text with microseconds and ``Z`` on the Python side."""

    impl = Text
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """``timestamptz`` in PostgreSQL, text elsewhere."""
        if dialect.name == "postgresql":
            return dialect.type_descriptor(TIMESTAMP(timezone=True))
        return dialect.type_descriptor(Text())

    def process_bind_param(self, value: str | None, dialect: Dialect) -> Any:
        """Text into what the engine keeps."""
        if value is None:
            return None
        moment = parse_time(value)
        return moment if dialect.name == "postgresql" else time_text(moment)

    def process_result_value(self, value: Any, dialect: Dialect) -> str | None:
        """What the engine kept into text."""
        return time_text(value) if isinstance(value, datetime) else value


class Day(TypeDecorator[str]):
    """A UTC day, ``YYYY-MM-DD`` on the Python side."""

    impl = Date
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """``date`` in PostgreSQL, text elsewhere."""
        kind: TypeEngine[Any] = Date() if dialect.name == "postgresql" else Text()
        return dialect.type_descriptor(kind)

    def process_bind_param(self, value: str | None, dialect: Dialect) -> Any:
        """Text into what the engine keeps."""
        if value is None or dialect.name != "postgresql":
            return value
        return date.fromisoformat(value)

    def process_result_value(self, value: Any, dialect: Dialect) -> str | None:
        """What the engine kept into text."""
        return value.isoformat() if isinstance(value, date) else value


class JsonText(TypeDecorator[Any]):
    """A JSON value as canonical text: sorted keys, no NaN or infinity (they become null)."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> str | None:
        """Value into text."""
        return None if value is None else canonical_json(value)

    def process_result_value(self, value: Any, dialect: Dialect) -> Any:
        """Text into value."""
        try:
            return None if value is None else json.loads(value)
        except (ValueError, TypeError) as error:
            raise StoreError(
                f"the database holds {str(value)[:40]!r} where a JSON text belongs ({error}); that "
                "was not written by topobench: restore a copy from before it was edited"
            ) from error


def parse_time(text: str) -> datetime:
    """
    Read an ISO 8601 moment.

    Raises:
        ValueError: It is no moment, or has no zone.
    """
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"time {text!r} has no zone; times are UTC and end in Z")
    return moment.astimezone(UTC)


def time_text(moment: datetime) -> str:
    """The moment as stored in SQLite: fixed width, so that text order is time order."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def now_text() -> str:
    """The present as stored."""
    return time_text(datetime.fromtimestamp(time.time(), UTC))


def unix_seconds(text: str) -> float:
    """Seconds since 1970 of a stored time."""
    return parse_time(text).timestamp()


def canonical_json(value: Any) -> str:
    """One text for equal values; NaN and infinity become null."""
    try:
        return _encode(value)
    except ValueError:
        return _encode(without_nan(value))


_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False).encode


def without_nan(value: Any) -> Any:
    """The same plain JSON value with NaN and infinity as None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {k: without_nan(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(v) for v in value]
    return value


def clean_text(text: str) -> str:
    """Text both engines take: NUL and lone surrogates replaced (PostgreSQL refuses them)."""
    return text.replace("\x00", "�").encode("utf-8", "replace").decode("utf-8")


def digest(*parts: Any) -> str:
    """32 hexadecimal digits that are equal only for equal plain JSON values."""
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
