"""
Judging: host settings as columns, times of changes in seconds.

Revision: 0004.
"""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns."""
    for name in ("governor", "boost", "mitigations"):
        op.add_column("environment", sa.Column(name, sa.Text()))
    op.add_column("change_event", sa.Column("at_unix_seconds", sa.Double()))
    op.add_column("changepoint", sa.Column("at_lo_unix_seconds", sa.Double()))
    op.add_column("changepoint", sa.Column("at_hi_unix_seconds", sa.Double()))
    for name in ("years", "rate_ratio", "utilisation_ratio", "watts", "hour_amount"):
        op.add_column("price", sa.Column(name, sa.Double()))
