"""Documents of foreign results as hosts, cells and runs, ready to be stored."""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from topobench.errors import ImportFailed
from topobench.host import Host, HostFacts
from topobench.importers import nccl_tests, nvbandwidth
from topobench.importers.collectives import DTYPES
from topobench.importers.document import Document, DocumentStatus
from topobench.reading import (
    Arm,
    Binding,
    Case,
    Cell,
    Reading,
    Reason,
    ReasonCode,
    Run,
    Scalar,
    Status,
    Summary,
)
from topobench.topology import Cpus, Machine, Topology

UNKNOWN = "unknown"
_NAMESPACE = uuid.UUID("3575c17a-b171-4a33-aa77-f5b5beeec575")
_VERSION = 1
"""Of the cases that imports make."""


@dataclass(frozen=True, slots=True)
class Origin:
    """
    Whose result a file is, as the user says; never this machine's by default.

    Args:
        topology: What the host looked like; None: unknown.
        taken_at: UTC, ISO 8601; None: as the file says.
    """

    cluster: str = UNKNOWN
    host: str = UNKNOWN
    sku: str | None = None
    topology: Topology | None = None
    taken_at: str | None = None


def sweep_id(tool: str, digest: str) -> str:
    """The UUID of the import of some bytes: the same bytes have the same one."""
    return str(uuid.uuid5(_NAMESPACE, f"{tool}:{digest}"))


def host_key(origin: Origin, digest: str) -> str:
    """
    The key of an imported host, which is never that of a discovered one.

    Results of hosts that nobody named are not of the same host: each file has its own.
    """
    return f"import:{digest[:16] if origin.host == UNKNOWN else origin.host}"


def import_host(origin: Origin, digest: str, taken_at: str) -> Host:
    """A host of which only what the user said is known."""
    facts = HostFacts(
        hostname=origin.host,
        interpreter=UNKNOWN,
        topobench=UNKNOWN,
        source_digest=UNKNOWN,
        python=UNKNOWN,
        memory_policy=UNKNOWN,
    )
    nothing = Topology(
        taken_at=taken_at,
        root="",
        virtualization=UNKNOWN,
        trust="low",
        machine=Machine(),
        cpus=Cpus(),
    )
    return Host(
        key=host_key(origin, digest),
        key_source="import",
        name=origin.host,
        address="",
        facts=facts,
        topology=origin.topology or nothing,
        labels={"sku": origin.sku} if origin.sku else {},
        warnings=("imported: topobench did not measure or discover this host",),
    )


def started_at(document: Document, origin: Origin, now: str) -> tuple[str, tuple[str, ...]]:
    """When a result was measured, UTC, and what is to be said about that."""
    if origin.taken_at is not None:
        return origin.taken_at, ()
    printed = [document.facts.get("local_start_time")]
    printed += [getattr(r, "timestamp", None) for r in document.rows[:1]]
    local = next((m for m in map(_moment, printed) if m), None)
    if local is None:
        return now, ("no time in the file: stored under the time of the import (--taken-at)",)
    return local, ("the file's local time is taken as UTC (--taken-at)",)


def _moment(text: str | None) -> str | None:
    """A printed local time as if it were UTC; None if it is no time."""
    try:
        moment = datetime.datetime.fromisoformat(text or "")
    except ValueError:
        return None
    return f"{moment.replace(tzinfo=None).isoformat(timespec='microseconds')}Z"


def cells_and_runs(
    document: Document, digest: str, host: str, started: str
) -> list[tuple[Cell, Run | None]]:
    """
    A cell and its run for every figure of a document; a waived test case has no run.

    Args:
        digest: SHA-256 of the file; UUIDs derive from it.
        host: Key of the host.
        started: UTC, ISO 8601.

    Raises:
        ImportFailed: The number of ranks is not known.
    """
    made = _collectives(document) if document.tool == nccl_tests.TOOL else _matrices(document)
    seed = uuid.UUID(sweep_id(document.tool, digest))
    numbers: dict[tuple[str, int], int] = {}
    found: list[tuple[Cell, Run | None]] = []
    for n, one in enumerate(made):
        case = Case(one.probe, _VERSION, one.params)
        number = numbers[case.params_hash, one.ranks] = (
            numbers.get((case.params_hash, one.ranks), -1) + 1
        )
        skipped = one.status is Status.SKIPPED
        cell = Cell(
            id=str(uuid.uuid5(seed, f"cell {n}")),
            case=case,
            host=host,
            arm=Arm(Binding(UNKNOWN)),
            ranks=one.ranks,
            process_no=number,
            status=Status.SKIPPED if skipped else Status.PLANNED,
            reason=one.reason if skipped else None,
        )
        run = Run(
            id=str(uuid.uuid5(seed, f"run {n}")),
            cell=cell.id,
            status=one.status,
            reason=one.reason,
            started_at=started,
            duration_seconds=float("nan"),
            readings=tuple(_reading(m, v) for m, v in one.figures.items()),
            environment=one.environment,
            conditions=one.conditions,
        )
        found.append((cell, None if skipped else run))
    return found


@dataclass(frozen=True, slots=True)
class _Measured:
    """What a cell and its run are made of; ``figures`` by metric."""

    probe: str
    params: Mapping[str, Scalar]
    figures: Mapping[str, float]
    status: Status
    reason: Reason | None
    ranks: int
    environment: Mapping[str, Any]
    conditions: Mapping[str, Any]


def _reading(metric: str, value: float) -> Reading:
    """One number, of which only the tool knows how many samples stand behind it."""
    summary = Summary(n=1, median=value, minimum=value, maximum=value, mad=0.0)
    return Reading(metric, summary, (value,))


def _collectives(document: Document) -> Iterator[_Measured]:
    ranks = document.facts["rank_count"]
    if ranks is None:
        raise ImportFailed(
            "the number of ranks is not in the file, and a result without it cannot be "
            "compared: give the whole output, with the lines that name the ranks"
        )
    status, reason = Status.OK, None
    if document.status is DocumentStatus.INVALID:
        status = Status.INVALID
        wrong = any(r.startswith("wrong data") for r in document.reasons)
        code = ReasonCode.WRONG_DATA if wrong else ReasonCode.PARSE
        reason = Reason(code, document.reasons[0])
    for row in document.rows:
        for in_place, half in ((False, row.out_of_place), (True, row.in_place)):
            if half is None:
                continue
            yield _Measured(
                probe="nccl_tests",
                params=_known({**_collective_params(document, row), "in_place": in_place}),
                figures=_collective_figures(half, ranks),
                status=status,
                reason=reason,
                ranks=ranks,
                environment=_known(
                    {"nccl": document.facts["nccl_version"], "tool": _tool(document)}
                ),
                conditions=_known({"per_iteration": half.per_iteration}),
            )


def _collective_params(document: Document, row: nccl_tests.Row) -> dict[str, Scalar]:
    asked = document.requested
    listed = document.facts["ranks"]
    names = {r.host for r in listed if r.group == listed[0].group}
    return {
        "op": document.facts["op"],
        "bytes": row.size_bytes,
        "dtype": DTYPES.get(row.dtype, row.dtype),
        "reduction": row.redop,
        "root": row.root,
        "hosts": len(names) if len(names) > 1 else None,
        "graph": asked["graph"],
        **{k: asked[k] for k in ("warmups", "iterations", "aggregated_iterations")},
    }


def _collective_figures(half: nccl_tests.Placement, ranks: int | None) -> dict[str, float]:
    """Figures by metric; a speed that the table rounds to 0.00 is left out."""
    figures = {"latency_seconds": half.time_seconds}
    if ranks != 1:
        figures["algbw_bytes_per_second"] = half.algbw_bytes_per_second
        figures["busbw_bytes_per_second"] = half.busbw_bytes_per_second
    return {k: v for k, v in figures.items() if v}


_METRICS = {"B/s": "bandwidth_bytes_per_second", "s": "latency_seconds"}


def _matrices(document: Document) -> Iterator[_Measured]:
    facts = document.facts
    environment = {"cuda": facts["cuda"], "driver": facts["driver"], "tool": _tool(document)}
    for row in document.rows:
        if row.status is nvbandwidth.CaseStatus.OK and row.value is None:
            continue
        status, reason = _outcome(row)
        yield _Measured(
            probe="nvbandwidth",
            params=_known(
                {"testcase": row.testcase, "part": row.part, "row": row.row, "column": row.column}
            ),
            figures={_METRICS[row.unit]: row.value} if row.unit and row.value else {},
            status=status,
            reason=reason,
            ranks=1,
            environment=_known(environment),
            conditions={},
        )


def _outcome(row: nvbandwidth.Row) -> tuple[Status, Reason | None]:
    said = f"nvbandwidth says of {row.testcase}: {row.status.replace('_', ' ')}"
    match row.status:
        case nvbandwidth.CaseStatus.OK:
            return Status.OK, None
        case nvbandwidth.CaseStatus.WAIVED | nvbandwidth.CaseStatus.NOT_FOUND:
            return Status.SKIPPED, Reason(ReasonCode.UNSUPPORTED, said)
        case _:
            status = Status.FAILED if row.value is None else Status.INVALID
            return status, Reason(ReasonCode.CRASHED, said)


def _tool(document: Document) -> str:
    return f"{document.tool} {document.version or UNKNOWN}"


def _known(values: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in values.items() if v is not None}
