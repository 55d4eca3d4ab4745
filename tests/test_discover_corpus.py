"""Discovery of machines captured by hwloc's authors, against what hwloc says of them."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path

import pytest

from lstopo import Lstopo
from lstopo import read as read_lstopo
from topobench.agents.discover import discover
from topobench.topology import MemoryAccess, NodeKind, NumaNode, Topology, parse_cpu_list

CORPUS = Path(__file__).parents[2] / "shared/topodata/hwloc_linux"
TARBALLS = sorted([*CORPUS.glob("*.tar.bz2"), *CORPUS.glob("v2.14.0/*.tar.bz2")])
FIRST_NODE_ALONE = "8em64t-2s2ca2c-buggynuma"
"""Of eight nodes that claim all CPUs, hwloc keeps the memory of one, we that of the host."""

CHIPSET = ("0600", "0601", "0780", "0800", "0880", "0c03", "0c05", "1101")
"""Classes that we leave out; lstopo shows them with --whole-io."""

SHOWN = {
    "2pa-pcidomain32bits": 4,
    "32em64t-2n8c+dax+nvme+mic+dimms": 7,
    "32em64t-2n8c+1mic": 7,
    "40intel64-2g2n4c+pcilocality": 8,
    "40intel64-2g2n4c+pci": 8,
    "fakepcilocalities": 8,
    "nvidiagpunumanodes": 6,
}
"""How many PCI devices are compared, where lstopo's output has any."""

pytestmark = pytest.mark.skipif(not TARBALLS, reason=f"no captured machines in {CORPUS}")


def name(tarball: Path) -> str:
    return str(tarball.relative_to(CORPUS)).removesuffix(".tar.bz2")


def expected(tarball: Path) -> Lstopo:
    """What lstopo printed, which lies beside the tarball: verbose text, or XML."""
    base = name(tarball).rpartition("/")[2]
    found = [tarball.parent / f"{base}{end}" for end in (".console", ".xml", ".output")]
    return read_lstopo(next(f for f in found if f.exists()).read_text())


@pytest.fixture(scope="session")
def unpacked() -> dict[str, Topology]:
    """
    Name of each tarball -> its topology.

    Unpacked one by one in memory where there is such a folder: they are many small files.
    """
    return {name(t): _discovered(t) for t in TARBALLS}


def _discovered(tarball: Path) -> Topology:
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        unneeded = [f"--exclude=*/{n}" for n in ("power", "cpufreq", "cpuidle", "memory[0-9]*")]
        command = ["tar", "--no-same-owner", *unneeded, "-xjf", str(tarball), "-C", folder]
        subprocess.run(command, check=True, capture_output=True)
        return discover(next(Path(folder).iterdir()))


FILTERED = "v2.14.0/4em64t-2c2t-ignore-reorder"
"""Its output was made with options that hide CPUs and nodes."""

each_machine = pytest.mark.parametrize("tarball", TARBALLS, ids=name)
each_comparable = pytest.mark.parametrize(
    "tarball", [t for t in TARBALLS if name(t) != FILTERED], ids=name
)


def test_corpus_is_whole() -> None:
    assert len(TARBALLS) >= 39


@each_machine
def test_topology_survives_a_round_trip(tarball: Path, unpacked: dict[str, Topology]) -> None:
    """Every captured machine gives a topology without an exception, equal after JSON."""
    found = unpacked[name(tarball)]
    assert Topology.from_json(json.loads(json.dumps(found.to_json()))) == found


@each_comparable
def test_cpus_are_those_of_hwloc(tarball: Path, unpacked: dict[str, Topology]) -> None:
    """Ours that are allowed are the PUs that lstopo shows, which leaves out the others."""
    found, wanted = unpacked[name(tarball)], expected(tarball)
    assert allowed(found) == wanted.cpus


@each_comparable
def test_cores_and_packages_are_those_of_hwloc(
    tarball: Path, unpacked: dict[str, Topology]
) -> None:
    """Cores with a CPU that is allowed, and packages with such a CPU or NUMA node."""
    found, wanted = unpacked[name(tarball)], expected(tarball)
    lists = (n.cpus for n in found.numa_nodes if n.allowed)
    near = {cpu for text in lists for cpu in parse_cpu_list(text)} | allowed(found)
    ours = count(found, "core", allowed(found)), count(found, "package", near)
    assert ours == (wanted.cores, wanted.packages)


@each_comparable
def test_numa_nodes_are_those_of_hwloc(tarball: Path, unpacked: dict[str, Topology]) -> None:
    """Nodes whose memory is ours to use, how much, and the CPUs near it."""
    found, wanted = unpacked[name(tarball)], expected(tarball)
    kinds = (NodeKind.CPU_MEMORY, NodeKind.MEMORY, NodeKind.CPU)
    ours = {n.id: n for n in found.numa_nodes if n.allowed and n.kind in kinds}
    assert list(ours) == sorted(wanted.nodes)
    for number, node in ours.items():
        near = set(parse_cpu_list(node.cpus)) or nearest_cpus(found, node)
        assert near & allowed(found) == wanted.nodes[number].cpus, number
        if name(tarball) != FIRST_NODE_ALONE:
            assert wanted.nodes[number].holds(node.memory_bytes), number


@each_comparable
def test_distances_are_those_of_hwloc(tarball: Path, unpacked: dict[str, Topology]) -> None:
    """By node number, not by position: numbers have gaps and nodes may be hidden."""
    found, wanted = unpacked[name(tarball)], expected(tarball)
    nodes = list(wanted.nodes)
    for i, a in enumerate(nodes[: len(wanted.distances)]):
        for j, b in enumerate(nodes):
            assert found.distance(a, b) == wanted.distances[i][j], (a, b)


@each_comparable
def test_pci_devices_are_those_of_hwloc(tarball: Path, unpacked: dict[str, Topology]) -> None:
    """Addresses, classes and ids of those lstopo shows, chipset functions aside."""
    found, wanted = unpacked[name(tarball)], expected(tarball)
    ours = {d.address: f"{d.pci_class[2:6]} {d.vendor[2:]}:{d.device[2:]}" for d in found.pci}
    shown = {a: t for a, t in wanted.pci.items() if not t.startswith(CHIPSET)}
    assert shown == {a: t for a, t in ours.items() if a in shown}
    assert len(shown) == SHOWN.get(name(tarball).rpartition("/")[2], 0)


def count(found: Topology, level: str, cpus: set[int]) -> int:
    """How many of a level hold one of these CPUs."""
    sets = [s for group in found.cpus.groups if group.level == level for s in group.sets]
    return sum(not cpus.isdisjoint(parse_cpu_list(s)) for s in sets)


def allowed(found: Topology) -> set[int]:
    return set(parse_cpu_list(found.cpus.allowed))


def nearest_cpus(found: Topology, node: NumaNode) -> set[int]:
    """CPUs of the nodes from which a node's memory is reached best: by firmware, or distance."""
    if node.access:
        near = set(node.access.initiators)
    else:
        by_id = {n.id: found.distance(n.id, node.id) or 255 for n in found.cpu_nodes}
        near = {i for i, distance in by_id.items() if distance == min(by_id.values())}
    lists = [n.cpus for n in found.numa_nodes if n.id in near]
    return {cpu for text in lists for cpu in parse_cpu_list(text)}


def test_sparse_nodes_keep_their_numbers(unpacked: dict[str, Topology]) -> None:
    """POWER9: CPU nodes 0 and 8, GPU memory at 250 to 255, distances between all."""
    found = unpacked["nvidiagpunumanodes"]
    assert [(n.id, n.cpus) for n in found.cpu_nodes] == [(0, "0-15"), (8, "88-103")]
    gpus = {n.id: n.gpu for n in found.numa_nodes if n.kind is NodeKind.GPU}
    assert gpus[255] == "0004:05:00.0"
    assert sorted(gpus) == [250, 251, 252, 253, 254, 255]
    assert (found.distance(0, 8), found.distance(0, 255)) == (40, 80)
    owner = next(g for g in found.gpus if g.pci_address == "0004:05:00.0")
    assert (owner.own_numa_node, owner.cpu_node.value) == (255, 0)


def test_nodes_that_all_claim_every_cpu_are_merged(unpacked: dict[str, Topology]) -> None:
    found = unpacked["8em64t-2s2ca2c-buggynuma"]
    assert [(n.id, n.cpus) for n in found.numa_nodes] == [(0, "0-7")]
    assert [w.code for w in found.warnings] == ["numa_merged"]


def test_node_that_is_offline_leaves_a_gap(unpacked: dict[str, Topology]) -> None:
    found = unpacked["offline-cpu0-node0"]
    assert [n.id for n in found.numa_nodes] == [1]
    assert (found.cpus.online, found.cpus.possible) == ("4-20", "0-191")
    assert found.distance(1, 1) == 10


def test_cpuset_cuts_allowed_cpus_and_nodes_but_nothing_else(
    unpacked: dict[str, Topology],
) -> None:
    found = unpacked["16amd64-8n2c-cpusets"]
    assert (found.cpus.online, found.cpus.allowed) == ("0-3,5-15", "0-3,5-6,12-15")
    assert len(found.numa_nodes) == 8
    assert [n.id for n in found.numa_nodes if not n.allowed] == [0, 5, 6, 7]
    assert found.numa_nodes[0].cpus == "0-1"


def test_cgroup_v2_cpuset_is_read(unpacked: dict[str, Topology]) -> None:
    found = unpacked["32amd64-4s2n4c-cgroup2"]
    assert (found.cpus.online, found.cpus.allowed) == ("0-31", "0-5")


def test_memory_only_nodes_are_no_cpu_nodes(unpacked: dict[str, Topology]) -> None:
    found = unpacked["fakeheteromemtiers"]
    assert [n.id for n in found.cpu_nodes] == [0, 1, 2]
    assert {n.kind for n in found.numa_nodes if n.id > 2} == {NodeKind.MEMORY}


def test_pci_domain_wider_than_16_bits_is_kept_in_full(unpacked: dict[str, Topology]) -> None:
    found = unpacked["2pa-pcidomain32bits"]
    assert "10000:00:04.0" in [d.address for d in found.pci]


def test_machine_with_a_node_per_four_cpus(unpacked: dict[str, Topology]) -> None:
    found = unpacked["256ia64-64n2s2c"]
    assert len(found.numa_nodes) == 64
    assert found.cpus.physical_cores == 256
    assert found.distance(0, 63) == 34


def test_rdma_ports_are_found_beside_network_interfaces(unpacked: dict[str, Topology]) -> None:
    """A port of an RDMA device takes the place of the interface on the same function."""
    found = {n.name: n for n in unpacked["40intel64-2g2n4c+pcilocality"].nics}
    assert sorted(found) == ["eth0", "eth1", "eth2", "eth3", "qib0"]
    assert (found["qib0"].pci_address, found["qib0"].numa_node.value) == ("0000:43:00.0", 2)


def test_what_firmware_says_of_memory_is_read(unpacked: dict[str, Topology]) -> None:
    """Nearest initiators of memory-only nodes, bandwidths in B/s; latencies of 0 are untold."""
    found = {n.id: n.access for n in unpacked["fakeheteromemtiers"].numa_nodes}
    initiators = {node: access.initiators for node, access in found.items() if access}
    assert [initiators[n] for n in (4, 6, 8, 9)] == [(1,), (1,), (0,), (2,)]
    assert found[9] == MemoryAccess((2,), 100e6, 100e6, None, None)


def test_clusters_and_kinds_of_cpus_are_read(unpacked: dict[str, Topology]) -> None:
    cluster = unpacked["128arm-2pa2n8cluster4co"].cpus
    assert (cluster.clusters, cluster.dies, cluster.physical_cores) == (32, None, 128)
    dies = unpacked["fakecpuid1f-64intel64-2p4d2n2c2t"].cpus
    assert (dies.packages, dies.dies) == (4, 8)
    hybrid = unpacked["20em64t-hybrid-1p6c2t+2ca4co1t"].cpus
    assert [(c.level, c.bytes >> 10, len(c.sets)) for c in hybrid.caches if c.type != "data"] == [
        (1, 32, 6), (1, 64, 8), (2, 1280, 6), (2, 2048, 2), (3, 24576, 1),
    ]  # fmt: skip


def test_cpus_that_are_offline_are_named(unpacked: dict[str, Topology]) -> None:
    assert unpacked["offline-cpu0-node0"].cpus.offline == "0-3,21-23"


def test_halves_of_amd_modules_are_cores(unpacked: dict[str, Topology]) -> None:
    found = unpacked["64amd64-4s2n4ca2co"].cpus
    assert (found.physical_cores, found.threads_per_core) == (64, 1)
