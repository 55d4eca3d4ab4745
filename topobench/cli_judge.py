"""The commands that judge: compare, accept, check, ack."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from topobench.cli_output import (
    Format,
    FormatOption,
    RowsFormat,
    RowsOption,
    StoreOption,
    emit,
    store_url,
)
from topobench.errors import UsageError

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
    output: RowsOption = RowsFormat.TABLE,
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


def check(
    *,
    sweep: Annotated[
        str, typer.Argument(metavar="SWEEP", help="Id, its beginning, or latest.")
    ] = "latest",
    as_of: AsOfOption = None,
    policy: PolicyOption = None,
    print_policy: Annotated[
        bool, typer.Option("--print-policy", help="Show the rules and stop.")
    ] = False,
    store: StoreOption = None,
    output: RowsOption = RowsFormat.TABLE,
) -> int:
    """
    Judge the hosts of a sweep: links, ceilings, peers, own history; store the verdicts.

    \b
    Examples:
      topobench check
      topobench check 1a2b3c4d --as-of 2026-11-30 --format json
      topobench check --print-policy
    Exit: 0 ok, 1 degraded, 2 fail, 3 anything else, so that 2 always means a verdict.
    """
    from topobench import judging

    if print_policy:
        return emit("check", judging.print_policy(policy), output.value)
    found = judging.check(store_url(store), sweep, as_of=as_of, policy=policy)
    return emit("check", found, output.value)


def ack(
    *,
    host: Annotated[
        str | None,
        typer.Argument(metavar="HOST", help="Key, name or address; without it: all of them."),
    ] = None,
    ticket: Annotated[
        str | None,
        typer.Option("--ticket", metavar="T", help="Who deals with it; needed with HOST."),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option("--until", metavar="DATE", help="When it ends, e.g. 2026-12-24; needed, too."),
    ] = None,
    text: Annotated[str, typer.Option("--text", help="What there is to say.")] = "",
    cluster: Annotated[
        str | None, typer.Option("--cluster", metavar="NAME", help="Of several hosts so called.")
    ] = None,
    store: StoreOption = None,
    output: FormatOption = Format.TABLE,
) -> int:
    """
    Acknowledge a host until a date: check shows it, but its level decides no exit code.

    \b
    Examples:
      topobench ack h07 --ticket OPS-412 --until 2026-12-24 --text "riser ordered"
      topobench ack
    """
    from topobench import judging

    if host is None:
        if ticket or until or text or cluster:
            raise UsageError("HOST is missing; without it ack lists what is acknowledged")
        return emit("ack", judging.acks(store_url(store)), output.value)
    if ticket is None or until is None:
        raise UsageError("ack needs --ticket and --until, so that it is dealt with and ends")
    found = judging.ack(
        store_url(store), host, ticket=ticket, until=until, text=text, cluster=cluster
    )
    return emit("ack", found, output.value)


def accept(
    *,
    sweep: Annotated[
        str, typer.Argument(metavar="SWEEP", help="Id, unique beginning, or latest.")
    ] = "latest",
    criteria: Annotated[
        Path, typer.Option("--criteria", metavar="FILE", help="The rules (docs/accept.md).")
    ],
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write the sheet as a page.")
    ] = None,
    imported: Annotated[
        bool, typer.Option("--imported", help="Judge results of another tool.")
    ] = False,
    synthetic: Annotated[
        bool, typer.Option("--synthetic", help="Judge results made by demo.")
    ] = False,
    store: StoreOption = None,
    output: RowsOption = RowsFormat.TABLE,
) -> int:
    """
    Hold a sweep against acceptance criteria: an answer for each GPU, pair, host or cluster.

    \b
    Examples:
      topobench accept --criteria delivery.yaml
      topobench accept 1a2b3c4d --criteria delivery.yaml --html sheet.html
    Exit: 0 all pass, 1 inconclusive or not measured, 2 fail or impossible, 3 everything else.
    """
    from topobench import accepting

    outcome = accepting.accept(
        store_url(store), sweep, criteria, html=html, imported=imported, synthetic=synthetic
    )
    return emit("accept", outcome, output.value)


def add_to(app: typer.Typer) -> None:
    """Declare these commands."""
    app.command()(compare)
    app.command()(accept)
    app.command()(check)
    app.command()(ack)
