"""What a plan shows before anything runs."""

from __future__ import annotations

from typing import Any

import planning
import report_documents as documents
from golden import check_golden, printed
from report_documents import Document, binding, cell, gpu_uuid
from topobench import config
from topobench.plan import make_plan, plan_document
from topobench.report.plan_text import render_plan


def plan(cells: list[Document], hosts: int = 1, **changes: object) -> Document:
    """The ``data`` of ``topobench plan --format json``."""
    counts: dict[str, int] = {}
    for each in cells:
        counts[each["status"]] = counts.get(each["status"], 0) + 1
    return {
        "cluster": "lab",
        "profile": "quick",
        "seed": 7,
        "store": "sqlite:///topobench.db",
        "estimated_seconds": 1338.0,
        "gpu_hours": 2.973,
        "counts": counts,
        "absent_hosts": [],
        "warnings": [],
        "hosts": [
            {"key": f"key-gpu{i:02d}", "name": f"gpu{i:02d}", "address": "", "sku": "8x H200"}
            for i in range(1, hosts + 1)
        ],
        "cells": cells,
        **changes,
    }


def planned(probe: str, **changes: Any) -> Document:
    return cell(probe, **{"status": "planned", "seconds": None, **changes})


def eight_gpus() -> list[Document]:
    copies = [
        planned(
            "host_to_device",
            devices=[gpu_uuid("gpu01", gpu)],
            params={"bytes": size, "direction": direction, "memory": "pinned"},
            binding=binding(arm),
            block=block,
        )
        for gpu in range(8)
        for size in (4096 * 4**i for i in range(10))
        for direction in ("h2d", "d2h")
        for arm in ("none", "local")
        for block in range(2)
    ]
    reduce = planned(
        "all_reduce",
        devices=[gpu_uuid("gpu01", i) for i in range(8)],
        params={"bytes": 8192, "ranks": 8, "dtype": None},
        ranks=8,
    )
    skipped = planned(
        "all_reduce", status="skipped", reason="needs_2_hosts: one host is alive", ranks=16
    )
    return [*copies, reduce, skipped]


def test_the_plan_reads_as_kept() -> None:
    warnings = ["gpu09: named in hosts: but not alive; nothing is measured there"]
    check_golden("plan", printed(render_plan(plan(eight_gpus(), warnings=warnings))))


def test_a_parameter_of_some_cells_is_told_as_theirs() -> None:
    cells = [
        planned("all_reduce", params={"bytes": 8192, "ranks": 2}),
        planned("all_reduce", params={"bytes": 8192, "hosts": "all", "ranks": 2}),
    ]
    assert "size 8 KiB; hosts all in some; arm none" in printed(render_plan(plan(cells)))


def test_a_plan_with_nothing_to_run_says_so() -> None:
    cells = [planned("host_to_device", status="skipped", reason="no_gpu: no NVIDIA driver")]
    shown = printed(render_plan(plan(cells, estimated_seconds=0.0, gpu_hours=0.0)))
    assert "WOULD RUN\n  Nothing.\n" in shown
    assert shown.splitlines()[-1] == (
        "0 cells to run, 1 skipped; about 0 s, no GPU time; nothing was run"
    )


def test_time_is_of_the_busiest_host() -> None:
    """Hosts work side by side, so a thousand of them take no longer than the slowest."""
    cells = [planned("p", host=f"key-gpu{h:02d}", estimated_seconds=30.0 * h) for h in range(1, 5)]
    shown = printed(render_plan(plan(cells, hosts=4)))
    assert "  p          4  120 s  arm none" not in shown
    assert "  p          4  2 min  arm none\n" in shown


def test_many_hosts_are_counted_by_hardware() -> None:
    assert "  30 hosts  8x H200\n" in printed(render_plan(plan(eight_gpus(), hosts=30)))


def test_hostile_text_in_a_plan_is_shown_as_text() -> None:
    cells = [planned("p\x1b[2J", params={"a\n": "\x07[red]"})]
    shown = printed(render_plan(plan(cells, cluster="\x1b]0;x\x07", warnings=["\x1b[1A"])))
    assert not set(shown) & {"\x1b", "\x07"}
    assert r"a\n \x07[red]; arm none" in shown


def test_a_plan_of_the_planner_is_drawn_whole() -> None:
    """Every probe of the real plan is named, with its number of cells."""
    host = planning.host(planning.dual(8))
    settings = config.load(None, environ={})
    made = make_plan(settings, [host], seed=3)
    shown = printed(render_plan(plan_document(made, settings, [host])), width=100)
    for probe in {c.case.probe for c in made.cells if c.status == "planned"}:
        cells = sum(c.case.probe == probe and c.status == "planned" for c in made.cells)
        assert [line for line in shown.splitlines() if line.split()[:2] == [probe, str(cells)]]


def test_documents_here_have_the_shape_of_the_planner_s() -> None:
    """So that the hand-written documents of these tests cannot drift from the real ones."""
    host = planning.host(planning.dual(2))
    settings = config.load(None, environ={})
    real = plan_document(make_plan(settings, [host], seed=3), settings, [host])
    ours = plan(eight_gpus())
    assert ours.keys() == real.keys()
    assert real["cells"][0].keys() <= ours["cells"][0].keys()
    assert ours["hosts"][0].keys() == real["hosts"][0].keys()
    assert documents.binding().keys() == real["cells"][0]["binding"].keys()
