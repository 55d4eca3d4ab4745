"""Stores whose numbers follow formulas, so that tests of pages know what must be drawn."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import planning
import report_topologies
from topobench import config
from topobench.agents import nccl_run
from topobench.config import Overrides
from topobench.db.store import Store
from topobench.host import Host
from topobench.plan import make_plan
from topobench.reading import Cell, Member, Reading, Run, Scalar, Status
from topobench.stats import summarise
from topobench.topology import Path as Way
from topobench.topology import Topology

START = "2026-11-29T16:00:00.000000Z"
GB = 1e9
H2D_PEAK = 55 * GB
FIXED_SECONDS = 5e-6
CALL_SECONDS = 12e-6
SLOW_GPU, SLOW_SHARE = 3, 0.9
"""One GPU copies at nine tenths of the others."""
REMOTE_SHARE = 0.8
RING_SECONDS = 12e-6
RINGS = {"auto": 1.0, "auto_ring": 0.95, "best": 1.08, "worst": 0.6}
"""Speed of ring arms against what NCCL does by itself."""
BUSBW = 370 * GB
GEMM = {"bf16": 700e12, "fp16": 690e12, "tf32": 350e12, "fp32": 50e12, "fp8": 1300e12}
HBM = 4000 * GB


def wiring(gpus: int = 8) -> Topology:
    """The HGX host of the topology tests, wholly usable, with paths that rank the rings."""
    made = report_topologies.hgx(gpus)
    nodes = tuple(dataclasses.replace(n, allowed=True) for n in made.numa_nodes)
    paths = tuple(_with_speed(p) for p in made.paths)
    cpus = dataclasses.replace(made.cpus, allowed="0-111", quota_cpus=None)
    return dataclasses.replace(made, numa_nodes=nodes, paths=paths, cpus=cpus)


def _with_speed(way: Way) -> Way:
    if not way.b.startswith("gpu:"):
        return way
    near = (int(way.a[4:]) + int(way.b[4:])) % 3 > 0
    assumed = 3.7e11 if near else 2.4e11
    return dataclasses.replace(way, nominal_bytes_per_second=4.78e11, nccl_bytes_per_second=assumed)


def host(name: str = "gpu01", *, gpus: int = 8) -> Host:
    """A host of that wiring; without GPUs, one of two NUMA nodes."""
    if gpus:
        return planning.host(wiring(gpus), name)
    return planning.host(planning.dual(0), name)


def fill(
    url: str,
    hosts: Sequence[Host],
    *,
    profile: str = "quick",
    probes: str | None = None,
    sets: Sequence[str] = (),
    bindings: str | None = None,
    rings: Sequence[str] = (),
    blocks: int | None = None,
    end: str | None = "done",
    day: int = 29,
    most: int | None = None,
    **more: Any,
) -> str:
    """
    Plan a sweep over these hosts and store a run of every planned cell; its UUID.

    Args:
        end: Status it ends with; None leaves it running.
        most: Cells that run; the rest stay planned.
    """
    flags = Overrides(profile=profile, probes=probes, sets=tuple(sets), bindings=bindings)
    settings = config.load(None, environ={}, overrides=flags)
    changes: dict[str, Any] = {"rings": tuple(rings)} if rings else {}
    if blocks is not None:
        changes["blocks"] = blocks
    plan = make_plan(dataclasses.replace(settings, **changes), hosts, seed=3)
    sweep = str(uuid.uuid4())
    start = START.replace("-29T", f"-{day:02d}T")
    with Store.open(url) as store:
        store.begin_sweep(
            id=sweep,
            cluster="lab",
            profile=profile,
            trigger="manual",
            seed=plan.seed,
            tool_version="0.1.0",
            started_at=start,
            estimated_seconds=plan.estimated_seconds,
            hosts=hosts,
            cells=plan.cells,
            **more,
        )
        topologies = {h.key: h.topology for h in hosts}
        planned = [c for c in plan.cells if c.status is Status.PLANNED]
        runs = [run_of(cell, topologies[cell.host], start) for cell in planned[:most]]
        store.put_runs(sweep, runs)
        if end is not None:
            store.end_sweep(sweep, end, ended_at=start.replace("T16:00", "T16:20"))
    return sweep


def run_of(cell: Cell, topology: Topology, start: str = START) -> Run:
    """A run whose readings follow the formulas of this file."""
    indices = {g.key: g.index or 0 for g in topology.gpus}
    return Run(
        id=str(uuid.uuid4()),
        cell=cell.id,
        status=Status.OK,
        reason=None,
        started_at=start,
        duration_seconds=1.0,
        readings=tuple(_readings(cell, indices)),
        members=tuple(_members(cell, topology)),
        conditions=_conditions(cell),
        environment={"torch": "2.13.0"},
    )


def _members(cell: Cell, topology: Topology) -> Iterator[Member]:
    """A worker of each GPU; bound ones ran on the node that the arm says."""
    nodes = {g.key: g.cpu_node.value for g in topology.gpus}
    bound = cell.arm.binding.name == "local"
    for rank, device in enumerate(cell.devices or ("",) * cell.ranks):
        yield Member(
            rank,
            cell.host,
            device or None,
            cpus="0-3",
            cpu_node=nodes.get(device) if bound else None,
        )


GRAPH = '<graphs version="1">\n  <graph id="0"/>\n  <graph id="0"/>\n</graphs>\n'
"""Not one that NCCL takes: only that it comes out as it went in is tested."""


def _conditions(cell: Cell) -> dict[str, Any]:
    if cell.arm.ring in (None, "auto", "auto_ring"):
        return {}
    return {"nccl": {"channels": 24, "graph": nccl_run.pack(GRAPH, whole=True)}}


def _readings(cell: Cell, indices: dict[str, int]) -> Iterator[Reading]:
    params = cell.case.params
    size = params.get("bytes")
    match cell.case.probe:
        case "host_to_device" if isinstance(size, int):
            for point, share in _gpus(cell, indices):
                for metric, fixed in (("", FIXED_SECONDS), ("per_call_", CALL_SECONDS)):
                    rate = share * size / (fixed + size / H2D_PEAK)
                    yield _one(f"{metric}bandwidth_bytes_per_second", rate, cell, point)
        case "all_reduce" if isinstance(size, int):
            ranks = cell.ranks
            speed = (BUSBW if cell.devices else 5 * GB) * RINGS.get(cell.arm.ring or "auto", 1.0)
            factor = 2 * (ranks - 1) / ranks
            seconds = RING_SECONDS + size * factor / speed
            yield _one("latency_seconds", seconds, cell)
            yield _one("algbw_bytes_per_second", size / seconds, cell)
            yield _one("busbw_bytes_per_second", size / seconds * factor, cell)
        case "gemm":
            for point, _ in _gpus(cell, indices):
                yield _one("flop_per_second", GEMM.get(str(params["dtype"]), 600e12), cell, point)
        case "device_memory":
            for point, _ in _gpus(cell, indices):
                yield _one("bandwidth_bytes_per_second", HBM, cell, point)
        case "kernel_launch":
            for point, _ in _gpus(cell, indices):
                yield _one("latency_seconds", 4e-6, cell, point)
        case "peer":
            slow = SLOW_GPU in {indices[d] for d in cell.devices}
            yield _one("bandwidth_bytes_per_second", (300 if slow else 390) * GB, cell)
        case "host_memory":
            apart = params.get("cpu_node") != params.get("memory_node")
            if params.get("op") == "latency":
                yield _one("latency_seconds", 140e-9 if apart else 90e-9, cell)
            else:
                yield _one("bandwidth_bytes_per_second", (120 if apart else 240) * GB, cell)


def _gpus(cell: Cell, indices: dict[str, int]) -> Iterator[tuple[dict[str, Scalar], float]]:
    """The parts of a cell's GPUs: without a point where it has one."""
    arm = REMOTE_SHARE if cell.arm.binding.name == "remote" else 1.0
    for number, device in enumerate(cell.devices):
        share = arm * (SLOW_SHARE if indices[device] == SLOW_GPU else 1.0)
        yield ({"device": device, "rank": number} if len(cell.devices) > 1 else {}), share


def _one(metric: str, value: float, cell: Cell, point: dict[str, Scalar] | None = None) -> Reading:
    """Five samples about the value; every process a little off, by its block."""
    wobble = 1 + 0.001 * ((cell.block * 7 + cell.process_no * 3 + cell.order_in_block) % 5 - 2)
    samples = tuple(value * wobble * (1 + 0.0005 * k) for k in (-2, -1, 0, 1, 2))
    kept = {k: v for k, v in (point or {}).items() if k == "device"}
    return Reading(metric, summarise(samples), samples, kept)


def store_at(folder: Path, name: str = "topobench.db") -> str:
    """The URL of a SQLite file in a folder."""
    return f"sqlite:///{folder / name}"


def fill_rich(url: str, host_name: str = "gpu01", *, gpus: int = 4, **more: Any) -> str:
    """A sweep with something for every figure of a GPU host; its UUID."""
    return fill(
        url,
        [host(host_name, gpus=gpus)],
        probes="host_memory,host_to_device,device_memory,gemm,kernel_launch,peer,all_reduce",
        sets=[
            "host_to_device.bytes=4K,64K,1M,16M,256M",
            "host_to_device.direction=h2d",
            f"all_reduce.ranks={gpus}",
            "gemm.dtype=bf16,fp8",
            "peer.op=read",
        ],
        bindings="none,local,remote",
        rings=["auto", "auto_ring", "best"],
        blocks=6,
        **more,
    )
