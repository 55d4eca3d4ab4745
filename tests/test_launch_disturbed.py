"""A program of somebody else that comes to a GPU while a cell is measured there."""

from __future__ import annotations

import dataclasses
import itertools
import os
from pathlib import Path
from typing import Any

from launching import PROBES, TESTS, Lab, cell, host
from topobench.agents.conditions.monitor import Monitor
from topobench.agents.launch import Launcher
from topobench.reading import MEASURED, ReasonCode, Status
from watched_gpu import Watched, process

LOOKS = 4
"""How often nobody else is there before the stranger comes."""


def test_a_stranger_on_the_gpu_ends_the_cell_within_five_seconds(tmp_path: Path) -> None:
    """The stranger is this test's own process; it leaves after the first cell."""
    lab = Lab(tmp_path)
    looks = itertools.count()
    here: dict[str, bool] = {"gone": False}

    def running() -> list[Any]:
        return [process(os.getpid())] if next(looks) >= LOOKS and not here["gone"] else []

    watched = Watched(DeviceGetComputeRunningProcesses=running)
    launcher = Launcher(
        sweep=lab.sweep,
        host=host(),
        env={"PYTHONPATH": str(TESTS)},
        log_dir=lab.logs,
        targets=PROBES,
        watch=Monitor(sweep=lab.sweep, session=watched.session).watch,
    )
    first, second = (
        dataclasses.replace(c, devices=(watched.uuid,)) for c in (cell("sleeper"), cell("steady"))
    )
    runs = launcher.run([first, second], stop=lab.stop)
    disturbed = next(runs)
    here["gone"] = True
    after = list(runs)
    assert disturbed.status is Status.ABORTED
    assert disturbed.reason is not None
    assert disturbed.reason.code is ReasonCode.SHARED_GPU
    assert f"pid {os.getpid()} " in disturbed.reason.text
    assert disturbed.duration_seconds < 5
    assert disturbed.status not in MEASURED
    assert [r.status for r in after] == [Status.OK], "the next cell has the GPU to itself"
    lab.assert_nothing_left()
