"""
Acceptance criteria: a strict YAML file -> frozen rules; every mistake with ``file:line``.

Values carry their unit. There are no expressions: a rule is one limit for one metric.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from topobench import yaml_strict
from topobench.config_fields import (
    Fields,
    Parsers,
    expected,
    one_of,
    parse_name,
    parse_parameter,
    value_of,
    wrong_kind,
)
from topobench.errors import ConfigError, UsageError
from topobench.probes import registry
from topobench.probes.protocol import fields_of
from topobench.reading import Better, Metric, Scalar
from topobench.units import parse_bytes, parse_duration, parse_rate
from topobench.yaml_strict import Entry, Node, Table, Text

KIND = "topobench/criteria/v1"
DISCOVERED = "discovered"
"""In place of a probe: what discovery says of a host, without a measurement."""
FACTS: Mapping[str, tuple[Metric, str]] = {
    m.name: (m, each)
    for m, each in (
        (Metric("gpu_memory_bytes", Better.HIGHER, "memory of a GPU"), "gpu"),
        (Metric("nvlinks_count", Better.HIGHER, "active NVLinks of a GPU"), "gpu"),
        (
            Metric("pcie_bytes_per_second", Better.HIGHER, "slot of a GPU at its best, one way"),
            "gpu",
        ),
        (Metric("gpus_count", Better.HIGHER, "whole GPUs of a host"), "host"),
        (Metric("memory_bytes", Better.HIGHER, "memory of a host"), "host"),
    )
}
EACH = ("gpu", "pair", "host", "cluster")
_OPS = {">=": ">=", "<=": "<=", "at_least": ">=", "at_most": "<="}
_NUMBER = re.compile(r"([0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,3})?)\s*(.*)", re.ASCII)
_UNITS: Mapping[str, Mapping[str, float]] = {
    "token/s": {"token/s": 1, "tokens/s": 1, "tok/s": 1},
    "FLOP/s": {"FLOP/s": 1, "GFLOP/s": 1e9, "TFLOP/s": 1e12, "PFLOP/s": 1e15},
    "W": {"W": 1, "kW": 1e3},
    "J": {"J": 1, "kJ": 1e3},
    "Cel": {"C": 1},
    "Hz": {"Hz": 1, "MHz": 1e6, "GHz": 1e9},
}


@dataclass(frozen=True, slots=True)
class Rule:
    """
    One requirement.

    Args:
        place: ``file:line``.
        params: Values that parameters must have.
        arm: Name of the binding (and ring) it speaks of.
        each: What must meet it: every ``gpu``, ``pair`` of GPUs, ``host``, or the ``cluster``.
        statistic: Of the samples of a process: ``median`` or ``p99``.
        sku: Only hosts of this SKU; None for all.
        op: ``>=`` or ``<=`` with ``value``, or None.
        value: In the metric's base unit.
        reference: A sweep that it must not be inferior to, or None.
        margin: Share by which it may be worse than that.
    """

    name: str
    place: str
    probe: str
    metric: Metric
    params: Mapping[str, Scalar] = field(default_factory=dict)
    arm: str = "none"
    each: str = "gpu"
    statistic: str = "median"
    sku: str | None = None
    op: str | None = None
    value: float | None = None
    reference: str | None = None
    margin: float | None = None


@dataclass(frozen=True, slots=True)
class Criteria:
    """
    A criteria file.

    Args:
        sha256: Of the file's text, hexadecimal.
    """

    name: str
    file: str
    sha256: str
    rules: tuple[Rule, ...]


def load(path: Path) -> Criteria:
    """
    Read a criteria file.

    Raises:
        ConfigError: It can't be read, or holds mistakes; all of them are named.
    """
    fields = Fields()
    text = yaml_strict.text_of(path)
    table = yaml_strict.parse(text, str(path), fields.mistakes)
    if table is None:
        raise ConfigError([f"{path}: is empty; it must start with kind: {KIND}"])
    _check_kind(table, path)
    parsers: Parsers = {
        "kind": value_of(str),
        "name": value_of(str),
        "rules": _rules,
    }
    values = fields.section(table.entries, parsers)
    if "rules" not in values and not fields.mistakes:
        fields.wrong(table.where, "rules", "missing; name at least one rule")
    if fields.mistakes:
        raise ConfigError(fields.mistakes)
    return Criteria(
        name=values.get("name", path.name),
        file=str(path),
        sha256=hashlib.sha256(text.encode()).hexdigest(),
        rules=values["rules"],
    )


def parse_value(unit: str, text: str) -> float:
    """
    A limit with its unit, in the base unit: ``50 GB/s``, ``350 ms``, ``95 %``, ``600 TFLOP/s``.

    Raises:
        ValueError: Says what is accepted.
    """
    if unit == "B/s":
        value = _rate(text)
    elif unit == "s":
        value = parse_duration(text)
    elif unit == "B":
        value = float(parse_bytes(text))
    else:
        value = _other_value(unit, text)
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{text!r} is not above zero, so it would ask for nothing")
    return value


def _rate(text: str) -> float:
    found = _NUMBER.fullmatch(text.strip())
    if found is None or not re.fullmatch(r"[A-Za-z]+/s", found[2]):
        raise ValueError(f"{text!r} is no rate with a unit; write a rate such as 50 GB/s")
    return float(found[1]) * parse_rate(f"1 {found[2]}")  # one unit: a share of it is no byte


def _other_value(unit: str, text: str) -> float:
    found = _NUMBER.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is no number with a unit")
    number, given = float(found[1]), found[2].strip()
    if unit == "1":
        if given not in ("", "%"):
            raise ValueError(f"{text!r} has the unknown unit {given!r}; write 0.95, 95 % or 8")
        return number / 100 if given else number
    units = _UNITS.get(unit, {unit: 1.0})
    if given not in units:
        raise ValueError(f"{text!r} has no known unit; accepted are {', '.join(units)}")
    return number * units[given]


def _check_kind(table: Table, path: Path) -> None:
    entries = {e.key: e for e in table.entries}
    kind = entries.get("kind")
    ours = f"a criteria file starts with kind: {KIND}"
    if kind is None:
        raise ConfigError([f"{table.where}: kind: missing; {ours}"])
    if not isinstance(kind.value, Text) or kind.value.value != KIND:
        raise ConfigError([f"{kind.where}: kind: {wrong_kind(kind.value)}; {ours}"])


def _rules(fields: Fields, node: Node, key: str) -> tuple[Rule, ...]:
    found = []
    for name, item in fields.items(node, key):
        if isinstance(item, Table):
            rule = _rule(fields, item, name)
            found.append((rule.name, rule.place, rule) if rule else None)
        else:
            fields.wrong(item.where, name, "expected the keys of a rule: probe, metric, each ...")
    if not found and not fields.mistakes:
        fields.wrong(node.where, key, "holds no rule; name at least one")
    return fields.unique([f for f in found if f], key)


def _rule(fields: Fields, table: Table, key: str) -> Rule | None:
    """A rule; None, and a mistake, if it holds one."""
    before = len(fields.mistakes)
    entries = {e.key: e for e in table.entries}
    probe = _probe(fields, table, entries, key)
    metric = _metric(fields, table, entries, key, probe) if probe else None
    if probe is None or metric is None:
        return None
    parsers: Parsers = {
        "name": value_of(str),
        "probe": value_of(str),
        "metric": value_of(str),
        "where": lambda f, node, k: _where(f, node, k, probe),
        "each": value_of(one_of(EACH)),
        "statistic": value_of(one_of(("median", "p99"))),
        "sku": value_of(str),
        "op": value_of(_op),
        "value": value_of(lambda text: parse_value(metric.unit, text)),
        "non_inferior_to": value_of(parse_name),
        "margin": value_of(_margin),
    }
    values = fields.section(table.entries, parsers, f"{key}.")
    _check(fields, table, key, entries.keys(), values, metric, probe)
    if len(fields.mistakes) > before:
        return None
    where = values.get("where", {})
    return Rule(
        name=values.get("name") or _title(probe, metric, where, values),
        place=table.where,
        probe=probe,
        metric=metric,
        params={k: v for k, v in where.items() if k != "arm"},
        arm=where.get("arm", "none"),
        each=values["each"],
        statistic=values.get("statistic", "median"),
        sku=values.get("sku"),
        op=values.get("op"),
        value=values.get("value"),
        reference=values.get("non_inferior_to"),
        margin=values.get("margin"),
    )


def _probe(fields: Fields, table: Table, entries: Mapping[str, Entry], key: str) -> str | None:
    names = (*registry.names(), DISCOVERED)
    if "probe" not in entries:
        fields.wrong(table.where, f"{key}.probe", f"missing; {expected('', names)}")
        return None
    found = fields.parsed(entries["probe"].value, f"{key}.probe", one_of(names))
    if found is not None and found != DISCOVERED:
        try:
            registry.load(found)
        except UsageError as error:
            fields.wrong(entries["probe"].where, f"{key}.probe", str(error))
            return None
    return found


def _metric(
    fields: Fields, table: Table, entries: Mapping[str, Entry], key: str, probe: str
) -> Metric | None:
    if probe == DISCOVERED:
        known = {name: metric for name, (metric, _) in FACTS.items()}
    else:
        known = {m.name: m for m in registry.load(probe).metrics}
    if "metric" not in entries:
        fields.wrong(table.where, f"{key}.metric", f"missing; {expected('', known)}")
        return None
    node = entries["metric"].value
    if not _has_own_metrics(probe):
        name = fields.parsed(node, f"{key}.metric", one_of(known))
        return known.get(name) if name else None
    return fields.parsed(node, f"{key}.metric", lambda text: known.get(text) or _own_metric(text))


def _has_own_metrics(probe: str) -> bool:
    """Whether a probe yields metrics that its user defined."""
    return probe != DISCOVERED and bool(getattr(registry.load(probe), "own_metrics", False))


def _own_metric(name: str) -> Metric:
    """A metric of the user's own; which direction is good is stored with its values."""
    return Metric(name, Better.NEITHER, "of the user's own")


def _where(fields: Fields, node: Node, key: str, probe: str) -> dict[str, Scalar]:
    """Parameters of the probe, parsed as it declares them, and the arm."""
    parsers: dict[str, Callable[[Fields, Node, str], Any]] = {}
    if probe != DISCOVERED:
        parsers = {
            name: value_of(_parameter(declaration))
            for name, declaration in fields_of(registry.load(probe)).items()
        }
        parsers["arm"] = value_of(str)
    return fields.section(fields.table(node, key), parsers, f"{key}.")


def _parameter(declaration: Any) -> Callable[[str], Scalar]:
    return lambda text: parse_parameter(declaration, text)


def _check(
    fields: Fields,
    table: Table,
    key: str,
    given: Iterable[str],
    values: Mapping[str, Any],
    metric: Metric,
    probe: str,
) -> None:
    """What must go together, and what makes no sense."""
    keys = set(given)
    if "each" not in keys:
        fields.wrong(table.where, f"{key}.each", f"missing; {expected('', EACH)}")
    limit, reference = {"op", "value"}, {"non_inferior_to", "margin"}
    if not (keys & (limit | reference)):
        what = "says nothing to meet; give op and value, or non_inferior_to and margin"
        fields.wrong(table.where, key, what)
    elif keys & limit and keys & reference:
        what = "has a value and a reference; make two rules of it"
        fields.wrong(table.where, key, what)
    for pair in (limit, reference):
        if len(keys & pair) == 1:
            fields.wrong(
                table.where, f"{key}.{min(pair - keys)}", f"missing beside {min(keys & pair)}"
            )
    wrong_way = {Better.HIGHER: "<=", Better.LOWER: ">="}.get(metric.better)
    if "op" in values and values["op"] == wrong_way:
        side = "higher" if metric.better is Better.HIGHER else "lower"
        fields.wrong(table.where, f"{key}.op", f"of {metric.name} {side} is better; turn it round")
    if values.get("statistic") == "p99" and metric.unit != "s":
        what = "P99 counts from the slow end of times only; use it with a metric in seconds"
        fields.wrong(table.where, f"{key}.statistic", what)
    neither = metric.better is Better.NEITHER and not _has_own_metrics(probe)
    if "non_inferior_to" in keys and neither:
        what = f"{metric.name} is good in neither direction"
        fields.wrong(table.where, f"{key}.non_inferior_to", what)
    if probe == DISCOVERED:
        _check_fact(fields, table, key, keys, values, metric)


def _check_fact(
    fields: Fields,
    table: Table,
    key: str,
    keys: set[str],
    values: Mapping[str, Any],
    metric: Metric,
) -> None:
    own = FACTS[metric.name][1]
    if values.get("each", own) != own:
        fields.wrong(table.where, f"{key}.each", f"{metric.name} is told of each {own}")
    for name in sorted(keys & {"statistic", "non_inferior_to", "margin"}):
        what = f"{metric.name} is discovered, not measured; use op and value"
        fields.wrong(table.where, f"{key}.{name}", what)


def _op(text: str) -> str:
    if text not in _OPS:
        raise ValueError(f"{text!r} is not known; {expected(text, _OPS)}")
    return _OPS[text]


def _margin(text: str) -> float:
    found = _other_value("1", text)
    if not 0 < found < 1:
        raise ValueError(f"{text!r} is no margin; write a share such as 3 %")
    return found


def _title(
    probe: str, metric: Metric, where: Mapping[str, Scalar], values: Mapping[str, Any]
) -> str:
    parts = [probe, *(f"{k}={v}" for k, v in where.items()), metric.name]
    sku = values.get("sku")
    parts += ["p99"] if values.get("statistic") == "p99" else []
    return " ".join([*parts, f"each {values['each']}", *([f"on {sku}"] if sku else [])])
