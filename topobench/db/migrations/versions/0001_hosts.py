"""
Hosts: clusters, SKUs, devices, wiring, software.

Revision: 0001.
"""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
TIME = sa.Text().with_variant(sa.TIMESTAMP(timezone=True), "postgresql")
DAY = sa.Text().with_variant(sa.Date(), "postgresql")


def upgrade() -> None:
    """Make the tables."""
    op.create_table(
        "cluster",
        sa.Column("id", ID, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("site", sa.Text()),
        sa.Column("scheduler", sa.Text()),
        sa.Column("fabric_class", sa.Text()),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_cluster")),
        sa.UniqueConstraint("name", name=op.f("uq_cluster_name")),
    )
    op.create_table(
        "environment",
        sa.Column("id", ID, nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("driver", sa.Text()),
        sa.Column("cuda", sa.Text()),
        sa.Column("nccl", sa.Text()),
        sa.Column("torch", sa.Text()),
        sa.Column("python", sa.Text()),
        sa.Column("kernel", sa.Text()),
        sa.Column("os", sa.Text()),
        sa.Column("bios", sa.Text()),
        sa.Column("container", sa.Text()),
        sa.Column("details", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_environment")),
        sa.UniqueConstraint("digest", name=op.f("uq_environment_digest")),
    )
    op.create_table(
        "sku",
        sa.Column("id", ID, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("gpu_model", sa.Text()),
        sa.Column("gpu_count", sa.Integer()),
        sa.Column("form_factor", sa.Text()),
        sa.Column("cpu_model", sa.Text()),
        sa.Column("nic_model", sa.Text()),
        sa.Column("vendor", sa.Text()),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_sku")),
        sa.UniqueConstraint("name", name=op.f("uq_sku_name")),
    )
    op.create_table(
        "store_info",
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_store_info")),
    )
    op.create_table(
        "topology_class",
        sa.Column("id", ID, nullable=False),
        sa.Column("shape", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_topology_class")),
        sa.UniqueConstraint("shape", name=op.f("uq_topology_class_shape")),
    )
    op.create_table(
        "host",
        sa.Column("id", ID, nullable=False),
        sa.Column("cluster_id", ID, nullable=False),
        sa.Column("sku_id", ID),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("key_source", sa.Text()),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("address", sa.Text()),
        sa.Column("rack", sa.Text()),
        sa.Column("leaf", sa.Text()),
        sa.Column("batch", sa.Text()),
        sa.Column("labels", sa.Text(), nullable=False),
        sa.Column("first_seen_at", TIME, nullable=False),
        sa.Column("last_seen_at", TIME, nullable=False),
        sa.Column("commissioned_on", DAY),
        sa.Column("retired_on", DAY),
        sa.ForeignKeyConstraint(["cluster_id"], ["cluster.id"], name=op.f("fk_host_cluster_id")),
        sa.ForeignKeyConstraint(["sku_id"], ["sku.id"], name=op.f("fk_host_sku_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_host")),
        sa.UniqueConstraint("cluster_id", "key", name=op.f("uq_host_cluster_id_key")),
    )
    op.create_table(
        "device",
        sa.Column("id", ID, nullable=False),
        sa.Column("host_id", ID, nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("uuid", sa.Text()),
        sa.Column("pci_address", sa.Text()),
        sa.Column("model", sa.Text()),
        sa.Column("serial_hash", sa.Text()),
        sa.Column("memory_bytes", ID),
        sa.Column("first_seen_at", TIME, nullable=False),
        sa.Column("last_seen_at", TIME, nullable=False),
        sa.ForeignKeyConstraint(["host_id"], ["host.id"], name=op.f("fk_device_host_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_device")),
        sa.UniqueConstraint("host_id", "key", name=op.f("uq_device_host_id_key")),
    )
    op.create_index(op.f("ix_device_uuid"), "device", ["uuid"])
    op.create_table(
        "topology",
        sa.Column("id", ID, nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("host_id", ID, nullable=False),
        sa.Column("topology_class_id", ID),
        sa.Column("shape", sa.Text()),
        sa.Column("config", sa.Text()),
        sa.Column("health", sa.Text()),
        sa.Column("virtualization", sa.Text()),
        sa.Column("trust", sa.Text()),
        sa.Column("taken_at", TIME, nullable=False),
        sa.Column("document", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["host_id"], ["host.id"], name=op.f("fk_topology_host_id")),
        sa.ForeignKeyConstraint(
            ["topology_class_id"], ["topology_class.id"], name=op.f("fk_topology_topology_class_id")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_topology")),
        sa.UniqueConstraint("digest", name=op.f("uq_topology_digest")),
    )
    op.create_index(op.f("ix_topology_host_id"), "topology", ["host_id"])
    op.create_table(
        "link",
        sa.Column("topology_id", ID, nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("a", sa.Text(), nullable=False),
        sa.Column("b", sa.Text(), nullable=False),
        sa.Column("path_class", sa.Text()),
        sa.Column("nccl_class", sa.Text()),
        sa.Column("hops", sa.Integer()),
        sa.Column("speed_gts", sa.Double()),
        sa.Column("width", sa.Integer()),
        sa.Column("max_speed_gts", sa.Double()),
        sa.Column("max_width", sa.Integer()),
        sa.Column("lanes", sa.Integer()),
        sa.Column("max_lanes", sa.Integer()),
        sa.Column("numa_distance", sa.Integer()),
        sa.Column("nominal_bytes_per_second", sa.Double()),
        sa.ForeignKeyConstraint(["topology_id"], ["topology.id"], name=op.f("fk_link_topology_id")),
        sa.PrimaryKeyConstraint("topology_id", "kind", "a", "b", name=op.f("pk_link")),
    )
