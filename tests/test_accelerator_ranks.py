"""Ranks that ask each for itself whether something can be done at all."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest

from topobench.errors import ProbeUnavailable
from topobench.probes.accelerator import alike
from topobench.probes.collective import Group, Rounds
from topobench.probes.timing import Sampler
from topobench.reading import ReasonCode


class Rank:
    """One of several that exchange values, as the ranks of a gang do."""

    def __init__(self, rank: int, told: list[float], barrier: threading.Barrier) -> None:
        self._rank, self._told, self._barrier = rank, told, barrier

    def gather(self, value: float) -> list[float]:
        self._told[self._rank] = value
        self._barrier.wait(10)
        return list(self._told)


def asked(*asks: Callable[[], float]) -> list[Any]:
    """What each rank gets: the values of all, or the refusal."""
    told, barrier = [0.0] * len(asks), threading.Barrier(len(asks))

    def one(rank: int) -> Any:
        try:
            return alike(cast(Any, Rank(rank, told, barrier)), asks[rank])
        except ProbeUnavailable as refusal:
            return str(refusal)

    with ThreadPoolExecutor(len(asks)) as pool:
        return list(pool.map(one, range(len(asks))))


def test_every_rank_has_the_values_of_all() -> None:
    assert asked(lambda: 1.0, lambda: 2.0) == [[1.0, 2.0]] * 2


def test_one_that_is_refused_takes_the_others_along() -> None:
    """Else they would wait for a value, and take the next thing that it tells for that."""

    def refused() -> float:
        raise ProbeUnavailable(ReasonCode.NOT_ENOUGH_MEMORY, "8 GiB needed, 1 GiB free")

    first, second = asked(lambda: 1.0, refused)
    assert first == "unsupported: rank 1 of this gang cannot run it"
    assert second == "not_enough_memory: 8 GiB needed, 1 GiB free"


def test_a_lone_one_is_refused_by_itself() -> None:
    def refused() -> float:
        raise ProbeUnavailable(ReasonCode.UNSUPPORTED, "no kernel")

    assert asked(refused) == ["unsupported: no kernel"]
    assert asked(lambda: 3.0) == [[3.0]]


def test_other_errors_are_not_caught() -> None:
    def broken() -> float:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        asked(broken)


class Alone(Group):
    """A gang of one, which has nobody to meet."""

    def agree(self, values: Any) -> list[int]:
        return list(values)

    def meet(self) -> None:
        pass

    def gather(self, values: Any) -> list[list[float]]:
        return [list(values)]


class Rows:
    """What is called, row by row."""

    def __init__(self) -> None:
        self.rows: list[int] = []

    def refill(self, count: int) -> None:
        pass

    def enqueue(self, count: int) -> None:
        self.rows.append(count)


def test_a_sample_of_ranks_is_a_row_of_so_many_calls() -> None:
    calls = Rows()
    gang = Alone(0, 1, "gloo", None)
    rounds = Rounds(gang, calls, count=7, round_max=700, lead=0)
    times = rounds.measure(Sampler(1.0, 0.1, n_max=5))
    assert times is not None
    assert set(calls.rows) == {0, 7}  # before each round comes a row of lead, here of none
    assert times.slowest.operations == 7
    assert times.slowest.samples == times.by_rank[0].samples
