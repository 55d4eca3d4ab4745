"""What is particular to opening a store: files, versions, locks, readers beside the writer."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from postgres import Server
from storing import at, begin, cell, count, host, reading, run
from topobench import __version__
from topobench.db import migrate, schema, schema_measured
from topobench.db.engine import mask_url, parse_url
from topobench.db.files import network_file_system
from topobench.db.look import newest_of_host
from topobench.db.recorder import Recorder
from topobench.db.store import Store
from topobench.errors import NotFound, SchemaTooNew, StoreError, StoreUnreachable, UsageError
from topobench.reading import Status


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "topobench.db"


def url(path: Path) -> str:
    return f"sqlite:///{path}"


def test_a_relative_and_an_absolute_url_mean_the_same_file(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(path.parent)
    with Store.open("sqlite:///topobench.db") as store:
        sweep = begin(store, cell())
    with Store.open(f"sqlite:////{path}") as store:
        assert store.resolve_sweep("latest") == sweep


def test_the_latest_sweep_is_a_synthetic_one_only_where_nothing_else_was_measured(
    path: Path,
) -> None:
    with Store.open(url(path)) as store:
        made = begin(store, cell(), day=9, synthetic=True)
        store.end_sweep(made)
        assert store.resolve_sweep("latest") == made
        real = begin(store, cell(), day=3)
        store.end_sweep(real)
        assert store.resolve_sweep("latest") == real
        assert newest_of_host(store, "k1") == real
        early = begin(store, cell(), day=2)
        assert store.resolve_sweep("latest", until=at(0, 2)) == early


def test_a_file_name_may_hold_anything(tmp_path: Path) -> None:
    odd = tmp_path / "a b%20?#é.db"
    with Store.open(f"sqlite:///{str(odd).replace('%', '%25').replace('?', '%3F')}") as store:
        begin(store, cell())
    made = [p.name for p in tmp_path.iterdir()]
    assert len(made) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("topobench.db", "is no database URL; use sqlite:///FILE"),
        ("mysql://x/y", "mysql is not known"),
        ("sqlite://", "names no file"),
        ("postgresql://u:s3cret@host:notaport/x", r"u:\*\*\*@host:notaport/x' is no database URL"),
        ("postgresql+asyncpg://x/y", r"postgresql\+asyncpg is not known"),
    ],
)
def test_a_url_of_no_kind_we_know_is_a_usage_error(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Store.open(text)


def test_a_plain_postgresql_url_means_psycopg_3() -> None:
    assert parse_url("postgresql://db/x").drivername == "postgresql+psycopg"


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("postgresql://bob:s3cret@db:5432/x", "postgresql://bob:***@db:5432/x"),
        ("postgresql://bob@db/x?password=s3cret", "postgresql://bob@db/x?password=***"),
        (
            "postgresql://bob@db/x?sslpassword=a&host=h",
            "postgresql://bob@db/x?sslpassword=***&host=h",
        ),
        ("postgresql://bob:p/w@2@db/x", "postgresql://bob:***@db/x"),
        ("sqlite:////home/me@lab/a:b.db", "sqlite:////home/me@lab/a:b.db"),
        ("no url:s3cret@host", "no url:***@host"),
        ("what://u:s3cret@host:notaport/x", "what://u:***@host:notaport/x"),
        ("postgresql://bob:p@s/s3cret@db/x", "postgresql://bob:***@db/x"),
    ],
)
def test_passwords_in_urls_are_masked(given: str, shown: str) -> None:
    assert mask_url(given) == shown


def test_a_password_that_is_not_escaped_is_refused_and_not_shown_in_parts() -> None:
    """It would be split at its first @, and the rest would be told as the host's name."""
    with pytest.raises(UsageError, match=r"bob:\*\*\*@db/x': more than one @; .* %40") as raised:
        Store.open("postgresql://bob:p@s/s3cret@db/x")
    assert "s3cret" not in str(raised.value)


def test_a_stored_configuration_hides_the_whole_password(path: Path) -> None:
    text = "store: postgresql://bob:p@s/s3cret@db/x\nname: lab\n"
    with Store.open(url(path)) as store, store.engine.connect() as connection:
        begin(store, config_text=text)
        found = connection.execute(sa.text("SELECT config_text FROM sweep")).scalar()
    assert found == "store: postgresql://bob:***@db/x\nname: lab\n"


def test_an_unreachable_server_is_named_without_its_password() -> None:
    with pytest.raises(StoreUnreachable) as raised:
        Store.open("postgresql://bob:s3cret@127.0.0.1:1/x")
    assert "postgresql+psycopg://bob:***@127.0.0.1:1/x" in str(raised.value)
    assert "s3cret" not in str(raised.value)
    assert "Connection refused: is the server running" in str(raised.value)


def test_a_server_that_no_name_leads_to_is_told_with_what_to_check() -> None:
    with pytest.raises(StoreUnreachable, match="check the name of the server in the URL"):
        Store.open("postgresql://bob@no-such-host.invalid/x")


@pytest.mark.postgres
def test_a_wrong_name_is_no_server_that_is_away(postgres_server: Server, postgres_url: str) -> None:
    """A typing mistake must be told at once, not turn a night into a spool."""
    for wrong, message in (
        (postgres_server.url("nowhere"), 'database "nowhere" does not exist: check the names'),
        (postgres_url.replace("writer@", "nobody@"), 'role "nobody" does not exist'),
    ):
        with pytest.raises(StoreError, match=message) as raised:
            Store.open(wrong)
        assert not isinstance(raised.value, StoreUnreachable)


@pytest.mark.postgres
def test_a_role_without_rights_is_told_which_it_needs(
    postgres_server: Server, postgres_url: str
) -> None:
    with postgres_server.admin() as connection:
        connection.execute("CREATE ROLE guest LOGIN")
    with pytest.raises(StoreError, match=r"permission denied .*GRANT ALL ON SCHEMA"):
        Store.open(postgres_url.replace("writer@", "guest@"))


def test_a_missing_folder_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"folder .*/none does not exist; make it"):
        Store.open(url(tmp_path / "none" / "x.db"))
    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_no_store(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="is a folder"):
        Store.open(url(tmp_path))


def test_nothing_is_made_unless_asked(path: Path) -> None:
    for wish in ({"create": False}, {"read_only": True}):
        with pytest.raises(NotFound, match="no such file"):
            Store.open(url(path), **wish)
    assert not path.exists()


def test_a_file_that_is_no_database_is_left_alone(path: Path) -> None:
    text = "a text file that happens to have the name of a database\n" * 100
    path.write_text(text)
    with pytest.raises(StoreError, match=r"file is not a database: .*name another file"):
        Store.open(url(path))
    assert path.read_text() == text


def test_a_truncated_database_is_named_damaged(path: Path) -> None:
    with Store.open(url(path)) as store:
        for _ in range(3):
            begin(store, *(cell(process_no=n) for n in range(50)))
    with path.open("r+b") as file:
        file.truncate(60_000)
    with (
        pytest.raises(StoreError, match=r"malformed|disk image|not a database"),
        Store.open(url(path)) as store,
    ):
        store.sweep_document()


def test_a_database_of_something_else_is_left_alone(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE customers (id INTEGER)")
        connection.commit()
    before = path.read_bytes()
    for read_only in (False, True):
        with pytest.raises(StoreError, match=r"holds tables of something else \(customers\)"):
            Store.open(url(path), read_only=read_only)
    assert path.read_bytes() == before


def test_an_empty_file_becomes_a_store(path: Path) -> None:
    path.touch()
    with Store.open(url(path)) as store:
        assert store.sweeps() == []


_OPEN = """
import os, sys
from topobench.db.recorder import Recorder
from topobench.db.store import Store
from topobench.errors import TopobenchError
os.setgroups([]); os.setgid(65534); os.setuid(65534)
try:
    Store.open(sys.argv[1])
except TopobenchError as error:
    print(type(error).__name__, error)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become a user without rights")
@pytest.mark.parametrize(
    ("folder_mode", "file_mode", "message"),
    [
        (0o755, 0o600, "may not be written to; check its owner and mode"),
        (0o777, 0o444, "may not be written to; check its owner and mode"),
        (0o755, 0o666, "may not be written to; name another file"),
        (0o755, None, "may not be written to; name another file"),
    ],
)
def test_missing_rights_are_named(
    path: Path, folder_mode: int, file_mode: int | None, message: str
) -> None:
    folder = Path("/var/tmp") / f"topobench-test-{os.getpid()}"  # users can't enter pytest's
    folder.mkdir()
    try:
        target = folder / "x.db"
        if file_mode is not None:
            Store.open(url(target)).close()
            target.chmod(file_mode)
        folder.chmod(folder_mode)
        done = subprocess.run(
            [sys.executable, "-c", _OPEN, url(target)],
            capture_output=True,
            text=True,
            timeout=60,
            cwd=Path(__file__).parent.parent,
            check=True,
        )
        assert done.stdout.startswith("StoreError ")
        assert message in done.stdout
    finally:
        shutil.rmtree(folder)


MOUNTS = """\
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
23 22 0:40 / /home rw - nfs4 nas:/home rw
24 23 254:1 / /home/local\\040disk rw - xfs /dev/vdb rw
25 22 0:41 / /mnt/é rw - fuse.sshfs bob@host: rw
26 22 0:42 / /scratch rw - lustre mds@tcp:/fs rw
27 22 0:43 / /over rw - overlay overlay rw
"""


@pytest.mark.parametrize(
    ("place", "kind"),
    [
        ("/var/x.db", None),
        ("/home/bob/x.db", "nfs4"),
        ("/home/local disk/x.db", None),
        ("/homely/x.db", None),
        ("/mnt/é/x.db", "fuse.sshfs"),
        ("/scratch/a/b/x.db", "lustre"),
        ("/over/x.db", None),
    ],
)
def test_network_file_systems_are_known_by_their_mount(
    tmp_path: Path, place: str, kind: str | None
) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(MOUNTS)
    assert network_file_system(Path(place), mounts) == kind


def test_a_link_onto_a_network_file_system_is_followed(tmp_path: Path) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"1 0 254:0 / / rw - ext4 a rw\n2 1 0:1 / {tmp_path}/far rw - cifs b rw\n")
    (tmp_path / "far").mkdir()
    (tmp_path / "near").symlink_to(tmp_path / "far")
    assert network_file_system(tmp_path / "near" / "x.db", mounts) == "cifs"


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (os.mkfifo, "is no file but a device, a pipe or a socket"),
        (os.mkdir, "is a folder; name a file in it"),
        (lambda path: os.symlink(path, path), "symbolic links"),
    ],
)
def test_what_is_no_file_is_no_store(
    tmp_path: Path, make: Callable[[Path], object], said: str
) -> None:
    path = tmp_path / "x.db"
    make(path)
    with pytest.raises(StoreError, match=said):
        Store.open(f"sqlite:///{path}")


def test_paths_that_no_file_can_have_are_refused() -> None:
    with pytest.raises(StoreError, match="File name too long"):
        Store.open(f"sqlite:///{'x' * 300}")
    with pytest.raises(StoreError, match="is no file but a device"):
        Store.open("sqlite:////dev/null")


def test_a_store_in_memory_is_told_to_be_lost() -> None:
    warned: list[str] = []
    with Recorder.open("sqlite:///:memory:", warn=warned.append):
        assert warned == [
            "not_kept: sqlite:///:memory: is no file: what it holds ends with this command"
        ]


def test_a_store_on_a_network_file_system_is_refused_with_advice(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("topobench.db.files.network_file_system", lambda _: "nfs4")
    with pytest.raises(StoreError, match=r"network file system \(nfs4\).* use PostgreSQL"):
        Store.open(url(path))
    assert not path.exists()


def test_sqlite_waits_in_wal_mode(path: Path) -> None:
    with Store.open(url(path)) as store, store.engine.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
        assert connection.exec_driver_sql("PRAGMA busy_timeout").scalar() == 20_000
        assert connection.exec_driver_sql("PRAGMA foreign_keys").scalar() == 1


def scripts(tmp_path: Path, number: str, body: str) -> Path:
    """Our migrations and one more."""
    folder = tmp_path / "migrations"
    shutil.copytree(migrate.SCRIPTS, folder)
    (folder / "versions" / f"{number}_more.py").write_text(
        f"from alembic import op\nimport sqlalchemy as sa\n\nrevision = '{number}'\n"
        f"down_revision = '{schema.REVISION}'\n\n\ndef upgrade() -> None:\n    {body}\n"
    )
    return folder


def upgrade(store_url: str, folder: Path) -> None:
    """What opening does in a topobench that has these migrations."""
    with Store.open(store_url) as store:
        path = store.info()["path"]
        migrate.prepare(store.engine, path and Path(path), folder)


def test_a_newer_schema_is_refused_with_both_versions(store_url: str, tmp_path: Path) -> None:
    newer = scripts(tmp_path, "0099", "op.add_column('run', sa.Column('novel', sa.Text()))")
    upgrade(store_url, newer)
    expected = (
        rf"schema 0099, written by topobench {__version__}; this topobench {__version__} "
        rf"knows schemas up to {schema.REVISION}"
    )
    for read_only in (False, True):
        with pytest.raises(SchemaTooNew, match=expected):
            Store.open(store_url, read_only=read_only)


def test_an_older_schema_is_copied_and_brought_up_to_date(path: Path, tmp_path: Path) -> None:
    planned = cell()
    with Store.open(url(path)) as store:
        begin(store, planned)
        store.put_run(run(planned, reading(1.0)))
    newer = scripts(tmp_path, "0099", "op.add_column('run', sa.Column('novel', sa.Text()))")
    upgrade(url(path), newer)
    copy = path.with_name(f"topobench.db.before-upgrade-from-{schema.REVISION}")
    with Store.open(url(copy)) as store:
        assert store.sweep_document()["counts"] == {"ok": 1}
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT novel FROM run").fetchall() == [(None,)]
        assert connection.execute("SELECT median FROM v_latest").fetchall() == [(1.0,)]


def test_a_failed_upgrade_changes_nothing(store_url: str, tmp_path: Path) -> None:
    broken = scripts(tmp_path, "0099", "op.drop_table('sample'); op.drop_table('no_such_table')")
    with pytest.raises(StoreError, match="no_such_table"):
        upgrade(store_url, broken)
    with Store.open(store_url) as store:
        assert count(store, "sample") == 0
        with store.engine.connect() as connection:
            assert connection.execute(sa.text("SELECT * FROM v_latest")).all() == []


def test_an_older_schema_is_not_read_without_an_upgrade(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Store.open(url(path)).close()
    monkeypatch.setattr("topobench.db.migrate.REVISION", "0099")
    with pytest.raises(StoreError, match=f"schema {schema.REVISION}.* run `topobench db upgrade`"):
        Store.open(url(path), read_only=True)


def test_every_status_of_a_cell_may_be_stored() -> None:
    assert set(schema_measured.STATUSES) == {s.value for s in Status}


def test_the_newest_migration_is_the_one_the_code_names() -> None:
    assert migrate._revisions(migrate.SCRIPTS)[-1] == schema.REVISION


def test_a_read_only_store_cannot_write(store_url: str) -> None:
    with Store.open(store_url) as store:
        begin(store, cell())
    with Store.open(store_url, read_only=True) as store:
        assert store.sweeps(limit=1)[0]["status"] == "running"
        with pytest.raises(StoreError, match=r"read.?only"):
            begin(store, cell())


def _read_until(path: str, ready: Any, stop: Any, result: Any) -> None:
    """Read whole documents in a loop; report how many, and any that made no sense."""
    reads = odd = 0
    with Store.open(path, read_only=True) as store:
        while not stop.is_set() or reads == 0:
            document = store.sweep_document()
            done = [c for c in document["cells"] if c["status"] == "ok"]
            odd += sum(len(c["readings"]) != 3 or len(c["members"]) != 1 for c in done)
            reads += 1
            ready.set()
    result.put((reads, odd))


def test_a_reader_never_blocks_the_writer_nor_sees_half_a_run(store_url: str) -> None:
    """A second process reads documents while this one writes; nobody waits for the other."""
    context = multiprocessing.get_context("spawn")
    ready, stop, result = context.Event(), context.Event(), context.Queue()
    cells = [cell(process_no=n) for n in range(150)]
    with Store.open(store_url) as store:
        begin(store, *cells)
        reader = context.Process(target=_read_until, args=(store_url, ready, stop, result))
        reader.start()
        try:
            assert ready.wait(60)
            for planned in cells:
                points = [reading(1.0, point={"rank": n}) for n in range(3)]
                store.put_run(run(planned, *points))
            stop.set()
            reads, odd = result.get(timeout=60)
        finally:
            stop.set()
            reader.join(60)
        assert reader.exitcode == 0
        assert store.sweep_document()["counts"] == {"ok": 150}
    assert reads >= 2
    assert odd == 0


def test_a_reader_that_holds_its_transaction_open_does_not_block_the_writer(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("topobench.db.engine.BUSY_SECONDS", 0.1)
    planned = cell()
    with Store.open(url(path)) as store, contextlib.closing(sqlite3.connect(path)) as reader:
        begin(store, planned)
        reader.execute("BEGIN")
        assert reader.execute("SELECT count(*) FROM run").fetchone() == (0,)
        store.put_run(run(planned, reading(1.0)))
        assert reader.execute("SELECT count(*) FROM run").fetchone() == (0,)
        reader.execute("COMMIT")
        assert reader.execute("SELECT count(*) FROM run").fetchone() == (1,)


def test_a_writer_that_waits_too_long_says_so(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("topobench.db.engine.BUSY_SECONDS", 0.1)
    with Store.open(url(path)) as store, contextlib.closing(sqlite3.connect(path)) as other:
        other.isolation_level = None
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnreachable, match="locked: another process is writing"):
            begin(store, cell())
        other.execute("ROLLBACK")
        begin(store, cell())


@pytest.mark.postgres
def test_a_locked_table_is_a_store_that_is_away(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody's open transaction must not hold up a sweep for ever."""
    monkeypatch.setattr("topobench.db.engine.BUSY_SECONDS", 0.2)
    planned = cell()
    done = run(planned, reading(1.0))
    with Store.open(postgres_url) as store, Store.open(postgres_url) as other:
        begin(store, planned)
        with other.engine.begin() as connection:
            connection.execute(sa.text("LOCK TABLE reading IN ACCESS EXCLUSIVE MODE"))
            with pytest.raises(
                StoreUnreachable, match=r"lock timeout: another session holds a lock"
            ):
                store.put_run(done)
        assert store.put_run(done) == "stored"


@pytest.mark.postgres
def test_a_connection_that_was_cut_is_replaced(postgres_url: str) -> None:
    """The run that met the cut can be stored at once."""
    cells = [cell(process_no=n) for n in range(2)]
    with Store.open(postgres_url) as store, Store.open(postgres_url) as other:
        begin(store, *cells)
        with other.engine.begin() as connection:
            connection.execute(
                sa.text(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE datname = current_database() AND pid <> pg_backend_pid()"
                )
            )
        assert store.put_run(run(cells[0], reading(1.0))) == "stored"


def test_a_full_disk_is_a_store_that_is_away(path: Path) -> None:
    """The run that did not fit can be stored once there is room."""
    planned = cell()
    big = run(planned, reading(1.0, samples=[1.0] * 100_000))
    with Store.open(url(path)) as store:
        begin(store, planned)
        with store.engine.connect() as connection:
            pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
            connection.exec_driver_sql(f"PRAGMA max_page_count={pages + 5}")
        with pytest.raises(StoreUnreachable, match="full: make room on the disk"):
            store.put_run(big)
        assert count(store, "run") == 0
        with store.engine.connect() as connection:
            connection.exec_driver_sql("PRAGMA max_page_count=100000")
        assert store.put_run(big) == "stored"


def test_info_tells_where_how_large_and_how_full(store_url: str) -> None:
    planned = cell()
    with Store.open(store_url) as store:
        assert store.info()["last_sweep"] is None
        sweep = begin(store, planned, hosts=[host(gpus=2)])
        store.put_run(run(planned, reading(1.0)))
        store.end_sweep(sweep, ended_at=at(9))
        info = store.info()
    assert info["schema"] == schema.REVISION
    assert info["tool_version"] == __version__
    assert info["size_bytes"] > 100_000
    assert info["last_sweep"]["id"] == sweep
    assert {t: info["rows"][t] for t in ("sweep", "host", "device", "run", "price")} == {
        "sweep": 1,
        "host": 1,
        "device": 2,
        "run": 1,
        "price": 0,
    }
    assert (info["path"] is None) == store_url.startswith("postgresql")
    assert info["url"] == mask_url(store_url)


def test_a_million_parameters_are_not_one_statement(path: Path) -> None:
    """A plan of many hosts: more cells than SQLite takes values in one IN list."""
    cells = [cell(params={"bytes": n + 1}) for n in range(1500)]
    with Store.open(url(path)) as store:
        begin(store, *cells)
        assert count(store, "series") == 1500
        left, _ = store.cells_to_resume("latest")
    assert left == cells


def test_a_store_may_lie_in_a_folder_of_any_name(tmp_path: Path) -> None:
    """A name that is no UTF-8, and a host whose name Python could not decode."""
    folder = tmp_path / os.fsdecode(b"b\xff \xc3\xbc")
    folder.mkdir()
    place = folder / "x.db"
    with Store.open(f"sqlite:///{place}") as store:
        begin(store, cell(), hosts=[host(name="b\udcc3\udcbccks")])
        with store.engine.connect() as connection:
            names = connection.exec_driver_sql("SELECT name FROM host").scalars().all()
    assert (names, place.exists()) == (["b??cks"], True)
