"""Path classes between GPUs and NICs, as ``nvidia-smi topo -m`` prints them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.text import Text

from topobench.report.figures import UNKNOWN
from topobench.report.safe import clean
from topobench.report.sheet import Column, Sheet, facts
from topobench.topology import Gpu, Topology

_LEGEND = {
    "X": "itself",
    "NV#": "# NVLinks",
    "PIX": "at most one PCIe bridge",
    "PXB": "several PCIe bridges, not the host bridge",
    "PHB": "a PCIe host bridge (the CPU)",
    "NODE": "between host bridges inside one NUMA node",
    "SYS": "between NUMA nodes",
    UNKNOWN: "unknown",
}


@dataclass(frozen=True, slots=True)
class _Matrix:
    """Rows of path classes, cut into blocks of columns where the terminal is narrow."""

    ends: Sequence[str]
    rows: Sequence[tuple[str, Sequence[str]]]
    trailing: Sequence[Column]
    details: Sequence[Sequence[str]]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """One or more sheets; what is known of each GPU stands beside the last."""
        for number, (first, last) in enumerate(self._blocks(options.max_width)):
            if number:
                yield Text("")
            yield self._block(first, last, with_details=last == len(self.ends))

    def _blocks(self, width: int) -> Iterator[tuple[int, int]]:
        first = 0
        while first < len(self.ends):
            last = len(self.ends)
            while last > first + 1 and self._width(first, last) > width:
                last -= 1
            yield first, last
            first = last

    def _width(self, first: int, last: int) -> int:
        return self._block(first, last, with_details=last == len(self.ends)).width

    def _block(self, first: int, last: int, *, with_details: bool) -> Sheet:
        columns = [Column(""), *(Column(e, number=True) for e in self.ends[first:last])]
        rows = [[name, *found[first:last]] for name, found in self.rows]
        if with_details:
            columns += self.trailing
            rows = [[*row, *more] for row, more in zip(rows, self.details, strict=True)]
        return Sheet(columns, rows)


def path_matrix(topology: Topology) -> Iterator[RenderableType]:
    """The matrix of GPUs and NICs, columns as nvidia-smi orders and spells them, and legends."""
    gpus = [g for g in topology.gpus if not g.is_slice]
    ends = [*(g.name for g in gpus), *(f"nic:{n.name}" for n in topology.nics)]
    if not gpus:
        yield Text("  No GPU, so no paths to show.")
        return
    classes = {(p.a, p.b): clean(p.smi or UNKNOWN) for p in topology.paths}
    classes |= {(b, a): found for (a, b), found in classes.items()}
    starts = [e for e in ends if e.startswith("gpu:") or _has_own_paths(e, classes)]
    rows = [(a, ["X" if a == b else classes.get((a, b), UNKNOWN) for b in ends]) for a in starts]
    near = [[_cpus(topology, g), _number(g.cpu_node.value), _number(g.own_numa_node)] for g in gpus]
    near += [["", "", ""] for _ in range(len(starts) - len(gpus))]
    names = {f"nic:{nic.name}": f"NIC{i}" for i, nic in enumerate(topology.nics)}
    yield _Matrix(
        ends=[_shown(e, names) for e in ends],
        rows=[(_shown(name, names), found) for name, found in rows],
        trailing=[
            Column("CPU Affinity"),
            Column("NUMA Affinity", number=True),
            Column("GPU NUMA ID", number=True),
        ],
        details=near,
    )
    yield Text("")
    yield _legend({c for _, found in rows for c in found})
    if names:
        yield Text("")
        yield facts((label, clean(end.partition(":")[2])) for end, label in names.items())


def _has_own_paths(end: str, classes: dict[tuple[str, str], str]) -> bool:
    """Whether anything is known of an end's paths to others than GPUs."""
    return any(a == end and not b.startswith(("gpu:", "numa:")) for a, b in classes)


def _legend(found: set[str]) -> Sheet:
    used = {"NV#" if c.startswith("NV") else c for c in found}
    return facts((name, meaning) for name, meaning in _LEGEND.items() if name in used)


def _shown(end: str, names: Mapping[str, str]) -> str:
    kind, _, name = clean(end).partition(":")
    return names.get(end) or (f"GPU{name}" if kind == "gpu" and name.isdigit() else name)


def _cpus(topology: Topology, gpu: Gpu) -> str:
    """CPUs near a GPU: of its NUMA node where its own list is not known."""
    of_node = next((n.cpus for n in topology.numa_nodes if n.id == gpu.cpu_node.value), None)
    return clean(gpu.cpus or of_node or UNKNOWN)


def _number(value: int | None) -> str:
    return UNKNOWN if value is None else str(value)
