"""Lines of collectives: which cells make one, what is stored of it, what is asked of it."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path
from typing import Any

import pytest

from querying import Fleet
from report_documents import reading as shown
from storing import LATENCY, begin, cell, host, reading, run
from topobench import fits
from topobench.db.records import arm_row
from topobench.db.store import Store
from topobench.reading import Arm, Cell, CiLevel, Run, Status

BUSBW = "busbw_bytes_per_second"
SIZES = [8 * 8**i for i in range(10)]
ALPHA, BETA = 12e-6, 240e9
GPUS = ("GPU-k1-0", "GPU-k1-1")


def seconds(size: int, beta: float = BETA, wobble: float = 0.0) -> float:
    noise = random.Random(f"{size} {wobble}").uniform(-wobble, wobble)
    return (ALPHA + size / beta) * (1 + noise)


def measured(
    *, env_name: str | None = None, beta: float = BETA, process_no: int = 0, sizes: Any = SIZES,
    wobble: float = 0.0, **changes: Any,
) -> list[tuple[Cell, Run]]:  # fmt: skip
    """All sizes of one gang in one process, with the times of its ranks."""
    found = []
    for size in sizes:
        params = {"bytes": size, "dtype": "float32", "backend": "nccl", "ranks": 2}
        made = cell(
            probe="all_reduce", params=params, ring="auto", ranks=2, process_no=process_no,
            **{"devices": GPUS, **changes},
        )  # fmt: skip
        arm = dataclasses.replace(made.arm, env_name=env_name)
        made = dataclasses.replace(made, arm=arm)
        time = seconds(size, beta, wobble and wobble + process_no / 1e9)
        found.append(
            (
                made,
                run(
                    made,
                    reading(time, metric=LATENCY),
                    reading(size / time, metric=BUSBW),
                    reading(7.0, metric=LATENCY, point={"rank": 1}),
                ),
            )
        )
    return found


def stored(store: Store, *gangs: list[tuple[Cell, Run]], **more: Any) -> str:
    pairs = [pair for gang in gangs for pair in gang]
    sweep = begin(store, *(c for c, _ in pairs), hosts=[host(gpus=2)], **more)
    for _, done in pairs:
        store.put_run(done)
    store.end_sweep(sweep)
    return sweep


class TestOfADocument:
    def cells(self, *gangs: list[tuple[Cell, Run]]) -> list[dict[str, Any]]:
        return [
            {
                "host": c.host,
                "probe": c.case.probe,
                "params": dict(c.case.params),
                "arm": c.arm.name,
                "devices": list(c.devices),
                "ranks": c.ranks,
                "block": c.block,
                "process_no": c.process_no,
                "status": str(r.status),
                "readings": [
                    shown(x.metric, x.summary.median, point=dict(x.point)) for x in r.readings
                ],
            }
            for gang in gangs
            for c, r in gang
        ]

    def test_the_times_of_a_gang_give_its_alpha_and_beta_back(self) -> None:
        """Those of single ranks are not among them."""
        ((gang, line),) = fits.collective_lines(self.cells(measured())).items()
        assert (gang.op, gang.devices, gang.ranks, gang.arm) == ("all_reduce", GPUS, 2, "none/auto")
        assert line.alpha_seconds.value == pytest.approx(ALPHA, rel=1e-6)
        assert line.beta_bytes_per_second.value == pytest.approx(BETA, rel=1e-6)
        assert (line.level, line.n) == (CiLevel.WITHIN, len(SIZES))

    def test_six_processes_give_an_interval_between_them(self) -> None:
        gangs = [measured(process_no=n, wobble=0.02) for n in range(6)]
        (line,) = fits.collective_lines(self.cells(*gangs)).values()
        beta = line.beta_bytes_per_second
        assert (line.level, line.n) == (CiLevel.BETWEEN, 6)
        assert beta.lo is not None
        assert beta.hi is not None
        assert beta.lo < beta.value < beta.hi
        assert beta.value == pytest.approx(BETA, rel=0.03)

    def test_prefill_asks_for_what_users_get_between_its_gpus(self) -> None:
        cells = self.cells(measured(env_name="p2p_off", beta=BETA / 8), measured())
        usual = fits.line_between(cells, GPUS[::-1])
        assert usual is not None
        assert usual.seconds(1 << 20) == pytest.approx(seconds(1 << 20), rel=1e-6)
        slow = fits.line_between(cells, GPUS, arm="none/auto+p2p_off")
        assert slow is not None
        assert slow.beta_bytes_per_second.value == pytest.approx(BETA / 8, rel=1e-6)
        for nothing in (
            fits.line_between(cells, GPUS[:1]),
            fits.line_between(cells, GPUS, op="all_gather"),
            fits.line_between(cells, GPUS, dtype="bfloat16"),
            fits.line_between(self.cells(measured(sizes=SIZES[:4])), GPUS),
        ):
            assert nothing is None

    def test_what_must_not_be_used_makes_no_line(self) -> None:
        spoilt = [(c, dataclasses.replace(r, status=Status.INVALID)) for c, r in measured()]
        shrinking = [(c, r) for (c, _), (_, r) in zip(measured(), measured()[::-1], strict=True)]
        assert fits.collective_lines(self.cells(spoilt)) == {}
        assert fits.collective_lines(self.cells(shrinking)) == {}


class TestStored:
    def test_the_end_of_a_sweep_stores_a_line_for_each_arm(self, tmp_path: Path) -> None:
        url = f"sqlite:///{tmp_path}/t.db"
        with Store.open(url) as store:
            sweep = stored(store, measured(), measured(env_name="p2p_off", beta=BETA / 8))
            rows = Fleet(store, url, {}).ask("alpha-beta", since="2020-01-01")
            assert [(r["arm"], r["devices"], r["n"], r["ci_level"]) for r in rows] == [
                ("none/auto", ",".join(GPUS), 10, "within"),
                ("none/auto+p2p_off", ",".join(GPUS), 10, "within"),
            ]
            for row, beta in zip(rows, (BETA, BETA / 8), strict=True):
                assert row["sweep"] == sweep
                assert row["alpha_seconds"] == pytest.approx(ALPHA, rel=1e-6)
                assert row["beta_bytes_per_second"] == pytest.approx(beta, rel=1e-6)
                assert row["n_half_bytes"] == pytest.approx(ALPHA * beta, rel=1e-6)
                assert row["beta_lo_bytes_per_second"] <= row["beta_bytes_per_second"]
                assert (row["smallest_bytes"], row["largest_bytes"]) == (SIZES[0], SIZES[-1])

    def test_environments_are_held_against_the_same_arm_without_them(self, tmp_path: Path) -> None:
        """Six processes of each; rings are compared without environments among them."""
        url = f"sqlite:///{tmp_path}/t.db"
        with Store.open(url) as store:
            arms = ((None, BETA), ("p2p_off", BETA / 8))
            gangs = [
                measured(env_name=name, beta=beta, process_no=n, sizes=SIZES[-1:])
                for n in range(6)
                for name, beta in arms
            ]
            stored(store, *gangs)
            asked = Fleet(store, url, {})
            (row,) = (r for r in asked.ask("env-gain", since="2020-01-01") if r["unit"] == "B/s")
            assert (row["arm"], row["reference_arm"]) == ("none/auto+p2p_off", "none/auto")
            assert (row["n_pairs"], row["ci_level"], row["verdict"]) == (6, "between", "regressed")
            expected = seconds(SIZES[-1]) / seconds(SIZES[-1], BETA / 8) - 1
            assert row["gain_ratio"] == pytest.approx(expected)
            assert asked.ask("ring-gain", since="2020-01-01") == []

    def test_a_sweep_that_goes_on_is_fitted_anew_and_not_twice(self, tmp_path: Path) -> None:
        url = f"sqlite:///{tmp_path}/t.db"
        with Store.open(url) as store:
            gang = measured()
            sweep = begin(store, *(c for c, _ in gang), hosts=[host(gpus=2)])
            for _, done in gang[:5]:
                store.put_run(done)
            store.end_sweep(sweep, "interrupted")
            assert self.lines(store, url) == [(5, SIZES[4])]
            store.resume_sweep(sweep)
            for _, done in gang[5:]:
                store.put_run(done)
            store.end_sweep(sweep)
            assert self.lines(store, url) == [(10, SIZES[-1])]

    def lines(self, store: Store, url: str) -> list[tuple[int, float]]:
        rows = Fleet(store, url, {}).ask("alpha-beta", since="2020-01-01")
        return [(r["n"], r["largest_bytes"]) for r in rows]

    def test_the_newest_sweep_counts(self, tmp_path: Path) -> None:
        url = f"sqlite:///{tmp_path}/t.db"
        with Store.open(url) as store:
            stored(store, measured(beta=BETA / 2), day=2)
            newest = stored(store, measured(), day=3)
            (row,) = Fleet(store, url, {}).ask("alpha-beta", since="2020-01-01")
            assert row["sweep"] == newest


def test_an_arm_of_old_keeps_its_place() -> None:
    """Settings without a name are the same arm as before names were known."""
    plain = cell().arm
    assert "env_name" not in arm_row(plain)["document"]
    assert Arm.from_json(arm_row(plain)["document"]) == plain
    named = dataclasses.replace(plain, env_name="x")
    assert Arm.from_json(arm_row(named)["document"]) == named
    assert arm_row(named)["digest"] != arm_row(plain)["digest"]
