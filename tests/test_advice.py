"""Advice: only what was measured, with its effect, and files that say whom they are for."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

import report_documents as documents
import sights
from documents import check
from golden import printed
from topobench import cli
from topobench.advice import Outlook, advise
from topobench.advice.words import Advice
from topobench.db.store import Store
from topobench.report.advice_text import render_advice
from topobench.seeing import sight_of
from topobench.topology import Topology

GPUS = [f"GPU-{i:08d}-0000-4000-8000-000000000000" for i in range(4)]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Four GPUs, six blocks: a slow one, a ring that pays, a far node that costs."""
    url = sights.store_at(tmp_path_factory.mktemp("advice"))
    sights.fill_rich(url)
    return url


@pytest.fixture(scope="module")
def document(store: str) -> dict[str, Any]:
    with Store.open(store, create=False, read_only=True) as opened:
        return opened.sweep_document()


def found(document: Mapping[str, Any], kind: str, **more: Any) -> list[Advice]:
    topology: Topology = more.pop("topology", sights.wiring(4))
    return [a for a in advise(document, topology, **more) if a.kind == kind]


def ring_gain(ring: str) -> float:
    """Of 64 MiB over four ranks, by the formula of the store."""
    size, factor = 64 << 20, 1.5
    ours, auto = (
        sights.RING_SECONDS + size * factor / (sights.BUSBW * sights.RINGS[name])
        for name in (ring, "auto")
    )
    return auto / ours - 1


def test_a_binding_without_a_gain_says_so_and_what_the_far_node_costs(
    document: dict[str, Any],
) -> None:
    items = found(document, "binding")
    assert [(a.subject, a.devices) for a in items] == [(f"GPU {i}", (GPUS[i],)) for i in range(4)]
    for number, item in enumerate(items):
        assert item.outlook is Outlook.NO_GAIN
        assert item.lo is not None
        assert item.hi is not None
        assert -0.03 < item.lo <= item.hi < 0.05
        assert "the farthest node costs -20.0 % (-20" in item.text
        node = number * 2 // 4
        assert item.lines == (
            f"CUDA_VISIBLE_DEVICES={GPUS[number]} numactl --cpunodebind={node} "
            f"--membind={node} COMMAND",
        )


def test_a_binding_that_pays_is_a_gain(document: dict[str, Any]) -> None:
    """Unbound copies at nine tenths: binding gives the tenth back."""
    slow = json.loads(json.dumps(document))
    for cell in slow["cells"]:
        if cell["probe"] == "host_to_device" and cell["arm"] == "none":
            for reading in cell["readings"]:
                reading["median"] *= 0.9
    item = found(slow, "binding")[0]
    assert item.outlook is Outlook.GAIN
    assert item.effect_ratio == pytest.approx(1 / 0.9 - 1, abs=0.003)
    assert item.lo is not None
    assert item.lo > 0.1


def test_fewer_than_six_blocks_decide_nothing(document: dict[str, Any]) -> None:
    few = {**document, "cells": [c for c in document["cells"] if c["block"] < 4]}
    items = [a for a in advise(few, sights.wiring(4)) if a.outlook is Outlook.GAIN]
    assert items == []
    binding = found(few, "binding")[0]
    assert (binding.outlook, binding.lo) == (Outlook.UNDECIDED, None)
    assert binding.lines == ("topobench probe --profile full --bindings none,local,remote",)


def test_the_slow_gpu_is_named_last(document: dict[str, Any]) -> None:
    (item,) = found(document, "order")
    assert item.outlook is Outlook.GAIN
    assert item.effect_ratio == pytest.approx(sights.SLOW_SHARE - 1, abs=0.003)
    assert item.lines == (f"CUDA_VISIBLE_DEVICES={','.join(GPUS)}",), "GPU 3 is last already"
    assert "name GPU 3 last: -10.0 %" in item.text


def test_a_chunk_is_the_smallest_that_nearly_reaches_the_peak(document: dict[str, Any]) -> None:
    (item,) = found(document, "chunk")
    assert item.outlook is Outlook.GAIN
    assert item.text.startswith("16 MiB is the smallest measured chunk that reaches 95 % of")
    big, usual = (
        size / (sights.CALL_SECONDS + size / sights.H2D_PEAK) for size in (16 << 20, 1 << 20)
    )
    assert item.effect_ratio == pytest.approx(big / usual - 1, abs=0.01)


def test_a_ring_that_pays_comes_with_its_file_and_its_gpus(document: dict[str, Any]) -> None:
    (item,) = found(document, "ring")
    assert item.outlook is Outlook.GAIN
    assert item.effect_ratio == pytest.approx(ring_gain("best"), abs=0.003)
    assert item.ring is not None
    assert item.ring.text == sights.GRAPH
    assert item.ring.valid_for == tuple(GPUS)
    assert item.ring.variables == {
        "NCCL_ALGO": "allreduce:ring",
        "NCCL_NVLS_ENABLE": "0",
        "NCCL_MIN_CTAS": "24",
        "NCCL_MAX_CTAS": "24",
    }


def test_a_ring_whose_file_is_not_stored_is_measured_again(document: dict[str, Any]) -> None:
    bare = {**document, "cells": [{**c, "conditions": {}} for c in document["cells"]]}
    (item,) = found(bare, "ring")
    assert (item.outlook, item.ring) == (Outlook.GAIN, None)
    assert "its graph file is not stored" in item.text
    assert item.lines[0].startswith("topobench probe --cluster")


def test_rings_that_gain_nothing_are_left_to_nccl(document: dict[str, Any]) -> None:
    plain = {
        **document,
        "cells": [c for c in document["cells"] if not c["arm"].endswith("/best")],
    }
    (item,) = found(plain, "ring")
    assert item.outlook is Outlook.NO_GAIN
    assert item.text.startswith("leave the rings to NCCL: the fastest other, auto_ring, is -4.")
    assert item.effect_ratio == pytest.approx(ring_gain("auto_ring"), abs=0.003)
    assert (item.lines, item.ring) == ((), None)


def test_a_host_with_one_gpu_is_asked_for_no_order_and_no_ring(document: dict[str, Any]) -> None:
    (place,) = document["hosts"]
    described = {**place["description"], "devices": place["description"]["devices"][:1]}
    alone = [c for c in document["cells"] if c["devices"] == GPUS[:1]]
    seen = {**document, "hosts": [{**place, "description": described}], "cells": alone}
    told = {(a.outlook, a.text, a.lines) for k in ("order", "ring") for a in found(seen, k)}
    assert told == {(Outlook.NOT_APPLICABLE, "this host has one GPU", ())}


@pytest.mark.parametrize(
    ("kind", "without", "reason"),
    [
        ("binding", lambda c: c["arm"].startswith("local"), "this host shows one NUMA node"),
        ("ring", lambda c: "/" in c["arm"], "all ring orders of two GPUs are equivalent"),
    ],
)
def test_where_there_is_no_choice_nothing_is_asked_for(
    document: dict[str, Any], kind: str, without: Callable[[dict[str, Any]], bool], reason: str
) -> None:
    cells = [
        {**c, "status": "not_applicable", "reason": f"equivalent_arms: {reason}", "readings": []}
        if without(c)
        else c
        for c in document["cells"]
    ]
    told = found({**document, "cells": cells}, kind)
    assert {(a.outlook, a.text, a.lines) for a in told} == {(Outlook.NOT_APPLICABLE, reason, ())}


def test_a_ring_that_failed_is_a_choice_that_was_not_measured(document: dict[str, Any]) -> None:
    """Two of the GPUs have one order; what all of them had is not known."""
    reason = "equivalent_arms: all ring orders of two GPUs are equivalent"
    ringed = [c for c in document["cells"] if "/" in c["arm"]]
    refused = [
        {**c, "status": "not_applicable", "reason": reason, "readings": []} for c in ringed[1:]
    ]
    failed = {**ringed[0], "ring": "best", "status": "failed", "reason": "hang: x", "readings": []}
    others = [c for c in document["cells"] if c not in ringed]
    told = found({**document, "cells": [*others, *refused, failed]}, "ring")
    assert {a.outlook for a in told} == {Outlook.NOT_MEASURED}


def test_pinned_memory_is_not_advised_where_pageable_was_not_measured(
    document: dict[str, Any],
) -> None:
    (item,) = found(document, "pinned")
    assert item.outlook is Outlook.NOT_MEASURED
    assert "memory=pinned,pageable" in item.lines[0]


def test_pinned_memory_that_pays_is_a_gain(document: dict[str, Any]) -> None:
    pageable = []
    for cell in document["cells"]:
        if cell["probe"] == "host_to_device":
            copy = json.loads(json.dumps(cell))
            copy["params"]["memory"] = "pageable"
            for reading in copy["readings"]:
                reading["median"] *= 0.25
            pageable.append(copy)
    (item,) = found({**document, "cells": [*document["cells"], *pageable]}, "pinned")
    assert item.outlook is Outlook.GAIN
    assert item.effect_ratio == pytest.approx(3.0, abs=0.02)


def test_pinned_memory_of_one_arm_is_not_held_against_pageable_of_another(
    document: dict[str, Any],
) -> None:
    own = [c for c in document["cells"] if c["probe"] == "host_to_device"]
    bound = [c for c in own if c["arm"] == "local"]
    unbound = [
        {**c, "params": {**c["params"], "memory": "pageable"}} for c in own if c["arm"] == "none"
    ]
    assert bound
    assert unbound
    (item,) = found({**document, "cells": [*bound, *unbound]}, "pinned")
    assert item.outlook is Outlook.NOT_MEASURED


def test_the_nearest_nic_is_named_as_found_not_as_measured(document: dict[str, Any]) -> None:
    items = found(document, "nic")
    assert [a.text for a in items] == [f"mlx5_{i} (PXB)" for i in range(4)]
    assert {a.outlook for a in items} == {Outlook.NOT_MEASURED}
    assert {a.effect_ratio for a in items} == {None}


def test_a_failed_host_gets_the_lines_that_take_it_out(document: dict[str, Any]) -> None:
    verdict = {
        "host": "gpu01", "host_name": "gpu01", "device": None, "check": "overall",
        "level": "fail", "action": None, "reason": "a link lost half its lanes",
        "policy_version": "1", "as_of": "2026-11-29T16:00:00Z",
    }  # fmt: skip
    (item,) = found(document, "out_of_service", verdicts=[verdict])
    assert item.lines == (
        "scontrol update NodeName=gpu01 State=DRAIN Reason='topobench: fail'",
        "kubectl cordon gpu01",
    )
    assert found(document, "out_of_service", verdicts=[{**verdict, "level": "degraded"}]) == []


def test_a_host_without_gpus_is_told_so(tmp_path: Path) -> None:
    url = sights.store_at(tmp_path)
    sights.fill(url, [sights.host(gpus=0)], probes="host_memory")
    with Store.open(url, create=False, read_only=True) as store:
        sight = sight_of(store, "latest")
    (item,) = advise(sight.document, None)
    assert (item.outlook, item.lines) == (Outlook.NOT_MEASURED, ("topobench doctor",))


def test_the_command_writes_the_ring_file_and_one_document(
    store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["advise", "GPU01", "--store", store, "--out", str(tmp_path)]
    assert cli.main([*arguments, "--format", "json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    check(answer, "advise")
    (ring,) = [a for a in answer["data"]["advice"] if a["kind"] == "ring"]
    file = tmp_path / "ring-gpu01-4gpus-best.xml"
    assert ring["file"] == str(file)
    assert file.read_text() == sights.GRAPH
    assert ring["valid_for"] == GPUS
    env = file.with_suffix(".env").read_text().splitlines()
    assert shlex.split(env[2], comments=True) == ["export", f"NCCL_GRAPH_FILE={file}"]
    assert env[0].startswith("# ring best: +7.")
    assert GPUS[3] in env[1]


def test_the_text_tells_gains_first_and_says_what_is_missing(
    store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["advise", "--store", store, "--out", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    titles = [line for line in out.splitlines() if line.isupper() and line[0] != " "]
    assert titles == ["WORTH DOING", "NO MEASURABLE GAIN", "NOT MEASURED", "ROOFLINE"]
    assert "NIC, GPU 0: mlx5_0 (PXB); GPU 1: mlx5_1 (PXB)" in out


def test_what_would_decide_is_measured_on_the_host_that_was_asked_of(
    store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without these flags the command measures the host on which it is called."""
    assert cli.main(["advise", "--store", store, "--out", str(tmp_path)]) == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    probes = [line for line in lines if line.startswith("topobench probe")]
    assert len(probes) >= 2
    aimed = "topobench probe --cluster cluster.yaml --hosts gpu01 --p"
    assert [line for line in probes if not line.startswith(aimed)] == []


def test_what_bounds_each_work_is_told_in_the_words_of_the_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """4 us a launch at 55 GB/s are 220 kB: far below launching bounds, far above the link does."""
    url = sights.store_at(tmp_path)
    sets = ["host_to_device.bytes=4K,128K,64M", "host_to_device.direction=h2d", "gemm.dtype=bf16"]
    probes = "host_to_device,kernel_launch,gemm"
    sweep = sights.fill(url, [sights.host(gpus=2)], probes=probes, sets=sets, end=None)
    assert cli.main(["advise", "--store", url, "--format", "json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    check(answer, "advise")
    found = answer["data"]["roofline"]
    assert [(b["bounds"], b["work"][0]) for b in found["bounds"]] == [
        (["launch"], "host_to_device h2d 4 KiB"),
        (["host link"], "host_to_device h2d 64 MiB"),
        (["launch", "host link"], "host_to_device h2d 128 KiB"),
    ]
    assert found["unknown"] == [
        {
            "lacks": ["memory"],
            "work": ["gemm bf16 8192 burst"],
            "text": "not known, for the ceiling of memory was not measured: gemm bf16 8192 burst",
            "lines": [
                "topobench probe --cluster cluster.yaml --hosts gpu01 "
                "--probes gemm,kernel_launch,device_memory"
            ],
        }
    ]
    assert cli.main(["advise", "--store", url]) == 0
    advised = capsys.readouterr().out
    status = f"sweep {sweep[:8]}, 2026-11-29 16:00 UTC, running: what it measured so far"
    assert status in " ".join(advised.split())  # in however many lines
    assert cli.main(["report", "--store", url]) == 0
    line = "  no single bound: launch and host link both count in host_to_device h2d 128 KiB\n"
    assert line in advised
    assert line in capsys.readouterr().out


def test_an_unknown_or_missing_host_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = sights.store_at(tmp_path)
    hosts = [sights.host(n, gpus=0) for n in ("h1", "h2")]
    sights.fill(url, hosts, probes="host_memory")
    assert cli.main(["advise", "--store", url]) == 2
    assert "has 2 hosts; name one of h1, h2" in capsys.readouterr().err
    assert cli.main(["advise", "h9", "--store", url]) == 2
    assert "host 'h9'" in capsys.readouterr().err
    assert cli.main(["advise", "h2", "--store", url]) == 0
    assert "topobench advice for h2" in capsys.readouterr().out


def test_hostile_names_cannot_steer_a_terminal() -> None:
    item = {
        "kind": "ring", "subject": "\x1b[2J", "devices": [], "outlook": "gain", "text": "\x1b[31m",
        "lines": ["\x1b]0;x\x07"], "effect_ratio": None, "lo": None, "hi": None, "mde": None,
        "evidence": "\x1b", "file": None, "valid_for": [],
    }  # fmt: skip
    host = {"key": "k", "name": "\x1b[2J", "cluster": "\x1b", "sku": None}
    bound = {"text": "\x1b", "lines": ["\x1b"]}
    data = {
        "host": host, "sweep": "x", "sweep_status": "\x1b", "measured_at": "t", "synthetic": True,
        "advice": [item],
        "roofline": {
            "ceilings": [{"on": "\x1b", "text": "\x1b"}], "bounds": [bound], "unknown": [bound],
        },
    }  # fmt: skip
    assert "\x1b" not in printed(render_advice(data))


def test_chunks_are_compared_on_the_same_gpus_only(document: dict[str, Any]) -> None:
    """Half the sizes of the fast GPUs are missing: what is left is one slow GPU, not a gain."""
    few = json.loads(json.dumps(document))
    for cell in few["cells"]:
        if cell["probe"] == "host_to_device" and cell["params"]["bytes"] < 256 << 20:
            slow = GPUS[sights.SLOW_GPU]
            cell["readings"] = [r for r in cell["readings"] if r["point"].get("device") == slow]
    (item,) = found(few, "chunk")
    (whole,) = found(document, "chunk")
    assert item.effect_ratio == pytest.approx(whole.effect_ratio, abs=0.002)
    assert f"{sights.SLOW_SHARE * 55:.1f}"[:2] in item.text.partition("peak of ")[2]
    assert item.evidence.endswith("5 chunks, 1 GPU")


def loads(rates: Mapping[int, float], processes: int = 8) -> list[dict[str, Any]]:
    """Cells of weight_load by threads that read, each process 0.1 % apart."""
    return [
        documents.cell(
            "weight_load",
            [documents.reading("load_bandwidth_bytes_per_second", rate * (1 + 0.001 * number))],
            params={"bytes": 1 << 30, "chunk_bytes": 1 << 24, "readers": threads},
            devices=[GPUS[0]],
            process_no=number,
        )
        for threads, rate in rates.items()
        for number in range(processes)
    ]


def reading_advice(cells: list[dict[str, Any]]) -> Advice:
    (item,) = found(documents.sweep([documents.host(gpus=1)], cells), "readers")
    return item


def test_the_fewest_threads_that_load_fast_are_advised_with_their_gain() -> None:
    item = reading_advice(loads({1: 1e9, 2: 2e9, 4: 3.9e9, 8: 6e9, 16: 6.1e9}))
    assert item.outlook is Outlook.GAIN
    assert item.text.startswith("8 threads are the fewest measured that reach 95% of the peak of")
    assert item.effect_ratio == pytest.approx(6 / 3.9 - 1)
    assert item.text.endswith(" against 4")
    assert item.evidence == (
        "weight_load, load_bandwidth_bytes_per_second, 5 numbers of threads, 1 GPU"
    )


def test_more_threads_are_not_advised_where_the_usual_ones_are_enough() -> None:
    item = reading_advice(loads({1: 1e9, 2: 5.9e9, 4: 6e9, 8: 6e9}))
    assert (item.outlook, item.effect_ratio) == (Outlook.NO_GAIN, None)
    assert item.text.endswith("; 4 are enough")


def test_threads_that_few_processes_tried_are_not_decided() -> None:
    item = reading_advice(loads({1: 1e9, 4: 3e9, 16: 6e9}, processes=2))
    assert item.outlook is Outlook.UNDECIDED
    assert item.lines[0].endswith("--set weight_load.readers=1,2,4,8,16")
    unknown = reading_advice(loads({4: 3e9}))
    assert (unknown.outlook, unknown.lines) == (Outlook.NOT_MEASURED, item.lines)
