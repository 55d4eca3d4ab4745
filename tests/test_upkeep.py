"""Upkeep of the store: roll-ups by night, retention, other stores brought in."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from storing import at, begin, cell, count, reading, run
from topobench.db.queries import run_query
from topobench.db.retention import DAY_SECONDS, Retention, vacuum
from topobench.db.store import Store
from topobench.reading import Status


def rolled(store: Store) -> list[tuple[Any, ...]]:
    query = "SELECT day, n, median, mad FROM night_rollup ORDER BY day, series_id, point"
    with store.engine.connect() as connection:
        return [(str(r.day), r.n, r.median, r.mad) for r in connection.execute(sa.text(query))]


def night(store: Store, day: int, *values: float, params: Any = None) -> str:
    """A sweep of one case with a process for each value."""
    cells = [cell(process_no=n, params=params) for n in range(len(values))]
    sweep = begin(store, *cells, day=day)
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
