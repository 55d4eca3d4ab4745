"""
The knees of prefill as rows of ``fit``: looked for anew when a sweep ends or comes in.

A curve with enough lengths has a row also where it has no knee, with the reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import sqlalchemy as sa
from sqlalchemy import Connection

from topobench.db import schema
from topobench.db.document import Document, cells_of
from topobench.db.records import Row
from topobench.reading import MEASURED

if TYPE_CHECKING:
    from topobench.prefill_curves import Curve, Predicted

KIND = "knee"
_AXIS = "seq_len"
_PROBE = "prefill"


def refresh(connection: Connection, sweep_ids: Iterable[int]) -> int:
    """Look for the knees of these sweeps anew; returns how many curves were searched."""
    table = schema.fit
    total = 0
    for sweep_id in sweep_ids:
        own = (table.c.sweep_id == sweep_id) & (table.c.kind == KIND)
        connection.execute(table.delete().where(own))
        for host in connection.execute(_hosts(sweep_id)).all():
            cells = cells_of(connection, sweep_id, host.key, run_only=True)
            rows = [{"sweep_id": sweep_id, "host_id": host.id, **row} for row in _rows(cells)]
            if rows:
                connection.execute(table.insert(), rows)
            total += len(rows)
    return total


def _hosts(sweep_id: int) -> sa.Select[tuple[int, str]]:
    """The hosts on which prompts were measured."""
    r, s, p, h = schema.run, schema.series, schema.probe_case, schema.host
    return (
        sa.select(h.c.id, h.c.key)
        .select_from(r.join(s).join(p).join(h, h.c.id == s.c.host_id))
        .where(
            r.c.sweep_id == sweep_id,
            r.c.status.in_([str(status) for status in MEASURED]),
            p.c.probe == _PROBE,
        )
        .distinct()
        .order_by(h.c.id)
    )


def _rows(cells: list[Document]) -> Iterator[Row]:
    from topobench import prefill_curves  # most stores never hold a prompt

    roofs = prefill_curves.roofs_of(cells)
    for curve in prefill_curves.curves(cells):
        if curve.is_searched:
            yield {**_found(curve), **_expected(prefill_curves.predicted(curve, roofs))}


def _found(curve: Curve) -> Row:
    knee = curve.knee
    size = knee.size
    return {
        "kind": KIND,
        "subject": curve.subject,
        "x_metric": _AXIS,
        "params": dict(curve.params),
        "knee": size and size.value,
        "knee_lo": size and size.lo,
        "knee_hi": size and size.hi,
        "reason": knee.reason,
        "ci_level": str(knee.level),
        "n": len(curve.rates),
    }


def _expected(expected: Predicted) -> Row:
    return {
        "launch_until": expected.launch,
        "memory_until": expected.ridge,
        "attention_from": expected.attention,
    }
