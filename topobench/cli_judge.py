"""The commands that judge: compare, accept."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from topobench.cli_output import Format, FormatOption, StoreOption, emit, store_url

_SELECTOR = (
    "sweep:ID, host:NAME, cluster:NAME, sku:NAME, driver:580.95, date:FIRST..LAST; commas combine "
    "them. A word alone is taken where it means one thing."
)
AsOfOption = Annotated[
    str | None,
    typer.Option("--as-of", metavar="TIME", help="Only what was measured by then (UTC)."),
]
PolicyOption = Annotated[
    Path | None,
    typer.Option("--policy", metavar="FILE", help="Rules in place of single ones of ours."),
]


def compare(
    *,
    a: Annotated[str, typer.Argument(metavar="A", help=f"The reference: {_SELECTOR}")],
    b: Annotated[str, typer.Argument(metavar="B", help="What is judged, in the same words.")],
    control: Annotated[
        str | None,
        typer.Option(
            "--control",
            metavar="unchanged",
            help="Difference in differences: against the hosts that kept their driver.",
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Compare in spite of other hardware or settings.")
    ] = False,
    imported: Annotated[
        bool, typer.Option("--imported", help="Also results of other tools.")
    ] = False,
    synthetic: Annotated[
        bool, typer.Option("--synthetic", help="Also results made by demo.")
    ] = False,
    as_of: AsOfOption = None,
    policy: PolicyOption = None,
    store: StoreOption = None,
    output: FormatOption = Format.TABLE,
) -> int:
    """
    Say whether B is worse than A: effect, interval and a word for each case.

    \b
    Examples:
      topobench compare 1a2b3c4d latest
      topobench compare host:h07 host:h08
      topobench compare driver:570.86 driver:580.95 --control unchanged
      topobench compare host:h07,date:..2026-11-07 host:h07,date:2026-11-08..
    Exit: 0 equivalent or improved, 1 regressed, 2 usage, 3 inconclusive.
    """
    from topobench import comparing

    wanted = comparing.Wanted(
        as_of=as_of,
        control=control,
        force=force,
        imported=imported,
        synthetic=synthetic,
        policy_file=policy,
    )
    return emit("compare", comparing.compare(store_url(store), a, b, wanted), output.value)


def add_to(app: typer.Typer) -> None:
    """Declare these commands."""
    app.command()(compare)
