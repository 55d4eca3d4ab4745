"""
Compares what two selections measured, case by case. Pure.

Hosts that both sides measured are compared with themselves; what only one side has is left
out and said. Only variation between processes, nights or hosts decides: the coarsest of them
that varies, so that many processes of one night never pass for many nights.
"""

from __future__ import annotations

import collections
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from topobench.comparability import differences, refusal
from topobench.compare_cases import (
    Case,
    Compared,
    Key,
    case_key,
    devices_of,
    host_of,
    make_case,
    middle,
    night_of,
    own_key,
    process_of,
    varying,
)
from topobench.comparison import MIN_PROCESSES, compare, compare_paired
from topobench.errors import UsageError
from topobench.measured import Value, grouped, inputs_digest
from topobench.policy import Policy
from topobench.reading import Better, CiLevel
from topobench.units import count

NOT_RESULTS = frozenset({"locality_ratio"})
"""Metrics that prove a binding; they are no speed."""


@dataclass(frozen=True, slots=True)
class Options:
    """
    How to compare.

    Args:
        policy: Says which change of a metric matters.
        force: Compare in spite of differences that may be forced.
        hardware: The sides were chosen by SKU or cluster: other hardware is what is asked for.
    """

    policy: Policy
    force: bool = False
    hardware: bool = False


@dataclass(slots=True)
class _Sides:
    """The values of a comparison by case, and what was left out on the way."""

    a: dict[Key, list[Value]]
    b: dict[Key, list[Value]]
    left_out: list[str] = field(default_factory=list)

    def both(self) -> list[Key]:
        """Cases of both sides; those of one only are noted."""
        for name, own, other in (("A", self.a, self.b), ("B", self.b, self.a)):
            alone = [key for key in own if key not in other]
            if alone:
                probes = sorted({own[key][0].subject.probe for key in alone})
                self.left_out.append(
                    f"on side {name} only: {count(len(alone), 'case')} of {', '.join(probes)}"
                )
        return [key for key in self.a if key in self.b]


def compare_sides(a: Sequence[Value], b: Sequence[Value], options: Options) -> Compared:
    """
    Compare two selections.

    Raises:
        UsageError: They have runs in common.
    """
    _require_apart(a, b)
    digest = inputs_digest([*a, *b], options.policy.version)
    left_out = _unjudged([*a, *b], options.policy)
    a, b = _judged(a, options.policy), _judged(b, options.policy)
    shared = {v.subject.host for v in a} & {v.subject.host for v in b}
    if not shared:
        return _other_hosts(a, b, options, digest, left_out)
    left_out += _not_shared(a, b, shared)
    a, b = ([v for v in side if v.subject.host in shared] for side in (a, b))
    if len(shared) >= MIN_PROCESSES:
        return _pooled(a, b, options, digest, left_out)
    sides = _Sides(grouped(a, own_key), grouped(b, own_key), left_out)
    cases = [_apart(sides.a[k], sides.b[k], options, own=True) for k in sides.both()]
    return Compared("same_hosts", tuple(cases), tuple(sides.left_out), digest)


def _other_hosts(
    a: Sequence[Value], b: Sequence[Value], options: Options, digest: str, left_out: list[str]
) -> Compared:
    """No host is on both sides: hosts, nights or processes of one side against the other's."""
    sides = _whole_runs(a, b)
    sides.left_out[:0] = left_out
    cases = [_apart(sides.a[k], sides.b[k], options, own=False) for k in sides.both()]
    return Compared("other_hosts", tuple(cases), tuple(sides.left_out), digest)


def _pooled(
    a: Sequence[Value], b: Sequence[Value], options: Options, digest: str, left_out: list[str]
) -> Compared:
    """Each host with itself, then the hosts' effects together."""
    sides = _whole_runs(a, b)
    sides.left_out[:0] = left_out
    cases = []
    for key in sides.both():
        pairs = host_effects(sides.a[key], sides.b[key], options)
        cases.append(_paired(sides.a[key], sides.b[key], pairs, options))
    return Compared("same_hosts_pooled", tuple(cases), tuple(sides.left_out), digest)


def compare_with_control(
    treated: tuple[Sequence[Value], Sequence[Value]],
    control: tuple[Sequence[Value], Sequence[Value]],
    options: Options,
) -> Compared:
    """
    Difference in differences: how much more the treated hosts changed than the others did.

    Args:
        treated: Before and after, on hosts that changed.
        control: Before and after, on hosts that did not.
    """
    digest = inputs_digest([*treated[0], *treated[1], *control[0], *control[1]])
    sides = _whole_runs(*(_judged(side, options.policy) for side in treated))
    others = _whole_runs(*(_judged(side, options.policy) for side in control))
    cases = []
    for key in sides.both():
        changed = host_effects(sides.a[key], sides.b[key], options)
        same = host_effects(others.a.get(key, []), others.b.get(key, []), options)
        cases.append(_against(sides.a[key], sides.b[key], changed, same, options))
    return Compared("against_control", tuple(cases), tuple(sides.left_out), digest)


@dataclass(frozen=True, slots=True)
class HostEffects:
    """
    What changed on each host.

    Args:
        ratios: b / a of each host that could be compared, the median over its devices.
        refused: Host -> why it must not be compared.
        notes: What differs beside, with how many hosts it concerns.
    """

    ratios: Mapping[str, float]
    refused: Mapping[str, str]
    notes: tuple[str, ...]


def host_effects(a: Sequence[Value], b: Sequence[Value], options: Options) -> HostEffects:
    """The change on each host that both sides have; devices are compared with themselves."""
    mine, theirs = grouped(a, host_of), grouped(b, host_of)
    ratios: dict[str, float] = {}
    refused: dict[str, str] = {}
    noted: collections.Counter[str] = collections.Counter()
    for host in mine.keys() & theirs.keys():
        why = refusal(mine[host], theirs[host], same_hosts=True, force=options.force)
        if why is not None:
            refused[host] = why
            continue
        found = _device_ratios(mine[host], theirs[host])
        if not found:
            refused[host] = "its devices were exchanged: none was measured on both sides"
            continue
        ratios[host] = statistics.median(found)
        noted.update(differences(mine[host], theirs[host], same_hosts=True))
    total = len(ratios)
    notes = tuple(f"{text} ({n} of {total} hosts)" for text, n in sorted(noted.items()))
    return HostEffects(dict(sorted(ratios.items())), dict(sorted(refused.items())), notes)


def _device_ratios(a: Sequence[Value], b: Sequence[Value]) -> list[float]:
    mine, theirs = grouped(a, devices_of), grouped(b, devices_of)
    return [
        middle(theirs[key], (night_of, process_of)) / middle(mine[key], (night_of, process_of))
        for key in mine
        if key in theirs
    ]


def _paired(a: Sequence[Value], b: Sequence[Value], effects: HostEffects, options: Options) -> Case:
    if not effects.ratios:
        return make_case(a, b, "hosts", refused=_commonest(effects.refused))
    tolerance = _tolerance(a[0], options.policy)
    found = compare_paired(
        [1.0] * len(effects.ratios),
        list(effects.ratios.values()),
        tolerance=tolerance,
        better=a[0].better,
    )
    hosts = effects.ratios.keys()
    a, b = ([v for v in side if v.subject.host in hosts] for side in (a, b))
    changes = [a[0].better * (ratio - 1) for ratio in effects.ratios.values()]
    worse = sum(change < -tolerance for change in changes)
    notes = (f"{worse} of {len(hosts)} hosts are worse by more than the tolerance",)
    return make_case(a, b, "hosts", found, notes=notes + effects.notes + _left_hosts(effects))


def _against(
    a: Sequence[Value],
    b: Sequence[Value],
    changed: HostEffects,
    same: HostEffects,
    options: Options,
) -> Case:
    if not changed.ratios:
        return make_case(a, b, "hosts", refused=_commonest(changed.refused))
    if not same.ratios:
        return make_case(
            a, b, "hosts", refused="no host of the control measured this case both times"
        )
    found = compare(
        list(same.ratios.values()),
        list(changed.ratios.values()),
        tolerance=_tolerance(a[0], options.policy),
        better=a[0].better,
        level=CiLevel.BETWEEN,
    )
    made = make_case(a, b, "hosts", found, notes=(*changed.notes, *_left_hosts(changed)))
    moved = statistics.median(same.ratios.values()) - 1
    return replace(made, control_ratio=a[0].better * moved)


def _apart(a: Sequence[Value], b: Sequence[Value], options: Options, *, own: bool) -> Case:
    """Two groups of processes, nights or hosts; ``own``: of the same host and devices."""
    unit, level, below = varying(a, b)
    hardware = options.hardware and not own
    why = refusal(a, b, same_hosts=own, force=options.force, hardware=hardware)
    if why is not None:
        return make_case(a, b, unit, refused=why, own=own)
    found = compare(
        [middle(g, below) for g in grouped(a, level).values()],
        [middle(g, below) for g in grouped(b, level).values()],
        tolerance=_tolerance(a[0], options.policy),
        better=a[0].better,
        level=CiLevel.BETWEEN,
    )
    notes = tuple(differences(a, b, same_hosts=own))
    if unit == "processes" and found.lo is not None:
        notes += ("one night a side: how much nights differ is not in the interval",)
    return make_case(a, b, unit, found, notes=notes, own=own)


def _judged(values: Iterable[Value], policy: Policy) -> list[Value]:
    """Those whose metric is good in a direction and has a tolerance."""
    return [
        v
        for v in values
        if v.better is not Better.NEITHER
        and v.metric not in NOT_RESULTS
        and policy.delta(v.unit) is not None
        and v.median > 0
        and math.isfinite(v.median)
    ]


def _unjudged(values: Iterable[Value], policy: Policy) -> list[str]:
    """The metrics that no tolerance says anything of."""
    names = {
        v.metric
        for v in values
        if v.metric not in NOT_RESULTS
        and (v.better is Better.NEITHER or policy.delta(v.unit) is None)
    }
    return [f"not judged, for want of a tolerance: {', '.join(sorted(names))}"] if names else []


def _tolerance(value: Value, policy: Policy) -> float:
    found = policy.delta(value.unit)
    assert found is not None  # _judged left the others out
    return found


def _require_apart(a: Sequence[Value], b: Sequence[Value]) -> None:
    common = {v.run for v in a} & {v.run for v in b}
    if common:
        raise UsageError(
            f"A and B have {count(len(common), 'run')} in common, which would make them alike; "
            "narrow one of them, for example with date:FIRST..LAST or host:NAME"
        )


def _not_shared(a: Iterable[Value], b: Iterable[Value], shared: set[str]) -> list[str]:
    found = []
    for name, side in (("A", a), ("B", b)):
        alone = {v.subject.host_name for v in side if v.subject.host not in shared}
        if alone:
            some = ", ".join(sorted(alone)[:5]) + (" ..." if len(alone) > 5 else "")
            found.append(f"on side {name} only: {count(len(alone), 'host')}: {some}")
    return found


def _whole_runs(a: Sequence[Value], b: Sequence[Value]) -> _Sides:
    """Values of whole runs by case; of one path class each where a side has several."""
    a, b = ([v for v in side if v.rank is None] for side in (a, b))
    mixed = {
        key
        for side in (a, b)
        for key, group in grouped(side, case_key).items()
        if len({v.path_class for v in group}) > 1
    }

    def key(value: Value) -> Key:
        plain = case_key(value)
        return (*plain, value.path_class) if plain in mixed else plain

    return _Sides(grouped(a, key), grouped(b, key))


def _left_hosts(effects: HostEffects) -> tuple[str, ...]:
    if not effects.refused:
        return ()
    return (f"left out {count(len(effects.refused), 'host')}: {_commonest(effects.refused)}",)


def _commonest(reasons: Mapping[str, str]) -> str:
    if not reasons:
        return "no host measured it on both sides"
    return collections.Counter(reasons.values()).most_common(1)[0][0]
