"""Phrases that several reports share."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import Any

from topobench.reading import Status
from topobench.report.safe import clean
from topobench.units import format_elapsed

MOST_NAMES = 10
_DEFINITIONS = frozenset({"definition", "server_definition"})


def shown_params(params: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters without definitions of the user's own, which their digests stand for."""
    return {k: v for k, v in params.items() if k not in _DEFINITIONS}


def counts_text(counts: Mapping[str, int]) -> str:
    """``12 ok, 3 skipped, 1 failed``, in the order of the statuses."""
    shown = [f"{counts[s]} {s.replace('_', ' ')}" for s in Status if counts.get(s)]
    return ", ".join(shown) or "no cells"


def took(sweep: Mapping[str, Any]) -> str:
    """How long a sweep took, or an empty text while it runs."""
    if not (sweep["started_at"] and sweep["ended_at"]):
        return ""
    start, end = (datetime.datetime.fromisoformat(sweep[k]) for k in ("started_at", "ended_at"))
    return format_elapsed((end - start).total_seconds())


def minute(time: str) -> str:
    """``2026-11-29 16:00`` of an ISO 8601 time."""
    return clean(time)[:16].replace("T", " ")


def some_names(names: Sequence[str], total: int) -> str:
    """``gpu01, gpu02``; ``all 12 hosts``; ``gpu01, gpu02 ... and 40 more``."""
    if len(names) == total and total > 1:
        return f"all {total} hosts"
    shown = ", ".join(names[:MOST_NAMES])
    more = len(names) - MOST_NAMES
    return f"{shown} and {more} more" if more > 0 else shown


def warning_text(warning: Any) -> str:
    """A warning in words; the topology's own carry a subject."""
    if isinstance(warning, Mapping):
        subject = f"{warning['subject']}: " if warning.get("subject") else ""
        return clean(f"{subject}{warning['text']}")
    return clean(warning)
