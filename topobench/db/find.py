"""Finds sweeps and runs by what people type: an id, its beginning, or ``latest``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from topobench.db import clocks, schema
from topobench.db.keys import chunks
from topobench.errors import NotFound
from topobench.reading import MEASURED

LATEST = "latest"
_SHOWN = 8
"""Characters of an id that are enough for people."""
_BY_DATE = (schema.sweep.c.started_at.desc(), schema.sweep.c.id.desc())


def sweep_query() -> sa.Select[Any]:
    """Sweeps with the name of their ``cluster``, by date, newest first."""
    s, c = schema.sweep, schema.cluster
    return sa.select(s, c.c.name.label("cluster")).select_from(s.join(c)).order_by(*_BY_DATE)


def newest_first() -> tuple[sa.ColumnElement[Any], ...]:
    """The order in which the first sweep is the latest: those whose date lies ahead come last."""
    return (clocks.is_ahead(schema.sweep.c.started_unix_seconds), *_BY_DATE)


def measured_query() -> sa.Select[Any]:
    """As :func:`sweep_query`, without imported results; synthetic ones after all others."""
    s = schema.sweep
    ordered = sweep_query().order_by(None).order_by(s.c.synthetic, *newest_first())
    return ordered.where(s.c.source.not_like("import:%"))


def find_sweep(connection: Connection, text: str, until: str | None = None) -> Any:
    """
    The one sweep a text means; ``latest`` is never an import of foreign results.

    Nor is it synthetic, unless nothing else was measured: a fleet made by ``demo`` that came into
    a store beside real sweeps is never judged unasked. Nor was it told by a clock that ran ahead.

    Args:
        until: Time as stored: sweeps that began later do not count.

    Raises:
        NotFound: None or several; the message names some.
    """
    query = measured_query() if text == LATEST else sweep_query()
    if until is not None:
        query = query.where(schema.sweep.c.started_at <= until)
    if text == LATEST:
        newest = connection.execute(query.limit(1)).first()
        if newest is None and until is not None:
            raise NotFound(f"no sweep had begun by {until}")
        if newest is None and connection.execute(sweep_query().limit(1)).first() is not None:
            raise NotFound("only other tools' results are stored here; name one by its id")
        if newest is None:
            raise NotFound("no sweep is stored yet; `topobench probe` makes one")
        return newest
    column = schema.sweep.c.uuid
    begins = column.startswith(text.lower(), autoescape=True)
    found = connection.execute(query.where(begins).limit(4)).all() if text else []
    if len(found) == 1:
        return found[0]
    if found:
        named = _told_apart([r.uuid for r in found])
        raise NotFound(f"several sweeps begin with {text!r}: {named}; give more of the id")
    recent = [r.uuid for r in connection.execute(query.limit(3))]
    known = f"the newest are {_told_apart(recent)}" if recent else "none is stored yet"
    raise NotFound(f"no sweep begins with {text!r}; {known}")


def find_run(connection: Connection, text: str) -> str:
    """
    The UUID of the one run a text means; ``latest`` is the usable one stored last.

    Raises:
        NotFound: None or several; the message names some.
    """
    r = schema.run
    recent = sa.select(r.c.uuid).order_by(r.c.id.desc())
    if text == LATEST:
        usable = recent.where(r.c.status.in_([str(s) for s in MEASURED]))
        newest = connection.execute(usable.limit(1)).scalar()
        if newest is None:
            raise NotFound("no run is stored yet that measured; `topobench probe` makes some")
        return str(newest)
    begins = r.c.uuid.startswith(text.lower(), autoescape=True)
    found = connection.execute(recent.where(begins).limit(4)).scalars().all() if text else []
    if len(found) == 1:
        return str(found[0])
    if found:
        named = _told_apart(found)
        raise NotFound(f"several runs begin with {text!r}: {named}; give more of the id")
    some = connection.execute(recent.limit(3)).scalars().all()
    known = f"the last stored are {_told_apart(some)}" if some else "none is stored yet"
    raise NotFound(f"no run begins with {text!r}; {known}")


def _told_apart(ids: Sequence[str]) -> str:
    """Ids as far as they differ, and some characters more; one alone by those."""
    pairs = enumerate(zip(min(ids, default=""), max(ids, default=""), strict=False))
    same = next((n for n, (a, b) in pairs if a != b), 0)
    return ", ".join(i[: same + _SHOWN] for i in ids)


def strangers(connection: Connection, cluster: str, keys: Sequence[str]) -> dict[str, str]:
    """Key of each host that other clusters measured and this one never did -> one of those."""
    h, c = schema.host, schema.cluster
    found: dict[str, str] = {}
    own: set[str] = set()
    for some in chunks(keys):
        query = sa.select(h.c.key, c.c.name).select_from(h.join(c)).where(h.c.key.in_(some))
        for row in connection.execute(query.order_by(h.c.last_seen_at)):
            if row.name == cluster:
                own.add(row.key)
            else:
                found[row.key] = row.name
    return {key: name for key, name in found.items() if key not in own}
