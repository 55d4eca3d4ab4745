"""Discovery on a real GPU host, beside nvidia-smi, NVML and NCCL."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_witnesses import against_nccl, against_smi, nccl_dump, smi_matrix_text
from topobench.agents.discover import discover
from topobench.topology import Topology

pynvml = pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def host() -> Topology:
    return discover()


@pytest.fixture
def handles() -> Iterator[list[object]]:
    """NVML's handles, in its order."""
    pynvml.nvmlInit()
    yield [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(int(pynvml.nvmlDeviceGetCount()))]
    pynvml.nvmlShutdown()


def test_every_class_and_affinity_is_nvidia_smis(host: Topology) -> None:
    compared, differing = against_smi(host, smi_matrix_text())
    assert compared >= len([g for g in host.gpus if not g.is_slice])
    assert differing == []


def test_gpus_are_those_of_nvml(host: Topology, handles: list[object]) -> None:
    whole = [g for g in host.gpus if g.index is not None and not g.is_slice]
    assert [g.index for g in whole] == list(range(len(handles)))
    for gpu, handle in zip(whole, handles, strict=True):
        pci = pynvml.nvmlDeviceGetPciInfo(handle)
        assert gpu.pci_address == f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}.0"
        assert gpu.uuid == pynvml.nvmlDeviceGetUUID(handle)
        assert gpu.memory_bytes == pynvml.nvmlDeviceGetMemoryInfo(handle).total
        assert gpu.state == "ok"
        assert any(d.address == gpu.pci_address for d in host.pci)


def test_nvlinks_are_those_that_nvml_calls_active(host: Topology, handles: list[object]) -> None:
    whole = [g for g in host.gpus if g.index is not None and not g.is_slice]
    for gpu, handle in zip(whole, handles, strict=True):
        active = 0
        for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
            try:
                active += int(pynvml.nvmlDeviceGetNvLinkState(handle, link) == 1)
            except pynvml.NVMLError:
                continue  # a link this GPU does not have
        assert (gpu.nvlink.active if gpu.nvlink else 0) == active


@pytest.mark.multi_gpu
def test_classes_by_pcie_are_those_of_nvml(host: Topology, handles: list[object]) -> None:
    """NVML's common ancestor leaves NVLink out."""
    words = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
    paths = {(p.a, p.b): p for p in host.paths}
    pairs = list(itertools.combinations(range(len(handles)), 2))
    assert pairs
    for a, b in pairs:
        level = pynvml.nvmlDeviceGetTopologyCommonAncestor(handles[a], handles[b])
        assert paths[f"gpu:{a}", f"gpu:{b}"].smi_pcie == words[level]
    assert [w for w in host.warnings if w.code == "path_disagrees"] == []


@pytest.mark.multi_gpu
def test_nccls_own_topology_gives_the_same_paths(host: Topology, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    compared, differing = against_nccl(host, nccl_dump(tmp_path / "topology.xml", os.environ))
    assert compared >= 4
    assert differing == []
