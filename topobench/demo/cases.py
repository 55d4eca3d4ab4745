"""
What is measured on each host of the synthetic fleet, and what a typical host gives; pure.

Sixty series a host and night, some more on the last one: arms come from the planner's own rules,
parameters from the probes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from topobench import rings
from topobench.bindings import equal_threads, numa_matrix, resolve, united, with_threads
from topobench.choice import Choice
from topobench.config import BindingChoice, ProbeChoice
from topobench.demo.effects import GPUS
from topobench.demo.hosts import Sku
from topobench.reading import Arm, Binding, Case, Scalar
from topobench.topology import Gpu, Topology

KIB, MIB = 1 << 10, 1 << 20
NIGHTLY_BLOCKS = 2
"""Processes of a series whose arms are compared, on an ordinary night; others have one."""
BANDWIDTH = "bandwidth_bytes_per_second"
PREFILL_FLOP_PER_TOKEN = 2 * 8.03e9
PREFILL_ERRORS = {"bf16": 0.011, "fp16": 0.0014, "fp8": 0.048, "int8": 0.021}
"""Distance of the logits from those in float32, by type."""
PREFILL_ARMS = {"none": 1.004, "local": 1.0, "spread": 1.006}
"""Binding arm -> share of the local time that a prompt takes: next to nothing."""
HOST_SECONDS = 4e-4


@dataclass(frozen=True, slots=True)
class Level:
    """A metric of a series and its value on a typical host."""

    metric: str
    value: float

    @property
    def is_time(self) -> bool:
        """Whether a faster host has a smaller value."""
        return self.metric.endswith("_seconds")


@dataclass(frozen=True, slots=True)
class Series:
    """
    What is measured again and again on a host.

    Args:
        gpus: Indices of its GPUs, in order.
        compared: It stands beside other arms, in blocks.
        order: Position among those arms.
        last: It is measured on the last night alone.
    """

    case: Case
    arm: Arm
    gpus: tuple[int, ...]
    levels: tuple[Level, ...]
    seconds: float
    compared: bool = False
    order: int = 0
    last: bool = False


@dataclass(frozen=True, slots=True)
class Speeds:
    """
    What a typical host of an SKU does, in base SI units.

    Args:
        copies: (bytes, queued, per call) of H2D copies under the local arm.
        arms: Binding arm -> share of the local speed that it keeps.
        gemm: Type of the operands -> FLOP/s.
        reduced: Bytes -> seconds of an all-reduce over all GPUs as NCCL chooses.
        ring_ratios: Ring arm -> share of auto's speed at the largest size.
    """

    copies: tuple[tuple[int, float, float], ...]
    arms: dict[str, float]
    device_memory: float
    gemm: dict[str, float]
    launch_seconds: dict[str, float]
    peer: float
    reduced: dict[int, float]
    ring_ratios: dict[str, float]
    prefill_efficiency: float
    host_memory: tuple[float, float]


SPEEDS = {
    "h200-sxm8": Speeds(
        copies=(
            (64 * KIB, 16.8e9, 4.6e9),
            (MIB, 48.0e9, 47.0e9),
            (256 * MIB, 55.2e9, 55.1e9),
        ),
        arms={"none": 0.975, "local": 1.0, "remote": 0.90},
        device_memory=4.15e12,
        gemm={
            "bf16": 7.2e14, "fp16": 7.4e14, "tf32": 3.9e14,
            "fp32": 5.1e13, "fp8": 1.32e15, "int8": 1.38e15,
        },
        launch_seconds={"synchronised": 9.4e-6, "graph": 1.3e-6},
        peer=3.94e11,
        reduced={8 * KIB: 2.6e-5, MIB: 4.4e-5, 128 * MIB: 5.5e-4},
        ring_ratios={
            "auto": 1.0, "auto_ring": 0.84, "identity": 0.84, "best": 0.84, "worst": 0.84,
        },
        prefill_efficiency=0.74,
        host_memory=(3.6e11, 1.7e11),
    ),
    "l40s-pcie8": Speeds(
        copies=(
            (64 * KIB, 11.5e9, 3.9e9),
            (MIB, 22.8e9, 22.1e9),
            (256 * MIB, 26.4e9, 26.3e9),
        ),
        arms={"none": 0.98, "local": 1.0, "remote": 0.93},
        device_memory=7.2e11,
        gemm={
            "bf16": 2.3e14, "fp16": 2.35e14, "tf32": 1.15e14,
            "fp32": 4.6e13, "fp8": 4.4e14, "int8": 4.5e14,
        },
        launch_seconds={"synchronised": 8.8e-6, "graph": 1.5e-6},
        peer=2.2e10,
        reduced={8 * KIB: 6.1e-5, MIB: 2.1e-4, 128 * MIB: 1.75e-2},
        ring_ratios={
            "auto": 1.0, "auto_ring": 1.0, "identity": 1.0, "best": 1.06, "worst": 0.71,
        },
        prefill_efficiency=0.66,
        host_memory=(2.9e11, 1.2e11),
    ),
}  # fmt: skip
"""By name of the SKU."""


def series_of(sku: Sku, topology: Topology) -> tuple[Series, ...]:
    """The series of one host, in the order they are measured."""
    speeds = SPEEDS[sku.name]
    return (
        *_host_memory(speeds, topology),
        *_copies(speeds, topology),
        *_insides(speeds, topology),
        *_launches(speeds, topology),
        *_prefill(speeds, topology),
        *_peers(speeds, topology),
        *_all_reduce(speeds, topology),
        *_prompts(speeds, topology),
    )


def _timed(probe: str, **params: Scalar) -> tuple[Case, float]:
    """The case that the planner makes of these parameters, and about how long it takes."""
    choice = Choice(ProbeChoice(probe, {k: (v,) for k, v in params.items()}))
    case, seconds, _ = choice.cases()[0]
    return case, seconds


def _arm(name: str, topology: Topology, gpu: Gpu | None) -> Arm:
    """A binding arm with the threads that all arms share."""
    names = ("none", "local", "remote", "spread") if gpu else ("none", "local")
    found = {n: resolve(BindingChoice(n), topology, gpu) for n in names}
    bound = {n: b for n, b in found.items() if isinstance(b, Binding)}
    return Arm(with_threads(bound[name], equal_threads(bound.values(), topology)))


def _host_memory(speeds: Speeds, topology: Topology) -> Iterator[Series]:
    arms = [a for a in numa_matrix(topology) if isinstance(a.resolved, Binding)]
    threads = equal_threads([a.resolved for a in arms if isinstance(a.resolved, Binding)], topology)
    for place in arms:
        assert isinstance(place.resolved, Binding)
        near = place.cpu_node == place.memory_node
        level = Level(BANDWIDTH, speeds.host_memory[0 if near else 1])
        case, seconds = _timed(
            "host_memory", op="copy", cpu_node=place.cpu_node, memory_node=place.memory_node
        )
        yield Series(case, Arm(with_threads(place.resolved, threads)), (), (level,), seconds)


def _copies(speeds: Speeds, topology: Topology) -> Iterator[Series]:
    """By chunk and arm on one GPU; the largest chunk on every GPU."""
    largest = speeds.copies[-1]
    for order, (arm, kept) in enumerate(speeds.arms.items()):
        for copy in speeds.copies:
            yield _copy(copy, "h2d", _arm(arm, topology, topology.gpus[0]), 0, kept, order)
    for gpu in topology.gpus[1:]:
        yield _copy(largest, "h2d", _arm("local", topology, gpu), gpu.index or 0, 1.0, None)
    yield _copy(largest, "d2h", _arm("local", topology, topology.gpus[0]), 0, 1.0, None)


def _copy(
    copy: tuple[int, float, float], way: str, arm: Arm, gpu: int, kept: float, order: int | None
) -> Series:
    size, queued, per_call = copy
    case, seconds = _timed(
        "host_to_device", bytes=size, direction=way, memory="pinned", at_once="one"
    )
    levels = (
        Level(BANDWIDTH, queued * kept),
        Level("per_call_bandwidth_bytes_per_second", per_call * kept),
    )
    return Series(case, arm, (gpu,), levels, seconds, order is not None, order or 0)


def _insides(speeds: Speeds, topology: Topology) -> Iterator[Series]:
    """Memory and products of every GPU; the other types on the first."""
    for gpu in topology.gpus:
        arm, index = _arm("none", topology, gpu), gpu.index or 0
        case, seconds = _timed("device_memory", op="copy", at_once="one")
        level = Level(BANDWIDTH, speeds.device_memory)
        yield Series(case, arm, (index,), (level,), seconds)
        for dtype, rate in speeds.gemm.items():
            if dtype == "bf16" or index == 0:
                case, seconds = _timed("gemm", dtype=dtype, at_once="one")
                yield Series(case, arm, (index,), (Level("flop_per_second", rate),), seconds)


def _launches(speeds: Speeds, topology: Topology) -> Iterator[Series]:
    first = topology.gpus[0]
    for order, arm in enumerate(("local", "remote")):
        slower = 1.0 if arm == "local" else 1.18
        for mode, seconds_each in speeds.launch_seconds.items():
            if arm == "local" or mode == "synchronised":
                case, seconds = _timed("kernel_launch", mode=mode, at_once="one")
                level = Level("latency_seconds", seconds_each * slower)
                yield Series(case, _arm(arm, topology, first), (0,), (level,), seconds, order=order)


def _prefill(speeds: Speeds, topology: Topology) -> Iterator[Series]:
    """Time of the device, tokens by time, and the share of the measured product rate."""
    arm = _arm("local", topology, topology.gpus[0])
    for tokens, dtype in ((512, "bf16"), (2048, "bf16"), (8192, "bf16"), (2048, "fp8")):
        yield _prompt(speeds, tokens, dtype, arm)


def _prompts(speeds: Speeds, topology: Topology) -> Iterator[Series]:
    """The other lengths and precisions of prefill, and one prompt under three bindings."""
    arm = _arm("local", topology, topology.gpus[0])
    for tokens in (128, 256, 1024, 4096, 16384, 32768):
        yield replace(_prompt(speeds, tokens, "bf16", arm), last=True)
    for dtype in ("fp16", "int8"):
        yield replace(_prompt(speeds, 2048, dtype, arm), last=True)
    for order, (name, longer) in enumerate(PREFILL_ARMS.items()):
        found = _prompt(speeds, 2048, "bf16", _arm(name, topology, topology.gpus[0]), "eager")
        wall = Level("prefill_wall_seconds", longer * (found.levels[0].value + HOST_SECONDS))
        levels = (*found.levels, wall)
        yield replace(found, levels=levels, compared=True, order=order, last=True)


def _prompt(speeds: Speeds, tokens: int, dtype: str, arm: Arm, mode: str = "graph") -> Series:
    used = speeds.prefill_efficiency * tokens / (tokens + 180.0)
    rate = speeds.gemm[dtype] * used
    seconds = tokens * PREFILL_FLOP_PER_TOKEN / rate
    levels = (
        Level("prefill_device_seconds", seconds),
        Level("tokens_per_second", tokens / seconds),
        Level("relative_error_ratio", PREFILL_ERRORS[dtype]),
    )
    return Series(_prefill_case(tokens, dtype, mode), arm, (0,), levels, 2.0)


def _prefill_case(tokens: int, dtype: str, mode: str) -> Case:
    shape: dict[str, Scalar] = {"shape": "llama3-8b", "sequence": tokens, "batch": 1}
    return Case("prefill", 1, {**shape, "dtype": dtype, "tensor_parallel": 1, "mode": mode})


def _peers(speeds: Speeds, topology: Topology) -> Iterator[Series]:
    arm = _arm("none", topology, topology.gpus[0])
    for first in range(0, GPUS, 2):
        case, seconds = _timed("peer", bytes=256 * MIB, op="write", ways="one")
        yield Series(case, arm, (first, first + 1), (Level(BANDWIDTH, speeds.peer),), seconds)


def _all_reduce(speeds: Speeds, topology: Topology) -> Iterator[Series]:
    """By size as NCCL chooses; the largest under every ring arm."""
    everyone = tuple(range(GPUS))
    largest = max(speeds.reduced)
    for size, taken in speeds.reduced.items():
        case, seconds = _timed("all_reduce", bytes=size, ranks=GPUS, backend="nccl")
        names = speeds.ring_ratios if size == largest else {"auto": 1.0}
        for order, (ring, ratio) in enumerate(names.items()):
            levels = _reduced(size, taken / ratio)
            arm = _gang_arm(topology, ring)
            yield Series(case, arm, everyone, levels, seconds, size == largest, order)


def _reduced(size: int, seconds: float) -> tuple[Level, ...]:
    return (
        Level("latency_seconds", seconds),
        Level("algbw_bytes_per_second", size / seconds),
        Level("busbw_bytes_per_second", 2 * (GPUS - 1) / GPUS * size / seconds),
    )


def _gang_arm(topology: Topology, ring: str) -> Arm:
    """Every rank bound near its GPU."""
    found = [resolve(BindingChoice("local"), topology, g) for g in topology.gpus]
    bound = [b for b in found if isinstance(b, Binding)]
    threads = equal_threads(bound, topology, GPUS)
    settings = {} if ring == rings.AUTO else dict(rings.RING_ONLY)
    return Arm(
        with_threads(united(bound), threads),
        ring,
        settings,
        tuple(with_threads(b, threads) for b in bound),
    )
