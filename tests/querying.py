"""One made fleet per engine and session, for the tests that ask questions of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from made_fleet import NOW
from topobench.db.queries import Query, load, run_query
from topobench.db.readonly import Answer
from topobench.db.store import Store

Rows = list[dict[str, Any]]
FIXED = {"now": NOW, "since": "2026-01-01", "at": NOW}
"""Parameters that would otherwise follow the clock."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """The fleet of made_fleet in a store."""

    store: Store
    url: str
    sweeps: dict[str, str]

    def answer(self, name: str, **params: str) -> Answer:
        """The answer of a named query."""
        return run_query(self.store, name, {**given(load(name)), **params})

    def ask(self, name: str, **params: str) -> Rows:
        """The same as one mapping a row."""
        found = self.answer(name, **params)
        return [dict(zip(found.columns, row, strict=True)) for row in found.rows]


def given(query: Query) -> dict[str, str]:
    """What a query needs so that its answer does not follow the clock."""
    return {p.name: FIXED[p.name] for p in query.parameters if p.name in FIXED}


def pick(rows: Rows, *columns: str) -> list[tuple[Any, ...]]:
    """Some columns of each row."""
    return [tuple(r[c] for c in columns) for r in rows]
