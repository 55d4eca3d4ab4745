"""
What NVML told of a host's GPUs: pure values, so that a capture replays them.

A capture may hold them as ``topobench/nvml.json`` below its root.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from topobench.agents.discover.tree import Tree
from topobench.topology import NvLink, P2p, build, plain

CAPTURE = "topobench/nvml.json"


@dataclass(frozen=True, slots=True)
class MigFacts:
    """A MIG slice of a GPU."""

    uuid: str | None
    profile: str | None
    memory_bytes: int | None


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """
    One GPU by NVML; what a call refused is None, with the reason in ``denied``.

    Args:
        state: ok, lost, or no_access.
        cpu_affinity: CPUs near it.
        memory_nodes: NUMA nodes near it.
        nvlink_bytes_per_second: One link, one direction.
        p2p: Index of the other GPU -> peer access status.
        ancestors: Index of the other GPU -> path class by NVML.
        c2c_bytes_per_second: All chip links to the CPU, one direction.
        denied: Call -> why it gave nothing.
    """

    index: int
    pci_address: str | None = None
    uuid: str | None = None
    state: str = "ok"
    model: str | None = None
    memory_bytes: int | None = None
    compute_capability: str | None = None
    module_id: int | None = None
    cpu_affinity: tuple[int, ...] | None = None
    memory_nodes: tuple[int, ...] | None = None
    own_numa_node: int | None = None
    links: tuple[NvLink, ...] = ()
    nvlink_version: str | None = None
    nvlink_bytes_per_second: float | None = None
    fabric: str | None = None
    c2c: bool | None = None
    fabric_multi_node: bool | None = None
    fabric_health: tuple[str, ...] | None = None
    c2c_links: int | None = None
    c2c_bytes_per_second: float | None = None
    virtualization: str | None = None
    compute_mode: str | None = None
    mig_mode: str | None = None
    mig: tuple[MigFacts, ...] = ()
    p2p: Mapping[str, P2p] = field(default_factory=dict)
    ancestors: Mapping[str, str] = field(default_factory=dict)
    denied: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NvmlFacts:
    """
    All of NVML's answers.

    Args:
        error: Why NVML could not be used at all; the rest is empty then.
    """

    driver: str | None = None
    cuda: str | None = None
    gpus: tuple[GpuFacts, ...] = ()
    error: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types, for a capture."""
        result: dict[str, Any] = plain(self)
        return result

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> NvmlFacts:
        """Read what :meth:`to_json` wrote."""
        result: NvmlFacts = build(cls, value)
        return result


def captured(tree: Tree) -> NvmlFacts | None:
    """NVML's answers kept in a capture, or None."""
    text = tree.text(CAPTURE)
    try:
        return NvmlFacts.from_json(json.loads(text)) if text else None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        return NvmlFacts(error=f"{CAPTURE} of the capture cannot be read: {error}")
