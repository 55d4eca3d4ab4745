"""The commands that show: serve, advise."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from topobench.cli_output import (
    LOOPBACK,
    PORT,
    AddressOption,
    Format,
    FormatOption,
    PortOption,
    RowsFormat,
    RowsOption,
    StoreOption,
    TokenFileOption,
    emit,
    store_url,
)


def serve(
    *,
    host: AddressOption = LOOPBACK,
    port: PortOption = PORT,
    token_file: TokenFileOption = None,
    store: StoreOption = None,
    output: FormatOption = Format.TABLE,
) -> int:
    """
    Show the store as web pages, until Ctrl-C or SIGTERM. Nothing can be changed there.

    Beyond 127.0.0.1 a token is needed. /metrics is for Prometheus, /healthz for a supervisor.

    \b
    Examples:
      topobench serve
      topobench serve --store sqlite:///topobench-demo.db --port 9000
      topobench serve --host 0.0.0.0 --token-file token
    """
    from topobench import seeing

    def ready(where: str) -> None:
        print(f"topobench: serving {where} (Ctrl-C ends it)", file=sys.stderr, flush=True)

    outcome = seeing.serve(store_url(store), host, port, token_file=token_file, ready=ready)
    return emit("serve", outcome, output.value)


def advise(
    *,
    host: Annotated[
        str | None, typer.Argument(metavar="HOST", help="Name or key; default: the only one.")
    ] = None,
    sweep: Annotated[
        str | None,
        typer.Option("--sweep", metavar="SWEEP", help="Default: the newest with this host."),
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", metavar="FOLDER", help="Where ring files are written.")
    ] = Path(),
    store: StoreOption = None,
    output: RowsOption = RowsFormat.TABLE,
) -> int:
    """
    Say what to do with a host: bindings, rings, chunks, from what was measured on it.

    Each piece says its effect with an interval, or that there is no measurable gain. A ring
    that pays is written as a file, valid for exactly the GPUs it was measured on.

    \b
    Examples:
      topobench advise
      topobench advise h07 --out rings
      topobench advise h07 --sweep 1a2b3c4d --format json
    """
    from topobench import seeing

    return emit("advise", seeing.advise(store_url(store), host, sweep, out), output.value)


def add_to(app: typer.Typer) -> None:
    """Declare these commands."""
    app.command()(serve)
    app.command()(advise)
