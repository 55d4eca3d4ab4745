"""
Brings in what another store concluded and what people added there: once each.

These rows have no UUID. They are known by what they speak of; a second one that says
something else is told, never stored beside the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection, Table

from topobench.db import schema
from topobench.db.keys import insert_id
from topobench.db.merge_places import Mapped

_OF_SWEEP = {
    "verdict": ("host_id", "device_id", "sweep_id", "check_name", "policy_version", "as_of"),
    "fit": ("sweep_id", "host_id", "kind", "subject", "x_metric"),
}
_OF_PLACES = {
    "price": ("sku_id", "cluster_id", "kind", "currency", "valid_from"),
    "baseline": (
        *("topology_class_id", "case_id", "metric_id", "environment_group", "valid_from"),
        *("method", "version"),
    ),
    "change_event": ("host_id", "at", "kind", "key", "source"),
    "changepoint": ("series_id", "metric_id", "at_lo", "at_hi", "method"),
    "annotation": ("entity", "entity_id", "author", "created_at"),
}
"""Table -> the columns that a row of it is known by."""

_ANNOTATED = ("host", "device", "cluster", "sku", "series")
"""What a note may hang on so that it can follow."""


def of_sweep(
    source: Connection, target: Connection, mapped: Mapped, sweep_id: int, here: int
) -> int:
    """The verdicts and fits of a sweep; returns how many are new."""
    total = 0
    for name, key in _OF_SWEEP.items():
        table = schema.metadata.tables[name]
        query = sa.select(table).where(table.c.sweep_id == sweep_id).order_by(table.c.id)
        made = [_of_sweep(mapped, table, row, here) for row in source.execute(query)]
        # All are looked for first: a device may have several verdicts of one check.
        for row in [m for m in made if _find(target, table, key, m) is None]:
            insert_id(target, table, row)
            total += 1
    return total


def _of_sweep(mapped: Mapped, table: Table, row: Any, here: int) -> dict[str, Any]:
    given: dict[str, Any] = {"sweep_id": here}
    if "superseded_by" in table.c:  # what supersedes it may be of a sweep that comes later
        given["superseded_by"] = None
    return mapped.translated(table, row, **given)


def of_places(source: Connection, target: Connection, mapped: Mapped, problems: list[str]) -> int:
    """Prices, baselines, changes and notes; returns how many are new."""
    total = 0
    for name, key in _OF_PLACES.items():
        table = schema.metadata.tables[name]
        for row in source.execute(sa.select(table).order_by(table.c.id)).all():
            made = _translated(mapped, table, row)
            if made is None:
                problems.append(f"note {row.id} on {row.entity} {row.entity_id} was left out")
                continue
            found = _find(target, table, key, made)
            if found is None and name == "price":
                found = _overlapping(target, made)
            if found is None:
                insert_id(target, table, made)
                total += 1
            elif name == "price" and _terms(found._mapping) != _terms(made):
                problems.append(_price_problem(mapped, row, found))
    return total


def supersede(source: Connection, target: Connection, mapped: Mapped) -> None:
    """Point each verdict at the one that superseded it, once all are there."""
    table = schema.verdict
    rows = source.execute(sa.select(table).where(table.c.superseded_by.is_not(None))).all()
    for row in rows:
        here, later = (_verdict(source, target, mapped, i) for i in (row.id, row.superseded_by))
        if here is not None and later is not None and here.id != later.id:
            target.execute(table.update().where(table.c.id == here.id), {"superseded_by": later.id})


def _verdict(source: Connection, target: Connection, mapped: Mapped, source_id: int) -> Any:
    """The verdict here that a verdict of the other store became."""
    row = mapped.row("verdict", source_id)
    uuid = mapped.row("sweep", row.sweep_id).uuid
    s = schema.sweep
    sweep_id = target.execute(sa.select(s.c.id).where(s.c.uuid == uuid)).scalar()
    if sweep_id is None:
        return None
    made = _of_sweep(mapped, schema.verdict, row, sweep_id)
    key = _OF_SWEEP["verdict"]
    same = _find(target, schema.verdict, (*key, "reason", "inputs_digest"), made)
    return same or _find(target, schema.verdict, key, made)


def _translated(mapped: Mapped, table: Table, row: Any) -> dict[str, Any] | None:
    if table.name != "annotation":
        return mapped.translated(table, row)
    if row.entity not in _ANNOTATED:
        return None
    return mapped.translated(table, row, entity_id=mapped.id(row.entity, row.entity_id))


def _find(target: Connection, table: Table, key: Sequence[str], made: dict[str, Any]) -> Any:
    where = [table.c[n].is_(None) if made[n] is None else table.c[n] == made[n] for n in key]
    return target.execute(sa.select(table).where(*where)).first()


def _overlapping(target: Connection, made: dict[str, Any]) -> Any:
    """A price here that is valid at some moment of another one's time."""
    p = schema.price
    where = [p.c[n] == made[n] for n in ("sku_id", "kind", "currency")]
    cluster = made["cluster_id"]
    where.append(p.c.cluster_id.is_(None) if cluster is None else p.c.cluster_id == cluster)
    where.append(sa.or_(p.c.valid_to.is_(None), p.c.valid_to > made["valid_from"]))
    if made["valid_to"] is not None:
        where.append(p.c.valid_from < made["valid_to"])
    return target.execute(sa.select(p).where(*where)).first()


def _terms(row: Any) -> tuple[Any, ...]:
    return row["amount"], row["per"], row["valid_from"], row["valid_to"], row["hour_amount"]


def _price_problem(mapped: Mapped, row: Any, found: Any) -> str:
    sku = mapped.row("sku", row.sku_id).name
    return (
        f"{row.kind} price {row.amount:g} {row.currency} of {sku!r} from {row.valid_from} was left "
        f"out: {found.amount:g} from {found.valid_from} is stored here"
    )
