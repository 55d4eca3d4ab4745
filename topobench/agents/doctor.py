"""
What a host lacks for numbers that can be trusted: ``topobench doctor``.

Reads settings and says what is wrong, why it matters, and which line mends it and which
undoes that. No line is ever run from here.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from topobench.agents.discover.tree import Tree
from topobench.agents.doctor_checks import binding, gpu, machine, peers, service
from topobench.agents.doctor_checks.common import Check, Finding, Level, Run, Subject
from topobench.errors import DiscoveryError
from topobench.host import HostFacts
from topobench.topology import Topology

__all__ = ["CHECKS", "Check", "Finding", "Level", "examine", "run_program"]

CHECKS: tuple[Check, ...] = (
    binding.numactl,
    binding.memory_policy,
    binding.inherited_affinity,
    binding.cpu_quota,
    binding.numa_balancing,
    binding.zone_reclaim,
    machine.huge_pages,
    machine.huge_page_defrag,
    machine.cpu_governor,
    machine.cpu_idle,
    machine.swap,
    machine.memlock,
    gpu.gpu_driver,
    gpu.gpu_library,
    gpu.torch,
    gpu.gpu_persistence,
    gpu.gpu_clocks,
    gpu.gpu_ecc,
    gpu.gpu_remapped_rows,
    gpu.gpu_errors,
    peers.fabric_manager,
    peers.gpu_direct_rdma,
    peers.pcie_acs,
    peers.iommu,
    service.shared_memory,
    service.lock_folder,
    service.ray_home,
    service.ray_port,
    service.disk,
)
"""Every check, in the order its finding is shown."""

_PATIENCE_SECONDS = 30


def examine(
    root: Path | str = "/",
    *,
    topology: Topology,
    facts: HostFacts,
    env: Mapping[str, str],
    run: Run | None = None,
) -> list[Finding]:
    """
    Every finding about a host; a check that does not apply to it gives none.

    Args:
        root: ``/``, or the folder of a captured host.
        env: Environment that sweeps would be started in.
        run: :func:`run_program` for the running system; None leaves what only a program
            can tell ``unknown``.
    """
    subject = Subject(Tree.open(root), topology, facts, env, run)
    return [finding for check in CHECKS if (finding := check(subject))]


def run_program(argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """
    Run a program that only reads (nvidia-smi).

    Raises:
        DiscoveryError: It is not there, or gives no answer in time.
    """
    try:
        return subprocess.run(
            argv, capture_output=True, text=True, timeout=_PATIENCE_SECONDS, check=False
        )
    except OSError as error:
        raise DiscoveryError(f"{argv[0]} cannot be run: {error.strerror}") from error
    except subprocess.TimeoutExpired as error:
        raise DiscoveryError(
            f"{argv[0]} gave no answer in {_PATIENCE_SECONDS} s: a GPU may be lost"
        ) from error
