"""
Brings another store of topobench into this one: each sweep, cell and run exactly once.

Sweeps, cells and runs are known by the UUIDs their makers chose. The same UUID with another
content is a conflict: its whole sweep stays out, and is named. The other store is only read;
an older one is brought up to date in a copy.
"""

from __future__ import annotations

import contextlib
import sqlite3
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection, Engine

from topobench.db import merge_judged, migrate, rollups, schema, strays
from topobench.db.bulk import insert_rows
from topobench.db.clocks import told_ahead
from topobench.db.engine import (
    foreign_errors,
    make_engine,
    mask_url,
    name_errors,
    parse_url,
    reading,
    sqlite_path,
    sqlite_uri,
    writing,
)
from topobench.db.files import check_place, identity
from topobench.db.keys import chunks, insert_id
from topobench.db.merge_places import Mapped
from topobench.db.store import Store
from topobench.errors import StoreConflict, UsageError
from topobench.reading import MEASURED

RUNS = 200
"""Runs in memory at a time."""

_SWEEP = ("profile", "trigger", "seed", "tool_version", "config_hash", "started_at", "source")
_CELL = ("process_no", "block", "order_in_block", "arm", "binding", "ring")
_OF_RUN = ("run_detail", "run_member", "reading", "sample", "slo_window")


@dataclass(slots=True)
class Merged:
    """
    What became of another store.

    Args:
        sweeps: That are new or got something new.
        stored: Runs that are new.
        already: Runs that were stored before.
        conflicts: Sweeps left out, since a UUID in them has another content here.
        judged: Prices, verdicts, changes, fits and notes that are new.
        problems: One text for each conflict, with its UUID, and what else stayed out.
    """

    sweeps: int = 0
    stored: int = 0
    already: int = 0
    conflicts: int = 0
    judged: int = 0
    problems: list[str] = field(default_factory=list)


def import_store(store: Store, url: str, *, as_cluster: str | None = None) -> Merged:
    """
    Bring every sweep, price and verdict of another store into this one.

    What came in stays in when something fails on the way; again is safe.

    Args:
        url: Of the other store.
        as_cluster: Name its cluster gets here, where two sites call theirs the same.

    Raises:
        UsageError: It is this very store, or has several clusters to be called one.
        StoreError: It is no store, a hand edited its keys, or this one can't take it.
    """
    merged = Merged()
    with _opened(url, store) as engine, reading(engine) as source:
        strays.check_whole(source, url)
        if as_cluster is not None:
            _check_one_cluster(source, url)
        ids = list(
            source.execute(sa.select(schema.sweep.c.id).order_by(schema.sweep.c.id)).scalars()
        )
        agreed = [i for i in ids if _import_sweep(source, store.engine, i, as_cluster, merged)]
        if ids and not agreed:  # as of a site that has another name here
            return merged
        with writing(store.engine) as target:
            mapped = Mapped(source, target, as_cluster)
            for device_id in _devices(source, agreed):
                mapped.id("device", device_id)
            merged.judged += merge_judged.of_places(source, target, mapped, merged.problems)
            merge_judged.supersede(source, target, mapped)
            refused = _clusters(source, ids) - _clusters(source, agreed)
            rollups.bring_in(source, target, mapped.translated, refused)
    return merged


@contextlib.contextmanager
def _opened(url: str, store: Store) -> Iterator[Engine]:
    """The other store at our schema, to read only."""
    parsed = parse_url(url)
    path = sqlite_path(parsed)
    if path is not None:
        check_place(path, create=False)
        if store.path is not None and identity(path) == identity(store.path):
            raise UsageError(f"{path} is the store itself; name another one")
    with contextlib.ExitStack() as stack:
        engine = make_engine(parsed, read_only=True)
        stack.callback(engine.dispose)
        name_errors(engine)
        found = migrate.current(engine)
        if path is not None and found in migrate.older():
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="topobench-"))
            copy = Path(folder) / "copy.db"
            _copy(path, copy)
            upgraded = stack.enter_context(Store.open(f"sqlite:///{copy}"))
            yield upgraded.engine
            return
        migrate.check(engine)
        yield engine


def _copy(path: Path, target: Path) -> None:
    with (
        foreign_errors(str(path)),
        contextlib.closing(sqlite3.connect(sqlite_uri(path, read_only=True), uri=True)) as source,
        contextlib.closing(sqlite3.connect(target)) as copy,
    ):
        source.backup(copy)


def _check_one_cluster(source: Connection, url: str) -> None:
    query = sa.select(schema.cluster.c.name).order_by(schema.cluster.c.name)
    names = list(source.execute(query).scalars())
    if len(names) > 1:
        raise UsageError(
            f"{mask_url(url)} has several clusters ({', '.join(names)}), which cannot all "
            "be called the same; leave --as-cluster out"
        )


def _import_sweep(
    source: Connection, engine: Engine, sweep_id: int, as_cluster: str | None, merged: Merged
) -> bool:
    """One sweep in one transaction: all of it, or nothing and a conflict that is noted."""
    try:
        with writing(engine) as target:
            mapped = Mapped(source, target, as_cluster)
            stored, already, judged = _sweep(source, target, mapped, sweep_id)
    except StoreConflict as error:
        merged.conflicts += 1
        merged.problems.append(str(error))
        return False
    merged.sweeps += bool(stored or not already)
    merged.stored += stored
    merged.already += already
    merged.judged += judged
    return True


def _clusters(source: Connection, sweeps: Sequence[int]) -> set[int]:
    """The clusters of these sweeps."""
    s = schema.sweep
    found: set[int] = set()
    for some in chunks(sweeps):
        found.update(source.execute(sa.select(s.c.cluster_id).where(s.c.id.in_(some))).scalars())
    return found


def _devices(source: Connection, sweeps: Sequence[int]) -> list[int]:
    """All devices of the hosts of these sweeps, also those that nothing was measured on."""
    d, hosts = schema.device, schema.sweep_host
    found: dict[int, None] = {}
    for some in chunks(sweeps):
        query = sa.select(d.c.id).where(
            d.c.host_id.in_(sa.select(hosts.c.host_id).where(hosts.c.sweep_id.in_(some)))
        )
        found.update(dict.fromkeys(source.execute(query.order_by(d.c.id)).scalars()))
    return list(found)


def _sweep(
    source: Connection, target: Connection, mapped: Mapped, sweep_id: int
) -> tuple[int, int, int]:
    """Runs that are new, that were there, and judgements that are new."""
    row = mapped.row("sweep", sweep_id)
    here = _sweep_id(target, mapped, row)
    hosts = schema.sweep_host
    known = set(
        target.execute(sa.select(hosts.c.host_id).where(hosts.c.sweep_id == here)).scalars()
    )
    for found in source.execute(sa.select(hosts).where(hosts.c.sweep_id == sweep_id)):
        made = mapped.translated(hosts, found, sweep_id=here)
        if made["host_id"] not in known:
            target.execute(hosts.insert(), made)
    cells = _cells(source, target, mapped, sweep_id, here)
    stored = already = 0
    query = sa.select(schema.run).where(schema.run.c.sweep_id == sweep_id)
    for some in chunks(source.execute(query.order_by(schema.run.c.id)).all(), RUNS):
        new = _new_runs(target, some)
        _put_runs(source, target, mapped, new, cells, here)
        stored += len(new)
        already += len(some) - len(new)
    rollups.refresh(target, [here])
    judged = merge_judged.of_sweep(source, target, mapped, sweep_id, here)
    return stored, already, judged


def _sweep_id(target: Connection, mapped: Mapped, row: Any) -> int:
    """The id here; an end that this store has not seen is taken over."""
    table = schema.sweep
    made = mapped.translated(table, row)
    here = target.execute(sa.select(table).where(table.c.uuid == row.uuid)).first()
    if here is None:
        return insert_id(target, table, made)
    differs = [n for n in (*_SWEEP, "cluster_id") if here._mapping[n] != made[n]]
    if differs:
        named = ", ".join(n.removesuffix("_id") for n in differs)
        raise StoreConflict(f"sweep {row.uuid} is already stored with another {named}")
    if here.status == "running" and row.status != "running":
        ended = {n: made[n] for n in ("status", "ended_at", "warnings")}
        target.execute(table.update().where(table.c.id == here.id), ended)
    return int(here.id)


def _cells(
    source: Connection, target: Connection, mapped: Mapped, sweep_id: int, here: int
) -> dict[int, tuple[int, int]]:
    """Cell of the other store -> its id and its series here."""
    table = schema.cell
    query = sa.select(table).where(table.c.sweep_id == sweep_id).order_by(table.c.id)
    rows = source.execute(query).all()
    known = _by_uuid(target, table, [r.uuid for r in rows])
    made = [mapped.translated(table, r, sweep_id=here) for r in rows]
    for row in made:
        found = known.get(row["uuid"])
        if found is not None:
            _join_cell(target, found, row)
    insert_rows(target, table, [r for r in made if r["uuid"] not in known])
    known = _by_uuid(target, table, [r.uuid for r in rows])
    return {r.id: (known[r.uuid].id, known[r.uuid].series_id) for r in rows}


def _join_cell(target: Connection, found: Any, row: dict[str, Any]) -> None:
    same = ("sweep_id", "series_id", *_CELL)
    differs = [n for n in same if found._mapping[n] != row[n]]
    if differs:
        named = ", ".join(n.removesuffix("_id") for n in differs)
        raise StoreConflict(f"cell {row['uuid']} is already stored with another {named}")
    if row["attempt"] > found.attempt:
        shown = {n: row[n] for n in ("status", "reason_code", "reason", "attempt")}
        target.execute(schema.cell.update().where(schema.cell.c.id == found.id), shown)


def _by_uuid(connection: Connection, table: sa.Table, uuids: Sequence[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for some in chunks(uuids):
        query = sa.select(table).where(table.c.uuid.in_(some))
        found.update((r.uuid, r) for r in connection.execute(query))
    return found


def _new_runs(target: Connection, rows: Sequence[Any]) -> list[Any]:
    """
    Those that are not stored here.

    Raises:
        StoreConflict: One has the UUID of another run.
    """
    known = _by_uuid(target, schema.run, [r.uuid for r in rows])
    for row in rows:
        if row.uuid in known and known[row.uuid].digest != row.digest:
            raise StoreConflict(f"run {row.uuid} is already stored with another content")
    return [r for r in rows if r.uuid not in known]


def _put_runs(
    source: Connection,
    target: Connection,
    mapped: Mapped,
    rows: Sequence[Any],
    cells: dict[int, tuple[int, int]],
    sweep_id: int,
) -> None:
    table = schema.run
    made = []
    for row in rows:
        cell_id, series_id = cells[row.cell_id]
        given = {"sweep_id": sweep_id, "cell_id": cell_id, "series_id": series_id}
        made.append(mapped.translated(table, row, **given))
    insert_rows(target, table, made)
    stored = _by_uuid(target, table, [r.uuid for r in rows])
    ids = {r.id: stored[r.uuid].id for r in rows}
    for name in _OF_RUN:
        child = schema.metadata.tables[name]
        query = sa.select(child).where(child.c.run_id.in_(ids))
        found = source.execute(query).all() if ids else []
        insert_rows(
            target, child, [mapped.translated(child, r, run_id=ids[r.run_id]) for r in found]
        )
    _note_latest(target, [r for r in made if r["status"] in MEASURED])


def _note_latest(target: Connection, runs: Sequence[dict[str, Any]]) -> None:
    """A series knows the sweep it was last measured in."""
    s = schema.series
    newest = {r["series_id"]: r for r in sorted(runs, key=lambda r: r["started_unix_seconds"])}
    for series_id, run in newest.items():
        started = run["started_unix_seconds"]
        latest = s.c.latest_unix_seconds
        older = latest.is_(None) | (latest <= started) | (latest > told_ahead(started))
        made = {
            "latest_sweep_id": run["sweep_id"],
            "latest_at": run["started_at"],
            "latest_unix_seconds": started,
        }
        target.execute(s.update().where(s.c.id == series_id, older), made)
