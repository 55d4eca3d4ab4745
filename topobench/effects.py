"""
What an arm is worth against another on the same devices, from stored readings. Pure.

Arms are paired worker by worker: the same block and process. Workers that chose different
attention kernels are no pair: they differ by more than their arms. Fewer than six pairs, or one
process a side, decide nothing, and the comparison says so.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from topobench import env_arms
from topobench.comparison import Comparison, compare_paired
from topobench.probes.metrics import ALGBW
from topobench.reading import MEASURED, Better, Scalar
from topobench.units import format_bytes
from topobench.user_command import PROBE, Definition

Cell = Mapping[str, Any]
Place = tuple[int, int, str]
"""Block, number of the process, and the attention kernel that it chose, if any."""
Pairs = Mapping[Place, float]
"""Median of each process."""

TOLERANCES = {"s": 0.05, "token/s": 0.02}
"""Largest relative change that does not matter, by unit; 3 % for others."""
_TOLERANCE = 0.03
_OF_TOKENS = frozenset({"prefill", "decode"})
"""Probes whose times are those of tokens: of one pass, rate and time may not be called unlike."""
HOST_PART = "host_part_seconds"
"""Judged by arm only: of hosts or nights, a part that took longer says nothing."""
_REFERENCES = ("none", "local")
_TOLD = (
    *("op", "direction", "shape", "attention", "place", "mode", "pool", "order"),
    *("dtype", "kv_dtype", "size", "io", "server"),
)
_UNUSUAL: Mapping[tuple[str, Scalar], str] = {
    ("memory", "pageable"): "pageable",
    ("ways", "both"): "both ways",
    ("ways", "all"): "all at once",
    ("p2p", "off"): "P2P off",
}
"""Values that are told; the others go without saying."""
_NOT_RESULTS = frozenset({"locality_ratio"})
_OF_A_GPU = ({"device"}, {"rank", "device"})
"""Coordinates of what one of several GPUs gave that were measured at once."""
_OF_A_LOAD = ({"concurrency"}, {"rate_requests_per_second"})
"""Coordinates of one of several loads on a server: each is a case of its own."""


@dataclass(frozen=True, slots=True)
class Bench:
    """
    One metric of one case on the same devices, under several arms.

    Args:
        params: Of the case, sorted by name.
        devices: One GPU where all were measured at once and each has its part.
        part: Of the host's own work, where its parts are timed apart; else empty.
        arms: Arm -> median of each process.
    """

    host: str
    probe: str
    params: tuple[tuple[str, Scalar], ...]
    devices: tuple[str, ...]
    ranks: int
    metric: str
    unit: str
    better: Better
    part: str = ""
    arms: Mapping[str, Pairs] = field(default_factory=dict, compare=False)

    def median(self, arm: str) -> float:
        """Of the medians of an arm's processes."""
        return statistics.median(self.arms[arm].values())

    def param(self, name: str) -> Scalar:
        """The value of a parameter, None if the probe has none of that name."""
        return dict(self.params).get(name)

    @property
    def words(self) -> str:
        """All but the devices and the metric."""
        return case_words(self.probe, dict(self.params), self.ranks)


def case_words(probe: str, params: Mapping[str, Scalar], ranks: int) -> str:
    """``host_to_device h2d 256 MiB``: what tells a case from others of its probe."""
    words = [str(params[k]) for k in _TOLD if params.get(k)]
    words += [text for (name, value), text in _UNUSUAL.items() if params.get(name) == value]
    if tokens := params.get("sequence") or params.get("context"):
        words.append(f"{params.get('batch', 1)} x {tokens} tokens")
    size, chunk, readers = (params.get(k) for k in ("bytes", "chunk_bytes", "readers"))
    words += [format_bytes(size)] if isinstance(size, int) else []
    words += [f"by {format_bytes(chunk)}"] if isinstance(chunk, int) else []
    words += [f"{readers} readers"] if readers else []
    words += ["all GPUs at once"] if params.get("at_once") == "all" else []
    words += [f"{ranks} ranks"] if ranks > 1 and params.get("at_once") != "all" else []
    return " ".join([probe, *words])


@dataclass(frozen=True, slots=True)
class ArmEffect:
    """
    An arm against the reference on one bench.

    Args:
        arm: Its name without a ring: ``local``, ``none+p2p_off``.
        reference: Whole name of what it is held against: ``none`` where that was measured,
            else ``local``.
        median: Of the arm.
    """

    bench: Bench
    arm: str
    reference: str
    median: float
    found: Comparison


def benches(cells: Sequence[Cell]) -> list[Bench]:
    """
    Every metric measured under several arms.

    Args:
        cells: Of a sweep document; only those that ended ``ok`` or ``partial`` count.
    """
    found: dict[Bench, dict[str, dict[Place, float]]] = {}
    for cell in cells:
        if cell["status"] not in MEASURED:
            continue
        chosen = str(cell["conditions"].get("attention", ""))
        place = cell["block"], cell["process_no"], chosen
        for key, median in _readings(cell):
            found.setdefault(key, {}).setdefault(cell["arm"], {})[place] = median
    return [replace(b, arms=arms) for b, arms in found.items() if len(arms) > 1]


def arm_effects(found: Sequence[Bench]) -> Iterator[ArmEffect]:
    """
    Every arm against no binding, or else against ``local``, where blocks hold both.

    Of a user's command with environments, bindings are compared within each of them, and each
    of them with the first.
    """
    for bench in found:
        if bench.metric == ALGBW.name:  # it says what busbw says
            continue
        bare = {bare_name(arm): arm for arm in bench.arms}
        first = _first_environment(bench)
        for arm, pairs in bench.arms.items():
            names = _references(bare_name(arm), first)
            reference = next((bare[name] for name in names if name in bare), arm)
            if arm != reference and bench.arms[reference].keys() & pairs.keys():
                effect = compared(bench, reference, arm)
                yield ArmEffect(bench, bare_name(arm), reference, bench.median(arm), effect)


def _first_environment(bench: Bench) -> str | None:
    """Variables of the first environment of a user's command; None if none can be told."""
    text = bench.param("definition") if bench.probe == PROBE else None
    try:
        return env_arms.text_of(Definition.from_text(str(text)).settings[0]) if text else None
    except ValueError:  # a definition of another version
        return None


def _references(arm: str, first: str | None) -> Iterator[str]:
    """What an arm without a ring is held against, before what stands in for that."""
    binding, _, settings = arm.partition("+")
    for name in _REFERENCES:
        same = first if binding == name else settings
        yield f"{name}+{same}" if first is not None and same else name


def bare_name(arm: str) -> str:
    """An arm without its ring: ``none``, ``none+p2p_off``."""
    placed, plus, env = arm.partition("+")
    return placed.partition("/")[0] + plus + env


def compared(bench: Bench, reference: str, arm: str) -> Comparison:
    """
    How ``arm`` differs from ``reference``, worker by worker of the same block.

    Raises:
        ValueError: No block holds both, or a value is not above zero.
    """
    a, b = bench.arms[reference], bench.arms[arm]
    both = sorted(a.keys() & b.keys())
    return compare_paired(
        [a[k] for k in both],
        [b[k] for k in both],
        tolerance=_tolerance(bench),
        better=bench.better,
        with_p=False,
    )


def _tolerance(bench: Bench) -> float:
    unit = "token/s" if bench.probe in _OF_TOKENS and not bench.part else bench.unit
    return TOLERANCES.get(unit, _TOLERANCE)


def _readings(cell: Cell) -> Iterator[tuple[Bench, float]]:
    """Where each number belongs: whole results, loads, parts of GPUs at once or of host work."""
    for reading in cell["readings"]:
        median, point = reading["median"], reading["point"]
        part = point.get("part") if reading["metric"] == HOST_PART else None
        better = Better.LOWER if part else Better(reading["better"])
        load = point if set(point) in _OF_A_LOAD else {}
        wanted = not point or set(point) in _OF_A_GPU or part or load
        if not wanted or not median or reading["metric"] in _NOT_RESULTS or not better:
            continue
        device = point.get("device")
        yield (
            Bench(
                host=cell["host"],
                probe=cell["probe"],
                params=tuple(sorted({**cell["params"], **load}.items())),
                devices=(device,) if device else tuple(cell["devices"]),
                ranks=cell["ranks"],
                metric=reading["metric"],
                unit=reading["unit"],
                better=better,
                part=part or "",
            ),
            median,
        )
