"""The operator's file of NUMA nodes: where it is, what it may say, and what it wins against."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from made_machine import GPU, NIC, add_cpus, add_pci, add_rdma, write
from topobench.agents.discover import discover
from topobench.agents.discover.numa_file import read_numa_file
from topobench.agents.discover.tree import Tree
from topobench.errors import DiscoveryError
from topobench.topology import Known, Topology

FILE = "etc/topobench/numa.yaml"
SWITCH = "pci0000:40/0000:40:01.0/0000:41:00.0/0000:42:00.0"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A GPU of which nothing is known, one on node 0, and a NIC below a switch."""
    add_cpus(tmp_path, [[0], [1]])
    add_pci(tmp_path, "pci0000:10/0000:10:00.0", GPU, node=-1)
    add_pci(tmp_path, "pci0000:20/0000:20:00.0", GPU, node=0)
    for depth in (2, 3, 4):
        add_pci(tmp_path, "/".join(SWITCH.split("/")[:depth]), node=-1)
    add_pci(tmp_path, f"{SWITCH}/0000:43:00.0", NIC, node=-1)
    add_rdma(tmp_path, "mlx5_0", f"{SWITCH}/0000:43:00.0")
    return tmp_path


def seen(root: Path, text: str) -> Topology:
    write(root, FILE, text)
    return discover(root, nvml=None)


def test_node_that_firmware_lacks_is_the_operators(root: Path) -> None:
    found = seen(root, "# rack 7\n00000000:10:00.0: 1  # left riser\n\n")
    assert found.gpus[0].cpu_node == Known(1, "operator", "sysfs says -1")
    assert [w.code for w in found.warnings] == []
    path = next(p for p in found.paths if (p.a, p.b) == ("gpu:0000:10:00.0", "numa:1"))
    assert path.smi == "PHB"


def test_bridges_line_holds_for_all_below_it(root: Path) -> None:
    found = seen(root, '"0000:41:00.0": 1')
    assert found.nics[0].numa_node == Known(1, "operator", "sysfs says -1")


def test_file_wins_against_firmware_and_says_so(root: Path) -> None:
    found = seen(root, "0000:20:00.0: 1")
    assert found.gpus[1].cpu_node.value == 1
    (warning,) = [w for w in found.warnings if w.code == "numa_disagrees"]
    assert warning.subject == "pci:0000:20:00.0"
    assert "numa.yaml says NUMA node 1, sysfs 0" in warning.text


def test_line_for_no_device_is_named(root: Path) -> None:
    """One file may serve many hosts."""
    found = seen(root, "0000:99:00.0: 1")
    assert [(w.code, w.subject) for w in found.warnings if w.code == "numa_file"] == [
        ("numa_file", "pci:0000:99:00.0")
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gpu0: 1", r"numa\.yaml:1: expected a PCI address and a NUMA node"),
        ("\n0000:10:00.0: left", r"numa\.yaml:2: expected"),
        ("0000:10:00.0:1", r"numa\.yaml:1: expected"),
        ("0000:10:00.0: -1", r"numa\.yaml:1: expected"),
        ("0000:10:00.0: 7", r"numa\.yaml:1: there is no NUMA node 7; nodes: 0, 1"),
        ("0000:10:00.0: 1\n00000000:10:00.0: 0", r"numa\.yaml:2: 0000:10:00\.0 is there twice"),
        ("nodes: {a: 1}", r"numa\.yaml:1: expected"),
    ],
)
def test_mistakes_are_errors_with_their_line(root: Path, text: str, message: str) -> None:
    with pytest.raises(DiscoveryError, match=message):
        seen(root, text)


def test_file_is_named_by_the_environment_on_a_live_host_alone(root: Path, tmp_path: Path) -> None:
    file = tmp_path / "other.yaml"
    file.write_text("0000:01:00.0: 0\n")
    named = {"TOPOBENCH_NUMA_FILE": str(file)}
    live = read_numa_file(Tree.open("/"), frozenset({0}), named)
    assert (live.file, live.nodes) == (str(file), {"0000:01:00.0": 0})
    assert read_numa_file(Tree.open(root), frozenset({0}), named).nodes == {}


def test_named_file_that_is_absent_is_an_error() -> None:
    """Whoever names a file relies on it."""
    program = "from topobench.agents.discover import discover; discover(nvml=None)"
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        env={"TOPOBENCH_NUMA_FILE": "/nowhere/numa.yaml"},
    )
    assert done.returncode == 1
    assert "TOPOBENCH_NUMA_FILE=/nowhere/numa.yaml: it cannot be read" in done.stderr
