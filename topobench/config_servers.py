"""The section ``servers:`` of cluster.yaml: inference servers that the probe serving loads."""

from __future__ import annotations

import re
import urllib.parse
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from topobench import config_commands
from topobench.config_fields import (
    Fields,
    Parsers,
    ProbeChoice,
    expected,
    one_of,
    strings,
    value_of,
)
from topobench.masking import mask_urls
from topobench.reading import Scalar
from topobench.server_definition import PORT, PROBE, TIMEOUT_SECONDS, Server
from topobench.user_command import GPUS
from topobench.yaml_strict import Node, Text

_SET_HERE = ("arguments", "digest", "gpus", "server_definition")
"""Parameters that follow from the definition."""
_KEY_NAME = re.compile(r"(?<!P)KEY|TOKEN|SECRET", re.IGNORECASE)
"""What is masked by its name; a PKEY is not."""
_URL = re.compile(r"https?://[^/?#\s]+(/[^?#\s]*)?")
_WORD = re.compile(r"[a-z][a-z0-9_]*")
_MOST_STARTS = 10.0
"""A worker has ten times its estimate, in which the usual start is."""


def servers(fields: Fields, node: Node, key: str) -> tuple[Server, ...]:
    """Servers by name: each runs somewhere (url) or is started (argv)."""
    found = []
    for name, entry in fields.named(node, key):
        before = len(fields.mistakes)
        values = fields.section(fields.table(entry.value, name), _PARSERS, f"{name}.")
        given = {_FIELDS.get(k, k): v for k, v in values.items()}
        if "start" in values and "timeout" not in values:
            given["timeout_seconds"] = min(TIMEOUT_SECONDS, _MOST_STARTS * values["start"])
        made = Server(name=entry.key, **given)
        if len(fields.mistakes) == before:
            for what in _faults(made, values):
                fields.wrong(entry.where, name, what)
        found.append(made)
    return tuple(found)


def to_yaml(server: Server) -> dict[str, Any]:
    """A server as the file says it."""
    started = bool(server.argv)
    shown = {
        "url": server.url,
        "argv": list(server.argv),
        "grid": {name: list(values) for name, values in server.grid.items()},
        "version": list(server.version),
        "model": server.model,
        "key_env": server.key_env,
        "body": dict(server.body),
        "env": dict(server.env),
        "folder": server.folder,
        "ca_file": server.ca_file,
        "gpus": server.gpus if started else None,
        "start": f"{server.start_seconds!r}s" if started else None,
        "timeout": f"{server.timeout_seconds!r}s" if started else None,
    }
    return {k: v for k, v in shown.items() if v not in (None, [], {})}


def keys(known: Iterable[Server], environ: Mapping[str, str]) -> dict[str, str]:
    """The variables of API keys, by name, that an environment holds."""
    names = {s.key_env for s in known if s.key_env}
    return {name: environ[name] for name in sorted(names & set(environ))}


def chosen(
    probes: Iterable[ProbeChoice], known: Iterable[Server], where: str, fields: Fields
) -> tuple[ProbeChoice, ...]:
    """
    The probes, with one choice of ``serving`` for each server and point of its grid.

    Args:
        where: Of the mistakes noted.
    """
    by_name = {s.name: s for s in known}
    return config_commands.in_place_of(
        probes, PROBE, lambda choice: _choices(choice, by_name, where, fields)
    )


def as_written(probes: Iterable[ProbeChoice]) -> ProbeChoice | None:
    """The choices of ``serving`` as the one that the file named; None if there is none."""
    own = [p for p in probes if p.name == PROBE]
    if not own:
        return None
    names = tuple(dict.fromkeys(p.params["server"][0] for p in own))
    kept = {k: v for k, v in own[0].params.items() if k not in _SET_HERE}
    return ProbeChoice(PROBE, {**kept, "server": names})


def _choices(
    choice: ProbeChoice, known: Mapping[str, Server], where: str, fields: Fields
) -> Iterator[ProbeChoice]:
    key = f"probes.{PROBE}"
    if not known:
        fields.wrong(where, key, "there is no server; describe one under servers:")
        return
    if others := sorted(set(choice.params) & set(_SET_HERE)):
        fields.wrong(where, key, f"{', '.join(others)}: not set here but under servers:")
    shared = {k: v for k, v in choice.params.items() if k not in (*_SET_HERE, "server")}
    if "ladder" in shared:  # a list is one ladder, not a case for each of its steps
        shared["ladder"] = (" ".join(map(str, shared["ladder"])),)
    for name in choice.params.get("server", tuple(known)):
        if name not in known:
            what = f"no server named {str(name)!r}; {expected(str(name), known)}"
            fields.wrong(where, key, what)
            continue
        for server in known[str(name)].points():
            own: dict[str, tuple[Scalar, ...]] = {
                "server": (name,),
                "arguments": (server.point or None,),
                "digest": (server.digest,),
                "gpus": (server.gpus,),
                "server_definition": (server.text,),
            }
            yield ProbeChoice(PROBE, {**shared, **own})


def _faults(server: Server, values: Mapping[str, Any]) -> Iterator[str]:
    if (server.url is None) == (not server.argv):
        yield "needs either url: of a running server, or argv: [PROGRAM, ARGUMENT ...]"
    elif server.url is None:
        if not any(PORT in word for word in server.argv):
            yield f"argv names no port; write {PORT} where the server takes it"
        for name in server.grid:
            if not any(f"{{{name}}}" in word for word in server.argv):
                yield f"grid.{name}: {{{name}}} stands nowhere in argv"
        if server.timeout_seconds > _MOST_STARTS * server.start_seconds:
            yield "timeout is above 10 times start; say how long it usually takes to be ready"
    else:
        only = sorted(set(values) & {"grid", "version", "env", "folder", "gpus", "start"})
        if only:
            yield f"{', '.join(only)}: only of a server that is started (argv)"


def _url(text: str) -> str:
    if not _URL.fullmatch(text):
        raise ValueError(f"{text!r} is no address; expected such as http://10.9.0.20:8000")
    if mask_urls(text) != text or "@" in text:
        raise ValueError("holds a secret, which would be stored; name its variable by key_env")
    try:
        if urllib.parse.urlsplit(text).port == 0:
            raise ValueError("Port out of range 1-65535")
    except ValueError as error:
        raise ValueError(f"{text!r} is no address: {error}") from error
    base = text.rstrip("/").removesuffix("/v1")
    if base.endswith("/completions"):
        raise ValueError(f"{text!r} is one page of a server; expected the part before /v1")
    return base


def _key_env(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", text) or not _KEY_NAME.search(text):
        raise ValueError(
            f"{text!r} must be the name of a variable with KEY (not PKEY), TOKEN or SECRET in "
            "it, so that its value is masked"
        )
    return text


def _grid(fields: Fields, node: Node, key: str) -> dict[str, tuple[str, ...]]:
    found = {}
    for entry in fields.table(node, key):
        if not _WORD.fullmatch(entry.key) or entry.key == "port":
            what = "may hold small letters, digits and '_' only, and not be port"
            fields.wrong(entry.where, f"{key}.{entry.key}", what)
        elif values := strings(fields, entry.value, f"{key}.{entry.key}"):
            found[entry.key] = values
    return found


def _body(fields: Fields, node: Node, key: str) -> dict[str, Scalar]:
    """
    Fields of a request: numbers and truth values as YAML reads them; quoted ones are text.

    Null leaves out a field that requests have without it.
    """
    found: dict[str, Scalar] = {}
    for entry in fields.table(node, key):
        value = entry.value
        if not isinstance(value, Text):
            fields.wrong(entry.where, f"{key}.{entry.key}", "expected one value")
        elif value.is_null:
            found[entry.key] = None
        elif _KEY_NAME.search(entry.key) and not entry.key.endswith("tokens"):
            what = "looks like a secret, which would be stored; name its variable by key_env"
            fields.wrong(entry.where, f"{key}.{entry.key}", what)
        else:
            found[entry.key] = _scalar(value.value) if value.plain else value.value
    return found


def _scalar(text: str) -> Scalar:
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


_FIELDS = {"start": "start_seconds", "timeout": "timeout_seconds"}
_PARSERS: Parsers = {
    "url": value_of(_url),
    "argv": config_commands.arguments,
    "grid": _grid,
    "version": config_commands.arguments,
    "model": value_of(str),
    "key_env": value_of(_key_env),
    "body": _body,
    "env": config_commands.public_environment,
    "folder": value_of(str),
    "ca_file": value_of(str),
    "gpus": value_of(one_of(GPUS)),
    "start": value_of(config_commands.positive_seconds),
    "timeout": value_of(config_commands.positive_seconds),
}
