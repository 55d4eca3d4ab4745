"""What the tests of the database share: hosts, cells, runs, a stored sweep."""

from __future__ import annotations

import contextlib
import pathlib
import sqlite3
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from topobench.db import migrate
from topobench.db.engine import make_engine, parse_url, use_wal, writing
from topobench.db.store import Store
from topobench.host import Host, HostFacts
from topobench.reading import (
    Arm,
    Binding,
    Case,
    Cell,
    Member,
    Reading,
    Reason,
    Run,
    Scalar,
    Status,
    Summary,
)
from topobench.topology import (
    Cpus,
    Gpu,
    Known,
    Machine,
    NumaDistances,
    NvLinks,
    Path,
    PciDevice,
    PciLink,
    Topology,
)

STARTED = "2026-11-02T01:00:00.000000Z"
BANDWIDTH = "bandwidth_bytes_per_second"
LATENCY = "latency_seconds"


def new_id() -> str:
    """A UUID."""
    return str(uuid.uuid4())


def at(second: float, day: int = 2) -> str:
    """A time of a November night."""
    whole, part = divmod(second, 1)
    minutes, seconds = divmod(int(whole), 60)
    return f"2026-11-{day:02d}T01:{minutes:02d}:{seconds:02d}.{round(part * 1e6):06d}Z"


def topology(
    *,
    gpus: int = 0,
    shape: str = "tfp1:s",
    health: str = "tfp1:h",
    prefix: str = "GPU",
    width: int = 16,
) -> Topology:
    """A host with some GPUs that are one NVLink hop apart."""
    found = tuple(
        Gpu(
            index=n,
            uuid=f"{prefix}-{n}",
            pci_address=f"0000:{n + 1:02x}:00.0",
            model="NVIDIA H200",
            memory_bytes=150_754_820_096,
            cpu_node=Known(0, "nvml"),
            nvlink=NvLinks(18, 18, "4.0", 4.78e11),
        )
        for n in range(gpus)
    )
    link = PciLink(32.0, width, 32.0, 16, 6.3e10, 6.3e10)
    return Topology(
        taken_at=STARTED,
        root="/",
        virtualization="none",
        trust="full",
        machine=Machine(kernel="6.1.0", driver="570.86", os="Debian 12"),
        cpus=Cpus(
            online="0-31", allowed="0-31", model="Intel(R) Xeon(R) Platinum 8480C", packages=2
        ),
        numa_distances=NumaDistances((0, 1), ((10, 21), (21, 10))),
        pci=tuple(
            PciDevice(
                g.pci_address or "", "0x030200", "0x10de", "0x2335", "0000:00:01.0", "endpoint",
                Known(0, "sysfs"), link,
            )
            for g in found
        ),
        gpus=found,
        paths=tuple(
            Path(
                f"gpu:{a}", f"gpu:{b}", smi="NV18", nccl="NVL", hops=2,
                nominal_bytes_per_second=4.78e11,
            )
            for a in range(gpus)
            for b in range(gpus)
            if a != b
        ),
        fingerprints={"shape": shape, "config": "tfp1:c", "health": health},
    )  # fmt: skip


def host(key: str = "k1", *, name: str | None = None, **wiring: Any) -> Host:
    """A discovered host; keywords go to :func:`topology`."""
    labels = wiring.pop("labels", {})
    facts = HostFacts(name or key, "/usr/bin/python3", "0.1.0", "abc", "3.11.2", torch="2.13.0")
    return Host(
        key=key,
        key_source="id",
        name=name or key,
        address="10.9.0.10",
        facts=facts,
        topology=topology(**wiring),
        labels=labels,
    )


def cell(
    *,
    host: str = "k1",
    probe: str = "host_memory",
    params: Mapping[str, Scalar] | None = None,
    binding: str | Binding = "none",
    ring: str | None = None,
    devices: Sequence[str] = (),
    ranks: int = 1,
    process_no: int = 0,
    status: Status = Status.PLANNED,
    reason: Reason | None = None,
    env: Mapping[str, str] | None = None,
) -> Cell:
    """A cell of its own."""
    made = binding if isinstance(binding, Binding) else Binding(binding)
    return Cell(
        id=new_id(),
        case=Case(probe, 1, dict(params or {"bytes": 1 << 20})),
        host=host,
        arm=Arm(made, ring, env or {}),
        devices=tuple(devices),
        ranks=ranks,
        process_no=process_no,
        estimated_seconds=2.5,
        status=status,
        reason=reason,
    )


def reading(
    median: float,
    *,
    metric: str = BANDWIDTH,
    samples: Sequence[float] | None = None,
    point: Mapping[str, Scalar] | None = None,
    spread: float = 0.01,
) -> Reading:
    """A reading whose interval is the median -/+ ``spread``."""
    given = (median,) if samples is None else tuple(samples)
    summary = Summary(
        n=len(given) or 1,
        median=median,
        minimum=min(given, default=median),
        maximum=max(given, default=median),
        mad=0.0,
        ci_lo=median * (1 - spread),
        ci_hi=median * (1 + spread),
        stop_reason="converged",
    )
    return Reading(metric, summary, given, dict(point or {}))


def run(
    cell: Cell,
    *readings: Reading,
    status: Status = Status.OK,
    reason: Reason | None = None,
    second: float = 5.0,
    day: int = 2,
    attempt: int = 1,
    **more: Any,
) -> Run:
    """A run of a cell."""
    member = Member(
        0, cell.host, cell.devices[0] if cell.devices else None, 4711, "0-15", 0, 0, "bind:0"
    )
    return Run(
        id=new_id(),
        cell=cell.id,
        status=status,
        reason=reason,
        started_at=at(second, day),
        duration_seconds=1.25,
        attempt=attempt,
        readings=readings,
        members=(member,),
        environment={"torch": "2.13.0", "cuda": "12.8"},
        **more,
    )


def begin(store: Any, *cells: Cell, hosts: Sequence[Host] = (), day: int = 2, **more: Any) -> str:
    """Begin a sweep of these cells on these hosts (default: one host, k1); returns its UUID."""
    sweep = new_id()
    start: dict[str, Any] = {
        "cluster": "lab",
        "profile": "quick",
        "trigger": "manual",
        "seed": 7,
        "tool_version": "0.1.0",
        "started_at": at(0, day),
        "hosts": hosts or [host()],
        **more,
    }
    store.begin_sweep(id=sweep, cells=cells, **start)
    return sweep


def count(store: Store, table: str) -> int:
    """Rows of a table."""
    rows: dict[str, int] = store.info()["rows"]
    return rows[table]


def at_revision(path: pathlib.Path, revision: str) -> str:
    """
    Make a SQLite store as the topobench of an earlier schema left it, with one run in it.

    Returns:
        The UUID of its sweep.
    """
    planned = cell(devices=["GPU-0"])
    with tempfile.TemporaryDirectory() as folder:
        newest = pathlib.Path(folder) / "newest.db"
        with Store.open(f"sqlite:///{newest}") as store:
            sweep = begin(store, planned, hosts=[host(gpus=1)])
            chosen = {"attention": "flash"}
            done = run(planned, reading(7.0, samples=[7.0] * 3), conditions=chosen)
            settings = {"host_settings": {"governor": "powersave"}}
            store.put_run(replace(done, environment={**done.environment, **settings}))
            store.end_sweep(sweep, ended_at=at(60))
        engine = make_engine(parse_url(f"sqlite:///{path}"))
        use_wal(path)
        with writing(engine) as connection:
            migrate._run_alembic(connection, migrate.SCRIPTS, revision)
        engine.dispose()
        with contextlib.closing(sqlite3.connect(path)) as older:
            older.execute("ATTACH ? AS newest", (str(newest),))
            for (name,) in older.execute("SELECT name FROM main.sqlite_master WHERE type='table'"):
                if name != "alembic_version":
                    found = [f'"{r[1]}"' for r in older.execute(f"PRAGMA main.table_info({name})")]
                    listed = ", ".join(found)
                    older.execute(f"INSERT INTO main.{name} SELECT {listed} FROM newest.{name}")
            older.execute("DELETE FROM main.store_info WHERE key LIKE 'upgraded_to_%'")
            older.commit()
    return sweep
