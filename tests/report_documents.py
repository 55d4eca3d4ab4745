"""Sweep documents, written by hand, as the database gives them."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

Document = dict[str, Any]

STORE = "sqlite:///topobench.db"


def host(name: str = "gpu01", gpus: int = 0, **changes: Any) -> Document:
    """A host of a sweep document."""
    description = {
        "sku": f"{gpus}x H200 / 2x Xeon Platinum 8480C" if gpus else "1x EPYC 7B13",
        "cpu_model": "Intel(R) Xeon(R) Platinum 8480C" if gpus else "AMD EPYC 7B13",
        "cpus": 224 if gpus else 8,
        "numa_nodes": 2 if gpus else 1,
        "memory_bytes": 2 * 2**40 if gpus else 16 * 2**30,
        "gpus": [{"model": "NVIDIA H200", "count": gpus}] if gpus else [],
        "devices": [
            {"key": gpu_uuid(name, i), "index": i, "pci_address": f"0000:{16 + i:02x}:00.0"}
            for i in range(gpus)
        ],
        "shared_paths": [],
        "nvlink": 18 if gpus > 1 else None,
        "nics": 8 if gpus else 1,
        "nvme": 4 if gpus else 0,
        "virtualization": "none" if gpus else "kvm",
        "trust": "full" if gpus else "low",
        "kernel": "6.8.0-45-generic",
        "driver": "580.159.04" if gpus else None,
        "cuda": "13.0" if gpus else None,
    }
    facts: Document = {
        "hostname": name,
        "interpreter": "/opt/venv/bin/python",
        "topobench": "0.1.0",
        "source_digest": "ab" * 32,
        "python": "3.11.9",
        "numactl": "/usr/bin/numactl" if gpus else None,
        "memory_policy": "ok",
        "torch": "2.13.0+cu130" if gpus else "2.13.0+cpu",
        "torch_gpus": [gpu_uuid(name, i) for i in range(gpus)] if gpus else None,
        "torch_error": None,
        "packages": {},
        "binaries": {},
        "inherited_cpus": None,
        "available_memory_bytes": None,
        "shm_bytes": None,
        "free_disk_bytes": None,
    }
    value: Document = {
        "key": f"key-{name}",
        "name": name,
        "address": "10.9.0.10",
        "sku": None,
        "description": description,
        "facts": facts,
        "fingerprints": {"shape": "tfp1:aa", "config": "tfp1:bb", "health": "tfp1:cc"},
        "warnings": [],
    }
    return {**value, **changes}


def gpu_uuid(name: str, index: int) -> str:
    return f"GPU-{uuid.uuid5(uuid.NAMESPACE_DNS, f'{name}/{index}')}"


def binding(name: str = "none", cpu_node: int | None = None, memory_node: int | None = None) -> Any:
    return {
        "name": name,
        "cpus": None if cpu_node is None else "0-3",
        "cpu_nodes": [] if cpu_node is None else [cpu_node],
        "memory": "default" if memory_node is None else "bind",
        "memory_nodes": [] if memory_node is None else [memory_node],
        "threads": 4,
    }


def cell(probe: str, readings: Sequence[Document] = (), **changes: Any) -> Document:
    """A cell of a sweep document; ok unless said otherwise."""
    arm = changes.pop("binding", None) or binding()
    value: Document = {
        "id": str(uuid.uuid5(uuid.NAMESPACE_DNS, f"{probe}{changes}")),
        "host": "key-gpu01",
        "probe": probe,
        "version": 1,
        "params": {},
        "arm": arm["name"],
        "binding": arm,
        "ring": None,
        "env": {},
        "devices": [],
        "hosts": [],
        "ranks": 1,
        "process_no": 0,
        "block": 0,
        "order_in_block": 0,
        "estimated_seconds": 2.0,
        "status": "ok",
        "reason": None,
        "seconds": 1.5,
        "attempt": 1,
        "readings": list(readings),
        "members": [],
        "warnings": [],
        "conditions": {},
        "log_tail": "",
    }
    return {**value, **changes}


def reading(metric: str, median: float | None, **changes: Any) -> Document:
    """A reading with a spread of 0.4 % over 20 samples."""
    unit = "s" if metric.endswith("_seconds") else "1" if metric.endswith("_ratio") else "B/s"
    scaled = {
        key: None if median is None else median * factor
        for key, factor in (
            ("ci_lo", 0.998), ("ci_hi", 1.002), ("mad", 0.004), ("minimum", 0.98),
            ("maximum", 1.01), ("p90", 1.005),
        )
    }  # fmt: skip
    value: Document = {
        "metric": metric,
        "unit": unit,
        "better": -1 if unit == "s" else 1,
        "point": {},
        "median": median,
        **scaled,
        "ci_level": "within",
        "n": 20,
        "p99": None,
        "stop_reason": "converged",
    }
    return {**value, **changes}


def sweep(hosts: Sequence[Document], cells: Sequence[Document], **changes: Any) -> Document:
    """The ``data`` of ``topobench probe --format json``."""
    head: Mapping[str, Any] = {
        "id": "1a2b3c4d-0000-4000-8000-000000000000",
        "cluster": "lab",
        "profile": "quick",
        "trigger": "manual",
        "status": "done",
        "seed": 7,
        "tool_version": "0.1.0",
        "started_at": "2026-11-29T16:00:00.000000Z",
        "ended_at": "2026-11-29T16:01:12.500000Z",
        "estimated_seconds": 65.0,
        "warnings": [],
    }
    return {
        "sweep": {**head, **changes},
        "cluster": "lab",
        "hosts": list(hosts),
        "cells": list(cells),
        "counts": dict(Counter(c["status"] for c in cells)),
        "store": STORE,
    }


def cpu_host_sweep() -> Document:
    """One host without GPUs: two probes ran, the GPU probe was skipped."""
    memory = [
        cell(
            "host_memory",
            [reading("bandwidth_bytes_per_second", rate)],
            params={"bytes": 256 * 2**20, "kernel": kernel, "threads": 4},
            binding=binding("cpu0.mem0", 0, 0),
        )
        for kernel, rate in (("copy", 21.3e9), ("triad", 18.72e9))
    ]
    memory.append(
        cell(
            "host_memory",
            [reading("latency_seconds", 92.4e-9)],
            params={"bytes": 256 * 2**20, "kernel": "chase", "threads": 1},
            binding=binding("cpu0.mem0", 0, 0),
        )
    )
    reduce = [
        cell(
            "all_reduce",
            [
                reading("latency_seconds", seconds),
                reading("algbw_bytes_per_second", size / seconds),
                reading("busbw_bytes_per_second", size / seconds),
            ],
            params={"bytes": size, "backend": "gloo", "dtype": "float32"},
            ranks=2,
        )
        for size, seconds in ((8192, 143e-6), (2**20, 912e-6), (128 * 2**20, 0.0901))
    ]
    skipped = [
        cell(
            "host_to_device",
            params={"bytes": size, "direction": d},
            status="skipped",
            reason="no_gpu: the driver reports no GPU on this host",
            seconds=None,
        )
        for size in (65536, 2**20, 256 * 2**20)
        for d in ("h2d", "d2h")
    ]
    remote = cell(
        "host_memory",
        params={"bytes": 256 * 2**20, "kernel": "copy", "threads": 4},
        binding=binding("remote"),
        status="not_applicable",
        reason="one_numa_node: this host has one NUMA node",
        seconds=None,
    )
    return sweep([host()], [*memory, *reduce, *skipped, remote])


COPY_RATES = {65536: (16.8e9, 4.6e9), 2**20: (48.0e9, 47.6e9), 256 * 2**20: (55.3e9, 55.1e9)}


def copies(name: str, gpu: int, arms: Sequence[str] = ("none", "local")) -> list[Document]:
    """Host to device and back, of one GPU."""
    return [
        cell(
            "host_to_device",
            [
                reading("bandwidth_bytes_per_second", queued * (1 - gpu / 500)),
                reading("per_call_bandwidth_bytes_per_second", per_call * (1 - gpu / 500)),
            ],
            host=f"key-{name}",
            devices=[gpu_uuid(name, gpu)],
            params={"chunk_bytes": size, "direction": direction, "memory": "pinned"},
            binding=binding(arm),
        )
        for size, (queued, per_call) in COPY_RATES.items()
        for direction in ("h2d", "d2h")
        for arm in arms
    ]


def reductions(name: str, gpus: int, arms: Sequence[str] = ("none",)) -> list[Document]:
    return [
        cell(
            "all_reduce",
            [
                reading("latency_seconds", seconds),
                reading("algbw_bytes_per_second", size / seconds),
                reading("busbw_bytes_per_second", size / seconds * 2 * (gpus - 1) / gpus),
            ],
            host=f"key-{name}",
            devices=[gpu_uuid(name, i) for i in range(gpus)],
            params={"bytes": size, "backend": "nccl", "dtype": "float32"},
            binding=binding(arm),
            ranks=gpus,
        )
        for size, seconds in ((8192, 7.4e-6), (2**20, 21.5e-6), (128 * 2**20, 471e-6))
        for arm in arms
    ]


def troubled_sweep() -> Document:
    """Two GPUs: good cells beside one invalid, one failed, one timed out and one not reached."""
    cells = [*copies("gpu01", 0), *copies("gpu01", 1), *reductions("gpu01", 2)]
    bad = cells[5]
    bad.update(
        status="invalid",
        reason="throttled: SM clock fell to 345 MHz (power cap) during the timed part",
        readings=[
            reading("bandwidth_bytes_per_second", None, raw_value=9.31e9),
            reading("per_call_bandwidth_bytes_per_second", None, raw_value=9.02e9),
        ],
    )
    cells[-1].update(
        status="failed",
        reason="cuda_error: CUDA error: an illegal memory access was encountered",
        readings=[],
        log_tail="rank 1: start\nterminate called\nCUDA error: an illegal memory access\n",
    )
    cells[-2].update(status="timeout", reason="deadline: no answer in 60 s", readings=[])
    cells[8].update(status="planned", readings=[], seconds=None)
    document = sweep([host(gpus=2)], cells, status="interrupted")
    document["hosts"][0]["warnings"] = [
        {"code": "link_degraded", "subject": "gpu:1", "text": "PCIe link runs x8 of x16"}
    ]
    return document


def eight_gpu_sweep() -> Document:
    """One host with eight GPUs."""
    cells = [c for gpu in range(8) for c in copies("gpu01", gpu)]
    return sweep([host(gpus=8)], [*cells, *reductions("gpu01", 8)])


def fleet_sweep(hosts: int) -> Document:
    """Many hosts, one of which was lost and one of which is slow."""
    names = [f"h{i:04d}" for i in range(hosts)]
    cells = [c for n in names for c in copies(n, 0, arms=("local",))]
    for lost in [c for c in cells if c["host"] == f"key-{names[1]}"]:
        lost.update(status="failed", reason="host_lost: no answer for 30 s", readings=[])
    return sweep(
        [host(n, gpus=1, address=f"10.9.{i // 250}.{i % 250}") for i, n in enumerate(names)], cells
    )
