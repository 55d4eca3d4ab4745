"""The ring of sends and receives: its steps by rule, and exact sums in real processes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probing import run_gang
from topobench.errors import ProbeUnavailable, UsageError
from topobench.probes.ring_p2p import RingP2p, gather_steps, neighbours, reduce_steps
from topobench.rings import Order

KIB = 1 << 10
ORDERS = ["0-1-2-3", "0-1-3-2", "0-2-1-3", "0-2-3-1", "0-3-1-2", "0-3-2-1", "2-0-3-1", "3-1-0-2"]


def simulated(order: Order) -> list[list[frozenset[int]]]:
    """For every rank the ranks whose data each of its chunks holds in the end."""
    ranks = range(len(order))
    held = [[frozenset({rank})] * len(order) for rank in ranks]
    for steps, adds in ((reduce_steps, True), (gather_steps, False)):
        for step in range(len(order) - 1):
            sent = {r: held[r][steps(order, r)[step][0]] for r in ranks}
            for rank in ranks:
                before, _ = neighbours(order, rank)
                going, coming = steps(order, before)[step][0], steps(order, rank)[step][1]
                assert going == coming, "the chunk sent is the chunk awaited"
                if adds:
                    assert not held[rank][coming] & sent[before], "no rank's data counts twice"
                    held[rank][coming] |= sent[before]
                else:
                    held[rank][coming] = sent[before]
    return held


@given(st.integers(1, 12).flatmap(lambda n: st.permutations(range(n))).map(tuple))
def test_every_chunk_ends_with_every_ranks_data_once(order: Order) -> None:
    everyone = frozenset(order)
    assert simulated(order) == [[everyone] * len(order)] * len(order)
    for rank in order:
        before, after = neighbours(order, rank)
        assert neighbours(order, before)[1] == rank
        assert neighbours(order, after)[0] == rank


def test_sums_are_exact_along_eight_orders_of_four_ranks() -> None:
    """
    Every element on every rank, before and after the timed part, in one group of processes.

    Two of the orders out of place as well.
    """
    cases: list[dict[str, Any]] = [
        {"bytes": 4 * KIB, "ranks": 4, "order": order} for order in ORDERS
    ]
    cases += [{**case, "place": "out_of"} for case in cases[2:4]]
    results = run_gang(4, cases, probe=RingP2p)
    assert [r.exit_code for r in results] == [0] * 4
    for readings in results[0].outcomes:
        found = {r["metric"]: r["samples"] for r in readings if not r["point"]}
        assert set(found) == {
            "latency_seconds",
            "algbw_bytes_per_second",
            "busbw_bytes_per_second",
        }
        assert found["busbw_bytes_per_second"] == pytest.approx(
            [4 * KIB * 1.5 / t for t in found["latency_seconds"]]
        )
        assert {r["point"]["rank"] for r in readings if r["point"]} == {0, 1, 2, 3}
    assert results[0].listener.notes["ring"] == ORDERS[3]
    assert all(r.outcomes == [[]] * len(cases) for r in results[1:])


def test_fewer_elements_than_ranks_and_uneven_chunks_sum_exactly() -> None:
    cases: list[dict[str, Any]] = [
        {"bytes": 8, "ranks": 3},
        {"bytes": 40, "ranks": 3, "order": "0-2-1", "dtype": "bfloat16"},
        {"bytes": 40, "ranks": 3, "order": "0-2-1", "dtype": "bfloat16", "place": "out_of"},
        {"bytes": 8, "ranks": 3, "order": "0-1"},
    ]
    first, *_ = run_gang(3, cases, probe=RingP2p)
    assert [isinstance(o, list) for o in first.outcomes] == [True, True, True, False]
    assert first.outcomes[3] == (
        "ProbeUnavailable",
        "unsupported",
        "the order 0-1 is of 2 ranks; 3 take part",
    )


def test_a_rank_with_wrong_data_makes_the_ring_invalid() -> None:
    cases = [{"bytes": 64 * KIB, "ranks": 2}]
    for result in run_gang(2, cases, probe=RingP2p, fault="garbage"):
        ((kind, code, _),) = result.outcomes
        assert (kind, code) == ("ResultInvalid", "wrong_data")


def test_one_rank_has_nothing_to_sum_out_of_place() -> None:
    with pytest.raises(ProbeUnavailable, match="one rank has no ring"):
        RingP2p(place="out_of").refuse(1)


def test_what_is_no_order_is_refused_when_the_case_is_made() -> None:
    with pytest.raises(UsageError, match="must hold each position from 0 to 2 exactly once"):
        RingP2p(order="0-1-1")
    assert RingP2p(order="0-2-1").ring(3) == (0, 2, 1)
    assert RingP2p().ring(3) == (0, 1, 2)
