"""
Writes readings as Parquet files, one folder a cluster and day, for tools that read columns.

The columns are those of ``v_reading``; ``cluster`` and ``day`` are in the names of the
folders, as Hive-style readers (pyarrow, DuckDB, Spark) expect them.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import sqlalchemy as sa
from sqlalchemy import Connection

from topobench.db import strays
from topobench.db.engine import reading
from topobench.db.readonly import plain
from topobench.db.store import Store
from topobench.errors import StoreError, UsageError
from topobench.extras import install_line

ROWS = 20_000
"""Readings in memory at a time, and in one row group."""

_PARTITION = ("cluster", "day")
WHOLE = frozenset(
    (
        *("n_devices", "probe_version", "case_id", "bytes", "seq_len", "batch", "tp", "cpu_node"),
        *("memory_node", "series_id", "topology_class_id", "n_ranks", "n_hosts", "process_no"),
        *("block", "order_in_block", "better", "rank", "n", "synthetic"),
    )
)
"""Columns of ``v_reading`` that are whole numbers."""
REAL = frozenset(
    (
        *("median", "ci_lo", "ci_hi", "mad", "minimum", "maximum", "p90", "p99", "ceiling"),
        *("measured_unix_seconds", "duration_seconds"),
    )
)
"""Columns that are other numbers; the rest is text."""


@dataclass(frozen=True, slots=True)
class Exported:
    """
    What was written.

    Args:
        files: Paths below the folder, in order.
    """

    folder: str
    files: tuple[str, ...]
    readings: int


def export_parquet(store: Store, folder: Path) -> Exported:
    """
    Write every usable reading; a file appears under its name once it is whole.

    Memory is bounded by ``ROWS``, whatever the store holds.

    Args:
        folder: New or empty.

    Raises:
        UsageError: The folder holds something already.
        StoreError: pyarrow is not installed, the folder can't be written to, or the store holds
            a text where numbers belong, or a key that leads nowhere.
    """
    parquet = _parquet()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder}: exists and is not an empty folder; name a new one")
    files: list[str] = []
    total = 0
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (
            reading(store.engine) as connection,
            contextlib.closing(_rows(connection)) as found,
        ):
            strays.check_whole(connection)
            for partition, rows in itertools.groupby(found, key=_place):
                file = (
                    Path(*(f"{k}={quote(v, safe='')}" for k, v in partition)) / "readings.parquet"
                )
                total += _write(parquet, folder / file, rows)
                files.append(str(file))
    except OSError as error:
        raise StoreError(
            f"{folder}: cannot be written to: {error}; remove what is in it before the next try"
        ) from error
    except parquet.ArrowException as error:
        with reading(store.engine) as connection:
            edited = strays.stray(connection)
        raise edited or StoreError(
            f"{store.url}: a value there is not of its column's kind, so was not written by "
            f"topobench: {error}"
        ) from error
    return Exported(str(folder), tuple(files), total)


def _parquet() -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise StoreError(
            f"Parquet files need pyarrow: {install_line('parquet')} ({error})"
        ) from error
    return pyarrow


def _rows(connection: Connection) -> Generator[dict[str, Any], None, None]:
    query = sa.text(
        "SELECT * FROM v_reading ORDER BY cluster, day, measured_at, run, metric, point"
    )
    with connection.execute(query, execution_options={"yield_per": ROWS}) as result:
        for row in result.mappings():
            yield {k: plain(v) for k, v in row.items()}


def _place(row: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    return tuple((k, str(row[k])) for k in _PARTITION)


def _write(pyarrow: Any, path: Path, rows: Iterator[dict[str, Any]]) -> int:
    path.parent.mkdir(parents=True)
    partial = path.with_name(path.name + ".part")
    total = 0
    with contextlib.ExitStack() as stack:
        writer = schema = None
        while some := list(itertools.islice(rows, ROWS)):
            if writer is None:
                schema = _schema(pyarrow, [n for n in some[0] if n not in _PARTITION])
                writer = stack.enter_context(pyarrow.parquet.ParquetWriter(partial, schema))
            writer.write_table(pyarrow.Table.from_pylist(some, schema=schema))
            total += len(some)
    partial.rename(path)
    return total


def _schema(pyarrow: Any, names: Sequence[str]) -> Any:
    def kind(name: str) -> Any:
        if name in WHOLE:
            return pyarrow.int64()
        return pyarrow.float64() if name in REAL else pyarrow.string()

    return pyarrow.schema([(n, kind(n)) for n in names])
