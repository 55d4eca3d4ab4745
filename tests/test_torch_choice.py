"""Which torch the scripts pick, over made-up hosts."""

from __future__ import annotations

from pathlib import Path

import pytest

from torch_choice import GpuHost, NoTorchFits, TorchFacts, choose, mend, read_host, version_tuple

OPEN_MODULE = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  "
    "(root@builder)  Tue Jun  2 09:13:41 UTC 2026\nGCC version:  gcc version 13.3.0\n"
)
OLD_MODULE = (
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\n"
    "GCC version:  gcc version 11.4.0 (Ubuntu 11.4.0-1ubuntu1~22.04)\n"
)


def host_tree(root: Path, *, version: str, models: list[str], files: int) -> Path:
    """The files of a host with a driver, as the kernel shows them."""
    driver = root / "proc/driver/nvidia"
    driver.mkdir(parents=True)
    (driver / "version").write_text(version)
    for index, model in enumerate(models):
        gpu = driver / f"gpus/0000:{index:02x}:00.0"
        gpu.mkdir(parents=True)
        (gpu / "information").write_text(f"Model: \t\t {model}\nIRQ:   \t\t 16\n")
    (root / "dev").mkdir()
    for name in ["nvidiactl", "nvidia-uvm", *(f"nvidia{i}" for i in range(files))]:
        (root / "dev" / name).touch()
    return root


def a_host(driver: str | None = "580.159.04", *models: str) -> GpuHost:
    models = models or ("NVIDIA H200",)
    return GpuHost(driver=driver, models=models, device_files=len(models), container=False)


NO_GPU = GpuHost(driver=None, models=(), device_files=0, container=False)


def test_host_without_a_driver_has_no_gpus(tmp_path: Path) -> None:
    assert read_host(tmp_path) == NO_GPU
    assert not NO_GPU.has_gpus


@pytest.mark.parametrize(
    ("version", "driver", "major"),
    [(OPEN_MODULE, "580.159.04", 580), (OLD_MODULE, "535.104.05", 535)],
)
def test_driver_and_models_are_read(tmp_path: Path, version: str, driver: str, major: int) -> None:
    host = read_host(host_tree(tmp_path, version=version, models=["NVIDIA H200"] * 8, files=8))
    assert host.driver == driver
    assert host.driver_major == major
    assert host.models == ("NVIDIA H200",) * 8
    assert host.device_files == 8
    assert host.has_gpus


def test_device_files_not_made_yet_still_are_gpus(tmp_path: Path) -> None:
    """After boot they are made by the first program that wants a GPU."""
    assert read_host(
        host_tree(tmp_path, version=OPEN_MODULE, models=["NVIDIA H200"], files=0)
    ).has_gpus


def test_container_without_device_files_has_no_gpus(tmp_path: Path) -> None:
    """A container sees the host's driver even when it was given no GPU."""
    tree = host_tree(tmp_path, version=OPEN_MODULE, models=["NVIDIA H200"], files=0)
    (tree / ".dockerenv").touch()
    host = read_host(tree)
    assert not host.has_gpus
    why = choose(host, machine="x86_64", python=(3, 12), indexed=False).why
    assert why == "the driver lists GPUs, but this container has no /dev/nvidia0"


def test_driver_without_gpus_needs_no_cuda(tmp_path: Path) -> None:
    tree = host_tree(tmp_path, version=OPEN_MODULE, models=[], files=0)
    assert not read_host(tree).has_gpus


def test_host_without_gpus_gets_the_small_build() -> None:
    choice = choose(NO_GPU, machine="x86_64", python=(3, 12), indexed=True)
    assert (choice.requirement, choice.line) == ("torch==2.13.0", "cpu")


def test_host_without_gpus_is_told_of_a_large_download() -> None:
    choice = choose(NO_GPU, machine="x86_64", python=(3, 12), indexed=False)
    assert choice.size == "0.2 GB as a CPU build; 2.7 GB if the index has only CUDA"


@pytest.mark.parametrize(
    ("driver", "model", "machine", "indexed", "requirement", "line"),
    [
        ("595.45.04", "NVIDIA B200", "x86_64", False, "torch==2.13.0", "cu130"),
        ("580.159.04", "NVIDIA H200", "x86_64", False, "torch==2.13.0", "cu130"),
        ("570.86.15", "NVIDIA H200", "x86_64", False, "torch==2.10.0", "cu128"),
        ("550.54.14", "NVIDIA A100-SXM4-80GB", "x86_64", False, "torch==2.10.0", "cu128"),
        ("535.104.05", "NVIDIA H100 80GB HBM3", "x86_64", False, "torch==2.10.0", "cu128"),
        ("525.60.13", "Tesla T4", "x86_64", False, "torch==2.10.0", "cu128"),
        ("580.159.04", "Tesla V100-SXM2-32GB", "x86_64", False, "torch==2.10.0", "cu128"),
        ("580.159.04", "Tesla P100-PCIE-16GB", "x86_64", False, "torch==2.7.1", "cu126"),
        ("580.159.04", "Tesla P100-PCIE-16GB", "x86_64", True, "torch==2.10.0", "cu126"),
        ("470.82.01", "Tesla T4", "x86_64", True, "torch==2.7.1", "cu118"),
        ("580.159.04", "NVIDIA GH200 480GB", "aarch64", False, "torch==2.13.0", "cu130"),
        ("570.86.15", "NVIDIA GH200 480GB", "aarch64", True, "torch==2.10.0", "cu128"),
        (None, "NVIDIA H200", "x86_64", False, "torch==2.13.0", "cu130"),
    ],
)
def test_torch_fits_driver_and_gpu(
    driver: str | None, model: str, machine: str, indexed: bool, requirement: str, line: str
) -> None:
    choice = choose(a_host(driver, model), machine=machine, python=(3, 12), indexed=indexed)
    assert (choice.requirement, choice.line) == (requirement, line)


def test_oldest_gpu_decides() -> None:
    host = a_host("580.159.04", "NVIDIA H100 PCIe", "Tesla V100-PCIE-16GB")
    choice = choose(host, machine="x86_64", python=(3, 12), indexed=False)
    assert choice.requirement == "torch==2.10.0"


@pytest.mark.parametrize(
    ("model", "capability"),
    [
        ("Tesla V100S-PCIE-32GB", 70),
        ("NVIDIA TITAN V", 70),
        ("NVIDIA GeForce GTX 1080 Ti", 50),
        ("Tesla P4", 50),
        ("Tesla M60", 50),
        ("NVIDIA A40", 75),
        ("NVIDIA L4", 75),
        ("NVIDIA GeForce GTX 1650", 75),
        ("Quadro RTX 6000", 75),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 75),
    ],
)
def test_old_gpus_are_known_by_name(model: str, capability: int) -> None:
    assert a_host("580.1", model).oldest_capability == capability


def test_choice_names_size_and_reason() -> None:
    choice = choose(a_host("535.104.05"), machine="x86_64", python=(3, 12), indexed=False)
    assert choice.size == "about 4.1 GB"
    assert choice.why == "driver 535.104.05 runs CUDA 12.8 (drivers from 525 on)"


@pytest.mark.parametrize(
    ("host", "machine", "python", "advice"),
    [
        (a_host("470.82.01"), "x86_64", (3, 12), "a newer driver"),
        (a_host("470.82.01"), "x86_64", (3, 12), "TOPOBENCH_TORCH_INDEX"),
        (a_host("570.86.15"), "aarch64", (3, 12), "on aarch64 580 or later"),
        (a_host("580.1", "Tesla P40"), "x86_64", (3, 14), "TOPOBENCH_PYTHON"),
        (a_host("580.1"), "ppc64le", (3, 12), "TOPOBENCH_TORCH"),
    ],
)
def test_host_that_no_release_fits_is_refused_with_advice(
    host: GpuHost, machine: str, python: tuple[int, int], advice: str
) -> None:
    with pytest.raises(NoTorchFits, match=advice):
        choose(host, machine=machine, python=python, indexed=False)


@pytest.mark.parametrize(
    ("facts", "without_gpus", "with_gpus"),
    [
        (TorchFacts(version=None), False, False),
        (TorchFacts(version="2.5.1+cu121", cuda="12.1", usable=8), False, False),
        (TorchFacts(version="2.13.0+cpu"), True, False),
        (TorchFacts(version="2.13.0", cuda="13.0", usable=0), True, False),
        (TorchFacts(version="2.6.0", cuda="12.4", usable=1), True, True),
        (TorchFacts(version="2.11.0a0+nv26.02", cuda="13.1", usable=8), True, True),
    ],
)
def test_torch_that_is_there_fits(facts: TorchFacts, without_gpus: bool, with_gpus: bool) -> None:
    assert facts.fits(NO_GPU) is without_gpus
    assert facts.fits(a_host()) is with_gpus


def test_cpu_build_on_a_gpu_host_is_named_as_such() -> None:
    text = mend(a_host("580.159.04"), TorchFacts("2.13.0+cpu"), choice="torch==2.13.0")
    assert "torch is a CPU build (driver 580.159.04, torch 2.13.0+cpu, CUDA none)" in text
    assert "TOPOBENCH_TORCH='torch==2.13.0' ./scripts/topobench doctor" in text


def test_too_new_cuda_is_mended_by_the_release_that_fits() -> None:
    host = a_host("535.104.05")
    choice = choose(host, machine="x86_64", python=(3, 12), indexed=False)
    text = mend(host, TorchFacts("2.13.0", cuda="13.0"), choice=choice.requirement)
    assert "too old for this torch (driver 535.104.05, torch 2.13.0, CUDA 13.0" in text
    assert "it needs 580). Run: TOPOBENCH_TORCH='torch==2.10.0' ./scripts/topobench" in text


def test_other_failures_carry_the_words_of_torch() -> None:
    facts = TorchFacts("2.13.0", cuda="13.0", error="RuntimeError: system not yet initialized")
    text = mend(a_host(), facts, choice="torch==2.13.0")
    assert "RuntimeError: system not yet initialized" in text
    assert "nvidia-smi" in text


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("2.13.0+cpu", (2, 13, 0)), ("2.11.0a0+nv26.02", (2, 11, 0)), ("12.8", (12, 8))],
)
def test_version_is_read_as_numbers(text: str, numbers: tuple[int, ...]) -> None:
    assert version_tuple(text) == numbers
