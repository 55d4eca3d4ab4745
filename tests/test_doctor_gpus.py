"""Doctor on GPUs and the traffic between them: levels, and the exact lines."""

from __future__ import annotations

import dataclasses
import subprocess
from pathlib import Path

import pytest

from examining import (
    CLOSED,
    GPUS,
    OPEN,
    RDMA,
    examine,
    function,
    gpu,
    lines,
)
from topobench.agents.discover import read_nvml
from topobench.agents.doctor import Level
from topobench.topology import Gpu, NvLink, NvLinks, Topology, TopologyWarning

GPU_CHECKS = {
    "gpu_library",
    "gpu_persistence",
    "gpu_clocks",
    "gpu_ecc",
    "gpu_remapped_rows",
    "fabric_manager",
    "gpu_direct_rdma",
    "pcie_acs",
    "iommu",
}


def test_host_without_gpu_gets_one_line_about_it(tmp_path: Path) -> None:
    found = examine(tmp_path)
    assert (found["gpu_driver"].level, found["gpu_driver"].found) == (Level.OK, "no NVIDIA GPU")
    assert not GPU_CHECKS & set(found)


@pytest.mark.parametrize(
    ("files", "container", "fix", "undo"),
    [
        (
            {"lib/modules/6.1.0/modules.dep": "updates/dkms/nvidia.ko: kernel/drm.ko\n"},
            None,
            "sudo modprobe nvidia",
            "sudo modprobe -r nvidia",
        ),
        (
            {},
            None,
            "sudo apt-get install -y nvidia-driver",
            "sudo apt-get remove -y nvidia-driver",
        ),
        ({}, "docker", "docker run --gpus all IMAGE", "docker run IMAGE"),
    ],
)
def test_gpu_without_driver_is_an_error(
    tmp_path: Path, files: dict[str, str], container: str | None, fix: str, undo: str
) -> None:
    changes = {"driver": None, "container": container}
    found = examine(tmp_path, files, topology=GPUS, machine=changes)["gpu_driver"]
    assert found.found == "1 GPUs on the bus, held by no driver"
    assert lines(found) == (Level.ERROR, fix, undo)


def put_library(root: Path, version: str) -> None:
    """The library file and its link, as distributions lay them."""
    folder = root / "usr/lib/x86_64-linux-gnu"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"libnvidia-ml.so.{version}").touch()
    (folder / "libnvidia-ml.so.1").symlink_to(f"libnvidia-ml.so.{version}")


def test_library_of_another_version_than_the_module_asks_for_a_restart(tmp_path: Path) -> None:
    put_library(tmp_path, "580.105.08")
    found = examine(tmp_path, topology=GPUS)["gpu_library"]
    assert found.found == "library 580.105.08, kernel module 580.95.05"
    assert lines(found) == (Level.ERROR, "sudo systemctl reboot", None)


def test_mismatch_that_only_nvml_tells_asks_for_a_restart(tmp_path: Path) -> None:
    """NVML's error 18, when the file's name tells no version."""
    folder = tmp_path / "usr/lib64"
    folder.mkdir(parents=True)
    (folder / "libnvidia-ml.so.1").touch()

    class OldModule:
        """A library that the loaded module is too old for."""

        class NVMLError(Exception):
            value = 18

        def nvmlInit(self) -> None:  # noqa: N802
            raise self.NVMLError

    text = f"NVML cannot be used: {read_nvml(OldModule()).error}"
    nameless = dataclasses.replace(
        GPUS,
        gpus=(gpu(0, uuid=None),),
        warnings=(TopologyWarning("nvml", "host", text),),
    )
    found = examine(tmp_path, topology=nameless, machine={"container": "docker"})["gpu_library"]
    assert found.found.startswith("NVML cannot be used: driver and library versions differ")
    assert lines(found) == (Level.ERROR, "docker restart CONTAINER", None)


@pytest.mark.parametrize(
    ("os_name", "container", "fix", "undo"),
    [
        (
            "Ubuntu 24.04",
            None,
            "sudo apt-get install -y libnvidia-compute-580",
            "sudo apt-get remove -y libnvidia-compute-580",
        ),
        (
            "Debian 12",
            None,
            "sudo apt-get install -y libnvidia-ml1",
            "sudo apt-get remove -y libnvidia-ml1",
        ),
        (
            "Debian 12",
            "docker",
            "docker run --gpus all -e NVIDIA_DRIVER_CAPABILITIES=compute,utility IMAGE",
            "docker run --gpus all IMAGE",
        ),
    ],
)
def test_driver_without_its_library_is_an_error(
    tmp_path: Path, os_name: str, container: str | None, fix: str, undo: str
) -> None:
    nameless = dataclasses.replace(GPUS, gpus=(gpu(0, uuid=None),))
    found = examine(tmp_path, topology=nameless, machine={"os": os_name, "container": container})
    assert found["gpu_library"].found == "libnvidia-ml.so.1 not found, kernel module 580.95.05"
    assert lines(found["gpu_library"]) == (Level.ERROR, fix, undo)


def test_library_of_the_modules_version_is_ok(tmp_path: Path) -> None:
    put_library(tmp_path, "580.95.05")
    found = examine(tmp_path, topology=GPUS)["gpu_library"]
    assert (found.level, found.found) == (
        Level.OK,
        "library 580.95.05, kernel module 580.95.05",
    )


@pytest.mark.parametrize(
    ("version", "cuda", "fix", "undo"),
    [
        (
            "2.13.0+cpu",
            "12.8",
            "/opt/py/bin/python -m pip install --force-reinstall torch==2.10.0",
            "/opt/py/bin/python -m pip install --force-reinstall torch==2.13.0+cpu",
        ),
        (
            "2.13.0",
            "12.4",
            "/opt/py/bin/python -m pip install --force-reinstall torch==2.10.0",
            "/opt/py/bin/python -m pip install --force-reinstall torch==2.13.0",
        ),
        (
            "2.13.0+cpu",
            "13.0",
            "/opt/py/bin/python -m pip install --force-reinstall torch==2.13.0",
            "/opt/py/bin/python -m pip install --force-reinstall torch==2.13.0+cpu",
        ),
        ("2.13.0+cu130", "13.0", None, None),
        ("2.13.0+cu126", "11.4", None, None),
    ],
)
def test_torch_that_cannot_use_the_gpus_gets_a_build_the_driver_can_run(
    tmp_path: Path, version: str, cuda: str, fix: str | None, undo: str | None
) -> None:
    facts = {"torch": version, "torch_error": "the driver is too old"}
    found = examine(tmp_path, topology=GPUS, machine={"cuda": cuda}, facts=facts)["torch"]
    assert found.found == "the driver is too old"
    assert lines(found) == (Level.ERROR, fix, undo)


def test_absent_torch_is_an_error(tmp_path: Path) -> None:
    assert lines(examine(tmp_path, facts={"torch": None})["torch"]) == (
        Level.ERROR,
        "/opt/py/bin/python -m pip install torch",
        "/opt/py/bin/python -m pip uninstall -y torch",
    )


def test_settings_that_only_nvidia_smi_tells_are_unknown_without_it(tmp_path: Path) -> None:
    captured = examine(tmp_path, topology=GPUS)["gpu_persistence"]
    assert (captured.level, captured.found) == (
        Level.UNKNOWN,
        "nvidia-smi is not run for a captured tree",
    )
    missing = examine(tmp_path, topology=GPUS, smi={})["gpu_ecc"]
    assert (missing.level, missing.found) == (
        Level.UNKNOWN,
        "nvidia-smi cannot be run: No such file or directory",
    )


def test_field_that_nvidia_smi_does_not_know_is_unknown(tmp_path: Path) -> None:
    text = 'Field "persistence_mode" is not a valid field to query.\n\n'
    found = examine(tmp_path, topology=GPUS, smi={"persistence_mode": text})["gpu_persistence"]
    assert found.level is Level.UNKNOWN
    assert found.found == ('nvidia-smi: Field "persistence_mode" is not a valid field to query.')


def test_persistence_is_switched_on_only_where_it_is_off(tmp_path: Path) -> None:
    both = {"persistence_mode": "GPU-0, Disabled\nGPU-1, Disabled\n"}
    assert lines(examine(tmp_path, topology=GPUS, smi=both)["gpu_persistence"]) == (
        Level.WARN,
        "sudo nvidia-smi -pm 1",
        "sudo nvidia-smi -pm 0",
    )
    one = {"persistence_mode": "GPU-0, Enabled\nGPU-1, Disabled\n"}
    assert lines(examine(tmp_path, topology=GPUS, smi=one)["gpu_persistence"]) == (
        Level.WARN,
        "sudo nvidia-smi -i GPU-1 -pm 1",
        "sudo nvidia-smi -i GPU-1 -pm 0",
    )


def test_clock_lock_is_offered_at_each_models_maximum(tmp_path: Path) -> None:
    one = {"clocks.sm": "GPU-0, 345, 1980\nGPU-1, 1980, 1980\n"}
    found = examine(tmp_path, topology=GPUS, smi=one)["gpu_clocks"]
    assert found.found == "SM clock now 345 of 1980 MHz, 1980 of 1980 MHz"
    assert lines(found) == (
        Level.UNKNOWN,
        "sudo nvidia-smi -lgc 1980,1980",
        "sudo nvidia-smi -rgc",
    )
    two = {"clocks.sm": "GPU-0, 345, 1980\nGPU-1, 210, 1410\n"}
    assert examine(tmp_path, topology=GPUS, smi=two)["gpu_clocks"].fix == (
        "sudo nvidia-smi -i GPU-0 -lgc 1980,1980; sudo nvidia-smi -i GPU-1 -lgc 1410,1410"
    )


def test_ecc_off_and_uncorrected_errors_are_told_apart(tmp_path: Path) -> None:
    off = {"ecc.mode": "GPU-0, Disabled, [N/A]\nGPU-1, Enabled, 0\n"}
    assert lines(examine(tmp_path, topology=GPUS, smi=off)["gpu_ecc"]) == (
        Level.WARN,
        "sudo nvidia-smi -i GPU-0 -e 1",
        "sudo nvidia-smi -i GPU-0 -e 0",
    )
    bad = {"ecc.mode": "GPU-0, Enabled, 0\nGPU-1, Enabled, 3\n"}
    assert lines(examine(tmp_path, topology=GPUS, smi=bad)["gpu_ecc"]) == (
        Level.ERROR,
        "sudo nvidia-smi --gpu-reset -i GPU-1",
        None,
    )
    without = {"ecc.mode": "GPU-0, [N/A], [N/A]\nGPU-1, [N/A], [N/A]\n"}
    assert examine(tmp_path, topology=GPUS, smi=without)["gpu_ecc"].level is Level.OK


def test_pending_remapping_asks_for_a_reset_and_a_failed_one_for_a_new_gpu(
    tmp_path: Path,
) -> None:
    pending = {"remapped": "GPU-0, 1, 0\nGPU-1, 0, 0\n"}
    assert lines(examine(tmp_path, topology=GPUS, smi=pending)["gpu_remapped_rows"]) == (
        Level.ERROR,
        "sudo nvidia-smi --gpu-reset -i GPU-0",
        None,
    )
    failed = examine(tmp_path, topology=GPUS, smi={"remapped": "GPU-0, No, No\nGPU-1, No, Yes\n"})
    assert failed["gpu_remapped_rows"].found == "failed on GPU-1"
    assert failed["gpu_remapped_rows"].fix is None


def switched(fabric: str | None) -> tuple[Gpu, ...]:
    links = (NvLink(0, "active", "nvswitch"),)
    return tuple(gpu(n, fabric=fabric, nvlink=NvLinks(1, 1, "4.0", 2.5e10, links)) for n in (0, 1))


def test_switches_without_fabric_manager_are_an_error(tmp_path: Path) -> None:
    host = dataclasses.replace(GPUS, gpus=switched("in progress"), nvswitches=("0000:05:00.0",))
    assert lines(examine(tmp_path, topology=host)["fabric_manager"]) == (
        Level.ERROR,
        "sudo systemctl enable --now nvidia-fabricmanager",
        "sudo systemctl disable --now nvidia-fabricmanager",
    )
    running = {"proc/812/comm": "nv-fabricmanage\n"}  # the kernel keeps 15 letters
    assert examine(tmp_path, running, topology=host)["fabric_manager"].level is Level.OK


def test_fabric_manager_of_a_guests_host_is_judged_by_the_fabric(tmp_path: Path) -> None:
    joined = dataclasses.replace(GPUS, gpus=switched("completed"))
    assert examine(tmp_path, topology=joined)["fabric_manager"].level is Level.OK
    waiting = dataclasses.replace(GPUS, gpus=switched("in progress"))
    found = examine(tmp_path, topology=waiting)["fabric_manager"]
    assert (found.level, found.found) == (
        Level.UNKNOWN,
        "it runs outside of what is seen here; fabric: in progress x2",
    )


def test_gpus_without_switches_need_no_fabric_manager(tmp_path: Path) -> None:
    assert "fabric_manager" not in examine(tmp_path, topology=GPUS)


def test_rdma_without_a_way_to_gpu_memory_loads_peermem(tmp_path: Path) -> None:
    closed = {"proc/driver/nvidia/version": CLOSED, **RDMA}
    assert lines(examine(tmp_path, closed, topology=GPUS)["gpu_direct_rdma"]) == (
        Level.WARN,
        "sudo modprobe nvidia_peermem",
        "sudo modprobe -r nvidia_peermem",
    )
    loaded = {**closed, "sys/module/nvidia_peermem/refcnt": "0\n"}
    assert (
        examine(tmp_path, loaded, topology=GPUS)["gpu_direct_rdma"].found == "nvidia_peermem loaded"
    )


def test_open_module_needs_no_peermem_and_no_rdma_needs_neither(tmp_path: Path) -> None:
    files = {"proc/driver/nvidia/version": OPEN}
    assert "gpu_direct_rdma" not in examine(tmp_path, files, topology=GPUS)
    found = examine(tmp_path, {**files, **RDMA}, topology=GPUS)["gpu_direct_rdma"]
    assert found.found == "open kernel module"


def config_space(control: int) -> bytes:
    """Extended configuration space: error reporting at 0x100, then ACS at 0x148."""
    space = bytearray(4096)
    space[0x100:0x104] = (0x0001 | 2 << 16 | 0x148 << 20).to_bytes(4, "little")
    space[0x148:0x14C] = (0x000D | 1 << 16).to_bytes(4, "little")
    space[0x14E:0x150] = control.to_bytes(2, "little")
    return bytes(space)


def with_acs(acs: str) -> Topology:
    return dataclasses.replace(GPUS, pci=(function("0000:00:01.0", acs=acs), *GPUS.pci[1:]))


def test_acs_redirection_is_cleared_and_its_word_restored(tmp_path: Path) -> None:
    """Bits that redirect nothing (source validation) stay as they are."""
    folder = tmp_path / "sys/bus/pci/devices/0000:00:01.0"
    folder.mkdir(parents=True)
    (folder / "config").write_bytes(config_space(0x001D))
    assert lines(examine(tmp_path, topology=with_acs("on"))["pcie_acs"]) == (
        Level.WARN,
        "sudo setpci -s 0000:00:01.0 ECAP_ACS+6.w=0001",
        "sudo setpci -s 0000:00:01.0 ECAP_ACS+6.w=001d",
    )


def test_acs_off_is_ok_and_unreadable_acs_unknown(tmp_path: Path) -> None:
    assert examine(tmp_path, topology=with_acs("off"))["pcie_acs"].level is Level.OK
    found = examine(tmp_path, topology=with_acs("unknown"))["pcie_acs"]
    assert (found.level, found.found) == (Level.UNKNOWN, "only root may read it")
    alone = dataclasses.replace(with_acs("on"), gpus=(gpu(0),))
    assert "pcie_acs" not in examine(tmp_path, topology=alone)


GROUP = "sys/bus/pci/devices/0000:01:00.0/iommu_group/type"


@pytest.mark.parametrize(
    ("files", "fix", "undo"),
    [
        (
            {"usr/sbin/grubby": ""},
            'sudo grubby --update-kernel=ALL --args="iommu=pt"',
            'sudo grubby --update-kernel=ALL --remove-args="iommu=pt"',
        ),
        (
            {"etc/default/grub": 'GRUB_CMDLINE_LINUX=""\n'},
            "sudo sed -i 's/^GRUB_CMDLINE_LINUX=\"/&iommu=pt /' /etc/default/grub"
            " && sudo update-grub",
            "sudo sed -i 's/^GRUB_CMDLINE_LINUX=\"iommu=pt /GRUB_CMDLINE_LINUX=\"/'"
            " /etc/default/grub && sudo update-grub",
        ),
        ({}, None, None),
    ],
)
def test_translating_iommu_is_passed_through_by_the_boot_loader(
    tmp_path: Path, files: dict[str, str], fix: str | None, undo: str | None
) -> None:
    found = examine(tmp_path, {GROUP: "DMA-FQ\n", **files}, topology=GPUS)["iommu"]
    assert found.found == "translated for 0000:01:00.0"
    assert lines(found) == (Level.WARN, fix, undo)


def test_boot_loader_lines_change_the_file_and_change_it_back(tmp_path: Path) -> None:
    before = 'GRUB_DEFAULT=0\nGRUB_CMDLINE_LINUX_DEFAULT="quiet"\nGRUB_CMDLINE_LINUX="nosmt"\n'
    files = {GROUP: "DMA\n", "etc/default/grub": before}
    found = examine(tmp_path, files, topology=GPUS)["iommu"]
    grub = tmp_path / "etc/default/grub"
    for line, wanted in ((found.fix, "iommu=pt nosmt"), (found.undo, "nosmt")):
        assert line is not None
        edit = line.removeprefix("sudo ").removesuffix(" && sudo update-grub")
        subprocess.run(edit.replace("/etc/default/grub", str(grub)), shell=True, check=True)
        assert f'GRUB_CMDLINE_LINUX="{wanted}"\n' in grub.read_text()
    assert grub.read_text() == before


def test_pass_through_iommu_is_ok(tmp_path: Path) -> None:
    assert examine(tmp_path, {GROUP: "identity\n"}, topology=GPUS)["iommu"].level is Level.OK
