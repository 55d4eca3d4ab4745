"""The list of named queries, and what one of them is about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from topobench.report.safe import clean, command
from topobench.report.sheet import Column, Prose, Sheet


def render_queries(rows: Sequence[Sequence[str]]) -> RenderableType:
    """
    Every named query with its question.

    Args:
        rows: Name, title, question, parameters each.
    """
    shown = [[clean(name), clean(answers)] for name, _, answers, _ in rows]
    return Group(
        Sheet([Column("query", style="bold"), Column("answers")], shown, indent=0),
        Text(),
        Text("Parameters of one, and how to read its answer:"),
        command("topobench query NAME --explain"),
    )


def render_explained(data: Mapping[str, Any]) -> RenderableType:
    """
    A query: its question, how to read its columns, its parameters, an example.

    Args:
        data: The ``data`` of ``query NAME --explain --format json``.
    """
    columns = [
        Column(name, style="bold" if name == "parameter" else "") for name in data["columns"]
    ]
    rows = [[clean(value) for value in row] for row in data["rows"]]
    name = clean(data["name"])
    example = next((f" --param {p}={d}" for p, _, d, _ in rows if p not in ("now", "since")), "")
    since = " --since 7d" if any(row[0] == "since" for row in rows) else ""
    return Group(
        Text(f"{name}: {clean(data['title'])}", style="bold"),
        Prose(clean(data["answers"]), indent=0),
        *([Prose(clean(data["notes"], limit=2000), indent=0)] if data["notes"] else []),
        Text(),
        Sheet(columns, rows, indent=0),
        Text(),
        command(f"topobench query {name}{example}{since}"),
    )
