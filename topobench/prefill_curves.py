"""
Prefill by the length of the prompt: curves, their knees, and where theory bends them. Pure.

Curves of equal work on equal GPUs of a host are one, so that a knee is a host's. What theory
says stands beside a knee and never decides about it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from topobench import roofline
from topobench.device_figures import device_figures
from topobench.knee import MIN_POINTS, Knee, find_knee
from topobench.probes import shapes
from topobench.probes.precisions import PRECISIONS
from topobench.reading import MEASURED, CiLevel, Scalar
from topobench.roofline import Bound, Roof

Cell = Mapping[str, Any]

PROBE = "prefill"
LENGTH = "sequence"
RATE = "tokens_per_second"
LAUNCHES = "kernel_launch_count"
ATTENTION_SHARE = 0.25
"""Share of the arithmetic from which attention, which grows with the square, bends a curve."""
_USUAL: Mapping[str, Scalar] = {"tensor_parallel": 1, "at_once": "one", "attention": "auto"}
"""Parameters that are told of a curve only where they have another value."""
LONGEST = 1 << 22
"""Tokens beyond which nothing is predicted."""


Roofs = Mapping[tuple[str, str], Roof]
"""Measured ceilings by host and GPU."""


@dataclass(frozen=True, slots=True)
class Curve:
    """
    Tokens per second by length of one kind of work on one host.

    Args:
        host: Its key.
        params: Of the case, without the length, sorted by name.
        n_devices: GPUs that work together; 0 on a CPU.
        path_class: Farthest path class among them.
        device: The first GPU that was measured; None on a CPU.
        rates: Tokens of the prompt -> medians of processes, ascending.
        launches: Kernels launched by one forward; None if not counted.
    """

    host: str
    params: tuple[tuple[str, Scalar], ...]
    arm: str
    n_devices: int
    path_class: str | None
    device: str | None = field(default=None, compare=False)
    rates: Mapping[int, tuple[float, ...]] = field(default_factory=dict, compare=False)
    launches: float | None = field(default=None, compare=False)

    def param(self, name: str) -> Scalar:
        """The value of a parameter, None if it has none of that name."""
        return dict(self.params).get(name)

    @property
    def subject(self) -> str:
        """What the curve is of on any host: ``prefill llama3-8b bf16, batch 1, mode eager ...``."""
        rest = [f"{k} {v}" for k, v in self.params if k not in ("shape", "dtype", *_USUAL)]
        rest += [f"{k} {v}" for k, v in self.params if v != _USUAL.get(k, v)]
        if self.n_devices > 1:
            rest.append(f"{self.n_devices} GPUs {self.path_class or ''}".strip())
        head = f"{PROBE} {self.param('shape')} {self.param('dtype')}"
        return ", ".join([head, *rest, f"arm {self.arm}"])

    @property
    def medians(self) -> dict[int, float]:
        """Tokens of the prompt -> median over the processes."""
        return {n: statistics.median(found) for n, found in self.rates.items()}

    @property
    def is_searched(self) -> bool:
        """Whether it has enough lengths to look for a knee."""
        return len(self.rates) >= MIN_POINTS

    @property
    def knee(self) -> Knee:
        """Where growth ends; why there is none, else."""
        several = min(len(found) for found in self.rates.values()) > 1
        level = CiLevel.BETWEEN if several else CiLevel.WITHIN
        medians = self.medians
        return find_knee([*medians], [*medians.values()], level=level)


@dataclass(frozen=True, slots=True)
class Predicted:
    """
    Lengths at which theory expects a bend, in tokens; None where it is not known.

    Args:
        launch: Launching the kernels takes as long as their arithmetic (mode ``eager``).
        ridge: Arithmetic overtakes what is read and written in memory, by the ceilings of the
            same sweep.
        attention: Attention is a quarter of the arithmetic.
    """

    launch: float | None = None
    ridge: float | None = None
    attention: float | None = None


def curves(cells: Sequence[Cell]) -> list[Curve]:
    """
    Every curve of a sweep, in the order of the cells.

    Args:
        cells: Of a sweep document; only those that ended ``ok`` or ``partial`` count.
    """
    rates: dict[Curve, dict[int, list[float]]] = {}
    launches: dict[Curve, float] = {}
    for cell in cells:
        length, whole = cell["params"].get(LENGTH), _whole(cell)
        if cell["probe"] != PROBE or cell["status"] not in MEASURED:
            continue
        if isinstance(length, int) and whole.get(RATE):
            curve = _curve(cell)
            rates.setdefault(curve, {}).setdefault(length, []).append(whole[RATE])
            if whole.get(LAUNCHES):
                launches.setdefault(curve, whole[LAUNCHES])
    return [
        _filled(curve, {n: tuple(found[n]) for n in sorted(found)}, launches.get(curve))
        for curve, found in rates.items()
    ]


def predicted(curve: Curve, roofs: Roofs) -> Predicted:
    """
    Where theory expects the curve to bend.

    Args:
        roofs: Measured in the same sweep (:func:`roofs_of`).
    """
    try:
        shape = shapes.shape_of(str(curve.param("shape")))
    except ValueError:  # a shape that this version does not know
        return Predicted()
    batch = curve.param("batch")
    many = batch if isinstance(batch, int) else 1
    roof = roofs.get((curve.host, curve.device or ""), Roof())
    return Predicted(
        launch=_launch(curve, shape, many, roof),
        ridge=_ridge(curve, roof),
        attention=_first(lambda n: shapes.attention_share(shape, n) >= ATTENTION_SHARE),
    )


def roofs_of(cells: Sequence[Cell]) -> dict[tuple[str, str], Roof]:
    """The measured roof of each GPU of a sweep, by host and device key."""
    return roofline.roofs(device_figures(cells))


def _whole(cell: Cell) -> dict[str, float]:
    return {r["metric"]: r["median"] for r in cell["readings"] if not r["point"] and r["median"]}


def _curve(cell: Cell) -> Curve:
    return Curve(
        host=cell["host"],
        params=tuple(sorted((k, v) for k, v in cell["params"].items() if k != LENGTH)),
        arm=cell["arm"],
        n_devices=len(cell["devices"]),
        path_class=cell.get("path_class"),
        device=next(iter(cell["devices"]), None),
    )


def _filled(curve: Curve, rates: Mapping[int, tuple[float, ...]], launches: float | None) -> Curve:
    return replace(curve, rates=rates, launches=launches)


def _ridge(curve: Curve, roof: Roof) -> float | None:
    def computes(length: int) -> bool:
        work = roofline.work_of(PROBE, {**dict(curve.params), LENGTH: length})
        parts = roofline.times(work, roof) if work else {}
        return parts.get(Bound.COMPUTE, 0.0) >= parts.get(Bound.MEMORY, math.inf)

    return _first(computes)


def _launch(curve: Curve, shape: shapes.Shape, batch: int, roof: Roof) -> float | None:
    precision = PRECISIONS.get(str(curve.param("dtype")))
    speed = roof.flop.get(precision.product) if precision else None
    if curve.param("mode") != "eager" or not (curve.launches and roof.launch and speed):
        return None
    ranks = curve.param("tensor_parallel")  # GPUs at once have a whole model each
    launching, whole = (
        curve.launches * roof.launch,
        speed * (ranks if isinstance(ranks, int) else 1),
    )
    return _first(lambda n: shapes.flop(shape, n, batch) / whole >= launching)


def _first(reached: Callable[[int], bool]) -> float | None:
    """The smallest length for which something holds, as it does for every longer one."""
    if not reached(LONGEST):
        return None
    low, high = 0, LONGEST
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if reached(middle) else (middle, high)
    return float(high)


def labels(found: Sequence[Curve]) -> Iterator[str]:
    """What tells each curve from the others: the parameters that vary, GPUs, then the arm."""
    names = dict.fromkeys(n for c in found for n, _ in c.params)
    varying = [n for n in names if len({c.param(n) for c in found}) > 1]
    several = len({(c.n_devices, c.path_class) for c in found}) > 1
    for curve in found:
        words = [f"{n} {curve.param(n)}" for n in varying]
        if several and curve.n_devices > 1:
            words.append(f"{curve.n_devices} GPUs {curve.path_class or ''}".strip())
        yield ", ".join([*words, curve.arm])
