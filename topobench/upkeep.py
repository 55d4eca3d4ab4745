"""The bodies of ``topobench price`` and of the ``topobench db`` commands that change a store."""

from __future__ import annotations

import datetime
import zoneinfo
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from topobench.commands import Outcome
from topobench.errors import StoreError, UsageError
from topobench.retention import Retention

_SQLITE = b"SQLite format 3\x00"
_SHOWN = 20
"""Problems that a person is shown; the JSON document has them all."""


def db_upgrade(store_url: str) -> Outcome:
    """Bring the store to this version's schema, after a copy; make views and roll-ups anew."""
    from topobench.db.store import Store
    from topobench.report.tables_text import render_facts

    with Store.open(store_url, create=False) as store:
        store.renew_views()
        rolled = store.rebuild_rollups()
        info = store.info()
    data = {"url": info["url"], "schema": info["schema"], "rollups": rolled}
    return Outcome(data, lambda: render_facts(data))


def db_check(store_url: str) -> Outcome:
    """What of a store was not written by topobench: by table and column, with the first row."""
    from topobench.db.engine import reading
    from topobench.db.store import Store
    from topobench.db.strays import all_strays
    from topobench.report.tables_text import render_facts

    with (
        Store.open(store_url, create=False, read_only=True) as store,
        reading(store.engine) as connection,
    ):
        found = all_strays(connection)
        data = {"url": store.url, "problems": [{**asdict(s), "text": str(s)} for s in found]}
    shown = {**data, "problems": [str(s) for s in found]}
    return Outcome(
        data,
        lambda: render_facts(shown),
        exit_code=1 if found else 0,
        status="edited" if found else "ok",
    )


def db_import(store_url: str, place: str, *, as_cluster: str | None = None) -> Outcome:
    """
    Bring a spool or another store in; what is there already changes nothing.

    Args:
        place: Folder or file of a spool, file or URL of a store.
        as_cluster: Name that the other store's cluster gets here.

    Raises:
        UsageError: A name for a spool's cluster, or an empty one.
        StoreError: There is no such place, or it is neither; one of the two stores is away.
    """
    from topobench.db.store import Store

    other = _other_store(place)
    if other is None and not Path(place).exists():
        raise StoreError(f"{place}: no such file or folder; a spool is a folder of .jsonl files")
    if as_cluster is not None and not as_cluster.strip():
        raise UsageError("--as-cluster is empty; give the name that the cluster gets here")
    if as_cluster is not None and other is None:
        raise UsageError("--as-cluster is for another store; a spool is of this one")
    if other is None and Path(place).is_dir():
        _check_spool(Path(place))
    with Store.open(store_url) as store:
        if other is None:
            return _spool_outcome(store, Path(place))
        return _merge_outcome(store, other, as_cluster)


def _other_store(place: str) -> str | None:
    """
    The URL of the store that a place names; None for a spool.

    Raises:
        StoreError: A file that is neither.
    """
    if "://" in place:
        return place
    path = Path(place)
    if not path.is_file():
        return None
    try:
        with path.open("rb") as file:
            head = file.read(4096)
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror}") from error
    if head.startswith(_SQLITE):
        return f"sqlite:///{path.absolute()}"
    if not head.lstrip().startswith(b"{") or b"\x00" in head:
        raise StoreError(
            f"{path}: neither a spool (JSON lines) nor a store of topobench (SQLite); results of "
            "other tools come in with `topobench import`"
        )
    return None


def _check_spool(folder: Path) -> None:
    """A folder that holds no file of a spool, not even one that was brought in, is another one."""
    if not any(file.suffix in (".jsonl", ".part", ".imported") for file in folder.iterdir()):
        raise StoreError(
            f"{folder}: nothing to bring in; a spool holds files such as SWEEP-000001.jsonl (.part "
            "while a sweep writes it, .imported once it was brought in)"
        )


def _spool_outcome(store: Any, folder: Path) -> Outcome:
    from topobench.db.spool_import import import_spool

    found = import_spool(store, folder)
    data = {
        "kind": "spool",
        "files": found.files,
        "stored": found.stored,
        "already_stored": found.already,
        "conflicts": found.conflicts,
        "problems": list(found.problems),
        "busy": list(found.busy),
        "elsewhere": dict(found.elsewhere),
    }
    told = [
        f"left, as of the store {place}: {', '.join(files[:3])}{' ...' if files[3:] else ''}; give "
        "that with --store, or name a file itself to bring it in here"
        for place, files in found.elsewhere.items()
    ]
    if not (found.files or found.busy or told):
        told = [f"{folder}: every file was brought in before"]
    return _import_outcome(data, told)


def _merge_outcome(store: Any, url: str, as_cluster: str | None) -> Outcome:
    from topobench.db.merge import import_store

    found = import_store(store, url, as_cluster=as_cluster)
    data = {
        "kind": "store",
        "sweeps": found.sweeps,
        "stored": found.stored,
        "already_stored": found.already,
        "judged": found.judged,
        "conflicts": found.conflicts,
        "problems": found.problems,
    }
    return _import_outcome(data)


def _import_outcome(data: dict[str, Any], warnings: Sequence[str] = ()) -> Outcome:
    from topobench.report.tables_text import render_facts

    whole = not (data["problems"] or data.get("busy") or data.get("elsewhere"))
    left = len(data["problems"]) - _SHOWN
    more = [f"and {left} more"] if left > 0 else []
    shown = {**data, "problems": [*data["problems"][:_SHOWN], *more]}
    return Outcome(
        data,
        lambda: render_facts(shown),
        exit_code=0 if whole else 1,
        status="ok" if whole else "incomplete",
        warnings=tuple(warnings),
    )


def db_export(store_url: str, folder: Path) -> Outcome:
    """Write every usable reading as Parquet files, by cluster and day."""
    from topobench.db.export import export_parquet
    from topobench.db.store import Store
    from topobench.report.tables_text import render_facts

    with Store.open(store_url, create=False, read_only=True) as store:
        found = export_parquet(store, folder)
    data = {"folder": found.folder, "readings": found.readings, "files": list(found.files)}
    return Outcome(data, lambda: render_facts({**data, "files": len(found.files)}))


def db_vacuum(store_url: str, retention: Retention, *, dry_run: bool) -> Outcome:
    """
    Remove what is older than the retention and give the room back.

    Args:
        dry_run: Only say what would go.
    """
    from topobench.db.retention import vacuum
    from topobench.db.store import Store
    from topobench.report.tables_text import render_facts

    with Store.open(store_url, create=False) as store:
        found = vacuum(store, retention, dry_run=dry_run)
    data = {"dry_run": dry_run, **asdict(found)}
    return Outcome(data, lambda: render_facts(data))


def price_add(store_url: str, terms: Mapping[str, Any], *, zone: str, replace: bool) -> Outcome:
    """
    Store a price.

    Args:
        terms: Fields of ``db.prices.Price``; times as typed: ISO 8601, or a day.
        zone: IANA name, of times that have none.
        replace: In place of one that begins at the same moment.
    """
    from topobench.db.prices import Price, add_price
    from topobench.db.store import Store
    from topobench.report.tables_text import render_facts

    times = {name: _moment(terms[name], zone) for name in ("valid_from", "valid_to")}
    with Store.open(store_url, create=False) as store:
        added = add_price(store, Price(**{**terms, **times}), replace=replace)
    data = {"price": added.price, "closed": added.closed, "already_stored": added.already}
    facts = {k: v for k, v in added.price.items() if v is not None}
    if added.closed:
        facts["closes"] = "price {id}: {amount:g} {currency}".format_map(added.closed)
    return Outcome(data, lambda: render_facts(facts), warnings=added.warnings)


def price_list(store_url: str, sku: str | None, *, skus: bool) -> Outcome:
    """
    The prices, or the SKUs that can have one.

    Args:
        sku: Only of this one.
        skus: List SKUs instead.

    Raises:
        UsageError: Both one SKU's prices and the list of SKUs.
    """
    from topobench.db import prices
    from topobench.db.store import Store
    from topobench.report.tables_text import render_query

    if skus and sku is not None:
        raise UsageError("give --sku, or --skus for the names there are")
    with Store.open(store_url, create=False, read_only=True) as store:
        found = prices.list_skus(store) if skus else prices.list_prices(store, sku)
    data = {"prices": [] if skus else found, "skus": found if skus else []}
    columns, rows = _table(found, _SKU_COLUMNS if skus else _PRICE_COLUMNS)
    return Outcome(data, lambda: render_query(columns, rows))


_SKU_COLUMNS = (
    "name",
    "gpu_model",
    "gpu_count",
    "form_factor",
    "cpu_model",
    "nic_model",
    "n_hosts",
)
_PRICE_COLUMNS = (
    *("id", "sku", "cluster", "kind", "amount", "currency", "per", "valid_from", "valid_to"),
    *("hour_amount", "source"),
)


def _table(
    found: Sequence[Mapping[str, Any]], columns: tuple[str, ...]
) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
    return columns, [tuple(row[c] for c in columns) for row in found]


def _moment(text: str | None, zone: str) -> str | None:
    """A time as typed, in UTC; one without a zone, or a day, is of the zone named."""
    if text is None:
        return None
    try:
        place = zoneinfo.ZoneInfo(zone)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError) as error:
        raise UsageError(f"--zone {zone!r} is no IANA time zone, such as Europe/Berlin") from error
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError as error:
        raise UsageError(f"time {text!r}: give a day (2026-11-01) or ISO 8601 ({error})") from error
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=place)
    return moment.astimezone(datetime.UTC).isoformat()
