"""The commands that measure, report and ask: probe, plan, report, query, doctor."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from topobench import __version__
from topobench.cli_output import (
    Format,
    FormatOption,
    RowsFormat,
    RowsOption,
    StoreOption,
    emit,
    reader_may_leave,
    stderr_console,
    stdout_kept_clean,
    store_url,
    warn,
)
from topobench.errors import UsageError

app = typer.Typer(
    name="topobench",
    help="Measure what a GPU cluster's wiring is worth; every sample goes into SQL.",
    epilog="Start with: topobench probe    Docs: README.md, docs/",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


class Trigger(StrEnum):
    """Who started a sweep."""

    MANUAL = "manual"
    CRON = "cron"


ClusterOption = Annotated[
    Path | None,
    typer.Option("--cluster", metavar="FILE", help="cluster.yaml; without it: this host."),
]
ProfileOption = Annotated[
    str | None, typer.Option("--profile", help="quick, standard or full (docs/config.md).")
]
ProbesOption = Annotated[
    str | None, typer.Option("--probes", metavar="A,B", help="Only these probes.")
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="PROBE.FIELD=VALUE",
        help="A parameter; commas give one case per value. Repeatable.",
    ),
]
DevicesOption = Annotated[
    str | None,
    typer.Option("--devices", metavar="0,2", help="GPUs by index, UUID or PCI address."),
]
HostsOption = Annotated[
    str | None, typer.Option("--hosts", metavar="H1,H2", help="Only these hosts.")
]
BindingsOption = Annotated[
    str | None,
    typer.Option("--bindings", metavar="A,B", help="Binding arms: none,local,remote,spread."),
]
BudgetOption = Annotated[
    str | None,
    typer.Option("--budget", metavar="5m", help="Drop the least informative cells first."),
]
SeedOption = Annotated[
    int | None, typer.Option("--seed", help="Order of cells; stored with the sweep.")
]


@app.callback(invoke_without_command=True)
def _global(
    version: Annotated[bool, typer.Option("--version", help="Show the version.")] = False,
) -> None:
    if version:
        with reader_may_leave():
            print(f"topobench {__version__}")
        raise typer.Exit


@app.command()
def probe(
    *,
    cluster: ClusterOption = None,
    profile: ProfileOption = None,
    probes: ProbesOption = None,
    sets: SetOption = None,
    devices: DevicesOption = None,
    hosts: HostsOption = None,
    bindings: BindingsOption = None,
    budget: BudgetOption = None,
    seed: SeedOption = None,
    store: StoreOption = None,
    resume: Annotated[
        str | None,
        typer.Option("--resume", metavar="SWEEP", help="Run again what did not end well."),
    ] = None,
    like: Annotated[
        str | None,
        typer.Option("--like", metavar="SWEEP", help="Repeat that sweep's cells as a new one."),
    ] = None,
    output: FormatOption = Format.TABLE,
    trigger: Annotated[
        Trigger, typer.Option("--trigger", help="cron prints nothing when all is well.")
    ] = Trigger.MANUAL,
    print_config: Annotated[
        bool, typer.Option("--print-config", help="Show the effective config; run nothing.")
    ] = False,
) -> int:
    """
    Measure this host, or every host of a cluster, and store every sample.

    \b
    Examples:
      topobench probe
      topobench probe --cluster cluster.yaml --profile standard
      topobench probe --probes host_to_device --set host_to_device.bytes=64K,1M --devices 0
      topobench probe --resume latest
      topobench probe --cluster cluster.yaml --like latest --hosts h07
    Exit: 0 all ran, 1 some failed, 2 usage, 3 nothing measured, 4 refused.
    """
    from topobench import commands, config

    if resume is not None or like is not None:
        _refuse_other_cells(
            "--like" if resume is None else "--resume",
            {
                "--profile": profile,
                "--probes": probes,
                "--set": sets,
                "--devices": devices,
                "--bindings": bindings,
                "--budget": budget,
                "--seed": seed,
            },
        )
    wanted = config.load(
        cluster,
        overrides=config.Overrides(
            profile=profile,
            probes=probes,
            sets=tuple(sets or ()),
            devices=devices,
            hosts=hosts,
            bindings=bindings,
            budget=budget,
            seed=seed,
            store=store,
        ),
    )
    if print_config:
        with reader_may_leave():
            print(config.to_yaml(wanted), end="")
        return 0
    quiet = trigger is Trigger.CRON
    console = None if quiet else stderr_console()
    with stdout_kept_clean():
        outcome = commands.probe(
            wanted, console=console, resume=resume, like=like, trigger=trigger.value
        )
    if output is Format.TABLE:
        warn(outcome)
    return emit("probe", outcome, output.value, silent=quiet and outcome.exit_code == 0)


def _refuse_other_cells(again: str, given: Mapping[str, object]) -> None:
    """A stored sweep says itself what is measured."""
    if names := [name for name, value in given.items() if value not in (None, [])]:
        raise UsageError(
            f"{again} runs the cells of a stored sweep as they are: leave out {', '.join(names)}, "
            f"or leave out {again}"
        )


@app.command()
def plan(
    *,
    cluster: ClusterOption = None,
    profile: ProfileOption = None,
    probes: ProbesOption = None,
    sets: SetOption = None,
    devices: DevicesOption = None,
    hosts: HostsOption = None,
    bindings: BindingsOption = None,
    budget: BudgetOption = None,
    seed: SeedOption = None,
    output: RowsOption = RowsFormat.TABLE,
) -> int:
    """
    Show what probe would run, what it would skip and why, and what that costs.

    \b
    Examples:
      topobench plan
      topobench plan --profile full --format json
    """
    from topobench import commands, config

    wanted = config.load(
        cluster,
        overrides=config.Overrides(
            profile=profile,
            probes=probes,
            sets=tuple(sets or ()),
            devices=devices,
            hosts=hosts,
            bindings=bindings,
            budget=budget,
            seed=seed,
        ),
    )
    with stdout_kept_clean():
        outcome = commands.plan(wanted)
    return emit("plan", outcome, output.value)


@app.command()
def report(
    *,
    sweep: Annotated[
        str, typer.Argument(metavar="SWEEP", help="Id, unique beginning, or latest.")
    ] = "latest",
    html: Annotated[
        Path | None,
        typer.Option("--html", metavar="FILE", help="Write a page that needs no network."),
    ] = None,
    hosts: Annotated[
        str | None,
        typer.Option("--hosts", metavar="H1,H2", help="Of --html: hosts to show in detail."),
    ] = None,
    as_of: Annotated[
        str | None, typer.Option("--as-of", metavar="TIME", help="Count nothing younger.")
    ] = None,
    store: StoreOption = None,
    output: RowsOption = RowsFormat.TABLE,
) -> int:
    """
    Show a stored sweep again, in the terminal or as one HTML file with charts.

    \b
    Examples:
      topobench report
      topobench report 1a2b3c4d --format csv > readings.csv
      topobench report latest --html report.html --hosts h07
    """
    from topobench import commands, seeing

    if html is None:
        if hosts is not None:
            raise UsageError("--hosts: only --html shows single hosts; add --html FILE")
        return emit("report", commands.report(store_url(store), sweep, as_of), output.value)
    named = [h.strip() for h in (hosts or "").split(",") if h.strip()]
    page = seeing.report_page(store_url(store), sweep, html, named, as_of=as_of)
    return emit("report", page, output.value)


@app.command()
def query(
    *,
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="A named query.")] = None,
    list_all: Annotated[bool, typer.Option("--list", help="Show every named query.")] = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="Say what NAME answers, and its parameters.")
    ] = False,
    params: Annotated[
        list[str] | None,
        typer.Option("--param", metavar="K=V", help="A parameter of the query. Repeatable."),
    ] = None,
    since: Annotated[
        str | None, typer.Option("--since", metavar="30d", help="Only sweeps this young.")
    ] = None,
    sql: Annotated[
        str | None, typer.Option("--sql", metavar="TEXT", help="Your own read-only SQL.")
    ] = None,
    store: StoreOption = None,
    output: RowsOption = RowsFormat.TABLE,
) -> int:
    """
    Ask the database: a named query, or your own read-only SQL.

    \b
    Examples:
      topobench query --list
      topobench query below-peers --explain
      topobench query latest --param host=h07 --since 30d --format csv
      topobench query --sql "select * from v_latest limit 5"
    """
    from topobench import querying

    chosen = [name is not None, list_all, sql is not None]
    if sum(chosen) != 1:
        raise UsageError("give a query's NAME, or --list, or --sql TEXT")
    if explain and (name is None or params or since):
        raise UsageError("--explain: give a query's NAME with it, and nothing else")
    if explain:
        outcome = querying.query_explained(str(name))
    elif list_all:
        outcome = querying.query_list()
    elif sql is not None:
        outcome = querying.query_sql(store_url(store), sql)
    else:
        outcome = querying.query(store_url(store), str(name), params or [], since)
    if output is not RowsFormat.JSON:
        warn(outcome)
    if output is RowsFormat.CSV:
        from topobench.report.tables_text import query_csv

        with reader_may_leave():
            print(query_csv(outcome.data["columns"], outcome.data["rows"]), end="")
        return outcome.exit_code
    return emit("query", outcome, output.value)


@app.command()
def doctor(*, output: FormatOption = Format.TABLE) -> int:
    """
    Say what this host lacks, with the line that mends it and the line that undoes that.

    Nothing is changed: the lines are printed, never run.

    \b
    Example:
      topobench doctor
    """
    from topobench import commands

    return emit("doctor", commands.doctor(), output.value)
