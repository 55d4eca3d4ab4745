"""docs/schema.md lists every table, view and column, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path

import sqlalchemy as sa

from topobench.db import schema, views
from topobench.db.readonly import MAKE_ROLE
from topobench.db.store import Store

PAGE = (Path(__file__).parent.parent / "docs" / "schema.md").read_text(encoding="utf-8")


def documented() -> dict[str, list[str]]:
    """Columns in order, by table or view."""
    sections = re.split(r"^### (\w+)$", PAGE, flags=re.MULTILINE)[1:]
    return {
        name: [c for c in re.findall(r"^\| (\w+) \|", body, re.MULTILINE) if c != "column"]
        for name, body in zip(sections[::2], sections[1::2], strict=True)
    }


def test_every_table_and_column_is_documented() -> None:
    tables = {t.name: [c.name for c in t.columns] for t in schema.metadata.tables.values()}
    found = documented()
    assert {n: found.get(n) for n in tables} == tables
    assert set(found) == set(tables) | set(views.VIEWS)


def test_the_columns_of_views_are_those_promised(store_url: str) -> None:
    """Buyers' own SQL rests on them: the page comes first, the view follows."""
    found = documented()
    with Store.open(store_url) as store, store.engine.connect() as connection:
        for name in views.VIEWS:
            result = connection.execute(sa.text(f"SELECT * FROM {name}"))
            assert list(result.keys()) == found[name], name


def test_every_column_says_what_it_is() -> None:
    rows = re.findall(r"^\| (\w+) \| (.*) \|$", PAGE, re.MULTILINE)
    assert [c for c, what in rows if not what.strip()] == []


def test_the_page_shows_how_to_make_the_reading_role() -> None:
    assert MAKE_ROLE in PAGE
