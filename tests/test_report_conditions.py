"""What GPUs went through, as a report tells it."""

from __future__ import annotations

from typing import Any

import pytest

from golden import check_golden, printed
from report_documents import Document, cell, gpu_uuid, host, reading, sweep
from topobench.report.text import render_sweep

RATE = "bandwidth_bytes_per_second"
LIMITS = {"power_watts": 700.0, "pcie_generation": 5, "pcie_width": 16}


def gpu(**changes: Any) -> Document:
    """What the agent keeps of a GPU at work."""
    value: Document = {
        "readings": 10,
        "sm_hertz": [1.41e9, 1.98e9, 1.98e9],
        "temperature_celsius": [38, 41, 44],
        "power_watts": [118.2, 302.0, 344.6],
        "clock_reasons": {"idle": 0.2},
        "limits": LIMITS,
        "pcie": {"loaded_readings": 8, "generation": [1, 5, 5], "width": [16, 16, 16]},
        "counted": {},
        "unavailable": {},
    }
    return {**value, **changes}


def measured(name: str, index: int, found: Document, **changes: Any) -> Document:
    key = gpu_uuid(name, index)
    return cell(
        "host_to_device",
        [reading(RATE, 5.5e10)],
        host=f"key-{name}",
        devices=[key],
        conditions={"gpus": {key: found}, "host": {}, "nics": {}, "monitor": {"seconds": 1.0}},
        **changes,
    )


def conditions_of(document: Document, width: int = 100) -> str:
    shown = printed(render_sweep(document), width)
    return shown.split("CONDITIONS\n")[1].split("\n\n")[0] if "CONDITIONS\n" in shown else ""


SLOW = gpu(
    clock_reasons={"sw_power_cap": 0.5, "hw_thermal_slowdown": 0.1},
    pcie={"loaded_readings": 8, "generation": [3, 3, 3], "width": [8, 8, 8]},
    sm_hertz=[0.9e9, 1.2e9, 1.3e9],
)


def test_a_line_for_each_gpu() -> None:
    cells = [
        measured("gpu01", 0, gpu()),
        measured("gpu01", 0, gpu(power_watts=[300.0, 640.0, 699.9]), process_no=1),
        measured("gpu01", 1, SLOW, status="invalid", reason="throttled: slow"),
        measured("gpu01", 2, {"readings": 5, "limits": {}, "unavailable": {"power": "no"}}),
        measured("gpu01", 3, {"unavailable": {"nvml": "driver not loaded"}}),
    ]
    check_golden("conditions", conditions_of(sweep([host(gpus=4)], cells)) + "\n")


def test_of_many_gpus_only_those_with_something_to_tell() -> None:
    cells = [
        measured(f"h{n:02}", i, SLOW if (n, i) == (7, 3) else gpu())
        for n in range(12)
        for i in range(8)
    ]
    hosts = [host(f"h{n:02}", 8, address=f"10.9.0.{n}") for n in range(12)]
    shown = conditions_of(sweep(hosts, cells))
    assert shown.count("gen") == 2  # of one GPU: reached, and possible
    assert "h07:GPU3" in shown
    assert "95 GPUs neither throttled nor on a slow slot, not shown" in shown


@pytest.mark.parametrize("conditions", [{}, {"gpus": {}}, {"gpus": None}, {"host": {"load": 1}}])
def test_without_gpus_there_is_no_table(conditions: Document) -> None:
    cells = [cell("host_memory", [reading(RATE, 1e9)], conditions=conditions)]
    assert conditions_of(sweep([host()], cells)) == ""


def test_warnings_that_differ_in_one_quantity_are_told_from_the_lowest_to_the_highest() -> None:
    """The commonest says nothing of the gravest. Numbers of GPUs are names, and are counted."""
    texts = [f"steal: the hypervisor gave {n}.0 % of the CPUs' time to others" for n in range(2, 8)]
    texts += [f"power_capped: gpu:{n} worked at its power limit" for n in range(5)]
    cells = [
        cell("p", [reading(RATE, 1e9)], process_no=i, warnings=[w]) for i, w in enumerate(texts)
    ]
    cells += [cell("q", [reading(RATE, 1e9)], warnings=["plain words: with a colon"])]
    shown = printed(render_sweep(sweep([host()], cells)), 100).split("WARNINGS\n")[1]
    assert shown.startswith(
        "  6 cells: steal: the hypervisor gave 2.0 to 7.0 % of the CPUs' time to others\n"
        "  1 cell: power_capped: gpu:0 worked at its power limit\n"
        "  4 cells more: power_capped, with other numbers\n"
        "  1 cell: plain words: with a colon\n"
    )
