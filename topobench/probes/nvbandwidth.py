"""
A test case of NVIDIA's nvbandwidth, where that program is installed.

It sees the GPUs of the cell, its own CPU affinity is off so that the binding of the arm
holds, and its JSON is read where it writes any.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from topobench.errors import ImportFailed, ProbeError, ProbeUnavailable, ResultInvalid
from topobench.importers import nvbandwidth as importer
from topobench.importers.document import Document
from topobench.importers.nvbandwidth import CaseStatus, Row
from topobench.probes import foreign, tool
from topobench.probes.metrics import BANDWIDTH, LATENCY
from topobench.probes.protocol import Arms, Kind, WorkerContext, parameter
from topobench.reading import Metric, Reading, ReasonCode, Scalar

MIB = 1 << 20
_METRICS = {"B/s": BANDWIDTH.name, "s": LATENCY.name}


@dataclass(frozen=True, slots=True)
class Nvbandwidth:
    """Run one test case of nvbandwidth; one reading for each cell of its matrix."""

    name: ClassVar[str] = "nvbandwidth"
    version: ClassVar[int] = 1
    summary: ClassVar[str] = "a test case of NVIDIA's nvbandwidth, if it is installed"
    needs: ClassVar[frozenset[str]] = frozenset({"cuda", "binary:nvbandwidth"})
    metrics: ClassVar[tuple[Metric, ...]] = (BANDWIDTH, LATENCY)
    arms: ClassVar[Arms] = Arms.HOST

    testcase: str = parameter(
        "host_to_device_memcpy_ce", kind=Kind.TEXT, help="name, as nvbandwidth -l lists it"
    )
    bytes: int = parameter(
        512 * MIB, kind=Kind.BYTES, minimum=MIB, maximum=1 << 36, help="of a buffer; whole MiB"
    )
    samples: int = parameter(3, minimum=1, maximum=1000, help="of each figure, a median of")
    program: str | None = parameter(None, kind=Kind.TEXT, help="its path; none: the one on PATH")

    def __post_init__(self) -> None:
        if self.bytes % MIB:
            raise ValueError(f"bytes must be whole MiB, {self.bytes} is not")

    def measure(self, context: WorkerContext) -> Iterator[Reading]:
        """
        Run it once.

        Raises:
            ProbeUnavailable: ``no_gpu``, ``no_binary``; ``unsupported``: it waived the test case.
            ProbeError: ``crashed``, ``deadline``, ``signal``, ``parse``.
            ResultInvalid: ``parse``: its figures contradict themselves.
        """
        tool.require_gpus(context)
        env = foreign.environment()
        program = tool.find(self.program, self.name, env)
        json = tool.takes(program, "--json", env)
        argv = [program, "-t", self.testcase, "-b", str(self.bytes // MIB)]
        argv += ["-i", str(self.samples), "-d", *(["-j"] if json else [])]
        with tempfile.TemporaryDirectory() as folder:
            ran = tool.run(argv, env=env, context=context, folder=Path(folder))
        try:
            document = importer.parse(ran.text)
        except ImportFailed as error:
            foreign.check_end(self.name, ran.ended, ran.limit_seconds)
            raise ProbeError(ReasonCode.PARSE, str(error)) from error
        told = _told(document, argv, json)
        context.note("tool", told)
        if told["version"]:
            context.note("version", str(told["version"]))
        rows = [r for r in document.rows if r.testcase == self.testcase]
        self._check(rows, document)
        foreign.check_end(self.name, ran.ended, ran.limit_seconds)
        found = [r for r in rows if r.value and r.unit]
        if not found:
            text = f"nvbandwidth gave no figure for {self.testcase}"
            raise ProbeUnavailable(ReasonCode.UNSUPPORTED, text)
        for row in found:
            yield tool.reading(_METRICS[str(row.unit)], float(row.value or 0), _point(row))

    def estimated_seconds(self) -> float:
        """Mostly its own start; more where there are many pairs of GPUs."""
        return 10.0

    def _check(self, rows: Sequence[Row], document: Document) -> None:
        said = "; ".join(document.reasons) or "no reason given"
        states = {r.status for r in rows}
        if states & {CaseStatus.ERROR, CaseStatus.UNFINISHED}:
            raise ProbeError(ReasonCode.CRASHED, f"nvbandwidth failed in {self.testcase}: {said}")
        if CaseStatus.NOT_FOUND in states:
            text = f"nvbandwidth has no test case {self.testcase}; nvbandwidth -l lists them"
            raise ProbeUnavailable(ReasonCode.UNSUPPORTED, text)
        if CaseStatus.WAIVED in states:
            text = f"nvbandwidth waived {self.testcase}: this machine cannot run it"
            raise ProbeUnavailable(ReasonCode.UNSUPPORTED, text)
        if document.malformed_rows:
            raise ResultInvalid(ReasonCode.PARSE, said)


def _told(document: Document, argv: Sequence[str], json: bool) -> dict[str, Scalar]:
    """What is stored of the tool: its version and flags, never its environment."""
    return {
        "name": document.tool,
        "version": document.version,
        "argv": " ".join(argv),
        "output": "json" if json else "text",
    }


def _point(row: Row) -> dict[str, Scalar]:
    """Where a figure stands in the matrix; what the test case does not vary is left out."""
    place = {"part": row.part, "row": row.row, "column": row.column}
    return {k: v for k, v in place.items() if v is not None}
