"""Topologies in other tools' formats: what is written is read back, by us and by the tools."""

from __future__ import annotations

import dataclasses
import re
import shutil
import subprocess
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from made_hosts import make
from report_topologies import grace, hgx
from topobench import paths
from topobench.errors import DiscoveryError, ImportFailed
from topobench.exporters import dot, hwloc_xml, matrix, nccl_xml, svg
from topobench.exporters.svg_words import width_of
from topobench.importers import hwloc_xml as hwloc_in
from topobench.importers import nccl_xml as nccl_in
from topobench.importers import smi_matrix
from topobench.topology import Topology
from topology_files import HWLOC, HWLOC_FILES, NCCL, NCCL_FILES, SMI, need

_ODD = ("nvidiaDGX2", "16amd64-8n2c-cpusets", "16amd64-4distances.xml", "64intel64-heteromem")
"""Public files with NVLinks, holes in the CPUs, nodes out of order, memory of two kinds."""
LSTOPO = shutil.which("lstopo-no-graphics")


def hgx_with_paths(gpus: int = 8) -> Topology:
    topology = hgx(gpus)
    return dataclasses.replace(topology, paths=paths.find_paths(topology).paths)


def elements_nccl_counts(text: str) -> int:
    """Elements, as NCCL's own reader counts them against its limit."""
    return len(re.findall(r"<[a-z]", text))


def nccl_accepts(text: str) -> None:
    """What NCCL's reader cannot take: a declaration, escapes, long values, many attributes."""
    assert text.startswith('<system version="1">')
    assert "&" not in text
    assert "<?" not in text
    assert elements_nccl_counts(text) <= nccl_xml.MOST_ELEMENTS
    for tag in re.findall(r"<[a-z][^>]*>", text):
        values = re.findall(r'="([^"]*)"', tag)
        assert len(values) <= 16
        assert all(len(v) <= 255 for v in values)


def test_what_nccl_told_is_told_to_nccl() -> None:
    topology = nccl_in.parse(NCCL)
    text = nccl_xml.export(topology).text
    nccl_accepts(text)
    assert nccl_in.parse(text) == topology


def test_every_public_nccl_file_survives_the_way_there_and_back() -> None:
    need(NCCL_FILES)
    for file in NCCL_FILES:
        text = file.read_text()
        if "<graphs" in text:
            continue
        topology = nccl_in.parse(text)
        written = nccl_xml.export(topology).text
        nccl_accepts(written)
        assert nccl_in.parse(written) == topology, file


def test_nccl_is_told_switches_without_their_ports() -> None:
    """A host's own tree has root ports and downstream ports; NCCL's has neither."""
    text = nccl_xml.export(hgx()).text
    nccl_accepts(text)
    found = nccl_in.parse(text)
    assert len(found.pci) == 8 * 3
    assert {d.parent for d in found.pci if d.role != "upstream"} == {
        f"0000:{0x11 + 0x10 * i:02x}:00.0" for i in range(8)
    }
    assert [g.nvlink.active for g in found.gpus if g.nvlink] == [18] * 3 + [17] + [18] * 4
    assert [(n.id, n.cpus) for n in found.numa_nodes] == [(0, "0-55"), (1, "56-111")]


def test_a_slow_link_does_not_change_what_nccl_is_told_it_could_do() -> None:
    link = next(d.link for d in nccl_in.parse(nccl_xml.export(hgx()).text).pci if "64" in d.address)
    assert link is not None
    assert (link.max_speed_gts, link.max_width) == (32.0, 16)


def test_a_gpus_node_is_told_where_the_bus_does_not_know_it() -> None:
    """A guest's PCI functions say -1, but the driver may know the node of the GPU."""
    topology = hgx(2)
    unknown = dataclasses.replace(topology.pci[0].numa_node, value=None)
    devices = tuple(dataclasses.replace(d, numa_node=unknown) for d in topology.pci)
    found = nccl_in.parse(nccl_xml.export(dataclasses.replace(topology, pci=devices)).text)
    assert [g.cpu_node.value for g in found.gpus] == [0, 1]


def test_a_tree_too_large_for_nccl_is_told() -> None:
    exported = nccl_xml.export(hgx(60))
    assert elements_nccl_counts(exported.text) > nccl_xml.MOST_ELEMENTS
    assert "refuses" in exported.warnings[0]


def test_amds_family_is_written_as_nccl_counts_it() -> None:
    cpus = dataclasses.replace(hgx(2).cpus, vendor="AuthenticAMD", family=25, model_number=1)
    text = nccl_xml.export(dataclasses.replace(hgx(2), cpus=cpus)).text
    assert 'familyid="175" modelid="1"' in text


def test_what_hwloc_told_is_told_to_hwloc() -> None:
    topology = hwloc_in.parse(HWLOC)
    assert hwloc_in.parse(hwloc_xml.export(topology).text) == topology


def test_every_public_hwloc_file_survives_the_way_there_and_back() -> None:
    """But for a card whose address another has: it is written as no PCI device at all."""
    need(HWLOC_FILES)
    read = 0
    for file in HWLOC_FILES:
        try:
            topology = hwloc_in.parse(file.read_text())
        except ImportFailed:
            continue
        again = hwloc_in.parse(hwloc_xml.export(topology).text)
        if topology.warnings:
            assert [w.code for w in topology.warnings] == ["address_twice"]
            topology = dataclasses.replace(topology, warnings=(), nics=())
            again = dataclasses.replace(again, nics=())
        assert again == topology, file
        read += 1
    assert read > 30


def test_a_hosts_own_topology_survives_hwloc() -> None:
    topology = hgx()
    found = hwloc_in.parse(hwloc_xml.export(topology).text)
    assert found.numa_nodes == topology.numa_nodes
    assert found.numa_distances == topology.numa_distances
    assert [(g.key, g.model, g.memory_bytes, g.cpu_node.value) for g in found.gpus] == [
        (g.key, g.model, g.memory_bytes, g.cpu_node.value) for g in topology.gpus
    ]
    assert [d.parent for d in found.pci] == [d.parent for d in topology.pci]
    assert found.machine == topology.machine
    assert (found.cpus.online, found.cpus.quota_cpus) == ("0-111", 32.0)


def test_memory_of_a_gpu_survives_hwloc() -> None:
    found = hwloc_in.parse(hwloc_xml.export(grace()).text)
    assert [(n.id, n.kind, n.gpu) for n in found.numa_nodes] == [
        (n.id, n.kind, n.gpu) for n in grace().numa_nodes
    ]


@pytest.mark.skipif(LSTOPO is None, reason="lstopo-no-graphics is not installed")
@pytest.mark.parametrize("name", ["hgx", "grace", "hwloc"])
def test_lstopo_reads_what_is_written(name: str, tmp_path: Path) -> None:
    topology = {"hgx": hgx(), "grace": grace(), "hwloc": hwloc_in.parse(HWLOC)}[name]
    file = tmp_path / "host.xml"
    file.write_text(hwloc_xml.export(topology).text)
    command = [LSTOPO or "", "-i", str(file), "--whole-io", "--disallowed", "--of", "console"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert done.stdout.count("PU L#") == file.read_text().count('type="PU"') > 0
    assert len(re.findall(r"NUMANode", done.stdout)) == len(topology.numa_nodes)
    for gpu in topology.gpus if topology.pci else ():
        assert f"nvml{gpu.index}" in done.stdout
    for device in topology.pci:
        if not device.role.endswith(("port", "stream")):  # lstopo names no bridges
            assert device.address.removeprefix("0000:") in done.stdout


@pytest.mark.skipif(LSTOPO is None, reason="lstopo-no-graphics is not installed")
def test_lstopo_reads_odd_public_files_that_we_write_again(tmp_path: Path) -> None:
    need(HWLOC_FILES)
    file = tmp_path / "host.xml"
    for source in HWLOC_FILES:
        if not source.name.startswith(_ODD):
            continue
        topology = hwloc_in.parse(source.read_text())
        file.write_text(hwloc_xml.export(topology).text)
        command = [LSTOPO or "", "-i", str(file), "--of", "console"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert done.stderr == "", source


def test_hwloc_without_cpus_is_refused() -> None:
    bare = smi_matrix.parse(SMI.replace("0-23", "N/A").replace("24-47", "N/A"))
    with pytest.raises(DiscoveryError, match="no CPU"):
        hwloc_xml.export(bare)


def test_the_matrix_reads_as_nvidia_smi_prints_it() -> None:
    text = matrix.export(smi_matrix.parse(SMI)).text.splitlines()
    theirs = SMI.splitlines()
    assert text[0] == f"{theirs[0]}\tPCIe Link\tNVLinks"
    assert [line[: len(their)] for line, their in zip(text[1:3], theirs[1:3], strict=True)] == (
        theirs[1:3]
    )
    assert text[3] == theirs[3].rstrip("\t")
    assert text[-1] == "  NIC0: mlx5_0"


def test_the_matrix_can_be_read_back() -> None:
    topology = hgx_with_paths()
    found = smi_matrix.parse(matrix.export(topology).text)
    ends = [f"gpu:{i}" for i in range(8)] + [f"nic:mlx5_{i}" for i in range(8)]
    assert {(p.a, p.b): p.smi for p in found.paths} == {
        (p.a, p.b): p.smi for p in topology.paths if p.smi and p.a in ends and p.b in ends
    }
    assert [g.cpus for g in found.gpus] == [g.cpus for g in topology.gpus]


def test_a_slow_link_stands_in_the_matrix() -> None:
    row = next(r for r in matrix.export(hgx()).text.splitlines() if r.startswith("GPU5"))
    assert row.endswith("32 GT/s x8 of 32 GT/s x16\t18/18")


def parsed_svg(topology: Topology) -> ElementTree.Element:
    return ElementTree.fromstring(svg.export(topology).text)


def texts(picture: ElementTree.Element) -> list[str]:
    return [t.text or "" for t in picture.iter("{http://www.w3.org/2000/svg}text")]


def test_the_picture_names_everything_and_marks_what_is_slow() -> None:
    picture = parsed_svg(hgx())
    words = texts(picture)
    for name in (*(f"GPU {i}" for i in range(8)), *(f"mlx5_{i}" for i in range(8)), "nvme0"):
        assert words.count(name) == 1
    assert "32 GT/s x8 of x16" in words
    assert "17 of 18" in words
    slow = [e for e in picture.iter() if e.get("class") == "slow"]
    assert len(slow) == 2 + 1  # the link, the NVLinks, and the legend


def test_nothing_in_the_picture_lies_outside_it_or_over_another_device() -> None:
    for topology in (hgx(), hgx(2), grace(), nccl_in.parse(NCCL), smi_matrix.parse(SMI)):
        picture = parsed_svg(topology)
        width, height = (float(picture.attrib[k]) for k in ("width", "height"))
        boxes = []
        for e in picture.iter("{http://www.w3.org/2000/svg}rect"):
            if e.get("class", "").startswith("leaf"):
                x, y, w, h = (float(e.attrib[k]) for k in ("x", "y", "width", "height"))
                assert 0 <= x <= x + w <= width
                assert 0 <= y <= y + h <= height
                boxes.append((x, y, x + w, y + h))
        assert boxes
        for i, a in enumerate(boxes):
            for b in boxes[i + 1 :]:
                assert a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1]


def test_the_picture_and_the_graph_hold_hostile_names_as_text() -> None:
    bad = '"/><script>x</script>\x1b\n'
    nic = dataclasses.replace(hgx(2).nics[0], name=bad)
    topology = dataclasses.replace(hgx(2), nics=(nic,))
    picture = parsed_svg(topology)
    assert not [e for e in picture.iter() if e.tag.endswith("script")]
    graph = dot.export(topology).text
    assert "\x1b" not in graph
    assert graph.count('"') % 2 == 0
    ElementTree.fromstring(hwloc_xml.export(topology).text)
    nccl_in.parse(nccl_xml.export(topology).text)


def test_no_line_claims_a_place_on_the_bus_that_nobody_told() -> None:
    """A matrix tells classes, but not the tree: only NUMA nodes are joined to each other."""
    topology = smi_matrix.parse(SMI)
    lines = parsed_svg(topology).iter("{http://www.w3.org/2000/svg}line")
    drawn = [e.get("class") for e in lines if float(e.attrib["y1"]) > 120]
    legend = ["pix", "pxb", "phb", "node-line", "sys", "nv", "slow"]
    assert drawn == legend
    assert '"numa:0" -- "gpu:0"' not in dot.export(topology).text


def test_the_graph_joins_every_device_once() -> None:
    graph = dot.export(hgx()).text
    for i in range(8):
        assert len(re.findall(rf' -- "gpu:{i}"', graph)) == 1
        assert len(re.findall(rf'"gpu:{i}" -- "NVLink fabric"', graph)) == 1
    assert '"numa:0" -- "numa:1" [label="distance 21"' in graph
    assert 'label="32 GT/s x8 of 32 GT/s x16", color="#d7263d"' in graph


def test_idle_gpus_and_cards_in_slow_slots_are_not_red(tmp_path: Path) -> None:
    """All links rest at 2.5 GT/s; GPU 3 lacks lanes, and the slot of GPU 6 is a slow one."""
    topology = make("h100-links", tmp_path).discover()
    picture = parsed_svg(topology)
    red = [t.text for t in picture.iter() if "red" in t.get("class", "").split()]
    assert red == ["2.5 GT/s x8 of x16"]
    assert len([e for e in picture.iter() if e.get("class") == "slow"]) == 1 + 1  # and the legend
    assert texts(picture).count("2.5 of 32 GT/s x16") == 6
    assert texts(picture).count("2.5 of 16 GT/s x16") == 1
    assert dot.export(topology).text.count("penwidth=3") == 1
    rows = matrix.export(topology).text.splitlines()
    assert "\t2.5 GT/s x16 of 16 GT/s x16\t" in next(r for r in rows if r.startswith("GPU6"))


def test_no_text_in_the_picture_is_wider_than_its_box(tmp_path: Path) -> None:
    """By the widths of a wide font; what is red is whole, and the picture holds its title."""
    long = dataclasses.replace(hgx(2).gpus[0], model="NVIDIA RTX PRO 6000 Blackwell Server Edition")
    cpus = dataclasses.replace(hgx(1).cpus, model="Some CPU with a very long name" * 4)
    both = make("h100-links", tmp_path).discover()
    slow = dataclasses.replace(
        both,
        pci=tuple(
            dataclasses.replace(d, link=dataclasses.replace(d.link, speed_gts=16.0, width=8))
            if d.link and d.pci_class.startswith("0x02")
            else d
            for d in both.pci
        ),
    )
    named = dataclasses.replace(hgx(1), gpus=(long,), cpus=cpus)
    for topology in (slow, named):
        picture = parsed_svg(topology)
        whole = [e for e in picture.iter() if e.tag.endswith(("rect", "text"))]
        boxes = [e for e in whole if e.get("class", "").startswith("leaf")]
        assert boxes
        for e in whole:
            style, words = e.get("class", ""), e.text or ""
            if not words or e.get("text-anchor"):
                continue
            x, y = float(e.attrib["x"]), float(e.attrib["y"])
            assert x + width_of(words, style) <= float(picture.attrib["width"])
            for box in boxes:
                left, top, wide, high = (
                    float(box.attrib[k]) for k in ("x", "y", "width", "height")
                )
                if left <= x <= left + wide and top <= y <= top + high:
                    assert x + width_of(words, style) <= left + wide
                    assert "red" not in style.split() or "…" not in words
    assert texts(parsed_svg(slow)).count("16 x8 of 32 GT/s x16") == 8


@pytest.mark.parametrize("gpus", [1, 2, 8])
def test_the_words_on_the_fabric_lie_within_its_bar(gpus: int) -> None:
    picture = parsed_svg(hgx(gpus))
    (words,) = (e for e in picture.iter() if e.get("class") == "on-violet")
    (bar,) = (e for e in picture.iter() if e.get("class") == "fabric")
    left, wide = float(bar.attrib["x"]), float(bar.attrib["width"])
    assert width_of(words.text or "", "on-violet") < wide
    assert float(words.attrib["x"]) == pytest.approx(left + wide / 2, abs=0.1)
    assert 0 < left < left + wide < float(picture.attrib["width"])
