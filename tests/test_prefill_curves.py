"""Curves of prefill: their knees, and where theory expects a bend."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from rich.console import Console

import report_documents as documents
from querying import Fleet
from storing import begin, cell, host, reading, run
from topobench.db.store import Store
from topobench.prefill_curves import Predicted, curves, labels, predicted
from topobench.probes import shapes
from topobench.reading import Cell, CiLevel, Run, Scalar
from topobench.report.prefill_text import knees_section
from topobench.report.records import Places
from topobench.roofline import Roof, work_of

GPU = documents.gpu_uuid("gpu01", 0)
LENGTHS = [128 << n for n in range(9)]
BENT = {n: 20_000.0 * min(n, 1024) / 1024 for n in LENGTHS}
"""Tokens per second that double up to 1024 tokens and are flat after."""
STRAIGHT = {n: 100.0 * n**0.5 for n in LENGTHS}
ROOF = Roof(memory=4e12, flop={"bf16": 8e14, "fp8": 1.4e15}, launch=2e-6)


def prompts(rates: Mapping[int, float], *, process: int = 0, **params: Any) -> list[Any]:
    """A cell for each length."""
    fixed = {"shape": "llama3-8b", "dtype": "bf16", "batch": 1, "mode": "eager", **params}
    return [
        documents.cell(
            "prefill",
            [
                documents.reading("tokens_per_second", rate, unit="token/s"),
                documents.reading("kernel_launch_count", 400.0, unit="1"),
            ],
            params={**fixed, "sequence": length},
            devices=[GPU],
            process_no=process,
        )
        for length, rate in rates.items()
    ]


def test_a_curve_bends_where_it_was_made_to() -> None:
    (curve,) = curves(prompts(BENT))
    assert curve.medians == BENT
    assert curve.knee.size is not None
    assert curve.knee.size.value == pytest.approx(1024, rel=0.05)
    assert curve.knee.level is CiLevel.WITHIN
    assert (curve.device, curve.launches) == (GPU, 400.0)


def test_arithmetic_is_shared_by_ranks_of_one_model_and_not_by_gpus_at_once() -> None:
    pair = [GPU, documents.gpu_uuid("gpu01", 1)]

    def launching(**params: Any) -> float:
        cells = [{**c, "devices": pair} for c in prompts(BENT, **params)]
        (curve,) = curves(cells)
        found = predicted(curve, {(curve.host, GPU): ROOF}).launch
        assert found is not None
        return found

    at_once, shared = launching(at_once="all", tensor_parallel=1), launching(tensor_parallel=2)
    shape = shapes.shape_of("llama3-8b")
    for length, gpus in ((at_once, 1), (shared, 2)):
        work = gpus * 400 * 2e-6 * 8e14
        assert shapes.flop(shape, int(length), 1) == pytest.approx(work, rel=0.05)


def test_a_straight_curve_has_no_knee_and_says_why() -> None:
    (curve,) = curves(prompts(STRAIGHT))
    assert curve.knee.size is None
    assert curve.knee.reason == "no knee: a straight line describes the curve as well"
    (short,) = curves(prompts({n: BENT[n] for n in LENGTHS[:3]}))
    assert short.knee.reason == "no knee: 3 sizes on the rising side; 7 are needed"


def test_processes_are_pooled_and_kinds_of_work_kept_apart() -> None:
    faster = {n: r * 1.02 for n, r in BENT.items()}
    cells = [*prompts(BENT), *prompts(faster, process=1), *prompts(STRAIGHT, dtype="fp8")]
    cells[-1]["status"] = "invalid"
    found = curves(cells)
    assert [len(c.rates) for c in found] == [9, 8]
    assert found[0].medians[1024] == pytest.approx(20_200)
    assert found[0].knee.level is CiLevel.BETWEEN
    assert list(labels(found)) == ["dtype bf16, none", "dtype fp8, none"]


def test_theory_names_the_lengths_that_it_expects_to_bend() -> None:
    """
    Two-byte weights alone would be read as long as 200 tokens compute; the rest adds to it.

    The embedding does not: a token reads one row of it.
    """
    (curve,) = curves(prompts(BENT))
    found = predicted(curve, {("key-gpu01", GPU): ROOF})
    assert found.ridge == 230
    for length, computes in ((229, False), (230, True)):
        work = work_of("prefill", {**dict(curve.params), "sequence": length})
        assert work is not None
        assert (work.flop / work.memory_bytes >= 8e14 / 4e12) is computes
    shape = shapes.shape_of("llama3-8b")
    assert found.attention == pytest.approx(17_700, rel=0.01)
    assert shapes.attention_share(shape, int(found.attention or 0)) >= 0.25
    assert found.launch is not None
    assert shapes.flop(shape, int(found.launch), 1) == pytest.approx(400 * 2e-6 * 8e14, rel=0.05)


def test_a_batch_and_a_narrow_type_move_the_ridge() -> None:
    roofs = {("key-gpu01", GPU): ROOF}
    (four,) = curves(prompts(BENT, batch=4))
    assert predicted(four, roofs).ridge == pytest.approx(230 / 4, abs=1)
    (eight_bits,) = curves(prompts(BENT, dtype="fp8"))
    assert predicted(eight_bits, roofs).ridge == 227  # activations stay two bytes wide


def test_nothing_is_predicted_without_what_it_rests_on() -> None:
    (curve,) = curves(prompts(BENT, mode="graph"))
    found = predicted(curve, {})
    assert (found.launch, found.ridge) == (None, None)
    assert found.attention is not None
    (unknown,) = curves(prompts(BENT, shape="gone"))
    assert predicted(unknown, {}) == Predicted()


def test_the_report_shows_knees_beside_theory() -> None:
    cells = [*prompts(BENT), *prompts(STRAIGHT, dtype="fp16")]
    cells += [
        documents.cell("device_memory", [documents.reading("bandwidth_bytes_per_second", 4e12)],
                       params={"op": "copy"}, devices=[GPU]),
        documents.cell("gemm", [documents.reading("flop_per_second", 8e14, unit="FLOP/s")],
                       params={"dtype": "bf16", "mode": "burst"}, devices=[GPU]),
    ]  # fmt: skip
    console = Console(file=io.StringIO(), width=100, color_system=None)
    for part in knees_section(cells, Places.of([documents.host(gpus=1)])):
        console.print(part)
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    bent, straight = ([*x.split()] for x in lines if "dtype" in x)
    assert bent[:4] == ["dtype", "bf16,", "none", "9"]
    assert bent[5] in ("1022", "1023", "1024", "1025", "1026")
    assert bent[-3:] == ["-", "230", "17750"]
    assert straight[5:] == ["none", "-", "-", "-", "17750"]
    assert "no knee in 1 curve: a straight line describes the curve as well" in lines[-1]


def stored_prompts(rates: Mapping[int, float], dtype: str) -> list[tuple[Cell, Run]]:
    """A cell of the store for each length, and its run."""
    found = []
    for length, rate in rates.items():
        params: dict[str, Scalar] = {"shape": "llama3-8b", "dtype": dtype, "batch": 1}
        made = cell(probe="prefill", params={**params, "sequence": length}, devices=["GPU-0"])
        found.append((made, run(made, reading(rate, metric="tokens_per_second"))))
    return found


def test_the_end_of_a_sweep_stores_its_knees(tmp_path: Path) -> None:
    """A curve of too few lengths was not searched, so it is not said to have none."""
    few = {n: BENT[n] for n in LENGTHS[:4]}
    measured = [
        *stored_prompts(BENT, "bf16"),
        *stored_prompts(STRAIGHT, "fp16"),
        *stored_prompts(few, "fp8"),
    ]
    with Store.open(f"sqlite:///{tmp_path}/t.db") as store:
        sweep = begin(store, *(c for c, _ in measured), hosts=[host(gpus=1)])
        for _, done in measured:
            store.put_run(done)
        store.end_sweep(sweep)
        bent, straight = Fleet(store, "", {}).ask("knee", since="2020-01-01")
        with store.engine.connect() as connection:
            reasons = connection.execute(
                sa.text("SELECT n, reason FROM v_knee ORDER BY subject")
            ).all()
    assert bent["subject"] == "prefill llama3-8b bf16, batch 1, arm none"
    assert (bent["x_metric"], bent["n"], bent["n_none"]) == ("seq_len", 1, 0)
    assert bent["knee"] == pytest.approx(1024, rel=0.05)
    assert bent["ci_lo"] < bent["knee"] < bent["ci_hi"]
    assert (bent["memory_until"], bent["attention_from"]) == (None, 17750)
    assert (straight["knee"], straight["n"], straight["n_none"]) == (None, 0, 1)
    assert [tuple(r) for r in reasons] == [
        (9, "both methods agree within one step of the sizes"),
        (9, "no knee: a straight line describes the curve as well"),
    ]
