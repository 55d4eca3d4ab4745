"""The other collectives in real processes: right data from every rank, nccl-tests' factors."""

from __future__ import annotations

from typing import Any

import pytest

from probing import Listener, measure, run_gang
from topobench.errors import ProbeUnavailable
from topobench.probes.all_reduce import AllReduce
from topobench.probes.collectives import (
    AllGather,
    AllToAll,
    Broadcast,
    ReduceScatter,
    SendRecv,
)
from topobench.probes.gang_probe import GangProbe

KIB, MIB = 1 << 10, 1 << 20
PARTED = [AllGather, ReduceScatter, AllToAll]
PLACED = [AllGather, ReduceScatter]
FACTORS = {AllGather: 2 / 3, ReduceScatter: 2 / 3, AllToAll: 2 / 3, Broadcast: 1.0, SendRecv: 1.0}


@pytest.mark.parametrize("probe", FACTORS, ids=lambda p: p.name)
def test_three_ranks_agree_and_both_bandwidths_follow_from_the_times(
    probe: type[GangProbe],
) -> None:
    """Small and large, in and out of place, in one group; sizes as in nccl-tests."""
    cases: list[dict[str, Any]] = [{"bytes": 24 * KIB, "dtype": "bfloat16"}, {"bytes": 3 * MIB}]
    if probe in PLACED:
        cases += [{**case, "place": "in"} for case in cases]
    results = run_gang(3, cases, probe=probe)
    assert [r.exit_code for r in results] == [0] * 3
    assert all(r.outcomes == [[]] * len(cases) for r in results[1:])
    for case, readings in zip(cases, results[0].outcomes, strict=True):
        assert isinstance(readings, list), readings
        found = {r["metric"]: r["samples"] for r in readings if not r["point"]}
        times = found["latency_seconds"]
        assert all(1e-7 < t < 60 for t in times)
        assert found["algbw_bytes_per_second"] == pytest.approx([case["bytes"] / t for t in times])
        bus = [case["bytes"] * FACTORS[probe] / t for t in times]
        assert found["busbw_bytes_per_second"] == pytest.approx(bus)
        assert {r["point"]["rank"] for r in readings if r["point"]} == {0, 1, 2}


@pytest.mark.parametrize("probe", [AllReduce, Broadcast], ids=lambda p: p.name)
def test_gloo_sums_and_broadcasts_in_place_only(probe: type[AllReduce] | type[Broadcast]) -> None:
    """The reason names what measures both; the same group goes on, in place."""
    first, _ = run_gang(2, [{"bytes": 8, "place": "out_of"}, {"bytes": 8}], probe=probe)
    refused, readings = first.outcomes
    text = (
        "gloo does this in place only; take place in; between GPUs the probe nccl_tests "
        "measures both places, too"
    )
    assert refused == ("ProbeUnavailable", "unsupported", text)
    assert isinstance(readings, list)
    assert probe(bytes=8, place="out_of").memory_bytes(2) == 2 * probe(bytes=8).memory_bytes(2)


@pytest.mark.parametrize("probe", [*PARTED, SendRecv], ids=lambda p: p.name)
def test_data_gone_wrong_after_the_first_check_is_found_by_the_last(
    probe: type[GangProbe],
) -> None:
    """The last of two ranks sends other data once timing has begun."""
    results = run_gang(2, [{"bytes": 64 * KIB}], probe=probe, fault="later")
    for result in results:
        ((kind, code, text),) = result.outcomes
        assert (kind, code) == ("ResultInvalid", "wrong_data")
        assert text.startswith("wrong ")


@pytest.mark.parametrize("probe", PARTED, ids=lambda p: p.name)
def test_a_size_that_does_not_divide_by_the_ranks_is_refused(probe: type[GangProbe]) -> None:
    first, *_ = run_gang(3, [{"bytes": 8}], probe=probe)
    text = "8 bytes are no whole number of float32 elements for each of 3 ranks; 12 bytes are"
    assert first.outcomes == [("ProbeUnavailable", "unsupported", text)]


def test_one_rank_has_nobody_to_send_to_and_elsewhere_a_latency_only() -> None:
    with pytest.raises(ProbeUnavailable, match="nobody to send to"):
        measure(SendRecv(bytes=8, ranks=1), Listener().context(ranks=1))
    (result,) = run_gang(1, [{"bytes": 8 * KIB}], probe=AllGather)
    (readings,) = result.outcomes
    assert [(r["metric"], r["point"]) for r in readings] == [("latency_seconds", {})]
