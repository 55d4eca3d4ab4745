"""
Parse and format bytes, durations, counts, rates and lists of CPUs.

Reading: ``K M G T P`` and ``KiB MiB ...`` are powers of 1024, ``kB KB MB GB ...`` powers of
1000. Writing: sizes in KiB, MiB, GiB (2^10, 2^20, 2^30), rates in GB/s (1e9 bytes a second).
Inside the program every number is in its base unit.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from decimal import Decimal, InvalidOperation

_STEPS = "KMGTPE"
_BYTE_UNITS = {"": 1, "B": 1}
_BYTE_UNITS |= {f"{s}{end}": 1024 ** (i + 1) for i, s in enumerate(_STEPS) for end in ("", "iB")}
_BYTE_UNITS |= {f"{s}B": 1000 ** (i + 1) for i, s in enumerate(_STEPS)}
_DECIMAL_UNITS = {"": 1} | {s: 1000 ** (i + 1) for i, s in enumerate(_STEPS)}
_SECOND_UNITS = {
    "ns": Decimal("1e-9"),
    "us": Decimal("1e-6"),
    "ms": Decimal("1e-3"),
    "s": Decimal(1),
    "m": Decimal(60),
    "h": Decimal(3600),
    "d": Decimal(86400),
}
_NUMBER = r"[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,3})?"
_QUANTITY = re.compile(rf"({_NUMBER})\s*([A-Za-zµ]*)", re.ASCII)
_DURATION_PART = re.compile(rf"({_NUMBER})\s*(ns|us|µs|ms|s|m|h|d)\s*")

BYTES_HELP = "a size such as 8K, 64 MiB, 1GB or 4096"
DURATION_HELP = "a duration such as 90s, 10m or 1h30m"
RATE_HELP = "a rate such as 25 GB/s or 1e9"


def parse_bytes(text: str) -> int:
    """
    Bytes of a size: ``8K`` = ``8KiB`` = 8192, ``1GB`` = ``1e9`` = 1000000000.

    Raises:
        ValueError: Not a size, negative, bits, or not a whole number of bytes.
    """
    number, unit = _quantity(text, BYTES_HELP)
    if re.fullmatch(r"[A-Za-z]i?b(it)?s?|bits?|b", unit):
        raise ValueError(f"{text!r} is in bits; write bytes, {BYTES_HELP}")
    factor = _BYTE_UNITS.get(unit) or _BYTE_UNITS.get(unit[:1].upper() + unit[1:])
    if factor is None:
        raise ValueError(f"{text!r} has the unknown unit {unit!r}; expected {BYTES_HELP}")
    return _whole(number * factor, text, "bytes")


def parse_count(text: str) -> int:
    """
    A whole number from 0: ``12``, ``1e3``, ``5K`` = 5000.

    Raises:
        ValueError: Not a number, negative, or with a fraction.
    """
    number, unit = _quantity(text, "a whole number")
    factor = _DECIMAL_UNITS.get(unit.upper())
    if factor is None:
        raise ValueError(f"{text!r} is not a whole number")
    return _whole(number * factor, text, "a count")


def parse_number(text: str) -> float:
    """
    A number from 0 without a unit: ``0.5``, ``12``, ``1e3``.

    Raises:
        ValueError: Not a number, negative, or with a unit.
    """
    number, unit = _quantity(text, "a number")
    if unit:
        raise ValueError(f"{text!r} has the unit {unit!r}; expected a plain number")
    return float(number)


def parse_duration(text: str) -> float:
    """
    Seconds of a duration: ``90s``, ``10m``, ``1h30m``, ``250us``.

    Raises:
        ValueError: Not a duration, no unit, or clock notation (``7:30`` could be two things).
    """
    stripped = text.strip()
    if stripped.startswith("-"):
        raise ValueError(f"{text!r} is negative; expected {DURATION_HELP}")
    if ":" in stripped:
        raise ValueError(f"{text!r} can be read in two ways; write 7m30s or 7h30m")
    if re.fullmatch(_NUMBER, stripped):
        raise ValueError(f"{text!r} has no unit; expected {DURATION_HELP}")
    total, at = Decimal(0), 0
    while part := _DURATION_PART.match(stripped, at):
        total += Decimal(part[1]) * _SECOND_UNITS[part[2].replace("µ", "u")]
        at = part.end()
    if not stripped or at != len(stripped):
        raise ValueError(f"{text!r} is not a duration; expected {DURATION_HELP}")
    return float(total)


def parse_rate(text: str) -> float:
    """
    Bytes a second of a rate: ``25 GB/s`` = ``25e9``, ``10 GiB/s``.

    Raises:
        ValueError: Not a rate; network rates in bits are refused, never guessed.
    """
    stripped = text.strip()
    if re.search(r"bps$|bits?/s$|[KMGT]i?b/s$", stripped):
        raise ValueError(f"{text!r} is in bits a second; write bytes, {RATE_HELP}")
    try:
        return float(parse_bytes(stripped.removesuffix("/s")))
    except ValueError:
        raise ValueError(f"{text!r} is not a rate; expected {RATE_HELP}") from None


def format_bytes(size: float) -> str:
    """``8 KiB``, ``1.5 GiB``, ``1000 B``: the largest unit of 1024 that leaves 1 or more."""
    power = 0
    while power < len(_STEPS) and abs(size) >= 1024 ** (power + 1):
        power += 1
    unit = f"{_STEPS[power - 1]}iB" if power else "B"
    return f"{_short(size / 1024**power, decimals=2)} {unit}"


def format_rate(bytes_per_second: float) -> str:
    """``25.3 GB/s``: always 1e9 bytes a second, three or more figures."""
    gigabytes = bytes_per_second / 1e9
    return f"{_figures(gigabytes)} GB/s"


def format_seconds(seconds: float) -> str:
    """``12.3 us``, ``1.25 ms``, ``90 s``: the unit that leaves 1 or more."""
    size = abs(seconds)
    for limit, factor, unit in ((999.5e-9, 1e9, "ns"), (999.5e-6, 1e6, "us"), (0.9995, 1e3, "ms")):
        if 0 < size < limit:
            return f"{_figures(seconds * factor)} {unit}"
    return f"{_figures(seconds)} s"


def format_span(seconds: float) -> str:
    """A duration for plans and progress: ``45 s``, ``12 min``, ``2 h 05 min``."""
    whole = math.ceil(seconds)
    if whole < 120:
        return f"{whole} s"
    minutes = math.ceil(seconds / 60)
    if minutes < 120:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def format_limit(seconds: float) -> str:
    """A duration that somebody set, as it is: ``500 ms``, ``2 min 30 s``, ``2 h 05 min``."""
    if seconds < 1:
        return format_seconds(seconds)
    if seconds < 120:
        return f"{_short(seconds, decimals=3)} s"
    minutes, left = divmod(seconds, 60)
    text = (
        f"{minutes:.0f} min" if minutes < 120 else f"{minutes // 60:.0f} h {minutes % 60:02.0f} min"
    )
    return f"{text} {_short(left, decimals=3)} s" if left else text


def format_elapsed(seconds: float) -> str:
    """A duration that was measured: ``45 s``, ``11 min 05 s``, ``2 h 05 min``; never rounded up."""
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 2:
        return f"{round(seconds)} s"
    if minutes < 120:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def format_percent(ratio: float) -> str:
    """``3.2 %`` of a ratio of 0.032; ``+``/``-`` only as the number has it."""
    return f"{ratio * 100:.1f} %"


def _quantity(text: str, expected: str) -> tuple[Decimal, str]:
    stripped = text.strip()
    if not stripped:
        raise ValueError(f"empty; expected {expected}")
    if stripped.startswith("-"):
        raise ValueError(f"{text!r} is negative; expected {expected}")
    match = _QUANTITY.fullmatch(stripped.removeprefix("+"))
    if match is None:
        raise ValueError(f"{text!r} is not understood; expected {expected}")
    try:
        return Decimal(match[1]), match[2]
    except InvalidOperation as error:
        raise ValueError(f"{text!r} is not a number; expected {expected}") from error


def _whole(value: Decimal, text: str, what: str) -> int:
    if value >= Decimal(2) ** 63:
        raise ValueError(f"{text!r} is too large for {what}")
    if value != value.to_integral_value():
        raise ValueError(f"{text!r} is not a whole number of {what}")
    return int(value)


def _figures(value: float) -> str:
    """Three significant figures without an exponent; all digits before the point."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    decimals = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:.{min(decimals, 9)}f}"


def _short(value: float, *, decimals: int) -> str:
    """At most ``decimals`` decimals, without trailing zeros."""
    text = f"{value:.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


_MOST_CPUS = 1 << 20


def parse_cpu_list(text: str | None) -> tuple[int, ...]:
    """
    CPUs of a Linux list string, ascending; empty text is no CPU.

    Raises:
        ValueError: It is not a list of numbers and ranges, or has numbers beyond any machine's.
    """
    found: set[int] = set()
    for part in (text or "").replace("\n", "").replace(" ", "").split(","):
        if not part:
            continue
        span, _, step = part.partition(":")
        first, dash, last = span.partition("-")
        low, high = int(first), int(last if dash else first)
        if high < low:
            raise ValueError(f"bad CPU range {part!r}")
        if high >= _MOST_CPUS:  # each number is kept: a large one would fill the memory
            raise ValueError(f"bad CPU range {part!r}: no machine has so many CPUs")
        used, _, group = step.partition("/")
        if step and int(group or 0) < 1:
            raise ValueError(f"bad CPU range {part!r}")
        if step:  # "0-31:2/8": the first 2 of every 8
            found.update(c for c in range(low, high + 1) if (c - low) % int(group) < int(used))
        else:
            found.update(range(low, high + 1))
    return tuple(sorted(found))


def format_cpu_list(cpus: Iterable[int]) -> str:
    """The canonical list string: ascending, runs joined ("0-3,8")."""
    runs: list[list[int]] = []
    for cpu in sorted(set(cpus)):
        if runs and cpu == runs[-1][1] + 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def count(number: int, one: str) -> str:
    """``1 host``, ``3 hosts``."""
    return f"{number} {one}" if number == 1 else f"{number} {one}s"
