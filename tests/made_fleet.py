"""
A small fleet with known numbers, stored through the real store: every query has rows.

Twelve hosts of one wiring, two GPUs each, in three racks and two batches, measured in two
nights. ``h12`` is 20 % slow at copies; ``h02`` has a pair slow from both sides; hosts ``h01``
to ``h06`` got a new driver before the second night, which costs them 3 %.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

from storing import LATENCY, at, begin, cell, host, reading, run
from topobench import ceilings
from topobench.db import schema
from topobench.db.engine import writing
from topobench.db.keys import insert_id
from topobench.db.prices import Price, add_price
from topobench.db.store import Store
from topobench.reading import Cell, Reason, ReasonCode, Run, Scalar, Status

MIB = 1 << 20
NOW = "2026-11-04T01:00:00Z"
DAY = 86400.0
HOSTS = [f"h{n:02d}" for n in range(1, 13)]
SKU = "made-h200"
OLD, NEW = "570.86", "580.10"
BUSBW = "busbw_bytes_per_second"
RINGS = {
    "auto": (100e9, 101e9, 99e9, 100e9, 100e9, 100e9),
    "auto_ring": (90e9, 91e9, 89e9, 90e9, 90e9, 90e9),
    "best": (99e9, 101e9, 98e9, 99e9, 99e9, 99e9),
}
"""Bus bandwidth by ring, one value a process."""
GATHERED = (8, 4096, MIB, 16 * MIB, 64 * MIB)
"""Bytes of all-gathers."""
WAYS = ("out", "in")
"""Directions between two hosts, as the first sees them."""
WALL = {
    "none": (0.100, 0.104, 0.098, 0.102, 0.096, 0.100),
    "local": (0.098, 0.099, 0.098, 0.099, 0.098, 0.100),
    "spread": (0.101, 0.103, 0.102, 0.104, 0.103, 0.102),
}
"""Seconds of a prefill of 2048 tokens by the host's clock, by binding, one value a process."""
PROMPTS = {
    ("bf16", 512): (9_000.0, 0.004),
    ("bf16", 2048): (24_000.0, 0.004),
    ("bf16", 4096): (25_000.0, 0.004),
    ("fp8", 2048): (36_000.0, 0.05),
}
"""Precision and tokens -> tokens per second and numeric error."""
STEPS = {
    ("bf16", 1, 2048): (0.004, 0.95, 0.01),
    ("bf16", 32, 8192): (0.012, 0.96, 0.05),
    ("fp8", 32, 8192): (0.009, 0.45, 0.07),
    ("fp8", 1, 128): (0.005, 0.3, 0.01),
    ("int8", 128, 2048): (0.020, 0.4, 0.6),
}
"""Cache, sequences and tokens -> seconds of a step, its share of memory and of products."""


def copy_speed(key: str, day: int = 2) -> float:
    """Local copies of 64 MiB: 50 GB/s and 0.1 % more a host; h12 is slow, a driver costs 3 %."""
    place = HOSTS.index(key)
    base = 40e9 if key == "h12" else 50e9 * (1 + 0.001 * place)
    return base * 0.97 if day == 3 and place < 6 else base


def pair_speed(key: str, pair: tuple[int, int]) -> float:
    """Copies between GPUs: 300 GB/s and 0.1 % more a host; h02 reaches half both ways."""
    return 300e9 * (1 + 0.001 * HOSTS.index(key) + 0.0001 * pair[0]) / (2 if key == "h02" else 1)


def launch_seconds(key: str) -> float:
    """Empty kernels: 3 us and 0.1 % more a host; powersave hosts take twice as long."""
    return 3e-6 * (1 + 0.001 * HOSTS.index(key)) * (2 if governor(key) == "powersave" else 1)


def governor(key: str) -> str:
    """CPU frequency governor of a host."""
    return "powersave" if key in ("h11", "h12") else "performance"


def fill(store: Store) -> dict[str, str]:
    """Store the fleet; returns the UUIDs of its sweeps by what they are for."""
    made = {
        "first": _night(store, 2),
        "rings": _rings(store),
        "gangs": _gangs(store),
        "prefill": _prefill(store),
        "decode": _decode(store),
        "served": _served(store),
        "pairs": _pairs(store),
        "second": _night(store, 3),
    }
    _judge(store)
    for kind, amount in (("cloud_hour", 20.0), ("power_kwh", 0.2)):
        watts = 5000.0 if kind == "power_kwh" else None
        add_price(store, Price(SKU, kind, amount, "EUR", valid_from=at(0), watts=watts))
    return made


def _hosts(driver: str, keys: list[str]) -> list[Any]:
    found = []
    for key in keys:
        place = HOSTS.index(key)
        labels = {
            "sku": SKU,
            "rack": f"r{place // 4}",
            "leaf": f"l{place % 2}",
            "batch": "bid" if place < 6 else "b1",
        }
        width = 8 if key == "h03" else 16
        found.append(
            host(key, gpus=2, prefix=f"{key}-GPU", health=f"tfp1:{key}", width=width, labels=labels)
        )
    return found


def _driver(key: str, day: int) -> str:
    return NEW if day == 3 and HOSTS.index(key) < 6 else OLD


def _run(planned: Cell, *readings: Any, key: str, day: int, second: float = 0) -> Run:
    done = run(planned, *readings, second=second, day=day)
    (where,) = _hosts(OLD, [key])
    done = ceilings.held_against(done, planned, where.topology)
    settings = {"governor": governor(key), "boost": "on", "mitigations": "on"}
    extra = {"driver": _driver(key, day), "host_settings": settings}
    return dataclasses.replace(done, environment={**done.environment, **extra})


def _copy(key: str, size: int, binding: str) -> Cell:
    params: dict[str, Scalar] = {"bytes": size, "direction": "h2d", "memory": "pinned"}
    return cell(
        host=key,
        probe="host_to_device",
        params=params,
        binding=binding,
        devices=[f"{key}-GPU-0"],
    )


def _night(store: Store, day: int) -> str:
    planned: list[tuple[str, Cell, Any]] = []
    for key in HOSTS:
        speed = copy_speed(key, day)
        for size, binding, value in (
            (MIB, "local", speed * 0.5),
            (64 * MIB, "local", speed),
            (64 * MIB, "remote", speed * 0.8),
        ):
            planned.append((key, _copy(key, size, binding), reading(value)))
        if day == 2:
            planned += _once(key)
    extra = [
        cell(host="h01", status=Status.SKIPPED, reason=Reason(ReasonCode.NO_GPU, "no driver")),
        cell(host="h01", params={"op": "triad"}),
    ]
    sweep = begin(
        store,
        *(c for _, c, _ in planned),
        *extra,
        hosts=_hosts(OLD, HOSTS),
        day=day,
        profile="standard",
    )
    for key, made, value in planned:
        values = value if isinstance(value, tuple) else (value,)
        store.put_run(_run(made, *values, key=key, day=day))
    crash = Reason(ReasonCode.SIGNAL, "worker ended by SIGSEGV")
    store.put_run(run(extra[1], status=Status.FAILED, reason=crash, second=0, day=day))
    store.end_sweep(sweep, "done", ended_at=at(600, day))
    return sweep


def _once(key: str) -> list[tuple[str, Cell, Any]]:
    """What only the first night measures: pairs both ways, launches, loads, prefill."""
    gpus = [f"{key}-GPU-0", f"{key}-GPU-1"]
    found: list[tuple[str, Cell, Any]] = []
    for pair in ((0, 1), (1, 0)):
        ends = [gpus[n] for n in pair]
        made = cell(
            host=key, probe="peer", params={"bytes": 128 * MIB, "op": "write"}, devices=ends
        )
        found.append((key, made, reading(pair_speed(key, pair))))
    launch = cell(
        host=key, probe="kernel_launch", params={"mode": "synchronised"}, devices=gpus[:1]
    )
    found.append((key, launch, reading(launch_seconds(key), metric="latency_seconds")))
    if key == "h01":
        found += _of_one_host(key, gpus)
    return found


def _of_one_host(key: str, gpus: list[str]) -> list[tuple[str, Cell, Any]]:
    load = cell(
        host=key,
        probe="weight_load",
        params={"bytes": 1000 * MIB, "chunk_bytes": 16 * MIB},
        binding="local",
        devices=gpus[:1],
    )
    loads = (
        reading(2000.0 * MIB, metric="storage_bandwidth_bytes_per_second"),
        reading(8000.0 * MIB, metric="transfer_bandwidth_bytes_per_second"),
        reading(0.6, metric="duration_seconds"),
    )
    prefill = cell(
        host=key,
        probe="prefill",
        params={"sequence": 8192, "batch": 1, "dtype": "bf16", "shape": "llama3-8b"},
        devices=gpus[:1],
    )
    tokens = (
        reading(20_000.0, metric="tokens_per_second"),
        reading(500.0, metric="power_watts"),
    )
    small = cell(
        host=key,
        probe="all_reduce",
        params={"bytes": 8192, "dtype": "float32", "backend": "nccl"},
        devices=gpus,
        ranks=2,
    )
    return [
        (key, load, loads),
        (key, prefill, tokens),
        (key, small, reading(1e-5, metric="latency_seconds")),
    ]


def _rings(store: Store) -> str:
    """Six blocks of three ring arms on one host."""
    params: dict[str, Scalar] = {"bytes": 128 * MIB, "dtype": "float32", "backend": "nccl"}
    cells = [
        dataclasses.replace(
            cell(
                host="h01",
                probe="all_reduce",
                params=params,
                ring=ring,
                devices=["h01-GPU-0", "h01-GPU-1"],
                ranks=2,
                process_no=number,
            ),
            block=number,
        )
        for ring in RINGS
        for number in range(6)
    ]
    sweep = begin(store, *cells, hosts=_hosts(OLD, ["h01"]), day=2, profile="full", tag="rings")
    for made in cells:
        value = RINGS[str(made.arm.ring)][made.process_no]
        store.put_run(_run(made, reading(value, metric=BUSBW), key="h01", day=2, second=60))
    store.end_sweep(sweep, "done", ended_at=at(600))
    return sweep


def _gangs(store: Store) -> str:
    """An all-gather of five sizes with and without P2P, enough for two lines."""
    plain: dict[str, Scalar] = {"dtype": "float32", "backend": "nccl", "place": "out_of"}
    cells = []
    for name, size in itertools.product((None, "p2p_off"), GATHERED):
        made = cell(
            host="h01", probe="all_gather", params={**plain, "bytes": size}, ranks=2,
            devices=["h01-GPU-0", "h01-GPU-1"],
        )  # fmt: skip
        cells.append(dataclasses.replace(made, arm=dataclasses.replace(made.arm, env_name=name)))
    sweep = begin(store, *cells, hosts=_hosts(OLD, ["h01"]), day=2, tag="gangs")
    for made in cells:
        size = int(str(made.case.params["bytes"]))
        seconds = (10e-6 + size / 200e9) * (8 if made.arm.env_name else 1)
        found = reading(seconds, metric=LATENCY), reading(size / seconds / 2, metric=BUSBW)
        store.put_run(_run(made, *found, key="h01", day=2, second=60))
    store.end_sweep(sweep, "done", ended_at=at(600))
    return sweep


def _prefill(store: Store) -> str:
    """Six blocks of three bindings, and prompts of several lengths and precisions."""
    planned: list[tuple[Cell, Any]] = []
    for binding, seconds in WALL.items():
        for block, value in enumerate(seconds):
            made = _prompt("bf16", 2048, mode="eager", binding=binding, process_no=block)
            found: tuple[Any, ...] = (reading(value, metric="prefill_wall_seconds"),)
            planned.append((dataclasses.replace(made, block=block), found))
    for (dtype, tokens), (rate, error) in PROMPTS.items():
        found = (
            reading(rate, metric="tokens_per_second"),
            reading(tokens / rate, metric="prefill_device_seconds"),
            reading(error, metric="relative_error_ratio"),
        )
        planned.append((_prompt(dtype, tokens, mode="graph"), found))
    cells = [c for c, _ in planned]
    sweep = begin(store, *cells, hosts=_hosts(OLD, ["h01"]), day=2, profile="full", tag="prefill")
    for made, readings in planned:
        store.put_run(_run(made, *readings, key="h01", day=2, second=120))
    store.end_sweep(sweep, "done", ended_at=at(600))
    return sweep


def _decode(store: Store) -> str:
    """Steps of a model by context, batch and type of the cache."""
    planned: list[tuple[Cell, Any]] = []
    for (kept, batch, context), (seconds, memory, products) in STEPS.items():
        params: dict[str, Scalar] = {"context": context, "batch": batch, "kv_dtype": kept}
        params |= {"shape": "llama3-8b", "dtype": "bf16", "mode": "graph"}
        found = (
            reading(seconds, metric="tpot_seconds"),
            reading(batch / seconds, metric="tokens_per_second"),
            reading(memory, metric="mbu_measured_ratio"),
            reading(products, metric="mfu_measured_ratio"),
        )
        made = cell(host="h01", probe="decode", params=params, devices=["h01-GPU-0"])
        planned.append((made, found))
    cells = [c for c, _ in planned]
    sweep = begin(store, *cells, hosts=_hosts(OLD, ["h01"]), day=2, profile="full", tag="decode")
    for made, readings in planned:
        store.put_run(_run(made, *readings, key="h01", day=2, second=180))
    store.end_sweep(sweep, "done", ended_at=at(600))
    return sweep


def _served(store: Store) -> str:
    """A served load, and a prompt by one GPU and by two."""
    params: dict[str, Scalar] = {"server": "mine", "concurrency": 8}
    load = cell(host="h01", probe="serving", params=params, devices=["h01-GPU-0"])
    answers = (
        reading(0.2, metric="ttft_seconds"),
        reading(0.02, metric="tpot_seconds"),
        reading(4.0, metric="requests_per_second"),
    )
    planned: list[tuple[Cell, Any]] = [(load, answers)]
    for gpus, seconds in ((1, 0.05), (2, 0.03)):
        made = _prompt("bf16", 1024, mode="graph", gpus=gpus)
        found = (
            reading(1024 / seconds, metric="tokens_per_second"),
            reading(seconds, metric="prefill_device_seconds"),
        )
        planned.append((made, found))
    cells = [c for c, _ in planned]
    sweep = begin(store, *cells, hosts=_hosts(OLD, ["h01"]), day=2, profile="full", tag="served")
    for made, readings in planned:
        store.put_run(_run(made, *readings, key="h01", day=2, second=240))
    store.end_sweep(sweep, "done", ended_at=at(600))
    return sweep


def _pairs(store: Store) -> str:
    """Three pairs of hosts, both ways: h03 receives at half the speed."""
    planned = []
    for pair, direction in itertools.product(
        (("h01", "h02"), ("h01", "h03"), ("h02", "h03")), WAYS
    ):
        params: dict[str, Scalar] = {"bytes": 16 * MIB, "direction": direction, "streams": 4}
        made = cell(host=pair[0], probe="host_network", params=params, ranks=2)
        planned.append(dataclasses.replace(made, hosts=pair))
    sweep = begin(store, *planned, hosts=_hosts(OLD, HOSTS[:3]), day=2, tag="pairs")
    for made in planned:
        receiver = made.hosts[1 if made.case.params["direction"] == "out" else 0]
        speed = 3e9 * (0.5 if receiver == "h03" else 1 + 0.01 * HOSTS.index(receiver))
        store.put_run(_run(made, reading(speed), key=made.host, day=2, second=300))
    store.end_sweep(sweep, "done", ended_at=at(600))
    return sweep


def _prompt(dtype: str, tokens: int, *, mode: str, gpus: int | None = None, **more: Any) -> Cell:
    shape = "llama3-8b" if gpus is None else "llama3-70b-slice8"
    params: dict[str, Scalar] = {"sequence": tokens, "batch": 1, "shape": shape}
    params |= {"dtype": dtype, "mode": mode}
    if gpus is not None:
        params["tensor_parallel"] = gpus
        more["ranks"] = gpus
    devices = [f"h01-GPU-{i}" for i in range(gpus or 1)]
    return cell(host="h01", probe="prefill", params=params, devices=devices, **more)


def _judge(store: Store) -> None:
    """Rows of the tables that other commands fill."""
    with writing(store.engine) as connection:

        def one(table: Any, **row: Any) -> int:
            return insert_id(connection, table, row)

        def find(text: str) -> int:
            return int(connection.exec_driver_sql(text).scalar_one())

        slow = find("SELECT id FROM host WHERE key = 'h12'")
        changed = find("SELECT id FROM host WHERE key = 'h01'")
        first = find("SELECT min(id) FROM sweep")
        second = find("SELECT max(id) FROM sweep")
        metric = find("SELECT id FROM metric WHERE name = 'bandwidth_bytes_per_second'")
        for host_id in (slow, changed):
            one(
                schema.changepoint,
                series_id=find(f"SELECT min(id) FROM series WHERE host_id = {host_id}"),
                metric_id=metric,
                at_lo=at(0),
                at_hi=at(0, 3),
                effect_ratio=-0.03,
                p=0.001,
                method="potts",
            )
        one(
            schema.change_event,
            host_id=changed,
            at=at(0, 3),
            kind="driver",
            key="driver",
            old=OLD,
            new=NEW,
            source="auto",
        )
        _verdicts(one, changed, slow, first, second)
        for host_id, knee in ((changed, 4096.0), (slow, None)):
            one(
                schema.fit,
                sweep_id=first,
                host_id=host_id,
                kind="knee",
                subject="prefill llama3-8b bf16",
                x_metric="seq_len",
                params={"points": 15},
                knee=knee,
                knee_lo=knee and 2048.0,
                knee_hi=knee and 8192.0,
            )
        _windows(connection, find("SELECT run_id FROM reading WHERE median = 20000"))


def _verdicts(one: Any, changed: int, slow: int, first: int, second: int) -> None:
    """Two warnings that were gone a night later: after a repair, and for no reason."""
    fixed = {"policy_version": "1", "inputs_digest": "d", "check_name": "overall"}
    for host_id in (changed, slow):
        one(
            schema.verdict,
            host_id=host_id,
            sweep_id=second,
            as_of=at(600, 3),
            level="ok",
            reason="good",
            **fixed,
        )
        one(
            schema.verdict,
            host_id=host_id,
            sweep_id=first,
            as_of=at(600),
            level="degraded",
            reason="20 % below peers",
            value=40e9,
            reference=50e9,
            effect_ratio=-0.2,
            **fixed,
        )
    one(
        schema.annotation,
        entity="host",
        entity_id=slow,
        author="operator",
        text="cable looked at, nothing found",
        created_at=at(700),
        expires_at=at(700, 20),
    )


def _windows(connection: Any, run_id: int) -> None:
    """Loads of 4 (holds), 8 (three windows of four hold in a row), 16 (does not)."""
    over = {4.0: (0, 0, 1, 0), 8.0: (9, 2, 3, 1), 16.0: (3, 50, 60, 3)}
    rows = [
        {
            "run_id": run_id,
            "window_no": 4 * load + number,
            "started_at": at(60.0 * (4 * load + number)),
            "duration_seconds": 60.0,
            "n": 400,
            "n_over": n_over,
            "p50_seconds": 0.1,
            "p99_seconds": 0.2 + n_over / 100,
            "errors": 0,
            "offered_per_second": 6.7,
            "concurrency": concurrency,
        }
        for load, (concurrency, windows) in enumerate(over.items())
        for number, n_over in enumerate(windows)
    ]
    connection.execute(schema.slo_window.insert(), rows)
