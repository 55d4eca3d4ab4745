"""
Turn binding arms into CPUs and memory nodes of one host; pure.

CPU and memory are separate facts. Everything is cut to what this process may use (affinity,
cpuset, Mems_allowed). A GPU's own memory node is never bound to; a node without CPUs serves
as memory only. An arm that cannot be laid out is refused with the reason, never widened.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from topobench.config import BindingChoice
from topobench.reading import Binding, MemoryPolicy, Reason, ReasonCode, Status
from topobench.topology import (
    Gpu,
    NodeKind,
    NumaNode,
    Topology,
    format_cpu_list,
    parse_cpu_list,
)

ONE_NODE = "this host shows one NUMA node, so there is nothing to choose"


@functools.lru_cache(maxsize=4096)
def _cpus(text: str | None) -> frozenset[int]:
    """CPUs of a list string; a fleet has few different ones."""
    return frozenset(parse_cpu_list(text))


@functools.lru_cache(maxsize=4096)
def _text(cpus: frozenset[int]) -> str:
    return format_cpu_list(cpus)


@dataclass(frozen=True, slots=True)
class Refusal:
    """An arm that does not exist on this host, with its name and why."""

    name: str
    status: Status
    reason: Reason


Resolved = Binding | Refusal


@dataclass(frozen=True, slots=True)
class MatrixArm:
    """One CPU node against one memory node; None where the host shows no NUMA node."""

    resolved: Resolved
    cpu_node: int | None = None
    memory_node: int | None = None


def allowed_cpus(topology: Topology) -> frozenset[int]:
    """CPUs a worker may use; all that are online where the limit is unknown."""
    cpus = topology.cpus
    return _cpus(cpus.allowed or cpus.online)


def usable_cpu_count(topology: Topology) -> int:
    """How many CPUs can really run at once: the allowed ones, within the cgroup's quota."""
    count = len(allowed_cpus(topology)) or 1
    quota = topology.cpus.quota_cpus
    return count if quota is None else max(1, min(count, int(quota)))


def allowed_cpu_nodes(topology: Topology) -> tuple[NumaNode, ...]:
    """NUMA nodes with at least one CPU that a worker may use, by id."""
    allowed = allowed_cpus(topology)
    nodes = [n for n in topology.cpu_nodes if allowed & _cpus(n.cpus)]
    return tuple(sorted(nodes, key=lambda n: n.id))


def memory_nodes(topology: Topology) -> tuple[NumaNode, ...]:
    """NUMA nodes with host memory, by id: never a GPU's own, allowed or not."""
    own = {g.own_numa_node for g in topology.gpus}
    kinds = (NodeKind.CPU_MEMORY, NodeKind.MEMORY)
    nodes = [n for n in topology.numa_nodes if n.kind in kinds and n.gpu is None]
    return tuple(sorted((n for n in nodes if n.id not in own), key=lambda n: n.id))


def resolve(choice: BindingChoice, topology: Topology, gpu: Gpu | None) -> Resolved:
    """
    Lay out one arm for a GPU, or for a CPU measurement (``gpu`` None).

    Without a GPU ``local`` is the first allowed CPU node and ``remote`` does not exist.
    ``threads`` of the result is 1; see :func:`equal_threads`.
    """
    if choice.name == "none":
        return Binding("none")
    if not topology.numa_nodes:
        return _refused(choice.name, ReasonCode.UNKNOWN_NUMA_NODE, "no NUMA node could be read")
    if choice.name == "local":
        return _local(topology, gpu)
    if choice.name == "remote":
        return _remote(topology, gpu)
    return _spread(topology) if choice.name == "spread" else _own(choice, topology)


def numa_matrix(topology: Topology) -> tuple[MatrixArm, ...]:
    """
    Every CPU node against every node with memory, named ``cpu0-mem1``.

    A node that may not be used gives one refusal, not one for each partner.
    """
    cpu_nodes, memories = topology.cpu_nodes, memory_nodes(topology)
    if not cpu_nodes or not memories:
        return (MatrixArm(Binding("none")),)
    usable = allowed_cpu_nodes(topology)
    arms = [
        MatrixArm(_node_to_node(topology, cpu, memory), cpu.id, memory.id)
        for cpu in usable
        for memory in memories
        if memory.allowed
    ]
    arms += [MatrixArm(_cpus_refused(f"cpu{n.id}", n.id)) for n in cpu_nodes if n not in usable]
    arms += [MatrixArm(_memory_refused(f"mem{n.id}", n.id)) for n in memories if not n.allowed]
    return tuple(arms)


def equal_threads(bindings: Iterable[Binding], topology: Topology, ranks: int = 1) -> int:
    """
    Compute threads of a worker, the same for all arms compared.

    The smallest CPU count over the arms; one CPU is left to the agent where an arm could
    take all of more than two. Shared by the ranks of a gang; at least 1.
    """
    total = len(allowed_cpus(topology)) or 1
    counts = [len(_cpus(b.cpus)) if b.cpus else total for b in bindings]
    threads = min([*counts, usable_cpu_count(topology)])
    if threads == total > 2:
        threads -= 1
    return max(1, threads // ranks)


def united(bindings: Sequence[Binding]) -> Binding:
    """All CPUs and memory nodes of the bindings of one arm's ranks, under that arm's name."""
    cpus = frozenset[int]().union(*(_cpus(b.cpus) for b in bindings))
    return replace(
        bindings[0],
        cpus=_text(cpus),
        cpu_nodes=tuple(sorted({n for b in bindings for n in b.cpu_nodes})),
        memory_nodes=tuple(sorted({n for b in bindings for n in b.memory_nodes})),
    )


def with_threads(binding: Binding, threads: int) -> Binding:
    """The same binding with a number of threads."""
    return replace(binding, threads=threads)


def _local(topology: Topology, gpu: Gpu | None) -> Resolved:
    near = _near_node(topology, gpu, "local")
    if isinstance(near, Refusal):
        return near
    if len(topology.cpu_nodes) == 1 and len(memory_nodes(topology)) <= 1:
        return _one_node("local")
    return _on_node(topology, near, "local")


def _remote(topology: Topology, gpu: Gpu | None) -> Resolved:
    if len(topology.cpu_nodes) == 1:
        return _one_node("remote")
    if gpu is None:
        text = "remote is seen from a GPU, and this measurement uses none"
        return _not_applicable("remote", ReasonCode.NO_GPU, text)
    near = _near_node(topology, gpu, "remote")
    if isinstance(near, Refusal):
        return near
    others = [n for n in allowed_cpu_nodes(topology) if n.id != near.id]
    if not others:
        text = f"no CPU outside NUMA node {near.id} may be used (cpuset or affinity)"
        return _refused("remote", ReasonCode.CPU_NOT_ALLOWED, text)
    far = _farthest(topology, near, others)
    return far if isinstance(far, Refusal) else _on_node(topology, far, "remote")


def _farthest(topology: Topology, near: NumaNode, others: list[NumaNode]) -> NumaNode | Refusal:
    """The node at the largest distance; the lowest id among equals."""
    known = [(topology.distance(near.id, n.id), n) for n in others]
    distances = [d for d, _ in known if d is not None]
    own = topology.distance(near.id, near.id)
    if len(distances) < len(known):
        if len(others) == 1:
            return others[0]
        text = "the kernel gives no NUMA distances, so no node is known to be the farthest"
        return _refused("remote", ReasonCode.UNKNOWN_NUMA_NODE, text)
    if own is not None and max(distances) <= own:
        text = f"every CPU node is at distance {own} from NUMA node {near.id}: none is farther"
        return _not_applicable("remote", ReasonCode.EQUAL_DISTANCES, text)
    return next(n for d, n in known if d == max(distances))


def _spread(topology: Topology) -> Resolved:
    memories = memory_nodes(topology)
    if len(memories) <= 1:
        return _one_node("spread")
    usable_cpus = allowed_cpu_nodes(topology)
    usable_memories = [n for n in memories if n.allowed]
    if len(topology.cpu_nodes) > 1 and len(usable_cpus) < 2:
        text = "CPUs of one NUMA node only may be used (cpuset or affinity)"
        return _refused("spread", ReasonCode.CPU_NOT_ALLOWED, text)
    if len(usable_memories) < 2:
        text = "memory of one NUMA node only may be used (Mems_allowed)"
        return _refused("spread", ReasonCode.MEM_NOT_ALLOWED, text)
    cpus = frozenset[int]().union(*(_cpus(n.cpus) for n in usable_cpus))
    return Binding(
        "spread",
        cpus=_text(cpus & allowed_cpus(topology)),
        cpu_nodes=tuple(n.id for n in usable_cpus),
        memory=MemoryPolicy.INTERLEAVE,
        memory_nodes=tuple(n.id for n in usable_memories),
    )


def _own(choice: BindingChoice, topology: Topology) -> Resolved:
    """The user's arm: CPUs cut to the allowed set, memory nodes all or none."""
    allowed = allowed_cpus(topology)
    by_node = {n.id: _cpus(n.cpus) for n in topology.cpu_nodes}
    wanted = _cpus(choice.cpus) if choice.cpus else allowed
    if choice.cpu_nodes:
        for node in choice.cpu_nodes:
            if node not in by_node:
                text = f"NUMA node {node} has no CPUs here"
                return _refused(choice.name, ReasonCode.CPU_NOT_ALLOWED, text)
        wanted = frozenset[int]().union(*(by_node[node] for node in choice.cpu_nodes))
    cpus = wanted & allowed
    if not cpus:
        text = f"none of the CPUs {_text(wanted)} may be used here"
        return _refused(choice.name, ReasonCode.CPU_NOT_ALLOWED, text)
    usable = {n.id for n in memory_nodes(topology) if n.allowed}
    for node in choice.memory_nodes:
        if node not in usable:
            return _memory_refused(choice.name, node)
    return Binding(
        choice.name,
        cpus=_text(cpus),
        cpu_nodes=tuple(n for n, own in sorted(by_node.items()) if own & cpus),
        memory=choice.memory,
        memory_nodes=choice.memory_nodes,
    )


def _near_node(topology: Topology, gpu: Gpu | None, name: str) -> NumaNode | Refusal:
    """The CPU node of a GPU; the first allowed one where there is no GPU."""
    nodes = {n.id: n for n in topology.cpu_nodes}
    if gpu is None:
        usable = allowed_cpu_nodes(topology)
        return usable[0] if usable else _cpus_refused(name, min(nodes, default=0))
    if len(nodes) == 1:
        return next(iter(nodes.values()))
    node = gpu.cpu_node.value
    if node in nodes:
        return nodes[node]
    why = gpu.cpu_node.reason or (f"NUMA node {node} has no CPUs" if node is not None else "")
    text = f"the CPU node of {gpu.key} is unknown{f' ({why})' if why else ''}; "
    advice = "describe an arm of your own in bindings: ({name, cpus, memory}, docs/config.md)"
    return _refused(name, ReasonCode.UNKNOWN_NUMA_NODE, text + advice)


def _on_node(topology: Topology, node: NumaNode, name: str) -> Resolved:
    """CPUs and memory of one node."""
    return _node_to_node(topology, node, node, name)


def _node_to_node(
    topology: Topology, cpu: NumaNode, memory: NumaNode, name: str | None = None
) -> Resolved:
    label = name or f"cpu{cpu.id}-mem{memory.id}"
    cpus = allowed_cpus(topology) & _cpus(cpu.cpus)
    if not cpus:
        return _cpus_refused(label, cpu.id)
    if memory not in memory_nodes(topology):
        text = f"NUMA node {memory.id} has no host memory of its own"
        return _refused(label, ReasonCode.MEM_NOT_ALLOWED, text)
    if not memory.allowed:
        return _memory_refused(label, memory.id)
    return Binding(
        label,
        cpus=_text(cpus),
        cpu_nodes=(cpu.id,),
        memory=MemoryPolicy.BIND,
        memory_nodes=(memory.id,),
    )


def _one_node(name: str) -> Refusal:
    return _not_applicable(name, ReasonCode.ONE_NUMA_NODE, ONE_NODE)


def _cpus_refused(name: str, node: int) -> Refusal:
    text = f"no CPU of NUMA node {node} may be used (cpuset or affinity)"
    return _refused(name, ReasonCode.CPU_NOT_ALLOWED, text)


def _memory_refused(name: str, node: int) -> Refusal:
    text = f"memory of NUMA node {node} may not be used (Mems_allowed, or no host memory there)"
    return _refused(name, ReasonCode.MEM_NOT_ALLOWED, text)


def _refused(name: str, code: ReasonCode, text: str) -> Refusal:
    return Refusal(name, Status.SKIPPED, Reason(code, text))


def _not_applicable(name: str, code: ReasonCode, text: str) -> Refusal:
    return Refusal(name, Status.NOT_APPLICABLE, Reason(code, text))
