"""
The schema: every table, in one namespace; docs/schema.md explains each column.

It changes only together with a migration in topobench/db/migrations.
"""

from topobench.db.schema_hosts import (
    cluster,
    device,
    environment,
    host,
    link,
    metadata,
    sku,
    store_info,
    topology,
    topology_class,
)
from topobench.db.schema_judged import (
    annotation,
    baseline,
    change_event,
    changepoint,
    fit,
    host_lease,
    night_rollup,
    price,
    schedule_state,
    slo_window,
    verdict,
)
from topobench.db.schema_measured import (
    arm,
    cell,
    device_set,
    device_set_member,
    metric,
    probe_case,
    reading,
    run,
    run_detail,
    run_member,
    sample,
    series,
    sweep,
    sweep_host,
)

REVISION = "0004"
"""The newest migration; what these tables are."""

__all__ = [
    "REVISION",
    "annotation",
    "arm",
    "baseline",
    "cell",
    "change_event",
    "changepoint",
    "cluster",
    "device",
    "device_set",
    "device_set_member",
    "environment",
    "fit",
    "host",
    "host_lease",
    "link",
    "metadata",
    "metric",
    "night_rollup",
    "price",
    "probe_case",
    "reading",
    "run",
    "run_detail",
    "run_member",
    "sample",
    "schedule_state",
    "series",
    "sku",
    "slo_window",
    "store_info",
    "sweep",
    "sweep_host",
    "topology",
    "topology_class",
    "verdict",
]
