"""Printing to streams that are narrow, closed or of another encoding."""

from __future__ import annotations

import os
import subprocess
import sys

REPORT = """
import os
from report_documents import cpu_host_sweep
from topobench.report.show import StdoutConsole, show
from topobench.report.text import render_sweep

document = cpu_host_sweep()
document["hosts"][0]["name"] = "\\u673a\\u5668"
"""
PRINT = REPORT + "show(StdoutConsole(), render_sweep(document))"
PRINT_TOO_MUCH = (
    REPORT
    + """
try:
    for _ in range(2000):
        show(StdoutConsole(), render_sweep(document))
except BrokenPipeError:
    os.write(2, b"broken pipe")
    os._exit(7)
"""
)


def child(program: str, **environment: str) -> subprocess.Popen[bytes]:
    path = os.pathsep.join(sys.path)
    return subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path, **environment},
    )


def test_characters_the_encoding_lacks_are_written_out() -> None:
    """A cron job with LANG=C gets its report, too."""
    process = child(PRINT, PYTHONIOENCODING="ascii")
    output, complaints = process.communicate(timeout=60)
    assert (process.returncode, complaints) == (0, b"")
    assert rb"  host      \u673a\u5668 (10.9.0.10)" in output


def test_a_pipe_gets_plain_text() -> None:
    process = child(PRINT, TERM="xterm-256color")
    output, _ = process.communicate(timeout=60)
    assert b"\x1b" not in output
    assert output.endswith(b"; sweep 1a2b3c4d\n")


def test_a_reader_that_had_enough_is_a_broken_pipe() -> None:
    """As in ``topobench report | head -1``: the caller decides; rich would end the program."""
    process = child(PRINT_TOO_MUCH)
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    process.stdout = None
    _, complaints = process.communicate(timeout=60)
    assert (process.returncode, complaints) == (7, b"broken pipe")


def test_reports_load_nothing_heavy() -> None:
    """They are drawn where torch, ray or a database may not even be installed."""
    program = (
        "import sys, topobench.report, topobench.envelope\n"
        "heavy = {'torch', 'ray', 'sqlalchemy', 'pynvml', 'numpy', 'scipy', 'pydantic'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    output, complaints = child(program).communicate(timeout=60)
    assert (output, complaints) == (b"[]\n", b"")
