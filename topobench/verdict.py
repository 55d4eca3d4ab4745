"""
Verdicts on hosts and devices: what each check says, and what they say together. Pure.

The same evidence and policy give the same verdict. Nothing is done about it: advice is text.
"""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from topobench.verdict_devices import device_checks
from topobench.verdict_gates import Flags, Nights, arrange
from topobench.verdict_history import Past, own_past
from topobench.verdict_invariants import (
    ceiling_check,
    findings,
    invariants_check,
    watched_devices,
)
from topobench.verdict_peers import among_hosts, inside_hosts
from topobench.verdict_statistics import (
    both_fail,
    devices_check,
    history_check,
    peers_check,
    together,
)
from topobench.verdict_words import (
    INVARIANTS,
    OVERALL,
    SEVERITY,
    VALIDITY,
    Check,
    Evidence,
    HostEvidence,
    Incident,
    Judgement,
    Level,
    Subject,
    worst,
)

if TYPE_CHECKING:
    from topobench.policy import Policy

__all__ = ["OVERALL", "judge"]

_STATISTICAL = frozenset({"devices", "peers", "history"})


@dataclass(frozen=True, slots=True)
class _Case:
    """The evidence with everything computed of all tracks at once."""

    evidence: Evidence
    policy: Policy
    nights: Nights
    inside: Flags
    peers: Flags
    past: Past
    rows: dict[int, list[int]]
    alike: dict[str, list[HostEvidence]]

    def of_class(self, host: HostEvidence) -> list[HostEvidence]:
        """The hosts of its class, itself included."""
        return self.alike.get(host.group or "", [host])


@dataclass(frozen=True, slots=True)
class _Draft:
    """A host's checks, and those of its devices, before the breaker."""

    host: HostEvidence
    checks: tuple[Check, ...]
    statistical: Level
    devices: dict[str, tuple[Check, ...]]


def judge(evidence: Evidence, policy: Policy) -> Judgement:
    """Judge every host of the evidence."""
    case = _prepared(evidence, policy)
    drafts = [_draft(case, n, host) for n, host in enumerate(evidence.hosts) if host.is_subject]
    incidents = _incidents(drafts, policy)
    part_of = {key: incident for incident in incidents for key in incident.hosts}
    subjects: list[Subject] = []
    for draft in drafts:
        incident = part_of.get(draft.host.key)
        subjects += _subjects(_suspended(draft, incident) if incident else draft)
    return Judgement(tuple(subjects), tuple(incidents), case.past.changepoints)


def _prepared(evidence: Evidence, policy: Policy) -> _Case:
    nights = arrange(evidence, policy)
    rows: dict[int, list[int]] = defaultdict(list)
    for row, track in enumerate(evidence.tracks):
        rows[track.host].append(row)
    alike: dict[str, list[HostEvidence]] = defaultdict(list)
    for host in evidence.hosts:
        if host.group:
            alike[host.group].append(host)
    return _Case(
        evidence=evidence,
        policy=policy,
        nights=nights,
        inside=inside_hosts(evidence, nights, policy),
        peers=among_hosts(evidence, nights, policy),
        past=own_past(evidence, nights, policy),
        rows=rows,
        alike=alike,
    )


def _draft(case: _Case, number: int, host: HostEvidence) -> _Draft:
    evidence, nights, policy = case.evidence, case.nights, case.policy
    rows = case.rows[number]
    if _is_stale(case, number, host):
        text = f"no data of the last {policy.stale_days} days"
        return _Draft(host, (Check(VALIDITY, Level.UNKNOWN, text),), Level.UNKNOWN, {})
    found = findings(host, case.of_class(host))
    ceiling, slow_path = ceiling_check(evidence, nights, rows, policy)
    devices = device_checks(
        evidence, nights, rows, policy, inside=case.inside, past=case.past.flags
    )
    if len(slow_path) == 1:
        devices[slow_path[0]] = (ceiling, *devices.get(slow_path[0], ()))
    for finding in (f for f in found if f.device is not None):
        own = Check(INVARIANTS, finding.level, finding.text, finding.value, finding.reference)
        devices[str(finding.device)] = (own, *devices.get(str(finding.device), ()))
    names = {g.key: g.name for g in host.topology.gpus} if host.topology else {}
    statistical = (
        devices_check(evidence, case.inside, rows, policy, devices=devices, names=names),
        peers_check(evidence, case.peers, rows, policy, len(case.of_class(host)) - 1),
        history_check(evidence, case.past, rows, policy),
    )
    checks = (
        _validity(host),
        invariants_check(host, found, watched_devices(host)),
        ceiling,
        *both_fail(
            evidence,
            rows,
            policy,
            statistical,
            inside=case.inside,
            peers=case.peers,
            past=case.past.flags,
        ),
    )
    level = worst([c.level for c in checks if c.name in _STATISTICAL])
    joint = together(evidence, (case.inside, case.peers, case.past.flags), rows, policy)
    if _is_bad(joint) and SEVERITY[joint] > SEVERITY[level]:
        checks = tuple(_raised(c, joint) for c in checks)
        level = joint
    return _Draft(host, checks, level, devices)


def _raised(check: Check, level: Level) -> Check:
    """A comparison that only watches, raised where another one watches, too."""
    watches = check.name in _STATISTICAL and check.level is Level.WATCH
    return replace(check, level=level) if watches else check


def _is_stale(case: _Case, number: int, host: HostEvidence) -> bool:
    measured = case.nights.tonight[number] >= 0
    if measured or host.seen_day is None:
        return not measured
    return case.evidence.as_of_day - host.seen_day > case.policy.stale_days


def _validity(host: HostEvidence) -> Check:
    """Whether enough of what was planned gave numbers; the others judge nothing."""
    text = f"{host.usable} of {host.planned} cells gave numbers"
    if host.unusable:
        told = ", ".join(f"{n} {code}" for code, n in sorted(host.unusable.items()))
        text += f" ({told})"
    level = Level.OK if 2 * host.usable >= host.planned else Level.UNKNOWN
    return Check(VALIDITY, level, text)


def _incidents(drafts: Sequence[_Draft], policy: Policy) -> list[Incident]:
    """Classes of which too many hosts are flagged by comparison in one sweep."""
    classes: dict[str, list[_Draft]] = defaultdict(list)
    for draft in drafts:
        if draft.host.group:
            classes[draft.host.group].append(draft)
    found = []
    for group, members in classes.items():
        flagged = [d.host for d in members if _is_bad(d.statistical)]
        if len(flagged) >= policy.breaker_hosts and len(flagged) > policy.breaker_share * len(
            members
        ):
            text = (
                f"{len(flagged)} of {len(members)} hosts of one class fell behind together: "
                "suspect the tool, the sweep or a rollout before the hosts"
            )
            keys = tuple(h.key for h in flagged)
            found.append(Incident(group, keys, len(members), text))
    return found


def _suspended(draft: _Draft, incident: Incident) -> _Draft:
    """A host of an incident: what comparisons say is watched, what must hold still must."""

    def calmed(checks: Iterable[Check]) -> tuple[Check, ...]:
        return tuple(
            replace(c, level=Level.WATCH, reason=f"{c.reason}; part of an incident")
            if c.name in _STATISTICAL and _is_bad(c.level)
            else c
            for c in checks
        )

    devices = {d: calmed(checks) for d, checks in draft.devices.items()}
    return replace(draft, checks=calmed(draft.checks), devices=devices)


def _subjects(draft: _Draft) -> list[Subject]:
    """The host, then its devices that are not ok."""
    host = draft.host
    level = overall(draft.checks)
    found = [
        Subject(
            host=host.key,
            name=host.name,
            device=None,
            level=level,
            checks=draft.checks,
            advice=_advice(host.name, level) if _is_bad(level) else None,
            group=host.group,
        )
    ]
    for device, checks in sorted(draft.devices.items()):
        level = worst([c.level for c in checks])
        found.append(Subject(host.key, host.name, device, level, checks, group=host.group))
    return found


def overall(checks: Sequence[Check]) -> Level:
    """
    The level of a host from its checks.

    Anything wrong counts first. A host whose comparisons still learn is learning, though its
    links are in order; one that nothing could judge is unknown.
    """
    judging = [c for c in checks if c.name != VALIDITY]
    gravest = worst([c.level for c in judging])
    if gravest is not Level.OK:
        return gravest
    compared = worst([c.level for c in judging if c.name in _STATISTICAL])
    return Level.LEARNING if compared is Level.LEARNING else Level.OK


def _is_bad(level: Level) -> bool:
    return level in (Level.DEGRADED, Level.FAIL)


def _advice(name: str, level: Level) -> str:
    """Lines that take the host out of service; printed, never run."""
    node = shlex.quote(name)
    return (
        f"scontrol update NodeName={node} State=DRAIN Reason='topobench: {level.value}'\n"
        f"kubectl cordon {node}"
    )
