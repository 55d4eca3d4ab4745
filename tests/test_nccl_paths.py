"""Paths as NCCL computes them, against what its own code computed, and by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from topobench.importers.nccl_xml import parse
from topobench.nccl_paths import (
    Device,
    NcclPath,
    Net,
    PathType,
    Switch,
    System,
    compute,
    cpu_gbps,
    pcie_gbps,
)
from topobench.nccl_system import system_of
from topobench.paths import find_paths

ORACLE = Path(__file__).parents[2] / "shared/topodata/nccl_oracle"
FILES = sorted(ORACLE.glob("*.xml"))

needs_oracle = pytest.mark.skipif(not FILES, reason=f"no recorded answers of NCCL in {ORACLE}")


@needs_oracle
def test_oracle_is_whole() -> None:
    assert len(FILES) == 28


@needs_oracle
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_types_bandwidths_and_p2p_are_those_of_nccl(file: Path) -> None:
    """Of every pair: GPU to GPU, GPU to NIC and back, GPU to CPU."""
    answers = json.loads(file.with_suffix(".json").read_text())
    topology = parse(file.read_text())
    found = compute(system_of(topology))
    paths = {(p.a, p.b): p for p in find_paths(topology).paths}
    ports = sorted(nic["dev"] for nic in answers["nics"])
    names = {f"nic:{dev}": f"nic:{nic.name}" for dev, nic in zip(ports, topology.nics, strict=True)}
    assert len(answers["paths"]) == len(found)
    for wanted in answers["paths"]:
        a, b = (names.get(wanted[end], wanted[end]).replace("cpu:", "numa:") for end in "ab")
        ours = found[a, b]
        assert ours.type.name == wanted["type"], wanted
        assert ours.bytes_per_second == pytest.approx(wanted["bw"] * 1e9, rel=1e-4), wanted
        assert ours.p2p == (bool(wanted["p2p"]) if "p2p" in wanted else None), wanted
        if (a, b) in paths:
            path = paths[a, b]
            assert (path.nccl, path.nccl_bytes_per_second) == (
                ours.type.name,
                ours.bytes_per_second,
            )


def flat(*, cpus: tuple[str, ...] = ("cpu:0",), **changes: object) -> System:
    """Two GPUs of compute capability 9.0 and a 400 Gb/s port on root ports of one CPU."""
    gpus = tuple(Device(f"gpu:{i}", "cpu:0", 48.0, i, 90) for i in range(2))
    nets = (Net("nic:0", "card:0", "cpu:0", 48.0, 50.0),)
    system = System(cpus=cpus, cpu_gbps=22.0, gpus=gpus, nets=nets)
    return replace(system, **changes)  # type: ignore[arg-type]


def test_chip_link_takes_the_place_of_pcie_on_the_way_to_a_port() -> None:
    """A Grace host: GPU memory is reached through the CPU, which counts as near (P2C)."""
    system = flat(gpus=(Device("gpu:0", "cpu:0", 48.0, 0, 90, c2c_gbps=450.0),))
    found = compute(system)
    assert found["gpu:0", "cpu:0"] == NcclPath(PathType.C2C, 450e9)
    assert found["gpu:0", "nic:0"] == NcclPath(PathType.P2C, 48e9)
    assert found["nic:0", "gpu:0"] == NcclPath(PathType.P2C, 48e9)


def test_denied_p2p_goes_through_the_cpu() -> None:
    switch = (Switch("sw", "cpu:0", 24.0),)
    gpus = tuple(Device(f"gpu:{i}", "sw", 48.0, i, 90) for i in range(2))
    system = flat(switches=switch, gpus=gpus, nets=())
    assert compute(system)["gpu:0", "gpu:1"] == NcclPath(PathType.PIX, 48e9, True)
    denied = replace(system, no_p2p=frozenset({("gpu:0", "gpu:1")}))
    found = compute(denied)
    assert found["gpu:0", "gpu:1"] == NcclPath(PathType.PHB, 24e9, False)
    assert found["gpu:1", "gpu:0"] == NcclPath(PathType.PIX, 48e9, True)


def test_port_without_gpudirect_goes_through_the_cpu() -> None:
    switch = (Switch("sw", "cpu:0", 24.0),)
    gpu = (Device("gpu:0", "sw", 48.0, 0, 90),)
    near = Net("nic:0", "card:0", "sw", 48.0, 50.0)
    found = compute(flat(switches=switch, gpus=gpu, nets=(near,)))
    assert found["gpu:0", "nic:0"] == NcclPath(PathType.PIX, 48e9)
    found = compute(flat(switches=switch, gpus=gpu, nets=(replace(near, gdr=False),)))
    assert found["gpu:0", "nic:0"] == NcclPath(PathType.PHB, 24e9)


@pytest.mark.parametrize(
    ("outer", "inner", "flattened"),
    [
        (0x1000_C010_1000_A096, 0x1000_C010_1000_A096, True),
        (0x1000_C030_1000_0001, 0x1000_C030_1000_1001, True),
        (0x1000_C030_1000_0001, 0x1000_C030_1000_0001, False),
        (0x1000_C010_1000_A096, 0x1000_C030_1000_1001, False),
        (0x11F8_4068_0000_0000, 0x11F8_4068_0000_0000, False),
    ],
    ids=["generation 4", "generation 5", "wrong level", "mixed", "another maker"],
)
def test_two_levels_of_one_broadcom_switch_are_one(
    outer: int, inner: int, *, flattened: bool
) -> None:
    switches = (
        Switch("top", "cpu:0", 24.0, outer),
        *(Switch(f"sub{i}", "top", 24.0, inner) for i in range(2)),
    )
    gpus = tuple(Device(f"gpu:{i}", f"sub{i}", 24.0, i, 80) for i in range(2))
    found = compute(flat(switches=switches, gpus=gpus, nets=()))["gpu:0", "gpu:1"].type
    assert found is (PathType.PIX if flattened else PathType.PXB)


def test_links_of_a_gpu_of_unknown_generation_are_left_out() -> None:
    gpus = tuple(Device(f"gpu:{i}", "cpu:0", 48.0, i, nvlinks={"nvswitch": 18}) for i in range(2))
    assert compute(flat(gpus=gpus, nets=()))["gpu:0", "gpu:1"].type is PathType.PHB


@pytest.mark.parametrize(
    ("speed", "width", "gbps"),
    [(8.0, 16, 12.0), (16.0, 16, 24.0), (32.0, 8, 24.0), (64.0, 16, 96.0), (2.5, 1, 0.1875),
     (None, 16, 12.0), (32.0, None, 48.0), (None, None, 12.0), (128.0, 16, 12.0)],
)  # fmt: skip
def test_pcie_bandwidth(speed: float | None, width: int | None, gbps: float) -> None:
    """Unknown speeds, and those it does not know yet, count as 8 GT/s."""
    assert pcie_gbps(speed, width) == gbps


@pytest.mark.parametrize(
    ("arch", "vendor", "family", "model", "gbps"),
    [
        ("x86_64", "GenuineIntel", 6, 0x4F, 6.0),
        ("x86_64", "GenuineIntel", 6, 0x55, 10.0),
        ("x86_64", "GenuineIntel", 6, 0x8F, 22.0),
        ("x86_64", "GenuineIntel", 6, 0xCF, 40.0),
        ("x86_64", "GenuineIntel", 15, 0xCF, 6.0),
        ("x86_64", "AuthenticAMD", 25, 17, 16.0),
        ("x86_64", None, None, None, 5000.0),
        ("aarch64", None, None, None, 6.0),
        ("ppc64le", None, None, None, 32.0),
        (None, None, None, None, 5000.0),
    ],
)
def test_bandwidth_between_cpus(
    arch: str | None, vendor: str | None, family: int | None, model: int | None, gbps: float
) -> None:
    assert cpu_gbps(arch, vendor, family, model) == gbps
