"""What the doctor's tests share: made-up hosts, and the findings about them by check."""

from __future__ import annotations

import dataclasses
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from topobench.agents import doctor
from topobench.agents.doctor import Finding, Level
from topobench.errors import DiscoveryError
from topobench.host import HostFacts
from topobench.topology import (
    Cpus,
    Gpu,
    Known,
    Machine,
    NodeKind,
    NumaNode,
    PciDevice,
    Topology,
)

DEBIAN = 'PRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\nID=debian\n'
CLOSED = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Tue Sep 23 10:11:16 UTC 2025\n"
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build\n"
CPU = "sys/devices/system/cpu"
THP = "sys/kernel/mm/transparent_hugepage"

FACTS = HostFacts(
    hostname="h1",
    interpreter="/opt/py/bin/python",
    topobench="1.0",
    source_digest="0" * 64,
    python="3.12.3",
    numactl="/usr/bin/numactl",
    torch="2.11.0+cu130",
    inherited_cpus="0-7",
    shm_bytes=16 << 30,
    free_disk_bytes=100 << 30,
)


def node(number: int) -> NumaNode:
    return NumaNode(number, NodeKind.CPU_MEMORY, f"{4 * number}-{4 * number + 3}", 2 << 30, True)


def gpu(number: int, **changes: Any) -> Gpu:
    known = Gpu(number, f"GPU-{number}", f"0000:0{number + 1}:00.0", "H200", 141 << 30, Known(0))
    return dataclasses.replace(known, **changes)


def function(address: str, pci_class: str = "0x060400", **changes: Any) -> PciDevice:
    made = PciDevice(address, pci_class, "0x10b5", "0x8747", None, "downstream", Known(0))
    return dataclasses.replace(made, **changes)


PLAIN = Topology(
    taken_at="2026-01-01T00:00:00Z",
    root="/",
    virtualization="none",
    trust="full",
    machine=Machine(kernel="6.1.0"),
    cpus=Cpus(online="0-7", allowed="0-7"),
    numa_nodes=(node(0), node(1)),
)
GPUS = dataclasses.replace(
    PLAIN,
    machine=Machine(kernel="6.1.0", driver="580.95.05", cuda="13.0"),
    gpus=(gpu(0), gpu(1)),
    pci=(
        function("0000:00:01.0"),
        function("0000:01:00.0", "0x030200", parent="0000:00:01.0", vendor="0x10de"),
    ),
)
RDMA = {"sys/class/infiniband/mlx5_0/node_type": "1: CA\n"}


def examine(
    root: Path,
    files: Mapping[str, str] | None = None,
    *,
    topology: Topology = PLAIN,
    machine: Mapping[str, Any] | None = None,
    cpus: Mapping[str, Any] | None = None,
    facts: Mapping[str, Any] | None = None,
    env: Mapping[str, str] | None = None,
    smi: Mapping[str, str] | None = None,
) -> dict[str, Finding]:
    """
    The findings about a host made of the files given, by check.

    Args:
        machine, cpus, facts: What differs from the host's topology and from FACTS.
        smi: Answers of nvidia-smi, by a part of the option that asks for them.
    """
    for name, text in {"etc/os-release": DEBIAN, **(files or {})}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    topology = dataclasses.replace(
        topology,
        machine=dataclasses.replace(topology.machine, **(machine or {})),
        cpus=dataclasses.replace(topology.cpus, **(cpus or {})),
    )
    found = doctor.examine(
        root,
        topology=topology,
        facts=dataclasses.replace(FACTS, **(facts or {})),
        env=env or {},
        run=None if smi is None else _recorded(smi),
    )
    assert len({f.check for f in found}) == len(found)
    return {f.check: f for f in found}


def _recorded(
    answers: Mapping[str, str],
) -> Callable[[Sequence[str]], subprocess.CompletedProcess[str]]:
    """Answers as nvidia-smi printed them, by the first word of its options that is a key."""

    def run(argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
        for key, text in answers.items():
            if any(key in option for option in argv[1:]):
                code = 0 if text.startswith("GPU") else 18
                return subprocess.CompletedProcess(argv, code, text, "")
        raise DiscoveryError("nvidia-smi cannot be run: No such file or directory")

    return run


def lines(finding: Finding) -> tuple[Level, str | None, str | None]:
    return finding.level, finding.fix, finding.undo
