"""The same text of every query and view gives the same rows on every engine."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from querying import Fleet, given
from topobench.db import queries, schema, strays, views
from topobench.db.queries import Query, bind, list_queries
from topobench.db.readonly import plain
from topobench.stats import interval_ranks

ASKED = [q for q in list_queries() if q.name != "samples"]
"""Those whose answer is SQL's alone; topobench itself unpacks samples."""
UUID = re.compile(r"^[0-9a-f]{8}-[0-9a-f-]{27}$")
ROWS = 50
"""Inserted into DuckDB at a time, which takes a millisecond for each statement."""
FEW = {"form-factors": {"probe": "host_to_device", "metric": "band%", "seq_len": "0"}}
"""Parameters of queries whose defaults ask for what the made fleet did not measure."""


def comparable(rows: Iterable[Sequence[Any]]) -> list[str]:
    """Rows in one order, without what differs between two fillings: random UUIDs."""
    return sorted(repr([_value(plain(v)) for v in row]) for row in rows)


def _value(value: Any) -> Any:
    if isinstance(value, int | float):
        return f"{value:.10g}"
    return "uuid" if isinstance(value, str) and UUID.match(value) else value


def typed(query: Query) -> dict[str, str]:
    """The parameters each engine gets, as typed."""
    return {**given(query), **FEW.get(query.name, {})}


def expected(fleet: Fleet, query: Query) -> list[str]:
    return comparable(fleet.answer(query.name, **typed(query)).rows)


def with_literals(fleet: Fleet, query: Query) -> str:
    """The text with its parameters filled in, as one would by hand."""
    values = bind(fleet.store, query, typed(query))
    shown = {k: f"'{v}'" if isinstance(v, str) else repr(v) for k, v in values.items()}
    return re.sub(r":(\w+)", lambda m: shown[m[1]], queries._without_comments(query.sql))


def test_every_query_has_rows_to_compare(
    sqlite_fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And none of them looks as if the store held text where numbers belong."""
    monkeypatch.delattr(strays, "stray")
    empty = [q.name for q in ASKED if not expected(sqlite_fleet, q)]
    assert empty == []


def test_every_answer_tells_how_many_how_old_and_whose(sqlite_fleet: Fleet) -> None:
    """And an interval beside each median; the roll-up alone keeps none."""
    for query in list_queries():
        columns = sqlite_fleet.answer(query.name, **typed(query)).columns
        assert {"age_seconds", "source", "synthetic"} <= set(columns), query.name
        assert [c for c in columns if c == "n" or c.startswith("n_")], query.name
        if "median" in columns and query.name != "history":
            assert [c for c in columns if c.endswith("ci_lo")], query.name
            assert [c for c in columns if c.endswith("ci_hi")], query.name
            assert "ci_level" in columns, query.name


@pytest.mark.postgres
def test_postgresql_answers_every_query_as_sqlite_does(
    sqlite_fleet: Fleet, postgres_fleet: Fleet
) -> None:
    for query in ASKED:
        ours = sqlite_fleet.answer(query.name, **typed(query))
        theirs = postgres_fleet.answer(query.name, **typed(query))
        assert theirs.columns == ours.columns, query.name
        assert comparable(theirs.rows) == comparable(ours.rows), query.name


def test_history_is_the_same_by_series_and_by_night(fleet: Fleet) -> None:
    """Series are few here; with a bound of none they are read as those of a large fleet."""
    query = queries.load("history")
    assert query.sql.count("1000 THEN") == 2
    by_night = with_literals(fleet, query).replace("1000 THEN", "0 THEN")
    with fleet.store.engine.connect() as connection:
        rows = connection.execute(sa.text(by_night)).all()
    assert comparable(rows) == expected(fleet, query)


@pytest.mark.postgres
def test_postgresql_has_the_rows_of_every_view(sqlite_fleet: Fleet, postgres_fleet: Fleet) -> None:
    """Except numbers that an engine gives out itself."""
    for name in views.VIEWS:
        found = [_rows_of_view(fleet, name) for fleet in (sqlite_fleet, postgres_fleet)]
        assert found[0] == found[1], name
        assert found[0], name


def _rows_of_view(fleet: Fleet, name: str) -> list[str]:
    with fleet.store.engine.connect() as connection:
        result = connection.execute(sa.text(f"SELECT * FROM {name}"))
        kept = [n for n, c in enumerate(result.keys()) if not c.endswith("_id") and c != "fleet"]
        return comparable([row[n] for n in kept] for row in result)


def test_plain_sqlite3_takes_the_text_as_it_is(sqlite_fleet: Fleet) -> None:
    """The text of a query is ready for any client; only parameters must be given."""
    path = sqlite_fleet.url.removeprefix("sqlite:///")
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as connection:
        for query in ASKED:
            values = bind(sqlite_fleet.store, query, typed(query))
            rows = connection.execute(query.sql, values).fetchall()
            assert comparable(rows) == expected(sqlite_fleet, query), query.name
    connection.close()


@pytest.mark.skipif(shutil.which("sqlite3") is None, reason="the program sqlite3 is not here")
def test_the_program_sqlite3_gives_the_same_answers(sqlite_fleet: Fleet) -> None:
    path = sqlite_fleet.url.removeprefix("sqlite:///")
    script = ".mode json\n" + "".join(
        f".print ---\n{with_literals(sqlite_fleet, q)};\n" for q in ASKED
    )
    done = subprocess.run(
        ["sqlite3", "-readonly", "-batch", "-bail", path],
        input=script,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stderr == ""
    for query, text in zip(ASKED, done.stdout.split("---\n")[1:], strict=True):
        rows = [list(r.values()) for r in json.loads(text or "[]")]
        assert comparable(rows) == expected(sqlite_fleet, query), query.name


def test_duckdb_gives_the_same_answers(
    sqlite_fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over the same rows, with the views' own text."""
    monkeypatch.setitem(sys.modules, "pandas", None)  # it is looked for once for each value
    duckdb = pytest.importorskip("duckdb", reason="pip install duckdb runs this test")
    with duckdb.connect(config={"threads": 1}) as connection:
        _copy_tables(sqlite_fleet, connection)
        for statement in views.VIEWS.values():
            connection.execute(statement)
        _same_answers(sqlite_fleet, connection)


def test_duckdb_reads_the_sqlite_file_itself(sqlite_fleet: Fleet) -> None:
    duckdb = pytest.importorskip("duckdb", reason="pip install duckdb runs this test")
    with duckdb.connect(config={"autoinstall_known_extensions": False, "threads": 1}) as connection:
        try:
            connection.execute(f"LOAD {_sqlite_reader()}")
        except duckdb.Error as error:
            pytest.skip(f"DuckDB's SQLite reader is not installed: {str(error).splitlines()[0]}")
        path = sqlite_fleet.url.removeprefix("sqlite:///")
        connection.execute(f"ATTACH '{path}' AS store (TYPE sqlite, READ_ONLY)")
        connection.execute("USE store")
        _same_answers(sqlite_fleet, connection)


def _sqlite_reader() -> str:
    """DuckDB's extension from its wheel, which needs no network, else the installed one."""
    package = importlib.util.find_spec("duckdb_extension_sqlite_scanner")
    for folder in package.submodule_search_locations or () if package else ():
        for found in Path(folder).glob("extensions/*/*.duckdb_extension"):
            return f"'{found}'"
    return "sqlite"


def _same_answers(fleet: Fleet, connection: Any) -> None:
    for query in ASKED:
        rows = connection.execute(with_literals(fleet, query)).fetchall()
        assert comparable(rows) == expected(fleet, query), query.name


def _copy_tables(fleet: Fleet, connection: Any) -> None:
    """The tables as SQLite has them, in DuckDB: times are text, keys are whole numbers."""
    kinds = {"INTEGER": "BIGINT", "SMALLINT": "BIGINT", "TEXT": "VARCHAR", "DOUBLE": "DOUBLE"}
    with fleet.store.engine.connect() as source:
        for table in schema.metadata.sorted_tables:
            found = source.execute(sa.text(f"PRAGMA table_info({table.name})")).all()
            columns = ", ".join(f'"{r.name}" {kinds.get(r.type, "BLOB")}' for r in found)
            connection.execute(f'CREATE TABLE "{table.name}" ({columns})')
            rows = source.execute(sa.text(f'SELECT * FROM "{table.name}"')).all()
            row = f"({', '.join('?' * len(found))})"
            for start in range(0, len(rows), ROWS):
                some = rows[start : start + ROWS]
                marks = ", ".join([row] * len(some))
                values = [value for r in some for value in r]
                connection.execute(f'INSERT INTO "{table.name}" VALUES {marks}', values)


def test_the_intervals_of_medians_are_never_too_narrow() -> None:
    """The rule without roots that views and queries use, against exact binomial ranks."""
    text = """
        WITH RECURSIVE size(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM size WHERE n < 400),
        place(n, p) AS (SELECT n, 1 FROM size UNION ALL SELECT n, p + 1 FROM place WHERE p < n)
        SELECT n,
            max(CASE WHEN 2 * p <= n AND (n + 1 - 2 * p) * (n + 1 - 2 * p) >= 3.8416 * n
                THEN p END),
            min(CASE WHEN 2 * p > n AND (n + 1 - 2 * p) * (n + 1 - 2 * p) >= 3.8416 * n
                THEN p END)
        FROM place GROUP BY n ORDER BY n
    """
    with sqlite3.connect(":memory:") as connection:
        found = {n: (lo, hi) for n, lo, hi in connection.execute(text)}
    connection.close()
    for n, (lo, hi) in found.items():
        exact = interval_ranks(n)
        if exact is None:
            assert (n < 6, lo, hi) == (True, None, None)
        else:
            assert (exact[0] - lo in (0, 1), lo + hi) == (True, n + 1), n
