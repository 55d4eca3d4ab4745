"""
How long the planner takes for 1,000 simulated hosts of eight GPUs each.

Bar: 5 s, for the profiles quick and standard. Run ``python -m benchmarks.plan_bar`` from the root
of the repository; the exit code is 1 when the bar is missed. CPU time of this process counts, so
that a busy machine changes the answer little.
"""

from __future__ import annotations

import argparse
import time

from topobench import config
from topobench.host import Host, HostFacts
from topobench.plan import make_plan
from topobench.topology import (
    Cpus,
    Gpu,
    Known,
    Machine,
    NodeKind,
    NumaDistances,
    NumaNode,
    Topology,
)

BAR_SECONDS = 5.0
GIB = 1 << 30
NODE_CPUS = ("0-31,64-95", "32-63,96-127")


def main() -> int:
    """Plan once and print the figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, default=1000)
    parser.add_argument("--profile", default="quick")
    arguments = parser.parse_args()
    overrides = config.Overrides(profile=arguments.profile)
    wanted = config.load(None, overrides=overrides, environ={})
    hosts = [simulated_host(number) for number in range(arguments.hosts)]
    started = time.process_time()
    plan = make_plan(wanted, hosts, seed=1)
    seconds = time.process_time() - started
    print(
        f"{arguments.hosts} hosts, profile {arguments.profile}: {len(plan.cells)} cells in "
        f"{seconds:.2f} s of CPU ({seconds / len(plan.cells) * 1e6:.1f} us a cell); "
        f"bar {BAR_SECONDS} s for 1000 hosts"
    )
    return int(seconds > BAR_SECONDS)


def simulated_host(number: int) -> Host:
    """A host with two NUMA nodes and eight GPUs; UUIDs are its own."""
    nodes = tuple(
        NumaNode(i, NodeKind.CPU_MEMORY, cpus, 1024 * GIB, allowed=True)
        for i, cpus in enumerate(NODE_CPUS)
    )
    gpus = tuple(
        Gpu(
            index=i,
            uuid=f"GPU-{number:08x}-0000-0000-0000-{i:012x}",
            pci_address=f"0000:{16 + i:02x}:00.0",
            model="NVIDIA H200",
            memory_bytes=141 * GIB,
            cpu_node=Known(i // 4, "nvml"),
        )
        for i in range(8)
    )
    topology = Topology(
        taken_at="2026-01-01T00:00:00Z",
        root="/",
        virtualization="none",
        trust="full",
        machine=Machine(driver="580.1"),
        cpus=Cpus(online="0-127", allowed="0-127"),
        numa_nodes=nodes,
        numa_distances=NumaDistances((0, 1), ((10, 21), (21, 10))),
        gpus=gpus,
    )
    name = f"h{number:04d}"
    facts = HostFacts(
        hostname=name,
        interpreter="/usr/bin/python3",
        topobench="0",
        source_digest="0",
        python="3.11",
        torch="2.13.0",
        torch_gpus=tuple(g.uuid for g in gpus if g.uuid),
        packages={"numba": "0"},
        available_memory_bytes=1024 * GIB,
    )
    return Host(name, "id", name, f"10.0.{number // 256}.{number % 256}", facts, topology)


if __name__ == "__main__":
    raise SystemExit(main())
