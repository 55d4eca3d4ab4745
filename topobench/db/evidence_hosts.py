"""The hosts that verdicts are about, as a sweep found them, and the peers of other sweeps."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from topobench import yaml_strict
from topobench.db import schema
from topobench.db.columns import parse_time
from topobench.db.keys import chunks
from topobench.errors import ConfigError
from topobench.health import STANDARD, Action, Trouble
from topobench.reading import MEASURED, Status
from topobench.topology import Topology
from topobench.verdict_invariants import FAULTS
from topobench.verdict_words import Fault, HostEvidence

_SECONDS_A_DAY = 86_400
_IDLE = frozenset({Status.SKIPPED, Status.NOT_APPLICABLE})


@dataclass(frozen=True, slots=True)
class Window:
    """The sweeps looked at: those of the last nights, of the same cluster and origin."""

    sweep: Any
    as_of: str
    sweeps: Mapping[int, tuple[int, str]]
    """Sweep id -> (day since 1970, start)."""


def day_of(time: str) -> int:
    """Days since 1970 of a stored time."""
    return int(parse_time(time).timestamp() // _SECONDS_A_DAY)


def hosts_of(connection: Connection, window: Window) -> tuple[list[HostEvidence], list[int]]:
    """Hosts of the sweep judged, then those that other sweeps of the window had: peers."""
    sh, h, t = schema.sweep_host, schema.host, schema.topology
    query = (
        sa.select(
            *(h.c.id, h.c.key, sh.c.name, sh.c.sweep_id, sh.c.position, sh.c.facts),
            *(t.c.shape, t.c.document),
        )
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
                seen_day=day_of(window.sweep.started_at),
                expected_gpus=wanted.get(row.key, wanted.get(row.name, counts.get(row.id))),
                faults=(*_preflight(row.facts), *faults.get(row.id, ())),
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


def _preflight(facts: Mapping[str, Any] | None) -> Iterator[Fault]:
    """What ailed the host's GPUs before it was measured; the wiring tells of links itself."""
    for value in (facts or {}).get("health", ()):
        trouble = Trouble.from_json(value)
        if trouble.code in FAULTS and STANDARD.of(trouble) is Action.SKIP:
            yield Fault(str(trouble.code), trouble.text, trouble.device)


def _devices_of(document: Mapping[str, Any]) -> Topology:
    """The part of a topology that verdicts look at: devices, slots, NVLink paths."""
    gpus = [
        {**g, "nvlink": {**g["nvlink"], "links": []}} if g.get("nvlink") else g
        for g in document["gpus"]
    ]
    paths = [p for p in document["paths"] if str(p.get("smi") or "").startswith("NV")]
    unread = {"cpus": {}, "numa_nodes": [], "numa_distances": {"nodes": [], "matrix": []}}
    return Topology.from_json({**document, **unread, "gpus": gpus, "paths": paths})


def _peer_rows(connection: Connection, window: Window, known: set[int]) -> list[Any]:
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


def _most_gpus(connection: Connection, window: Window) -> dict[int, int]:
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
