"""Discovery of this very machine, beside lstopo and numactl."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from topobench.agents.discover import discover
from topobench.agents.discover.cpus import widest_affinity
from topobench.agents.discover.tree import Tree
from topobench.errors import DiscoveryError
from topobench.pcie import parse_cpu_mask
from topobench.topology import parse_cpu_list

LSTOPO = shutil.which("lstopo-no-graphics") or shutil.which("lstopo")
NUMACTL = shutil.which("numactl")


@pytest.mark.skipif(LSTOPO is None, reason="lstopo is not installed")
def test_cpus_and_nodes_are_those_of_lstopo() -> None:
    done = subprocess.run([str(LSTOPO), "--of", "xml", "-"], capture_output=True, check=True)
    objects = list(ElementTree.fromstring(done.stdout).iter("object"))
    nodes = {int(o.attrib["os_index"]): o for o in objects if o.get("type") == "NUMANode"}
    found = discover()
    pus = {int(o.attrib["os_index"]) for o in objects if o.get("type") == "PU"}
    assert set(parse_cpu_list(found.cpus.allowed)) == pus
    assert {n.id for n in found.numa_nodes if n.memory_bytes} == set(nodes)
    for node in found.numa_nodes:
        mask = nodes[node.id].attrib["cpuset"].replace("0x", "")
        assert parse_cpu_list(node.cpus) == parse_cpu_mask(mask)
    assert found.cpus.physical_cores == sum(o.get("type") == "Core" for o in objects)
    assert found.cpus.packages == sum(o.get("type") == "Package" for o in objects)


@pytest.mark.skipif(NUMACTL is None, reason="numactl is not installed")
def test_nodes_and_distances_are_those_of_numactl() -> None:
    done = subprocess.run([str(NUMACTL), "-H"], capture_output=True, check=True, text=True)
    cpus = dict(re.findall(r"^node (\d+) cpus: ?(.*)$", done.stdout, re.MULTILINE))
    rows = re.findall(r"^ *(\d+): +([\d ]+)$", done.stdout, re.MULTILINE)
    found = discover()
    assert {str(n.id): list(parse_cpu_list(n.cpus)) for n in found.numa_nodes} == {
        node: [int(c) for c in text.split()] for node, text in cpus.items()
    }
    matrix = [[int(d) for d in row.split()] for _, row in rows]
    assert [list(row) for row in found.numa_distances.matrix] == matrix


def test_kernel_and_architecture_are_those_of_uname() -> None:
    machine = discover().machine
    assert (machine.kernel, machine.arch) == (os.uname().release, os.uname().machine)


def test_inherited_affinity_does_not_narrow_what_is_allowed() -> None:
    """A process may widen its own affinity again, so the binding "none" can too."""
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < 2:
        pytest.skip("needs two CPUs")
    program = (
        f"import os; os.sched_setaffinity(0, {{{cpus[0]}}})\n"
        "from topobench.agents.discover import discover\n"
        "print(discover(nvml=None).cpus.allowed, sorted(os.sched_getaffinity(0)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    allowed, _, affinity = done.stdout.strip().partition(" ")
    assert parse_cpu_list(allowed) == widest_affinity(cpus)
    assert affinity == f"[{cpus[0]}]"  # asking has not changed it


def test_serial_numbers_stay_out(tmp_path: Path) -> None:
    for name in ("product_serial", "board_serial", "chassis_serial", "product_uuid"):
        path = tmp_path / f"sys/class/dmi/id/{name}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("SECRET-4711\n")
    (tmp_path / "sys/class/dmi/id/product_name").write_text("PowerEdge XE9680\n")
    document = discover(tmp_path).to_json()
    assert document["machine"]["product"] == "PowerEdge XE9680"
    assert "SECRET-4711" not in str(document)


def test_folder_without_a_machine_is_our_error(tmp_path: Path) -> None:
    with pytest.raises(DiscoveryError, match="no folder sys"):
        discover(tmp_path)


def test_empty_machine_is_unknown_not_zero(tmp_path: Path) -> None:
    (tmp_path / "sys").mkdir()
    found = discover(tmp_path)
    assert found.cpus.online is None
    assert found.cpus.packages is None
    assert found.virtualization == "unknown"
    assert (found.gpus, found.pci, found.nics) == ((), (), ())


def test_importing_discovery_loads_nothing_heavy() -> None:
    heavy = {"torch", "ray", "sqlalchemy", "pynvml", "numpy", "scipy", "pydantic", "cpuinfo"}
    program = "import sys, topobench.agents.discover; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert not heavy & set(done.stdout.split())


def test_file_that_never_ends_is_cut(tmp_path: Path) -> None:
    tree = Tree.open("/")
    assert len(tree.read("dev/zero", limit=100) or b"") == 100
