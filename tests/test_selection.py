from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from planning import configured, dual, gpu, host, mig_slice, planned, reasons, small
from topobench.config import HostExpectation
from topobench.errors import UsageError
from topobench.plan import Plan, make_plan
from topobench.probes import registry
from topobench.probes.protocol import Arms, Kind, WorkerContext, parameter
from topobench.reading import Metric, Reading, ReasonCode, Status
from topobench.topology import Mig

ALONE = "host_to_device.at_once=one"


class TestDevices:
    """GPUs are chosen by index, UUID, its start, or PCI address."""

    @pytest.mark.parametrize(
        ("devices", "indices"),
        [
            ("0,2,4", [0, 2, 4]),
            ("4,0", [4, 0]),
            ("GPU-00000003-1111-2222-3333-444444444444", [3]),
            ("gpu-00000003", [3]),
            ("0000:15:00.0", [5]),
            ("15:00.0", [5]),
            ("00000000:15:00.0", [5]),
            ("1,GPU-00000001", [1]),
        ],
    )
    def test_a_gpu_is_found(self, devices: str, indices: list[int]) -> None:
        place = dual()
        alone = configured(devices=devices, bindings="none", sets=(ALONE,))
        plan = make_plan(alone, [host(place)], seed=1)
        copies = {c.devices[0] for c in planned(plan.cells) if c.case.probe == "host_to_device"}
        assert copies == {place.gpus[i].key for i in indices}
        gangs = {c.devices for c in planned(plan.cells) if len(c.devices) > 1}
        assert gangs == ({tuple(place.gpus[i].key for i in indices)} if indices[1:] else set())

    @pytest.mark.parametrize("devices", ["8", "GPU-f", "0000:99:00.0", "nonsense"])
    def test_an_unknown_gpu_is_refused_with_what_there_is(self, devices: str) -> None:
        with pytest.raises(
            UsageError, match=rf"--devices: no GPU '{devices}'; there are: 0 = GPU-0"
        ):
            make_plan(configured(devices=devices), [host(dual())], seed=1)

    def test_an_ambiguous_start_is_refused_with_the_candidates(self) -> None:
        with pytest.raises(UsageError, match=r"'GPU-0' could be GPU-00000000-.*write more of it"):
            make_plan(configured(devices="GPU-0"), [host(dual())], seed=1)

    def test_on_a_host_without_gpus_it_says_so(self) -> None:
        with pytest.raises(UsageError, match="no GPU '0'; there are: no GPU on any host"):
            make_plan(configured(devices="0"), [host(small())], seed=1)

    def test_a_host_without_the_device_skips(self) -> None:
        hosts = [host(dual(gpus=2), "a"), host(dual(gpus=8), "b")]
        plan = make_plan(configured(devices="5", probes="host_to_device"), hosts, seed=1)
        assert reasons(c for c in plan.cells if c.host == "a") == [
            ("host_to_device", "none", Status.SKIPPED, ReasonCode.NOT_SELECTED)
        ]
        assert {c.devices for c in planned(plan.cells)} == {(dual().gpus[5].key,)}


class TestBrokenGpus:
    """A GPU that the driver shows and torch cannot use is a failure, never left out quietly."""

    def test_torch_that_cannot_use_the_gpus_fails_every_gpu_probe(self) -> None:
        here = host(dual(), torch_error="torch 2.13+cpu is built without CUDA", torch_gpus=None)
        plan = make_plan(configured(), [here], seed=1)
        failed = [r for r in reasons(plan.cells) if r[2] is Status.FAILED]
        assert failed == [
            (name, "none", Status.FAILED, ReasonCode.TORCH_CANNOT_USE_GPU)
            for name in (
                *("host_to_device", "device_memory", "gemm", "kernel_launch", "prefill"),
                "all_reduce",
            )
        ]
        assert {c.case.probe for c in planned(plan.cells)} == {"host_memory"}

    def test_a_lost_gpu_fails_alone(self) -> None:
        place = dual()
        lost = dataclasses.replace(place.gpus[3], state="lost")
        place = dataclasses.replace(place, gpus=(*place.gpus[:3], lost, *place.gpus[4:]))
        plan = make_plan(configured(probes="host_to_device", sets=(ALONE,)), [host(place)], seed=1)
        (failed,) = [c for c in plan.cells if c.status is Status.FAILED]
        assert failed.devices == (lost.key,)
        assert len({c.devices for c in planned(plan.cells)}) == 7

    def test_a_collective_without_the_lost_gpu_says_so(self) -> None:
        """Seven ranks are another case than eight, and the eighth is a failure."""
        place = dual()
        lost = dataclasses.replace(place.gpus[7], state="lost")
        place = dataclasses.replace(place, gpus=(*place.gpus[:7], lost))
        plan = make_plan(configured(probes="all_reduce", bindings="none"), [host(place)], seed=1)
        assert [c.devices for c in plan.cells if c.status is Status.FAILED] == [(lost.key,)]
        assert {(c.ranks, c.case.params["ranks"]) for c in planned(plan.cells)} == {(7, 7)}

    def test_a_gpu_that_torch_does_not_list_fails(self) -> None:
        place = dual(gpus=2)
        bare = place.gpus[1].uuid or ""
        here = host(place, torch_gpus=(bare.removeprefix("GPU-"),))
        plan = make_plan(configured(probes="host_to_device"), [here], seed=1)
        assert [c.devices for c in plan.cells if c.reason] == [(place.gpus[0].key,)]
        assert {c.devices for c in planned(plan.cells)} == {(place.gpus[1].key,)}

    def test_a_gpu_that_no_process_may_use_is_left_out_and_the_others_measured(self) -> None:
        place = dual(gpus=3)
        modes = ("prohibited", "exclusive", "default")
        gpus = [
            dataclasses.replace(g, compute_mode=mode)
            for g, mode in zip(place.gpus, modes, strict=True)
        ]
        place = dataclasses.replace(place, gpus=tuple(gpus))
        plan = make_plan(configured(probes="host_to_device", sets=(ALONE,)), [host(place)], seed=1)
        (left_out,) = [c for c in plan.cells if c.reason and c.devices]
        assert (left_out.devices, left_out.status) == ((gpus[0].key,), Status.SKIPPED)
        assert left_out.reason is not None
        assert left_out.reason.code is ReasonCode.UNSUPPORTED
        assert {c.devices for c in planned(plan.cells)} == {(g.key,) for g in gpus[1:]}


class TestMig:
    """A slice is measured by itself; it has neither NVLinks nor peers (C13)."""

    def sliced(self) -> Any:
        parent = gpu(0, mig=Mig("enabled"))
        return small(cpus=8, gpus=[parent, mig_slice(0x11111111, parent), mig_slice(2, parent)])

    def test_collectives_are_not_applicable_and_copies_run_on_slices(self) -> None:
        place = self.sliced()
        here = host(place, torch_gpus=(place.gpus[1].uuid,))
        plan = make_plan(configured(sets=(ALONE,)), [here], seed=1)
        mig = [c for c in plan.cells if c.reason and c.reason.code is ReasonCode.MIG]
        assert [(c.case.probe, c.status) for c in mig] == [("all_reduce", Status.NOT_APPLICABLE)]
        copies = {c.devices for c in planned(plan.cells) if c.case.probe == "host_to_device"}
        assert copies == {(place.gpus[1].key,), (place.gpus[2].key,)}

    def test_processes_on_cpus_run_a_collective_that_asks_for_them(self) -> None:
        place, asked = self.sliced(), ("all_reduce.backend=gloo",)
        cells = make_plan(configured(probes="all_reduce", sets=asked), [host(place)], seed=1).cells
        assert {(c.devices, c.ranks) for c in planned(cells)} == {((), 2), ((), 4)}

    def test_a_slice_is_selected_by_the_start_of_its_uuid(self) -> None:
        place = self.sliced()
        chosen = configured(probes="host_to_device", devices="MIG-1111")
        plan = make_plan(chosen, [host(place)], seed=1)
        assert {c.devices for c in planned(plan.cells)} == {(place.gpus[1].key,)}

    def test_mig_without_instances_is_skipped(self) -> None:
        place = small(gpus=[gpu(0, mig=Mig("enabled"))])
        plan = make_plan(configured(probes="host_to_device"), [host(place)], seed=1)
        (cell,) = plan.cells
        assert (cell.status, cell.reason and cell.reason.code) == (
            Status.SKIPPED,
            ReasonCode.MIG,
        )


class TestHosts:
    """Which hosts take part, and what is said of the others."""

    def test_only_named_hosts_are_planned(self) -> None:
        hosts = [host(small(), "a"), host(small(), "b")]
        assert {c.host for c in make_plan(configured(hosts="B"), hosts, seed=1).cells} == {"b"}

    def test_an_unknown_host_is_refused_with_what_there_is(self) -> None:
        hosts = [host(small(), "a"), host(small(), "b")]
        with pytest.raises(UsageError, match="--hosts: no host 'c'; hosts here: a, b"):
            make_plan(configured(hosts="c"), hosts, seed=1)

    def test_a_named_host_that_is_not_alive_leaves_the_other_named_ones_alone(self) -> None:
        listed = tuple(HostExpectation(n, id=f"{n}1") for n in ("a", "b", "gone", "other"))
        chosen = dataclasses.replace(configured(hosts="a,GONE1"), hosts=listed)
        plan = make_plan(chosen, [host(small(), "a"), host(small(), "b")], seed=1)
        assert {c.host for c in plan.cells} == {"a"}
        assert plan.absent_hosts == ("gone",)

    def test_a_host_is_named_as_the_file_names_it(self) -> None:
        """Ray knows it by another name; the file gives its id, too."""
        listed = (HostExpectation("localhost", id="a"), HostExpectation("b"))
        chosen = dataclasses.replace(configured(hosts="LocalHost"), hosts=listed)
        plan = make_plan(chosen, [host(small(), "a"), host(small(), "b")], seed=1)
        assert {c.host for c in plan.cells} == {"a"}
        assert plan.absent_hosts == ()

    def test_hosts_of_the_file_limit_the_sweep_and_absent_ones_are_named(self) -> None:
        expected = (HostExpectation("a", gpus=8), HostExpectation("gone"))
        chosen = dataclasses.replace(configured(), hosts=expected)
        plan = make_plan(chosen, [host(small(), "a"), host(small(), "b")], seed=1)
        assert {c.host for c in plan.cells} == {"a"}
        assert plan.absent_hosts == ("gone",)
        assert plan.warnings == (
            "gone: named in hosts: but takes no part; nothing is measured there",
            "a: 8 GPUs expected, 0 found",
        )

    def test_no_host_at_all_is_refused(self) -> None:
        with pytest.raises(UsageError, match=r"no host is selected: .*; hosts here: none"):
            make_plan(configured(), [], seed=1)
        chosen = dataclasses.replace(configured(), hosts=(HostExpectation(host="localhost"),))
        with pytest.raises(UsageError, match=r"hosts: names localhost; hosts here: a \("):
            make_plan(chosen, [host(small(), "a")], seed=1)

    def test_a_restricted_host_is_named(self) -> None:
        plan = make_plan(configured(), [host(dual(gpus=0, allowed="0-3"))], seed=1)
        assert plan.warnings == ("h1: 4 of 128 CPUs may be used; bindings are cut to them",)

    def test_a_host_whose_agent_was_started_on_some_cpus_says_that_all_are_measured(self) -> None:
        bound = host(dual(gpus=0, allowed="0-3"))
        for inherited, count in (("2-3", 1), ("0-3", 0), ("0-127", 0)):
            facts = dataclasses.replace(bound.facts, inherited_cpus=inherited)
            warnings = make_plan(
                configured(), [dataclasses.replace(bound, facts=facts)], seed=1
            ).warnings
            told = [w for w in warnings if w.startswith("h1: started on CPUs 2-3 (taskset")]
            assert len(told) == count == len(warnings) - 1

    def test_zero_probes_are_a_usage_error(self) -> None:
        """Nothing to do must not look like success (C55)."""
        with pytest.raises(UsageError, match="no probe is selected") as caught:
            make_plan(configured(probes=""), [host(small())], seed=1)
        assert caught.value.exit_code == 2


@dataclass(frozen=True, slots=True)
class Demanding:
    """A probe whose needs a test sets."""

    name: ClassVar[str] = "demanding"
    version: ClassVar[int] = 3
    summary: ClassVar[str] = "needs what a test says"
    needs: ClassVar[frozenset[str]] = frozenset()
    metrics: ClassVar[tuple[Metric, ...]] = ()
    arms: ClassVar[Arms] = Arms.BINDINGS

    size: int = parameter(1, kind=Kind.COUNT, help="any number below 9")

    def __post_init__(self) -> None:
        if self.size > 8:
            raise ValueError("size must be below 9")

    def measure(self, context: WorkerContext) -> Iterator[Reading]:
        yield from ()

    def estimated_seconds(self) -> float:
        return float(self.size)


class TestNeeds:
    """A probe that a host cannot run is one skipped cell with the reason."""

    @pytest.fixture(autouse=True)
    def _registered(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        monkeypatch.setitem(registry.PROBES, "demanding", f"{__name__}:Demanding")
        registry.load.cache_clear()
        yield
        registry.load.cache_clear()

    def plan(self, monkeypatch: pytest.MonkeyPatch, needs: set[str], *hosts: Any) -> Plan:
        found = registry.load("demanding")
        monkeypatch.setattr(found, "needs", frozenset(needs))
        return make_plan(configured(probes="demanding", bindings="none"), hosts, seed=1)

    @pytest.mark.parametrize(
        ("needs", "code"),
        [
            ({"cuda"}, ReasonCode.NO_GPU),
            ({"cuda", "binary:absent"}, ReasonCode.NO_GPU),
            ({"gpus>=2"}, ReasonCode.NO_GPU),
            ({"hosts>=2"}, ReasonCode.NEEDS_2_HOSTS),
            ({"cpus>=8"}, ReasonCode.NEEDS_2_CPUS),
            ({"binary:absent"}, ReasonCode.NO_BINARY),
            ({"duckdb"}, ReasonCode.NO_PACKAGE),
        ],
    )
    def test_what_is_missing_is_the_reason(
        self, monkeypatch: pytest.MonkeyPatch, needs: set[str], code: ReasonCode
    ) -> None:
        (cell,) = self.plan(monkeypatch, needs, host(small())).cells
        assert (cell.status, cell.reason and cell.reason.code) == (Status.SKIPPED, code)
        assert (cell.case.version, cell.case.params) == (3, {})

    def test_too_few_gpus_are_counted(self, monkeypatch: pytest.MonkeyPatch) -> None:
        (cell,) = self.plan(monkeypatch, {"gpus>=2"}, host(small(gpus=[gpu(0)]))).cells
        assert str(cell.reason) == "needs_2_gpus: needs 2 GPUs, 1 usable"

    @pytest.mark.parametrize(
        "needs", [{"hosts>=2"}, {"cpus>=2"}, {"numba", "torch"}, {"binary:there"}, set[str]()]
    )
    def test_met_needs_are_planned(self, monkeypatch: pytest.MonkeyPatch, needs: set[str]) -> None:
        hosts = [host(small(), key, binaries={"there": "/usr/bin/there"}) for key in "ab"]
        cells = self.plan(monkeypatch, needs, *hosts).cells
        assert [(c.host, c.status, c.devices) for c in cells] == [
            ("a", Status.PLANNED, ()),
            ("b", Status.PLANNED, ()),
        ]

    def test_a_probe_without_gpus_runs_its_arms_on_cpus(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        chosen = configured(probes="demanding", bindings="none,local,remote,spread")
        cells = make_plan(chosen, [host(dual())], seed=1).cells
        assert {c.arm.name for c in planned(cells)} == {"none", "local", "spread"}
        assert reasons(cells) == [("demanding", "remote", Status.NOT_APPLICABLE, ReasonCode.NO_GPU)]

    def test_a_combination_the_probe_refuses_is_a_usage_error(self) -> None:
        chosen = configured(probes="demanding", sets=("demanding.size=3,9",))
        with pytest.raises(UsageError, match=r"demanding cannot take .*size must be below 9"):
            make_plan(chosen, [host(small())], seed=1)
