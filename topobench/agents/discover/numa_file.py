"""
The operator's word on which NUMA node a PCI device is at, where firmware says nothing or errs.

One ``ADDRESS: NODE`` a line, ``#`` starts a comment; a bridge's line holds for all below it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from topobench.agents.discover.tree import Tree
from topobench.errors import DiscoveryError
from topobench.pcie import normalise_address

ENV = "TOPOBENCH_NUMA_FILE"
PATH = "etc/topobench/numa.yaml"
_LINE = re.compile(r"""\s*(["']?)(?P<address>[0-9a-fA-F:.]+)\1\s*:\s+(?P<node>\d+)\s*""")


@dataclass(frozen=True, slots=True)
class NumaFile:
    """PCI address -> NUMA node, and ``file`` to name in messages."""

    file: str = PATH
    nodes: Mapping[str, int] = field(default_factory=dict)


def read_numa_file(
    tree: Tree, nodes: frozenset[int], environment: Mapping[str, str] | None = None
) -> NumaFile:
    """
    The file named by ``TOPOBENCH_NUMA_FILE``, else ``/etc/topobench/numa.yaml``, if it exists.

    A capture has its own, below its root, and ignores the environment.

    Args:
        nodes: NUMA nodes there are.

    Raises:
        DiscoveryError: The named file cannot be read, or a line is no address with a node.
    """
    named = (os.environ if environment is None else environment).get(ENV) if tree.live else None
    file = named or tree.path(PATH)
    if named:
        try:
            with open(named, encoding="utf-8") as handle:
                text = handle.read()
        except (OSError, UnicodeDecodeError) as error:
            raise DiscoveryError(f"{ENV}={named}: it cannot be read: {error}") from error
    else:
        text = (tree.read(PATH) or b"").decode("utf-8", "replace")
    return NumaFile(file, dict(_parse(text, file, nodes)))


def _parse(text: str, file: str, nodes: frozenset[int]) -> dict[str, int]:
    found: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        entry = line.partition("#")[0]
        if not entry.strip():
            continue
        where, match = f"{file}:{number}", _LINE.fullmatch(entry)
        address = normalise_address(match["address"]) if match else None
        if match is None or address is None:
            expected = 'expected a PCI address and a NUMA node, as "0000:3a:00.0: 1"'
            raise DiscoveryError(f"{where}: {expected}, not {line.strip()!r}")
        if address in found:
            raise DiscoveryError(f"{where}: {address} is there twice; keep one line")
        if int(match["node"]) not in nodes:
            known = ", ".join(map(str, sorted(nodes)))
            raise DiscoveryError(f"{where}: there is no NUMA node {match['node']}; nodes: {known}")
        found[address] = int(match["node"])
    return found
