"""
Finds rows that are not what they are known by: a digest of other content, another's metric.

All rows of a table are read: what a hand did to them shows in no other row.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from topobench.db import schema
from topobench.db.columns import digest
from topobench.db.contradictions import Rule, broken
from topobench.db.places import HOST_KIND
from topobench.db.stray_words import CONTRADICTS, Stray
from topobench.probes import registry
from topobench.reading import Case

_ROWS = 10_000
_Told = tuple[int, Any, Any]
"""Id of a row, what it is known by, and what it should be known by."""


@dataclass(frozen=True, slots=True)
class _Identity:
    """
    What rows of a table are known by.

    Args:
        reads: Tables whose values must be of their columns for it.
    """

    table: str
    column: str
    belongs: str
    told: Callable[[Connection], Iterator[_Told]]
    reads: frozenset[str]


def identities(connection: Connection, spoilt: Collection[str]) -> Iterator[Stray]:
    """
    The first row of each table that is not what it is known by, and how many are not.

    Args:
        spoilt: Tables with values that are not of their columns; nothing is told from them.
    """
    for identity in _IDENTITIES:
        if identity.reads.isdisjoint(spoilt):
            yield from _others(connection, identity)
    if not {"probe_case", "metric"} & set(spoilt):
        for table, beside in _OF_CASES.items():
            yield from _foreign_metrics(connection, table, beside)


def _others(connection: Connection, identity: _Identity) -> Iterator[Stray]:
    first, rows = None, 0
    for row_id, value, made in identity.told(connection):
        if value != made:
            first = first or (row_id, value)
            rows += 1
    if first is not None:
        place, value = {"id": first[0]}, str(first[1])
        yield Stray(
            *(identity.table, place, identity.column, value, identity.belongs, rows),
            advice=CONTRADICTS,
        )


def _rows(connection: Connection, query: sa.Select[Any]) -> Iterator[Any]:
    yield from connection.execute(query, execution_options={"yield_per": _ROWS})


def _cases(connection: Connection) -> Iterator[_Told]:
    p = schema.probe_case.c
    for row in _rows(connection, sa.select(p.id, p.digest, p.probe, p.probe_version, p.params)):
        case = Case(row.probe, row.probe_version, row.params)
        yield row.id, row.digest, digest(case.probe, case.version, case.params_hash)


def _arms(connection: Connection) -> Iterator[_Told]:
    a = schema.arm.c
    for row in _rows(connection, sa.select(a.id, a.digest, a.document)):
        yield row.id, row.digest, digest(row.document)


def _device_sets(connection: Connection) -> Iterator[_Told]:
    s, m = schema.device_set, schema.device_set_member
    query = (
        sa.select(s.c.id, s.c.digest, m.c.device_id)
        .select_from(s.outerjoin(m))
        .order_by(s.c.id, m.c.position)
    )
    for (set_id, known), members in itertools.groupby(
        _rows(connection, query), key=lambda row: (row.id, row.digest)
    ):
        yield set_id, known, digest([m.device_id for m in members if m.device_id is not None])


def _labels(connection: Connection) -> Iterator[_Told]:
    s, m, d = schema.device_set, schema.device_set_member, schema.device
    query = (
        sa.select(s.c.id, s.c.label, d.c.key)
        .select_from(s.join(m).join(d, d.c.id == m.c.device_id))
        .order_by(s.c.id, m.c.position)
    )
    for (set_id, label), members in itertools.groupby(
        _rows(connection, query), key=lambda row: (row.id, row.label)
    ):
        yield set_id, label, ",".join(m.key.removeprefix(f"{HOST_KIND}:") for m in members)


def _series(connection: Connection) -> Iterator[_Told]:
    s, h, c = schema.series, schema.host, schema.cluster
    p, a, d = schema.probe_case, schema.arm, schema.device_set
    query = sa.select(
        *(s.c.id, s.c.digest, c.c.name, h.c.key, p.c.digest.label("case_digest")),
        *(a.c.digest.label("arm_digest"), d.c.digest.label("devices")),
        *(s.c.n_ranks, s.c.source, s.c.synthetic),
    ).select_from(
        s.join(h, h.c.id == s.c.host_id)
        .join(c, c.c.id == h.c.cluster_id)
        .join(p, p.c.id == s.c.case_id)
        .join(a, a.c.id == s.c.arm_id)
        .join(d, d.c.id == s.c.device_set_id)
    )
    for row in _rows(connection, query):
        identity = (row.name, row.key, row.case_digest, row.arm_digest, row.devices)
        yield row.id, row.digest, digest(*identity, row.n_ranks, row.source, row.synthetic)


def _skus(connection: Connection) -> Iterator[_Told]:
    """Of hosts whose SKU the configuration names: it is a label, too."""
    h, s = schema.host, schema.sku
    query = sa.select(h.c.id, h.c.sku_id, s.c.name, h.c.labels).select_from(h.join(s))
    for row in _rows(connection, query):
        named = row.labels.get("sku")
        if named and named != row.name:
            yield row.id, row.sku_id, None


_IDENTITIES = (
    _Identity(
        *("probe_case", "digest", "that of its probe, version and parameters", _cases),
        frozenset({"probe_case"}),
    ),
    _Identity("arm", "digest", "that of its document", _arms, frozenset({"arm"})),
    _Identity(
        *("device_set", "digest", "that of its members", _device_sets),
        frozenset({"device_set", "device_set_member"}),
    ),
    _Identity(
        *("device_set", "label", "the keys of its members", _labels),
        frozenset({"device_set", "device_set_member", "device"}),
    ),
    _Identity(
        *("series", "digest", "that of its cluster, host, case, arm, devices and ranks", _series),
        frozenset({"series", "host", "cluster", "probe_case", "arm", "device_set"}),
    ),
    _Identity(
        *("host", "sku_id", "the SKU that its label names", _skus), frozenset({"host", "sku"})
    ),
)

_OF_SERIES = "JOIN series s ON s.id = t.series_id JOIN probe_case p ON p.id = s.case_id"
_OF_CASES = {
    "reading": (
        "JOIN run r ON r.id = t.run_id JOIN series s ON s.id = r.series_id"
        " JOIN probe_case p ON p.id = s.case_id"
    ),
    "night_rollup": _OF_SERIES,
    "changepoint": _OF_SERIES,
    "baseline": "JOIN probe_case p ON p.id = t.case_id",
}
"""Tables with a metric of a case, and the way from one to the other."""


def _foreign_metrics(connection: Connection, table: str, beside: str) -> Iterator[Stray]:
    """Rows with a metric that only other probes have."""
    probes = {
        r.id: (r.probe, r.probe_version) for r in connection.execute(sa.select(schema.probe_case))
    }
    names = {r.id: r.name for r in connection.execute(sa.select(schema.metric))}
    pairs = f"SELECT DISTINCT p.id, t.metric_id FROM {table} t {beside}"
    found = [
        f"({case}, {metric})"
        for case, metric in connection.execute(sa.text(pairs))
        if case in probes and metric in names and registry.is_foreign(*probes[case], names[metric])
    ]
    if found:
        wrong = f"(p.id, t.metric_id) IN (VALUES {', '.join(found)})"  # of ORs SQLite takes few
        rule = Rule(table, "metric_id", "a metric of its probe", wrong, beside)
        yield from broken(connection, [rule])
