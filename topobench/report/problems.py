"""What gave no number, or one that must not be used, and what was left out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import RenderableType

from topobench.reading import Reason, ReasonCode, Status
from topobench.report import figures
from topobench.report.records import Places
from topobench.report.safe import clean
from topobench.report.sheet import Column, Prose, Sheet
from topobench.report.words import shown_params
from topobench.units import count

Cell = Mapping[str, Any]

BAD = (Status.INVALID, Status.FAILED, Status.TIMEOUT, Status.ABORTED, Status.PARTIAL)
"""In the order in which they are shown."""
EXAMPLES = 3
LOG_LINES = 3

_ENABLED_BY = {
    ReasonCode.NO_GPU: "a host with an NVIDIA GPU and its driver",
    ReasonCode.NEEDS_2_GPUS: "a host with two or more GPUs; backend: gloo for its CPUs",
    ReasonCode.NEEDS_2_HOSTS: "two or more hosts (ray.address in the cluster file)",
    ReasonCode.NEEDS_2_CPUS: "more usable CPUs",
    ReasonCode.NO_BINARY: "installing the program named",
    ReasonCode.NO_PACKAGE: "installing the package named",
    ReasonCode.NO_NUMACTL: "installing numactl (topobench doctor)",
    ReasonCode.TORCH_CANNOT_USE_GPU: "a torch that fits the driver (see ERROR above)",
    ReasonCode.UNKNOWN_NUMA_NODE: "the real NUMA node: ask outside the guest, or name the "
    "binding in the cluster file",
    ReasonCode.CPU_NOT_ALLOWED: "a wider CPU set for this process or container",
    ReasonCode.MEM_NOT_ALLOWED: "a wider memory set for this process or container",
    ReasonCode.MEM_POLICY_DENIED: "a container with CAP_SYS_NICE, or outside the container",
    ReasonCode.NOT_ENOUGH_MEMORY: "more free memory, or smaller sizes",
    ReasonCode.NOT_SELECTED: "--probes or a wider profile",
    ReasonCode.OVER_BUDGET: "a larger --budget",
    ReasonCode.VERSION_MISMATCH: "the same topobench on every host",
}
"""What would let a left-out cell run; nothing where nothing would."""


def problems(cells: Sequence[Cell], places: Places) -> Iterator[RenderableType]:
    """Cells that ended badly, worst kind first, with the reason in words; nothing if none."""
    for status in BAD:
        groups = grouped([c for c in cells if c["status"] == status])
        for (probe, reason), found in groups.items():
            style = "yellow" if status == Status.PARTIAL else "red"
            head = f"{status.upper()} {clean(probe)}, {count(len(found), 'cell')}: "
            yield Prose(head + reason_text(reason), style=style)
            yield from _examples(found, places)


def left_out(cells: Sequence[Cell], hosts: int) -> Iterator[RenderableType]:
    """
    What was skipped or does not apply, grouped by reason, and what would enable it.

    Args:
        hosts: Hosts of the sweep.
    """
    rows = []
    for status in (Status.SKIPPED, Status.NOT_APPLICABLE, Status.PLANNED):
        chosen = [c for c in cells if c["status"] == status]
        by_reason: dict[str, list[Cell]] = {}
        for cell in chosen:
            by_reason.setdefault(cell["reason"] or "", []).append(cell)
        for reason, found in by_reason.items():
            rows.append(_left_out_row(status, reason, found, hosts))
    if rows:
        columns = [
            Column("cells", number=True),
            Column("what"),
            Column("why"),
            Column("enabled by"),
        ]
        yield Sheet(columns, rows)


def grouped(cells: Sequence[Cell]) -> dict[tuple[str, str], list[Cell]]:
    """Cells by probe and reason, the largest group first."""
    groups: dict[tuple[str, str], list[Cell]] = {}
    for cell in cells:
        groups.setdefault((cell["probe"], cell["reason"] or ""), []).append(cell)
    return dict(sorted(groups.items(), key=lambda item: -len(item[1])))


def reason_text(reason: str) -> str:
    """``throttled: SM clock fell to 1200 MHz``, or that none was given."""
    return clean(reason) if reason else "no reason was recorded"


def _left_out_row(status: Status, reason: str, cells: Sequence[Cell], hosts: int) -> list[str]:
    probes = list(dict.fromkeys(clean(c["probe"]) for c in cells))
    arms = sorted({clean(c["arm"]) for c in cells})
    what = ", ".join(probes)
    if status == Status.NOT_APPLICABLE:
        what += f" ({', '.join(arms)})"
    touched = {c["host"] for c in cells}
    if hosts > 1:
        what += f" on {len(touched)} of {hosts} hosts"
    if status == Status.PLANNED:
        return [str(len(cells)), what, "not reached", "--resume (see NEXT)"]
    code = Reason.from_text(reason).code
    words = reason.partition(": ")[2] or reason
    hint = _ENABLED_BY.get(code, "") if status == Status.SKIPPED else "does not apply here"
    return [str(len(cells)), what, reason_text(words), hint]


def _examples(cells: Sequence[Cell], places: Places) -> Iterator[RenderableType]:
    for number, cell in enumerate(cells[:EXAMPLES]):
        yield Prose(_where(cell, places), indent=4)
        for raw in _raw_values(cell):
            yield Prose(f"raw, not to be used: {raw}", indent=6)
        if number == 0:
            lines = [line for line in cell["log_tail"].splitlines() if line.strip()]
            for line in lines[-LOG_LINES:]:
                yield Prose(f"log: {clean(line)}", indent=6, style="dim")
    if len(cells) > EXAMPLES:
        yield Prose(f"and {len(cells) - EXAMPLES} more", indent=4)


def _where(cell: Cell, places: Places) -> str:
    params = [
        f"{figures.label(k)} {figures.quantity(k, v)}"
        for k, v in shown_params(cell["params"]).items()
        if v is not None
    ]
    parts = [places.unit(cell), f"arm {clean(cell['arm'])}", *params]
    return ", ".join(p for p in parts if p)


def _raw_values(cell: Cell) -> list[str]:
    """Values of an invalid run; only ever shown as raw."""
    return [
        f"{figures.label(r['metric'])} {figures.quantity(r['metric'], r['raw_value'])}"
        for r in cell["readings"]
        if r.get("raw_value") is not None
    ]
