"""An acceptance sheet as text: each rule, then the answers that are not a plain pass."""

from __future__ import annotations

import collections
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from topobench.report import figures
from topobench.report.safe import clean
from topobench.report.sheet import Column, Prose, Sheet, facts
from topobench.report.words import minute, some_names

Document = Mapping[str, Any]

STYLES = {
    "fail": "red",
    "impossible": "red",
    "not measured": "yellow",
    "inconclusive": "yellow",
    "pass": "green",
}
"""Answers, worst first, and their colour."""
_ROWS = 40
"""Rows of a rule's table; the JSON document holds all."""
_PASSED = 8
"""Rows of a table up to which answers that passed are shown one by one."""


def render_accept(data: Document) -> RenderableType:
    """The ``data`` of accept/1."""
    return Group(*_parts(data))


def requirement(rule: Document) -> str:
    """``median >= 50.0 GB/s for each gpu``, as people read it."""
    who = f"for each {rule['each']}" + (f" of {clean(rule['sku'])}" if rule["sku"] else "")
    if rule["non_inferior_to"] is not None:
        margin = f"{100 * rule['margin']:g} %"
        return (
            f"{rule['statistic']} not worse than sweep {rule['non_inferior_to'][:8]} "
            f"by more than {margin} {who}"
        )
    limit = figures.quantity(rule["metric"], rule["value"])
    lead = "" if rule["probe"] == "discovered" else f"{rule['statistic']} "
    return f"{lead}{rule['op']} {limit} {who}"


def conditions(rule: Document) -> str:
    """``host_to_device bandwidth: size 256 MiB, direction h2d, arm none``."""
    if rule["probe"] == "discovered":
        return f"discovered {figures.label(rule['metric'])}"
    told = [f"{figures.label(k)} {figures.quantity(k, v)}" for k, v in rule["conditions"].items()]
    return f"{rule['probe']} {figures.label(rule['metric'])}: " + ", ".join(
        [*told, f"arm {clean(rule['arm'])}"]
    )


def interval(rule: Document, answer: Document) -> str:
    """The interval of the value, or of the change from the reference."""
    if answer["lo"] is None or answer["hi"] is None:
        return figures.UNKNOWN
    if rule["non_inferior_to"] is not None:
        return f"{100 * answer['lo']:+.2f} to {100 * answer['hi']:+.2f} %"
    scale = figures.scale_for(rule["metric"], [answer["lo"]])
    ends = " to ".join(figures.number(answer[k], scale) for k in ("lo", "hi"))
    return f"{ends} {scale.unit}".strip()


def percent(value: float | None) -> str:
    """``1.23 %``, or the sign for unknown."""
    return figures.UNKNOWN if value is None else f"{100 * value:.2f} %"


def _parts(data: Document) -> Iterator[RenderableType]:
    sweep = data["sweep"]
    yield facts(
        [
            ("criteria", f"{clean(data['criteria']['name'])} ({clean(data['criteria']['file'])})"),
            (
                "sweep",
                f"{sweep['id'][:8]} of {clean(sweep['cluster'])}, "
                f"profile {clean(sweep['profile'])}, {minute(sweep['started_at'])} UTC",
            ),
            ("hosts", str(len(data["hosts"]))),
            ("inputs", data["inputs_digest"]),
        ],
        indent=0,
    )
    for rule in data["rules"]:
        yield Text("")
        head = f"{rule['answer'].upper()}  {clean(rule['name'])}"
        yield Prose(head, indent=0, style=STYLES[rule["answer"]])
        yield Prose(conditions(rule), style="dim")
        yield Prose(requirement(rule), style="dim")
        shown = _shown(rule)
        yield _table(rule, shown)
        yield from _reasons(rule)
        hidden = collections.Counter(a["answer"] for a in rule["answers"])
        hidden.subtract(a["answer"] for a in shown)
        more = [f"{hidden[word]} {word}" for word in STYLES if hidden[word]]
        if more:
            yield Prose(f"and {', '.join(more)} more; --format json and --html list all")
    for warning in data["warnings"]:
        yield Prose(f"warning: {clean(warning)}", indent=0, style="yellow")
    yield Text("")
    counts = ", ".join(f"{data['counts'][w]} {w}" for w in STYLES if data["counts"][w])
    yield Text(f"{data['answer']}: {counts}", style=f"bold {STYLES[data['answer']]}")


def _shown(rule: Document) -> Sequence[Document]:
    """What did not pass; and what did, where there is little of it."""
    rest = [a for a in rule["answers"] if a["answer"] != "pass"][:_ROWS]
    passed = [a for a in rule["answers"] if a["answer"] == "pass"]
    return [*rest, *passed[: max(0, _PASSED - len(rest))]]


def _table(rule: Document, answers: Sequence[Document]) -> RenderableType:
    metric = rule["metric"]
    columns = [
        Column("on"),
        Column("value", number=True),
        Column("interval", number=True),
        Column("MDE", number=True),
        Column("n", number=True),
        Column("answer"),
    ]
    rows = [
        [
            clean(a["subject"]),
            figures.quantity(metric, a["value"]),
            interval(rule, a),
            percent(a["mde"]),
            str(a["n"]),
            a["answer"],
        ]
        for a in answers
    ]
    return Sheet(columns, rows, row_styles=[STYLES[a["answer"]] for a in answers])


def _reasons(rule: Document) -> Iterator[RenderableType]:
    """Why subjects did not pass, and what else is to be known of them; alike ones together."""
    found: dict[str, list[str]] = {}
    for answer in rule["answers"]:
        told = [] if answer["answer"] == "pass" else [answer["reason"]]
        for text in (*told, *answer["notes"]):
            found.setdefault(text, []).append(clean(answer["subject"]))
    for text, subjects in found.items():
        names = list(dict.fromkeys(subjects))
        who = "" if len(names) == len(rule["answers"]) else f"{some_names(names, 0)}: "
        yield Prose(f"{who}{clean(text)}")
