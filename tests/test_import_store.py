"""Imported results in the store and on the command line: once, marked, out of the way."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from documents import check
from storing import begin, cell, count, host, reading, run, topology
from topobench import cli
from topobench.db.queries import run_query
from topobench.db.store import Store
from topobench.errors import NotFound, StoreUnreachable
from topobench.importing import import_files, origin

DATA = Path(__file__).parent / "data"
ALL_REDUCE = DATA / "h200x2" / "nccl_tests_2.19.6_all_reduce.json"
OLD = DATA / "nccl_tests" / "v2.13.13_all_reduce.txt"
STAMPED = DATA / "nccl_tests" / "v2.19.6_timestamps.txt"
NO_ROWS = DATA / "nccl_tests" / "v2.19.6_json_bad.txt"
MATRICES = DATA / "h200x2" / "nvbandwidth_0.8.json"


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TOPOBENCH_STORE", raising=False)


def put(url: str, file: Path, *, tool: str = "nccl-tests", **whose: Any) -> dict[str, Any]:
    """Import one file; returns its document."""
    (document,) = import_files(tool, [file], origin(**whose), store_url=url).documents
    return document


def select(url: str, text: str) -> list[dict[str, Any]]:
    """Rows of a store."""
    with Store.open(url, read_only=True) as store, store.engine.connect() as connection:
        return [dict(r) for r in connection.execute(sa.text(text)).mappings()]


def asked(url: str, name: str, **params: str) -> list[dict[str, Any]]:
    """The answer of a named query over all time."""
    with Store.open(url, read_only=True) as store:
        found = run_query(store, name, params, "10000d")
    return [dict(zip(found.columns, row, strict=True)) for row in found.rows]


def wrong_data(folder: Path) -> Path:
    """An output in which one element was wrong."""
    lines = OLD.read_text().replace(": 0 OK", ": 1 FAILED").splitlines()
    at = next(i for i, line in enumerate(lines) if line.split()[:1] == ["32768"])
    lines[at] = lines[at][: lines[at].rindex("0")] + "1.23457e+06"
    path = folder / "wrong.txt"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_figures_are_stored_in_base_units(store_url: str) -> None:
    document = put(store_url, ALL_REDUCE, host="h07", cluster="lab", sku="h200-sxm8")
    stored = document["stored"]
    assert (stored["status"], stored["host"], stored["cells"]) == ("stored", "h07", 8)
    found = select(
        store_url,
        "SELECT * FROM v_reading WHERE bytes = 33554432 AND metric = 'busbw_bytes_per_second'",
    )
    expected = json.loads(ALL_REDUCE.read_text())["results"][-1]
    values = {json.loads(r["params"])["in_place"]: r["median"] for r in found}
    assert values == {
        False: pytest.approx(expected["out_of_place"]["bus_bw"] * 1e9),
        True: pytest.approx(expected["in_place"]["bus_bw"] * 1e9),
    }
    (one, _) = found
    assert (one["probe"], one["op"], one["dtype"]) == ("nccl_tests", "all_reduce", "float32")
    assert (one["n_ranks"], one["devices"], one["binding"]) == (2, "", "unknown")
    assert (one["host"], one["cluster"], one["sku"]) == ("h07", "lab", "h200-sxm8")
    assert (one["nccl"], one["source"], one["better"]) == ("2.28.9", "import:nccl-tests", 1)
    assert (one["n"], one["duration_seconds"]) == (1, None)


def test_the_same_bytes_are_stored_once(store_url: str, tmp_path: Path) -> None:
    first = put(store_url, ALL_REDUCE, host="h07")
    before = select(store_url, "SELECT count(*) AS n FROM reading")
    copy = tmp_path / "copy.json"
    copy.write_bytes(ALL_REDUCE.read_bytes())
    again = put(store_url, copy, host="h07")
    assert again["stored"]["status"] == "already stored"
    assert again["stored"]["sweep"] == first["stored"]["sweep"]
    assert again["stored"]["differs"] is False
    assert select(store_url, "SELECT count(*) AS n FROM reading") == before
    copy.write_bytes(ALL_REDUCE.read_bytes() + b"\n")
    assert put(store_url, copy, host="h07")["stored"]["status"] == "stored"


def test_what_was_said_of_a_file_first_stays(sqlite_store_url: str) -> None:
    put(sqlite_store_url, ALL_REDUCE, host="h07", cluster="lab")
    again = put(sqlite_store_url, ALL_REDUCE, host="h08", cluster="lab")["stored"]
    assert (again["host"], again["differs"]) == ("h07", True)
    assert [r["name"] for r in select(sqlite_store_url, "SELECT name FROM host")] == ["h07"]


def test_an_import_that_was_cut_short_is_finished(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, left = Store.put_run, [3]

    def fails_after_3(store: Store, run: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise StoreUnreachable("gone")
        return real(store, run)

    with monkeypatch.context() as patch:
        patch.setattr(Store, "put_run", fails_after_3)
        with pytest.raises(StoreUnreachable):
            put(store_url, ALL_REDUCE)
    assert select(store_url, "SELECT status FROM sweep") == [{"status": "running"}]
    assert put(store_url, ALL_REDUCE)["stored"]["status"] == "stored"
    assert select(store_url, "SELECT status FROM sweep") == [{"status": "done"}]
    assert select(store_url, "SELECT count(*) AS n FROM run") == [{"n": 8}]


def test_wrong_data_enters_no_view_and_is_not_lost(store_url: str, tmp_path: Path) -> None:
    document = put(store_url, wrong_data(tmp_path))
    assert document["status"] == "invalid"
    assert select(store_url, "SELECT * FROM v_reading") == []
    runs = select(store_url, "SELECT status, reason_code FROM run")
    assert {tuple(r.values()) for r in runs} == {("invalid", "wrong_data")}
    kept = select(store_url, "SELECT median, raw_value FROM reading ORDER BY raw_value")
    assert {r["median"] for r in kept} == {None}
    assert kept[-1]["raw_value"] == 70.95e9


def test_nobodys_result_is_not_this_machines(sqlite_store_url: str) -> None:
    """Files that nobody named a host for may be of different hosts: they are kept apart."""
    put(sqlite_store_url, ALL_REDUCE)
    put(sqlite_store_url, OLD)
    found = select(sqlite_store_url, "SELECT key, name FROM host")
    assert {r["name"] for r in found} == {"unknown"}
    assert len({r["key"] for r in found}) == 2
    assert all(r["key"].startswith("import:") for r in found)


def test_a_discovered_host_of_that_name_is_not_touched(store_url: str) -> None:
    with Store.open(store_url) as store:
        mine = cell()
        begin(store, mine, hosts=[host(name="h07", gpus=2)])
        store.put_run(run(mine, reading(2e9)))
        before = count(store, "topology")
    put(store_url, ALL_REDUCE, host="h07", cluster="lab", sku="2x H200-SXM / 2x Xeon 8480C")
    hosts = select(store_url, "SELECT key, name FROM host ORDER BY key")
    assert hosts == [{"key": "import:h07", "name": "h07"}, {"key": "k1", "name": "h07"}]
    (sku,) = select(store_url, "SELECT gpu_count FROM sku")
    assert sku == {"gpu_count": 2}
    with Store.open(store_url) as store:
        assert count(store, "topology") == before + 1


def test_a_discovered_host_tells_what_an_imported_sku_is_made_of(store_url: str) -> None:
    put(store_url, ALL_REDUCE, sku="h200-sxm8")
    assert select(store_url, "SELECT gpu_count, gpu_model FROM sku") == [
        {"gpu_count": None, "gpu_model": None}
    ]
    with Store.open(store_url) as store:
        begin(store, hosts=[host(gpus=2, labels={"sku": "h200-sxm8"})])
    assert select(store_url, "SELECT gpu_count, gpu_model FROM sku") == [
        {"gpu_count": 2, "gpu_model": "NVIDIA H200"}
    ]


def test_imports_are_shown_only_where_they_are_asked_for(store_url: str, tmp_path: Path) -> None:
    for n, file in enumerate((ALL_REDUCE, OLD, STAMPED)):
        put(store_url, file, host=f"h{n}", cluster="lab", sku="h200")
    put(store_url, wrong_data(tmp_path), host="h9", cluster="lab")
    put(store_url, MATRICES, tool="nvbandwidth", host="h1", cluster="lab", sku="h200")
    for name in ("latest", "all-reduce-by-size", "what-failed"):
        assert asked(store_url, name) == [], name
        shown = asked(store_url, name, source="import:%")
        assert shown, name
        assert {r["source"] for r in shown} <= {"import:nccl-tests", "import:nvbandwidth"}
    assert asked(store_url, "slowest-hosts", min_hosts="1") == []
    assert asked(store_url, "coverage") == []


def test_latest_never_means_an_import(store_url: str) -> None:
    put(store_url, ALL_REDUCE)
    with Store.open(store_url) as store:
        with pytest.raises(NotFound, match="only other tools' results are stored here"):
            store.resolve_sweep("latest")
        mine = begin(store)
        assert store.resolve_sweep("latest") == mine


def test_the_time_is_the_users_or_the_files_or_now(sqlite_store_url: str) -> None:
    flag = put(sqlite_store_url, OLD, taken_at="2026-10-01T12:00:00+02:00")["stored"]
    own = put(sqlite_store_url, STAMPED)["stored"]
    none = put(sqlite_store_url, MATRICES, tool="nvbandwidth")["stored"]
    with Store.open(sqlite_store_url) as store:
        times = {s["id"]: s["started_at"] for s in store.sweeps()}
    assert times[flag["sweep"]] == "2026-10-01T10:00:00.000000Z"
    assert times[own["sweep"]].startswith("2026-11-29T16:16:")
    assert flag["warnings"] == []
    assert "taken as UTC" in own["warnings"][0]
    assert "time of the import" in none["warnings"][0]


def test_a_topology_can_be_told(sqlite_store_url: str, tmp_path: Path) -> None:
    path = tmp_path / "topology.json"
    path.write_text(json.dumps(topology(gpus=2).to_json()))
    put(sqlite_store_url, ALL_REDUCE, host="h07", topology=path)
    (found,) = select(sqlite_store_url, "SELECT sku, topology_class FROM v_latest LIMIT 1")
    assert found == {
        "sku": "2x H200-SXM / 2x Xeon 8480C",
        "topology_class": "2x H200-SXM / 2x Xeon 8480C",
    }


def test_ranks_on_several_hosts_are_counted(sqlite_store_url: str, tmp_path: Path) -> None:
    text = (DATA / "nccl_tests" / "mpi_tag_output.txt").read_text()
    path = tmp_path / "two_hosts.txt"
    path.write_text(text.replace("Pid   6607 on         vm", "Pid   6607 on      other"))
    put(sqlite_store_url, path)
    assert {r["n_hosts"] for r in select(sqlite_store_url, "SELECT n_hosts FROM series")} == {2}


def test_repeated_sizes_are_processes_of_one_case(sqlite_store_url: str) -> None:
    put(sqlite_store_url, DATA / "nccl_tests" / "v2.19.2_cycles.txt")
    found = select(
        sqlite_store_url,
        "SELECT n_processes, median, lowest, highest, ci_lo FROM v_latest"
        " WHERE metric = 'busbw_bytes_per_second' AND params LIKE '%in_place__false%'",
    )
    assert found == [
        {"n_processes": 3, "median": 55.26e9, "lowest": 52.38e9, "highest": 56.55e9, "ci_lo": None}
    ]


def test_matrices_are_stored_by_test_case(sqlite_store_url: str) -> None:
    document = put(sqlite_store_url, MATRICES, tool="nvbandwidth")
    assert document["stored"]["cells"] == 86
    found = select(
        sqlite_store_url,
        "SELECT metric, median FROM v_latest WHERE params LIKE '%device_to_device_latency_sm%'"
        " ORDER BY median",
    )
    assert [(r["metric"], r["median"]) for r in found] == [
        ("latency_seconds", 829.174e-9),
        ("latency_seconds", 829.889e-9),
    ]


def test_a_waived_case_is_a_skipped_cell(sqlite_store_url: str, tmp_path: Path) -> None:
    path = tmp_path / "waived.txt"
    path.write_text(
        "Running host_to_device_memcpy_ce.\nmemcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)\n"
        "           0\n 0     26.03\n\nSUM host_to_device_memcpy_ce 26.03\n\n"
        "Waiving device_to_device_memcpy_write_ce.\nRunning device_local_copy.\n"
    )
    put(sqlite_store_url, path, tool="nvbandwidth")
    found = select(sqlite_store_url, "SELECT status, reason_code FROM cell ORDER BY position")
    assert [tuple(r.values()) for r in found] == [
        ("ok", None),
        ("skipped", "unsupported"),
        ("failed", "crashed"),
    ]


def test_no_secret_reaches_the_database(tmp_path: Path) -> None:
    for file in (ALL_REDUCE, DATA / "nccl_tests" / "v2.19.6_json.json"):
        assert b"EXAMPLE-NOT-A-SECRET" in file.read_bytes()
        put(f"sqlite:///{tmp_path}/t.db", file)
    stored = b"".join(f.read_bytes() for f in tmp_path.glob("t.db*"))
    assert b"busbw_bytes_per_second" in stored
    assert b"SECRET" not in stored


def command(*words: object, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of the command line."""
    code = cli.main([str(w) for w in words])
    out, err = capsys.readouterr()
    return code, out, err


def test_the_command_prints_the_document_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("import", "nccl-tests", ALL_REDUCE, "--host", "h07", "--format", "json")
    code, out, _ = command(*words, "--dry-run", capsys=capsys)
    document = json.loads(out)
    check(document, "import")
    assert (code, document["stored"], document["file"]) == (0, None, ALL_REDUCE.name)
    assert list(tmp_path.glob("topobench.db*")) == []
    code, out, _ = command(*words, capsys=capsys)
    check(json.loads(out), "import")
    assert (code, json.loads(out)["stored"]["status"]) == (0, "stored")
    assert (tmp_path / "topobench.db").exists()


def test_several_files_give_a_list_and_the_bad_ones_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "notes.txt").write_text("bought in May\n")
    words = ("import", "nccl-tests", OLD, "notes.txt", "absent.txt", "--format", "json")
    code, out, _ = command(*words, capsys=capsys)
    document = json.loads(out)
    check(document, "import")
    assert code == 1
    assert [d["file"] for d in document["documents"]] == [OLD.name]
    assert [f["file"] for f in document["failures"]] == ["notes.txt", "absent.txt"]


def test_an_invalid_result_has_its_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = command("import", "nccl-tests", wrong_data(tmp_path), capsys=capsys)
    assert code == 1
    assert "1234570 elements were wrong" in out
    code, out, _ = command("import", "nccl-tests", NO_ROWS, capsys=capsys)
    assert code == 1
    assert "not stored" in out


def test_people_see_figures_and_what_became_of_the_file(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, out, _ = command("import", "nccl-tests", ALL_REDUCE, "--host", "h07", capsys=capsys)
    text = " ".join(out.split())
    assert code == 0
    assert "all_reduce, 2 ranks, 4 rows: ok" in text
    assert "of host h07 of cluster unknown" in text
    code, out, _ = command("import", "nvbandwidth", MATRICES, "--dry-run", capsys=capsys)
    assert "host_to_device_memcpy_ce cpu 0 gpu 1 55.4 GB/s" in " ".join(out.split())


def test_a_report_of_an_import_says_nothing_it_does_not_know(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ("import", "nccl-tests", ALL_REDUCE, "--host", "h07", "--format", "json")
    _, out, _ = command(*words, capsys=capsys)
    code, out, _ = command("report", json.loads(out)["stored"]["sweep"], capsys=capsys)
    assert code == 0
    assert "h07" in out
    assert "topobench did not measure or discover this host" in " ".join(out.split())
    for claim in ("no NVIDIA driver", "no torch", "no numactl"):
        assert claim not in out


def test_a_gigabyte_in_one_line_is_refused_by_its_size(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (tmp_path / "huge.txt").open("wb") as file:
        file.truncate(1 << 30)
    code, _, err = command("import", "nccl-tests", "huge.txt", capsys=capsys)
    assert code == 1
    assert "huge.txt: cannot be read: it is larger than 64 MiB" in err


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--taken-at", "yesterday"], "--taken-at"),
        (["--taken-at", "2026-11-29T15:00:00"], "zone"),
        (["--host", " "], "--host"),
        (["--topology", "absent.json"], "absent.json"),
    ],
)
def test_a_wrong_flag_is_named(
    flags: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = command("import", "nccl-tests", OLD, *flags, capsys=capsys)
    assert (code, out) == (2, "")
    assert words in err


def test_a_result_without_its_ranks_is_shown_and_not_stored(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [line for line in OLD.read_text().splitlines() if "Rank" not in line]
    (tmp_path / "ranks.txt").write_text("\n".join(lines))
    assert command("import", "nccl-tests", "ranks.txt", "--dry-run", capsys=capsys)[0] == 0
    code, _, err = command("import", "nccl-tests", "ranks.txt", capsys=capsys)
    assert code == 1
    assert "number of ranks" in err
