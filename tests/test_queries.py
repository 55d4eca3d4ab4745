"""Named queries: headers, parameters, and known answers on every engine."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from querying import Rows, pick
from storing import BANDWIDTH, LATENCY, begin, cell, host, reading, run
from topobench.db import queries
from topobench.db.queries import bind, list_queries, load, parse, run_query
from topobench.db.retention import vacuum
from topobench.db.store import Store
from topobench.errors import UsageError
from topobench.reading import Binding, Reason, ReasonCode, Run, Scalar, Status
from topobench.retention import Retention

NOW = "2026-11-03T01:00:00Z"
ALL = {"now": NOW, "since": "2026-01-01"}
DAY = 86400.0
NAMES = [q.name for q in list_queries()]
MIB = 1 << 20


def fill(store: Store) -> dict[str, str]:
    """
    Two sweeps of a cluster with known answers; returns their ids.

    The first: four hosts, the last 20 % slow. The second, a day later: one host's copies
    by chunk and binding, an all-reduce, a skipped and a failed cell. A fifth host was seen
    and never measured.
    """
    keys = ["k1", "k2", "k3", "k4"]
    speeds = dict(zip(keys, (10e9, 10.2e9, 9.8e9, 8e9), strict=True))
    cells = [cell(host=k, params={"op": "copy", "bytes": MIB}) for k in keys]
    hosts = [host(k, name=f"node-{k}", gpus=2) for k in (*keys, "k5")]
    first = begin(store, *cells, hosts=hosts, day=2)
    for planned in cells:
        store.put_run(run(planned, reading(speeds[planned.host]), second=0, day=2))
    store.end_sweep(first, "done", ended_at="2026-11-02T01:10:00.000000Z")
    return {"first": first, "second": _second(store)}


def _second(store: Store) -> str:
    def copy(size: int, binding: str, process_no: int = 0) -> Any:
        params: dict[str, Scalar] = {"bytes": size, "direction": "h2d", "memory": "pinned"}
        return cell(
            host="k1",
            probe="host_to_device",
            params=params,
            binding=binding,
            devices=["GPU-0"],
            process_no=process_no,
        )

    small, large, remote = copy(MIB, "local"), copy(64 * MIB, "local"), copy(64 * MIB, "remote")
    gang = cell(
        host="k1",
        probe="all_reduce",
        params={"bytes": 8192, "dtype": "float32", "backend": "gloo"},
        devices=["GPU-0", "GPU-1"],
        ranks=2,
    )
    skipped = cell(host="k1", status=Status.SKIPPED, reason=Reason(ReasonCode.NO_GPU, "no driver"))
    failed = cell(host="k2", params={"op": "triad", "bytes": MIB})
    sweep = begin(
        store,
        *(small, large, remote, gang, skipped, failed),
        hosts=[host(k, name=f"node-{k}", gpus=2) for k in ("k1", "k2")],
        day=3,
        profile="standard",
    )
    for planned, speed in ((small, 20e9), (large, 50e9), (remote, 40e9)):
        store.put_run(run(planned, reading(speed, samples=[speed] * 4), second=0, day=3))
    busbw = reading(3e9, metric="busbw_bytes_per_second")
    store.put_run(run(gang, busbw, second=0, day=3))
    crash = Reason(ReasonCode.SIGNAL, "worker ended by SIGSEGV")
    store.put_run(run(failed, status=Status.FAILED, reason=crash, second=0, day=3))
    return sweep


def answer(store: Store, name: str, **params: str) -> Rows:
    given = {k: v for k, v in ALL.items() if k in [p.name for p in load(name).parameters]}
    found = run_query(store, name, {**given, **params})
    return [dict(zip(found.columns, row, strict=True)) for row in found.rows]


def test_every_query_gives_its_known_answer(store: Store) -> None:
    """One store for all of them: each answer is checked to the value."""
    made = fill(store)
    check_sweeps(store, made)
    check_cells(store, made)
    check_latest(store, made)
    check_numa_tax(store)
    check_slowest(store)
    check_copies(store)
    check_collectives(store)
    check_problems(store, made)
    check_coverage(store)


def check_sweeps(store: Store, made: dict[str, str]) -> None:
    rows = answer(store, "sweeps")
    columns = ("sweep", "profile", "status", "n_cells", "n_measured", "n_skipped", "n_failed")
    assert pick(rows, *columns) == [
        (made["second"], "standard", "running", 6, 4, 1, 1),
        (made["first"], "quick", "done", 4, 4, 0, 0),
    ]
    assert pick(rows, "age_seconds", "source", "synthetic") == [
        (0.0, "probe", 0),
        (DAY, "probe", 0),
    ]
    assert pick(answer(store, "sweeps", limit="1"), "sweep") == [(made["second"],)]
    assert answer(store, "sweeps", cluster="other%") == []
    assert pick(answer(store, "sweeps", since="2026-11-03"), "sweep") == [(made["second"],)]


def check_cells(store: Store, made: dict[str, str]) -> None:
    rows = answer(store, "sweep-cells", sweep=made["first"][:8])
    assert pick(rows, "host", "probe", "status", "metric", "median", "n") == [
        ("node-k1", "host_memory", "ok", BANDWIDTH, 10e9, 1),
        ("node-k2", "host_memory", "ok", BANDWIDTH, 10.2e9, 1),
        ("node-k3", "host_memory", "ok", BANDWIDTH, 9.8e9, 1),
        ("node-k4", "host_memory", "ok", BANDWIDTH, 8e9, 1),
    ]
    latest = answer(store, "sweep-cells")
    assert pick(latest, "status") == [("ok",)] * 4 + [("skipped",), ("failed",)]


def check_latest(store: Store, made: dict[str, str]) -> None:
    rows = answer(store, "latest", host="node-k1", probe="host_memory")
    assert pick(rows, "median", "ci_lo", "ci_hi", "ci_level", "n_processes", "n") == [
        (10e9, 9.9e9, 10.1e9, "within", 1, 1)
    ]
    assert pick(rows, "age_seconds", "source", "synthetic", "sweep") == [
        (DAY, "probe", 0, made["first"])
    ]
    assert len(answer(store, "latest")) == 8
    assert answer(store, "latest", since="2026-11-04") == []


def check_numa_tax(store: Store) -> None:
    (row,) = answer(store, "numa-tax")
    assert (row["host"], row["devices"], row["binding"]) == ("node-k1", "GPU-0", "remote")
    assert (row["local_median"], row["median"], row["n"]) == (50e9, 40e9, 4)
    assert row["tax_ratio"] == pytest.approx(0.2)


def check_slowest(store: Store) -> None:
    rows = answer(store, "slowest-hosts", limit="2")
    assert pick(rows, "host", "median", "sku_median", "n_hosts") == [
        ("node-k4", 8e9, 9.9e9, 4),
        ("node-k3", 9.8e9, 9.9e9, 4),
    ]
    assert rows[0]["effect_ratio"] == pytest.approx(-19 / 99)
    assert answer(store, "slowest-hosts", min_hosts="5") == []


def check_copies(store: Store) -> None:
    rows = answer(store, "h2d-by-chunk")
    assert pick(rows, "arm", "bytes", "median", "of_peak_ratio") == [
        ("local", MIB, 20e9, 0.4),
        ("local", 64 * MIB, 50e9, 1.0),
        ("remote", 64 * MIB, 40e9, 1.0),
    ]
    assert answer(store, "h2d-by-chunk", direction="d2h") == []


def check_collectives(store: Store) -> None:
    rows = answer(store, "all-reduce-by-size", bytes="8K")
    assert pick(rows, "n_ranks", "n_hosts", "path_class", "backend", "bytes", "median") == [
        (2, 1, "NV18", "gloo", 8192, 3e9)
    ]
    assert '"backend":"gloo"' in rows[0]["params"], "what else tells two rows of a size apart"
    assert answer(store, "all-reduce-by-size", bytes="16K") == []


def check_problems(store: Store, made: dict[str, str]) -> None:
    rows = answer(store, "skipped")
    columns = ("probe", "status", "reason_code", "reason", "n_cells", "n_hosts")
    assert pick(rows, *columns) == [("host_memory", "skipped", "no_gpu", "no driver", 1, 1)]
    assert answer(store, "skipped", sweep=made["first"]) == []
    rows = answer(store, "what-failed")
    assert pick(rows, "host", "probe", "reason_code", "reason", "sweep") == [
        ("node-k2", "host_memory", "signal", "worker ended by SIGSEGV", made["second"])
    ]


def check_coverage(store: Store) -> None:
    rows = answer(store, "coverage", since="2026-11-03")
    assert pick(rows, "host", "due", "n_series_measured", "age_seconds") == [
        ("node-k5", 1, 0, None),
        ("node-k2", 1, 1, DAY),
        ("node-k3", 1, 1, DAY),
        ("node-k4", 1, 1, DAY),
        ("node-k1", 0, 5, 0.0),
    ]


def test_latest_pools_the_processes_of_the_last_sweep(store: Store) -> None:
    """Two to five give no interval; six or more their range, and it speaks of processes."""
    old = cell()
    begin(store, old, day=2)
    store.put_run(run(old, reading(99.0), day=2))
    cells = [cell(process_no=n) for n in range(6)]
    begin(store, *cells, day=3)
    seen = []
    for planned, value in zip(cells, (4.0, 1.0, 2.0, 6.0, 3.0, 5.0), strict=True):
        store.put_run(run(planned, reading(value), day=3))
        (row,) = answer(store, "latest")
        seen.append(
            (row["n_processes"], row["median"], row["ci_lo"], row["ci_hi"], row["ci_level"])
        )
    assert seen == [
        (1, 4.0, 3.96, 4.04, "within"),
        (2, 2.5, None, None, None),
        (3, 2.0, None, None, None),
        (4, 3.0, None, None, None),
        (5, 3.0, None, None, None),
        (6, 3.5, 1.0, 6.0, "between"),
    ]


def test_an_older_sweep_that_comes_in_late_is_not_the_latest(store: Store) -> None:
    new, old = cell(), cell()
    begin(store, new, day=3)
    store.put_run(run(new, reading(1.0), day=3))
    begin(store, old, day=2)
    store.put_run(run(old, reading(2.0), day=2))
    assert pick(answer(store, "latest"), "median") == [(1.0,)]


def test_points_sources_and_synthetic_data_stay_apart(store: Store) -> None:
    measured, made, foreign = cell(), cell(), cell()
    begin(store, measured)
    store.put_run(run(measured, reading(1.0, point={"rank": 0}), reading(2.0, point={"rank": 1})))
    begin(store, made, synthetic=True)
    store.put_run(run(made, reading(3.0)))
    begin(store, foreign, source="import:nvbandwidth")
    store.put_run(run(foreign, reading(4.0)))
    columns = ("median", "point", "source", "synthetic")
    assert sorted(pick(answer(store, "latest"), *columns)) == [
        (1.0, '{"rank":0}', "probe", 0),
        (2.0, '{"rank":1}', "probe", 0),
        (3.0, "{}", "probe", 1),
    ]
    assert pick(answer(store, "latest", source="import:%"), *columns) == [
        (4.0, "{}", "import:nvbandwidth", 0),
    ]


def test_an_arm_of_another_definition_is_another_series(store: Store) -> None:
    """The same name with other CPUs must not continue the old numbers."""
    for day, cpus in ((2, "0-15"), (3, "0-7")):
        planned = cell(binding=Binding("local", cpus=cpus))
        begin(store, planned, day=day)
        store.put_run(run(planned, reading(float(day)), day=day))
    assert sorted(pick(answer(store, "latest"), "median", "arm")) == [
        (2.0, "local"),
        (3.0, "local"),
    ]


@pytest.mark.parametrize("name", NAMES)
def test_a_query_on_an_empty_store_has_columns_and_no_rows(name: str, tmp_path: Path) -> None:
    query = load(name)
    with Store.open(f"sqlite:///{tmp_path}/x.db") as store:
        if any(p.kind in ("sweep", "run") for p in query.parameters):
            with pytest.raises(UsageError, match=r"no (sweep|run) is stored yet"):
                run_query(store, name)
            return
        found = run_query(store, name)
    assert found.rows == ()
    assert len(found.columns) > 5


@pytest.mark.parametrize("name", NAMES)
def test_a_query_says_what_it_answers_and_how_old_its_data_is(name: str) -> None:
    query = load(name)
    assert query.answers.endswith("?")
    assert {"age_seconds", "source", "synthetic"} <= set(re.findall(r"\w+", query.sql))
    used = set(re.findall(r":(\w+)", queries._without_comments(query.sql)))
    assert used == {p.name for p in query.parameters}
    assert all(p.help for p in query.parameters)
    assert "json" not in query.sql.lower()


def test_an_unknown_query_names_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"no query named 'lattest' \(did you mean 'latest'\?\)"):
        load("lattest")


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"hots": "x"}, r"no parameter 'hots' \(did you mean 'host'\?\); it has host, probe"),
        ({"since": "yesterday"}, "parameter since='yesterday'.*, or a time such as 2026-11-01"),
        ({"since": "2026-13-01"}, "parameter since='2026-13-01'"),
    ],
)
def test_a_wrong_parameter_is_named(store: Store, params: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        run_query(store, "latest", params)


def test_values_are_parsed_by_kind(store: Store) -> None:
    sweep = begin(store, cell())
    kinds = ("text", "integer", "bytes", "number", "time", "moment", "sweep")
    head = "\n".join(f"-- param {k} {k} = x: help" for k in kinds)
    query = parse("made", f"-- title: t\n-- answers: a?\n{head}\nSELECT 1")
    given = {
        "text": "a:b",
        "integer": "5K",
        "bytes": "64K",
        "number": "0.5",
        "time": "2026-11-02",
        "moment": "2026-11-02T00:00:10+01:00",
        "sweep": sweep[:6],
    }
    assert bind(store, query, given) == {
        "text": "a:b",
        "integer": 5000,
        "bytes": 65536,
        "number": 0.5,
        "time": "2026-11-02T00:00:00.000000Z",
        "moment": 1793574010.0,
        "sweep": sweep,
    }


def with_samples(store: Store) -> Run:
    """A run with two readings; the first sample of each is a warm-up."""
    planned = cell()
    begin(store, planned)
    readings = []
    for values in ([9.0, 1.0, 2.5], [8.0, 3.0]):
        made = reading(2.0, samples=values, metric=BANDWIDTH if values[0] == 9 else LATENCY)
        readings.append(replace(made, summary=replace(made.summary, warmups=1)))
    done = run(planned, *readings)
    store.put_run(done)
    return done


def test_samples_come_one_a_row_in_measured_order(store: Store) -> None:
    done = with_samples(store)
    for text in (done.id, done.id[:7], "latest"):
        rows = answer(store, "samples", run=text)
        assert pick(rows, "metric", "position", "warmup", "value") == [
            (BANDWIDTH, 0, 1, 9.0),
            (BANDWIDTH, 1, 0, 1.0),
            (BANDWIDTH, 2, 0, 2.5),
            (LATENCY, 0, 1, 8.0),
            (LATENCY, 1, 0, 3.0),
        ]
    assert {(r["run"], r["median"], r["n"]) for r in rows} == {(done.id, 2.0, 3), (done.id, 2.0, 2)}
    rows = answer(store, "samples", metric="latency%")
    assert pick(rows, "value") == [(8.0,), (3.0,)]


def test_samples_that_are_gone_are_told(store: Store) -> None:
    done = with_samples(store)
    vacuum(store, Retention(samples_seconds=DAY), now="2026-12-01T00:00:00Z")
    with pytest.raises(UsageError, match=r"no such samples are stored: .* vacuum. removes old"):
        answer(store, "samples", run=done.id)
    with pytest.raises(UsageError, match=f"no run begins with 'zz'; the last .* {done.id[:8]}"):
        answer(store, "samples", run="zz")


def test_a_beginning_of_several_runs_is_refused(store: Store) -> None:
    ids = ("aaaa0000-0000-4000-8000-000000000001", "aaaa0000-0000-4000-8000-000000000002")
    cells = [cell(process_no=n) for n in range(2)]
    begin(store, *cells)
    for planned, id in zip(cells, ids, strict=True):
        store.put_run(replace(run(planned, reading(1.0, samples=[1.0])), id=id))
    newest_first = ", ".join(reversed(ids))  # they differ in their last character alone
    with pytest.raises(UsageError, match=f"several runs begin with 'aaaa': {newest_first};"):
        answer(store, "samples", run="aaaa")
    with pytest.raises(UsageError, match=f"the last stored are {newest_first}"):
        answer(store, "samples", run="zz")
    assert pick(answer(store, "samples", run=ids[0]), "run", "value") == [(ids[0], 1.0)]


def test_a_header_without_a_question_is_refused() -> None:
    with pytest.raises(ValueError, match="needs title and answers"):
        parse("bad", "-- title: t\nSELECT 1")
    with pytest.raises(ValueError, match="kinds are"):
        parse("bad", "-- title: t\n-- answers: a?\n-- param x float = 1: help\nSELECT 1")
