"""
What is measured: cases, series, sweeps, cells, runs, readings.

Revision: 0002; follows 0001.
"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
TIME = sa.Text().with_variant(sa.TIMESTAMP(timezone=True), "postgresql")
DAY = sa.Text().with_variant(sa.Date(), "postgresql")


STATUS = (
    "status IN ('ok', 'partial', 'invalid', 'failed', 'timeout', 'aborted', 'skipped', "
    "'not_applicable', 'planned')"
)


def upgrade() -> None:
    """Make the tables."""
    op.create_table(
        "arm",
        sa.Column("id", ID, nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("binding", sa.Text(), nullable=False),
        sa.Column("ring", sa.Text()),
        sa.Column("cpus", sa.Text()),
        sa.Column("cpu_nodes", sa.Text(), nullable=False),
        sa.Column("memory_policy", sa.Text(), nullable=False),
        sa.Column("memory_nodes", sa.Text(), nullable=False),
        sa.Column("threads", sa.Integer(), nullable=False),
        sa.Column("env", sa.Text(), nullable=False),
        sa.Column("document", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_arm")),
        sa.UniqueConstraint("digest", name=op.f("uq_arm_digest")),
    )
    op.create_table(
        "metric",
        sa.Column("id", ID, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("unit", sa.Text(), nullable=False),
        sa.Column("better", sa.SmallInteger(), nullable=False),
        sa.Column("help", sa.Text(), nullable=False),
        sa.CheckConstraint("better IN (-1, 0, 1)", name=op.f("ck_metric_better")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_metric")),
        sa.UniqueConstraint("name", name=op.f("uq_metric_name")),
    )
    op.create_table(
        "probe_case",
        sa.Column("id", ID, nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("probe", sa.Text(), nullable=False),
        sa.Column("probe_version", sa.Integer(), nullable=False),
        sa.Column("params_hash", sa.Text(), nullable=False),
        sa.Column("params", sa.Text(), nullable=False),
        sa.Column("bytes", ID),
        sa.Column("seq_len", ID),
        sa.Column("batch", ID),
        sa.Column("dtype", sa.Text()),
        sa.Column("model", sa.Text()),
        sa.Column("op", sa.Text()),
        sa.Column("tp", sa.Integer()),
        sa.Column("direction", sa.Text()),
        sa.Column("memory", sa.Text()),
        sa.Column("cpu_node", sa.Integer()),
        sa.Column("memory_node", sa.Integer()),
        sa.Column("backend", sa.Text()),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_probe_case")),
        sa.UniqueConstraint("digest", name=op.f("uq_probe_case_digest")),
        sa.UniqueConstraint(
            "probe",
            "probe_version",
            "params_hash",
            name=op.f("uq_probe_case_probe_probe_version_params_hash"),
        ),
    )
    op.create_table(
        "sweep",
        sa.Column("id", ID, nullable=False),
        sa.Column("uuid", sa.Text(), nullable=False),
        sa.Column("cluster_id", ID, nullable=False),
        sa.Column("profile", sa.Text(), nullable=False),
        sa.Column("trigger", sa.Text(), nullable=False),
        sa.Column("tag", sa.Text()),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("seed", ID),
        sa.Column("tool_version", sa.Text(), nullable=False),
        sa.Column("config_hash", sa.Text()),
        sa.Column("config_text", sa.Text()),
        sa.Column("started_at", TIME, nullable=False),
        sa.Column("started_unix_seconds", sa.Double(), nullable=False),
        sa.Column("ended_at", TIME),
        sa.Column("estimated_seconds", sa.Double()),
        sa.Column("budget_seconds", sa.Double()),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("synthetic", sa.SmallInteger(), nullable=False),
        sa.Column("labels", sa.Text(), nullable=False),
        sa.Column("warnings", sa.Text(), nullable=False),
        sa.CheckConstraint(
            "status IN ('running', 'done', 'interrupted', 'failed')", name=op.f("ck_sweep_status")
        ),
        sa.CheckConstraint("synthetic IN (0, 1)", name=op.f("ck_sweep_synthetic")),
        sa.ForeignKeyConstraint(["cluster_id"], ["cluster.id"], name=op.f("fk_sweep_cluster_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_sweep")),
        sa.UniqueConstraint("uuid", name=op.f("uq_sweep_uuid")),
    )
    op.create_index(op.f("ix_sweep_started_at"), "sweep", ["started_at"])
    op.create_table(
        "device_set",
        sa.Column("id", ID, nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("n_devices", sa.Integer(), nullable=False),
        sa.Column("label", sa.Text(), nullable=False),
        sa.Column("device_id", ID),
        sa.ForeignKeyConstraint(["device_id"], ["device.id"], name=op.f("fk_device_set_device_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_device_set")),
        sa.UniqueConstraint("digest", name=op.f("uq_device_set_digest")),
    )
    op.create_table(
        "sweep_host",
        sa.Column("sweep_id", ID, nullable=False),
        sa.Column("host_id", ID, nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("topology_id", ID),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("address", sa.Text()),
        sa.Column("facts", sa.Text(), nullable=False),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("warnings", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["host_id"], ["host.id"], name=op.f("fk_sweep_host_host_id")),
        sa.ForeignKeyConstraint(["sweep_id"], ["sweep.id"], name=op.f("fk_sweep_host_sweep_id")),
        sa.ForeignKeyConstraint(
            ["topology_id"], ["topology.id"], name=op.f("fk_sweep_host_topology_id")
        ),
        sa.PrimaryKeyConstraint("sweep_id", "host_id", name=op.f("pk_sweep_host")),
    )
    op.create_index(op.f("ix_sweep_host_host_id"), "sweep_host", ["host_id"])
    op.create_table(
        "device_set_member",
        sa.Column("device_set_id", ID, nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("device_id", ID, nullable=False),
        sa.ForeignKeyConstraint(
            ["device_id"], ["device.id"], name=op.f("fk_device_set_member_device_id")
        ),
        sa.ForeignKeyConstraint(
            ["device_set_id"], ["device_set.id"], name=op.f("fk_device_set_member_device_set_id")
        ),
        sa.PrimaryKeyConstraint("device_set_id", "position", name=op.f("pk_device_set_member")),
    )
    op.create_index(op.f("ix_device_set_member_device_id"), "device_set_member", ["device_id"])
    op.create_table(
        "series",
        sa.Column("id", ID, nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("host_id", ID, nullable=False),
        sa.Column("case_id", ID, nullable=False),
        sa.Column("arm_id", ID, nullable=False),
        sa.Column("device_set_id", ID, nullable=False),
        sa.Column("n_ranks", sa.Integer(), nullable=False),
        sa.Column("n_hosts", sa.Integer(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("synthetic", sa.SmallInteger(), nullable=False),
        sa.Column("latest_sweep_id", ID),
        sa.Column("latest_at", TIME),
        sa.Column("latest_unix_seconds", sa.Double()),
        sa.CheckConstraint("synthetic IN (0, 1)", name=op.f("ck_series_synthetic")),
        sa.ForeignKeyConstraint(["arm_id"], ["arm.id"], name=op.f("fk_series_arm_id")),
        sa.ForeignKeyConstraint(["case_id"], ["probe_case.id"], name=op.f("fk_series_case_id")),
        sa.ForeignKeyConstraint(
            ["device_set_id"], ["device_set.id"], name=op.f("fk_series_device_set_id")
        ),
        sa.ForeignKeyConstraint(["host_id"], ["host.id"], name=op.f("fk_series_host_id")),
        sa.ForeignKeyConstraint(
            ["latest_sweep_id"], ["sweep.id"], name=op.f("fk_series_latest_sweep_id")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_series")),
        sa.UniqueConstraint("digest", name=op.f("uq_series_digest")),
    )
    op.create_index(op.f("ix_series_case_id"), "series", ["case_id"])
    op.create_index(op.f("ix_series_host_id"), "series", ["host_id"])
    op.create_table(
        "cell",
        sa.Column("id", ID, nullable=False),
        sa.Column("uuid", sa.Text(), nullable=False),
        sa.Column("sweep_id", ID, nullable=False),
        sa.Column("series_id", ID, nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("process_no", sa.Integer(), nullable=False),
        sa.Column("block", sa.Integer(), nullable=False),
        sa.Column("order_in_block", sa.Integer(), nullable=False),
        sa.Column("arm", sa.Text(), nullable=False),
        sa.Column("binding", sa.Text(), nullable=False),
        sa.Column("ring", sa.Text()),
        sa.Column("path_class", sa.Text()),
        sa.Column("estimated_seconds", sa.Double(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("reason_code", sa.Text()),
        sa.Column("reason", sa.Text()),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.CheckConstraint(STATUS, name=op.f("ck_cell_status")),
        sa.ForeignKeyConstraint(["series_id"], ["series.id"], name=op.f("fk_cell_series_id")),
        sa.ForeignKeyConstraint(["sweep_id"], ["sweep.id"], name=op.f("fk_cell_sweep_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_cell")),
        sa.UniqueConstraint("uuid", name=op.f("uq_cell_uuid")),
    )
    op.create_index(op.f("ix_cell_sweep_id_cell_position"), "cell", ["sweep_id", "position"])
    op.create_table(
        "run",
        sa.Column("id", ID, nullable=False),
        sa.Column("uuid", sa.Text(), nullable=False),
        sa.Column("cell_id", ID, nullable=False),
        sa.Column("sweep_id", ID, nullable=False),
        sa.Column("series_id", ID, nullable=False),
        sa.Column("environment_id", ID, nullable=False),
        sa.Column("topology_id", ID),
        sa.Column("day", DAY, nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("reason_code", sa.Text()),
        sa.Column("reason", sa.Text()),
        sa.Column("started_at", TIME, nullable=False),
        sa.Column("started_unix_seconds", sa.Double(), nullable=False),
        sa.Column("duration_seconds", sa.Double()),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.CheckConstraint(STATUS, name=op.f("ck_run_status")),
        sa.ForeignKeyConstraint(["cell_id"], ["cell.id"], name=op.f("fk_run_cell_id")),
        sa.ForeignKeyConstraint(
            ["environment_id"], ["environment.id"], name=op.f("fk_run_environment_id")
        ),
        sa.ForeignKeyConstraint(["series_id"], ["series.id"], name=op.f("fk_run_series_id")),
        sa.ForeignKeyConstraint(["sweep_id"], ["sweep.id"], name=op.f("fk_run_sweep_id")),
        sa.ForeignKeyConstraint(["topology_id"], ["topology.id"], name=op.f("fk_run_topology_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_run")),
        sa.UniqueConstraint("uuid", name=op.f("uq_run_uuid")),
    )
    op.create_index(op.f("ix_run_cell_id"), "run", ["cell_id"])
    op.create_index(op.f("ix_run_series_id_run_sweep_id"), "run", ["series_id", "sweep_id"])
    op.create_index(op.f("ix_run_sweep_id"), "run", ["sweep_id"])
    op.create_table(
        "reading",
        sa.Column("run_id", ID, nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("metric_id", ID, nullable=False),
        sa.Column("rank", sa.Integer()),
        sa.Column("point", sa.Text(), nullable=False),
        sa.Column("n", sa.Integer(), nullable=False),
        sa.Column("median", sa.Double()),
        sa.Column("ci_lo", sa.Double()),
        sa.Column("ci_hi", sa.Double()),
        sa.Column("ci_level", sa.Text(), nullable=False),
        sa.Column("mad", sa.Double()),
        sa.Column("minimum", sa.Double()),
        sa.Column("maximum", sa.Double()),
        sa.Column("p90", sa.Double()),
        sa.Column("p99", sa.Double()),
        sa.Column("warmups", sa.Integer(), nullable=False),
        sa.Column("stop_reason", sa.Text(), nullable=False),
        sa.Column("ceiling", sa.Double()),
        sa.Column("ceiling_source", sa.Text()),
        sa.Column("raw_value", sa.Double()),
        sa.Column("raw_text", sa.Text()),
        sa.ForeignKeyConstraint(["metric_id"], ["metric.id"], name=op.f("fk_reading_metric_id")),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name=op.f("fk_reading_run_id")),
        sa.PrimaryKeyConstraint("run_id", "seq", name=op.f("pk_reading")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "run_detail",
        sa.Column("run_id", ID, autoincrement=False, nullable=False),
        sa.Column("conditions", sa.Text(), nullable=False),
        sa.Column("warnings", sa.Text(), nullable=False),
        sa.Column("log_tail", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name=op.f("fk_run_detail_run_id")),
        sa.PrimaryKeyConstraint("run_id", name=op.f("pk_run_detail")),
    )
    op.create_table(
        "run_member",
        sa.Column("run_id", ID, nullable=False),
        sa.Column("rank", sa.Integer(), nullable=False),
        sa.Column("host_id", ID, nullable=False),
        sa.Column("device_id", ID),
        sa.Column("pid", sa.Integer()),
        sa.Column("cpus", sa.Text()),
        sa.Column("cpu_node", sa.Integer()),
        sa.Column("memory_node", sa.Integer()),
        sa.Column("memory_policy", sa.Text()),
        sa.ForeignKeyConstraint(["device_id"], ["device.id"], name=op.f("fk_run_member_device_id")),
        sa.ForeignKeyConstraint(["host_id"], ["host.id"], name=op.f("fk_run_member_host_id")),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name=op.f("fk_run_member_run_id")),
        sa.PrimaryKeyConstraint("run_id", "rank", name=op.f("pk_run_member")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "sample",
        sa.Column("run_id", ID, nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("codec", sa.SmallInteger(), nullable=False),
        sa.Column("n", sa.Integer(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name=op.f("fk_sample_run_id")),
        sa.PrimaryKeyConstraint("run_id", "seq", name=op.f("pk_sample")),
        sqlite_with_rowid=False,
    )
