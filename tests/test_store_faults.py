"""What breaks around a store: full disks, killed writers, servers that go, half-copied files."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from documents import check as check_document
from postgres import Server
from storing import LATENCY, at, at_revision, begin, cell, count, host, reading, run
from topobench import cli
from topobench.db import look, migrate, schema
from topobench.db.engine import make_engine, parse_url, writing
from topobench.db.merge import import_store
from topobench.db.recorder import Recorder
from topobench.db.spool_import import import_spool
from topobench.db.store import Store
from topobench.db.strays import blame
from topobench.errors import StoreError, StoreUnreachable
from topobench.upkeep import db_upgrade

OLDER = migrate.older()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 3 MiB."""
    place = tmp_path / "small"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a file system of its own needs root that may mount")
    yield place
    subprocess.run(["umount", str(place)], check=True)


@pytest.mark.root
def test_a_disk_that_fills_up_loses_no_run(small_disk: Path, tmp_path: Path) -> None:
    """What fits stays readable, the rest is spooled elsewhere and comes in once there is room."""
    url = f"sqlite:///{small_disk}/topobench.db"
    ballast = small_disk / "ballast"
    cells = [cell(process_no=n) for n in range(6)]
    warned: list[str] = []
    spool = tmp_path / "spool"
    with Recorder.open(url, folder=spool, warn=warned.append) as recorder:
        sweep = begin(recorder, *cells)
        recorder.put_run(run(cells[0], reading(1.0)))
        with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while file.write(b"x" * 65536):
                pass
        for planned in cells[1:]:
            recorder.put_run(run(planned, reading(2.0, samples=[2.0] * 20_000)))
        assert recorder.spooled
        recorder.end_sweep(sweep)
    assert any("make room on the disk" in w or "look at the disk" in w for w in warned)
    ballast.unlink()
    with Store.open(url) as store:
        assert store.sweep_document(sweep)["cells"][0]["readings"][0]["median"] == 1.0
        import_spool(store, spool)
        assert store.sweep_document(sweep)["counts"] == {"ok": 6}
        assert count(store, "run") == 6


_WRITE = """
import sys
sys.path.insert(0, "tests")
from storing import begin, cell, reading, run
from topobench.db.store import Store
cells = [cell(process_no=n) for n in range(400)]
with Store.open(sys.argv[1]) as store:
    begin(store, *cells)
    for planned in cells:
        store.put_run(run(planned, *[reading(1.0, samples=[1.0] * 500) for _ in range(4)]))
        print("stored", flush=True)
"""


def test_a_writer_killed_at_any_moment_leaves_whole_runs(store_url: str) -> None:
    """What it said was stored is there; of the run it was storing all or nothing is."""
    told = 0
    child = subprocess.Popen(
        [sys.executable, "-c", _WRITE, store_url],
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parent.parent,
    )
    assert child.stdout is not None
    with child:
        while told < 15 and child.stdout.readline():
            told += 1
        child.send_signal(signal.SIGKILL)
        told += len(child.stdout.read().splitlines())
    with Store.open(store_url) as store:
        runs = count(store, "run")
        assert told <= runs <= told + 1
        assert (count(store, "reading"), count(store, "sample")) == (4 * runs, 4 * runs)
        assert store.sweep_document()["counts"] == {"ok": runs, "planned": 400 - runs}
        again = cell()
        begin(store, again)
        assert str(store.put_run(run(again, reading(1.0)))) == "stored"


def test_a_file_copied_without_its_log_is_an_earlier_state(tmp_path: Path) -> None:
    """Whole and readable; what only the log held is missing, and importing brings it in."""
    cells = [cell(process_no=n) for n in range(2)]
    late = run(cells[1], reading(2.0))
    copy = tmp_path / "copy.db"
    with Store.open(f"sqlite:///{tmp_path}/x.db") as store:
        begin(store, *cells)
        store.put_run(run(cells[0], reading(1.0)))
        with store.engine.connect() as connection:
            connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
        store.put_run(late)
        copy.write_bytes((tmp_path / "x.db").read_bytes())
        with Store.open(f"sqlite:///{copy}") as copied:
            assert copied.sweep_document()["counts"] == {"ok": 1, "planned": 1}
            assert str(copied.put_run(late)) == "stored"


def test_two_stores_of_one_database_take_turns(store_url: str) -> None:
    """Two writers in threads of their own: every run once, nobody gives up."""
    cells = [cell(process_no=n) for n in range(60)]
    failures: list[BaseException] = []

    def write(own: list[Any]) -> None:
        try:
            with Store.open(store_url) as store:
                for planned in own:
                    store.put_run(run(planned, reading(1.0)))
        except BaseException as error:
            failures.append(error)

    with Store.open(store_url) as store:
        begin(store, *cells)
        threads = [threading.Thread(target=write, args=(cells[n::2],)) for n in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
        assert store.sweep_document()["counts"] == {"ok": 60}


@pytest.mark.postgres
def test_a_server_lost_in_mid_commit_leaves_the_run_once(
    postgres_server: Server, postgres_url: str
) -> None:
    """
    The writer cannot know whether its commit went through; asking again by UUID settles it.

    Commits wait for a standby that never comes, so that the server is stopped inside one.
    """
    planned = cell()
    done = run(planned, reading(1.0))
    caught: list[BaseException] = []

    def put(store: Store) -> None:
        try:
            store.put_run(done)
        except StoreUnreachable as error:
            caught.append(error)

    with Store.open(postgres_url) as store:
        begin(store, planned)
        with postgres_server.admin() as connection:
            connection.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
            connection.execute("SELECT pg_reload_conf()")
        try:
            thread = threading.Thread(target=put, args=(store,))
            thread.start()
            _wait_for_commit(postgres_server)
            postgres_server.halt()
        finally:
            thread.join(60)
            auto = postgres_server.folder / "postgresql.auto.conf"
            auto.write_text("")
            postgres_server.resume()
        assert len(caught) == 1
        outcome = str(store.put_run(done))
        assert outcome == "already stored"  # it was on disk; only the answer was lost
        assert (count(store, "run"), count(store, "reading")) == (1, 1)


def _wait_for_commit(server: Server) -> None:
    deadline = time.monotonic() + 60
    with server.admin() as connection:
        while time.monotonic() < deadline:
            query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
            row = connection.execute(query).fetchone()
            if row and row[0]:
                return
            time.sleep(0.05)
    pytest.fail("no commit waits for the standby")


@pytest.mark.parametrize("revision", OLDER)
def test_a_store_of_any_earlier_schema_is_upgraded_with_its_data(
    tmp_path: Path, revision: str
) -> None:
    """After a copy of it; its numbers, views and nights are there, and it goes on."""
    path = tmp_path / "topobench.db"
    sweep = at_revision(path, revision)
    with Store.open(f"sqlite:///{path}") as store:
        assert (tmp_path / f"topobench.db.before-upgrade-from-{revision}").exists()
        with store.engine.connect() as connection:
            names = connection.execute(sa.select(schema.host.c.name)).scalars().all()
            assert names == ["k1"]
            rolled = connection.execute(sa.select(schema.night_rollup.c.median)).scalars().all()
            latest = connection.execute(sa.text("SELECT median FROM v_latest")).scalars().all()
        if revision != "0001":  # hosts alone
            assert store.sweep_document(sweep)["cells"][0]["readings"][0]["median"] == 7.0
            assert (rolled, latest) == ([7.0], [7.0])
            with store.engine.connect() as connection:
                told = connection.execute(
                    sa.select(schema.run.c.attention, schema.environment.c.governor).select_from(
                        schema.run.join(schema.environment)
                    )
                ).all()
            assert [tuple(row) for row in told] == [("flash", "powersave")]
        planned = cell()
        begin(store, planned, hosts=[host(gpus=1)], day=3)
        assert str(store.put_run(run(planned, reading(8.0), day=3))) == "stored"


@pytest.mark.postgres
@pytest.mark.parametrize("revision", OLDER)
def test_an_earlier_schema_on_a_server_is_upgraded(postgres_url: str, revision: str) -> None:
    engine = make_engine(parse_url(postgres_url))
    with writing(engine) as connection:
        migrate._run_alembic(connection, migrate.SCRIPTS, revision)
        connection.execute(
            sa.text("INSERT INTO sku (name, gpu_model) VALUES ('h200-sxm8', 'NVIDIA H200')")
        )
    engine.dispose()
    with Store.open(postgres_url) as store:
        assert count(store, "sku") == 1
        planned = cell()
        begin(store, planned)
        assert str(store.put_run(run(planned, reading(8.0)))) == "stored"


def test_tables_that_are_not_those_of_their_schema_stay_as_they_are(store_url: str) -> None:
    """A database half restored, or edited by hand, is told from one that is no store."""
    with Store.open(store_url) as store, writing(store.engine) as connection:
        connection.execute(sa.text(f"UPDATE alembic_version SET version_num = '{OLDER[-1]}'"))
    with pytest.raises(StoreError, match=f"from schema {OLDER[-1]} .*nothing was changed"):
        Store.open(store_url)
    engine = make_engine(parse_url(store_url))
    with contextlib.closing(engine.connect()) as connection:
        assert connection.execute(sa.text("SELECT count(*) FROM v_latest")).scalar() == 0
    engine.dispose()


def test_an_upgrade_makes_views_anew_with_what_rests_on_them(store_url: str) -> None:
    """Also of a store that is at this schema, whose views may be those of an earlier mend."""
    with Store.open(store_url) as store:
        begin(store, cell())
        with writing(store.engine) as connection:
            connection.execute(sa.text("CREATE VIEW own AS SELECT host FROM v_latest"))
            connection.execute(sa.text("DROP VIEW v_knee"))
    db_upgrade(store_url)
    with Store.open(store_url) as store, store.engine.connect() as connection:
        assert connection.execute(sa.text("SELECT count(*) FROM own")).scalar() == 0
        assert connection.execute(sa.text("SELECT count(*) FROM v_knee")).scalar() == 0


def test_a_text_edited_by_hand_is_no_bug_of_ours(sqlite_store_url: str) -> None:
    with Store.open(sqlite_store_url) as store:
        begin(store, cell(), hosts=[host(gpus=1)])
        with writing(store.engine) as connection:
            connection.execute(sa.text("UPDATE topology SET document = '{'"))
        with pytest.raises(StoreError, match=r"holds '\{' where a JSON text belongs"):
            look.topologies(store, "latest")


@pytest.mark.parametrize(
    ("table", "column", "kind", "command"),
    [
        ("reading", "median", "number", ["report", "--format", "json"]),
        ("reading", "n", "whole number", ["report", "--format", "csv"]),
        ("reading", "median", "number", ["query", "latest"]),
        ("sweep", "estimated_seconds", "number", ["report"]),
        ("reading", "median", "number", ["check"]),
        ("reading", "point", "JSON text", ["report"]),
        ("sweep", "started_at", "time", ["report"]),
    ],
)
def test_a_value_edited_by_hand_is_named_with_its_place(
    sqlite_store_url: str,
    capsys: pytest.CaptureFixture[str],
    table: str,
    column: str,
    kind: str,
    command: list[str],
) -> None:
    planned = cell(), cell()
    with Store.open(sqlite_store_url) as store:
        sweep = begin(store, *planned, hosts=[host(gpus=1)])
        for each in planned:
            store.put_run(run(each, reading(7.0)))
        store.end_sweep(sweep, ended_at=at(60))
        with writing(store.engine) as connection:
            key = schema.metadata.tables[table].primary_key.columns[0].name
            last = f"(SELECT max({key}) FROM {table})"
            connection.exec_driver_sql(f"UPDATE {table} SET {column} = '12,5' WHERE {key} = {last}")
    assert cli.main([*command, "--store", sqlite_store_url]) == (3 if "check" in command else 1)
    out, err = capsys.readouterr()
    place = f"table {table}, row {key} "
    assert place in out + err
    assert f"column {column} holds '12,5' where a {kind} belongs" in out + err
    assert "fault in topobench" not in err


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("UPDATE reading SET median = x'01'", "median holds .* where a number belongs"),
        ("UPDATE reading SET median = 9e999", "median holds 'inf' where a number belongs"),
        ("UPDATE cell SET process_no = 9e999", "holds 'inf' where a whole number belongs"),
        ("UPDATE reading SET point = '-5'", "point holds '-5' where a JSON text belongs"),
        ("UPDATE cell SET status = x'01'", "status holds .* where a text belongs"),
        (
            "UPDATE arm SET id = -5",
            "table series, row id 1, column arm_id holds '1' where the id of a row of arm belongs",
        ),
    ],
)
def test_what_else_a_hand_may_write_is_named_too(
    sqlite_store_url: str, change: str, told: str
) -> None:
    planned = cell()
    with Store.open(sqlite_store_url) as store:
        begin(store, planned, hosts=[host(gpus=1)])
        store.put_run(run(planned, reading(7.0)))
    assert blame(sqlite_store_url) is None
    by_hand(sqlite_store_url, change)
    with pytest.raises(StoreError, match=told):
        raise blame(sqlite_store_url) or AssertionError("nobody noticed")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("reading SET metric_id = 'm' WHERE seq = 1", ("reading", "run_id 1, seq 1", "metric")),
        ("reading SET run_id = 77 WHERE seq = 1", ("reading", "run_id 77, seq 1", "run")),
        ("run SET cell_id = 77", ("run", "id 1", "cell")),
        ("run SET sweep_id = x'01'", ("run", "id 1", "sweep")),
        ("cell SET series_id = 1.5", ("cell", "id 1", "series")),
        ("series SET host_id = '5 or so'", ("series", "id 1", "host")),
    ],
)
def test_a_key_that_leads_nowhere_is_told_where_rows_would_be_missing(
    sqlite_store_url: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    change: str,
    told: tuple[str, str, str],
) -> None:
    """By whatever reads them; what was asked for is not answered without them."""
    planned = cell()
    with Store.open(sqlite_store_url) as store:
        sweep = begin(store, planned, hosts=[host(gpus=1)])
        store.put_run(run(planned, reading(7.0), reading(8.0, metric=LATENCY)))
        store.end_sweep(sweep, ended_at=at(60))
    by_hand(sqlite_store_url, f"UPDATE {change}")
    table, row, other = told
    place = f"table {table}, row {row}, column {other}_id holds"
    for command, code in (
        (["report"], 1),
        (["report", "--html", str(tmp_path / "x.html")], 1),
        (["query", "latest"], 1),
        (["check"], 3),
        (["compare", "latest", "latest"], 2),
        (["db", "export", str(tmp_path / "out")], 1),
        (["db", "check"], 1),
    ):
        assert cli.main([*command, "--store", sqlite_store_url]) == code, command
        text = "".join(capsys.readouterr())
        assert place in " ".join(text.split()), command
        assert f"where the id of a row of {other} belongs" in " ".join(text.split()), command


def test_db_check_lists_what_a_hand_wrote_by_column(
    sqlite_store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """In its JSON with the first row of each, and how many there are; a sound store has none."""
    planned = cell(), cell()
    with Store.open(sqlite_store_url) as store:
        begin(store, *planned, hosts=[host(gpus=1)])
        for each in planned:
            store.put_run(run(each, reading(7.0)))
    command = ["db", "check", "--format", "json", "--store", sqlite_store_url]
    assert cli.main(command) == 0
    sound = json.loads(capsys.readouterr().out)
    check_document(sound, "db-check")
    assert (sound["status"], sound["data"]["problems"]) == ("ok", [])
    by_hand(sqlite_store_url, "UPDATE reading SET metric_id = 'm', median = 'fast'")
    by_hand(sqlite_store_url, "UPDATE run SET environment_id = 9 WHERE id = 2")
    assert cli.main(command) == 1
    found = json.loads(capsys.readouterr().out)
    check_document(found, "db-check")
    kept = ("table", "row", "column", "value", "belongs", "rows")
    assert found["status"] == "edited"
    assert [tuple(problem[k] for k in kept) for problem in found["data"]["problems"]] == [
        ("run", {"id": 2}, "environment_id", "9", "the id of a row of environment", 1),
        (
            *("reading", {"run_id": 1, "seq": 0}, "metric_id", "m"),
            *("the id of a row of metric", 2),
        ),
        ("reading", {"run_id": 1, "seq": 0}, "median", "fast", "a number", 2),
    ]


def by_hand(url: str, change: str) -> None:
    """Change a SQLite store as its own shell does, which looks at no key."""
    with contextlib.closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as file:
        file.execute("PRAGMA ignore_check_constraints = ON")
        file.execute(change)
        file.commit()


def test_infinity_is_no_median_of_a_document(sqlite_store_url: str) -> None:
    """It would be drawn as unknown in one format and as a number in another."""
    planned = cell()
    with Store.open(sqlite_store_url) as store:
        sweep = begin(store, planned, hosts=[host(gpus=1)])
        store.put_run(run(planned, reading(7.0)))
        with writing(store.engine) as connection:
            connection.exec_driver_sql("UPDATE reading SET median = 9e999")
        with pytest.raises(StoreError, match="median holds 'inf' where a number belongs"):
            store.sweep_document(sweep)


def test_a_run_of_a_clock_that_ran_ahead_is_the_latest_no_longer(
    store_url: str, tmp_path: Path
) -> None:
    """Once a run comes that is not of the future; also by an import."""
    ahead, after = cell(), cell()
    with Store.open(store_url) as store:
        begin(store, ahead)
        store.put_run(replace(run(ahead, reading(7.0)), started_at="9999-01-01T00:00:00Z"))
        assert latest(store) == [7.0]
        begin(store, after, day=3)
        store.put_run(replace(run(after, reading(8.0)), started_at="2020-01-02T00:00:00Z"))
        assert latest(store) == [8.0]
    with Store.open(f"sqlite:///{tmp_path}/other.db") as other:
        import_store(other, store_url)
        assert latest(other) == [8.0]


def latest(store: Store) -> list[float]:
    with store.engine.connect() as connection:
        query = sa.text("SELECT median FROM v_latest")
        return list(connection.execute(query).scalars())


def test_keys_are_looked_at_once_as_long_as_the_file_stays_as_it_was(sqlite_store_url: str) -> None:
    """A server answers many times between two nights; a hand's change is seen at once."""
    planned = cell()
    with Store.open(sqlite_store_url) as store:
        sweep = begin(store, planned, hosts=[host(gpus=1)])
        store.put_run(run(planned, reading(7.0)))
        store.end_sweep(sweep, ended_at=at(60))
    long_ago = time.time() - 60
    os.utime(str(parse_url(sqlite_store_url).database), (long_ago, long_ago))
    asked: list[str] = []
    with Store.open(sqlite_store_url) as store:

        def keep(_c: Any, _u: Any, statement: str, *_more: Any) -> None:
            asked.append(statement)

        sa.event.listen(store.engine, "before_cursor_execute", keep)
        look.check_keys(store, sweep)
        first = len([s for s in asked if "NOT EXISTS" in s])
        look.check_keys(store, sweep)
        assert first > 10
        assert len([s for s in asked if "NOT EXISTS" in s]) == first
        by_hand(sqlite_store_url, "UPDATE reading SET run_id = 77")
        with pytest.raises(StoreError, match="column run_id holds '77'"):
            look.check_keys(store, sweep)
