"""What conditions make of a run: invalid, partial, or a warning; and what a report shows."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import planning
from golden import printed
from topobench import conditions, config, validity
from topobench.db.store import Store
from topobench.plan import make_plan
from topobench.reading import Binding, Case, Reading, ReasonCode, Run, Status, to_json
from topobench.report.text import render_sweep
from topobench.stats import summarise
from topobench.topology import Cpus, Known, Machine, PciDevice, PciLink, Topology
from watched_gpu import cell

NOWHERE = Topology("2026-01-01T00:00:00Z", "/", "none", "full", Machine(), Cpus())
SWEEP = "5b6f0a3e-0000-4000-8000-000000000001"
LATENCY = "latency_seconds"
MS = 1e-3


def run(*readings: Reading, conditions: Any = None, status: Status = Status.OK) -> Run:
    return Run(
        id="r-1",
        cell="c-1",
        status=status,
        reason=None,
        started_at="2026-11-29T16:00:00.000000Z",
        duration_seconds=4.0,
        readings=readings,
        conditions=conditions or {},
    )


def reading(samples: Sequence[float], *, warmups: int = 0, timed: bool = True) -> Reading:
    """One sample a second."""
    times = tuple(float(i + 1) for i in range(len(samples))) if timed else ()
    summary = summarise(samples, warmups=warmups)
    return Reading(LATENCY, summary, tuple(samples), {"rank": 0}, times)


def gpu(*masks: int, **more: Any) -> dict[str, Any]:
    """A GPU read twice in each second, with these clock reasons."""
    readings = [(i + at, m) for i, m in enumerate(masks) for at in (0.25, 0.75)]
    bits = [m for _, m in readings]
    return {
        "throttled_spans": [list(s) for s in conditions.throttled_spans(readings)],
        "clock_reasons": {
            name: sum(name in conditions.reason_names(m) for m in bits) / len(bits)
            for name in conditions.reason_names(math.floor(max([*bits, 0])))
        },
        **more,
    }


def judged(found: Run, probe: str = "host_to_device") -> Run:
    return validity.judge(found, cell(probe), NOWHERE)


LATENCIES = [1.00 * MS, 1.01 * MS, 1.60 * MS, 1.00 * MS]


def test_one_throttled_sample_is_set_aside_and_the_rest_is_kept() -> None:
    found = judged(run(reading(LATENCIES), conditions={"gpus": {"G": gpu(0x0, 0x1, 0x4, 0x0)}}))
    (kept,) = found.readings
    assert statistics.mean(kept.samples) == pytest.approx(1.0033 * MS, abs=1e-4 * MS)
    assert (kept.summary.n, kept.summary.maximum) == (3, 1.01 * MS)
    assert found.status is Status.PARTIAL
    assert found.reason is not None
    assert found.reason.code is ReasonCode.THROTTLED
    assert found.conditions["set_aside"] == [
        {
            "metric": LATENCY,
            "point": {"rank": 0},
            "reasons": ["sw_power_cap"],
            "samples": [[2, 1.60 * MS]],
        }
    ]


def test_a_wholly_throttled_run_has_no_number() -> None:
    limits = {"power_watts": 150.0, "default_power_watts": 300.0}
    found = judged(
        run(reading(LATENCIES), conditions={"gpus": {"G": gpu(*[0x4] * 4, limits=limits)}})
    )
    assert found.status is Status.INVALID
    assert str(found.reason) == "throttled: G was slowed by sw_power_cap in 100.0 % of the readings"
    assert found.warnings == ("power_limit_below_default: G may draw 150 W; its default is 300 W",)


def test_idleness_and_settings_are_no_throttling() -> None:
    found = judged(run(reading(LATENCIES), conditions={"gpus": {"G": gpu(0x1, 0x2, 0x100, 0x10)}}))
    assert (found.status, found.readings[0].summary.n) == (Status.OK, 4)


def test_without_times_one_throttled_moment_spoils_the_run() -> None:
    whole = reading(LATENCIES, timed=False)
    found = judged(run(whole, conditions={"gpus": {"G": gpu(0, 0, 0x40, 0)}}))
    assert (found.status, found.readings) == (Status.INVALID, (whole,))
    assert "hw_thermal_slowdown in 25.0 %" in str(found.reason)


def test_a_reading_without_times_is_set_aside_and_its_timed_sibling_kept() -> None:
    untimed = replace(reading(LATENCIES, timed=False), metric="algbw_bytes_per_second")
    found = judged(run(reading(LATENCIES), untimed, conditions={"gpus": {"G": gpu(0, 0, 0x8, 0)}}))
    assert (found.status, [r.metric for r in found.readings]) == (Status.PARTIAL, [LATENCY])
    assert found.conditions["set_aside"][1]["median"] == untimed.summary.median


def test_proofs_of_a_binding_are_no_numbers_to_keep() -> None:
    proof = Reading("locality_ratio", summarise([1.0]), (1.0,))
    found = judged(run(reading(LATENCIES), proof, conditions={"gpus": {"G": gpu(*[0x20] * 4)}}))
    assert (found.status, len(found.readings)) == (Status.INVALID, 2)


def test_warm_ups_that_were_throttled_leave_the_numbers_alone() -> None:
    found = judged(
        run(reading(LATENCIES, warmups=2), conditions={"gpus": {"G": gpu(0x4, 0, 0, 0)}})
    )
    (kept,) = found.readings
    assert (kept.summary.warmups, kept.summary.n, len(kept.samples)) == (1, 2, 3)
    assert kept.summary.median == pytest.approx(1.3 * MS)


def test_samples_told_together_share_the_time_since_those_before() -> None:
    """A collective tells ten samples at a time: any of them may be the slow one."""
    together = replace(reading(LATENCIES), times=(1.0, 3.0, 3.0, 4.0))
    found = judged(run(together, conditions={"gpus": {"G": gpu(0, 0x4, 0, 0)}}))
    assert found.readings[0].samples == (LATENCIES[0], LATENCIES[3])


def test_any_of_several_gpus_counts() -> None:
    gpus = {"A": gpu(0, 0, 0, 0), "B": gpu(0, 0, 0, 0x80)}
    found = judged(run(reading(LATENCIES), conditions={"gpus": gpus}))
    assert found.readings[0].summary.n == 3
    assert str(found.reason).startswith("throttled: B was slowed by hw_power_brake in 25.0 %")


@pytest.mark.parametrize(
    ("probe", "limit", "status"),
    [("gemm", 700.0, Status.OK), ("gemm", 500.0, Status.INVALID), ("peer", 700.0, Status.INVALID)],
)
def test_the_power_cap_is_the_rule_where_power_binds_the_work(
    probe: str, limit: float, status: Status
) -> None:
    limits = {"power_watts": limit, "default_power_watts": 700.0}
    capped = {"gpus": {"G": gpu(*[0x4] * 4, limits=limits)}}
    found = judged(run(reading(LATENCIES), conditions=capped), probe)
    assert found.status is status
    told = "power_capped: G worked at its power limit" in found.warnings
    assert told is (probe == "gemm" and limit == 700.0)


def test_times_go_no_further_than_the_agent() -> None:
    timed = reading(LATENCIES)
    assert Reading.from_json(to_json(timed)) == timed
    assert judged(run(timed)).readings[0].times == ()


def test_a_run_that_failed_keeps_its_own_reason() -> None:
    failed = run(conditions={"gpus": {"G": {"lost": True}}}, status=Status.FAILED)
    found = judged(failed)
    assert (found.status, found.reason) == (Status.FAILED, None)
    assert found.warnings == ("gpu_lost: G fell off the bus during this run",)


def host(**values: Any) -> dict[str, Any]:
    return {"host": values, "monitor": {"seconds": 2.0}}


def codes(found: dict[str, Any], binding: Binding | None = None) -> list[tuple[str, bool]]:
    chosen = cell(binding=binding or Binding("none"))
    return [(f.code, f.status is not None) for f in validity.findings(found, chosen, NOWHERE)]


@pytest.mark.parametrize(
    ("share", "seconds", "expected"),
    [
        (0.019, 0.2, []),
        (0.05, 0.2, [("steal", False)]),
        (0.05, 0.02, []),
        (0.12, 0.5, [("busy", True)]),
    ],
)
def test_stolen_cpu_time(share: float, seconds: float, expected: list[Any]) -> None:
    assert codes(host(steal_ratio=share, steal_seconds=seconds)) == expected


@pytest.mark.parametrize(
    ("probe", "params", "env", "status"),
    [
        ("gemm", {}, {}, None),
        ("all_reduce", {"backend": "nccl", "hosts": "one"}, {}, None),
        ("all_reduce", {"backend": "nccl", "hosts": "all"}, {}, Status.INVALID),
        ("all_reduce", {"backend": "nccl", "mode": "per_call"}, {}, Status.INVALID),
        ("all_reduce", {"backend": "nccl"}, {"NCCL_P2P_DISABLE": "1"}, Status.INVALID),
        ("all_reduce", {"backend": "gloo"}, {}, Status.INVALID),
        ("host_to_device", {}, {}, Status.INVALID),
    ],
)
def test_stolen_cpus_spoil_no_time_that_a_gpu_took_by_itself(
    probe: str, params: dict[str, Any], env: dict[str, str], status: Status | None
) -> None:
    base = cell(probe)
    arm = replace(base.arm, env=env)
    chosen = replace(base, case=replace(base.case, params=params), arm=arm)
    stolen = host(steal_ratio=0.12, steal_seconds=0.5)
    (finding,) = validity.findings(stolen, chosen, NOWHERE)
    assert finding.status is status
    assert finding.code == ("busy" if status else "steal")


def test_a_setting_of_the_whole_site_may_need_the_hosts_threads_as_one_of_an_arm_may() -> None:
    base = cell("all_reduce")
    chosen = replace(base, case=replace(base.case, params={"backend": "nccl", "hosts": "one"}))
    for name, status in (("NCCL_SHM_DISABLE", Status.INVALID), ("NCCL_IB_HCA", None)):
        stolen = {**host(steal_ratio=0.12, steal_seconds=0.5), "env": {name: "1"}}
        (finding,) = validity.findings(stolen, chosen, NOWHERE)
        assert finding.status is status


def test_threads_that_a_control_group_held_back_make_a_run_invalid() -> None:
    held = host(quota_cpus=1.5, counted={"throttled_seconds": 0.4})
    assert codes(held) == [("throttled", True)]
    assert codes(host(quota_cpus=1.5, counted={"throttled_seconds": 0.01})) == []
    (finding,) = validity.findings(held, cell(), NOWHERE)
    assert "limit of 1.5 CPUs held threads back for 0.400 s of a run of 2.000 s" in finding.text


def test_fewer_cpus_granted_than_threads_started_is_told() -> None:
    four = Binding("own", threads=4)
    assert codes(host(quota_cpus=1.5), four) == [("cpu_quota_below_threads", False)]
    assert codes(host(quota_cpus=4.0), four) == []
    assert codes(host(quota_cpus=None), four) == []


def test_a_crowded_host_is_told() -> None:
    assert codes(host(load_1m=[13.0, 14.0], cpu_count=8)) == [("host_busy", False)]
    assert codes(host(load_1m=[9.0, 14.0], cpu_count=8)) == []


def test_a_run_that_waited_for_a_cpu_is_told_unless_its_ranks_waited_for_each_other() -> None:
    """The load of the minute before says nothing of what begins with the run, or of one CPU."""
    late = {**host(cpu_count=8), "cpu_wait_seconds": 0.3}
    two = Binding("own", cpus="4-5", threads=2)
    (finding,) = validity.findings(late, cell(binding=two), NOWHERE)
    assert str(finding) == "host_busy: the run waited 0.300 s of 2.000 s for a CPU that others held"
    assert finding.status is None
    assert codes({**late, "cpu_wait_seconds": 0.09}, two) == []
    own_limit = {**late, **host(counted={"throttled_seconds": 0.29})}
    assert codes(own_limit, two) == [("throttled", True)]  # counted as waiting by the kernel, too
    assert codes(late, replace(two, threads=3)) == []
    for threads, told in ((1, 1), (2, 0)):  # a rank's transport has a thread, too
        four = Binding("own", cpus="0-3", threads=threads)
        gang = replace(cell(binding=four), ranks=2)
        assert len(validity.findings(late, gang, NOWHERE)) == told


@pytest.mark.parametrize(("ranks", "hosts", "told"), [(2, (), 1), (3, (), 0), (4, "hhii", 1)])
def test_threads_of_ranks_that_compute_on_gpus_do_not_hide_a_busy_host(
    ranks: int, hosts: Sequence[str], told: int
) -> None:
    """Ranks are given threads for all CPUs, whether or not they use them; two are in use."""
    full = Binding("own", cpus="0-3", threads=2)
    gang = replace(cell(binding=full), ranks=ranks, devices=("GPU-a", "GPU-b"))
    gang = replace(gang, host="h", hosts=tuple(hosts))
    late = {**host(cpu_count=8), "cpu_wait_seconds": 0.3}
    assert len(validity.findings(late, gang, NOWHERE)) == told


def test_errors_of_networks_are_told_where_ranks_talk() -> None:
    lossy = host(counted={"tcp_sent_segments": 10_000, "tcp_resent_segments": 400})
    lossy["nics"] = {"mlx5_0/1": {"sent_bytes": 9, "out_of_sequence": 3}, "eth0": {"sent_bytes": 1}}
    gang = replace(cell(), ranks=2)
    assert [str(f) for f in validity.findings(lossy, gang, NOWHERE)] == [
        "tcp_resent: 400 of 10000 TCP segments were sent again",
        "nic_errors: mlx5_0/1: 3 out_of_sequence",
    ]
    assert codes(lossy) == []


def test_a_step_of_the_wall_clock_is_told_once() -> None:
    assert codes(host(clock_step_seconds=-3600.0)) == [("clock_step", False)]
    warned = replace(
        run(),
        warnings=("clock_step: the worker saw it",),
        conditions=host(clock_step_seconds=-3600.0),
    )
    assert judged(warned).warnings == ("clock_step: the worker saw it",)


def test_the_gravest_finding_is_the_reason() -> None:
    users = {"visible": True, "foreign": [{"pid": 7, "name": "python", "memory_bytes": None}]}
    bad = {"gpus": {"G": gpu(0, 0x4, 0, 0, users=users)}}
    found = judged(run(reading(LATENCIES), conditions=bad))
    assert found.status is Status.INVALID
    assert str(found.reason) == "shared_gpu: another program computes on G: pid 7 (python)"


def test_links_are_those_of_gpus_and_nics() -> None:
    found = {
        "nics": {"eth0": {"sent_bytes": 5}, "mlx5_0/1": {"sent_bytes": 8, "received_bytes": 4}}
    }
    assert conditions.link_bytes(found) == (
        conditions.LinkBytes("eth0", "nic", None, 5, 0),
        conditions.LinkBytes("mlx5_0", "nic", 1, 8, 4),
    )
    assert conditions.link_bytes({}) == ()


@pytest.mark.parametrize(
    ("generation", "width", "expected"),
    [(1, 16, 4.0e9), (2, 16, 8.0e9), (3, 8, 7.877e9), (4, 16, 31.51e9), (5, 16, 63.02e9)],
)
def test_ceilings_of_pci_express(generation: int, width: int, expected: float) -> None:
    assert conditions.pcie_bytes_per_second(generation, width) == pytest.approx(expected, rel=1e-3)
    assert conditions.pcie_bytes_per_second(None, width) is None


def test_a_throttled_run_shows_its_reason_and_no_number(tmp_path: Path) -> None:
    """From the conditions through the store to the report and its document."""
    host = planning.host(planning.dual(2))
    plan = make_plan(config.load(None, environ={}), [host], seed=3)
    chosen = next(c for c in plan.cells if c.devices and c.status is Status.PLANNED)
    rates = replace(reading([5.5e10, 5.4e10, 5.6e10]), metric="bandwidth_bytes_per_second")
    capped = {"gpus": {chosen.devices[0]: gpu(*[0x4] * 3)}}
    spoilt = replace(run(replace(rates, point={}), conditions=capped), cell=chosen.id)
    with Store.open(f"sqlite:///{tmp_path}/x.db") as store:
        store.begin_sweep(
            id=SWEEP,
            cluster="lab",
            profile="quick",
            trigger="manual",
            seed=3,
            tool_version="0.1.0",
            started_at=spoilt.started_at,
            estimated_seconds=2.0,
            hosts=[host],
            cells=[chosen],
        )
        store.put_run(validity.judge(spoilt, chosen, host.topology))
        document = store.sweep_document(SWEEP)
    (stored,) = document["cells"]
    assert stored["status"] == "invalid"
    (figure,) = stored["readings"]
    assert (figure["median"], figure["raw_value"]) == (None, 5.5e10)
    shown = printed(render_sweep(document), 200)
    name = next(g.name for g in host.topology.gpus if g.key == chosen.devices[0])
    assert f"throttled: {name} was slowed by sw_power_cap in 100.0 % of the readings" in shown
    assert shown.count("55.00") == shown.count("raw, not to be used: bandwidth 55.00 GB/s") == 1
    assert "Nothing: no cell gave a number that may be used." in shown


class TestBeyondTheHardware:
    """An H200 behind 16 lanes of 32 GT/s, whose driver tells clock and width of its memory."""

    device = planning.gpu(0)
    place = replace(
        planning.topology([planning.node(0, "0-3")], gpus=[device]),
        pci=(
            PciDevice(
                str(device.pci_address),
                "0x030200",
                "0x10de",
                "0x2335",
                None,
                "endpoint",
                Known(0, "sysfs"),
                link=PciLink(32.0, 16, 32.0, 16),
            ),
        ),
        trust="low",
    )

    def judged(
        self,
        probe: str,
        metric: str,
        value: float,
        *,
        place: Topology | None = None,
        **conditions: Any,
    ) -> Run:
        summary = summarise([value] * 10)
        one = Reading(metric, summary, (value,) * 10, {"device": self.device.key, "rank": 0})
        there = replace(
            cell(probe, self.device.key), case=Case(probe, 1, {"direction": "h2d", "op": "copy"})
        )
        return validity.judge(run(one, conditions=conditions), there, place or self.place)

    @pytest.mark.parametrize(("value", "status"), [(63e9, Status.OK), (66e9, Status.INVALID)])
    def test_a_copy_faster_than_its_slot_is_invalid(self, value: float, status: Status) -> None:
        found = self.judged("host_to_device", "bandwidth_bytes_per_second", value)
        assert found.status is status
        assert found.readings[0].ceiling == pytest.approx(63.02e9, rel=1e-3)
        assert found.readings[0].ceiling_source == "PCIe link, 63.0 GB/s"
        if status is Status.INVALID:
            assert found.reason is not None
            assert found.reason.code is ReasonCode.INVALID_VALUE
            assert found.reason.text.startswith(
                "bandwidth_bytes_per_second of 66.0 GB/s is above the 63.0 GB/s that the hardware"
            )

    def test_a_bridge_that_a_hypervisor_made_up_bounds_nothing(self) -> None:
        link = PciLink(32.0, 16, 32.0, 16, effective_max_bytes_per_second=0.25e9)
        pci = (replace(self.place.pci[0], link=link),)
        for virtualization, status in (("kvm", Status.OK), ("none", Status.INVALID)):
            place = replace(self.place, pci=pci, trust="full", virtualization=virtualization)
            found = self.judged("host_to_device", "bandwidth_bytes_per_second", 55e9, place=place)
            assert found.status is status

    def test_memory_has_the_bound_that_its_clock_and_width_give(self) -> None:
        for peak, status in ((4.9e12, Status.OK), (4.0e12, Status.INVALID), (None, Status.OK)):
            found = self.judged(
                "device_memory",
                "bandwidth_bytes_per_second",
                4.2e12,
                peak_bytes_per_second=peak,
            )
            assert found.status is status
