"""Ring orders: their one spelling, the best and worst of them, and which arms they give."""

from __future__ import annotations

import itertools
import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topobench import ring_search, rings
from topobench.errors import UsageError
from topobench.importers.nccl_xml import parse
from topobench.paths import find_paths
from topobench.reading import ReasonCode, Status
from topobench.ring_orders import Orders
from topobench.rings import Matrix, RingArm, RingRefusal, Score

ORACLE = Path(__file__).parents[2] / "shared/topodata/nccl_oracle"
FILES = sorted(ORACLE.glob("*.xml"))


def symmetric(size: int, edges: dict[tuple[int, int], float], rest: float) -> Matrix:
    """A matrix with some edges named and the rest equal."""
    found = [[0.0 if i == j else rest for j in range(size)] for i in range(size)]
    for (a, b), value in edges.items():
        found[a][b] = found[b][a] = value
    return tuple(map(tuple, found))


def clusters(*groups: tuple[int, ...], near: float = 24e9, far: float = 9e9) -> Matrix:
    """Near within a group, far between groups."""
    edges = {pair: near for group in groups for pair in itertools.combinations(group, 2)}
    return symmetric(sum(map(len, groups)), edges, far)


TWO_SOCKETS = clusters((0, 2, 4, 6), (1, 3, 5, 7))

orders = st.integers(2, 9).flatmap(lambda n: st.permutations(range(n))).map(tuple)


@given(orders, st.integers(0, 8), st.booleans())
def test_rotated_and_on_symmetric_paths_reversed_orders_are_one_ring(
    order: tuple[int, ...], shift: int, reverse: bool
) -> None:
    shift %= len(order)
    other = order[shift:] + order[:shift]
    assert rings.equivalent(order, other, symmetric=False)
    assert rings.equivalent(order, other[::-1], symmetric=True)
    assert rings.canonical(other, symmetric=reverse)[0] == 0
    if len(order) > 2:
        assert not rings.equivalent(order, other[::-1], symmetric=False)


def test_four_gpus_have_three_rings_or_six_directed_ones() -> None:
    every = list(itertools.permutations(range(4)))
    assert {rings.canonical(o, symmetric=True) for o in every} == {
        (0, 1, 2, 3),
        (0, 1, 3, 2),
        (0, 2, 1, 3),
    }
    assert len({rings.canonical(o, symmetric=False) for o in every}) == 6


def test_orders_of_other_gpus_are_never_equivalent() -> None:
    assert not rings.equivalent((0, 1), (0, 1, 2), symmetric=True)
    assert not rings.equivalent((0, 1, 2), (0, 1, 3), symmetric=True)


matrices = st.integers(3, 7).flatmap(
    lambda n: st.lists(
        st.lists(st.sampled_from([9e9, 12e9, 24e9, 24.5e9]), min_size=n, max_size=n),
        min_size=n,
        max_size=n,
    )
)


@settings(deadline=None)
@given(matrices)
def test_best_and_worst_are_those_of_trying_every_order(matrix: list[list[float]]) -> None:
    """On directed paths; slowest edge first, then the sum."""
    given_matrix = tuple(map(tuple, matrix))
    every = itertools.permutations(range(1, len(matrix)))
    scores = [rings.score((0, *rest), given_matrix) for rest in every]
    keys = [(s.slowest, s.total) for s in scores]
    assert rings.score(rings.best(given_matrix), given_matrix) == Score(*max(keys))
    assert rings.score(rings.worst(given_matrix), given_matrix) == Score(*min(keys))
    assert rings.all_equal(given_matrix) == (len(set(keys)) == 1)


def test_best_crosses_between_sockets_twice_and_worst_always() -> None:
    assert rings.best(TWO_SOCKETS) == (0, 1, 3, 5, 7, 2, 4, 6)
    assert rings.score(rings.best(TWO_SOCKETS), TWO_SOCKETS) == Score(9e9, 2 * 9e9 + 6 * 24e9)
    assert rings.score(rings.worst(TWO_SOCKETS), TWO_SOCKETS) == Score(9e9, 8 * 9e9)


def test_best_goes_round_a_single_slow_path() -> None:
    matrix = symmetric(4, {(0, 1): 1e9}, 20e9)
    assert rings.score(rings.best(matrix), matrix).slowest == 20e9
    assert rings.best(matrix) == (0, 2, 1, 3)
    assert rings.score(rings.worst(matrix), matrix).slowest == 1e9


def test_equal_paths_keep_the_devices_own_order() -> None:
    flat = symmetric(8, {}, 370e9)
    assert rings.best(flat) == tuple(range(8))
    assert rings.all_equal(flat)


def test_ten_gpus_are_searched_exactly() -> None:
    """A hidden fast ring in slower surroundings, and a hidden slow one."""
    hidden = tuple(random.Random(3).sample(range(10), 10))
    edges = dict.fromkeys(zip(hidden, hidden[1:] + hidden[:1], strict=True), 40000000000.0)
    fast = symmetric(10, edges, 20e9)
    assert rings.equivalent(rings.best(fast), hidden, symmetric=True)
    slow = symmetric(10, dict.fromkeys(edges, 5e9), 20e9)
    assert rings.equivalent(rings.worst(slow), hidden, symmetric=True)


@pytest.mark.parametrize(
    "groups",
    [
        (tuple(range(0, 16, 2)), tuple(range(1, 16, 2))),
        (tuple(range(0, 24, 3)), tuple(range(1, 24, 3)), tuple(range(2, 24, 3))),
    ],
    ids=["two of 8", "three of 8"],
)
def test_more_gpus_than_that_cross_between_groups_as_rarely_as_can_be(
    groups: tuple[tuple[int, ...], ...],
) -> None:
    matrix = clusters(*groups)
    size, crossings = len(matrix), len(groups)
    found = rings.best(matrix)
    assert sorted(found) == list(range(size))
    assert rings.score(found, matrix).total == crossings * 9e9 + (size - crossings) * 24e9
    assert rings.score(rings.worst(matrix), matrix) == Score(9e9, size * 9e9)


def test_local_search_finds_the_exact_slowest_edge(monkeypatch: pytest.MonkeyPatch) -> None:
    """On ten GPUs with random paths, where the exact answer is known."""
    generator = random.Random(1)
    made = []
    for _ in range(5):
        edges = {
            p: generator.choice((9e9, 12e9, 24e9)) for p in itertools.combinations(range(10), 2)
        }
        made.append(symmetric(10, edges, 0))
    exact = [rings.score(rings.best(m), m) for m in made]
    exact_worst = [rings.score(rings.worst(m), m) for m in made]
    monkeypatch.setattr(ring_search, "EXACT_UP_TO", 2)
    assert [rings.score(rings.best(m), m).slowest for m in made] == [s.slowest for s in exact]
    found_worst = [rings.score(rings.worst(m), m) for m in made]
    assert [s.slowest for s in found_worst] == [s.slowest for s in exact_worst]


@pytest.mark.skipif(not FILES, reason=f"no recorded answers of NCCL in {ORACLE}")
def test_best_is_no_worse_than_the_rings_of_nccl_on_any_machine() -> None:
    """Its slowest edge, by the bandwidths that NCCL itself assumes."""
    compared = 0
    for file in FILES:
        topology = parse(file.read_text())
        topology = replace(topology, paths=find_paths(topology).paths)
        matrix = rings.bandwidths(topology, topology.gpus)
        assert matrix is not None, file
        for search in json.loads(file.with_suffix(".json").read_text())["rings"]:
            for order in search["orders"] if len(topology.gpus) > 1 else ():
                position = {gpu.index: i for i, gpu in enumerate(topology.gpus)}
                own = rings.score([position[dev] for dev in order], matrix)
                ours = rings.score(rings.best(matrix), matrix)
                assert (ours.slowest, ours.total) >= (own.slowest, own.total), file
                assert rings.score(rings.worst(matrix), matrix).slowest <= own.slowest, file
                compared += 1
    assert compared >= 25


def arm_names(found: list[RingArm | RingRefusal]) -> list[tuple[str, object]]:
    """Each with its order, its orders if there are several, or why it does not exist."""
    return [
        (
            a.name,
            (a.orders if len(a.orders) > 1 else next(iter(a.orders), None))
            if isinstance(a, RingArm)
            else (a.status, a.reason.code),
        )
        for a in found
    ]


EQUIVALENT = (Status.NOT_APPLICABLE, ReasonCode.EQUIVALENT_ARMS)
UNSUPPORTED = (Status.SKIPPED, ReasonCode.UNSUPPORTED)


def test_arms_are_orders_and_what_nccl_chooses() -> None:
    names = ("auto", "auto_ring", "identity", "best", "worst")
    wanted: list[str | tuple[int, ...]] = [*names, tuple(range(8))]
    found = rings.arms(wanted, 8, TWO_SOCKETS)
    assert arm_names(found) == [
        ("auto", None),
        ("auto_ring", None),
        ("identity", None),
        ("best", (0, 1, 3, 5, 7, 2, 4, 6)),
        ("worst", (0, 1, 2, 3, 4, 5, 6, 7)),
        ("0-1-2-3-4-5-6-7", EQUIVALENT),
    ]
    last = found[-1]
    assert isinstance(last, RingRefusal)
    assert last.reason.text == "the same ring as worst"


@pytest.mark.parametrize(
    ("size", "matrix"),
    [
        (2, clusters((0, 1))),
        (3, clusters((0, 1), (2,))),
        (4, symmetric(4, {}, 370e9)),
        (2, None),
        (3, None),
    ],
    ids=["two", "three", "switch", "two, unknown", "three, unknown"],
)
def test_orders_that_cannot_differ_are_no_arms(size: int, matrix: Matrix | None) -> None:
    found = rings.arms(["auto", "best", "worst", tuple(range(size))], size, matrix)
    assert arm_names(found) == [
        ("auto", None),
        ("best", EQUIVALENT),
        ("worst", EQUIVALENT),
        (rings.name_of(range(size)), EQUIVALENT),
    ]


def test_several_orders_are_one_arm_and_force_runs_what_cannot_differ() -> None:
    """Channels take them in turn; several that are one ring are that ring."""
    both = Orders(((0, 1, 2, 3), (0, 2, 1, 3)))
    twice = Orders(((0, 1, 2, 3), (3, 2, 1, 0)))
    wanted: list[Orders | tuple[int, ...]] = [both, (0, 1, 2, 3), twice]
    assert arm_names(rings.arms(wanted, 4, None)) == [
        ("0-1-2-3:0-2-1-3", both.orders),
        ("0-1-2-3", (0, 1, 2, 3)),
        ("0-1-2-3:3-2-1-0", EQUIVALENT),
    ]
    switch = symmetric(4, {}, 370e9)
    forced = Orders(((0, 2, 1, 3),), forced=True)
    assert arm_names(rings.arms([both, forced, both], 3, None))[1] == ("0-2-1-3", UNSUPPORTED)
    assert arm_names(rings.arms([both, forced], 4, switch)) == [
        ("0-1-2-3:0-2-1-3", EQUIVALENT),
        ("0-2-1-3", (0, 2, 1, 3)),
    ]
    assert rings.orders_of(both.name, None) == both.orders


def test_directions_count_where_paths_are_not_symmetric() -> None:
    one_way = ((0.0, 9e9, 5e9), (5e9, 0.0, 9e9), (9e9, 5e9, 0.0))
    found = rings.arms(["best", "worst", (0, 2, 1)], 3, one_way)
    assert arm_names(found) == [("best", (0, 1, 2)), ("worst", (0, 2, 1)), ("0-2-1", EQUIVALENT)]


def test_without_bandwidths_there_is_no_best_but_an_explicit_order() -> None:
    found = rings.arms(["best", (0, 2, 1, 3), (0, 3, 1, 2), (0, 1)], 4, None)
    assert arm_names(found) == [
        ("best", UNSUPPORTED),
        ("0-2-1-3", (0, 2, 1, 3)),
        ("0-3-1-2", EQUIVALENT),
        ("0-1", UNSUPPORTED),
    ]


@pytest.mark.parametrize("value", ["0-2-1-3", "0, 2, 1, 3", [0, 2, 1, 3], (0, 2, 1, 3)])
def test_orders_are_read_from_text_and_lists(value: object) -> None:
    assert rings.parse_order(value) == (0, 2, 1, 3)


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ({0: [1, 3], 1: [0, 2], 2: [1, 3], 3: [2, 0]}, "the list describes 0-1-2-3"),
        ([[2, 3], [3, 2], [0, 1], [1, 0]], "the list describes 0-2-1-3"),
        ({0: 2, 2: 1, 1: 0}, "the list describes 0-2-1"),
        ({0: [1, 2, 3], 1: [0], 2: [0], 3: [0]}, "adjacency list"),
        ([[1], [0], [3], [2]], "adjacency list"),
        ([["a"], None], "adjacency list"),
        ("0", "'0' is no ring; expected an order"),
        ("fast", "'fast' is no ring"),
        (7, "7 is no ring"),
        ([0, 0, 1], "must hold each position from 0 to 2 exactly once"),
        ([1, 2], "must hold each position from 0 to 1 exactly once"),
        ([], "must hold each position"),
    ],
)
def test_what_is_no_order_is_told_how_to_be_one(value: object, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        rings.parse_order(value)
