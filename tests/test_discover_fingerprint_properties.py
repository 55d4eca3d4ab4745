"""What holds of fingerprints for any renumbering of any host, and for any one fault."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from made_hosts import HOSTS, make
from topobench.agents.discover.fingerprint import fingerprints
from topobench.topology import (
    Gpu,
    Known,
    Topology,
    build,
    format_cpu_list,
    parse_cpu_list,
    plain,
)

PARTS = {"cpu", "numa", "pci", "nvlink", "nic"}
NAMES = sorted(file.stem for file in HOSTS.glob("*.yaml"))
LINKED = ["a100-pcie", "b200", "gb200-tray", "h100-nvswitch", "h800"]

some = settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Topology]:
    return {name: make(name, tmp_path_factory.mktemp(name)).discover() for name in NAMES}


def moved(a: Topology, b: Topology) -> set[str]:
    """Names of the fingerprints in which two topologies differ."""
    first, second = fingerprints(a), fingerprints(b)
    return {name for name in first if first[name] != second[name]}


def renumbered(topology: Topology, draw: Any) -> Topology:
    """The same host with other numbers for GPUs, buses, CPUs and NUMA nodes, in another order."""
    roots = sorted({d.address.rpartition(":")[0] for d in topology.pci})
    buses = dict(zip(roots, draw(st.permutations(range(len(roots)))), strict=True))
    cpus = parse_cpu_list(topology.cpus.possible)
    ids = [n.id for n in topology.numa_nodes]
    names = _Names(
        buses={bus: f"0000:{number:02x}" for bus, number in buses.items()},
        cpus=dict(zip(cpus, draw(st.permutations(cpus)), strict=True)),
        nodes=dict(zip(ids, draw(st.permutations(ids)), strict=True)),
    )
    renamed: Topology = build(Topology, names.of(plain(topology)))
    gpus = draw(st.permutations(renamed.gpus))
    return replace(
        renamed,
        pci=tuple(draw(st.permutations(renamed.pci))),
        gpus=tuple(replace(g, index=None if g.is_slice else i) for i, g in enumerate(gpus)),
        nics=tuple(draw(st.permutations(renamed.nics))),
    )


class _Names:
    """New names, put into a document wherever an old one stands."""

    def __init__(
        self, buses: Mapping[str, str], cpus: Mapping[int, int], nodes: Mapping[int, int]
    ) -> None:
        self.buses, self.cpus, self.nodes = buses, cpus, nodes

    def of(self, document: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = self._of(document)
        for node in found["numa_nodes"]:
            node["id"] = self.nodes[node["id"]]
        table = found["numa_distances"]
        table["nodes"] = [self.nodes[n] for n in table["nodes"]]
        return found

    def _of(self, value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            near = key in ("numa_node", "cpu_node") and value["value"] is not None
            found = {k: self._of(v, k) for k, v in value.items()}
            return {**found, "value": self.nodes[value["value"]]} if near else found
        if isinstance(value, list):
            return [self._of(v, key) for v in value]
        if isinstance(value, str) and key in ("cpus", "online", "possible", "allowed", "sets"):
            return format_cpu_list(self.cpus[c] for c in parse_cpu_list(value))
        if isinstance(value, str) and value.rpartition(":")[0] in self.buses:
            return f"{self.buses[value.rpartition(':')[0]]}:{value.rpartition(':')[2]}"
        return value


@pytest.mark.parametrize("name", NAMES)
@some
@given(data=st.data())
def test_numbers_and_order_never_count(
    hosts: dict[str, Topology], name: str, data: st.DataObject
) -> None:
    host = hosts[name]
    assert moved(host, renumbered(host, data.draw)) == set()


@pytest.mark.parametrize("name", LINKED)
@some
@given(data=st.data())
def test_any_nvlink_that_fails_moves_health_alone(
    hosts: dict[str, Topology], name: str, data: st.DataObject
) -> None:
    host = hosts[name]
    position = data.draw(st.integers(0, len(host.gpus) - 1))
    gpu = host.gpus[position]
    assert gpu.nvlink is not None
    broken = data.draw(st.integers(0, len(gpu.nvlink.links) - 1))
    links = [replace(k, state="inactive") if k.index == broken else k for k in gpu.nvlink.links]
    fewer = replace(gpu.nvlink, links=tuple(links), active=gpu.nvlink.active - 1)
    assert moved(host, _with_gpu(host, position, replace(gpu, nvlink=fewer))) == {"health"}


@pytest.mark.parametrize("name", LINKED)
@some
@given(data=st.data())
def test_any_lost_lane_moves_health_alone(
    hosts: dict[str, Topology], name: str, data: st.DataObject
) -> None:
    host = hosts[name]
    position = data.draw(st.integers(0, len(host.pci) - 1))
    device = host.pci[position]
    assert device.link is not None
    narrow = replace(device, link=replace(device.link, width=data.draw(st.sampled_from([1, 4, 8]))))
    changed = replace(host, pci=(*host.pci[:position], narrow, *host.pci[position + 1 :]))
    assert moved(host, changed) == {"health"}


@pytest.mark.parametrize("name", ["h100-nvswitch", "gb200-tray"])
def test_nic_at_another_node_moves_shape_and_names_the_part(
    hosts: dict[str, Topology], name: str
) -> None:
    host = hosts[name]
    address = host.nics[0].pci_address
    devices = [
        replace(d, numa_node=Known(1, "sysfs")) if d.address == address else d for d in host.pci
    ]
    changed = replace(host, pci=tuple(devices))
    assert moved(host, changed) == {"shape", "config", "health", "pci", "nic"}


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ({"model": "Another CPU"}, {"cpu"}),
        ({"stepping": 9}, {"cpu"}),
        ({"physical_cores": 3}, {"cpu"}),
    ],
)
def test_other_cpus_move_their_part_alone(
    hosts: dict[str, Topology], change: dict[str, Any], parts: set[str]
) -> None:
    host = hosts["h100-nvswitch"]
    changed = replace(host, cpus=replace(host.cpus, **change))
    assert moved(host, changed) & PARTS == parts


def test_other_expected_nvlinks_move_the_part_of_nvlinks(hosts: dict[str, Topology]) -> None:
    """The GPUs of the PCI tree are others too, as they are known by what they should have."""
    assert moved(hosts["h100-nvswitch"], hosts["h800"]) & PARTS == {"pci", "nvlink"}


def test_a_guest_is_another_shape_than_its_metal(hosts: dict[str, Topology]) -> None:
    host = hosts["h100-nvswitch"]
    assert {"shape", "cpu"} <= moved(host, replace(host, virtualization="kvm"))


def test_unknown_is_not_zero(hosts: dict[str, Topology]) -> None:
    host = hosts["h100-nvswitch"]
    unknown = replace(host, cpus=replace(host.cpus, stepping=None))
    zero = replace(host, cpus=replace(host.cpus, stepping=0))
    assert "cpu" in moved(unknown, zero)


def _with_gpu(host: Topology, position: int, gpu: Gpu) -> Topology:
    return replace(host, gpus=(*host.gpus[:position], gpu, *host.gpus[position + 1 :]))
