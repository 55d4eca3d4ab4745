"""Paths of a discovered host, with what NVML says of its GPUs."""

from __future__ import annotations

import itertools

from topobench.agents.discover.facts import NvmlFacts
from topobench.paths import Told
from topobench.topology import Topology


def told_by_nvml(topology: Topology, facts: NvmlFacts | None) -> dict[tuple[str, str], Told]:
    """Pair of GPU names, in both orders -> what NVML says of it."""
    by_index = {g.index: g for g in facts.gpus} if facts else {}
    names = {g.index: g.name for g in topology.gpus if not g.is_slice and g.index in by_index}
    return {
        (names[a], names[b]): Told(by_index[a].ancestors.get(str(b)), by_index[a].p2p.get(str(b)))
        for a, b in itertools.permutations([i for i in names if i is not None], 2)
    }
