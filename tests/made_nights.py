"""Fleets of nights as the verdict's evidence, made from a matrix of speeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topobench import policy
from topobench.topology import Topology
from topobench.verdict import judge
from topobench.verdict_words import Evidence, HostEvidence, Judgement, Level, Subject, Track

POLICY = policy.default()
FIRST_DAY = 20_000
BASE = 50e9
Values = NDArray[np.float64]


def track(host: int, case: int, devices: Sequence[str] = (), **more: Any) -> Track:
    """A bandwidth of one case, B/s."""
    made = Track(
        host=host,
        series=1000 * host + case,
        case=f"case {case}",
        devices=tuple(devices),
        metric="bandwidth_bytes_per_second",
        unit="B/s",
        better=1,
        label=f"case {case}",
    )
    return replace(made, **more)


def fleet(hosts: int, cases: int) -> tuple[Track, ...]:
    """Every host measures every case."""
    return tuple(track(h, c) for h in range(hosts) for c in range(cases))


def flat(tracks: Sequence[Track], nights: int) -> Values:
    """The same speed everywhere, always."""
    return np.full((len(tracks), nights), BASE)


def noisy(seed: int, rows: int, nights: int, sd: float = 0.005) -> Values:
    """Offsets that stay and nights with heavy tails, of this standard deviation each."""
    generator = np.random.default_rng(seed)
    offsets = sd * generator.standard_normal((rows, 1))
    nightly = sd / math.sqrt(2) * generator.standard_t(4, (rows, nights))
    values: Values = BASE * np.exp(offsets + nightly)
    return values


def evidence(
    tracks: Sequence[Track],
    values: Values,
    *,
    hosts: Sequence[HostEvidence] | None = None,
    topology: Topology | None = None,
    as_of_day: int | None = None,
    stretches: Sequence[int] | None = None,
) -> Evidence:
    """
    Hosts h0, h1 ... of one class.

    Args:
        stretches: Number of the stretch by night, for all tracks.
    """
    nights = values.shape[1]
    days = np.arange(FIRST_DAY, FIRST_DAY + nights)
    count = max(t.host for t in tracks) + 1
    made = hosts or [host(n, topology) for n in range(count)]
    cut = np.zeros(nights, dtype=np.intp) if stretches is None else np.array(stretches)
    return Evidence(
        as_of="2026-11-29T06:00:00.000000Z",
        as_of_day=int(days[-1]) if as_of_day is None else as_of_day,
        hosts=tuple(made),
        tracks=tuple(tracks),
        days=days,
        values=values,
        stretches=np.broadcast_to(cut, values.shape),
    )


def host(number: int, topology: Topology | None = None, **more: Any) -> HostEvidence:
    """Host h<number> of the one class, seen tonight."""
    made = HostEvidence(f"h{number}", f"h{number}", "class", topology, seen_day=FIRST_DAY)
    return replace(made, **more)


def subject(found: Judgement, key: str, device: str | None = None) -> Subject:
    """The verdict on a host, or on a device of it."""
    return next(s for s in found.subjects if (s.host, s.device) == (key, device))


def said(found: Judgement, key: str, check: str, device: str | None = None) -> Level:
    """What one check says of a subject."""
    return next(c.level for c in subject(found, key, device).checks if c.name == check)


def levels(found: Judgement) -> dict[str, Level]:
    """Host key -> level."""
    return {s.host: s.level for s in found.subjects if s.device is None}


def judged(tracks: Sequence[Track], values: Values, **more: Any) -> Judgement:
    """The judgement by the package's policy."""
    return judge(evidence(tracks, values, **more), POLICY)
