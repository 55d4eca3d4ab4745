"""
The tables of judgement: verdicts and what they rest on, prices, changes, notes.

They hold what was concluded from the tables of measurement and what people
added; nothing here is measured.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import (
    CheckConstraint,
    Column,
    ForeignKey,
    Index,
    Integer,
    PrimaryKeyConstraint,
    SmallInteger,
    Table,
    Text,
)

from topobench.db.columns import ID, Day, JsonText, Number, UtcTime, unix_seconds
from topobench.db.schema_hosts import metadata


def _seconds_of(column: str) -> Callable[[Any], float]:
    """Fills a column of seconds since 1970 from the time beside it."""
    return lambda context: unix_seconds(context.get_current_parameters()[column])


baseline = Table(
    "baseline",
    metadata,
    Column("id", ID, primary_key=True),
    Column("topology_class_id", ID, ForeignKey("topology_class.id"), nullable=False),
    Column("case_id", ID, ForeignKey("probe_case.id"), nullable=False),
    Column("metric_id", ID, ForeignKey("metric.id"), nullable=False),
    Column("environment_group", Text),
    Column("valid_from", UtcTime, nullable=False),
    Column("valid_to", UtcTime),
    Column("n_hosts", Integer, nullable=False),
    Column("median", Number, nullable=False),
    Column("mad", Number, nullable=False),
    Column("quantiles", JsonText),
    Column("method", Text, nullable=False),
    Column("version", Text, nullable=False),
    Index(None, "topology_class_id", "case_id", "metric_id"),
)

verdict = Table(
    "verdict",
    metadata,
    Column("id", ID, primary_key=True),
    Column("host_id", ID, ForeignKey("host.id"), nullable=False),
    Column("device_id", ID, ForeignKey("device.id")),
    Column("sweep_id", ID, ForeignKey("sweep.id"), nullable=False, index=True),
    Column("as_of", UtcTime, nullable=False),
    Column("check_name", Text, nullable=False),
    Column("level", Text, nullable=False),
    Column("value", Number),
    Column("reference", Number),
    Column("effect_ratio", Number),
    Column("ci_lo", Number),
    Column("ci_hi", Number),
    Column("mde_ratio", Number),
    Column("confirmed_count", Integer),
    Column("action", Text),
    Column("reason", Text, nullable=False),
    Column("policy_version", Text, nullable=False),
    Column("inputs_digest", Text, nullable=False),
    Column("superseded_by", ID, ForeignKey("verdict.id")),
    Index(None, "host_id", "sweep_id"),
)

change_event = Table(
    "change_event",
    metadata,
    Column("id", ID, primary_key=True),
    Column("host_id", ID, ForeignKey("host.id"), nullable=False),
    Column("at", UtcTime, nullable=False),
    Column("kind", Text, nullable=False),
    Column("key", Text, nullable=False),
    Column("old", Text),
    Column("new", Text),
    Column("source", Text, nullable=False),
    Column("at_unix_seconds", Number, default=_seconds_of("at")),
    Index(None, "host_id", "at"),
    CheckConstraint("source IN ('auto', 'human')", name="source"),
)

changepoint = Table(
    "changepoint",
    metadata,
    Column("id", ID, primary_key=True),
    Column("series_id", ID, ForeignKey("series.id"), nullable=False),
    Column("metric_id", ID, ForeignKey("metric.id"), nullable=False),
    Column("at_lo", UtcTime, nullable=False),
    Column("at_hi", UtcTime, nullable=False),
    Column("effect_ratio", Number, nullable=False),
    Column("p", Number),
    Column("method", Text, nullable=False),
    Column("at_lo_unix_seconds", Number, default=_seconds_of("at_lo")),
    Column("at_hi_unix_seconds", Number, default=_seconds_of("at_hi")),
    Index(None, "series_id", "metric_id"),
)

price = Table(
    "price",
    metadata,
    Column("id", ID, primary_key=True),
    Column("sku_id", ID, ForeignKey("sku.id"), nullable=False, index=True),
    Column("cluster_id", ID, ForeignKey("cluster.id")),
    Column("kind", Text, nullable=False),
    Column("amount", Number, nullable=False),
    Column("currency", Text, nullable=False),
    Column("per", Text, nullable=False),
    Column("valid_from", UtcTime, nullable=False),
    Column("valid_to", UtcTime),
    Column("source", Text),
    Column("years", Number),
    Column("rate_ratio", Number),
    Column("utilisation_ratio", Number),
    Column("watts", Number),
    Column("hour_amount", Number),
)

fit = Table(
    "fit",
    metadata,
    Column("id", ID, primary_key=True),
    Column("sweep_id", ID, ForeignKey("sweep.id"), nullable=False, index=True),
    Column("host_id", ID, ForeignKey("host.id")),
    Column("kind", Text, nullable=False),
    Column("subject", Text, nullable=False),
    Column("x_metric", Text, nullable=False),
    Column("params", JsonText, nullable=False),
    Column("knee", Number),
    Column("knee_lo", Number),
    Column("knee_hi", Number),
    Column("series_id", ID, ForeignKey("series.id")),
    Column("alpha_seconds", Number),
    Column("alpha_lo", Number),
    Column("alpha_hi", Number),
    Column("beta_bytes_per_second", Number),
    Column("beta_lo", Number),
    Column("beta_hi", Number),
    Column("n_half_bytes", Number),
    Column("ci_level", Text),
    Column("n", Integer),
    Column("residual_ratio", Number),
    Column("worst_bytes", Number),
    Column("worst_ratio", Number),
    Column("smallest_bytes", Number),
    Column("largest_bytes", Number),
    Column("reason", Text),
    Column("launch_until", Number),
    Column("memory_until", Number),
    Column("attention_from", Number),
)

slo_window = Table(
    "slo_window",
    metadata,
    Column("run_id", ID, ForeignKey("run.id"), nullable=False),
    Column("window_no", Integer, nullable=False),
    Column("started_at", UtcTime, nullable=False),
    Column("duration_seconds", Number, nullable=False),
    Column("n", Integer, nullable=False),
    Column("n_over", Integer, nullable=False),
    Column("p50_seconds", Number),
    Column("p99_seconds", Number),
    Column("errors", Integer, nullable=False),
    Column("offered_per_second", Number),
    Column("concurrency", Number),
    Column("purpose", Text),
    Column("limit_on", Text),
    Column("limit_seconds", Number),
    Column("in_flight", Number),
    Column("answered_per_second", Number),
    Column("output_tokens_per_second", Number),
    Column("power_watts", Number),
    Column("valid", SmallInteger),
    PrimaryKeyConstraint("run_id", "window_no"),
)

host_lease = Table(
    "host_lease",
    metadata,
    Column("host_id", ID, ForeignKey("host.id"), primary_key=True, autoincrement=False),
    Column("holder", Text, nullable=False),
    Column("token", Text, nullable=False),
    Column("expires_at", UtcTime, nullable=False),
)

schedule_state = Table(
    "schedule_state",
    metadata,
    Column("cluster", Text, nullable=False),
    Column("schedule", Text, nullable=False),
    Column("due_at", UtcTime),
    Column("tried_at", UtcTime, nullable=False),
    Column("tried_unix_seconds", Number, default=_seconds_of("tried_at")),
    Column("ended_at", UtcTime),
    Column("exit_code", Integer),
    Column("sweep", Text),
    Column("message", Text),
    Column("findings", JsonText, nullable=False),
    Column("served_at", UtcTime),
    Column("times", Text),
    Column("missed", Integer, nullable=False),
    Column("missed_until", UtcTime),
    PrimaryKeyConstraint("cluster", "schedule"),
)

annotation = Table(
    "annotation",
    metadata,
    Column("id", ID, primary_key=True),
    Column("entity", Text, nullable=False),
    Column("entity_id", ID, nullable=False),
    Column("author", Text, nullable=False),
    Column("text", Text, nullable=False),
    Column("ticket", Text),
    Column("created_at", UtcTime, nullable=False),
    Column("expires_at", UtcTime, nullable=False),
    Index(None, "entity", "entity_id"),
)

night_rollup = Table(
    "night_rollup",
    metadata,
    Column("series_id", ID, ForeignKey("series.id"), nullable=False),
    Column("metric_id", ID, ForeignKey("metric.id"), nullable=False),
    Column("point", Text, nullable=False),
    Column("day", Day, nullable=False),
    Column("n", Integer, nullable=False),
    Column("median", Number, nullable=False),
    Column("mad", Number),
    PrimaryKeyConstraint("series_id", "metric_id", "point", "day"),
    Index(None, "day"),
    sqlite_with_rowid=False,
)
