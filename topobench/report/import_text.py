"""What an import found, for people: each file, what became of it, and its figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from topobench.report.safe import clean
from topobench.report.sheet import Column, Sheet
from topobench.units import count, format_bytes, format_rate, format_seconds

Document = Mapping[str, Any]


def render_import(documents: Sequence[Document], failures: Sequence[Document]) -> RenderableType:
    """
    Imported files.

    Args:
        documents: ``topobench.import/1`` documents with ``file`` and ``stored``.
        failures: ``{file, message}`` of each that could not be read or stored.
    """
    return Group(*_parts(documents, failures))


def _parts(documents: Sequence[Document], failures: Sequence[Document]) -> Iterator[RenderableType]:
    for document in documents:
        yield Text(_headline(document), style="bold")
        yield from (Text(f"  {clean(reason)}", style="yellow") for reason in document["reasons"])
        if document["rows"]:
            table = _collectives if document["tool"] == "nccl-tests" else _matrices
            yield table(document["rows"])
        yield Text(f"  {_fate(document['stored'])}")
        yield Text("")
    for failure in failures:
        yield Text(f"{clean(failure['file'])}: {clean(failure['message'])}", style="red")


def _headline(document: Document) -> str:
    parts = [f"{document['tool']} {document['version'] or ''}".strip()]
    if document.get("op"):
        parts.append(document["op"])
    if document.get("rank_count"):
        parts.append(count(document["rank_count"], "rank"))
    parts.append(count(len(document["rows"]), "row"))
    return clean(f"{document['file']}: {', '.join(parts)}: {document['status']}")


def _fate(stored: Document | None) -> str:
    if stored is None:
        return "not stored"
    text = f"{stored['status']} as sweep {stored['sweep'][:8]}, of host {stored['host']}"
    notes = [f" of cluster {stored['cluster']}", *(f"; {w}" for w in stored["warnings"])]
    if stored["differs"]:
        notes.append("; what was said of it then stays")
    return clean(text + "".join(notes))


_NAMES = {"dtype": "type", "redop": "reduction", "root": "root"}


def _collectives(rows: Sequence[Document]) -> Sheet:
    """Sizes by placement; what differs between rows beside the size has a column."""
    varying = [n for n in _NAMES if len({row[n] for row in rows}) > 1]
    columns = [Column("size", True), *(Column(_NAMES[n]) for n in varying)]
    for place in ("out of place", "in place"):
        columns += [Column(f"{place}\ntime", True), Column("busbw", True), Column("wrong", True)]
    return Sheet(
        columns,
        [
            [
                format_bytes(row["size_bytes"]),
                *(_or_dash(row[n]) for n in varying),
                *_half(row["out_of_place"]),
                *_half(row["in_place"]),
            ]
            for row in rows
        ],
    )


def _half(half: Document | None) -> list[str]:
    if half is None:
        return ["-", "-", "-"]
    time, speed = half["time_seconds"], half["busbw_bytes_per_second"]
    return [
        "-" if time is None else format_seconds(time),
        "-" if speed is None else format_rate(speed),
        _or_dash(half["wrong_count"]),
    ]


def _matrices(rows: Sequence[Document]) -> Sheet:
    columns = [
        Column("test case"),
        Column("part"),
        Column("row"),
        Column("column"),
        Column("value", True),
    ]
    return Sheet(
        columns,
        [
            [
                clean(row["testcase"]),
                row["part"] or "",
                _place(row, "row"),
                _place(row, "column"),
                _figure(row),
            ]
            for row in rows
            if row["value"] is not None or row["status"] != "ok"
        ],
    )


def _place(row: Document, side: str) -> str:
    if row[side] is None:
        return ""
    return f"{row[f'{side}_kind'] or ''} {row[side]}".strip()


def _figure(row: Document) -> str:
    if row["value"] is None or row["unit"] is None:
        return str(row["status"]).replace("_", " ")
    text = format_rate(row["value"]) if row["unit"] == "B/s" else format_seconds(row["value"])
    return text if row["status"] == "ok" else f"{text} ({row['status']})"


def _or_dash(value: object) -> str:
    return "-" if value is None else clean(str(value))
