"""Cells of the tests' own probes, run in a guest: each with numactl, or without, or both."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launching import Lab, cell, host
from topobench.reading import Binding, MemoryPolicy, to_json

WAYS = ("numactl", "syscalls")
"""How a launcher binds a worker."""


@dataclass(frozen=True, slots=True)
class Job:
    """A probe, under a binding, and the ways in which it is launched."""

    probe: str
    binding: Binding
    ways: tuple[str, ...] = WAYS


FAR = Binding("remote", "0-1", (0,), MemoryPolicy.BIND, (1,))
SPREAD = Binding("spread", "0-3", (0, 1), MemoryPolicy.INTERLEAVE, (0, 1))
CPUS_ONLY = Binding("mine", "2-3", (1,))
LOCAL = Binding("local", "0-1", (0,), MemoryPolicy.BIND, (0,))
NONE = Binding("none")
OUTSIDE = Binding("outside", "0", (0,))
HALF_OUTSIDE = Binding("half", "0-1", (0,))
WRONG_MEMORY = Binding("wrong", "2-3", (1,), MemoryPolicy.BIND, (1,))

JOBS: Mapping[str, tuple[Job, ...]] = {
    "two": (
        Job("buffer", FAR, ("syscalls",)),
        Job("buffer", SPREAD, ("syscalls",)),
        Job("buffer", CPUS_ONLY),
        Job("misplaced", LOCAL, ("syscalls",)),
    ),
    "cpuset": (
        Job("buffer", NONE),
        Job("buffer", OUTSIDE, ("numactl",)),
        Job("buffer", HALF_OUTSIDE),
        Job("buffer", WRONG_MEMORY),
    ),
}
"""By shape. The cells of ``inside.py`` are bound by numactl, so those arms are not run again."""


def run_jobs(shape: str) -> list[dict[str, Any]]:
    """For each job of a shape ``{way: run}``; none of their processes is left."""
    lab = Lab(Path(tempfile.mkdtemp()))
    programs = {"numactl": shutil.which("numactl"), "syscalls": None}
    found = []
    for job in JOBS.get(shape, ()):
        runs = {}
        for way in job.ways:
            (run,) = lab.run(
                cell(job.probe, binding=job.binding), on=host(numactl=programs[way]), start=120.0
            )
            runs[way] = to_json(run)
        found.append(runs)
    lab.assert_nothing_left(30.0)
    return found
