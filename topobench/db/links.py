"""Rows of ``link``: the wiring of a topology as a table, so that SQL can ask for it."""

from __future__ import annotations

from typing import Any

from topobench.topology import Topology

Row = dict[str, Any]

_EMPTY: Row = {
    "path_class": None,
    "nccl_class": None,
    "hops": None,
    "speed_gts": None,
    "width": None,
    "max_speed_gts": None,
    "max_width": None,
    "lanes": None,
    "max_lanes": None,
    "numa_distance": None,
    "nominal_bytes_per_second": None,
}


def link_rows(topology: Topology) -> list[Row]:
    """
    Every link, by kind.

    ``pcie`` (bridge to device), ``nvlink`` (GPU to all its peers together), ``path`` (between
    GPUs, NICs, NUMA nodes), ``numa`` (kernel distances).
    """
    rows = [*_pcie(topology), *_nvlink(topology), *_paths(topology), *_distances(topology)]
    return list({(r["kind"], r["a"], r["b"]): {**_EMPTY, **r} for r in rows}.values())


def _pcie(topology: Topology) -> list[Row]:
    return [
        {
            "kind": "pcie",
            "a": d.parent or "root",
            "b": d.address,
            "speed_gts": d.link.speed_gts,
            "width": d.link.width,
            "max_speed_gts": d.link.max_speed_gts,
            "max_width": d.link.max_width,
            "nominal_bytes_per_second": d.link.effective_max_bytes_per_second,
        }
        for d in topology.pci
        if d.link
    ]


def _nvlink(topology: Topology) -> list[Row]:
    return [
        {
            "kind": "nvlink",
            "a": f"gpu:{g.index}",
            "b": "fabric",
            "lanes": g.nvlink.active,
            "max_lanes": g.nvlink.expected,
            "nominal_bytes_per_second": g.nvlink.bytes_per_second,
        }
        for g in topology.gpus
        if g.nvlink
    ]


def _paths(topology: Topology) -> list[Row]:
    return [
        {
            "kind": "path",
            "a": p.a,
            "b": p.b,
            "path_class": p.smi,
            "nccl_class": p.nccl,
            "hops": p.hops,
            "nominal_bytes_per_second": p.nominal_bytes_per_second,
        }
        for p in topology.paths
    ]


def _distances(topology: Topology) -> list[Row]:
    table = topology.numa_distances
    return [
        {"kind": "numa", "a": f"numa:{a}", "b": f"numa:{b}", "numa_distance": distance}
        for a, row in zip(table.nodes, table.matrix, strict=False)
        for b, distance in zip(table.nodes, row, strict=False)
    ]
