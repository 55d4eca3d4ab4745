"""
The JSON document that every ``--format json`` prints: one envelope around the data.

Schemas of the documents are in docs/schemas, one a command; ``error.json`` describes what
a command prints when it could not give its data.
"""

from __future__ import annotations

import datetime
import decimal
import math
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from topobench import __version__
from topobench.reading import to_json


def envelope(
    command: str,
    data: Any,
    *,
    status: str,
    exit_code: int,
    warnings: Sequence[str] = (),
    generated_at: str,
) -> dict[str, Any]:
    """
    Wrap the data of a command.

    Args:
        command: With its subcommand after a hyphen: ``probe``, ``db-info``.
        data: Values of ours or plain ones; everything becomes plain JSON types.
        status: ``ok``, or what became of it in a word.
        generated_at: UTC, ISO 8601 with ``Z``; by the caller, who has a clock.
    """
    return {
        "schema": f"topobench.{command}/1",
        "tool_version": __version__,
        "generated_at": generated_at,
        "status": status,
        "exit_code": exit_code,
        "warnings": list(warnings),
        "data": plain(to_json(data)),
    }


def error_envelope(
    command: str, error: BaseException, *, exit_code: int, generated_at: str
) -> dict[str, Any]:
    """The document of a command that failed: no data, and ``error`` with type and message."""
    document = envelope(
        command, None, status="error", exit_code=exit_code, generated_at=generated_at
    )
    return {**document, "error": {"type": type(error).__name__, "message": str(error)}}


def plain(value: Any) -> Any:
    r"""
    The value in JSON's own types, whatever a database or probe gave.

    A number JSON cannot write (NaN, infinity) is null; bytes are hexadecimal after ``\x``.
    """
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, decimal.Decimal):
        return float(value) if value.is_finite() else None
    if isinstance(value, datetime.datetime | datetime.date):
        return value.isoformat()
    if isinstance(value, bytes | bytearray | memoryview):
        return "\\x" + bytes(value).hex()
    if isinstance(value, uuid.UUID | datetime.time | datetime.timedelta):
        return str(value)
    return value
