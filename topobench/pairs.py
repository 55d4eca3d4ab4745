"""
Which pairs of hosts meet when: rounds in which every host has at most one partner; pure.

The circle method: all hosts but one go round in a circle, and those opposite each other meet.
After n - 1 rounds (n, where n is odd and one host rests each time) every pair has met once.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

Pair = tuple[int, int]
EVERY_PAIR_UP_TO = 64
"""Hosts up to which the profile *full* has every pair meet."""


def _round_count(count: int) -> int:
    return count + count % 2 - 1 if count > 1 else 0


def _round(count: int, number: int) -> list[Pair]:
    """Who meets after so many steps round the circle."""
    even = count + count % 2
    circle = [0, *((place - number) % (even - 1) + 1 for place in range(even - 1))]
    opposite = zip(circle[: even // 2], reversed(circle[even // 2 :]), strict=True)
    met = (_ordered(a, b) for a, b in opposite)
    return [pair for pair in met if pair[1] < count]  # the one too many rests


def rounds(count: int, generator: random.Random, *, every: bool) -> list[list[Pair]]:
    """
    The rounds to measure, in random order, over randomly numbered hosts.

    Args:
        every: All of them; else, and beyond 64 hosts, ceil(log2 n) + 2 of them: enough for
            each host to meet several others, whose faults would have to coincide.
    """
    seats = generator.sample(range(count), count)
    numbers = generator.sample(range(_round_count(count)), _round_count(count))
    if not every or count > EVERY_PAIR_UP_TO:
        numbers = numbers[: enough_rounds(count)]
    return [[_ordered(seats[a], seats[b]) for a, b in _round(count, n)] for n in numbers]


def enough_rounds(count: int) -> int:
    """ceil(log2 n) + 2."""
    return math.ceil(math.log2(count)) + 2 if count > 1 else 0


def again(
    suspects: Sequence[int], good: Sequence[int], met: set[Pair], generator: random.Random
) -> list[Pair]:
    """
    One more partner for each suspect: a good host that it has not met, if there is one.

    Args:
        met: Pairs that were measured, the lower number first.
    """
    found = []
    for suspect in suspects:
        partners = [g for g in good if _ordered(suspect, g) not in met and g != suspect]
        if partners:
            found.append(_ordered(suspect, generator.choice(partners)))
    return list(dict.fromkeys(found))


def _ordered(a: int, b: int) -> Pair:
    return (a, b) if a < b else (b, a)
