"""Live progress: lines that do not flood, a terminal that is given back."""

from __future__ import annotations

import errno
import io
import os
import pty
import signal
import subprocess
import sys
import time

import pytest
from rich.console import Console

from topobench.reading import Arm, Binding, Case, Cell, Run, Status
from topobench.report.progress import LINE_SECONDS, Progress


class Clock:
    """Seconds that pass when told."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def cell(host: str = "h1", number: int = 0, probe: str = "host_memory") -> Cell:
    case = Case(probe, 1, {"chunk_bytes": 65536, "ring": None})
    arm = Arm(Binding("local"))
    return Cell(id=f"{host}-{number}", case=case, host=host, arm=arm, estimated_seconds=1.0)


def run(of: Cell, status: Status = Status.OK) -> Run:
    return Run(
        id=f"run-{of.id}",
        cell=of.id,
        status=status,
        reason=None,
        started_at="2026-11-29T16:00:00.000000Z",
        duration_seconds=1.0,
    )


def plain(total: int, clock: Clock, **names: str) -> tuple[Progress, io.StringIO]:
    file = io.StringIO()
    console = Console(file=file, width=60, force_terminal=False)
    return Progress(console, total, 100.0, names=names, clock=clock), file


def test_plain_lines_say_how_far_and_how_long() -> None:
    clock = Clock()
    progress, file = plain(4, clock, h1="gpu01")
    with progress:
        for number in range(4):
            progress.cell_started(cell(number=number))
            clock.now += 6.0
            progress.run_finished(cell(number=number), run(cell(), Status.OK))
    assert file.getvalue().splitlines() == [
        "1/4 cells (1 ok), 6 s, about 18 s left; last: gpu01 host_memory local, chunk 64 KiB ok",
        "2/4 cells (2 ok), 12 s, about 12 s left; last: gpu01 host_memory local, chunk 64 KiB ok",
        "3/4 cells (3 ok), 18 s, about 6 s left; last: gpu01 host_memory local, chunk 64 KiB ok",
        "4/4 cells (4 ok), 24 s; last: gpu01 host_memory local, chunk 64 KiB ok",
        "4/4 cells (4 ok), 24 s",
    ]


def test_a_thousand_hosts_do_not_flood_the_log() -> None:
    """At most one line in five seconds, whatever ends in between."""
    clock = Clock()
    progress, file = plain(10_000, clock)
    with progress:
        for number in range(1000):
            clock.now += 1 / 32
            progress.run_finished(cell(f"h{number}"), run(cell(), Status.FAILED))
    lines = file.getvalue().splitlines()
    assert len(lines) == int(1000 / 32 / LINE_SECONDS) + 1
    assert lines[-1].startswith("1000/10000 cells (1000 failed), 31 s, about ")


def test_the_plan_s_estimate_counts_until_a_tenth_is_done() -> None:
    clock = Clock()
    progress, _ = plain(20, clock)
    assert progress.remaining_seconds == 100.0
    clock.now += 30.0
    progress.run_finished(cell(), run(cell()))
    assert progress.remaining_seconds == 70.0
    progress.run_finished(cell(), run(cell()))
    assert progress.remaining_seconds == 270.0


def test_without_a_console_nothing_is_shown() -> None:
    progress = Progress(None, 1, 1.0)
    with progress:
        progress.cell_started(cell())
        progress.note("hello")
        progress.run_finished(cell(), run(cell()))
    assert progress.done == 0


def test_notes_are_text() -> None:
    progress, file = plain(1, Clock())
    progress.note("\x1b[31m[red]no numactl[/red]\nx")
    assert file.getvalue() == r"\x1b[31m[red]no numactl[/red]\nx" + "\n"


def test_a_display_that_fails_goes_dark_and_never_stops_the_sweep() -> None:
    class Broken(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(errno.EIO, "the terminal is gone")

    console = Console(file=Broken(), width=60, force_terminal=True)
    with Progress(console, 2, 1.0) as progress:
        progress.note("one")
        progress.run_finished(cell(), run(cell()))
        progress.note("two")
    assert progress.is_dark


def test_an_error_of_the_sweep_passes_through() -> None:
    progress, file = plain(2, Clock())
    with pytest.raises(KeyboardInterrupt), progress:
        raise KeyboardInterrupt
    assert file.getvalue() == "0/2 cells, 0 s, about 100 s left\n"


def test_a_reader_of_stderr_that_goes_away_costs_no_output() -> None:
    """As in ``topobench probe --format json 2>&1 >file | head -1``."""
    program = (
        "import time\n"
        "from topobench.report.progress import Progress\n"
        "from topobench.report.show import StderrConsole\n"
        "with Progress(StderrConsole(), 2, 1.0) as progress:\n"
        "    input()\n"
        "    progress.note('one')\n"
        "    progress.note('two')\n"
        "print('the document')\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert process.stderr is not None
    process.stderr.close()
    process.stderr = None
    output, _ = process.communicate(b"\n", timeout=60)
    assert (process.returncode, output) == (0, b"the document\n")


CHILD = """
import signal, sys, time
from rich.console import Console
from test_report_progress import cell, run
from topobench.report.progress import Progress

console = Console(stderr=True, width=70)
with Progress(console, 3, 60.0, names={"h1": "gpu01"}) as progress:
    progress.cell_started(cell())
    progress.run_finished(cell(), run(cell()))
    progress.cell_started(cell(number=1, probe="all_reduce"))
    progress.note("a note")
    time.sleep(0.6)
    print("ready", flush=True)
    time.sleep(60)
"""


def on_terminal(program: str) -> tuple[int, str]:
    """Exit status and terminal output of a program that is interrupted once it is ready."""
    parent, child = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=child, env=environment
    )
    os.close(child)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGINT)
        shown = read_all(parent)
        process.wait(timeout=30)
    finally:
        process.kill()
        process.wait()
        os.close(parent)
        if process.stdout:
            process.stdout.close()
    return process.returncode, shown


def read_all(terminal: int) -> str:
    found = b""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            part = os.read(terminal, 65536)
        except OSError:  # the last writer closed the terminal
            break
        found += part
    return found.decode()


def test_ctrl_c_gives_the_terminal_back() -> None:
    """The cursor that a live display hides is shown again, and the summary stands below."""
    status, shown = on_terminal(CHILD)
    assert status == -signal.SIGINT
    assert "gpu01: all_reduce local, chunk 64 KiB" in shown
    assert "1/3 cells (1 ok)" in shown
    assert "a note" in shown
    assert shown.count("\x1b[?25l") == shown.count("\x1b[?25h") == 1
    after = shown.rpartition("\x1b[?25h")[2]
    assert "1/3 cells (1 ok)" in after
