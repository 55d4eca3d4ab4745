"""Topologies from files of other tools, against what the files say."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest

from report_topologies import grace, hgx
from topobench.errors import ImportFailed
from topobench.importers import hwloc_xml, nccl_xml, own_json, smi_matrix
from topobench.topology import NodeKind, Topology, parse_cpu_list
from topology_files import HWLOC, HWLOC_FILES, NCCL, NCCL_FILES, SMI, SMI_FILES, need


def classes(topology: Topology) -> dict[tuple[str, str], str | None]:
    return {(p.a, p.b): p.smi for p in topology.paths}


def test_own_json_comes_back_as_it_was() -> None:
    for topology in (hgx(), grace()):
        assert own_json.parse(json.dumps(topology.to_json())) == topology


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"schema": "other/1"}, "schema"),
        ({"gpus": [{}]}, "missing"),
        (
            {"numa_nodes": [{"id": 0, "kind": "cpu", "cpus": "0-9999999999", "allowed": True}]},
            "NumaNode",
        ),
        ({"numa_distances": {"nodes": [0, 1], "matrix": [[10]]}}, "matrix"),
        ({"cpus": {"online": "3-1"}}, "3-1"),
    ],
)
def test_own_json_that_cannot_be_true_is_refused(change: dict[str, object], words: str) -> None:
    with pytest.raises(ImportFailed, match=words):
        own_json.parse(json.dumps({**hgx().to_json(), **change}))


def test_a_device_that_stands_there_twice_is_refused() -> None:
    doubled = dataclasses.replace(hgx(2), pci=hgx(2).pci * 2)
    with pytest.raises(ImportFailed, match="twice"):
        own_json.parse(json.dumps(doubled.to_json()))


def test_nccl_tells_nodes_switches_gpus_nvlinks_and_nics() -> None:
    found = nccl_xml.parse(NCCL)
    assert [(n.id, n.cpus) for n in found.numa_nodes] == [(0, "0-3"), (1, "4-7")]
    assert [(g.index, g.pci_address, g.cpu_node.value) for g in found.gpus] == [
        (0, "0000:11:00.0", 0),
        (1, "0000:12:00.0", 0),
    ]
    links = found.gpus[0].nvlink
    assert links is not None
    assert (links.active, {k.remote for k in links.links}) == (4, {"0000:12:00.0"})
    assert found.gpus[0].compute_capability == "8.0"
    nic = found.nics[0]
    assert (nic.name, nic.numa_node.value, nic.rate_bytes_per_second) == ("mlx5_0", 1, 25e9)
    switch, gpu = found.pci[0], found.pci[2]
    assert (switch.role, gpu.parent) == ("upstream", switch.address)
    assert gpu.link is not None
    assert (gpu.link.max_speed_gts, gpu.link.max_width, gpu.link.width) == (16.0, 8, None)
    assert found.gpus[0].model is None


def test_nccl_minus_one_is_an_unknown_node_not_a_number() -> None:
    found = nccl_xml.parse(NCCL.replace('numaid="1" affinity="00000000,000000f0"', 'numaid="-1"'))
    assert [n.id for n in found.numa_nodes] == [0]
    assert found.nics[0].numa_node.value is None
    assert "-1" in (found.nics[0].numa_node.reason or "")


def test_an_nvlink_to_itself_is_kept_and_told() -> None:
    found = nccl_xml.parse(NCCL.replace('target="0000:12:00.0"', 'target="0000:11:00.0"'))
    assert [w.code for w in found.warnings] == ["nvlink_self"]


def test_an_unseen_nvswitch_has_no_address() -> None:
    text = NCCL.replace(
        'target="0000:12:00.0" count="4" tclass="0x030200"',
        'target="fffffff:ff:ff.0" count="18" tclass="0x068000"',
    )
    links = nccl_xml.parse(text).gpus[0].nvlink
    assert links is not None
    assert {(k.remote_kind, k.remote) for k in links.links} == {("nvswitch", None)}


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('busid="0000:12:00.0"', 'busid="0000:11:00.0"', "two <pci>"),
        ('dev="1" sm', 'dev="0" sm', "dev 0"),
        ('numaid="1"', 'numaid="0"', "numaid 0"),
        ('numaid="1"', 'numaid="one"', "numaid"),
        ('count="4"', 'count="4000000000"', "count"),
        ('affinity="00000000,0000000f"', 'affinity="cpu"', "mask"),
        ('busid="0000:10:00.0"', 'busid="switch"', "no PCI address"),
        ('version="1"', 'version="2"', "version"),
    ],
)
def test_nccl_files_that_contradict_themselves_are_refused(old: str, new: str, words: str) -> None:
    with pytest.raises(ImportFailed, match=words):
        nccl_xml.parse(NCCL.replace(old, new))


def test_a_file_of_rings_is_told_from_a_topology() -> None:
    with pytest.raises(ImportFailed, match="NCCL_GRAPH_FILE"):
        nccl_xml.parse('<graphs version="1"></graphs>')


def test_every_public_nccl_file_can_be_read() -> None:
    need(NCCL_FILES)
    for file in NCCL_FILES:
        text = file.read_text()
        if "<graphs" in text:
            continue
        found = nccl_xml.parse(text)
        assert len(found.pci) == len(re.findall(r"<pci\b", text)), file
        named = len(re.findall(r"<gpu\b", text))
        assert sum(g.index is not None for g in found.gpus) == named, file
        assert len(found.nics) == len(re.findall(r"<net\b", text)), file


def test_hwloc_tells_cpus_nodes_devices_and_distances() -> None:
    found = hwloc_xml.parse(HWLOC)
    cpus = found.cpus
    assert (cpus.possible, cpus.online, cpus.allowed) == ("0-4", "0-3", "0-2")
    assert (cpus.packages, cpus.physical_cores, cpus.threads_per_core) == (2, 2, 2)
    assert (cpus.model, cpus.last_level_cache_bytes) == ("Test CPU", 1 << 20)
    assert [(g.level, g.sets) for g in cpus.groups] == [
        ("package", ("0-1", "2-3")),
        ("core", ("0-1", "2-3")),
    ]
    assert [(n.id, n.cpus, n.memory_bytes, n.allowed) for n in found.numa_nodes] == [
        (0, "0-1", 1 << 30, True),
        (1, "2-3", 1 << 30, False),
    ]
    assert found.distance(0, 1) == 21
    gpu = found.gpus[0]
    assert (gpu.index, gpu.uuid, gpu.model) == (0, "GPU-1", "NVIDIA H100")
    assert (gpu.cpu_node.value, gpu.cpus) == (0, "0-1")
    assert [(n.name, n.state, n.rdma) for n in found.nics] == [
        ("mlx5_0", "active", True),
        ("mlx5_0:2", "down", True),
    ]
    assert [d.host_bridge for d in found.pci] == ["pci0000:00", "pci0000:00", "pci0000:80"]
    assert found.pci[1].link is not None
    assert found.pci[1].link.bytes_per_second == 31507692000


def test_serials_addresses_and_host_names_are_not_taken_over() -> None:
    text = json.dumps(hwloc_xml.parse(HWLOC).to_json())
    for secret in ("secret-host", "0321019030775", "00:11:22", "c903"):
        assert secret not in text


def test_of_nodes_near_the_same_cpus_one_holds_memory_alone() -> None:
    """As hwloc has it for memory beside that of a node with CPUs."""
    text = HWLOC.replace(
        'os_index="1" cpuset="0x0000000c" nodeset="0x00000002"\n              gp_index="13"',
        'os_index="1" cpuset="0x00000003" nodeset="0x00000002"\n              gp_index="13"',
    )
    found = hwloc_xml.parse(text)
    assert [(n.kind, n.cpus) for n in found.numa_nodes] == [
        (NodeKind.CPU_MEMORY, "0-1"),
        (NodeKind.MEMORY, ""),
    ]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('<topology version="2.0">', "<topology>", "hwloc 1"),
        ('version="2.0"', 'version="9.0"', "9.0"),
        ('type="Machine"', 'type="Group"', "Machine"),
        ("10 21 21 10", "10 21 21", "distances"),
        ('cpuset="0x0000000f"', 'cpuset="all"', "no set"),
        ('pci_busid="0000:01:00.0"', 'pci_busid="gpu"', "no PCI address"),
    ],
)
def test_hwloc_files_that_contradict_themselves_are_refused(old: str, new: str, words: str) -> None:
    with pytest.raises(ImportFailed, match=words):
        hwloc_xml.parse(HWLOC.replace(old, new))


def test_every_public_hwloc_file_can_be_read() -> None:
    need(HWLOC_FILES)
    for file in HWLOC_FILES:
        text = file.read_text()
        if "<topology>" in text:
            with pytest.raises(ImportFailed, match="hwloc 1"):
                hwloc_xml.parse(text)
            continue
        found = hwloc_xml.parse(text)
        assert len(found.numa_nodes) == text.count('type="NUMANode" os_index'), file
        assert len(parse_cpu_list(found.cpus.online)) == text.count('<object type="PU"'), file


def test_both_versions_of_hwloc_tell_the_same_of_sixteen_gpus() -> None:
    files = [f for f in HWLOC_FILES if f.name == "nvidiaDGX2.xml"]
    need(files)
    three, two = (hwloc_xml.parse(f.read_text()) for f in sorted(files, key=lambda f: len(f.parts)))
    for found in (three, two):
        assert [g.index for g in found.gpus] == list(range(16))
        assert {g.nvlink.active for g in found.gpus if g.nvlink} == {6}
        assert len(found.nvswitches) == 12
    assert three.gpus == two.gpus


def test_the_matrix_tells_classes_affinities_and_names() -> None:
    found = smi_matrix.parse(SMI)
    assert classes(found) == {
        ("gpu:0", "gpu:1"): "NV12",
        ("gpu:0", "nic:mlx5_0"): "PXB",
        ("gpu:1", "nic:mlx5_0"): "SYS",
    }
    assert [(g.cpus, g.cpu_node.value) for g in found.gpus] == [("0-23", 0), ("24-47", 1)]
    assert [(n.id, n.cpus) for n in found.numa_nodes] == [(0, "0-23"), (1, "24-47")]
    assert found.paths[0].smi_pcie is None


def test_escape_codes_change_nothing() -> None:
    header, _, rest = SMI.partition("\n")
    assert smi_matrix.parse(f"\x1b[4m{header}\x1b[0m\n{rest}") == smi_matrix.parse(SMI)


def test_affinity_not_available_is_unknown() -> None:
    text = "\tGPU0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\nGPU0\t X \t0-7\t\tN/A\t\tN/A\n"
    gpu = smi_matrix.parse(text).gpus[0]
    assert (gpu.cpu_node.value, gpu.own_numa_node, gpu.cpus) == (None, None, "0-7")
    assert "N/A" in (gpu.cpu_node.reason or "")


def test_a_blank_affinity_is_unknown() -> None:
    text = SMI.replace("\t0-23\t0\t\tN/A", "\t\t\t\tN/A")
    gpu = smi_matrix.parse(text).gpus[0]
    assert (gpu.cpus, gpu.cpu_node.value) == (None, None)


def test_a_gpus_own_node_is_never_the_node_to_bind_to() -> None:
    """Hosts whose GPU memory is NUMA nodes list those in the affinity, too."""
    rows = [("0-71", "0,3-9", "2"), ("0-71", "0,3-9", "10"), ("72-143", "1,11-17", "18")]
    header = "\t" + "\t".join(f"GPU{i}" for i in range(3))
    text = header + "\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n"
    for i, (cpus, near, own) in enumerate(rows):
        cells = [" X " if i == j else "NV18" for j in range(3)]
        text += "\t".join([f"GPU{i}", *cells, cpus, near, "", own]) + "\n"
    found = smi_matrix.parse(text)
    assert [g.cpu_node.value for g in found.gpus] == [0, 0, 1]
    assert [g.own_numa_node for g in found.gpus] == [2, 10, 18]
    kinds = {n.id: n.kind for n in found.numa_nodes}
    assert kinds[0] == kinds[1] == NodeKind.CPU_MEMORY
    assert kinds[2] == kinds[18] == NodeKind.GPU


def test_old_drivers_matrices_are_read() -> None:
    """One affinity column, SOC for SYS, RDMA devices under their own names."""
    text = (
        "\tGPU0\tGPU1\tmlx5_0\tCPU Affinity\n"
        "GPU0\t X \tSOC\tPHB\t0-13\nGPU1\tSOC\t X \tSOC\t14-27\nmlx5_0\tPHB\tSOC\t X \n"
    )
    found = smi_matrix.parse(text)
    assert classes(found)[("gpu:0", "gpu:1")] == "SYS"
    assert found.nics[0].name == "mlx5_0"
    assert found.gpus[0].cpu_node.value is None


def test_a_matrix_copied_with_spaces_for_tabs_is_read() -> None:
    text = "        GPU0    GPU1    CPU Affinity    NUMA Affinity\n"
    text += "GPU0     X      NV4     0-7     0\nGPU1    NV4      X      8-15    1\n"
    found = smi_matrix.parse(text)
    assert classes(found) == {("gpu:0", "gpu:1"): "NV4"}
    assert [g.cpu_node.value for g in found.gpus] == [0, 1]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("GPU1\tNV12\t X \tSYS", "GPU1\tPHB\t X \tSYS", "one row"),
        ("PXB\t0-23", "PXBSYS\t0-23", "no path class"),
        ("GPU0\t X ", "GPU0\tPIX", "itself"),
        ("0-23", "0-9999999999", "no list"),
        ("\t0-23\t0\t\tN/A", "\t0-23\t0\t\tN/A\tmore\tmore", "more cells"),
        ("GPU1\tNV12\t X \tSYS\t24-47\t1\t\tN/A", "GPU1\tNV12", "cells"),
        ("GPU0\tGPU1\tNIC0\tCPU", "GPU0\tGPU0\tNIC0\tCPU", "twice"),
    ],
)
def test_matrices_that_contradict_themselves_are_refused(old: str, new: str, words: str) -> None:
    with pytest.raises(ImportFailed, match=words):
        smi_matrix.parse(SMI.replace(old, new))


def test_lost_nvlinks_may_differ_by_direction() -> None:
    found = smi_matrix.parse(SMI.replace("GPU1\tNV12", "GPU1\tNV11"))
    assert classes(found)[("gpu:0", "gpu:1")] == "NV11"
    assert [w.code for w in found.warnings] == ["nvlink_asymmetric"]


def _cells(file: Path) -> tuple[list[str], dict[str, list[str]]]:
    """Header and rows of a public matrix, split at tabs and nothing more."""
    lines = [x for x in file.read_text().splitlines() if x and not x.startswith(("#", " "))]
    header = next(x for x in lines if x.startswith("\t"))
    names = [n for n in header.split("\t") if re.fullmatch(r"GPU\d+|NIC\d+|mlx\w+", n)]
    rows = {x.split("\t")[0]: x.split("\t")[1:] for x in lines if x.split("\t")[0] in names}
    return names, rows


def test_every_public_matrix_gives_its_classes_and_affinities() -> None:
    need(SMI_FILES)
    for file in SMI_FILES:
        if "glued" in file.name:
            with pytest.raises(ImportFailed, match="cells"):
                smi_matrix.parse(file.read_text())
            continue
        names, rows = _cells(file)
        found = smi_matrix.parse(file.read_text())
        ends = {n: f"gpu:{n[3:]}" if n.startswith("GPU") else f"nic:{n}" for n in names}
        told = classes(found) | {(b, a): c for (a, b), c in classes(found).items()}
        for name, cells in rows.items():
            for other, cell in zip(names, cells, strict=False):
                if name != other:
                    assert told[ends[name], ends[other]] == cell, (file, name, other)
        for gpu in found.gpus:
            cells = rows.get(f"GPU{gpu.index}", [])
            more = [c for c in cells[len(names) :] if c]
            if more:
                assert parse_cpu_list(gpu.cpus) == parse_cpu_list(more[0]), file
            if len(more) > 1:
                assert gpu.cpu_node.value == (int(more[1]) if more[1].isdigit() else None), file


def test_cpus_of_an_nccl_file_are_one_list_and_their_model_is_not_guessed() -> None:
    """Neighbouring nodes are one run of CPUs; NCCL tells numbers of a CPU, and no name."""
    text = "".join(
        f'<cpu numaid="{node}" affinity="{mask}" arch="x86_64" vendor="GenuineIntel" '
        'familyid="6" modelid="143"/>'
        for node, mask in ((0, "000000ff"), (1, "0000ff00"))
    )
    cpus = nccl_xml.parse(f'<system version="1">{text}</system>').cpus
    assert (cpus.online, cpus.model) == ("0-15", None)
    assert (cpus.vendor, cpus.family, cpus.model_number) == ("GenuineIntel", 6, 143)
