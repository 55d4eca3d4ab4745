"""Differences between topologies: what changed is named, and nothing else."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from golden import printed
from report_topologies import GEN5, grace, hgx
from topobench.paths import find_paths
from topobench.report.topo_diff_text import render_diff
from topobench.topology import (
    Known,
    Mig,
    Nic,
    NumaDistances,
    P2p,
    Topology,
)
from topobench.topology_diff import Change, diff


def whole(topology: Topology) -> Topology:
    return dataclasses.replace(topology, paths=find_paths(topology).paths)


def gpu(topology: Topology, index: int, **values: Any) -> Topology:
    gpus = [dataclasses.replace(g, **values) if g.index == index else g for g in topology.gpus]
    return dataclasses.replace(topology, gpus=tuple(gpus))


def nic(topology: Topology, name: str, **values: Any) -> Topology:
    nics = [dataclasses.replace(n, **values) if n.name == name else n for n in topology.nics]
    return dataclasses.replace(topology, nics=tuple(nics))


def device(topology: Topology, address: str, **values: Any) -> Topology:
    pci = [dataclasses.replace(d, **values) if d.address == address else d for d in topology.pci]
    return dataclasses.replace(topology, pci=tuple(pci))


def changes(a: Topology, b: Topology) -> list[tuple[str, str, str]]:
    return [(c.group, c.code, c.subject) for c in diff(a, b).changes]


def only(a: Topology, b: Topology) -> Change:
    found = diff(a, b).changes
    assert len(found) == 1, [c.text for c in found]
    return found[0]


BASE = whole(hgx())


@pytest.mark.parametrize("topology", [hgx(), hgx(2), grace(), BASE])
def test_a_topology_does_not_differ_from_itself(topology: Topology) -> None:
    found = diff(topology, dataclasses.replace(topology, taken_at="later", root="/elsewhere"))
    assert (found.changes, found.unknown) == ((), ())
    assert found.to_json()["equal"] is True


def test_a_nic_on_another_node_is_named_with_its_paths() -> None:
    moved = nic(BASE, "mlx5_3", numa_node=Known(1, "sysfs"))
    first, *rest = diff(BASE, moved).changes
    assert (first.group, first.code, first.subject) == ("shape", "nic_moved", "nic:mlx5_3")
    assert (first.a, first.b, first.text) == (0, 1, "NUMA node: 0, now 1")
    assert rest == []


def test_classes_that_changed_alike_are_told_as_one() -> None:
    ways = [p for p in hgx().paths if "mlx5_3" in p.b]
    a = dataclasses.replace(BASE, paths=tuple(dataclasses.replace(p, smi_pcie="SYS") for p in ways))
    b = dataclasses.replace(a, paths=tuple(dataclasses.replace(p, smi_pcie="PHB") for p in a.paths))
    change = only(a, b)
    assert (change.code, change.a, change.b) == ("path_class", "SYS", "PHB")
    assert "8 pairs" in change.text
    assert change.subject.endswith("and 2 more")


def test_a_link_with_fewer_lanes_is_health_not_shape() -> None:
    slow = dataclasses.replace(GEN5, width=8, bytes_per_second=31.5e9)
    change = only(BASE, device(BASE, "0000:14:00.0", link=slow))
    assert (change.group, change.code, change.subject) == ("health", "link_narrower", "gpu:0")
    assert change.text == "PCIe link: x16, now x8"


def test_a_slower_link_is_told_unless_a_gpu_is_idle() -> None:
    for speed, expected in ((16.0, [("health", "link_slower", "gpu:0")]), (2.5, [])):
        link = dataclasses.replace(GEN5, speed_gts=speed, bytes_per_second=speed)
        assert changes(BASE, device(BASE, "0000:14:00.0", link=link)) == expected
    nic_link = dataclasses.replace(GEN5, speed_gts=2.5, bytes_per_second=2.5)
    found = changes(BASE, device(BASE, "0000:15:00.0", link=nic_link))
    assert found == [("health", "link_slower", "nic:mlx5_0")]


def test_a_switchs_link_that_trained_down_is_named_by_its_address() -> None:
    slow = dataclasses.replace(GEN5, width=4, bytes_per_second=15.75e9)
    change = only(BASE, device(BASE, "0000:11:00.0", link=slow))
    assert (change.code, change.subject) == ("link_narrower", "switch:0000:11:00.0")


def test_a_lost_nvlink_is_named_with_its_number() -> None:
    links = BASE.gpus[0].nvlink
    assert links is not None
    down = tuple(
        dataclasses.replace(k, state="inactive") if k.index == 7 else k for k in links.links
    )
    change = only(BASE, gpu(BASE, 0, nvlink=dataclasses.replace(links, active=17, links=down)))
    assert (change.group, change.code, change.a, change.b) == ("health", "nvlink_lost", 18, 17)
    assert change.text == "active NVLinks: 18, now 17 (not active: 7)"
    assert diff(gpu(BASE, 0, nvlink=dataclasses.replace(links, active=17)), BASE).changes[
        0
    ].code == ("nvlink_back")


def test_a_missing_gpu_is_one_difference_however_the_others_are_numbered() -> None:
    """The GPUs after it get another number, but they are the same GPUs."""
    left = [g for g in BASE.gpus if g.index != 2]
    gpus = tuple(dataclasses.replace(g, index=i) for i, g in enumerate(left))
    found = whole(dataclasses.replace(BASE, gpus=gpus, paths=()))
    change = only(BASE, found)
    assert (change.code, change.subject, change.b) == ("gpu_missing", "gpu:2", None)
    assert "0000:34:00.0" in change.text
    assert changes(found, BASE) == [("shape", "gpu_added", "gpu:2")]


def test_a_replaced_gpu_is_setup_but_another_hosts_gpus_are_not() -> None:
    assert only(BASE, gpu(BASE, 1, uuid="GPU-new")).code == "gpu_replaced"
    other = tuple(dataclasses.replace(g, uuid=f"GPU-other-{g.index}") for g in BASE.gpus)
    assert changes(BASE, dataclasses.replace(BASE, gpus=other)) == []


def test_hosts_built_alike_on_other_buses_do_not_differ() -> None:
    def shifted(address: str | None) -> str | None:
        return address and address.replace("0000:", "0001:")

    pci = tuple(
        dataclasses.replace(d, address=shifted(d.address) or "", parent=shifted(d.parent))
        for d in BASE.pci
    )
    other = dataclasses.replace(
        BASE,
        pci=pci,
        gpus=tuple(
            dataclasses.replace(g, uuid=f"GPU-o{g.index}", pci_address=shifted(g.pci_address))
            for g in BASE.gpus
        ),
        nics=tuple(dataclasses.replace(n, pci_address=shifted(n.pci_address)) for n in BASE.nics),
    )
    assert changes(BASE, other) == []


@pytest.mark.parametrize(
    ("field", "group"),
    [
        ("driver", "config"),
        ("kernel", "config"),
        ("bios", "config"),
        ("cuda", "config"),
        ("arch", "shape"),
    ],
)
def test_the_machines_own_facts_are_grouped(field: str, group: str) -> None:
    machines = [dataclasses.replace(BASE.machine, **{field: value}) for value in ("1", "2")]
    a, b = (dataclasses.replace(BASE, machine=m) for m in machines)
    change = only(a, b)
    assert (change.group, change.code, change.text) == (group, field, f"{field}: 1, now 2")


def test_what_only_one_side_knows_is_no_difference() -> None:
    found = diff(gpu(BASE, 0, cpu_node=Known(None, None, "why")), BASE)
    assert found.changes == ()
    assert found.unknown == ("gpu:0 NUMA node",)
    bare = dataclasses.replace(BASE, machine=dataclasses.replace(BASE.machine, driver=None))
    assert diff(BASE, bare).unknown == ("host driver",)


def test_memory_that_the_kernel_keeps_is_no_difference_but_a_module_is() -> None:
    def sized(size: int) -> Topology:
        first = dataclasses.replace(BASE.numa_nodes[0], memory_bytes=size)
        return dataclasses.replace(BASE, numa_nodes=(first, BASE.numa_nodes[1]))

    assert changes(BASE, sized(2**40 - 2**34)) == []
    assert changes(BASE, sized(2**40 * 7 // 8)) == [("shape", "numa_memory", "numa:0")]


def test_states_rates_peer_access_slices_and_nodes_are_compared() -> None:
    assert only(BASE, gpu(BASE, 0, state="lost")).code == "gpu_state"
    assert only(BASE, nic(BASE, "mlx5_1", state="down")).code == "nic_state"
    change = only(BASE, nic(BASE, "mlx5_1", rate_bytes_per_second=25e9))
    assert change.text == "rate: 400 Gb/s, now 200 Gb/s"
    far = NumaDistances((0, 1), ((10, 32), (32, 10)))
    assert only(BASE, dataclasses.replace(BASE, numa_distances=far)).code == "numa_distances"
    one = dataclasses.replace(BASE, numa_nodes=BASE.numa_nodes[:1])
    assert changes(BASE, one) == [("shape", "numa_node_missing", "numa:1")]
    part = dataclasses.replace(
        BASE.gpus[0], uuid="MIG-1", index=None, mig=Mig("enabled", "GPU-0", "1g")
    )
    sliced = dataclasses.replace(BASE, gpus=(*BASE.gpus, part))
    assert only(BASE, sliced).text == "MIG slices: none, now 1 x 1g"
    paths = [dataclasses.replace(p, p2p=P2p("OK", "OK")) for p in BASE.paths[:1]]
    bad = [dataclasses.replace(p, p2p=P2p("OK", "CNS")) for p in paths]
    change = only(
        dataclasses.replace(BASE, paths=tuple(paths)), dataclasses.replace(BASE, paths=tuple(bad))
    )
    assert (change.group, change.code) == ("health", "p2p")


def test_the_text_tells_groups_and_what_was_not_compared() -> None:
    changed = gpu(nic(BASE, "mlx5_3", numa_node=Known(1, "sysfs")), 0, state="lost")
    changed = dataclasses.replace(changed, machine=dataclasses.replace(BASE.machine, driver=None))
    shown = printed(render_diff(diff(BASE, changed)))
    assert shown.index("SHAPE") < shown.index("nic:mlx5_3") < shown.index("HEALTH")
    assert "CONFIG" not in shown
    assert "host driver" in shown
    assert printed(render_diff(diff(BASE, BASE))) == "No difference.\n"


def test_hostile_names_are_shown_as_text() -> None:
    bad = "\x1b[31m\n"
    other = dataclasses.replace(BASE, nics=(Nic(bad, None, Known(0, "x")),))
    shown = printed(render_diff(diff(BASE, other)))
    assert "\x1b" not in shown
