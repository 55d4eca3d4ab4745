"""Names of what was bought, derived from what discovery found."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import sqlalchemy as sa

from made_machine import Eight, write
from storing import begin, host, topology
from topobench import commands, config
from topobench.agents.discover import discover
from topobench.db.store import Store
from topobench.sku import cpu_name, form_factor, gpu_name, sku_name


@pytest.mark.parametrize(
    ("model", "name", "form"),
    [
        ("NVIDIA H200", "H200-SXM", "SXM"),
        ("NVIDIA H200 NVL", "H200 NVL", "NVL"),
        ("NVIDIA H100 80GB HBM3", "H100-SXM 80GB", "SXM"),
        ("NVIDIA H100 PCIe", "H100-PCIe", "PCIe"),
        ("NVIDIA A100-SXM4-80GB", "A100-SXM 80GB", "SXM"),
        ("NVIDIA A100 80GB PCIe", "A100-PCIe 80GB", "PCIe"),
        ("Tesla V100-PCIE-16GB", "V100-PCIe 16GB", "PCIe"),
        ("NVIDIA L40S", "L40S", "PCIe"),
        ("NVIDIA GH200 480GB", "GH200 480GB", "superchip"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090", "PCIe"),
        ("Some New GPU", "Some New GPU", None),
        (None, "unknown GPU", None),
    ],
)
def test_a_gpu_is_named_with_its_form(model: str | None, name: str, form: str | None) -> None:
    assert (gpu_name(model), form_factor(model)) == (name, form)


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("Intel(R) Xeon(R) Platinum 8480C", "Xeon 8480C"),
        ("Intel(R) Xeon(R) Gold 6348 CPU @ 2.60GHz", "Xeon 6348"),
        ("Intel(R) Xeon(R) CPU E5-2698 v4 @ 2.20GHz", "Xeon E5-2698 v4"),
        ("Intel(R) Xeon(R) Processor", "Xeon"),
        ("AMD EPYC 9654 96-Core Processor", "EPYC 9654"),
        ("Neoverse-V2", "Neoverse-V2"),
    ],
)
def test_a_cpu_is_named_short(model: str, name: str) -> None:
    assert cpu_name(model) == name


def test_a_link_that_trained_low_does_not_move_the_name(tmp_path: Path) -> None:
    """Of eight NICs on a made host of two packages; its GPUs are the stored ones."""
    machine = Eight(tmp_path).make()
    gpus = topology(gpus=8).gpus
    found = dataclasses.replace(discover(tmp_path, nvml=None), gpus=gpus)
    assert sku_name(found) == "8x H200-SXM / 2x Test / 8x CX7-400"
    (slow,) = machine.root.glob("sys/devices/**/mlx5_3/ports/1/rate")
    write(machine.root, str(slow.relative_to(machine.root)), "100 Gb/sec (1X EDR)")
    slower = dataclasses.replace(discover(tmp_path, nvml=None), gpus=gpus)
    assert sku_name(slower) == sku_name(found)


def test_a_store_knows_what_an_sku_is_made_of(tmp_path: Path) -> None:
    Eight(tmp_path / "tree").make()
    wiring = discover(tmp_path / "tree", nvml=None)
    made = dataclasses.replace(wiring, gpus=topology(gpus=8).gpus)
    with Store.open(f"sqlite:///{tmp_path}/x.db") as store:
        begin(store, hosts=[dataclasses.replace(host(), topology=made)])
        named = dataclasses.replace(host("k2"), topology=made, labels={"sku": "h200-sxm8"})
        begin(store, hosts=[named])
        with store.engine.connect() as connection:
            query = "SELECT name, gpu_model, gpu_count, form_factor, cpu_model, nic_model FROM sku"
            found = [tuple(r) for r in connection.execute(sa.text(query))]
    parts = ("NVIDIA H200", 8, "SXM", "Test CPU", "CX7-400")
    assert found == [
        ("8x H200-SXM / 2x Test / 8x CX7-400", *parts),
        ("h200-sxm8", *parts),
    ]


def test_the_name_that_the_config_gives_goes_with_the_host(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(
        "kind: topobench/v1\nname: lab\nhosts: [{host: h1, sku: h200-sxm8, labels: {rack: r1}}]\n"
    )
    (request,) = commands._requests(config.load(path), "")
    assert request.labels == {"sku": "h200-sxm8", "rack": "r1"}
