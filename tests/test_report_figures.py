"""Numbers as people read them."""

from __future__ import annotations

import math

import pytest

from topobench.report.figures import (
    UNKNOWN,
    Scale,
    aligned,
    label,
    metric_labels,
    number,
    quantity,
    scale_for,
)

ONE = Scale(1, "")


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (55.2987, "55.30"),
        (393.7, "393.7"),
        (2078.4, "2078"),
        (1.5831, "1.583"),
        (0.28, "0.280"),
        (0.1, "0.100"),
        (0.0571, "0.057"),
        (0.00043, "0.00043"),
        (90100.2, "90100"),
        (0.0, "0"),
        (-3.25, "-3.250"),
        (None, UNKNOWN),
        (math.nan, UNKNOWN),
        (math.inf, UNKNOWN),
        (1.5e-20, "1.5e-20"),
        (1e300, "1e+300"),
        (2.5e-9, "0.0000000025"),
    ],
)
def test_numbers_keep_four_figures_and_unknown_is_a_dash(value: float | None, shown: str) -> None:
    assert number(value, ONE) == shown


def test_decimal_points_stand_under_each_other() -> None:
    assert aligned(["55.30", "2078", UNKNOWN, "1.583"]) == ["55.30 ", "2078    ", "-    ", "1.583"]


@pytest.mark.parametrize(
    ("metric", "values", "unit"),
    [
        ("busbw_bytes_per_second", [0.5e6, 4e11], "GB/s"),
        ("latency_seconds", [7.4e-6, 0.09], "us"),
        ("latency_seconds", [92e-9], "ns"),
        ("prefill_wall_seconds", [0.0354, None], "ms"),
        ("duration_seconds", [3.0, math.nan], "s"),
        ("flop_per_second", [790e12], "TFLOP/s"),
        ("flop_per_second", [80e9], "GFLOP/s"),
        ("mfu_ratio", [0.72], "%"),
        ("tokens_per_second", [36.0], "token/s"),
        ("most_requests_per_second", [36.0], "request/s"),
        ("foreign_count", [3.0], ""),
        ("latency_seconds", [], "s"),
    ],
)
def test_a_column_has_one_unit(metric: str, values: list[float | None], unit: str) -> None:
    assert scale_for(metric, values).unit == unit


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("chunk_bytes", 65536, "64 KiB"),
        ("bytes", 2**30, "1 GiB"),
        ("timeout_seconds", 0.0123, "12.3 ms"),
        ("algbw_bytes_per_second", 9.31e9, "9.310 GB/s"),
        ("locality_ratio", 0.5, "50.0 %"),
        ("threads", 4, "4"),
        ("share", 0.25, "0.25"),
        ("graph", True, "yes"),
        ("dtype", "[red]bf16\n", r"[red]bf16\n"),
        ("chunk_bytes", None, UNKNOWN),
        ("chunk_bytes", "all", "all"),
    ],
)
def test_values_carry_the_unit_of_their_name(name: str, value: object, shown: str) -> None:
    assert quantity(name, value) == shown


def test_labels_have_no_unit() -> None:
    names = ["chunk_bytes", "bytes", "busbw_bytes_per_second", "per_call_x_seconds", "dtype"]
    assert [label(n) for n in names] == ["chunk", "size", "busbw", "per call x", "dtype"]


def test_the_figure_beside_a_per_call_one_is_called_queued() -> None:
    names = ["bandwidth_bytes_per_second", "per_call_bandwidth_bytes_per_second"]
    assert list(metric_labels(names).values()) == ["queued bandwidth", "per call bandwidth"]
    assert list(metric_labels(names[:1]).values()) == ["bandwidth"]
