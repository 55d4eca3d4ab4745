"""
A benchmark of the user's own: what to run, and which numbers its output holds.

It travels from cluster.yaml to a worker as one text in its case, so that a sweep can be
repeated anywhere; the digest of that text tells two definitions of one name apart. Pure.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from topobench.reading import UNITS, Better, Metric, canonical_text

PROBE = "command"
GPUS = ("none", "each", "all")
DIRECTIONS = {"higher": Better.HIGHER, "lower": Better.LOWER, "neither": Better.NEITHER}
_DIGEST_LETTERS = 12

SCALES: Mapping[str, tuple[str, float]] = {
    **{suffix: (suffix, 1.0) for suffix in UNITS},
    **{unit: ("seconds", f) for unit, f in {"s": 1, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}.items()},
    **{
        f"{prefix}B{per}": (f"bytes{name}", float(factor))
        for per, name in (("", ""), ("/s", "_per_second"))
        for prefix, factor in {
            "": 1,
            "k": 10**3,
            "M": 10**6,
            "G": 10**9,
            "T": 10**12,
            "Ki": 2**10,
            "Mi": 2**20,
            "Gi": 2**30,
            "Ti": 2**40,
        }.items()
    },
    **{
        f"{prefix}FLOP/s": ("flop_per_second", factor)
        for prefix, factor in {"": 1.0, "G": 1e9, "T": 1e12, "P": 1e15}.items()
    },
    "token/s": ("tokens_per_second", 1.0),
    "tokens/s": ("tokens_per_second", 1.0),
    "%": ("ratio", 0.01),
    "1": ("ratio", 1.0),
    "W": ("watts", 1.0),
    "J": ("joules", 1.0),
    "C": ("celsius", 1.0),
    "Hz": ("hertz", 1.0),
    "MHz": ("hertz", 1e6),
    "GHz": ("hertz", 1e9),
}
"""A unit as users write it -> the ending of the metric's name, and the factor to that unit."""

_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
_LONGEST_LINE = 1 << 16


@dataclass(frozen=True, slots=True)
class CommandMetric:
    """
    A number that a command prints.

    Args:
        pattern: Regular expression with one group, the number; None: it comes in JSON lines.
        unit: A key of :data:`SCALES`.
    """

    name: str
    unit: str
    better: Better
    pattern: str | None = None

    @property
    def metric(self) -> Metric:
        """As it is stored: the unit at the end of its name."""
        suffix = SCALES[self.unit][0]
        ends = self.name == suffix or self.name.endswith(f"_{suffix}")
        return Metric(self.name if ends else f"{self.name}_{suffix}", self.better, "of a command")

    @property
    def factor(self) -> float:
        """From the printed unit to the stored one."""
        return SCALES[self.unit][1]


@dataclass(frozen=True, slots=True)
class Definition:
    """
    A command of the user, as the section ``commands:`` describes it.

    Args:
        argv: Program and arguments; no shell reads them.
        version: Program and arguments that print its version; empty if none does.
        env: On top of the worker's environment.
        environments: Further settings that are compared as arms, each on top of ``env``.
        folder: Where it runs; None: a new empty folder.
        gpus: ``none``, ``each`` GPU alone, or ``all`` in one process.
        seconds: About how long it takes.
        timeout_seconds: It is ended after so long.
    """

    name: str
    argv: tuple[str, ...]
    metrics: tuple[CommandMetric, ...] = ()
    version: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    environments: tuple[Mapping[str, str], ...] = ()
    folder: str | None = None
    gpus: str = "none"
    seconds: float = 60.0
    timeout_seconds: float = 600.0

    @property
    def text(self) -> str:
        """All of it as canonical JSON."""
        return canonical_text(self)

    @property
    def digest(self) -> str:
        """The beginning of the SHA-256 of :attr:`text`."""
        return digest_of(self.text)

    @property
    def settings(self) -> tuple[Mapping[str, str], ...]:
        """
        Variables of each arm, in the order of :attr:`environments`; at least an empty one.

        One that another arm sets and this one does not has its value of :attr:`env`.
        """
        names = {name for env in self.environments for name in env}
        common = {k: v for k, v in self.env.items() if k in names}
        return tuple({**common, **env} for env in self.environments) or ({},)

    @classmethod
    def from_text(cls, text: str) -> Definition:
        """
        Read what :attr:`text` gave.

        Raises:
            ValueError: It is no definition.
        """
        try:
            value: dict[str, Any] = json.loads(text)
            metrics = tuple(
                CommandMetric(m["name"], m["unit"], Better(m["better"]), m["pattern"])
                for m in value["metrics"]
            )
            lists = {k: tuple(value[k]) for k in ("argv", "version", "environments")}
            return cls(**{**value, **lists, "metrics": metrics})
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"no definition of a command: {error!r}") from error


def digest_of(text: str) -> str:
    """So much of the SHA-256 of a definition's text that no two of them have it by chance."""
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_LETTERS]


def metric_of(name: str, unit: str, better: str, pattern: str | None = None) -> CommandMetric:
    """
    A metric from what users write.

    Raises:
        ValueError: Says what is accepted.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no metric; use small letters, digits and '_'")
    if unit not in SCALES:
        raise ValueError(f"{unit!r} is no unit; accepted are {', '.join(SCALES)}")
    if better not in DIRECTIONS:
        raise ValueError(f"{better!r} is no direction; accepted are {', '.join(DIRECTIONS)}")
    if pattern is not None:
        check_pattern(pattern)
    return CommandMetric(name, unit, DIRECTIONS[better], pattern)


def check_pattern(pattern: str) -> None:
    """
    Refuse what is no regular expression with one group.

    Raises:
        ValueError: Says what is wrong.
    """
    try:
        groups = re.compile(pattern).groups
    except re.error as error:
        raise ValueError(f"{pattern!r} is no regular expression: {error}") from error
    if groups != 1:
        raise ValueError(
            f"{pattern!r} has {groups} groups; it needs one, around the number, such as "
            "'([0-9.]+) tok/s'; write (?:...) for others"
        )


def values(definition: Definition, output: str) -> dict[CommandMetric, list[float]]:
    """
    The numbers of an output in stored units, in printed order.

    Raises:
        ValueError: A number or line that cannot be read, or a metric that never came.
    """
    found: dict[CommandMetric, list[float]] = {m: [] for m in definition.metrics}
    for metric in definition.metrics:
        if metric.pattern is not None:
            matches = re.finditer(metric.pattern, output, re.MULTILINE)
            found[metric] = [_number(m[1], metric) for m in matches]
    for metric, value in _json_values(definition, output):
        found.setdefault(metric, []).append(value)
    _check(found)
    return found


def _check(found: Mapping[CommandMetric, Sequence[float]]) -> None:
    absent = [m.name for m, numbers in found.items() if not numbers]
    if absent:
        raise ValueError(f"its output holds no {', '.join(absent)}")
    names = [m.metric.name for m in found]
    twice = sorted({n for n in names if names.count(n) > 1})
    if twice:
        raise ValueError(f"{', '.join(twice)}: came with two units, directions or patterns")


def _json_values(definition: Definition, output: str) -> Iterator[tuple[CommandMetric, float]]:
    """Numbers of lines that are JSON objects with the key ``metric``; other lines are its own."""
    declared = {m.name: m for m in definition.metrics if m.pattern is None}
    for line in output.splitlines():
        text = line.strip()
        if not text.startswith("{") or len(text) > _LONGEST_LINE:
            continue
        try:
            told = json.loads(text)
        except ValueError:
            continue
        if "metric" not in told:
            continue
        metric = _told_metric(told, declared)
        yield metric, _number(told.get("value"), metric)


def _told_metric(told: Mapping[str, Any], declared: Mapping[str, CommandMetric]) -> CommandMetric:
    name = str(told["metric"])
    known = declared.get(name)
    missing = [k for k in ("unit", "better") if k not in told and known is None]
    if missing:
        raise ValueError(f"the line of {name!r} names no {' and no '.join(missing)}")
    if known is None:
        return metric_of(name, str(told["unit"]), str(told["better"]))
    directions = {v: k for k, v in DIRECTIONS.items()}
    return metric_of(
        name, str(told.get("unit", known.unit)), str(told.get("better", directions[known.better]))
    )


def _number(value: object, metric: CommandMetric) -> float:
    try:
        number = float(str(value)) if not isinstance(value, bool) else math.nan
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"{metric.name}: {value!r} is no number")
    return number * metric.factor
