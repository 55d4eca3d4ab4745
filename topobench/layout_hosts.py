"""
The cells that several hosts measure together: gangs over all hosts, and pairs of hosts; pure.

They run after every host is done with its own cells. Hosts are in order of their names, so
that the same hosts give the same series from night to night.
"""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field

from topobench import costs, pairs, rings
from topobench.bindings import Refusal, equal_threads, resolve, with_threads
from topobench.choice import Choice, Timed
from topobench.config import host_names
from topobench.host import Host
from topobench.layout import UNBOUND, Site, environments
from topobench.probes.protocol import Arms
from topobench.reading import Arm, Binding, Case, Cell, Reason, ReasonCode, Status
from topobench.selection import HostGpus, Lack, select_gpus, unmet
from topobench.topology import Gpu

HOSTS = "hosts"
"""Parameter of collectives that run on one host, or over all hosts of a sweep."""
_GANGS = (Arms.GANG, Arms.RANKS)
_FULL = "full"


@dataclass(frozen=True, slots=True)
class Together:
    """
    What several hosts measure together.

    Args:
        warnings: Pairs of hosts that do not meet, counted.
    """

    cells: tuple[Cell, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Seat:
    """Where one rank sits."""

    host: Host
    gpu: Gpu | None = None


def lay_out_together(site: Site, hosts: Sequence[Host]) -> Together:
    """Every cell over several hosts, in the order they will run; none for a single host."""
    if len(hosts) < 2:
        return Together()
    ordered = sorted(hosts, key=lambda h: (h.name, h.key))
    layout = _Layout(site, ordered, {h.key: select_gpus(site.config, h) for h in ordered})
    cells: list[Cell] = []
    warnings: list[str] = []
    for choice in site.choices:
        if choice.probe.arms is Arms.HOST_PAIRS:
            cells += layout.host_pairs(choice)
            warnings += layout.pairs_left_out(choice)
    for choice in site.choices:
        if choice.probe.arms in _GANGS and "all" in choice.values.get(HOSTS, ()):
            cells += layout.gangs(choice)
    return Together(tuple(cells), tuple(warnings))


def pair_again(
    site: Site, hosts: Sequence[Host], cells: Sequence[Cell], suspects: Sequence[str]
) -> list[Cell]:
    """
    One more pair for each suspect host, with a good one that it has not met.

    Args:
        hosts: All of the sweep.
        cells: Pairs measured so far, as the planner laid them out.
        suspects: Keys of hosts whose pairs were slow.
    """
    ordered = sorted(hosts, key=lambda h: (h.name, h.key))
    numbers = {h.key: n for n, h in enumerate(ordered)}
    layout = _Layout(site, ordered, {h.key: select_gpus(site.config, h) for h in ordered})
    found: list[Cell] = []
    for choice in site.choices:
        if choice.probe.arms is not Arms.HOST_PAIRS:
            continue
        own = [c for c in cells if c.case.probe == choice.probe.name and len(c.hosts) == 2]
        met = {(numbers[c.hosts[0]], numbers[c.hosts[1]]) for c in own}
        bad = [numbers[s] for s in suspects if s in numbers]
        good = [n for n in {n for pair in met for n in pair} if n not in bad]
        for a, b in pairs.again(bad, good, met, layout.random(f"again {choice.probe.name}")):
            found += layout.pair(choice, ordered[a], ordered[b], 0)
    return found


@dataclass(frozen=True, slots=True)
class _Layout:
    site: Site
    hosts: Sequence[Host]
    gpus: dict[str, HostGpus]
    known: dict[Hashable, set[str]] = field(default_factory=dict)

    def host_pairs(self, choice: Choice) -> Iterator[Cell]:
        """Pairs of hosts in rounds of disjoint ones; hosts that cannot take part are told."""
        able = []
        for host in self.hosts:
            lack = unmet(choice.probe, host, self.gpus[host.key], len(self.hosts))
            if lack is None:
                able.append(host)
            else:
                yield self._lacking(choice, lack, host)
        for number in range(max(1, self.site.config.processes)):
            for met in self._rounds(choice, len(able)):
                for a, b in met:
                    yield from self.pair(choice, able[a], able[b], number)

    def pair(self, choice: Choice, first: Host, second: Host, process_no: int) -> Iterator[Cell]:
        """The cells of one pair."""
        seats = _Seat(first), _Seat(second)
        kinds = self.site.kind(first), self.site.kind(second)
        arm = self.site.alike.once(("pair", kinds), lambda: self._arm(seats, None))
        yield from self._cells(choice.cases(), seats, arm, process_no)

    def pairs_left_out(self, choice: Choice) -> Iterator[str]:
        """A warning if not every pair meets."""
        count = len(self.hosts)
        drawn = self._rounds(choice, count)
        met, every = sum(map(len, drawn)), count * (count - 1) // 2
        if met < every:
            yield (
                f"{choice.probe.name}: {met} of {every} pairs of hosts are measured, in "
                f"{len(drawn)} rounds drawn by the seed; {every - met} are left out, and hosts "
                "that look slow meet one more good host"
            )

    def gangs(self, choice: Choice) -> Iterator[Cell]:
        """A collective over all hosts: a rank for each GPU, or one for each host without."""
        seats = self._seats(choice)
        if isinstance(seats, Lack):
            yield self._lacking(choice, seats, self.hosts[0])
            return
        on_gpus = seats[0].gpu is not None
        backend = "nccl" if on_gpus else "gloo"
        ring = rings.AUTO if on_gpus and choice.probe.arms is Arms.GANG else None
        cases = choice.cases(ranks=len(seats), backend=backend, hosts="all")
        plain = self._arm(seats, ring)
        for left_out in rings.over_hosts(self.site.config.rings) if ring else ():
            cell = self._lacking(choice, Lack(left_out.status, left_out.reason), self.hosts[0])
            yield dataclasses.replace(cell, arm=Arm(Binding("none"), left_out.name))
        hosts = list({s.host.key: s.host for s in seats}.values())
        more, refused = environments(self.site.config, plain, hosts, on_gpus=on_gpus)
        for arm, why in refused:
            lack = Lack(Status.NOT_APPLICABLE, why)
            yield dataclasses.replace(self._lacking(choice, lack, self.hosts[0]), arm=arm)
        yield from self._blocks(cases, seats, [plain, *more])

    def _blocks(
        self, cases: Sequence[Timed], seats: Sequence[_Seat], arms: Sequence[Arm]
    ) -> Iterator[Cell]:
        """Complete rounds over the arms in seeded order, every second one mirrored."""
        config, generator = self.site.config, self.random("environments")
        count = config.blocks if len(arms) > 1 and config.blocks else config.processes
        order: list[Arm] = []
        for number in range(max(1, count)):
            order = order[::-1] if number % 2 else generator.sample(arms, len(arms))
            for position, arm in enumerate(order):
                for cell in self._cells(cases, seats, arm, number):
                    block = number if len(arms) > 1 else 0
                    yield dataclasses.replace(cell, block=block, order_in_block=position)

    def random(self, label: str) -> random.Random:
        """A generator of its own for each purpose."""
        return random.Random(f"{self.site.seed}/together/{label}")

    def _rounds(self, choice: Choice, count: int) -> list[list[pairs.Pair]]:
        every = self.site.config.profile == _FULL
        return pairs.rounds(count, self.random(choice.probe.name), every=every)

    def _seats(self, choice: Choice) -> tuple[_Seat, ...] | Lack:
        wanted = choice.values.get("backend", ("auto",))
        hosts = self._by_rank()
        with_gpus = [h for h in hosts if h.topology.gpus]
        if wanted == ("gloo",) or ("nccl" not in wanted and not with_gpus):
            able = [h for h in hosts if self._able(choice, h)]
            seats = tuple(_Seat(h) for h in able)
        else:
            able = [h for h in with_gpus if self._able(choice, h) and self.gpus[h.key].whole]
            seats = tuple(_Seat(h, g) for h in able for g in self.gpus[h.key].whole)
        if len(able) > 1:
            return seats
        text = f"a gang over hosts needs 2 of them, {len(able)} can take part"
        return Lack(Status.SKIPPED, Reason(ReasonCode.NEEDS_2_HOSTS, text))

    def _by_rank(self) -> list[Host]:
        """
        The hosts in order of their ranks: as the config lists them, else by name.

        NCCL joins hosts in this order; no graph file can change it.
        """
        listed: dict[str, int] = {}
        for number, expected in enumerate(self.site.config.hosts):
            for name in filter(None, (expected.id, expected.host.lower())):
                listed.setdefault(name, number)

        def place(host: Host) -> int:
            names = (host.key, *(name.lower() for name in host_names(host)))
            return min((listed[n] for n in names if n in listed), default=len(listed))

        return sorted(self.hosts, key=place)

    def _able(self, choice: Choice, host: Host) -> bool:
        return unmet(choice.probe, host, self.gpus[host.key], len(self.hosts)) is None

    def _cells(
        self, cases: Sequence[Timed], seats: Sequence[_Seat], arm: Arm, process_no: int
    ) -> Iterator[Cell]:
        devices = tuple(s.gpu.key for s in seats if s.gpu)
        hosts = tuple(s.host.key for s in seats)
        known = self.known.setdefault((hosts, devices, process_no, costs.worker_key(arm)), set())
        gpus = costs.most_of_a_host(hosts) if devices else 0
        for case, seconds in costs.of_worker(cases, arm, gpus=gpus, ranks=len(seats), known=known):
            yield Cell(
                id=next(self.site.ids),
                case=case,
                host=seats[0].host.key,
                arm=arm,
                devices=devices,
                ranks=len(seats),
                process_no=process_no,
                estimated_seconds=seconds,
                hosts=hosts,
            )

    def _arm(self, seats: Sequence[_Seat], ring: str | None) -> Arm:
        """The first binding that exists on every host; each rank has its own host's CPUs."""
        for choice in self.site.config.bindings:
            found = [resolve(choice, s.host.topology, s.gpu) for s in seats]
            bindings = [b for b in found if not isinstance(b, Refusal)]
            if len(bindings) == len(seats):
                break
        else:
            bindings = [Binding("none")] * len(seats)
        threads = min(
            equal_threads([b for b, s in rows], host.topology, len(rows))
            for host, rows in _by_host(bindings, seats)
        )
        bound = tuple(with_threads(b, threads) for b in bindings)
        return Arm(bound[0], ring, rank_bindings=bound if bound[0].cpus else ())

    def _lacking(self, choice: Choice, lack: Lack, host: Host) -> Cell:
        return Cell(
            id=next(self.site.ids),
            case=Case(choice.probe.name, choice.probe.version, {}),
            host=host.key,
            arm=UNBOUND,
            status=lack.status,
            reason=lack.reason,
        )


def _by_host(
    bindings: Sequence[Binding], seats: Sequence[_Seat]
) -> Iterator[tuple[Host, list[tuple[Binding, _Seat]]]]:
    rows = zip(bindings, seats, strict=True)
    for _, found in itertools.groupby(rows, key=lambda row: row[1].host.key):
        listed = list(found)
        yield listed[0][1].host, listed
