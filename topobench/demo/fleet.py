"""
The synthetic fleet: which hosts, which nights, which sweeps; seeded and pure.

The same seed, size and effects give the same numbers and the same UUIDs; only the dates
move, so that the last night is always a recent one.
"""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from topobench.demo import noise
from topobench.demo.cases import NIGHTLY_BLOCKS, Level, Series, series_of
from topobench.demo.effects import Effect, Kind, host_name
from topobench.demo.hosts import DRIVERS, PCIE, SXM, Sku, make_host
from topobench.demo.noise import Floats, Noise
from topobench.demo.watched import judged, watched
from topobench.errors import UsageError
from topobench.host import Host
from topobench.reading import Cell, Member, Reading, Run, Status

CONTROL_EVERY = 4
"""Every fourth host never gets a new driver, so that there is something to compare with."""
FINAL_PROCESSES = 6
"""Processes of every series on the last night: enough for an interval between them."""
TRIAL_NIGHTS = 7
START_HOUR, OVER_HOUR, START_MINUTES = 1, 2, (15, 0)
"""UTC: sweeps begin, all of them have ended, and the minute each cluster's begins."""
PROFILE = "demo"
PACKAGES = {"torch": "2.9.1+cu130", "nccl": "2.27.5", "python": "3.12.3"}


@dataclass(frozen=True, slots=True)
class Fleet:
    """
    What to make.

    Args:
        hosts: Of the large cluster; the small one has a quarter of it, two at least.
        nights: Of the large cluster; the small one was on trial for the last seven.
        last: UTC day of the last night.
    """

    hosts: int
    nights: int
    seed: int
    effects: tuple[Effect, ...]
    last: datetime.date
    noise: Noise = field(default_factory=Noise)

    @property
    def clusters(self) -> tuple[Cluster, ...]:
        """The clusters, the large one first."""
        trial = min(TRIAL_NIGHTS, self.nights)
        return (
            Cluster(self, SXM, self.hosts, 1, self.effects),
            Cluster(self, PCIE, max(2, self.hosts // 4), self.nights - trial + 1, ()),
        )


@dataclass(frozen=True, slots=True)
class Cluster:
    """One cluster; ``first`` is the night its first sweep was in."""

    fleet: Fleet
    sku: Sku
    hosts: int
    first: int
    effects: tuple[Effect, ...]

    def name(self, number: int) -> str:
        """The name of a host, numbers from 1."""
        return self.sku.prefix + host_name(number, max(self.hosts, self.fleet.hosts))[1:]


@dataclass(frozen=True, slots=True)
class Sweep:
    """One night of one cluster, complete."""

    id: str
    cluster: str
    started_at: str
    ended_at: str
    estimated_seconds: float
    hosts: tuple[Host, ...]
    cells: tuple[Cell, ...]
    runs: tuple[Run, ...]


@dataclass(frozen=True, slots=True)
class _Turn:
    """A process of a series, in the order a host runs them."""

    series: int
    process_no: int
    order: int


def sweeps(fleet: Fleet) -> Iterator[Sweep]:
    """Every sweep, in the order of their nights."""
    makers = [_Maker(c, n) for n, c in enumerate(fleet.clusters)]
    for night in range(1, fleet.nights + 1):
        for maker in reversed(makers):  # the large cluster's is the newest sweep of a night
            if night >= maker.cluster.first:
                yield maker.sweep(night)


def sweep_count(fleet: Fleet) -> int:
    """How many sweeps there will be."""
    return sum(fleet.nights - c.first + 1 for c in fleet.clusters)


_YEARS = (2000, 2999)


def last_night(text: str | None, now: datetime.datetime | None = None) -> datetime.date:
    """
    The UTC day of the last night.

    Args:
        text: As typed; None: the newest night that is over.

    Raises:
        UsageError: It is no day, or the nights before it would leave the calendar.
    """
    if text is None:
        now = now or datetime.datetime.now(datetime.UTC)
        return (now - datetime.timedelta(hours=OVER_HOUR)).date()
    try:
        day = datetime.date.fromisoformat(text)
    except ValueError as error:
        raise UsageError(f"--until: {text!r} is no day, such as 2026-11-29") from error
    if not _YEARS[0] <= day.year <= _YEARS[1]:
        raise UsageError(f"--until: {text!r} is not in the years {_YEARS[0]} to {_YEARS[1]}")
    return day


def night_of(fleet: Fleet, night: int) -> datetime.date:
    """The UTC day of a night; nights count from 1."""
    return fleet.last - datetime.timedelta(days=fleet.nights - night)


def planted(cluster: Cluster, series: tuple[Series, ...]) -> Floats:
    """What the effects multiply speeds with, by night of the fleet, host and series."""
    shape = (cluster.fleet.nights, cluster.hosts, len(series))
    factor = np.ones(shape)
    for effect in cluster.effects:
        touched = [n for n, s in enumerate(series) if _touches(effect, s)]
        hosts = [
            n - 1 for n in range(1, cluster.hosts + 1)
            if effect.host == n or (effect.host is None and has_new_driver(n))
        ]  # fmt: skip
        factor[np.ix_(range(effect.night - 1, shape[0]), hosts, touched)] *= effect.speed
    return factor


def has_new_driver(number: int) -> bool:
    """Whether a host takes part in roll-outs."""
    return number % CONTROL_EVERY != 0


def _touches(effect: Effect, series: Series) -> bool:
    """
    What an effect reaches.

    A slow host is slow in everything, a slow GPU in what it does alone or with one peer; a
    driver and a narrow link change copies between host and device.
    """
    probe = series.case.probe
    if effect.kind is Kind.SLOW_HOST:
        return True
    if effect.kind is Kind.SLOW_GPU:
        return effect.gpu in series.gpus and len(series.gpus) <= 2
    copies = probe == "host_to_device"
    return copies and (effect.kind is Kind.DRIVER or effect.gpu in series.gpus)


class _Maker:
    """Makes the sweeps of one cluster."""

    def __init__(self, cluster: Cluster, number: int) -> None:
        self.cluster = cluster
        self.fleet = cluster.fleet
        self.number = number
        self.series = series_of(cluster.sku, self._host(1, self.fleet.nights).topology)
        self.speeds = self._natural((self.fleet.seed, number)) * planted(cluster, self.series)
        self.turns = {last: self._turns(last=last) for last in (False, True)}
        self._members: dict[str, list[tuple[Member, ...]]] = {}

    def _natural(self, seed: tuple[int, int]) -> Floats:
        """Speeds before anything is planted; the arms of the last night share their host's."""
        nightly = sum(not s.last for s in self.series)
        shape = (self.fleet.nights, self.cluster.hosts)
        every = noise.speeds(seed, *shape, nightly, self.fleet.noise)
        last = noise.speeds((*seed, 0), *shape, len(self.series) - nightly, self.fleet.noise)
        firsts = {s.case.params_hash: n for n, s in reversed([*enumerate(self.series)]) if s.last}
        own = [firsts[s.case.params_hash] if s.last else n for n, s in enumerate(self.series)]
        return np.concatenate([every, last], axis=2)[:, :, own]

    def sweep(self, night: int) -> Sweep:
        random = np.random.default_rng((self.fleet.seed, self.number, night))
        hosts = tuple(self._host(n, night) for n in range(1, self.cluster.hosts + 1))
        turns = self.turns[night == self.fleet.nights]
        ids = _uuids(random, 1 + 2 * len(hosts) * len(turns))
        offsets = np.cumsum([0.0, *(self.series[t.series].seconds for t in turns)])
        start = self._moment(night)
        cells = self._cells(hosts, turns, ids)
        runs = self._runs(random, night, hosts, cells, turns, offsets, ids)
        return Sweep(
            id=next(ids),
            cluster=self.cluster.sku.cluster,
            started_at=_text(start),
            ended_at=_text(start + datetime.timedelta(seconds=float(offsets[-1]))),
            estimated_seconds=float(offsets[-1]),
            hosts=hosts,
            cells=cells,
            runs=runs,
        )

    def _host(self, number: int, night: int) -> Host:
        effects = self.cluster.effects
        changes = sum(e.kind is Kind.DRIVER and e.night <= night for e in effects)
        narrow = {
            e.gpu for e in effects
            if e.kind is Kind.DEGRADED_LINK and e.host == number and e.night <= night
        }  # fmt: skip
        return make_host(
            self.cluster.sku,
            self.cluster.name(number),
            number,
            seed=self.fleet.seed,
            narrow=tuple(sorted(g for g in narrow if g is not None)),
            driver=DRIVERS[changes if has_new_driver(number) else 0],
            at=_text(self._moment(night)),
        )

    def _moment(self, night: int) -> datetime.datetime:
        return datetime.datetime.combine(
            night_of(self.fleet, night),
            datetime.time(START_HOUR, START_MINUTES[self.number], tzinfo=datetime.UTC),
        )

    def _turns(self, *, last: bool) -> tuple[_Turn, ...]:
        """Complete blocks over the arms compared, every second one mirrored."""
        found = []
        for probe in dict.fromkeys(s.case.probe for s in self.series):
            own = [n for n, s in enumerate(self.series) if s.case.probe == probe]
            for process in range(FINAL_PROCESSES if last else NIGHTLY_BLOCKS):
                arms = max(self.series[n].order for n in own)
                for n in own if process % 2 == 0 else own[::-1]:
                    series = self.series[n]
                    if last or (not series.last and (process == 0 or series.compared)):
                        order = series.order if process % 2 == 0 else arms - series.order
                        found.append(_Turn(n, process, order if series.compared else 0))
        return tuple(found)

    def _cells(
        self, hosts: tuple[Host, ...], turns: tuple[_Turn, ...], ids: Iterator[str]
    ) -> tuple[Cell, ...]:
        found = []
        for host in hosts:
            keys = [g.key for g in host.topology.gpus]
            for turn in turns:
                series = self.series[turn.series]
                found.append(
                    Cell(
                        id=next(ids),
                        case=series.case,
                        host=host.key,
                        arm=series.arm,
                        devices=tuple(keys[g] for g in series.gpus),
                        ranks=len(series.gpus) if series.arm.rank_bindings else 1,
                        process_no=turn.process_no,
                        block=turn.process_no if series.compared else 0,
                        order_in_block=turn.order,
                        estimated_seconds=series.seconds,
                    )
                )
        return tuple(found)

    def _runs(
        self,
        random: np.random.Generator,
        night: int,
        hosts: tuple[Host, ...],
        cells: tuple[Cell, ...],
        turns: tuple[_Turn, ...],
        offsets: Floats,
        ids: Iterator[str],
    ) -> tuple[Run, ...]:
        last = night == self.fleet.nights
        which = [t.series for t in turns]
        middle = self.speeds[night - 1][:, which].ravel()
        speeds = noise.samples(random, middle, self.fleet.noise)
        levels = [self.series[n].levels for n in which] * len(hosts)
        readings = _readings(levels, speeds, keep=last)
        start = self._moment(night)
        starts = [_text(start + datetime.timedelta(seconds=float(s))) for s in offsets[:-1]]
        found = []
        for place, cell in enumerate(cells):
            host, turn = divmod(place, len(turns))
            run = Run(
                id=next(ids),
                cell=cell.id,
                status=Status.OK,
                reason=None,
                started_at=starts[turn],
                duration_seconds=cell.estimated_seconds,
                readings=readings[place],
                members=self._members_of(hosts[host])[which[turn]],
                environment=PACKAGES,
                conditions=watched(cell, hosts[host].topology, self.cluster.sku, last=last),
            )
            found.append(judged(run, cell, hosts[host].topology, last=last))
        return tuple(found)

    def _members_of(self, host: Host) -> list[tuple[Member, ...]]:
        """The workers of each series; the same every night."""
        if host.key not in self._members:
            self._members[host.key] = [_members(host, s) for s in self.series]
        return self._members[host.key]


def _members(host: Host, series: Series) -> tuple[Member, ...]:
    keys: list[str | None] = [host.topology.gpus[g].key for g in series.gpus]
    bindings = series.arm.rank_bindings or (series.arm.binding,)
    return tuple(
        Member(
            rank=rank,
            host=host.key,
            device=keys[rank] if rank < len(keys) else None,
            cpus=binding.cpus or host.topology.cpus.allowed,
            cpu_node=binding.cpu_nodes[0] if len(binding.cpu_nodes) == 1 else None,
            memory_node=binding.memory_nodes[0] if len(binding.memory_nodes) == 1 else None,
            memory_policy=":".join([binding.memory, *map(str, binding.memory_nodes)]),
        )
        for rank, binding in enumerate(bindings)
    )


def _readings(
    levels: list[tuple[Level, ...]], speeds: Floats, *, keep: bool
) -> list[tuple[Reading, ...]]:
    """
    The readings of every run.

    Args:
        keep: Whether their samples are kept too.
    """
    rows = [n for n, own in enumerate(levels) for _ in own]
    flat = [level for own in levels for level in own]
    size = np.array([level.value for level in flat])[:, None]
    is_time = np.array([level.is_time for level in flat])[:, None]
    values = np.where(is_time, size / speeds[rows], size * speeds[rows])
    kept = values.tolist() if keep else [()] * len(flat)
    made = (
        Reading(level.metric, summary, tuple(samples))
        for level, summary, samples in zip(flat, noise.summaries(values), kept, strict=True)
    )
    return [tuple(next(made) for _ in own) for own in levels]


def _uuids(random: np.random.Generator, count: int) -> Iterator[str]:
    data = random.bytes(16 * count)
    for place in range(0, len(data), 16):
        yield str(uuid.UUID(bytes=data[place : place + 16], version=4))


def _text(moment: datetime.datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
