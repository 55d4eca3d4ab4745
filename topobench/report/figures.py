"""Numbers as people read them: one unit a column, decimal points under each other."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from topobench.reading import UNITS
from topobench.report.safe import clean
from topobench.stats import Estimate
from topobench.units import format_bytes, format_percent, format_seconds

UNKNOWN = "-"
"""What stands for a value that is not known; never 0."""


@dataclass(frozen=True, slots=True)
class Scale:
    """A printed unit: ``value * factor`` is the number before ``unit``."""

    factor: float
    unit: str


_FIXED = {
    "B/s": Scale(1e-9, "GB/s"),
    "token/s": Scale(1, "token/s"),
    "request/s": Scale(1, "request/s"),
    "W": Scale(1, "W"),
    "J": Scale(1, "J"),
    "Cel": Scale(1, "C"),
}
_STEPPED = {
    "s": (Scale(1, "s"), Scale(1e3, "ms"), Scale(1e6, "us"), Scale(1e9, "ns")),
    "FLOP/s": (Scale(1e-12, "TFLOP/s"), Scale(1e-9, "GFLOP/s")),
    "FLOP": (Scale(1e-12, "TFLOP"), Scale(1e-9, "GFLOP"), Scale(1e-6, "MFLOP")),
    "Hz": (Scale(1e-9, "GHz"), Scale(1e-6, "MHz")),
    "B": tuple(
        Scale(1 / 1024**power, unit)
        for power, unit in ((3, "GiB"), (2, "MiB"), (1, "KiB"), (0, "B"))
    ),
}


def scale_for(metric: str, values: Iterable[float | None]) -> Scale:
    """The unit in which the smallest of a metric's values is 1 or more, if there is one."""
    if metric.endswith("_ratio"):
        return Scale(100, "%")
    unit = "FLOP" if metric.endswith("_flop_count") else unit_of(metric)
    if unit in _FIXED:
        return _FIXED[unit]
    steps = _STEPPED.get(unit, (Scale(1, ""),))
    sizes = [abs(v) for v in values if v and math.isfinite(v)]
    smallest = min(sizes, default=1.0)
    return next((s for s in steps if smallest * s.factor >= 1), steps[-1])


def unit_of(name: str) -> str:
    """The stored unit that a name's suffix says, or an empty text."""
    return next((u for suffix, u in UNITS.items() if _ends_in(name, suffix)), "")


def number(value: float | None, scale: Scale) -> str:
    """
    Four figures and at most three decimals; two figures below 0.1; whole counts as they are.

    What would have more than fifteen digits or zeros is given by its power of ten.
    """
    if value is None or not math.isfinite(value):
        return UNKNOWN
    scaled = value * scale.factor
    if isinstance(value, float) and scaled and not 1e-9 <= abs(scaled) < 1e15:
        return f"{scaled:.4g}"
    if scaled == 0 or (not scale.unit and scaled == int(scaled)):
        return str(int(scaled))
    power = math.floor(math.log10(abs(scaled)))
    decimals = min(3, 3 - power) if power >= -1 else 1 - power
    return f"{scaled:.{max(0, decimals)}f}"


def aligned(texts: Sequence[str]) -> list[str]:
    """The numbers padded on the right so that their decimal points meet."""
    fractions = [len(t) - t.index(".") if "." in t else 0 for t in texts]
    longest = max(fractions, default=0)
    return [t + " " * (longest - f) for t, f in zip(texts, fractions, strict=True)]


def signed_percent(ratio: float | None) -> str:
    """A relative change: ``-3.1 %``."""
    return UNKNOWN if ratio is None else f"{100 * ratio:+.1f} %"


def half_width(estimate: Estimate) -> str:
    """Half the interval's width as a share of the value; unknown where an end is open."""
    if estimate.lo is None or estimate.hi is None or estimate.value <= 0:
        return UNKNOWN
    return f"+/-{format_percent((estimate.hi - estimate.lo) / 2 / estimate.value)}"


def quantity(name: str, value: Any) -> str:
    """One value with the unit that the name's suffix says: ``64 KiB``, ``12.3 us``."""
    if value is None:
        return UNKNOWN
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, int | float) or not math.isfinite(value):
        return clean(value)
    if name.endswith("_ratio"):
        return format_percent(value)
    unit = unit_of(name)
    if unit == "B":
        return format_bytes(value)
    if unit == "s":
        return format_seconds(value)
    if unit in ("", "1"):
        return f"{value:g}" if isinstance(value, float) else str(value)
    scale = scale_for(name, [value])
    return f"{number(value, scale)} {scale.unit}".strip()


_COUNTED = {"kernel_launch_count": "kernel launches", "all_reduce_count": "all-reduces"}


def label(name: str) -> str:
    """A name without its unit, in words: ``chunk_bytes`` is "chunk"."""
    if name in _COUNTED:
        return _COUNTED[name]
    for suffix in UNITS:
        if name.endswith(f"_{suffix}"):
            return clean(name.removesuffix(f"_{suffix}").replace("_", " "))
    return "size" if name == "bytes" else clean(name.replace("_", " "))


def metric_labels(metrics: Iterable[str]) -> Mapping[str, str]:
    """
    Labels of metrics printed side by side.

    Beside ``per_call_X``, plain ``X`` is the device-limited figure and called "queued".
    """
    names = list(metrics)
    return {m: f"queued {label(m)}" if f"per_call_{m}" in names else label(m) for m in names}


def _ends_in(name: str, suffix: str) -> bool:
    return name == suffix or name.endswith(f"_{suffix}")
