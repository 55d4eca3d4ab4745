"""
A collective by NVIDIA's nccl-tests, where those programs are installed.

All GPUs of the cell take part: as ``-g N`` of one process, or as N processes of mpirun for a
build with MPI. NCCL's log goes to files of its own, so that it never mixes with the table.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from topobench.errors import ImportFailed, ProbeError, ResultInvalid
from topobench.importers import nccl_tests as importer
from topobench.importers.document import Document, DocumentStatus
from topobench.importers.nccl_tests import Placement
from topobench.probes import foreign, tool
from topobench.probes.metrics import ALGBW, BUSBW, LATENCY
from topobench.probes.protocol import Arms, Kind, WorkerContext, parameter
from topobench.reading import Metric, Reading, ReasonCode, Scalar

PROGRAMS = {
    "all_reduce": "all_reduce_perf",
    "all_gather": "all_gather_perf",
    "reduce_scatter": "reduce_scatter_perf",
    "all_to_all": "alltoall_perf",
    "broadcast": "broadcast_perf",
    "send_recv": "sendrecv_perf",
}
DTYPES = ("float", "half", "bfloat16", "int8", "double")
WARMUPS = 5
LARGE_BYTES = 1 << 20
_VERSION = re.compile(r"nccl-tests version ([0-9.]{1,20})")
_MPI_AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


@dataclass(frozen=True, slots=True)
class NcclTests:
    """Run one collective of nccl-tests at one size, checked by the tool itself."""

    name: ClassVar[str] = "nccl_tests"
    version: ClassVar[int] = 1
    summary: ClassVar[str] = "a collective by NVIDIA's nccl-tests, if they are installed"
    needs: ClassVar[frozenset[str]] = frozenset({"cuda", "gpus>=2", "binary:all_reduce_perf"})
    metrics: ClassVar[tuple[Metric, ...]] = (LATENCY, ALGBW, BUSBW)
    arms: ClassVar[Arms] = Arms.HOST

    op: str = parameter(
        "all_reduce", kind=Kind.CHOICE, choices=tuple(PROGRAMS), help="the collective"
    )
    bytes: int = parameter(
        128 << 20, kind=Kind.BYTES, minimum=8, maximum=1 << 36, help="size, as nccl-tests counts it"
    )
    dtype: str = parameter("float", kind=Kind.CHOICE, choices=DTYPES, help="of the elements")
    processes: str = parameter(
        "one",
        kind=Kind.CHOICE,
        choices=("one", "each"),
        help="one process for all GPUs (-g N), or one for each by mpirun (a build with MPI)",
    )
    folder: str | None = parameter(
        None, kind=Kind.TEXT, help="where its programs are; none: they are on PATH"
    )

    def measure(self, context: WorkerContext) -> Iterator[Reading]:
        """
        Run it once.

        Raises:
            ProbeUnavailable: ``no_gpu``, ``no_binary``.
            ProbeError: ``crashed``, ``deadline``, ``signal``, ``parse``, ``rank_lost``.
            ResultInvalid: ``wrong_data``, or ``parse``: its figures may not be used.
        """
        tool.require_gpus(context)
        env = {**foreign.environment(), **(_MPI_AS_ROOT if self.processes == "each" else {})}
        name = PROGRAMS[self.op]
        path = None if self.folder is None else str(Path(self.folder) / name)
        program = tool.find(path, name, env)
        json = tool.takes(program, "-J", env)
        ranks = len(context.devices)
        with tempfile.TemporaryDirectory() as made:
            folder = Path(made)
            env["NCCL_DEBUG_FILE"] = str(folder / "nccl.%h.%p.log")
            argv = self._argv(program, ranks, folder / "result.json" if json else None)
            ran = tool.run(argv, env=env, context=context, folder=folder)
            text = _written(folder / "result.json") or ran.text
        try:
            document = importer.parse(text)
        except ImportFailed as error:
            foreign.check_end(name, ran.ended, ran.limit_seconds)
            raise ProbeError(ReasonCode.PARSE, str(error)) from error
        told = _told(document, argv, ranks, ran.text)
        context.note("tool", told)
        if told["version"]:
            context.note("version", str(told["version"]))
        _check_document(document)
        foreign.check_end(name, ran.ended, ran.limit_seconds)
        yield from self._readings(document, ranks)

    def estimated_seconds(self) -> float:
        """Its own start, and two runs of the size."""
        return 8.0

    def _argv(self, program: str, ranks: int, result: Path | None) -> list[str]:
        iterations = 20 if self.bytes >= LARGE_BYTES else 200
        each = self.processes == "each"
        return [
            *(["mpirun", "-np", str(ranks)] if each else []),
            *(program, "-b", str(self.bytes), "-e", str(self.bytes)),
            *("-g", "1" if each else str(ranks), "-w", str(WARMUPS), "-n", str(iterations)),
            *("-c", "1", "-a", "3", "-d", self.dtype),
            *(["-J", str(result)] if result else []),
        ]

    def _readings(self, document: Document, ranks: int) -> Iterator[Reading]:
        counted = document.facts["rank_count"]
        if counted is not None and counted != ranks:
            text = f"{counted} ranks took part, not {ranks}"
            raise ProbeError(ReasonCode.RANK_LOST, text)
        rows = [r for r in document.rows if 0 < r.size_bytes <= self.bytes]
        if len(rows) != 1:
            text = f"{len(rows)} rows of at most {self.bytes} bytes, one was asked for"
            raise ResultInvalid(ReasonCode.PARSE, text)
        for in_place, half in ((False, rows[0].out_of_place), (True, rows[0].in_place)):
            for metric, value in _figures(half).items():
                yield tool.reading(metric, value, {"in_place": in_place})


def _figures(half: Placement | None) -> dict[str, float]:
    """Figures by metric; a speed that the table rounds to 0.00 is left out."""
    if half is None:
        return {}
    found = {
        LATENCY.name: half.time_seconds,
        ALGBW.name: half.algbw_bytes_per_second,
        BUSBW.name: half.busbw_bytes_per_second,
    }
    return {k: v for k, v in found.items() if v}


def _check_document(document: Document) -> None:
    if document.status is DocumentStatus.INVALID:
        wrong = any(r.startswith("wrong data") for r in document.reasons)
        code = ReasonCode.WRONG_DATA if wrong else ReasonCode.PARSE
        raise ResultInvalid(code, "; ".join(document.reasons))


def _written(path: Path) -> str | None:
    """The JSON that the tool wrote; None where it wrote none."""
    return foreign.output_text(path, tool.LARGEST_OUTPUT) if path.is_file() else None


def _told(document: Document, argv: Sequence[str], ranks: int, printed: str) -> dict[str, Scalar]:
    """What is stored of the tool: versions and flags, never its environment."""
    named = _VERSION.search(printed)  # the JSON names none
    return {
        "name": document.tool,
        "version": named[1] if named else document.version,
        "nccl": document.facts["nccl_version"],
        "argv": " ".join(argv),
        "ranks": ranks,
    }
