"""Documents of commands as rows for a spreadsheet: a reading, a case, a check or an answer each."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from topobench.report.tables_text import query_csv

Row = Mapping[str, Any]


def csv_of(command: str, data: Any) -> str:
    """
    The ``data`` of a command's JSON document as CSV: a header, then its rows.

    Lists and objects are JSON in their field; unknown is an empty one. Text is as ``query_csv``
    writes it, which keeps formulas and control characters from acting.

    Args:
        command: One of ``COMMANDS``.
    """
    found = [*COMMANDS[command](data)]
    columns = [*dict.fromkeys(name for row in found for name in row)]
    return query_csv(columns, [[_value(row.get(name)) for name in columns] for row in found])


def _value(value: Any) -> Any:
    if isinstance(value, list | dict):
        return json.dumps(value, sort_keys=True)
    return value


def _readings(data: Any) -> Iterator[Row]:
    """Cells without any are rows, too: that they failed or were skipped is what they tell."""
    names = {host["key"]: host["name"] for host in data["hosts"]}
    for cell in data["cells"]:
        own = {
            "sweep": data["sweep"]["id"],
            "cluster": data["cluster"],
            "host": names.get(cell["host"], cell["host"]),
            **{name: cell[name] for name in _OF_CELL},
        }
        for reading in cell["readings"] or [{}]:
            yield own | {name: reading.get(name) for name in _OF_READING}


_OF_CELL = (
    "probe", "params", "arm", "devices", "ranks", "process_no", "block", "status", "reason",
)  # fmt: skip
_OF_READING = (
    "metric", "unit", "better", "point", "median", "ci_lo", "ci_hi", "ci_level", "n", "mad",
    "minimum", "maximum", "p90", "p99", "stop_reason", "raw_value",
)  # fmt: skip


def _checks(data: Any) -> Iterator[Row]:
    """One a check; of a subject without any, its level; of a policy alone, its rules."""
    if "subjects" not in data:
        yield from ({"rule": name, "value": value} for name, value in data["policy"].items())
        return
    for subject in data["subjects"]:
        own = {
            "sweep": data["sweep"],
            "host": subject["name"],
            "device": subject["device_name"] or subject["device"],
            "subject_level": subject["level"],
            "acknowledged": subject["acknowledged"],
        }
        for check in subject["checks"] or [{}]:
            yield own | {"check": check.get("name"), **{k: check.get(k) for k in _OF_CHECK}}


_OF_CHECK = ("level", "value", "reference", "effect", "mde", "metric", "case", "reason")


def _answers(data: Any) -> Iterator[Row]:
    """One an answer to a rule; of a rule that nothing was found for, the rule."""
    for rule in data["rules"]:
        own = {f"rule_{name}": value for name, value in rule.items() if name != "answers"}
        for answer in rule["answers"] or [{}]:
            yield own | answer


COMMANDS: Mapping[str, Callable[[Any], Iterator[Row]]] = {
    "report": _readings,
    "plan": lambda data: iter(data["cells"]),
    "compare": lambda data: iter(data["cases"]),
    "check": _checks,
    "accept": _answers,
    "advise": lambda data: iter(data["advice"]),
}
"""Command -> its rows."""
