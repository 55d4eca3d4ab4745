"""
Which all-reduces tell what those of a model should cost that some of a host's GPUs share; pure.

Collectives run between all GPUs of a host. A line of them says nothing of a part of these GPUs, so
that part gets a few all-reduces of its own, around the sizes that its models add up.
"""

from __future__ import annotations

from collections.abc import Sequence

from topobench.choice import Choice, Timed

ALL_REDUCE = "all_reduce"
LINE_SIZES = 5
"""Sizes that a line needs: ``fit.MIN_SIZES``, which plans may not import."""
_SIZE = "bytes"
_USUAL = {"mode": "queued", "pool": "cold", "place": "in"}
"""As ``fits.line_between`` prefers them."""


def cases(choices: Sequence[Choice], ranks: int, messages: Sequence[int]) -> list[Timed]:
    """
    All-reduces over NCCL between so many ranks, one for each size that a line needs.

    Args:
        choices: Of the sweep; without an all-reduce between the GPUs of one host there are none.
        messages: Bytes that the models add up at once; the line has to hold them.
    """
    found: dict[int, list[Timed]] = {}
    for choice in choices:
        if choice.probe.name != ALL_REDUCE or "one" not in choice.values.get("hosts", ("one",)):
            continue
        if {"auto", "nccl"}.isdisjoint(choice.values.get("backend", ("auto",))):
            continue
        for timed in choice.cases(ranks=ranks, backend="nccl", hosts="one"):
            size = timed.case.params[_SIZE]
            if isinstance(size, int):
                found.setdefault(size, []).append(timed)
    return [min(found[size], key=_unlike) for size in sizes_around([*found], messages)]


def _unlike(timed: Timed) -> int:
    """In how many ways it is unlike the all-reduces that a line is made of where it can choose."""
    return sum(timed.case.params.get(name, value) != value for name, value in _USUAL.items())


def sizes_around(sizes: Sequence[int], messages: Sequence[int]) -> list[int]:
    """
    The sizes of a line that holds all messages, as far as there are some beyond them.

    From the largest that no message is below to the smallest that none is above, with others
    between or beside them where it takes more; all of them where there are too few.
    """
    ordered = sorted(sizes)
    if len(ordered) <= LINE_SIZES or not messages:
        return ordered if messages else []
    last = len(ordered) - 1
    low = max((i for i, size in enumerate(ordered) if size <= min(messages)), default=0)
    high = min((i for i, size in enumerate(ordered) if size >= max(messages)), default=last)
    steps = LINE_SIZES - 1
    if (lacking := steps - (high - low)) > 0:
        low = max(0, min(low - -(-lacking // 2), last - steps))
        high = low + steps
    return [ordered[low + (high - low) * step // steps] for step in range(LINE_SIZES)]
