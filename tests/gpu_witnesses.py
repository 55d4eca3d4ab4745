"""What nvidia-smi and NCCL say of a host, compared with its topology."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from topobench.importers import nccl_xml, smi_matrix
from topobench.nccl_paths import compute
from topobench.nccl_system import system_of
from topobench.topology import Topology

_ALL_REDUCE = """
import torch
count = torch.cuda.device_count()
torch.cuda.nccl.all_reduce([torch.ones(4, device=f"cuda:{i}") for i in range(count)])
torch.cuda.synchronize()
"""


def smi_matrix_text() -> str:
    """The output of ``nvidia-smi topo -m``."""
    argv = ["nvidia-smi", "topo", "-m"]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout


def nccl_dump(file: Path, environment: Mapping[str, str]) -> str:
    """The topology that NCCL itself finds with all GPUs of this host."""
    settings = {**environment, "NCCL_TOPO_DUMP_FILE": str(file)}
    subprocess.run([sys.executable, "-c", _ALL_REDUCE], env=settings, check=True, timeout=300)
    return file.read_text()


def against_smi(topology: Topology, text: str) -> tuple[int, list[str]]:
    """Number of facts compared with the matrix, and those that differ, in words."""
    told = smi_matrix.parse(text)
    ours = {frozenset((p.a, p.b)): p.smi for p in topology.paths}
    pairs = {frozenset((p.a, p.b)): p.smi for p in told.paths}
    names = {f"nic:{n.name}" for n in topology.nics} | {g.name for g in topology.gpus}
    facts: list[tuple[str, object, object]] = [
        ("-".join(sorted(pair)), token, ours.get(pair))
        for pair, token in pairs.items()
        if pair <= names
    ]
    gpus = {g.index: g for g in topology.gpus if not g.is_slice}
    for gpu in told.gpus:
        mine = gpus.get(gpu.index)
        facts.append((f"{gpu.name} exists", True, mine is not None))
        if mine and gpu.cpus is not None:
            facts.append((f"CPUs near {gpu.name}", gpu.cpus, mine.cpus))
        if mine and gpu.cpu_node.value is not None:
            facts.append((f"NUMA node of {gpu.name}", gpu.cpu_node.value, mine.cpu_node.value))
        if mine and gpu.own_numa_node is not None:
            facts.append((f"own node of {gpu.name}", gpu.own_numa_node, mine.own_numa_node))
    return len(facts), [
        f"{what}: nvidia-smi {theirs}, here {mine}"
        for what, theirs, mine in facts
        if theirs != mine
    ]


def against_nccl(topology: Topology, text: str) -> tuple[int, list[str]]:
    """
    Number of GPU pairs compared with NCCL's own topology, and those that differ, in words.

    By type and assumed bandwidth, computed alike from both.
    """
    theirs = compute(system_of(nccl_xml.parse(text)))
    ours = compute(system_of(topology))
    pairs = [pair for pair in theirs if all(end.startswith("gpu:") for end in pair)]
    return len(pairs), [
        f"{a}-{b}: NCCL {theirs[a, b]}, here {ours.get((a, b))}"
        for a, b in pairs
        if theirs[a, b] != ours.get((a, b))
    ]
