"""Which hosts measure together: rounds of disjoint pairs, gangs over all hosts."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections import Counter

import pytest

from planning import configured, dual, host, planned, small
from topobench import pairs
from topobench.config_fields import HostExpectation
from topobench.errors import UsageError
from topobench.layout_hosts import pair_again
from topobench.plan import batches, estimate_all, estimate_together, make_plan, plan_like
from topobench.reading import Cell, ReasonCode, Status


@pytest.mark.parametrize("count", [2, 3, 4, 7, 8, 31, 64])
def test_every_pair_meets_once_in_rounds_of_disjoint_pairs(count: int) -> None:
    rounds = pairs.rounds(count, random.Random(count), every=True)
    assert len(rounds) == count - 1 + count % 2
    assert sorted(itertools.chain(*rounds)) == list(itertools.combinations(range(count), 2))
    for one in rounds:
        assert max(Counter(itertools.chain(*one)).values()) == 1


@pytest.mark.parametrize(
    ("count", "every", "rounds"),
    [(3, False, 3), (16, False, 6), (64, True, 63), (65, True, 9), (1000, False, 12), (1, True, 0)],
)
def test_so_many_rounds_are_measured(count: int, every: bool, rounds: int) -> None:
    assert len(pairs.rounds(count, random.Random(1), every=every)) == rounds


def test_the_seed_decides_who_meets() -> None:
    drawn = [pairs.rounds(20, random.Random(s), every=False) for s in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]


def joint(*hosts: str, **flags: str) -> list[Cell]:
    """The cells over several hosts of a plan."""
    plan = make_plan(configured(**flags), [host(small(), h) for h in hosts], seed=1)
    return [c for c in planned(plan.cells) if c.hosts]


def test_pairs_come_before_gangs_and_all_after_what_hosts_do_alone() -> None:
    plan = make_plan(configured(), [host(small(), h) for h in ("h1", "h2", "h3")], seed=1)
    kinds = [(len(set(c.hosts)), c.case.probe) for c in planned(plan.cells)]
    assert [k for k, _ in itertools.groupby(kinds, key=lambda k: k[0])] == [0, 2, 3]
    assert {p for n, p in kinds if n == 3} == {"all_reduce"}


def test_both_directions_of_a_pair_share_its_workers() -> None:
    cells = joint("h1", "h2", "h3", probes="host_network")
    assert [len(b) for b in batches(cells)] == [2, 2, 2]
    assert {tuple(c.case.params["direction"] for c in b) for b in batches(cells)} == {("out", "in")}
    assert {c.hosts for c in cells} == {("h1", "h2"), ("h1", "h3"), ("h2", "h3")}
    assert {(c.ranks, c.host == c.hosts[0]) for c in cells} == {(2, True)}


def test_hosts_are_in_the_same_order_whatever_order_they_answer_in() -> None:
    there, back = (joint(*names, probes="all_reduce") for names in (("a", "b"), ("b", "a")))
    assert {c.hosts for c in there} == {c.hosts for c in back} == {("a", "b")}


def test_pairs_left_out_are_counted() -> None:
    hosts = [host(small(), f"h{n}") for n in range(16)]
    plan = make_plan(configured(probes="host_network"), hosts, seed=1)
    assert len({c.hosts for c in plan.cells}) == 48
    assert "host_network: 48 of 120 pairs of hosts are measured" in " ".join(plan.warnings)
    assert "72 are left out" in " ".join(plan.warnings)


def test_gangs_over_gpus_have_a_rank_for_each_gpu_of_every_host() -> None:
    hosts = [host(dual(8), "h1"), host(dual(4), "h2"), host(small(), "head")]
    plan = make_plan(configured(probes="all_reduce"), hosts, seed=1)
    cells = [c for c in planned(plan.cells) if c.hosts]
    assert {c.hosts for c in cells} == {("h1",) * 8 + ("h2",) * 4}
    for cell in cells:
        assert (cell.ranks, cell.case.params["backend"], cell.arm.ring) == (12, "nccl", "auto")
        assert len(set(cell.devices)) <= 12 == len(cell.devices)


def test_ring_arms_between_hosts_are_told_to_be_left_out() -> None:
    chosen = configured(probes="all_reduce", sets=("all_reduce.hosts=all",), bindings="none")
    chosen = dataclasses.replace(chosen, rings=("auto", "auto_ring", (0, 2, 1, 3)))
    hosts = [host(dual(8), "h1"), host(dual(8), "h2")]
    found = make_plan(chosen, hosts, seed=1).cells
    assert {c.arm.name for c in planned(found)} == {"none/auto"}
    left_out = [(c.arm.name, str(c.reason)) for c in found if c.reason]
    why = (
        "unsupported: between hosts NCCL goes by the ranks, and chooses; rings are compared inside "
        "a host"
    )
    assert left_out == [("none/auto_ring", why), ("none/0-2-1-3", why)]


def test_ranks_go_from_host_to_host_as_the_config_lists_them() -> None:
    """NCCL joins hosts in the order of their ranks."""
    hosts = [host(small(), f"h{n}") for n in range(1, 5)]
    listed = (HostExpectation("H3"), HostExpectation("second", id="h2"), HostExpectation("h1"))
    told = dataclasses.replace(configured(probes="all_reduce"), hosts=listed)
    plan = make_plan(told, hosts, seed=1)
    cells = [c for c in planned(plan.cells) if c.hosts]
    assert {(c.hosts, c.host) for c in cells} == {(("h3", "h2", "h1"), "h3")}


def test_a_parameter_declared_later_is_not_named_at_its_default() -> None:
    plan = make_plan(configured(probes="all_reduce"), [host(small(), "h1")], seed=1)
    params = [c.case.params for c in planned(plan.cells)]
    assert params
    assert all("hosts" not in p for p in params)


def test_one_host_has_nobody_to_meet() -> None:
    plan = make_plan(configured(probes="host_network"), [host(small(), "h1")], seed=1)
    assert [(c.status, c.reason and c.reason.code) for c in plan.cells] == [
        (Status.SKIPPED, ReasonCode.NEEDS_2_HOSTS)
    ]


def test_the_estimate_counts_disjoint_pairs_once() -> None:
    cells = joint("h1", "h2", "h3", "h4", probes="host_network")
    one = estimate_together(batches(cells)[0])
    assert estimate_together(cells) == pytest.approx(3 * one)
    assert estimate_all(cells) == estimate_together(cells)


def test_a_budget_is_shared_between_hosts_alone_and_together() -> None:
    hosts = [host(small(), h) for h in ("h1", "h2", "h3")]
    plan = make_plan(configured(budget="30s"), hosts, seed=1)
    assert plan.estimated_seconds <= 30
    kept = planned(plan.cells)
    assert any(c.hosts for c in kept)
    assert any(not c.hosts for c in kept)


def test_hosts_that_look_slow_meet_one_more_good_host() -> None:
    hosts = [host(small(), f"h{n:02d}") for n in range(16)]
    plan = make_plan(configured(probes="host_network"), hosts, seed=1)
    assert plan.site is not None
    extra = pair_again(plan.site, hosts, plan.cells, ["h03", "h05"])
    pairs_met = {c.hosts for c in plan.cells}
    added = {c.hosts for c in extra}
    assert len(added) == 2
    assert not added & pairs_met
    for pair in added:
        assert len({"h03", "h05"} & set(pair)) == 1, "its partner is no suspect"
    assert len({c.id for c in (*plan.cells, *extra)}) == len(plan.cells) + len(extra)


def test_nobody_is_paired_again_where_all_have_met() -> None:
    hosts = [host(small(), f"h{n}") for n in range(4)]
    plan = make_plan(configured(probes="host_network"), hosts, seed=1)
    assert plan.site is not None
    assert pair_again(plan.site, hosts, plan.cells, ["h1"]) == []


def test_an_earlier_sweep_is_repeated_on_the_hosts_chosen() -> None:
    hosts = [host(small(), h) for h in ("h1", "h2", "h3")]
    first = make_plan(configured(), hosts, seed=1)
    here = plan_like(configured(hosts="h2"), hosts, first.cells, first.seed)
    assert [(c.host, c.case, c.arm) for c in here.cells] == [
        (c.host, c.case, c.arm) for c in planned(first.cells) if c.host == "h2" and not c.hosts
    ]
    assert not {c.id for c in here.cells} & {c.id for c in first.cells}
    assert here.seed == 1
    assert "of other hosts" in " ".join(here.warnings)
    with pytest.raises(UsageError, match="measured nothing on the hosts that are here"):
        plan_like(configured(), [host(small(), "h9")], first.cells, first.seed)
