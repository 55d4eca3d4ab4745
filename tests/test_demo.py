"""The synthetic fleet: what is planted is found in it, and nobody takes it for a measurement."""

from __future__ import annotations

import dataclasses
import datetime
import json
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from documents import check
from querying import Fleet as Asked
from storing import begin, new_id
from topobench import cli, stats
from topobench.db.readonly import run_sql
from topobench.db.store import Store
from topobench.demo import noise
from topobench.demo.effects import EXAMPLE, Effect, Kind, parse_effects
from topobench.demo.fleet import Fleet, Sweep, last_night, sweeps
from topobench.errors import StoreError, UsageError
from topobench.reading import Cell, Run, to_json

LAST = datetime.date(2026, 11, 29)
NIGHTS = [f"2026-11-{day}" for day in range(25, 30)]
EFFECTS = "slow-host=h03:6%@3,slow-gpu=h02/5:10%,driver=4:-5%,degraded-link=h01/2@5"
SLOW_GPU, NARROW_GPU = "0000:63:00.0", "0000:33:00.0"

Speeds = dict[tuple[Any, ...], float]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a demo of 4 hosts and 5 nights."""
    path = tmp_path_factory.mktemp("demo") / "fleet.db"
    flags = ["--hosts", "4", "--days", "5", "--effects", EFFECTS, "--until", LAST.isoformat()]
    assert cli.main(["demo", *flags, "--store", str(path)]) == 0
    return path


def ask(made: Path, sql: str) -> list[tuple[Any, ...]]:
    return list(run_sql(f"sqlite:///{made}", sql).rows)


def speeds(made: Path, host: str, night: int, where: str = "1 = 1") -> Speeds:
    """What a host did in one night, higher is better, by metric, case, arm and GPUs."""
    rows = ask(
        made,
        f"""
        SELECT m.name, m.unit, pc.probe, pc.params, a.name, ds.n_devices, d.pci_address, u.median
        FROM night_rollup u
        JOIN series s ON s.id = u.series_id
        JOIN host h ON h.id = s.host_id
        JOIN probe_case pc ON pc.id = s.case_id
        JOIN arm a ON a.id = s.arm_id
        JOIN device_set ds ON ds.id = s.device_set_id
        JOIN device_set_member dm ON dm.device_set_id = ds.id AND dm.position = 0
        JOIN device d ON d.id = dm.device_id
        JOIN metric m ON m.id = u.metric_id
        WHERE h.name = '{host}' AND u.day = '{NIGHTS[night - 1]}' AND {where}
        """,
    )
    return {tuple(row[:7]): 1 / row[7] if row[1] == "s" else row[7] for row in rows}


def ratios(a: Speeds, b: Speeds) -> list[float]:
    """Speeds of the same things, one by the other."""
    assert a.keys() == b.keys() != set()
    return [a[key] / b[key] for key in a]


def test_a_slow_host_is_slower_in_everything_from_its_night_on(made: Path) -> None:
    before = ratios(speeds(made, "h03", 2), speeds(made, "h04", 2))
    after = ratios(speeds(made, "h03", 3), speeds(made, "h04", 3))
    assert statistics.median(before) == pytest.approx(1.0, abs=0.005)
    assert statistics.median(after) == pytest.approx(0.94, abs=0.005)
    assert max(after) < 1.0


def test_a_slow_gpu_is_slower_in_what_it_does_alone_and_with_a_peer(made: Path) -> None:
    products = speeds(made, "h02", 1, "pc.probe = 'gemm' AND pc.dtype = 'bf16'")
    slow = {key[6]: value for key, value in products.items()}
    others = statistics.median(v for address, v in slow.items() if address != SLOW_GPU)
    assert len(slow) == 8
    assert slow[SLOW_GPU] / others == pytest.approx(0.9, abs=0.025)
    pairs = speeds(made, "h02", 1, "pc.probe = 'peer'")
    assert min(pairs.values()) / max(pairs.values()) == pytest.approx(0.9, abs=0.03)
    together = "pc.probe = 'all_reduce'"
    whole = ratios(speeds(made, "h02", 1, together), speeds(made, "h04", 1, together))
    assert statistics.median(whole) == pytest.approx(1.0, abs=0.008)


def test_a_driver_changes_copies_of_three_hosts_of_four_and_is_recorded(made: Path) -> None:
    copies, rest = "pc.probe = 'host_to_device'", "pc.probe <> 'host_to_device'"
    for host, expected in (("h02", 0.95), ("h04", 1.0)):
        changed = ratios(speeds(made, host, 4, copies), speeds(made, host, 3, copies))
        assert statistics.median(changed) == pytest.approx(expected, abs=0.006)
        same = ratios(speeds(made, host, 4, rest), speeds(made, host, 3, rest))
        assert statistics.median(same) == pytest.approx(1.0, abs=0.006)
    events = ask(
        made,
        "SELECT h.name, e.at, e.old, e.new FROM change_event e JOIN host h ON h.id = e.host_id "
        "WHERE e.kind = 'driver' ORDER BY h.name",
    )
    at, old, new = f"{NIGHTS[3]}T01:15:00.000000Z", "570.124.06", "570.172.08"
    assert events == [(host, at, old, new) for host in ("h01", "h02", "h03")]
    drivers = ask(
        made,
        "SELECT DISTINCT host, driver FROM v_latest WHERE cluster = 'synthetic-sxm' "
        "AND probe = 'gemm' ORDER BY host",
    )
    assert drivers == [("h01", new), ("h02", new), ("h03", new), ("h04", old)]


def test_a_narrow_link_is_in_the_wiring_and_halves_copies(made: Path) -> None:
    widths = ask(
        made,
        "SELECT t.taken_at, l.width, l.max_width, t.shape FROM topology t "
        "JOIN host h ON h.id = t.host_id JOIN link l ON l.topology_id = t.id "
        f"WHERE h.name = 'h01' AND l.kind = 'pcie' AND l.b = '{NARROW_GPU}' ORDER BY t.taken_at",
    )
    assert [(row[1], row[2]) for row in widths] == [(16, 16), (16, 16), (8, 16)]
    assert widths[2][0][:10] == NIGHTS[4]
    assert len({row[3] for row in widths}) == 1
    own = f"pc.probe = 'host_to_device' AND d.pci_address = '{NARROW_GPU}'"
    assert ratios(speeds(made, "h01", 5, own), speeds(made, "h01", 4, own)) == pytest.approx(
        [0.5, 0.5], abs=0.02
    )
    warned = ask(
        made,
        "SELECT DISTINCT h.name, w.warnings FROM run_detail w JOIN run r ON r.id = w.run_id "
        "JOIN series s ON s.id = r.series_id JOIN host h ON h.id = s.host_id "
        "WHERE w.warnings <> '[]'",
    )
    assert {host for host, _ in warned} == {"h01"}
    assert all("pcie_downtrained" in text and "x8 under load" in text for _, text in warned)


def test_everything_is_marked_synthetic(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for table in ("series", "sweep"):
        assert ask(made, f"SELECT DISTINCT synthetic FROM {table}") == [(1,)]
    clusters = ask(made, "SELECT name FROM cluster ORDER BY name")
    assert clusters == [("synthetic-pcie",), ("synthetic-sxm",)]
    assert ask(made, "SELECT DISTINCT synthetic FROM v_latest") == [(1,)]
    capsys.readouterr()
    assert cli.main(["report", "--store", f"sqlite:///{made}"]) == 0
    header = capsys.readouterr().out.splitlines()[:3]
    assert header[1] == "SYNTHETIC: made up by `topobench demo`, not measured"
    assert "cluster synthetic-sxm" in header[2]


def test_queries_of_prefill_have_rows(made: Path) -> None:
    """Bindings differ by less than one percent, as planted; each precision has its error."""
    with Store.open(f"sqlite:///{made}", read_only=True) as store:
        fleet = Asked(store, "", {})
        bindings = fleet.ask("bindings", metric="prefill_wall_seconds")
        lengths = fleet.ask("prefill-by-length", host="h01")
        precisions = fleet.ask("prefill-by-precision", host="h01")
        knees = fleet.ask("knee")
    assert {r["binding"] for r in bindings} == {"none", "local", "spread"}
    assert all(abs(r["effect_ratio"] or 0) < 0.01 for r in bindings)
    curve = [r["seq_len"] for r in lengths if r["dtype"] == "bf16" and r["arm"] == "local"]
    assert set(curve) >= {128 << n for n in range(9)}
    errors = {r["dtype"]: r["relative_error_ratio"] for r in precisions if r["seq_len"] == 2048}
    assert errors == pytest.approx(
        {"bf16": 0.011, "fp16": 0.0014, "fp8": 0.048, "int8": 0.021}, rel=0.1
    )
    assert {(r["n_none"] > 0, r["attention_from"]) for r in knees} == {(True, 17750)}


def test_slowest_hosts_shows_the_slow_host(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    command = ["query", "slowest-hosts", "--since", "3650d", "--format", "json"]
    assert cli.main([*command, "--param", "limit=10", "--store", f"sqlite:///{made}"]) == 0
    data = json.loads(capsys.readouterr().out)["data"]
    rows = [dict(zip(data["columns"], row, strict=True)) for row in data["rows"]]
    assert {row["host"] for row in rows[:8]} == {"h03"}
    assert {row["synthetic"] for row in rows} == {1}
    assert rows[0]["effect_ratio"] == pytest.approx(-0.06, abs=0.04)


def test_both_skus_have_a_price_from_the_first_night_on(made: Path) -> None:
    rows = ask(made, "SELECT sku, currency, gpu_hour_amount, price_from FROM v_price ORDER BY sku")
    assert [row[:3] for row in rows] == [("h200-sxm8", "USD", 3.5), ("l40s-pcie8", "USD", 0.95)]
    assert all(row[3] < f"{NIGHTS[0]}T01" for row in rows)


def test_rings_differ_where_paths_do(made: Path) -> None:
    gains = dict(
        ask(
            made,
            "SELECT cluster, avg(median) FROM v_latest WHERE ring = 'best' "
            "AND metric = 'busbw_bytes_per_second' GROUP BY cluster",
        )
    )
    worst = dict(
        ask(
            made,
            "SELECT cluster, avg(median) FROM v_latest WHERE ring = 'worst' "
            "AND metric = 'busbw_bytes_per_second' GROUP BY cluster",
        )
    )
    assert gains["synthetic-sxm"] / worst["synthetic-sxm"] == pytest.approx(1.0, abs=0.01)
    assert gains["synthetic-pcie"] / worst["synthetic-pcie"] == pytest.approx(1.06 / 0.71, abs=0.02)


def fleet(*, seed: int = 7, last: datetime.date = LAST) -> Fleet:
    return Fleet(2, 2, seed, parse_effects("slow-host=h01:3%", hosts=2, nights=2), last)


def digits(sweep: Sweep) -> tuple[Any, ...]:
    """What must be equal for the same seed: UUIDs, devices and numbers."""
    return (
        sweep.id,
        [(c.id, c.devices) for c in sweep.cells],
        [(r.id, [(x.metric, x.summary, x.samples) for x in r.readings]) for r in sweep.runs],
    )


def test_the_same_seed_gives_the_same_numbers_and_ids_whatever_the_date() -> None:
    first = [digits(s) for s in sweeps(fleet())]
    later = list(sweeps(fleet(last=LAST + datetime.timedelta(days=10))))
    assert [digits(s) for s in later] == first
    assert later[0].started_at[:10] == "2026-12-08"
    other = [digits(s) for s in sweeps(fleet(seed=8))]
    assert all(a[0] != b[0] and a[2] != b[2] for a, b in zip(first, other, strict=True))


def test_noise_has_the_spread_it_is_given() -> None:
    found = noise.speeds((1, 2), 200, 30, 60, noise.Noise())
    lasting = found.mean(axis=0)
    assert float(np.std(lasting)) == pytest.approx(0.005, rel=0.06)
    assert float(np.std(found - lasting)) == pytest.approx(0.005, rel=0.06)
    night = ((found - lasting) / np.std(found - lasting)).ravel()
    assert float(np.mean(np.abs(night) > 4)) > 5e-4  # normal noise would have 6e-5 there


def test_summaries_are_those_of_real_samples() -> None:
    values = np.random.default_rng(3).normal(1e9, 1e7, (5, noise.SAMPLES))
    for row, summary in zip(values.tolist(), noise.summaries(values), strict=True):
        expected = dataclasses.replace(stats.summarise(row), stop_reason="converged")
        assert to_json(summary) == pytest.approx(to_json(expected))


def test_a_newer_demo_replaces_an_older_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for seed in ("1", "2"):
        assert cli.main(["demo", "--hosts", "1", "--days", "1", "--seed", seed,
                         "--format", "json"]) == 0  # fmt: skip
        document = json.loads(capsys.readouterr().out)
    check(document, "demo")
    assert [p.name for p in tmp_path.iterdir()] == ["topobench-demo.db"]
    with Store.open("sqlite:///topobench-demo.db", read_only=True) as store:
        assert {s["seed"] for s in store.sweeps()} == {2}
        assert store.info()["rows"]["run"] == document["data"]["runs"] == 3 * 71 * 6


def test_a_store_with_measurements_is_refused_and_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "real.db"
    with Store.open(f"sqlite:///{path}") as store:
        begin(store)
    before = path.read_bytes()
    assert cli.main(["demo", "--hosts", "1", "--days", "1", "--store", str(path)]) == 2
    assert "holds 1 sweep that no demo made" in capsys.readouterr().err
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("store", "message"),
    [
        ("topobench.db", "is where measurements go"),
        ("sqlite:///elsewhere.db", "is where measurements go"),
        ("postgresql+psycopg://lab/bench", "a SQLite file of its own"),
        ("notes.txt", "is no store of this topobench"),
    ],
)
def test_other_places_are_refused(
    store: str,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TOPOBENCH_STORE", "sqlite:///elsewhere.db")
    Path("notes.txt").write_text("keep me")
    assert cli.main(["demo", "--hosts", "1", "--days", "1", "--store", store]) == 2
    assert message in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == ["notes.txt"]


def test_effects_are_read_as_written() -> None:
    found = parse_effects(EXAMPLE, hosts=32, nights=60)
    assert found == (
        Effect(Kind.SLOW_HOST, 45, 7, None, 1 - 3 / 100),
        Effect(Kind.SLOW_GPU, 1, 2, 5, 1 - 10 / 100),
        Effect(Kind.DRIVER, 30, None, None, 1 + -2 / 100),
        Effect(Kind.DEGRADED_LINK, 50, 11, 0, 0.5),
    )
    assert parse_effects(None, hosts=32, nights=60) == found
    assert parse_effects("none", hosts=32, nights=60) == ()
    small = parse_effects(None, hosts=4, nights=5)
    assert [e.kind for e in small] == [Kind.SLOW_GPU]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("slow-hosts=h07:3%", "did you mean 'slow-host'?"),
        ("", "is no effect"),
        ("slow-host=h07:3%,", "is no effect"),
        ("slow-host=h07", "the size is missing"),
        ("slow-host=h07:3", "expected slow-host=HOST:PERCENT"),
        ("slow-host=h07:0%", "above 0 %"),
        ("slow-host=h07:95%", "at most 90 %"),
        ("slow-host=h07:1.2.3%", "is no number"),
        ("slow-host=h07/1:3%", "a whole host has no GPU number"),
        ("slow-host=h33:3%", "there are the hosts h01 to h32"),
        ("slow-host=h07:3%@61", "the night must be from 1 to 60"),
        ("slow-gpu=h07:3%", "the GPU is missing"),
        ("slow-gpu=h07/8:3%", "the GPUs 0 to 7"),
        ("degraded-link=h07:50%", "takes no size"),
        ("driver=30:2", "expected driver=NIGHT"),
        ("driver=1:-2%", "the night must be from 2"),
        ("slow-host=h07:3%,slow-host=h07:4%@9", "planted twice"),
        ("driver=2:1%,driver=3:1%,driver=4:1%,driver=5:1%", "at most 3 changes"),
    ],
)
def test_what_is_wrong_with_effects_is_told(text: str, message: str) -> None:
    with pytest.raises(UsageError) as error:
        parse_effects(text, hosts=32, nights=60)
    assert str(error.value).startswith("--effects: ")
    assert message in str(error.value)


def test_the_last_night_is_one_that_is_over() -> None:
    at = datetime.datetime(2026, 11, 29, 1, 30, tzinfo=datetime.UTC)
    assert last_night(None, at) == datetime.date(2026, 11, 28)
    assert last_night(None, at + datetime.timedelta(hours=1)) == LAST
    assert last_night("2026-11-29") == LAST
    with pytest.raises(UsageError, match="--until: 'soon' is no day"):
        last_night("soon")
    with pytest.raises(UsageError, match="is not in the years 2000 to 2999"):
        last_night("0005-01-01")


def test_runs_stored_at_once_are_those_stored_one_by_one(store_url: str) -> None:
    *_, sweep = sweeps(fleet())
    keep = 40
    cells, runs = sweep.cells[:keep], sweep.runs[:keep]
    documents = []
    for number, name in enumerate(("one", "other")):
        own = [dataclasses.replace(c, id=new_id()) for c in cells]
        renamed = [
            dataclasses.replace(r, id=new_id(), cell=c.id) for r, c in zip(runs, own, strict=True)
        ]
        with Store.open(store_url) as store:
            documents.append(stored(store, name, sweep, own, renamed, at_once=bool(number)))
    assert documents[0] == documents[1]


def stored(
    store: Store, name: str, sweep: Sweep, cells: list[Cell], runs: list[Run], *, at_once: bool
) -> list[dict[str, Any]]:
    """The cells of a sweep as they come back, without what must differ."""
    id = begin(store, *cells, cluster=name, hosts=sweep.hosts)
    if at_once:
        store.put_runs(id, runs)
        with pytest.raises(StoreError):
            store.put_runs(id, runs[:1])
    else:
        for run in runs:
            store.put_run(run)
    store.end_sweep(id)
    return [{k: v for k, v in c.items() if k != "id"} for c in store.sweep_document(id)["cells"]]
