"""Which host or path explains slow flows between pairs of hosts."""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping

import pytest

from topobench import culprits, pairs
from topobench.culprits import Culprit, Fault, Flow, find

FAST, SLOW = 2e9, 24e6


def world(
    count: int,
    *,
    sends: Mapping[int, float] | None = None,
    receives: Mapping[int, float] | None = None,
    paths: Mapping[tuple[int, int], float] | None = None,
    met: Collection[tuple[int, int]] | None = None,
    noise: float = 0.0,
    seed: int = 0,
) -> list[Flow]:
    """Flows both ways between every pair (or those that met), each as fast as its slowest part."""
    draw = random.Random(seed)
    return [
        Flow(
            f"h{a}",
            f"h{b}",
            min(
                (sends or {}).get(a, FAST),
                (receives or {}).get(b, FAST),
                (paths or {}).get((a, b), FAST),
            )
            * draw.uniform(1 - noise, 1 + noise),
        )
        for a in range(count)
        for b in range(count)
        if a != b and (met is None or (min(a, b), max(a, b)) in met)
    ]


def test_a_host_that_sends_slowly_is_named_among_three() -> None:
    found = find(world(3, sends={2: SLOW}))
    assert found.typical == FAST
    assert found.slow == 2
    assert found.culprits == (Culprit(Fault.SENDS, ("h2",), SLOW, 2),)


def test_a_host_slow_both_ways_is_named_alone_though_most_flows_are_slow() -> None:
    found = find(world(3, sends={0: SLOW}, receives={0: 2 * SLOW}))
    assert found.culprits == (
        Culprit(Fault.SENDS, ("h0",), SLOW, 2),
        Culprit(Fault.RECEIVES, ("h0",), 2 * SLOW, 2),
    )


def test_a_slow_path_between_good_hosts_accuses_neither() -> None:
    found = find(world(4, paths={(0, 1): SLOW}))
    assert found.culprits == (Culprit(Fault.PATH, ("h0", "h1"), SLOW, 1),)
    assert culprits.suspects(found) == ()


def test_two_hosts_alone_do_not_tell_which_of_them_is_slow() -> None:
    found = find(world(2, sends={0: SLOW}))
    assert found.culprits == (Culprit(Fault.EITHER, ("h0", "h1"), SLOW, 1),)
    assert culprits.suspects(found) == ("h0", "h1")


def test_several_culprits_of_different_kinds_are_told_apart() -> None:
    found = find(world(8, sends={3: SLOW}, receives={5: FAST / 2}, paths={(0, 1): FAST / 4}))
    assert {(c.fault, c.hosts) for c in found.culprits} == {
        (Fault.SENDS, ("h3",)),
        (Fault.RECEIVES, ("h5",)),
        (Fault.PATH, ("h0", "h1")),
    }
    assert found.culprits[0].hosts == ("h3",), "the slowest first"


@pytest.mark.parametrize("seed", range(5))
def test_nobody_is_named_where_all_are_alike(seed: int) -> None:
    assert find(world(16, noise=0.15, seed=seed)).culprits == ()


def test_no_flows_no_finding() -> None:
    assert find([]) == culprits.Finding(None, 0, ())


@pytest.mark.parametrize("seed", range(5))
def test_a_few_rounds_of_many_hosts_suffice_to_name_the_slow_ones(seed: int) -> None:
    draw = random.Random(seed)
    bad = set(draw.sample(range(200), 3))
    met = {p for one in pairs.rounds(200, draw, every=False) for p in one}
    assert len(met) == 100 * 10, "ceil(log2 200) + 2 rounds of disjoint pairs"
    flows = world(200, sends=dict.fromkeys(bad, SLOW), met=met, noise=0.1, seed=seed)
    named = {h for c in find(flows).culprits for h in c.hosts}
    assert named == {f"h{n}" for n in bad}


def test_one_more_pair_with_a_good_host_settles_who_is_slow() -> None:
    met = {(0, 1), (2, 3), (4, 5), (2, 4)}
    before = find(world(6, sends={0: SLOW}, met=met))
    assert culprits.suspects(before) == ("h0", "h1")
    extra = pairs.again([0, 1], [2, 3, 4, 5], met, random.Random(1))
    assert len(extra) == 2
    assert not met & set(extra)
    after = find(world(6, sends={0: SLOW}, met=met | set(extra)))
    assert [(c.fault, c.hosts) for c in after.culprits] == [(Fault.SENDS, ("h0",))]
