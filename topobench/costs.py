"""
What cells cost beside their probes' own work: starts of workers, first uses, looks at GPUs; pure.

The figures are those of one sweep of the profile standard and one of rings on two H200 behind 32
CPUs; what more than two GPUs take is drawn on from there. docs/methods.md tells where the time
goes, and a test holds all of it against both sweeps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence

from topobench.choice import TORCH, Timed, timed
from topobench.probes import registry
from topobench.reading import Arm, Case, Cell
from topobench.rings import AUTO, AUTO_RING

READY_SECONDS = 0.5
"""From the end of the worker before to the first cell of the next: one process, bound."""
GPU_SECONDS, NEXT_GPU_SECONDS = 2.2, 0.3
"""torch and a CUDA context, and for each more of a host's GPUs that one begins to use at once."""
JOINING_SECONDS = 0.7
"""Ranks that NCCL joins, on top."""
DUMP_SECONDS = 1.0
"""What a gang measures that tells the rings NCCL makes by itself; its start comes on top."""
LOOK_SECONDS = 0.036
"""Of each GPU before and after a cell: counters, clocks, users."""
LOG_SECONDS = 0.01
"""Of each rank that NCCL joins, after a cell: its log is read again."""


def of_worker(
    cases: Sequence[Timed], arm: Arm, *, gpus: int, ranks: int, known: set[str]
) -> Iterator[tuple[Case, float]]:
    """
    Cases of one worker or gang in turn, with about how many seconds each takes there.

    Args:
        gpus: That it uses on one host.
        known: What it has made or loaded by then, at first nothing; kept up to date.
    """
    for case, seconds, uses in cases:
        for name, more in uses:
            if name not in known:
                known.add(name)
                begins = name == TORCH and gpus > 0
                seconds += _gpus_begin(case, arm, gpus, ranks) if begins else more
        yield case, seconds


def anew(batch: Sequence[Cell], times: dict[int, Timed]) -> Iterator[tuple[Cell, float]]:
    """
    Cells of one worker of which some were left out, with the seconds each takes now.

    The first that is left finds nothing made or loaded.

    Args:
        times: Of cases that were asked for before, by ``id()``; added to.
    """
    for cell in batch:
        if id(cell.case) not in times:
            times[id(cell.case)] = timed(registry.load(cell.case.probe), cell.case.params)
    first = batch[0]
    cases = [times[id(cell.case)] for cell in batch]
    gpus = gpus_of_a_host(first)
    found = of_worker(cases, first.arm, gpus=gpus, ranks=first.ranks, known=set())
    return ((cell, seconds) for cell, (_, seconds) in zip(batch, found, strict=True))


def beside(batch: Sequence[Cell], dumped: set[tuple[str, ...]]) -> float:
    """
    Seconds that the cells of one worker or gang take beside their estimates.

    Args:
        dumped: GPUs whose own rings are known to the host by then; those of this batch are
            added if it has to ask for them.
    """
    first = batch[0]
    gpus, joined = gpus_of_a_host(first), _joined(first.case, first.arm, first.ranks)
    seconds = READY_SECONDS
    if joined and first.arm.ring not in (None, AUTO, AUTO_RING) and first.devices not in dumped:
        dumped.add(first.devices)
        start = _gpus_begin(first.case, first.arm, gpus, first.ranks)
        seconds += READY_SECONDS + start + DUMP_SECONDS
    look = LOOK_SECONDS * gpus + (LOG_SECONDS * first.ranks if joined else 0.0)
    return seconds + look * (len(batch) - 1)


def worker_key(arm: Arm) -> Hashable:
    """What cells of one worker have in common of their arms."""
    return arm.binding, arm.ring, arm.env_name, tuple(sorted(arm.env.items()))


def gpus_of_a_host(cell: Cell) -> int:
    """How many GPUs its worker or gang uses on one host; the most of one, if of several."""
    return most_of_a_host(cell.hosts) if cell.hosts and cell.devices else len(cell.worker_devices)


def most_of_a_host(hosts: Sequence[str]) -> int:
    """How many ranks the host of most of them has, given each rank's."""
    return max(Counter(hosts).values())


def _gpus_begin(case: Case, arm: Arm, gpus: int, ranks: int) -> float:
    """By how much the first cell of a worker is longer that uses GPUs through torch."""
    joining = JOINING_SECONDS if _joined(case, arm, ranks) else 0.0
    return GPU_SECONDS + NEXT_GPU_SECONDS * (gpus - 1) + joining


def _joined(case: Case, arm: Arm, ranks: int) -> bool:
    """Whether NCCL joins the ranks."""
    return ranks > 1 and (arm.ring is not None or case.params.get("backend") == "nccl")
