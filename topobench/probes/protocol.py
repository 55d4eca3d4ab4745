"""
What a probe is: one frozen dataclass that declares its parameters and measures.

Its fields are its parameters, made by :func:`parameter`; a cell carries one value for
each. In YAML and ``--set`` a parameter takes one value or a list; a list gives one case
per value (the product over all parameters).
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar, Protocol, cast

from topobench.reading import Binding, Metric, Reading, Scalar


class Kind(enum.StrEnum):
    """How a parameter's text is parsed (``topobench.units``) and stored."""

    BYTES = "bytes"
    COUNT = "count"
    NUMBER = "number"
    SECONDS = "seconds"
    CHOICE = "choice"
    TEXT = "text"
    FLAG = "flag"


class Arms(enum.StrEnum):
    """Which alternatives the planner lays out for a probe."""

    BINDINGS = "bindings"  # the binding arms of the profile or config, once per device
    DEVICE = "device"  # the first binding only: what it measures lies on the device itself
    PAIRS = "pairs"  # every ordered pair of GPUs, all in one worker; the first binding only
    NUMA_MATRIX = "numa_matrix"  # every CPU node x every memory node; no device
    GANG = "gang"  # one worker per rank; ring and binding arms
    RANKS = "ranks"  # one worker per rank; binding arms
    HOST_PAIRS = "host_pairs"  # one worker on each of two hosts, for pairs of all hosts
    HOST = "host"  # one worker that sees all selected GPUs of the host; binding arms


def parameter(
    default: Scalar,
    *,
    help: str,
    kind: Kind = Kind.COUNT,
    choices: tuple[str, ...] = (),
    minimum: float | None = None,
    maximum: float | None = None,
    later: bool = False,
    auto: tuple[Scalar, Scalar] | None = None,
) -> Any:
    """
    Declare a parameter of a probe.

    Args:
        default: Value when neither profile nor config names it.
        help: One line: what it is, its unit and what None means.
        later: Declared after the probe was first published: a case does not name it while it
            has its default, so that older series go on.
        auto: What the value ``auto`` (of numbers: None) stands for on GPUs, and on CPUs; the
            planner names it.
    """
    metadata = {
        "help": help,
        "kind": kind,
        "choices": choices,
        "minimum": minimum,
        "maximum": maximum,
        "later": later,
        "auto": auto,
    }
    return dataclasses.field(default=default, metadata=metadata)


def one_or_all() -> Any:
    """Declare ``at_once``: GPUs one by one or together; the planner knows it by that name."""
    return parameter(
        "one",
        kind=Kind.CHOICE,
        choices=("one", "all"),
        help="one GPU alone, or all selected GPUs of the host at the same time",
    )


@dataclasses.dataclass(frozen=True, slots=True)
class WorkerContext:
    """
    What a probe may know about the process it measures in.

    Args:
        devices: GPU UUIDs of the cell, in the order torch sees them (0, 1 ...); of a pair,
            whose worker may see more GPUs, the first and the second.
        rendezvous: For rank 0 of a gang: ``publish(address)`` tells the other ranks where
            to meet; for the others: ``wait()`` returns that address. None outside gangs.
        interface: Network interface to meet on, or None to derive it.
        deadline_seconds: Seconds left for this cell when ``measure`` is called.
        buffer_ready: A probe calls this with (address, bytes) of the host buffer it
            measures, after touching it, so that the worker can prove page placement.
        local_rank: Its number among the ranks of this host, which is also its GPU's.
        note: Adds a key to the run's conditions.
        warn: Adds a line to the run's warnings.
        cells_before: How many cells this worker measured before, of whatever probe.
    """

    binding: Binding
    devices: tuple[str, ...]
    rank: int
    ranks: int
    publish: Callable[[str], None]
    wait: Callable[[], str]
    interface: str | None
    deadline_seconds: float
    buffer_ready: Callable[[int, int], None]
    note: Callable[[str, Any], None]
    warn: Callable[[str], None]
    local_rank: int = 0
    cells_before: int = 0


class Probe(Protocol):
    """
    A kind of measurement.

    Attributes:
        name: As in YAML, SQL and the registry.
        version: Raised whenever its numbers stop being comparable with earlier ones.
        needs: Requirements the planner checks: ``cuda``, ``cuda_or_cpu``, ``gpus>=2``,
            ``hosts>=2``, ``cpus>=2``, ``torch``, ``numba``, ``binary:NAME``.
        metrics: Every metric its readings may carry; others are refused.
        arms: What the planner varies.

    It may have a method ``first_uses() -> Mapping[str, float]``: what ``measure`` makes or loads
    once in a worker for all cases that name it, and about how many seconds that takes.
    """

    name: ClassVar[str]
    version: ClassVar[int]
    summary: ClassVar[str]
    needs: ClassVar[frozenset[str]]
    metrics: ClassVar[tuple[Metric, ...]]
    arms: ClassVar[Arms]

    def measure(self, context: WorkerContext) -> Iterator[Reading]:
        """
        Measure and yield readings; data is checked, outside the timed part.

        Raises:
            ProbeUnavailable: This host cannot run it; stored as skipped.
            ResultInvalid: It ran, but wrong data or conditions forbid its numbers.
        """
        ...

    def estimated_seconds(self) -> float:
        """About how long ``measure`` takes, without start-up and first uses."""
        ...


def fields_of(probe: type[Probe]) -> Mapping[str, dataclasses.Field[Any]]:
    """The declared parameters of a probe, in order."""
    return {f.name: f for f in dataclasses.fields(cast(Any, probe))}


def suited(declared: dataclasses.Field[Any], value: Scalar, *, on_cpus: bool) -> Scalar:
    """A parameter's value on GPUs or CPUs; what ``auto`` or None stand for, where they do."""
    pair: tuple[Scalar, Scalar] | None = declared.metadata["auto"]
    return value if pair is None or value not in ("auto", None) else pair[on_cpus]


def build(probe: type[Probe], params: Mapping[str, Scalar]) -> Probe:
    """Make the probe of a cell; unknown parameters are a TypeError (the planner checked)."""
    return cast(Probe, cast(Any, probe)(**params))


def check_metrics(probe: type[Probe], readings: Iterable[Reading]) -> None:
    """
    Refuse readings whose metric the probe did not declare.

    A probe with ``own_metrics`` hands on those of its user, each with its direction.

    Raises:
        ValueError: Names the metric and the declared ones.
    """
    declared = {m.name for m in probe.metrics}
    own = getattr(probe, "own_metrics", False)
    for reading in readings:
        if own and reading.better is not None:
            continue
        if reading.metric not in declared:
            raise ValueError(
                f"probe {probe.name} gave the undeclared metric {reading.metric!r}; "
                f"it declares {', '.join(sorted(declared))}"
            )
