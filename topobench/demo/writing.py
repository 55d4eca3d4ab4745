"""Puts a synthetic fleet into a SQLite file of its own, never among what was measured."""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from topobench import __version__
from topobench.config import DEFAULT_STORE
from topobench.db.engine import parse_url, sqlite_path
from topobench.db.prices import Price, add_price
from topobench.db.store import Store
from topobench.demo.fleet import PROFILE, Fleet, Sweep, sweeps
from topobench.demo.hosts import SKUS
from topobench.errors import StoreError, UsageError

DEFAULT_FILE = "topobench-demo.db"
PRICE_SOURCE = "synthetic: invented for topobench demo"
RUNNING_SIDECARS = ("-wal", "-shm")


def target_of(given: str | None) -> Path:
    """
    The file to write.

    Args:
        given: A path or a SQLite URL, as typed; None: the file of the demo in this folder.

    Raises:
        UsageError: It names a server, or the store that measurements go to.
    """
    text = given or DEFAULT_FILE
    parsed = parse_url(text if ":/" in text else f"sqlite:///{text}")
    path = sqlite_path(parsed)
    if path is None:
        raise UsageError("--store: demo writes to a SQLite file of its own; name a file")
    for url in (DEFAULT_STORE, os.environ.get("TOPOBENCH_STORE") or DEFAULT_STORE):
        if sqlite_path(parse_url(url)) == path:
            raise UsageError(
                f"--store: {path} is where measurements go; name another file, such as "
                f"{DEFAULT_FILE}"
            )
    return path


def check_target(path: Path) -> None:
    """
    Refuse a file that a demo may not replace.

    Raises:
        UsageError: It holds something that was measured or imported, or is no store of ours.
    """
    if not path.exists():
        return
    advice = f"name another file, or remove {path} yourself"
    try:
        with Store.open(f"sqlite:///{path}", create=False, read_only=True) as store:
            real = [s for s in store.sweeps(limit=_EVERY) if not s["synthetic"]]
    except StoreError as error:
        raise UsageError(f"--store: {path} is no store of this topobench: {error}") from error
    if real:
        count = f"{len(real)} sweep{'' if len(real) == 1 else 's'}"
        raise UsageError(
            f"--store: {path} holds {count} that no demo made (the newest of "
            f"{real[0]['started_at'][:10]}, cluster {real[0]['cluster']}); {advice}"
        )


_EVERY = 10**9


def write_fleet(path: Path, fleet: Fleet, done: Callable[[Sweep], None]) -> dict[str, Any]:
    """
    Make the store; an earlier demo in that file is replaced once the new one is complete.

    Args:
        done: Is told of each sweep that was stored.

    Returns:
        How much was written: sweeps, cells, runs, readings; and the bytes of the file.
    """
    check_target(path)
    part = path.with_name(path.name + ".part")
    _remove(part)
    try:
        counts = _written(part, fleet, done)
        _remove(path)
        part.replace(path)
    finally:
        _remove(part)
    return {**counts, "size_bytes": path.stat().st_size}


def _written(part: Path, fleet: Fleet, done: Callable[[Sweep], None]) -> dict[str, int]:
    counts = {"sweeps": 0, "cells": 0, "runs": 0, "readings": 0}
    with Store.open(f"sqlite:///{part}") as store:
        for sweep in sweeps(fleet):
            _put(store, sweep, fleet.seed)
            counts["sweeps"] += 1
            counts["cells"] += len(sweep.cells)
            counts["runs"] += len(sweep.runs)
            counts["readings"] += sum(len(r.readings) for r in sweep.runs)
            done(sweep)
        _add_prices(store, fleet)
    return counts


def _put(store: Store, sweep: Sweep, seed: int) -> None:
    store.begin_sweep(
        id=sweep.id,
        cluster=sweep.cluster,
        profile=PROFILE,
        trigger="demo",
        seed=seed,
        tool_version=__version__,
        started_at=sweep.started_at,
        estimated_seconds=sweep.estimated_seconds,
        synthetic=True,
        hosts=sweep.hosts,
        cells=sweep.cells,
    )
    store.put_runs(sweep.id, sweep.runs)
    store.end_sweep(sweep.id, ended_at=sweep.ended_at)


def _add_prices(store: Store, fleet: Fleet) -> None:
    """Rents from the first night on; every figure is invented."""
    first = fleet.last - datetime.timedelta(days=fleet.nights)
    for sku in SKUS:
        price = Price(
            sku=sku.name,
            kind="cloud_hour",
            amount=sku.price_per_gpu_hour,
            currency="USD",
            per="gpu",
            valid_from=f"{first.isoformat()}T00:00:00Z",
            source=PRICE_SOURCE,
        )
        add_price(store, price)


def _remove(path: Path) -> None:
    """The file and what SQLite keeps beside it."""
    for suffix in ("", *RUNNING_SIDECARS):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
