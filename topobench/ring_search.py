"""
The best and the worst ring through all points of a matrix of whole numbers; pure.

A ring is judged by its smallest edge, then by the sum of its edges. Up to
:data:`EXACT_UP_TO` points the answer is exact (Held and Karp's dynamic programme over sets of
points visited); above, it is the best end of several local searches.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence

Weights = tuple[tuple[int, ...], ...]
Ring = tuple[int, ...]
_Key = Callable[[Sequence[int]], tuple[int, ...]]

EXACT_UP_TO = 10
_STARTS = 12
"""Local searches; each takes about n cubed steps a round."""


def best(weights: Weights) -> Ring:
    """The ring with the largest smallest edge, then the largest sum."""
    if len(weights) < 3:
        return tuple(range(len(weights)))
    if len(weights) > EXACT_UP_TO:
        return _local(weights, _best_key(weights), sign=1)
    limits = sorted(_edges(weights))
    low, high = 0, len(limits) - 1  # a ring through edges of at least limits[low] exists
    found = _through(weights, limits[0])
    while low < high:
        middle = (low + high + 1) // 2
        ring = _through(weights, limits[middle])
        if ring is None:
            high = middle - 1
        else:
            low, found = middle, ring
    assert found is not None  # every edge is at least the smallest
    return found


def worst(weights: Weights) -> Ring:
    """The ring with the smallest smallest edge, then the smallest sum."""
    if len(weights) < 3:
        return tuple(range(len(weights)))
    if len(weights) > EXACT_UP_TO:
        return _local(weights, _worst_key(weights), sign=-1)
    found = _Programme(_negated(weights), lowest=None, through=-min(_edges(weights))).ring()
    assert found is not None  # some ring takes any given edge
    return found


def _edges(weights: Weights) -> set[int]:
    return {w for i, row in enumerate(weights) for j, w in enumerate(row) if i != j}


def _negated(weights: Weights) -> Weights:
    return tuple(tuple(-w for w in row) for row in weights)


def _through(weights: Weights, lowest: int) -> Ring | None:
    """The ring of largest sum through edges of at least ``lowest``."""
    return _Programme(weights, lowest=lowest, through=None).ring()


class _Programme:
    """
    The ring of largest sum that starts and ends at 0.

    Args:
        lowest: No edge is smaller; None: any may be taken.
        through: Some edge has this weight; None: none need have.
    """

    def __init__(self, weights: Weights, *, lowest: int | None, through: int | None) -> None:
        self._weights = weights
        self._lowest = lowest
        self._through = through
        self._all = (1 << len(weights)) - 1
        self._known: dict[tuple[int, int, bool], int | None] = {}

    def ring(self) -> Ring | None:
        """The first in lexical order of those with the largest sum; None if there is none."""
        visited, last, done, order = 1, 0, self._through is None, [0]
        left = self._rest(visited, last, done)
        if left is None:
            return None
        while visited != self._all:
            for point, weight, then in self._steps(visited, last, done):
                after = self._rest(visited | 1 << point, point, then)
                if after is not None and weight + after == left:
                    visited, last, done, left = visited | 1 << point, point, then, after
                    order.append(point)
                    break
        return tuple(order)

    def _steps(self, visited: int, last: int, done: bool) -> Iterator[tuple[int, int, bool]]:
        for point, weight in enumerate(self._weights[last]):
            if not visited >> point & 1 and (self._lowest is None or weight >= self._lowest):
                yield point, weight, done or weight == self._through

    def _rest(self, visited: int, last: int, done: bool) -> int | None:
        """The largest sum of the way from ``last`` through all other points to 0."""
        key = visited, last, done
        if key not in self._known:
            self._known[key] = self._rest_of(visited, last, done)
        return self._known[key]

    def _rest_of(self, visited: int, last: int, done: bool) -> int | None:
        if visited == self._all:
            closing = self._weights[last][0]
            fits = self._lowest is None or closing >= self._lowest
            return closing if fits and (done or closing == self._through) else None
        found: int | None = None
        for point, weight, then in self._steps(visited, last, done):
            after = self._rest(visited | 1 << point, point, then)
            if after is not None and (found is None or weight + after > found):
                found = weight + after
        return found


def _ring_edges(ring: Sequence[int], weights: Weights) -> list[int]:
    return [weights[a][b] for a, b in zip(ring, (*ring[1:], ring[0]), strict=True)]


def _best_key(weights: Weights) -> _Key:
    def key(ring: Sequence[int]) -> tuple[int, ...]:
        edges = _ring_edges(ring, weights)
        slowest = min(edges)
        # Fewer slowest edges leads a search out of plateaus; it never beats a better ring.
        return slowest, -edges.count(slowest), sum(edges)

    return key


def _worst_key(weights: Weights) -> _Key:
    def key(ring: Sequence[int]) -> tuple[int, ...]:
        edges = _ring_edges(ring, weights)
        return -min(edges), -sum(edges)

    return key


def _local(weights: Weights, key: _Key, *, sign: int) -> Ring:
    """The best of several searches from greedy rings and from 0, 1, 2 ..."""
    size = len(weights)
    generator = random.Random(size)
    starts = generator.sample(range(size), min(_STARTS, size))
    rings = [list(range(size)), *(_greedy(weights, start, sign) for start in starts)]
    score = _best_score(weights) if sign > 0 else key
    return max((_climbed(ring, key) for ring in rings), key=score)


def _best_score(weights: Weights) -> _Key:
    def score(ring: Sequence[int]) -> tuple[int, ...]:
        edges = _ring_edges(ring, weights)
        return min(edges), sum(edges)

    return score


def _greedy(weights: Weights, start: int, sign: int) -> list[int]:
    """Always on to the point with the best edge."""
    ring, left = [start], set(range(len(weights))) - {start}
    while left:
        row = weights[ring[-1]]
        ring.append(max(sorted(left), key=lambda point: sign * row[point]))
        left.remove(ring[-1])
    return ring


def _climbed(ring: list[int], key: _Key) -> Ring:
    """A ring that no reversal of a part and no move of a part makes better."""
    current, value = ring, key(ring)
    while True:
        better = next(
            ((other, v) for other in _neighbours(current) if (v := key(other)) > value), None
        )
        if better is None:
            start = current.index(0)
            return (*current[start:], *current[:start])
        current, value = better


def _neighbours(ring: list[int]) -> Iterator[list[int]]:
    """Rings with one part reversed, then rings with up to three points moved elsewhere."""
    size = len(ring)
    for i in range(size - 1):
        for j in range(i + 2, size + 1):
            yield ring[:i] + ring[i:j][::-1] + ring[j:]
    for length in (1, 2, 3):
        for i in range(size - length + 1):
            part, rest = ring[i : i + length], ring[:i] + ring[i + length :]
            for at in range(1, len(rest) + 1):
                yield rest[:at] + part + rest[at:]
