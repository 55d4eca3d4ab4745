"""
Named queries: one file of SQL each in topobench/db/queries, with a header.

The same text runs on SQLite, PostgreSQL and DuckDB. The header says what a query answers,
its parameters, and in lines without a word before a colon how to read its columns::

    -- title: Latest readings
    -- answers: What was measured last, per host, devices, case and arm?
    -- param host text = %: hosts whose name matches this LIKE pattern
    -- lowest and highest are those of single processes.
"""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from topobench import units
from topobench.db import loose, samples, schema, strays
from topobench.db.columns import parse_time, time_text
from topobench.db.engine import reading
from topobench.db.readonly import Answer, plain
from topobench.db.store import Store
from topobench.errors import NotFound, UsageError

FOLDER = Path(__file__).with_name("queries")
KINDS = ("text", "integer", "bytes", "number", "time", "moment", "sweep", "run")


@dataclass(frozen=True, slots=True)
class Parameter:
    """
    A parameter of a named query.

    Args:
        kind: text; integer; bytes ("64K"); number; time (ISO 8601, or an age such as
            "30d", given to SQL as a time); moment (the same, in seconds since 1970);
            sweep, run (id, unique beginning or ``latest``, given to SQL as the UUID).
        default: As typed.
    """

    name: str
    kind: str
    default: str
    help: str


@dataclass(frozen=True, slots=True)
class Query:
    """
    A named query.

    Args:
        notes: How to read its columns; may be empty.
    """

    name: str
    title: str
    answers: str
    notes: str
    parameters: tuple[Parameter, ...]
    sql: str


def list_queries() -> list[Query]:
    """Every named query, by name."""
    return [load(p.stem) for p in sorted(FOLDER.glob("*.sql"))]


@functools.cache
def load(name: str) -> Query:
    """
    A named query.

    Raises:
        UsageError: There is none of that name; the message names the nearest.
    """
    names = sorted(p.stem for p in FOLDER.glob("*.sql"))
    if name not in names:
        raise UsageError(
            f"no query named {name!r}{_nearest(name, names)}; there are {', '.join(names)}"
        )
    return parse(name, (FOLDER / f"{name}.sql").read_text(encoding="utf-8"))


def parse(name: str, text: str) -> Query:
    """
    Read the text of a query.

    Raises:
        ValueError: Its header is not complete.
    """
    head = dict(re.findall(r"^-- (title|answers): (.+)$", text, re.MULTILINE))
    found = re.findall(r"^-- param (\w+) (\w+) = (.*?): (.+)$", text, re.MULTILINE)
    parameters = tuple(Parameter(*groups) for groups in found)
    wrong = [p.kind for p in parameters if p.kind not in KINDS]
    if set(head) != {"title", "answers"} or wrong:
        raise ValueError(f"query {name}: its header needs title and answers; kinds are {KINDS}")
    notes = " ".join(re.findall(r"^-- (?!title:|answers:|param )(.+)$", text, re.MULTILINE))
    return Query(name, head["title"], head["answers"], notes, parameters, text)


def run_query(
    store: Store, name: str, params: Mapping[str, str] | None = None, since: str | None = None
) -> Answer:
    """
    Run a named query.

    Args:
        params: Values as typed, by name; those absent have their defaults.
        since: Short for the parameter ``since``: an age ("30d") or a time.

    Raises:
        UsageError: No such query or parameter, or a value that does not parse.
        StoreError: A text stands where a number belongs, or a key leads nowhere; the message says
            where.
    """
    query = load(name)
    given = dict(params or {})
    if since is not None:
        given["since"] = since
    values = bind(store, query, given)
    with reading(store.engine) as connection:
        result = connection.execute(sa.text(_without_comments(query.sql)), values)
        columns: Sequence[str] = tuple(result.keys())
        rows: samples.Rows = result.all()
        strays.check_answer(connection, columns, rows)
        loose.check_keys(connection)
    if samples.are_packed(columns):
        columns, rows = samples.spread(columns, rows)
    return Answer(tuple(columns), tuple(tuple(map(plain, r)) for r in rows))


_NAMED = {
    "cluster": schema.cluster.c.name,
    "host": schema.host.c.name,
    "metric": schema.metric.c.name,
    "probe": schema.probe_case.c.probe,
}
"""Where the names lie that parameters so called are held against."""


def why_empty(store: Store, given: Mapping[str, str]) -> list[str]:
    """What of a query's parameters nothing in the store is called, with the nearest that is."""
    with reading(store.engine) as connection:
        if connection.execute(sa.select(schema.sweep.c.id).limit(1)).first() is None:
            return ["no sweep is stored yet; `topobench probe` makes one"]
        found = []
        for name, column in _NAMED.items():
            text = given.get(name, "")
            if not text.strip("%"):  # whatever it is called
                continue
            if connection.execute(sa.select(column).where(column.like(text)).limit(1)).first():
                continue
            stored = connection.execute(sa.select(column).distinct()).scalars().all()
            found.append(f"no {name} of this store is called {text!r}{_nearest(text, [*stored])}")
        return found


def bind(store: Store, query: Query, given: Mapping[str, str]) -> dict[str, Any]:
    """The values SQL gets, by name; see :func:`run_query`."""
    names = [p.name for p in query.parameters]
    for name in given:
        if name not in names:
            known = f"it has {', '.join(names)}" if names else "it has none"
            raise UsageError(
                f"query {query.name} has no parameter {name!r}{_nearest(name, names)}; {known}"
            )
    now = datetime.now(UTC)
    return {p.name: _value(store, p, given.get(p.name, p.default), now) for p in query.parameters}


def _value(store: Store, parameter: Parameter, text: str, now: datetime) -> Any:
    try:
        match parameter.kind:
            case "integer":
                return units.parse_count(text)
            case "bytes":
                return units.parse_bytes(text)
            case "number":
                return float(text)
            case "time":
                return time_text(_moment(text, now))
            case "moment":
                return _moment(text, now).timestamp()
            case "sweep":
                return store.resolve_sweep(text)
            case "run":
                return store.resolve_run(text)
            case _:
                return text
    except NotFound as error:
        raise UsageError(f"parameter {parameter.name}: {error}") from error
    except (ValueError, OverflowError) as error:
        raise UsageError(f"parameter {parameter.name}={text!r}: {error}") from error


def _moment(text: str, now: datetime) -> datetime:
    """A time, or that long ago."""
    if text == "now":
        return now
    if re.match(r"\d{4}-", text):
        return parse_time(text if "T" in text or " " in text else f"{text}T00:00:00Z")
    try:
        seconds = units.parse_duration(text)
    except ValueError as error:
        raise ValueError(f"{error}, or a time such as 2026-11-01") from None
    try:
        return now - timedelta(seconds=seconds)
    except OverflowError:
        raise ValueError(f"{text} ago is before the calendar begins") from None


def _without_comments(sql: str) -> str:
    """The statement alone; a colon in a comment would look like a parameter."""
    return "\n".join(line for line in sql.splitlines() if not line.startswith("--"))


def _nearest(name: str, names: list[str]) -> str:
    near = difflib.get_close_matches(name, names, n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""
