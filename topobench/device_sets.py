"""Which GPUs of a host work together: one set for each class of path that its GPUs have. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from topobench.topology import Gpu, PathClass, Topology

_FARTHEST = (len(PathClass), 0)
"""Of GPUs whose path is not known."""
_PCI = tuple(PathClass)

Distances = Mapping[frozenset[str], tuple[int, int]]


def device_sets(topology: Topology, gpus: Sequence[Gpu], size: int) -> list[tuple[Gpu, ...]]:
    """
    Sets of GPUs whose farthest path differs in class, the nearest first.

    Of the sets of one class the first in the order of the GPUs is taken; classes in which no
    set is so large have none.

    Args:
        size: GPUs of a set, 2 or more.
    """
    distances = _distances(topology, gpus)
    limits = sorted(set(distances.values()))
    found = (next(_within(distances, gpus, size, limit), None) for limit in limits)
    return [chosen for chosen in found if chosen is not None]


def distance(path_class: str) -> tuple[int, int]:
    """How far a class of path is, as nvidia-smi names it; more NVLinks are nearer."""
    if path_class in _PCI:
        return _PCI.index(PathClass(path_class)), 0
    links = re.fullmatch(r"NV(\d+)", path_class)
    return 0, -int(links[1]) if links else 0


def _distances(topology: Topology, gpus: Sequence[Gpu]) -> Distances:
    """Of every pair, by the names of its ends."""
    known = {frozenset((p.a, p.b)): distance(p.smi) for p in topology.paths if p.smi}
    names = [gpu.name for gpu in gpus]
    pairs = (frozenset((a, b)) for n, a in enumerate(names) for b in names[n + 1 :])
    return {pair: known.get(pair, _FARTHEST) for pair in pairs}


def _within(
    distances: Distances, gpus: Sequence[Gpu], size: int, limit: tuple[int, int]
) -> Iterator[tuple[Gpu, ...]]:
    """Sets with no path beyond a limit: grown from each pair that is as far as that."""
    for number, first in enumerate(gpus):
        for second in gpus[number + 1 :]:
            if distances[frozenset((first.name, second.name))] != limit:
                continue
            chosen = [first, second]
            for gpu in gpus:
                near = all(
                    distances.get(frozenset((gpu.name, other.name)), _FARTHEST) <= limit
                    for other in chosen
                )
                if len(chosen) < size and gpu not in chosen and near:
                    chosen.append(gpu)
            if len(chosen) == size:
                yield tuple(gpu for gpu in gpus if gpu in chosen)
