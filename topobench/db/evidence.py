"""
What verdicts rest on, read from the store in few queries: nights as a matrix, hosts, changes.

A night is the UTC day on which a sweep began; of several sweeps of one day the last that
measured a track counts, so that a host measured again after a repair is judged by that.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy import Connection

from topobench.db import loose, schema
from topobench.db.columns import parse_time, time_text
from topobench.db.engine import reading
from topobench.db.evidence_hosts import Window, day_of, hosts_of
from topobench.db.evidence_tracks import Columns, Series, tracks_of
from topobench.db.find import find_sweep
from topobench.db.keys import chunks
from topobench.db.store import Store
from topobench.errors import UsageError
from topobench.reading import MEASURED
from topobench.server_definition import PROBE as SERVING
from topobench.topology_diff import HEALTH_CODES
from topobench.verdict_words import Evidence

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from topobench.policy import Policy

_JUDGED_UNITS = ("B/s", "s", "token/s", "FLOP/s")
_VERSIONS = ("driver", "cuda", "nccl", "torch", "kernel", "bios")
"""Columns of ``environment`` whose change cuts a history."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """
    Evidence with the ids its verdicts are stored under.

    Args:
        series: (series id, metric id) by track.
        host_ids: By host, in the order of ``evidence.hosts``.
        status: Of the sweep: running, done, interrupted, failed.
        source: ``probe``, or ``import:<format>``.
    """

    evidence: Evidence
    sweep: str
    sweep_id: int
    cluster: str
    synthetic: bool
    series: tuple[tuple[int, int], ...]
    host_ids: tuple[int, ...]
    status: str
    source: str


def load(store: Store, sweep: str, as_of: str | None, policy: Policy) -> Loaded:
    """
    The evidence on a sweep.

    Args:
        sweep: UUID, unique beginning, or ``latest``.
        as_of: Nothing younger counts; None: the end of the sweep.

    Raises:
        NotFound: No such sweep.
        UsageError: ``as_of`` is no time, or lies before the sweep.
    """
    with reading(store.engine) as connection:
        window = _window(connection, sweep, as_of, policy)
        loose.check_keys(connection, window.sweep.id)
        hosts, ids = hosts_of(connection, window)
        columns = _readings(connection, window)
        series = _series(connection, window, columns)
        tracks, keys, rows = tracks_of(
            columns, series, {h: n for n, h in enumerate(ids)}, hosts, policy
        )
        days, values, versions = _matrix(columns, rows, len(tracks), window)
        cuts = _cuts(connection, window, ids, days)
    stretches = _stretches(versions, cuts[[t.host for t in tracks]] if tracks else cuts[:0])
    evidence = Evidence(
        as_of=window.as_of,
        as_of_day=day_of(window.as_of),
        hosts=tuple(hosts),
        tracks=tracks,
        days=days,
        values=values,
        stretches=stretches,
    )
    judged = window.sweep
    return Loaded(
        evidence,
        sweep=judged.uuid,
        sweep_id=judged.id,
        cluster=judged.cluster,
        synthetic=bool(judged.synthetic),
        series=keys,
        host_ids=tuple(ids),
        status=judged.status,
        source=judged.source,
    )


def _window(connection: Connection, text: str, as_of: str | None, policy: Policy) -> Window:
    sweep = find_sweep(connection, text)
    s, r = schema.sweep, schema.run
    newest = sa.select(sa.func.max(r.c.started_at)).where(r.c.sweep_id == sweep.id)
    end = sweep.ended_at or connection.execute(newest).scalar() or sweep.started_at
    until = max(end, sweep.started_at) if as_of is None else _moment(as_of)
    if until < sweep.started_at:
        raise UsageError(
            f"--as-of {as_of} lies before sweep {sweep.uuid[:8]}, which began at {sweep.started_at}"
        )
    query = (
        sa.select(s.c.id, s.c.started_at)
        .where(
            s.c.cluster_id == sweep.cluster_id,
            s.c.source == sweep.source,
            s.c.synthetic == sweep.synthetic,
            s.c.started_at <= until,
        )
        .order_by(s.c.started_at.desc(), s.c.id.desc())
    )
    found: dict[int, tuple[int, str]] = {}
    days: set[int] = set()
    for row in connection.execute(query):
        days.add(day_of(row.started_at))
        if len(days) > policy.history_nights:
            break
        found[row.id] = day_of(row.started_at), row.started_at
    return Window(sweep, until, found)


def _moment(text: str) -> str:
    """A time as stored; a bare date means its end."""
    try:
        if len(text) == 10:
            day = datetime.date.fromisoformat(text)
            return f"{day.isoformat()}T23:59:59.999999Z"
        return time_text(parse_time(text))
    except ValueError as error:
        raise UsageError(
            f"--as-of {text!r} is no time; write 2026-11-29 or 2026-11-29T06:00:00Z"
        ) from error


def _readings(connection: Connection, window: Window) -> Columns:
    """Every usable reading of a judged unit in the window, as columns of numbers."""
    m, e = schema.metric, schema.environment
    judged = sa.select(m.c.id).where(m.c.better != 0, m.c.unit.in_(_JUDGED_UNITS))
    metrics = list(connection.execute(judged).scalars())
    versions: dict[tuple[Any, ...], int] = {}
    environments = {
        row.id: versions.setdefault(tuple(row)[1:], len(versions))
        for row in connection.execute(sa.select(e.c.id, *(e.c[v] for v in _VERSIONS)))
    }
    r, d = schema.run, schema.reading
    columns = Columns(environments)
    for some in chunks(sorted(window.sweeps)):
        query = (
            sa.select(
                *(r.c.series_id, d.c.metric_id, d.c.point, r.c.sweep_id, r.c.environment_id),
                d.c.median,
            )
            .select_from(r.join(d, d.c.run_id == r.c.id))
            .where(
                r.c.sweep_id.in_(some),
                r.c.status.in_([str(x) for x in MEASURED]),
                r.c.started_at <= window.as_of,
                d.c.metric_id.in_(metrics),
                d.c.median > 0,
                r.c.series_id.not_in(_served()),
            )
        )
        columns.extend(connection.execute(query))
    return columns


def _served() -> sa.Select[tuple[int]]:
    """Series of servers under load: what they tell is the server's, wherever that runs."""
    s, p = schema.series, schema.probe_case
    return sa.select(s.c.id).join(p, p.c.id == s.c.case_id).where(p.c.probe == SERVING)


def _series(connection: Connection, window: Window, columns: Columns) -> dict[int, Series]:
    """What each series of the readings measures."""
    s, p, a, ds = schema.series, schema.probe_case, schema.arm, schema.device_set
    classes = _path_classes(connection, window)
    known = connection.execute(sa.select(schema.device.c.key, schema.device.c.model))
    models = {row.key: row.model for row in known}
    found = {}
    for some in chunks(columns.series_ids()):
        query = (
            sa.select(
                *(s.c.id, s.c.host_id, s.c.case_id, s.c.n_ranks, s.c.n_hosts, ds.c.label),
                *(p.c.probe, p.c.params, a.c.name.label("arm"), a.c.env),
            )
            .select_from(s.join(p).join(a).join(ds))
            .where(s.c.id.in_(some))
        )
        for row in connection.execute(query):
            devices = tuple(k for k in row.label.split(",") if k)
            kinds = sorted({str(models.get(k)) for k in devices})
            kind = " ".join([*kinds, classes.get(row.id) or ""])
            found[row.id] = Series.of(row, devices, kind)
    metrics = schema.metric
    units = connection.execute(
        sa.select(metrics.c.id, metrics.c.name, metrics.c.unit, metrics.c.better)
    )
    columns.metrics = {row.id: (row.name, row.unit, row.better) for row in units}
    return found


def _path_classes(connection: Connection, window: Window) -> dict[int, str]:
    """Farthest path class of the devices of a series, as planned in the newest nights."""
    c = schema.cell
    newest = max(day for day, _ in window.sweeps.values())
    recent = [i for i, (day, _) in window.sweeps.items() if day > newest - 8]
    found: dict[int, str] = {}
    for some in chunks(recent):
        query = (
            sa.select(c.c.series_id, c.c.path_class)
            .where(c.c.sweep_id.in_(some), c.c.path_class.is_not(None))
            .distinct()
        )
        found.update({row.series_id: row.path_class for row in connection.execute(query)})
    return found


def _matrix(
    columns: Columns, rows: NDArray[np.intp], tracks: int, window: Window
) -> tuple[NDArray[np.intp], NDArray[np.float64], NDArray[np.intp]]:
    """Days, values and versions, tracks x nights; the last sweep of a day, all its processes."""
    import numpy as np

    order = sorted(window.sweeps, key=lambda i: (window.sweeps[i][1], i))
    place = {sweep: n for n, sweep in enumerate(order)}
    days = np.unique([window.sweeps[i][0] for i in order]).astype(np.intp)
    night_of = np.searchsorted(days, [window.sweeps[i][0] for i in order])
    values = np.full((tracks, len(days)), np.nan)
    versions = np.full((tracks, len(days)), -1, dtype=np.intp)
    sweeps = np.array([place[i] for i in columns.sweep], dtype=np.intp)
    kept = np.flatnonzero(rows >= 0)
    if not len(kept):
        return days, values, versions
    medians = np.array(columns.median, dtype=np.float64)
    key = rows[kept] * len(order) + sweeps[kept]
    by_value = kept[np.lexsort((medians[kept], key))]
    key = rows[by_value] * len(order) + sweeps[by_value]
    starts = np.flatnonzero(np.concatenate([[True], key[1:] != key[:-1]]))
    counts = np.diff(np.concatenate([starts, [len(key)]]))
    ordered = medians[by_value]
    middle = (ordered[starts + (counts - 1) // 2] + ordered[starts + counts // 2]) / 2
    # Ascending by sweep within a track, so the last sweep of a day is written last.
    track, night = rows[by_value][starts], night_of[sweeps[by_value][starts]]
    environment = np.array(columns.version, dtype=np.intp)[by_value][starts]
    values[track, night] = middle
    versions[track, night] = environment
    return days, values, versions


def _cuts(
    connection: Connection, window: Window, ids: Sequence[int], days: NDArray[np.intp]
) -> NDArray[np.intp]:
    """How many recorded changes that cut a history lie before each night, by host."""
    import numpy as np

    e = schema.change_event
    counted = np.zeros((len(ids), len(days)), dtype=np.intp)
    place = {host: n for n, host in enumerate(ids)}
    query = sa.select(e.c.host_id, e.c.at, e.c.kind, e.c.source).where(e.c.at <= window.as_of)
    for row in connection.execute(query):
        if row.host_id in place and (row.source == "human" or row.kind not in HEALTH_CODES):
            counted[place[row.host_id], np.searchsorted(days, day_of(row.at)) :] += 1
    return counted


def _stretches(versions: NDArray[np.intp], cuts: NDArray[np.intp]) -> NDArray[np.intp]:
    """A number that rises where versions change or a recorded change lies between nights."""
    import numpy as np

    found = cuts.copy()
    last = np.full(len(versions), -1, dtype=np.intp)
    changes = np.zeros(len(versions), dtype=np.intp)
    for night in range(versions.shape[1]):
        now = versions[:, night]
        changes += (now >= 0) & (last >= 0) & (now != last)
        last = np.where(now >= 0, now, last)
        found[:, night] += changes
    return found
