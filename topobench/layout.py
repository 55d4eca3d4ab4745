"""
The cells of one host: probes x parameters x devices x arms x repeats; pure.

A *bench* is a set of devices on which arms are compared: one GPU, the GPUs or ranks of a
gang, or no device at all. Every arm of a bench gets a worker in every round.
"""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from topobench import costs, env_arms, rings, shared_lines
from topobench.alike import Alike, uuids
from topobench.bindings import (
    Refusal,
    equal_threads,
    with_threads,
)
from topobench.choice import GPUS, SHAPE, Choice, Timed
from topobench.config import ClusterConfig
from topobench.config_fields import SHARING
from topobench.device_sets import device_sets
from topobench.errors import UsageError
from topobench.host import Host
from topobench.layout_arms import (
    absent_nodes,
    joined,
    matrix_cases,
    matrix_places,
    resolve_all,
    with_equal_threads,
    with_settings,
)
from topobench.probes.protocol import Arms
from topobench.reading import Arm, Binding, Case, Cell, Reason, ReasonCode, Status
from topobench.selection import (
    HostGpus,
    Lack,
    needs_cpus,
    needs_gpus,
    select_gpus,
    unmet,
)
from topobench.topology import Gpu
from topobench.units import format_bytes

UNBOUND = Arm(Binding("none"))
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Site:
    """
    What is the same for every host of a sweep.

    Args:
        ids: UUIDs for its cells.
        alike: What was laid out for hosts of a kind.
    """

    config: ClusterConfig
    choices: tuple[Choice, ...]
    host_count: int
    seed: int
    ids: Iterator[str] = field(default_factory=uuids, compare=False)
    alike: Alike = field(default_factory=Alike, compare=False)

    def kind(self, host: Host) -> int:
        """The number of a host's kind."""
        return self.alike.kind(host.key, host.topology, self.config.env_for(host))


@dataclass(frozen=True, slots=True)
class _Bench:
    """
    Devices on which arms are compared, and the cases every arm runs there.

    Args:
        rings: Its ranks are joined by rings of GPUs, whose order can be compared.
        compared: Every arm is run; else the first binding that exists.
        environments: Settings that are compared; each makes an arm of every binding.
        env_arms: Rings and the named environments are compared, too, the latter under the first
            binding; else there is the first ring that exists.
        once: Cases that the first process of every arm runs as well.
    """

    devices: tuple[Gpu, ...] = ()
    ranks: int = 1
    cases: list[Timed] = field(default_factory=list)
    once: list[Timed] = field(default_factory=list)
    rings: bool = False
    compared: bool = True
    environments: tuple[Mapping[str, str], ...] = ({},)
    env_arms: bool = False

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(gpu.key for gpu in self.devices)

    @property
    def probes(self) -> tuple[tuple[str, int], ...]:
        return tuple(dict.fromkeys((t.case.probe, t.case.version) for t in self.cases))


@dataclass(frozen=True, slots=True)
class _Group:
    """What one worker (or gang) runs: the cases of one arm on one bench; ``once`` by the first."""

    arm: Arm
    cases: Sequence[Timed]
    devices: tuple[str, ...] = ()
    ranks: int = 1
    visible: tuple[str, ...] = ()
    once: Sequence[Timed] = ()


def lay_out(site: Site, host: Host) -> list[Cell]:
    """Every cell of one host in the order it will run; those not run carry a reason."""
    return [*_Layout(site, host, select_gpus(site.config, host), site.kind(host)).cells()]


@dataclass(frozen=True, slots=True)
class _Layout:
    """
    Lays out one host; every method yields cells in the order they will run.

    Args:
        known: What each worker will have made or loaded by then (``topobench.costs``).
    """

    site: Site
    host: Host
    gpus: HostGpus
    kind: int
    known: dict[Hashable, set[str]] = field(default_factory=dict)

    def cells(self) -> Iterator[Cell]:
        runnable = []
        for choice in (c.on(self.gpus) for c in self.site.choices):
            lack = unmet(
                choice.probe,
                self.host,
                self.gpus,
                self.site.host_count,
                own_program=choice.own_program,
            )
            if lack is None and choice.on_gpus:
                lack = self.gpus.lack
            if lack is not None:
                yield self._lacking(choice, lack)
            elif choice.probe.arms is not Arms.HOST_PAIRS:  # laid out for all hosts together
                runnable.append(choice)
        laid_out = [(_laid_out_as(choice), choice) for choice in runnable]
        laid_out += [(Arms.GANG, choice) for choice in runnable if choice.sharing]
        for arms in dict.fromkeys(arms for arms, _ in laid_out):
            choices = [choice for its, choice in laid_out if its is arms]
            if arms is Arms.NUMA_MATRIX:
                yield from self._matrix(choices)
            elif arms in (Arms.GANG, Arms.RANKS):
                yield from self._gangs(choices)
            elif arms is Arms.PAIRS:
                yield from self._pairs(choices)
            elif arms is Arms.HOST:
                yield from self._all_in_one(choices)
            else:
                yield from self._single(choices)

    def _single(self, choices: Sequence[Choice]) -> Iterator[Cell]:
        """Probes of one process, on each GPU or on none."""
        on_gpu = [c for c in choices if c.on_gpus]
        for choice in on_gpu:
            yield from self._broken(choice)
        benches = [*self._gpu_benches(on_gpu)]
        left = [c for c in choices if c not in on_gpu]
        yield from self._benches([*benches, *self._in_one_process(left, ())])

    def _under_all_bindings(self, choice: Choice, *, shared: bool = False) -> bool:
        """Whether its bindings are compared; ``shared``: where GPUs share a model."""
        once = self.site.config.one_binding
        inside = choice.probe.arms is Arms.DEVICE
        return not (inside or choice.probe.name in once or (shared and SHARING in once))

    def _gpu_benches(self, choices: Sequence[Choice]) -> Iterator[_Bench]:
        """
        All GPUs at once, then each alone.

        What runs at once compares the arms for all GPUs in the time of one; such a probe runs
        on each GPU alone under the first arm only. So does one that only measures the device, or
        whose bindings are not compared.
        """
        gpus = self.gpus.usable
        varied = [c for c in choices if c.environments != ({},)]
        choices = [c for c in choices if c not in varied]
        inside = [c for c in choices if not self._under_all_bindings(c)]
        for compared in (True, False):
            some = [c for c in choices if (c not in inside) is compared]
            together = [t for c in some for t in c.together(len(gpus))]
            if together:
                yield _Bench(gpus, len(gpus), together, compared=compared)
        both = [c for c in choices if c in inside or c.together(len(gpus))]
        alone = [t for c in choices if c not in both for t in c.alone(len(gpus))]
        once = [t for c in both for t in c.alone(len(gpus))]
        for gpu in self._random("devices").sample(gpus, len(gpus)):
            if alone:
                yield _Bench((gpu,), 1, alone)
            if once:
                yield _Bench((gpu,), 1, once, compared=False)
            yield from self._in_one_process(varied, (gpu,))

    def _all_in_one(self, choices: Sequence[Choice]) -> Iterator[Cell]:
        """Programs that drive all GPUs by themselves, in one worker that sees them."""
        for choice in choices:
            yield from self._broken(choice)
        yield from self._benches(self._in_one_process(choices, self.gpus.usable))

    def _in_one_process(self, choices: Sequence[Choice], gpus: tuple[Gpu, ...]) -> list[_Bench]:
        """Benches of one process each; choices that compare the same arms share one."""
        found: dict[Any, _Bench] = {}
        for choice in choices:
            compared = self._under_all_bindings(choice)
            new = _Bench(gpus, compared=compared, environments=choice.environments)
            bench = found.setdefault((repr(choice.environments), compared), new)
            bench.cases.extend(choice.unshared())
        return list(found.values())

    def _gangs(self, choices: Sequence[Choice]) -> Iterator[Cell]:
        """
        Collectives: one rank for each GPU; CPU processes on a host without, or where asked for.

        What processes exchange through memory says nothing of a host that has GPUs, be it one.
        """
        benches: dict[Any, _Bench] = {}
        for choice in choices:
            if choice.sharing:
                yield from self._sharing(choice, choices, benches)
                continue
            if "one" not in choice.values.get("hosts", ("one",)):
                continue  # laid out for all hosts together
            for backend in choice.values.get("backend", ("auto",)):
                on_gpus = backend == "nccl" or (backend == "auto" and not self.gpus.absent)
                lack = (self.gpus.lack or needs_gpus(2, self.gpus)) if on_gpus else None
                if lack is not None:
                    yield self._lacking(choice, lack)
                elif on_gpus:
                    yield from self._broken(choice)
                    whole = self.gpus.whole
                    in_rings = choice.probe.arms is Arms.GANG
                    bench = _Bench(whole, len(whole), rings=in_rings, env_arms=True)
                    yield from self._gang(choice, bench, benches)
                else:
                    yield from self._cpu_gangs(choice, benches)
        yield from self._benches(list(benches.values()))

    def _cpu_gangs(self, choice: Choice, benches: dict[Any, _Bench]) -> Iterator[Cell]:
        for ranks in choice.gang_sizes():
            lack = needs_cpus(ranks, self.host.topology)
            if lack is None:
                in_rings = choice.probe.arms is Arms.GANG
                bench = _Bench((), ranks, rings=in_rings, env_arms=True)
                yield from self._gang(choice, bench, benches)
            else:
                yield self._lacking(choice, lack, ranks=ranks)

    def _gang(self, choice: Choice, new: _Bench, benches: dict[Any, _Bench]) -> Iterator[Cell]:
        """Add a collective's cases to the bench of its gang; those too large are refused."""
        compared = self._under_all_bindings(choice)
        new = dataclasses.replace(new, compared=compared)
        bench = benches.setdefault((new.devices, new.ranks, compared), new)
        backend = "nccl" if bench.devices else "gloo"
        for timed in choice.cases(ranks=bench.ranks, backend=backend, hosts="one"):
            lack = self._too_large(timed.case, bench)
            if timed in bench.cases:  # asked for as auto and by name
                continue
            if lack is None:
                bench.cases.append(timed)
            else:
                yield self._refused(timed.case, lack, devices=bench.keys, ranks=bench.ranks)

    def _sharing(
        self, choice: Choice, choices: Sequence[Choice], benches: dict[Any, _Bench]
    ) -> Iterator[Cell]:
        """
        Models that GPUs share, which differ in the farthest path between them; or processes.

        Arms are compared where the most ranks share a model; fewer tell what more of them gain,
        under the first arm alone. A part of a host's GPUs gets all-reduces of its own.
        """
        found = {ranks: self._shared(choice, ranks) for ranks in choice.sharing}
        most = max((n for n, cases in found.items() if not isinstance(cases, Lack)), default=0)
        for ranks, cases in found.items():
            if isinstance(cases, Lack):
                case = Case(choice.probe.name, choice.probe.version, {SHARING: ranks})
                yield self._refused(case, cases, ranks=ranks)
                continue
            sets: Sequence[tuple[Gpu, ...]] = [()]
            if choice.on_gpus:
                sets = device_sets(self.host.topology, self.gpus.whole, ranks)
            for gpus in sets:
                part = 0 < len(gpus) < len(self.gpus.whole)
                once = shared_lines.cases(choices, ranks, choice.messages(ranks)) if part else []
                arms = ranks == most
                bound = arms and self._under_all_bindings(choice, shared=True)
                new = _Bench(
                    gpus, ranks, once=once, rings=bool(gpus), compared=bound, env_arms=arms
                )
                key = gpus, ranks, bound if arms else choice.probe.name
                benches.setdefault(key, new).cases.extend(cases)

    def _shared(self, choice: Choice, ranks: int) -> Sequence[Timed] | Lack:
        """
        The cases of a model that so many ranks share, or why there is none.

        Raises:
            UsageError: A shape that the user asked for does not divide by the ranks.
        """
        gpus = choice.on_gpus
        lack = needs_gpus(ranks, self.gpus) if gpus else needs_cpus(ranks, self.host.topology)
        if lack is not None:
            return lack
        try:
            return choice.shared(ranks)
        except UsageError as error:
            if SHAPE not in choice.suited:
                raise
            reason = Reason(ReasonCode.UNSUPPORTED, str(error.__cause__))
            return Lack(Status.SKIPPED, reason)

    def _too_large(self, case: Case, bench: _Bench) -> Lack | None:
        """A rank holds its payload about three times: with the sum's scratch and its check."""
        size = case.params.get("bytes")
        room, where = self.host.facts.available_memory_bytes, "available on this host"
        sharing = bench.ranks
        if bench.devices:
            room = min((g.memory_bytes for g in bench.devices if g.memory_bytes), default=None)
            where, sharing = "on the smallest GPU", 1
        if not isinstance(size, int) or room is None or 3 * size * sharing <= room:
            return None
        text = f"needs about {format_bytes(3 * size * sharing)}, {format_bytes(room)} {where}"
        return Lack(Status.SKIPPED, Reason(ReasonCode.NOT_ENOUGH_MEMORY, text))

    def _pairs(self, choices: Sequence[Choice]) -> Iterator[Cell]:
        """
        Every ordered pair of GPUs, in seeded order, by one worker that sees them all.

        Then the cases in which all GPUs copy at once.
        """
        for choice in choices:
            yield from self._broken(choice)
        whole = self.gpus.whole
        bench = _Bench(whole, cases=[t for c in choices for t in c.cases()], compared=False)
        arms, refused = self._arms(bench)
        for refusal, probe in itertools.product(refused, bench.probes):
            yield self._arm_refused(probe, refusal)
        if not arms:
            return
        binding = arms[0].binding
        threads = equal_threads([binding], self.host.topology)
        arm = self._once(("pairs", binding, threads), lambda: Arm(with_threads(binding, threads)))
        pairs = list(itertools.permutations(whole, 2))
        for pair in self._random("pairs").sample(pairs, len(pairs)):
            first, second = pair
            # Both ways at once is the same from either end.
            mirrored = whole.index(first) > whole.index(second)
            left_out = {"all", "both"} if mirrored else {"all"}
            cases = [t for t in bench.cases if t.case.params.get("ways") not in left_out]
            keys = first.key, second.key
            group = _Group(arm, cases, keys, visible=bench.keys)
            yield from self._rounds([group], f"pair {' '.join(keys)}", self.site.config.processes)
        together = [t for t in bench.cases if t.case.params.get("ways") == "all"]
        group = _Group(arm, together, bench.keys, visible=bench.keys)
        yield from self._rounds([group], "all pairs", self.site.config.processes)

    def _matrix(self, choices: Sequence[Choice]) -> Iterator[Cell]:
        """Every CPU node against every memory node, as one comparison without a device."""
        places = self._once("matrix", lambda: matrix_places(self.host.topology))
        usable = [place for place, arm in places if arm is not None]
        for choice in choices:
            for place, _ in places:
                if isinstance(place.resolved, Refusal):
                    probe = choice.probe.name, choice.probe.version
                    yield self._arm_refused(probe, place.resolved)
        groups = []
        for place, arm in places:
            cases = [t for c in choices for t in matrix_cases(c, place)] if arm else []
            if arm and cases:
                groups.append(_Group(arm, cases))
        for choice in choices:
            for lack in absent_nodes(choice, usable):
                yield self._lacking(choice, lack)
        yield from self._rounds(groups, "matrix", self.site.config.processes)

    def _benches(self, benches: Sequence[_Bench]) -> Iterator[Cell]:
        """Cells of benches whose arms are bindings and rings; what cannot run comes first."""
        resolved = [(bench, *self._arms(bench)) for bench in benches]
        refusals: dict[tuple[tuple[str, int], Refusal], list[_Bench]] = {}
        for bench, _, refused in resolved:
            for refusal, probe in itertools.product(refused, bench.probes):
                refusals.setdefault((probe, refusal), []).append(bench)
        for (probe, refusal), where in refusals.items():
            # What is so on every GPU is said once, without a device.
            devices = where[0].keys if len(where) == 1 else ()
            yield self._arm_refused(probe, refusal, devices)
        bindings = {arm.binding for _, arms, _ in resolved for arm in arms}
        sizes = {bench.ranks for bench in benches}
        threads = {n: equal_threads(bindings, self.host.topology, n) for n in sizes}
        config = self.site.config
        for bench, arms, _ in resolved:
            keys, ranks = bench.keys, bench.ranks
            bound = [self._bound(arm, threads[ranks]) for arm in arms]
            groups = [_Group(arm, bench.cases, keys, ranks, once=bench.once) for arm in bound]
            compared = len(groups) > 1 and config.blocks > 0
            label = f"bench {ranks} {' '.join(keys)}"
            yield from self._rounds(groups, label, config.blocks if compared else config.processes)

    def _arms(self, bench: _Bench) -> tuple[list[Arm], list[Refusal]]:
        """The arms of a bench that can be laid out, and those that cannot."""
        numbers = {gpu.key: n for n, gpu in enumerate(self.host.topology.gpus)}
        places = tuple(numbers[key] for key in bench.keys)
        settings = tuple(tuple(sorted(env.items())) for env in bench.environments)
        traits = bench.ranks, bench.rings, bench.compared, bench.env_arms, settings
        return self._once((places, traits), lambda: self._lay_out_arms(bench))

    def _once(self, key: Hashable, make: Callable[[], T]) -> T:
        """What is so on every host of this kind."""
        return self.site.alike.once((self.kind, key), make)

    def _bound(self, arm: Arm, threads: int) -> Arm:
        """An arm of :meth:`_arms` with a number of threads."""
        return self._once((id(arm), threads), lambda: with_equal_threads(arm, threads))

    def _lay_out_arms(self, bench: _Bench) -> tuple[list[Arm], list[Refusal]]:
        names, refused = self._rings(bench)
        arms = []
        for choice in self.site.config.bindings:
            found = resolve_all(choice, self.host.topology, bench.devices)
            if isinstance(found, Refusal):
                refused.append(found)
            else:
                if bench.ranks == 1:  # one process: it is bound to what suits any of its GPUs
                    found = dataclasses.replace(found, rank_bindings=())
                arms += [
                    joined(with_settings(found, settings), ring)
                    for ring in names
                    for settings in bench.environments
                ]
            if arms and not bench.compared:
                break
        if arms and bench.env_arms:
            more, lacking = self._env_arms(bench, arms[0], names)
            arms, refused = [*arms, *more], [*refused, *lacking]
        return arms, refused

    def _env_arms(
        self, bench: _Bench, first: Arm, ringed: Sequence[str | None]
    ) -> tuple[list[Arm], list[Refusal]]:
        """Named environments with NCCL's own rings; those without a reference bring it along."""
        config = self.site.config
        ring = rings.AUTO if bench.devices and bench.rings else None
        plain = dataclasses.replace(first, ring=ring, env={})
        arms, refused = environments(config, plain, [self.host], on_gpus=bool(bench.devices))
        reference = [plain] if config.env_arms and ring not in ringed else []
        lacking = [Refusal(arm.name, Status.NOT_APPLICABLE, why) for arm, why in refused]
        return [*reference, *arms], lacking

    def _rings(self, bench: _Bench) -> tuple[list[str | None], list[Refusal]]:
        """Ring arms exist between GPUs only; those that cannot differ are refused."""
        wanted = self.site.config.rings
        if bench.ranks < 2 or not bench.rings:
            return [None], []
        if not bench.devices:
            return [None], _ring_refusals(rings.without_nccl(wanted))
        matrix = rings.bandwidths(self.host.topology, bench.devices)
        found = rings.arms(wanted, bench.ranks, matrix)
        names: list[str | None] = [arm.name for arm in found if isinstance(arm, rings.RingArm)]
        if names and not bench.env_arms:
            return names[:1], []
        if set(names) - {rings.AUTO, rings.AUTO_RING}:  # which are held against NCCL's own rings
            names = list(dict.fromkeys([*names, rings.AUTO_RING]))
        return names, _ring_refusals(found)

    def _rounds(self, groups: Sequence[_Group], label: str, count: int) -> Iterator[Cell]:
        """Complete rounds over the arms in seeded order, every second one mirrored."""
        if len(groups) < 2:  # nothing to draw
            for group, number in itertools.product(groups, range(max(1, count))):
                yield from self._worker(group, number, 0, 0)
            return
        generator = self._random(label)
        order: list[_Group] = []
        for number in range(max(1, count)):
            order = order[::-1] if number % 2 else generator.sample(groups, len(groups))
            for position, group in enumerate(order):
                yield from self._worker(group, number, number, position)

    def _worker(self, group: _Group, number: int, block: int, position: int) -> Iterator[Cell]:
        """The cells of one worker."""
        place = self.host.key, group.arm, group.devices, group.ranks, number, block, position
        outcome = Status.PLANNED, None, group.visible
        seen = group.visible or group.devices
        key = seen, group.ranks, number, block, costs.worker_key(group.arm)
        known = self.known.setdefault(key, set())
        cases = [*group.cases, *group.once] if number == 0 else group.cases
        timed = costs.of_worker(cases, group.arm, gpus=len(seen), ranks=group.ranks, known=known)
        for (case, seconds), id in zip(timed, self.site.ids, strict=False):
            yield Cell(id, case, *place, seconds, *outcome)

    def _random(self, label: str) -> random.Random:
        """A generator of its own for each purpose: one host's order never moves another's."""
        return random.Random(f"{self.site.seed}/{self.host.key}/{label}")

    def _broken(self, choice: Choice) -> Iterator[Cell]:
        """One cell for each selected GPU that cannot be measured."""
        for gpu, lack in self.gpus.broken:
            yield self._lacking(choice, lack, devices=(gpu.key,))

    def _lacking(
        self, choice: Choice, lack: Lack, *, devices: tuple[str, ...] = (), ranks: int = 1
    ) -> Cell:
        """One cell for a whole probe that cannot run, whatever its parameters."""
        case = Case(choice.probe.name, choice.probe.version, {})
        return self._refused(case, lack, devices=devices, ranks=ranks)

    def _arm_refused(
        self, probe: tuple[str, int], refusal: Refusal, devices: tuple[str, ...] = ()
    ) -> Cell:
        """One cell for an arm that does not exist here, whatever the parameters."""
        lack = Lack(refusal.status, refusal.reason)
        placed, _, env_name = refusal.name.partition("+")
        binding, _, ring = placed.partition("/")
        arm = Arm(Binding(binding), ring or None, env_name=env_name or None)
        return self._refused(Case(*probe, {}), lack, arm=arm, devices=devices)

    def _refused(
        self,
        case: Case,
        lack: Lack,
        *,
        arm: Arm = UNBOUND,
        devices: tuple[str, ...] = (),
        ranks: int = 1,
    ) -> Cell:
        return Cell(
            id=next(self.site.ids),
            case=case,
            host=self.host.key,
            arm=arm,
            devices=devices,
            ranks=ranks,
            status=lack.status,
            reason=lack.reason,
        )


def environments(
    config: ClusterConfig, plain: Arm, hosts: Sequence[Host], *, on_gpus: bool
) -> tuple[list[Arm], list[tuple[Arm, Reason]]]:
    """
    The named environments of a gang, and those that do not apply to it.

    Args:
        plain: The arm that each of them changes in nothing else.
        hosts: Where its ranks run; what one of them forbids is forbidden.
    """
    arms, refused = [], []
    for wanted in config.env_arms:
        arm = dataclasses.replace(plain, env=dict(wanted.env), env_name=wanted.name)
        why = env_arms.pointless(wanted.env, "nccl" if on_gpus else "gloo")
        why = why or env_arms.refusal(wanted.env, *(config.env_for(host) for host in hosts))
        if why is None:
            arms.append(arm)
        else:
            refused.append((arm, why))
    return arms, refused


def _ring_refusals(found: Iterable[rings.RingArm | rings.RingRefusal]) -> list[Refusal]:
    return [
        Refusal(f"none/{arm.name}", arm.status, arm.reason)
        for arm in found
        if isinstance(arm, rings.RingRefusal)
    ]


def _laid_out_as(choice: Choice) -> Arms:
    """Probes of the device alone are laid out beside those of bindings: workers are shared."""
    if choice.values.get(GPUS) == ("all",):
        return Arms.HOST
    return Arms.BINDINGS if choice.probe.arms is Arms.DEVICE else choice.probe.arms
