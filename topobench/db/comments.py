"""
What tables, views and columns mean, for clients of PostgreSQL that show comments.

docs/schema.md is the one place where it is written; the package carries that page.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

PAGE = Path(__file__).with_name("schema.md")

_EXISTING = """
SELECT c.relname, c.relkind, a.attname
FROM pg_class c
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind IN ('r', 'v')
"""


@dataclass(frozen=True, slots=True)
class Described:
    """
    A table or view.

    Args:
        about: Its sentences, or empty.
        columns: Name -> meaning, in order.
    """

    name: str
    about: str
    columns: Mapping[str, str]


def described(page: str) -> list[Described]:
    """The tables and views of the page: sections of level 3 with a table of columns."""
    sections = re.split(r"^### (\w+)$", page, flags=re.MULTILINE)[1:]
    return [
        _section(name, re.split(r"^## ", body, maxsplit=1, flags=re.MULTILINE)[0])
        for name, body in zip(sections[::2], sections[1::2], strict=True)
    ]


def put_comments(connection: Connection) -> None:
    """Set the comments of all that is there; SQLite has none."""
    if connection.dialect.name != "postgresql":
        return
    kinds: dict[str, str] = {}
    columns = set()
    for name, kind, column in connection.execute(sa.text(_EXISTING)):
        kinds[name] = "VIEW" if kind in ("v", b"v") else "TABLE"
        columns.add((name, column))
    found = described(PAGE.read_text(encoding="utf-8"))
    statements = [
        f"COMMENT ON {what} IS {_quoted(text)}"
        for relation in found
        if relation.name in kinds
        for what, text in _texts(relation, kinds[relation.name], columns)
    ]
    driver: Any = connection.connection.driver_connection
    driver.execute(";".join(statements))  # a thousand round trips would take a second


def _section(name: str, body: str) -> Described:
    rows = re.findall(r"^\| (\w+) \| (.*) \|$", body, re.MULTILINE)
    about = " ".join(body.partition("\n|")[0].split())
    return Described(name, about, {c: what for c, what in rows if c != "column"})


def _texts(
    relation: Described, kind: str, existing: set[tuple[str, str]]
) -> Iterator[tuple[str, str]]:
    name = f'"{relation.name}"'
    if relation.about:
        yield f"{kind} {name}", relation.about
    for column, what in relation.columns.items():
        if (relation.name, column) in existing:
            yield f'COLUMN {name}."{column}"', what


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
