"""
Turn fleet.yaml into one frozen ``Fleet``: clusters, their stores, and when they are swept.

Read as strictly as cluster.yaml, all mistakes at once; docs/operations.md describes every key.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
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
class Fleet:
    """
    Clusters that are swept by the clock.

    Args:
        store: Of the fleet; its pages are what the daemon shows.
        source: The file it came from.
    """

    name: str
    store: str
    schedules: tuple[Schedule, ...]
    source: Path


def load(path: Path) -> Fleet:
    """
    The fleet of a file; paths in it are relative to its folder.

    Raises:
        ConfigError: With every mistake found, those of the clusters' own files included.
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
    schedules = [
        schedule
        for where, cluster in clusters
        for schedule in _schedules(path, values, where, cluster, fields)
    ]
    if fields.mistakes:
        raise ConfigError(fields.mistakes)
    return Fleet(
        name=values.get("name", "fleet"),
        store=values.get("store") or schedules[0].config.store,
        schedules=tuple(schedules),
        source=path,
    )


def chosen(fleet: Fleet, only: str | None) -> tuple[Schedule, ...]:
    """
    Schedules by ``CLUSTER`` or ``CLUSTER/SCHEDULE``, with commas; None for all.

    Raises:
        ConfigError: One is not in the fleet.
    """
    if only is None:
        return fleet.schedules
    wanted = [word.strip() for word in only.split(",")]
    known = {s.cluster for s in fleet.schedules} | {s.label for s in fleet.schedules}
    wrong = [word for word in wanted if word not in known]
    if wrong:
        says = config_fields.expected(wrong[0], sorted(known))
        raise ConfigError([f"--only {wrong[0]}: not in {fleet.source}; {says}"])
    return tuple(s for s in fleet.schedules if s.cluster in wanted or s.label in wanted)


def _check_kind(path: Path, table: Table) -> None:
    """Refuse other files outright: their keys would drown the one message."""
    kind = next((e.value for e in table.entries if e.key == "kind"), None)
    if not isinstance(kind, Text) or kind.value != KIND:
        given = kind.value if isinstance(kind, Text) else "missing"
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


def _clusters(fields: Fields, node: Node, key: str) -> list[tuple[str, dict[str, Any]]]:
    return [
        (item.where, fields.section(fields.table(item, name), _CLUSTER, f"{name}."))
        for name, item in fields.items(node, key)
    ]


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


def _schedules(
    path: Path, fleet: dict[str, Any], where: str, cluster: dict[str, Any], fields: Fields
) -> list[Schedule]:
    """The schedules of one entry; a key of a schedule wins over the cluster's and the fleet's."""
    if not {"cluster", "schedules"} <= cluster.keys():
        if not fields.mistakes:
            says = "needs cluster: (a file, or keys of one) and schedules:"
            fields.wrong(where, "clusters", says)
        return []
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
    _check_names(fleet, where, found, fields)
    return found


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
