"""Roofs from measured figures, losses by shared paths, and published figures: in words."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

import pytest

import report_documents as made
from golden import printed
from planning import gpu, node, topology
from topobench import contention, expectations, roofline
from topobench.device_figures import DeviceFigure, device_figures
from topobench.errors import ConfigError
from topobench.expectations import Kind, is_far
from topobench.report import gpu_limits
from topobench.report.text import render_sweep
from topobench.roofline import Bound, Bounds, Roof, bounds_of, lacking, work_of
from topobench.shared_paths import SharedPath, shared_paths
from topobench.topology import Known, PciDevice, Topology

MIB = 1 << 20
BANDWIDTH = "bandwidth_bytes_per_second"
H200 = Roof(
    memory=4.1e12,
    flop={"bf16": 770e12, "fp32": 50e12},
    link={"h2d": 55e9, "both": 100e9},
    launch=4e-6,
)
COPY = {"direction": "h2d", "memory": "pinned", "bytes": 256 * MIB}
LLAMA: dict[str, Any] = {"shape": "llama3-8b", "dtype": "bf16", "batch": 1}


def figure(
    device: str = "g0",
    value: float = 55e9,
    *,
    busy: int = 1,
    probe: str = "host_to_device",
    metric: str = BANDWIDTH,
    params: Mapping[str, Any] = COPY,
    arm: str = "local",
) -> DeviceFigure:
    return DeviceFigure("h1", (device,), probe, params, arm, busy, metric, value)


class TestRoofline:
    @pytest.mark.parametrize(
        ("probe", "params", "bounds"),
        [
            ("kernel_launch", {"mode": "graph"}, (Bound.LAUNCH,)),
            ("device_memory", {"op": "copy", "bytes": 1 << 30}, (Bound.MEMORY,)),
            ("device_memory", {"op": "triad", "bytes": 4 * MIB}, (Bound.LAUNCH, Bound.MEMORY)),
            ("gemm", {"dtype": "bf16", "size": 8192}, (Bound.COMPUTE,)),
            ("gemm", {"dtype": "bf16", "size": 64}, (Bound.LAUNCH,)),
            ("gemm", {"dtype": "bf16", "size": 1024}, (Bound.LAUNCH, Bound.COMPUTE)),
            ("host_to_device", {"direction": "h2d", "bytes": 4096}, (Bound.LAUNCH,)),
            (
                "host_to_device",
                {"direction": "h2d", "bytes": 220_000},
                (Bound.LAUNCH, Bound.HOST_LINK),
            ),
            ("host_to_device", {"direction": "both", "bytes": 64 * MIB}, (Bound.HOST_LINK,)),
            ("host_to_device", {"direction": "d2h", "bytes": 64 * MIB}, ()),
            ("gemm", {"dtype": "fp8", "size": 8192}, ()),
            ("prefill", {**LLAMA, "sequence": 64}, (Bound.MEMORY,)),
            ("prefill", {**LLAMA, "sequence": 128}, (Bound.MEMORY, Bound.COMPUTE)),
            ("prefill", {**LLAMA, "sequence": 2048}, (Bound.COMPUTE,)),
            ("decode", {**LLAMA, "kv_dtype": "bf16", "batch": 1, "context": 2048}, (Bound.MEMORY,)),
            (
                "decode",
                {**LLAMA, "kv_dtype": "int8", "batch": 128, "context": 128},
                (Bound.MEMORY, Bound.COMPUTE),
            ),
            ("decode", {**LLAMA, "kv_dtype": "fp8", "batch": 512, "context": 8}, (Bound.COMPUTE,)),
        ],
    )
    def test_what_bounds_a_probes_work(
        self, probe: str, params: dict[str, Any], bounds: Bounds
    ) -> None:
        work = work_of(probe, params)
        assert work is not None
        assert bounds_of(work, H200) == bounds

    def test_a_ceiling_that_was_not_measured_is_named(self) -> None:
        work = work_of("gemm", {"dtype": "fp8", "size": 8192})
        assert work is not None
        assert lacking(work, H200) == (Bound.COMPUTE,)
        assert lacking(work, Roof()) == (Bound.LAUNCH, Bound.MEMORY, Bound.COMPUTE)

    def test_work_of_other_probes_is_not_known(self) -> None:
        assert work_of("all_reduce", {"bytes": 8}) is None
        assert work_of("prefill", {**LLAMA, "shape": "of tomorrow", "sequence": 64}) is None
        assert work_of("decode", {**LLAMA, "kv_dtype": "fp2", "batch": 1, "context": 8}) is None

    def test_ceilings_are_the_best_of_the_same_sweep(self) -> None:
        launch = {"mode": "back_to_back"}
        found = roofline.roofs(
            [
                figure(value=40e9, arm="none"),
                figure(value=55e9),
                figure(value=70e9, params={**COPY, "bytes": MIB}),
                figure(value=90e9, params={**COPY, "memory": "pageable"}),
                figure(value=3.9e12, probe="device_memory", params={"op": "copy"}),
                figure(value=4.1e12, probe="device_memory", params={"op": "triad"}),
                figure(
                    value=770e12,
                    probe="gemm",
                    metric="flop_per_second",
                    params={"dtype": "bf16", "mode": "burst"},
                ),
                figure(value=4e-6, probe="kernel_launch", metric="latency_seconds", params=launch),
                figure(value=5e-6, probe="kernel_launch", metric="latency_seconds", params=launch),
            ]
        )
        assert found == {
            ("h1", "g0"): Roof(4.1e12, {"bf16": 770e12}, {"h2d": 55e9}, 4e-6),
        }

    def test_the_ridge_and_the_size_as_long_as_a_launch(self) -> None:
        assert H200.ridge("bf16") == pytest.approx(187.8, abs=0.1)
        assert H200.ridge("fp8") is None
        assert H200.launch_bytes("h2d") == pytest.approx(220_000)


def switched(**changes: Any) -> Topology:
    """Two GPUs under one switch, a third beside it, a fourth on the other NUMA node."""

    def device(address: str, parent: str | None, role: str) -> PciDevice:
        return PciDevice(address, "0x0", "0x0", "0x0", parent, role, Known(0, "sysfs"))

    gpus = [gpu(i, 0 if i < 3 else 1) for i in range(4)]
    ends = [str(g.pci_address) for g in gpus]
    pci = (
        device("r", None, "root_port"),
        device("u", "r", "upstream"),
        device("d0", "u", "downstream"),
        device("d1", "u", "downstream"),
        device(ends[0], "d0", "endpoint"),
        device(ends[1], "d1", "endpoint"),
        device(ends[2], "r", "endpoint"),
        device(ends[3], None, "endpoint"),
    )
    place = topology([node(0, "0-3"), node(1, "4-7")], gpus=gpus)
    return dataclasses.replace(place, pci=pci, **changes)


class TestSharedPaths:
    def test_uplinks_and_numa_nodes_the_narrowest_first(self) -> None:
        keys = [g.key for g in switched().gpus]
        assert shared_paths(switched()) == (
            SharedPath("switch uplink", "u", (keys[0], keys[1])),
            SharedPath("NUMA node", "0", (keys[0], keys[1], keys[2])),
        )

    def test_a_guests_switches_are_not_believed(self) -> None:
        assert [p.kind for p in shared_paths(switched(trust="low"))] == ["NUMA node"]


class TestContention:
    uplink = SharedPath("switch uplink", "u", ("g0", "g1"))
    numa = SharedPath("NUMA node", "0", ("g0", "g1", "g2"))

    def found(self, *together: float) -> list[tuple[str | None, tuple[str, ...], float, float]]:
        figures = [figure(f"g{i}") for i in range(4)]
        figures += [figure(f"g{i}", value, busy=4) for i, value in enumerate(together)]
        losses = contention.find(figures, {"h1": (self.uplink, self.numa)})
        return [
            (c.path.name if c.path else None, c.devices, round(c.share, 2), c.total) for c in losses
        ]

    def test_the_narrowest_path_whose_gpus_all_lose_is_named(self) -> None:
        assert self.found(27.5e9, 27.5e9, 55e9, 55e9) == [("u", ("g0", "g1"), 0.5, 55e9)]

    def test_a_node_is_named_where_no_uplink_explains_it_all(self) -> None:
        found = self.found(22e9, 22e9, 22e9, 55e9)
        assert found == [("u", ("g0", "g1"), 0.4, 44e9), (None, ("g2",), 0.4, 22e9)]
        only = contention.find(
            [figure(f"g{i}", v, busy=b) for i in range(3) for v, b in ((55e9, 1), (22e9, 3))],
            {"h1": (self.numa,)},
        )
        assert [c.path for c in only] == [self.numa]

    def test_one_gpu_of_a_path_alone_is_no_contention_of_it(self) -> None:
        assert self.found(22e9, 55e9, 55e9, 55e9) == [(None, ("g0",), 0.4, 22e9)]

    @pytest.mark.parametrize(
        ("probe", "metric", "paths"),
        [
            ("host_to_device", BANDWIDTH, ["u"]),
            ("gemm", "flop_per_second", [None]),
            ("host_to_device", "per_call_bandwidth_bytes_per_second", []),
        ],
    )
    def test_only_work_that_goes_over_a_path_is_explained_by_it(
        self, probe: str, metric: str, paths: list[str | None]
    ) -> None:
        """Arithmetic loses to power and heat; single calls to the host."""
        figures = [
            figure(f"g{i}", value, busy=busy, probe=probe, metric=metric)
            for i in range(2)
            for value, busy in ((50e9, 1), (40e9, 2))
        ]
        found = contention.find(figures, {"h1": (self.uplink, self.numa)})
        assert [c.path.name if c.path else None for c in found] == paths

    def test_less_than_5_percent_is_noise(self) -> None:
        assert self.found(52.5e9, 53e9, 54e9, 55e9) == []


class TestExpectations:
    def test_every_figure_has_source_date_and_kind(self) -> None:
        known = expectations.load()
        assert len(known) > 40
        assert {e.kind for e in known} == set(Kind)
        assert all(e.source and re.match(r"20\d\d-\d\d", e.date) for e in known)

    @pytest.mark.parametrize(
        ("ratio", "kind", "far"),
        [
            (1.04, Kind.MEASURED, False),
            (1.06, Kind.MEASURED, True),
            (0.81, Kind.MEASURED, False),
            (0.79, Kind.MEASURED, True),
            (2.00, Kind.FLOOR, False),
            (0.99, Kind.FLOOR, True),
            (0.50, Kind.THEORY, False),
            (1.01, Kind.THEORY, True),
        ],
    )
    def test_what_is_far(self, ratio: float, kind: Kind, far: bool) -> None:
        assert is_far(ratio, kind) is far

    def test_the_best_arm_of_a_gpu_alone_is_held_against_its_model(self) -> None:
        slow = [figure(value=30e9, arm="remote"), figure(value=40e9), figure(value=90e9, busy=4)]
        (found,) = expectations.deviations(slow, {"h1": "NVIDIA H200"})
        assert (found.figure.value, found.expectation.value) == (40e9, 55.43e9)
        assert expectations.deviations(slow, {"h1": "NVIDIA H300"}) == []
        assert expectations.deviations(slow, {}) == []
        small = [figure(value=4e9, params={**COPY, "bytes": 4096})]
        assert expectations.deviations(small, {"h1": "NVIDIA H200"}) == []

    def test_mistakes_are_named_with_their_place(self) -> None:
        good = (
            "figures: [{models: [A], probe: peer, metric: bandwidth_bytes_per_second,"
            " value: 5 GB/s, kind: floor, source: s, date: 2026-01}]\n"
        )
        (one,) = expectations.parse(good, "own.yaml")
        assert (one.value, one.kind) == (5e9, Kind.FLOOR)
        for wrong, right, said in (
            ("5 GB/s", "5", "own.yaml:1: figures[0].value"),
            ("kind: floor", "kind: guess", "'guess' is not known"),
            ("date: 2026-01", "date: 2026", "is no date"),
            (", source: s", "", "has no source"),
            ("[A]", "['(']", "figures[0].models"),
            ("metric: bandwidth", "metric: latency", "figures[0].metric"),
        ):
            with pytest.raises(ConfigError, match=re.escape(said)):
                expectations.parse(good.replace(wrong, right), "own.yaml")


class TestReport:
    def document(self) -> dict[str, Any]:
        """Two GPUs behind one uplink, each at 40 GB/s alone and 20 GB/s at once."""
        host = made.host("gpu01", 2)
        keys = [made.gpu_uuid("gpu01", i) for i in range(2)]
        host["description"]["shared_paths"] = [
            {"kind": "switch uplink", "name": "0000:0f:00.0", "devices": keys}
        ]
        alone = [
            made.cell(
                "host_to_device",
                [made.reading(BANDWIDTH, 40e9)],
                params={**COPY, "at_once": "one"},
                devices=[key],
            )
            for key in keys
        ]
        together = made.cell(
            "host_to_device",
            params={**COPY, "at_once": "all"},
            devices=keys,
            ranks=2,
            readings=[
                made.reading(BANDWIDTH, 40e9),
                *(
                    made.reading(BANDWIDTH, 20e9, point={"rank": i, "device": key})
                    for i, key in enumerate(keys)
                ),
            ],
        )
        return made.sweep([host], [*alone, together])

    def test_what_bounds_a_model_that_gpus_share_is_not_said(self) -> None:
        """It also waits for all-reduces, for which there is no roof."""
        key = made.gpu_uuid("gpu01", 0)
        ceilings = [
            made.cell(probe, [made.reading(metric, value)], params=params, devices=[key])
            for probe, metric, value, params in (
                ("device_memory", BANDWIDTH, 4.1e12, {"op": "copy", "bytes": 1 << 30}),
                ("gemm", "flop_per_second", 770e12, {"dtype": "bf16", "mode": "burst"}),
                ("kernel_launch", "latency_seconds", 4e-6, {"mode": "back_to_back"}),
            )
        ]
        device = "prefill_device_seconds"
        alone, shared = (
            made.cell(
                "prefill",
                [made.reading(device, 0.01)],
                params={**LLAMA, "sequence": 2048, "tensor_parallel": len(gpus)},
                devices=gpus,
                ranks=len(gpus),
            )
            for gpus in ([key], [key, made.gpu_uuid("gpu01", 1)])
        )
        found = gpu_limits.works_by_bound([*ceilings, alone])
        assert found[Bound.COMPUTE,] == ["prefill llama3-8b bf16 2048 tokens"]
        assert (Bound.COMPUTE,) not in gpu_limits.works_by_bound([*ceilings, shared])

    @pytest.mark.parametrize(
        ("probe", "params", "text"),
        [
            ("peer", {"op": "read", "ways": "one", "bytes": MIB}, "peer read 1 MiB"),
            ("peer", {"op": "read", "ways": "both", "bytes": MIB}, "peer read both ways 1 MiB"),
            ("peer", {"op": "read", "ways": "all", "bytes": MIB}, "peer read all at once 1 MiB"),
            ("prefill", {**LLAMA, "sequence": 64}, "prefill llama3-8b bf16 64 tokens"),
            (
                "prefill",
                {**LLAMA, "sequence": 64, "batch": 8},
                "prefill llama3-8b bf16 x 8 64 tokens",
            ),
            ("decode", {**LLAMA, "context": 64}, "decode llama3-8b bf16 x 1 64 tokens"),
        ],
    )
    def test_works_that_differ_have_names_that_differ(
        self, probe: str, params: dict[str, Any], text: str
    ) -> None:
        """Of two with one name only the first was told what bounds it."""
        assert gpu_limits.work_text(figure(value=1.0, probe=probe, params=params)) == text

    def test_the_sections_in_words(self) -> None:
        text = " ".join(printed(render_sweep(self.document())).split())
        assert "GPU 0-1: host link 40.0 GB/s to the device" in text
        assert (
            "GPU 0-1: 20.00 GB/s each with all GPUs at once, 40.00 GB/s alone (50.0 %), "
            "40.00 GB/s together, in host_to_device h2d 256 MiB, arm none; they share the switch "
            "uplink 0000:0f:00.0"
        ) in text
        assert (
            "GPU 0: host_to_device h2d 256 MiB: 40.00 GB/s is 0.72 x of the 55.43 GB/s that "
            "others measured (ml-engineering network/README, 2026-08)"
        ) in text

    def test_sums_over_gpus_speak_of_none(self) -> None:
        found = device_figures(self.document()["cells"])
        assert sorted((f.busy, f.value) for f in found) == [
            (1, 40e9),
            (1, 40e9),
            (2, 20e9),
            (2, 20e9),
        ]
