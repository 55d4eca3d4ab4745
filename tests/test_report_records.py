"""From cells to the figures that tables show."""

from __future__ import annotations

import pytest

from report_documents import binding, cell, gpu_uuid, host, reading
from topobench.report.records import (
    Basis,
    Places,
    pooled,
    records,
)

NOWHERE = Places({})
RATE = "bandwidth_bytes_per_second"


def rates(*medians: float, **changes: object) -> list[dict[str, object]]:
    return [reading(RATE, m, **changes) for m in medians]


def test_one_process_gives_its_median_and_the_spread_of_its_samples() -> None:
    figure = pooled(rates(50e9, mad=0.5e9, n=24))
    assert (figure.median, figure.n, figure.basis) == (50e9, 24, Basis.SPREAD)
    assert figure.spread == pytest.approx(0.01)


def test_one_sample_has_no_spread() -> None:
    assert pooled(rates(50e9, mad=0.0, n=1)).spread is None


def test_few_processes_give_the_range_of_their_medians() -> None:
    figure = pooled(rates(49e9, 50e9, 52e9))
    assert (figure.median, figure.basis, figure.processes) == (50e9, Basis.RANGE, 3)
    assert figure.spread == pytest.approx(0.03)


def test_six_processes_give_an_interval() -> None:
    """Six medians are the fewest whose extremes enclose the true one at 95 %."""
    figure = pooled(rates(*(i * 1e9 for i in (49, 50, 50, 50, 50, 51))))
    assert (figure.median, figure.basis, figure.processes) == (50e9, Basis.INTERVAL, 6)
    assert figure.spread == pytest.approx(0.02)


def test_a_reading_of_several_nights_keeps_its_own_interval() -> None:
    figure = pooled(rates(50e9, ci_level="between", ci_lo=49e9, ci_hi=51e9))
    assert figure.basis is Basis.INTERVAL
    assert figure.spread == pytest.approx(0.02)


def test_the_parts_of_gpus_stand_beside_their_sum() -> None:
    keys = [gpu_uuid("gpu01", i) for i in range(2)]
    parts = [
        reading(RATE, v, point={"rank": i, "device": keys[i]}) for i, v in enumerate((3e9, 1e9))
    ]
    made = cell("p", [*rates(4e9), *parts], devices=keys, ranks=2)
    places = Places.of([host(gpus=2)])
    (whole,) = records([made], places)
    assert (whole.dimensions["on"], whole.figure.median) == ("GPU 0-1", 4e9)
    found = {r.dimensions["on"]: r.figure.median for r in records([made], places, each_gpu=True)}
    assert found == {"GPU 0": 3e9, "GPU 1": 1e9}


def test_the_two_directions_of_a_pair_stay_apart() -> None:
    keys = [gpu_uuid("gpu01", i) for i in range(2)]
    places = Places({"key-gpu01": "gpu01"}, {k: f"GPU {i}" for i, k in enumerate(keys)})
    cells = [cell("peer", rates(v), devices=d) for v, d in ((3e9, keys), (1e9, keys[::-1]))]
    found = {r.dimensions["on"]: r.figure.median for r in records(cells, places)}
    assert found == {"GPU 0>1": 3e9, "GPU 1>0": 1e9}


def test_only_measured_cells_become_figures() -> None:
    bad = [
        cell("p", rates(1e9), status=s, reason="busy: x")
        for s in ("invalid", "failed", "timeout", "aborted", "skipped", "planned")
    ]
    assert records(bad, NOWHERE) == []
    assert (
        len(records([cell("p", rates(1e9)), cell("p", rates(2e9), status="partial")], NOWHERE)) == 1
    )


def test_processes_and_blocks_of_one_case_are_pooled_and_arms_are_not() -> None:
    cells = [
        cell("p", rates(1e9), params={"bytes": 8}, binding=binding(arm), process_no=p, block=p)
        for arm in ("none", "local")
        for p in range(2)
    ]
    found = records(cells, NOWHERE)
    assert [(r.dimensions["arm"], r.figure.processes) for r in found] == [("none", 2), ("local", 2)]


def test_arms_that_differ_in_environment_alone_stay_apart() -> None:
    cells = [cell("p", rates(1e9), env={"NCCL_ALGO": a}) for a in ("ring", "tree")]
    assert [r.dimensions["env"] for r in records(cells, NOWHERE)] == [
        "NCCL_ALGO=ring",
        "NCCL_ALGO=tree",
    ]


def test_readings_of_single_ranks_give_way_to_the_whole() -> None:
    parts = [reading("latency_seconds", s, point={"rank": r}) for r, s in enumerate((8e-6, 9e-6))]
    whole = reading("latency_seconds", 9e-6)
    assert [r.figure.median for r in records([cell("p", [*parts, whole])], NOWHERE)] == [9e-6]
    assert [r.dimensions["rank"] for r in records([cell("p", parts)], NOWHERE)] == [0, 1]


def test_a_numa_matrix_is_known_by_its_bindings() -> None:
    """CPU node by memory node, whatever the arms and parameters are called."""
    cells = [
        cell(
            "p",
            rates(1e9),
            params={"cpu_node": c, "memory_node": m},
            binding=binding(f"cpu{c}-mem{m}", c, m),
        )
        for c in (0, 1)
        for m in (0, 1)
    ]
    found = [r.dimensions for r in records(cells, NOWHERE)]
    assert found[1] == {"ranks": 1, "CPU node": 0, "memory node": "mem 1"}


def test_gpus_are_called_by_their_index_where_it_is_known() -> None:
    places = Places.of([host("a", gpus=3)])
    keys = [gpu_uuid("a", i) for i in range(3)]
    assert places.devices(keys[1:2]) == "GPU 1"
    assert places.devices(keys) == "GPU 0-2"
    assert places.devices(["GPU-1234567890"]) == "GPU-12345678"
    assert places.devices([]) == ""


def test_a_place_names_its_host_only_among_several() -> None:
    where = cell("p", host="key-a", devices=[gpu_uuid("a", 0)])
    assert Places.of([host("a", gpus=1)]).unit(where) == "GPU 0"
    assert Places.of([host("a", gpus=1), host("b")]).unit(where) == "a:GPU0"


def test_different_hardware_is_never_pooled() -> None:
    """The median over an H200 and a CPU host would mean nothing."""
    places = Places.of([host("a", gpus=1), host("b"), host("c", sku="as ordered")])
    found = [
        r.dimensions["hardware"]
        for r in records([cell("p", rates(1e9), host=f"key-{n}") for n in "abc"], places)
    ]
    assert found == ["1x H200 / 2x Xeon Platinum 8480C", "1x EPYC 7B13", "as ordered"]
    assert Places.of([host("a"), host("b")]).hardware == {}
