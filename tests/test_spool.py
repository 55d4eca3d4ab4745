"""The spool: results on disk while the store is away, brought in exactly once."""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from postgres import Server
from storing import at, begin, cell, count, host, new_id, reading, run
from topobench import cli
from topobench.db.recorder import Recorder
from topobench.db.spool import END_SCHEDULE, FOLDER, Spool, problems_told
from topobench.db.spool_import import import_spool
from topobench.db.store import Store
from topobench.errors import StoreError, StoreUnreachable
from topobench.reading import Status


@pytest.fixture
def url(sqlite_store_url: str) -> str:
    return sqlite_store_url


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "spool"


@pytest.fixture
def busy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A function that makes another connection hold the write lock until the test ends."""
    monkeypatch.setattr("topobench.db.engine.BUSY_SECONDS", 0.2)
    held: list[sqlite3.Connection] = []

    def lock() -> sqlite3.Connection:
        connection = sqlite3.connect(tmp_path / "topobench.db", isolation_level=None)
        connection.execute("BEGIN IMMEDIATE")
        held.append(connection)
        return connection

    yield lock
    for connection in held:
        connection.close()


def names(folder: Path) -> list[str]:
    return sorted(p.suffix for p in folder.iterdir())


def test_nothing_is_spooled_while_the_store_is_there(url: str, folder: Path) -> None:
    warned: list[str] = []
    planned = cell()
    with Recorder.open(url, folder=folder, warn=warned.append) as recorder:
        sweep = begin(recorder, planned)
        assert str(recorder.put_run(run(planned, reading(1.0)))) == "stored"
        recorder.end_sweep(sweep)
        assert recorder.sweep_document()["counts"] == {"ok": 1}
    assert warned == []
    assert not folder.exists()


def test_a_locked_store_loses_no_run(url: str, folder: Path, busy: Any) -> None:
    """Runs go to the spool while another process writes, and come in at the end."""
    warned: list[str] = []
    cells = [cell(process_no=n) for n in range(4)]
    with Recorder.open(url, folder=folder, warn=warned.append) as recorder:
        sweep = begin(recorder, *cells)
        recorder.put_run(run(cells[0], reading(1.0)))
        lock = busy()
        assert recorder.put_run(run(cells[1], reading(2.0))) is None
        assert recorder.spooled
        lock.execute("ROLLBACK")
        recorder.put_run(run(cells[2], reading(3.0)))
        assert [p.suffix for p in folder.iterdir()] == [".part"]
        recorder.end_sweep(sweep, "done", ended_at=at(60))
    assert names(folder) == [".imported"]
    assert "database is locked" in warned[0]
    assert "topobench db import" in warned[0]
    assert warned[1] == "the store is back: 2 runs were brought in from the spool"
    with Store.open(url) as store:
        document = store.sweep_document(sweep)
        assert document["counts"] == {"ok": 3, "planned": 1}
        assert document["sweep"]["status"] == "done"
        assert document["sweep"]["ended_at"] == at(60)
        medians = [c["readings"][0]["median"] for c in document["cells"][:3]]
    assert medians == [1.0, 2.0, 3.0]


def test_a_store_that_stays_locked_leaves_the_spool_for_later(
    url: str, folder: Path, busy: Any
) -> None:
    warned: list[str] = []
    cells = [cell(process_no=n) for n in range(2)]
    with Recorder.open(url, folder=folder, warn=warned.append) as recorder:
        sweep = begin(recorder, *cells)
        recorder.put_run(run(cells[0], reading(1.0)))
        lock = busy()
        recorder.put_run(run(cells[1], reading(2.0)))
        recorder.end_sweep(sweep)
        document = recorder.sweep_document()
    assert document["counts"] == {"ok": 2}  # what this process saw, stored or not
    assert document["sweep"]["status"] == "done"
    assert document["store"] == str(folder)
    assert names(folder) == [".jsonl"]
    assert "safe in" in warned[-1]
    lock.close()
    with Store.open(url) as store:
        first, second = import_spool(store, folder), import_spool(store, folder)
        assert (first.stored, first.already, first.problems) == (1, 0, [])
        assert (second.files, second.stored) == (0, 0)
        assert count(store, "run") == 2
        assert store.sweep_document(sweep)["counts"] == {"ok": 2}


def test_a_spool_imported_twice_stores_each_run_once(url: str, folder: Path) -> None:
    """Also when the first import ended before the file was renamed."""
    planned = cell()
    once = run(planned, reading(1.0, samples=[1.0, 2.0, 3.0]))
    start: dict[str, Any] = {
        "id": new_id(),
        "cluster": "lab",
        "profile": "quick",
        "trigger": "cron",
        "seed": 1,
        "tool_version": "0.1.0",
        "started_at": at(0),
    }
    with Spool(folder, "sweep", url=url) as spool:
        spool.append("begin_sweep", {**start, "hosts": [host(gpus=2)], "cells": [planned]})
        spool.append("put_run", {"run": once})
    (file,) = folder.iterdir()
    copy = file.with_name("sweep-000009.jsonl")
    copy.write_bytes(file.read_bytes())
    with Store.open(url) as store:
        result = import_spool(store, folder)
        assert (result.files, result.stored, result.already) == (2, 1, 1)
        assert count(store, "run") == 1
        assert store.put_run(once) == "already stored"
        assert store.sweep_document()["hosts"][0]["sku"].startswith("2x H200")
        assert store.sweep_document()["cells"][0]["id"] == planned.id


def test_nan_passes_through_the_spool(url: str, folder: Path) -> None:
    """The same run is the same run, whichever way it came."""
    planned = cell()
    odd = run(planned, reading(math.nan, samples=[1.0, math.inf]), conditions={"x": math.nan})
    with Store.open(url) as store:
        begin(store, planned)
        with Spool(folder, "sweep", url=url) as spool:
            spool.append("put_run", {"run": odd})
        assert import_spool(store, folder).stored == 1
        assert store.put_run(odd) == "already stored"
        assert store.sweep_document()["cells"][0]["status"] == "invalid"


def test_a_torn_last_line_is_left_out(url: str, folder: Path) -> None:
    """The machine stopped in the middle of a write: the lines before it come in."""
    planned, torn = cell(), cell(process_no=1)
    with Store.open(url) as store:
        begin(store, planned, torn)
        with Spool(folder, "sweep", url=url) as spool:
            spool.append("put_run", {"run": run(planned, reading(1.0))})
            spool.append("put_run", {"run": run(torn, reading(1.0))})
        (file,) = folder.iterdir()
        part = file.with_suffix(".part")
        part.write_bytes(file.read_bytes()[:-40])
        file.unlink()
        result = import_spool(store, folder)
        assert (result.stored, result.problems) == (1, [])
        assert count(store, "run") == 1
    assert names(folder) == [".imported"]


def test_a_whole_line_of_something_else_is_named_though_it_does_not_end(
    url: str, folder: Path
) -> None:
    folder.mkdir()
    (folder / "a.jsonl").write_text('{"result": 1}')
    with Store.open(url) as store:
        result = import_spool(store, folder)
    assert result.problems == [
        f"{folder}/a.jsonl:1: not a line of a spool: it has no 'topobench_spool'; take it out, or "
        "restore the file"
    ]
    assert (folder / "a.jsonl").exists()


def test_a_damaged_line_is_named_and_the_file_kept(url: str, folder: Path) -> None:
    planned = cell()
    with Store.open(url) as store:
        begin(store, planned)
        folder.mkdir()
        file = folder / "a.jsonl"
        good = {"topobench_spool": 1, "op": "put_run", "data": {"run": {}}}
        file.write_text(
            f"rubbish\n{json.dumps(good)}\n" + '{"topobench_spool": 2}\n' + "[" * 100_000 + "\n"
        )
        result = import_spool(store, file)
    assert [p.partition(":")[2][:2] for p in result.problems] == ["1:", "2:", "3:", "4:"]
    assert "spool format 2" in result.problems[2]
    assert names(folder) == [".jsonl", ".problems"]
    assert problems_told(file).splitlines() == result.problems


def test_a_spool_of_a_living_sweep_is_left_alone(url: str, folder: Path) -> None:
    planned = cell()
    with Store.open(url) as store, Spool(folder, "sweep", url=url) as spool:
        begin(store, planned)
        spool.append("put_run", {"run": run(planned, reading(1.0))})
        result = import_spool(store, folder)
        assert (result.files, len(result.busy)) == (0, 1)
        assert count(store, "run") == 0


def test_a_full_file_is_followed_by_another(url: str, folder: Path) -> None:
    cells = [cell(process_no=n) for n in range(3)]
    with Store.open(url) as store:
        begin(store, *cells)
        with Spool(folder, "sweep", url=url, rotate_bytes=1) as spool:
            for planned in cells:
                spool.append("put_run", {"run": run(planned, reading(1.0))})
        assert [p.name for p in sorted(folder.iterdir())] == [
            f"sweep-00000{n}.jsonl" for n in (1, 2, 3)
        ]
        assert import_spool(store, folder).stored == 3


def test_a_refused_run_is_kept_and_the_next_is_stored(url: str, folder: Path) -> None:
    warned: list[str] = []
    planned, other = cell(), cell(process_no=1)
    first = run(planned, reading(1.0))
    with Recorder.open(url, folder=folder, warn=warned.append) as recorder:
        sweep = begin(recorder, planned, other)
        recorder.put_run(first)
        bad = run(planned, reading(1.0, metric="speed"))
        assert recorder.put_run(bad) is None
        assert str(recorder.put_run(run(other, reading(2.0)))) == "stored"
        recorder.end_sweep(sweep)
    assert "must end in one of" in warned[0]
    with Store.open(url) as store:
        assert count(store, "run") == 2
        result = import_spool(store, folder)
    assert len(result.problems) == 1
    assert names(folder) == [".jsonl", ".problems"]


def test_a_deleted_database_file_does_not_swallow_runs(
    url: str, folder: Path, tmp_path: Path
) -> None:
    """SQLite would go on writing into the deleted file."""
    planned = cell()
    with Recorder.open(url, folder=folder, warn=lambda _: None) as recorder:
        begin(recorder, planned)
        for file in tmp_path.glob("topobench.db*"):
            file.unlink()
        assert recorder.put_run(run(planned, reading(1.0))) is None
    with Store.open(url) as store:
        assert import_spool(store, folder).stored == 1
        assert store.sweep_document()["counts"] == {"ok": 1}


def test_a_spool_that_cannot_be_written_says_so(url: str, tmp_path: Path, busy: Any) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    planned = cell()
    with Recorder.open(url, folder=blocked, warn=lambda _: None) as recorder:
        begin(recorder, planned)
        busy()
        with pytest.raises(StoreUnreachable, match=r"spool .*file cannot be written to"):
            recorder.put_run(run(planned, reading(1.0)))


def test_importing_what_is_not_there_is_an_error(url: str, folder: Path) -> None:
    with Store.open(url) as store, pytest.raises(StoreError, match="no such file or folder"):
        import_spool(store, folder)


@pytest.mark.postgres
def test_a_server_that_stops_in_mid_sweep_loses_no_run(
    postgres_server: Server, postgres_url: str, folder: Path
) -> None:
    """Killed between two runs; back before the end."""
    warned: list[str] = []
    cells = [cell(process_no=n) for n in range(3)]
    with Recorder.open(postgres_url, folder=folder, warn=warned.append) as recorder:
        sweep = begin(recorder, *cells)
        assert str(recorder.put_run(run(cells[0], reading(1.0)))) == "stored"
        postgres_server.halt()
        try:
            assert recorder.put_run(run(cells[1], reading(2.0))) is None
            assert recorder.put_run(run(cells[2], status=Status.FAILED)) is None
        finally:
            postgres_server.resume()
        recorder.end_sweep(sweep)
        assert recorder.sweep_document()["counts"] == {"ok": 2, "failed": 1}
    assert warned[-1] == "the store is back: 2 runs were brought in from the spool"
    with Store.open(postgres_url) as store:
        assert count(store, "run") == 3
        assert count(store, "sweep") == 1


@pytest.mark.postgres
def test_a_server_that_is_away_from_the_start_is_no_reason_not_to_measure(
    postgres_server: Server, postgres_url: str, folder: Path
) -> None:
    planned = cell()
    postgres_server.halt()
    try:
        with Recorder.open(postgres_url, folder=folder, warn=lambda _: None) as recorder:
            sweep = begin(recorder, planned)
            recorder.put_run(run(planned, reading(1.0)))
            recorder.end_sweep(sweep)
            assert recorder.sweep_document()["counts"] == {"ok": 1}
            with pytest.raises(StoreUnreachable):
                recorder.resolve_sweep("latest")
            assert recorder.running_sweeps() == []
    finally:
        postgres_server.resume()
    with Store.open(postgres_url) as store:
        assert import_spool(store, folder).stored == 1
        assert store.sweep_document(sweep)["sweep"]["status"] == "done"


def left_behind(url: str, folder: Path) -> str:
    """A sweep of one run that could not reach its store; its UUID."""
    planned = cell()
    sweep = new_id()
    start: dict[str, Any] = {
        "cluster": "lab",
        "profile": "quick",
        "trigger": "manual",
        "seed": 1,
        "tool_version": "0.1.0",
        "started_at": at(0),
    }
    with Spool(folder, sweep, url=url) as spool:
        spool.append("begin_sweep", {"id": sweep, **start, "hosts": [host()], "cells": [planned]})
        spool.append("put_run", {"run": run(planned, reading(1.0))})
        spool.append("end_sweep", {"id": sweep, "status": "done", "ended_at": at(60)})
    return sweep


def test_the_next_sweep_brings_in_what_an_earlier_one_left(
    store_url: str, folder: Path, tmp_path: Path
) -> None:
    """Of this store alone and once; what a living sweep writes and a fleet judges is left."""
    sweep = left_behind(store_url, folder)
    other = left_behind(f"sqlite:///{tmp_path}/other.db", folder)
    with Spool(folder, f"{sweep}-schedule", url=store_url) as spool:
        spool.append(END_SCHEDULE, {"cluster": "lab", "schedule": "nightly", "sweep": sweep})
    living = Spool(folder, new_id(), url=store_url)
    living.append("resume_sweep", {"id": sweep, "driver": None})
    warned: list[str] = []
    with Recorder.open(store_url, folder=folder, warn=warned.append) as recorder, living:
        recorder.bring_in_earlier()
        assert recorder.sweep_document(sweep)["counts"] == {"ok": 1}
        recorder.bring_in_earlier()
        assert recorder.sweep_document(sweep)["sweep"]["status"] == "done"
        assert sorted(f.name[:8] + f.suffix for f in folder.iterdir()) == sorted(
            [
                *(f"{sweep[:8]}.imported", f"{sweep[:8]}.jsonl", f"{other[:8]}.jsonl"),
                f"{living._name[:8]}.part",
            ]
        )
    assert warned == [
        f"a run of earlier sweeps came in from {folder}; `topobench query sweeps` lists all sweeps"
    ]


def test_a_broken_file_of_an_earlier_sweep_is_told_and_stays(url: str, folder: Path) -> None:
    """Not every time: it is tried again after a day."""
    left_behind(url, folder)
    (file,) = folder.iterdir()
    file.write_text(file.read_text() + "{}\n")
    warned: list[str] = []
    for _ in range(2):
        with Recorder.open(url, folder=folder, warn=warned.append) as recorder:
            recorder.bring_in_earlier()
            assert recorder.sweep_document()["counts"] == {"ok": 1}
    assert names(folder) == [".jsonl", ".problems"]
    assert len(warned) == 2
    assert "not all that earlier sweeps spooled came in, and it stays there: " in warned[1]
    assert f"{file}:5: " in warned[1]


def test_a_store_in_memory_takes_nothing_from_the_spool(folder: Path) -> None:
    """It would end with the command."""
    left_behind("sqlite:///:memory:", folder)
    with Recorder.open("sqlite:///:memory:", folder=folder, warn=lambda _: None) as recorder:
        recorder.bring_in_earlier()
    assert names(folder) == [".jsonl"]


def test_probe_knows_a_sweep_that_was_spooled(
    sqlite_store_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It is brought in first; here nothing is left to run of it."""
    monkeypatch.chdir(tmp_path)
    sweep = left_behind(sqlite_store_url, Path(FOLDER))
    assert cli.main(["probe", "--resume", "latest", "--store", sqlite_store_url]) == 2
    told = capsys.readouterr().err.splitlines()
    assert told[0].startswith("topobench: a run of earlier sweeps came in from topobench-spool; ")
    assert told[1] == f"topobench: sweep {sweep[:8]} has nothing left to run"
    assert names(Path(FOLDER)) == [".imported"]
