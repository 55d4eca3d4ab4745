"""What is wrong with a host's GPUs before it is measured: found, skipped by name, or labelled."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import pytest

from examining import examine
from fake_nvml import FakeNvml
from planning import configured, dual, gpu, host, small
from topobench import config, health
from topobench.agents import health as looking
from topobench.agents.conditions.nvml_counters import Session
from topobench.agents.service import HostRequest, HostService
from topobench.db import evidence_hosts
from topobench.errors import ConfigError
from topobench.health import Action, Rules, Trouble
from topobench.host import Host
from topobench.plan import Plan, make_plan, plan_like
from topobench.reading import Arm, Binding, Case, Cell, ReasonCode, Run, Status, to_json
from topobench.selection import select_gpus
from topobench.topology import Known, Nic, NvLinks, Topology
from topobench.verdict_words import Fault
from watched_gpu import Watched

BOOT = "6,1,1000000,-;Linux version 6.8.0\n"
LOADED = "5,900,2000000,-;NVRM: loading NVIDIA UNIX x86_64 Kernel Module  580.159.04\n"
XID_79 = (
    "4,1102,5000000,-;NVRM: Xid (PCI:0000:ae:00): 79, pid='<unknown>', name=<unknown>, "
    "GPU has fallen off the bus.\n"
)
SPLIT = (
    "4,1103,6000000,-;NVRM: The NVIDIA GPU 0000:b3:00.0\n"
    "4,1104,6000001,c;NVRM: (PCI ID: 10de:2330) installed in this system has\n"
    "4,1105,6000002,c;NVRM: fallen off the bus and is not responding to commands.\n"
)


def events(text: str) -> list[tuple[int, str]]:
    return [(e.xid, e.address) for e in health.kernel_events(text)]


def test_a_gpu_off_the_bus_is_the_same_event_in_one_line_and_in_three() -> None:
    assert events(BOOT + LOADED + XID_79 + SPLIT) == [(79, "0000:ae:00"), (79, "0000:b3:00.0")]


def test_what_dmesg_prints_is_read_like_the_kernels_own_records() -> None:
    printed = "[    5.000000] NVRM: Xid (PCI:0000:ae:00): 48, pid=7, DBE (double bit error)\n"
    (event,) = health.kernel_events(printed)
    assert (event.at, event.xid, event.text) == (5.0, 48, "uncorrectable memory error")


@pytest.mark.parametrize("xid", [13, 31, 43, 45, 63, 94])
def test_faults_of_programs_and_what_counters_tell_are_no_events(xid: int) -> None:
    assert events(XID_79.replace(": 79,", f": {xid},")) == []


def test_a_driver_that_was_loaded_again_has_no_past() -> None:
    assert events(XID_79 + LOADED.replace("2000000", "7000000")) == []


def test_a_reset_takes_back_what_was_said_of_that_gpu() -> None:
    """Xid 154 tells what the driver asks for, and that it asks for nothing any more."""
    asked = XID_79.replace("79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.", "{}")
    wish = asked.format(
        "154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)"
    )
    (event,) = health.kernel_events(XID_79 + wish)
    assert event.text == "the driver asks for: Node Reboot Required"
    assert event.fix == health.REBOOT
    gone = asked.format(
        "154, GPU recovery action changed from 0x2 (Node Reboot Required) to 0x0 (None)"
    )
    assert events(SPLIT + XID_79 + wish + gone) == [(79, "0000:b3:00.0")]
    assert events(SPLIT + gone.replace("ae:00", "b3:00")) == []  # with and without a function


def test_a_switch_that_failed_concerns_every_gpu() -> None:
    line = "3,9,8000000,-;nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 12028, {}, Link 32 egress\n"
    found, _ = troubles(Watched(), line.format("Fatal"))
    assert [(t.kind, t.code, t.device) for t in found] == [("fabric", "fabric", None)]
    assert found[0].text == "NVSwitch 0000:c1:00.0 reported the fatal SXid 12028, 2 s ago"
    assert troubles(Watched(), line.format("Non-fatal"))[0] == []


def log_of(text: str, folder: Path) -> str:
    path = folder / "kmsg"
    path.write_text(text)
    return str(path)


def troubles(
    watched: Watched, log: str = "", *, topology: Topology | None = None, now: float = 10.0
) -> tuple[list[Trouble], list[float]]:
    """What ails a host whose only GPU NVML answers for, and the pauses that looking took."""
    place = topology or small(gpus=[dataclasses.replace(gpu(0), uuid=watched.uuid)])
    pauses: list[float] = []
    read, write = os.pipe()
    os.write(write, log.encode())
    os.close(write)
    try:
        found, unread = looking.look(
            *(place, watched.session),
            log=f"/dev/fd/{read}", now=lambda: now, sleep=pauses.append,
        )  # fmt: skip
    finally:
        os.close(read)
    assert unread == {}
    return list(found), pauses


def test_nothing_ails_a_gpu_in_order() -> None:
    assert troubles(Watched(), LOADED) == ([], [])


def test_an_xid_is_told_with_its_gpu_its_age_and_what_mends_it() -> None:
    watched = Watched()
    line = XID_79.replace("ae:00", "10:00")
    found, _ = troubles(watched, line, now=65.0)
    assert [(t.code, t.device, t.grave, t.age_seconds) for t in found] == [
        ("xid", watched.uuid, True, 60.0)
    ]
    assert str(found[0]) == f"{watched.uuid}: Xid 79 60 s ago: it has fallen off the bus; " + (
        health.REBOOT
    )


def test_an_xid_of_a_gpu_that_the_driver_says_is_in_order_is_no_obstacle() -> None:
    watched = Watched()
    watched.state.numbers = {230: 0}
    (found,), _ = troubles(watched, XID_79.replace("ae:00", "10:00"))
    assert not found.grave
    assert Rules().of(found) is Action.LABEL


def test_a_reset_that_the_driver_asks_for_is_named() -> None:
    watched = Watched()
    watched.state.numbers = {230: 1}
    (found,), _ = troubles(watched)
    assert (found.kind, found.code) == ("xid", "reset_needed")
    assert str(found).endswith(f"sudo nvidia-smi --gpu-reset -i {watched.uuid}")


@pytest.mark.parametrize(
    ("rows", "said"),
    [((3, 1, 1, 0), "waits for a reset"), ((3, 1, 1, 1), "could not replace a bad memory row")],
)
def test_memory_rows_that_wait_to_be_replaced_or_cannot_be(
    rows: tuple[int, ...], said: str
) -> None:
    (found,), _ = troubles(Watched(DeviceGetRemappedRows=rows))
    assert (found.kind, found.code) == ("memory", "row_remap")
    assert said in found.text


def test_uncorrectable_memory_errors_since_the_driver_was_loaded() -> None:
    watched = Watched()
    watched.state.uncorrected = 2
    (found,), _ = troubles(watched)
    assert (found.kind, found.code) == ("memory", "ecc_error")
    assert "2 uncorrectable memory errors" in found.text


def test_a_slowdown_by_the_hardware_counts_when_it_stays() -> None:
    watched = Watched()
    watched.state.reasons = 0x1 | 0x40
    (found,), pauses = troubles(watched)
    assert (found.kind, found.code) == ("throttle", "throttled")
    assert "slowed down by hw_thermal_slowdown" in found.text
    assert pauses == [looking.SLOWDOWN_PAUSE_SECONDS] * 2
    reasons = iter([0x8, 0x0])
    passing = Watched(DeviceGetCurrentClocksEventReasons=lambda: next(reasons))
    assert troubles(passing)[0] == []


@pytest.mark.parametrize("reasons", [0x1, 0x4, 0x20])
def test_idleness_and_the_power_cap_are_no_slowdown(reasons: int) -> None:
    watched = Watched()
    watched.state.reasons = reasons
    assert troubles(watched) == ([], [])


LINKS = NvLinks(active=18, expected=18, version="4.0", bytes_per_second=4.78e11)


def test_a_fabric_that_is_not_ready_and_links_that_are_down() -> None:
    watched = Watched()
    waiting = gpu(0, nvlink=LINKS, fabric="in_progress", uuid=watched.uuid)
    (found,), _ = troubles(watched, topology=small(gpus=[waiting]))
    assert (found.kind, found.code) == ("fabric", "fabric")
    assert "with the NVLink fabric is in_progress" in found.text
    fewer = gpu(0, nvlink=dataclasses.replace(LINKS, active=16), uuid=watched.uuid)
    (found,), _ = troubles(watched, topology=small(gpus=[fewer]))
    assert (found.kind, found.code) == ("links", "degraded_link")
    assert "16 of 18 NVLinks active" in found.text


def test_one_port_that_is_down_among_ports_that_are_up() -> None:
    ports = [
        Nic(f"mlx5_{i}", None, Known(0, "sysfs"), state="down" if i == 2 else "active", rdma=True)
        for i in range(4)
    ]
    watched = Watched()
    place = small(gpus=[dataclasses.replace(gpu(0), uuid=watched.uuid)])
    (found,), _ = troubles(watched, topology=dataclasses.replace(place, nics=tuple(ports)))
    assert (found.device, found.grave) == ("nic:mlx5_2", False)
    unused = [dataclasses.replace(p, state="down") for p in ports]
    assert troubles(watched, topology=dataclasses.replace(place, nics=tuple(unused)))[0] == []


def test_a_log_that_may_not_be_read_is_unknown_and_not_clean(tmp_path: Path) -> None:
    place = small(gpus=[gpu(0)])
    session = Session(FakeNvml([]))
    found, unread = looking.look(place, session, log=str(tmp_path / "none"))
    assert found == ()
    assert unread == {"xid": f"{tmp_path}/none: No such file or directory"}
    planned = make_plan(configured(probes="gemm"), [host(place, health_unread=unread)], seed=1)
    assert any("Xid errors cannot be seen on 1 of 1 hosts (h1)" in w for w in planned.warnings)


@pytest.mark.skipif(not os.access("/dev/kmsg", os.R_OK), reason="/dev/kmsg may not be read here")
def test_the_log_of_this_kernel_is_read_to_its_end_without_waiting() -> None:
    try:
        text = looking.read_log("/dev/kmsg")
    except PermissionError:
        pytest.skip("the kernel lets nobody but root read its log (kernel.dmesg_restrict)")
    assert text.count("\n") > 1
    assert all(isinstance(e.xid, int) for e in health.kernel_events(text))


BAD = Trouble("memory", ReasonCode.ROW_REMAP, "bad rows", "reset it", gpu(2).key)
OLD = Trouble("xid", ReasonCode.XID, "Xid 79", "reboot", gpu(2).key, age_seconds=90_000)


def planned(rules: str = "", *found: Trouble, folder: Path) -> Plan:
    """Plan of gemm on eight GPUs of a host with these troubles."""
    return make_plan(read(rules, folder), [ailing(*found)], seed=1)


def read(rules: str, folder: Path) -> config.ClusterConfig:
    path = folder / "cluster.yaml"
    path.write_text(f"kind: topobench/v1\nprobes: [gemm, host_memory]\n{rules}\n")
    return config.load(path, environ={})


def ailing(*found: Trouble) -> Host:
    return host(dual(8), health=found)


def test_a_gpu_that_ails_is_skipped_by_name_and_the_others_are_measured(tmp_path: Path) -> None:
    found = planned("", BAD, folder=tmp_path)
    skipped = [c for c in found.cells if c.status is Status.SKIPPED]
    assert {(c.devices, str(c.reason)) for c in skipped} == {
        ((gpu(2).key,), "row_remap: bad rows; reset it")
    }
    measured = {d for c in found.cells if c.status is Status.PLANNED for d in c.devices}
    assert measured == {gpu(i).key for i in range(8)} - {gpu(2).key}
    assert found.ailing_hosts == ("h1",)
    assert "h1: bad rows; reset it (row_remap, not measured)" in found.warnings


def test_a_gpu_that_ails_is_measured_and_labelled_where_that_is_asked_for(tmp_path: Path) -> None:
    found = planned("health: {memory: label}", BAD, folder=tmp_path)
    assert gpu(2).key in {d for c in found.cells if c.status is Status.PLANNED for d in c.devices}
    assert found.ailing_hosts == ()
    assert "h1: bad rows; reset it (row_remap, measured all the same)" in found.warnings
    (told,) = health.labelled(Rules(memory=Action.LABEL), [BAD], (gpu(2).key,))
    assert told is BAD
    assert list(health.labelled(Rules(), [BAD], (gpu(1).key,))) == []


def test_a_trouble_nobody_asks_about_or_of_long_ago_is_not_told(tmp_path: Path) -> None:
    for rules, trouble in (("health: {memory: off}", BAD), ("", OLD)):
        found = planned(rules, trouble, folder=tmp_path)
        assert found.ailing_hosts == ()
        assert not any("GPU-" in w or "Xid" in w for w in found.warnings)
    assert planned("health: {since: 2d}", OLD, folder=tmp_path).ailing_hosts == ("h1",)


def test_what_all_gpus_hang_on_skips_all_of_them_and_the_cpus_are_measured(tmp_path: Path) -> None:
    switch = Trouble("fabric", ReasonCode.FABRIC, "NVSwitch failed", "reset all")
    found = planned("", switch, folder=tmp_path)
    status = {c.case.probe: c.status for c in found.cells if c.case.probe == "gemm"}
    assert status == {"gemm": Status.SKIPPED}
    assert {c.status for c in found.cells if c.case.probe == "host_memory"} >= {Status.PLANNED}


def test_a_sweep_that_is_repeated_leaves_out_what_ails_by_now(tmp_path: Path) -> None:
    before = planned("", folder=tmp_path)
    again = plan_like(read("", tmp_path), [ailing(BAD)], before.cells, 1)
    for cell in again.cells:
        left_out = gpu(2).key in cell.devices
        assert cell.status is (Status.SKIPPED if left_out else Status.PLANNED), cell
    assert {c.status for c in again.cells} == {Status.SKIPPED, Status.PLANNED}
    assert again.ailing_hosts == ("h1",)


def test_a_lost_gpu_is_told_with_its_xid() -> None:
    lost = dual(2)
    lost = dataclasses.replace(lost, gpus=(lost.gpus[0], gpu(1, 1, state="lost")))
    event = Trouble("xid", ReasonCode.XID, "Xid 79 9s ago", health.REBOOT, gpu(1).key)
    ((broken, lack),) = select_gpus(configured(), host(lost, health=(event,))).broken
    assert broken.index == 1
    assert "does not answer the driver (lost); Xid 79 9s ago; reboot the host" in str(lack.reason)


def test_health_travels_with_the_host_and_into_the_store() -> None:
    made = ailing(BAD, OLD)
    assert Host.from_json(made.to_json()) == made


def test_the_rules_load_back_from_what_is_stored(tmp_path: Path) -> None:
    loaded = read("health: {links: skip, throttle: off, since: 2h}", tmp_path)
    assert loaded.health == Rules(links=Action.SKIP, throttle=Action.OFF, since_seconds=7200.0)
    (tmp_path / "again.yaml").write_text(config.to_yaml(loaded))
    assert config.load(tmp_path / "again.yaml", environ={}).health == loaded.health


@pytest.mark.parametrize("text", ["xid: ignore", "since: soon", "disk: skip"])
def test_rules_that_make_no_sense_are_mistakes(text: str, tmp_path: Any) -> None:
    with pytest.raises(ConfigError, match=r"health\."):
        read(f"health: {{{text}}}", tmp_path)


def test_doctor_tells_xids_and_that_they_cannot_be_seen(tmp_path: Path) -> None:
    place = small(gpus=[gpu(2)])
    event = Trouble("xid", ReasonCode.XID, "Xid 79 9s ago", health.REBOOT, gpu(2).key)
    levels: dict[str, dict[str, Any]] = {
        "error": {"health": (event,)},
        "warn": {"health": (dataclasses.replace(event, grave=False),)},
        "unknown": {"health_unread": {"xid": "/dev/kmsg: Permission denied"}},
        "ok": {"health": (BAD,)},
    }
    for level, facts in levels.items():
        found = examine(tmp_path, topology=place, facts=facts)["gpu_errors"]
        assert found.level == level
    assert found.found == "none"


def test_runs_on_a_gpu_that_ails_say_so() -> None:
    """Whatever became of them: those of other GPUs do not."""
    service = HostService(HostRequest(sweep="s", health=Rules(memory=Action.LABEL)))
    service._topology, service._troubles = dual(4), (BAD,)
    for number, told in ((2, ["health: row_remap: bad rows"]), (1, [])):
        cell = Cell(
            "c", Case("gemm", 1, {}), "h1", Arm(Binding("none")), devices=(gpu(number).key,)
        )
        run = Run("r", "c", Status.OK, None, "2026-01-01T00:00:00.000000Z", 1.0)
        assert list(service._judged(run, cell).warnings) == told


def test_a_verdict_hears_of_what_ailed_before_anything_was_measured() -> None:
    """Links and the fabric it reads from the wiring; an Xid of a GPU in order is no fault."""
    links = Trouble("links", ReasonCode.DEGRADED_LINK, "16 of 18", "reset", gpu(1).key)
    settled = dataclasses.replace(OLD, grave=False, age_seconds=9.0)
    facts = to_json(ailing(BAD, OLD, links, settled).facts)
    assert list(evidence_hosts._preflight(facts)) == [Fault("row_remap", "bad rows", gpu(2).key)]
    assert list(evidence_hosts._preflight(None)) == []
