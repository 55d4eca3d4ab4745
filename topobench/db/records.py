"""Turns the words of a measurement into rows: pure values in, plain dicts out."""

from __future__ import annotations

import array
import dataclasses
import hashlib
import json
import math
import operator
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from topobench.db import schema
from topobench.db.columns import (
    canonical_json,
    clean_text,
    digest,
    parse_time,
    time_text,
    unix_seconds,
)
from topobench.device_sets import distance
from topobench.host import Host, describe
from topobench.reading import (
    MEASURED,
    Arm,
    Case,
    Cell,
    Member,
    Reading,
    Reason,
    ReasonCode,
    Run,
    Status,
    to_json,
)
from topobench.sku import form_factor, nic_names
from topobench.topology import Topology

Row = dict[str, Any]

F32_LARGEST = 3.4028234663852886e38
CODEC_F32 = 1
"""Samples as float32, little-endian, in measured order."""

OPS = frozenset(
    {
        "all_reduce",
        "all_gather",
        "reduce_scatter",
        "all_to_all",
        "broadcast",
        "reduce",
        "gather",
        "scatter",
        "send_recv",
        "hypercube",
    }
)

CASE_COLUMNS: Mapping[str, tuple[type, tuple[str, ...]]] = {
    "bytes": (int, ("bytes", "message_bytes", "chunk_bytes", "buffer_bytes", "size_bytes")),
    "seq_len": (int, ("seq_len", "sequence", "context")),
    "batch": (int, ("batch", "concurrency")),
    "dtype": (str, ("dtype", "precision")),
    "model": (str, ("model", "shape")),
    "op": (str, ("op",)),
    "tp": (int, ("tp", "tensor_parallel")),
    "direction": (str, ("direction",)),
    "memory": (str, ("memory",)),
    "cpu_node": (int, ("cpu_node",)),
    "memory_node": (int, ("memory_node",)),
    "backend": (str, ("backend", "server")),
}
"""Column of ``probe_case`` -> its type and the parameters it is taken from, first that exists."""

SUMMARY_NUMBERS = ("median", "ci_lo", "ci_hi", "mad", "minimum", "maximum", "p90", "p99")
_summary = operator.attrgetter(*SUMMARY_NUMBERS)
_member = operator.attrgetter(*(f.name for f in dataclasses.fields(Member)))
_encode = json.JSONEncoder(sort_keys=True, default=to_json).encode


def case_row(case: Case) -> Row:
    """A row of ``probe_case``."""
    row: Row = {
        "digest": digest(case.probe, case.version, case.params_hash),
        "probe": case.probe,
        "probe_version": case.version,
        "params_hash": case.params_hash,
        "params": dict(case.params),
    }
    for column, (kind, names) in CASE_COLUMNS.items():
        value = next((case.params[n] for n in names if n in case.params), None)
        row[column] = value if isinstance(value, kind) and not isinstance(value, bool) else None
    if row["op"] is None and case.probe in OPS:
        row["op"] = case.probe
    return row


def arm_row(arm: Arm) -> Row:
    """A row of ``arm``; its digest tells arms of one name but another definition apart."""
    document = to_json(arm)
    if arm.env_name is None:  # arms of old keep their digests
        del document["env_name"]
    binding = arm.binding
    return {
        "digest": digest(document),
        "name": arm.name,
        "binding": binding.name,
        "ring": arm.ring,
        "cpus": binding.cpus,
        "cpu_nodes": ",".join(map(str, binding.cpu_nodes)),
        "memory_policy": str(binding.memory),
        "memory_nodes": ",".join(map(str, binding.memory_nodes)),
        "threads": binding.threads,
        "env": dict(arm.env),
        "document": document,
    }


def cell_row(cell: Cell, *, sweep_id: int, series_id: int, position: int) -> Row:
    """A row of ``cell``, without its path class."""
    return {
        "uuid": cell.id,
        "sweep_id": sweep_id,
        "series_id": series_id,
        "position": position,
        "process_no": cell.process_no,
        "block": cell.block,
        "order_in_block": cell.order_in_block,
        "arm": cell.arm.name,
        "binding": cell.arm.binding.name,
        "ring": cell.arm.ring,
        "estimated_seconds": finite(cell.estimated_seconds) or 0.0,
        "status": str(cell.status),
        **reason_columns(cell.reason),
        "attempt": 0,
    }


def reason_columns(reason: Reason | None) -> Row:
    """``reason_code`` and ``reason``."""
    if reason is None:
        return {"reason_code": None, "reason": None}
    return {"reason_code": str(reason.code), "reason": clean_text(reason.text)}


def reason_from(row: Any) -> Reason | None:
    """The reason of a row that has :func:`reason_columns`."""
    if row.reason_code is None:
        return None
    return Reason.from_text(f"{row.reason_code}: {row.reason}")


def run_row(run: Run, status: Status, reason: Reason | None) -> Row:
    """A row of ``run``, without its foreign keys."""
    started = time_text(parse_time(run.started_at))
    duration = finite(run.duration_seconds)
    return {
        "uuid": run.id,
        "day": started[:10],
        "attempt": run.attempt,
        "status": str(status),
        **reason_columns(reason),
        "started_at": started,
        "started_unix_seconds": unix_seconds(started),
        "duration_seconds": duration if duration is not None and duration >= 0 else None,
        "digest": run_digest(run),
        "attention": _attention(run.conditions),
    }


def _attention(conditions: Mapping[str, Any]) -> str | None:
    """The kernel of attention that a worker chose; views pair none that chose another."""
    chosen = conditions.get("attention")
    return None if chosen is None else clean_text(str(chosen))


def run_digest(run: Run) -> str:
    """Equal for the same run sent twice, also by way of the spool."""
    head = (
        *(run.id, run.cell, run.status, str(run.reason), run.started_at, run.duration_seconds),
        *(run.attempt, run.environment, run.conditions, run.warnings, run.log_tail),
        *map(_member, run.members),
    )
    state = hashlib.blake2b(_encode(head).encode(), digest_size=16)
    for reading in run.readings:
        s = reading.summary
        point = sorted(reading.point.items()) if reading.point else ""
        level, stop = s.ci_level.value, s.stop_reason
        words = f"{reading.metric} {s.n} {level} {s.warmups} {stop} {point} {_summary(s)}"
        state.update(words.encode("utf-8", "surrogatepass"))
        state.update(array.array("d", reading.samples).tobytes())
    return state.hexdigest()


def judged_status(run: Run, bad: Sequence[str]) -> tuple[Status, Reason | None]:
    """
    The status a run is stored with, once its unusable readings are known.

    Args:
        bad: What is wrong, one text an unusable reading.
    """
    if not bad or run.status not in MEASURED:
        return run.status, run.reason
    reason = Reason(ReasonCode.INVALID_VALUE, "; ".join(bad[:3]))
    whole = len(bad) == len(run.readings)
    return (Status.INVALID if whole else Status.PARTIAL), reason


def fault(reading: Reading, *, above_zero: bool) -> str | None:
    """
    Why a reading's numbers can't be used, or None.

    Args:
        above_zero: The metric is a time or a speed.
    """
    s = reading.summary
    for name, value in zip(SUMMARY_NUMBERS, _summary(s), strict=True):
        if value is not None and not math.isfinite(value):
            return f"{reading.metric} {name} is {value}"
    if not _packable(reading.samples):
        return f"{reading.metric} has a sample that is no number"
    if above_zero and (s.median <= 0 or s.minimum < 0):
        return f"{reading.metric} is {min(s.median, s.minimum):g}, not above 0"
    return None


def reading_row(run_id: int, seq: int, reading: Reading, metric_id: int, *, usable: bool) -> Row:
    """A row of ``reading``; an unusable value is kept apart as raw."""
    s = reading.summary
    rank = reading.point.get("rank") if reading.point else None
    row: Row = {
        "run_id": run_id,
        "seq": seq,
        "metric_id": metric_id,
        "rank": rank if isinstance(rank, int) else None,
        "point": canonical_json(dict(reading.point)) if reading.point else "{}",
        "n": s.n,
        "ci_level": s.ci_level.value,
        "warmups": s.warmups,
        "stop_reason": s.stop_reason,
        "ceiling": finite(reading.ceiling),
        "ceiling_source": reading.ceiling_source,
        "raw_value": None if usable else finite(s.median),
        "raw_text": None if usable else repr(s.median),
    }
    row.update(zip(SUMMARY_NUMBERS, _summary(s) if usable else _NOTHING, strict=True))
    return row


_NOTHING = (None,) * len(SUMMARY_NUMBERS)


def sample_rows(
    run_id: int, readings: Sequence[Reading], faults: Sequence[str | None]
) -> list[Row]:
    """
    Rows of ``sample``, for the readings whose samples are all numbers.

    Args:
        faults: What :func:`fault` said of each reading.
    """
    return [
        {
            "run_id": run_id,
            "seq": seq,
            "codec": CODEC_F32,
            "n": len(reading.samples),
            "data": pack_samples(reading.samples),
        }
        for seq, (reading, wrong) in enumerate(zip(readings, faults, strict=True))
        if reading.samples and (wrong is None or _packable(reading.samples))
    ]


_WINDOW_COLUMNS = tuple(
    c.name for c in schema.slo_window.columns if c.name not in ("run_id", "valid")
)


def window_rows(run_id: int, conditions: Mapping[str, Any]) -> list[Row]:
    """Rows of ``slo_window``, of a run that loaded a server in windows."""
    return [
        {
            "run_id": run_id,
            **{name: window.get(name) for name in _WINDOW_COLUMNS},
            "started_at": time_text(parse_time(window["started_at"])),
            "valid": int(window["valid"]),
        }
        for window in conditions.get("windows") or ()
    ]


def _packable(samples: Sequence[float]) -> bool:
    return not samples or (math.isfinite(sum(samples)) and max(samples) <= F32_LARGEST)


def pack_samples(samples: Sequence[float]) -> bytes:
    """Samples as float32, little-endian, in order."""
    packed = array.array("f", samples)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def unpack_samples(codec: int, data: bytes) -> tuple[float, ...]:
    """
    What :func:`pack_samples` packed, at float32 precision.

    Raises:
        ValueError: The codec is not known.
    """
    if codec != CODEC_F32:
        raise ValueError(f"unknown sample codec {codec}")
    values = array.array("f", data)
    if sys.byteorder == "big":
        values.byteswap()
    return tuple(values)


def member_row(member: Member, host_id: int, device_id: int | None) -> Row:
    """A row of ``run_member``, without its run."""
    return {
        "rank": member.rank,
        "host_id": host_id,
        "device_id": device_id,
        "pid": member.pid,
        "cpus": member.cpus,
        "cpu_node": member.cpu_node,
        "memory_node": member.memory_node,
        "memory_policy": member.memory_policy,
    }


ENVIRONMENT = ("driver", "cuda", "nccl", "torch", "python", "kernel", "os", "bios", "container")
"""Columns of ``environment``; the rest of what a run says goes to ``details``."""
HOST_SETTINGS = ("governor", "boost", "mitigations")
"""Columns of ``environment`` taken from ``host_settings``, which stay in ``details`` too."""


def environment_row(environment: Mapping[str, Any], machine: Mapping[str, Any]) -> Row:
    """
    A row of ``environment``.

    Args:
        environment: What the run says of itself; it wins.
        machine: What discovery says of rank 0's host.
    """
    row: Row = {}
    for name in ENVIRONMENT:
        value = environment.get(name) or machine.get(name)
        row[name] = None if value is None else clean_text(str(value))
    details = {k: to_json(v) for k, v in environment.items() if k not in ENVIRONMENT}
    row["details"] = details
    settings = environment.get("host_settings") or {}
    row.update((name, settings.get(name)) for name in HOST_SETTINGS)
    row["digest"] = digest(row)
    return row


def sku_row(host: Host) -> Row:
    """A row of ``sku``: the name the operator gave (label ``sku``), else the derived one."""
    topology = host.topology
    described = describe(topology)
    models = [g["model"] for g in described["gpus"]]
    return {
        "name": host.labels.get("sku") or described["sku"],
        "gpu_model": models[0] if len(models) == 1 else None,
        "gpu_count": len(topology.gpus) if topology.cpus.online else None,
        "form_factor": form_factor(models[0]) if len(models) == 1 else None,
        "cpu_model": topology.cpus.model,
        "nic_model": ", ".join(sorted(set(nic_names(topology).values()))) or None,
        "vendor": topology.machine.vendor,
    }


def device_rows(topology: Topology) -> list[Row]:
    """Rows of ``device``, without host and times: GPUs, NICs, NVMe controllers."""
    rows: list[Row] = [
        {
            "kind": "gpu",
            "key": g.key,
            "uuid": g.uuid,
            "pci_address": g.pci_address,
            "model": g.model,
            "memory_bytes": g.memory_bytes,
        }
        for g in topology.gpus
    ]
    for kind, found in (("nic", topology.nics), ("nvme", topology.nvme)):
        rows += [
            {
                "kind": kind,
                "key": d.name,
                "uuid": None,
                "pci_address": d.pci_address,
                "model": getattr(d, "model", None),
                "memory_bytes": None,
            }
            for d in found
        ]
    return list({r["key"]: r for r in rows}.values())


def farthest_class(topology: Topology, devices: Sequence[str]) -> str | None:
    """The farthest path class among the pairs of some GPUs of a host; None if not known."""
    ends = {g.key: f"gpu:{g.index}" for g in topology.gpus}
    chosen = {ends.get(d) for d in devices}
    if len(chosen) < 2 or None in chosen:
        return None
    found = [p.smi for p in topology.paths if p.a in chosen and p.b in chosen and p.a != p.b]
    if not found or None in found:
        return None
    return max((c for c in found if c), key=distance)


def finite(value: float | None) -> float | None:
    """The value, or None where it is no finite number."""
    return value if value is not None and math.isfinite(value) else None
