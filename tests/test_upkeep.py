"""Upkeep of the store: roll-ups by night, retention, other stores brought in."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from storing import at, at_revision, begin, cell, count, host, reading, run
from topobench.db import retention, schema
from topobench.db.engine import writing
from topobench.db.merge import import_store
from topobench.db.prices import Price, add_price
from topobench.db.queries import run_query
from topobench.db.retention import vacuum
from topobench.db.store import Store
from topobench.errors import NotFound, StoreError, UsageError
from topobench.host import Host
from topobench.reading import Status
from topobench.retention import DAY_SECONDS, Retention


def rolled(store: Store) -> list[tuple[Any, ...]]:
    query = "SELECT day, n, median, mad FROM night_rollup ORDER BY day, series_id, point"
    with store.engine.connect() as connection:
        return [(str(r.day), r.n, r.median, r.mad) for r in connection.execute(sa.text(query))]


def night(store: Store, day: int, *values: float, hosts: Sequence[Host] = ()) -> str:
    """A sweep of one case with a process for each value."""
    cells = [cell(process_no=n) for n in range(len(values))]
    sweep = begin(store, *cells, hosts=hosts, day=day)
    for planned, value in zip(cells, values, strict=True):
        store.put_run(run(planned, reading(value, samples=[value] * 3), day=day))
    store.end_sweep(sweep, ended_at=at(60, day))
    return sweep


def test_a_night_is_rolled_up_when_its_sweep_ends(store_url: str) -> None:
    """Over all readings of the day; what failed does not count."""
    with Store.open(store_url) as store:
        night(store, 2, 1.0, 2.0, 6.0)
        assert rolled(store) == [("2026-11-02", 3, 2.0, 1.0)]
        night(store, 2, 4.0)
        assert rolled(store) == [("2026-11-02", 4, 3.0, 1.5)]
        bad = cell()
        sweep = begin(store, bad, day=3)
        store.put_run(run(bad, status=Status.FAILED, day=3))
        store.end_sweep(sweep, ended_at=at(60, 3))
        night(store, 3, 8.0)
        assert rolled(store)[1:] == [("2026-11-03", 1, 8.0, 0.0)]
        found = run_query(store, "history")
        shown = [
            (r[found.columns.index("day")], r[found.columns.index("median")]) for r in found.rows
        ]
        assert shown == [("2026-11-03", 8.0), ("2026-11-02", 3.0)]


def test_roll_ups_are_rebuilt_from_what_is_stored(store_url: str) -> None:
    with Store.open(store_url) as store:
        night(store, 2, 1.0, 2.0, 6.0)
        night(store, 3, 5.0)
        before = rolled(store)
        with store.engine.begin() as connection:
            connection.execute(sa.text("DELETE FROM night_rollup"))
        assert store.rebuild_rollups() == 2
        assert rolled(store) == before


def test_vacuum_keeps_the_roll_ups_and_what_is_young(store_url: str) -> None:
    """Samples go first, results later; the newest sweep keeps everything."""
    keep = Retention(samples_seconds=10 * DAY_SECONDS, results_seconds=20 * DAY_SECONDS)
    now = "2026-11-28T12:00:00Z"
    with Store.open(store_url) as store:
        night(store, 2, 1.0, 2.0)
        middle = night(store, 12, 3.0)
        young = night(store, 27, 4.0)
        before = rolled(store)
        would = vacuum(store, keep, dry_run=True, now=now)
        assert (would.sweeps, would.runs, would.readings) == (1, 2, 2)
        assert (would.samples, would.sample_bytes) == (3, 3 * 12)
        assert (would.samples_before, would.results_before) == ("2026-11-18", "2026-11-08")
        assert (count(store, "sweep"), count(store, "sample")) == (3, 4)
        done = vacuum(store, keep, now=now)
        assert done.runs == 2
        assert [s["id"] for s in store.sweeps()] == [young, middle]
        assert (count(store, "run"), count(store, "reading"), count(store, "sample")) == (2, 2, 1)
        assert store.sweep_document(middle)["cells"][0]["readings"][0]["median"] == 3.0
        assert rolled(store) == before
        assert store.rebuild_rollups() == 2
        assert rolled(store) == before
        again = vacuum(store, keep, now=now)
        assert (again.sweeps, again.samples) == (0, 0)


def test_a_retention_from_before_the_calendar_keeps_all(store_url: str) -> None:
    with Store.open(store_url) as store:
        night(store, 2, 1.0)
        found = vacuum(store, Retention(99_999_999 * DAY_SECONDS, 1e30), dry_run=True)
        assert (found.results_before, found.sweeps, found.samples) == ("0001-01-01", 0, 0)


def test_vacuum_gives_the_room_back(tmp_path: Any) -> None:
    with Store.open(f"sqlite:///{tmp_path}/x.db") as store:
        planned = cell()
        sweep = begin(store, planned)
        store.put_run(run(planned, reading(1.0, samples=[1.0] * 500_000)))
        store.end_sweep(sweep, ended_at=at(60))
        done = vacuum(store, now="2027-11-28T12:00:00Z")
        assert done.size_before_bytes is not None
        assert done.size_after_bytes is not None
        assert done.size_before_bytes - done.size_after_bytes > 1_900_000
        assert store.info()["size_bytes"] == done.size_after_bytes


def test_vacuum_keeps_a_sweep_that_was_judged(store_url: str) -> None:
    verdict = (
        "INSERT INTO verdict (host_id, sweep_id, as_of, check_name, level, reason, "
        "policy_version, inputs_digest) SELECT h.id, s.id, s.started_at, 'peers', 'ok', '', '1', "
        "'x' FROM host h, sweep s"
    )
    with Store.open(store_url) as store:
        judged = night(store, 2, 1.0)
        with store.engine.begin() as connection:
            connection.execute(sa.text(verdict))
        vacuum(store, now="2029-11-28T12:00:00Z")
        assert [s["id"] for s in store.sweeps()] == [judged]
        assert (count(store, "verdict"), count(store, "run"), count(store, "cell")) == (1, 0, 0)


def two_sites(tmp_path: Path) -> tuple[str, str]:
    """Two stores of clusters that are both called lab: the same host keys, other sweeps."""
    urls = (f"sqlite:///{tmp_path}/a.db", f"sqlite:///{tmp_path}/b.db")
    for url, day, value in ((urls[0], 2, 1.0), (urls[1], 3, 5.0)):
        with Store.open(url) as store:
            gang = cell(devices=["GPU-1", "GPU-0"], ranks=2, binding="local", env={"A": "b"})
            night(store, day, value, value + 1, hosts=[host(gpus=2), host("k2")])
            sweep = begin(store, gang, hosts=[host(gpus=2)], day=day)
            many = [reading(value * 10, samples=[1.0, 2.0], point={"rank": n}) for n in range(3)]
            store.put_run(run(gang, *many, day=day, conditions={"x": 1}, log_tail="tail"))
            store.end_sweep(sweep, ended_at=at(60, day))
    return urls


def test_another_store_comes_in_exactly_once(tmp_path: Path, store_url: str) -> None:
    """Ids are each store's own: what comes in reads the same here as it did there."""
    first, second = two_sites(tmp_path)
    with Store.open(store_url) as store:
        for url in (first, second):
            merged = import_store(store, url)
            assert (merged.sweeps, merged.stored, merged.conflicts) == (2, 3, 0)
            assert merged.problems == []
        before = {name: count(store, name) for name in schema.metadata.tables}
        assert (before["sweep"], before["run"], before["reading"], before["sample"]) == (
            4,
            6,
            10,
            10,
        )
        assert (before["host"], before["series"], before["topology"]) == (2, 2, 2)
        assert before["device"] == 2
        for url in (second, first):
            again = import_store(store, url)
            assert (again.sweeps, again.stored, again.already) == (0, 0, 3)
        assert {name: count(store, name) for name in schema.metadata.tables} == before
        for url in (first, second):
            with Store.open(url, read_only=True) as other:
                for sweep in other.sweeps():
                    there = other.sweep_document(sweep["id"])
                    here = store.sweep_document(sweep["id"])
                    assert {**here, "store": ""} == {**there, "store": ""}
        with store.engine.connect() as connection:
            query = "SELECT median FROM v_latest WHERE n_ranks = 1"
            assert connection.execute(sa.text(query)).scalars().all() == [5.5]
        assert [r[0] for r in rolled(store)] == ["2026-11-02"] * 4 + ["2026-11-03"] * 4


def test_a_run_of_a_store_that_came_in_is_the_same_run(tmp_path: Path) -> None:
    """A spool of it that arrives late finds it stored, and its series goes on."""
    planned = cell(devices=["GPU-0"])
    done = run(planned, reading(1.0))
    with Store.open(f"sqlite:///{tmp_path}/other.db") as other:
        begin(other, planned, hosts=[host(gpus=1)])
        other.put_run(done)
    with Store.open(f"sqlite:///{tmp_path}/here.db") as store:
        begin(store, cell(host="k9"), hosts=[host("k9", gpus=3)])  # so that ids differ
        import_store(store, f"sqlite:///{tmp_path}/other.db")
        assert str(store.put_run(done)) == "already stored"
        later = cell(devices=["GPU-0"])
        begin(store, later, hosts=[host(gpus=1)], day=3)
        store.put_run(run(later, reading(2.0), day=3))
        assert count(store, "series") == 2


def test_a_site_may_get_another_name(tmp_path: Path) -> None:
    first, second = two_sites(tmp_path)
    with Store.open(first) as store:
        import_store(store, second, as_cluster="south")
        with store.engine.connect() as connection:
            query = "SELECT cluster, count(*) FROM v_reading GROUP BY cluster ORDER BY cluster"
            assert [tuple(r) for r in connection.execute(sa.text(query))] == [
                ("lab", 5),
                ("south", 5),
            ]
        with Store.open(second) as other:
            add_change(other, "driver")
        merged = import_store(store, second)
        assert (merged.conflicts, merged.judged) == (2, 0)  # and no change of south is lab's
        assert merged.problems[0].endswith("is already stored with another cluster")


def add_change(store: Store, kind: str) -> None:
    """Note a change on the first host of a store."""
    row = {"host_id": 1, "at": at(0), "kind": kind, "key": "host", "source": "human"}
    with writing(store.engine) as connection:
        connection.execute(schema.change_event.insert(), row)


def test_devices_that_nothing_was_measured_on_come_in_too(tmp_path: Path) -> None:
    with Store.open(f"sqlite:///{tmp_path}/other.db") as other:
        begin(other, cell(), hosts=[host(gpus=3)])
    with Store.open(f"sqlite:///{tmp_path}/here.db") as store:
        import_store(store, f"sqlite:///{tmp_path}/other.db")
        assert count(store, "device") == 3


def test_damage_is_told_of_the_file_that_has_it(tmp_path: Path) -> None:
    """Who would move away the store that was to be filled would lose it."""
    other = tmp_path / "other.db"
    with Store.open(f"sqlite:///{other}") as store:
        night(store, 2, *range(1, 200))
    with contextlib.closing(sqlite3.connect(other)) as plain:
        query = "SELECT rootpage FROM sqlite_master WHERE name = 'reading'"
        (page,) = plain.execute(query).fetchone()
    with other.open("r+b") as file:
        file.seek((page - 1) * 4096)
        file.write(b"\xff" * 4096)
    with (
        Store.open(f"sqlite:///{tmp_path}/here.db") as store,
        pytest.raises(StoreError, match=r"other\.db: .*malformed"),
    ):
        import_store(store, f"sqlite:///{other}")


@pytest.mark.parametrize("table", ["run", "cell", "sweep"])
def test_the_same_uuid_with_another_content_is_named(tmp_path: Path, table: str) -> None:
    """Its sweep stays out as a whole; the other sweep comes in."""
    url = f"sqlite:///{tmp_path}/a.db"
    with Store.open(url) as store:
        old, new = night(store, 2, 1.0, 2.0), night(store, 3, 3.0)
    shutil.copy(tmp_path / "a.db", tmp_path / "b.db")
    changed = {"run": "digest = 'x'", "cell": "block = 7", "sweep": "seed = 99"}[table]
    with Store.open(f"sqlite:///{tmp_path}/b.db") as other, other.engine.begin() as connection:
        last = f"(SELECT max(id) FROM {table} WHERE id < (SELECT max(id) FROM {table}))"
        connection.execute(sa.text(f"UPDATE {table} SET {changed} WHERE id = {last}"))
        query = f"SELECT uuid FROM {table} WHERE id = {last}"
        uuid = connection.execute(sa.text(query)).scalar_one()
    with Store.open(url) as store:
        with store.engine.begin() as connection:
            vacuum_sweep(connection, new)
        merged = import_store(store, f"sqlite:///{tmp_path}/b.db")
        assert merged.conflicts == 1
        assert f"{table} {uuid} is already stored with another" in merged.problems[0]
        assert (merged.stored, count(store, "run")) == (1, 3)
        assert store.sweep_document(old)["cells"][1]["readings"][0]["median"] == 2.0


def vacuum_sweep(connection: sa.Connection, uuid: str) -> None:
    """Remove one sweep, as if this store had never seen it."""
    ids = connection.execute(sa.select(schema.sweep.c.id).where(schema.sweep.c.uuid == uuid))
    retention._remove_sweeps(connection, list(ids.scalars()))


def test_prices_and_verdicts_come_in_once(tmp_path: Path, store_url: str) -> None:
    other_url = f"sqlite:///{tmp_path}/other.db"
    sku = "2x H200"
    with Store.open(other_url) as other:
        night(other, 2, 1.0, hosts=[host(gpus=2)])
        night(other, 3, 1.0, hosts=[host(gpus=2)])
        add_price(other, Price(sku, "cloud_hour", 20.0, "EUR", valid_from="2026-01-01T00:00:00Z"))
        with other.engine.begin() as connection:
            connection.execute(sa.text(VERDICTS))
            connection.execute(sa.text("UPDATE verdict SET sweep_id = 1"))
            connection.execute(sa.text("UPDATE verdict SET superseded_by = 2 WHERE id = 1"))
    with Store.open(store_url) as store:
        assert import_store(store, other_url).judged == 3
        again = import_store(store, other_url)
        assert (again.judged, again.problems) == (0, [])
        with store.engine.begin() as connection:
            found = connection.execute(
                sa.text(
                    "SELECT a.id, b.id, a.sweep_id FROM verdict a JOIN verdict b "
                    "ON b.id = a.superseded_by"
                )
            ).all()
            assert [r[2] for r in found] == [1]
            connection.execute(sa.text("UPDATE price SET amount = 21, hour_amount = 21"))
        (problem,) = import_store(store, other_url).problems
        assert problem.startswith("cloud_hour price 20 EUR of '2x H200")
        assert problem.endswith("was left out: 21 from 2026-01-01T00:00:00.000000Z is stored here")


VERDICTS = (
    "INSERT INTO verdict (host_id, sweep_id, as_of, check_name, level, reason, policy_version, "
    "inputs_digest) SELECT h.id, s.id, s.started_at, 'peers', 'ok', '', '1', 'x' "
    "FROM host h, sweep s ORDER BY s.id"
)


def test_an_older_store_is_upgraded_in_a_copy(tmp_path: Path) -> None:
    """The file that was given stays as it is, byte for byte."""
    path = tmp_path / "old.db"
    older = at_revision(path, "0003")
    before = path.read_bytes()
    with Store.open(f"sqlite:///{tmp_path}/new.db") as store:
        merged = import_store(store, f"sqlite:///{path}")
        assert (merged.sweeps, merged.stored) == (1, 1)
        assert store.sweep_document(older)["cells"][0]["readings"][0]["median"] == 7.0
    assert path.read_bytes() == before


def test_a_store_is_not_brought_into_itself(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    with Store.open(f"sqlite:///{tmp_path}/a.db") as store:
        with pytest.raises(UsageError, match="is the store itself"):
            import_store(store, f"sqlite:///{tmp_path}/link/a.db")
        with pytest.raises(NotFound, match="no such file"):
            import_store(store, f"sqlite:///{tmp_path}/none.db")
