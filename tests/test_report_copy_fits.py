"""The lines through the sizes of copies, as the report shows them."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import pytest
from rich.console import Console

from report_documents import cell, gpu_uuid, host, reading
from topobench.report.copy_fits import copy_fits
from topobench.report.records import Places

QUEUED, PER_CALL = "bandwidth_bytes_per_second", "per_call_bandwidth_bytes_per_second"
SIZES = [4096 << 2 * i for i in range(10)]
ALPHA, BETA = 3e-6, 50e9


def rate(size: int, *, ways: int = 1, beta: float = BETA) -> float:
    return ways * size / (ALPHA + ways * size / beta)


def copies(gpu: int = 0, *, sizes: Sequence[int] = SIZES, **changes: Any) -> list[dict[str, Any]]:
    """Cells of one process whose bandwidths lie on a line."""
    direction = changes.pop("direction", "h2d")
    beta = changes.pop("beta", BETA)
    ways = 2 if direction == "both" else 1
    found = []
    for size in sizes:
        params = {"bytes": size, "direction": direction, "memory": "pinned", "at_once": "one"}
        queued = reading(QUEUED, rate(size, ways=ways, beta=beta))
        single = reading(PER_CALL, queued["median"] / 2)
        devices = [gpu_uuid("gpu01", gpu)]
        made = {"params": params, "devices": devices, **changes}
        found.append(cell("host_to_device", [queued, single], **made))
    return found


def rows(cells: Sequence[Any], gpus: int = 8) -> list[list[str]]:
    """The fields of the table's lines."""
    out = io.StringIO()
    console = Console(file=out, width=200)
    console.print(*copy_fits(cells, Places.of([host(gpus=gpus)])))
    lines = out.getvalue().splitlines()
    return [line.replace("GPU ", "GPU").split() for line in lines if line.startswith("  GPU ")]


def table(cells: Sequence[Any], gpus: int = 8) -> list[list[str]]:
    return [r for r in rows(cells, gpus) if r[1] in ("one", "all")]


def test_a_line_is_found_again() -> None:
    """n-half is alpha x beta, 150,000 bytes; 95 % of the peak is reached from 19 times that."""
    (found,) = table(copies())
    assert found[:5] == ["GPU0", "one", "h2d", "pinned", "none"]
    assert found[5:7] == ["3.00", "us"]
    assert found[9] == "50.00"
    assert found[-4:] == ["146.48", "KiB", "4", "MiB"]


def test_a_bandwidth_of_both_ways_counts_both() -> None:
    """Half of it is reached at half the chunk, since a copy moves two."""
    (found,) = table(copies(direction="both"))
    assert found[9] == "50.00"
    assert found[-4:-2] == ["73.24", "KiB"]


def test_too_few_sizes_have_no_line() -> None:
    assert table(copies(sizes=SIZES[:4])) == []
    assert len(table(copies(sizes=SIZES[:5]))) == 1


def test_gpus_measured_at_once_have_a_line_each() -> None:
    cells = []
    for size in SIZES:
        params = {"bytes": size, "direction": "h2d", "memory": "pinned", "at_once": "all"}
        keys = [gpu_uuid("gpu01", i) for i in range(2)]
        parts = [
            reading(QUEUED, rate(size, beta=b), point={"rank": i, "device": keys[i]})
            for i, b in enumerate((50e9, 25e9))
        ]
        whole = reading(QUEUED, sum(p["median"] for p in parts))
        cells.append(cell("host_to_device", [whole, *parts], params=params, devices=keys, ranks=2))
    found = table(cells)
    assert [r[0] for r in found] == ["GPU0", "GPU1"]
    assert ["50.00" in r for r in found] == [True, False]
    assert ["25.00" in r for r in found] == [False, True]


def test_several_processes_are_fitted_apart() -> None:
    cells = [c for n, b in enumerate((48e9, 50e9, 52e9)) for c in copies(beta=b, process_no=n)]
    (found,) = table(cells)
    assert "50.00" in found


def test_of_many_lines_the_slowest_gpu_of_each_kind_is_shown() -> None:
    cells = [
        c
        for arm in ("none", "local", "spread", "remote")
        for gpu in range(8)
        for direction in ("h2d", "d2h")
        for c in copies(gpu, arm=arm, direction=direction, beta=BETA - gpu * 1e9)
    ]
    found = table(cells)
    assert len(found) == 4 * 2
    assert {r[0] for r in found} == {"GPU7"}


@pytest.mark.parametrize("status", ["invalid", "failed"])
def test_cells_without_a_valid_number_are_left_out(status: str) -> None:
    assert table(copies(status=status)) == []
