"""Turns rows of readings into tracks: what is measured from night to night, with a label."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from topobench.ceilings import slot_bytes_per_second
from topobench.topology import Topology
from topobench.units import format_bytes
from topobench.user_command import PROBE as COMMAND
from topobench.verdict_words import HostEvidence, Track

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from topobench.policy import Policy

_OWN = ("rank", "device")
"""Coordinates of a point that tell devices of one run apart."""
_SHOWN = (
    *("command", "testcase", "op", "direction", "dtype", "model", "shape", "memory", "at_once"),
    *("ways", "mode", "size", "kv_dtype"),
)
_NUMBERED = {
    "sequence": "{} tokens",
    "context": "{} tokens",
    "batch": "x {}",
    "tensor_parallel": "{} GPUs",
    "streams": "{} streams",
}
"""How numbers of a case are told; of one at a time nothing is."""


@dataclass(slots=True)
class Columns:
    """
    Readings as columns, so that a million of them stay small.

    Args:
        environments: Environment id -> number of its set of versions.
        metrics: Metric id -> (name, unit, better).
    """

    environments: Mapping[int, int]
    metrics: Mapping[int, tuple[str, str, int]] = field(default_factory=dict)
    track: list[int] = field(default_factory=list)
    sweep: list[int] = field(default_factory=list)
    version: list[int] = field(default_factory=list)
    median: list[float] = field(default_factory=list)
    keys: dict[tuple[int, int, str], int] = field(default_factory=dict)

    def extend(self, rows: Iterable[Any]) -> None:
        """Add (series, metric, point, sweep, environment, median)."""
        keys, versions = self.keys, self.environments
        for series, metric, point, sweep, environment, median in rows:
            key = series, metric, point
            number = keys.get(key)
            if number is None:
                number = keys[key] = len(keys)
            self.track.append(number)
            self.sweep.append(sweep)
            self.version.append(versions[environment])
            self.median.append(median)

    def series_ids(self) -> list[int]:
        """Ids of all series met."""
        return sorted({series for series, _, _ in self.keys})


@dataclass(frozen=True, slots=True)
class Series:
    """What a series measures, on which host."""

    host_id: int
    case: tuple[Any, ...]
    devices: tuple[str, ...]
    kind: str
    probe: str
    params: Mapping[str, Any]
    arm: str
    n_hosts: int

    @classmethod
    def of(cls, row: Any, devices: tuple[str, ...], kind: str) -> Series:
        """From a row of ``series`` with its case, arm and device set."""
        case = (row.case_id, row.arm, json.dumps(row.env, sort_keys=True), row.n_ranks)
        return cls(
            host_id=row.host_id,
            case=case,
            devices=devices,
            kind=kind,
            probe=row.probe,
            params=row.params,
            arm=row.arm,
            n_hosts=row.n_hosts,
        )


def tracks_of(
    columns: Columns,
    series: Mapping[int, Series],
    places: Mapping[int, int],
    hosts: Sequence[HostEvidence],
    policy: Policy,
) -> tuple[tuple[Track, ...], tuple[tuple[int, int], ...], NDArray[np.intp]]:
    """
    The tracks, (series id, metric id) of each, and the track of each reading (-1: none).

    What several hosts measured together speaks of no single one, and is left out.

    Args:
        places: Host id -> place in ``hosts``.
    """
    import numpy as np

    made: list[Track] = []
    ids: list[tuple[int, int]] = []
    number = np.full(len(columns.keys), -1, dtype=np.intp)
    ceilings = [_Ceilings(h.topology) for h in hosts]
    for (series_id, metric_id, point), key in columns.keys.items():
        told = series[series_id]
        if told.n_hosts > 1 or told.host_id not in places:
            continue
        number[key] = len(made)
        place = places[told.host_id]
        metric = columns.metrics[metric_id]
        made.append(
            _track(series_id, told, metric, json.loads(point), place, ceilings[place], policy)
        )
        ids.append((series_id, metric_id))
    return tuple(made), tuple(ids), number[np.array(columns.track, dtype=np.intp)]


def _track(
    series_id: int,
    told: Series,
    metric: tuple[str, str, int],
    point: Mapping[str, Any],
    place: int,
    ceilings: _Ceilings,
    policy: Policy,
) -> Track:
    name, unit, better = metric
    rest = {k: v for k, v in point.items() if k not in _OWN}
    device = point.get("device")
    devices = (str(device),) if device else told.devices
    each = device is not None or "rank" in point
    large = name == "bandwidth_bytes_per_second" and not each
    return Track(
        host=place,
        series=series_id,
        case=json.dumps([*told.case, name, rest, each], sort_keys=True),
        devices=devices,
        metric=name,
        unit=unit,
        better=better,
        label=_label(told, name, rest),
        kind=told.kind,
        ceiling_bytes_per_second=ceilings.of(told, policy) if large else None,
        has_peers=told.probe != COMMAND or told.params.get("command") in policy.peer_commands,
    )


def _label(told: Series, metric: str, point: Mapping[str, Any]) -> str:
    """``host_to_device h2d 256 MiB local bandwidth``."""
    size = told.params.get("bytes")
    shown = [str(told.params[k]) for k in _SHOWN if told.params.get(k) is not None]
    numbers = ((words, told.params.get(name)) for name, words in _NUMBERED.items())
    shown += [words.format(number) for words, number in numbers if number not in (None, 1)]
    parts = [told.probe, *shown, *([format_bytes(size)] if isinstance(size, int) else [])]
    parts += [told.arm, *(f"{k}={v}" for k, v in sorted(point.items()))]
    for suffix in ("_bytes_per_second", "_per_second", "_seconds"):
        metric = metric.removesuffix(suffix)
    return " ".join([*parts, metric])


class _Ceilings:
    """What the paths of a host can carry, by device keys."""

    def __init__(self, topology: Topology | None) -> None:
        self._slots: dict[str, float | None] = {}
        self._nvlinks: dict[tuple[str, str], float | None] = {}
        if topology is None:
            return
        names = {g.name: g.key for g in topology.gpus}
        for gpu in topology.gpus:
            self._slots[gpu.key] = slot_bytes_per_second(gpu, topology)
        for path in topology.paths:
            if path.a in names and path.b in names and (path.smi or "").startswith("NV"):
                speed = path.nominal_bytes_per_second
                self._nvlinks[names[path.a], names[path.b]] = speed
                self._nvlinks.setdefault((names[path.b], names[path.a]), speed)

    def of(self, told: Series, policy: Policy) -> float | None:
        """The ceiling of a large copy one way; None for anything else."""
        params = told.params
        if not isinstance(size := params.get("bytes"), int) or size < policy.ceiling_bytes:
            return None
        one_way = params.get("direction") in ("h2d", "d2h") and params.get("memory") == "pinned"
        if told.probe == "host_to_device" and one_way and len(told.devices) == 1:
            return self._slots.get(told.devices[0])
        direct = params.get("ways") == "one" and params.get("p2p") == "on"
        if told.probe == "peer" and direct and len(told.devices) == 2:
            return self._nvlinks.get((told.devices[0], told.devices[1]))
        return None
