"""
The lines of a sweep's collectives: t = alpha + S / beta, of each gang under each arm. Pure.

Every process gives a line of its own; those of several are combined. Sizes as small as 8 B and
as large as 8 GiB take other protocols, so a line is an account of the range, not the curve: what
of it is worst stands beside it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from topobench.fit import MIN_SIZES, AlphaBeta, Point, fit_lines
from topobench.probes.metrics import BUSBW, LATENCY
from topobench.reading import MEASURED, Scalar

ALL_REDUCE = "all_reduce"
_USUAL_ARMS = ("none/auto", "none")
"""What users get without asking: NCCL's own choice, or gloo."""
_SIZE = "bytes"


@dataclass(frozen=True, slots=True)
class Gang:
    """
    What a line is of: one operation between the same ranks under one arm.

    Args:
        host: Key of rank 0's host.
        devices: GPU UUIDs in order of the ranks; empty for CPU processes.
        params: Of the case, without its size, sorted by name.
    """

    host: str
    devices: tuple[str, ...]
    ranks: int
    probe: str
    params: tuple[tuple[str, Scalar], ...]
    arm: str

    @property
    def op(self) -> str:
        """The operation, as it is stored."""
        return str(self.param("op") or self.probe)

    def param(self, name: str) -> Scalar:
        """The value of a parameter, None if it has none of that name."""
        return dict(self.params).get(name)


def collective_lines(cells: Sequence[Mapping[str, Any]]) -> dict[Gang, AlphaBeta]:
    """
    The line of every collective of a sweep, in the order of the cells.

    Args:
        cells: Of a sweep document; only those that ended ``ok`` or ``partial`` count.
    """
    return fit_lines(_points(cells))


def line_between(
    cells: Sequence[Mapping[str, Any]],
    devices: Sequence[str],
    *,
    op: str = ALL_REDUCE,
    arm: str | None = None,
    dtype: str | None = None,
) -> AlphaBeta | None:
    """
    The line of a collective between some GPUs: what its messages should cost.

    ``line.seconds(size_bytes)`` is the time of one operation, for sizes between
    ``line.smallest_bytes`` and ``line.largest_bytes``.

    Args:
        cells: Of a sweep document.
        devices: UUIDs of the GPUs that take part, in any order.
        arm: Name of the arm; None takes what users get (``none/auto``), then any other.
        dtype: Type of the elements; None takes the first that was measured. Of several modes
            of timing, queued operations count; of several pools, cold buffers; of both places,
            in place, as models do it.

    Returns:
        None if fewer than :data:`~topobench.fit.MIN_SIZES` sizes were measured there.
    """
    wanted = [
        (gang, line)
        for gang, line in collective_lines(cells).items()
        if set(gang.devices) == set(devices)
        and gang.op == op
        and arm in (None, gang.arm)
        and dtype in (None, gang.param("dtype"))
    ]
    wanted.sort(
        key=lambda found: (
            found[0].param("mode") not in (None, "queued"),
            found[0].param("pool") not in (None, "cold"),
            found[0].param("place") == "out_of",
        )
    )
    usual = [line for name in _USUAL_ARMS for gang, line in wanted if gang.arm == name]
    return next(iter([*usual, *(line for _, line in wanted)]), None)


def why_no_line(
    cells: Sequence[Mapping[str, Any]],
    devices: Sequence[str],
    *,
    op: str = ALL_REDUCE,
    arm: str | None = None,
) -> str:
    """What :func:`line_between` lacked where it gave None; it takes the same arguments."""
    sizes: dict[str, dict[tuple[Gang, tuple[int, int]], set[int]]] = {}
    for gang, process, size, _ in _points(cells):
        if set(gang.devices) == set(devices) and gang.op == op:
            sizes.setdefault(gang.arm, {}).setdefault((gang, process), set()).add(size)
    between = f"between these {'GPUs' if devices else 'processes'}"
    if not sizes:
        return f"{op} was not measured {between} in this sweep"
    if arm is not None and arm not in sizes:
        return f"{op} {between} was measured under {', '.join(sorted(sizes))}, not under {arm}"
    found = sizes.values() if arm is None else [sizes[arm]]
    most = max(len(some) for processes in found for some in processes.values())
    if most < MIN_SIZES:
        many = f"{most} size{'s' if most > 1 else ''}"
        return f"{op} {between} was measured at {many}; a line needs {MIN_SIZES}"
    return f"times of {op} {between} do not grow with the size"


def _points(cells: Sequence[Mapping[str, Any]]) -> Iterable[Point[Gang]]:
    for cell in cells:
        size = cell["params"].get(_SIZE)
        if cell["status"] not in MEASURED or not size:
            continue
        whole = {r["metric"]: r["median"] for r in cell["readings"] if not r["point"]}
        if whole.get(LATENCY.name) and whole.get(BUSBW.name):  # of a collective
            process = cell["block"], cell["process_no"]
            yield _gang(cell), process, size, whole[LATENCY.name]


def _gang(cell: Mapping[str, Any]) -> Gang:
    params = tuple(sorted((k, v) for k, v in cell["params"].items() if k != _SIZE))
    devices = tuple(cell["devices"])
    return Gang(cell["host"], devices, cell["ranks"], cell["probe"], params, cell["arm"])
