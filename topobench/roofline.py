"""
What bounds a piece of work on a GPU: launching, its memory, its arithmetic, or its host link.

The ceilings are what the same sweep measured, not a data sheet: HBM by ``device_memory``, each
precision by ``gemm``, the host link by ``host_to_device``, launching by ``kernel_launch``. Pure.
"""

from __future__ import annotations

import enum
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from topobench.device_figures import DeviceFigure
from topobench.probes import decode_work, shapes
from topobench.probes.footprint import moved_bytes
from topobench.probes.precisions import PRECISIONS
from topobench.reading import Scalar

ELEMENT_BYTES = {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2, "fp8": 1, "int8": 1}
MIXED_SHARE = 0.5
"""Where the second bound takes more than this share of the first one's time, both count."""
LARGE_COPY_BYTES = 64 << 20


class Bound(enum.StrEnum):
    """The class that a probe's work falls in."""

    LAUNCH = "launch"
    MEMORY = "memory"
    COMPUTE = "compute"
    HOST_LINK = "host link"


Bounds = tuple[Bound, ...]
"""What bounds a piece of work; of several none alone does."""
CEILINGS = {
    Bound.LAUNCH: "kernel_launch",
    Bound.MEMORY: "device_memory",
    Bound.COMPUTE: "gemm",
    Bound.HOST_LINK: "host_to_device",
}
"""The probe that measures the ceiling of each."""


@dataclass(frozen=True, slots=True)
class Roof:
    """
    Measured ceilings of one GPU; what was not measured is None or absent.

    Args:
        memory: Read and written, bytes a second.
        flop: FLOP a second by precision.
        link: Bytes a second by direction: ``h2d``, ``d2h``, ``both``.
        launch: Seconds of one launch in a row of them.
    """

    memory: float | None = None
    flop: Mapping[str, float] = field(default_factory=dict)
    link: Mapping[str, float] = field(default_factory=dict)
    launch: float | None = None

    def ridge(self, dtype: str) -> float | None:
        """FLOP for each byte of memory from which arithmetic is the bound."""
        flop = self.flop.get(dtype)
        return None if flop is None or self.memory is None else flop / self.memory

    def launch_bytes(self, direction: str) -> float | None:
        """Size of a copy that takes as long as one launch."""
        link = self.link.get(direction)
        return None if link is None or self.launch is None else link * self.launch


@dataclass(frozen=True, slots=True)
class Work:
    """
    What one operation of a probe takes.

    Args:
        memory_bytes: Read and written in device memory.
        link_bytes: Over the host link.
    """

    launches: int = 1
    memory_bytes: float = 0.0
    flop: float = 0.0
    dtype: str = ""
    link_bytes: float = 0.0
    direction: str = ""


def roofs(figures: Sequence[DeviceFigure]) -> dict[tuple[str, str], Roof]:
    """The roof of each GPU, by host and device key; the best arm counts."""
    found: dict[tuple[str, str], list[DeviceFigure]] = defaultdict(list)
    for figure in figures:
        if len(figure.devices) == 1:
            found[figure.host, figure.devices[0]].append(figure)
    return {place: _roof(own) for place, own in found.items()}


def _roof(figures: Sequence[DeviceFigure]) -> Roof:
    def best(probe: str, metric: str, **wanted: Scalar) -> dict[Scalar, list[float]]:
        kinds: dict[Scalar, list[float]] = defaultdict(list)
        for f in figures:
            if (f.probe, f.metric) == (probe, metric) and all(
                f.params.get(k) == v for k, v in wanted.items()
            ):
                kinds[f.params.get("dtype") or f.params.get("direction")].append(f.value)
        return kinds

    copies = [f for f in figures if _is_large_copy(f)]
    speeds = [v for found in best("device_memory", _BANDWIDTH).values() for v in found]
    launches = best("kernel_launch", "latency_seconds", mode="back_to_back").values()
    flop = best("gemm", "flop_per_second", mode="burst")
    directions = {str(f.params["direction"]) for f in copies}
    return Roof(
        memory=max(speeds, default=None),
        flop={str(dtype): max(found) for dtype, found in flop.items()},
        link={d: max(f.value for f in copies if f.params["direction"] == d) for d in directions},
        launch=min((v for found in launches for v in found), default=None),
    )


def _is_large_copy(figure: DeviceFigure) -> bool:
    size = figure.params.get("bytes")
    return (
        (figure.probe, figure.metric) == ("host_to_device", _BANDWIDTH)
        and figure.params.get("memory") == "pinned"
        and isinstance(size, int)
        and size >= LARGE_COPY_BYTES
    )


def work_of(probe: str, params: Mapping[str, Scalar]) -> Work | None:
    """The work of one operation of a probe; None for a probe that the roofline does not know."""
    size, dtype = params.get("bytes"), str(params.get("dtype") or "")
    if probe == "kernel_launch":
        return Work()
    if probe == "device_memory" and isinstance(size, int):
        return Work(memory_bytes=float(size * (3 if params.get("op") == "triad" else 2)))
    if probe == "host_to_device" and isinstance(size, int):
        direction = str(params.get("direction"))
        ways = 2 if direction == "both" else 1
        return Work(launches=ways, link_bytes=float(ways * size), direction=direction)
    if probe == "prefill":
        return _prefill(params)
    if probe == "decode":
        return _decode(params)
    side = params.get("size")
    if probe == "gemm" and isinstance(side, int) and dtype in ELEMENT_BYTES:
        moved = 3.0 * side * side * ELEMENT_BYTES[dtype]
        return Work(memory_bytes=moved, flop=2.0 * side**3, dtype=dtype)
    return None


def _shape(params: Mapping[str, Scalar]) -> shapes.Shape | None:
    """None for one that this version does not know."""
    try:
        return shapes.shape_of(str(params.get("shape")))
    except ValueError:
        return None


def _prefill(params: Mapping[str, Scalar]) -> Work | None:
    """A pass of the model: launching is hidden when it is timed, so it counts as one."""
    precision = PRECISIONS.get(str(params.get("dtype")))
    sequence, batch = params.get("sequence"), params.get("batch")
    if precision is None or not isinstance(sequence, int) or not isinstance(batch, int):
        return None
    shape = _shape(params)
    if shape is None:
        return None
    return Work(
        memory_bytes=moved_bytes(shape, precision, sequence, batch),
        flop=shapes.flop(shape, sequence, batch),
        dtype=precision.product,
    )


def _decode(params: Mapping[str, Scalar]) -> Work | None:
    """A step of the model, launching hidden as in a prefill."""
    precision = PRECISIONS.get(str(params.get("dtype")))
    kept = decode_work.KEPT.get(str(params.get("kv_dtype")))
    context, batch = params.get("context"), params.get("batch")
    if not (precision and kept and isinstance(context, int) and isinstance(batch, int)):
        return None
    shape = _shape(params)
    if shape is None:
        return None
    return Work(
        memory_bytes=decode_work.read_bytes(shape, precision, kept, context, batch),
        flop=decode_work.flop(shape, context, batch),
        dtype=precision.product,
    )


def times(work: Work, roof: Roof) -> dict[Bound, float]:
    """Least seconds of each part of the work by the ceilings that are known."""
    parts = {
        Bound.LAUNCH: (float(work.launches), roof.launch and 1 / roof.launch),
        Bound.MEMORY: (work.memory_bytes, roof.memory),
        Bound.COMPUTE: (work.flop, roof.flop.get(work.dtype)),
        Bound.HOST_LINK: (work.link_bytes, roof.link.get(work.direction)),
    }
    return {bound: amount / speed for bound, (amount, speed) in parts.items() if amount and speed}


def needed(work: Work) -> Bounds:
    """The ceilings that must be known to tell what bounds the work."""
    parts = {
        Bound.LAUNCH: work.launches,
        Bound.MEMORY: work.memory_bytes,
        Bound.COMPUTE: work.flop,
        Bound.HOST_LINK: work.link_bytes,
    }
    return tuple(bound for bound, amount in parts.items() if amount)


def lacking(work: Work, roof: Roof) -> Bounds:
    """Those of them that were not measured."""
    found = times(work, roof)
    return tuple(bound for bound in needed(work) if bound not in found)


def bounds_of(work: Work, roof: Roof) -> Bounds:
    """
    What bounds the work, in the order of ``Bound``; empty where a ceiling it needs is lacking.

    Several where others take more than half of the first one's time: none alone is the bound.
    """
    found = times(work, roof)
    if lacking(work, roof):
        return ()
    longest = max(found.values())
    return tuple(b for b in Bound if found.get(b, 0.0) > MIXED_SHARE * longest)


_BANDWIDTH = "bandwidth_bytes_per_second"
