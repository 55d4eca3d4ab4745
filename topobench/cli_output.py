"""How the command line prints: documents, text, and readers that leave early."""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from topobench.errors import TopobenchError

if TYPE_CHECKING:
    from rich.console import Console

    from topobench.commands import Outcome


class Format(StrEnum):
    """Output of most commands."""

    TABLE = "table"
    JSON = "json"


class RowsFormat(StrEnum):
    """Output of commands whose answer is a table."""

    TABLE = "table"
    CSV = "csv"
    JSON = "json"


class TopoFormat(StrEnum):
    """Output of ``topo show`` and ``topo import``."""

    TREE = "tree"
    JSON = "json"
    MATRIX = "matrix"
    SVG = "svg"
    DOT = "dot"
    NCCL = "nccl"
    HWLOC = "hwloc"


StoreOption = Annotated[
    str | None,
    typer.Option("--store", metavar="URL", help="Database, e.g. sqlite:///topobench.db."),
]
FormatOption = Annotated[Format, typer.Option("--format", help="table for people, json.")]
RowsOption = Annotated[RowsFormat, typer.Option("--format", help="table for people, csv, json.")]
AddressOption = Annotated[
    str, typer.Option("--host", metavar="ADDRESS", help="Address to listen on.")
]
PortOption = Annotated[int, typer.Option("--port", min=0, max=65535, help="0 takes a free one.")]
TokenFileOption = Annotated[
    Path | None,
    typer.Option("--token-file", metavar="FILE", help="What visitors must know; one line."),
]
LOOPBACK, PORT = "127.0.0.1", 8420
"""Where the web pages are shown, if nothing else is said."""


def store_url(given: str | None) -> str:
    """The flag, the environment, or the default: as the config decides it."""
    from topobench import config

    return config.load(None, overrides=config.Overrides(store=given)).store


def emit(command: str, outcome: Outcome, output: str, *, silent: bool = False) -> int:
    """Print an outcome as JSON, as rows, or for people."""
    with reader_may_leave():
        if output == "json":
            _print_document(command, outcome)
        elif output == "csv":
            from topobench.report.rows import csv_of

            print(csv_of(command, outcome.data), end="")
        elif not silent:
            from topobench.report.show import StdoutConsole, show

            wide = command == "query" and not sys.stdout.isatty()  # for grep and awk
            show(StdoutConsole(_WIDE if wide else None), outcome.draw())
    return outcome.exit_code


def warn(outcome: Outcome) -> None:
    """Warnings for people, on standard error."""
    for warning in outcome.warnings:
        print(f"topobench: {warning}", file=sys.stderr)


def style_of(output: TopoFormat) -> str:
    """JSON is made of the topology itself, so it is drawn as nothing else."""
    return "tree" if output is TopoFormat.JSON else output.value


def emit_topology(outcome: Outcome, output: TopoFormat) -> int:
    """Print a topology; the formats of other tools go out as they are."""
    warn(outcome)
    if output in (TopoFormat.TREE, TopoFormat.JSON):
        return emit("topology", outcome, output.value)
    with reader_may_leave():
        print(outcome.data, end="")
    return outcome.exit_code


_WIDE = 10_000
"""Columns of a table that goes into a pipe: no row is ever broken."""


def _print_document(command: str, outcome: Outcome) -> None:
    import json

    from topobench.envelope import envelope
    from topobench.sweep import utc_now

    document = outcome.data
    if not outcome.alone:
        document = envelope(
            command,
            outcome.data,
            status=outcome.status,
            exit_code=outcome.exit_code,
            warnings=outcome.warnings,
            generated_at=utc_now(),
        )
    print(json.dumps(document))


class OutputLost(TopobenchError):
    """What standard output was to hold cannot be written there, so neither can this."""

    def __init__(self, error: OSError) -> None:
        super().__init__(f"standard output cannot be written: {error.strerror}")


@contextlib.contextmanager
def reader_may_leave() -> Iterator[None]:
    """``topobench query ... | head``: a reader that had enough is no error."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        drop_stdout()
    except OSError as error:
        drop_stdout()
        raise OutputLost(error) from error


def drop_stdout() -> None:
    """What is still in its buffer goes nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


_SIZE = re.compile(r"[1-9][0-9]{0,4}")
"""Of a terminal. With 0 columns nothing at all would be printed, with many a bar fills memory."""


def prepare_streams() -> None:
    """
    Make standard streams usable whatever the caller closed or says of their size.

    A closed one would give its number to the next file that is opened, such as the database.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free: this one
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "w" if number else "r", closefd=False))
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")  # a host name, a terminal of ASCII
    for name in ("COLUMNS", "LINES"):
        if not _SIZE.fullmatch(os.environ.get(name, "1")):
            del os.environ[name]


def stderr_console() -> Console:
    """Where progress and notes go, so that standard output stays one document."""
    from topobench.report.show import StderrConsole

    return StderrConsole()


@contextlib.contextmanager
def stdout_kept_clean() -> Iterator[None]:
    """Whatever a library or a child prints to standard output goes to standard error."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)
