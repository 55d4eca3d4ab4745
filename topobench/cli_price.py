"""The commands of money: price add, price list."""

from __future__ import annotations

from typing import Annotated

import typer

from topobench.cli_output import Format, FormatOption, StoreOption, emit, store_url, warn

price_app = typer.Typer(
    help="What hosts cost: results never change when a price does.", no_args_is_help=True
)


@price_app.command("add")
def price_add(
    *,
    sku: Annotated[
        str, typer.Argument(metavar="SKU", help="Name or unique beginning; see price list --skus.")
    ],
    kind: Annotated[
        str, typer.Argument(metavar="KIND", help="capex, cloud_hour, power_kwh, colo_month.")
    ],
    amount: Annotated[
        float, typer.Argument(metavar="AMOUNT", help="Of the purchase, hour, kWh or month.")
    ],
    currency: Annotated[str, typer.Argument(metavar="CURRENCY", help="EUR, USD ...")],
    per: Annotated[
        str, typer.Option("--per", metavar="host|gpu", help="What the amount is for.")
    ] = "host",
    cluster: Annotated[
        str | None, typer.Option("--cluster", metavar="NAME", help="Only in this cluster.")
    ] = None,
    valid_from: Annotated[
        str | None, typer.Option("--from", metavar="TIME", help="A day or time; default: now.")
    ] = None,
    valid_to: Annotated[
        str | None, typer.Option("--to", metavar="TIME", help="First moment it no longer holds.")
    ] = None,
    zone: Annotated[
        str, typer.Option("--zone", metavar="IANA", help="Of times without a zone.")
    ] = "UTC",
    years: Annotated[
        float | None, typer.Option("--years", help="capex: written off over so many years.")
    ] = None,
    rate: Annotated[
        float | None, typer.Option("--rate", help="capex: interest a year; 8 % is 0.08.")
    ] = None,
    utilisation: Annotated[
        float | None, typer.Option("--utilisation", help="capex: share of hours of use, e.g. 0.7.")
    ] = None,
    watts: Annotated[
        float | None,
        typer.Option(
            "--watts", help="power_kwh: drawn by one host (or GPU); default: as measured."
        ),
    ] = None,
    source: Annotated[
        str | None, typer.Option("--source", metavar="TEXT", help="Where the price is from.")
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="In place of one that begins at the same moment.")
    ] = False,
    store: StoreOption = None,
    output: FormatOption = Format.TABLE,
) -> int:
    """
    Store what an SKU costs, from a moment on or for a time.

    A price that was valid without end is closed where the new one begins.

    \b
    Examples:
      topobench price add h200-sxm8 cloud_hour 24.50 USD --from 2026-11-01
      topobench price add h200-sxm8 capex 290000 EUR --years 4 --rate 0.08 --utilisation 0.7
      topobench price add h200-sxm8 power_kwh 0.21 EUR --watts 7600 --zone Europe/Berlin
    """
    from topobench import upkeep

    terms = {
        "sku": sku,
        "kind": kind,
        "amount": amount,
        "currency": currency,
        "per": per,
        "cluster": cluster,
        "valid_from": valid_from,
        "valid_to": valid_to,
        "years": years,
        "rate_ratio": rate,
        "utilisation_ratio": utilisation,
        "watts": watts,
        "source": source,
    }
    outcome = upkeep.price_add(store_url(store), terms, zone=zone, replace=replace)
    if output is Format.TABLE:
        warn(outcome)
    return emit("price-add", outcome, output.value)


@price_app.command("list")
def price_list(
    *,
    sku: Annotated[
        str | None, typer.Option("--sku", metavar="SKU", help="Only of this one.")
    ] = None,
    skus: Annotated[
        bool, typer.Option("--skus", help="The SKUs that can have a price, with their hosts.")
    ] = False,
    store: StoreOption = None,
    output: FormatOption = Format.TABLE,
) -> int:
    """
    Show every price and when it is valid, or the SKUs there are.

    \b
    Examples:
      topobench price list
      topobench price list --skus
    """
    from topobench import upkeep

    return emit("price-list", upkeep.price_list(store_url(store), sku, skus=skus), output.value)
