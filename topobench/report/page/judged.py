"""Verdicts as the database holds them, worst first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from topobench.report.figures import UNKNOWN
from topobench.report.page.parts import Head, Missing, Paragraph, Part, Table
from topobench.report.records import Places
from topobench.report.safe import clean
from topobench.report.words import minute
from topobench.verdict_words import OVERALL, SEVERITY, Level

LEVELS = tuple(sorted(Level, key=lambda level: -SEVERITY[level]))
"""Worst first."""
MANY_ROWS = 60
"""Rows above which those that are ok are left out."""
TONES = {"fail": "bad", "degraded": "bad", "watch": "warn", "unknown": "warn", "learning": "dim"}
_HEADS = (
    Head("level"),
    Head("host"),
    Head("device"),
    Head("check"),
    Head("effect", number=True),
    Head("interval", number=True),
    Head("could be seen from", number=True),
    Head("why"),
    Head("what to do"),
)


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
    ordered = sorted(verdicts, key=lambda v: (_rank(v["level"]), v["host_name"], v["check"]))
    if len(ordered) > MANY_ROWS:
        ordered = [v for v in ordered if v["level"] != Level.OK]
        yield Paragraph("Checks that are ok are not listed.", "dim")
    styles = [TONES.get(v["level"], "") for v in ordered]
    yield Table(_HEADS, [_row(v, places) for v in ordered], styles=styles).limited()


def host_levels(verdicts: Sequence[Mapping[str, Any]]) -> dict[str, Level]:
    """Host key -> its level: that of its overall check, else the gravest."""
    found: dict[str, Level] = {}
    for verdict in sorted(verdicts, key=lambda v: (v["check"] != OVERALL, _rank(v["level"]))):
        if verdict["device"] is None or verdict["check"] != OVERALL:
            found.setdefault(verdict["host"], Level(verdict["level"]))
    return found


def _rank(level: str) -> int:
    return -SEVERITY[Level(level)]


def _row(verdict: Mapping[str, Any], places: Places) -> list[str]:
    device = verdict["device"]
    return [
        clean(verdict["level"]),
        clean(verdict["host_name"]),
        places.devices([device]) if device else "",
        clean(verdict["check"]),
        _percent(verdict["effect_ratio"]),
        _ends(verdict["ci_lo"], verdict["ci_hi"]),
        UNKNOWN if verdict["mde_ratio"] is None else f"{100 * verdict['mde_ratio']:.1f} %",
        clean(verdict["reason"]),
        clean(verdict["action"] or ""),
    ]


def _percent(ratio: float | None) -> str:
    return UNKNOWN if ratio is None else f"{100 * ratio:+.1f} %"


def _ends(lo: float | None, hi: float | None) -> str:
    return UNKNOWN if lo is None or hi is None else f"{100 * lo:+.1f} to {100 * hi:+.1f} %"
