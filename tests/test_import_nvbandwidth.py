"""Outputs of nvbandwidth: matrices in text and JSON, waived and failed cases, noise."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from documents import check
from topobench.errors import ImportFailed
from topobench.importers.document import Document
from topobench.importers.nvbandwidth import parse

RECORDED = Path(__file__).parent / "data" / "h200x2" / "nvbandwidth_0.8.json"

TEXT = """\
nvbandwidth Version: v0.2
Built from Git version: v0.2

CUDA Runtime Version: 12000
CUDA Driver Version: 12000
Driver Version: 535.54.03

Device 0: NVIDIA A100 (00000000:07:00)
Device 1: NVIDIA A100 (00000000:0b:00)

Running host_to_device_memcpy_ce.
memcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)
           0         1
 0     26.03     25.94
 1     25.90     26.01

SUM host_to_device_memcpy_ce 103.88

Running device_to_device_memcpy_read_ce.
memcpy CE GPU(row) -> GPU(column) bandwidth (GB/s)
           0         1
 0       N/A     26.34
 1     26.35       N/A

SUM device_to_device_memcpy_read_ce 52.69

Waiving device_to_device_memcpy_write_ce.

"""


def values(document: Document, testcase: str) -> dict[tuple[Any, ...], float | None]:
    """The figures of a test case by (part,) row and column."""
    return {
        tuple(k for k in (r.part, r.row, r.column) if k is not None): r.value
        for r in document.rows
        if r.testcase == testcase
    }


def status(document: Document, testcase: str) -> set[str]:
    """What the rows of a test case say of it."""
    return {str(r.status) for r in document.rows if r.testcase == testcase}


def recorded(*cases: dict[str, Any], **top: Any) -> str:
    """The recorded JSON with other test cases, and further keys at the top."""
    document = json.loads(RECORDED.read_text())
    document["nvbandwidth"].update(testcases=list(cases), **top)
    return json.dumps(document, indent="\t")


def case(name: str, state: str = "Passed", **more: Any) -> dict[str, Any]:
    """A test case of one figure as JSON has it."""
    return {
        "name": name,
        "status": state,
        "bandwidth_description": "memcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)",
        "bandwidth_matrix": [["55.5"]],
        "sum": 55.5,
        **more,
    }


def test_matrices_keep_rows_columns_and_what_was_not_measured() -> None:
    found = parse(TEXT)
    check(found.to_json(), "import")
    assert (found.status, found.version, found.malformed_rows) == ("ok", "0.2", 0)
    assert (found.facts["cuda"], found.facts["driver"]) == ("12000", "535.54.03")
    assert len(found.facts["devices"]) == 2
    assert values(found, "host_to_device_memcpy_ce") == {
        (0, 0): 26.03e9,
        (0, 1): 25.94e9,
        (1, 0): 25.90e9,
        (1, 1): 26.01e9,
    }
    assert values(found, "device_to_device_memcpy_read_ce") == {
        (0, 0): None,
        (0, 1): 26.34e9,
        (1, 0): 26.35e9,
        (1, 1): None,
    }
    assert {(r.row_kind, r.column_kind, r.unit) for r in found.rows[:4]} == {("cpu", "gpu", "B/s")}
    assert [(s.testcase, s.value) for s in found.facts["sums"]] == [
        ("host_to_device_memcpy_ce", 103.88e9),
        ("device_to_device_memcpy_read_ce", 52.69e9),
    ]
    (waived,) = (r for r in found.rows if r.testcase == "device_to_device_memcpy_write_ce")
    assert (waived.status, waived.value, waived.unit) == ("waived", None, None)


def test_the_recorded_run_gives_its_figures() -> None:
    found = parse(RECORDED.read_text())
    check(found.to_json(), "import")
    assert (found.status, found.version, found.facts["driver"]) == ("ok", "0.8", "580.159.04")
    assert (len(found.rows), found.malformed_rows, found.reasons) == (120, 0, ())
    assert values(found, "host_to_device_memcpy_ce") == {(0, 0): 55.4111e9, (0, 1): 55.4425e9}
    assert values(found, "device_to_device_memcpy_read_ce") == {
        (0, 0): None,
        (0, 1): 393.745e9,
        (1, 0): 393.654e9,
        (1, 1): None,
    }
    sums = {s.testcase: s for s in found.facts["sums"]}
    assert sums["host_to_device_memcpy_ce"].value == pytest.approx(110.853608697e9)


def test_a_latency_is_in_seconds() -> None:
    found = parse(RECORDED.read_text())
    assert values(found, "device_to_device_latency_sm")[0, 1] == 829.889e-9
    units = {r.unit for r in found.rows if r.testcase == "device_to_device_latency_sm"}
    assert units == {"s"}


def test_both_directions_and_their_sum_are_told_apart() -> None:
    """JSON stacks the three matrices, and calls them by the last one's title."""
    found = values(parse(RECORDED.read_text()), "device_to_device_bidirectional_memcpy_read_ce")
    assert found["1", 0, 1] == 389.407e9
    assert found["2", 1, 0] == 389.319e9
    assert found["total", 0, 1] == 778.726e9
    text = parse(
        "Running device_to_device_bidirectional_memcpy_read_ce.\n"
        + "".join(
            f"memcpy CE GPU(row) <-> GPU(column) {part} bandwidth (GB/s)\n"
            f"           0         1\n 0       N/A    {n}00.00\n 1    {n}00.50       N/A\n\n"
            f"SUM device_to_device_bidirectional_memcpy_read_ce_{part.lower()} {n}00.25\n\n"
            for n, part in ((1, "Read1"), (2, "Read2"), (3, "Total"))
        )
    )
    found = values(text, "device_to_device_bidirectional_memcpy_read_ce")
    assert (found["1", 0, 1], found["2", 1, 0], found["total", 0, 1]) == (100e9, 200.5e9, 300e9)
    assert [s.value for s in text.facts["sums"]] == [100.25e9, 200.25e9, 300.25e9]


def test_one_row_for_all_gpus_is_not_gpu_0() -> None:
    found = parse(RECORDED.read_text())
    for name in ("all_to_one_write_ce", "device_local_copy"):
        assert {r.row for r in found.rows if r.testcase == name} == {None}
        assert [r.column for r in found.rows if r.testcase == name] == [0, 1]


def test_a_waiver_without_a_name_is_not_of_the_case_before_it() -> None:
    found = parse(TEXT + "Waived: \n")
    assert status(found, "device_to_device_memcpy_read_ce") == {"ok"}
    assert "test cases that were waived without their names: 1" in found.reasons
    assert found.status == "ok"


def test_a_running_case_can_be_waived() -> None:
    found = parse(TEXT + "Running multinode_bisect.\nWaived: needs two hosts\n")
    assert status(found, "multinode_bisect") == {"waived"}


def test_a_case_without_an_end_is_unfinished() -> None:
    found = parse(TEXT + "Running device_local_copy.\n")
    assert (found.status, status(found, "device_local_copy")) == ("partial", {"unfinished"})
    assert status(found, "host_to_device_memcpy_ce") == {"ok"}


def test_a_text_that_ends_in_a_matrix_is_cut_off() -> None:
    """The rows that are there are right; each version prints the sum behind the last one."""
    found = parse(TEXT[: TEXT.index(" 1     25.90")])
    assert (found.status, status(found, "host_to_device_memcpy_ce")) == ("partial", {"ok"})
    assert "cut off: the sum of host_to_device_memcpy_ce is missing" in found.reasons[0]


def test_an_error_is_of_the_case_that_ran() -> None:
    text = "Running device_local_copy.\nInvalid value when checking the pattern at 8 [ 0 ]\n"
    found = parse(TEXT + text)
    assert (found.status, status(found, "device_local_copy")) == ("partial", {"error"})
    assert any("Invalid value when checking the pattern" in r for r in found.reasons)


def test_json_that_ended_in_an_error_keeps_the_good_cases() -> None:
    text = recorded(
        case("host_to_device_memcpy_ce"),
        {"name": "device_local_copy", "status": "Running"},
        error="[CUDA_ERROR_OUT_OF_MEMORY] out of memory in expression cuMemAlloc",
    )
    found = parse(text)
    check(found.to_json(), "import")
    assert found.status == "partial"
    assert values(found, "host_to_device_memcpy_ce") == {(0, 0): 55.5e9}
    assert status(found, "device_local_copy") == {"unfinished"}
    assert any("CUDA_ERROR_OUT_OF_MEMORY" in r for r in found.reasons)


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        (["Running", "Error"], "error"),
        (["Running", "Waived"], "waived"),
        (["ERROR"], "error"),
        (["Not Found"], "not_found"),
        (["Waived"], "waived"),
        (["Something new"], "error"),
    ],
)
def test_entries_of_one_name_are_one_case(states: list[str], expected: str) -> None:
    entries = [{"name": "device_local_copy", "status": s} for s in states]
    found = parse(recorded(case("host_to_device_memcpy_ce"), *entries))
    assert status(found, "device_local_copy") == {expected}
    assert len([r for r in found.rows if r.testcase == "device_local_copy"]) == 1


def test_a_case_that_passed_and_then_failed_is_no_result() -> None:
    entry = {"name": "host_to_device_memcpy_ce", "status": "Error"}
    found = parse(recorded(case("host_to_device_memcpy_ce"), entry))
    assert (found.status, status(found, "host_to_device_memcpy_ce")) == ("invalid", {"error"})


def test_two_results_of_one_name_leave_open_which_counts() -> None:
    twice = [case("host_to_device_memcpy_ce", bandwidth_matrix=[[v]]) for v in ("55.5", "44.4")]
    found = parse(recorded(*twice, case("device_local_copy")))
    assert (found.status, status(found, "host_to_device_memcpy_ce")) == ("partial", {"error"})


def test_noise_around_the_json_does_not_matter() -> None:
    text = RECORDED.read_text()
    noisy = f"A high-performance Open MPI point-to-point\n{{not json}}\n{text}\ncleaning up\n"
    assert parse(noisy).to_json() == parse(text).to_json()


def test_an_old_diagonal_of_zero_was_not_measured() -> None:
    text = TEXT.replace("N/A", "0.00")
    found = parse(text)
    assert values(found, "device_to_device_memcpy_read_ce")[0, 0] is None
    assert found.malformed_rows == 0
    assert parse(TEXT.replace("25.94", " 0.00")).malformed_rows == 1


@pytest.mark.parametrize(
    ("old", "new"),
    [("25.94", "  nan"), ("25.94", "fast"), (" 1     25.90     26.01", " 1   25.90")],
)
def test_a_cell_that_is_no_number_is_counted(old: str, new: str) -> None:
    found = parse(TEXT.replace(old, new))
    assert (found.malformed_rows, found.status) == (1, "partial")
    assert all(v is None or v > 1e9 for v in values(found, "host_to_device_memcpy_ce").values())


def test_a_matrix_without_a_unit_is_no_result() -> None:
    entry = case("multinode_bisect", bandwidth_description="Bisect benchmarking, CE BW")
    found = parse(recorded(entry, case("device_local_copy")))
    (row,) = (r for r in found.rows if r.testcase == "multinode_bisect")
    assert (row.status, row.unit) == ("error", None)


def test_a_run_without_a_result_is_invalid() -> None:
    found = parse(recorded({"name": "device_local_copy", "status": "Waived"}))
    assert (found.status, found.reasons[0]) == ("invalid", "no test case with a result")


@pytest.mark.parametrize(
    "text",
    ["", "hello", "{}", "[1]", "{", '{"nvbandwidth": 3}', "{\n}\n", "\x00", "1 2 3", "null"],
)
def test_what_is_no_output_is_refused(text: str) -> None:
    with pytest.raises(ImportFailed, match=r"nvbandwidth|JSON"):
        parse(text)
