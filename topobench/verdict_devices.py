"""
Which device of a host is slow: from flags of devices and pairs to names. Pure.

A slow GPU makes all its pairs slow, a slow link only one; so a device is named when most of
its pairs are flagged, and the pair itself otherwise. What is seen on one night so far is a
``watch`` with a name.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from topobench.units import format_percent
from topobench.verdict_gates import Flags, Nights, in_unit
from topobench.verdict_statistics import check_of
from topobench.verdict_words import DEVICES, HISTORY, Check, Evidence, Level

if TYPE_CHECKING:
    from topobench.policy import Policy

AGAINST = "the like devices of its host"


def device_checks(
    evidence: Evidence,
    nights: Nights,
    rows: Sequence[int],
    policy: Policy,
    *,
    inside: Flags,
    past: Flags,
) -> dict[str, tuple[Check, ...]]:
    """Checks by device key, or by two joined by a comma; only those that found something."""
    found: dict[str, tuple[Check, ...]] = {}
    owned = _owners(evidence, nights, inside, rows)
    for device, own in owned.items():
        flagged = [r for r in own if inside.flagged[r]]
        if flagged and (len(device.split(",")) > 1 or _mostly(evidence, flagged, own)):
            found[device] = _confirmed(evidence, flagged, own, policy, inside=inside, past=past)
        elif check := _tonight(evidence, inside, own, policy):
            found[device] = (check,)
    return found


def _owners(
    evidence: Evidence, nights: Nights, inside: Flags, rows: Sequence[int]
) -> dict[str, list[int]]:
    """
    Device or pair -> the judged tracks that speak of it.

    Tracks of single devices speak of the device. Pairs speak of a device that is slow by
    itself or in most of its pairs, else of the link between the two.
    """
    judged = [r for r in rows if nights.judged[r] and inside.nights[r]]
    owned: dict[str, list[int]] = defaultdict(list)
    pairs: dict[str, list[int]] = defaultdict(list)
    for row in judged:
        devices = evidence.tracks[row].devices
        if len(devices) == 1:
            owned[devices[0]].append(row)
        else:
            for device in devices:
                pairs[device].append(row)
    guilty = {d for d, own in owned.items() if _low(inside, own)}
    guilty |= {d for d, own in pairs.items() if _mostly(evidence, _low(inside, own), own)}
    for device in guilty:
        owned[device] += pairs.get(device, [])
    for row in judged:
        devices = evidence.tracks[row].devices
        if len(devices) == 2 and not guilty.intersection(devices):
            owned[",".join(devices)].append(row)
    return owned


def _low(inside: Flags, rows: Sequence[int]) -> list[int]:
    return [r for r in rows if inside.flagged[r] or inside.now[r]]


def _mostly(evidence: Evidence, flagged: Sequence[int], own: Sequence[int]) -> bool:
    """
    Whether a device is to be named for these tracks.

    Of one device, each flagged track counts. Of pairs, half or more must be flagged: one slow
    partner makes only one of them slow.
    """
    single = [r for r in flagged if len(evidence.tracks[r].devices) == 1]
    of_pairs = [r for r in own if len(evidence.tracks[r].devices) == 2]
    return bool(single) or (bool(of_pairs) and 2 * len(flagged) >= len(of_pairs) > 1)


def _confirmed(
    evidence: Evidence,
    flagged: Sequence[int],
    own: Sequence[int],
    policy: Policy,
    *,
    inside: Flags,
    past: Flags,
) -> tuple[Check, ...]:
    """The check of several nights, and the device's own history if that agrees."""
    check = check_of(DEVICES, evidence, inside, flagged, policy, against=AGAINST)
    fallen = [r for r in own if past.flagged[r]]
    if not fallen:
        return (check,)
    history = check_of(HISTORY, evidence, past, fallen, policy, against="its own level before")
    agreed = {evidence.tracks[r].series for r in flagged if past.flagged[r]}
    if len(agreed) < policy.cases:
        return check, history
    return replace(check, level=Level.FAIL), replace(history, level=Level.FAIL)


def _tonight(evidence: Evidence, inside: Flags, own: Sequence[int], policy: Policy) -> Check | None:
    """A device that was low tonight in at least half of its cases, and in more than one."""
    low = [r for r in own if inside.now[r]]
    if not low:
        return None
    cases = {evidence.tracks[r].series for r in own}
    slow = {evidence.tracks[r].series for r in low}
    strong = any(
        inside.last[r] < -policy.strong * (policy.delta(evidence.tracks[r].unit) or 1.0)
        for r in low
    )
    if 2 * len(slow) < len(cases) or not (strong or len(slow) >= policy.cases):
        return None
    row = min(low, key=lambda r: float(inside.last[r]))
    track = evidence.tracks[row]
    effect, reference = float(inside.last[row]), float(inside.reference[row])
    text = (
        f"{format_percent(-effect)} worse than {AGAINST} tonight in {len(slow)} of "
        f"{len(cases)} cases ({track.label}); degraded needs {policy.confirm} nights"
    )
    expected = in_unit(reference, track)
    return Check(
        name=DEVICES,
        level=Level.WATCH,
        reason=text,
        value=None if expected is None else expected * (1 + track.better * effect),
        reference=expected,
        effect=effect,
        mde=float(inside.mde[row]),
        metric=track.metric,
        case=track.label,
        confirmed=1,
    )
