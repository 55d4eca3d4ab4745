"""What ``topobench query`` does: named queries, what they ask, and the user's own SQL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from topobench.commands import Outcome
from topobench.errors import UsageError

if TYPE_CHECKING:
    from topobench.db.readonly import Answer


def query_list() -> Outcome:
    """The named queries."""
    from topobench.db import queries
    from topobench.report.query_text import render_queries

    columns = ("query", "title", "answers", "parameters")
    rows = tuple(
        (q.name, q.title, q.answers, " ".join(f"{p.name}={p.default}" for p in q.parameters))
        for q in queries.list_queries()
    )
    data: dict[str, Any] = {"name": None, "params": {}, "columns": columns, "rows": rows}
    return Outcome(data, lambda: render_queries(rows))


def query_explained(name: str) -> Outcome:
    """What a named query answers, how to read it, and its parameters."""
    from topobench.db import queries
    from topobench.report.query_text import render_explained

    found = queries.load(name)
    data = {
        "name": name,
        "params": {},
        "title": found.title,
        "answers": found.answers,
        "notes": found.notes,
        "columns": ("parameter", "kind", "default", "meaning"),
        "rows": tuple((p.name, p.kind, p.default, p.help) for p in found.parameters),
    }
    return Outcome(data, lambda: render_explained(data))


def query(store_url: str, name: str, settings: Sequence[str], since: str | None = None) -> Outcome:
    """
    The answer of a named query.

    Args:
        settings: ``key=value`` each.
        since: Only what is this young: an age ("30d") or a time.
    """
    from topobench.db import queries
    from topobench.db.store import Store

    queries.load(name)  # a wrong name is told before a wrong store
    params = _settings(settings)
    with Store.open(store_url, create=False, read_only=True) as store:
        answer = queries.run_query(store, name, params, since)
        warnings = store.lost_sweeps()
        if not answer.rows:
            warnings += queries.why_empty(store, params)
    found = _answer(name, params if since is None else {**params, "since": since}, answer)
    return replace(found, warnings=warnings)


def query_sql(store_url: str, text: str) -> Outcome:
    """The answer of the user's own SELECT."""
    from topobench.db.readonly import run_sql

    return _answer(None, {}, run_sql(store_url, text))


def _settings(texts: Sequence[str]) -> dict[str, str]:
    """Values by name; a name given twice is an error, since one of the two would be lost."""
    found: dict[str, str] = {}
    for name, value in map(_setting, texts):
        if name in found:
            raise UsageError(f"--param {name} is given twice: {found[name]} and {value}")
        found[name] = value
    return found


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise UsageError(f"--param {text}: expected KEY=VALUE")
    return name, value


def _answer(name: str | None, params: Mapping[str, str], answer: Answer) -> Outcome:
    from topobench.report.tables_text import render_query

    data = {"name": name, "params": params, "columns": answer.columns, "rows": answer.rows}
    empty = name is not None and not answer.rows
    hint = f"topobench query {name} --explain says what it asks for" if empty else ""
    return Outcome(data, lambda: render_query(answer.columns, answer.rows, hint=hint))
