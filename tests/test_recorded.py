"""Sweeps that were measured on two real GPUs, and what must follow from them."""

from __future__ import annotations

import functools
import json
import lzma
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import documents
from golden import printed
from topobench import contention, nccl_graph, nccl_log, prefill_shared, rings
from topobench.advice.host import advise
from topobench.advice.words import Outlook
from topobench.agents.nccl_run import unpack
from topobench.device_figures import device_figures
from topobench.effects import Bench, benches, compared
from topobench.prefill_shared import Shared
from topobench.report.notes import notes
from topobench.report.page import Sight, computing, render_report
from topobench.report.page.arms import arms
from topobench.report.page.parts import Figure
from topobench.report.records import Places
from topobench.report.text import render_sweep
from topobench.topology import Topology

RECORDED = Path(__file__).parent / "recorded"
STANDARD, RINGS = "two_h200", "two_h200_rings"
BUSBW = "busbw_bytes_per_second"
KIB, MIB = 2**10, 2**20
CHANNELS = {
    "none/auto": (24, "P2P/CUMEM"),
    "none/auto_ring": (24, "P2P/CUMEM"),
    "none/identity": (24, "P2P/CUMEM"),
    "none/auto+nvls_off": (24, "P2P/CUMEM"),
    "none/auto+ctas_2": (2, "P2P/CUMEM"),
    "none/auto+p2p_off": (4, "SHM"),
}
"""Channels of each arm, and what carries them."""


@functools.cache
def document(name: str = STANDARD) -> dict[str, Any]:
    packed = (RECORDED / f"{name}.json.xz").read_bytes()
    loaded: dict[str, Any] = json.loads(lzma.decompress(packed))
    return loaded


@functools.cache
def topology() -> Topology:
    return Topology.from_json(json.loads((RECORDED / "two_h200_topology.json").read_text()))


def cells(probe: str, name: str = STANDARD) -> list[dict[str, Any]]:
    return [c for c in document(name)["data"]["cells"] if c["probe"] == probe]


def logged() -> Iterator[tuple[str, dict[str, Any]]]:
    """Arm and NCCL's facts of each cell that keeps its log."""
    for name in (STANDARD, RINGS):
        for cell in cells("all_reduce", name):
            if "log" in cell["conditions"].get("nccl", {}):
                yield cell["arm"], cell["conditions"]["nccl"]


def medians(probe: str, metric: str, **wanted: Any) -> list[float]:
    """Of each process, in the metric's unit; parameters and fields of cells as wanted."""
    return [
        reading["median"]
        for cell in cells(probe)
        if cell["status"] == "ok"
        if all({**cell, **cell["params"]}.get(k) == v for k, v in wanted.items())
        for reading in cell["readings"]
        if reading["metric"] == metric and not reading["point"]
    ]


def median(probe: str, metric: str, **wanted: Any) -> float:
    return float(statistics.median(medians(probe, metric, **wanted)))


def bandwidth(arm: str, size: int) -> float:
    """Of the bus, bytes/s."""
    return median("all_reduce", BUSBW, arm=arm, bytes=size)


def whole(metric: str, size: int) -> Bench:
    """An all-reduce of the eight blocks under its arms."""
    found = benches(cells("all_reduce", RINGS))
    (one,) = [b for b in found if b.metric == metric and b.param("bytes") == size]
    return one


@functools.cache
def shared() -> dict[tuple[str, int], Shared]:
    """The model that both GPUs share, by arm and tokens."""
    found = prefill_shared.shared(document()["data"]["cells"])
    return {(s.arm.partition("/")[2], int(str(dict(s.params)["sequence"]))): s for s in found}


@pytest.mark.parametrize("name", [STANDARD, RINGS])
def test_the_documents_are_as_their_schema_says(name: str) -> None:
    documents.check(document(name), "probe")


def test_nothing_in_them_names_the_machine_they_came_from() -> None:
    text = "".join(json.dumps(document(name)) for name in (STANDARD, RINGS))
    text += (RECORDED / "two_h200_topology.json").read_text()
    for _, nccl in logged():
        text += unpack(nccl["log"]) + unpack(nccl.get("graph", nccl["log"]))
    found = re.findall(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", text)
    assert found
    assert all(identifier.endswith("-0000-4000-8000-000000000000") for identifier in found)
    addresses = set(re.findall(r"\b\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}\b", text))
    assert addresses <= {"192.0.2.2", "127.0.0.1", "0.0.0.0"}
    assert not re.search(r"\b(?:[0-9a-f]{2}:){5}[0-9a-f]{2}\b|/root/|\bvm:\d", text)


def test_all_279_cells_ran() -> None:
    data = document()["data"]
    assert data["counts"] == {"ok": 279, "not_applicable": 8}
    assert data["sweep"]["status"] == "done"
    assert Counter(c["status"] for c in data["cells"]) == data["counts"]
    assert document(RINGS)["data"]["counts"] == {"ok": 72}


def test_a_flat_guest_shows_its_nvlinks_and_says_what_it_hides() -> None:
    """The guest's bus has no switch: all else would be PHB. sysfs knows no node, NVML does."""
    (path,) = [p for p in topology().paths if {p.a, p.b} == {"gpu:0", "gpu:1"}]
    assert (path.smi, path.smi_pcie, path.nccl, path.bottleneck) == ("NV18", "PHB", "NVL", "nvlink")
    assert topology().trust == "low"
    assert [w.code for w in topology().warnings] == ["guest_view"]
    by_address = {device.address: device for device in topology().pci}
    for gpu in topology().gpus:
        device = by_address[str(gpu.pci_address)]
        assert (device.parent, device.numa_node.value) == (None, None)
        assert device.numa_node.reason == "sysfs says -1"
        assert (gpu.cpu_node.value, gpu.cpu_node.source) == (0, "nvml")
        assert gpu.nvlink is not None
        assert (gpu.nvlink.active, gpu.nvlink.expected) == (18, 18)
    assert {c["path_class"] for c in cells("peer") + cells("all_reduce") if c["devices"]} == {
        "NV18"
    }


def test_what_one_numa_node_cannot_tell_is_said_of_every_probe_that_compares_bindings() -> None:
    """The profile binds the others to the node of their GPU alone."""
    refused = {
        (c["probe"], c["arm"])
        for c in document()["data"]["cells"]
        if c["reason"] and c["reason"].startswith("one_numa_node: ")
    }
    probes = ("host_to_device", "kernel_launch")
    assert refused == {(p, arm) for p in probes for arm in ("local", "remote", "spread")}


def test_a_ring_the_other_way_round_is_not_measured_twice() -> None:
    assert rings.equivalent((1, 0), (0, 1), symmetric=True)
    turned = [c for c in document()["data"]["cells"] if c["ring"] == "1-0"]
    assert {c["probe"] for c in turned} == {"all_reduce", "prefill"}
    for cell in turned:
        assert cell["status"] == "not_applicable"
        assert cell["reason"] == "equivalent_arms: all ring orders of two GPUs are equivalent"


@pytest.mark.parametrize(("op", "one_way"), [("read", 389.8e9), ("write", 394.9e9)])
def test_the_gpus_copy_both_ways_at_once_at_twice_the_rate_of_one(op: str, one_way: float) -> None:
    """Of two GPUs, all at once is both ways; the paths carry 478 GB/s each way."""
    rate = "bandwidth_bytes_per_second"
    one, both, every = (medians("peer", rate, op=op, ways=w) for w in ("one", "both", "all"))
    assert (len(one), len(both), len(every)) == (6, 3, 3)
    assert one == pytest.approx([one_way] * 6, rel=0.003)
    assert both == pytest.approx([2 * one_way] * 3, rel=0.015)
    assert every == pytest.approx(both, rel=0.003)
    assert not [c for c in cells("peer") if c["status"] != "ok"]


def test_all_gpus_together_load_as_fast_as_each_alone() -> None:
    """Each has its own slot: what both get is what each got alone, and no contention is told."""
    rate, large = "bandwidth_bytes_per_second", {"bytes": 256 * MIB, "direction": "h2d"}
    alone = median("host_to_device", rate, at_once="one", **large)
    together = median("host_to_device", rate, at_once="all", **large)
    assert alone == pytest.approx(55.3e9, rel=0.01)
    assert together == pytest.approx(109.3e9, rel=0.01)
    assert together / (2 * alone) == pytest.approx(0.988, abs=0.01)
    figures = device_figures(cells("host_to_device"))
    assert contention.find(figures, {}) == []
    assert contention.kept(figures) == {"host_to_device": pytest.approx(0.962, abs=0.001)}


def test_the_ring_of_every_kept_log_is_the_one_that_was_asked_for() -> None:
    """Rebuilt from what each rank wrote of its neighbours, and equal to what was stored."""
    found: Counter[str] = Counter()
    for arm, stored in logged():
        log = nccl_log.parse([unpack(stored["log"])])
        summary = nccl_log.summary(log)
        for name in ("rings", "channels", "version", "transports"):
            assert summary[name] == stored[name], (arm, name)
        channels, transport = CHANNELS[arm]
        assert nccl_log.rings(log) == ((0, 1),) * channels, arm
        assert stored["transports"] == {transport: 2 * channels}, arm
        if "graph" not in stored:
            asked = nccl_log.Asked((), (0, 1), channels, (8 * KIB,))
            assert nccl_log.verify(log, asked) is None, arm
        found[arm] += 1
    both = dict.fromkeys(("none/auto", "none/auto_ring", "none/identity"), 4 + 8)
    assert found == {**dict.fromkeys(CHANNELS, 4), **both}


def test_the_graph_file_of_a_ring_holds_against_its_log() -> None:
    """What was asked is rebuilt from the file alone, and a reversed GPU in it would be seen."""
    given = [(arm, nccl) for arm, nccl in logged() if "graph" in nccl]
    assert {arm for arm, _ in given} == {"none/identity"}
    for _, stored in given:
        graphs = nccl_graph.parse(unpack(stored["graph"]))
        nccl_graph.check(graphs, [0, 1])
        asked = nccl_log.Asked(nccl_graph.rings(graphs), (0, 1), stored["channels"], (8192,))
        log = nccl_log.parse([unpack(stored["log"])])
        assert nccl_log.verify(log, asked) is None
        other = nccl_log.Asked(asked.rings, (1, 0), stored["channels"], (8192,))
        assert nccl_log.verify(log, other) is not None


def test_the_ring_that_nccl_chose_and_the_same_from_a_file_are_equivalent() -> None:
    """
    Eight blocks: the intervals lie within what does not matter, and that of A/A holds zero.

    Left alone, NCCL takes the same ring, but of six intervals at 95 % one may miss zero.
    """
    pairs = (("none/auto_ring", "none/identity"), ("none/auto", "none/auto_ring"))
    for metric, size, widest in (
        ("latency_seconds", 8 * KIB, 0.04),
        (BUSBW, MIB, 0.02),
        (BUSBW, 128 * MIB, 0.002),
    ):
        for reference, arm in pairs:
            bench = whole(metric, size)
            found = compared(bench, reference, arm)
            assert found.verdict.value == "equivalent", (metric, size, arm)
            assert found.lo is not None
            assert found.hi is not None
            assert -widest < found.lo < found.hi < widest, (metric, size, arm)
            assert arm == "none/auto_ring" or found.lo < 0 < found.hi, (metric, size)
            assert len(bench.arms[reference].keys() & bench.arms[arm].keys()) == 8
    assert whole(BUSBW, 128 * MIB).median("none/identity") == pytest.approx(286.7e9, rel=0.002)


@pytest.mark.parametrize(
    ("arm", "size", "share"),
    [
        ("none/auto+ctas_2", 1024 * MIB, 0.127),
        ("none/auto+ctas_2", 128 * MIB, 0.145),
        ("none/auto+ctas_2", 256 * KIB, 0.310),
        ("none/auto+ctas_2", 8 * KIB, 1.0),
        ("none/auto+p2p_off", 1024 * MIB, 0.084),
        ("none/auto+p2p_off", 128 * MIB, 0.095),
        ("none/auto+p2p_off", 8 * KIB, 0.646),
        ("none/auto+nvls_off", 1024 * MIB, 1.0),
        ("none/auto+nvls_off", 8 * KIB, 1.0),
    ],
)
def test_a_planted_slow_arm_is_slow_by_what_it_takes_away(
    arm: str, size: int, share: float
) -> None:
    """Two channels of 24, or host memory for NVLinks; NVLS was off on this host anyway."""
    assert bandwidth(arm, size) / bandwidth("none/auto", size) == pytest.approx(share, rel=0.025)


def test_four_blocks_decide_nothing_even_of_a_seventh() -> None:
    (bench,) = [
        b
        for b in benches(cells("all_reduce"))
        if b.metric == BUSBW and b.param("bytes") == 128 * MIB
    ]
    found = compared(bench, "none/auto", "none/auto+ctas_2")
    assert found.effect_ratio == pytest.approx(-0.855, abs=0.005)
    assert found.verdict.value == "inconclusive"


def test_both_ends_of_a_link_counted_the_same_bytes() -> None:
    """Link k of one GPU is some link of the other: what all sent is what all received."""
    counted: dict[str, int] = defaultdict(int)
    for cell in cells("all_reduce"):
        if cell["status"] != "ok":
            continue
        for gpu in cell["conditions"]["gpus"].values():
            for link in gpu["nvlinks"].values():
                counted["sent"] += link["sent_bytes"]
                counted["received"] += link["received_bytes"]
    assert counted["sent"] > 2**40
    assert counted["received"] == pytest.approx(counted["sent"], rel=0.001)


@pytest.mark.parametrize(
    ("arm", "tokens", "speed_up", "share", "error"),
    [
        ("auto", 256, 1.158, 0.285, -0.288),
        ("auto", 2048, 1.674, 0.161, -0.030),
        ("identity", 2048, 1.676, 0.162, -0.029),
        ("auto+nvls_off", 2048, 1.678, 0.161, -0.028),
        ("auto+ctas_2", 256, 0.851, 0.446, -0.156),
        ("auto+ctas_2", 2048, 1.037, 0.490, 0.063),
        ("auto+p2p_off", 256, 0.719, 0.524, -0.127),
        ("auto+p2p_off", 2048, 0.850, 0.584, 0.086),
    ],
)
def test_what_two_gpus_gain_what_they_lose_to_each_other_and_what_was_predicted(
    arm: str, tokens: int, speed_up: float, share: float, error: float
) -> None:
    """The share by events and by a twin agree, and the time without it is that of half a model."""
    case = shared()[arm, tokens]
    assert case.speed_up == pytest.approx(speed_up, abs=0.005)
    assert case.events == pytest.approx(share, abs=0.005)
    assert case.twin == pytest.approx(share, abs=0.045)
    assert case.error == pytest.approx(error, abs=0.01)
    apart = median("prefill", "prefill_apart_seconds", arm=f"none/{arm}", sequence=tokens)
    assert case.twin is not None
    assert case.seconds * (1 - case.twin) == pytest.approx(apart, rel=0.01)


def test_prefill_of_one_gpu_is_measured_beside() -> None:
    device = "prefill_device_seconds"
    seconds = [median("prefill", device, tensor_parallel=1, sequence=n) for n in (256, 2048)]
    assert seconds == pytest.approx([8.70e-3, 55.44e-3], rel=0.01)
    assert len(shared()) == 12
    assert all(case.alone_at_once for case in shared().values())


def test_its_report_fits_and_names_both_gpus() -> None:
    text = printed(render_sweep(document()["data"]), 100)
    assert max(map(len, text.splitlines())) <= 100
    for part in (
        *("2x NVIDIA H200", "279 ok, 8 not applicable", "286.78", "NV18", "1.67x"),
        *("took 10 min 39 s", "at least 250.81 GiB memory"),
        "no GPU loses more than 5.0 % while all are busy",
        "at_once all: each GPU has a model of its own, and the tokens of all of them are added up.",
        "      6  host_to_device, kernel_launch       this host shows one NUMA node, so",
        "ranks  arm                   8 KiB   128 MiB\n",
    ):
        assert part in text
    assert "prefill, none: not applicable" not in text
    assert "none/auto+nvls_off changes nothing here: NCCL_NVLS_ENABLE=0" in " ".join(text.split())
    assert text.index("60 cells: power_capped") < text.index("every cell: nccl_conf")


def test_the_report_of_eight_blocks_says_equivalent() -> None:
    text = printed(render_sweep(document(RINGS)["data"]), 100)
    assert "verdict equivalent" in text


def test_ten_samples_that_agree_are_settled_though_the_time_ran_out() -> None:
    """Small all-reduces take ten; the widest of their intervals is 0.2 % to each side."""
    ended = {r["stop_reason"] for c in cells("all_reduce", RINGS) for r in c["readings"]}
    assert ended == {"budget", "converged"}
    assert [*notes(cells("all_reduce", RINGS))][-1].startswith("arms: ")
    assert [*notes(cells("all_reduce"))][-1] == (
        "not settled: 1 of 120 cells ended before the median was steady (budget)"
    )
    assert [*notes(cells("gemm"))][-1].startswith("not settled: 6 of 6 cells")


def test_the_advice_on_eight_blocks_is_to_leave_the_rings_to_nccl() -> None:
    """And none to bind on a host with one NUMA node, though this sweep tried no binding."""
    found = {a.kind: a for a in advise(document(RINGS)["data"], topology())}
    assert found["binding"].outlook is Outlook.NOT_APPLICABLE
    assert found["ring"].outlook is Outlook.NO_GAIN
    assert found["ring"].effect_ratio == pytest.approx(0.0, abs=0.001)
    assert found["ring"].text.startswith("leave the rings to NCCL")


def test_the_figure_of_arms_tells_each_loss_once() -> None:
    """Bandwidth of large messages, not their time too, which grows without end."""
    data = document()["data"]
    (figure,) = arms("h0", data["cells"], Places.of(data["hosts"]))
    assert isinstance(figure, Figure)
    labels = [t for t in figure.layout["yaxis"]["ticktext"] if t.startswith("all_reduce")]
    assert labels == [
        "all_reduce float32 8 KiB 2 ranks, latency",
        "all_reduce float32 4 MiB 2 ranks, busbw",
        "all_reduce float32 1 GiB 2 ranks, busbw",
    ]
    least = min(min(trace["x"]) for trace in figure.traces)
    assert least == pytest.approx(-96.9, abs=0.5)  # the prompt of 2048 tokens without peer access


def test_the_roofline_shows_no_model_that_waits_for_another_gpu() -> None:
    data = document()["data"]
    (figure,) = computing.roofline("h0", data["cells"], Places.of(data["hosts"]))
    assert isinstance(figure, Figure)
    (points,) = (trace for trace in figure.traces if trace["mode"] == "markers")
    assert len(points["x"]) == 6
    assert sorted(points["y"]) == pytest.approx([414.2] * 3 + [540.3] * 3, rel=0.02)


def test_its_page_is_drawn() -> None:
    page = render_report(Sight(document()["data"]))
    assert len(page.encode()) < 8_000_000
    assert "NVIDIA H200" in page
    assert "2048 tokens, bf16, graph, 2 GPUs, arm none/auto" in page
    assert "1 GiB, float32, 2 ranks, arm none/auto" in page
    assert "1 GiB, triad, arm none; 2 places" in page  # each GPU's own, not that of two ranks
    least = (
        "no GPU loses more than 5.0 % while all are busy; the least that one kept: host_to_device"
    )
    assert f"{least} 96.2 %" in page.rpartition("Not in this report")[0]
    for ways, rate in (("", "395.0"), (" both ways", "779.6")):
        assert f"peer write{ways} 256 MiB (measured)</td>" in page
        assert f">{rate} GB/s</td>" in page
    sizes = re.findall(r"float32 ([^<]*) arm none/auto</td>", page)
    assert sizes == ["8 KiB", "256 KiB", "4 MiB", "128 MiB", "1 GiB"]
