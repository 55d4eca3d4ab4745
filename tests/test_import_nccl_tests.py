"""Outputs of nccl-tests: every recorded file, every layout, and what must not be believed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from documents import check
from topobench.errors import ImportFailed
from topobench.importers import document as shared
from topobench.importers.nccl_tests import Row, parse

DATA = Path(__file__).parent / "data"
FILES = sorted([*(DATA / "nccl_tests").iterdir(), *(DATA / "h200x2").glob("nccl_tests_*")])

HEADER = """\
# nThread 1 nGpus {n} minBytes 8192 maxBytes 134217728 step: 16384(factor) warmup iters: 5 \
iters: 20 agg iters: 1 validation: 1 graph: 0
# Using devices
"""
NEW_COLUMNS = (
    "#       size         count      type   redop    root     time   algbw   busbw #wrong"
    "     time   algbw   busbw #wrong\n"
)
FOOTER = "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 100 \n"
ROWS_OF_8 = """\
        8192          2048     float     sum      -1    31.20    0.26    0.46      0    30.90\
    0.27    0.46      0
   134217728      33554432     float     sum      -1   1012.4  132.57  232.00      0   1010.1\
  132.88  232.53      0
"""


def ranks(n: int, host: str = "node-a") -> str:
    """The lines that list n ranks."""
    return "".join(
        f"#  Rank {r:2} Group  0 Pid   1115 on {host:>10} device {r:2} [0000:0{r}:00] NVIDIA H200\n"
        for r in range(n)
    )


def whole(rows: str = ROWS_OF_8, *, n: int = 8, named: str = "all_reduce") -> str:
    """An output with header, ranks, rows and footer."""
    start = f"# Collective test starting: {named}_perf\n" if named else ""
    return start + HEADER.format(n=n) + ranks(n) + NEW_COLUMNS + rows + FOOTER


def row(text: str) -> Row:
    """The only row of a text."""
    (found,) = parse(text).rows
    assert isinstance(found, Row)
    return found


EXPECTED: dict[str, tuple[str, str | None, int, tuple[Any, ...]]] = {
    # file: status, op, rows, (size, time, busbw, wrong) of the last row, out of place
    "mpi_tag_output.txt": ("ok", "all_reduce", 3, (8388608, 47.69e-6, 175.90e9, 0)),
    "v2.13.13_all_gather.txt": ("ok", "all_gather", 3, (8388608, 35.91e-6, 116.80e9, 0)),
    "v2.13.13_all_reduce.txt": ("ok", "all_reduce", 4, (2097152, 29.82e-6, 70.32e9, 0)),
    "v2.13.13_nocheck.txt": ("partial", None, 1, (1048576, 16.04e-6, 65.38e9, None)),
    "v2.13.13_reduce.txt": ("ok", "reduce", 3, ()),
    "v2.17.3_all_gather.txt": ("ok", "all_gather", 3, ()),
    "v2.17.3_all_reduce.txt": ("ok", "all_reduce", 4, (2097152, 29.98e-6, 69.95e9, 0)),
    "v2.17.3_json.json": ("ok", "all_reduce", 3, (8388608, 48.030950e-6, 174.650054e9, 0)),
    "v2.17.3_json.txt": ("ok", "all_reduce", 3, ()),
    "v2.17.3_nocheck.txt": ("ok", "all_reduce", 1, (1048576, 15.69e-6, 66.84e9, None)),
    "v2.17.3_reduce.txt": ("ok", "reduce", 3, ()),
    "v2.18.5_all_gather.txt": ("ok", "all_gather", 3, ()),
    "v2.18.5_all_reduce.txt": ("ok", "all_reduce", 4, ()),
    "v2.18.5_json.json": ("ok", "all_reduce", 3, ()),
    "v2.18.5_json.txt": ("ok", "all_reduce", 3, ()),
    "v2.18.5_json_bad.json": ("invalid", "all_reduce", 0, ()),
    "v2.18.5_json_bad.txt": ("invalid", "all_reduce", 0, ()),
    "v2.18.5_nocheck.txt": ("ok", "all_reduce", 1, ()),
    "v2.18.5_reduce.txt": ("ok", "reduce", 3, ()),
    "v2.19.2_all_gather.txt": ("ok", "all_gather", 3, ()),
    "v2.19.2_all_reduce.txt": ("ok", "all_reduce", 4, (2097152, 29.99e-6, 69.92e9, 0)),
    "v2.19.2_cputime.txt": ("ok", "all_reduce", 3, (8388608, None, 172.92e9, 0)),
    "v2.19.2_cycles.txt": ("ok", "all_reduce", 3, (1048576, 18.54e-6, 56.55e9, 0)),
    "v2.19.2_json.json": ("ok", "all_reduce", 3, ()),
    "v2.19.2_json.txt": ("ok", "all_reduce", 3, ()),
    "v2.19.2_json_bad.json": ("invalid", "all_reduce", 0, ()),
    "v2.19.2_json_bad.txt": ("invalid", "all_reduce", 0, ()),
    "v2.19.2_nocheck.txt": ("ok", "all_reduce", 1, ()),
    "v2.19.2_periter.txt": ("ok", "all_reduce", 3, (8388608, 51.41e-6, 163.16e9, 0)),
    "v2.19.2_periter_json.json": ("ok", "all_reduce", 3, (8388608, 52.092e-6, 161.034477e9, 0)),
    "v2.19.2_periter_json.txt": ("ok", "all_reduce", 3, ()),
    "v2.19.2_periter_ts.txt": ("ok", "all_reduce", 3, (8388608, 51.32e-6, 163.45e9, 0)),
    "v2.19.2_reduce.txt": ("ok", "reduce", 3, (8388608, 35.21e-6, 238.22e9, 0)),
    "v2.19.2_timestamps.txt": ("ok", "all_reduce", 3, (8388608, 48.16e-6, 174.17e9, 0)),
    "v2.19.6_all_gather.txt": ("ok", "all_gather", 3, ()),
    "v2.19.6_all_reduce.txt": ("ok", "all_reduce", 4, ()),
    "v2.19.6_json.json": ("ok", "all_reduce", 3, (8388608, 47.9846e-6, 174.818754e9, 0)),
    "v2.19.6_json.txt": ("ok", "all_reduce", 3, ()),
    "v2.19.6_json_bad.json": ("invalid", "all_reduce", 0, ()),
    "v2.19.6_json_bad.txt": ("invalid", "all_reduce", 0, ()),
    "v2.19.6_nocheck.txt": ("ok", "all_reduce", 1, ()),
    "v2.19.6_periter.txt": ("ok", "all_reduce", 3, ()),
    "v2.19.6_reduce.txt": ("ok", "reduce", 3, ()),
    "v2.19.6_timestamps.txt": ("ok", "all_reduce", 3, ()),
    "nccl_tests_2.19.6_all_gather.json": (
        "ok", "all_gather", 4, (33554432, 91.6719e-6, 183.013726e9, 0)),
    "nccl_tests_2.19.6_all_gather.txt": ("ok", "all_gather", 4, ()),
    "nccl_tests_2.19.6_all_reduce.json": ("ok", "all_reduce", 4, ()),
    "nccl_tests_2.19.6_all_reduce.txt": ("ok", "all_reduce", 4, ()),
    "nccl_tests_2.19.6_all_reduce_8B_8G.txt": (
        "ok", "all_reduce", 16, (8589934592, 24622.0e-6, 348.87e9, 0)),
    "nccl_tests_2.19.6_all_reduce_ops.txt": (
        "ok", "all_reduce", 18, (4194304, 34.47e-6, 121.66e9, 0)),
    "nccl_tests_2.19.6_alltoall.json": (
        "ok", "all_to_all", 4, (33554432, 82.4821e-6, 203.404327e9, 0)),
    "nccl_tests_2.19.6_alltoall.txt": ("ok", "all_to_all", 4, (33554432, 82.48e-6, 203.40e9, 0)),
    "nccl_tests_2.19.6_broadcast.json": ("ok", "broadcast", 4, ()),
    "nccl_tests_2.19.6_broadcast.txt": ("ok", "broadcast", 4, (33554432, 112.93e-6, 297.14e9, 0)),
    "nccl_tests_2.19.6_debug_info_mixed.txt": (
        "ok", "all_reduce", 3, (4194304, 33.90e-6, 123.74e9, 0)),
    "nccl_tests_2.19.6_err_oom.txt": (
        "partial", "all_reduce", 1, (48247057064, 138569e-6, 348.18e9, 0)),
    "nccl_tests_2.19.6_err_too_many_gpus.txt": ("invalid", "all_reduce", 0, ()),
    "nccl_tests_2.19.6_reduce.json": ("ok", "reduce", 4, ()),
    "nccl_tests_2.19.6_reduce.txt": ("ok", "reduce", 4, (33554432, 106.43e-6, 315.26e9, 0)),
    "nccl_tests_2.19.6_scatter.json": ("ok", "scatter", 4, ()),
    "nccl_tests_2.19.6_scatter.txt": ("ok", "scatter", 4, (33554432, 93.68e-6, 179.08e9, 0)),
    "nccl_tests_2.19.6_sendrecv.json": ("ok", "send_recv", 4, ()),
    "nccl_tests_2.19.6_sendrecv.txt": ("ok", "send_recv", 4, (33554432, 136.65e-6, 245.55e9, 0)),
}  # fmt: skip


def test_no_recorded_file_is_left_out() -> None:
    assert {f.name for f in FILES} == set(EXPECTED)


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.name)
def test_a_recorded_file_gives_its_figures(file: Path) -> None:
    status, op, rows, last = EXPECTED[file.name]
    found = parse(file.read_text())
    assert (found.status, found.facts["op"], len(found.rows)) == (status, op, rows)
    assert found.malformed_rows == 0
    check(found.to_json(), "import")
    if last:
        half = found.rows[-1].out_of_place
        size, time, busbw, wrong = last
        assert found.rows[-1].size_bytes == size
        assert half.time_seconds == (None if time is None else pytest.approx(time, rel=1e-12))
        assert half.busbw_bytes_per_second == pytest.approx(busbw, rel=1e-12)
        assert half.wrong_count == wrong
        assert found.facts["rank_count"] == 2


@pytest.mark.parametrize("name", ["all_reduce", "all_gather", "alltoall", "broadcast", "sendrecv"])
def test_the_text_and_the_json_of_one_run_agree(name: str) -> None:
    stem = DATA / "h200x2" / f"nccl_tests_2.19.6_{name}"
    text, other = (parse(stem.with_name(stem.name + e).read_text()) for e in (".txt", ".json"))
    assert text.facts["op"] == other.facts["op"]
    for a, b in zip(text.rows, other.rows, strict=True):
        assert (a.size_bytes, a.count, a.dtype, a.redop, a.root) == (
            *(b.size_bytes, b.count, b.dtype, b.redop, b.root),
        )
        for x, y in ((a.out_of_place, b.out_of_place), (a.in_place, b.in_place)):
            assert x.time_seconds == pytest.approx(y.time_seconds, abs=5.1e-9)
            assert x.algbw_bytes_per_second == pytest.approx(y.algbw_bytes_per_second, abs=5.1e6)
            assert x.wrong_count == y.wrong_count


def test_nothing_of_the_environment_is_kept() -> None:
    for file in (f for f in FILES if f.suffix == ".json"):
        assert "EXAMPLE-NOT-A-SECRET" in file.read_text()
        text = json.dumps(parse(file.read_text()).to_json())
        assert "SECRET" not in text
        assert "PATH=" not in text


def test_a_version_and_its_options_are_read() -> None:
    found = parse((DATA / "h200x2" / "nccl_tests_2.19.6_all_gather.txt").read_text())
    assert (found.version, found.facts["nccl_version"]) == ("2.19.6", "2.28.9")
    assert found.requested == {
        "threads": 1,
        "gpus_per_thread": 2,
        "minimum_bytes": 8192,
        "maximum_bytes": 134217728,
        "effective_maximum_bytes": None,
        "step_factor": 16,
        "step_bytes": None,
        "warmups": 1,
        "iterations": 20,
        "aggregated_iterations": 1,
        "validation": 1,
        "graph": 0,
        "missing_bytes": [],
    }
    first = found.facts["ranks"][0]
    assert (first.rank, first.host, first.device, first.name) == (0, "vm", 0, "NVIDIA H200")


def test_old_columns_are_read_by_their_header() -> None:
    found = row(
        "#       size         count    type   redop     time   algbw   busbw  error     time"
        "   algbw   busbw  error\n"
        "   134217728      33554432   float     sum    22310    6.02    6.02  0e+00    22290"
        "    6.02    6.02  2e-07\n"
    )
    assert (found.size_bytes, found.redop, found.root) == (134217728, "sum", None)
    first, second = found.out_of_place, found.in_place
    assert (first.time_seconds, first.busbw_bytes_per_second) == (0.02231, 6.02e9)
    assert (first.wrong_count, first.relative_error) == (None, 0.0)
    assert second is not None
    assert (second.wrong_count, second.relative_error) == (None, 2e-07)


def test_new_columns_are_read_by_their_header() -> None:
    found = row(NEW_COLUMNS + ROWS_OF_8.splitlines()[1])
    assert found.in_place is not None
    assert found.out_of_place.busbw_bytes_per_second == 232.00e9
    assert found.in_place.busbw_bytes_per_second == 232.53e9
    assert (found.out_of_place.wrong_count, found.in_place.wrong_count) == (0, 0)


def test_version_1_prints_milliseconds() -> None:
    found = parse(
        "nThread 1 nGpus 2 minBytes 10000000 maxBytes 20000000 step: 2(factor) warmup iters: 5"
        " iters: 20 validation: 1 \n"
        "# NCCL Tests compiled with NCCL 1.0\n"
        "#   Rank  0 on       node device  0 [0x0a] Tesla P100\n"
        "#   Rank  1 on            device  1 [0x0b] Tesla P100\n"
        "#      bytes             N    type      op     time  algbw  busbw      res     time"
        "  algbw  busbw      res\n"
        "    10000000      10000000    char     sum    1.612   6.20   6.20    0e+00    1.678"
        "   5.96   5.96    0e+00\n"
        "    20000000      20000000    char     sum    3.224   6.20   6.20    0e+00    3.356"
        "   5.96   5.96  \tN/A\n"
        "\n Out of bounds values : 0 OK\n Avg bus bandwidth    : 6.08 \n"
    )
    assert (found.status, found.facts["op"], found.requested["missing_bytes"]) == (
        "ok",
        "all_reduce",
        [],
    )
    assert [r.out_of_place.time_seconds for r in found.rows] == [0.001612, 0.003224]
    assert [r.host for r in found.facts["ranks"]] == ["node", None]


def test_an_old_algbw_without_a_ranks_own_share_is_put_right() -> None:
    """Version 2.0 gave an all-gather's algbw as (n - 1) / n of what later ones give."""
    found = parse(
        "# Collective test starting: all_gather_perf\n"
        + ranks(4)
        + "#       size         count    type     time   algbw   busbw  error     time   algbw"
        "   busbw  error\n"
        "    16777216       1048576   float   1000.0   12.58   12.58  0e+00   1000.0   12.58"
        "   12.58  0e+00\n" + FOOTER
    )
    half = found.rows[0].out_of_place
    assert half.busbw_bytes_per_second == 12.58e9
    assert half.algbw_bytes_per_second == pytest.approx(16777216 / 1e-3, rel=1e-3)
    assert any("own share" in r for r in found.reasons)


def test_tags_and_debug_text_do_not_hide_rows() -> None:
    """A row cut in two by NCCL's log is put together where nothing else could be meant."""
    text = (
        "[1,0]<stdout>:        8192          2048     float     sum      -1    31.20    0.26"
        "    0.46      0    30.90    0.27    0.46      0\n"
        "[1,0]<stdout>:   134217728      33554432     float     sum      -1node-a:410:455 [0]"
        " NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/IPC\n"
        "[1,0]<stdout>:   1012.4  132.57  232.00      0   1010.1  132.88  232.53      0\n"
    )
    found = parse(text)
    assert [r.out_of_place.busbw_bytes_per_second for r in found.rows] == [0.46e9, 232.00e9]
    assert len(found.rows) + found.malformed_rows == 2


@pytest.mark.parametrize(
    ("noise", "rest"),
    [
        ("-13node:410:455 [0] NCCL INFO x", "1012.4 132.57 232.00 0 1010.1 132.88 232.53 0"),
        ("-1node:410:455 [0] NCCL INFO x", "1012.4 132.57 232.00 0 1010.1 132.88 232.53"),
        ("-1node:410:455 [0] NCCL INFO x", "1012.4 132.57 132.57 0 1010.1 132.88 132.88 0"),
        ("-1node:410:455 [0] NCCL INFO x", ""),
        ("-1 1012.4 132node:410:455 [0] NCCL INFO x", ".57 232.00 0 1010.1 132.88 232.53 0"),
    ],
    ids=["a digit of the host", "too short", "contradicts itself", "lost", "inside a number"],
)
def test_an_ambiguous_row_is_counted_and_left_out(noise: str, rest: str) -> None:
    rows = f"{ROWS_OF_8.splitlines()[0]}\n134217728 33554432 float sum {noise}\n{rest}\n"
    found = parse(whole(rows))
    assert [r.size_bytes for r in found.rows] == [8192]
    assert found.malformed_rows == 1
    assert found.status == "partial"
    assert found.requested["missing_bytes"] == [134217728]


def test_the_rest_of_a_row_must_come_from_the_same_process() -> None:
    head = "[1,0]<stdout>:8192 2048 float sum -1node:4:5 [0] NCCL INFO x\n"
    rest = "31.20 0.26 0.46 0 30.90 0.27 0.46 0\n"
    assert len(parse(whole(f"{head}[1,0]<stdout>:{rest}")).rows) == 1
    other = parse(whole(f"{head}[1,3]<stdout>:{rest}{ROWS_OF_8.splitlines()[1]}\n"))
    assert (len(other.rows), other.malformed_rows) == (1, 1)


def test_srun_labels_are_taken_off() -> None:
    labelled = "".join(f"0: {line}\n" for line in whole().splitlines())
    assert parse(labelled).to_json() == parse(whole()).to_json()


def test_independent_jobs_are_no_run() -> None:
    """Built without MPI: each host ran alone, and no footer speaks of all of them."""
    text = (
        "# Using devices\n# Using devices\n"
        "#   Rank  0 Pid   1115 on     node-a device  0 [0x3b] Tesla V100-PCIE-32GB\n"
        "#   Rank  1 Pid   1115 on     node-a device  1 [0x60] Tesla V100-PCIE-32GB\n"
        "#   Rank  0 Pid   2066 on     node-b device  0 [0x3b] Tesla V100-PCIE-32GB\n"
        "#   Rank  1 Pid   2066 on     node-b device  1 [0x60] Tesla V100-PCIE-32GB\n"
        "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 3.94145 \n#\n"
        "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 3.94156 \n"
    )
    found = parse(text)
    assert found.status == "invalid"
    assert "duplicate rank ids: 2 independent jobs" in found.reasons[0]
    assert "3.94" not in json.dumps(found.to_json())


def test_wrong_data_makes_the_whole_run_invalid() -> None:
    rows = (
        "     1048576        262144     float     sum      -1    52.31   20.05   35.08 1.23457e+06"
        "    51.90   20.20   35.36      0\n"
    )
    found = parse(rows + "# Out of bounds values : 1 FAILED\n")
    assert (found.status, len(found.rows)) == ("invalid", 1)
    assert found.rows[0].out_of_place.wrong_count == 1234570
    assert found.rows[0].out_of_place.busbw_bytes_per_second == 35.08e9
    assert "1234570 elements were wrong" in found.reasons[0]


def test_a_verdict_of_failed_is_enough() -> None:
    found = parse(whole().replace(": 0 OK", ": 3 FAILED"))
    assert (found.status, len(found.rows)) == ("invalid", 2)


def test_a_reduced_size_is_kept_beside_the_one_asked_for() -> None:
    text = (
        "# nThread 1 nGpus 8 minBytes 8192 maxBytes 8589934592 step: 1024(factor) warmup iters: 1"
        " iters: 20 agg iters: 1 validation: 1 graph: 0\n"
        + ranks(8)
        + "# Reducing maxBytes to 4932676266 due to memory limitation\n"
        + "8192 2048 float sum -1 31.20 0.26 0.46 0 30.90 0.27 0.46 0\n"
        + "8388608 2097152 float sum -1 100.00 83.89 146.80 0 100.00 83.89 146.80 0\n"
        + FOOTER
    )
    found = parse(text)
    assert found.status == "partial"
    assert found.requested["maximum_bytes"] == 8589934592
    assert found.requested["effective_maximum_bytes"] == 4932676266
    assert found.requested["missing_bytes"] == [8589934592]
    assert not [r for r in found.rows if r.size_bytes == 8 << 30]
    assert "asked for up to 8 GiB; the tool reduced that to 4.59 GiB (memory)" in found.reasons


def test_a_table_that_was_cut_off_keeps_its_rows() -> None:
    text = (DATA / "nccl_tests" / "v2.19.6_all_reduce.txt").read_text()
    lines = text.splitlines(keepends=True)
    at = next(i for i, line in enumerate(lines) if line.split()[:1] == ["32768"])
    found = parse("".join(lines[: at + 1]) + "     2097152   5242")
    assert (found.status, len(found.rows)) == ("partial", 3)
    assert found.requested["missing_bytes"] == [2097152]
    assert any("cut off" in r for r in found.reasons)


def test_a_number_that_was_cut_in_two_is_not_known() -> None:
    """The last of a line that has single iterations; the others are held against each other."""
    text = (DATA / "nccl_tests" / "v2.19.2_periter.txt").read_text()
    head, _, tail = text.partition("   17.44")
    spreads = []
    for end in ("   17.44", "   17.4", "   17.", "   1"):
        (row,) = parse(head + end).rows
        spreads.append(row.in_place.per_iteration["cv_ratio"])
    assert spreads == [pytest.approx(0.1744), None, None, None]
    assert "17.44" not in tail


def test_json_that_was_cut_off_keeps_its_rows() -> None:
    text = (DATA / "h200x2" / "nccl_tests_2.19.6_all_gather.json").read_text()
    found = parse(text[: text.index('"size":33554432') + 60])
    assert (found.status, len(found.rows)) == ("partial", 3)
    assert found.rows[2].out_of_place.busbw_bytes_per_second == pytest.approx(52.317886e9)
    assert found.requested["missing_bytes"] == [33554432]


def test_a_row_that_contradicts_itself_is_counted_and_left_out() -> None:
    """Columns shifted by one read the algbw as a time, and so on."""
    good = "8192 2048 float sum -1 31.20 0.26 0.46 0 30.90 0.27 0.46 0\n"
    for bad in (
        "134217728 33554432 float sum -1 1012.4 999.99 232.00 0 1010.1 132.88 232.53 0\n",
        "134217728 33554432 float sum -1 1012.4 132.57 132.57 0 1010.1 132.88 132.88 0\n",
        "134217728 33554432 float sum -1 1012.4 132.57 232.00 0 nan 132.88 232.53 0\n",
        "134217728 33554432 float sum -1 1012.4 132.57 232.00 0 1010.1 132.88 inf 0\n",
        "134217728 33554432 float sum -1 -1012.4 132.57 232.00 0 1010.1 132.88 232.53 0\n",
        "134217728 33554432 float sum 9 1012.4 132.57 232.00 0 1010.1 132.88 232.53 0\n",
        "134217728 33554432 float sum -1 1012.4 132.57 232.00 0 1010.1 132.88 232.53 0 0\n",
    ):
        found = parse(whole(good + bad))
        assert ([r.size_bytes for r in found.rows], found.malformed_rows) == ([8192], 1), bad


def test_the_time_to_launch_is_no_latency() -> None:
    found = parse((DATA / "nccl_tests" / "v2.19.2_cputime.txt").read_text())
    half = found.rows[-1].out_of_place
    assert (half.time_seconds, half.cpu_time_seconds) == (None, 22.56e-6)
    assert half.busbw_bytes_per_second == 172.92e9


def test_single_iterations_stand_apart() -> None:
    text = parse((DATA / "nccl_tests" / "v2.19.2_periter_ts.txt").read_text())
    assert text.rows[0].out_of_place.per_iteration == {
        "minimum_seconds": 13.44e-6,
        "maximum_seconds": 27.42e-6,
        "p99_seconds": 27.42e-6,
        "cv_ratio": 0.2209,
    }
    assert text.rows[0].timestamp == "2026-11-29 16:15:54"
    other = parse((DATA / "nccl_tests" / "v2.19.2_periter_json.json").read_text())
    samples = other.rows[0].in_place.per_iteration["samples_seconds"]
    assert (len(samples), samples[0]) == (20, pytest.approx(18.432001e-6))


def test_one_rank_has_no_bus_bandwidth() -> None:
    rows = "8192 2048 float sum -1 5.00 1.64 0.00 0 5.00 1.64 0.00 0\n"
    found = parse(whole(rows, n=1))
    half = found.rows[0].out_of_place
    assert (half.time_seconds, half.busbw_bytes_per_second) == (5e-6, None)
    assert any("one rank" in r for r in found.reasons)


@pytest.mark.parametrize(
    ("program", "op"), [("alltoall", "all_to_all"), ("sendrecv", "send_recv"), ("reduce", "reduce")]
)
def test_collectives_have_our_names(program: str, op: str) -> None:
    assert parse(whole("", named=program)).facts["op"] == op


def test_a_collective_is_inferred_only_where_one_alone_could_look_so() -> None:
    rows = "8388608 2097152 float sum -1 100.00 83.89 {0} 0 100.00 83.89 {0} {1}\n"
    of_8 = parse(whole(rows.format("146.81", 0), named=""))
    assert (of_8.facts["op"], of_8.facts["op_inferred"]) == ("all_reduce", True)
    send_recv = parse(whole(rows.format("83.89", "N/A"), named=""))
    assert send_recv.facts["op"] == "send_recv"
    of_2 = parse(whole(rows.format("83.89", "N/A").replace(" 0 100", " N/A 100"), n=2, named=""))
    assert (of_2.facts["op"], of_2.status) == (None, "partial")


def test_a_newer_json_with_words_for_numbers_is_read() -> None:
    text = (DATA / "nccl_tests" / "v2.19.6_json.json").read_text()
    text = text.replace('"version":3', '"version":4,"new_key":[1,{}]')
    text = text.replace('"time":14.912050', '"time":"nan"', 1)
    text = text.replace('"alg_bw":16.299193', '"alg_bw":inf', 1)
    found = parse(text)
    assert (found.facts["format"], len(found.rows), found.malformed_rows) == ("json/4", 1, 2)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n" * 100,
        "hello",
        "1 2 3\n",
        "{}",
        "[]",
        '{"nvbandwidth": {}}',
        "{",
        "\x00\xff",
        "null",
    ],
)
def test_what_is_no_output_is_refused(text: str) -> None:
    with pytest.raises(ImportFailed, match=r"nccl-tests|JSON"):
        parse(text)


def test_one_endless_line_is_refused_by_its_size() -> None:
    with pytest.raises(ImportFailed, match="too large for a result"):
        parse("8" * (shared.MAX_BYTES + 1))
    with pytest.raises(ImportFailed, match="too large for a result"):
        parse("{" * (shared.MAX_JSON_BYTES + 1))


def test_more_rows_than_any_run_prints_are_refused() -> None:
    rows = "8192 2048 float sum -1 31.20 0.26 0.46 0 30.90 0.27 0.46 0\n" * (shared.MAX_ROWS + 1)
    with pytest.raises(ImportFailed, match="more than 20000 rows"):
        parse(whole(rows))
