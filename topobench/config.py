"""
Turn cluster.yaml, the environment and flags into one frozen ``ClusterConfig``.

A flag wins over the environment, that over the file, that over the profile, that over the
defaults. Every key and profile is described in docs/config.md.
"""

from __future__ import annotations

import functools
import importlib.resources
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from topobench import config_arms, config_commands, config_fields, config_servers, yaml_strict
from topobench.config_arms import BindingChoice, Ring
from topobench.config_fields import (
    Fields,
    HostExpectation,
    Parsers,
    ProbeChoice,
    RayConfig,
    expected,
    value_of,
)
from topobench.env_arms import PRESETS, EnvArm
from topobench.errors import ConfigError
from topobench.health import KINDS, Rules
from topobench.health import STANDARD as HEALTH
from topobench.host import BUSY_OR_NOT, Host, Idle
from topobench.masking import MASK, mask_urls
from topobench.probes import registry
from topobench.probes.protocol import Kind, fields_of
from topobench.reading import MemoryPolicy, Scalar
from topobench.retention import STANDARD, Retention
from topobench.ring_orders import Orders
from topobench.server_definition import PROBE as SERVING
from topobench.server_definition import Server
from topobench.units import parse_count, parse_duration
from topobench.user_command import PROBE as COMMAND
from topobench.user_command import Definition
from topobench.yaml_strict import Entry, Listing, Table, Text

KIND = "topobench/v1"
DEFAULT_NAME = "local"
DEFAULT_PROFILE = "quick"
DEFAULT_STORE = "sqlite:///topobench.db"
_LAUNCHER_KEYS = {"cluster_name", "provider", "available_node_types", "head_node_type"}
_SECRET = re.compile(
    r"token|secret|passw|passphrase|_pwd$|credential|(?<!p)key|auth(?!or)", re.IGNORECASE
)
"""Names of variables that may hold a secret; NCCL_IB_PKEY, a partition, is none."""

__all__ = [
    "KEYS",
    "BindingChoice",
    "ClusterConfig",
    "HostExpectation",
    "Overrides",
    "ProbeChoice",
    "Profile",
    "RayConfig",
    "host_names",
    "load",
    "load_table",
    "profiles",
    "to_yaml",
]


@dataclass(frozen=True, slots=True)
class Profile:
    """
    A named choice of probes, sizes and repeats (profiles.yaml).

    Args:
        processes: Worker processes a case, where no arms are compared.
        blocks: Complete blocks of an arm comparison, every second one the mirror of the
            one before it; 0 runs each arm once.
        one_binding: Names of probes that run under the first of the bindings alone;
            ``tensor_parallel`` of models that GPUs share.
    """

    name: str
    summary: str
    processes: int
    blocks: int
    bindings: tuple[BindingChoice, ...]
    probes: tuple[ProbeChoice, ...]
    one_binding: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Overrides:
    """
    What the command line said, as typed; None where it said nothing.

    Lists are written with commas: ``probes="host_memory,all_reduce"``.

    Args:
        sets: ``PROBE.FIELD=VALUE[,VALUE]`` each.
        hosts: Run on these only (names, addresses or keys).
    """

    store: str | None = None
    profile: str | None = None
    probes: str | None = None
    sets: tuple[str, ...] = ()
    bindings: str | None = None
    devices: str | None = None
    hosts: str | None = None
    budget: str | None = None
    seed: str | int | None = None


@dataclass(frozen=True, slots=True)
class ClusterConfig:
    """
    The effective configuration of a sweep.

    Args:
        probes: With every listed parameter value; a parameter not listed has its default.
        one_binding: Names of probes that run under the first binding alone, as the profile has
            it for its own bindings.
        hosts: Expectations; when there are any, only these hosts are used.
        only_hosts: Names, addresses or keys of the hosts to use; empty for all.
        devices: Selected GPUs (index, UUID or its start, PCI address); empty for all.
        seed: Of the order of cells; None draws one a sweep.
        commands: The user's own benchmarks; those among ``probes`` run.
        servers: What the probe ``serving`` loads; those among ``probes`` are.
        source: The file it came from.
    """

    name: str
    ray: RayConfig
    store: str
    profile: str
    processes: int
    blocks: int
    probes: tuple[ProbeChoice, ...]
    bindings: tuple[BindingChoice, ...]
    one_binding: tuple[str, ...] = ()
    rings: tuple[Ring, ...] = ("auto",)
    env_arms: tuple[EnvArm, ...] = ()
    hosts: tuple[HostExpectation, ...] = ()
    only_hosts: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    budget_seconds: float | None = None
    seed: int | None = None
    retention: Retention = STANDARD
    idle: Idle = BUSY_OR_NOT
    health: Rules = HEALTH
    commands: tuple[Definition, ...] = ()
    servers: tuple[Server, ...] = ()
    source: str | None = field(default=None, compare=False)

    def expectation_for(self, host: Host) -> HostExpectation | None:
        """What the user said of a host, found by key, name or address."""
        names = {name.lower() for name in host_names(host)}
        for expectation in self.hosts:
            if expectation.id == host.key or expectation.host.lower() in names:
                return expectation
        return None

    def env_for(self, host: Host) -> dict[str, str]:
        """The site's environment of a host: the cluster's, then the host's own."""
        expectation = self.expectation_for(host)
        return {**self.env, **(expectation.env if expectation else {})}


KEYS: Parsers = {
    "kind": value_of(str),
    "name": value_of(config_fields.parse_name),
    "ray": config_fields.ray,
    "store": value_of(config_fields.store_url),
    "profile": lambda fields, node, key: fields.parsed(node, key, _profile_name),
    "hosts": config_fields.hosts,
    "only_hosts": config_fields.strings,
    "devices": config_fields.strings,
    "probes": config_fields.probes,
    "bindings": config_arms.bindings,
    "one_binding": config_fields.one_binding,
    "rings": config_arms.rings,
    "env_arms": config_arms.env_arms,
    "env": config_fields.environment,
    "budget": lambda fields, node, key: fields.parsed(node, key, _budget),
    "seed": value_of(parse_count),
    "idle": config_fields.idle,
    "health": config_fields.health,
    "retention": config_fields.retention,
    "commands": config_commands.commands,
    "servers": config_servers.servers,
}
"""Every key of cluster.yaml and how it is read."""


def load(
    path: Path | None,
    *,
    overrides: Overrides = Overrides(),
    environ: Mapping[str, str] | None = None,
) -> ClusterConfig:
    """
    The effective configuration of a file (or of this host alone), environment and flags.

    Args:
        environ: Instead of this process's environment.

    Raises:
        ConfigError: With every mistake found.
    """
    fields = Fields()
    file = _file_values(path, fields) if path else {}
    return _merged(path, file, fields, overrides, environ)


def load_table(path: Path, table: Table, *, overrides: Overrides = Overrides()) -> ClusterConfig:
    """
    Like :func:`load`, of keys of a cluster that stand in another file; ``kind`` is not needed.

    Raises:
        ConfigError: With every mistake found.
    """
    fields = Fields()
    values = fields.section(table.entries, KEYS)
    values.pop("kind", None)
    return _merged(path, _renamed(values), fields, overrides, None)


def _merged(
    path: Path | None,
    file: dict[str, Any],
    fields: Fields,
    overrides: Overrides,
    environ: Mapping[str, str] | None,
) -> ClusterConfig:
    """The values of a file, environment and flags as one config."""
    flags = _flag_values(overrides, file, fields)
    sets = _set_values(overrides, fields)
    given = {**file, **_environment_values(environ, fields), **flags}
    profile = profiles()[given.pop("profile", DEFAULT_PROFILE)]
    chosen = given.pop("probes", profile.probes)
    probes = _with_parameters(chosen, (profile.probes, file.get("probes", ()), sets))
    _check_sets(sets, probes, fields)
    where = "--probes" if overrides.probes is not None else str(path or "probes")
    probes = config_commands.chosen(probes, given.get("commands", ()), where, fields)
    probes = config_servers.chosen(probes, given.get("servers", ()), where, fields)
    api_keys = config_servers.keys(
        given.get("servers", ()), os.environ if environ is None else environ
    )
    if api_keys:
        given["env"] = {**api_keys, **given.get("env", {})}
    _check_name(path, given, fields)
    if fields.mistakes:
        raise ConfigError(fields.mistakes)
    defaults = {"name": DEFAULT_NAME, "ray": RayConfig(), "store": DEFAULT_STORE}
    if "bindings" not in given:
        defaults |= {"bindings": profile.bindings, "one_binding": profile.one_binding}
    return ClusterConfig(
        profile=profile.name,
        processes=profile.processes,
        blocks=profile.blocks,
        probes=probes,
        source=str(path) if path else None,
        **{**defaults, **given},
    )


def host_names(host: Host) -> tuple[str, ...]:
    """Every name a user may call a host by."""
    return (host.key, host.name, host.address, host.facts.hostname)


@functools.cache
def profiles() -> Mapping[str, Profile]:
    """
    The profiles of the package, by name.

    Raises:
        ConfigError: profiles.yaml is wrong, which our own tests would show.
    """
    text = importlib.resources.files("topobench").joinpath("profiles.yaml").read_text("utf-8")
    fields = Fields()
    parsers: Parsers = {
        "summary": value_of(str),
        "processes": value_of(parse_count),
        "blocks": value_of(parse_count),
        "bindings": config_arms.bindings,
        "one_binding": config_fields.one_binding,
        "probes": config_fields.probes,
    }
    table = yaml_strict.parse(text, "profiles.yaml", fields.mistakes)
    found = {}
    for entry in table.entries if table else ():
        values = fields.section(fields.table(entry.value, entry.key), parsers, f"{entry.key}.")
        if not fields.mistakes:
            found[entry.key] = Profile(name=entry.key, **values)
    if fields.mistakes:
        raise ConfigError(fields.mistakes)
    return found


def to_yaml(config: ClusterConfig, *, reveal: bool = False) -> str:
    """
    The effective configuration as a file that loads back equal.

    Args:
        reveal: Write passwords and tokens out; masked, they do not load back equal.
    """
    env = dict if reveal else _mask_env
    document = {
        "kind": KIND,
        "name": config.name,
        "ray": _present(config.ray),
        "store": config.store if reveal else mask_urls(config.store),
        "profile": config.profile,
        "hosts": [_present(h) | ({"env": env(h.env)} if h.env else {}) for h in config.hosts],
        "only_hosts": list(config.only_hosts),
        "devices": list(config.devices),
        "probes": list(_probes_yaml(config.probes)),
        "bindings": [_binding_yaml(choice) for choice in config.bindings],
        "one_binding": list(config.one_binding),
        "rings": [_ring_yaml(ring) for ring in config.rings],
        "env_arms": [_env_arm_yaml(arm, env) for arm in config.env_arms],
        "env": env(config.env),
        "budget": _seconds_text(config.budget_seconds),
        "seed": config.seed,
        "idle": _idle_yaml(config.idle),
        "health": _health_yaml(config.health),
        "retention": _retention_yaml(config.retention),
        "commands": {d.name: config_commands.to_yaml(d) for d in config.commands},
        "servers": {s.name: config_servers.to_yaml(s) for s in config.servers},
    }
    # An empty list of probes, bindings or rings says something; the others say nothing.
    kept = ("probes", "bindings", "rings")
    shown = {k: v for k, v in document.items() if k in kept or v not in (None, [], {})}
    return yaml.safe_dump(
        shown, sort_keys=False, allow_unicode=True, width=100, default_flow_style=None
    )


def _env_arm_yaml(arm: EnvArm, env: Callable[[Mapping[str, str]], Any]) -> Any:
    built_in = arm.env == PRESETS.get(arm.name)
    return arm.name if built_in else {"name": arm.name, "env": env(arm.env)}


def _idle_yaml(idle: Idle) -> dict[str, Any] | None:
    if idle == BUSY_OR_NOT:
        return None
    shown = {"busy": idle.busy.value, "wait": _seconds_text(idle.wait_seconds), "load": idle.load}
    return {key: value for key, value in shown.items() if value is not None}


def _health_yaml(rules: Rules) -> dict[str, str | None]:
    """Only what differs from the standard."""
    shown = {k: getattr(rules, k).value for k in KINDS if getattr(rules, k) != getattr(HEALTH, k)}
    if rules.since_seconds != HEALTH.since_seconds:
        shown["since"] = _seconds_text(rules.since_seconds)
    return shown


def _retention_yaml(retention: Retention) -> dict[str, str | None] | None:
    if retention == STANDARD:
        return None
    return {
        "samples": _seconds_text(retention.samples_seconds),
        "results": _seconds_text(retention.results_seconds),
    }


def _mask_env(env: Mapping[str, str]) -> dict[str, str]:
    return {name: MASK if _SECRET.search(name) else mask_urls(value) for name, value in env.items()}


def _file_values(path: Path, fields: Fields) -> dict[str, Any]:
    table = yaml_strict.read(path, fields.mistakes)
    if table is None:
        raise ConfigError([f"{path}: is empty; it must start with kind: {KIND}"])
    _check_kind(path, table)
    values = fields.section(table.entries, KEYS)
    values.pop("kind", None)
    return _renamed(values)


def _renamed(values: dict[str, Any]) -> dict[str, Any]:
    """Keys of the file by the names of ``ClusterConfig``."""
    return {"budget_seconds" if key == "budget" else key: v for key, v in values.items()}


def _check_kind(path: Path, table: Table) -> None:
    """Refuse other programs' files outright: their keys would drown the one message."""
    entries = {entry.key: entry for entry in table.entries}
    launcher = sorted(_LAUNCHER_KEYS & entries.keys())
    ours = f"a topobench cluster file starts with kind: {KIND}"
    kind = entries.get("kind")
    if kind is None and launcher:
        what = f"this is a Ray launcher file (it has {', '.join(launcher)})"
        raise ConfigError([f"{path}:{_line(table)}: kind: {what}; {ours}, see docs/config.md"])
    if kind is None:
        raise ConfigError([f"{path}:{_line(table)}: kind: missing; {ours}"])
    if not isinstance(kind.value, Text) or kind.value.value != KIND:
        found = config_fields.wrong_kind(kind.value)
        raise ConfigError([f"{kind.where}: kind: {found}; {ours}"])


def _line(table: Table) -> str:
    return table.where.rpartition(":")[2]


def _check_name(path: Path | None, given: Mapping[str, Any], fields: Fields) -> None:
    """A shared cluster needs a name, or its results would mix with this host's own."""
    address = given.get("ray", RayConfig()).address
    if address != "local" and "name" not in given:
        what = f"missing; a cluster at {address} needs one, for example name: lab"
        fields.wrong(str(path), "name", what)


def _environment_values(environ: Mapping[str, str] | None, fields: Fields) -> dict[str, Any]:
    store = (os.environ if environ is None else environ).get("TOPOBENCH_STORE")
    if not store:
        return {}
    entry = Entry("store", Text(store, "TOPOBENCH_STORE"), "TOPOBENCH_STORE")
    return fields.section([entry], KEYS)


def _flag_values(overrides: Overrides, file: Mapping[str, Any], fields: Fields) -> dict[str, Any]:
    single = ("store", "profile", "budget", "seed")
    entries = [
        Entry(key, Text(str(value), f"--{key}", plain=False), f"--{key}")
        for key in single
        if (value := getattr(overrides, key)) is not None
    ]
    for flag, key in (("probes", "probes"), ("devices", "devices"), ("hosts", "only_hosts")):
        if (given := getattr(overrides, flag)) is not None:
            if not given.strip() and flag != "probes":  # no probe at all is the planner's to refuse
                fields.wrong(f"--{flag}", key, "is empty; leave the flag out to take all")
            entries.append(Entry(key, _flag_list(f"--{flag}", given, fields), f"--{flag}"))
    values = _renamed(fields.section(entries, KEYS))
    if overrides.bindings is not None:
        values["bindings"] = _flag_bindings(overrides.bindings, file, fields)
    return values


def _flag_list(where: str, text: str, fields: Fields) -> Listing:
    """The items of a text with commas; an empty one is a slip of whoever wrote it."""
    words = [word.strip() for word in text.split(",")]
    if len(words) > 1 and not all(words):
        what = f"{text!r} has an empty item between its commas"
        fields.wrong(where, where.split()[0].removeprefix("--"), what)
    return Listing(tuple(Text(w, where, plain=False) for w in words if w), where)


def _flag_bindings(
    given: str, file: Mapping[str, Any], fields: Fields
) -> tuple[BindingChoice, ...]:
    """Arms named by a flag: built-in ones and those the file describes."""
    known = {name: BindingChoice(name) for name in config_arms.BUILT_IN_BINDINGS}
    known |= {choice.name: choice for choice in file.get("bindings", ())}
    names = config_fields.strings(fields, _flag_list("--bindings", given, fields), "bindings")
    for name in names:
        if name not in known:
            what = f"{name!r} is no binding; {expected(name, known)}"
            fields.wrong("--bindings", "bindings", what)
    return tuple(known[name] for name in names if name in known)


def _set_values(overrides: Overrides, fields: Fields) -> tuple[ProbeChoice, ...]:
    """``--set`` as probe choices, read by the parser of the file."""
    found: dict[str, dict[str, tuple[Scalar, ...]]] = {}
    for text in overrides.sets:
        where = f"--set {text}"
        target, equals, values = text.partition("=")
        probe, dot, name = target.strip().partition(".")
        if not (equals and dot and name):
            fields.wrong(where, "set", "expected PROBE.FIELD=VALUE, such as host_memory.bytes=64M")
            continue
        params = Table((Entry(name, _flag_list(where, values, fields), where),), where)
        choice = Table((Entry(probe, params, where),), where)
        for read in config_fields.probes(fields, choice, "probes"):
            found.setdefault(probe, {}).update(read.params)
    return tuple(ProbeChoice(probe, params) for probe, params in found.items())


def _with_parameters(
    chosen: tuple[ProbeChoice, ...], layers: tuple[tuple[ProbeChoice, ...], ...]
) -> tuple[ProbeChoice, ...]:
    """The chosen probes with the parameters of all layers, a later one winning."""
    merged: dict[str, dict[str, tuple[Scalar, ...]]] = {probe.name: {} for probe in chosen}
    for layer in layers:
        for probe in layer:
            if probe.name in merged:
                merged[probe.name].update(probe.params)
    return tuple(ProbeChoice(name, params) for name, params in merged.items())


def _check_sets(
    sets: tuple[ProbeChoice, ...], probes: tuple[ProbeChoice, ...], fields: Fields
) -> None:
    selected = [probe.name for probe in probes]
    for probe in sets:
        if probe.name not in selected:
            what = f"{probe.name} is not among the probes to run: {', '.join(selected) or 'none'}"
            fields.wrong("--set", "set", what)


def _profile_name(text: str) -> str:
    return config_fields.one_of(profiles())(text)


def _budget(text: str) -> float:
    seconds = parse_duration(text)
    if seconds <= 0:
        raise ValueError(f"{text!r} leaves no time; expected a duration such as 10m")
    return seconds


def _present(value: RayConfig | HostExpectation) -> dict[str, Any]:
    """The fields that differ from nothing said."""
    shown = {name: getattr(value, name) for name in value.__dataclass_fields__}
    return {k: dict(v) if isinstance(v, Mapping) else v for k, v in shown.items() if v}


def _probes_yaml(probes: Sequence[ProbeChoice]) -> Iterator[dict[str, Any]]:
    """Each probe once; commands and servers are described in sections of their own."""
    names = config_commands.names_chosen(probes)
    for probe in probes:
        if probe.name not in (COMMAND, SERVING):
            yield {probe.name: _probe_yaml(probe)}
    if (serving := config_servers.as_written(probes)) is not None:
        yield {SERVING: _probe_yaml(serving)}
    if names:
        yield {COMMAND: {"command": list(names)}}


def _probe_yaml(probe: ProbeChoice) -> dict[str, list[Any]]:
    declared = fields_of(registry.load(probe.name))
    return {
        name: [_scalar_yaml(declared[name].metadata["kind"], value) for value in values]
        for name, values in probe.params.items()
    }


def _scalar_yaml(kind: Kind, value: Scalar) -> Any:
    if value is None:
        return "none"
    if kind is Kind.SECONDS and isinstance(value, int | float):
        return _seconds_text(value)
    if kind is Kind.BYTES and isinstance(value, int):
        return _bytes_text(value)
    return value


def _bytes_text(size: int) -> str | int:
    """The exact size in the largest unit that divides it."""
    for power, unit in ((4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB")):
        if size and size % 1024**power == 0:
            return f"{size // 1024**power} {unit}"
    return size


def _seconds_text(seconds: float | None) -> str | None:
    return None if seconds is None else f"{seconds!r}s".replace(".0s", "s")


def _ring_yaml(ring: Ring) -> Any:
    if not isinstance(ring, Orders):
        return ring if isinstance(ring, str) else list(ring)
    shown: dict[str, Any] = {"orders": [list(order) for order in ring.orders]}
    return shown | ({"force": True} if ring.forced else {})


def _binding_yaml(choice: BindingChoice) -> Any:
    if choice.name in config_arms.BUILT_IN_BINDINGS:
        return choice.name
    shown = {"name": choice.name}
    if choice.cpus or choice.cpu_nodes:
        shown["cpus"] = choice.cpus or f"node:{','.join(map(str, choice.cpu_nodes))}"
    if choice.memory is not MemoryPolicy.DEFAULT:
        shown["memory"] = f"{choice.memory}:{','.join(map(str, choice.memory_nodes))}"
    return shown
