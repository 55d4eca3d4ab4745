"""A host's wiring as a tree and as a matrix."""

from __future__ import annotations

import dataclasses
import re

import pytest
from rich.console import Group

from golden import check_golden, printed
from report_topologies import grace, hgx
from topobench.report.matrix import path_matrix
from topobench.report.topo_text import render_topology
from topobench.topology import Gpu, Known, Mig, P2p, Path, Topology, TopologyWarning


def tree(topology: Topology, width: int = 80) -> str:
    return printed(render_topology(topology), width)


def matrix(topology: Topology, width: int = 80) -> str:
    return printed(Group(*path_matrix(topology)), width)


@pytest.mark.parametrize(("name", "topology"), [("hgx", hgx()), ("grace", grace())])
def test_the_tree_reads_as_kept(name: str, topology: Topology) -> None:
    check_golden(f"topology_{name}", tree(topology))


def test_the_matrix_reads_as_kept() -> None:
    check_golden("topology_matrix", matrix(hgx()))


def test_a_link_below_what_both_ends_can_do_is_marked() -> None:
    shown = tree(hgx(), width=120)
    marked = [line for line in shown.splitlines() if "BELOW 63.0 GB/s" in line]
    assert len(marked) == 1
    assert "GPU 5  0000:64:00.0  32 GT/s x8 (31.5 GB/s) BELOW 63.0 GB/s" in marked[0]
    assert "NVLink 17/18 BELOW" in shown


def test_links_at_their_best_are_not_marked() -> None:
    assert "BELOW" not in tree(hgx(2))


def test_gpus_hang_below_their_switch_and_numa_node() -> None:
    lines = tree(hgx(2), width=120).splitlines()
    found = [i for i, line in enumerate(lines) if re.search(r"NUMA node 1|0000:21:00|GPU 1", line)]
    depths = [re.search(r"[A-Zs]", lines[i]) for i in found[:3]]
    assert [m.start() for m in depths if m] == [4, 12, 16]


def test_an_unknown_numa_node_is_said_with_its_reason() -> None:
    shown = tree(grace())
    assert "NUMA node unknown" in shown
    assert "GPU 0  0009:01:00.0  state lost  (sysfs says -1)" in shown


def test_a_wide_matrix_is_cut_into_blocks_that_keep_every_path() -> None:
    """No class is lost or broken: the cells of all blocks are the paths."""
    topology = hgx()
    for width in (60, 80, 300):
        shown = matrix(topology, width)
        cells = [c for line in shown.splitlines() if "GPU" in line for c in line.split()]
        assert cells.count("NV18") == 42
        assert cells.count("NV17") == 14
        assert cells.count("PXB") == 8
        assert max(map(len, shown.splitlines())) <= width


def test_an_unknown_path_is_a_dash_and_in_the_legend() -> None:
    topology = dataclasses.replace(hgx(2), paths=())
    assert "  -    unknown\n" in re.sub(r"  - +unknown", "  -    unknown", matrix(topology))


def test_paths_between_nics_are_shown_where_they_are_known() -> None:
    topology = hgx(2)
    more = Path("nic:mlx5_0", "nic:mlx5_1", smi="SYS", p2p=P2p("OK", "OK"))
    assert not re.search(r"\n  NIC0 +PXB", matrix(topology))
    shown = matrix(dataclasses.replace(topology, paths=(*topology.paths, more)))
    assert re.search(r"\n  NIC0 +PXB +SYS +X +SYS\n", shown)


def test_columns_are_spelt_as_nvidia_smi_spells_them() -> None:
    """So that both matrices can lie side by side."""
    shown = matrix(hgx(2), 200)
    header = shown.splitlines()[0].split()
    assert header[:4] == ["GPU0", "GPU1", "NIC0", "NIC1"]
    assert " ".join(header[4:]) == "CPU Affinity NUMA Affinity GPU NUMA ID"
    assert re.search(r"\n  NIC1 +mlx5_1\n", shown)


def test_the_odd_nvlink_stands_in_a_row_of_its_own() -> None:
    shown = tree(hgx())
    assert re.search(r"\n  0-2,4-7 +18 +18 +4\.0 +479 GB/s +nvswitch\n", shown)
    assert re.search(r"\n  3 +17 +18 +4\.0 +452 GB/s +nvswitch +17\n", shown)


def test_mig_slices_are_not_taken_for_gpus() -> None:
    base = hgx(2)
    part = Gpu(
        index=None,
        uuid="MIG-1",
        pci_address=base.gpus[0].pci_address,
        model="NVIDIA H200",
        memory_bytes=None,
        cpu_node=Known(0, "sysfs"),
        mig=Mig("enabled", parent=base.gpus[0].uuid, profile="1g.18gb"),
    )
    topology = dataclasses.replace(base, gpus=(*base.gpus, part))
    assert "MIG slice 1g.18gb of GPU-00000000" in tree(topology)
    assert "MIG" not in matrix(topology)


def test_a_host_without_gpus_has_no_matrix() -> None:
    bare = dataclasses.replace(hgx(2), gpus=(), paths=())
    assert "PATHS" not in tree(bare)
    assert matrix(bare) == "  No GPU, so no paths to show.\n"


def test_hostile_text_in_a_topology_is_shown_as_text() -> None:
    base = hgx(2)
    bad = "\x1b[31m[red]\n\x07"
    nic = dataclasses.replace(base.nics[0], name=bad, link_layer=bad, state=bad)
    topology = dataclasses.replace(
        base,
        nics=(nic,),
        paths=(Path("gpu:0", f"nic:{bad}", smi=bad),),
        cpus=dataclasses.replace(base.cpus, model=bad, allowed="0"),
        machine=dataclasses.replace(base.machine, kernel=bad, driver=bad),
        warnings=(TopologyWarning(bad, bad, bad),),
    )
    for shown in (tree(topology), matrix(topology)):
        assert not set(shown) & {"\x1b", "\x07"}
        assert r"\x1b[31m[red]\n\x07" in shown
