"""The db commands that change or copy a store, from the command line."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import sys
from pathlib import Path
from typing import Any

import pytest

from documents import check
from storing import at, begin, cell, host, reading, run
from topobench import cli
from topobench.db import export
from topobench.db.export import export_parquet
from topobench.db.store import Store
from topobench.errors import StoreError, UsageError


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TOPOBENCH_STORE", raising=False)


def fill(url: str, day: int, cluster: str = "lab") -> str:
    planned = cell(params={"bytes": 1 << 20, "op": "copy"})
    with Store.open(url) as store:
        sweep = begin(store, planned, hosts=[host()], day=day, cluster=cluster)
        points = [reading(float(n + 1), point={"rank": n}) for n in range(3)]
        store.put_run(run(planned, *points, day=day))
        store.end_sweep(sweep, ended_at=at(60, day))
    return sweep


def told(capsys: pytest.CaptureFixture[str], name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    check(document, name)
    return document


def test_import_says_what_came_in(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill("sqlite:///other.db", 2)
    for stored in (1, 0):
        assert cli.main(["db", "import", "other.db", "--format", "json"]) == 0
        data = told(capsys, "db-import")["data"]
        assert (data["kind"], data["sweeps"], data["stored"]) == ("store", stored, stored)
    (tmp_path / "spool").mkdir()
    assert cli.main(["db", "import", "spool", "--as-cluster", "x"]) == 2
    assert cli.main(["db", "import", "other.db", "--as-cluster", ""]) == 2
    assert "--as-cluster is empty" in capsys.readouterr().err
    assert cli.main(["db", "import", "absent.db", "--as-cluster", "x"]) == 1
    assert "absent.db: no such file" in capsys.readouterr().err


def test_a_folder_without_a_spool_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One whose files were all brought in before is no error: a crontab may ask each night."""
    (tmp_path / "spool").mkdir()
    (tmp_path / "spool" / "notes.txt").touch()
    assert cli.main(["db", "import", "spool"]) == 1
    assert "nothing to bring in; a spool holds files such as SWEEP-" in capsys.readouterr().err
    assert not (tmp_path / "topobench.db").exists()
    (tmp_path / "spool" / "s-000001.imported").touch()
    assert cli.main(["db", "import", "spool", "--format", "json"]) == 0
    document = told(capsys, "db-import")
    assert (document["data"]["kind"], document["data"]["files"]) == ("spool", 0)
    assert document["warnings"] == ["spool: every file was brought in before"]


@pytest.mark.parametrize("content", [b"\x7fELF" + bytes(range(256)) * 600, b"\xff" * 150_000, b""])
def test_a_file_that_is_neither_spool_nor_store_is_told_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes
) -> None:
    (tmp_path / "image.bin").write_bytes(content)
    assert cli.main(["db", "import", "image.bin"]) == 1
    out, err = capsys.readouterr()
    assert "neither a spool (JSON lines) nor a store" in err
    assert len(out) + len(err) < 400


def test_a_spool_full_of_rubbish_is_told_briefly(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rubbish = b'{"topobench_spool": 1, "op": "' + b"\xff" * 5000 + b'"}\n'
    (tmp_path / "bad.jsonl").write_bytes(rubbish * 100)
    assert cli.main(["db", "import", "bad.jsonl"]) == 1
    out, _ = capsys.readouterr()
    assert "not UTF-8 text" in out
    assert "and 80 more" in out
    assert len(out) < 8000


def test_a_line_that_is_none_of_a_spool_says_what_it_lacks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No name of an exception; the folder that a shell's empty variable names is not this one."""
    lines = ('{"a": 1}', '{"topobench_spool": 1, "op": "end_sweep"}', "[1]", "{", "{}")
    (tmp_path / "bad.jsonl").write_text("".join(f"{line}\n" for line in lines))
    assert cli.main(["db", "import", "bad.jsonl", "--format", "json"]) == 1
    problems = told(capsys, "db-import")["data"]["problems"]
    assert [p.partition("spool: ")[2].partition("; ")[0] for p in problems] == [
        "it has no 'topobench_spool'",
        "it has no 'data'",
        "no JSON object",
        "no JSON: Expecting property name enclosed in double quotes: line 2 column 1 (char 2)",
        "it has no 'topobench_spool'",
    ]
    assert problems[0].endswith(
        "bad.jsonl:1: not a line of a spool: it has no 'topobench_spool'; "
        "take it out, or restore the file"
    )
    assert cli.main(["db", "import", ""]) == 2
    assert "what follows 'import' is empty" in capsys.readouterr().err


def test_vacuum_follows_the_config(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    fill("sqlite:///topobench.db", 2)
    (tmp_path / "c.yaml").write_text(
        "kind: topobench/v1\nname: lab\nretention: {samples: 1d, results: 36500d}\n"
    )
    (tmp_path / "wrong.yaml").write_text("kind: topobench/v1\nretention: {samples: 1h}\n")
    assert cli.main(["db", "vacuum", "--cluster", "c.yaml", "--dry-run", "--format", "json"]) == 0
    data = told(capsys, "db-vacuum")["data"]
    assert (data["dry_run"], data["runs"], data["size_after_bytes"]) == (True, 0, None)
    assert data["samples"] in (0, 3)  # the clock of this machine decides
    assert cli.main(["db", "vacuum", "--cluster", "wrong.yaml"]) == 2
    assert "'1h' is less than a day" in capsys.readouterr().err


def test_parquet_holds_every_reading_by_cluster_and_day(
    tmp_path: Path, store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in batches far smaller than a day."""
    dataset = pytest.importorskip("pyarrow.dataset", reason="pip install pyarrow runs this test")
    monkeypatch.setattr(export, "ROWS", 2)
    fill(store_url, 2)
    fill(store_url, 3)
    fill(store_url, 3, cluster="a/b c")
    with Store.open(store_url, read_only=True) as store:
        found = export_parquet(store, tmp_path / "out")
        with pytest.raises(UsageError, match="not an empty folder"):
            export_parquet(store, tmp_path / "out")
    assert found.readings == 9
    assert found.files == (
        "cluster=a%2Fb%20c/day=2026-11-03/readings.parquet",
        "cluster=lab/day=2026-11-02/readings.parquet",
        "cluster=lab/day=2026-11-03/readings.parquet",
    )
    table = dataset.dataset(tmp_path / "out", partitioning="hive").to_table()
    rows = sorted(table.to_pylist(), key=lambda r: (r["cluster"], r["day"], r["median"]))
    assert [r["median"] for r in rows] == [1.0, 2.0, 3.0] * 3
    assert {(r["cluster"], r["bytes"], r["unit"], r["rank"] is None) for r in rows} == {
        ("a/b c", 1 << 20, "B/s", False),
        ("lab", 1 << 20, "B/s", False),
    }
    with Store.open(store_url, read_only=True) as store, store.engine.connect() as connection:
        view = connection.exec_driver_sql("SELECT * FROM v_reading")
        assert set(table.column_names) == set(view.keys())


def test_a_text_in_the_place_of_a_number_is_no_bug_of_the_export(tmp_path: Path) -> None:
    """SQLite keeps whatever a hand writes into a column."""
    pytest.importorskip("pyarrow", reason="pip install pyarrow runs this test")
    fill("sqlite:///topobench.db", 2)
    with contextlib.closing(sqlite3.connect("topobench.db")) as connection, connection:
        connection.execute("UPDATE reading SET median = 'fast'")
    with (
        Store.open("sqlite:///topobench.db", read_only=True) as store,
        pytest.raises(StoreError, match="row run_id 1, seq 0, column median holds 'fast'"),
    ):
        export_parquet(store, tmp_path / "out")


@pytest.mark.postgres
def test_parquet_has_the_numbers_of_the_view_as_numbers(postgres_store_url: str) -> None:
    """PostgreSQL knows the type of every column of a view."""
    kinds = {"integer": "whole", "smallint": "whole", "bigint": "whole", "double precision": "real"}
    with Store.open(postgres_store_url) as store, store.engine.connect() as connection:
        columns = connection.exec_driver_sql(
            "SELECT column_name, data_type FROM information_schema.columns "
            "WHERE table_name = 'v_reading'"
        ).all()
    numbers = {name: kinds[kind] for name, kind in columns if kind in kinds}
    told = {**dict.fromkeys(export.WHOLE, "whole"), **dict.fromkeys(export.REAL, "real")}
    assert told == numbers


def test_export_without_pyarrow_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill("sqlite:///topobench.db", 2)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with (
        Store.open("sqlite:///topobench.db") as store,
        pytest.raises(StoreError, match=r"pip install 'topobench\[parquet\]'"),
    ):
        export_parquet(store, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_export_and_upgrade_speak_json(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("pyarrow", reason="pip install pyarrow runs this test")
    fill("sqlite:///topobench.db", 2)
    assert cli.main(["db", "export", "out", "--format", "json"]) == 0
    assert told(capsys, "db-export")["data"]["readings"] == 3
    assert cli.main(["db", "upgrade", "--format", "json"]) == 0
    assert told(capsys, "db-upgrade")["data"]["rollups"] == 3
