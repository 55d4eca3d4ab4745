"""
What verdicts rest on, read from the store in few queries: nights as a matrix, hosts, changes.

A night is the UTC day on which a sweep began; of several sweeps of one day the last that
measured a track counts, so that a host measured again after a repair is judged by that.
"""

from __future__ import annotations

import datetime
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy import Connection

from topobench.db import schema
from topobench.db.columns import parse_time, time_text
from topobench.db.engine import reading
from topobench.db.evidence_tracks import Columns, Series, tracks_of
from topobench.db.find import find_sweep
from topobench.db.keys import chunks
from topobench.db.store import Store
from topobench.errors import UsageError
from topobench.reading import MEASURED, Status
from topobench.topology import Topology
from topobench.topology_diff import HEALTH_CODES
from topobench.verdict_invariants import FAULTS
from topobench.verdict_words import Evidence, Fault, HostEvidence

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from topobench.policy import Policy

_SECONDS_A_DAY = 86_400
_IDLE = frozenset({Status.SKIPPED, Status.NOT_APPLICABLE})
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
    """

    evidence: Evidence
    sweep: str
    sweep_id: int
    cluster: str
    synthetic: bool
    series: tuple[tuple[int, int], ...]
    host_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Window:
    """The sweeps looked at: those of the last nights, of the same cluster and origin."""

    sweep: Any
    as_of: str
    sweeps: Mapping[int, tuple[int, str]]
    """Sweep id -> (day since 1970, start)."""


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
        hosts, ids = _hosts(connection, window)
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
        as_of_day=_day(window.as_of),
        hosts=tuple(hosts),
        tracks=tracks,
        days=days,
        values=values,
        stretches=stretches,
    )
    judged = window.sweep
    return Loaded(
        evidence, judged.uuid, judged.id, judged.cluster, bool(judged.synthetic), keys, tuple(ids)
    )


def _window(connection: Connection, text: str, as_of: str | None, policy: Policy) -> _Window:
    sweep = find_sweep(connection, text)
    s, r = schema.sweep, schema.run
    newest = sa.select(sa.func.max(r.c.started_at)).where(r.c.sweep_id == sweep.id)
    end = sweep.ended_at or connection.execute(newest).scalar() or sweep.started_at
    until = _moment(as_of) if as_of else max(end, sweep.started_at)
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
        days.add(_day(row.started_at))
        if len(days) > policy.history_nights:
            break
        found[row.id] = _day(row.started_at), row.started_at
    return _Window(sweep, until, found)


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


def _day(time: str) -> int:
    return int(parse_time(time).timestamp() // _SECONDS_A_DAY)


def _hosts(connection: Connection, window: _Window) -> tuple[list[HostEvidence], list[int]]:
    """Hosts of the sweep judged, then those that other sweeps of the window had: peers."""
    sh, h, t = schema.sweep_host, schema.host, schema.topology
    query = (
        sa.select(h.c.id, h.c.key, sh.c.name, sh.c.sweep_id, sh.c.position, t.c.shape, t.c.document)
        .select_from(sh.join(h).outerjoin(t, t.c.id == sh.c.topology_id))
        .where(sh.c.sweep_id == window.sweep.id)
        .order_by(sh.c.position, h.c.id)
    )
    own = connection.execute(query).all()
    ids = [r.id for r in own]
    counts = _most_gpus(connection, window)
    faults, cells = _faults(connection, window.sweep.id), _cells(connection, window.sweep.id)
    wanted = _configured(window.sweep.config_text)
    hosts = []
    for row in own:
        planned, usable, unusable = cells.get(row.id, (0, 0, {}))
        hosts.append(
            HostEvidence(
                key=row.key,
                name=row.name,
                group=row.shape,
                topology=None if row.document is None else _devices_of(row.document),
                seen_day=_day(window.sweep.started_at),
                expected_gpus=wanted.get(row.key, wanted.get(row.name, counts.get(row.id))),
                faults=tuple(faults.get(row.id, ())),
                planned=planned,
                usable=usable,
                unusable=unusable,
            )
        )
    for row in _peer_rows(connection, window, set(ids)):
        seen = window.sweeps[row.sweep_id][0]
        peer = HostEvidence(row.key, row.name, row.shape, None, seen_day=seen, is_subject=False)
        hosts.append(peer)
        ids.append(row.id)
    return hosts, ids


def _devices_of(document: Mapping[str, Any]) -> Topology:
    """The part of a topology that verdicts look at: devices, slots, NVLink paths."""
    gpus = [
        {**g, "nvlink": {**g["nvlink"], "links": []}} if g.get("nvlink") else g
        for g in document["gpus"]
    ]
    paths = [p for p in document["paths"] if str(p.get("smi") or "").startswith("NV")]
    unread = {"cpus": {}, "numa_nodes": [], "numa_distances": {"nodes": [], "matrix": []}}
    return Topology.from_json({**document, **unread, "gpus": gpus, "paths": paths})


def _peer_rows(connection: Connection, window: _Window, known: set[int]) -> list[Any]:
    """Other hosts of the window, as they were seen last."""
    sh, h, t = schema.sweep_host, schema.host, schema.topology
    found: dict[int, Any] = {}
    for some in chunks(window.sweeps):
        query = (
            sa.select(h.c.id, h.c.key, sh.c.name, sh.c.sweep_id, t.c.shape)
            .select_from(sh.join(h).outerjoin(t, t.c.id == sh.c.topology_id))
            .where(sh.c.sweep_id.in_(some), h.c.retired_on.is_(None))
        )
        for row in connection.execute(query):
            other = found.get(row.id)
            starts = [window.sweeps[r.sweep_id][1] for r in (row, other) if r is not None]
            if row.id not in known and (other is None or starts[0] > starts[1]):
                found[row.id] = row
    return [found[i] for i in sorted(found)]


def _most_gpus(connection: Connection, window: _Window) -> dict[int, int]:
    """The most GPUs that a host had on any night of the window, by host id."""
    sh = schema.sweep_host
    most: dict[int, int] = {}
    for some in chunks(window.sweeps):
        query = sa.select(sh.c.host_id, sh.c.description).where(sh.c.sweep_id.in_(some)).distinct()
        for row in connection.execute(query):
            count = len((row.description or {}).get("devices") or ())
            most[row.host_id] = max(count, most.get(row.host_id, 0))
    return {host: count for host, count in most.items() if count}


def _configured(text: str | None) -> dict[str, int]:
    """GPUs that the configuration expects, by the host's id and address."""
    from topobench import yaml_strict
    from topobench.errors import ConfigError

    try:
        table = yaml_strict.parse(text or "", "config", [])
    except ConfigError:
        return {}
    found: dict[str, int] = {}
    for entry in table.entries if table else ():
        if entry.key == "hosts" and isinstance(entry.value, yaml_strict.Listing):
            for item in entry.value.items:
                if isinstance(item, yaml_strict.Table):
                    told = {e.key: getattr(e.value, "value", "") for e in item.entries}
                    if str(told.get("gpus", "")).isdigit():
                        names = [told[k] for k in ("id", "host") if told.get(k)]
                        found.update(dict.fromkeys(names, int(told["gpus"])))
    return found


def _faults(connection: Connection, sweep_id: int) -> dict[int, list[Fault]]:
    """What runs of the sweep said of broken hardware, by host id."""
    r, s, d, ds = schema.run, schema.series, schema.run_detail, schema.device_set
    told = [d.c.warnings.cast(sa.Text).like(f"%{code}%") for code in FAULTS]
    query = (
        sa.select(
            *(s.c.host_id, r.c.reason_code, r.c.reason, d.c.warnings, ds.c.label, ds.c.n_devices)
        )
        .select_from(r.join(s).join(d).join(ds))
        .where(r.c.sweep_id == sweep_id, sa.or_(r.c.reason_code.in_(list(FAULTS)), *told))
        .order_by(r.c.id)
    )
    found: dict[int, list[Fault]] = defaultdict(list)
    for row in connection.execute(query):
        device = row.label if row.n_devices == 1 else None
        texts = [f"{row.reason_code}: {row.reason}", *map(str, row.warnings or ())]
        for text in texts:
            code, _, rest = text.partition(": ")
            if code in FAULTS:
                found[row.host_id].append(Fault(code, rest, device))
    return found


def _cells(connection: Connection, sweep_id: int) -> dict[int, tuple[int, int, dict[str, int]]]:
    """Cells that were to run, those that gave numbers, and why others did not, by host id."""
    c, s = schema.cell, schema.series
    query = (
        sa.select(s.c.host_id, c.c.status, c.c.reason_code, sa.func.count().label("n"))
        .select_from(c.join(s))
        .where(c.c.sweep_id == sweep_id, c.c.status.not_in([str(x) for x in _IDLE]))
        .group_by(s.c.host_id, c.c.status, c.c.reason_code)
    )
    planned: Counter[int] = Counter()
    usable: Counter[int] = Counter()
    unusable: dict[int, Counter[str]] = defaultdict(Counter)
    for row in connection.execute(query):
        planned[row.host_id] += row.n
        if row.status in MEASURED:
            usable[row.host_id] += row.n
        else:
            unusable[row.host_id][row.reason_code or row.status] += row.n
    return {host: (n, usable[host], dict(unusable[host])) for host, n in planned.items()}


def _readings(connection: Connection, window: _Window) -> Columns:
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
            )
        )
        columns.extend(connection.execute(query))
    return columns


def _series(connection: Connection, window: _Window, columns: Columns) -> dict[int, Series]:
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


def _path_classes(connection: Connection, window: _Window) -> dict[int, str]:
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
    columns: Columns, rows: NDArray[np.intp], tracks: int, window: _Window
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
    connection: Connection, window: _Window, ids: Sequence[int], days: NDArray[np.intp]
) -> NDArray[np.intp]:
    """How many recorded changes that cut a history lie before each night, by host."""
    import numpy as np

    e = schema.change_event
    counted = np.zeros((len(ids), len(days)), dtype=np.intp)
    place = {host: n for n, host in enumerate(ids)}
    query = sa.select(e.c.host_id, e.c.at, e.c.kind, e.c.source).where(e.c.at <= window.as_of)
    for row in connection.execute(query):
        if row.host_id in place and (row.source == "human" or row.kind not in HEALTH_CODES):
            counted[place[row.host_id], np.searchsorted(days, _day(row.at)) :] += 1
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
