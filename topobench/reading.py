"""
The words of a measurement: metric, case, binding, arm, cell, reading, run.

Pure values; nothing here reads a clock, a file or a device. Every class turns
into plain JSON with :func:`to_json` and back with its ``from_json``.
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

Scalar = str | int | float | bool | None

UNITS = {
    "bytes_per_second": "B/s",
    "tokens_per_second": "token/s",
    "requests_per_second": "request/s",
    "flop_per_second": "FLOP/s",
    "seconds": "s",
    "bytes": "B",
    "ratio": "1",
    "count": "1",
    "watts": "W",
    "joules": "J",
    "celsius": "Cel",
    "hertz": "Hz",
}
"""Suffix of a metric's name -> its unit as stored (UCUM-like)."""


class Better(enum.IntEnum):
    """Which direction of a metric is good; stored, never guessed from the unit."""

    HIGHER = 1
    LOWER = -1
    NEITHER = 0


@dataclass(frozen=True, slots=True)
class Metric:
    """
    A measured quantity; its unit is the suffix of its name.

    Raises:
        ValueError: The name ends in no unit of :data:`UNITS`.
    """

    name: str
    better: Better
    help: str

    def __post_init__(self) -> None:
        _ = self.unit

    @property
    def unit(self) -> str:
        """
        The unit its name ends in.

        Raises:
            ValueError: It ends in none that is known.
        """
        for suffix, unit in UNITS.items():  # compound suffixes stand before their endings
            if f"_{self.name}".endswith(f"_{suffix}"):
                return unit
        raise ValueError(f"metric {self.name!r} must end in one of {', '.join(UNITS)}")


class Status(enum.StrEnum):
    """What became of a cell or run."""

    OK = "ok"
    PARTIAL = "partial"
    INVALID = "invalid"
    FAILED = "failed"
    TIMEOUT = "timeout"
    ABORTED = "aborted"
    SKIPPED = "skipped"
    NOT_APPLICABLE = "not_applicable"
    PLANNED = "planned"


MEASURED = frozenset({Status.OK, Status.PARTIAL})
"""Only readings of these enter views."""
SAMPLES_KEPT = frozenset({Status.FAILED, Status.TIMEOUT})
"""
Runs that gave no result keep what they had sampled, as raw values.

Wrong data has no speed, and what was cancelled is run again.
"""
SAMPLES_TOLD = "partial: "
"""How the warning begins that a run has such samples."""
BENIGN = MEASURED | {Status.SKIPPED, Status.NOT_APPLICABLE}
"""A sweep whose cells all end so exits with 0; ``--resume`` leaves them alone."""


class ReasonCode(enum.StrEnum):
    """Why a cell has no number, or one that must not be used."""

    NO_GPU = "no_gpu"
    NEEDS_2_GPUS = "needs_2_gpus"
    NEEDS_2_HOSTS = "needs_2_hosts"
    NEEDS_2_CPUS = "needs_2_cpus"
    NO_BINARY = "no_binary"
    NO_PACKAGE = "no_package"
    NO_NUMACTL = "no_numactl"
    TORCH_CANNOT_USE_GPU = "torch_cannot_use_gpu"
    ONE_NUMA_NODE = "one_numa_node"
    EQUAL_DISTANCES = "equal_distances"
    UNKNOWN_NUMA_NODE = "unknown_numa_node"
    CPU_NOT_ALLOWED = "cpu_not_allowed"
    MEM_NOT_ALLOWED = "mem_not_allowed"
    MEM_POLICY_DENIED = "mem_policy_denied"
    MIG = "mig"
    UNSUPPORTED = "unsupported"
    NOT_ENOUGH_MEMORY = "not_enough_memory"
    NOT_ENOUGH_DISK = "not_enough_disk"
    NOT_SELECTED = "not_selected"
    OVER_BUDGET = "over_budget"
    EQUIVALENT_ARMS = "equivalent_arms"
    INHERITED_BINDING = "inherited_binding"
    THROTTLED = "throttled"
    SHARED_GPU = "shared_gpu"
    ECC_ERROR = "ecc_error"
    ROW_REMAP = "row_remap"
    XID = "xid"
    RESET_NEEDED = "reset_needed"
    FABRIC = "fabric"
    GPU_LOST = "gpu_lost"
    BUSY = "busy"
    WRONG_BINDING = "wrong_binding"
    WRONG_ENVIRONMENT = "wrong_environment"
    WRONG_DATA = "wrong_data"
    WRONG_TRANSPORT = "wrong_transport"
    NO_ENDPOINT = "no_endpoint"
    TLS_ERROR = "tls_error"
    ENDPOINT_REFUSED = "endpoint_refused"
    WRONG_MODEL = "wrong_model"
    NOT_STREAMING = "not_streaming"
    ENDLESS_STREAM = "endless_stream"
    REQUESTS_FAILED = "requests_failed"
    CLIENT_OVERLOADED = "client_overloaded"
    UNSTEADY = "unsteady"
    RING_MISMATCH = "ring_mismatch"
    INVALID_VALUE = "invalid_value"
    DEGRADED_LINK = "degraded_link"
    CLOCK_STEP = "clock_step"
    UNTIMEABLE = "untimeable"
    OOM = "oom"
    CUDA_ERROR = "cuda_error"
    DEADLINE = "deadline"
    SIGNAL = "signal"
    CRASHED = "crashed"
    CANCELLED = "cancelled"
    HOST_LOST = "host_lost"
    RANK_LOST = "rank_lost"
    UNREACHABLE = "unreachable"
    VERSION_MISMATCH = "version_mismatch"
    PARSE = "parse"
    INHERITED = "inherited"
    INTERNAL = "internal"


@dataclass(frozen=True, slots=True)
class Reason:
    """A code for queries and a sentence for people."""

    code: ReasonCode
    text: str

    def __str__(self) -> str:
        return f"{self.code}: {self.text}"

    @classmethod
    def from_text(cls, text: str) -> Reason:
        """Parse ``code: text``; an unknown code becomes ``internal``."""
        code, _, rest = text.partition(": ")
        try:
            return cls(ReasonCode(code), rest)
        except ValueError:
            return cls(ReasonCode.INTERNAL, text)


@dataclass(frozen=True, slots=True)
class Case:
    """A probe with its parameters at one sweep point."""

    probe: str
    version: int
    params: Mapping[str, Scalar]

    @property
    def params_hash(self) -> str:
        """SHA-256 of the canonical JSON of the parameters, hexadecimal."""
        return hashlib.sha256(canonical_text(self.params).encode()).hexdigest()

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Case:
        """Read what :func:`to_json` wrote."""
        return cls(value["probe"], value["version"], dict(value["params"]))


class MemoryPolicy(enum.StrEnum):
    """The kernel memory policy a binding asks for (set_mempolicy(2))."""

    DEFAULT = "default"
    BIND = "bind"
    INTERLEAVE = "interleave"


@dataclass(frozen=True, slots=True)
class Binding:
    """
    Where a worker's threads and memory must be; CPU and memory are separate facts.

    Args:
        name: ``none``, ``local``, ``remote``, ``spread``, or the user's name.
        cpus: CPU list ("0-3,8"), already cut to the allowed set; None resets the
            affinity to the whole allowed set.
        cpu_nodes: NUMA nodes those CPUs belong to.
        memory: Memory policy; DEFAULT resets an inherited one.
        memory_nodes: NUMA nodes of the policy; empty with DEFAULT.
        threads: Compute threads a worker may start; equal across the arms compared.
    """

    name: str
    cpus: str | None = None
    cpu_nodes: tuple[int, ...] = ()
    memory: MemoryPolicy = MemoryPolicy.DEFAULT
    memory_nodes: tuple[int, ...] = ()
    threads: int = 1

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Binding:
        """Read what :func:`to_json` wrote."""
        return cls(
            name=value["name"],
            cpus=value["cpus"],
            cpu_nodes=tuple(value["cpu_nodes"]),
            memory=MemoryPolicy(value["memory"]),
            memory_nodes=tuple(value["memory_nodes"]),
            threads=value["threads"],
        )


@dataclass(frozen=True, slots=True)
class Arm:
    """
    One of several alternatives compared on the same devices.

    Args:
        binding: Always present; ``none`` where bindings are not compared. Of a gang whose
            ranks are bound apart, the union of theirs.
        ring: Name of a ring arm, or None.
        env: Settings of this arm, on top of the site's.
        rank_bindings: One for each rank, where the GPUs of a gang hang on several NUMA
            nodes; else empty, and ``binding`` is every rank's.
        env_name: Name of the settings where they are what is compared, or None.
    """

    binding: Binding
    ring: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    rank_bindings: tuple[Binding, ...] = ()
    env_name: str | None = None

    @property
    def name(self) -> str:
        """``binding``, ``binding/ring``, ``binding/ring+env``: unique within a comparison."""
        placed = "/".join(p for p in (self.binding.name, self.ring) if p)
        return f"{placed}+{self.env_name}" if self.env_name else placed

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Arm:
        """Read what :func:`to_json` wrote."""
        ranks = tuple(Binding.from_json(b) for b in value.get("rank_bindings", ()))
        binding, env = Binding.from_json(value["binding"]), dict(value["env"])
        return cls(binding, value["ring"], env, ranks, value.get("env_name"))


@dataclass(frozen=True, slots=True)
class Cell:
    """
    One probe + parameters + devices + arm + process number: what a plan is made of.

    Args:
        id: UUID made by the planner; the same cell keeps it across attempts.
        host: Key of the host (of rank 0's host for a gang).
        devices: GPU UUIDs in order; empty for a CPU measurement.
        ranks: Worker processes launched together; 1 unless the probe is a collective.
        process_no: Number of the process among equal ones, from 0.
        block: Block of an arm comparison, from 0.
        order_in_block: Position of this arm in its block, from 0.
        estimated_seconds: About how long its run takes where the planner put it: the first of
            a worker carries what the others find done.
        visible: GPUs that its worker sees, where they are more than the cell's own, so that
            the cells of several pairs can share it; else empty.
        hosts: Of a gang over several hosts, the key of each rank's host; else empty.
        status: ``planned``, or why it will not run (``skipped``, ``not_applicable``).
    """

    id: str
    case: Case
    host: str
    arm: Arm
    devices: tuple[str, ...] = ()
    ranks: int = 1
    process_no: int = 0
    block: int = 0
    order_in_block: int = 0
    estimated_seconds: float = 0.0
    status: Status = Status.PLANNED
    reason: Reason | None = None
    visible: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()

    @property
    def worker_devices(self) -> tuple[str, ...]:
        """The GPUs that its worker sees, in order."""
        return self.visible or self.devices

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Cell:
        """Read what :func:`to_json` wrote."""
        return cls(
            **{
                **value,
                "case": Case.from_json(value["case"]),
                "arm": Arm.from_json(value["arm"]),
                "devices": tuple(value["devices"]),
                "visible": tuple(value.get("visible", ())),
                "hosts": tuple(value.get("hosts", ())),
                "status": Status(value["status"]),
                "reason": Reason.from_text(value["reason"]) if value["reason"] else None,
            }
        )


class CiLevel(enum.StrEnum):
    """What an interval speaks of; only ``between`` may be compared."""

    WITHIN = "within"
    BETWEEN = "between"


@dataclass(frozen=True, slots=True)
class Summary:
    """
    Statistics of the samples of one process, in the metric's base unit.

    Args:
        n: Samples, after ``warmups`` were dropped.
        ci_lo: Lower end of the order-statistic interval of the median; None if n < 6.
        ci_level: ``within`` for one process.
        mad: Median absolute deviation, unscaled.
        p99: None unless n >= 299.
        stop_reason: converged, budget, n_max, fixed, drift or aborted.
    """

    n: int
    median: float
    minimum: float
    maximum: float
    mad: float
    ci_lo: float | None = None
    ci_hi: float | None = None
    ci_level: CiLevel = CiLevel.WITHIN
    p90: float | None = None
    p99: float | None = None
    warmups: int = 0
    stop_reason: str = "fixed"

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Summary:
        """Read what :func:`to_json` wrote."""
        return cls(**{**value, "ci_level": CiLevel(value["ci_level"])})


@dataclass(frozen=True, slots=True)
class Reading:
    """
    A metric measured in a run.

    Args:
        samples: In measured order, base unit, the warm-ups first (``summary.warmups`` of
            them, not summarised); empty if only a summary exists.
        point: Coordinates inside the run (``{"rank": 3}``); never the sweep's own.
        times: When each sample was complete, in seconds since the cell's start (in a probe:
            by the monotonic clock), or empty. They go from the worker to its agent, which
            holds them against what it saw of the devices meanwhile; they are not stored.
        better: Direction of a metric that its probe does not declare but the user; else None.
        ceiling: What the hardware could do at most, in the metric's unit; None if not known.
        ceiling_source: Where that comes from, in words.
    """

    metric: str
    summary: Summary
    samples: tuple[float, ...] = ()
    point: Mapping[str, Scalar] = field(default_factory=dict)
    times: tuple[float, ...] = ()
    better: Better | None = None
    ceiling: float | None = None
    ceiling_source: str | None = None

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Reading:
        """Read what :func:`to_json` wrote."""
        return cls(
            value["metric"],
            Summary.from_json(value["summary"]),
            tuple(value["samples"]),
            dict(value["point"]),
            tuple(value.get("times", ())),
            None if value.get("better") is None else Better(value["better"]),
            value.get("ceiling"),
            value.get("ceiling_source"),
        )


@dataclass(frozen=True, slots=True)
class Member:
    """
    One worker of a run, with the binding the kernel reported, not the one asked for.

    Args:
        host: Host key.
        device: GPU UUID, or None.
        cpus: CPU list of the worker's threads (union), as the kernel says.
        cpu_node: NUMA node of those CPUs if one; None if several or unknown.
        memory_node: NUMA node that holds the measured buffer if one; else None.
        memory_policy: As get_mempolicy(2) says: default, bind:0, interleave:0-1,
            denied, unsupported.
    """

    rank: int
    host: str
    device: str | None = None
    pid: int | None = None
    cpus: str | None = None
    cpu_node: int | None = None
    memory_node: int | None = None
    memory_policy: str | None = None

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Member:
        """Read what :func:`to_json` wrote."""
        return cls(**value)


@dataclass(frozen=True, slots=True)
class Run:
    """
    An attempt at a cell, as stored.

    Args:
        id: UUID made by whoever ran it; storing it twice stores it once.
        cell: UUID of the cell.
        attempt: From 1.
        started_at: UTC, ISO 8601 with microseconds and ``Z``; wall clock, never used
            for durations.
        duration_seconds: By the monotonic clock.
        environment: Versions and settings that explain a number (torch, cuda, env ...).
        conditions: What was true around the run (clocks, load, throttle reasons ...).
        log_tail: The last lines of the worker's stdout and stderr, secrets masked.
    """

    id: str
    cell: str
    status: Status
    reason: Reason | None
    started_at: str
    duration_seconds: float
    attempt: int = 1
    readings: tuple[Reading, ...] = ()
    members: tuple[Member, ...] = ()
    environment: Mapping[str, Any] = field(default_factory=dict)
    conditions: Mapping[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    log_tail: str = ""

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Run:
        """Read what :func:`to_json` wrote."""
        return cls(
            **{
                **value,
                "status": Status(value["status"]),
                "reason": Reason.from_text(value["reason"]) if value["reason"] else None,
                "readings": tuple(Reading.from_json(r) for r in value["readings"]),
                "members": tuple(Member.from_json(m) for m in value["members"]),
                "warnings": tuple(value["warnings"]),
            }
        )


_PLAIN = frozenset({float, int, str, bool, type(None)})


def to_json(value: Any) -> Any:
    """
    Turn any value of this module into plain JSON types.

    A :class:`Reason` becomes ``"code: text"``, an enum its value, a tuple a list.
    """
    if type(value) in _PLAIN:  # most values are samples
        return value
    if isinstance(value, Reason):
        return str(value)
    if isinstance(value, enum.Enum):
        return value.value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_json(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(k): to_json(v) for k, v in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [to_json(v) for v in value]
    return value


def canonical_text(value: Any) -> str:
    """One text for equal values of this module: JSON with sorted keys and without spaces."""
    return json.dumps(to_json(value), sort_keys=True, separators=(",", ":"))


def utc_now() -> str:
    """The time as runs tell it: UTC, ISO 8601, microseconds, ``Z``."""
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
