"""The words of a comparison: a case on both sides, its keys, and what a value of it is. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from topobench.comparison import MIN_PROCESSES, Change, Comparison
from topobench.measured import Value, collapsed
from topobench.ranks import benjamini_hochberg
from topobench.reading import Better, Scalar

Key = tuple[Hashable, ...]
Level = Callable[[Value], Hashable]


@dataclass(frozen=True, slots=True)
class Case:
    """
    A case on both sides.

    Args:
        host: Where it was measured; None where hosts are pooled.
        devices: GPU keys; empty where devices or hosts are pooled, or none was used.
        point: Where in the case it stands, as in readings: a rank, or a GPU of several.
        unit_of: What a value is: ``processes``, ``nights`` or ``hosts``.
        median_a: Median of side a, in the metric's unit; of the hosts compared.
        comparison: None if it was refused.
        refused: Why it must not be compared; None if it was.
        notes: What differs beside, in sentences.
        control_ratio: How much the control changed meanwhile, turned as the effect is; None
            without a control.
    """

    probe: str
    params: Mapping[str, Scalar]
    arm: str
    metric: str
    unit: str
    better: Better
    host: str | None
    devices: tuple[str, ...]
    n_devices: int
    n_ranks: int
    n_hosts: int
    unit_of: str
    median_a: float
    median_b: float
    point: Mapping[str, Scalar]
    comparison: Comparison | None
    refused: str | None = None
    notes: tuple[str, ...] = ()
    control_ratio: float | None = None

    @property
    def verdict(self) -> Change:
        """The word; a refused case is inconclusive."""
        return Change.INCONCLUSIVE if self.comparison is None else self.comparison.verdict


@dataclass(frozen=True, slots=True)
class Compared:
    """
    Every case that both sides measured.

    Args:
        design: ``same_hosts`` (each with itself), ``same_hosts_pooled``, ``other_hosts`` or
            ``against_control``.
        left_out: What was not compared, in sentences.
    """

    design: str
    cases: tuple[Case, ...]
    left_out: tuple[str, ...]
    inputs_digest: str

    @property
    def exit_code(self) -> int:
        """1 if a case regressed, 3 if none did and one is inconclusive or there is none."""
        words = {c.verdict for c in self.cases}
        if Change.REGRESSED in words:
            return 1
        return 0 if words and words <= {Change.EQUIVALENT, Change.IMPROVED} else 3


def make_case(
    a: Sequence[Value],
    b: Sequence[Value],
    unit_of: str,
    comparison: Comparison | None = None,
    *,
    refused: str | None = None,
    notes: Iterable[str] = (),
    own: bool = False,
) -> Case:
    """
    A case of these values; ``comparison`` is None where it was refused.

    Args:
        own: They are of one host and its devices, which the case then names.
    """
    first, subject = a[0], a[0].subject
    devices = (first.device,) if first.device else subject.devices
    levels = (host_of, devices_of, night_of, process_of)
    return Case(
        probe=subject.probe,
        params=subject.params,
        arm=subject.arm,
        metric=first.metric,
        unit=first.unit,
        better=first.better,
        host=subject.host_name if own else None,
        devices=devices if own else (),
        n_devices=len(devices),
        n_ranks=subject.n_ranks,
        n_hosts=subject.n_hosts,
        unit_of=unit_of,
        median_a=middle(a, levels),
        median_b=middle(b, levels),
        point=json.loads(first.point),
        comparison=comparison,
        refused=refused,
        notes=tuple(notes),
    )


def case_key(value: Value) -> Key:
    """A case on any host; probe versions differ inside it, so that they are told."""
    s = value.subject
    ranks = (len(s.devices), s.n_ranks, s.n_hosts)
    return (s.probe, s.params_hash, s.arm, *ranks, value.metric, value.point)


def own_key(value: Value) -> Key:
    """A case on its own host and devices; of several hosts, whichever has rank 0."""
    s = value.subject
    if s.hosts:
        return (*case_key(value), tuple(sorted(s.hosts)), tuple(sorted(s.devices)))
    return (*case_key(value), s.host, s.devices)


def varying(a: Sequence[Value], b: Sequence[Value]) -> tuple[str, Level, tuple[Level, ...]]:
    """What varies, the coarsest first: its name, its key, and the levels below it."""
    levels: tuple[tuple[str, Level, tuple[Level, ...]], ...] = (
        ("hosts", host_of, (devices_of, night_of, process_of)),
        ("nights", night_of, (devices_of, process_of)),
        ("processes", process_of, (devices_of,)),
    )
    for name, level, below in levels:
        if any(len({level(v) for v in side}) > 1 for side in (a, b)):
            return name, level, below
    return levels[-1]


def middle(values: Sequence[Value], levels: Sequence[Level]) -> float:
    """The median over the levels, outermost first."""
    return collapsed(values, levels, lambda v: v.median)


def host_of(value: Value) -> str:
    """Its host, as a level."""
    return value.subject.host


def devices_of(value: Value) -> Hashable:
    """Its devices, and the hosts of several, as a level."""
    return (value.subject.devices, value.subject.hosts, value.point)


def night_of(value: Value) -> Hashable:
    """Its night, as a level."""
    return value.night


def process_of(value: Value) -> Hashable:
    """Its process, as a level."""
    return (value.sweep, value.process)


def case_documents(cases: Sequence[Case]) -> list[dict[str, Any]]:
    """Cases as ``compare --format json`` gives them, p values adjusted for how many there are."""
    given = [None if c.comparison is None else c.comparison.p for c in cases]
    adjusted = iter(benjamini_hochberg([p for p in given if p is not None]))
    return [
        _document(case, None if p is None else next(adjusted))
        for case, p in zip(cases, given, strict=True)
    ]


def _document(case: Case, p_adjusted: float | None) -> dict[str, Any]:
    found = case.comparison
    return {
        "probe": case.probe,
        "params": dict(case.params),
        "arm": case.arm,
        "metric": case.metric,
        "unit": case.unit,
        "better": int(case.better),
        "host": case.host,
        "devices": list(case.devices),
        "n_devices": case.n_devices,
        "n_ranks": case.n_ranks,
        "n_hosts": case.n_hosts,
        "point": dict(case.point),
        "median_a": case.median_a,
        "median_b": case.median_b,
        "effect_ratio": None if found is None else found.effect_ratio,
        "lo": None if found is None else found.lo,
        "hi": None if found is None else found.hi,
        "mde": None if found is None else found.mde,
        "p": None if found is None else found.p,
        "p_adjusted": p_adjusted,
        "tolerance": None if found is None else found.tolerance,
        "verdict": str(case.verdict),
        "reason": case.refused if found is None else _reason(case, found),
        "n_a": 0 if found is None else found.n_a,
        "n_b": 0 if found is None else found.n_b,
        "unit_of": case.unit_of,
        "control_ratio": case.control_ratio,
        "refused": case.refused,
        "notes": list(case.notes),
    }


def _reason(case: Case, found: Comparison) -> str:
    """The comparison's own reason, in the unit of its values."""
    if min(found.n_a, found.n_b) >= MIN_PROCESSES:
        return found.reason
    return (
        f"{found.n_a} against {found.n_b} {case.unit_of}; "
        f"at least {MIN_PROCESSES} a side are needed"
    )
