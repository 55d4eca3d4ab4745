"""
Comparing with peers: devices and pairs inside a host, then hosts that are wired alike. Pure.

A peer that was not measured on a night stands in with its last value of the days before, up
to ``peer_days``; so one host measured again by day is compared with last night's fleet.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Iterable
from typing import TYPE_CHECKING

from topobench.verdict_gates import Flags, Nights, flag, median, spread_of
from topobench.verdict_words import Evidence

if TYPE_CHECKING:
    from topobench.policy import Policy
    from topobench.verdict_words import Indices, Matrix


def among_hosts(evidence: Evidence, nights: Nights, policy: Policy) -> Flags:
    """Flags against the same case on other hosts of the same class."""
    columns, carried = _stand_ins(nights, policy)
    reference, sigma = _blank(carried), _blank(carried)
    groups = _groups(
        (group, t.case, t.kind) if t.has_peers and (group := evidence.hosts[t.host].group) else None
        for t in evidence.tracks
    )
    for rows in groups:
        if len(set(nights.host[rows])) > policy.peer_hosts:
            _against_hosts(nights, policy, rows, carried, reference=reference, sigma=sigma)
    return _flags(nights, columns, reference, sigma, policy)


def inside_hosts(evidence: Evidence, nights: Nights, policy: Policy) -> Flags:
    """Flags of devices and pairs against the others of their host; each leaves itself out."""
    import numpy as np

    columns, carried = _stand_ins(nights, policy, days=0)
    reference, sigma = _blank(carried), _blank(carried)
    groups = _groups(
        (t.host, t.case, t.kind, len(t.devices))
        if t.has_peers and 0 < len(t.devices) <= 2
        else None
        for t in evidence.tracks
    )
    by_size: dict[int, list[Indices]] = defaultdict(list)
    for rows in groups:
        if len(rows) > policy.peer_devices:
            by_size[len(rows)].append(rows)
    for size, alike in by_size.items():
        rows = np.array(alike)
        others = np.array([[j for j in range(size) if j != i] for i in range(size)])
        around = carried[rows][:, others]  # groups x tracks x others x nights
        middle = median(around, axis=2)
        enough = (~np.isnan(around)).sum(axis=2) >= policy.peer_devices
        reference[rows] = np.where(enough, middle, np.nan)
        sigma[rows] = spread_of(around, middle, policy, axis=2)
    return _flags(nights, columns, reference, sigma, policy)


def _against_hosts(
    nights: Nights,
    policy: Policy,
    rows: Indices,
    carried: Matrix,
    *,
    reference: Matrix,
    sigma: Matrix,
) -> None:
    """The median of a group, for each host without its own part where the group is small."""
    import numpy as np

    levels, host = carried[rows], nights.host[rows]
    different, place = np.unique(host, return_inverse=True)
    measured = np.zeros((len(different), levels.shape[1]), dtype=bool)
    np.logical_or.at(measured, place, ~np.isnan(levels))
    enough = measured.sum(axis=0) > policy.peer_hosts
    if len(different) >= policy.leave_one_out_below:
        middle = median(levels)
        reference[rows] = np.where(enough, middle, np.nan)
        sigma[rows] = spread_of(levels, middle, policy)
        return
    for number in range(len(different)):
        own = place == number
        middle = median(levels[~own])
        reference[rows[own]] = np.where(enough, middle, np.nan)
        sigma[rows[own]] = spread_of(levels[~own], middle, policy)


def _stand_ins(nights: Nights, policy: Policy, days: int | None = None) -> tuple[Indices, Matrix]:
    """The columns that any judged track looks at, and all levels on them, gaps filled."""
    import numpy as np

    columns = np.unique(nights.recent[nights.judged])
    columns = columns[columns >= 0]
    reach = policy.peer_days if days is None else days
    filled = nights.levels[:, columns].copy()
    for place, column in enumerate(columns):
        for back in range(column - 1, -1, -1):
            missing = np.isnan(filled[:, place])
            if nights.days[column] - nights.days[back] > reach or not missing.any():
                break
            filled[missing, place] = nights.levels[missing, back]
    return columns, filled


def _flags(
    nights: Nights, columns: Indices, reference: Matrix, sigma: Matrix, policy: Policy
) -> Flags:
    """Gates on the recent nights of each track, from references by column."""
    import numpy as np

    place = np.searchsorted(columns, nights.recent)
    known = (nights.recent >= 0) & nights.judged[:, None]
    place = np.where(known, place, 0)
    if not len(columns):
        empty = np.full(nights.recent.shape, math.nan)
        return flag(nights, empty, empty, policy)
    taken = [np.take_along_axis(m, place, axis=1) for m in (reference, sigma)]
    return flag(nights, np.where(known, taken[0], np.nan), taken[1], policy)


def _groups(keys: Iterable[Hashable]) -> list[Indices]:
    """Rows of equal keys; those without a key are in none."""
    import numpy as np

    found: dict[Hashable, list[int]] = defaultdict(list)
    for row, key in enumerate(keys):
        if key:
            found[key].append(row)
    return [np.array(rows, dtype=np.intp) for rows in found.values()]


def _blank(like: Matrix) -> Matrix:
    import numpy as np

    return np.full_like(like, np.nan)
