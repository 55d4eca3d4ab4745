"""deploy/postgres/roles.sql on a real server: who may write, who may only read."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from postgres import Server
from storing import begin, cell, reading, run
from topobench.db.readonly import run_sql
from topobench.db.store import Store
from topobench.errors import StoreError, UsageError

ROLES = Path(__file__).parents[1] / "deploy" / "postgres" / "roles.sql"
pytestmark = pytest.mark.postgres


@pytest.fixture(scope="module")
def database(postgres_server: Server) -> Iterator[str]:
    """A database with both roles, a store made and filled by topobench_write."""
    name = f"roles{uuid.uuid4().hex[:8]}"
    postgres_server.new_database(name)
    with postgres_server.admin(name) as connection:
        for _ in range(2):  # once more changes nothing
            connection.execute(ROLES.read_bytes())
        connection.execute("CREATE SCHEMA other")
        connection.execute("CREATE TABLE other.secret AS SELECT 1 AS x")
    planned = cell()
    with Store.open(postgres_server.url(name, "topobench_write")) as store:
        begin(store, planned)
        store.put_run(run(planned, reading(2.0)))
    yield name
    with postgres_server.admin(name) as connection:
        for role in ("topobench_read", "topobench_write"):
            connection.execute(f"DROP OWNED BY {role}")
            connection.execute(f"DROP ROLE {role}")


def test_the_reader_reads_what_the_writer_made(postgres_server: Server, database: str) -> None:
    url = postgres_server.url(database, "topobench_read")
    assert run_sql(url, "SELECT host, median FROM v_latest").rows == (("k1", 2.0),)
    with Store.open(url, create=False, read_only=True) as store:
        assert store.info()["rows"]["run"] == 1


def test_a_superuser_s_free_sql_is_asked_by_the_reader(
    postgres_server: Server, database: str
) -> None:
    url = postgres_server.url(database, "postgres")
    assert run_sql(url, "SELECT current_user::text").rows == (("topobench_read",),)


@pytest.mark.parametrize(
    "text",
    [
        "SELECT pg_read_file('/etc/passwd')",
        "SELECT pg_ls_dir('/')",
        "COPY (SELECT 1) TO PROGRAM 'true'",
        "SELECT * FROM other.secret",
        "SELECT 1; DELETE FROM run",
        "SELECT set_config('role', 'topobench_write', false)",
        "SELECT lo_import('/etc/passwd')",
        "CREATE TEMP TABLE x (y INTEGER)",
    ],
)
def test_the_reader_s_free_sql_reaches_nothing_else(
    postgres_server: Server, database: str, text: str
) -> None:
    with pytest.raises(UsageError):
        run_sql(postgres_server.url(database, "topobench_read"), text)


def test_endless_sql_of_the_reader_is_ended(postgres_server: Server, database: str) -> None:
    text = "WITH RECURSIVE x(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM x) SELECT max(n) FROM x"
    with pytest.raises(StoreError, match=r"longer than 0\.3 s"):
        run_sql(postgres_server.url(database, "topobench_read"), text, timeout_seconds=0.3)


def test_the_reader_cannot_write_even_in_a_session_of_its_own(
    postgres_server: Server, database: str
) -> None:
    """The defaults of the role are a courtesy; the grants hold without them."""
    with psycopg.connect(
        host=postgres_server.socket, user="topobench_read", dbname=database, autocommit=True
    ) as connection:
        settings = [
            connection.execute(f"SHOW {name}".encode()).fetchone()
            for name in ("default_transaction_read_only", "statement_timeout")
        ]
        assert settings == [("on",), ("1min",)]
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
            connection.execute("DELETE FROM run")
        connection.execute("SET default_transaction_read_only = off")
        for text in (b"DELETE FROM run", b"CREATE TABLE x (y INTEGER)", b"DROP TABLE run"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(text)
    with (
        Store.open(postgres_server.url(database, "topobench_read")) as store,
        pytest.raises(StoreError, match=r"permission denied for table sweep: .*roles\.sql"),
    ):
        begin(store, cell())


def test_others_do_not_get_in(postgres_server: Server, database: str) -> None:
    with postgres_server.admin() as connection:
        connection.execute("CREATE ROLE stranger LOGIN")
    try:
        with pytest.raises(StoreError, match="permission denied for database"):
            run_sql(postgres_server.url(database, "stranger"), "SELECT 1")
    finally:
        with postgres_server.admin() as connection:
            connection.execute("DROP ROLE stranger")


def test_the_writer_is_no_superuser(postgres_server: Server, database: str) -> None:
    """So its own free SQL is asked by itself."""
    url = postgres_server.url(database, "topobench_write")
    assert run_sql(url, "SELECT current_user::text").rows == (("topobench_write",),)
    with pytest.raises(UsageError, match="read-only transaction"):
        run_sql(url, "SELECT nextval(pg_get_serial_sequence('run', 'id'))")
