"""The command demo: a synthetic fleet in a file of its own."""

from __future__ import annotations

from typing import Annotated

import typer

from topobench.cli_output import Format, FormatOption, emit, stderr_console


def add_to(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command()(demo)


def demo(
    *,
    hosts: Annotated[
        int, typer.Option("--hosts", min=1, max=10_000, help="Hosts of the large cluster.")
    ] = 32,
    days: Annotated[int, typer.Option("--days", min=1, max=3650, help="Nights, one a day.")] = 60,
    seed: Annotated[
        int, typer.Option("--seed", min=0, help="The same seed gives the same numbers and ids.")
    ] = 1,
    effects: Annotated[
        str | None,
        typer.Option(
            "--effects", metavar="A,B", help="What to plant (docs/demo.md); none for nothing."
        ),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option("--until", metavar="DATE", help="Last night, UTC; default: the newest."),
    ] = None,
    store: Annotated[
        str | None,
        typer.Option("--store", metavar="FILE", help="Default: topobench-demo.db."),
    ] = None,
    output: FormatOption = Format.TABLE,
) -> int:
    """
    Make a synthetic fleet to try queries, report and web page without hardware.

    It goes into a file of its own, marked synthetic throughout, with planted effects.

    \b
    Examples:
      topobench demo
      topobench demo --hosts 8 --days 14 --seed 7
      topobench demo --effects slow-host=h07:3%@45,degraded-link=h11@50
    """
    from topobench import commands

    outcome = commands.demo(
        hosts=hosts,
        days=days,
        seed=seed,
        effects=effects,
        until=until,
        store=store,
        console=stderr_console(),
    )
    return emit("demo", outcome, output.value)
