"""
The tables of measurement: cases, arms, series, sweeps, cells, runs, readings, samples.

A *series* is what stays the same from night to night (host, case, arm, devices, ranks), so
that runs stay narrow and a history is one range of an index.
"""

from __future__ import annotations

from sqlalchemy import (
    CheckConstraint,
    Column,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    PrimaryKeyConstraint,
    SmallInteger,
    Table,
    Text,
    UniqueConstraint,
)

from topobench.db.columns import ID, Day, JsonText, Number, UtcTime
from topobench.db.schema_hosts import metadata

STATUSES = (
    "ok",
    "partial",
    "invalid",
    "failed",
    "timeout",
    "aborted",
    "skipped",
    "not_applicable",
    "planned",
)


def _one_of(column: str, values: tuple[str, ...]) -> CheckConstraint:
    listed = ", ".join(f"'{v}'" for v in values)
    return CheckConstraint(f"{column} IN ({listed})", name=column)


metric = Table(
    "metric",
    metadata,
    Column("id", ID, primary_key=True),
    Column("name", Text, nullable=False, unique=True),
    Column("unit", Text, nullable=False),
    Column("better", SmallInteger, nullable=False),
    Column("help", Text, nullable=False),
    CheckConstraint("better IN (-1, 0, 1)", name="better"),
)

probe_case = Table(
    "probe_case",
    metadata,
    Column("id", ID, primary_key=True),
    Column("digest", Text, nullable=False, unique=True),
    Column("probe", Text, nullable=False),
    Column("probe_version", Integer, nullable=False),
    Column("params_hash", Text, nullable=False),
    Column("params", JsonText, nullable=False),
    Column("bytes", ID),
    Column("seq_len", ID),
    Column("batch", ID),
    Column("dtype", Text),
    Column("model", Text),
    Column("op", Text),
    Column("tp", Integer),
    Column("direction", Text),
    Column("memory", Text),
    Column("cpu_node", Integer),
    Column("memory_node", Integer),
    Column("backend", Text),
    UniqueConstraint("probe", "probe_version", "params_hash"),
)

arm = Table(
    "arm",
    metadata,
    Column("id", ID, primary_key=True),
    Column("digest", Text, nullable=False, unique=True),
    Column("name", Text, nullable=False),
    Column("binding", Text, nullable=False),
    Column("ring", Text),
    Column("cpus", Text),
    Column("cpu_nodes", Text, nullable=False),
    Column("memory_policy", Text, nullable=False),
    Column("memory_nodes", Text, nullable=False),
    Column("threads", Integer, nullable=False),
    Column("env", JsonText, nullable=False),
    Column("document", JsonText, nullable=False),
)

device_set = Table(
    "device_set",
    metadata,
    Column("id", ID, primary_key=True),
    Column("digest", Text, nullable=False, unique=True),
    Column("n_devices", Integer, nullable=False),
    Column("label", Text, nullable=False),
    Column("device_id", ID, ForeignKey("device.id")),
)

device_set_member = Table(
    "device_set_member",
    metadata,
    Column("device_set_id", ID, ForeignKey("device_set.id"), nullable=False),
    Column("position", Integer, nullable=False),
    Column("device_id", ID, ForeignKey("device.id"), nullable=False, index=True),
    PrimaryKeyConstraint("device_set_id", "position"),
)

sweep = Table(
    "sweep",
    metadata,
    Column("id", ID, primary_key=True),
    Column("uuid", Text, nullable=False, unique=True),
    Column("cluster_id", ID, ForeignKey("cluster.id"), nullable=False),
    Column("profile", Text, nullable=False),
    Column("trigger", Text, nullable=False),
    Column("tag", Text),
    Column("status", Text, nullable=False),
    Column("seed", ID),
    Column("tool_version", Text, nullable=False),
    Column("config_hash", Text),
    Column("config_text", Text),
    Column("started_at", UtcTime, nullable=False, index=True),
    Column("started_unix_seconds", Number, nullable=False),
    Column("ended_at", UtcTime),
    Column("estimated_seconds", Number),
    Column("budget_seconds", Number),
    Column("source", Text, nullable=False),
    Column("synthetic", SmallInteger, nullable=False),
    Column("labels", JsonText, nullable=False),
    Column("warnings", JsonText, nullable=False),
    Column("driver", JsonText),
    _one_of("status", ("running", "done", "interrupted", "failed")),
    CheckConstraint("synthetic IN (0, 1)", name="synthetic"),
)

sweep_host = Table(
    "sweep_host",
    metadata,
    Column("sweep_id", ID, ForeignKey("sweep.id"), nullable=False),
    Column("host_id", ID, ForeignKey("host.id"), nullable=False, index=True),
    Column("position", Integer, nullable=False),
    Column("topology_id", ID, ForeignKey("topology.id")),
    Column("name", Text, nullable=False),
    Column("address", Text),
    Column("facts", JsonText, nullable=False),
    Column("description", JsonText, nullable=False),
    Column("warnings", JsonText, nullable=False),
    PrimaryKeyConstraint("sweep_id", "host_id"),
)

series = Table(
    "series",
    metadata,
    Column("id", ID, primary_key=True),
    Column("digest", Text, nullable=False, unique=True),
    Column("host_id", ID, ForeignKey("host.id"), nullable=False, index=True),
    Column("case_id", ID, ForeignKey("probe_case.id"), nullable=False, index=True),
    Column("arm_id", ID, ForeignKey("arm.id"), nullable=False),
    Column("device_set_id", ID, ForeignKey("device_set.id"), nullable=False),
    Column("n_ranks", Integer, nullable=False),
    Column("n_hosts", Integer, nullable=False),
    Column("source", Text, nullable=False),
    Column("synthetic", SmallInteger, nullable=False),
    Column("latest_sweep_id", ID, ForeignKey("sweep.id")),
    Column("latest_at", UtcTime),
    Column("latest_unix_seconds", Number),
    CheckConstraint("synthetic IN (0, 1)", name="synthetic"),
)

cell = Table(
    "cell",
    metadata,
    Column("id", ID, primary_key=True),
    Column("uuid", Text, nullable=False, unique=True),
    Column("sweep_id", ID, ForeignKey("sweep.id"), nullable=False),
    Column("series_id", ID, ForeignKey("series.id"), nullable=False),
    Column("position", Integer, nullable=False),
    Column("process_no", Integer, nullable=False),
    Column("block", Integer, nullable=False),
    Column("order_in_block", Integer, nullable=False),
    Column("arm", Text, nullable=False),
    Column("binding", Text, nullable=False),
    Column("ring", Text),
    Column("path_class", Text),
    Column("estimated_seconds", Number, nullable=False),
    Column("status", Text, nullable=False),
    Column("reason_code", Text),
    Column("reason", Text),
    Column("attempt", Integer, nullable=False),
    Index(None, "sweep_id", "position"),
    _one_of("status", STATUSES),
)

run = Table(
    "run",
    metadata,
    Column("id", ID, primary_key=True),
    Column("uuid", Text, nullable=False, unique=True),
    Column("cell_id", ID, ForeignKey("cell.id"), nullable=False, index=True),
    Column("sweep_id", ID, ForeignKey("sweep.id"), nullable=False, index=True),
    Column("series_id", ID, ForeignKey("series.id"), nullable=False),
    Column("environment_id", ID, ForeignKey("environment.id"), nullable=False),
    Column("topology_id", ID, ForeignKey("topology.id")),
    Column("day", Day, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("status", Text, nullable=False),
    Column("reason_code", Text),
    Column("reason", Text),
    Column("started_at", UtcTime, nullable=False),
    Column("started_unix_seconds", Number, nullable=False),
    Column("duration_seconds", Number),
    Column("digest", Text, nullable=False),
    Column("attention", Text),
    Index(None, "series_id", "sweep_id"),
    _one_of("status", STATUSES),
)

run_detail = Table(
    "run_detail",
    metadata,
    Column("run_id", ID, ForeignKey("run.id"), primary_key=True, autoincrement=False),
    Column("conditions", JsonText, nullable=False),
    Column("warnings", JsonText, nullable=False),
    Column("log_tail", Text, nullable=False),
)

run_member = Table(
    "run_member",
    metadata,
    Column("run_id", ID, ForeignKey("run.id"), nullable=False),
    Column("rank", Integer, nullable=False),
    Column("host_id", ID, ForeignKey("host.id"), nullable=False),
    Column("device_id", ID, ForeignKey("device.id")),
    Column("pid", Integer),
    Column("cpus", Text),
    Column("cpu_node", Integer),
    Column("memory_node", Integer),
    Column("memory_policy", Text),
    PrimaryKeyConstraint("run_id", "rank"),
    sqlite_with_rowid=False,
)

reading = Table(
    "reading",
    metadata,
    Column("run_id", ID, ForeignKey("run.id"), nullable=False),
    Column("seq", Integer, nullable=False),
    Column("metric_id", ID, ForeignKey("metric.id"), nullable=False),
    Column("rank", Integer),
    Column("point", Text, nullable=False),
    Column("n", Integer, nullable=False),
    Column("median", Number),
    Column("ci_lo", Number),
    Column("ci_hi", Number),
    Column("ci_level", Text, nullable=False),
    Column("mad", Number),
    Column("minimum", Number),
    Column("maximum", Number),
    Column("p90", Number),
    Column("p99", Number),
    Column("warmups", Integer, nullable=False),
    Column("stop_reason", Text, nullable=False),
    Column("ceiling", Number),
    Column("ceiling_source", Text),
    Column("raw_value", Number),
    Column("raw_text", Text),
    PrimaryKeyConstraint("run_id", "seq"),
    sqlite_with_rowid=False,
)

sample = Table(
    "sample",
    metadata,
    Column("run_id", ID, ForeignKey("run.id"), nullable=False),
    Column("seq", Integer, nullable=False),
    Column("codec", SmallInteger, nullable=False),
    Column("n", Integer, nullable=False),
    Column("data", LargeBinary, nullable=False),
    PrimaryKeyConstraint("run_id", "seq"),
    sqlite_with_rowid=False,
)
