"""The commands that run by the clock: sweep, daemon."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from topobench.cli_commands import Trigger
from topobench.cli_output import (
    LOOPBACK,
    PORT,
    AddressOption,
    Format,
    FormatOption,
    PortOption,
    TokenFileOption,
    emit,
    stderr_console,
    stdout_kept_clean,
)

FleetOption = Annotated[
    Path, typer.Option("--fleet", metavar="FILE", help="fleet.yaml (docs/operations.md).")
]


def sweep(
    *,
    fleet: FleetOption,
    due: Annotated[
        bool, typer.Option("--due", help="Only what is due now and was not done yet.")
    ] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Judge each sweep; the exit code is then check's.")
    ] = False,
    only: Annotated[
        str | None,
        typer.Option("--only", metavar="CLUSTER[/SCHEDULE]", help="Only these; with commas."),
    ] = None,
    trigger: Annotated[
        Trigger, typer.Option("--trigger", help="cron prints only what is new or cleared.")
    ] = Trigger.MANUAL,
    textfile: Annotated[
        Path | None,
        typer.Option("--textfile", metavar="FILE", help="Write the metrics there at the end."),
    ] = None,
    output: FormatOption = Format.TABLE,
) -> int:
    """
    Sweep the clusters of a fleet, all of them or what is due; for cron.

    Without --due every schedule is swept now.

    \b
    Examples:
      topobench sweep --fleet fleet.yaml --due --check --trigger cron
      topobench sweep --fleet fleet.yaml --only lab/nightly
      topobench sweep --fleet fleet.yaml --due --textfile /var/lib/node_exporter/topobench.prom
    Exit: as probe; with --check: 0 ok, 1 degraded, 2 fail, 3 anything else.
    """
    from topobench import fleet_sweeps

    quiet = trigger is Trigger.CRON
    console = None if quiet else stderr_console()
    with stdout_kept_clean():
        outcome = fleet_sweeps.sweep(
            fleet,
            due=due,
            check=check,
            only=only,
            trigger=trigger.value,
            console=console,
            textfile=textfile,
        )
    silent = quiet and not outcome.data["is_news"]
    for warning in () if silent else outcome.warnings:
        print(f"topobench: {warning}", file=sys.stderr)
    return emit("sweep", outcome, output.value, silent=silent)


def daemon(
    *,
    fleet: FleetOption,
    host: AddressOption = LOOPBACK,
    port: PortOption = PORT,
    token_file: TokenFileOption = None,
    output: FormatOption = Format.TABLE,
) -> int:
    """
    Show the fleet's store as web pages and sweep what is due, until Ctrl-C or SIGTERM.

    SIGHUP reads the fleet file again. What is due is swept by a child, sweep --due --check.

    \b
    Examples:
      topobench daemon --fleet fleet.yaml
      topobench daemon --fleet fleet.yaml --host 0.0.0.0 --token-file token
    """
    from topobench import daemon as body

    def note(text: str) -> None:
        print(f"topobench: {text}", file=sys.stderr, flush=True)

    return emit(
        "daemon", body.run(fleet, host, port, token_file=token_file, note=note), output.value
    )


def add_to(app: typer.Typer) -> None:
    """Declare these commands."""
    app.command()(sweep)
    app.command()(daemon)
