"""Discovery of machines captured by hwloc's authors, against what hwloc says of them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path

import pytest

from topobench.agents.discover import discover
from topobench.topology import NodeKind, Topology, parse_cpu_list

CORPUS = Path(__file__).parents[2] / "shared/topodata/hwloc_linux"
TARBALLS = sorted([*CORPUS.glob("*.tar.bz2"), *CORPUS.glob("v2.14.0/*.tar.bz2")])
BULLDOZER = "64amd64-4s2n4ca2co"
"""Linux calls the halves of its modules threads of one core, hwloc two cores."""

pytestmark = pytest.mark.skipif(not TARBALLS, reason=f"no captured machines in {CORPUS}")


def name(tarball: Path) -> str:
    return str(tarball.relative_to(CORPUS)).removesuffix(".tar.bz2")


@dataclass(frozen=True)
class Expected:
    """What lstopo printed; nodes are in its own order, which distances follow."""

    cpus: set[int]
    nodes: list[int]
    cores: int
    packages: int
    distances: list[list[int]]


def expected(tarball: Path) -> Expected:
    """Read the output beside a tarball: lstopo's verbose text, or its XML."""
    base = name(tarball).rpartition("/")[2]
    found = [tarball.parent / f"{base}{end}" for end in (".console", ".xml", ".output")]
    text = next(f for f in found if f.exists()).read_text()
    return _from_xml(text) if text.startswith("<?xml") else _from_text(text)


def _from_text(text: str) -> Expected:
    nodes = re.findall(r"^ *NUMANode(?:\(\w+\))? L#(\d+) \(P#(\d+)", text, re.MULTILINE)
    return Expected(
        cpus={int(n) for n in re.findall(r"^ *PU L#\d+ \(P#(\d+)", text, re.MULTILINE)},
        nodes=[number for _, number in sorted((int(a), int(b)) for a, b in nodes)],
        cores=len(re.findall(r"^ *Core L#\d+", text, re.MULTILINE)),
        packages=len(re.findall(r"^ *Package L#\d+", text, re.MULTILINE)),
        distances=_matrix(text),
    )


def _matrix(text: str) -> list[list[int]]:
    """The latency matrix; each row starts with its index."""
    _, found, rest = text.partition("(name NUMALatency")
    rows = []
    for line in rest.splitlines()[2:] if found else []:
        if not re.fullmatch(r"[\s\d]+", line):
            break
        rows.append([int(n) for n in line.split()][1:])
    return rows


def _from_xml(text: str) -> Expected:
    objects = list(ElementTree.fromstring(text).iter("object"))
    return Expected(
        cpus={int(o.attrib["os_index"]) for o in objects if o.get("type") == "PU"},
        nodes=[int(o.attrib["os_index"]) for o in objects if o.get("type") == "NUMANode"],
        cores=sum(o.get("type") == "Core" for o in objects),
        packages=sum(o.get("type") == "Package" for o in objects),
        distances=[],
    )


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
    assert set(parse_cpu_list(found.cpus.allowed)) == wanted.cpus


@each_comparable
def test_numa_nodes_are_those_of_hwloc(tarball: Path, unpacked: dict[str, Topology]) -> None:
    """Nodes whose memory is ours to use; lstopo drops GPU memory on POWER."""
    found, wanted = unpacked[name(tarball)], expected(tarball)
    kinds = (NodeKind.CPU_MEMORY, NodeKind.MEMORY)
    assert {n.id for n in found.numa_nodes if n.allowed and n.kind in kinds} == set(wanted.nodes)


@each_comparable
def test_distances_are_those_of_hwloc(tarball: Path, unpacked: dict[str, Topology]) -> None:
    """By node number, not by position: numbers have gaps and nodes may be hidden."""
    found, wanted = unpacked[name(tarball)], expected(tarball)
    for i, a in enumerate(wanted.nodes[: len(wanted.distances)]):
        for j, b in enumerate(wanted.nodes):
            assert found.distance(a, b) == wanted.distances[i][j], (a, b)


@each_comparable
def test_cores_and_packages_are_those_of_hwloc(
    tarball: Path, unpacked: dict[str, Topology]
) -> None:
    """On machines where no CPU is hidden; None where the kernel tells of no cores."""
    found, wanted = unpacked[name(tarball)].cpus, expected(tarball)
    if found.allowed != found.online or name(tarball) == BULLDOZER:
        return
    assert (found.physical_cores or 0, found.packages or 0) == (wanted.cores, wanted.packages)


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
