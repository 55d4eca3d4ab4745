"""
Judging: host settings as columns, times of changes in seconds, what schedules last did.

And the kernel of attention that a worker chose, taken from the conditions of its run, as the host
settings are from the details of its environment.

Revision: 0004.
"""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None
SETTINGS = ("governor", "boost", "mitigations")
TIME = sa.Text().with_variant(sa.TIMESTAMP(timezone=True), "postgresql")


def upgrade() -> None:
    """Add the columns, and the table of schedules."""
    for name in SETTINGS:
        op.add_column("environment", sa.Column(name, sa.Text()))
    _tell_settings()
    op.add_column("change_event", sa.Column("at_unix_seconds", sa.Double()))
    op.add_column("changepoint", sa.Column("at_lo_unix_seconds", sa.Double()))
    op.add_column("changepoint", sa.Column("at_hi_unix_seconds", sa.Double()))
    for name in ("years", "rate_ratio", "utilisation_ratio", "watts", "hour_amount"):
        op.add_column("price", sa.Column(name, sa.Double()))
    for name in ("alpha_seconds", "alpha_lo", "alpha_hi", "n_half_bytes"):
        op.add_column("fit", sa.Column(name, sa.Double()))
    for name in ("beta_bytes_per_second", "beta_lo", "beta_hi", "residual_ratio"):
        op.add_column("fit", sa.Column(name, sa.Double()))
    for name in ("worst_bytes", "worst_ratio", "smallest_bytes", "largest_bytes"):
        op.add_column("fit", sa.Column(name, sa.Double()))
    for name in ("launch_until", "memory_until", "attention_from"):
        op.add_column("fit", sa.Column(name, sa.Double()))
    op.add_column("fit", sa.Column("reason", sa.Text()))
    op.add_column("sweep", sa.Column("driver", sa.Text()))
    op.add_column("fit", sa.Column("ci_level", sa.Text()))
    op.add_column("fit", sa.Column("n", sa.Integer()))
    # Alembic adds no constraint to a table of SQLite; both engines take it with the column.
    kind = "BIGINT" if op.get_bind().dialect.name == "postgresql" else "INTEGER"
    op.execute(
        f"ALTER TABLE fit ADD COLUMN series_id {kind}"
        " CONSTRAINT fk_fit_series_id_series REFERENCES series (id)"
    )
    for name in ("limit_seconds", "in_flight", "answered_per_second"):
        op.add_column("slo_window", sa.Column(name, sa.Double()))
    for name in ("output_tokens_per_second", "power_watts"):
        op.add_column("slo_window", sa.Column(name, sa.Double()))
    for name in ("purpose", "limit_on"):
        op.add_column("slo_window", sa.Column(name, sa.Text()))
    op.add_column("slo_window", sa.Column("valid", sa.SmallInteger()))
    op.add_column("run", sa.Column("attention", sa.Text()))
    _tell_attention()
    op.create_index(op.f("ix_night_rollup_day"), "night_rollup", ["day"])
    op.create_table(
        "schedule_state",
        sa.Column("cluster", sa.Text(), nullable=False),
        sa.Column("schedule", sa.Text(), nullable=False),
        sa.Column("due_at", TIME),
        sa.Column("tried_at", TIME, nullable=False),
        sa.Column("tried_unix_seconds", sa.Double()),
        sa.Column("ended_at", TIME),
        sa.Column("exit_code", sa.Integer()),
        sa.Column("sweep", sa.Text()),
        sa.Column("message", sa.Text()),
        sa.Column("findings", sa.Text(), nullable=False),
        sa.Column("served_at", TIME),
        sa.Column("times", sa.Text()),
        sa.Column("missed", sa.Integer(), nullable=False),
        sa.Column("missed_until", TIME),
        sa.PrimaryKeyConstraint("cluster", "schedule", name=op.f("pk_schedule_state")),
    )


def _tell_settings() -> None:
    """Only topobench's own words are read, as below."""
    told = (
        "details::json -> 'host_settings' ->> '{}'"
        if op.get_bind().dialect.name == "postgresql"
        else "CASE WHEN json_valid(details) THEN json_extract(details, '$.host_settings.{}') END"
    )
    columns = ", ".join(f"{name} = {told.format(name)}" for name in SETTINGS)
    op.execute(f"UPDATE environment SET {columns} WHERE details LIKE '%\"host_settings\"%'")


def _tell_attention() -> None:
    """Only topobench's own words are read: canonical JSON, a text under the key."""
    chosen = (
        "d.conditions::json ->> 'attention'"
        if op.get_bind().dialect.name == "postgresql"
        else "CASE WHEN json_valid(d.conditions) THEN json_extract(d.conditions, '$.attention') END"
    )
    op.execute(
        f"UPDATE run SET attention = (SELECT {chosen} FROM run_detail d WHERE d.run_id = run.id)"
        ' WHERE id IN (SELECT run_id FROM run_detail WHERE conditions LIKE \'%"attention":"%\')'
    )
