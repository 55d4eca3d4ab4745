"""
What is concluded or added by people: verdicts, baselines, prices, notes.

Revision: 0003; follows 0002.
"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
TIME = sa.Text().with_variant(sa.TIMESTAMP(timezone=True), "postgresql")
DAY = sa.Text().with_variant(sa.Date(), "postgresql")


def upgrade() -> None:
    """Make the tables."""
    op.create_table(
        "annotation",
        sa.Column("id", ID, nullable=False),
        sa.Column("entity", sa.Text(), nullable=False),
        sa.Column("entity_id", ID, nullable=False),
        sa.Column("author", sa.Text(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("ticket", sa.Text()),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("expires_at", TIME, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_annotation")),
    )
    op.create_index(
        op.f("ix_annotation_entity_annotation_entity_id"), "annotation", ["entity", "entity_id"]
    )
    op.create_table(
        "baseline",
        sa.Column("id", ID, nullable=False),
        sa.Column("topology_class_id", ID, nullable=False),
        sa.Column("case_id", ID, nullable=False),
        sa.Column("metric_id", ID, nullable=False),
        sa.Column("environment_group", sa.Text()),
        sa.Column("valid_from", TIME, nullable=False),
        sa.Column("valid_to", TIME),
        sa.Column("n_hosts", sa.Integer(), nullable=False),
        sa.Column("median", sa.Double(), nullable=False),
        sa.Column("mad", sa.Double(), nullable=False),
        sa.Column("quantiles", sa.Text()),
        sa.Column("method", sa.Text(), nullable=False),
        sa.Column("version", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["case_id"], ["probe_case.id"], name=op.f("fk_baseline_case_id")),
        sa.ForeignKeyConstraint(["metric_id"], ["metric.id"], name=op.f("fk_baseline_metric_id")),
        sa.ForeignKeyConstraint(
            ["topology_class_id"], ["topology_class.id"], name=op.f("fk_baseline_topology_class_id")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_baseline")),
    )
    op.create_index(
        op.f("ix_baseline_topology_class_id_baseline_case_id_baseline_metric_id"),
        "baseline",
        ["topology_class_id", "case_id", "metric_id"],
    )
    op.create_table(
        "price",
        sa.Column("id", ID, nullable=False),
        sa.Column("sku_id", ID, nullable=False),
        sa.Column("cluster_id", ID),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("amount", sa.Double(), nullable=False),
        sa.Column("currency", sa.Text(), nullable=False),
        sa.Column("per", sa.Text(), nullable=False),
        sa.Column("valid_from", TIME, nullable=False),
        sa.Column("valid_to", TIME),
        sa.Column("source", sa.Text()),
        sa.ForeignKeyConstraint(["cluster_id"], ["cluster.id"], name=op.f("fk_price_cluster_id")),
        sa.ForeignKeyConstraint(["sku_id"], ["sku.id"], name=op.f("fk_price_sku_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_price")),
    )
    op.create_index(op.f("ix_price_sku_id"), "price", ["sku_id"])
    op.create_table(
        "change_event",
        sa.Column("id", ID, nullable=False),
        sa.Column("host_id", ID, nullable=False),
        sa.Column("at", TIME, nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("old", sa.Text()),
        sa.Column("new", sa.Text()),
        sa.Column("source", sa.Text(), nullable=False),
        sa.CheckConstraint("source IN ('auto', 'human')", name=op.f("ck_change_event_source")),
        sa.ForeignKeyConstraint(["host_id"], ["host.id"], name=op.f("fk_change_event_host_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_change_event")),
    )
    op.create_index(
        op.f("ix_change_event_host_id_change_event_at"), "change_event", ["host_id", "at"]
    )
    op.create_table(
        "fit",
        sa.Column("id", ID, nullable=False),
        sa.Column("sweep_id", ID, nullable=False),
        sa.Column("host_id", ID),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("x_metric", sa.Text(), nullable=False),
        sa.Column("params", sa.Text(), nullable=False),
        sa.Column("knee", sa.Double()),
        sa.Column("knee_lo", sa.Double()),
        sa.Column("knee_hi", sa.Double()),
        sa.ForeignKeyConstraint(["host_id"], ["host.id"], name=op.f("fk_fit_host_id")),
        sa.ForeignKeyConstraint(["sweep_id"], ["sweep.id"], name=op.f("fk_fit_sweep_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_fit")),
    )
    op.create_index(op.f("ix_fit_sweep_id"), "fit", ["sweep_id"])
    op.create_table(
        "host_lease",
        sa.Column("host_id", ID, autoincrement=False, nullable=False),
        sa.Column("holder", sa.Text(), nullable=False),
        sa.Column("token", sa.Text(), nullable=False),
        sa.Column("expires_at", TIME, nullable=False),
        sa.ForeignKeyConstraint(["host_id"], ["host.id"], name=op.f("fk_host_lease_host_id")),
        sa.PrimaryKeyConstraint("host_id", name=op.f("pk_host_lease")),
    )
    op.create_table(
        "verdict",
        sa.Column("id", ID, nullable=False),
        sa.Column("host_id", ID, nullable=False),
        sa.Column("device_id", ID),
        sa.Column("sweep_id", ID, nullable=False),
        sa.Column("as_of", TIME, nullable=False),
        sa.Column("check_name", sa.Text(), nullable=False),
        sa.Column("level", sa.Text(), nullable=False),
        sa.Column("value", sa.Double()),
        sa.Column("reference", sa.Double()),
        sa.Column("effect_ratio", sa.Double()),
        sa.Column("ci_lo", sa.Double()),
        sa.Column("ci_hi", sa.Double()),
        sa.Column("mde_ratio", sa.Double()),
        sa.Column("confirmed_count", sa.Integer()),
        sa.Column("action", sa.Text()),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("policy_version", sa.Text(), nullable=False),
        sa.Column("inputs_digest", sa.Text(), nullable=False),
        sa.Column("superseded_by", ID),
        sa.ForeignKeyConstraint(["device_id"], ["device.id"], name=op.f("fk_verdict_device_id")),
        sa.ForeignKeyConstraint(["host_id"], ["host.id"], name=op.f("fk_verdict_host_id")),
        sa.ForeignKeyConstraint(
            ["superseded_by"], ["verdict.id"], name=op.f("fk_verdict_superseded_by")
        ),
        sa.ForeignKeyConstraint(["sweep_id"], ["sweep.id"], name=op.f("fk_verdict_sweep_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_verdict")),
    )
    op.create_index(op.f("ix_verdict_host_id_verdict_sweep_id"), "verdict", ["host_id", "sweep_id"])
    op.create_index(op.f("ix_verdict_sweep_id"), "verdict", ["sweep_id"])
    op.create_table(
        "changepoint",
        sa.Column("id", ID, nullable=False),
        sa.Column("series_id", ID, nullable=False),
        sa.Column("metric_id", ID, nullable=False),
        sa.Column("at_lo", TIME, nullable=False),
        sa.Column("at_hi", TIME, nullable=False),
        sa.Column("effect_ratio", sa.Double(), nullable=False),
        sa.Column("p", sa.Double()),
        sa.Column("method", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["metric_id"], ["metric.id"], name=op.f("fk_changepoint_metric_id")
        ),
        sa.ForeignKeyConstraint(
            ["series_id"], ["series.id"], name=op.f("fk_changepoint_series_id")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_changepoint")),
    )
    op.create_index(
        op.f("ix_changepoint_series_id_changepoint_metric_id"),
        "changepoint",
        ["series_id", "metric_id"],
    )
    op.create_table(
        "night_rollup",
        sa.Column("series_id", ID, nullable=False),
        sa.Column("metric_id", ID, nullable=False),
        sa.Column("point", sa.Text(), nullable=False),
        sa.Column("day", DAY, nullable=False),
        sa.Column("n", sa.Integer(), nullable=False),
        sa.Column("median", sa.Double(), nullable=False),
        sa.Column("mad", sa.Double()),
        sa.ForeignKeyConstraint(
            ["metric_id"], ["metric.id"], name=op.f("fk_night_rollup_metric_id")
        ),
        sa.ForeignKeyConstraint(
            ["series_id"], ["series.id"], name=op.f("fk_night_rollup_series_id")
        ),
        sa.PrimaryKeyConstraint(
            "series_id", "metric_id", "point", "day", name=op.f("pk_night_rollup")
        ),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "slo_window",
        sa.Column("run_id", ID, nullable=False),
        sa.Column("window_no", sa.Integer(), nullable=False),
        sa.Column("started_at", TIME, nullable=False),
        sa.Column("duration_seconds", sa.Double(), nullable=False),
        sa.Column("n", sa.Integer(), nullable=False),
        sa.Column("n_over", sa.Integer(), nullable=False),
        sa.Column("p50_seconds", sa.Double()),
        sa.Column("p99_seconds", sa.Double()),
        sa.Column("errors", sa.Integer(), nullable=False),
        sa.Column("offered_per_second", sa.Double()),
        sa.Column("concurrency", sa.Double()),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name=op.f("fk_slo_window_run_id")),
        sa.PrimaryKeyConstraint("run_id", "window_no", name=op.f("pk_slo_window")),
    )
