"""The conditions of synthetic runs, judged by the rules of real ones; pure."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from topobench import ceilings, validity
from topobench.conditions import pcie_bytes_per_second
from topobench.demo.hosts import LANES, Sku
from topobench.reading import Cell, Run
from topobench.topology import Gpu, Topology

SLOTS = frozenset({"host_to_device"})
"""Probes whose conditions are kept every night; of the others, those of the last one are."""
GENERATIONS = {16.0: 4, 32.0: 5}


def watched(cell: Cell, topology: Topology, sku: Sku, *, last: bool) -> Mapping[str, Any]:
    """What the agent would have seen of a run's GPUs; nothing where it is not kept."""
    if not cell.devices or not (last or cell.case.probe in SLOTS):
        return _NOTHING
    gpus = {g.key: g for g in topology.gpus}
    return _watched(tuple((d, _width(gpus[d], topology)) for d in cell.devices), sku)


_NOTHING: Mapping[str, Any] = {}


@functools.cache
def _watched(widths: tuple[tuple[str, int], ...], sku: Sku) -> Mapping[str, Any]:
    return {"gpus": {key: _gpu(width, sku) for key, width in widths}}


def judged(run: Run, cell: Cell, topology: Topology, *, last: bool) -> Run:
    """
    The run with the warnings that its conditions give; a healthy host gives none.

    Args:
        last: Ceilings stand beside the readings of the last night alone.
    """
    narrow = bool(topology.warnings) and bool(run.conditions)
    if narrow:
        return validity.judge(run, cell, topology)
    return ceilings.held_against(run, cell, topology) if last else run


def _width(gpu: Gpu, topology: Topology) -> int:
    if not topology.warnings:
        return LANES
    links = {d.address: d.link for d in topology.pci}
    link = links.get(gpu.pci_address or "")
    return link.width if link and link.width else LANES


@functools.cache
def _gpu(width: int, sku: Sku) -> dict[str, Any]:
    generation = GENERATIONS[sku.gts]
    draw = 690.0 if sku.nvlink else 340.0
    return {
        "readings": 12,
        "sm_hertz": [1.965e9, 1.98e9, 1.98e9],
        "temperature_celsius": [41.0, 44.0, 46.0],
        "power_watts": [draw * 0.3, draw * 0.5, draw * 0.8],
        "clock_reasons": {},
        "limits": {
            "power_watts": draw + 10,
            "default_power_watts": draw + 10,
            "pcie_generation": generation,
            "pcie_width": LANES,
        },
        "pcie": {
            "loaded_readings": 10,
            "generation": [generation] * 3,
            "width": [width] * 3,
            "bytes_per_second": pcie_bytes_per_second(generation, width),
            "most_bytes_per_second": pcie_bytes_per_second(generation, LANES),
        },
        "counted": {},
    }
