"""Collectives in a report: nccl-tests' own columns, classes of paths, rings, lines, ranks."""

from __future__ import annotations

import random
from typing import Any

import pytest

from golden import printed
from report_documents import cell, gpu_uuid, host, reading
from topobench.report import gangs
from topobench.report.nccl_table import CollectiveTables, is_collective
from topobench.report.page.collectives import collectives
from topobench.report.page.parts import Figure
from topobench.report.probe_tables import ProbeTables
from topobench.report.records import Places, records

GPUS = [gpu_uuid("gpu01", i) for i in range(4)]
SIZES = [8 * 4**i for i in range(13)]  # 8 B ... 128 MiB
ALPHA, BETA = 10e-6, 250e9


def gang(arm: str, *, factor: float = 1.0, block: int = 0, sizes: Any = SIZES) -> list[Any]:
    """A gang of four GPUs; rank 2 is late."""
    found = []
    for size in sizes:
        noise = random.Random(f"{arm} {block} {size}").uniform(0.995, 1.005)
        seconds = (ALPHA + size / BETA) * factor * noise
        found.append(
            cell(
                "all_reduce",
                [
                    reading("latency_seconds", seconds),
                    reading("algbw_bytes_per_second", size / seconds),
                    reading("busbw_bytes_per_second", 1.5 * size / seconds),
                    *(
                        reading(
                            "latency_seconds",
                            seconds * (1.1 if rank == 2 else 1.0),
                            point={"rank": rank},
                            mad=seconds * 0.001 * (rank + 1),
                        )
                        for rank in range(4)
                    ),
                ],
                devices=GPUS,
                params={"bytes": size, "backend": "nccl", "dtype": "float32", "reduction": "sum"},
                ranks=4,
                arm=arm,
                block=block,
                path_class="NV18",
            )
        )
    return found


def places() -> Places:
    return Places.of([host(gpus=4)])


def facts(cells: list[Any]) -> dict[str, gangs.Facts]:
    return {f.title: f for f in gangs.gang_facts(cells, places())}


def drawn(op: str, cells: list[Any], width: int) -> list[str]:
    plain = ProbeTables(op, records(cells, places()), "GPU set")
    assert is_collective(cells)
    return printed(CollectiveTables(plain, cells, places()), width).splitlines()


class TestColumnsOfNcclTests:
    """In its order: size count type redop root, then time algbw busbw #wrong twice."""

    HEADS = "size count type redop root time algbw busbw #wrong time algbw busbw #wrong"

    def test_an_all_reduce_is_in_place(self) -> None:
        lines = drawn("all_reduce", gang("none/auto", sizes=[8192, 128 << 20]), 130)
        head = next(line.split() for line in lines if "redop" in line)
        assert head == [*self.HEADS.split(), "spread", "n"]
        units = next(line.split() for line in lines if "(elements)" in line)
        assert units == ["(B)", "(elements)", *["(us)", "(GB/s)", "(GB/s)"] * 2]
        rows = [line.split() for line in lines if line.strip().startswith(("8192", "134217728"))]
        assert [row[:9] for row in rows] == [
            ["8192", "2048", "float", "sum", "-1", *["N/A"] * 4],
            ["134217728", "33554432", "float", "sum", "-1", *["N/A"] * 4],
        ]
        time, algbw, busbw = map(float, rows[1][9:12])
        assert algbw == pytest.approx((128 << 20) / time / 1e3, rel=0.001)
        assert busbw == pytest.approx(1.5 * algbw, rel=0.001)
        assert [row[12] for row in rows] == ["0", "0"]

    def test_an_all_reduce_out_of_place_stands_in_the_other_half(self) -> None:
        apart = gang("none/auto", factor=2.0, sizes=[128 << 20])
        apart[0]["params"]["place"] = "out_of"
        cells = [*gang("none/auto", sizes=[128 << 20]), *apart]
        (row,) = (line.split() for line in drawn("all_reduce", cells, 130) if "134217728" in line)
        assert (row[8], row[12]) == ("0", "0")
        assert float(row[5]) == pytest.approx(2 * float(row[9]), rel=0.001)
        rows = facts(cells)["By class of path"].rows
        assert [r[1] for r in rows] == ["all_reduce float32", "all_reduce out_of float32"]

    def test_both_places_of_a_parted_collective_share_a_row(self) -> None:
        """Counted are the elements of one rank's part, as nccl-tests does."""
        cells = [
            cell(
                "all_gather",
                [
                    reading("latency_seconds", seconds),
                    reading("algbw_bytes_per_second", 8192 / seconds),
                    reading("busbw_bytes_per_second", 4096 / seconds),
                ],
                params={"bytes": 8192, "dtype": "bfloat16", "place": place, "backend": "gloo"},
                ranks=2,
            )
            for place, seconds in (("in", 20e-6), ("out_of", 10e-6))
        ]
        (row,) = (line.split() for line in drawn("all_gather", cells, 130) if " 8192 " in line)
        assert row[:5] == ["8192", "2048", "bfloat16", "none", "-1"]
        assert row[5:13] == ["10.00", "0.82", "0.41", "0", "20.00", "0.41", "0.20", "0"]

    def test_a_broadcast_has_a_root(self) -> None:
        cells = gang("none", sizes=[8192])
        cells[0]["params"].pop("reduction")
        (row,) = (line.split() for line in drawn("broadcast", cells, 130) if " 8192 " in line)
        assert row[1:5] == ["2048", "float", "none", "0"]

    def test_a_narrow_terminal_leaves_out_what_was_not_measured_then_takes_plain_tables(
        self,
    ) -> None:
        cells = gang("none/auto", sizes=[8192])
        half = drawn("all_reduce", cells, 100)
        head = next(line.split() for line in half if "redop" in line)
        assert head[5:] == ["time", "algbw", "busbw", "#wrong", "spread", "n"]
        assert max(map(len, half)) <= 100
        plain = drawn("all_reduce", cells, 60)
        assert not any("redop" in line for line in plain)
        assert max(map(len, plain)) <= 60

    def test_each_arm_has_a_table_of_its_own(self) -> None:
        cells = [*gang("none/auto"), *gang("none/best")]
        lines = drawn("all_reduce", cells, 130)
        titles = [line.rpartition("arm ")[2] for line in lines if "4 ranks" in line]
        assert titles == ["none/auto", "none/best"]


class TestFacts:
    def test_what_was_measured_otherwise_is_never_merged(self) -> None:
        """Of another mode, pool, place or order: rows and figures of their own."""
        usual = gang("none/auto", sizes=[8192])
        others = [("mode", "per_call"), ("pool", "warm"), ("place", "out_of"), ("in_place", True)]
        others.append(("order", "0-2-1-3"))
        cells = [*usual]
        for factor, (key, value) in enumerate(others, start=2):
            (made,) = gang("none/auto", sizes=[8192], factor=factor)
            made["params"][key] = value
            cells.append(made)
        tables = facts(cells)
        words = ["", "per_call ", "warm ", "out_of ", "in ", "0-2-1-3 "]
        expected = sorted(f"all_reduce {word}float32" for word in words)
        assert sorted(row[1] for row in tables["By class of path"].rows) == expected
        assert sorted(row[0] for row in tables["Ranks"].rows) == expected
        parts = collectives("c", cells, places(), None)
        titles = [p.title for p in parts if isinstance(p, Figure) and p.title.startswith("Lat")]
        assert sorted(t.split(" nccl ")[0] for t in titles) == [f"Latency of {e}" for e in expected]

    def test_classes_of_paths_show_two_latencies_and_a_bandwidth(self) -> None:
        found = facts(gang("none/auto", sizes=[8 << 10, 1 << 20, 128 << 20]))["By class of path"]
        (row,) = found.rows
        assert row[:4] == ["NV18", "all_reduce float32", "4", "none/auto"]
        assert row[4].startswith("10.")
        assert row[5].startswith("14.")
        assert float(row[6]) == pytest.approx(1.5 * 250 * 0.98, rel=0.02)

    def test_best_is_held_against_auto_ring_with_interval_and_mde(self) -> None:
        arms = {"none/auto": 1.0, "none/auto_ring": 1.0, "none/best": 0.8, "none/auto+p2p_off": 9.0}
        cells = [
            c
            for block in range(6)
            for arm, factor in arms.items()
            for c in gang(arm, factor=factor, block=block, sizes=[8 << 10, 128 << 20])
        ]
        rows = {(r[1], r[3], r[4]): r[5:] for r in facts(cells)["Rings"].rows}
        assert set(rows) == {
            (size, *pair)
            for size in ("8 KiB", "128 MiB")
            for pair in (("none/auto_ring", "none/auto"), ("none/best", "none/auto_ring"))
        }
        median, effect, interval, mde, verdict = rows["128 MiB", "none/best", "none/auto_ring"]
        assert median.endswith("GB/s")
        assert float(effect.rstrip(" %")) == pytest.approx(25, abs=1)
        low, high = (float(end) for end in interval.rstrip(" %").split(".."))
        assert 23 < low < float(effect.rstrip(" %")) < high < 27
        assert 0 < float(mde.rstrip(" %")) < 10
        assert verdict == "improved"

    def test_lines_give_alpha_and_beta_of_every_arm(self) -> None:
        cells = [*gang("none/auto"), *gang("none/auto+p2p_off", factor=8.0)]
        first, second = facts(cells)["Fixed cost and bandwidth"].rows
        assert [first[2], second[2]] == ["none/auto", "none/auto+p2p_off"]
        assert float(first[5]) == pytest.approx(250, rel=0.01)
        assert float(second[5]) == pytest.approx(250 / 8, rel=0.01)
        assert first[3].startswith(("9.9", "10.0"))

    def test_the_late_rank_is_named_with_its_gpu_and_the_unsteady_one_too(self) -> None:
        rows = facts(gang("none/auto"))["Ranks"].rows
        assert [row[1] for row in rows] == ["8 B", "128 MiB"]
        for row in rows:
            assert row[5] == "rank 3 (GPU 3) 0.4 %"
            assert row[6] == "rank 2 (GPU 2) +10.0 %, straggler"

    def test_the_late_rank_of_several_hosts_is_named_with_its_host(self) -> None:
        names = Places(hosts={"k1": "h1", "k2": "h2"})
        cells = [{**c, "devices": [], "hosts": ["k1", "k1", "k2", "k2"]} for c in gang("none")]
        (found,) = [f for f in gangs.gang_facts(cells, names) if f.title == "Ranks"]
        assert found.rows[0][6] == "rank 2 (h2) +10.0 %, straggler"

    def test_ranks_that_are_alike_have_no_straggler(self) -> None:
        cells = gang("none/auto", sizes=[8192])
        for one in cells[0]["readings"]:
            if one["point"]:
                one["median"] = 10e-6
        assert facts(cells)["Ranks"].rows[0][6] == "none"

    def test_nothing_is_said_of_gangs_that_failed(self) -> None:
        cells = [{**c, "status": "failed"} for c in gang("none/auto")]
        assert facts(cells) == {}
