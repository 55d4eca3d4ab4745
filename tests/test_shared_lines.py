"""Sizes of the all-reduces that predict what a part of a host's GPUs spends in them."""

from __future__ import annotations

import pytest

from topobench import fit, shared_lines
from topobench.choice import Choice
from topobench.config import ProbeChoice
from topobench.shared_lines import LINE_SIZES, sizes_around

SIZES = [1 << n for n in range(3, 31)]
MIB = 1 << 20


def test_a_line_needs_as_many_sizes_as_a_fit() -> None:
    assert LINE_SIZES == fit.MIN_SIZES


@pytest.mark.parametrize(
    ("messages", "ends"),
    [
        ([2 * MIB], (MIB // 2, 8 * MIB)),
        ([3 * MIB], (MIB // 2, 8 * MIB)),
        ([MIB, 64 * MIB], (MIB, 64 * MIB)),
        ([1], (8, 128)),
        ([1 << 40], (64 * MIB, 1 << 30)),
        ([8, 1 << 30], (8, 1 << 30)),
    ],
)
def test_they_reach_from_below_the_smallest_message_to_above_the_largest(
    messages: list[int], ends: tuple[int, int]
) -> None:
    found = sizes_around(SIZES, messages)
    assert (found[0], found[-1]) == ends
    assert found == sorted(set(found))
    assert len(found) == LINE_SIZES


def test_of_several_ways_to_measure_the_one_is_taken_that_lines_prefer() -> None:
    """Whichever is listed first: a line of calls one by one predicts no queued pass."""
    ways = {"mode": ("per_call", "queued"), "pool": ("warm", "cold"), "place": ("out_of", "in")}
    choice = Choice(ProbeChoice("all_reduce", {"bytes": (8, 512, MIB), **ways}))
    found = [timed.case.params for timed in shared_lines.cases([choice], 2, [MIB])]
    assert [params["bytes"] for params in found] == [8, 512, MIB]
    assert all(params["ranks"] == 2 and not {*ways} & {*params} for params in found)  # defaults


def test_too_few_sizes_are_all_taken_and_none_without_a_message() -> None:
    assert sizes_around([MIB, 8, 512], [MIB]) == [8, 512, MIB]
    assert sizes_around(SIZES, []) == sizes_around([8], []) == []
