"""
Acceptance: rules against one sweep, with an answer for every GPU, pair, host or cluster. Pure.

``pass`` and ``fail`` rest on the interval between processes (or hosts), never on a point.
What was not measured does not pass.
"""

from __future__ import annotations

import collections
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from topobench import ceilings
from topobench.accept_criteria import DISCOVERED, Criteria, Rule
from topobench.accept_facts import facts
from topobench.accept_values import against_reference, against_value, numbers
from topobench.accept_words import (
    AcceptHost,
    Answer,
    Evidence,
    Found,
    Judged,
    Planned,
    subject_name,
)
from topobench.ceilings import Limit, Measurement
from topobench.comparability import DISTURBED
from topobench.measured import Value, grouped
from topobench.reading import Better, Scalar

_WORST = (
    Answer.FAIL,
    Answer.IMPOSSIBLE,
    Answer.NOT_MEASURED,
    Answer.INCONCLUSIVE,
    Answer.PASS,
)


def judge(criteria: Criteria, evidence: Evidence) -> tuple[Judged, ...]:
    """Every rule; each has at least one answer, so that no rule passes unseen."""
    return tuple(Judged(rule, _answers(rule, evidence)) for rule in criteria.rules)


def overall(judged: Sequence[Judged]) -> Answer:
    """``fail`` if a rule failed or cannot be met, ``pass`` if all passed, else inconclusive."""
    words = {j.answer for j in judged}
    if words & {Answer.FAIL, Answer.IMPOSSIBLE}:
        return Answer.FAIL
    return Answer.PASS if words == {Answer.PASS} else Answer.INCONCLUSIVE


def _answers(rule: Rule, evidence: Evidence) -> tuple[Found, ...]:
    hosts = [h for h in evidence.hosts if rule.sku is None or _same(h.sku, rule.sku)]
    if not hosts:
        which = f"of SKU {rule.sku}" if rule.sku else "with a topology"
        reason = f"the sweep has no host {which}"
        return (Found(Answer.NOT_MEASURED, reason, subject=rule.sku or evidence.cluster),)
    if rule.probe == DISCOVERED:
        found = list(facts(rule, hosts))
    else:
        found = list(_measured(rule, hosts, evidence))
    return tuple(sorted(found, key=lambda f: (_WORST.index(f.answer), f.subject)))


def _same(sku: str | None, wanted: str) -> bool:
    return sku is not None and sku.lower() == wanted.lower()


_TOGETHER = (
    "several hosts measured it together, which tells nothing of one alone; write each: cluster"
)


RANKS = "ranks"
"""Parameter of collectives."""


@dataclass(frozen=True, slots=True)
class _Subject:
    """What must meet a rule; devices are empty for hosts and clusters."""

    name: str
    hosts: tuple[AcceptHost, ...]
    devices: tuple[str, ...] = ()


def _measured(rule: Rule, hosts: Sequence[AcceptHost], evidence: Evidence) -> Iterator[Found]:
    known = {h.key for h in hosts}
    values = [v for v in evidence.values if v.subject.host in known and _fits(rule, v)]
    joint = rule.each != "cluster" and any(v.subject.hosts for v in values)
    if joint:
        values = [v for v in values if not v.subject.hosts]
    if rule.each in ("host", "cluster") and RANKS not in rule.params:
        values = _of_whole_gangs(values)
    for subject in _subjects(rule, hosts, evidence):
        own = [v for v in values if _belongs(rule, subject, v)]
        for group in grouped(own, lambda v: (v.subject.params_hash, v.subject.arm)).values():
            yield _one(rule, subject, group, evidence)
        if not own and joint and not any(c.reason for c in _cells_of(rule, subject, evidence)):
            yield _found(rule, subject, Answer.NOT_MEASURED, _TOGETHER)
        elif not own:
            yield _missing(rule, subject, evidence)


def _of_whole_gangs(values: Sequence[Value]) -> list[Value]:
    """Without collectives of some of the GPUs of a host's gang, which are no figure of a host."""
    gangs: dict[str, set[frozenset[str]]] = collections.defaultdict(set)
    for value in values:
        if _in_a_host(value):
            gangs[value.subject.host].add(frozenset(value.subject.devices))
    parts = {own for found in gangs.values() for own in found if any(own < g for g in found)}
    return [v for v in values if not (_in_a_host(v) and frozenset(v.subject.devices) in parts)]


def _in_a_host(value: Value) -> bool:
    """Whether it is of a collective between GPUs of one host."""
    subject = value.subject
    return RANKS in subject.params and bool(subject.devices) and not subject.hosts


def _fits(rule: Rule, value: Value) -> bool:
    """Whether a value is of the metric, parameters and arm that a rule speaks of."""
    s = value.subject
    wanted = all(s.params.get(k) == v for k, v in rule.params.items())
    named = s.probe == rule.probe and value.metric == rule.metric.name
    return named and wanted and s.arm in _arms(rule)


def _subjects(rule: Rule, hosts: Sequence[AcceptHost], evidence: Evidence) -> list[_Subject]:
    if rule.each == "cluster":
        return [_Subject(evidence.cluster, tuple(hosts))]
    if rule.each == "host":
        return [_Subject(h.name, (h,)) for h in hosts]
    found = []
    for host in hosts:
        groups = _gpus(host) if rule.each == "gpu" else _pairs(rule, host, evidence)
        found += [_Subject(subject_name(host, g), (host,), g) for g in groups]
        if not groups:
            found.append(_Subject(host.name, (host,)))
    return found


def _gpus(host: AcceptHost) -> list[tuple[str, ...]]:
    """Every whole GPU that discovery saw, lost ones too."""
    gpus = () if host.topology is None else host.topology.gpus
    return [(g.key,) for g in gpus if not g.is_slice]


def _pairs(rule: Rule, host: AcceptHost, evidence: Evidence) -> list[tuple[str, ...]]:
    """Every ordered pair of GPUs that the sweep planned for such a rule."""
    pairs = {
        c.devices
        for c in evidence.cells
        if c.host == host.key and len(c.devices) == 2 and _planned_for(rule, c)
    }
    return sorted(pairs)


def _belongs(rule: Rule, subject: _Subject, value: Value) -> bool:
    if value.subject.host not in {h.key for h in subject.hosts}:
        return False
    if rule.each == "gpu":
        own = value.subject.devices if value.rank is None else (value.device,)
        return bool(subject.devices) and own == subject.devices
    if value.rank is not None:
        return False
    return rule.each != "pair" or (
        bool(subject.devices) and value.subject.devices == subject.devices
    )


def _missing(rule: Rule, subject: _Subject, evidence: Evidence) -> Found:
    cells = _cells_of(rule, subject, evidence) or _left_out(rule, subject, evidence)
    told = collections.Counter(f"{c.status}: {c.reason}" if c.reason else c.status for c in cells)
    reason = told.most_common(1)[0][0] if told else _unplanned(rule, evidence)
    found = _found(rule, subject, Answer.NOT_MEASURED, reason)
    bound = _limit(rule, subject, (), rule.params)
    return _with_limit(rule, found, bound)


def _cells_of(rule: Rule, subject: _Subject, evidence: Evidence) -> list[Planned]:
    """The cells that were to give it a value."""
    hosts = {h.key for h in subject.hosts}
    return [
        c
        for c in evidence.cells
        if c.host in hosts
        and _planned_for(rule, c)
        and (not subject.devices or set(subject.devices) <= set(c.devices))
    ]


def _left_out(rule: Rule, subject: _Subject, evidence: Evidence) -> list[Planned]:
    """Cells without parameters, which stand for a whole probe that could not run on a host."""
    hosts = {h.key for h in subject.hosts}
    cells = [c for c in evidence.cells if c.host in hosts and c.probe == rule.probe]
    return [] if any(c.params for c in cells) else cells


def _unplanned(rule: Rule, evidence: Evidence) -> str:
    """That a sweep has no such cell; with the arms that it does have of the case."""
    arms = sorted({c.arm for c in evidence.cells if _of_case(rule, c)} - _arms(rule))
    if not arms:
        return "the sweep planned no such cell"
    return f"the sweep has no arm {rule.arm} of it, only {', '.join(arms)}; name one in where"


def _planned_for(rule: Rule, cell: Planned) -> bool:
    return _of_case(rule, cell) and cell.arm in _arms(rule)


def _of_case(rule: Rule, cell: Planned) -> bool:
    fits = all(cell.params.get(k) == v for k, v in rule.params.items())
    return cell.probe == rule.probe and fits


def _arms(rule: Rule) -> set[str]:
    """Names of the arm; NCCL's own choice of a ring is what users get."""
    return {rule.arm, f"{rule.arm}/auto"}


def _found(
    rule: Rule, subject: _Subject, answer: Answer, reason: str, group: Sequence[Value] = ()
) -> Found:
    params = group[0].subject.params if group else rule.params
    return Found(
        answer=answer,
        reason=reason,
        subject=subject.name,
        host=subject.hosts[0].name if len(subject.hosts) == 1 else None,
        devices=subject.devices,
        params=params,
        arm=group[0].subject.arm if group else rule.arm,
        n_samples=sum(v.n for v in group),
        notes=_notes(group),
        runs=tuple(sorted({v.run for v in group})),
    )


def _notes(group: Sequence[Value]) -> tuple[str, ...]:
    """What the runs were warned of that a buyer should know."""
    counts = collections.Counter(code for v in group for code in v.warnings)
    watched = {**DISTURBED, "pcie_downtrained": "a PCIe link ran below its maximum"}
    return tuple(f"{watched[c]} ({n} of {len(group)})" for c, n in counts.items() if c in watched)


def _one(rule: Rule, subject: _Subject, group: Sequence[Value], evidence: Evidence) -> Found:
    unit, values = numbers(rule, group)
    if not values:
        reason = "no process has the 299 samples that a P99 needs"
        return _found(rule, subject, Answer.NOT_MEASURED, reason, group)
    found = replace(
        _found(rule, subject, Answer.INCONCLUSIVE, "", group),
        value=statistics.median(values),
        n=len(values),
        unit_of=unit,
    )
    if rule.reference is not None:
        return against_reference(rule, found, group, evidence.references[rule.reference])
    bound = _limit(rule, subject, group, group[0].subject.params)
    return _with_limit(rule, against_value(rule, found, values), bound)


def _limit(
    rule: Rule, subject: _Subject, group: Sequence[Value], params: Mapping[str, Scalar]
) -> Limit | None:
    """The bound for a subject of one host whose devices are known."""
    if len(subject.hosts) != 1 or subject.hosts[0].topology is None:
        return None
    first = group[0].subject if group else None
    devices = subject.devices or (first.devices if first else ())
    peaks = [v.software.details.get("peak_bytes_per_second") for v in group]
    known = [float(p) for p in peaks if isinstance(p, int | float) and p > 0]
    wanted = Measurement(
        probe=rule.probe,
        metric=rule.metric.name,
        params=params,
        devices=devices,
        n_ranks=first.n_ranks if first else 1,
        n_hosts=first.n_hosts if first else 1,
        peak_bytes_per_second=max(known) if known else None,
    )
    return ceilings.limit(wanted, subject.hosts[0].topology)


def _with_limit(rule: Rule, found: Found, bound: Limit | None) -> Found:
    """The answer with what the hardware can do, which may make it impossible, or absurd."""
    if bound is None:
        return found
    found = replace(found, ceiling=bound.value, ceiling_source=bound.source)
    if found.lo is not None and found.hi is not None:
        beyond = (
            found.lo > bound.value * ceilings.BEYOND
            if rule.metric.better is Better.HIGHER
            else found.hi < bound.value / ceilings.BEYOND
        )
        if beyond:
            reason = "measured beyond what the hardware can do: the number or discovery is wrong"
            return replace(found, answer=Answer.INCONCLUSIVE, reason=reason)
    if rule.value is None:
        return found
    out_of_reach = rule.value > bound.value if rule.op == ">=" else rule.value < bound.value
    if not out_of_reach or found.answer is Answer.PASS:
        return found
    reason = f"beyond what this hardware can do: {bound.source}"
    return replace(found, answer=Answer.IMPOSSIBLE, reason=reason)
