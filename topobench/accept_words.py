"""The words of acceptance: its answers, and the evidence that they rest on. Pure."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from topobench.accept_criteria import Rule
from topobench.measured import Value
from topobench.reading import Scalar
from topobench.topology import Topology


class Answer(enum.StrEnum):
    """The word for a requirement."""

    PASS = "pass"
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"
    NOT_MEASURED = "not measured"
    IMPOSSIBLE = "impossible"


@dataclass(frozen=True, slots=True)
class AcceptHost:
    """
    A host of the sweep.

    Args:
        key: ``cluster/key``, as values name it.
        topology: None if it was not stored.
    """

    key: str
    name: str
    sku: str | None
    topology: Topology | None


@dataclass(frozen=True, slots=True)
class Planned:
    """A cell of the sweep: where a value should have come from, and why it may be missing."""

    host: str
    probe: str
    params: Mapping[str, Scalar]
    arm: str
    devices: tuple[str, ...]
    status: str
    reason: str | None


@dataclass(frozen=True, slots=True)
class Evidence:
    """
    What is judged.

    Args:
        references: Values of the reference sweeps, by the text of the rule.
    """

    cluster: str
    hosts: tuple[AcceptHost, ...]
    values: Sequence[Value]
    cells: Sequence[Planned] = ()
    references: Mapping[str, Sequence[Value]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Found:
    """
    The answer for one subject.

    Args:
        value: In the metric's unit; the centre of the values.
        lo: Lower end of its interval, or of ``effect_ratio`` where there is one.
        effect_ratio: Change from the reference sweep; negative is worse.
        unit_of: ``processes``, ``hosts`` or ``facts``; None without a value.
        n: How many of those.
        mde: Relative distance from the limit that would have been seen nine times in ten.
        ceiling: What the hardware can do at most; of a time, at least.
        runs: UUIDs of the runs that it rests on.
    """

    answer: Answer
    reason: str
    subject: str
    host: str | None = None
    devices: tuple[str, ...] = ()
    params: Mapping[str, Scalar] = field(default_factory=dict)
    arm: str | None = None
    value: float | None = None
    lo: float | None = None
    hi: float | None = None
    effect_ratio: float | None = None
    unit_of: str | None = None
    n: int = 0
    n_samples: int = 0
    mde: float | None = None
    ceiling: float | None = None
    ceiling_source: str | None = None
    notes: tuple[str, ...] = ()
    runs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Judged:
    """A rule with its answers, worst first."""

    rule: Rule
    found: tuple[Found, ...]

    @property
    def answer(self) -> Answer:
        """The worst."""
        return self.found[0].answer


def subject_name(host: AcceptHost, devices: Sequence[str]) -> str:
    """``h07 gpu:0``, ``h07 gpu:0-gpu:1``: GPUs as the topology calls them."""
    gpus = () if host.topology is None else host.topology.gpus
    names = {g.key: g.name for g in gpus}
    return " ".join([host.name, "-".join(names.get(d, d) for d in devices)])
