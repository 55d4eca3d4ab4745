"""Answers of queries, lists of sweeps, and the doctor's findings."""

from __future__ import annotations

import csv
import io
import math
from typing import Any

from golden import check_golden, printed
from report_documents import cpu_host_sweep, troubled_sweep
from topobench.report.tables_text import (
    query_csv,
    render_doctor,
    render_facts,
    render_query,
    render_sweeps,
)

COLUMNS = ["host", "chunk_bytes", "median_bytes_per_second", "latency_seconds", "mfu_ratio", "n"]
ROWS: list[list[Any]] = [
    ["gpu01", 65536, 16.8e9, 3.9e-6, 0.71, 20],
    ["gpu02", 2**28, 1.9e9, None, 0.6913, 4],
    ["机器", None, 393.71e9, 12.5e-6, None, None],
]

FINDINGS: list[dict[str, Any]] = [
    {
        "check": "governor",
        "level": "warn",
        "found": "powersave",
        "wanted": "performance",
        "why": "the clock of an idle CPU takes milliseconds to rise",
        "fix": "sudo cpupower frequency-set -g performance",
        "undo": "sudo cpupower frequency-set -g powersave",
    },
    {
        "check": "numactl",
        "level": "ok",
        "found": "/usr/bin/numactl",
        "wanted": "numactl",
        "why": "binds memory",
        "fix": None,
        "undo": None,
    },
    {
        "check": "torch",
        "level": "error",
        "found": "torch 2.13.0+cpu cannot use 2 GPUs of driver 580.159.04",
        "wanted": "torch can use every GPU of the driver",
        "why": "GPU probes run in torch; those it cannot use are skipped",
        "fix": "python -m pip install --force-reinstall torch --index-url https://example.org/cu130",
        "undo": "python -m pip install --force-reinstall torch==2.13.0 "
        "--index-url https://example.org/cpu",
    },
    {
        "check": "acs",
        "level": "unknown",
        "found": "only root may read PCI configuration space",
        "wanted": "ACS off between GPUs that talk",
        "why": "ACS sends peer traffic through the host bridge",
        "fix": None,
        "undo": None,
    },
]


def test_numbers_have_the_unit_that_their_column_s_name_says() -> None:
    assert printed(render_query(COLUMNS, ROWS)) == (
        "                 median  latency    mfu\n"
        "host     chunk     GB/s       us      %   n\n"
        "gpu01   64 KiB   16.80     3.900  71.00  20\n"
        "gpu02  256 MiB    1.900    -      69.13   4\n"
        "机器         -  393.7     12.50    -      -\n"
        "3 rows\n"
    )


def test_values_of_several_metrics_carry_their_own_units() -> None:
    """A view has one column for the medians of all metrics; the row names the metric."""
    columns = ["metric", "unit", "local_median", "n", "age_seconds"]
    rows: list[list[Any]] = [
        ["busbw_bytes_per_second", "B/s", 285.3e9, 20, 377.6],
        ["latency_seconds", "s", 7.4e-6, 184, 30 * 86400.0],
        ["mfu_ratio", "1", None, 4, None],
    ]
    assert printed(render_query(columns, rows)) == (
        "metric                  local_median    n    age\n"
        "busbw_bytes_per_second    285.3 GB/s   20  7 min\n"
        "latency_seconds              7.40 us  184   30 d\n"
        "mfu_ratio                          -    4      -\n"
        "3 rows\n"
    )
    assert query_csv(columns, rows[:1]).splitlines()[1] == (
        "busbw_bytes_per_second,B/s,285300000000.0,20,377.6"
    )


def test_columns_of_one_name_keep_their_own_values() -> None:
    """A join of two views has every name twice; whose metric tells the unit is not known then."""
    assert printed(render_query(["n", "n"], [[1, 2]])) == "n  n\n1  2\n1 row\n"
    columns = ["metric", "unit", "median", "metric", "unit", "median"]
    row = ["busbw_bytes_per_second", "B/s", 2e9, "latency_seconds", "s", 7e-6]
    shown = printed(render_query(columns, [row]))
    assert shown.splitlines()[1].split() == [
        *("busbw_bytes_per_second", "B/s", "2000000000"),
        *("latency_seconds", "s", "0.0000070"),
    ]


def test_the_ends_of_an_interval_have_the_unit_of_what_they_enclose() -> None:
    columns = ["gain_ratio", "gain_lo", "gain_hi", "tpot_seconds", "tpot_seconds_ci_lo", "x_lo"]
    assert printed(render_query(columns, [[0.0015, -0.0425, 0.0447, 0.021, 0.0205, 0.5]])) == (
        " gain  gain lo  gain hi   tpot  tpot seconds ci lo\n"
        "    %        %        %     ms                  ms   x_lo\n"
        "0.150   -4.250    4.470  21.00               20.50  0.500\n"
        "1 row\n"
    )


def test_ends_without_a_name_of_their_own_are_of_the_ratio_that_they_stand_behind() -> None:
    """Not of the metric that the row names, whose median may stand elsewhere in it."""
    columns = ["metric", "unit", "mad", "tax_ratio", "ci_lo", "ci_hi", "median", "ci_lo"]
    row = ["latency_seconds", "s", 2e-9, 0.1766, 0.154, 0.209, 1e-6, 9e-7]
    assert printed(render_query(columns, [row])).splitlines()[:3] == [
        "                            tax  ci lo  ci hi",
        "metric               mad      %      %      %   median   ci_lo",
        "latency_seconds  2.00 ns  17.66  15.40  20.90  1.00 us  900 ns",
    ]


def test_an_answer_without_rows_still_names_its_columns() -> None:
    assert printed(render_query(["host", "n"], [])) == "host  n\n0 rows\n"
    told = printed(render_query(["host"], [], hint="--explain says what it asks for"))
    assert told == "host\n0 rows; --explain says what it asks for\n"


def test_values_that_are_no_numbers_are_shown_as_text() -> None:
    shown = printed(render_query(["x_seconds", "y"], [["soon", True], [math.nan, b"\x00"]]))
    assert shown == "x_seconds  y\nsoon       True\nnan        b'\\x00'\n2 rows\n"


def test_definitions_of_servers_and_commands_are_not_in_tables() -> None:
    """They are longer than a row, and their digest stands for them."""
    told = '{"digest":"a1","server":"mine","server_definition":"{}"}'
    text = printed(render_query(["params"], [[told], ['{"bytes":8}'], ["none"]]))
    assert '{"digest":"a1","server":"mine"}' in text
    assert "server_definition" not in text
    assert '{"bytes":8}' in text


def test_csv_has_raw_values_and_reads_back() -> None:
    text = query_csv(COLUMNS, ROWS)
    found = list(csv.reader(io.StringIO(text)))
    assert found[0] == COLUMNS
    assert found[1] == ["gpu01", "65536", "16800000000.0", "3.9e-06", "0.71", "20"]
    assert found[3] == ["机器", "", "393710000000.0", "1.25e-05", "", ""]


def test_csv_is_never_wrapped() -> None:
    wide = ["x" * 30 for _ in range(10)]
    shown = printed(render_query(wide, [wide], "csv"), width=40)
    assert shown == ",".join(wide) + "\n" + ",".join(wide) + "\n"


def test_hostile_values_cannot_steer_the_terminal() -> None:
    rows = [["\x1b[2J[red]x", "two\nlines"]]
    for format in ("table", "csv"):
        shown = printed(render_query(["a\x07", "b"], rows, format))
        assert r"\x1b[2J[red]x" in shown
        assert r"two\nlines" in shown
        assert "\x1b" not in shown
        assert "\x07" not in shown


def test_sweeps_are_a_line_each() -> None:
    found = [troubled_sweep(), cpu_host_sweep()]
    sweeps = [{**d["sweep"], "counts": d["counts"]} for d in found]
    sweeps[0] |= {"ended_at": None, "status": "running"}
    shown = printed(render_sweeps(sweeps), width=120).splitlines()
    assert shown[0].split() == [
        "sweep", "started", "(UTC)", "took", "cluster", "profile", "status", "cells",
    ]  # fmt: skip
    assert shown[1] == (
        "1a2b3c4d  2026-11-29 16:00     -  lab      quick    running  "
        "23 ok, 1 invalid, 1 failed, 1 timeout, 1 planned"
    )
    assert shown[2] == (
        "1a2b3c4d  2026-11-29 16:00  72 s  lab      quick    done     "
        "6 ok, 6 skipped, 1 not applicable"
    )


def test_an_empty_store_says_how_to_fill_it() -> None:
    assert printed(render_sweeps([])) == "No sweep is stored yet.\n  topobench probe\n"


def test_facts_of_a_store_have_units_and_no_zeros() -> None:
    data = {
        "url": "sqlite:///x.db",
        "path": None,
        "size_bytes": 393216,
        "rows": {"host": 1, "price": 0, "reading": 1200},
        "last_sweep": cpu_host_sweep()["sweep"],
        "warnings": [],
    }
    assert printed(render_facts(data)) == (
        "url         sqlite:///x.db\n"
        "path        -\n"
        "size        384 KiB\n"
        "rows        host 1, reading 1200\n"
        "last sweep  1a2b3c4d done, started 2026-11-29 16:00 UTC\n"
        "warnings    none\n"
    )


def test_the_doctor_reads_as_kept() -> None:
    check_golden("doctor", printed(render_doctor(FINDINGS)))


def test_the_doctor_s_worst_comes_first_and_its_lines_stay_whole() -> None:
    lines = printed(render_doctor(FINDINGS), width=60).splitlines()
    heads = [line.split()[0] for line in lines if line and line.split()[0].isupper()]
    assert heads == ["ERROR", "WARN", "UNKNOWN", "OK"]
    for finding in FINDINGS:
        for line in (finding["fix"], finding["undo"]):
            assert line is None or f"    {line}" in lines


def test_the_doctor_counts_in_its_last_line() -> None:
    last = printed(render_doctor(FINDINGS)).splitlines()[-1]
    assert last == "1 error, 1 warn, 1 unknown, 1 ok"
    assert printed(render_doctor([])) == "no checks\n"


def test_hostile_findings_are_shown_as_text() -> None:
    bad = "\x1b[31m[red]\x07"
    finding = dict.fromkeys(FINDINGS[0], bad) | {"level": "error"}
    shown = printed(render_doctor([finding]))
    assert shown.count(r"\x1b[31m[red]\x07") == 6
    assert not set(shown) & {"\x1b", "\x07"}
