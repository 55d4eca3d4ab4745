"""What the views of measurements have in common: columns that say where and what, and joins."""

from __future__ import annotations

HOST = "cl.name AS cluster, h.name AS host, h.key AS host_key, k.name AS sku"
WHERE = f"""{HOST},
    tc.name AS topology_class, tc.id AS topology_class_id,
    ds.label AS devices, ds.n_devices"""
"""Columns of the place that was measured."""
CASE = """pc.probe, pc.probe_version, pc.id AS case_id, pc.params,
    pc.bytes, pc.seq_len, pc.batch, pc.dtype, pc.model, pc.op, pc.tp, pc.direction, pc.memory"""
"""Columns of what was measured there."""
SOFTWARE = "e.driver, e.cuda, e.nccl, e.torch, e.kernel"


def names(of: str, *, topology: str | None = None, wired: bool = False) -> str:
    """
    Joins from a series ``s`` to the names of all that its ids stand for.

    Args:
        of: Alias of what has ``metric_id``.
        topology: Alias of what has ``topology_id``; None: the same.
        wired: Rows without a topology are left out.
    """
    join = "JOIN" if wired else "LEFT JOIN"
    return f"""JOIN host h ON h.id = s.host_id
JOIN cluster cl ON cl.id = h.cluster_id
LEFT JOIN sku k ON k.id = h.sku_id
{join} topology t ON t.id = {topology or of}.topology_id
{join} topology_class tc ON tc.id = t.topology_class_id
JOIN probe_case pc ON pc.id = s.case_id
JOIN arm a ON a.id = s.arm_id
JOIN device_set ds ON ds.id = s.device_set_id
JOIN metric m ON m.id = {of}.metric_id"""
