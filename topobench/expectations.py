"""
Published figures of GPUs and nodes, and which measured ones are far from them. Pure.

Advice, never a verdict: nearly every figure rests on one source, and its method is another.
"""

from __future__ import annotations

import enum
import functools
import importlib.resources
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from topobench import yaml_strict
from topobench.accept_criteria import parse_value
from topobench.config_fields import Fields, Parsers, one_of, parameters, strings, value_of
from topobench.device_figures import DeviceFigure
from topobench.errors import ConfigError
from topobench.probes import registry
from topobench.reading import Better, Scalar
from topobench.units import parse_bytes, parse_count
from topobench.yaml_strict import Node

FILE = "expectations.yaml"
ABOVE, BELOW = 1.05, 0.8
"""Shares of an expected figure from which a measured one is told."""


class Kind(enum.StrEnum):
    """What a figure is."""

    MEASURED = "measured"
    FLOOR = "floor"
    THEORY = "theory"


@dataclass(frozen=True, slots=True)
class Expectation:
    """
    A published figure.

    Args:
        models: Regular expressions over the whole of NVML's name of a GPU.
        where: Values that parameters may have.
        ranks: GPUs that take part, of a collective.
        from_bytes: It holds from this size on.
        value: In the unit of the metric.
        date: When its source was written or last read, ISO 8601, to the month at least.
    """

    models: tuple[str, ...]
    probe: str
    metric: str
    value: float
    kind: Kind
    source: str
    date: str
    where: Mapping[str, tuple[Scalar, ...]] = field(default_factory=dict)
    ranks: int | None = None
    from_bytes: int | None = None

    def speaks_of(self, figure: DeviceFigure, model: str) -> bool:
        """Whether a measured figure of GPUs of that model is what this one tells."""
        size = figure.params.get("bytes")
        return (
            (self.probe, self.metric) == (figure.probe, figure.metric)
            and any(re.fullmatch(m, model, re.IGNORECASE) for m in self.models)
            and all(figure.params.get(k) in v for k, v in self.where.items())
            and (self.ranks is None or self.ranks == len(figure.devices))
            and (self.from_bytes is None or (isinstance(size, int) and size >= self.from_bytes))
        )


@dataclass(frozen=True, slots=True)
class Deviation:
    """
    A measured figure beside an expected one.

    Args:
        ratio: Measured by expected.
    """

    figure: DeviceFigure
    expectation: Expectation
    ratio: float

    @property
    def is_far(self) -> bool:
        """Whether it is worth a word."""
        return is_far(self.ratio, self.expectation.kind)


@functools.cache
def load() -> tuple[Expectation, ...]:
    """
    The package's figures.

    Raises:
        ConfigError: expectations.yaml is wrong, which our own tests would show.
    """
    text = importlib.resources.files("topobench").joinpath(FILE).read_text("utf-8")
    return parse(text, FILE)


def parse(text: str, name: str) -> tuple[Expectation, ...]:
    """
    Read expectations.

    Args:
        name: Of the file, for messages.

    Raises:
        ConfigError: With every mistake found.
    """
    fields = Fields()
    table = yaml_strict.parse(text, name, fields.mistakes)
    values = fields.section(table.entries if table else (), {"figures": _figures})
    if fields.mistakes:
        raise ConfigError(fields.mistakes)
    found: tuple[Expectation, ...] = values.get("figures", ())
    return found


def deviations(figures: Sequence[DeviceFigure], models: Mapping[str, str]) -> list[Deviation]:
    """
    Figures above 1.05 x or below 0.8 x of one that is expected of their GPUs.

    A floor has no upper side, and what makers call possible no lower one. Arguments as
    :func:`held_against`.
    """
    return [d for d in held_against(figures, models) if d.is_far]


def held_against(figures: Sequence[DeviceFigure], models: Mapping[str, str]) -> list[Deviation]:
    """
    Every figure that something is expected of, with its share of it.

    Of the arms and sizes of a device the best counts. What GPUs share is told of those
    measured alone only.

    Args:
        models: Model of a host's GPUs by host key; hosts with several models are left out.
    """
    best: dict[tuple[int, str, tuple[str, ...]], tuple[DeviceFigure, Expectation]] = {}
    by_metric: dict[tuple[str, str], list[DeviceFigure]] = {}
    for figure in figures:
        shared = figure.probe == "host_to_device" and figure.busy > 1
        if models.get(figure.host) is not None and not shared:
            by_metric.setdefault((figure.probe, figure.metric), []).append(figure)
    for number, expectation in enumerate(load()):
        for figure in by_metric.get((expectation.probe, expectation.metric), ()):
            if not expectation.speaks_of(figure, models[figure.host]):
                continue
            key = number, figure.host, figure.devices
            if key not in best or figure.value > best[key][0].value:
                best[key] = figure, expectation
    return [Deviation(f, e, f.value / e.value) for f, e in best.values()]


def is_far(ratio: float, kind: Kind) -> bool:
    """Whether a share of an expected figure is worth a word."""
    if kind is Kind.FLOOR:
        return ratio < 1
    return ratio > (1 if kind is Kind.THEORY else ABOVE) or (
        kind is Kind.MEASURED and ratio < BELOW
    )


def _figures(fields: Fields, node: Node, key: str) -> tuple[Expectation, ...]:
    found = [_figure(fields, item, name) for name, item in fields.items(node, key)]
    return tuple(e for e in found if e is not None)


def _figure(fields: Fields, node: Node, key: str) -> Expectation | None:
    entries = {e.key: e for e in fields.table(node, key)}
    missing = [k for k in _REQUIRED if k not in entries]
    if missing:
        fields.wrong(node.where, key, f"has no {', '.join(missing)}")
        return None
    probe = fields.parsed(entries["probe"].value, f"{key}.probe", one_of(registry.PROBES))
    if probe is None:
        return None
    metrics = {m.name: m for m in registry.load(probe).metrics if m.better is Better.HIGHER}
    metric = fields.parsed(entries["metric"].value, f"{key}.metric", one_of(metrics))
    if metric is None:
        return None
    parsers: Parsers = {
        "models": strings,
        "probe": value_of(str),
        "metric": value_of(str),
        "value": value_of(lambda text: parse_value(metrics[metric].unit, text)),
        "kind": value_of(lambda text: Kind(one_of(Kind)(text))),
        "source": value_of(str),
        "date": value_of(_date),
        "where": lambda f, n, k: parameters(f, n, k, probe),
        "ranks": value_of(parse_count),
        "from_bytes": value_of(parse_bytes),
    }
    before = len(fields.mistakes)
    values: dict[str, Any] = fields.section(entries.values(), parsers, f"{key}.")
    _check_models(fields, values.get("models", ()), node, key)
    return None if len(fields.mistakes) > before else Expectation(**values)


def _check_models(fields: Fields, models: Sequence[str], node: Node, key: str) -> None:
    for model in models:
        try:
            re.compile(model)
        except re.error as error:
            fields.wrong(node.where, f"{key}.models", f"{model!r}: {error}")


def _date(text: str) -> str:
    if not re.fullmatch(r"20\d\d-(0[1-9]|1[0-2])(-(0[1-9]|[12]\d|3[01]))?", text):
        raise ValueError(f"{text!r} is no date; write 2026-08 or 2026-08-31")
    return text


_REQUIRED = ("models", "probe", "metric", "value", "kind", "source", "date")
