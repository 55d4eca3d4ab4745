"""
Turn fleet.yaml into one frozen ``Fleet``: clusters, their stores, and when they are swept.

Read as strictly as cluster.yaml, all mistakes at once; docs/operations.md describes every key.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from topobench import config, config_fields, fleet_times, yaml_strict
from topobench.config import ClusterConfig, Overrides
from topobench.config_fields import Fields, Parsers, value_of
from topobench.errors import ConfigError
from topobench.fleet_times import Quiet, Times
from topobench.units import parse_duration
from topobench.yaml_strict import Node, Table, Text

KIND = "topobench-fleet/v1"
DEFAULT_LATE_SECONDS = 6 * 3600.0
_MOST_LATE_SECONDS = 7 * 86400.0
_MOST_JITTER_SECONDS = 86400.0
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True, slots=True)
class Schedule:
    """
    One kind of sweep of one cluster, and when it is due.

    Args:
        config: The cluster with what this schedule says of it.
        policy: Rules of the check in place of single ones of ours.
    """

    name: str
    config: ClusterConfig
    times: Times
    policy: Path | None = None

    @property
    def cluster(self) -> str:
        """Name of the cluster."""
        return self.config.name

    @property
    def label(self) -> str:
        """``CLUSTER/SCHEDULE``."""
        return f"{self.cluster}/{self.name}"


@dataclass(frozen=True, slots=True)
class Wrong:
    """
    A cluster that cannot be swept until its file, or its entry in the fleet's, is mended.

    Args:
        cluster: Its name; the file as written where that does not tell it.
        store: Of its results, where that can be told.
    """

    cluster: str
    mistakes: tuple[str, ...]
    store: str | None = None

    def is_meant(self, word: str) -> bool:
        """Whether ``CLUSTER`` or ``CLUSTER/SCHEDULE`` is of it: its schedules are not known."""
        return word == self.cluster or word.startswith(f"{self.cluster}/")


@dataclass(frozen=True, slots=True)
class Fleet:
    """
    Clusters that are swept by the clock.

    Args:
        store: Of the fleet; its pages are what the daemon shows.
        source: The file it came from.
        wrong: Clusters with mistakes; none of their schedules is among the others.
    """

    name: str
    store: str
    schedules: tuple[Schedule, ...]
    source: Path
    wrong: tuple[Wrong, ...] = ()

    @property
    def stores(self) -> tuple[str, ...]:
        """URLs of every store that can be told, each once."""
        urls = [self.store, *(s.config.store for s in self.schedules)]
        return tuple(dict.fromkeys([*urls, *(w.store for w in self.wrong if w.store)]))


def load(path: Path) -> Fleet:
    """
    The fleet of a file; paths in it are relative to its folder.

    A cluster with mistakes leaves the others alone.

    Raises:
        ConfigError: With every mistake found, those of the clusters' own files included: one is
            of the fleet as a whole, or no cluster is left.
    """
    fields = Fields()
    table = yaml_strict.read(path, fields.mistakes)
    if table is None:
        raise ConfigError([f"{path}: is empty; it must start with kind: {KIND}"])
    _check_kind(path, table)
    values = fields.section(table.entries, _KEYS)
    clusters = values.get("clusters", [])
    if not clusters and not fields.mistakes:
        fields.wrong(str(path), "clusters", "names no cluster; give one or more")
    schedules: list[Schedule] = []
    wrong: list[Wrong] = []
    for entry in clusters:
        found = _schedules(path, values, entry)
        if entry.fields.mistakes:
            wrong.append(_wrong(path, values, entry))
        else:
            schedules += found
    if fields.mistakes or not schedules:
        told = [*fields.mistakes, *(m for w in wrong for m in w.mistakes)]
        raise ConfigError(list(dict.fromkeys(told)))
    return Fleet(
        name=values.get("name", "fleet"),
        store=values.get("store") or schedules[0].config.store,
        schedules=tuple(schedules),
        source=path,
        wrong=tuple(wrong),
    )


def chosen(fleet: Fleet, only: str | None) -> Fleet:
    """
    The same with some schedules: ``CLUSTER`` or ``CLUSTER/SCHEDULE``, with commas; None for all.

    Raises:
        ConfigError: One is not in the fleet.
    """
    if only is None:
        return fleet
    wanted = [word.strip() for word in only.split(",")]
    wrong = tuple(w for w in fleet.wrong if any(w.is_meant(word) for word in wanted))
    known = {s.cluster for s in fleet.schedules} | {s.label for s in fleet.schedules}
    for word in wanted:
        if word not in known and not any(w.is_meant(word) for w in wrong):
            says = config_fields.expected(word, sorted(known | {w.cluster for w in fleet.wrong}))
            raise ConfigError([f"--only {word}: not in {fleet.source}; {says}"])
    schedules = tuple(s for s in fleet.schedules if s.cluster in wanted or s.label in wanted)
    return replace(fleet, schedules=schedules, wrong=wrong)


def _check_kind(path: Path, table: Table) -> None:
    """Refuse other files outright: their keys would drown the one message."""
    kind = next((e.value for e in table.entries if e.key == "kind"), None)
    if not isinstance(kind, Text) or kind.value != KIND:
        given = "missing" if kind is None else config_fields.wrong_kind(kind)
        says = f"a topobench fleet file starts with kind: {KIND}, see docs/operations.md"
        raise ConfigError([f"{path}: kind: {given}; {says}"])


def _duration(most: float) -> Any:
    def parse(text: str) -> float:
        seconds = parse_duration(text)
        if not 0 <= seconds <= most:
            raise ValueError(f"{text!r} is out of range; at most {most / 3600:g} hours")
        return seconds

    return value_of(parse)


def _word(text: str) -> str:
    if not _WORD.fullmatch(text):
        raise ValueError(f"{text!r} is no name; use letters, digits, dots, dashes")
    return text


def _quiet(fields: Fields, node: Node, key: str) -> tuple[Quiet, ...]:
    if isinstance(node, yaml_strict.Listing) and not node.items:
        return ()
    read = (fields.parsed(n, k, fleet_times.parse_quiet) for k, n in fields.items(node, key))
    return tuple(quiet for quiet in read if quiet is not None)


def _names(fields: Fields, node: Node, key: str) -> str | None:
    """Names as the flag takes them (``a,b``), or as a list as in cluster.yaml."""
    found = [fields.text(item, name) for name, item in fields.items(node, key)]
    return ",".join(text for text in found if text) or None


@dataclass(frozen=True, slots=True)
class _Entry:
    """An item of ``clusters`` as read, with the mistakes in it and in what it names."""

    where: str
    values: Mapping[str, Any]
    fields: Fields = field(default_factory=Fields)


def _clusters(fields: Fields, node: Node, key: str) -> list[_Entry]:
    return [_entry(item, name) for name, item in fields.items(node, key)]


def _entry(node: Node, key: str) -> _Entry:
    fields = Fields()
    values = fields.section(fields.table(node, key), _CLUSTER, f"{key}.")
    return _Entry(node.where, values, fields)


def _listed(fields: Fields, node: Node, key: str) -> list[tuple[str, dict[str, Any]]]:
    return [
        (item.where, fields.section(fields.table(item, name), _SCHEDULE, f"{name}."))
        for name, item in fields.items(node, key)
    ]


def _cluster_node(fields: Fields, node: Node, key: str) -> Node | None:
    if isinstance(node, Table):
        return node
    return node if fields.text(node, key) is not None else None


_TIMES: Parsers = {
    "zone": value_of(fleet_times.parse_zone),
    "jitter": _duration(_MOST_JITTER_SECONDS),
    "late": _duration(_MOST_LATE_SECONDS),
    "quiet": _quiet,
    "policy": value_of(str),
}
_SCHEDULE: Parsers = {
    **_TIMES,
    "name": value_of(_word),
    "cron": value_of(fleet_times.parse_cron),
    "profile": value_of(str),
    "probes": _names,
    "hosts": _names,
    "budget": value_of(str),
}
_CLUSTER: Parsers = {
    **_TIMES,
    "cluster": _cluster_node,
    "store": value_of(config_fields.store_url),
    "schedules": _listed,
}
_KEYS: Parsers = {
    **_TIMES,
    "kind": value_of(str),
    "name": value_of(_word),
    "store": value_of(config_fields.store_url),
    "clusters": _clusters,
}


def _schedules(path: Path, fleet: dict[str, Any], entry: _Entry) -> list[Schedule]:
    """The schedules of one entry; a key of a schedule wins over the cluster's and the fleet's."""
    fields, cluster = entry.fields, entry.values
    if not {"cluster", "schedules"} <= cluster.keys():
        if not fields.mistakes:
            says = "needs cluster: (a file, or keys of one) and schedules:"
            fields.wrong(entry.where, "clusters", says)
        return []
    if not cluster["schedules"]:
        says = "holds none, so it is never swept; give one, or comment the cluster out"
        fields.wrong(entry.where, "schedules", says)
    found: list[Schedule] = []
    for place, given in cluster["schedules"]:
        if not {"name", "cron"} <= given.keys():
            if not fields.mistakes:
                fields.wrong(place, "schedules", 'needs name: and cron:, such as cron: "0 2 * * *"')
            continue
        values = {**_without(fleet, "name"), **cluster, **given}
        schedule = _schedule(path, fleet, values, fields)
        if schedule is not None:
            found.append(schedule)
    _check_names(fleet, entry.where, found, fields)
    return found


def _wrong(path: Path, fleet: Mapping[str, Any], entry: _Entry) -> Wrong:
    """What can be told of a cluster with mistakes, of which one may be that there is no file."""
    node = table = entry.values.get("cluster")
    name = entry.where
    if isinstance(node, Text):
        name = node.value.strip()
        table = _readable(path.parent / name)
    entries = table.entries if table else ()
    told = {e.key: e.value.value for e in entries if isinstance(e.value, Text)}
    store = entry.values.get("store") or fleet.get("store") or _store(told)
    return Wrong(told.get("name") or name, tuple(entry.fields.mistakes), store)


def _readable(path: Path) -> Table | None:
    """The table of a file that may be wrong; None if it cannot be read."""
    try:
        return yaml_strict.read(path, [])
    except ConfigError:
        return None


def _store(told: Mapping[str, str]) -> str | None:
    """The store that a cluster's own file names, if it is one."""
    try:
        return config_fields.store_url(os.environ.get("TOPOBENCH_STORE") or told.get("store", ""))
    except ValueError:
        return None


def _without(values: dict[str, Any], key: str) -> dict[str, Any]:
    return {k: v for k, v in values.items() if k != key}


def _check_names(fleet: dict[str, Any], where: str, found: list[Schedule], fields: Fields) -> None:
    """A name given twice would share its state with another schedule."""
    seen: dict[str, str] = fleet.setdefault("seen", {})
    for schedule in found:
        if schedule.label in seen:
            what = f"{schedule.label} is given twice; first at {seen[schedule.label]}"
            fields.wrong(where, "schedules", what)
        seen.setdefault(schedule.label, where)


def _schedule(
    path: Path, fleet: dict[str, Any], values: dict[str, Any], fields: Fields
) -> Schedule | None:
    try:
        cluster = _config(path, values)
    except ConfigError as error:
        fields.mistakes += [m for m in error.mistakes if m not in fields.mistakes]
        return None
    policy = values.get("policy")
    times = Times(
        cron=values["cron"],
        zone=values.get("zone", "UTC"),
        shift_seconds=fleet_times.jitter(
            fleet.get("name", "fleet"), cluster.name, values.get("jitter", 0.0)
        ),
        late_seconds=values.get("late", DEFAULT_LATE_SECONDS),
        quiet=values.get("quiet", ()),
    )
    rules = None if policy is None else path.parent / policy
    return Schedule(values["name"], cluster, times, rules)


def _config(path: Path, values: dict[str, Any]) -> ClusterConfig:
    node = values["cluster"]
    overrides = Overrides(
        store=values.get("store"),
        profile=values.get("profile"),
        probes=values.get("probes"),
        hosts=values.get("hosts"),
        budget=values.get("budget"),
    )
    if isinstance(node, Table):
        return config.load_table(path, node, overrides=overrides)
    return config.load(path.parent / node.value.strip(), overrides=overrides)
