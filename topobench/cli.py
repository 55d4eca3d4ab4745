"""
The command line: argv -> calls -> text and exit code. The only place that prints or exits.

Everything heavy is imported inside the commands, so that ``topobench --help`` stays quick.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from topobench import __version__
from topobench.errors import TopobenchError, UsageError
from topobench.signals import Interrupted

if TYPE_CHECKING:
    from rich.console import Console

    from topobench.commands import Outcome

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
topo_app = typer.Typer(
    help="Look at a host's wiring: NUMA, PCIe, NVLink, NICs.", no_args_is_help=True
)
db_app = typer.Typer(help="Look after the database.", no_args_is_help=True)
import_app = typer.Typer(
    help="Take over results of other tools; they stay marked as imported.", no_args_is_help=True
)
app.add_typer(topo_app, name="topo")
app.add_typer(import_app, name="import")
app.add_typer(db_app, name="db")


class Format(StrEnum):
    """Output of most commands."""

    TABLE = "table"
    JSON = "json"


class QueryFormat(StrEnum):
    """Output of ``query``."""

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


class TopoSource(StrEnum):
    """Input of ``topo import``."""

    SMI = "smi"
    HWLOC = "hwloc"
    NCCL = "nccl"
    JSON = "json"


class Trigger(StrEnum):
    """Who started a sweep."""

    MANUAL = "manual"
    CRON = "cron"


ClusterOption = Annotated[
    Path | None,
    typer.Option("--cluster", metavar="FILE", help="cluster.yaml; without it: this host."),
]
StoreOption = Annotated[
    str | None,
    typer.Option("--store", metavar="URL", help="Database, e.g. sqlite:///topobench.db."),
]
FormatOption = Annotated[Format, typer.Option("--format", help="table for people, json.")]
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
RootOption = Annotated[
    Path,
    typer.Option("--root", metavar="PLACE", help="A captured machine: a folder or a tarball."),
]
TopoFormatOption = Annotated[
    TopoFormat,
    typer.Option("--format", help="tree for people; the others are described in docs/topology.md."),
]


@app.callback(invoke_without_command=True)
def _global(
    version: Annotated[bool, typer.Option("--version", help="Show the version.")] = False,
) -> None:
    if version:
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
    Exit: 0 all ran, 1 some failed, 2 usage, 3 nothing measured, 4 refused.
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
            store=store,
        ),
    )
    if print_config:
        with _reader_may_leave():
            print(config.to_yaml(wanted), end="")
        return 0
    quiet = trigger is Trigger.CRON
    console = None if quiet else _stderr()
    with _stdout_kept_clean():
        outcome = commands.probe(wanted, console=console, resume=resume, trigger=trigger.value)
    if output is Format.TABLE:
        for warning in outcome.warnings:
            print(f"topobench: {warning}", file=sys.stderr)
    return _emit("probe", outcome, output.value, silent=quiet and outcome.exit_code == 0)


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
    output: FormatOption = Format.TABLE,
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
    with _stdout_kept_clean():
        outcome = commands.plan(wanted)
    return _emit("plan", outcome, output.value)


@app.command()
def report(
    *,
    sweep: Annotated[
        str, typer.Argument(metavar="SWEEP", help="Id, unique beginning, or latest.")
    ] = "latest",
    store: StoreOption = None,
    output: FormatOption = Format.TABLE,
) -> int:
    """
    Show a stored sweep again.

    \b
    Examples:
      topobench report
      topobench report 1a2b3c4d --format json
    """
    from topobench import commands

    return _emit("report", commands.report(_store_url(store), sweep), output.value)


@app.command()
def query(
    *,
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="A named query.")] = None,
    list_all: Annotated[bool, typer.Option("--list", help="Show every named query.")] = False,
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
    output: Annotated[
        QueryFormat, typer.Option("--format", help="table for people, csv, json.")
    ] = QueryFormat.TABLE,
) -> int:
    """
    Ask the database: a named query, or your own read-only SQL.

    \b
    Examples:
      topobench query --list
      topobench query latest --param host=h07 --since 30d --format csv
      topobench query --sql "select * from v_latest limit 5"
    """
    from topobench import commands

    chosen = [name is not None, list_all, sql is not None]
    if sum(chosen) != 1:
        raise UsageError("give a query's NAME, or --list, or --sql TEXT")
    if list_all:
        outcome = commands.query_list()
    elif sql is not None:
        outcome = commands.query_sql(_store_url(store), sql)
    else:
        outcome = commands.query(_store_url(store), str(name), params or [], since)
    if output is QueryFormat.CSV:
        from topobench.report.tables_text import query_csv

        with _reader_may_leave():
            print(query_csv(outcome.data["columns"], outcome.data["rows"]), end="")
        return outcome.exit_code
    return _emit("query", outcome, output.value)


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

    return _emit("doctor", commands.doctor(), output.value)


@topo_app.command("show")
def topo_show(*, root: RootOption = Path("/"), output: TopoFormatOption = TopoFormat.TREE) -> int:
    """
    Show a host's NUMA nodes, PCIe tree, GPUs, NICs and the paths between them.

    \b
    Examples:
      topobench topo show
      topobench topo show --root captured/h07 --format matrix
      topobench topo show --format svg > host.svg
    """
    from topobench import commands

    return _emit_topology(commands.topo_show(root, _style(output)), output)


@topo_app.command("import")
def topo_import(
    *,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="What the tool printed; - is standard input.")
    ],
    source: Annotated[
        TopoSource, typer.Option("--from", help="smi: nvidia-smi topo -m; hwloc, nccl: XML; json.")
    ],
    output: TopoFormatOption = TopoFormat.TREE,
) -> int:
    """
    Show the wiring that a file of another tool tells of, in any format.

    \b
    Examples:
      topobench topo import --from smi matrix.txt
      topobench topo import --from hwloc host.xml --format nccl > topo.xml
      nvidia-smi topo -m | topobench topo import --from smi - --format svg > host.svg
    """
    from topobench import commands

    return _emit_topology(commands.topo_import(source.value, file, _style(output)), output)


@topo_app.command("diff")
def topo_diff(
    *,
    a: Annotated[
        str, typer.Argument(metavar="A", help="live, topology JSON, or a captured machine.")
    ],
    b: Annotated[str, typer.Argument(metavar="B", help="The other one.")],
    exit_code: Annotated[
        bool, typer.Option("--exit-code", help="Exit with 1 if anything differs.")
    ] = False,
    output: FormatOption = Format.TABLE,
) -> int:
    """
    Name what differs between two topologies: in shape, in setup, in health.

    \b
    Examples:
      topobench topo diff before.json live
      topobench topo diff h07.tgz h08.tgz --format json
    """
    from topobench import commands

    return _emit("topo-diff", commands.topo_diff(a, b, exit_code=exit_code), output.value)


@topo_app.command("gather")
def topo_gather(
    *,
    target: Annotated[Path, typer.Argument(metavar="OUT.tgz", help="File to write; must be new.")],
    root: RootOption = Path("/"),
    output: FormatOption = Format.TABLE,
) -> int:
    """
    Write a tarball of exactly what discovery reads, without serials, MACs and host names.

    Look at it anywhere with: topobench topo show --root OUT.tgz

    \b
    Example:
      topobench topo gather h07.tgz
    """
    from topobench import commands

    return _emit("topo-gather", commands.topo_gather(target, root), output.value)


FilesArgument = Annotated[
    list[Path], typer.Argument(metavar="FILE...", help="What one run printed or wrote, each.")
]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Show what is in the files; store nothing.")
]
ImportHostOption = Annotated[
    str | None, typer.Option("--host", metavar="NAME", help="Host it was measured on.")
]
ImportClusterOption = Annotated[
    str | None, typer.Option("--cluster", metavar="NAME", help="Cluster of that host.")
]
SkuOption = Annotated[
    str | None, typer.Option("--sku", metavar="NAME", help="What that host is, e.g. h200-sxm8.")
]
TopologyOption = Annotated[
    Path | None,
    typer.Option("--topology", metavar="FILE", help="Its topology (topo show --format json)."),
]
TakenAtOption = Annotated[
    str | None,
    typer.Option("--taken-at", metavar="TIME", help="When, e.g. 2026-11-29T15:14:22Z."),
]


@import_app.command("nccl-tests")
def import_nccl_tests(
    *,
    files: FilesArgument,
    dry_run: DryRunOption = False,
    cluster: ImportClusterOption = None,
    host: ImportHostOption = None,
    sku: SkuOption = None,
    topology: TopologyOption = None,
    taken_at: TakenAtOption = None,
    store: StoreOption = None,
    output: FormatOption = Format.TABLE,
) -> int:
    """
    Import results of nccl-tests: its text, or the JSON it wrote with -J.

    The same file again changes nothing. Without --host it is nobody's result.

    \b
    Examples:
      topobench import nccl-tests all_reduce.txt --dry-run
      topobench import nccl-tests *.json --cluster lab --host h07 --sku h200-sxm8
    """
    from topobench import commands

    outcome = commands.import_results(
        "nccl-tests",
        files,
        store_url=None if dry_run else _store_url(store),
        cluster=cluster,
        host=host,
        sku=sku,
        topology=topology,
        taken_at=taken_at,
    )
    return _emit("import", outcome, output.value)


@import_app.command("nvbandwidth")
def import_nvbandwidth(
    *,
    files: FilesArgument,
    dry_run: DryRunOption = False,
    cluster: ImportClusterOption = None,
    host: ImportHostOption = None,
    sku: SkuOption = None,
    topology: TopologyOption = None,
    taken_at: TakenAtOption = None,
    store: StoreOption = None,
    output: FormatOption = Format.TABLE,
) -> int:
    """
    Import results of nvbandwidth: its text, or the JSON it prints with -j.

    The same file again changes nothing. Without --host it is nobody's result.

    \b
    Examples:
      topobench import nvbandwidth nvbandwidth.json --dry-run
      topobench import nvbandwidth h07.txt --cluster lab --host h07
    """
    from topobench import commands

    outcome = commands.import_results(
        "nvbandwidth",
        files,
        store_url=None if dry_run else _store_url(store),
        cluster=cluster,
        host=host,
        sku=sku,
        topology=topology,
        taken_at=taken_at,
    )
    return _emit("import", outcome, output.value)


@db_app.command("info")
def db_info(*, store: StoreOption = None, output: FormatOption = Format.TABLE) -> int:
    """
    Show where the database is, how large, its schema, and its newest sweep.

    \b
    Example:
      topobench db info --store sqlite:///topobench.db
    """
    from topobench import commands

    return _emit("db-info", commands.db_info(_store_url(store)), output.value)


@db_app.command("upgrade")
def db_upgrade(*, store: StoreOption = None, output: FormatOption = Format.TABLE) -> int:
    """
    Bring the database to this version's schema, after a copy of it (SQLite).

    \b
    Example:
      topobench db upgrade
    """
    from topobench import commands

    return _emit("db-upgrade", commands.db_upgrade(_store_url(store)), output.value)


@db_app.command("import")
def db_import(
    *,
    folder: Annotated[
        Path, typer.Argument(metavar="SPOOL", help="Folder that a sweep spooled results to.")
    ],
    store: StoreOption = None,
    output: FormatOption = Format.TABLE,
) -> int:
    """
    Bring in what was spooled while the database was away; each run exactly once.

    \b
    Example:
      topobench db import topobench-spool
    """
    from topobench import commands

    return _emit("db-import", commands.db_import(_store_url(store), folder), output.value)


def main(arguments: Sequence[str] | None = None) -> int:
    """
    Run the command line and return its exit code; every exception is mapped here.

    Codes: docs/exit-codes.md.
    """
    argv = list(sys.argv[1:] if arguments is None else arguments)
    _prepare_streams()
    try:
        command = typer.main.get_command(app)
        # Not its main(): that turns every KeyboardInterrupt into 130 and says nothing.
        with command.make_context("topobench", list(argv)) as context:
            return int(command.invoke(context) or 0)
    except typer.Exit as error:
        return error.exit_code
    except KeyboardInterrupt as error:
        return _interrupted(argv, getattr(error, "number", signal.SIGINT))
    except typer.Abort:
        return _interrupted(argv, signal.SIGINT)
    except SystemExit as error:
        if error.code != signal.SIGTERM:  # what Ray's own handler raises while Ray starts
            raise
        return _interrupted(argv, signal.SIGTERM)
    except BrokenPipeError:  # of the help's reader
        _drop_stdout()
        return 1
    except typer.TyperException as error:
        return _complain(argv, UsageError(_sentence(error)))
    except TopobenchError as error:
        return _complain(argv, error)
    except Exception as error:
        return _complain(argv, error)


def _interrupted(argv: Sequence[str], number: int) -> int:
    """Say which signal it was, as text or as a JSON document; returns the exit code."""
    error = Interrupted(number)
    code = 128 + number
    if _wants_json(argv):
        _print_error(argv, error, code)
    else:
        print(f"topobench: {error}", file=sys.stderr)
    return code


def _sentence(error: typer.TyperException) -> str:
    """What the parser found wrong, and where the help is."""
    text = error.format_message() if hasattr(error, "format_message") else str(error)
    return text if text.startswith("Usage:") else f"{text.rstrip('.')}; see --help"


def _complain(argv: Sequence[str], error: Exception) -> int:
    """Say what went wrong, as text or as a JSON document; returns the exit code."""
    code = _code_of(argv, error)
    if not isinstance(error, TopobenchError):
        import traceback

        traceback.print_exception(error)
        print(
            "topobench: this is a fault in topobench; please report the lines above",
            file=sys.stderr,
        )
    elif not _wants_json(argv):
        from topobench.report.safe import clean

        # It may hold words of a file or host that steer a terminal.
        lines = [clean(line, _LONGEST_LINE) for line in str(error).split("\n")]
        print("topobench: " + "\n".join(lines), file=sys.stderr)
    if _wants_json(argv):
        _print_error(argv, error, code)
    return code


def _print_error(argv: Sequence[str], error: BaseException, code: int) -> None:
    import json

    from topobench.envelope import error_envelope
    from topobench.sweep import utc_now

    document = error_envelope(_command_of(argv), error, exit_code=code, generated_at=utc_now())
    with contextlib.suppress(OSError):  # standard output may be what went wrong
        print(json.dumps(document), flush=True)


_LONGEST_LINE = 4000
"""Characters of one line of an error."""
_SWEEPS = {"probe", "sweep"}
_JUDGES = {"check", "accept"}


def _code_of(argv: Sequence[str], error: Exception) -> int:
    """
    Exit code of an error.

    What a sweep could not do at all (no store, no Ray) is 3, since 1 says that cells ran; our
    bugs are 70 there. Where a verdict is asked, everything is 3.
    """
    command = _command_of(argv).partition("-")[0]
    if command in _JUDGES or (command == "sweep" and "--check" in argv):
        return 3
    if isinstance(error, TopobenchError):
        unable = error.exit_code == TopobenchError.exit_code
        return 3 if unable and command in _SWEEPS else error.exit_code
    return 70 if command in _SWEEPS else 1


def _command_of(argv: Sequence[str]) -> str:
    """``probe``, ``db-info``: the command as its JSON schema names it."""
    words = [a for a in argv if not a.startswith("-")]
    if not words:
        return "topobench"
    if words[0] == "topo":
        known = len(words) > 1 and words[1] in ("diff", "gather")
        return f"topo-{words[1]}" if known else "topology"
    return "-".join(words[:2]) if words[0] == "db" and len(words) > 1 else words[0]


def _wants_json(argv: Sequence[str]) -> bool:
    pairs = itertools.pairwise([*argv, ""])
    return any(a == "--format=json" or (a == "--format" and b == "json") for a, b in pairs)


def _store_url(given: str | None) -> str:
    """The flag, the environment, or the default: as the config decides it."""
    from topobench import config

    return config.load(None, overrides=config.Overrides(store=given)).store


def _emit(command: str, outcome: Outcome, output: str, *, silent: bool = False) -> int:
    """Print an outcome as JSON or for people."""
    with _reader_may_leave():
        if output == "json":
            _print_document(command, outcome)
        elif not silent:
            from topobench.report.show import StdoutConsole, show

            wide = command == "query" and not sys.stdout.isatty()  # for grep and awk
            show(StdoutConsole(_WIDE if wide else None), outcome.draw())
    return outcome.exit_code


def _style(output: TopoFormat) -> str:
    """JSON is made of the topology itself, so it is drawn as nothing else."""
    return "tree" if output is TopoFormat.JSON else output.value


def _emit_topology(outcome: Outcome, output: TopoFormat) -> int:
    """Print a topology; the formats of other tools go out as they are."""
    for warning in outcome.warnings:
        print(f"topobench: {warning}", file=sys.stderr)
    if output in (TopoFormat.TREE, TopoFormat.JSON):
        return _emit("topology", outcome, output.value)
    with _reader_may_leave():
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


@contextlib.contextmanager
def _reader_may_leave() -> Iterator[None]:
    """``topobench query ... | head``: a reader that had enough is no error."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        _drop_stdout()
    except OSError as error:
        _drop_stdout()
        raise TopobenchError(f"standard output cannot be written: {error.strerror}") from error


def _drop_stdout() -> None:
    """What is still in its buffer goes nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _prepare_streams() -> None:
    """
    Make standard streams usable whatever the caller closed.

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


def _stderr() -> Console:
    from topobench.report.show import StderrConsole

    return StderrConsole()


@contextlib.contextmanager
def _stdout_kept_clean() -> Iterator[None]:
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


def run() -> None:
    """Entry point of the console script."""
    raise SystemExit(main())
