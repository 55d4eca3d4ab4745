"""A sweep that was measured on two real GPUs, and what must follow from it."""

from __future__ import annotations

import functools
import json
import lzma
import re
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

import documents
from golden import printed
from topobench import nccl_graph, nccl_log
from topobench.agents.nccl_run import unpack
from topobench.report.page import Sight, render_report
from topobench.report.text import render_sweep

RECORDED = Path(__file__).parent / "recorded"
BUSBW = "busbw_bytes_per_second"
LARGE = 128 * 2**20
PREFILLED = (("none", 1), ("none/auto", 2), ("none/identity", 2), ("none/auto+p2p_off", 2))


@functools.cache
def document() -> dict[str, Any]:
    packed = (RECORDED / "two_h200.json.xz").read_bytes()
    loaded: dict[str, Any] = json.loads(lzma.decompress(packed))
    return loaded


def cells(probe: str) -> list[dict[str, Any]]:
    return [c for c in document()["data"]["cells"] if c["probe"] == probe]


def logged() -> list[dict[str, Any]]:
    """The cells that keep a log of NCCL."""
    return [c for c in cells("all_reduce") if "log" in c["conditions"].get("nccl", {})]


def bandwidths(arm: str, size: int = LARGE) -> list[float]:
    """Median of each process, in bytes/s."""
    return [
        reading["median"]
        for cell in cells("all_reduce")
        if cell["arm"] == arm and cell["params"].get("bytes") == size and cell["status"] == "ok"
        for reading in cell["readings"]
        if reading["metric"] == BUSBW and not reading["point"]
    ]


def prefill_seconds(arm: str, tensor_parallel: int) -> float:
    """Median over processes, GPU time of 2,048 tokens."""
    medians = [
        reading["median"]
        for cell in cells("prefill")
        if cell["arm"] == arm and cell["params"].get("tensor_parallel") == tensor_parallel
        if cell["params"]["sequence"] == 2048 and cell["status"] == "ok"
        for reading in cell["readings"]
        if reading["metric"] == "prefill_device_seconds" and not reading["point"]
    ]
    return float(statistics.median(medians))


def test_the_document_is_as_its_schema_says() -> None:
    documents.check(document(), "probe")


def test_nothing_in_it_names_the_machine_it_came_from() -> None:
    text = json.dumps(document()) + "".join(
        unpack(c["conditions"]["nccl"]["log"]) for c in logged()
    )
    found = re.findall(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", text)
    assert found
    assert all(identifier.endswith("-0000-4000-8000-000000000000") for identifier in found)
    addresses = set(re.findall(r"\b\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}\b", text))
    assert addresses <= {"192.0.2.2", "127.0.0.1", "0.0.0.0"}


def test_the_ring_of_every_kept_log_is_the_one_that_was_stored() -> None:
    found = set()
    for cell in logged():
        stored = cell["conditions"]["nccl"]
        log = nccl_log.parse([unpack(stored["log"])])
        for name in ("rings", "channels", "version", "transports"):
            assert nccl_log.summary(log)[name] == stored[name], (cell["arm"], name)
        found.add(cell["arm"])
    assert {"none/auto", "none/auto_ring", "none/identity", "none/auto+p2p_off"} <= found


def test_the_graph_file_of_a_ring_holds_against_its_log() -> None:
    """What was asked is rebuilt from the file alone, and a reversed GPU in it would be seen."""
    given = [c for c in logged() if "graph" in c["conditions"]["nccl"]]
    assert {c["arm"] for c in given} == {"none/identity"}
    for cell in given:
        stored = cell["conditions"]["nccl"]
        graphs = nccl_graph.parse(unpack(stored["graph"]))
        nccl_graph.check(graphs, [0, 1])
        asked = nccl_log.Asked(nccl_graph.rings(graphs), (0, 1), stored["channels"], (8192,))
        log = nccl_log.parse([unpack(stored["log"])])
        assert nccl_log.verify(log, asked) is None
        other = nccl_log.Asked(asked.rings, (1, 0), stored["channels"], (8192,))
        assert nccl_log.verify(log, other) is not None


def test_the_ring_that_nccl_chose_and_the_same_from_a_file_are_equally_fast() -> None:
    own, given = bandwidths("none/auto_ring"), bandwidths("none/identity")
    assert len(own) >= 3
    assert len(given) >= 3
    assert sorted(given) == pytest.approx(sorted(own), rel=0.01)
    assert min(own) > 280e9


@pytest.mark.parametrize(("arm", "most"), [("none/auto+ctas_2", 50e9), ("none/auto+p2p_off", 35e9)])
def test_two_channels_and_no_peer_access_are_slow(arm: str, most: float) -> None:
    assert 0 < max(bandwidths(arm)) < most


def test_a_ring_the_other_way_round_is_not_measured_twice() -> None:
    (turned,) = [c for c in cells("all_reduce") if c["arm"] == "none/1-0"]
    assert turned["status"] == "not_applicable"
    assert turned["reason"].startswith("equivalent_arms")


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


def test_two_gpus_answer_long_prompts_in_little_over_half_the_time() -> None:
    """Of 2,048 tokens; and slower than one GPU where they may not reach each other."""
    seconds = {(arm, n): prefill_seconds(arm, n) for arm, n in PREFILLED}
    assert 1.6 < seconds["none", 1] / seconds["none/auto", 2] < 2
    assert seconds["none/identity", 2] == pytest.approx(seconds["none/auto", 2], rel=0.01)
    assert seconds["none/auto+p2p_off", 2] > seconds["none", 1]


def test_its_report_fits_and_names_both_gpus() -> None:
    text = printed(render_sweep(document()["data"]), 100)
    assert max(map(len, text.splitlines())) <= 100
    for part in ("2x NVIDIA H200", "all_reduce", "285", "interrupted"):
        assert part in text


def test_its_page_is_drawn() -> None:
    page = render_report(Sight(document()["data"]))
    assert len(page.encode()) < 8_000_000
    assert "NVIDIA H200" in page
