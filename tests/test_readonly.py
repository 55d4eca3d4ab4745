"""Free SQL only reads, whatever is tried."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from postgres import Server
from storing import begin, cell, reading, run
from topobench.db import readonly
from topobench.db.readonly import MAKE_ROLE, run_sql
from topobench.db.store import Store
from topobench.errors import NotFound, StoreError, UsageError


@pytest.fixture
def url(store_url: str) -> str:
    """A store with one reading."""
    planned = cell()
    with Store.open(store_url) as store:
        begin(store, planned)
        store.put_run(run(planned, reading(2.0, samples=[1.0, 2.0, 3.0])))
    return store_url


@pytest.fixture
def file(tmp_path: Path, made_file: Path) -> Path:
    """A SQLite store with one reading, closed."""
    path = tmp_path / "store" / "topobench.db"
    path.parent.mkdir()
    shutil.copyfile(made_file, path)
    planned = cell()
    with Store.open(f"sqlite:///{path}") as store:
        begin(store, planned)
        store.put_run(run(planned, reading(2.0)))
    return path


def test_a_select_gives_plain_values(url: str) -> None:
    answer = run_sql(
        url,
        "SELECT host, median, n, measured_at, (SELECT data FROM sample) AS raw, "
        "(SELECT sum(n) FROM reading) AS total FROM v_latest",
    )
    assert answer.columns == ("host", "median", "n", "measured_at", "raw", "total")
    samples = "0000803f" + "00000040" + "00004040"
    assert answer.rows == (("k1", 2.0, 3, "2026-11-02T01:00:05.000000Z", samples, 3),)


def test_a_with_query_and_a_percent_sign_work(url: str) -> None:
    text = "WITH x AS (SELECT name FROM host WHERE name LIKE 'k%') SELECT * FROM x;"
    assert run_sql(url, text).rows == (("k1",),)


ENDLESS = "WITH RECURSIVE x(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM x) SELECT count(*) FROM x"
WRITES = [
    "DELETE FROM run",
    "INSERT INTO cluster (name) VALUES ('x')",
    "UPDATE reading SET median = 9",
    "CREATE TABLE x (y INTEGER)",
    "DROP TABLE run",
    "WITH x AS (DELETE FROM run RETURNING id) SELECT * FROM x",
    "SELECT 1; DELETE FROM run",
    "COMMIT",
    "BEGIN",
    "",
]
SQLITE_WRITES = [
    "ATTACH DATABASE '{other}' AS other",
    "VACUUM INTO '{other}'",
    "VACUUM",
    "PRAGMA journal_mode=DELETE",
    "PRAGMA user_version=7",
    "PRAGMA table_info(run)",
    "SELECT * FROM pragma_database_list",
    "SELECT load_extension('x')",
    "REINDEX",
    "ANALYZE",
    "CREATE TEMP TABLE x (y)",
    "SAVEPOINT x",
    "REPLACE INTO cluster (id, name) VALUES (1, 'x')",
    "EXPLAIN DELETE FROM run",
]
POSTGRES_WRITES = [
    "COPY run TO PROGRAM 'touch {other}'",
    "COPY (SELECT 1) TO '{other}'",
    "COPY run TO STDOUT",
    "SELECT set_config('transaction_read_only', 'off', false)",
    "SET TRANSACTION READ WRITE",
    "SELECT 1; COMMIT; DELETE FROM run",
    "DO $$ BEGIN DELETE FROM run; END $$",
    "SELECT * INTO x FROM run",
    "SELECT nextval(pg_get_serial_sequence('run', 'id'))",
    "SELECT pg_read_file('/etc/passwd')",
    "SELECT pg_ls_dir('/')",
    "SELECT lo_import('/etc/passwd')",
    "SELECT query_to_xml('DELETE FROM run RETURNING 1', false, false, '')",
    "SELECT * FROM run FOR UPDATE",
    "LOCK TABLE run",
    "CALL nothing()",
    "PREPARE x AS DELETE FROM run",
    "NOTIFY x",
    "EXPLAIN ANALYZE DELETE FROM run",
]


@pytest.mark.parametrize("text", WRITES)
def test_what_is_no_select_is_refused(url: str, text: str) -> None:
    with pytest.raises(UsageError):
        run_sql(url, text)
    assert run_sql(url, "SELECT count(*) FROM run").rows == ((1,),)
    assert run_sql(url, "SELECT max(median) FROM reading").rows == ((2.0,),)


@pytest.mark.parametrize("text", SQLITE_WRITES)
def test_sqlite_refuses_every_way_to_write(file: Path, tmp_path: Path, text: str) -> None:
    other = tmp_path / "other.db"
    before = file.read_bytes()
    with pytest.raises(UsageError):
        run_sql(f"sqlite:///{file}", text.format(other=other))
    assert not other.exists()
    assert file.read_bytes() == before


@pytest.mark.postgres
@pytest.mark.parametrize("text", POSTGRES_WRITES)
def test_postgresql_refuses_every_way_to_write(
    postgres_store_url: str, postgres_server: Server, tmp_path: Path, text: str
) -> None:
    """With the role that owns the tables, which could write in its own sessions."""
    other = postgres_server.folder / "written"  # where the server itself could write
    planned = cell()
    with Store.open(postgres_store_url) as store:
        begin(store, planned)
        store.put_run(run(planned, reading(2.0)))
    with pytest.raises(UsageError):
        run_sql(postgres_store_url, text.format(other=other))
    assert not other.exists()
    assert run_sql(postgres_store_url, "SELECT count(*) FROM run").rows == ((1,),)


@pytest.mark.postgres
def test_a_superuser_is_refused_with_the_lines_that_help(
    postgres_server: Server, postgres_store_url: str
) -> None:
    """Its SELECT could read files of the server, whatever transaction it is in."""
    Store.open(postgres_store_url).close()
    database = postgres_store_url.split("@/")[1].split("?")[0]
    admin = postgres_server.url(database, user="postgres")
    with pytest.raises(StoreError, match="free SQL is refused") as refused:
        run_sql(admin, "SELECT pg_read_file('/etc/passwd')")
    assert "CREATE ROLE topobench_read LOGIN;" in str(refused.value)


@pytest.mark.postgres
def test_a_superuser_s_question_is_asked_by_the_reading_role_if_there_is_one(
    postgres_server: Server, postgres_store_url: str
) -> None:
    Store.open(postgres_store_url).close()
    database = postgres_store_url.split("@/")[1].split("?")[0]
    admin = postgres_server.url(database, user="postgres")
    with postgres_server.admin(database) as connection:
        connection.execute(MAKE_ROLE.encode())
    try:
        answer = run_sql(admin, "SELECT session_user::text, count(*) FROM v_latest")
        assert answer.rows == (("topobench_read", 0),)
        for text in (
            "SELECT set_config('role', 'postgres', false)",
            "SELECT set_config('session_authorization', 'postgres', false)",
            "SELECT pg_read_file('/etc/passwd')",
        ):
            with pytest.raises(UsageError):
                run_sql(admin, text)
    finally:
        with postgres_server.admin(database) as connection:
            connection.execute("DROP OWNED BY topobench_read")
            connection.execute("DROP ROLE topobench_read")


def test_wrong_sql_is_a_usage_error_with_the_database_s_words(url: str) -> None:
    with pytest.raises(UsageError, match="medium"):
        run_sql(url, "SELECT medium FROM v_latest")


def test_a_name_that_is_not_there_leads_to_those_that_are(url: str) -> None:
    with pytest.raises(UsageError, match=r"views are v_reading, v_latest, .*docs/schema\.md"):
        run_sql(url, "SELECT * FROM latest")
    with pytest.raises(UsageError, match=r"docs/schema\.md has the columns"):
        run_sql(url, "SELECT gpu FROM v_latest")


def test_a_view_of_a_later_version_is_made_by_an_upgrade(sqlite_store_url: str) -> None:
    with Store.open(sqlite_store_url) as store, store.engine.begin() as connection:
        connection.exec_driver_sql("DROP VIEW v_verdict")
    with pytest.raises(UsageError, match="`topobench db upgrade` makes it"):
        run_sql(sqlite_store_url, "SELECT level FROM v_verdict")


def test_a_query_without_end_is_ended(url: str) -> None:
    with pytest.raises(StoreError, match=r"longer than 0\.5 s"):
        run_sql(url, ENDLESS, timeout_seconds=0.5)


def test_a_signal_ends_a_query_as_a_signal(url: str) -> None:
    """SQLite's own callback swallows what Python raises in it."""
    threading.Timer(0.5, signal.raise_signal, [signal.SIGINT]).start()
    with pytest.raises(KeyboardInterrupt):
        run_sql(url, ENDLESS)


@pytest.mark.postgres
def test_a_query_that_lifts_its_limit_is_ended_all_the_same(postgres_store_url: str) -> None:
    """The server counts each step of a cursor for itself."""
    text = (
        "SELECT set_config('statement_timeout', '0', false), "
        "CASE WHEN n > 100 THEN pg_sleep(30) END FROM generate_series(1, 101) n"
    )
    with pytest.raises(StoreError, match=r"longer than 0\.5 s"):
        run_sql(postgres_store_url, text, timeout_seconds=0.5)


def test_an_answer_too_large_for_memory_is_refused(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readonly, "MAX_ANSWER_BYTES", 1_000_000)
    wide = "replace(printf('%01000d', 1), '0', 'x')" if "sqlite" in url else "repeat('x', 1000)"
    text = f"WITH RECURSIVE x(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM x) SELECT {wide} FROM x"
    with pytest.raises(UsageError, match="more than 1 MB of text"):
        run_sql(url, text)


@pytest.mark.postgres
def test_every_type_of_postgresql_has_a_plain_value(postgres_store_url: str) -> None:
    text = (
        "SELECT 'NaN'::numeric::text, '1.50'::numeric, 2::numeric, 'Infinity'::numeric, "
        "'10.9.0.10'::inet, int4range(1, 3), interval '1 day', ARRAY[now()] IS NULL, "
        """'{"a": [1.5]}'::jsonb, ARRAY[1, 2]"""
    )
    answer = run_sql(postgres_store_url, text)
    assert answer.rows == (
        (
            *("NaN", 1.5, 2, float("inf"), "10.9.0.10", "[1, 3)", "1 day, 0:00:00", False),
            *('{"a": [1.5]}', "[1, 2]"),
        ),
    )
    assert str(run_sql(postgres_store_url, "SELECT 'NaN'::numeric").rows) == "((nan,),)"
    with pytest.raises(UsageError, match="requires 1"):
        run_sql(postgres_store_url, "SELECT $1")


def test_an_absent_file_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        run_sql(f"sqlite:///{tmp_path}/none.db", "SELECT 1")
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_no_database_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    path.write_text("this is a text file, not a database, and long enough to look at\n" * 40)
    with pytest.raises(StoreError, match=r"x\.db: .*not a database"):
        run_sql(f"sqlite:///{path}", "SELECT 1")


_READ = """
import os, sys
from topobench.db.readonly import run_sql
os.setgroups([]); os.setgid(65534); os.setuid(65534)
print(run_sql(sys.argv[1], "SELECT median FROM v_latest").rows)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become a user who may only read")
def test_a_user_who_may_only_read_reads(file: Path) -> None:
    """In a folder where SQLite can't make its shared-memory file."""
    folder = Path("/var/tmp") / f"topobench-test-{os.getpid()}"  # users can't enter pytest's
    try:
        shutil.copytree(file.parent, folder)
        folder.chmod(0o755)
        (folder / file.name).chmod(0o644)
        assert sorted(p.name for p in folder.iterdir()) == ["topobench.db"]
        done = subprocess.run(
            [sys.executable, "-c", _READ, f"sqlite:///{folder}/topobench.db"],
            capture_output=True,
            text=True,
            timeout=60,
            cwd=Path(__file__).parent.parent,
            check=False,
        )
        assert done.stdout == "((2.0,),)\n", done.stderr
        assert sorted(p.name for p in folder.iterdir()) == ["topobench.db"]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def test_readers_see_what_a_writer_has_not_yet_checkpointed(file: Path) -> None:
    with Store.open(f"sqlite:///{file}") as store:
        planned = cell(process_no=1)
        begin(store, planned, day=3)
        store.put_run(run(planned, reading(5.0), day=3))
        answer = run_sql(f"sqlite:///{file}", "SELECT max(median) FROM v_reading")
    assert answer.rows == ((5.0,),)


def test_plain_sqlite3_reads_the_views(file: Path) -> None:
    """Buyers need nothing of ours."""
    with sqlite3.connect(file) as connection:
        assert connection.execute("SELECT host, median FROM v_latest").fetchall() == [("k1", 2.0)]
    connection.close()
