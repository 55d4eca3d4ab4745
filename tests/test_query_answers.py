"""Named queries against known answers, on every engine: one made fleet for all of them."""

from __future__ import annotations

import itertools
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from made_fleet import (
    BUSBW,
    DAY,
    HOSTS,
    MIB,
    NEW,
    OLD,
    RINGS,
    WALL,
    copy_speed,
    launch_seconds,
)
from querying import Fleet, Rows, pick
from storing import begin, cell, host, reading, run
from topobench.db import look, queries, schema
from topobench.db.engine import writing
from topobench.db.store import Store
from topobench.effects import benches, compared
from topobench.reading import Arm, Binding, Scalar

COPIES = {key: copy_speed(key, 3) for key in HOSTS}
LARGE = '{"bytes":67108864,"direction":"h2d","memory":"pinned"}'
PEER_MEDIAN = statistics.median(COPIES.values())
PEER_MAD = statistics.median(abs(v - PEER_MEDIAN) for v in COPIES.values())
IN_ORDER = sorted(COPIES.values())


def large_local(rows: Rows) -> Rows:
    """The rows of local copies of 64 MiB."""
    return [r for r in rows if r["params"] == LARGE and r["arm"] == "local"]


def near(value: float) -> Any:
    return pytest.approx(value, rel=1e-9)


def test_below_peers_names_the_planted_hosts_and_no_other(fleet: Fleet) -> None:
    rows = fleet.ask("below-peers")
    assert {(r["probe"], r["host"]) for r in rows} == {
        ("host_to_device", "h12"),
        ("peer", "h02"),
        ("kernel_launch", "h11"),
        ("kernel_launch", "h12"),
    }
    (row,) = large_local(rows)
    assert row["peer_median"] == near(PEER_MEDIAN)
    assert row["peer_mad"] == near(PEER_MAD)
    assert (row["n_peers"], row["n_peer_hosts"], row["n"]) == (12, 12, 1)
    assert row["effect_ratio"] == near(40e9 / PEER_MEDIAN - 1)
    assert row["z"] == near((40e9 - PEER_MEDIAN) / (1.4826 * PEER_MAD))
    assert row["age_seconds"] == DAY
    assert fleet.ask("below-peers", min_peers="25") == []


def test_the_spread_of_peers_has_a_floor(fleet: Fleet) -> None:
    """Peers that agree to 0.3 % give no score of 68 for half a percent of the median."""
    (row, _) = [r for r in fleet.ask("below-peers") if r["probe"] == "peer"]
    assert row["peer_mad"] < 0.005 * row["peer_median"]
    assert row["z"] == near(
        (row["median"] - row["peer_median"]) / (1.4826 * 0.005 * row["peer_median"])
    )


def test_stragglers_tell_the_speed_of_a_job_on_all_hosts(fleet: Fleet) -> None:
    (row,) = large_local(fleet.ask("stragglers"))
    assert (row["slowest"], row["n_hosts"], row["n"]) == ("h12", 12, 12)
    assert row["job_speed_ratio"] == near(40e9 / PEER_MEDIAN)
    assert row["without_slowest_ratio"] == near(IN_ORDER[1] / PEER_MEDIAN)
    assert (row["ci_lo"], row["ci_hi"], row["ci_level"]) == (
        near(IN_ORDER[2]),
        near(IN_ORDER[9]),
        "between",
    )
    (launch,) = [r for r in fleet.ask("stragglers") if r["probe"] == "kernel_launch"]
    middle = statistics.median(launch_seconds(k) for k in HOSTS)
    assert launch["job_speed_ratio"] == near(middle / launch_seconds("h12"))


def test_leaving_out_the_slowest_hosts_buys_speed(fleet: Fleet) -> None:
    rows = large_local(fleet.ask("without-slowest", hosts="2"))
    assert pick(rows, "n_left_out", "last_left_out") == [(1, "h12"), (2, "h01")]
    assert rows[0]["gain_ratio"] == near(IN_ORDER[1] / 40e9 - 1)
    assert rows[0]["left_speed"] == near(11 * IN_ORDER[1] / PEER_MEDIAN)
    assert rows[1]["gain_ratio"] == near(IN_ORDER[2] / 40e9 - 1)


def test_changes_are_listed_and_those_without_a_reason_alone(fleet: Fleet) -> None:
    rows = fleet.ask("changes")
    assert sorted(pick(rows, "host", "what", "kind", "old", "new", "n_recorded"), key=str) == [
        ("h01", "recorded", "driver", OLD, NEW, None),
        ("h01", "result", None, None, None, 1),
        ("h12", "result", None, None, None, 0),
    ]
    assert {r["age_seconds"] for r in rows} == {DAY}
    (row,) = fleet.ask("unexplained")
    assert (row["host"], row["effect_ratio"], row["n"]) == ("h12", -0.03, 1)
    assert fleet.ask("unexplained", min_effect="0.05") == []
    assert fleet.ask("changes", since="2026-11-03T02:00:00Z") == []


def test_links_that_lost_lanes_are_named(fleet: Fleet) -> None:
    rows = fleet.ask("degraded-links")
    columns = ("host", "device_uuid", "lacks", "width", "max_width", "n")
    assert pick(rows, *columns) == [
        ("h03", "h03-GPU-0", "width", 8, 16, 2),
        ("h03", "h03-GPU-1", "width", 8, 16, 2),
    ]


def test_efficiency_is_the_share_of_the_pcie_link(fleet: Fleet) -> None:
    rows = {r["arm"]: r for r in fleet.ask("efficiency", probe="host_to_device")}
    assert rows["local"]["of_ceiling_ratio"] == near(PEER_MEDIAN / 6.3e10)
    assert rows["local"]["ci_lo"] == near(IN_ORDER[2] / 6.3e10)
    assert pick([rows["local"]], "n_hosts", "n_series", "n") == [(12, 12, 12)]
    assert rows["remote"]["of_ceiling_ratio"] == near(0.8 * PEER_MEDIAN / 6.3e10)
    (rings,) = [r for r in fleet.ask("efficiency", probe="all_reduce") if r["arm"] == "none/best"]
    assert rings["of_ceiling_ratio"] == near(99e9 / 4.78e11)


def test_ring_gain_is_paired_by_block_and_held_against_what_could_be_seen(fleet: Fleet) -> None:
    rows = {(r["ring"], r["reference_ring"]): r for r in fleet.ask("ring-gain", tolerance="0.01")}
    assert set(rows) == {("best", "auto"), ("best", "auto_ring"), ("auto_ring", "auto")}
    row = rows["best", "auto_ring"]
    gains = [b / a - 1 for b, a in zip(RINGS["best"], RINGS["auto_ring"], strict=True)]
    assert (row["metric"], row["n_pairs"], row["ci_level"]) == (BUSBW, 6, "between")
    assert row["gain_ratio"] == near(statistics.median(gains))
    assert (row["gain_lo"], row["gain_hi"]) == (near(min(gains)), near(max(gains)))
    assert row["mde_ratio"] == near(1.65 * (max(gains) - min(gains)) / 2)
    assert (row["median"], row["ci_lo"], row["ci_hi"]) == (99e9, 98e9, 101e9)
    assert (row["above_mde"], row["verdict"]) == (1, "improved")
    against_auto = rows["best", "auto"]
    assert (against_auto["above_mde"], against_auto["verdict"]) == (0, "inconclusive")
    assert rows["auto_ring", "auto"]["verdict"] == "regressed"
    wide = fleet.ask("ring-gain", reference="auto")
    assert pick(wide, "ring", "verdict") == [("best", "equivalent"), ("auto_ring", "regressed")]


def test_hop_classes_show_small_latencies_and_large_bandwidths(fleet: Fleet) -> None:
    rows = fleet.ask("hop-classes")
    columns = ("hop_class", "path_class", "probe", "arm", "bytes", "unit", "n_series", "n_hosts")
    assert sorted(pick(rows, *columns)) == [
        ("nvlink", "NV18", "all_reduce", "none", 8192, "s", 1, 1),
        ("nvlink", "NV18", "all_reduce", "none/auto", 128 * MIB, "B/s", 1, 1),
        ("nvlink", "NV18", "all_reduce", "none/auto_ring", 128 * MIB, "B/s", 1, 1),
        ("nvlink", "NV18", "all_reduce", "none/best", 128 * MIB, "B/s", 1, 1),
        ("nvlink", "NV18", "peer", "none", 128 * MIB, "B/s", 24, 12),
    ]
    (peers,) = [r for r in rows if r["probe"] == "peer"]
    (alone,) = [r for r in rows if r["unit"] == "s"]
    assert (peers["ci_level"], alone["ci_level"], alone["median"]) == ("between", None, 1e-5)
    assert peers["lowest"] < 0.6 * peers["ci_lo"] < peers["ci_hi"]


def test_the_smallest_chunk_near_the_peak(fleet: Fleet) -> None:
    columns = ("arm", "bytes", "ci_lo_bytes", "ci_hi_bytes", "n_series", "n_sizes", "n")
    assert pick(fleet.ask("chunk-at-peak"), *columns) == [
        ("local", 64 * MIB, 64 * MIB, 64 * MIB, 12, 2, 24),
        ("remote", 64 * MIB, 64 * MIB, 64 * MIB, 12, 1, 12),
    ]
    rows = fleet.ask("chunk-at-peak", of_peak="0.5")
    assert pick(rows, "arm", "bytes") == [("local", MIB), ("remote", 64 * MIB)]
    assert rows[0]["median"] == near(PEER_MEDIAN)


def test_a_load_is_held_against_its_slower_stage(fleet: Fleet) -> None:
    (row,) = fleet.ask("load-time")
    assert (row["stage"], row["near"], row["median"]) == ("storage", 0, 0.6)
    assert row["t_min_seconds"] == near(0.5)
    assert row["over_ratio"] == near(0.2)
    assert pick(fleet.ask("load-time", tolerance="0.2"), "near") == [(1,)]


def test_knees_count_those_who_have_none(fleet: Fleet) -> None:
    (row,) = fleet.ask("knee", subject="prefill llama3-8b bf16")
    assert (row["n"], row["n_none"], row["knee"]) == (1, 1, 4096.0)
    assert (row["ci_lo"], row["ci_hi"], row["ci_level"]) == (2048.0, 8192.0, "within")


def test_bindings_stand_side_by_side_with_mean_and_spread(fleet: Fleet) -> None:
    rows = {r["binding"]: r for r in fleet.ask("bindings", metric="prefill_wall_seconds")}
    assert set(rows) == set(WALL)
    for binding, row in rows.items():
        seconds = WALL[binding]
        assert (row["n_processes"], row["n"], row["ci_level"]) == (6, 6, "between")
        assert row["mean"] == near(statistics.fmean(seconds))
        assert row["median"] == near(statistics.median(seconds))
        assert (row["ci_lo"], row["ci_hi"]) == (near(min(seconds)), near(max(seconds)))
        assert row["std"] == near(statistics.stdev(seconds))
    free = statistics.variance(WALL["none"])
    assert rows["spread"]["variance_ratio"] == near(statistics.variance(WALL["spread"]) / free)
    assert (rows["none"]["variance_ratio"], rows["none"]["effect_ratio"]) == (None, None)
    assert rows["local"]["effect_ratio"] == near(1 - 0.0985 / 0.100)
    assert rows["spread"]["effect_ratio"] < 0


def test_one_process_has_no_spread(fleet: Fleet) -> None:
    rows = fleet.ask("bindings", probe="host_to_device", host="h05")
    assert [r["binding"] for r in rows] == ["local", "remote"]
    for row in rows:
        assert (row["n_processes"], row["mean"]) == (1, row["median"])
        assert (row["std"], row["variance_ratio"], row["ci_level"]) == (None, None, "within")


def test_prefill_by_length_follows_one_curve(fleet: Fleet) -> None:
    """Another way of running is another curve, as the older prompt of 8192 tokens is."""
    rows = fleet.ask("prefill-by-length", model="llama3-8b")
    columns = ("dtype", "seq_len", "tokens_per_second", "of_best_ratio")
    assert pick(rows, *columns) == [
        ("bf16", 512, 9_000.0, near(9 / 25)),
        ("bf16", 2048, 24_000.0, near(24 / 25)),
        ("bf16", 4096, 25_000.0, 1.0),
        ("bf16", 8192, 20_000.0, 1.0),
        ("fp8", 2048, 36_000.0, 1.0),
    ]
    assert rows[0]["device_seconds"] == near(512 / 9000)
    assert (rows[0]["tokens_per_second_ci_lo"], rows[0]["ci_level"]) == (near(8910.0), "within")


def test_steps_are_told_by_context_batch_and_cache_with_what_bounds_them(fleet: Fleet) -> None:
    """One sequence of a narrow cache has no partner at its batch; it is held against nothing."""
    rows = fleet.ask("decode")
    columns = ("kv_dtype", "batch", "seq_len", "tpot_seconds", "speed_ratio", "bound_by")
    assert sorted(pick(rows, *columns), key=str) == sorted(
        [
            ("bf16", 1, 2048, 0.004, 1.0, "memory"),
            ("bf16", 32, 8192, 0.012, 1.0, "memory"),
            ("fp8", 32, 8192, 0.009, near(12 / 9), "neither"),
            ("fp8", 1, 128, 0.005, None, "neither"),
            ("int8", 128, 2048, 0.02, None, "arithmetic"),
        ],
        key=str,
    )
    (narrow,) = [r for r in rows if (r["kv_dtype"], r["batch"]) == ("fp8", 32)]
    assert (narrow["tokens_per_second"], narrow["of_memory_ratio"]) == (near(32 / 0.009), 0.45)
    assert narrow["tpot_seconds_ci_lo"] < 0.009 < narrow["tpot_seconds_ci_hi"]
    against = fleet.ask("decode", reference="fp8")
    wide = [r["speed_ratio"] for r in against if r["kv_dtype"] == "bf16"]
    assert sorted(wide, key=str) == [near(9 / 12), None]


def test_precisions_stand_beside_what_they_get_wrong(fleet: Fleet) -> None:
    rows = {
        (r["seq_len"], r["dtype"]): r for r in fleet.ask("prefill-by-precision", model="llama3-8b")
    }
    quick = rows[2048, "fp8"]
    assert (quick["speed_ratio"], quick["relative_error_ratio"]) == (near(1.5), 0.05)
    assert (rows[2048, "bf16"]["speed_ratio"], rows[2048, "bf16"]["relative_error_ratio"]) == (
        1.0,
        0.004,
    )
    against = fleet.ask("prefill-by-precision", model="llama3-8b", reference="fp8")
    assert sorted(pick(against, "seq_len", "dtype", "speed_ratio"), key=str) == [
        (2048, "bf16", near(24 / 36)),
        (2048, "fp8", 1.0),
        (4096, "bf16", None),
        (512, "bf16", None),
        (8192, "bf16", None),
    ]


def test_the_largest_load_needs_three_good_windows_in_a_row(fleet: Fleet) -> None:
    """Eight in flight: one window failed, then three held; sixteen never held three."""
    (row,) = fleet.ask("slo")
    assert (row["concurrency"], row["first_over"]) == (8.0, 16.0)
    assert (row["n_windows"], row["n"], row["n_over"]) == (4, 1600, 15)
    assert row["p99_seconds"] == near(0.29)
    (four,) = fleet.ask("slo", windows="4")
    assert (four["concurrency"], four["first_over"]) == (4.0, 8.0)
    (never,) = fleet.ask("slo", windows="5")
    assert (never["concurrency"], never["first_over"]) == (None, 8.0)  # four broke no limit


def test_acceptance_compares_a_batch_with_the_sample(fleet: Fleet) -> None:
    rows = fleet.ask("acceptance")
    (row,) = large_local(rows)
    bid, batch = sorted(COPIES[k] for k in HOSTS[:6]), sorted(COPIES[k] for k in HOSTS[6:])
    assert (row["batch"], row["n_hosts"], row["reference_n_hosts"]) == ("b1", 6, 6)
    assert row["effect_ratio"] == near(statistics.median(batch) / statistics.median(bid) - 1)
    assert row["effect_lo"] == near(batch[0] / bid[-1] - 1)
    assert row["effect_hi"] == near(batch[-1] / bid[0] - 1)
    assert row["verdict"] == "inconclusive"
    assert {r["probe"]: r["verdict"] for r in rows}["peer"] == "not worse"
    (swapped,) = large_local(fleet.ask("acceptance", batch="bid", reference="b1", margin="0.3"))
    assert (swapped["batch"], swapped["verdict"]) == ("bid", "not worse")
    (bound,) = large_local(fleet.ask("acceptance", margin="0.0001"))
    assert bound["verdict"] == "inconclusive"


def test_variance_is_split_by_rack_leaf_and_batch(fleet: Fleet) -> None:
    rows = [r for r in fleet.ask("variance") if r["probe"] == "kernel_launch"]
    assert [r["label"] for r in rows] == ["rack", "batch", "leaf"]
    values = {k: launch_seconds(k) for k in HOSTS}
    racks = [[values[k] for k in HOSTS[n : n + 4]] for n in (0, 4, 8)]
    mean = statistics.fmean(values.values())
    total = sum((v - mean) ** 2 for v in values.values())
    between = sum(4 * (statistics.fmean(r) - mean) ** 2 for r in racks)
    assert rows[0]["explained_ratio"] == near((between - 2 * (total - between) / 9) / total)
    assert (rows[0]["worst"], rows[0]["n_labels"], rows[0]["n_hosts"]) == ("r2", 3, 12)
    assert rows[0]["worst_ratio"] == near(1 - statistics.fmean(racks[2]) / mean)


def test_a_pair_slow_from_both_sides_is_named_once(fleet: Fleet) -> None:
    (row,) = fleet.ask("slow-pairs")
    assert (row["host"], row["a"], row["b"]) == ("h02", "h02-GPU-0", "h02-GPU-1")
    assert (row["a_slow_pairs"], row["b_slow_pairs"]) == (1, 1)
    assert row["effect_ratio"] == near(row["median"] / row["peer_median"] - 1)
    assert fleet.ask("slow-pairs", min_effect="0.6") == []


def test_coverage_tells_the_share_that_is_not_due(fleet: Fleet) -> None:
    rows = fleet.ask("coverage", since="2026-11-03")
    assert {(r["n"], r["covered_ratio"], r["due"]) for r in rows} == {(12, 1.0, 0)}
    late = fleet.ask("coverage", since="2026-11-03T02:00:00Z")
    assert {(r["n"], r["covered_ratio"], r["due"]) for r in late} == {(12, 0.0, 1)}


def test_false_alarms_are_told_from_repairs(fleet: Fleet) -> None:
    rows = {r["host"]: r for r in fleet.ask("false-alarms")}
    assert (rows["h01"]["outcome"], rows["h01"]["n_changes"]) == ("repaired", 1)
    assert (rows["h12"]["outcome"], rows["h12"]["n_changes"]) == ("false alarm", 0)
    assert rows["h12"]["note"] == "cable looked at, nothing found"
    assert {(r["n"], r["false_alarm_ratio"]) for r in rows.values()} == {(2, 0.5)}


def test_slow_launches_are_put_down_to_the_governor(fleet: Fleet) -> None:
    rows = {(r["setting"], r["value"]): r for r in fleet.ask("launch-settings")}
    slow, quick = rows["governor", "powersave"], rows["governor", "performance"]
    assert (slow["n_outliers"], slow["n_hosts"], slow["n"]) == (2, 2, 2)
    assert (quick["n_outliers"], quick["n_hosts"]) == (0, 10)
    middle = statistics.median(launch_seconds(k) for k in HOSTS)
    pair = statistics.fmean(launch_seconds(k) for k in ("h11", "h12"))
    assert slow["effect_ratio"] == near(1 - pair / middle)
    assert rows["boost", "on"]["effect_ratio"] == near(0.0)


def test_a_driver_is_held_against_hosts_that_kept_theirs(fleet: Fleet) -> None:
    rows = fleet.ask("driver-effect")
    assert len(rows) == 3
    for row in rows:
        assert (row["driver"], row["n_changed_hosts"], row["n_kept_hosts"]) == (NEW, 6, 6)
        assert row["changed_ratio"] == near(-0.03)
        assert (row["kept_ratio"], row["net_ratio"]) == (0.0, near(-0.03))
        assert (row["ci_lo"], row["ci_level"]) == (near(-0.03), "between")
    assert fleet.ask("driver-effect", driver="999%") == []


def test_the_numa_tax_of_a_cluster_is_the_median_of_its_hosts(fleet: Fleet) -> None:
    (row,) = fleet.ask("numa-tax-by-cluster", probe="host_to_device")
    assert (row["binding"], row["n_hosts"], row["n"]) == ("remote", 12, 24)
    assert (row["tax_ratio"], row["ci_lo"], row["ci_hi"]) == (near(0.2), near(0.2), near(0.2))
    assert row["loss"] == near(0.2 * PEER_MEDIAN)
    taxes = fleet.ask("numa-tax", host="h05")
    assert pick(taxes, "n_pairs", "ci_level", "local_n", "n") == [(1, "within", 1, 1)]
    assert taxes[0]["tax_lo"] == near(1 - 0.8 * 1.01 / 0.99)
    assert taxes[0]["tax_hi"] == near(1 - 0.8 * 0.99 / 1.01)
    assert taxes[0]["mde_ratio"] is None


def test_peers_are_of_one_source_and_of_one_month(store_url: str) -> None:
    """A host measured long ago, an import and a demo say nothing about today's hosts."""
    with Store.open(store_url) as store:
        for key, speed, started, more in (
            ("old", 1.0, "2024-11-02T01:00:00.000000Z", {}),
            ("a", 4.0, "2024-12-20T01:00:00.000000Z", {}),
            ("b", 6.0, "2024-12-21T01:00:00.000000Z", {}),
            ("c", 99.0, "2024-12-21T01:00:00.000000Z", {"synthetic": True}),
            ("d", 99.0, "2024-12-21T01:00:00.000000Z", {"source": "import:nvbandwidth"}),
        ):
            planned = cell(host=key)
            begin(store, planned, hosts=[host(key, health=key)], started_at=started, **more)
            store.put_run(replace(run(planned, reading(speed)), started_at=started))
        with store.engine.connect() as connection:
            rows = connection.execute(
                sa.text("SELECT host, n_peers, peer_median, effect_ratio FROM v_peer ORDER BY host")
            ).all()
            jobs = connection.execute(
                sa.text("SELECT host, place, speed_ratio FROM v_straggler ORDER BY host")
            ).all()
    assert [tuple(r) for r in rows] == [
        ("a", 2, 5.0, near(-0.2)),
        ("b", 2, 5.0, near(0.2)),
        ("c", 1, 99.0, 0.0),
        ("d", 1, 99.0, 0.0),
    ]
    assert [tuple(r) for r in jobs] == [
        ("a", 1, near(0.8)),
        ("b", 2, near(1.2)),
        ("c", 1, 1.0),
        ("d", 1, 1.0),
    ]


@pytest.mark.parametrize(
    ("at", "source", "counted"),
    [
        ("2026-11-02T01:00:00.000000Z", "auto", 0),
        ("2026-11-02T12:00:00.000000Z", "human", 1),
        ("2026-11-03T01:00:00.000000Z", "auto", 1),
        ("2026-11-04T01:00:00.000000Z", "auto", 0),
    ],
)
def test_a_change_explains_a_result_only_if_it_came_in_between(
    tmp_path: Path, at: str, source: str, counted: int
) -> None:
    """The last night of the old level was the 2nd, the first of the new one the 3rd."""
    with Store.open(f"sqlite:///{tmp_path}/x.db") as store:
        planned = cell()
        begin(store, planned)
        store.put_run(run(planned, reading(1.0)))
        days = {"at_lo": "2026-11-02T00:00:00.000000Z", "at_hi": "2026-11-03T00:00:00.000000Z"}
        point = {"series_id": 1, "metric_id": 1, "effect_ratio": -0.1, "method": "steps", **days}
        event = {"host_id": 1, "at": at, "kind": "driver", "key": "host", "source": source}
        with writing(store.engine) as connection:
            connection.execute(schema.changepoint.insert(), [point])
            connection.execute(schema.change_event.insert(), [event])
            text = "SELECT n_recorded FROM v_changes WHERE what = 'result'"
            assert connection.execute(sa.text(text)).scalar() == counted


def test_what_hosts_measured_together_is_no_host_s_own(tmp_path: Path) -> None:
    """Three pairs, each under the name of its first host: a slow one blames nobody by itself."""
    keys = ("a", "b", "c", "d")
    with Store.open(f"sqlite:///{tmp_path}/t.db") as store:
        for number, key in enumerate(keys[:3]):
            pair = (key, keys[number + 1])
            planned = replace(cell(host=key, probe="host_network", ranks=2), hosts=pair)
            begin(store, planned, hosts=[batched(k) for k in pair])
            store.put_run(run(planned, reading(1e9 if key == "c" else 5e9)))
        with store.engine.connect() as connection:
            latest = connection.execute(sa.text("SELECT DISTINCT host, n_hosts FROM v_latest"))
            assert sorted(map(tuple, latest)) == [("a", 2), ("b", 2), ("c", 2)]
            for view in ("v_peer", "v_straggler"):
                assert connection.execute(sa.text(f"SELECT * FROM {view}")).all() == []
        measured = {h["key"] for h in look.fleet(store) if h["measured_unix_seconds"]}
        covered = queries.run_query(store, "coverage", {"since": "2026-01-01"})
        at = covered.columns.index("n_series_measured")
        assert measured == set(keys), "the last of them was so only as a second host"
        assert sorted(row[at] for row in covered.rows) == [1, 1, 2, 2]
        for query in ("acceptance", "slowest-hosts", "driver-effect"):
            asked = {"since": "2026-01-01", "probe": "%", "min_hosts": "1", "metric": "%"}
            known = {p.name for p in queries.load(query).parameters}
            given = {k: v for k, v in asked.items() if k in known}
            assert queries.run_query(store, query, given).rows == (), query


def batched(key: str) -> Any:
    """A host of the sample that was bid, or of what was delivered after it."""
    return host(key, labels={"sku": "x", "batch": "b1" if key in "cd" else "bid"})


def test_pairs_of_hosts_tell_which_end_is_slow(fleet: Fleet) -> None:
    """As it is made, h03 receives at half the speed, whoever sends, and sends as well as any."""
    rows = fleet.ask("host-pairs")
    told = pick(rows, "sender", "receiver", "speed_ratio", "sender_best_ratio")
    assert told[:2] == [("h01", "h03", 0.5, near(1.01)), ("h02", "h03", 0.5, 1.0)]
    assert {r["receiver"]: r["receiver_best_ratio"] for r in rows} == {
        "h01": 1.0,
        "h02": near(1.01),
        "h03": 0.5,
    }
    assert {r["sender"]: r["sender_best_ratio"] for r in rows}["h03"] == near(1.01)
    assert {(r["n_pairs"], r["typical_median"]) for r in rows} == {(6, 3e9)}
    assert len(fleet.ask("host-pairs", host="h02")) == 4


def test_where_both_hosts_send_none_is_slow_for_its_place_in_a_pair(store_url: str) -> None:
    """Host c is first only beside the slow d; beside a and b, where it is second, it is fast."""
    with Store.open(store_url) as store:
        pairs = list(itertools.combinations("abcd", 2))
        params: dict[str, Scalar] = {"bytes": 16 * MIB, "direction": "both", "streams": 4}
        planned = [
            replace(cell(host=p[0], probe="host_network", params=params, ranks=2), hosts=p)
            for p in pairs
        ]
        begin(store, *planned, hosts=[host(key) for key in "abcd"])
        for made in planned:
            store.put_run(run(made, reading(1e9 if "d" in made.hosts else 2e9)))
        found = queries.run_query(store, "host-pairs", {"since": "2026-01-01"})
    rows = [dict(zip(found.columns, row, strict=True)) for row in found.rows]
    best = {(r["sender"], round(r["sender_best_ratio"], 9)) for r in rows}
    best |= {(r["receiver"], round(r["receiver_best_ratio"], 9)) for r in rows}
    assert best == {("a", 1.333333333), ("b", 1.333333333), ("c", 1.333333333), ("d", 0.666666667)}


def test_what_hosts_measured_together_is_found_under_each_of_them(fleet: Fleet) -> None:
    rows = fleet.ask("latest", probe="host_network", host="h03")
    assert sorted(pick(rows, "host", "n_hosts", "hosts")) == [
        ("h01", 2, "h01, h03"),
        ("h01", 2, "h01, h03"),
        ("h02", 2, "h02, h03"),
        ("h02", 2, "h02, h03"),
    ]
    assert {r["hosts"] for r in fleet.ask("latest", probe="kernel_launch")} == {None}
    cells = fleet.ask("sweep-cells", sweep=fleet.sweeps["pairs"], host="h02")
    assert {r["hosts"] for r in cells} == {"h01, h02", "h02, h03"}
    own = {r["host"]: r["n_series_measured"] for r in fleet.ask("coverage")}
    assert own["h03"] == own["h04"] + 4
    network = [r for r in fleet.ask("hop-classes", large="16M") if r["hop_class"] == "network"]
    assert pick(network, "n_series", "n_hosts", "median", "ci_level") == [
        (3, 3, 3e9, None),
        (3, 3, 1.5e9, None),
    ]


def test_views_of_arms_pair_the_workers_that_effects_pairs(store_url: str) -> None:
    """Of eight blocks one is of workers that chose different kernels, which halves the speed."""
    local = Arm(Binding("local"), "auto")
    others = {
        "v_numa_tax": (Arm(Binding("remote"), "auto"), "tax", 0.8),
        "v_ring_gain": (Arm(Binding("local"), "best"), "gain", 1.1),
        "v_env_gain": (Arm(Binding("local"), "auto", env_name="p2p_off"), "gain", 0.9),
    }
    factors = {local.name: 1.0} | {arm.name: factor for arm, _, factor in others.values()}
    planned = [
        replace(cell(process_no=n, devices=["GPU-0"]), arm=arm, block=n)
        for n in range(8)
        for arm in (local, *(arm for arm, _, _ in others.values()))
    ]
    with Store.open(store_url) as store:
        sweep = begin(store, *planned, hosts=[host(gpus=1)])
        for each in planned:
            alone = each.block == 3 and each.arm != local
            chosen = {"attention": "math" if alone else "flash"} if each.block else {}
            speed = factors[each.arm.name] * (1e9 + each.block * 1e8) / (2 if alone else 1)
            store.put_run(run(each, reading(speed), conditions=chosen))
        (bench,) = benches(store.sweep_document(sweep)["cells"])
        with store.engine.connect() as connection:
            for view, (arm, name, factor) in others.items():
                text = f"SELECT n_pairs, {name}_ratio, {name}_lo, {name}_hi FROM {view}"
                (row,) = connection.execute(sa.text(text)).all()
                found = compared(bench, local.name, arm.name)
                assert row[0] == found.n_b == 7, view
                assert (
                    row[1:] == (near(abs(factor - 1)) if name == "tax" else near(factor - 1),) * 3
                )
                assert abs(row[1]) == near(abs(found.effect_ratio)), view
        given = {"probe": "%", "since": "2026-01-01"}
        answer = queries.run_query(store, "bindings", given)
        rows = [dict(zip(answer.columns, row, strict=True)) for row in answer.rows]
        assert sorted(
            (str(r["attention"]), r["n_processes"]) for r in rows if r["binding"] == "remote"
        ) == [("None", 1), ("flash", 6), ("math", 1)]
