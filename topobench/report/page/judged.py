"""Verdicts as the database holds them, worst first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from topobench.report.figures import UNKNOWN, signed_percent
from topobench.report.page.parts import Commands, Head, Missing, Paragraph, Part, Table
from topobench.report.records import Places
from topobench.report.safe import clean
from topobench.report.words import minute
from topobench.verdict_words import OVERALL, Level, worst_first

LEVELS = tuple(sorted(Level, key=worst_first))
"""Worst first."""
MANY_ROWS = 60
"""Rows above which those that are ok are left out."""
TONES = {"fail": "bad", "degraded": "bad", "watch": "warn", "unknown": "warn", "learning": "dim"}


def judged(verdicts: Sequence[Mapping[str, Any]], places: Places, sweep: str) -> Iterator[Part]:
    """
    The verdicts of a sweep, or the command that makes them.

    Args:
        verdicts: As ``db.look.verdicts`` gives them.
    """
    if not verdicts:
        yield Missing(
            "This sweep was not judged yet: no verdict is stored.",
            f"topobench check {clean(sweep)[:8]}",
        )
        return
    counts = Counter(host_levels(verdicts).values())
    words = ", ".join(f"{counts[level]} {level}" for level in LEVELS if counts[level])
    policy = ", ".join(sorted({clean(v["policy_version"]) for v in verdicts}))
    as_of = max(v["as_of"] for v in verdicts)
    yield Paragraph(f"Hosts: {words}. Policy {policy}, as of {minute(as_of)} UTC.")
    told = [v for v in verdicts if v["check"] != OVERALL] or list(verdicts)
    ordered = sorted(
        told, key=lambda v: (worst_first(v["level"]), v["host_name"], v["device"] or "")
    )
    if len(ordered) > MANY_ROWS:
        ordered = [v for v in ordered if v["level"] != Level.OK]
        yield Paragraph("Checks that are ok are not listed.", "dim")
    yield _table(ordered, places).limited()
    if actions := [line for v in verdicts for line in (v["action"] or "").splitlines()]:
        yield Paragraph("Lines that take hosts out of service; topobench never runs them:")
        yield Commands([(clean(line), "") for line in dict.fromkeys(actions)])


def _table(ordered: Sequence[Mapping[str, Any]], places: Places) -> Table:
    """A row a check; columns that say nothing are left out."""
    several = len({v["host"] for v in ordered}) > 1
    apart = any(v["ci_lo"] is not None for v in ordered)
    heads = [Head("level"), *([Head("host")] if several else []), Head("device"), Head("check")]
    heads += [Head("effect", number=True), *([Head("interval", number=True)] if apart else [])]
    heads += [Head("could be seen from", number=True), Head("why")]
    rows = []
    for verdict in ordered:
        device, mde = verdict["device"], verdict["mde_ratio"]
        row = [clean(verdict["level"]), *([clean(verdict["host_name"])] if several else [])]
        row += [places.devices([device]) if device else "", clean(verdict["check"])]
        row += [signed_percent(verdict["effect_ratio"])]
        row += [_ends(verdict["ci_lo"], verdict["ci_hi"])] if apart else []
        row += [UNKNOWN if mde is None else f"{100 * mde:.1f} %", clean(verdict["reason"])]
        rows.append(row)
    return Table(heads, rows, styles=[TONES.get(v["level"], "") for v in ordered])


def host_levels(verdicts: Sequence[Mapping[str, Any]]) -> dict[str, Level]:
    """Host key -> its level: that of its overall check, else the gravest."""
    found: dict[str, Level] = {}
    for verdict in sorted(verdicts, key=lambda v: (v["check"] != OVERALL, worst_first(v["level"]))):
        if verdict["device"] is None or verdict["check"] != OVERALL:
            found.setdefault(verdict["host"], Level(verdict["level"]))
    return found


def _ends(lo: float | None, hi: float | None) -> str:
    return UNKNOWN if lo is None or hi is None else f"{100 * lo:+.1f} to {100 * hi:+.1f} %"
