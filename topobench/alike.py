"""
What hosts of one kind share: bindings, rings and threads of their benches; pure.

A fleet has few kinds of hosts. What depends on nothing but the kind is laid out for the first
host of it, and its arms are the same objects on all others.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import TypeVar, cast

from topobench.topology import Gpu, Topology

T = TypeVar("T")
_LAST = [f"{number:02x}" for number in range(256)]
"""The last two digits of a UUID."""


class Alike:
    """Remembers what was made, by all that it depends on."""

    def __init__(self) -> None:
        self._kinds: dict[Hashable, int] = {}
        self._hosts: dict[str, int] = {}
        self._made: dict[Hashable, object] = {}

    def kind(self, key: str, topology: Topology, env: Mapping[str, str]) -> int:
        """
        The number of a host's kind; equal for hosts whose arms are laid out alike.

        Args:
            key: The host's; it is looked at once.
            env: The site's environment of that host.
        """
        if key not in self._hosts:
            traits = _traits(topology, env)
            self._hosts[key] = self._kinds.setdefault(traits, len(self._kinds))
        return self._hosts[key]

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """What ``make`` made for this key, the first time it was asked for."""
        if key not in self._made:
            self._made[key] = make()
        return cast(T, self._made[key])


def _traits(topology: Topology, env: Mapping[str, str]) -> Hashable:
    """All that bindings, rings and threads depend on; neither names nor sizes of memory."""
    nodes = topology.numa_nodes
    with_cpus = {node.id for node in topology.cpu_nodes}
    cpus = topology.cpus
    return (
        (cpus.online, cpus.allowed, cpus.quota_cpus),
        tuple((n.id, n.kind, n.cpus, n.allowed, n.gpu is None) for n in nodes),
        topology.numa_distances,
        tuple(_gpu_traits(gpu, with_cpus) for gpu in topology.gpus),
        topology.paths,
        tuple(sorted(env.items())),
    )


def _gpu_traits(gpu: Gpu, with_cpus: set[int]) -> Hashable:
    """A GPU that hangs on no known node is called by its key where that is told."""
    key = None if gpu.cpu_node.value in with_cpus else gpu.key
    return gpu.name, gpu.cpu_node, gpu.own_numa_node, key


def uuids() -> Iterator[str]:
    """
    UUIDs without end: 74 random bits, and a number that counts.

    To draw each would take most of a plan's time, and an index that takes a sweep's ids in order
    is quicker than one that takes them anywhere.
    """
    drawn = str(uuid.uuid4())[:24]
    firsts = (f"{drawn}{number:010x}" for number in itertools.count())
    return (first + last for first in firsts for last in _LAST)
