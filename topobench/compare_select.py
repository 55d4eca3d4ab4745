"""
What a side of a comparison is: ``sweep:1a2b``, ``host:h07,date:2026-11-01..2026-11-07``.

Pure: text in, :class:`Selector` out. ``db.selecting`` finds what the words mean in a store.
"""

from __future__ import annotations

import datetime
import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from topobench.errors import UsageError

KEYS = ("sweep", "host", "cluster", "sku", "driver", "date")
EXAMPLE = "sweep:1a2b3c4d, host:h07, driver:580.95 or date:2026-11-01..2026-11-07"

_COMMA = re.compile(rf",(?=\s*(?:(?:{'|'.join(KEYS)}):|\d{{4}}-\d{{2}}-\d{{2}}|\.\.\d))")
"""Before a key or a date only: the name of an SKU may hold commas."""
_DAY = re.compile(r"\d{4}-\d{2}-\d{2}")
_BARE_DATE = re.compile(r"(\d{4}-\d{2}-\d{2})?\.\.(\d{4}-\d{2}-\d{2})?|\d{4}-\d{2}-\d{2}")


@dataclass(frozen=True, slots=True)
class Days:
    """UTC days, both ends included; None where it is open."""

    first: str | None
    last: str | None

    def __str__(self) -> str:
        if self.first == self.last:
            return str(self.first)
        return f"{self.first or ''}..{self.last or ''}"


@dataclass(frozen=True, slots=True)
class Selector:
    """
    The measurements that a text selects: values of one key are alternatives, keys restrict.

    Args:
        text: As typed.
        words: Values by key, as typed; all of :data:`KEYS` but ``date``.
        days: Days on which sweeps began; None for all.
        bare: A word without a key, whose meaning only the store can tell.
    """

    text: str
    words: Mapping[str, tuple[str, ...]]
    days: Days | None = None
    bare: str | None = None

    def get(self, key: str) -> tuple[str, ...]:
        """The values of a key; none if it was not given."""
        return self.words.get(key, ())


def parse(text: str) -> Selector:
    """
    Read a selector.

    Raises:
        UsageError: An unknown key, an empty value, a date that is none, two words without key.
    """
    words: dict[str, tuple[str, ...]] = {}
    days: Days | None = None
    bare: str | None = None
    for part in (p.strip() for p in _COMMA.split(text)):
        key, value = _pair(text, part)
        if key is None and not _BARE_DATE.fullmatch(value):
            if bare is not None:
                raise UsageError(f"{text!r}: {bare!r} and {value!r} have no key; {_expected()}")
            bare = value
        elif key in (None, "date"):
            if days is not None:
                raise UsageError(f"{text!r}: date is given twice; write one range, FIRST..LAST")
            days = parse_days(value)
        elif key is not None:
            words[key] = (*words.get(key, ()), value)
    return Selector(text, words, days, bare)


def parse_days(text: str) -> Days:
    """
    Days of ``2026-11-01``, ``2026-11-01..2026-11-07``, ``2026-11-01..`` or ``..2026-11-07``.

    Raises:
        UsageError: A day that does not exist, or a range that ends before it begins.
    """
    first, dots, last = (p.strip() for p in text.partition(".."))
    ends = (first, last) if dots else (first, first)
    if not any(ends):
        raise UsageError(f"date:{text}: names no day; write 2026-11-01 or 2026-11-01..2026-11-07")
    begin, end = (_day(text, e) if e else None for e in ends)
    if begin and end and end < begin:
        raise UsageError(f"date:{text}: ends before it begins")
    return Days(begin, end)


def without(selector: Selector, key: str) -> Selector:
    """The same selector without what a key asked for."""
    words = {k: v for k, v in selector.words.items() if k != key}
    return Selector(selector.text, words, selector.days, selector.bare)


def meant(text: str, meanings: Sequence[str], known: Sequence[str]) -> str:
    """
    The one meaning of a word without a key.

    Args:
        meanings: Each as ``key:value``.
        known: Words that would have had a meaning, for a hint.

    Raises:
        UsageError: There is none, or more than one; the message lists them.
    """
    if len(meanings) == 1:
        return meanings[0]
    if meanings:
        raise UsageError(f"{text!r} can mean {', '.join(meanings)}; write one of them")
    close = difflib.get_close_matches(text, known, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else f"; {_expected()}"
    raise UsageError(f"{text!r} is no sweep, host, cluster, SKU or driver of this store{hint}")


def _pair(text: str, part: str) -> tuple[str | None, str]:
    """Key and value; no key for a word alone."""
    key, colon, value = part.partition(":")
    if not part:
        raise UsageError(f"{text!r} has an empty part; {_expected()}")
    if not colon:
        return None, part
    if key not in KEYS:
        if re.fullmatch(r"[a-z_]+", key):
            close = difflib.get_close_matches(key, KEYS, n=1)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise UsageError(f"{part!r}: unknown key {key!r}; keys are {', '.join(KEYS)}{hint}")
        return None, part  # a name that holds a colon, such as an address
    if not value.strip():
        raise UsageError(f"{part!r} has no value; {_expected()}")
    return key, value.strip()


def _day(text: str, day: str) -> str:
    try:
        if not _DAY.fullmatch(day):
            raise ValueError(day)
        return datetime.date.fromisoformat(day).isoformat()
    except ValueError as error:
        raise UsageError(f"date:{text}: {day!r} is no day; write it as 2026-11-01") from error


def _expected() -> str:
    return f"expected KEY:VALUE such as {EXAMPLE}"
