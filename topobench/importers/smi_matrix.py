r"""
The matrix that ``nvidia-smi topo -m`` prints, of every age of driver.

Old drivers give one affinity column, newer ones two and three; RDMA devices stand under their
own names or as NIC0 with a legend; escape codes underline the header; values put an empty cell
before the last column. Cells may be blank or ``N/A``: then the value is unknown.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from topobench.errors import ImportFailed
from topobench.importers.document import clean
from topobench.importers.topology_text import MOST_CPUS, MOST_NODES, imported
from topobench.topology import (
    Gpu,
    Known,
    Nic,
    NodeKind,
    NumaNode,
    Path,
    Topology,
    TopologyWarning,
    format_cpu_list,
    parse_cpu_list,
)

SOURCE = "smi"
CPU, NUMA, OWN = "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"
MAX_BYTES = 4 << 20
MOST_ENDS = 512
_ESCAPE = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_GPU = re.compile(r"GPU([0-9]{1,4})")
_CLASSES = frozenset({"PIX", "PXB", "PHB", "NODE", "SYS"})
_UNKNOWN = frozenset({"", "N/A", "U", "?"})
_LEGEND = re.compile(r"\s+(NIC[0-9]{1,4}): (\S+)\s*")


def parse(text: str) -> Topology:
    """
    GPUs, NICs and the classes between them.

    Raises:
        ImportFailed: There is no matrix in the text, or it contradicts itself.
    """
    if len(text) > MAX_BYTES:
        raise ImportFailed(f"{len(text)} characters, at most {MAX_BYTES} are read")
    lines = [_ESCAPE.sub("", line).rstrip("\r") for line in text.split("\n")]
    start = next((i for i, line in enumerate(lines) if _is_header(line)), None)
    if start is None:
        raise ImportFailed("no matrix of `nvidia-smi topo -m`: no line names GPU0 and its columns")
    header = _Header.read(lines[start])
    rows = dict(_rows(lines[start + 1 :], header))
    if not any(_GPU.fullmatch(name) for name in rows):
        raise ImportFailed("the matrix has no row of a GPU")
    legend = {m[1]: clean(m[2]) for line in lines if (m := _LEGEND.fullmatch(line))}
    return _topology(header, rows, legend)


def _is_header(line: str) -> bool:
    cells = line.split()
    if not cells or not _GPU.fullmatch(cells[0]):
        return False
    return CPU in line or line[:1].isspace()


@dataclass(frozen=True, slots=True)
class _Header:
    """Ends of the matrix, the columns after them, and whether tabs stand between cells."""

    ends: tuple[str, ...]
    trailing: tuple[str, ...]
    tabs: bool

    @classmethod
    def read(cls, line: str) -> _Header:
        tabs = "\t" in line.strip()
        found = line.split("\t") if tabs else re.findall(rf"{CPU}|{NUMA}|{OWN}|\S+", line)
        names = [name.strip() for name in found if name.strip()]
        first = next((i for i, name in enumerate(names) if name == CPU), len(names))
        ends, trailing = names[:first], names[first:]
        if len(ends) > MOST_ENDS:
            raise ImportFailed(f"{len(ends)} columns of devices, at most {MOST_ENDS} are read")
        if len(set(ends)) < len(ends):
            raise ImportFailed("the header names a device twice")
        return cls(tuple(ends), tuple(trailing), tabs)


@dataclass(frozen=True, slots=True)
class _Row:
    classes: Mapping[str, str | None]
    trailing: Mapping[str, str]


def _rows(lines: Sequence[str], header: _Header) -> Iterator[tuple[str, _Row]]:
    seen: set[str] = set()
    for line in lines:
        cells = line.split("\t") if header.tabs else line.split()
        name = cells[0].strip() if cells else ""
        if not line.strip() or name.startswith("Legend"):
            if seen:
                return
            continue
        if name not in header.ends:
            raise ImportFailed(f"row {clean(name)[:40]!r} has no column of its name")
        if name in seen:
            raise ImportFailed(f"the row of {name} stands there twice")
        seen.add(name)
        yield name, _row(name, [c.strip() for c in cells[1:]], header)


def _row(name: str, cells: list[str], header: _Header) -> _Row:
    count = len(header.ends)
    if len(cells) < count:
        raise ImportFailed(f"row {name} has {len(cells)} cells, the header names {count} devices")
    classes = {
        end: _class(name, end, cell) for end, cell in zip(header.ends, cells[:count], strict=True)
    }
    found = _trailing(name, cells[count:], len(header.trailing))
    return _Row(classes, dict(zip(header.trailing, found, strict=False)))


def _trailing(name: str, cells: list[str], count: int) -> list[str]:
    """
    The cells after the classes, one a column.

    Rows of NICs have none. Values have a second tab before the last of three columns, and some
    drivers one before each.
    """
    if not any(cells):
        return []
    if len(cells) <= count:
        return cells
    if len(cells) > 3 and len(cells) == count + 1 and not cells[2]:
        return [*cells[:2], *cells[3:]]
    told = [cell for cell in cells if cell]
    if len(told) == count:
        return told
    raise ImportFailed(f"row {name} has more cells than the header has columns")


def _class(row: str, column: str, cell: str) -> str | None:
    token = "SYS" if cell == "SOC" else cell
    if row == column:
        if token not in ("X", ""):
            raise ImportFailed(f"row {row} says {clean(token)[:20]!r} of the device itself")
        return "X"
    if token in _UNKNOWN:
        return None
    if token not in _CLASSES and not re.fullmatch(r"NV[0-9]{1,3}", token):
        raise ImportFailed(f"row {row}, column {column}: {clean(token)[:40]!r} is no path class")
    return token


def _topology(header: _Header, rows: Mapping[str, _Row], legend: Mapping[str, str]) -> Topology:
    names = {end: legend.get(end, end) for end in header.ends}
    own = {n: _own_node(row.trailing.get(OWN, "")) for n, row in rows.items()}
    first_own = min((n for n in own.values() if n is not None), default=None)
    ends = [end for end in header.ends if _GPU.fullmatch(end)]
    gpus = tuple(_gpu(end, rows.get(end), own.get(end), first_own) for end in ends)
    others = [end for end in header.ends if end not in ends]
    if len({names[o] for o in others}) < len(others):
        raise ImportFailed("the legend gives one name to two NICs")
    unsaid = Known(None, None, "nvidia-smi does not say")
    warnings: list[TopologyWarning] = []
    return imported(
        SOURCE,
        numa_nodes=_nodes(gpus),
        gpus=gpus,
        nics=tuple(Nic(names[end], None, unsaid) for end in others),
        paths=tuple(_paths(header.ends, rows, names, warnings)),
        warnings=tuple(warnings),
    )


def _own_node(text: str) -> int | None:
    return int(text) if re.fullmatch(r"[0-9]{1,4}", text) else None


def _gpu(end: str, row: _Row | None, own: int | None, first_own: int | None) -> Gpu:
    told = row.trailing if row else {}
    return Gpu(
        index=int(end.removeprefix("GPU")),
        uuid=None,
        pci_address=None,
        model=None,
        memory_bytes=None,
        cpu_node=_cpu_node(told.get(NUMA), first_own),
        own_numa_node=own,
        cpus=_list(end, CPU, told.get(CPU, ""), MOST_CPUS),
        state="unknown",
    )


def _list(end: str, column: str, text: str, most: int) -> str | None:
    if text in _UNKNOWN:
        return None
    numbers = [int(n[:9]) for n in re.findall(r"[0-9]+", text)]
    if not re.fullmatch(r"[0-9]+(-[0-9]+)?(,[0-9]+(-[0-9]+)?)*", text) or max(numbers) > most:
        raise ImportFailed(f"row {end}: {column} {clean(text)[:60]!r} is no list of numbers")
    try:
        return format_cpu_list(parse_cpu_list(text))
    except ValueError as error:
        raise ImportFailed(f"row {end}: {column}: {clean(error)}") from error


def _cpu_node(text: str | None, first_own: int | None) -> Known:
    """
    The node to bind to.

    Hosts whose GPU memory is NUMA nodes list those, too; they come after the nodes with CPUs.
    """
    if text is None:
        return Known(None, None, "nvidia-smi does not say")
    listed = _list("of a GPU", NUMA, text, MOST_NODES)
    if listed is None:
        return Known(
            None, None, f"nvidia-smi says {text!r}" if text else "nvidia-smi leaves it blank"
        )
    nodes = [n for n in parse_cpu_list(listed) if first_own is None or n < first_own]
    if len(nodes) == 1:
        return Known(nodes[0], "nvidia-smi")
    return Known(None, None, f"nvidia-smi says {listed}")


def _nodes(gpus: Sequence[Gpu]) -> tuple[NumaNode, ...]:
    """Nodes that GPUs are near to, with the CPUs near them, and nodes that are GPUs' memory."""
    found: dict[int, NumaNode] = {}
    for gpu in gpus:
        if gpu.own_numa_node is not None:
            node = gpu.own_numa_node
            found[node] = NumaNode(node, NodeKind.GPU, "", None, allowed=True, gpu=gpu.key)
    for gpu in gpus:
        near = gpu.cpu_node.value
        if near is not None:
            cpus = {
                *parse_cpu_list(found[near].cpus if near in found else ""),
                *parse_cpu_list(gpu.cpus),
            }
            text = format_cpu_list(cpus)
            found[near] = NumaNode(near, NodeKind.CPU_MEMORY, text, None, allowed=True)
    return tuple(found[n] for n in sorted(found))


def _paths(
    ends: Sequence[str],
    rows: Mapping[str, _Row],
    names: Mapping[str, str],
    warnings: list[TopologyWarning],
) -> Iterator[Path]:
    """Every pair that a row tells of; a pair told twice must agree, but for NVLinks lost."""
    for i, a in enumerate(ends):
        for b in ends[i + 1 :]:
            told = [rows[x].classes.get(y) for x, y in ((a, b), (b, a)) if x in rows]
            known = sorted({t for t in told if t is not None})
            if len(known) > 1:
                if not all(t.startswith("NV") for t in known):
                    raise ImportFailed(
                        f"{a} and {b} are {known[0]} in one row, {known[1]} in the other"
                    )
                known.sort(key=lambda t: int(t[2:]))
                text = f"{known[0]} in one row, {known[1]} in the other"
                warnings.append(
                    TopologyWarning("nvlink_asymmetric", f"{_end(a, names)}-{_end(b, names)}", text)
                )
            if known:
                by_pci = None if known[0].startswith("NV") else known[0]
                yield Path(_end(a, names), _end(b, names), smi=known[0], smi_pcie=by_pci)


def _end(end: str, names: Mapping[str, str]) -> str:
    match = _GPU.fullmatch(end)
    return f"gpu:{match[1]}" if match else f"nic:{names[end]}"
