"""
From flags of tracks to what the comparing checks say of a host: devices, peers, history. Pure.

One small flag is noise more often than not: ``degraded`` needs several cases of one night, or
one that is far off.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from topobench.units import format_percent
from topobench.verdict_gates import Flags, in_unit
from topobench.verdict_history import Past
from topobench.verdict_words import DEVICES, HISTORY, PEERS, Check, Evidence, Level, worst

if TYPE_CHECKING:
    from topobench.policy import Policy


def level_of(
    evidence: Evidence, rows: Sequence[int], effects: Sequence[float], policy: Policy
) -> Level:
    """
    What flagged tracks amount to.

    Args:
        rows: The flagged tracks.
        effects: The effect that nights agree on, one each.
    """
    if not rows:
        return Level.OK
    if min(effects) < -policy.fail_effect:
        return Level.FAIL
    several = len({evidence.tracks[r].series for r in rows}) >= policy.cases
    strong = any(
        e < -policy.strong * (policy.delta(evidence.tracks[r].unit) or math.inf)
        for r, e in zip(rows, effects, strict=True)
    )
    return Level.DEGRADED if several or strong else Level.WATCH


def flagged_rows(flags: Flags, rows: Sequence[int]) -> list[int]:
    """Those of the rows that are flagged."""
    return [r for r in rows if flags.flagged[r]]


def check_of(
    name: str,
    evidence: Evidence,
    flags: Flags,
    rows: Sequence[int],
    policy: Policy,
    *,
    against: str,
) -> Check:
    """
    A check of flagged tracks; the worst one gives its numbers.

    Args:
        rows: Flagged tracks, one at least.
        against: What they were compared with, in words.
    """
    level = level_of(evidence, rows, [float(flags.effect[r]) for r in rows], policy)
    return _told(name, level, evidence, flags, rows, against=against)


def _told(
    name: str,
    level: Level,
    evidence: Evidence,
    flags: Flags,
    rows: Sequence[int],
    *,
    against: str,
) -> Check:
    row = min(rows, key=lambda r: float(flags.effect[r]))
    track = evidence.tracks[row]
    effect, nights = float(flags.effect[row]), int(flags.confirmed[row])
    reference = float(flags.reference[row])
    last = reference + track.better * math.log1p(track.better * float(flags.last[row]))
    count = len({evidence.tracks[r].series for r in rows})
    text = (
        f"{format_percent(-effect)} worse than {against} on {nights} of the last "
        f"{int(flags.nights[row])} nights: {track.label}"
        + (f"; {count} cases are flagged" if count > 1 else "; no other case is flagged")
    )
    return Check(
        name=name,
        level=level,
        reason=text,
        value=in_unit(last, track),
        reference=in_unit(reference, track),
        effect=effect,
        mde=_finite(flags.mde[row]),
        metric=track.metric,
        case=track.label,
        confirmed=nights,
    )


def peers_check(
    evidence: Evidence, flags: Flags, rows: Sequence[int], policy: Policy, peers: int
) -> Check:
    """Against other hosts of the class."""
    if found := flagged_rows(flags, rows):
        return check_of(PEERS, evidence, flags, found, policy, against="its peers")
    reason = (
        f"abstains: {peers} peers of its class; {policy.peer_hosts} are needed"
        if peers < policy.peer_hosts
        else f"abstains: no case that {policy.peer_hosts} peers measured, too"
    )
    return _quiet(PEERS, flags, rows, policy.nights, reason)


def history_check(evidence: Evidence, past: Past, rows: Sequence[int], policy: Policy) -> Check:
    """Against its own level before the last change of level."""
    flags = past.flags
    if found := flagged_rows(flags, rows):
        return check_of(HISTORY, evidence, flags, found, policy, against="its own level before")
    need = 2 * policy.segment
    nights = int(max((past.lengths[r] for r in rows if past.judged[r]), default=0))
    if 0 < nights < need:
        return Check(HISTORY, Level.LEARNING, f"learning ({nights} of {need} nights)")
    return _quiet(HISTORY, flags, rows, 1, "abstains: nothing was measured that is this host's own")


def devices_check(
    evidence: Evidence,
    flags: Flags,
    rows: Sequence[int],
    policy: Policy,
    *,
    devices: Mapping[str, tuple[Check, ...]],
    names: Mapping[str, str],
) -> Check:
    """
    Of a host: whether one of its devices or pairs differs from the others.

    Args:
        devices: Checks by device key, or by two joined by a comma.
        names: Device key -> what people call it (``gpu:3``).
    """
    named = [
        (c, device)
        for device, checks in devices.items()
        for c in checks
        if c.name == DEVICES and c.level is not Level.OK
    ]
    if named:
        gravest = worst([c.level for c, _ in named])
        check = next(c for c, _ in named if c.level is gravest)
        keys = ", ".join("-".join(names.get(k, k) for k in d.split(",")) for _, d in named)
        return replace(check, reason=f"{keys}: {check.reason}")
    return _quiet(
        DEVICES,
        flags,
        rows,
        policy.nights,
        f"abstains: fewer than {policy.peer_devices + 1} like devices or pairs",
    )


def both_fail(
    evidence: Evidence,
    rows: Sequence[int],
    policy: Policy,
    checks: Sequence[Check],
    *,
    inside: Flags,
    peers: Flags,
    past: Flags,
) -> tuple[Check, ...]:
    """
    The checks, raised to ``fail`` where peers and history agree.

    They must agree on the same cases, on as many as ``degraded`` needs: one case may be low
    on both by chance, as tonight's number is part of both.
    """
    agreed = [r for r in rows if past.flagged[r] and (peers.flagged[r] or inside.flagged[r])]
    count = len({evidence.tracks[r].series for r in agreed})
    if count < policy.cases:
        return tuple(checks)
    text = f"; peers and its own history agree on {count} cases"
    raised = {HISTORY}
    raised |= {PEERS} if any(peers.flagged[r] for r in agreed) else {DEVICES}
    return tuple(
        replace(c, level=Level.FAIL, reason=c.reason + text) if c.name in raised else c
        for c in checks
    )


def together(
    evidence: Evidence, all_flags: Sequence[Flags], rows: Sequence[int], policy: Policy
) -> Level:
    """What the flags of all comparisons amount to: two cases may be found by two of them."""
    found = {
        r: min(float(f.effect[r]) for f in all_flags if f.flagged[r])
        for r in rows
        if any(f.flagged[r] for f in all_flags)
    }
    return level_of(evidence, list(found), list(found.values()), policy)


def _quiet(name: str, flags: Flags, rows: Sequence[int], nights: int, abstains: str) -> Check:
    """A check that flags nothing: ok, still learning, or unable to judge."""
    known = [r for r in rows if flags.nights[r] and not math.isnan(flags.reference[r])]
    if not known:
        return Check(name, Level.UNKNOWN, abstains)
    most = int(max(flags.nights[r] for r in known))
    mde = float(np.median(flags.mde[known]))
    if most < nights:
        return Check(name, Level.LEARNING, f"learning ({most} of {nights} nights)", mde=mde)
    return Check(
        name,
        Level.OK,
        f"{len(known)} figures, none beyond the gates",
        effect=_finite(np.nanmin(flags.effect[known])),
        mde=mde,
    )


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
