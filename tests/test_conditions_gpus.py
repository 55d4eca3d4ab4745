"""What is kept of a GPU around a run, and that each thing may be missing with its reason."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import threading
import time
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from fake_nvml import LOST, NO_PERMISSION, NOT_SUPPORTED, FakeNvml, Refusal
from topobench import validity
from topobench.agents.conditions import monitor
from topobench.agents.conditions.monitor import Monitor
from topobench.agents.conditions.nvml_counters import Session
from topobench.conditions import LinkBytes, link_bytes
from topobench.reading import Binding
from topobench.topology import Cpus, Machine, Topology
from watched_gpu import GIB, SWEEP, Watched, cell, process

NOWHERE = Topology("2026-01-01T00:00:00Z", "/", "none", "full", Machine(), Cpus())


def codes(conditions: dict[str, Any]) -> list[str]:
    return [f.code for f in validity.findings(conditions, cell(), NOWHERE)]


def only(conditions: dict[str, Any]) -> dict[str, Any]:
    (found,) = conditions["gpus"].values()
    assert isinstance(found, dict)
    return found


def test_an_idle_link_of_the_first_generation_is_no_fault() -> None:
    """The link's speed follows the P-state; what counts is what it reaches under load."""
    watched = Watched()
    idle = watched.set(performance_state=8, generation=1, best=(4, 16), reasons=1)
    idle(watched.state)
    copying = watched.set(performance_state=0, generation=4, reasons=0)
    found = watched.run(idle, copying, copying, copying, idle)
    slot = only(found)["pcie"]
    assert codes(found) == []
    assert slot["generation"] == [4, 4, 4]
    assert slot["loaded_readings"] == 3
    assert slot["bytes_per_second"] == pytest.approx(31.5e9, rel=0.01)
    assert codes(watched.run(idle, idle, idle)) == []


def test_a_link_below_its_maximum_under_load_is_a_finding() -> None:
    watched = Watched()
    found = watched.run(*[watched.set(generation=3, width=8)] * 3)
    # The first reading is from before the fault.
    assert codes(found) == []
    found = watched.run(watched.set(), watched.set())
    slot = only(found)["pcie"]
    assert codes(found) == ["pcie_downtrained"]
    assert slot["bytes_per_second"] == pytest.approx(7.88e9, rel=0.01)
    assert slot["most_bytes_per_second"] == pytest.approx(63.0e9, rel=0.01)
    (finding,) = validity.findings(found, cell(), NOWHERE)
    assert finding.status is None
    assert "generation 3 x8 under load, not 5 x16: at most 7.88 of 63.02 GB/s" in finding.text


def test_ranges_and_clock_reasons_of_a_run() -> None:
    watched = Watched()
    found = only(
        watched.run(
            watched.set(watts=650, temperature=60, reasons=0x4, sm_mhz=1700),
            watched.set(watts=690, temperature=64, reasons=0x4 | 0x20, sm_mhz=1600),
            watched.set(watts=300, reasons=0x1),
        )
    )
    assert found["readings"] == 5
    assert found["sm_hertz"] == [1.6e9, 1.6e9, 1.98e9]
    assert found["power_watts"] == [300, 300, 690]
    assert found["temperature_celsius"] == [41, 64, 64]
    assert found["memory_hertz"] == [2.619e9] * 3
    assert found["clock_reasons"] == {"idle": 0.4, "sw_power_cap": 0.4, "sw_thermal_slowdown": 0.2}
    assert [mask for _, _, mask in found["throttled_spans"]] == [0x4, 0x24]
    assert found["limits"]["power_watts"] == 700
    assert found["limits"]["sm_hertz"] == 1.98e9


def test_counters_are_kept_as_what_the_run_added() -> None:
    watched = Watched()
    watched.state.numbers = {270: 1000, 138: {0: 4, 1: 8}, 139: {0: 1, 1: 1}}
    watched.state.numbers |= {161: {0: 7, 1: 7}}
    more = {270: 1000, 138: {0: 1028, 1: 8}, 139: {0: 2, 1: 1}}
    found = watched.run(
        watched.set(corrected=5, replays=2, numbers={**more, 161: {0: 9, 1: 7}}),
    )
    gpu = only(found)
    assert gpu["counted"] == {
        "pcie_replay_count": 0,
        "ecc_corrected_count": 2,
        "ecc_uncorrected_count": 0,
        "ecc_lifetime_corrected_count": 2,
        "ecc_lifetime_uncorrected_count": 0,
        "remapped_corrected_count": 0,
        "remapped_uncorrected_count": 0,
        "hw_thermal_slowdown_nanoseconds": 0,
    }
    assert gpu["unavailable"]["sw_power_cap_nanoseconds"] == "this GPU does not count it"
    assert gpu["nvlinks"]["0"] == {
        "sent_bytes": 1024 * 1024,
        "received_bytes": 1024,
        "replay_count": 2,
    }
    assert codes(found) == ["ecc_corrected", "nvlink_errors"]
    assert link_bytes(found) == (
        LinkBytes(watched.uuid, "nvlink", 0, 1 << 20, 1024),
        LinkBytes(watched.uuid, "nvlink", 1, 0, 0),
    )


def test_newer_gpus_count_link_bytes_in_other_fields() -> None:
    watched = Watched()
    watched.state.numbers = {202: {0: 0, 1: 0}, 204: {0: 5, 1: 5}}
    found = watched.run(watched.set(numbers={202: {0: 96, 1: 0}, 204: {0: 5, 1: 6}}))
    assert [(b.link, b.sent, b.received) for b in link_bytes(found)] == [(0, 96, 0), (1, 0, 1)]


def test_a_counter_that_went_back_says_nothing() -> None:
    watched = Watched()
    found = only(watched.run(watched.set(replays=1)))
    assert "pcie_replay_count" not in found["counted"]
    assert found["counted"]["ecc_corrected_count"] == 0


def test_an_uncorrectable_memory_error_makes_a_run_invalid() -> None:
    watched = Watched()
    (finding,) = validity.findings(watched.run(watched.set(uncorrected=1)), cell(), NOWHERE)
    assert (finding.code, finding.status) == ("ecc_error", "invalid")


def test_a_power_limit_below_the_default_is_told() -> None:
    watched = Watched()
    watched.set(limit_watts=150, default_watts=300)(watched.state)
    (finding,) = validity.findings(watched.run(), cell(), NOWHERE)
    assert str(finding) == (
        f"power_limit_below_default: {watched.uuid} may draw 150 W; its default is 300 W"
    )
    assert finding.status is None


def test_a_gpu_that_is_lost_during_a_run_makes_it_invalid() -> None:
    watched = Watched()

    def fall(_: Any) -> None:
        for name in watched.gpu:
            watched.gpu[name] = Refusal(LOST)

    found = watched.run(watched.set(), fall)
    (finding,) = validity.findings(found, cell(), NOWHERE)
    assert (finding.code, finding.status) == ("gpu_lost", "invalid")
    assert only(found)["unavailable"]["power"] == "the GPU is lost"
    assert only(found)["power_watts"] == [300, 300, 300]


CALLS = {
    "DeviceGetCurrentClocksEventReasons": ("clock_reasons", "clock_reasons"),
    "DeviceGetPerformanceState": ("performance_state", None),
    "DeviceGetClockInfo": ("sm_clock", "sm_hertz"),
    "DeviceGetTemperature": ("temperature", "temperature_celsius"),
    "DeviceGetPowerUsage": ("power", "power_watts"),
    "DeviceGetCurrPcieLinkGeneration": ("pcie_generation", None),
    "DeviceGetCurrPcieLinkWidth": ("pcie_width", None),
    "DeviceGetRemappedRows": ("remapped_rows", None),
    "DeviceGetTotalEccErrors": ("ecc_uncorrected", None),
    "DeviceGetPcieReplayCounter": ("pcie_replay", None),
    "DeviceGetFieldValues": ("nvlink_counters", None),
    "DeviceGetComputeRunningProcesses": ("processes", "users"),
    "DeviceGetMemoryInfo": ("used_memory", "used_memory_bytes"),
    "DeviceGetEnforcedPowerLimit": ("power_limit", None),
}


@pytest.mark.parametrize("call", CALLS)
def test_each_refused_call_leaves_its_reason_and_all_else(call: str) -> None:
    everything = only(Watched().run())
    label, key = CALLS[call]
    found = only(Watched(**{call: Refusal(NO_PERMISSION)}).run())
    assert found["unavailable"][label] == "no permission"
    assert label not in everything["unavailable"]
    if key is not None:
        assert key in everything
        assert key not in found
    derived = {"DeviceGetComputeRunningProcesses": {"unowned_memory_bytes"}}
    derived |= {
        "DeviceGetMemoryInfo": {"unowned_memory_bytes"},
        "DeviceGetClockInfo": {"memory_hertz"},
    }
    assert set(everything) - set(found) == {key, *derived.get(call, set())} - {None}


def test_activity_is_read_where_the_gpu_tells_it() -> None:
    def fill(asked: Any) -> Any:
        for place, value in enumerate((62.5, 12.0)):
            asked.metrics[place].nvmlReturn, asked.metrics[place].value = 0, value
        return asked

    watched = Watched(
        GpmQueryDeviceSupport=SimpleNamespace(isSupportedDevice=1),
        GpmSampleGet=lambda sample: sample,
    )
    freed: list[Any] = []
    watched.library.system |= {
        "GpmSampleAlloc": pynvml.c_nvmlGpmSample_t,
        "GpmSampleFree": freed.append,
        "GpmMetricsGet": fill,
    }
    found = only(watched.run(lambda _: time.sleep(0.11)))
    assert found["activity"] == {"sm_ratio": 0.625, "dram_ratio": 0.12}
    assert len(freed) == 2
    assert only(watched.run())["unavailable"]["activity"] == "the run was shorter than 0.1 s"
    assert len(freed) == 3  # there was no second sample


@contextmanager
def sleeping(**marks: str) -> Iterator[int]:
    """A process with these marks in its environment."""
    plain = {k: v for k, v in os.environ.items() if not k.startswith("TOPOBENCH_")}
    command = [sys.executable, "-c", "print(1, flush=True); import time; time.sleep(60)"]
    with subprocess.Popen(
        command, env={**plain, **marks}, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "1\n"
        try:
            yield child.pid
        finally:
            child.kill()


def test_a_stranger_on_the_gpu_makes_a_run_invalid() -> None:
    watched = Watched()
    with (
        sleeping(TOPOBENCH_SWEEP=SWEEP, TOPOBENCH_WORKER="w") as own,
        sleeping(TOPOBENCH_SWEEP="another", TOPOBENCH_WORKER="w") as stranger,
    ):
        name = Path(f"/proc/{stranger}/comm").read_text().strip()
        alone = watched.run(watched.set(processes=[process(own)]))
        assert only(alone)["users"] == {"visible": True, "own": 1, "foreign": []}
        assert codes(alone) == []
        came = watched.run(watched.set(processes=[process(own), process(stranger)]))
        left = watched.run(watched.set(processes=[process(own)]), watched.set())
    (finding,) = validity.findings(came, cell(), NOWHERE)
    assert (finding.code, finding.status) == ("shared_gpu", "invalid")
    assert finding.text == (
        f"another program computes on {watched.uuid}: pid {stranger} ({name}, 2 GiB)"
    )
    assert only(left)["users"]["foreign"][0]["pid"] == stranger  # it was there at the start
    assert codes(watched.run(watched.set())) == []


def test_unknown_pids_are_strangers_only_where_ours_are_known() -> None:
    """In a container NVML may list the pids of the host: then nothing can be told apart."""
    watched = Watched()
    elsewhere = 4_194_305  # beyond the largest pid
    with sleeping(TOPOBENCH_SWEEP=SWEEP, TOPOBENCH_WORKER="w") as own:
        here = watched.set(processes=[process(own), process(elsewhere)])
        assert codes(watched.run(here, here)) == ["shared_gpu"]
    hidden = Watched()
    there = hidden.set(processes=[process(elsewhere)])
    found = hidden.run(there, there)
    assert only(found)["users"] == {"visible": False, "own": 0, "foreign": []}
    assert codes(found) == ["processes_hidden"]


def test_no_process_in_sight_is_not_the_same_as_an_idle_gpu() -> None:
    assert only(Watched().run())["users"]["visible"] is None


def test_a_process_that_just_ended_is_no_stranger() -> None:
    watched = Watched()
    with sleeping(TOPOBENCH_SWEEP=SWEEP, TOPOBENCH_WORKER="w") as own:
        watched.run(watched.set(processes=[process(own)]))
        with sleeping() as brief:
            pass
        seen_once = watched.set(processes=[process(own), process(brief)])
        found = watched.run(seen_once, watched.set(processes=[process(own)]))
    assert codes(found) == []


def test_memory_that_nobody_owns_is_told() -> None:
    watched = Watched()
    with sleeping(TOPOBENCH_SWEEP=SWEEP, TOPOBENCH_WORKER="w") as own:
        watched.set(processes=[process(own)], used=16 * GIB)(watched.state)
        found = watched.run()
    assert only(found)["unowned_memory_bytes"] == 14 * GIB
    assert codes(found) == ["gpu_memory_without_owner"]
    watched.set(processes=[process(own, None)])(watched.state)
    assert "unowned_memory_bytes" not in only(watched.run())


def test_throttling_between_two_readings_is_not_lost() -> None:
    watched = Watched()
    watched.state.numbers = {271: 0}
    (finding,) = validity.findings(
        watched.run(watched.set(numbers={271: 12_500_000})), cell(), NOWHERE
    )
    assert "slowed by hw_power_brake for 12.5 ms between readings" in finding.text


def test_the_thread_reads_while_a_worker_measures_and_keeps_off_its_cpus() -> None:
    cpus = sorted(os.sched_getaffinity(0))
    places: set[frozenset[int]] = set()
    enough = threading.Event()
    readings: list[int] = []

    def reasons() -> int:
        places.add(frozenset(os.sched_getaffinity(0)))
        readings.append(1)
        if len(readings) > 8:
            enough.set()
        return 0x4 if len(readings) > 4 else 0

    watched = Watched(DeviceGetCurrentClocksEventReasons=reasons)
    watching = Monitor(sweep=SWEEP, session=watched.session, period_seconds=0.01)
    bound = cell("p", watched.uuid, binding=Binding("own", cpus=str(cpus[0])))
    with watching.watch(bound) as found:
        assert enough.wait(30)
    assert found["monitor"]["readings"] >= 7
    assert 0 < found["monitor"]["cpu_seconds"] < found["monitor"]["seconds"]
    ((start, end, mask),) = only(found)["throttled_spans"]
    assert (mask, 0 < start < end <= found["monitor"]["seconds"] + 1) == (0x4, True)
    expected = set(cpus[1:]) or set(cpus)
    assert places == {frozenset(expected)}
    assert os.sched_getaffinity(0) == set(cpus)
    assert "conditions" not in {t.name for t in threading.enumerate()}
    watching.close()
    assert watched.library.open == 0


@pytest.mark.parametrize(("capped_for", "begun_capped"), [(3, False), (math.inf, True)])
def test_a_run_waits_for_what_brought_the_gpu_to_its_power_limit(
    monkeypatch: Any, capped_for: float, begun_capped: bool
) -> None:
    """For a while: a GPU that is always capped is measured as it is, and judged."""
    monkeypatch.setattr(monitor, "SETTLING_SECONDS", 0.1)
    asked: list[int] = []

    def reasons() -> int:
        asked.append(1)
        return 0x4 if len(asked) <= capped_for else 0

    watched = Watched(DeviceGetCurrentClocksEventReasons=reasons)
    watching = Monitor(sweep=SWEEP, session=watched.session)
    with watching.watch(cell("p", watched.uuid)) as found:
        begun = len(asked)
    assert begun > 3
    assert found["monitor"]["settled_seconds"] > 0
    assert ("sw_power_cap" in only(found)["clock_reasons"]) is begun_capped
    watching.close()


def test_a_gpu_that_is_always_capped_is_waited_for_once(monkeypatch: Any) -> None:
    """Until it was free; every run would cost the whole wait."""
    monkeypatch.setattr(monitor, "SETTLING_SECONDS", 0.1)
    capped, slept = [True], list[float]()
    clock = types.SimpleNamespace(**{**vars(time), "sleep": slept.append})
    monkeypatch.setattr(monitor, "time", clock)
    watched = Watched(DeviceGetCurrentClocksEventReasons=lambda: 0x4 if capped[0] else 0)
    watching = Monitor(sweep=SWEEP, session=watched.session)

    def waited() -> bool:
        slept.clear()
        with watching.watch(cell("p", watched.uuid)):
            pass
        return bool(slept)

    assert [waited(), waited()] == [True, False]
    capped[0] = False
    assert not waited()
    capped[0] = True
    assert waited()
    watching.close()


def test_a_driver_that_hangs_costs_a_reading_not_the_sweep(monkeypatch: Any) -> None:
    monkeypatch.setattr(monitor, "_PATIENCE_SECONDS", 0.2)
    release = threading.Event()
    watched = Watched(DeviceGetPowerUsage=lambda: release.wait(30) * 1000)
    watching = Monitor(sweep=SWEEP, session=watched.session)
    with watching.watch(cell("p", watched.uuid)) as found:
        pass
    release.set()
    silent = {"unavailable": {"nvml": "NVML gave no answer within 0 s"}}
    assert only(found) == silent
    with watching.watch(cell("p", watched.uuid)) as again:
        pass
    assert only(again)["unavailable"]["nvml"] == silent["unavailable"]["nvml"]
    assert "power_watts" not in only(again)


def test_nvml_that_cannot_be_asked_is_a_reason() -> None:
    session = Session(FakeNvml([], {"Init": Refusal(9)}))
    with Monitor(sweep=SWEEP, session=session).watch(cell("p", "GPU-1")) as found:
        pass
    assert found["gpus"] == {
        "GPU-1": {
            "readings": 0,
            "limits": {},
            "pcie": {"loaded_readings": 0},
            "counted": {},
            "unavailable": {"nvml": "driver not loaded", "activity": "the GPU cannot be asked"},
        }
    }
    assert codes({"gpus": found["gpus"]}) == []


def test_a_gpu_that_nvml_does_not_know_is_a_reason() -> None:
    session = Session(FakeNvml([]))
    with Monitor(sweep=SWEEP, session=session).watch(cell("p", "GPU-1")) as found:
        pass
    assert only(found)["unavailable"]["handle"] == "not found"


def test_an_old_driver_tells_throttling_by_its_old_name() -> None:
    watched = Watched(
        DeviceGetCurrentClocksEventReasons=Refusal(13),
        DeviceGetCurrentClocksThrottleReasons=0x40,
    )
    assert only(watched.run())["clock_reasons"] == {"hw_thermal_slowdown": 1.0}


def test_what_a_card_never_tells_is_asked_once() -> None:
    asked: list[int] = []

    def refuse(_: int) -> Any:
        asked.append(1)
        return Refusal(NOT_SUPPORTED)

    Watched(DeviceGetTemperature=refuse).run(*[lambda _: None] * 5)
    assert len(asked) == 1
