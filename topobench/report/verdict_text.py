"""Verdicts for people: what is wrong first, with its figures; then one line for the rest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from topobench.report.safe import clean, command
from topobench.report.sheet import Column, Prose, Sheet
from topobench.report.words import minute
from topobench.units import count, format_percent
from topobench.verdict_words import worst_first

Document = Mapping[str, Any]

_STYLES = {"fail": "red", "degraded": "yellow", "watch": "yellow"}
_FOUND = ("fail", "degraded", "watch")
_MOST_QUIET = 20


def render_check(data: Document, warnings: Sequence[str] = ()) -> RenderableType:
    """The verdicts of a sweep (``data`` of ``topobench check --format json``)."""
    return Group(*_check(data, warnings))


def _check(data: Document, warnings: Sequence[str]) -> Iterator[RenderableType]:
    subjects = sorted(data["subjects"], key=lambda s: (worst_first(s["level"]), s["name"]))
    yield Text(
        f"Verdicts on sweep {clean(data['sweep'])[:8]}, cluster {clean(data['cluster'])}, as of "
        f"{minute(data['as_of'])} UTC, policy {clean(data['policy'])}"
        + (", synthetic data" if data["synthetic"] else ""),
        style="bold",
    )
    for incident in data["incidents"]:
        yield Prose(f"incident: {clean(incident['text'])}", indent=0, style="yellow")
    for warning in warnings:
        yield Prose(f"warning: {clean(warning)}", indent=0, style="yellow")
    yield Text("")
    for subject in (s for s in subjects if s["level"] in _FOUND):
        yield from _found(subject)
    yield from _quiet([s for s in subjects if s["level"] not in _FOUND])
    counts = Counter(s["level"] for s in subjects if s["device"] is None)
    told = ", ".join(f"{counts[lv]} {lv}" for lv in sorted(counts, key=worst_first))
    yield Text(f"{count(sum(counts.values()), 'host')}: {told or 'none judged'}", style="bold")


def _found(subject: Document) -> Iterator[RenderableType]:
    level = subject["level"]
    name = clean(subject["name"])
    if subject["device"] is not None:
        name = f"{name} {clean(subject['device_name'])} ({clean(subject['device'])})"
    ack = subject["acknowledged"]
    known = (
        f"  acknowledged: {clean(ack['ticket'])} until {minute(ack['expires_at'])} UTC"
        if ack
        else ""
    )
    yield Text(f"{level.upper()} {name}{known}", style=_STYLES[level])
    for check in subject["checks"]:
        if check["level"] in _FOUND:
            yield Prose(f"{check['name']}: {clean(check['reason'])}")
    if subject["advice"]:
        yield Prose("topobench does nothing about it; to take the host out of service:")
        for line in subject["advice"].splitlines():
            yield command(f"  {line}")
    yield Text("")


def _quiet(subjects: Sequence[Document]) -> Iterator[RenderableType]:
    """A table of the hosts of which there is nothing to say."""
    if not subjects:
        return
    shown = subjects[:_MOST_QUIET]
    columns = [Column("host"), Column("level"), Column("would see", number=True), Column("why")]
    rows = []
    for subject in shown:
        mdes = [c["mde"] for c in subject["checks"] if c["mde"] is not None]
        judged = [c for c in subject["checks"] if c["level"] == subject["level"]]
        why = next((c["reason"] for c in reversed(judged)), "")
        smallest = format_percent(min(mdes)) if mdes else "-"
        rows.append([clean(subject["name"]), subject["level"], smallest, clean(why)])
    yield Sheet(columns, rows, indent=0)
    if hidden := len(subjects) - len(shown):
        yield Text(f"and {count(hidden, 'host')} more", style="dim")
    yield Text("")


def verdicts_section(
    found: Sequence[Document], hosts: Sequence[Document]
) -> Iterator[RenderableType]:
    """
    What a report says of the verdicts on its sweep.

    Args:
        found: ``name``, ``device``, ``level``, ``reason``, ``policy_version``, worst first.
        hosts: Those of the sweep document; they know what a device is called.
    """
    devices = [d for h in hosts for d in (h.get("description") or {}).get("devices") or ()]
    names = {d["key"]: f"gpu:{d['index']}" for d in devices if d.get("index") is not None}
    for verdict in (v for v in found if v["level"] in _FOUND):
        device = verdict["device"]
        whose = f"{verdict['name']} {names.get(device, device)}" if device else verdict["name"]
        text = f"{verdict['level']}: {clean(whose)}: {clean(verdict['reason'])}"
        yield Prose(text, style=_STYLES[verdict["level"]])
    counts = Counter(v["level"] for v in found if v["device"] is None)
    if counts:
        told = ", ".join(f"{counts[lv]} {lv}" for lv in sorted(counts, key=worst_first))
        policy = clean(found[0]["policy_version"])
        yield Prose(f"Hosts: {told} (policy {policy}; more with topobench check).")


def render_acks(acks: Sequence[Document]) -> RenderableType:
    """Acknowledgements, newest first."""
    if not acks:
        return Text("No host is acknowledged.")
    columns = [
        Column("host"),
        Column("cluster"),
        Column("ticket"),
        Column("until (UTC)"),
        Column("by"),
        Column("state"),
        Column("text"),
    ]
    rows = [
        [
            clean(a["name"]),
            clean(a["cluster"]),
            clean(a["ticket"] or "-"),
            minute(a["expires_at"]),
            clean(a["author"]),
            "active" if a["active"] else "ended",
            clean(a["text"] or "-"),
        ]
        for a in acks
    ]
    return Sheet(columns, rows, indent=0)
