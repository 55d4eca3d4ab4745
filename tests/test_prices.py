"""Prices: what an hour costs, when, and what the priced views and queries say."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from documents import check
from storing import begin, cell, host, new_id, reading, run
from topobench import cli
from topobench.db.prices import Price, add_price, hour_amount, list_prices, list_skus
from topobench.db.queries import load, run_query
from topobench.db.store import Store
from topobench.errors import UsageError
from topobench.host import Host
from topobench.reading import Arm, Binding, Cell, Reason, ReasonCode, Scalar, Status
from topobench.topology import PathClass

BUSBW = "busbw_bytes_per_second"
FROM = "2026-01-01T00:00:00.000000Z"
MONEY = {"at": "2026-11-02T12:00:00Z", "since": "2026-01-01", "now": "2026-11-03T01:00:00Z"}


def fleet(n: int) -> list[Host]:
    return [host(f"k{i}", name=f"h{i}", gpus=8, labels={"sku": "h200-sxm8"}) for i in range(n)]


def price(kind: str = "cloud_hour", amount: float = 24.0, **more: Any) -> Price:
    return Price("h200-sxm8", kind, amount, **{"currency": "USD", "valid_from": FROM, **more})


def answer(store: Store, name: str, **params: str) -> list[dict[str, Any]]:
    given = {k: v for k, v in MONEY.items() if k in [p.name for p in load(name).parameters]}
    found = run_query(store, name, {**given, **params})
    return [dict(zip(found.columns, row, strict=True)) for row in found.rows]


def rows(store: Store, text: str) -> list[tuple[Any, ...]]:
    with store.engine.connect() as connection:
        return [tuple(r) for r in connection.execute(sa.text(text))]


CAPEX = {"years": 4, "rate_ratio": 0.08, "utilisation_ratio": 0.7}


@pytest.mark.parametrize(
    ("given", "hour"),
    [
        (price(amount=24.5), 24.5),
        (price("colo_month", 730.0), 1.0),
        (price("power_kwh", 0.2, watts=7500.0), 1.5),
        # 290000 * 0.08 / (1 - 1.08^-4) / (8760 * 0.7)
        (price("capex", 290_000.0, **CAPEX), 14.2787),
        (price("capex", 61_320.0, years=10, rate_ratio=0, utilisation_ratio=0.7), 1.0),
    ],
    ids=["cloud", "colo", "power", "capex", "capex without interest"],
)
def test_an_hour_costs(given: Price, hour: float) -> None:
    assert hour_amount(given) == pytest.approx(hour, rel=1e-5)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (price("rent"), "kind 'rent' is not known; there are capex, cloud_hour"),
        (price(amount=float("nan")), "amount nan is no price"),
        (price(amount=-1.0), "amount -1 is no price"),
        (price(amount=1e300), "give 0, or a number from 0.000001 to 1e12"),
        (price(currency="euro"), "give three capital letters"),
        (price(per="rack"), "per host or gpu, not 'rack'"),
        (price("capex"), "capex needs --years, --rate, --utilisation"),
        (price("capex", **{**CAPEX, "rate_ratio": 8}), "8 % is 0.08"),
        (price(years=4), "cloud_hour has no years"),
        (price(watts=4), "cloud_hour has no watts"),
        (price("power_kwh", 0.2), "no power of a whole host was measured for 'h200-sxm8'"),
        (price(valid_to="2025-01-01T00:00:00Z"), "cannot end at 2025"),
        (price(cluster="lap"), "no cluster 'lap'; known are lab; did you mean 'lab'?"),
        (Price("h200-smx8", "cloud_hour", 1.0, "USD"), "did you mean 'h200-sxm8'?"),
        (Price("b200", "cloud_hour", 1.0, "USD"), "no SKU 'b200'; known are 'h200-sxm8'"),
    ],
)
def test_a_price_that_makes_no_sense_is_refused(tmp_path: Path, given: Price, message: str) -> None:
    with Store.open(f"sqlite:///{tmp_path}/x.db") as store:
        begin(store, hosts=fleet(1))
        with pytest.raises(UsageError) as raised:
            add_price(store, given)
        assert message in str(raised.value)
        assert list_prices(store) == []


def test_a_new_price_closes_the_one_without_an_end(store: Store) -> None:
    """Any other overlap is an error that names both times; the same price again changes nothing."""
    begin(store, hosts=fleet(1))
    first = add_price(store, price())
    assert add_price(store, price()).already
    later = add_price(store, price(amount=20.0, valid_from="2026-06-01T00:00:00+02:00"))
    assert later.closed is not None
    assert (later.closed["id"], later.closed["valid_to"]) == (
        first.price["id"],
        "2026-05-31T22:00:00.000000Z",
    )
    overlap = price(amount=1.0, valid_from="2026-03-01T00:00:00Z", valid_to="2026-04-01T00:00:00Z")
    with pytest.raises(UsageError, match=r"24 USD is valid from 2026-01-01.* until 2026-05-31"):
        add_price(store, overlap)
    again = price(amount=19.0, valid_from="2026-05-31T22:00:00Z")
    with pytest.raises(UsageError, match="or --replace it"):
        add_price(store, again)
    add_price(store, again, replace=True)
    assert [p["amount"] for p in list_prices(store, "H200")] == [24.0, 19.0]
    assert [(s["name"], s["gpu_count"], s["n_hosts"]) for s in list_skus(store)] == [
        ("h200-sxm8", 8, 1)
    ]


def test_power_is_priced_at_the_watts_measured(store: Store) -> None:
    """By GPU as well as by host, if all GPUs of hosts were measured at once."""
    everything = [f"GPU-{n}" for n in range(8)]
    cells = [cell(host=f"k{n}", devices=everything) for n in range(2)]
    begin(store, *cells, hosts=fleet(2))
    for planned, watts in zip(cells, (4000.0, 5000.0), strict=True):
        store.put_run(run(planned, reading(watts, metric="power_watts")))
    whole = add_price(store, price("power_kwh", 0.2)).price
    assert (whole["watts"], whole["source"]) == (4500.0, "watts as measured")
    assert whole["hour_amount"] == pytest.approx(0.9)
    one = add_price(store, price("power_kwh", 0.2, per="gpu", currency="EUR"))
    assert one.price["watts"] == 562.5
    assert one.warnings == ("this SKU has costs in USD too; they are not added to those in EUR",)


def test_owning_rent_currencies_and_periods_are_never_mixed(store: Store) -> None:
    begin(store, hosts=[*fleet(1), host("k9", gpus=8, labels={"sku": "bare"})])
    begin(store, hosts=fleet(1), cluster="west")
    add_price(store, price("capex", 61_320.0, years=10, rate_ratio=0, utilisation_ratio=0.7))
    add_price(store, price("colo_month", 730.0, valid_from="2026-03-01T00:00:00Z"))
    add_price(store, price("power_kwh", 0.1, watts=1000.0, currency="EUR"))
    add_price(store, price(amount=4.0, per="gpu"))
    add_price(store, price(amount=30.0, cluster="west", valid_to="2026-02-01T00:00:00Z"))
    text = (
        "SELECT basis, currency, kinds, host_hour_amount, gpu_hour_amount, "
        "CASE WHEN price_to IS NULL THEN 'open' ELSE 'closed' END FROM v_price "
        "WHERE cluster = '{}' ORDER BY basis, currency, price_from"
    )
    assert rows(store, text.format("lab")) == [
        ("cloud", "USD", "cloud_hour", 32.0, 4.0, "closed"),
        ("cloud", "USD", "cloud_hour", 32.0, 4.0, "open"),
        ("owned", "USD", "capex", pytest.approx(1.0), pytest.approx(0.125), "closed"),
        ("owned", "USD", "capex+colo_month", pytest.approx(2.0), pytest.approx(0.25), "open"),
    ]
    assert [r[3] for r in rows(store, text.format("west"))[:3]] == [30.0, 32.0, 32.0]


def test_a_price_never_changes_a_result_and_swaps_the_ends_of_an_interval(store: Store) -> None:
    """Speed divides the price; time multiplies it; the devices' share of the host is paid."""
    planned = cell(host="k0", probe="all_reduce", devices=["GPU-0", "GPU-1"], ranks=2)
    begin(store, planned, hosts=fleet(1))
    speed = reading(2e9, metric=BUSBW, spread=0.5)
    store.put_run(run(planned, speed, reading(2.0, metric="latency_seconds", spread=0.5)))
    before = rows(store, "SELECT * FROM v_latest ORDER BY metric")
    add_price(store, price(amount=24.0))
    assert rows(store, "SELECT * FROM v_latest ORDER BY metric") == before
    found = rows(
        store,
        "SELECT hour_amount, hour_amount_per_unit * 1e9, hour_amount_per_unit_lo * 1e9, "
        "hour_amount_per_unit_hi * 1e9, work_amount, work_amount_lo, work_amount_hi "
        "FROM v_price_performance ORDER BY metric",
    )
    assert found[0] == pytest.approx(
        (6.0, 3.0, 2.0, 6.0, 6 / 3600 / 2e9, 6 / 3600 / 3e9, 6 / 3600 / 1e9)
    )
    assert found[1] == pytest.approx(
        (6.0, None, None, None, 6 / 3600 * 2, 6 / 3600, 6 / 3600 * 3), nan_ok=True
    )


def test_a_gpu_measured_beside_others_is_priced_alone_and_is_no_path(store: Store) -> None:
    """Its own tokens took one GPU, their sum took all; ranks that share a model took all, too."""
    params: dict[str, Scalar] = {"at_once": "all", "sequence": 256, "tensor_parallel": 1}
    pair: dict[str, Any] = {
        "devices": ["GPU-0", "GPU-1"],
        "ranks": 2,
        "probe": "prefill",
        "host": "k0",
    }
    beside = cell(params=params, **pair)
    params |= {"at_once": "one", "tensor_parallel": 2}
    sharing = cell(params=params, **pair)
    begin(store, beside, sharing, hosts=fleet(1))
    tokens, seconds = "tokens_per_second", "prefill_device_seconds"
    points: list[dict[str, Scalar]] = [{"device": f"GPU-{n}", "rank": n} for n in (0, 1)]
    own = [reading(v, metric=tokens, point=p) for v, p in zip((29e3, 30e3), points, strict=True)]
    store.put_run(run(beside, reading(59e3, metric=tokens), *own))
    both = [reading(7.5e-3, metric=seconds, point={"rank": n}) for n in (0, 1)]
    store.put_run(run(sharing, reading(7.5e-3, metric=seconds), *both))
    add_price(store, price(amount=32.0))
    found = rows(store, "SELECT tp, median, hour_amount FROM v_price_performance ORDER BY 1, 2, 3")
    assert found == [(1, 29e3, 4.0), (1, 30e3, 4.0), (1, 59e3, 8.0), *[(2, 7.5e-3, 8.0)] * 3]
    hops = rows(
        store, "SELECT tp, metric, hop_class FROM v_hop_class JOIN probe_case USING (params)"
    )
    assert hops == [(2, seconds, "nvlink")]


def test_bandwidth_prefill_and_form_factors_have_their_price(store: Store) -> None:
    fast = [cell(host=f"k{n}", probe="all_reduce", params={"bytes": 1 << 27, "dtype": "float32"},
                 devices=[f"GPU-{g}" for g in range(8)], ranks=8) for n in range(6)]  # fmt: skip
    params: dict[str, Scalar] = {
        "sequence": 8192,
        "batch": 1,
        "dtype": "bf16",
        "shape": "llama3-8b",
    }
    fill = cell(host="k0", probe="prefill", params=params, devices=["GPU-0"])
    fp8 = cell(host="k0", probe="prefill", params={**params, "dtype": "fp8"}, devices=["GPU-0"])
    begin(store, *fast, fill, fp8, hosts=fleet(6))
    for n, planned in enumerate(fast):
        store.put_run(run(planned, reading((n + 1) * 100e9, metric=BUSBW)))
    store.put_run(run(fill, reading(40_000.0, metric="tokens_per_second", spread=0.5)))
    store.put_run(run(fp8, reading(60_000.0, metric="tokens_per_second")))
    add_price(store, price(amount=28.8))
    (row,) = answer(store, "price-all-reduce")
    assert (row["n_ranks"], row["n_measured_hosts"], row["ci_level"]) == (8, 6, "between")
    assert row["busbw_bytes_per_second"] == 350e9
    per = [row[f"hour_amount_per_gbps{end}"] for end in ("", "_lo", "_hi")]
    assert per == pytest.approx([28.8 / 350, 28.8 / 600, 28.8 / 100])
    bf16, eight = sorted(answer(store, "price-prefill"), key=lambda r: r["dtype"])
    per = [bf16[f"amount_per_million_tokens{end}"] for end in ("", "_lo", "_hi")]
    assert per == pytest.approx([3.6 / 3600 / 40_000 * 1e6 * f for f in (1, 1 / 1.5, 2)])
    assert eight["amount_per_million_tokens"] == pytest.approx(3.6 / 3600 / 60_000 * 1e6)
    assert answer(store, "price-prefill", at="2025-06-01") == []
    table = sorted(answer(store, "form-factors"), key=lambda r: r["per_gpu"])
    assert [(r["n_hosts"], r["per_gpu"], r["ci_level"]) for r in table] == [
        (1, 40_000.0, "within"),
        (1, 60_000.0, "within"),
    ]
    assert [r["per_amount"] for r in table] == pytest.approx([40_000 / 3.6, 60_000 / 3.6])


def test_the_numa_tax_has_a_price_and_an_interval(store: Store) -> None:
    arms = {"local": 50e9, "remote": 40e9}
    cells = [cell(host="k0", probe="host_to_device", binding=b, devices=["GPU-0"]) for b in arms]
    own = Arm(Binding("local"), env={"NCCL_P2P_DISABLE": "1"}, env_name="p2p_off")
    cells.append(dataclasses.replace(cells[0], id=new_id(), arm=own))  # no reference of bindings
    begin(store, *cells, hosts=fleet(1))
    for planned, speed in zip(cells, (*arms.values(), 10e9), strict=True):
        store.put_run(run(planned, reading(speed, spread=0.1)))
    add_price(store, price(amount=24.0))
    (row,) = answer(store, "price-numa-tax")
    tax = [row["tax_ratio"], row["tax_lo_ratio"], row["tax_hi_ratio"]]
    assert tax == pytest.approx([0.2, 1 - 44 / 45, 1 - 36 / 55])
    assert [row["hour_loss"], row["hour_loss_hi"]] == pytest.approx([0.6, 3 * (1 - 36 / 55)])


def test_the_straggler_bill_is_the_exact_mean_of_the_slowest(store: Store) -> None:
    """Against every draw of 3 of 6 hosts; without the worst one, against those of the other 5."""
    from itertools import combinations
    from statistics import mean, median

    speeds = [100.0, 99.0, 98.0, 101.0, 102.0, 50.0]
    cells = [cell(host=f"k{n}") for n in range(6)]
    begin(store, *cells, hosts=fleet(6))
    for planned, speed in zip(cells, speeds, strict=True):
        store.put_run(run(planned, reading(speed)))
    add_price(store, price(amount=10.0))
    found = {r["n_left_out"]: r for r in answer(store, "straggler-bill", hosts="3", hours="100")}
    assert list(found) == [0, 1, 2]
    middle = median(speeds)
    for left_out, pool in ((0, speeds), (1, sorted(speeds)[1:]), (2, sorted(speeds)[2:])):
        expected = mean(min(c) for c in combinations(pool, 3)) / middle
        row = found[left_out]
        assert row["expected_ratio"] == pytest.approx(expected)
        assert row["bill"] == pytest.approx((1 - expected) * 3 * 100 * 10.0)
    assert found[0]["range_lo_ratio"] == pytest.approx(50 / middle)
    assert found[0]["n_measured_hosts"] == 6
    assert answer(store, "straggler-bill", hosts="7") == []


def test_tokens_have_their_energy(store: Store) -> None:
    params: dict[str, Scalar] = {"sequence": 8192, "shape": "llama3-8b"}
    fill = cell(host="k0", probe="prefill", params=params, devices=["GPU-0"])
    begin(store, fill, hosts=fleet(1))
    both = (
        reading(30_000.0, metric="tokens_per_second", spread=0.2),
        reading(600.0, metric="power_watts", spread=0.2),
    )
    store.put_run(run(fill, *both))
    add_price(store, price("power_kwh", 0.3, watts=5000.0, currency="EUR"))
    (row,) = answer(store, "energy")
    ends = [row[f"tokens_per_joule{end}"] for end in ("", "_lo", "_hi")]
    assert ends == pytest.approx([50.0, 50 * 0.8 / 1.2, 50 * 1.2 / 0.8])
    assert row["currency"] == "EUR"
    # 1e6 tokens / 50 per J = 20 kJ = 1/180 kWh
    assert row["amount_per_million_tokens"] == pytest.approx(0.3 / 180)


def test_a_sweep_has_its_cost(store: Store) -> None:
    cells = [cell(host="k0", devices=["GPU-0", "GPU-1"], process_no=n) for n in range(3)]
    sweep = begin(store, *cells, hosts=fleet(1))
    for planned in cells[:2]:
        store.put_run(run(planned, reading(1.0)))
    add_price(store, price(amount=36.0))
    (row,) = answer(store, "sweep-cost")
    assert (row["sweep"], row["n_cells"], row["n_measured"], row["n"]) == (sweep, 3, 2, 2)
    assert (row["run_seconds"], row["gpu_hours"]) == (2.5, pytest.approx(5 / 3600))
    assert row["amount"] == pytest.approx(2.5 / 3600 * 36)


def test_gpus_that_are_farther_apart_have_a_price_of_their_own(store: Store) -> None:
    made = host("k0", gpus=4, labels={"sku": "h200-sxm8"})
    far = {"gpu:0", "gpu:2"}
    paths = tuple(
        dataclasses.replace(p, smi=PathClass.SYS) if {p.a, p.b} == far else p
        for p in made.topology.paths
    )
    made = dataclasses.replace(made, topology=dataclasses.replace(made.topology, paths=paths))
    params: dict[str, Scalar] = {"bytes": 1 << 27, "dtype": "float32", "ranks": 2}
    pairs = [
        cell(host="k0", probe="all_reduce", params=params, ranks=2, devices=["GPU-0", f"GPU-{n}"])
        for n in (1, 2)
    ]
    begin(store, *pairs, hosts=[made])
    for planned, speed in zip(pairs, (300e9, 20e9), strict=True):
        store.put_run(run(planned, reading(speed, metric=BUSBW)))
    add_price(store, price(amount=28.8))
    found = answer(store, "price-all-reduce")
    assert [(r["path_class"], r["busbw_bytes_per_second"]) for r in found] == [
        ("NV18", 300e9),
        ("SYS", 20e9),
    ]


def test_hosts_that_measured_together_are_priced_and_counted_each(store: Store) -> None:
    """
    Six pairs, one more that shares hosts with them, one of two SKUs, and one that was skipped.

    Pairs that share hosts are no six: what they give has no interval. Two SKUs have no one price.
    """
    other = host("x", name="x", gpus=8, labels={"sku": "other"})
    pairs = [(f"k{n}", f"k{n + 1}") for n in range(0, 12, 2)]
    made = [_together(pair) for pair in (*pairs, ("k0", "x"))]
    absent = _together(("k1", "x"), Status.SKIPPED)
    sweep = begin(store, *made, absent, hosts=[*fleet(12), other])
    for n, planned in enumerate(made):
        store.put_run(run(planned, reading((n + 1) * 1e9, metric=BUSBW)))
    for sku, amount in (("h200-sxm8", 36.0), ("other", 72.0)):
        add_price(store, dataclasses.replace(price(amount=amount), sku=sku))
    (row,) = answer(store, "price-all-reduce")
    assert (row["n_hosts"], row["n_groups"], row["n_measured_hosts"]) == (2, 6, 12)
    per = [row[f"hour_amount_per_gbps{end}"] for end in ("", "_lo", "_hi")]
    assert per == pytest.approx([72 / 3.5, 72 / 6, 72 / 1])
    costs = {r["sku"]: r for r in answer(store, "sweep-cost")}
    counted = ("n_hosts", "n_cells", "n_measured", "n_skipped", "n", "run_seconds")
    assert [costs["h200-sxm8"][k] for k in counted] == [12, 8, 7, 1, 7, 7 * 1.25]
    assert [costs["other"][k] for k in counted] == [1, 0, 0, 0, 0, 0.0]
    hours = {sku: cost["host_hours"] * 3600 for sku, cost in costs.items()}
    assert hours == pytest.approx({"h200-sxm8": 13 * 1.25, "other": 1.25})
    assert costs["other"]["amount"] == pytest.approx(72 * 1.25 / 3600)
    (left,) = answer(store, "skipped", sweep=sweep)
    assert (left["n_cells"], left["n_hosts"]) == (1, 2)
    shared = _together(("k0", "k2"))
    begin(store, shared, hosts=fleet(3))
    store.put_run(run(shared, reading(7e9, metric=BUSBW)))
    (row,) = answer(store, "price-all-reduce")
    assert (row["n_groups"], row["n_measured_hosts"], row["ci_level"]) == (7, 12, None)


def _together(pair: tuple[str, str], status: Status = Status.PLANNED) -> Cell:
    params: dict[str, Scalar] = {"bytes": 128 << 20, "dtype": "float32", "backend": "gloo"}
    reason = Reason(ReasonCode.UNREACHABLE, "no way") if status is Status.SKIPPED else None
    made = cell(
        host=pair[0], probe="all_reduce", params=params, ranks=2, status=status, reason=reason
    )
    return dataclasses.replace(made, hosts=pair)


def test_the_commands_speak_json_and_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with Store.open("sqlite:///topobench.db") as store:
        begin(store, hosts=fleet(1))
    add = ["price", "add", "h200", "cloud_hour", "24.5", "USD", "--from", "2026-11-01"]
    assert cli.main([*add, "--zone", "Europe/Berlin", "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    check(document, "price-add")
    assert document["data"]["price"]["valid_from"] == "2026-10-31T23:00:00.000000Z"
    assert cli.main([*add, "--zone", "Mars"]) == 2
    assert "no IANA time zone" in capsys.readouterr().err
    for flags in ([], ["--skus"]):
        assert cli.main(["price", "list", *flags, "--format", "json"]) == 0
        document = json.loads(capsys.readouterr().out)
        check(document, "price-list")
        assert len(document["data"]["skus" if flags else "prices"]) == 1
        assert cli.main(["price", "list", *flags]) == 0
        assert "h200-sxm8" in capsys.readouterr().out
    shutil.rmtree(tmp_path, ignore_errors=True)
