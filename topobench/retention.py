"""How long the store keeps what. Pure."""

from __future__ import annotations

from dataclasses import dataclass

DAY_SECONDS = 86_400.0


@dataclass(frozen=True, slots=True)
class Retention:
    """
    How long things are kept, counted from the day (UTC) they were measured.

    Args:
        samples_seconds: Single samples; the summaries stay.
        results_seconds: Sweeps with their cells, runs and readings; the roll-ups stay.
    """

    samples_seconds: float = 90 * DAY_SECONDS
    results_seconds: float = 730 * DAY_SECONDS


STANDARD = Retention()
"""Samples for 90 days, results for two years."""
