"""docs/schema.md lists every table, view and column, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import sqlalchemy as sa

from querying import Fleet
from topobench.db import comments, schema, views
from topobench.db.comments import described
from topobench.db.readonly import MAKE_ROLE
from topobench.db.store import Store

PAGE = (Path(__file__).parent.parent / "docs" / "schema.md").read_text(encoding="utf-8")


def documented() -> dict[str, list[str]]:
    """Columns in order, by table or view."""
    return {d.name: list(d.columns) for d in described(PAGE)}


def test_every_table_and_column_is_documented() -> None:
    tables = {t.name: [c.name for c in t.columns] for t in schema.metadata.tables.values()}
    found = documented()
    assert {n: found.get(n) for n in tables} == tables
    assert set(found) == set(tables) | set(views.VIEWS)


def test_the_columns_of_views_are_those_promised(empty_url: str) -> None:
    """Buyers' own SQL rests on them: the page comes first, the view follows."""
    found = documented()
    with Store.open(empty_url) as store, store.engine.connect() as connection:
        for name in views.VIEWS:
            result = connection.execute(sa.text(f"SELECT * FROM {name}"))
            assert list(result.keys()) == found[name], name


def test_every_column_says_what_it_is() -> None:
    rows = re.findall(r"^\| (\w+) \| (.*) \|$", PAGE, re.MULTILINE)
    assert [c for c, what in rows if not what.strip()] == []


def test_the_page_shows_how_to_make_the_reading_role() -> None:
    assert MAKE_ROLE in PAGE


def test_the_package_carries_the_page_itself() -> None:
    assert comments.PAGE.read_text(encoding="utf-8") == PAGE


@pytest.mark.postgres
def test_postgresql_shows_the_page_s_words(postgres_fleet: Fleet) -> None:
    """On every table, view and column that has some."""
    text = """
        SELECT c.relname, a.attname, d.description
        FROM pg_description d
        JOIN pg_class c ON c.oid = d.objoid AND c.relnamespace = 'public'::regnamespace
        LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = d.objsubid AND a.attnum > 0
        WHERE d.classoid = 'pg_class'::regclass
    """
    with postgres_fleet.store.engine.connect() as connection:
        found = {(t, c): what for t, c, what in connection.execute(sa.text(text))}
    expected: dict[tuple[str, str | None], str] = {
        (d.name, c): what for d in described(PAGE) for c, what in d.columns.items()
    }
    expected.update({(d.name, None): d.about for d in described(PAGE) if d.about})
    assert found == expected
    assert found["v_peer", "z"].startswith("difference by 1.4826 times the MAD")
    assert found["v_coverage", None].startswith("Every known host, and when it was last measured")
