"""
The tables of hosts: clusters, SKUs, hosts, their devices, wiring and software.

A host is known by its key inside its cluster; names and addresses may change. Wiring is
stored once per host and fingerprint, software once per distinct set of versions.
"""

from __future__ import annotations

from sqlalchemy import (
    Column,
    ForeignKey,
    Integer,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
    UniqueConstraint,
)

from topobench.db.columns import ID, Day, JsonText, Number, UtcTime

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(column_0_N_label)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

store_info = Table(
    "store_info",
    metadata,
    Column("key", Text, primary_key=True),
    Column("value", Text, nullable=False),
)

cluster = Table(
    "cluster",
    metadata,
    Column("id", ID, primary_key=True),
    Column("name", Text, nullable=False, unique=True),
    Column("site", Text),
    Column("scheduler", Text),
    Column("fabric_class", Text),
)

sku = Table(
    "sku",
    metadata,
    Column("id", ID, primary_key=True),
    Column("name", Text, nullable=False, unique=True),
    Column("gpu_model", Text),
    Column("gpu_count", Integer),
    Column("form_factor", Text),
    Column("cpu_model", Text),
    Column("nic_model", Text),
    Column("vendor", Text),
)

host = Table(
    "host",
    metadata,
    Column("id", ID, primary_key=True),
    Column("cluster_id", ID, ForeignKey("cluster.id"), nullable=False),
    Column("sku_id", ID, ForeignKey("sku.id")),
    Column("key", Text, nullable=False),
    Column("key_source", Text),
    Column("name", Text, nullable=False),
    Column("address", Text),
    Column("rack", Text),
    Column("leaf", Text),
    Column("batch", Text),
    Column("labels", JsonText, nullable=False),
    Column("first_seen_at", UtcTime, nullable=False),
    Column("last_seen_at", UtcTime, nullable=False),
    Column("commissioned_on", Day),
    Column("retired_on", Day),
    UniqueConstraint("cluster_id", "key"),
)

device = Table(
    "device",
    metadata,
    Column("id", ID, primary_key=True),
    Column("host_id", ID, ForeignKey("host.id"), nullable=False),
    Column("kind", Text, nullable=False),
    Column("key", Text, nullable=False),
    Column("uuid", Text, index=True),
    Column("pci_address", Text),
    Column("model", Text),
    Column("serial_hash", Text),
    Column("memory_bytes", ID),
    Column("first_seen_at", UtcTime, nullable=False),
    Column("last_seen_at", UtcTime, nullable=False),
    UniqueConstraint("host_id", "key"),
)

topology_class = Table(
    "topology_class",
    metadata,
    Column("id", ID, primary_key=True),
    Column("shape", Text, nullable=False, unique=True),
    Column("name", Text, nullable=False),
)

topology = Table(
    "topology",
    metadata,
    Column("id", ID, primary_key=True),
    Column("digest", Text, nullable=False, unique=True),
    Column("host_id", ID, ForeignKey("host.id"), nullable=False, index=True),
    Column("topology_class_id", ID, ForeignKey("topology_class.id")),
    Column("shape", Text),
    Column("config", Text),
    Column("health", Text),
    Column("virtualization", Text),
    Column("trust", Text),
    Column("taken_at", UtcTime, nullable=False),
    Column("document", JsonText, nullable=False),
)

link = Table(
    "link",
    metadata,
    Column("topology_id", ID, ForeignKey("topology.id"), nullable=False),
    Column("kind", Text, nullable=False),
    Column("a", Text, nullable=False),
    Column("b", Text, nullable=False),
    Column("path_class", Text),
    Column("nccl_class", Text),
    Column("hops", Integer),
    Column("speed_gts", Number),
    Column("width", Integer),
    Column("max_speed_gts", Number),
    Column("max_width", Integer),
    Column("lanes", Integer),
    Column("max_lanes", Integer),
    Column("numa_distance", Integer),
    Column("nominal_bytes_per_second", Number),
    PrimaryKeyConstraint("topology_id", "kind", "a", "b"),
)

environment = Table(
    "environment",
    metadata,
    Column("id", ID, primary_key=True),
    Column("digest", Text, nullable=False, unique=True),
    Column("driver", Text),
    Column("cuda", Text),
    Column("nccl", Text),
    Column("torch", Text),
    Column("python", Text),
    Column("kernel", Text),
    Column("os", Text),
    Column("bios", Text),
    Column("container", Text),
    Column("details", JsonText, nullable=False),
    Column("governor", Text),
    Column("boost", Text),
    Column("mitigations", Text),
)
