"""What a check found that the one before it had not, and what has cleared; pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_RANKS = {"unknown": 1, "degraded": 2, "fail": 3}
"""Levels that are told, the higher the graver."""
_INCIDENT = "incident: "


@dataclass(frozen=True, slots=True)
class Changes:
    """
    Between two checks of one schedule.

    Args:
        new: Subjects that were found, or found graver; subject -> level.
        cleared: Subjects that were found before and are well now.
        findings: What counts as found from now on.
    """

    new: Mapping[str, str]
    cleared: tuple[str, ...]
    findings: Mapping[str, str]


def changes(before: Mapping[str, str], judged: Mapping[str, str]) -> Changes:
    """
    Compare what was found before with every level judged now.

    What was not judged stays found, and so does what could not be judged: silence clears
    nothing. An incident is judged in every check.
    """
    new, findings, cleared = {}, dict(before), []
    for subject, level in judged.items():
        rank, earlier = _RANKS.get(level, 0), _RANKS.get(before.get(subject, ""), 0)
        if rank > earlier:
            new[subject] = level
        if rank > 1 or (rank == 1 and not earlier):
            findings[subject] = level
        elif rank == 0 and earlier:
            cleared.append(subject)
            del findings[subject]
    for subject in before:
        if subject.startswith(_INCIDENT) and subject not in judged:
            cleared.append(subject)
            del findings[subject]
    return Changes(new, tuple(cleared), findings)


def judged(document: Mapping[str, Any]) -> dict[str, str]:
    """
    Subject -> level of a check (``data`` of ``topobench check``).

    A subject is a host's name, with its device where there is one, or an incident. Hosts that
    are acknowledged are left out.
    """
    found = {
        " ".join(filter(None, (s["name"], s["device_name"]))): s["level"]
        for s in document["subjects"]
        if s["acknowledged"] is None
    }
    return found | {f"{_INCIDENT}{i['class']}": "degraded" for i in document["incidents"]}
