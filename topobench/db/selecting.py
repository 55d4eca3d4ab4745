"""Finds what the words of a selector mean in a store: ids of sweeps, hosts, clusters, SKUs."""

from __future__ import annotations

import datetime
import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from topobench.compare_select import KEYS, Days, Selector, meant
from topobench.db import schema
from topobench.db.columns import parse_time, time_text
from topobench.db.find import LATEST, find_sweep, measured_query
from topobench.errors import NotFound, UsageError

_MOST_SWEEPS = 1000
_SWEEP_PREFIX = re.compile(r"[0-9a-f][0-9a-f-]{3,35}")


@dataclass(frozen=True, slots=True)
class Selection:
    """
    A selector whose words were found; None where a key does not restrict.

    Args:
        meaning: The selector with every word spelled out, ``sweep:<uuid>`` and the like.
        drivers: Versions that begin with what was asked for.
        of_days: Sweeps that began on these days; None if they are too many to name each.
    """

    selector: Selector
    meaning: str
    sweeps: tuple[int, ...] | None = None
    hosts: tuple[int, ...] | None = None
    clusters: tuple[int, ...] | None = None
    skus: tuple[int, ...] | None = None
    drivers: tuple[str, ...] | None = None
    days: Days | None = None
    of_days: tuple[int, ...] | None = None


def resolve(connection: Connection, selector: Selector, as_of: str | None = None) -> Selection:
    """
    Find what a selector means.

    Args:
        as_of: ``latest`` is the newest sweep that began by then.

    Raises:
        UsageError: A word that names nothing, or a bare one that names several things.
    """
    named = _with_bare(connection, selector)
    ids: dict[str, tuple[Any, ...]] = {}
    meanings: list[str] = []
    for key in KEYS:
        for word in named.get(key):
            found, meaning = _FINDERS[key](connection, word, as_of)
            ids[key] = (*ids.get(key, ()), *found)
            meanings.append(meaning)
    if named.days is not None:
        meanings.append(f"date:{named.days}")
    return Selection(
        selector=named,
        meaning=",".join(meanings),
        sweeps=ids.get("sweep"),
        hosts=ids.get("host"),
        clusters=ids.get("cluster"),
        skus=ids.get("sku"),
        drivers=ids.get("driver"),
        days=named.days,
        of_days=_of_days(connection, named.days),
    )


def conditions(selection: Selection) -> list[sa.ColumnElement[bool]]:
    """What a query over ``run``, ``sweep``, ``host`` and ``environment`` must demand."""
    r, h, e = schema.run, schema.host, schema.environment
    pairs: list[tuple[sa.Column[Any], tuple[Any, ...] | None]] = [
        (r.c.sweep_id, selection.sweeps),
        (h.c.id, selection.hosts),
        (h.c.cluster_id, selection.clusters),
        (h.c.sku_id, selection.skus),
        (e.c.driver, selection.drivers),
    ]
    found: list[sa.ColumnElement[bool]] = []
    found += [column.in_(ids) for column, ids in pairs if ids is not None]
    if selection.days is not None:
        # Ids stand in the indices of runs: a host's other nights are not read.
        of_days = selection.of_days
        found += _begun(selection.days) if of_days is None else [r.c.sweep_id.in_(of_days)]
    return found


def _begun(days: Days) -> list[sa.ColumnElement[bool]]:
    """What sweeps of these days have."""
    at = schema.sweep.c.started_at
    first = [at >= f"{days.first}T00:00:00.000000Z"] if days.first else []
    return [*first, *([at < _day_after(days.last)] if days.last else [])]


def _of_days(connection: Connection, days: Days | None) -> tuple[int, ...] | None:
    if days is None:
        return None
    query = sa.select(schema.sweep.c.id).where(*_begun(days)).limit(_MOST_SWEEPS + 1)
    found = tuple(connection.execute(query).scalars())
    return found if len(found) <= _MOST_SWEEPS else None


def moment(text: str) -> str:
    """
    A time as typed, as stored; a day alone means its end.

    Raises:
        UsageError: It is no time.
    """
    try:
        if re.fullmatch(r"\d{4}-\d{2}-\d{2}", text):
            return _day_after(text)
        return time_text(parse_time(text))
    except (ValueError, OverflowError) as error:
        what = "is no time; write 2026-11-07 or 2026-11-07T06:00:00Z"
        raise UsageError(f"--as-of {text}: {what}") from error


def _day_after(day: str) -> str:
    if day == datetime.date.max.isoformat():
        return f"{day}T23:59:59.999999Z"
    following = datetime.date.fromisoformat(day) + datetime.timedelta(days=1)
    return f"{following.isoformat()}T00:00:00.000000Z"


def _with_bare(connection: Connection, selector: Selector) -> Selector:
    """The selector with its bare word under the one key that it fits."""
    if selector.bare is None:
        return selector
    word = selector.bare
    key, _, value = meant(word, _meanings(connection, word), _known(connection)).partition(":")
    words = {**selector.words, key: (*selector.get(key), value)}
    return replace(selector, words=words, bare=None)


def _meanings(connection: Connection, word: str) -> list[str]:
    if word == LATEST:
        return [f"sweep:{LATEST}"]
    found: list[str] = []
    if _SWEEP_PREFIX.fullmatch(word.lower()):
        begins = schema.sweep.c.uuid.startswith(word.lower(), autoescape=True)
        uuids = connection.execute(sa.select(schema.sweep.c.uuid).where(begins).limit(4)).scalars()
        found += [f"sweep:{uuid}" for uuid in uuids]
    hosts = {row.name for row in _hosts(connection, word)}
    found += [f"host:{word}"] if hosts else []
    for key, table in (("cluster", schema.cluster), ("sku", schema.sku)):
        names = connection.execute(sa.select(table.c.name)).scalars()
        found += [f"{key}:{name}" for name in names if name.lower() == word.lower()]
    drivers = _drivers(connection)
    found += [f"driver:{word}"] if any(_begins(d, word) for d in drivers) else []
    return found


def _known(connection: Connection) -> list[str]:
    """Names that people may have meant."""
    tables = (schema.host, schema.cluster, schema.sku)
    names = [n for t in tables for n in connection.execute(sa.select(t.c.name)).scalars()]
    return [*names, *_drivers(connection)]


def _sweep(connection: Connection, word: str, as_of: str | None) -> tuple[tuple[int, ...], str]:
    try:
        if word == LATEST and as_of is not None:
            query = measured_query().where(schema.sweep.c.started_at <= as_of).limit(1)
            row = connection.execute(query).first()
            if row is None:
                raise NotFound(f"no sweep began by {as_of}")
        else:
            row = find_sweep(connection, word)
    except NotFound as error:
        raise UsageError(f"sweep:{word}: {error}") from error
    return (row.id,), f"sweep:{row.uuid}"


def _host(connection: Connection, word: str, as_of: str | None) -> tuple[tuple[int, ...], str]:
    rows = _hosts(connection, word)
    if not rows:
        names = list(connection.execute(sa.select(schema.host.c.name)).scalars())
        raise UsageError(_nothing("host", word, names))
    clusters = {row.cluster for row in rows}
    if len(rows) > 1 and len(clusters) > 1:
        raise UsageError(
            f"host:{word}: there is one in each of {', '.join(sorted(clusters))}; "
            f"add the cluster, such as host:{word},cluster:{min(clusters)}"
        )
    return tuple(row.id for row in rows), f"host:{rows[0].name}"


def _hosts(connection: Connection, word: str) -> Sequence[Any]:
    """Hosts by name, key or address."""
    h, c = schema.host, schema.cluster
    same = [sa.func.lower(column) == word.lower() for column in (h.c.name, h.c.key, h.c.address)]
    query = sa.select(h.c.id, h.c.name, c.c.name.label("cluster")).select_from(h.join(c))
    return connection.execute(query.where(sa.or_(*same)).order_by(h.c.id)).all()


def _cluster(connection: Connection, word: str, as_of: str | None) -> tuple[tuple[int, ...], str]:
    return _named(connection, schema.cluster, "cluster", word)


def _sku(connection: Connection, word: str, as_of: str | None) -> tuple[tuple[int, ...], str]:
    return _named(connection, schema.sku, "sku", word)


def _named(
    connection: Connection, table: sa.Table, key: str, word: str
) -> tuple[tuple[int, ...], str]:
    rows = connection.execute(sa.select(table.c.id, table.c.name)).all()
    found = [r for r in rows if r.name.lower() == word.lower()]
    if not found:
        raise UsageError(_nothing(key, word, [r.name for r in rows]))
    return tuple(r.id for r in found), f"{key}:{found[0].name}"


def _driver(connection: Connection, word: str, as_of: str | None) -> tuple[tuple[str, ...], str]:
    known = _drivers(connection)
    found = tuple(d for d in known if _begins(d, word))
    if not found:
        raise UsageError(_nothing("driver", word, known))
    return found, f"driver:{'|'.join(found)}"


def _drivers(connection: Connection) -> list[str]:
    column = schema.environment.c.driver
    query = sa.select(column).where(column.is_not(None)).distinct().order_by(column)
    return list(connection.execute(query).scalars())


def _begins(version: str, word: str) -> bool:
    """Whether a version is another, or one of its branch: 580.95 has 580.95.05."""
    return version == word or version.startswith(f"{word}.")


def _nothing(key: str, word: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(word, known, n=1)
    some = ", ".join(sorted(set(known))[:6])
    hint = f"; did you mean {close[0]!r}?" if close else f"; there are {some}" if some else ""
    return f"{key}:{word}: no {key} of this store is called so{hint}"


_FINDERS = {
    "sweep": _sweep,
    "host": _host,
    "cluster": _cluster,
    "sku": _sku,
    "driver": _driver,
}
