"""
Finds keys that lead to a row that is there and the wrong one: rows contradict each other.

What a row says by its own key and by that of another row must be the same; no engine looks at
that. Which of the two was edited cannot be told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from topobench.db import schema
from topobench.db.stray_words import CONTRADICTS, Stray


@dataclass(frozen=True, slots=True)
class Rule:
    """
    What must be so of every row ``t`` of a table, as SQL that both engines read.

    Args:
        column: Named where it is not so.
        belongs: What should stand there, in words.
        wrong: Condition that it is not so.
        beside: Rows that are joined.
        expected: The value that should stand there, where only one would do.
    """

    table: str
    column: str
    belongs: str
    wrong: str
    beside: str = ""
    expected: str = "NULL"


def cheap(
    connection: Connection, limits: Callable[[str], str], sweep_id: int | None = None
) -> Iterator[Stray]:
    """
    Contradictions of some rows.

    Args:
        limits: Condition on the rows of a table to look at.
        sweep_id: The ``:id`` of those conditions.
    """
    for rules in _grouped(_CHEAP):
        yield from broken(connection, rules, limits(rules[0].table), sweep_id)


def contradictions(connection: Connection) -> Iterator[Stray]:
    """Every contradiction that SQL can tell in a whole store."""
    for rules in _grouped((*RULES, *_times(connection.dialect.name))):
        yield from broken(connection, rules)


def _grouped(rules: Iterable[Rule]) -> Iterable[list[Rule]]:
    """Rules that are looked at together: of one table, beside the same rows."""
    found: dict[tuple[str, str], list[Rule]] = {}
    for rule in rules:
        found.setdefault((rule.table, rule.beside), []).append(rule)
    return found.values()


def broken(
    connection: Connection, rules: Sequence[Rule], within: str = "", sweep_id: int | None = None
) -> Iterator[Stray]:
    """
    The first row that breaks each rule, with how many of the whole store do.

    Args:
        rules: Of one table, beside the same rows.
        within: Condition on the rows to look at; empty for all.
    """
    table, beside = rules[0].table, rules[0].beside
    rows = f"(SELECT * FROM {table} WHERE {within})" if within else table
    given = {"id": sweep_id} if ":id" in within else {}
    anywhere = " OR ".join(f"({rule.wrong})" for rule in rules)
    query = f"SELECT 1 FROM {rows} t {beside} WHERE {anywhere} LIMIT 1"
    if connection.execute(sa.text(query), given).first() is None:
        return
    keys = list(schema.metadata.tables[table].primary_key.columns.keys())
    for rule in rules:
        shown = ", ".join(f't."{column}"' for column in (*keys, rule.column))
        query = f"SELECT {shown}, {rule.expected} FROM {rows} t {beside} WHERE {rule.wrong}"
        row = connection.execute(sa.text(f"{query} LIMIT 1"), given).first()
        if row is not None:
            count = f"SELECT count(*) FROM {table} t {beside} WHERE {rule.wrong}"
            rows_wrong = connection.execute(sa.text(count)).scalar_one()
            yield _told(rule, dict(zip(keys, row, strict=False)), row[-2], row[-1], rows_wrong)


def _told(rule: Rule, row: Mapping[str, Any], value: Any, expected: Any, rows: int) -> Stray:
    belongs = rule.belongs if expected is None else f"{expected}, {rule.belongs},"
    return Stray(rule.table, row, rule.column, str(value), belongs, rows, advice=CONTRADICTS)


def _times(engine: str) -> Iterator[Rule]:
    """Times that a row has twice: as a moment, and as a day or in seconds since 1970."""
    day, seconds = _MOMENTS[engine]
    yield Rule(
        *("run", "day", "the UTC day of started_at", f"t.day <> {day.format('t.started_at')}"),
        expected=day.format("t.started_at"),
    )
    for table, name in _TWICE:
        moment = seconds.format(f"t.{name}")
        column = f"{name.removesuffix('_at')}_unix_seconds"
        yield Rule(
            *(table, column, f"{name} in seconds since 1970"),
            f"abs(t.{column} - {moment}) > {_ROUNDED_SECONDS}",
        )


_ROUNDED_SECONDS = 0.01
"""SQLite keeps days: a moment in seconds is off by some microseconds."""
_MOMENTS = {
    "sqlite": ("substr({}, 1, 10)", "((julianday({}) - 2440587.5) * 86400)"),
    "postgresql": ("CAST({} AT TIME ZONE 'UTC' AS date)", "CAST(extract(epoch FROM {}) AS float8)"),
}
"""Engine -> a moment as its UTC day, and in seconds since 1970."""
_TWICE = (("run", "started_at"), ("sweep", "started_at"), ("series", "latest_at"))
_RUN = (
    "LEFT JOIN cell c ON c.id = t.cell_id LEFT JOIN series s ON s.id = t.series_id"
    " LEFT JOIN topology o ON o.id = t.topology_id"
)
_MEMBER = (
    "LEFT JOIN run r ON r.id = t.run_id LEFT JOIN series s ON s.id = r.series_id"
    " LEFT JOIN host h ON h.id = t.host_id LEFT JOIN host o ON o.id = s.host_id"
    " LEFT JOIN device d ON d.id = t.device_id"
)
_CELL = (
    "LEFT JOIN series s ON s.id = t.series_id LEFT JOIN arm a ON a.id = s.arm_id"
    " LEFT JOIN host h ON h.id = s.host_id"
)
_SWEEP = "LEFT JOIN sweep w ON w.id = t.sweep_id LEFT JOIN host h ON h.id = t.host_id"
_SWEEP_HOST = f"{_SWEEP} LEFT JOIN topology o ON o.id = t.topology_id"
_VERDICT = (
    f"{_SWEEP} LEFT JOIN device d ON d.id = t.device_id"
    " LEFT JOIN verdict o ON o.id = t.superseded_by"
)
_FIT = f"{_SWEEP} LEFT JOIN series s ON s.id = t.series_id"
_OTHER_CLUSTER = "h.cluster_id <> w.cluster_id"
_HOST_OF_SWEEP = "a host of the cluster of its sweep"
_IN_SWEEP = "SELECT 1 FROM run r WHERE r.sweep_id = t.sweep_id"

_N_HOSTS = (
    "(SELECT CASE WHEN count(*) = 0 THEN 1 ELSE count(DISTINCT d.host_id) END"
    " FROM device_set_member m JOIN device d ON d.id = m.device_id"
    " WHERE m.device_set_id = t.device_set_id)"
)

_CHEAP = (
    Rule(
        "run", "sweep_id", "the sweep of its cell", "c.sweep_id <> t.sweep_id", _RUN, "c.sweep_id"
    ),
    Rule(
        *("run", "series_id", "the series of its cell"),
        *("c.series_id <> t.series_id", _RUN, "c.series_id"),
    ),
    Rule("run", "cell_id", "a cell that had so many attempts", "t.attempt > c.attempt", _RUN),
    Rule(
        *("run", "topology_id", "a topology of the host of its series"),
        *("o.host_id <> s.host_id", _RUN),
    ),
    Rule(
        *("cell", "attempt", "the number of its last run, which ended with its status,"),
        "t.attempt > 0 AND NOT EXISTS (SELECT 1 FROM run r WHERE r.cell_id = t.id"
        " AND r.attempt = t.attempt AND r.status = t.status)",
        _CELL,
    ),
    Rule("cell", "arm", "the arm of its series", "a.name <> t.arm", _CELL, "a.name"),
    Rule("cell", "binding", "that of its arm", "a.binding <> t.binding", _CELL, "a.binding"),
    Rule(
        *("cell", "ring", "that of its arm"),
        *("a.id IS NOT NULL AND coalesce(a.ring, '') <> coalesce(t.ring, '')", _CELL, "a.ring"),
    ),
    Rule(
        *("cell", "series_id", "a series of a host of its sweep"),
        # A host that was never discovered has a bare row, and no part in the sweep.
        "h.sku_id IS NOT NULL AND NOT EXISTS (SELECT 1 FROM sweep_host o"
        " WHERE o.sweep_id = t.sweep_id AND o.host_id = h.id)",
        _CELL,
    ),
    Rule("sweep_host", "host_id", _HOST_OF_SWEEP, _OTHER_CLUSTER, _SWEEP_HOST),
    Rule(
        *("sweep_host", "topology_id", "a topology of its host"),
        *("o.host_id <> t.host_id", _SWEEP_HOST),
    ),
    Rule("verdict", "host_id", _HOST_OF_SWEEP, _OTHER_CLUSTER, _VERDICT),
    Rule("verdict", "device_id", "a device of its host", "d.host_id <> t.host_id", _VERDICT),
    Rule(
        *("verdict", "superseded_by", "another verdict on the same host and sweep"),
        *("o.id = t.id OR o.host_id <> t.host_id OR o.sweep_id <> t.sweep_id", _VERDICT),
    ),
    Rule("fit", "host_id", _HOST_OF_SWEEP, _OTHER_CLUSTER, _FIT),
    Rule(
        *("fit", "series_id", "a series of its host that its sweep measured"),
        "s.host_id <> t.host_id OR (s.id IS NOT NULL"
        f" AND EXISTS ({_IN_SWEEP})"  # else they were removed by age
        f" AND NOT EXISTS ({_IN_SWEEP} AND r.series_id = t.series_id))",
        _FIT,
    ),
)
_WHOLE = (
    Rule(
        *("run_member", "host_id", "a host that its series is of"),
        *("(s.n_hosts = 1 AND h.id <> o.id) OR h.cluster_id <> o.cluster_id", _MEMBER),
    ),
    Rule("run_member", "device_id", "a device of its host", "d.host_id <> t.host_id", _MEMBER),
    Rule(
        *("run_member", "device_id", "a device that its series is of"),
        "d.host_id = t.host_id AND s.id IS NOT NULL AND NOT EXISTS (SELECT 1"
        " FROM device_set_member m WHERE m.device_set_id = s.device_set_id AND m.device_id = d.id)",
        _MEMBER,
    ),
    Rule(
        *("run", "id", "a run with its row in run_detail"),
        "NOT EXISTS (SELECT 1 FROM run_detail o WHERE o.run_id = t.id)",
    ),
    Rule(
        *("sample", "seq", "the seq of a reading of its run"),
        "NOT EXISTS (SELECT 1 FROM reading o WHERE o.run_id = t.run_id AND o.seq = t.seq)",
    ),
    *(
        Rule(
            *(table, number, "the last of its run where none is missing"),
            f"t.{number} = o.last",
            f"JOIN (SELECT run_id, max({number}) AS last, count(*) AS n FROM {table}"
            f" GROUP BY run_id HAVING count(*) <> max({number}) + 1) o ON o.run_id = t.run_id",
            "o.n - 1",
        )
        for table, number in (("reading", "seq"), ("slo_window", "window_no"))
    ),
    Rule(
        *("topology", "topology_class_id", "the class of its shape"),
        "o.shape <> coalesce(t.shape, '')",
        "JOIN topology_class o ON o.id = t.topology_class_id",
    ),
    Rule(
        *("device_set", "device_id", "the only device that is its member"),
        "coalesce(o.one, -1) <> coalesce(t.device_id, -1)",
        "LEFT JOIN (SELECT device_set_id, min(device_id) AS one FROM device_set_member"
        " GROUP BY device_set_id HAVING count(*) = 1) o ON o.device_set_id = t.id",
        "o.one",
    ),
    Rule(
        *(
            "series",
            "device_set_id",
            "a set of devices of its host, or of its cluster for several,",
        ),
        "EXISTS (SELECT 1 FROM device_set_member m JOIN device d ON d.id = m.device_id"
        " JOIN host h ON h.id = d.host_id WHERE m.device_set_id = t.device_set_id"
        " AND ((t.n_hosts = 1 AND h.id <> o.id) OR h.cluster_id <> o.cluster_id))",
        "JOIN host o ON o.id = t.host_id",
    ),
    Rule(
        *("series", "n_hosts", "the number of hosts of its devices"),
        # Of an import, devices are not known.
        f"t.source NOT LIKE 'import:%' AND t.n_hosts <> {_N_HOSTS}",
        expected=_N_HOSTS,
    ),
    Rule(
        *("series", "latest_sweep_id", "the sweep of its usable run at latest_at"),
        "t.latest_sweep_id IS NOT NULL AND NOT EXISTS (SELECT 1 FROM run r"
        " WHERE r.series_id = t.id AND r.sweep_id = t.latest_sweep_id"
        " AND r.started_unix_seconds = t.latest_unix_seconds AND r.status IN ('ok', 'partial'))",
    ),
    Rule(
        *("changepoint", "metric_id", "a metric that its series has nights of"),
        # Imports once left nights behind whose results had been removed.
        "EXISTS (SELECT 1 FROM night_rollup o WHERE o.series_id = t.series_id)"
        " AND NOT EXISTS (SELECT 1 FROM night_rollup o"
        " WHERE o.series_id = t.series_id AND o.metric_id = t.metric_id)",
    ),
    *(
        Rule(
            *("annotation", "entity_id", f"the id of a row of {table}"),
            f"t.entity = '{table}' AND NOT EXISTS"
            f" (SELECT 1 FROM {table} o WHERE o.id = t.entity_id)",
        )
        for table in ("host", "device", "cluster", "sku", "series")
    ),
)
RULES = (*_CHEAP, *_WHOLE)
