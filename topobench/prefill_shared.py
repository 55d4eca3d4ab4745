"""
Prefill of a model that GPUs share: beside one GPU alone, and what its all-reduces should cost.

Expected seconds are those of one GPU divided by the GPUs, and two all-reduces a layer by the
line that the same sweep gave between them. Pure.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from topobench import fits
from topobench.reading import MEASURED, Scalar

Cell = Mapping[str, Any]
Params = tuple[tuple[str, Scalar], ...]

PROBE, GPUS, AT_ONCE = "prefill", "tensor_parallel", "at_once"
SECONDS, SHARE = "prefill_device_seconds", "communication_share_ratio"
MESSAGE, MESSAGES = "all_reduce_bytes", "all_reduce_count"
UNTOLD = "its run did not tell how many all-reduces it made, and of which size"


@dataclass(frozen=True, slots=True)
class Shared:
    """
    One case of a model that so many ranks share; medians over processes.

    Args:
        params: Of the case, without ``tensor_parallel``, sorted by name.
        seconds: Device time of a pass.
        alone_seconds: The same on one GPU, in the same sweep; None if it was not measured.
        alone_at_once: Every GPU of the host did it at the same time, each by itself; the slowest
            of these GPUs counts.
        events: Share of the all-reduces by events between stages; None in mode ``compile``.
        twin: The same by a pass without them.
        predicted_seconds: None with the reason in ``because``.
    """

    host: str
    params: Params
    arm: str
    devices: tuple[str, ...]
    path_class: str | None
    ranks: int
    seconds: float
    alone_seconds: float | None = None
    alone_at_once: bool = False
    events: float | None = None
    twin: float | None = None
    predicted_seconds: float | None = None
    because: str | None = None

    @property
    def speed_up(self) -> float | None:
        """Time of one GPU by that of all."""
        return None if self.alone_seconds is None else self.alone_seconds / self.seconds

    @property
    def efficiency(self) -> float | None:
        """Speed-up by the number of GPUs."""
        return None if self.speed_up is None else self.speed_up / self.ranks

    @property
    def error(self) -> float | None:
        """Predicted by measured, minus 1."""
        predicted = self.predicted_seconds
        return None if predicted is None else predicted / self.seconds - 1


def shared(cells: Sequence[Cell]) -> list[Shared]:
    """
    Every case of a sweep whose model is shared, in the order of the cells.

    Args:
        cells: Of a sweep document; only those that ended ``ok`` or ``partial`` count.
    """
    prompts = [c for c in cells if c["probe"] == PROBE and c["status"] in MEASURED]
    groups: dict[Any, list[Cell]] = {}
    for cell in prompts:
        if _gpus(cell) > 1 and _value([cell], SECONDS):
            key = cell["host"], _params(cell), cell["arm"], tuple(cell["devices"]), _gpus(cell)
            groups.setdefault(key, []).append(cell)
    return [_case(found, prompts, cells) for found in groups.values()]


def _case(found: Sequence[Cell], prompts: Sequence[Cell], cells: Sequence[Cell]) -> Shared:
    first = found[0]
    seconds = _value(found, SECONDS)
    assert seconds is not None  # the group was made of such cells
    alone = _alone(first, prompts)
    case = Shared(
        host=first["host"],
        params=_params(first),
        arm=first["arm"],
        devices=tuple(first["devices"]),
        path_class=first.get("path_class"),
        ranks=_gpus(first),
        seconds=seconds,
        alone_seconds=_median(_alone_seconds(other, first["devices"]) for other in alone),
        alone_at_once=bool(alone) and alone[0]["params"].get(AT_ONCE) == "all",
        events=_value(found, SHARE, method="events"),
        twin=_value(found, SHARE, method="twin"),
    )
    return _predicted(case, _value(found, MESSAGE), _value(found, MESSAGES), cells)


def _predicted(
    case: Shared, size: float | None, count: float | None, cells: Sequence[Cell]
) -> Shared:
    if case.alone_seconds is None:
        return replace(case, because="one GPU was not measured in this sweep")
    if size is None or count is None:
        return replace(case, because=UNTOLD)
    beside = [c for c in cells if _is_beside(c, case)]
    line = fits.line_between(beside, case.devices, arm=case.arm)
    if line is None:
        why = fits.why_no_line(beside, case.devices, arm=case.arm)
        return replace(case, because=why)
    try:
        each = line.seconds(size)
    except ValueError as error:
        return replace(case, because=str(error))
    return replace(case, predicted_seconds=case.alone_seconds / case.ranks + count * each)


def _is_beside(cell: Cell, case: Shared) -> bool:
    """Whether a cell's ranks are as many, on this host alone."""
    here = set(cell.get("hosts") or ()) <= {case.host}
    return cell["host"] == case.host and cell["ranks"] == case.ranks and here


def _alone(cell: Cell, prompts: Sequence[Cell]) -> list[Cell]:
    """The same case on one GPU: by itself rather than beside others, bound alike if it was."""
    wanted = _params(cell)
    binding = cell["arm"].partition("/")[0]
    found: dict[tuple[bool, bool, str], list[Cell]] = {}
    for other in prompts:
        same = other["host"] == cell["host"] and _params(other) == wanted and _gpus(other) == 1
        near = not cell["devices"] or set(other["devices"]) & set(cell["devices"])
        if same and near and _alone_seconds(other, cell["devices"]):
            together = other["params"].get(AT_ONCE) == "all"
            key = together, other["arm"] != binding, other["arm"]
            found.setdefault(key, []).append(other)
    return found[min(found)] if found else []


def _alone_seconds(cell: Cell, devices: Sequence[str]) -> float | None:
    """One GPU's seconds; where others did it beside these, of the slowest of these."""
    if not set(cell["devices"]) - set(devices):
        return _value([cell], SECONDS)
    own = [
        float(r["median"])
        for r in cell["readings"]
        if r["metric"] == SECONDS and r["point"].get("device") in devices and r["median"]
    ]
    return max(own, default=None)


def _gpus(cell: Cell) -> int:
    return int(cell["params"].get(GPUS) or 1)


def _params(cell: Cell) -> Params:
    left_out = (GPUS, AT_ONCE)
    return tuple(sorted((k, v) for k, v in cell["params"].items() if k not in left_out))


def _value(cells: Sequence[Cell], metric: str, **point: Scalar) -> float | None:
    """Median over cells of a metric at a point; None if no cell has it."""
    found = [
        float(r["median"])
        for cell in cells
        for r in cell["readings"]
        if r["metric"] == metric and r["point"] == point and r["median"] is not None
    ]
    return _median(found)


def _median(values: Iterable[float | None]) -> float | None:
    found = [value for value in values if value is not None]
    return statistics.median(found) if found else None


def labels(found: Sequence[Shared]) -> Iterator[str]:
    """What tells each case from the others: the parameters that vary, or the shape and type."""
    names = dict.fromkeys(n for case in found for n, _ in case.params)
    varying = [n for n in names if len({dict(case.params).get(n) for case in found}) > 1]
    for case in found:
        params = dict(case.params)
        yield ", ".join(f"{n} {params.get(n)}" for n in varying or ("shape", "dtype"))
