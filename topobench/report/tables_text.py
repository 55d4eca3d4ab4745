"""Answers of queries, lists of sweeps, and the doctor's findings."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.segment import Segment
from rich.text import Text

from topobench.report import figures
from topobench.report.safe import clean, command
from topobench.report.sheet import Column, Prose, Sheet, csv_field, facts
from topobench.report.words import counts_text, minute, shown_params, took
from topobench.units import count, format_span

Document = Mapping[str, Any]

_LEVELS = {"error": "red", "warn": "yellow", "unknown": "yellow", "ok": ""}
"""Levels of findings, worst first, and their colour."""


def render_query(
    columns: Sequence[str], rows: Sequence[Sequence[Any]], format: str = "table", hint: str = ""
) -> RenderableType:
    """
    The answer of a query.

    Args:
        format: ``table`` (human units where a column's name ends in one, or where the row
            names its metric), or ``csv`` (values as stored).
        hint: Stands beside the number of rows.
    """
    if format == "csv":
        return Raw(query_csv(columns, rows))
    told = "; ".join(filter(None, (count(len(rows), "row"), hint)))
    return Group(query_sheet(columns, rows), Text(told, style="dim"))


def query_sheet(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Sheet:
    """The answer of a query in human units."""
    parts = [(name, [row[i] for row in rows]) for i, name in enumerate(columns)]  # names may repeat
    told = "unit" in columns and list(columns).count("metric") == 1
    metrics = dict(parts)["metric"] if told else ()
    found = [
        _of_metrics(name, values, metrics)
        if metrics and name.endswith(_OF_METRIC) and not _whose(i, columns).endswith("_ratio")
        else _query_column(name, values, _whose(i, columns))
        for i, (name, values) in enumerate(parts)
        if name != "unit" or not metrics
    ]
    return Sheet(
        [column for column, _ in found],
        [list(row) for row in zip(*(texts for _, texts in found), strict=True)],
        indent=0,
    )


def query_csv(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """The answer as CSV: a header, then values as stored; unknown is an empty field."""
    lines = [columns, *rows]
    return "".join(",".join(map(csv_field, line)) + "\n" for line in lines)


@dataclass(frozen=True, slots=True)
class Raw:
    """Text that goes out as it is, never wrapped."""

    text: str

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """One segment."""
        yield Segment(self.text)


def render_sweeps(sweeps: Sequence[Document]) -> RenderableType:
    """
    The sweeps of a store.

    Args:
        sweeps: The ``sweep`` part of sweep documents; ``counts`` and ``hosts`` (a number)
            are shown where they are given.
    """
    columns = [
        Column("sweep"),
        Column("started (UTC)"),
        Column("took", number=True),
        Column("cluster"),
        Column("profile"),
        Column("status"),
        Column("cells"),
    ]
    rows = [
        [
            clean(s["id"])[:8],
            minute(s["started_at"] or figures.UNKNOWN),
            took(s) or figures.UNKNOWN,
            clean(s["cluster"]),
            clean(s["profile"]),
            clean(s["status"]),
            counts_text(s.get("counts") or {}),
        ]
        for s in sweeps
    ]
    if not rows:
        return Group(Text("No sweep is stored yet."), command("topobench probe"))
    return Sheet(columns, rows, indent=0)


def render_facts(data: Document) -> RenderableType:
    """
    Names and values, as ``db info`` gives them; units as the names say.

    A mapping is one line of its known values (a table of counts without the zeros), a
    sweep is its id, state and time.
    """
    return facts(((figures.label(k), _fact(k, v)) for k, v in data.items()), indent=0)


def render_doctor(findings: Sequence[Document]) -> RenderableType:
    """
    What a host lacks, worst first; each with the line that mends it and the one that undoes it.

    Args:
        findings: ``{check, level, found, wanted, why, fix, undo}``; fix and undo may be None.
    """
    return Group(*_doctor(findings))


def _doctor(findings: Sequence[Document]) -> Iterator[RenderableType]:
    for level in ("error", "warn", "unknown"):
        for finding in (f for f in findings if f["level"] == level):
            yield from _finding(finding)
    fine = [f for f in findings if f["level"] == "ok"]
    if fine:
        yield Text("OK", style="bold")
        yield facts([(clean(f["check"]), clean(f["found"])) for f in fine])
        yield Text("")
    if any(f.get("fix") for f in findings):
        yield Prose("Nothing was changed: topobench only prints these lines.", indent=0)
    counts = Counter(f["level"] for f in findings)
    shown = ", ".join(f"{counts[level]} {level}" for level in _LEVELS if counts[level])
    yield Text(shown or "no checks", style="bold")


def _fact(name: str, value: Any) -> str:
    if isinstance(value, Mapping) and "started_at" in value:
        start = minute(value["started_at"] or figures.UNKNOWN)
        return f"{clean(value['id'])[:8]} {clean(value['status'])}, started {start} UTC"
    if isinstance(value, Mapping):
        known = [f"{clean(k)} {figures.quantity(k, v)}" for k, v in value.items() if v]
        return ", ".join(known) or "none"
    if isinstance(value, list | tuple):
        return ", ".join(map(clean, value)) or "none"
    return figures.quantity(name, value)


def _finding(finding: Document) -> Iterator[RenderableType]:
    style = _LEVELS[finding["level"]]
    head = f"{finding['level'].upper()} {clean(finding['check'])}: {clean(finding['found'])}"
    yield Prose(head, indent=0, style=style)
    yield facts([("wanted", clean(finding["wanted"])), ("why", clean(finding["why"]))])
    for name in ("fix", "undo"):
        if finding.get(name):
            yield Text(f"  {name}", style="dim")
            for line in str(finding[name]).splitlines():
                yield command(f"  {line}")
    yield Text("")


_END = re.compile(r"(_ci)?_(lo|hi)$")
"""What the ends of an interval are called by."""


def _whose(at: int, columns: Sequence[str]) -> str:
    """
    The column whose unit another has: ``gain_lo`` is an end of ``gain_ratio``.

    Ends without a name of their own (``ci_lo``) are of the ratio that they stand behind, if any.
    """
    name = columns[at]
    whole = _END.sub("", name)
    if name in ("ci_lo", "ci_hi"):
        before = next((c for c in reversed(columns[:at]) if not _END.search(f"_{c}")), name)
        return before if before.endswith("_ratio") else name
    return next((c for c in (f"{whole}_ratio", whole) if whole != name and c in columns), name)


def _query_column(name: str, values: Sequence[Any], whose: str) -> tuple[Column, list[str]]:
    if name == "params":
        values = [_params(v) for v in values]
    numbers = [v for v in values if _is_number(v)]
    if len(numbers) + sum(v is None for v in values) < len(values) or not numbers:
        return Column(clean(name)), [figures.UNKNOWN if v is None else clean(v) for v in values]
    if name == "age_seconds":
        return Column("age", number=True), [_span(v) for v in values]
    unit = figures.unit_of(whose)
    if unit == "B" or all(isinstance(v, int) for v in numbers):
        title = figures.label(name) if unit == "B" else clean(name)
        return Column(title, number=True), [figures.quantity(whose, v) for v in values]
    scale = figures.scale_for(whose, numbers)
    texts = figures.aligned([figures.number(v, scale) for v in values])
    title = f"{figures.label(name)}\n{scale.unit}" if scale.unit else clean(name)
    return Column(title, number=True), texts


def _params(value: Any) -> Any:
    """Parameters of a case without definitions, which are long and have a digest."""
    try:
        found = json.loads(value)
    except (TypeError, ValueError):
        return value
    if not isinstance(found, dict) or (short := shown_params(found)) == found:
        return value
    return json.dumps(short, separators=(",", ":"))


def _span(seconds: float | None) -> str:
    """An age: ``7 min``, ``30 h 00 min``, ``12 d``."""
    if seconds is None:
        return figures.UNKNOWN
    days = seconds / 86400
    return f"{days:.0f} d" if days >= 2 else format_span(seconds)


_OF_METRIC = (
    *("median", "lowest", "highest", "ci_lo", "ci_hi", "minimum", "maximum", "value"),
    *("mad", "mean", "std", "loss"),
)
"""Ends of columns whose values are in the unit of the row's metric."""


def _of_metrics(
    name: str, values: Sequence[Any], metrics: Sequence[Any]
) -> tuple[Column, list[str]]:
    """A column whose unit changes from row to row, so that each value carries its own."""
    texts = [figures.quantity(str(m), v) for v, m in zip(values, metrics, strict=True)]
    return Column(clean(name), number=True), texts


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
