from __future__ import annotations

import ipaddress
import socket
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from probing import Listener, measure, run_gang
from topobench.errors import ProbeError, ProbeUnavailable
from topobench.probes import collective, patterns
from topobench.probes.all_reduce import AllReduce

KIB, MIB = 1 << 10, 1 << 20


def by_metric(readings: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Readings of the whole gang, by metric."""
    return {r["metric"]: r for r in readings if not r["point"]}


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_measure_together_and_rank_0_reports(ranks: int) -> None:
    """Small and large, in one group: both figures follow from the times sample by sample."""
    cases: list[dict[str, Any]] = [
        {"bytes": 8},
        {"bytes": 8 * KIB, "dtype": "bfloat16"},
        {"bytes": 2 * MIB},
    ]
    results = run_gang(ranks, cases)
    assert [r.exit_code for r in results] == [0] * ranks
    assert all(r.outcomes == [[], [], []] for r in results[1:])
    pools = [2562 * 8, 2562 * 8 * KIB, 64 * MIB]
    assert all([size for _, size in r.listener.buffers] == pools for r in results)
    for case, readings in zip(cases, results[0].outcomes, strict=True):
        found = by_metric(readings)
        assert set(found) == {
            "latency_seconds",
            "algbw_bytes_per_second",
            "busbw_bytes_per_second",
        }
        times = found["latency_seconds"]["samples"]
        assert len(times) >= 3
        assert all(1e-7 < t < 60 for t in times)
        factor = 2 * (ranks - 1) / ranks
        size = int(case["bytes"])
        assert found["algbw_bytes_per_second"]["samples"] == pytest.approx(
            [size / t for t in times]
        )
        assert found["busbw_bytes_per_second"]["samples"] == pytest.approx(
            [size * factor / t for t in times]
        )


def test_every_rank_has_its_own_median_and_none_exceeds_the_slowest() -> None:
    """And a gang of one host meets on loopback, which no other host can reach."""
    result = run_gang(2, [{"bytes": MIB}])[0]
    host, _, port = result.listener.published[0].rpartition(":")
    assert ipaddress.ip_address(host).is_loopback
    assert int(port) > 0
    readings = result.outcomes[0]
    worst = by_metric(readings)["latency_seconds"]["summary"]
    own = {r["point"]["rank"]: r["summary"] for r in readings if r["point"]}
    assert set(own) == {0, 1}
    assert {s["n"] for s in own.values()} == {worst["n"]}
    assert all(s["median"] <= worst["median"] for s in own.values())
    assert all(s["maximum"] <= worst["maximum"] for s in own.values())
    assert worst["maximum"] == max(s["maximum"] for s in own.values())


def test_other_dtypes_sum_exactly() -> None:
    dtypes = ["float64", "float16", "int32", "int64"]
    result = run_gang(2, [{"bytes": 8 * KIB, "dtype": d} for d in dtypes])[0]
    assert [set(by_metric(r)) for r in result.outcomes] == [
        {m.name for m in AllReduce.metrics}
    ] * len(dtypes)
    assert result.listener.notes["backend"] == "gloo"


@pytest.mark.parametrize(
    ("fault", "dtype"),
    [("garbage", "float32"), ("absent", "bfloat16"), ("later", "float32"), ("later", "int32")],
)
def test_a_rank_with_wrong_data_makes_the_result_invalid_on_every_rank(
    fault: str, dtype: str
) -> None:
    """Also when the data is right at first and wrong from the first timed round on."""
    results = run_gang(2, [{"bytes": 64 * KIB, "dtype": dtype}], fault=fault)
    for result in results:
        ((kind, code, text),) = result.outcomes
        assert (kind, code) == ("ResultInvalid", "wrong_data")
        assert "rank 0" in text
        assert "rank 1" in text


def test_a_rank_that_dies_is_a_lost_rank_and_the_next_cell_says_so() -> None:
    survivor, dead = run_gang(2, [{"bytes": 64 * KIB}, {"bytes": 8}], fault="dies")
    assert dead.exit_code == 9
    (kind, code, _), (_, code_2, text_2) = survivor.outcomes
    assert (kind, code) == ("ProbeError", "rank_lost")
    assert code_2 == "rank_lost"
    assert text_2.startswith("lost in an earlier cell: ")


def test_one_rank_has_a_latency_and_no_bandwidth() -> None:
    (result,) = run_gang(1, [{"bytes": 8 * KIB}])
    (readings,) = result.outcomes
    assert [(r["metric"], r["point"]) for r in readings] == [("latency_seconds", {})]


def test_cells_of_other_ranks_need_another_worker() -> None:
    result = run_gang(1, [{"bytes": 8}, {"bytes": 8, "ranks": 2}])[0]
    _, code, text = result.outcomes[1]
    assert (code, text) == ("internal", "a case of 2 ranks was started with 1")


def test_more_memory_than_there_is_is_refused_on_every_rank() -> None:
    """Before anything is allocated; the group stays usable."""
    results = run_gang(2, [{"bytes": 8 << 40}, {"bytes": 8}])
    for result in results:
        (_, code, _), second = result.outcomes
        assert code == "not_enough_memory"
        assert isinstance(second, list)


@pytest.mark.parametrize(("ranks", "factor"), [(2, 1.0), (4, 1.5), (8, 1.75), (1024, 1.998046875)])
def test_bus_factor_is_that_of_a_ring(ranks: int, factor: float) -> None:
    assert AllReduce().bus_factor(ranks) == factor


@pytest.mark.parametrize("dtype", sorted(patterns.EXACT_UP_TO))
@pytest.mark.parametrize("ranks", [2, 8, 128])
def test_expected_sums_are_exact_and_miss_no_rank(dtype: str, ranks: int) -> None:
    """Summed in the dtype itself, in any order; without one rank every element differs."""
    if patterns.largest_value(dtype, ranks) < 2:
        pytest.skip(f"{dtype} has no exact sum over {ranks} ranks; the probe refuses it")
    tiles = [patterns.tile(r, dtype, ranks) for r in range(ranks)]
    exact = sum(t.to(torch.int64) for t in tiles)
    assert torch.equal(sum(tiles[1:], tiles[0]).to(torch.int64), exact)
    assert torch.equal(sum(reversed(tiles[:-1]), tiles[-1]).to(torch.int64), exact)
    assert all(int(t.min()) >= 1 for t in tiles)
    assert not torch.equal(tiles[0], tiles[1])
    assert not torch.equal(tiles[0], patterns.tile(ranks, dtype, ranks))


def test_a_sum_that_could_not_be_checked_is_refused() -> None:
    with pytest.raises(ProbeUnavailable, match="unsupported: bfloat16 cannot hold an exact sum"):
        measure(AllReduce(bytes=8, dtype="bfloat16", ranks=200), Listener().context(ranks=200))


@pytest.mark.parametrize("length", [3, patterns.TILE, 3 * patterns.TILE + 17])
def test_patterns_fill_buffers_and_differences_are_counted(length: int) -> None:
    pattern = patterns.tile(0, "float32", 2)
    buffer = torch.full((length,), -1.0)
    patterns.spread(pattern, buffer)
    assert torch.equal(buffer, pattern.repeat(4)[:length])
    assert patterns.differing(pattern, buffer) == 0
    buffer[0] += 1
    buffer[-1] -= 1
    assert patterns.differing(pattern, buffer) == 2


@pytest.mark.parametrize(
    ("text", "code", "shown"),
    [
        (
            "[/src/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:4988. "
            "This is typically caused by a remote worker crashing.",
            "rank_lost",
            "Connection closed by peer [127.0.0.1]:4988",
        ),
        ("wait timeout after 60000ms, keys: /default_pg/0//1//0", "rank_lost", "wait timeout"),
        ("NCCL error: remote process exited or there was a network error", "rank_lost", "NCCL"),
        ("NCCL error: unhandled cuda error (run with NCCL_DEBUG=INFO)", "cuda_error", "NCCL"),
        ("CUDA error: an illegal memory access was encountered", "cuda_error", "CUDA error"),
        ("[enforce fail at /gloo/device.cc:84] ifa != nullptr. No", "rank_lost", "ifa"),
        ("[enforce fail at alloc_cpu.cpp:1] can't allocate memory: 9 bytes", "oom", "[enforce"),
    ],
)
def test_errors_of_torch_get_our_names(text: str, code: str, shown: str) -> None:
    with pytest.raises(ProbeError) as found, collective.errors_named():
        raise RuntimeError(text)
    assert found.value.code == code
    assert found.value.text.startswith(shown)
    assert "typically" not in found.value.text


def test_nccl_without_a_gpu_is_unavailable() -> None:
    with pytest.raises(ProbeUnavailable, match="no_gpu"):
        measure(AllReduce(bytes=8, backend="nccl"), Listener().context(ranks=2))


def test_the_meeting_address_is_that_of_the_interface() -> None:
    assert collective.local_address("lo") == "127.0.0.1"
    assert collective.local_address(None) == "127.0.0.1"
    with pytest.raises(ProbeError, match="interface 'nosuch0' has no address on this host"):
        collective.local_address("nosuch0")


def test_a_link_local_address_is_none_that_others_can_reach(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The kernel lists it beside the others, in any order; it cannot be bound without a scope."""
    entries = [
        SimpleNamespace(family=socket.AF_INET6, address=address)
        for address in ("fd00::7", "fe80::1%eth7")
    ]
    monkeypatch.setattr("psutil.net_if_addrs", lambda: {"eth7": entries, "eth8": entries[1:]})
    assert collective.local_address("eth7") == "fd00::7"
    with pytest.raises(ProbeError, match="interface 'eth8' has no address on this host"):
        collective.local_address("eth8")


def test_an_interface_that_gloo_would_not_find_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo,nosuch0")
    with pytest.raises(ProbeError, match=r"'nosuch0' has no address .* those that have: .*\blo\b"):
        collective.join(Listener().context(), "gloo")


def test_the_interface_towards_an_address_is_found() -> None:
    assert collective.interface_towards("127.0.0.1", 9) == "lo"


def test_a_named_interface_is_used() -> None:
    """Two ranks over the interface that carries this host's own address."""
    named = next(
        (name for _, name in socket.if_nameindex() if name != "lo" and _has_ipv4(name)), None
    )
    if named is None:
        pytest.skip("this host has no interface with an IPv4 address beside loopback")
    results = run_gang(2, [{"bytes": 8}], interface=named)
    assert results[0].listener.published[0].startswith(collective.local_address(named) + ":")
    assert by_metric(results[0].outcomes[0])


def _has_ipv4(name: str) -> bool:
    return any(family == socket.AF_INET for family, _ in collective._addresses(name))
