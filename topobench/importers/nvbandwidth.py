"""Outputs of NVIDIA's nvbandwidth, text and JSON, as documents ``topobench.import/1``."""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from topobench.errors import ImportFailed
from topobench.importers.document import (
    Document,
    DocumentStatus,
    check_size,
    clean,
    figure,
    load_json,
    mapping,
    sequence,
    tagged_lines,
)

TOOL = "nvbandwidth"
_UNITS = {"GB/s": ("B/s", 9), "ns": ("s", -9)}
"""As printed -> our unit, and the power of ten."""
MOST_CELLS = 100_000


class CaseStatus(enum.StrEnum):
    """What became of a test case."""

    OK = "ok"
    WAIVED = "waived"
    ERROR = "error"
    NOT_FOUND = "not_found"
    UNFINISHED = "unfinished"


@dataclass(frozen=True, slots=True)
class Row:
    """
    One figure of a matrix, or what became of a test case that has none.

    Args:
        testcase: Its name.
        unit: ``B/s`` or ``s``; None where the text names neither.
        part: ``1``, ``2`` or ``total`` of a case that prints both directions and their sum.
        row: Index of the CPU (NUMA node) or GPU, where the rows stand for single ones.
        row_kind: ``cpu``, ``gpu``, or None.
        value: In the unit; None for ``N/A``.
    """

    testcase: str
    status: CaseStatus
    unit: str | None = None
    part: str | None = None
    row: int | None = None
    row_kind: str | None = None
    column: int | None = None
    column_kind: str | None = None
    value: float | None = None


@dataclass(frozen=True, slots=True)
class Sum:
    """The sum of a matrix as printed; of a latency it means nothing."""

    testcase: str
    unit: str | None
    value: float


@dataclass(slots=True)
class Case:
    """
    A test case as read.

    Args:
        matrices: (description, rows of printed cells).
        sums: (name, printed sum): the name tells the part.
    """

    name: str
    status: CaseStatus
    matrices: list[tuple[str, list[list[Any]]]] = field(default_factory=list)
    sums: list[tuple[str, Any]] = field(default_factory=list)


@dataclass(slots=True)
class Output:
    """
    What an output of nvbandwidth says, before it is judged.

    Args:
        cut_off: Name of the test case in whose matrix a text ends: rows may be missing.
    """

    version: str | None = None
    cuda: str | None = None
    driver: str | None = None
    devices: list[str] = field(default_factory=list)
    cases: list[Case] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    cut_off: str | None = None
    unnamed_waivers: int = 0
    malformed: int = 0


def parse(text: str) -> Document:
    """
    Read one run of nvbandwidth.

    Args:
        text: What it printed, plain or with ``-j``; other lines around the JSON are ignored.

    Raises:
        ImportFailed: It is neither.
    """
    check_size(len(text))
    found = _json_part(text)
    out = _from_text(text) if found is None else _from_json(found)
    return _judged(out)


def _judged(out: Output) -> Document:
    cases = [_joined(group) for group in _by_name(out.cases)]
    rows = [r for case in cases for r in _rows(case, out)]
    measured = any(r.status is CaseStatus.OK and r.value is not None for r in rows)
    counts = {s: sum(c.status is s for c in cases) for s in CaseStatus}
    bad = [s for s in (CaseStatus.ERROR, CaseStatus.UNFINISHED, CaseStatus.NOT_FOUND) if counts[s]]
    reasons = [f"{s.replace('_', ' ')} test cases: {counts[s]}" for s in bad]
    if out.malformed:
        reasons.append(f"rows that could not be read: {out.malformed}")
    if out.cut_off:
        reasons.append(f"cut off: the sum of {out.cut_off} is missing, so rows of it may be, too")
    status = DocumentStatus.PARTIAL if reasons or out.errors else DocumentStatus.OK
    if out.unnamed_waivers:
        reasons.append(f"test cases that were waived without their names: {out.unnamed_waivers}")
    if not measured:
        status = DocumentStatus.INVALID
        reasons.insert(0, "no test case with a result")
    return Document(
        tool=TOOL,
        version=out.version,
        status=status,
        reasons=(*reasons, *out.errors),
        malformed_rows=out.malformed,
        requested={},
        rows=tuple(rows),
        facts={
            "cuda": out.cuda,
            "driver": out.driver,
            "devices": out.devices,
            "sums": list(_sums(cases)),
        },
    )


def _by_name(cases: Sequence[Case]) -> list[list[Case]]:
    found: dict[str, list[Case]] = {}
    for case in cases:
        found.setdefault(case.name, []).append(case)
    return list(found.values())


def _joined(group: Sequence[Case]) -> Case:
    """
    One case of all entries of a name.

    A case that fails is listed twice in JSON, as running and as failed. Two results of one
    name leave open which counts: an error.
    """
    statuses = {c.status for c in group} - {CaseStatus.UNFINISHED}
    status = next(
        (s for s in (CaseStatus.ERROR, CaseStatus.NOT_FOUND, CaseStatus.WAIVED) if s in statuses),
        CaseStatus.OK if statuses else CaseStatus.UNFINISHED,
    )
    if sum(bool(c.matrices) for c in group) > 1:
        status = CaseStatus.ERROR
    return Case(
        name=group[0].name,
        status=status,
        matrices=[m for c in group for m in c.matrices],
        sums=[s for c in group for s in c.sums],
    )


def _rows(case: Case, out: Output) -> list[Row]:
    found: list[Row] = []
    for description, matrix in case.matrices:
        found += _cells(case, description, matrix, out)
    if case.status is CaseStatus.OK and not any(r.value is not None for r in found):
        case.status = CaseStatus.ERROR
        found = []
    return found or [Row(case.name, case.status)]


def _cells(case: Case, description: str, matrix: list[list[Any]], out: Output) -> Iterator[Row]:
    """The figures of a matrix; a row of another length than the first is malformed."""
    unit, power = _unit(description)
    columns = len(matrix[0]) if matrix else 0
    named, kinds = _part(description), _kinds(case.name, description)
    blocks = _blocks(matrix, kinds)
    for index, cells in enumerate(matrix):
        if len(cells) != columns:
            out.malformed += 1
            continue
        block, number = divmod(index, len(matrix) // blocks)
        for column, cell in enumerate(cells):
            read = figure(cell, power)
            if read is None and cell != "N/A":
                out.malformed += 1
                continue
            value = read.value if read else None
            if value == 0:
                value = None
                # Old versions print the diagonal so. Elsewhere 0 is no measurement.
                out.malformed += kinds != ("gpu", "gpu") or number != column
            yield Row(
                testcase=case.name,
                status=case.status if unit else CaseStatus.ERROR,
                unit=unit,
                part=_PARTS[block] if blocks > 1 else named,
                row=None if _is_all(matrix, kinds) else number,
                row_kind=kinds[0],
                column=column,
                column_kind=kinds[1],
                value=value,
            )


_PARTS = ("1", "2", "total")


def _blocks(matrix: Sequence[Any], kinds: tuple[str | None, str | None]) -> int:
    """JSON stacks both directions and their sum in one matrix of three times the rows."""
    columns = len(matrix[0]) if matrix else 0
    return 3 if kinds == ("gpu", "gpu") and columns and len(matrix) == 3 * columns else 1


def _is_all(matrix: Sequence[Any], kinds: tuple[str | None, str | None]) -> bool:
    """Whether its rows stand for no single device: none is named, or one row for all GPUs."""
    return kinds[0] is None or (kinds[0] == "gpu" and len(matrix) == 1 < len(matrix[0]))


def _unit(description: str) -> tuple[str | None, int]:
    found = re.search(r"\((GB/s|ns)\)", description)
    return _UNITS[found[1]] if found else (None, 0)


def _part(description: str) -> str | None:
    found = re.search(r"\b(?:(?:Read|Write)([12])|(Total) bandwidth)", description)
    return (found[1] or "total") if found else None


def _kinds(name: str, description: str) -> tuple[str | None, str | None]:
    """What rows and columns stand for."""
    row = re.search(r"(CPU|GPU)\(row\)", description)
    column = re.search(r"(CPU|GPU)\(column\)", description)
    kinds = (row[1].lower() if row else None, column[1].lower() if column else None)
    # Some descriptions of the multinode cases say CPU for the rows of GPUs.
    return ("gpu", kinds[1]) if kinds[0] and "device_to_device" in name else kinds


def _sums(cases: Sequence[Case]) -> Iterator[Sum]:
    for case in cases:
        unit, power = _unit(case.matrices[-1][0]) if case.matrices else (None, 0)
        for name, printed in case.sums:
            value = figure(_rounded(printed), power)
            if value is not None:
                yield Sum(name, unit, value.value)


def _rounded(printed: Any) -> Any:
    """JSON prints sums with more digits than a double has."""
    found = re.fullmatch(r"(\d+\.\d{1,9})\d*", printed) if isinstance(printed, str) else None
    return found[1] if found and len(printed) <= 40 else printed


def _json_part(text: str) -> Any:
    """
    The JSON document in a text that may have other lines around it, or None.

    It stands between the first line that is only ``{`` and the last that is only ``}``.

    Raises:
        ImportFailed: There is one, but it is not complete.
    """
    stripped = text.removeprefix("\ufeff").strip()
    if stripped.startswith("{") and stripped.endswith("}"):
        return load_json(stripped)
    opening = re.search(r"^\{[ \t\r]*$", text, re.MULTILINE)
    if opening is None:
        return load_json(stripped) if stripped.startswith("{") else None
    closing = text.rfind("\n}")
    return load_json(text[opening.start() : closing + 2 if closing > 0 else len(text)])


_JSON_STATUS = {
    "passed": CaseStatus.OK,
    "waived": CaseStatus.WAIVED,
    "error": CaseStatus.ERROR,
    "not found": CaseStatus.NOT_FOUND,
    "running": CaseStatus.UNFINISHED,
}


def _from_json(document: Any) -> Output:
    root = mapping(document).get("nvbandwidth")
    if not isinstance(root, dict):
        raise ImportFailed("JSON, but not of nvbandwidth: it has no key nvbandwidth")
    out = Output(
        version=_version(clean(root.get("version"))),
        cuda=clean(root.get("CUDA Runtime Version")) or None,
        driver=clean(root.get("Driver Version")) or None,
        devices=[clean(d) for d in sequence(root.get("GPU Device list"))],
        errors=[clean(root[k]) for k in ("error", "warning") if clean(root.get(k))],
    )
    for value in sequence(root.get("testcases")):
        entry = mapping(value)
        name = clean(entry.get("name"))
        matrix = [list(sequence(r)) for r in sequence(entry.get("bandwidth_matrix"))]
        status = _JSON_STATUS.get(clean(entry.get("status")).lower(), CaseStatus.ERROR)
        case = Case(name, status)
        if matrix and matrix[0]:
            case.matrices.append((clean(entry.get("bandwidth_description")), matrix))
            if "sum" in entry:
                case.sums.append((name, entry["sum"]))
        if clean(entry.get("error")):
            case.status = CaseStatus.ERROR
            out.errors.append(clean(entry["error"]))
        out.cases.append(case)
    return _checked(out)


def _version(text: str) -> str | None:
    return text.removeprefix("v") or None


def _checked(out: Output) -> Output:
    if sum(len(r) for c in out.cases for _, m in c.matrices for r in m) > MOST_CELLS:
        raise ImportFailed(f"more than {MOST_CELLS} figures; give the output of one run")
    return out


_HEADERS = {
    "nvbandwidth Version:": "version",
    "CUDA Runtime Version:": "cuda",
    "Driver Version:": "driver",
}
_DEVICE = re.compile(r"Device \d+: .+|Process .+: device \d+: .+")
_RUNNING = re.compile(r"Running (\S+?)\.?")
_WAIVING = re.compile(r"Waiving (\S+?)\.?")
_SUM = re.compile(r"(?:SUM|&&&& PERF) (\S+) ([0-9.eE+]+)\S*")
_TITLE = re.compile(r".*\((?:GB/s|ns)\)|Bisect benchmarking.*")
_FAULT = re.compile(r"(?i)(?:error:.*|\[?CUDA_ERROR.*|\[?NVML_ERROR.*|invalid value.*|assert.*)")


def _from_text(text: str) -> Output:
    reader = _Reader()
    for _, line in tagged_lines(text):
        reader.read(line.strip())
    if not reader.recognised:
        raise ImportFailed(
            "no output of nvbandwidth: no version line and no test case was found; give what "
            "one run printed, plain or with -j"
        )
    return _checked(reader.finish())


class _Reader:
    """Reads line by line: header, then test case by test case."""

    def __init__(self) -> None:
        self.out = Output()
        self.recognised = False
        self._title: str | None = None
        self._columns: int | None = None
        self._case: Case | None = None

    def read(self, line: str) -> None:
        """Take in a line, without space around it."""
        if found := _RUNNING.fullmatch(line):
            self._begin(Case(clean(found[1]), CaseStatus.UNFINISHED))
        elif found := _WAIVING.fullmatch(line):
            self._begin(Case(clean(found[1]), CaseStatus.WAIVED))
        elif line.startswith("Waived"):
            self._waived()
        elif _FAULT.fullmatch(line):
            self._fault(line)
        elif found := _SUM.fullmatch(line):
            if self._case:
                self._case.sums.append((clean(found[1]), found[2]))
            self._title = None
        elif _TITLE.fullmatch(line):
            self._title, self._columns = clean(line), None
        elif self._title is not None:
            self._matrix(line.split())
        else:
            self._header(line)

    def finish(self) -> Output:
        """What was read in all."""
        for case in self.out.cases:
            if case.matrices and case.status is CaseStatus.UNFINISHED:
                case.status = CaseStatus.OK
        last = self.out.cases[-1] if self.out.cases else None
        if last and last.matrices and not last.sums and last.status is CaseStatus.OK:
            self.out.cut_off = last.name
        return self.out

    def _begin(self, case: Case) -> None:
        self.recognised = True
        self.out.cases.append(case)
        self._case, self._title = case, None

    def _waived(self) -> None:
        """``Waived: `` names no case; it speaks of the running one, or of one not shown."""
        if self._case and not self._case.matrices and self._case.status is CaseStatus.UNFINISHED:
            self._case.status = CaseStatus.WAIVED
        else:
            self.out.unnamed_waivers += 1
        self._title = None

    def _fault(self, line: str) -> None:
        """A case that printed its sum has ended: the fault is of one that was not named."""
        if len(self.out.errors) < 10:
            self.out.errors.append(clean(line))
        if self._case and not self._case.sums:
            self._case.status = CaseStatus.ERROR
        self._title = None

    def _matrix(self, tokens: list[str]) -> None:
        if not tokens:
            if self._columns is not None:
                self._title = None
        elif self._columns is None:
            self._columns = len(tokens)
            if self._case and self._title is not None:
                self._case.matrices.append((self._title, []))
        elif self._case and len(tokens) == self._columns + 1:
            self._case.matrices[-1][1].append(tokens[1:])
        else:
            self.out.malformed += 1

    def _header(self, line: str) -> None:
        for start, name in _HEADERS.items():
            if line.startswith(start):
                self.recognised |= name == "version"
                value = clean(line[len(start) :])
                setattr(self.out, name, _version(value) if name == "version" else value or None)
        if _DEVICE.fullmatch(line):
            self.out.devices.append(clean(line))
