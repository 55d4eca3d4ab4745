"""
Typed reading of strict YAML nodes: one parser for files, profiles and flags.

A mistake is noted and reading goes on, so that a user sees all of them at once. A parser
returns None for a value that it noted as wrong.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from topobench.errors import UsageError
from topobench.health import KINDS, Action, Rules
from topobench.host import Busy, Idle
from topobench.probes import registry
from topobench.probes.protocol import Kind, fields_of
from topobench.reading import Scalar
from topobench.retention import DAY_SECONDS, Retention
from topobench.units import format_bytes, parse_bytes, parse_count, parse_duration, parse_number
from topobench.yaml_strict import Entry, Listing, Node, Table, Text

SHARING = "tensor_parallel"
"""Parameter of probes that run a model on one GPU, or share it between so many."""

T = TypeVar("T")

_FLAG_WORDS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_LONGEST_NAME = 200
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LONGEST_VARIABLE = 100_000
"""Linux takes 128 KiB, name included."""


@dataclass(frozen=True, slots=True)
class RayConfig:
    """
    How agents are placed.

    Args:
        address: ``local`` (a private Ray on this host) or ``HOST:PORT``.
        ship: Send our package to the hosts instead of expecting it there.
        require_token: Refuse a cluster without token authentication.
    """

    address: str = "local"
    ship: bool = False
    require_token: bool = False


@dataclass(frozen=True, slots=True)
class HostExpectation:
    """
    A host the user named, and what it should be.

    Args:
        host: Name or address.
        id: The host's key; survives a change of name and address.
        gpus: How many GPUs it should have.
    """

    host: str
    id: str | None = None
    gpus: int | None = None
    sku: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ProbeChoice:
    """A probe to run; every combination of the listed values is a case."""

    name: str
    params: Mapping[str, tuple[Scalar, ...]] = field(default_factory=dict)


@dataclass(slots=True)
class Fields:
    """Reads typed values out of nodes and keeps every mistake."""

    mistakes: list[str] = field(default_factory=list)

    def wrong(self, where: str, key: str, what: str) -> None:
        """Note a mistake as ``where: key: what``; a flag is its own key."""
        place = where if where.startswith("--") else f"{where}: {key}"
        self.mistakes.append(f"{place}: {what}")

    def text(self, node: Node, key: str) -> str | None:
        """Text that is not empty."""
        if not isinstance(node, Text):
            self.wrong(node.where, key, f"expected one value, found {_noun(node)}")
        elif node.is_null or not node.value.strip():
            self.wrong(node.where, key, "has no value; give one or remove the key")
        else:
            return node.value.strip()
        return None

    def parsed(self, node: Node, key: str, parse: Callable[[str], T]) -> T | None:
        """A value by a parser that raises ValueError with a sentence."""
        text = self.text(node, key)
        if text is None:
            return None
        try:
            return parse(text)
        except ValueError as error:
            self.wrong(node.where, key, str(error))
            return None

    def table(self, node: Node, key: str) -> tuple[Entry, ...]:
        """The entries of a table; none, and a mistake, for anything else."""
        if isinstance(node, Table):
            return node.entries
        self.wrong(node.where, key, f"expected keys ({{key: value}}), found {_noun(node)}")
        return ()

    def named(self, node: Node, key: str) -> Iterator[tuple[str, Entry]]:
        """The entries of a table of the user's own names, with their keys (``hosts.h1``)."""
        for entry in self.table(node, key):
            name = f"{key}.{entry.key}"
            try:
                parse_name(entry.key)
            except ValueError as error:
                self.wrong(entry.where, name, str(error))
            else:
                yield name, entry

    def items(self, node: Node, key: str) -> Iterator[tuple[str, Node]]:
        """The items of a list with their keys (``hosts[0]``); one value is a list of one."""
        if isinstance(node, Listing):
            yield from ((f"{key}[{i}]", item) for i, item in enumerate(node.items))
        elif isinstance(node, Text) and node.is_null:
            self.wrong(node.where, key, "has no value; give one or remove the key")
        else:
            yield key, node

    def section(
        self, entries: Iterable[Entry], parsers: Parsers, prefix: str = ""
    ) -> dict[str, Any]:
        """Every value that could be read; unknown keys are mistakes."""
        values: dict[str, Any] = {}
        for entry in entries:
            if entry.key not in parsers:
                what = f"unknown key; {expected(entry.key, parsers)}"
                self.wrong(entry.where, f"{prefix}{entry.key}", what)
                continue
            value = parsers[entry.key](self, entry.value, f"{prefix}{entry.key}")
            if value is not None:
                values[entry.key] = value
        return values

    def unique(self, named: Iterable[tuple[str, str, T]], key: str) -> tuple[T, ...]:
        """Values of (name, where, value), with a mistake for each name met before."""
        seen: dict[str, T] = {}
        for name, where, value in named:
            if name in seen:
                self.wrong(where, key, f"{name} is given twice")
            else:
                seen[name] = value
        return tuple(seen.values())


Parsers = Mapping[str, Callable[[Fields, Node, str], Any]]


KINDS_OF_FILES = {
    "topobench/v1": "a cluster file, for --cluster",
    "topobench-fleet/v1": "a fleet file, for sweep --fleet and daemon --fleet",
    "topobench/criteria/v1": "acceptance criteria, for accept --criteria",
}


def wrong_kind(kind: Node) -> str:
    """What a file of another kind than the one wanted is."""
    given = kind.value if isinstance(kind, Text) else "no text"
    what = KINDS_OF_FILES.get(given)
    return f"{given} is {what}" if what else f"{given} is not read by this version"


def expected(word: str, accepted: Iterable[str]) -> str:
    """``accepted are a, b, c; did you mean b?``."""
    names = list(accepted)
    close = difflib.get_close_matches(word.lower(), names, n=1)
    hint = f"; did you mean {close[0]}?" if close else ""
    return f"accepted are {', '.join(names)}{hint}"


def one_of(accepted: Iterable[str]) -> Callable[[str], str]:
    """A parser that takes these words only."""
    names = tuple(accepted)

    def parse(text: str) -> str:
        if text not in names:
            raise ValueError(f"{text!r} is not known; {expected(text, names)}")
        return text

    return parse


def parse_flag(text: str) -> bool:
    """True or False of ``true``, ``yes``, ``on`` and their opposites."""
    if text.lower() not in _FLAG_WORDS:
        raise ValueError(f"{text!r} is neither true nor false")
    return _FLAG_WORDS[text.lower()]


def parse_name(text: str) -> str:
    """A name that is safe in file names, SQL output and on a command line."""
    if not _NAME.fullmatch(text):
        raise ValueError(f"{text!r} may hold letters, digits, '.', '_' and '-' only")
    if len(text) > _LONGEST_NAME:
        raise ValueError(f"{text[:20]!r} ... is longer than {_LONGEST_NAME} characters")
    return text


def value_of(parse: Callable[[str], Any]) -> Callable[[Fields, Node, str], Any]:
    """The parser of a key with one value."""
    return lambda fields, node, key: fields.parsed(node, key, parse)


def strings(fields: Fields, node: Node, key: str) -> tuple[str, ...]:
    """A list of texts, each once."""
    found = [(fields.text(item, name), item.where) for name, item in fields.items(node, key)]
    return fields.unique([(text, where, text) for text, where in found if text], key)


def string_map(fields: Fields, node: Node, key: str) -> dict[str, str]:
    """Texts by name; an empty text must be quoted."""
    values: dict[str, str] = {}
    for entry in fields.table(node, key):
        value = entry.value
        if isinstance(value, Text) and not value.plain:
            values[entry.key] = value.value
        elif (text := fields.text(value, f"{key}.{entry.key}")) is not None:
            values[entry.key] = text
    return values


def environment(fields: Fields, node: Node, key: str) -> dict[str, str]:
    """Environment variables to pass to workers."""
    values = string_map(fields, node, key)
    for name, value in values.items():
        if not _VARIABLE.fullmatch(name):
            fields.wrong(node.where, key, f"{name!r} cannot name an environment variable")
        if "\0" in value or len(value.encode(errors="replace")) > _LONGEST_VARIABLE:
            text = "is longer than 100,000 bytes, or holds a NUL: no process can be given it"
            fields.wrong(node.where, f"{key}.{name}", text)
    return values


def ray(fields: Fields, node: Node, key: str) -> RayConfig:
    """The ``ray`` table."""
    parsers: Parsers = {
        "address": value_of(_address),
        "ship": value_of(parse_flag),
        "require_token": value_of(parse_flag),
    }
    return RayConfig(**fields.section(fields.table(node, key), parsers, f"{key}."))


def idle(fields: Fields, node: Node, key: str) -> Idle:
    """The ``idle`` table."""
    parsers: Parsers = {
        "busy": lambda f, n, k: f.parsed(n, k, lambda text: Busy(one_of(tuple(Busy))(text))),
        "wait": value_of(parse_duration),
        "load": value_of(_load),
    }
    found = fields.section(fields.table(node, key), parsers, f"{key}.")
    return Idle(**{{"wait": "wait_seconds"}.get(name, name): v for name, v in found.items()})


def health(fields: Fields, node: Node, key: str) -> Rules:
    """The ``health`` table."""
    action = value_of(lambda text: Action(one_of(tuple(Action))(text)))
    parsers: Parsers = {**dict.fromkeys(KINDS, action), "since": value_of(parse_duration)}
    found = fields.section(fields.table(node, key), parsers, f"{key}.")
    return Rules(**{{"since": "since_seconds"}.get(name, name): v for name, v in found.items()})


def _load(text: str) -> float:
    value = float(text)
    if not 0 < value < 1000:
        raise ValueError(f"{text!r} is no load; expected a number such as 0.5")
    return value


def retention(fields: Fields, node: Node, key: str) -> Retention:
    """The ``retention`` table."""
    parsers: Parsers = {"samples": value_of(_days), "results": value_of(_days)}
    found = fields.section(fields.table(node, key), parsers, f"{key}.")
    return Retention(**{f"{name}_seconds": value for name, value in found.items()})


def _days(text: str) -> float:
    seconds = parse_duration(text)
    if seconds < DAY_SECONDS:
        raise ValueError(f"{text!r} is less than a day; expected a duration such as 90d")
    return seconds


def store_url(text: str) -> str:
    """A database URL of a kind that topobench can open."""
    accepted = "sqlite:///FILE or postgresql+psycopg://USER@HOST/DATABASE"
    scheme, separator, _ = text.partition("://")
    if not separator:
        raise ValueError(f"{text!r} is not a URL; accepted are {accepted}")
    if scheme not in ("sqlite", "postgresql", "postgresql+psycopg"):
        raise ValueError(f"{scheme}:// is not supported; accepted are {accepted}")
    return text


def hosts(fields: Fields, node: Node, key: str) -> tuple[HostExpectation, ...]:
    """Hosts, each a name or a table; a host or id met twice is a mistake."""
    found = [(item.where, _host(fields, item, name)) for name, item in fields.items(node, key)]
    known = [(where, host) for where, host in found if host]
    fields.unique([(h.id, where, h) for where, h in known if h.id], f"{key} id")
    return fields.unique([(h.host.lower(), where, h) for where, h in known], key)


def probes(fields: Fields, node: Node, key: str) -> tuple[ProbeChoice, ...]:
    """Probes, each a name or ``{name: {parameter: value or list}}``."""
    found: list[tuple[str, str, ProbeChoice]] = []
    for name, item in fields.items(node, key):
        if isinstance(item, Table):
            for entry in item.entries:
                if _known_probe(fields, entry.where, name, entry.key):
                    params = parameters(fields, entry.value, f"{key}.{entry.key}", entry.key)
                    found.append((entry.key, entry.where, ProbeChoice(entry.key, params)))
        elif (text := fields.text(item, name)) and _known_probe(fields, item.where, name, text):
            found.append((text, item.where, ProbeChoice(text)))
    return fields.unique(found, key)


def one_binding(fields: Fields, node: Node, key: str) -> tuple[str, ...]:
    """Names of probes, or ``tensor_parallel`` for models that GPUs share, each once."""
    found = [(fields.text(item, name), item.where) for name, item in fields.items(node, key)]
    known = [
        (text, where, text)
        for text, where in found
        if text and (text == SHARING or _known_probe(fields, where, key, text))
    ]
    return fields.unique(known, key)


def parameters(fields: Fields, node: Node, key: str, probe: str) -> dict[str, tuple[Scalar, ...]]:
    """Values of a probe's parameters, parsed as the probe declares them."""
    if isinstance(node, Text) and node.is_null:
        return {}
    declared = fields_of(registry.load(probe))
    parsers = {name: _parameter(declaration) for name, declaration in declared.items()}
    return fields.section(fields.table(node, key), parsers, f"{key}.")


def _noun(node: Node) -> str:
    if isinstance(node, Listing):
        return "a list"
    return "keys" if isinstance(node, Table) else f"{node.value!r}"


def _address(text: str) -> str:
    if text != "local" and not re.fullmatch(r"[^/\s]+:[0-9]{1,5}", text):
        raise ValueError(f"{text!r} is not an address; accepted are local or HOST:PORT")
    if text != "local" and not 1 <= int(text.rpartition(":")[2]) <= 65535:
        raise ValueError(f"{text!r} names no port; accepted are 1 to 65535")
    return text


def _host(fields: Fields, node: Node, key: str) -> HostExpectation | None:
    if not isinstance(node, Table):
        text = fields.text(node, key)
        return HostExpectation(text) if text else None
    parsers: Parsers = {
        "host": value_of(str),
        "id": value_of(parse_name),
        "gpus": value_of(parse_count),
        "sku": value_of(str),
        "labels": string_map,
        "env": environment,
    }
    values = fields.section(node.entries, parsers, f"{key}.")
    if not any(entry.key == "host" for entry in node.entries):
        fields.wrong(node.where, key, "names no host; add host: NAME or ADDRESS")
    return HostExpectation(**values) if "host" in values else None


def _known_probe(fields: Fields, where: str, key: str, name: str) -> bool:
    if name not in registry.names():
        fields.wrong(where, key, f"no probe named {name!r}; {expected(name, registry.names())}")
        return False
    try:
        registry.load(name)
    except UsageError as error:
        fields.wrong(where, key, str(error))
        return False
    return True


def _parameter(declaration: dataclasses.Field[Any]) -> Callable[[Fields, Node, str], Any]:
    def parse(text: str) -> Scalar:
        return parse_parameter(declaration, text)

    def read(fields: Fields, node: Node, key: str) -> tuple[Scalar, ...] | None:
        items = tuple(fields.items(node, key))
        found: list[tuple[str, str, Scalar]] = []
        for name, item in items:
            if isinstance(item, Text) and item.value == "none" and declaration.default is None:
                found.append(("none", item.where, None))
            elif (value := fields.parsed(item, name, parse)) is not None:
                found.append((str(value), item.where, value))
        if not items and isinstance(node, Listing):
            fields.wrong(node.where, key, "is an empty list; give a value or remove the key")
        return fields.unique(found, key) or None

    return read


def parse_parameter(declaration: dataclasses.Field[Any], text: str) -> Scalar:
    """
    A probe's parameter of its declared kind, within its limits.

    Raises:
        ValueError: Says what is accepted.
    """
    kind, choices = declaration.metadata["kind"], declaration.metadata["choices"]
    value = _parse_kind(kind, choices, text)
    if isinstance(value, str | bool):
        return value
    show = format_bytes if kind is Kind.BYTES else "{:g}".format
    minimum, maximum = declaration.metadata["minimum"], declaration.metadata["maximum"]
    if minimum is not None and value < minimum:
        raise ValueError(f"{text!r} is out of range; expected at least {show(minimum)}")
    if maximum is not None and value > maximum:
        raise ValueError(f"{text!r} is out of range; expected at most {show(maximum)}")
    return value


def _parse_kind(kind: Kind, choices: tuple[str, ...], text: str) -> str | bool | int | float:
    if kind is Kind.BYTES:
        return parse_bytes(text)
    if kind is Kind.COUNT:
        return parse_count(text)
    if kind is Kind.NUMBER:
        return parse_number(text)
    if kind is Kind.SECONDS:
        return parse_duration(text)
    if kind is Kind.FLAG:
        return parse_flag(text)
    return one_of(choices)(text) if kind is Kind.CHOICE else text
