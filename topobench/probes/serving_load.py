"""
What is sent to a server and when: arrivals, lengths, prompts.

Standard library only; seeded, so that two windows differ in nothing but their prompts.
"""

from __future__ import annotations

import bisect
import itertools
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from topobench import user_files

ARRIVALS = ("closed", "constant", "poisson", "gamma")
BLOCK = 1000
"""Arrivals that are drawn together and stretched so that their mean rate is the one asked for."""
LENGTHS_HELP = "512, uniform:LOW-HIGH, lognormal:MEDIAN,SIGMA[,MAX], zipf:EXPONENT,MAX or file:PATH"
MOST_TOKENS = 1 << 20
_LARGEST_FILE = 1 << 24
_LOGNORMAL_SPREAD = 4.0
"""Standard deviations above the median at which a log-normal length is cut, unless told."""


def arrivals(kind: str, rate: float, burstiness: float, rng: random.Random) -> Iterator[float]:
    """
    When requests are due, in seconds from the start, without end.

    ``poisson`` is ``gamma`` with burstiness 1; below 1 requests come in bursts, above 1 more
    evenly. Each block of :data:`BLOCK` arrivals is stretched to its mean length, as a rate that
    differs by chance would be read as a difference between servers.

    Args:
        rate: Requests a second.
        burstiness: Shape of the gamma distribution of the time between requests.
    """
    if kind == "constant":
        yield from (n / rate for n in itertools.count(1))
        return
    shape = 1.0 if kind == "poisson" else burstiness
    length = BLOCK / rate
    for block in itertools.count():
        gaps = [rng.gammavariate(shape, 1.0) for _ in range(BLOCK)]
        factor = length / math.fsum(gaps)
        yield from (block * length + factor * at for at in itertools.accumulate(gaps))


@dataclass(frozen=True, slots=True)
class Lengths:
    """
    A distribution of token counts; made by :meth:`parse`.

    Args:
        spec: As written.
        mean: Expected value.
    """

    spec: str
    mean: float
    _draw: Callable[[random.Random], int]

    def draw(self, rng: random.Random) -> int:
        """One length, at least 1."""
        return self._draw(rng)

    @classmethod
    def parse(cls, spec: str) -> Lengths:
        """
        Read a distribution; a file is read when this is called.

        Raises:
            ValueError: Says what is accepted.
        """
        kind, _, rest = spec.strip().partition(":")
        try:
            if kind == "file":
                return _from_file(spec, Path(rest))
            numbers = [float(part) for part in rest.replace("-", ",").split(",")] if rest else []
            make = _KINDS.get(kind)
            if make is None:
                return _fixed(spec, int(kind))
            return make(spec, numbers)
        except (ValueError, TypeError, OverflowError) as error:
            told = f" ({error})" if kind in ("file", *_KINDS) else ""
            raise ValueError(f"{spec!r} is no length{told}; expected {LENGTHS_HELP}") from error


def _fixed(spec: str, count: int) -> Lengths:
    _check(count, count)
    return Lengths(spec, float(count), lambda _: count)


def _uniform(spec: str, numbers: Sequence[float]) -> Lengths:
    low, high = map(int, numbers)
    _check(low, high)
    return Lengths(spec, (low + high) / 2, lambda rng: rng.randint(low, high))


def _lognormal(spec: str, numbers: Sequence[float]) -> Lengths:
    median, sigma, *most = numbers
    top = int(most[0]) if most else int(median * math.exp(_LOGNORMAL_SPREAD * sigma))
    _check(int(median), top)
    if not 0 < sigma <= 3:
        raise ValueError("its sigma must be above 0 and at most 3")

    def draw(rng: random.Random) -> int:
        return min(top, max(1, round(rng.lognormvariate(math.log(median), sigma))))

    return Lengths(spec, min(float(top), median * math.exp(sigma * sigma / 2)), draw)


def _zipf(spec: str, numbers: Sequence[float]) -> Lengths:
    exponent, most = numbers
    top = int(most)
    _check(1, top)
    if not 0 < exponent <= 10:
        raise ValueError("its exponent must be above 0 and at most 10")
    weights = [k**-exponent for k in range(1, top + 1)]
    sums = list(itertools.accumulate(weights))
    mean = math.fsum(k * w for k, w in enumerate(weights, 1)) / sums[-1]
    return Lengths(spec, mean, lambda rng: bisect.bisect(sums, rng.random() * sums[-1]) + 1)


def _from_file(spec: str, path: Path) -> Lengths:
    """Whole numbers, one a line; drawn with equal chances."""
    try:
        data = user_files.read_regular(path, _LARGEST_FILE)
        found = [int(line) for line in data.decode().split()]
    except OSError as error:
        raise ValueError(f"it cannot be read: {error.strerror or error}") from error
    _check(min(found, default=0), max(found, default=0))
    return Lengths(spec, math.fsum(found) / len(found), lambda rng: rng.choice(found))


_KINDS: Mapping[str, Callable[[str, Sequence[float]], Lengths]] = {
    "uniform": _uniform,
    "lognormal": _lognormal,
    "zipf": _zipf,
}


def _check(low: int, high: int) -> None:
    if not 1 <= low <= high <= MOST_TOKENS:
        raise ValueError(f"lengths must be from 1 to {MOST_TOKENS}, the lower first")


WORDS = (
    *("the", "of", "and", "to", "in", "is", "you", "that", "it", "he", "was", "for", "on", "are"),
    *("as", "with", "his", "they", "at", "be", "this", "have", "from", "or", "one", "had", "by"),
    *("but", "not", "what", "all", "were", "we", "when", "your", "can", "said", "there", "use"),
    *("an", "each", "which", "she", "do", "how", "their", "if", "will", "up", "other", "about"),
    *("out", "many", "then", "them", "these", "so", "some", "her", "would", "make", "like", "him"),
)
"""Common words: one token each, with the space before it, for the usual tokenizers."""
_POOL = 1 << 15
_DIGITS = 4


class Prompts:
    """
    Prompts of so many units (token ids, or words), each different from its beginning on.

    The first units count the prompt, so that no two share a beginning and no prefix cache can
    serve one from another. With ``reuse``, that share of the prompts is taken from a few that
    were sent before.

    Args:
        as_ids: Token ids instead of words.
        vocabulary: Ids are drawn below it.
        nonce: Different for each window of each run.
        reuse: Share of prompts sent again.
    """

    def __init__(
        self,
        *,
        as_ids: bool,
        vocabulary: int,
        nonce: int,
        reuse: float = 0.0,
        pool: int = 16,
    ) -> None:
        rng = random.Random(nonce)
        lowest = min(vocabulary - 1, max(3, vocabulary // 100))  # the first ids are often special
        self._units = [str(i) for i in range(lowest, vocabulary)] if as_ids else list(WORDS)
        self._as_ids = as_ids
        self._between = "," if as_ids else " "
        drawn = rng.choices(self._units, k=_POOL)
        self._text = self._between.join(drawn)
        self._starts = list(itertools.accumulate((len(u) + 1 for u in drawn), initial=0))
        self._count = rng.randrange(len(self._units) ** _DIGITS)
        self._rng = rng
        self._reuse = reuse
        self._pool = pool
        self._kept: dict[int, list[str]] = {}

    def make(self, units: int) -> str:
        """A prompt as JSON text: a list of ids, or a string."""
        if self._reuse and self._rng.random() < self._reuse:
            kept = self._kept.setdefault(units, [])
            if len(kept) == self._pool:
                return self._rng.choice(kept)
            kept.append(self._new(units))
            return kept[-1]
        return self._new(units)

    def _new(self, units: int) -> str:
        self._count += 1
        rest, digits, base = self._count, [], len(self._units)
        for _ in range(min(_DIGITS, units)):
            rest, digit = divmod(rest, base)
            digits.append(self._units[digit])
        parts, left = digits, units - len(digits)
        while left > 0:
            start = self._rng.randrange(_POOL)
            end = min(start + left, _POOL)
            parts.append(self._text[self._starts[start] : self._starts[end] - 1])
            left -= end - start
        text = self._between.join(parts)
        return f"[{text}]" if self._as_ids else f'"{text}"'


@dataclass(frozen=True, slots=True)
class Scale:
    """
    How many tokens a server counts for so many units: ``tokens = fixed + each * units``.

    Args:
        known: The server told; else one token a unit is taken for granted.
    """

    fixed: float = 0.0
    each: float = 1.0
    known: bool = False

    def units(self, tokens: int) -> int:
        """The units whose tokens come nearest."""
        return max(1, round((tokens - self.fixed) / self.each))

    @classmethod
    def between(cls, small: tuple[int, int], large: tuple[int, int]) -> Scale:
        """
        From two prompts, each (units, tokens that the server counted).

        Raises:
            ValueError: The server counted no more tokens for the longer one.
        """
        each = (large[1] - small[1]) / (large[0] - small[0])
        if each <= 0:
            raise ValueError(
                f"{small[1]} and {large[1]} tokens for {small[0]} and {large[0]} units"
            )
        return cls(small[1] - each * small[0], each, True)
