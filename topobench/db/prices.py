"""
Prices: what an hour of a host costs, valid for a time; results are never rewritten by them.

Four kinds: ``cloud_hour`` (rent), and of machines one owns ``capex``, ``colo_month`` and
``power_kwh``. The cost of an hour is worked out when a price is stored, so that views need no
powers; docs/prices.md has the formulas.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from topobench.db import schema
from topobench.db.columns import now_text, parse_time, time_text
from topobench.db.engine import reading, writing
from topobench.db.keys import insert_id
from topobench.db.store import Store
from topobench.errors import UsageError

KINDS = ("capex", "cloud_hour", "power_kwh", "colo_month")
PER = ("host", "gpu")
HOURS_A_YEAR = 8760.0
CAPEX_TERMS = ("years", "rate_ratio", "utilisation_ratio")


@dataclass(frozen=True, slots=True)
class Price:
    """
    A price as somebody enters it.

    Args:
        sku: Name of what was bought, or its unique beginning.
        kind: One of ``KINDS``.
        amount: In ``currency``: of the purchase, of an hour, of a kWh, of a month.
        currency: Three letters, ISO 4217.
        per: ``host`` or ``gpu``.
        cluster: Only there; None: wherever no price of a cluster's own is valid.
        valid_from: UTC, ISO 8601; None: from now on.
        valid_to: The first moment it is no longer valid; None: until further notice.
        years: Of capex: over which it is written off.
        rate_ratio: Of capex: interest a year (0.08 = 8 %).
        utilisation_ratio: Of capex: share of the hours that are of use.
        watts: Of power_kwh: what one ``per`` draws; None: the median that was measured.
        source: Where the price is from.
    """

    sku: str
    kind: str
    amount: float
    currency: str
    per: str = "host"
    cluster: str | None = None
    valid_from: str | None = None
    valid_to: str | None = None
    years: float | None = None
    rate_ratio: float | None = None
    utilisation_ratio: float | None = None
    watts: float | None = None
    source: str | None = None


@dataclass(frozen=True, slots=True)
class Added:
    """
    What became of a price.

    Args:
        price: Its row, as :func:`list_prices` gives it.
        closed: Valid until now without end; ends where the new one begins.
        already: The very same was there.
        warnings: What its owner should know.
    """

    price: dict[str, Any]
    closed: dict[str, Any] | None = None
    already: bool = False
    warnings: tuple[str, ...] = ()


def hour_amount(price: Price) -> float:
    """
    What an hour of one ``per`` costs, in the price's currency.

    capex by the annuity formula: ``amount * r / (1 - (1 + r)^-years) / (8760 * utilisation)``;
    colo_month is a twelfth of 8760 hours; power_kwh is ``amount * watts / 1000``.
    """
    match price.kind:
        case "cloud_hour":
            return price.amount
        case "colo_month":
            return price.amount * 12 / HOURS_A_YEAR
        case "power_kwh":
            return price.amount * (price.watts or 0.0) / 1000
    years, rate = price.years or 0.0, price.rate_ratio or 0.0
    yearly = 1 / years if rate == 0 else rate / -math.expm1(-years * math.log1p(rate))
    return price.amount * yearly / (HOURS_A_YEAR * (price.utilisation_ratio or 0.0))


def add_price(store: Store, price: Price, *, replace: bool = False) -> Added:
    """
    Store a price; one that was valid without end is closed where the new one begins.

    Args:
        replace: Take the place of one of the same SKU, cluster, kind and currency that begins
            at the same moment.

    Raises:
        UsageError: A value makes no sense, the SKU is not known, or the time overlaps.
    """
    _check(price)
    with writing(store.engine) as connection:
        sku = find_sku(connection, price.sku)
        row = _row(connection, price, sku)
        same = _same_kind(connection, row)
        equal = [p for p in same if p.valid_from == row["valid_from"]]
        if equal and _terms(equal[0]._mapping) == _terms(row):
            return Added(_shown(connection, equal[0].id), already=True)
        if equal and replace:
            connection.execute(schema.price.delete().where(schema.price.c.id == equal[0].id))
            same = [p for p in same if p.id != equal[0].id]
        closed = _make_room(connection, row, same)
        id = insert_id(connection, schema.price, row)
        return Added(
            _shown(connection, id),
            None if closed is None else _shown(connection, closed),
            warnings=tuple(_other_currencies(connection, row)),
        )


def list_prices(store: Store, sku: str | None = None) -> list[dict[str, Any]]:
    """
    Every price, by SKU, cluster, kind and time: the columns of ``price``, names for keys.

    Args:
        sku: Only of this one (name or unique beginning).

    Raises:
        UsageError: No such SKU.
    """
    with reading(store.engine) as connection:
        query = _prices()
        if sku is not None:
            query = query.where(schema.price.c.sku_id == find_sku(connection, sku).id)
        return [dict(r._mapping) for r in connection.execute(query)]


def list_skus(store: Store) -> list[dict[str, Any]]:
    """Every SKU by name, with its columns and how many hosts are of it (``n_hosts``)."""
    k, h = schema.sku, schema.host
    hosts = sa.select(sa.func.count()).where(h.c.sku_id == k.c.id).scalar_subquery()
    columns = [c for c in k.columns if c.name != "id"]
    query = sa.select(*columns, hosts.label("n_hosts")).order_by(k.c.name)
    with reading(store.engine) as connection:
        return [dict(r._mapping) for r in connection.execute(query)]


def find_sku(connection: Connection, text: str) -> Any:
    """
    The SKU of a name, or of its unique beginning whatever the case.

    Raises:
        UsageError: None or several; the message names those there are.
    """
    rows = connection.execute(sa.select(schema.sku).order_by(schema.sku.c.name)).all()
    exact = [r for r in rows if r.name == text]
    begins = [r for r in rows if text and r.name.lower().startswith(text.lower())]
    found = exact or begins
    if len(found) == 1:
        return found[0]
    names = [r.name for r in found or rows]
    if not names:
        raise UsageError(f"no SKU {text!r}: none is known yet; a sweep of its hosts makes it")
    listed = ", ".join(repr(n) for n in names[:20])
    if found:
        raise UsageError(f"several SKUs begin with {text!r}: {listed}")
    near = difflib.get_close_matches(text, names, n=1, cutoff=0.4)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise UsageError(f"no SKU {text!r}; known are {listed}{hint}")


def _check(price: Price) -> None:
    if price.kind not in KINDS:
        raise UsageError(f"price kind {price.kind!r} is not known; there are {', '.join(KINDS)}")
    if price.per not in PER:
        raise UsageError(f"a price is per host or gpu, not {price.per!r}")
    if price.amount != 0 and not 1e-6 <= price.amount <= 1e12:
        raise UsageError(
            f"amount {price.amount:g} is no price; give 0, or a number from 0.000001 to 1e12"
        )
    if not (len(price.currency) == 3 and price.currency.isascii() and price.currency.isupper()):
        raise UsageError(f"currency {price.currency!r}: give three capital letters, such as EUR")
    given = [n for n in CAPEX_TERMS if getattr(price, n) is not None]
    if price.kind == "capex":
        _check_capex(price, given)
    elif given:
        raise UsageError(f"{price.kind} has no {', '.join(given)}; those belong to capex")
    if price.watts is not None and price.kind != "power_kwh":
        raise UsageError(f"{price.kind} has no watts; those belong to power_kwh")
    if price.watts is not None and not (math.isfinite(price.watts) and price.watts > 0):
        raise UsageError(f"watts {price.watts:g}: give a number above 0")


def _check_capex(price: Price, given: Sequence[str]) -> None:
    if len(given) < len(CAPEX_TERMS):
        missing = ", ".join(f"--{n.removesuffix('_ratio')}" for n in CAPEX_TERMS if n not in given)
        raise UsageError(
            f"capex needs {missing}: years of write-off, interest a year (0.08), and the share of "
            "the hours that are of use (0.7)"
        )
    years, rate, share = price.years or 0, price.rate_ratio or 0, price.utilisation_ratio or 0
    if not (0 < years <= 50 and 0 <= rate < 1 and 0 < share <= 1):
        raise UsageError(
            f"capex: years {years:g} must be above 0 and at most 50, rate {rate:g} from 0 to below "
            f"1 (8 % is 0.08), utilisation {share:g} above 0 and at most 1"
        )


def _row(connection: Connection, price: Price, sku: Any) -> dict[str, Any]:
    start = time_text(parse_time(price.valid_from)) if price.valid_from else now_text()
    end = time_text(parse_time(price.valid_to)) if price.valid_to else None
    if end is not None and end <= start:
        raise UsageError(f"a price valid from {start} cannot end at {end}")
    watts, source = price.watts, price.source
    if price.kind == "power_kwh" and watts is None:
        watts = _measured_watts(connection, sku, price.per)
        source = "; ".join(filter(None, (source, "watts as measured")))
    known = dataclasses.replace(price, watts=watts)
    return {
        "sku_id": sku.id,
        "cluster_id": _cluster_id(connection, price.cluster),
        "kind": price.kind,
        "amount": price.amount,
        "currency": price.currency,
        "per": price.per,
        "valid_from": start,
        "valid_to": end,
        "source": source,
        **{name: getattr(price, name) for name in CAPEX_TERMS},
        "watts": watts,
        "hour_amount": hour_amount(known),
    }


def _measured_watts(connection: Connection, sku: Any, per: str) -> float:
    """The median of the powers measured last, of whole hosts or by GPU."""
    query = sa.text(
        "SELECT n_devices, median FROM v_latest WHERE metric = 'power_watts' "
        "AND sku = :sku AND synthetic = 0 AND rank IS NULL"
    )
    rows = [r for r in connection.execute(query, {"sku": sku.name}) if r.n_devices]
    if per == "host":
        rows = [r for r in rows if r.n_devices == sku.gpu_count]
    watts = [r.median / (r.n_devices if per == "gpu" else 1) for r in rows]
    if not watts:
        raise UsageError(
            f"power_kwh needs watts: no power of a whole {per} was measured for {sku.name!r}; "
            "give --watts"
        )
    return float(statistics.median(watts))


def _cluster_id(connection: Connection, name: str | None) -> int | None:
    if name is None:
        return None
    table = schema.cluster
    names = list(connection.execute(sa.select(table.c.name).order_by(table.c.name)).scalars())
    if name not in names:
        near = difflib.get_close_matches(name, names, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise UsageError(f"no cluster {name!r}; known are {', '.join(names) or 'none'}{hint}")
    query = sa.select(table.c.id).where(table.c.name == name)
    return int(connection.execute(query).scalar_one())


def _same_kind(connection: Connection, row: Mapping[str, Any]) -> Sequence[Any]:
    """The prices that must not overlap a new one, by time."""
    p = schema.price
    where = [p.c[n] == row[n] for n in ("sku_id", "kind", "currency")]
    cluster = row["cluster_id"]
    where.append(p.c.cluster_id.is_(None) if cluster is None else p.c.cluster_id == cluster)
    return connection.execute(sa.select(p).where(*where).order_by(p.c.valid_from)).all()


def _terms(row: Mapping[str, Any]) -> tuple[Any, ...]:
    names = ("amount", "per", "valid_to", *CAPEX_TERMS, "watts")
    return tuple(row[n] for n in names)


def _make_room(connection: Connection, row: Mapping[str, Any], same: Sequence[Any]) -> int | None:
    """Close the price that is valid without end; its id, or None."""
    start, end = row["valid_from"], row["valid_to"]
    closed = None
    for other in same:
        if other.valid_from < start and other.valid_to is None:
            connection.execute(
                schema.price.update().where(schema.price.c.id == other.id), {"valid_to": start}
            )
            closed = other.id
        elif (end is None or other.valid_from < end) and (
            other.valid_to is None or other.valid_to > start
        ):
            until = other.valid_to or "further notice"
            raise UsageError(
                f"a {row['kind']} price of {other.amount:g} {other.currency} is valid from "
                f"{other.valid_from} until {until}, which overlaps; choose another --from or --to"
                + (", or --replace it" if other.valid_from == start else "")
            )
    return closed


def _other_currencies(connection: Connection, row: Mapping[str, Any]) -> list[str]:
    if row["kind"] == "cloud_hour":
        return []
    p = schema.price
    query = (
        sa.select(p.c.currency)
        .where(p.c.sku_id == row["sku_id"], p.c.kind != "cloud_hour")
        .where(p.c.currency != row["currency"])
        .distinct()
        .order_by(p.c.currency)
    )
    others = ", ".join(connection.execute(query).scalars())
    if not others:
        return []
    return [f"this SKU has costs in {others} too; they are not added to those in {row['currency']}"]


def _prices() -> sa.Select[Any]:
    p, k, c = schema.price, schema.sku, schema.cluster
    columns = [col for col in p.columns if col.name not in ("sku_id", "cluster_id")]
    return (
        sa.select(p.c.id, k.c.name.label("sku"), c.c.name.label("cluster"), *columns[1:])
        .select_from(p.join(k).outerjoin(c, c.c.id == p.c.cluster_id))
        .order_by(k.c.name, c.c.name, p.c.kind, p.c.currency, p.c.valid_from, p.c.id)
    )


def _shown(connection: Connection, id: int) -> dict[str, Any]:
    return dict(connection.execute(_prices().where(schema.price.c.id == id)).one()._mapping)
