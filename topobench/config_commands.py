"""The section ``commands:`` of cluster.yaml: benchmarks of the user's own."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from topobench import env_arms
from topobench.config_fields import (
    Fields,
    Parsers,
    ProbeChoice,
    environment,
    expected,
    one_of,
    value_of,
)
from topobench.masking import mask_urls
from topobench.probes import registry
from topobench.reading import Scalar
from topobench.units import parse_duration
from topobench.user_command import (
    DIRECTIONS,
    GPUS,
    PROBE,
    CommandMetric,
    Definition,
    metric_of,
)
from topobench.yaml_strict import Listing, Node, Table, Text

_SECRET = re.compile(
    r"(?:^|[-_])(token|api[-_]?key|access[-_]?key|secret|password|passwd|credentials?)(?:=|$)",
    re.IGNORECASE,
)
"""An argument or variable named so; ``--max-tokens`` and ``--tokenizer`` are none."""


def commands(fields: Fields, node: Node, key: str) -> tuple[Definition, ...]:
    """Commands by name; what they print is defined with them."""
    found = []
    for name, entry in fields.named(node, key):
        values = fields.section(fields.table(entry.value, name), _PARSERS, f"{name}.")
        if "argv" not in values and not _names(entry.value, "argv"):
            fields.wrong(entry.where, name, "has no argv; add argv: [PROGRAM, ARGUMENT ...]")
        if values.get("timeout", 0.0) > 10 * values.get("seconds", 60.0):
            what = "is above 10 times seconds; say how long the command usually takes"
            fields.wrong(entry.where, f"{name}.timeout", what)
        if "argv" in values:
            found.append(Definition(name=entry.key, **_renamed(values)))
    return tuple(found)


def to_yaml(definition: Definition) -> dict[str, Any]:
    """A command as the file says it."""
    shown = {
        "argv": list(definition.argv),
        "version": list(definition.version),
        "gpus": definition.gpus,
        "folder": definition.folder,
        "seconds": f"{definition.seconds!r}s",
        "timeout": f"{definition.timeout_seconds!r}s",
        "env": dict(definition.env),
        "environments": [dict(e) for e in definition.environments],
        "metrics": {m.name: _metric_yaml(m) for m in definition.metrics},
    }
    return {k: v for k, v in shown.items() if v not in (None, [], {})}


def chosen(
    probes: Iterable[ProbeChoice], known: Iterable[Definition], where: str, fields: Fields
) -> tuple[ProbeChoice, ...]:
    """
    The probes, with one choice for each command that is to run.

    Args:
        where: Of the mistakes noted.
    """
    by_name = {d.name: d for d in known}
    return in_place_of(probes, PROBE, lambda choice: _choices(choice, by_name, where, fields))


def in_place_of(
    probes: Iterable[ProbeChoice],
    name: str,
    choices: Callable[[ProbeChoice], Iterable[ProbeChoice]],
) -> tuple[ProbeChoice, ...]:
    """The probes, with others in the place of each that has this name."""
    return tuple(one for p in probes for one in (choices(p) if p.name == name else (p,)))


def names_chosen(probes: Iterable[ProbeChoice]) -> tuple[Scalar, ...]:
    """The commands among the probes that are to run."""
    return tuple(name for p in probes if p.name == PROBE for name in p.params["command"])


def _choices(
    choice: ProbeChoice, known: Mapping[str, Definition], where: str, fields: Fields
) -> Iterator[ProbeChoice]:
    key = f"probes.{PROBE}"
    if not known:
        fields.wrong(where, key, "there is no command; describe one under commands:")
        return
    if others := sorted(set(choice.params) - {"command"}):
        what = f"{', '.join(others)}: not set here but under commands:"
        fields.wrong(where, key, what)
    for name in choice.params.get("command", tuple(known)):
        if name not in known:
            what = f"no command named {str(name)!r}; {expected(str(name), known)}"
            fields.wrong(where, key, what)
            continue
        definition = known[str(name)]
        params: dict[str, tuple[Scalar, ...]] = {
            "command": (name,),
            "digest": (definition.digest,),
            "gpus": (definition.gpus,),
            "definition": (definition.text,),
        }
        yield ProbeChoice(PROBE, params)


def arguments(fields: Fields, node: Node, key: str) -> tuple[str, ...] | None:
    """A program and its arguments; equal ones may follow each other, quoted ones be empty."""
    if not isinstance(node, Listing) or not node.items:
        fields.wrong(node.where, key, "expected a list: [PROGRAM, ARGUMENT ...]; no shell reads it")
        return None
    found = []
    for name, item in fields.items(node, key):
        quoted = isinstance(item, Text) and not item.plain
        text = item.value if quoted and isinstance(item, Text) else fields.text(item, name)
        if text is None:
            continue
        if _SECRET.search(text) or mask_urls(text) != text:
            what = "looks like a secret, which would be stored; pass it by the section env:"
            fields.wrong(item.where, name, what)
        found.append(text)
    return tuple(found)


def public_environment(fields: Fields, node: Node, key: str) -> dict[str, str]:
    """Environment variables that are stored, so that none may be a secret."""
    found = environment(fields, node, key)
    for name, value in found.items():
        if _SECRET.search(name) or mask_urls(value) != value:
            what = f"{name} looks like a secret, which would be stored; pass it by the section env:"
            fields.wrong(node.where, key, what)
    return found


def _environments(fields: Fields, node: Node, key: str) -> tuple[dict[str, str], ...]:
    found = [
        (item.where, public_environment(fields, item, name))
        for name, item in fields.items(node, key)
    ]
    return fields.unique([(_env_text(env), where, env) for where, env in found], key)


def _env_text(env: Mapping[str, str]) -> str:
    return env_arms.text_of(env) or "{}"


def _metrics(fields: Fields, node: Node, key: str) -> tuple[CommandMetric, ...]:
    found = []
    for entry in fields.table(node, key):
        name = f"{key}.{entry.key}"
        values = fields.section(fields.table(entry.value, name), _METRIC, f"{name}.")
        missing = [k for k in ("unit", "better") if not _names(entry.value, k)]
        for absent in missing:
            fields.wrong(entry.where, name, f"has no {absent}")
        if missing or not {"unit", "better"} <= values.keys():
            continue
        try:
            made = metric_of(entry.key, values["unit"], values["better"], values.get("pattern"))
            _check_direction(made)
        except ValueError as error:
            fields.wrong(entry.where, name, str(error))
            continue
        found.append((made.metric.name, entry.where, made))
    return fields.unique(found, key)


def _check_direction(metric: CommandMetric) -> None:
    """A name that our probes use keeps its direction: verdicts and views go by the name."""
    stored = metric.metric
    for probe in registry.PROBES:
        known = registry.metric(probe, stored.name)
        if known is not None and known.better != stored.better:
            word = next(k for k, v in DIRECTIONS.items() if v == known.better)
            raise ValueError(f"of {stored.name} {word} is better everywhere; use another name")


def _metric_yaml(metric: CommandMetric) -> dict[str, str]:
    word = next(k for k, v in DIRECTIONS.items() if v == metric.better)
    pattern = {} if metric.pattern is None else {"pattern": metric.pattern}
    return {**pattern, "unit": metric.unit, "better": word}


def positive_seconds(text: str) -> float:
    """
    A time above zero.

    Raises:
        ValueError: Says what is accepted.
    """
    seconds = parse_duration(text)
    if seconds <= 0:
        raise ValueError(f"{text!r} is no time; expected a duration such as 90s")
    return seconds


def _names(node: Node, key: str) -> bool:
    return isinstance(node, Table) and any(e.key == key for e in node.entries)


def _renamed(values: Mapping[str, Any]) -> dict[str, Any]:
    return {"timeout_seconds" if k == "timeout" else k: v for k, v in values.items()}


_PARSERS: Parsers = {
    "argv": arguments,
    "version": arguments,
    "gpus": value_of(one_of(GPUS)),
    "folder": value_of(str),
    "seconds": value_of(positive_seconds),
    "timeout": value_of(positive_seconds),
    "env": public_environment,
    "environments": _environments,
    "metrics": _metrics,
}
_METRIC: Parsers = {
    "pattern": value_of(str),
    "unit": value_of(str),
    "better": value_of(one_of(DIRECTIONS)),
}
