"""What every store promises, on SQLite and on a real PostgreSQL."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any, cast

import pytest
import sqlalchemy as sa

from probing import SERVER
from storing import (
    BANDWIDTH,
    LATENCY,
    STARTED,
    at,
    begin,
    cell,
    count,
    host,
    new_id,
    reading,
    run,
    topology,
)
from topobench import commands, config
from topobench.db import migrate, schema
from topobench.db.queries import run_query
from topobench.db.records import unpack_samples
from topobench.db.store import Store
from topobench.db.writer import Stored
from topobench.errors import NotFound, StoreConflict, StoreError
from topobench.reading import (
    Binding,
    MemoryPolicy,
    Reading,
    Reason,
    ReasonCode,
    Status,
    Summary,
    to_json,
)


def rows(store: Store, text: str) -> list[dict[str, Any]]:
    with store.engine.connect() as connection:
        return [dict(r) for r in connection.execute(sa.text(text)).mappings()]


def test_a_document_gives_back_what_was_stored(store_url: str) -> None:
    binding = Binding("local", "0-15", (0,), MemoryPolicy.BIND, (0,), 4)
    planned = cell(
        params={"bytes": 1 << 20, "pinned": True, "scale": 1e16},
        binding=binding,
        ring="best",
        env={"NCCL_ALGO": "ring"},
        devices=["GPU-1", "GPU-0"],
        ranks=2,
        process_no=3,
    )
    skipped = cell(status=Status.SKIPPED, reason=Reason(ReasonCode.NO_GPU, "no GPU here"))
    done = run(
        planned,
        reading(2e9, samples=[1.5e9, 2e9, 2.5e9], point={"rank": 1}),
        warnings=("warm",),
        conditions={"load": 0.5},
        log_tail="last line",
    )
    with Store.open(store_url) as store:
        sweep = begin(
            store, planned, skipped, hosts=[host(gpus=2)], warnings=["w1"], estimated_seconds=9.5
        )
        assert store.put_run(done) is Stored.STORED
        store.end_sweep(sweep, "done", ended_at=at(60))
        document = store.sweep_document()
    assert document["sweep"] == {
        "id": sweep,
        "cluster": "lab",
        "profile": "quick",
        "trigger": "manual",
        "tag": None,
        "status": "done",
        "seed": 7,
        "tool_version": "0.1.0",
        "started_at": STARTED,
        "ended_at": at(60),
        "estimated_seconds": 9.5,
        "budget_seconds": None,
        "source": "probe",
        "synthetic": False,
        "labels": {},
        "warnings": ["w1"],
    }
    assert document["counts"] == {"ok": 1, "skipped": 1}
    (found,) = document["hosts"]
    assert found["key"] == "k1"
    assert found["sku"] == "2x H200-SXM / 2x Xeon 8480C"
    assert found["fingerprints"] == {"shape": "tfp1:s", "config": "tfp1:c", "health": "tfp1:h"}
    assert found["facts"] == to_json(host().facts)
    first, second = document["cells"]
    assert first["params"] == {"bytes": 1 << 20, "pinned": True, "scale": 1e16}
    assert first["binding"] == to_json(binding)
    assert (first["arm"], first["ring"]) == ("local/best", "best")
    assert first["env"] == {"NCCL_ALGO": "ring"}
    assert first["devices"] == ["GPU-1", "GPU-0"]
    assert first["path_class"] == "NV18"
    assert (first["ranks"], first["process_no"], first["attempt"]) == (2, 3, 1)
    assert (first["status"], first["seconds"]) == ("ok", 1.25)
    assert first["readings"] == [
        {
            "metric": BANDWIDTH,
            "unit": "B/s",
            "better": 1,
            "point": {"rank": 1},
            "n": 3,
            "ci_level": "within",
            "warmups": 0,
            "stop_reason": "converged",
            "median": 2e9,
            "ci_lo": 1.98e9,
            "ci_hi": 2.02e9,
            "mad": 0.0,
            "minimum": 1.5e9,
            "maximum": 2.5e9,
            "p90": None,
            "p99": None,
        }
    ]
    assert first["members"] == [to_json(m) for m in done.members]
    assert first["warnings"] == ["warm"]
    assert first["conditions"] == {"load": 0.5}
    assert first["log_tail"] == "last line"
    assert first["environment"]["torch"] == "2.13.0"
    assert first["environment"]["driver"] == "570.86"
    assert second["status"] == "skipped"
    assert second["reason"] == "no_gpu: no GPU here"
    assert second["seconds"] is None
    assert second["readings"] == []


def test_cells_come_back_as_they_were_planned(store_url: str) -> None:
    """Resuming needs the very same cell: its id, case hash, arm and devices."""
    cells = [
        cell(
            params={"bytes": 4096, "fraction": 0.1, "mode": None, "huge": 1e300},
            binding=Binding("mine", "0,2", (0, 1), MemoryPolicy.INTERLEAVE, (0, 1), 2),
            ring="0,2,1",
            devices=["GPU-1", "GPU-0"],
            env={"A": "b"},
        ),
        cell(process_no=1),
        cell(status=Status.SKIPPED, reason=Reason(ReasonCode.NO_GPU, "none")),
    ]
    with Store.open(store_url) as store:
        sweep = begin(store, *cells, hosts=[host(gpus=2)])
        left, attempts = store.cells_to_resume(sweep)
    assert left == cells[:2]
    assert [c.case.params_hash for c in left] == [c.case.params_hash for c in cells[:2]]
    assert attempts == {cells[0].id: 1, cells[1].id: 1}


def test_only_what_did_not_end_well_is_resumed(store_url: str) -> None:
    good, failed, late = cell(), cell(process_no=1), cell(process_no=2)
    with Store.open(store_url) as store:
        sweep = begin(store, good, failed, late)
        store.put_run(run(good, reading(1.0)))
        timeout = Reason(ReasonCode.DEADLINE, "60 s passed")
        store.put_run(run(failed, status=Status.TIMEOUT, reason=timeout, attempt=2))
        left, attempts = store.cells_to_resume(sweep)
    assert [c.id for c in left] == [failed.id, late.id]
    assert all(c.status is Status.PLANNED and c.reason is None for c in left)
    assert attempts == {failed.id: 3, late.id: 1}


def test_the_same_run_twice_is_stored_once(store_url: str) -> None:
    """A retry changes nothing; equal numbers measured again stay apart."""
    planned, again = cell(), cell(process_no=1)
    first = run(planned, reading(2.0, samples=[1.0, 2.0, 3.0]))
    repeat = dataclasses.replace(first, id=new_id(), cell=again.id)
    with Store.open(store_url) as store:
        begin(store, planned, again)
        assert store.put_run(first) is Stored.STORED
        assert store.put_run(first) is Stored.ALREADY_STORED
        assert store.put_run(repeat) is Stored.STORED
        (mean,) = rows(store, "SELECT avg(median) AS m, sum(n) AS n FROM v_reading")
        assert (count(store, "run"), count(store, "reading")) == (2, 2)
    assert mean == {"m": 2.0, "n": 6}
    with Store.open(store_url) as store:  # a new process, after a crash
        assert str(store.put_run(first)) == "already stored"
        assert count(store, "run") == 2


@pytest.mark.parametrize(
    "change",
    [
        {"duration_seconds": 2.0},
        {"readings": (reading(2.0, samples=[1.0, 2.0, 3.5]),)},
        {"readings": (reading(2.0, samples=[2.0, 1.0, 3.0]),)},
        {"readings": (reading(2.0, samples=[1.0, 2.0, 3.0], point={"rank": 0}),)},
        {"status": Status.PARTIAL},
        {"conditions": {"load": 1.0}},
    ],
    ids=["duration", "sample", "order", "point", "status", "conditions"],
)
def test_another_run_with_the_same_uuid_is_a_conflict(
    store_url: str, change: dict[str, Any]
) -> None:
    planned = cell()
    first = run(planned, reading(2.0, samples=[1.0, 2.0, 3.0]))
    with Store.open(store_url) as store:
        begin(store, planned)
        store.put_run(first)
        with pytest.raises(StoreConflict, match=first.id):
            store.put_run(dataclasses.replace(first, **change))
        assert store.put_run(first) is Stored.ALREADY_STORED
        assert store.sweep_document()["cells"][0]["readings"][0]["median"] == 2.0


def test_samples_keep_their_order_as_float32(store_url: str) -> None:
    planned = cell()
    with Store.open(store_url) as store:
        begin(store, planned)
        store.put_run(run(planned, reading(2.0, samples=[3.0, 0.1, 2.0])))
        (row,) = rows(store, "SELECT codec, n, data FROM sample")
    assert bytes(row["data"]).hex() == "00004040" + "cdcccc3d" + "00000040"
    assert unpack_samples(row["codec"], row["data"]) == pytest.approx((3.0, 0.1, 2.0))


def test_what_the_hardware_could_do_at_most_stands_beside_a_reading(store_url: str) -> None:
    """Also after a reading went through JSON, as it does by way of the spool."""
    bound = dataclasses.replace(reading(50e9), ceiling=63e9, ceiling_source="PCIe link")
    again = Reading.from_json(json.loads(json.dumps(to_json(bound))))
    planned = cell()
    with Store.open(store_url) as store:
        begin(store, planned)
        store.put_run(run(planned, again))
        for view in ("v_reading", "v_latest"):
            (row,) = rows(store, f"SELECT median, ceiling, ceiling_source FROM {view}")
            assert row == {"median": 50e9, "ceiling": 63e9, "ceiling_source": "PCIe link"}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf], ids=str)
def test_nan_and_infinity_are_never_numbers(store_url: str, value: float) -> None:
    """They are kept as text, the run is invalid, averages see the good values only."""
    bad, good = cell(params={"p99": value}), cell(process_no=1)
    with Store.open(store_url) as store:
        begin(store, bad, good)
        store.put_run(run(bad, reading(value), conditions={"x": value}))
        store.put_run(run(good, reading(4.0)))
        cells = store.sweep_document()["cells"]
        (total,) = rows(store, "SELECT max(median) AS a, avg(median) AS b FROM reading")
        texts = rows(
            store, "SELECT params AS t FROM probe_case UNION SELECT conditions FROM run_detail"
        )
    assert cells[0]["status"] == "invalid"
    assert cells[0]["reason"] == f"invalid_value: {BANDWIDTH} median is {value}"
    (found,) = cells[0]["readings"]
    assert found["median"] is None
    assert (found["raw_value"], found["raw_text"]) == (None, str(value))
    assert total == {"a": 4.0, "b": 4.0}
    for row in texts:
        json.loads(row["t"], parse_constant=pytest.fail)


def test_a_run_with_one_bad_reading_is_partial(store_url: str) -> None:
    planned = cell()
    with Store.open(store_url) as store:
        begin(store, planned)
        store.put_run(run(planned, reading(4.0), reading(math.nan, metric=LATENCY)))
        (found,) = store.sweep_document()["cells"]
        assert [r["metric"] for r in rows(store, "SELECT metric FROM v_reading")] == [BANDWIDTH]
    assert found["status"] == "partial"
    assert [r["median"] for r in found["readings"]] == [4.0, None]


@pytest.mark.parametrize("value", [0.0, -1e-6])
def test_a_time_that_is_not_above_zero_is_invalid(store_url: str, value: float) -> None:
    """A clock that was set back must not become an infinite speed."""
    planned = cell()
    with Store.open(store_url) as store:
        begin(store, planned)
        store.put_run(run(planned, reading(value, metric=LATENCY)))
        (found,) = store.sweep_document()["cells"]
        assert rows(store, "SELECT * FROM v_latest") == []
    assert found["status"] == "invalid"
    assert found["readings"][0]["raw_value"] == value


def test_the_value_of_an_invalid_run_is_kept_apart(store_url: str) -> None:
    planned = cell()
    reason = Reason(ReasonCode.THROTTLED, "power cap")
    with Store.open(store_url) as store:
        begin(store, planned)
        store.put_run(run(planned, reading(5.0), status=Status.INVALID, reason=reason))
        (found,) = store.sweep_document()["cells"]
        assert rows(store, "SELECT * FROM v_reading") == []
    assert found["reason"] == "throttled: power cap"
    assert found["readings"][0]["median"] is None
    assert found["readings"][0]["raw_value"] == 5.0


def test_text_that_postgresql_refuses_is_mended(store_url: str) -> None:
    planned = cell()
    with Store.open(store_url) as store:
        begin(store, planned)
        store.put_run(run(planned, reading(1.0), log_tail="a\x00b\udcff"))
        assert store.sweep_document()["cells"][0]["log_tail"] == "a�b?"


def test_a_cell_shows_its_last_attempt(store_url: str) -> None:
    """An earlier attempt that arrives late, from a spool, changes nothing."""
    planned = cell()
    reason = Reason(ReasonCode.CRASHED, "signal 11")
    early = run(planned, status=Status.FAILED, reason=reason, attempt=1)
    with Store.open(store_url) as store:
        begin(store, planned)
        store.put_run(run(planned, reading(3.0), attempt=2))
        store.put_run(early)
        (found,) = store.sweep_document()["cells"]
    assert (found["status"], found["attempt"], found["reason"]) == ("ok", 2, None)
    assert found["readings"][0]["median"] == 3.0


def test_a_run_of_an_unplanned_cell_is_refused(store_url: str) -> None:
    stray = cell()
    with Store.open(store_url) as store:
        begin(store)
        with pytest.raises(NotFound, match="plan_cells comes first"):
            store.put_run(run(stray))


def test_a_metric_without_a_unit_is_refused(store_url: str) -> None:
    planned = cell()
    with Store.open(store_url) as store:
        begin(store, planned)
        bad = run(planned, reading(1.0, metric="speed"))
        with pytest.raises(StoreError, match="must end in one of"):
            store.put_run(bad)
        assert count(store, "run") == 0


def test_a_metric_nobody_declares_has_no_direction(store_url: str) -> None:
    planned = cell(probe="of_another_installation")
    with Store.open(store_url) as store:
        begin(store, planned)
        odd = (reading(1.0, metric="fan_count"), reading(2.0, metric="noise_seconds"))
        store.put_run(run(planned, *odd))
        found = rows(store, "SELECT name, unit, better FROM metric ORDER BY name")
    assert found == [
        {"name": "fan_count", "unit": "1", "better": 0},
        {"name": "noise_seconds", "unit": "s", "better": 0},
    ]


def test_a_direction_is_filled_in_once_a_probe_declares_it(store_url: str) -> None:
    first, second = cell(), cell(process_no=1)
    with Store.open(store_url) as store:
        begin(store, first, second)
        store.put_run(run(first, reading(1.0)))
        with store.engine.begin() as connection:  # as if nobody had declared it then
            connection.execute(sa.text("UPDATE metric SET better = 0, help = ''"))
    with Store.open(store_url) as store:
        store.put_run(run(second, reading(1.0)))
        (found,) = rows(store, "SELECT better, help FROM metric")
    assert found["better"] == 1
    assert found["help"] != ""


def test_a_host_is_known_by_its_key(store_url: str) -> None:
    """A new name or address is the same host; another cluster's key is another host."""
    with Store.open(store_url) as store:
        begin(store, cell(), hosts=[host("k1", name="old", gpus=1)])
        begin(store, cell(), hosts=[host("k1", name="new", gpus=1)])
        begin(store, cell(), hosts=[host("k1", name="other", gpus=1)], cluster="west")
        found = rows(store, "SELECT name FROM host ORDER BY id")
        assert [r["name"] for r in found] == ["new", "other"]
        assert count(store, "topology") == 2
        assert count(store, "device") == 2
        names = [s["hosts"][0]["name"] for s in map(store.sweep_document, ids(store))]
    assert names == ["other", "new", "old"]


def ids(store: Store) -> list[str]:
    return [s["id"] for s in store.sweeps()]


def test_a_degraded_link_is_a_new_topology_of_the_same_class(store_url: str) -> None:
    with Store.open(store_url) as store:
        begin(store, cell(), hosts=[host(gpus=1)])
        begin(store, cell(), hosts=[host(gpus=1, health="tfp1:bad", width=8)])
        links = rows(
            store, "SELECT width, max_width FROM link WHERE kind = 'pcie' ORDER BY topology_id"
        )
        assert links == [{"width": 16, "max_width": 16}, {"width": 8, "max_width": 16}]
        assert (count(store, "topology"), count(store, "topology_class")) == (2, 1)


def test_hosts_and_cells_may_come_one_by_one_and_twice(store_url: str) -> None:
    first, second = cell(), cell(host="k2")
    with Store.open(store_url) as store:
        sweep = begin(store, hosts=[host("k1")])
        for _ in range(2):
            store.put_host(sweep, host("k2"))
            store.plan_cells(sweep, [first])
            store.plan_cells(sweep, [second, first])
        document = store.sweep_document(sweep)
    assert [h["key"] for h in document["hosts"]] == ["k1", "k2"]
    assert [c["id"] for c in document["cells"]] == [first.id, second.id]


def test_the_same_device_on_two_hosts_stays_two_devices(store_url: str) -> None:
    """Two hosts on one machine share a GPU's UUID; each cell means its own host's."""
    cells = [cell(host=k, devices=["GPU-0"]) for k in ("k1", "k2")]
    with Store.open(store_url) as store:
        begin(store, *cells, hosts=[host("k1", gpus=1), host("k2", gpus=1)])
        found = rows(
            store,
            "SELECT h.key FROM cell c JOIN series s ON s.id = c.series_id "
            "JOIN device_set d ON d.id = s.device_set_id JOIN device v ON v.id = d.device_id "
            "JOIN host h ON h.id = v.host_id ORDER BY c.position",
        )
        assert [r["key"] for r in found] == ["k1", "k2"]
        assert count(store, "device") == 2


def test_a_gang_over_two_hosts_counts_both(store_url: str) -> None:
    gang = cell(devices=["A-0", "B-0"], ranks=2, probe="all_reduce")
    with Store.open(store_url) as store:
        begin(store, gang, hosts=[host("k1", gpus=1, prefix="A"), host("k2", gpus=1, prefix="B")])
        found = rows(store, "SELECT n_ranks, n_hosts FROM series")
        assert found == [{"n_ranks": 2, "n_hosts": 2}]
        assert rows(store, "SELECT op FROM probe_case") == [{"op": "all_reduce"}]
        assert store.sweep_document()["cells"][0]["devices"] == ["A-0", "B-0"]


def test_a_sweep_is_found_by_the_beginning_of_its_id(store_url: str) -> None:
    with Store.open(store_url) as store:
        with pytest.raises(NotFound, match="no sweep is stored yet"):
            store.resolve_sweep("latest")
        old, new = begin(store, cell()), begin(store, cell(), day=3)
        assert store.resolve_sweep("latest") == new
        assert store.resolve_sweep(old[:8]) == old
        assert store.resolve_sweep(old.upper()) == old
        with pytest.raises(NotFound, match=f"no sweep begins with 'zz'; the newest are {new[:8]}"):
            store.sweep_document("zz")
        with pytest.raises(NotFound, match="no sweep begins with '%'"):
            store.resolve_sweep("%")


def test_several_sweeps_with_one_beginning_are_named(store_url: str) -> None:
    start: dict[str, Any] = {
        "cluster": "lab",
        "profile": "quick",
        "trigger": "cron",
        "seed": 1,
        "tool_version": "0.1.0",
        "started_at": STARTED,
    }
    with Store.open(store_url) as store:
        for last in "12":
            store.begin_sweep(id=f"aaaaaaaa-0000-4000-8000-00000000000{last}", **start)
        with pytest.raises(NotFound, match="several sweeps begin with 'aaaa'"):
            store.resolve_sweep("aaaa")


def test_sweeps_lists_the_newest_first(store_url: str) -> None:
    with Store.open(store_url) as store:
        made = [begin(store, cell(), day=d) for d in (4, 2, 3)]
        assert ids(store) == [made[0], made[2], made[1]]
        assert [s["id"] for s in store.sweeps(limit=1)] == [made[0]]


def test_a_sweep_that_lost_its_driver_becomes_interrupted(store_url: str) -> None:
    with Store.open(store_url) as store:
        sweep = begin(store, cell(), hosts=[host("k1")])
        other = begin(store, cell(host="k2"), hosts=[host("k2")])
        assert store.running_sweeps(host="k1") == [sweep]
        store.mark_interrupted(sweep)
        assert store.sweep_document(sweep)["sweep"]["status"] == "interrupted"
        assert store.running_sweeps() == [other]
        store.end_sweep(other, "done")
        store.mark_interrupted(other)
        assert store.sweep_document(other)["sweep"]["status"] == "done"
        store.resume_sweep(sweep)
        assert store.running_sweeps() == [sweep]
        assert store.sweep_document(sweep)["sweep"]["ended_at"] is None


def test_hosts_that_only_other_clusters_measured_are_strangers(store_url: str) -> None:
    """A wrong address may lead to another cluster than the one that is named."""
    with Store.open(store_url) as store:
        begin(store, cell(), hosts=[host("k1"), host("k2")], cluster="west")
        begin(store, cell(host="k2"), hosts=[host("k2")], cluster="east")
        assert store.strangers("east", ["k1", "k2", "k3"]) == {"k1": "west"}
        assert store.strangers("new", ["k1", "k2", "k3"]) == {"k1": "west", "k2": "east"}
        assert store.strangers("west", ["k1"]) == store.strangers("west", []) == {}
        east = config.load(None, overrides=config.Overrides(), environ={})
        east = dataclasses.replace(east, name="east")
        found = [dataclasses.replace(host(k), key_source="machine_id") for k in ("k1", "k2")]
        assert list(commands._strangers(east, cast(Any, store), found)) == [
            f"{found[0].name}: measured as part of cluster west before, new in east; "
            "is ray.address that of the cluster that is named?"
        ]


def test_an_end_before_the_start_is_flagged(store_url: str) -> None:
    with Store.open(store_url) as store:
        sweep = begin(store, cell())
        store.end_sweep(sweep, "done", ended_at="2026-11-02T00:00:00.000000Z")
        (warning,) = store.sweep_document(sweep)["sweep"]["warnings"]
    assert warning.startswith("clock_step: the sweep ended at 2026-11-02T00:00:00.000000Z")


def test_a_sweep_older_than_the_newest_stored_one_is_flagged(store_url: str) -> None:
    with Store.open(store_url) as store:
        begin(store, cell(), day=3)
        late = begin(store, cell(), day=2)
        (warning,) = store.sweep_document(late)["sweep"]["warnings"]
    assert warning.startswith("clock_step: the newest stored sweep began at 2026-11-03")


def test_the_same_sweep_begun_twice_is_one(store_url: str) -> None:
    """After a lost answer the caller may repeat; another sweep under that id is refused."""
    first, second = cell(), cell(process_no=1)
    start: dict[str, Any] = {
        "id": new_id(),
        "cluster": "lab",
        "profile": "quick",
        "trigger": "manual",
        "tool_version": "0.1.0",
        "started_at": STARTED,
        "hosts": [host()],
    }
    with Store.open(store_url) as store:
        store.begin_sweep(**start, seed=1, cells=[first])
        store.begin_sweep(**start, seed=1, cells=[first, second])
        assert (count(store, "sweep"), count(store, "cell")) == (1, 2)
        with pytest.raises(StoreConflict):
            store.begin_sweep(**start, seed=2)


def test_passwords_in_the_configuration_are_not_stored(store_url: str) -> None:
    with Store.open(store_url) as store:
        begin(store, cell(), config_text="store: postgresql://bob:s3cret@db/x\n")
        (row,) = rows(store, "SELECT config_text FROM sweep")
    assert row["config_text"] == "store: postgresql://bob:***@db/x\n"


def test_a_failed_transaction_leaves_nothing_behind(store_url: str) -> None:
    """Ids looked up in it are forgotten too: the next run stores its own metric again."""
    planned = cell()
    with Store.open(store_url) as store:
        begin(store, planned)
        bad = run(planned, reading(1.0), reading(1.0, metric="speed"))
        with pytest.raises(StoreError):
            store.put_run(bad)
        assert (count(store, "metric"), count(store, "environment")) == (0, 0)
        store.put_run(run(planned, reading(1.0)))
        assert (count(store, "metric"), count(store, "environment")) == (1, 1)


def test_a_run_without_readings_or_members_is_stored(store_url: str) -> None:
    planned = cell()
    lost = run(planned, status=Status.FAILED, reason=Reason(ReasonCode.HOST_LOST, "gone"))
    with Store.open(store_url) as store:
        begin(store, planned)
        store.put_run(dataclasses.replace(lost, members=(), environment={}))
        (found,) = store.sweep_document()["cells"]
    assert found["reason"] == "host_lost: gone"
    assert (found["members"], found["readings"]) == ([], [])


def test_a_summary_without_samples_is_stored(store_url: str) -> None:
    planned = cell()
    summary = Summary(n=20, median=1.5, minimum=1.0, maximum=2.0, mad=0.1)
    with Store.open(store_url) as store:
        begin(store, planned)
        store.put_run(run(planned, Reading(BANDWIDTH, summary)))
        assert count(store, "sample") == 0
        assert store.sweep_document()["cells"][0]["readings"][0]["n"] == 20


def test_the_schema_is_what_the_migrations_make(empty_url: str) -> None:
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    with Store.open(empty_url) as store, store.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        found = compare_metadata(context, schema.metadata)
        assert [d for d in found if "comment" not in str(d)] == []  # those come from a page


def test_opening_again_changes_nothing(empty_url: str) -> None:
    with Store.open(empty_url) as store:
        before = rows(store, "SELECT * FROM store_info ORDER BY key")
    with Store.open(empty_url) as store:
        assert rows(store, "SELECT * FROM store_info ORDER BY key") == before
        assert migrate.current(store.engine) == schema.REVISION


def _open_and_store(url: str, barrier: Any, times: int) -> None:
    barrier.wait(timeout=60)
    with Store.open(url) as store:
        cells = [cell(process_no=n) for n in range(times)]
        begin(store, *cells)
        for planned in cells:
            store.put_run(run(planned, reading(1.0)))


def test_eight_processes_create_and_write_one_store(empty_url: str) -> None:
    """Nobody fails because another was first, nothing is lost or doubled."""
    barrier = SERVER.Barrier(8)
    writers = [
        SERVER.Process(target=_open_and_store, args=(empty_url, barrier, 50)) for _ in range(8)
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(timeout=240)
    assert [w.exitcode for w in writers] == [0] * 8
    with Store.open(empty_url) as store:
        (found,) = rows(store, "SELECT count(*) AS n, count(DISTINCT uuid) AS d FROM run")
        assert found == {"n": 400, "d": 400}
        assert count(store, "reading") == 400
        assert (count(store, "host"), count(store, "metric")) == (1, 1)


def test_a_topology_without_fingerprints_is_told_apart_by_its_content(store_url: str) -> None:
    bare = dataclasses.replace(host(), topology=dataclasses.replace(topology(), fingerprints={}))
    later = dataclasses.replace(bare.topology, taken_at=at(0, 3))
    changed = dataclasses.replace(bare.topology, virtualization="kvm")
    with Store.open(store_url) as store:
        for wiring in (bare.topology, later, changed):
            begin(store, cell(), hosts=[dataclasses.replace(bare, topology=wiring)])
        assert count(store, "topology") == 2


def test_the_concurrency_of_a_served_case_that_names_none_is_that_of_its_windows(
    store_url: str,
) -> None:
    """
    One of a closed loop is 1; a ladder holds several, an open loop none.

    What was too much has no times, and is told all the same.
    """
    held: dict[str, list[float | None]] = {
        "fixed": [1.0, 1.0],
        "ladder": [1.0, 4.0],
        "open": [None],
        "over": [8.0],
    }
    with Store.open(store_url) as store:
        cells = [cell(probe="serving", params={"server": name}, devices=[]) for name in held]
        begin(store, *cells)
        for planned, loads in zip(cells, held.values(), strict=True):
            windows = [
                {
                    "window_no": number,
                    "purpose": "measure",
                    "duration_seconds": 5.0,
                    "n": 40,
                    "n_over": 0,
                    "errors": 0,
                    "limit_on": "ttft",
                    "started_at": "2026-11-02T01:00:00.500000+00:00",
                    "limit_seconds": 0.35,
                    "valid": True,
                    "concurrency": load,
                    "offered_per_second": 3.0 if load is None else None,
                }
                for number, load in enumerate(loads)
            ]
            told = "goodput_ratio" if planned.case.params["server"] == "over" else "ttft_seconds"
            served = reading(0.1, metric=told)
            store.put_run(run(planned, served, conditions={"windows": windows}))
        answer = run_query(store, "serving", since="2026-01-01")
    found = [dict(zip(answer.columns, values, strict=True)) for values in answer.rows]
    answers = {
        r["server"]: (r["concurrency"], r["ttft_seconds"], r["goodput_ratio"]) for r in found
    }
    assert answers == {
        "fixed": (1.0, 0.1, None),
        "ladder": (None, 0.1, None),
        "open": (None, 0.1, None),
        "over": (8.0, None, 0.1),
    }


def test_windows_of_a_served_run_are_rows_and_three_good_ones_hold_a_load(store_url: str) -> None:
    """
    Of an open loop the rate is the load; a window that is not valid breaks the row.

    A load that a search gave up when it was to be confirmed did not hold, three good ones or not.
    """
    bracket, confirm, over = ("bracket", True, 3), ("confirm", True, 3), ("confirm", True, 5)
    told = [
        *((20, confirm),) * 3,
        *((30, bracket), (30, confirm), (30, confirm), (30, over)),
        *((40, confirm), (40, ("confirm", False, 3))),
    ]
    windows: list[dict[str, Any]] = [
        {
            "window_no": number,
            "purpose": purpose,
            "started_at": "2026-11-02T01:00:00.500000+00:00",
            "duration_seconds": 60.0,
            "concurrency": None,
            "offered_per_second": rate,
            "n": 400,
            "n_over": n_over,
            "errors": 0,
            "p50_seconds": 0.1,
            "p99_seconds": 0.3,
            "limit_on": "ttft",
            "limit_seconds": 0.35,
            "in_flight": 12.5,
            "answered_per_second": rate,
            "output_tokens_per_second": 128 * rate,
            "power_watts": 512.0 if rate == 20 else None,
            "valid": valid,
            "latencies": {"ttft_seconds": {"p50": 0.1}},
        }
        for number, (rate, (purpose, valid, n_over)) in enumerate(told)
    ]
    served = cell(probe="serving", params={"server": "mine", "mode": "search"})
    with Store.open(store_url) as store:
        begin(store, served)
        store.put_run(run(served, reading(0.1), conditions={"windows": windows}))
        assert count(store, "slo_window") == 9
        seen = rows(store, "SELECT * FROM v_slo ORDER BY window_no")
        answer = run_query(store, "slo", since="2026-01-01")
    assert [(r["meets"], r["meets_in_a_row"], r["valid"]) for r in seen] == [
        *((1, 1, 1), (1, 2, 1), (1, 3, 1)),
        *((1, 1, 1), (1, 2, 1), (1, 3, 1), (0, 0, 1)),
        *((1, 1, 1), (0, 0, 0)),
    ]
    assert {r["backend"] for r in seen} == {"mine"}
    (row,) = [dict(zip(answer.columns, values, strict=True)) for values in answer.rows]
    assert (row["concurrency"], row["first_over"]) == (None, None)
    assert (row["offered_per_second"], row["first_over_per_second"]) == (20.0, 30.0)
    assert row["tokens_per_joule"] == pytest.approx(5.0)
