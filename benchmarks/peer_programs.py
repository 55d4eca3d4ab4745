"""
nvbandwidth and nccl-tests, run as their users run them: programs, arguments, figures.

Both are given by path; neither is part of this project.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REPEATS = 3
"""Runs of nvbandwidth, whose median counts: its figure is a median of one process."""


def nvbandwidth(program: str, case: str, *, row: int = 0, column: int = 0) -> float:
    """One cell of a test case's matrix, in bytes per second; median over runs."""
    return statistics.median(
        float(_matrix(program, case)[row][column]) * 1e9 for _ in range(REPEATS)
    )


def _matrix(program: str, case: str) -> list[list[str]]:
    told = run([program, "-t", case, "-j"])
    document = json.loads(told[told.index("{") :])
    (found,) = document["nvbandwidth"]["testcases"]
    return found["bandwidth_matrix"]  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class Row:
    """In place, as torch does it: seconds of an operation and bytes per second."""

    seconds: float
    busbw: float


def nccl_tests(program: str, sizes: Sequence[int], gpus: int, *extra: str) -> dict[int, Row]:
    """Rows of one of the nccl-tests by size, in one run for each size."""
    rows = {}
    for size in sizes:
        told = run([program, "-b", str(size), "-e", str(size), "-g", str(gpus), *extra])
        (fields,) = (f for line in told.splitlines() if (f := line.split())[:1] == [str(size)])
        time, _, busbw = fields[-4:-1]
        rows[size] = Row(float(time) * 1e-6, float(busbw) * 1e9)
    return rows


def topobench(probe: str, *settings: str) -> list[dict[str, Any]]:
    """The cells of one probe measured by the main job, with a store of its own."""
    with tempfile.TemporaryDirectory() as folder:
        chosen = [f"--set={probe}.{s}" for s in settings]
        command = [sys.executable, "-m", "topobench", "probe", f"--probes={probe}", *chosen]
        told = run(
            [*command, "--bindings=none", "--format=json"],
            TOPOBENCH_STORE=f"sqlite:///{folder}/bar.db",
        )
    cells: list[dict[str, Any]] = json.loads(told)["data"]["cells"]
    return cells


def median(cells: Sequence[dict[str, Any]], metric: str, **params: object) -> float:
    """The median over processes of a metric under NCCL's own choice of rings."""
    found = [
        float(reading["median"])
        for cell in cells
        if cell["ring"] == "auto" and params.items() <= cell["params"].items()
        for reading in cell["readings"]
        if reading["metric"] == metric and not reading["point"] and reading["median"] is not None
    ]
    if not found:
        told = {(c["status"], c["reason"]) for c in cells}
        sys.exit(f"no {metric} for {params}: {told}")
    return statistics.median(found)


def run(command: Sequence[str], **environment: str) -> str:
    """Standard output of a program; its errors end this one."""
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, **environment}
    )
    if done.returncode:
        name = Path(command[0]).name
        sys.exit(f"{name} ended with {done.returncode}: {done.stdout[-800:]}{done.stderr[-800:]}")
    return done.stdout
