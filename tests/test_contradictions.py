"""What a hand edited to another row that is there: `db check` and reports say so."""

from __future__ import annotations

import contextlib
import json
import shutil
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from documents import check as check_document
from querying import Fleet
from storing import BANDWIDTH, at, begin, cell, host, reading, run
from topobench import cli
from topobench.db import schema
from topobench.db.columns import now_text
from topobench.db.contradictions import contradictions
from topobench.db.engine import reading as reading_of
from topobench.db.engine import writing
from topobench.db.identities import identities
from topobench.db.keys import insert_id
from topobench.db.merge import import_store
from topobench.db.retention import vacuum
from topobench.db.store import Store
from topobench.db.strays import blame, stray
from topobench.errors import StoreError

GEMM = "flop_per_second"


def fill(store: Store) -> None:
    """
    Two clusters; in the first two hosts of two GPUs each, and two nights.

    Hosts are 1 (k1), 2 (k2) and 3 (k3, of the other cluster), sweeps 1, 2 and 3 (of the other);
    runs and their cells 1 (a copy, k1), 2 (GEMM, k1), 3 (a copy, k2), 4 (as 1, the second night)
    and 5 (k3). Series, arms and sets of devices are numbered by their digests: 1 is of GEMM, of
    ``local``, of B-0; 2 of the copies on k1, of ``none``, of A-0.
    """
    hosts = [host("k1", gpus=2, prefix="A", labels={"sku": "h200"}), host("k2", gpus=2, prefix="B")]
    copy: dict[str, Any] = {"probe": "host_to_device", "params": {"bytes": 1 << 20}}
    first = cell(host="k1", devices=["A-0"], **copy)
    nights = [
        [
            (first, BANDWIDTH),
            (cell(host="k1", probe="gemm", devices=["A-1"], binding="local"), GEMM),
            (cell(host="k2", devices=["B-0"], **copy), BANDWIDTH),
        ],
        [(cell(host="k1", devices=["A-0"], **copy), BANDWIDTH)],
    ]
    for day, planned in enumerate(nights, 2):
        sweep = begin(store, *(c for c, _ in planned), hosts=hosts, day=day)
        _measure(store, sweep, planned, day)
    far = [(cell(host="k3", devices=["C-0"], **copy), BANDWIDTH)]
    sweep = begin(
        store,
        far[0][0],
        hosts=[host("k3", gpus=1, prefix="C", shape="tfp1:t")],
        cluster="far",
        day=4,
    )
    _measure(store, sweep, far, 4)
    with writing(store.engine) as connection:
        for table, row in _judged(connection):
            insert_id(connection, table, row)


def _measure(store: Store, sweep: str, planned: list[Any], day: int) -> None:
    for each, metric in planned:
        first = reading(7.0, metric=metric, samples=[7.0] * 3)
        other = reading(8.0, metric=metric, samples=[8.0] * 3, point={"copy": 1})
        store.put_run(run(each, first, other, day=day))
    store.end_sweep(sweep, ended_at=at(60, day))


def _judged(connection: sa.Connection) -> list[tuple[sa.Table, dict[str, Any]]]:
    """Two verdicts on a GPU of k1, one on k3; a line and a change of k1; a note on k1."""
    s, d, h = schema.sweep.c, schema.device.c, schema.host.c
    sweeps = connection.execute(sa.select(s.id).order_by(s.id)).scalars().all()
    gpu = connection.execute(sa.select(d.id, d.host_id).where(d.key == "A-0")).one()
    far = connection.execute(sa.select(h.id).where(h.key == "k3")).scalar_one()
    run_ = schema.run.c
    series = connection.execute(sa.select(run_.series_id).order_by(run_.id).limit(1)).scalar_one()
    verdict = {
        "as_of": at(60),
        "check_name": "overall",
        "level": "ok",
        "reason": "all is well",
        "policy_version": "1",
        "inputs_digest": "d",
    }
    own = {**verdict, "host_id": gpu.host_id, "device_id": gpu.id, "sweep_id": sweeps[0]}
    fit = {"kind": "alpha_beta", "subject": "s", "x_metric": "bytes", "params": {}}
    note = {"entity": "host", "author": "a", "text": "t", "created_at": now_text()}
    change = {"metric_id": 1, "at_lo": at(0), "at_hi": at(0, 3), "method": "potts"}
    return [
        (schema.verdict, own),
        (schema.verdict, own),
        (schema.verdict, {**verdict, "host_id": far, "device_id": None, "sweep_id": sweeps[2]}),
        (schema.fit, {**fit, "host_id": gpu.host_id, "series_id": series, "sweep_id": sweeps[0]}),
        (schema.changepoint, {**change, "series_id": series, "effect_ratio": -0.1}),
        (schema.annotation, {**note, "entity_id": gpu.host_id, "expires_at": now_text()}),
    ]


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory, made_file: Path) -> Path:
    """The store before anybody edited it."""
    path = tmp_path_factory.mktemp("filled") / "topobench.db"
    shutil.copyfile(made_file, path)
    with Store.open(f"sqlite:///{path}") as store:
        fill(store)
        with store.engine.connect() as connection:
            connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
    return path


@pytest.fixture
def url(filled: Path, tmp_path: Path) -> str:
    """A copy of it."""
    shutil.copyfile(filled, tmp_path / "topobench.db")
    return f"sqlite:///{tmp_path}/topobench.db"


def told(url: str) -> dict[tuple[str, str], tuple[Mapping[str, Any], str, str, int]]:
    """What contradicts in a store, by table and column: row, value, what belongs there, rows."""
    with Store.open(url, read_only=True) as store, reading_of(store.engine) as connection:
        found = [*contradictions(connection), *identities(connection, ())]
    return {(s.table, s.column): (s.row, s.value, s.belongs, s.rows) for s in found}


EDITS = {
    "UPDATE run SET sweep_id = 2 WHERE id = 1": (
        *("run", "sweep_id", {"id": 1}, "2"),
        "1, the sweep of its cell,",
    ),
    "UPDATE run SET series_id = 3 WHERE id = 1": (
        *("run", "series_id", {"id": 1}, "3"),
        "2, the series of its cell,",
    ),
    "UPDATE run SET cell_id = 4 WHERE id = 1": (
        *("run", "sweep_id", {"id": 1}, "1"),
        "2, the sweep of its cell,",
    ),
    "UPDATE run SET topology_id = 2 WHERE id = 1": (
        *("run", "topology_id", {"id": 1}, "2"),
        "a topology of the host of its series",
    ),
    "UPDATE run_member SET host_id = 2 WHERE run_id = 1": (
        *("run_member", "host_id", {"run_id": 1, "rank": 0}, "2"),
        "a host that its series is of",
    ),
    "UPDATE run_member SET device_id = 3 WHERE run_id = 1": (
        *("run_member", "device_id", {"run_id": 1, "rank": 0}, None),
        "a device of its host",
    ),
    "UPDATE run_member SET device_id = 2 WHERE run_id = 1": (
        *("run_member", "device_id", {"run_id": 1, "rank": 0}, None),
        "a device that its series is of",
    ),
    "UPDATE cell SET sweep_id = 3 WHERE id = 1": (
        *("cell", "series_id", {"id": 1}, "2"),
        "a series of a host of its sweep",
    ),
    "UPDATE cell SET series_id = 1 WHERE id = 1": (
        *("cell", "arm", {"id": 1}, "none"),
        "local, the arm of its series,",
    ),
    "UPDATE sweep SET cluster_id = 2 WHERE id = 2": (
        *("sweep_host", "host_id", {"sweep_id": 2, "host_id": 1}, "1"),
        "a host of the cluster of its sweep",
    ),
    "UPDATE sweep_host SET topology_id = 2 WHERE host_id = 1 AND sweep_id = 1": (
        *("sweep_host", "topology_id", {"sweep_id": 1, "host_id": 1}, "2"),
        "a topology of its host",
    ),
    "UPDATE series SET case_id = 2 WHERE id = 2": (
        *("series", "digest", {"id": 2}, None),
        "that of its cluster, host, case, arm, devices and ranks",
    ),
    "UPDATE series SET host_id = 2 WHERE id = 2": (
        *("series", "device_set_id", {"id": 2}, "2"),
        "a set of devices of its host, or of its cluster for several,",
    ),
    "UPDATE series SET latest_sweep_id = 1 WHERE id = 2": (
        *("series", "latest_sweep_id", {"id": 2}, "1"),
        "the sweep of its usable run at latest_at",
    ),
    "UPDATE series SET n_hosts = 2 WHERE id = 2": (
        *("series", "n_hosts", {"id": 2}, "2"),
        "1, the number of hosts of its devices,",
    ),
    "UPDATE device_set SET device_id = 2 WHERE id = 1": (
        *("device_set", "device_id", {"id": 1}, "2"),
        "3, the only device that is its member,",
    ),
    "UPDATE device_set_member SET device_id = 2 WHERE device_set_id = 1": (
        *("device_set", "digest", {"id": 1}, None),
        "that of its members",
    ),
    "UPDATE device SET host_id = 3 WHERE key = 'A-1'": (
        *("run_member", "device_id", {"run_id": 2, "rank": 0}, None),
        "a device of its host",
    ),
    "UPDATE host SET sku_id = 2 WHERE id = 1": (
        *("host", "sku_id", {"id": 1}, "2"),
        "the SKU that its label names",
    ),
    "UPDATE reading SET metric_id = 2 WHERE run_id = 1 AND seq = 1": (
        *("reading", "metric_id", {"run_id": 1, "seq": 1}, "2"),
        "a metric of its probe",
    ),
    "UPDATE night_rollup SET metric_id = 2 WHERE series_id = 3": (
        *("night_rollup", "metric_id", None, "2"),
        "a metric of its probe",
    ),
    "UPDATE reading SET run_id = 1, seq = 2 WHERE run_id = 3 AND seq = 1": (
        *("sample", "seq", {"run_id": 3, "seq": 1}, "1"),
        "the seq of a reading of its run",
    ),
    "UPDATE reading SET run_id = 1, seq = 2 WHERE run_id = 3 AND seq = 0": (
        *("reading", "seq", {"run_id": 3, "seq": 1}, "1"),
        "0, the last of its run where none is missing,",
    ),
    "UPDATE verdict SET host_id = 3, device_id = NULL WHERE id = 1": (
        *("verdict", "host_id", {"id": 1}, "3"),
        "a host of the cluster of its sweep",
    ),
    "UPDATE verdict SET host_id = 2 WHERE id = 1": (
        *("verdict", "device_id", {"id": 1}, "1"),
        "a device of its host",
    ),
    "UPDATE verdict SET superseded_by = 3 WHERE id = 1": (
        *("verdict", "superseded_by", {"id": 1}, "3"),
        "another verdict on the same host and sweep",
    ),
    "UPDATE fit SET series_id = 3": (
        *("fit", "series_id", {"id": 1}, "3"),
        "a series of its host that its sweep measured",
    ),
    "UPDATE fit SET sweep_id = 3": (
        *("fit", "host_id", {"id": 1}, "1"),
        "a host of the cluster of its sweep",
    ),
    "UPDATE changepoint SET metric_id = 2": (
        *("changepoint", "metric_id", {"id": 1}, "2"),
        "a metric of its probe",
    ),
    "UPDATE changepoint SET series_id = 1": (
        *("changepoint", "metric_id", {"id": 1}, "1"),
        "a metric of its probe",
    ),
    "UPDATE annotation SET entity_id = 9": (
        *("annotation", "entity_id", {"id": 1}, "9"),
        "the id of a row of host",
    ),
    "UPDATE run_detail SET run_id = 9 WHERE run_id = 3": (
        *("run", "id", {"id": 3}, "3"),
        "a run with its row in run_detail",
    ),
    "UPDATE topology SET topology_class_id = 2 WHERE id = 1": (
        *("topology", "topology_class_id", {"id": 1}, "2"),
        "the class of its shape",
    ),
    "UPDATE device SET key = 'Z' WHERE id = 1": (
        *("device_set", "label", {"id": 2}, "A-0"),
        "the keys of its members",
    ),
    "UPDATE run SET day = '2026-12-24' WHERE id = 1": (
        *("run", "day", {"id": 1}, "2026-12-24"),
        "2026-11-02, the UTC day of started_at,",
    ),
    "UPDATE sweep SET started_at = '2026-12-24T01:00:00.000000Z' WHERE id = 1": (
        *("sweep", "started_unix_seconds", {"id": 1}, None),
        "started_at in seconds since 1970",
    ),
    "UPDATE arm SET document = replace(document, 'none', 'local') WHERE id = 2": (
        *("arm", "digest", {"id": 2}, None),
        "that of its document",
    ),
}
"""What is edited -> what is told of it: table, column, row and value (None: any), what belongs."""


def test_a_store_that_nobody_edited_contradicts_itself_nowhere(url: str) -> None:
    assert told(url) == {}


def test_what_topobench_wrote_contradicts_itself_nowhere(fleet: Fleet) -> None:
    """Two clusters with gangs over hosts, bindings, rings, imports, retries, judged nights."""
    assert told(fleet.url) == {}


def test_a_parameter_called_hosts_makes_no_gang_of_a_user_s_own_probe(
    sqlite_store_url: str,
) -> None:
    """Of an import alone it says how many hosts took part."""
    planned = cell(probe="mine", params={"hosts": 2})
    with Store.open(sqlite_store_url) as store:
        begin(store, planned)
        store.put_run(run(planned, reading(7.0)))
        with reading_of(store.engine) as connection:
            assert connection.execute(sa.select(schema.series.c.n_hosts)).scalars().all() == [1]
    assert told(sqlite_store_url) == {}


@pytest.mark.parametrize("change", EDITS)
def test_a_key_that_leads_to_a_wrong_row_is_told_with_what_belongs_there(
    url: str, change: str
) -> None:
    table, column, row, value, belongs = EDITS[change]
    by_hand(url, change)
    found = told(url)[table, column]
    assert (found[0] if row else row, found[1] if value else value) == (row, value)
    assert found[2] == belongs


EVERYWHERE = (
    "UPDATE run SET sweep_id = (SELECT max(id) FROM sweep) WHERE id = (SELECT min(id) FROM run)",
    "UPDATE run_member SET host_id = (SELECT max(id) FROM host)",
    "UPDATE series SET latest_sweep_id = (SELECT min(id) FROM sweep)",
    "UPDATE reading SET metric_id = (SELECT max(id) FROM metric) WHERE seq = 1",
    "UPDATE device_set SET device_id = NULL WHERE label = 'A-0'",
    "UPDATE annotation SET entity_id = 99",
    "UPDATE sweep SET started_unix_seconds = started_unix_seconds + 3600",
    "UPDATE verdict SET superseded_by = id",
    "DELETE FROM run_detail WHERE run_id = (SELECT max(id) FROM run)",
    "DELETE FROM reading WHERE seq = 0 AND run_id = (SELECT max(id) FROM run)",
)


@pytest.mark.postgres
def test_both_engines_tell_the_same(url: str, postgres_store_url: str) -> None:
    """PostgreSQL takes no key that leads nowhere, and every other as SQLite does."""
    with Store.open(postgres_store_url) as store:
        fill(store)
    assert told(postgres_store_url) == {}
    for each in (url, postgres_store_url):
        with Store.open(each) as store, writing(store.engine) as connection:
            for change in EVERYWHERE:
                connection.execute(sa.text(change))
    rows = {place: found[3] for place, found in told(url).items()}
    assert rows == {
        ("run", "sweep_id"): 1,
        ("run_member", "host_id"): 4,
        ("run_member", "device_id"): 4,
        ("series", "latest_sweep_id"): 2,
        ("reading", "metric_id"): 4,
        ("device_set", "device_id"): 1,
        ("annotation", "entity_id"): 1,
        ("verdict", "superseded_by"): 3,
        ("fit", "series_id"): 1,
        ("run", "id"): 1,
        ("sweep", "started_unix_seconds"): 3,
        ("reading", "seq"): 1,
        ("sample", "seq"): 1,
    }
    assert {place: found[3] for place, found in told(postgres_store_url).items()} == rows


@pytest.mark.parametrize(
    ("change", "place"),
    [
        (
            "UPDATE run SET sweep_id = 1 WHERE id = 4",
            "table run, row id 4, column sweep_id holds '1' where 2, the sweep of its cell,",
        ),
        (
            "UPDATE cell SET series_id = 1 WHERE id = 4",
            "table run, row id 4, column series_id holds '2' where 1, the series of its cell,",
        ),
        (
            "UPDATE host SET cluster_id = 2 WHERE id = 1",
            "host_id 1, column host_id holds '1' where a host of the cluster of its sweep",
        ),
    ],
)
def test_what_rests_on_contradicting_rows_is_not_answered(
    url: str, capsys: pytest.CaptureFixture[str], change: str, place: str
) -> None:
    """A report would show a number under another sweep, host or case."""
    by_hand(url, change)
    for command, code in (
        (["report"], 1),
        (["query", "latest"], 1),
        (["check"], 3),
        (["compare", "latest", "latest"], 2),
        (["db", "check"], 1),
    ):
        assert cli.main([*command, "--store", url]) == code, command
        text = " ".join("".join(capsys.readouterr()).split())
        assert place in text, command
        assert "one of the two rows was edited" in text


@pytest.mark.parametrize(
    "change", ["UPDATE run SET cell_id = 4 WHERE id = 1", "UPDATE run_member SET host_id = 2"]
)
def test_an_edited_store_comes_into_no_other_one(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], change: str
) -> None:
    """Nor is it exported: what is wrong with it would look right there."""
    by_hand(url, change)
    other, path = f"sqlite:///{tmp_path}/other.db", url.removeprefix("sqlite:///")
    for command in (["import", path, "--store", other], ["export", "out", "--store", url]):
        assert cli.main(["db", *command]) == 1
        text = " ".join("".join(capsys.readouterr()).split())
        assert f"{path}: table run" in text, command
        assert "`topobench db check` lists what else there is" in text
    with Store.open(other) as store:
        assert store.info()["rows"]["sweep"] == 0


def test_a_verdict_given_anew_on_more_data_supersedes_the_first_in_another_store_too(
    url: str, tmp_path: Path
) -> None:
    """By the same rules and as of the same time: it came to supersede itself there."""
    by_hand(url, "UPDATE verdict SET inputs_digest = id, superseded_by = CASE id WHEN 1 THEN 2 END")
    assert told(url) == {}
    with Store.open(f"sqlite:///{tmp_path}/other.db") as store:
        for _ in range(2):
            import_store(store, url)
        v = schema.verdict.c
        with store.engine.connect() as connection:
            query = sa.select(v.id, v.inputs_digest, v.superseded_by).order_by(v.id)
            rows = [tuple(row) for row in connection.execute(query)]
    assert rows == [(1, "1", 2), (2, "2", None), (3, "3", None)]


def test_a_change_comes_in_with_its_nights_of_a_store_whose_results_were_removed(
    url: str, tmp_path: Path
) -> None:
    """A store that has a change without any nights, as imports once left it, is sound as well."""
    other = f"sqlite:///{tmp_path}/other.db"
    with Store.open(url) as store:
        vacuum(store, now=at(0).replace("2026", "2029"))
        kept = nights(store)
    with Store.open(other) as store:
        for _ in range(2):
            import_store(store, url)
            assert (nights(store), store.info()["rows"]["changepoint"]) == (kept, 1)
    assert len(kept) > 1
    by_hand(other, "DELETE FROM night_rollup")
    assert (told(url), told(other)) == ({}, {})


def test_no_nights_come_in_of_a_cluster_whose_sweeps_are_refused(url: str, tmp_path: Path) -> None:
    """Here it has another name; those of the cluster that is called the same come in."""
    other = f"sqlite:///{tmp_path}/other.db"
    with Store.open(other) as store:
        import_store(store, url)
    by_hand(other, "UPDATE cluster SET name = 'mine' WHERE name = 'lab'")
    by_hand(  # as if results of that day had been removed by age
        url,
        "INSERT INTO night_rollup SELECT DISTINCT series_id, metric_id, point, '2020-01-01', 1, 2,"
        " 0 FROM night_rollup",
    )
    with Store.open(other) as store:
        assert import_store(store, url).conflicts > 0
        with store.engine.connect() as connection:
            query = (
                "SELECT DISTINCT c.name FROM night_rollup n JOIN series s ON s.id = n.series_id"
                " JOIN host h ON h.id = s.host_id JOIN cluster c ON c.id = h.cluster_id"
                " WHERE n.day = '2020-01-01'"
            )
            came_in = set(connection.exec_driver_sql(query).scalars())
    assert came_in
    assert came_in.isdisjoint({"lab", "mine"})


def test_a_list_where_names_with_values_belong_is_told(url: str) -> None:
    by_hand(url, "UPDATE host SET labels = '[]' WHERE id = 1")
    with Store.open(url, read_only=True) as store, reading_of(store.engine) as connection:
        error = stray(connection)
    assert error is not None
    assert "table host, row id 1, column labels holds '[]' where a JSON text belongs" in str(error)


def nights(store: Store) -> list[tuple[Any, ...]]:
    """Of the roll-up, by what they are of."""
    query = (
        "SELECT c.probe, m.name, n.point, n.day, n.n, n.median, n.mad FROM night_rollup n"
        " JOIN series s ON s.id = n.series_id JOIN probe_case c ON c.id = s.case_id"
        " JOIN metric m ON m.id = n.metric_id ORDER BY 1, 2, 3, 4, 5, 6, 7"
    )
    with store.engine.connect() as connection:
        return [tuple(row) for row in connection.exec_driver_sql(query)]


def test_more_foreign_metrics_are_told_than_sqlite_takes_conditions(url: str) -> None:
    """A thousand in one expression are too many for it."""
    by_hand(
        url,
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1100)"
        " INSERT INTO probe_case (digest, probe, probe_version, params_hash, params)"
        " SELECT 'd' || i, probe, probe_version, 'h' || i, params FROM n, probe_case p"
        " WHERE p.probe = 'gemm'",
    )
    by_hand(
        url,
        "INSERT INTO baseline (topology_class_id, case_id, metric_id, valid_from, n_hosts, median,"
        " mad, method, version) SELECT 1, p.id, m.id, '2026-11-02T01:00:00.000000Z', 1, 1, 0, 'm',"
        f" '1' FROM probe_case p, metric m WHERE p.digest LIKE 'd%' AND m.name = '{BANDWIDTH}'",
    )
    belongs, rows = told(url)["baseline", "metric_id"][2:]
    assert (belongs, rows) == ("a metric of its probe", 1100)


def test_what_breaks_over_edited_parameters_is_no_bug_of_ours(url: str) -> None:
    assert blame(url) is None
    by_hand(url, "UPDATE probe_case SET params = '{}' WHERE id = 1")
    with pytest.raises(StoreError, match="table probe_case, row id 1, column digest holds"):
        raise blame(url) or AssertionError("nobody noticed")


def test_db_check_tells_contradictions_as_json(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    by_hand(url, "UPDATE run SET sweep_id = 2 WHERE cell_id < 4")
    assert cli.main(["db", "check", "--format", "json", "--store", url]) == 1
    document = json.loads(capsys.readouterr().out)
    check_document(document, "db-check")
    first = document["data"]["problems"][0]
    assert (first["table"], first["column"], first["rows"]) == ("run", "sweep_id", 3)
    assert first["advice"].startswith("one of the two rows was edited")


def by_hand(url: str, change: str) -> None:
    """Change a SQLite store as its own shell does, which looks at no key."""
    with contextlib.closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as file:
        file.execute(change)
        file.commit()
