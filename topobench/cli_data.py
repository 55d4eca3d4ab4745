"""The commands around the data: topo, import, db."""

from __future__ import annotations

import inspect
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from topobench.cli_output import (
    Format,
    FormatOption,
    StoreOption,
    TopoFormat,
    emit,
    emit_topology,
    store_url,
    style_of,
    warn,
)

topo_app = typer.Typer(
    help="Look at a host's wiring: NUMA, PCIe, NVLink, NICs.", no_args_is_help=True
)
db_app = typer.Typer(help="Look after the database.", no_args_is_help=True)
import_app = typer.Typer(
    help="Take over results of other tools; they stay marked as imported.", no_args_is_help=True
)


class TopoSource(StrEnum):
    """Input of ``topo import``."""

    SMI = "smi"
    HWLOC = "hwloc"
    NCCL = "nccl"
    JSON = "json"


class ExportFormat(StrEnum):
    """Output of ``db export``."""

    PARQUET = "parquet"
    JSON = "json"


RootOption = Annotated[
    Path,
    typer.Option("--root", metavar="PLACE", help="A captured machine: a folder or a tarball."),
]
TopoFormatOption = Annotated[
    TopoFormat,
    typer.Option("--format", help="tree for people; the others are described in docs/topology.md."),
]


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

    return emit_topology(commands.topo_show(root, style_of(output)), output)


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

    return emit_topology(commands.topo_import(source.value, file, style_of(output)), output)


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

    return emit("topo-diff", commands.topo_diff(a, b, exit_code=exit_code), output.value)


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

    return emit("topo-gather", commands.topo_gather(target, root), output.value)


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


IMPORTS = {
    "nccl-tests": """
    Import results of nccl-tests: its text, or the JSON it wrote with -J.

    The same file again changes nothing. Without --host it is nobody's result.

    \b
    Examples:
      topobench import nccl-tests all_reduce.txt --dry-run
      topobench import nccl-tests *.json --cluster lab --host h07 --sku h200-sxm8
    """,
    "nvbandwidth": """
    Import results of nvbandwidth: its text, or the JSON it prints with -j.

    The same file again changes nothing. Without --host it is nobody's result.

    \b
    Examples:
      topobench import nvbandwidth nvbandwidth.json --dry-run
      topobench import nvbandwidth h07.txt --cluster lab --host h07
    """,
}
"""Tools whose results can be taken over, and the help of their commands."""


def _declare_import(tool: str, text: str) -> None:
    """The command that imports results of a tool; all take the same flags."""

    @import_app.command(tool, help=inspect.cleandoc(text))
    def import_results(
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
        from topobench import commands

        outcome = commands.import_results(
            tool,
            files,
            store_url=None if dry_run else store_url(store),
            cluster=cluster,
            host=host,
            sku=sku,
            topology=topology,
            taken_at=taken_at,
        )
        return emit("import", outcome, output.value)


for _tool, _text in IMPORTS.items():
    _declare_import(_tool, _text)


@db_app.command("info")
def db_info(*, store: StoreOption = None, output: FormatOption = Format.TABLE) -> int:
    """
    Show where the database is, how large, its schema, and its newest sweep.

    \b
    Example:
      topobench db info --store sqlite:///topobench.db
    """
    from topobench import commands

    return emit("db-info", commands.db_info(store_url(store)), output.value)


@db_app.command("check")
def db_check(*, store: StoreOption = None, output: FormatOption = Format.TABLE) -> int:
    """
    Look through the whole database for what a hand wrote and topobench would not.

    Values that are not of their column, and keys that lead to no row, which leave rows out of
    every answer: PostgreSQL takes neither. On both engines keys that lead to a wrong row, where
    another row says so.

    \b
    Example:
      topobench db check --store sqlite:///topobench.db
    """
    from topobench import upkeep

    return emit("db-check", upkeep.db_check(store_url(store)), output.value)


@db_app.command("upgrade")
def db_upgrade(*, store: StoreOption = None, output: FormatOption = Format.TABLE) -> int:
    """
    Bring the database to this version's schema, after a copy of it (SQLite).

    Its views and the roll-ups of its nights are made anew in any case.

    \b
    Example:
      topobench db upgrade
    """
    from topobench import upkeep

    return emit("db-upgrade", upkeep.db_upgrade(store_url(store)), output.value)


@db_app.command("import")
def db_import(
    *,
    place: Annotated[
        str,
        typer.Argument(metavar="PLACE", help="A spool's folder, or another store's file or URL."),
    ],
    as_cluster: Annotated[
        str | None,
        typer.Option("--as-cluster", metavar="NAME", help="Call the other store's cluster this."),
    ] = None,
    store: StoreOption = None,
    output: FormatOption = Format.TABLE,
) -> int:
    """
    Bring in what was spooled while the database was away, or another store; each run once.

    \b
    Examples:
      topobench db import topobench-spool
      topobench db import site-b.db --as-cluster site-b
    """
    from topobench import upkeep

    outcome = upkeep.db_import(store_url(store), place, as_cluster=as_cluster)
    if output is not Format.JSON:
        warn(outcome)
    return emit("db-import", outcome, output.value)


@db_app.command("export")
def db_export(
    *,
    folder: Annotated[Path, typer.Argument(metavar="OUT", help="Folder to write; must be new.")],
    store: StoreOption = None,
    output: Annotated[
        ExportFormat, typer.Option("--format", help="parquet; json: the same, told as JSON.")
    ] = ExportFormat.PARQUET,
) -> int:
    """
    Write every reading for other tools, in folders by cluster and day.

    \b
    Example:
      topobench db export --format parquet readings/
    """
    from topobench import upkeep

    return emit("db-export", upkeep.db_export(store_url(store), folder), output.value)


@db_app.command("vacuum")
def db_vacuum(
    *,
    cluster: Annotated[
        Path | None,
        typer.Option(
            "--cluster", metavar="FILE", help="cluster.yaml, for its store and retention."
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would go; remove nothing.")
    ] = False,
    store: StoreOption = None,
    output: FormatOption = Format.TABLE,
) -> int:
    """
    Remove old samples and results, and give the room back to the disk.

    Samples are kept for 90 days and results for 2 years, or as the config says; what is known
    of each night, prices, verdicts and notes stay.

    \b
    Example:
      topobench db vacuum --dry-run
    """
    from topobench import config, upkeep

    wanted = config.load(cluster, overrides=config.Overrides(store=store))
    outcome = upkeep.db_vacuum(wanted.store, wanted.retention, dry_run=dry_run)
    return emit("db-vacuum", outcome, output.value)
