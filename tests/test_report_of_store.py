"""The way from plan and runs through a real store to the report and its JSON document."""

from __future__ import annotations

import random
import uuid
from pathlib import Path
from typing import Any

import planning
import report_documents as documents
from golden import printed
from test_envelope import errors, wrap
from topobench import config
from topobench.db.store import Store
from topobench.plan import make_plan
from topobench.reading import (
    Cell,
    Member,
    Reading,
    Reason,
    ReasonCode,
    Run,
    Status,
)
from topobench.report.text import render_sweep
from topobench.stats import summarise

START = "2026-11-29T16:00:00.000000Z"


def run_of(cell: Cell, status: Status, reason: Reason | None, value: float) -> Run:
    noise = random.Random(cell.id)
    samples = tuple(value * noise.uniform(0.99, 1.01) for _ in range(20))
    bad = status not in (Status.OK, Status.INVALID)
    metric = "busbw" if cell.case.probe == "all_reduce" else "bandwidth"
    reading = Reading(f"{metric}_bytes_per_second", summarise(samples), samples)
    return Run(
        id=str(uuid.uuid4()),
        cell=cell.id,
        status=status,
        reason=reason,
        started_at=START,
        duration_seconds=1.5,
        readings=() if bad else (reading,),
        members=(Member(rank=0, host=cell.host, cpus="0-3", cpu_node=0),),
        log_tail="Killed\n" if bad else "",
    )


def stored(folder: Path) -> dict[str, Any]:
    """A sweep over eight GPUs of which every tenth cell is invalid and every eleventh failed."""
    host = planning.host(planning.dual(8))
    settings = config.load(None, environ={})
    plan = make_plan(settings, [host], seed=3)
    throttled = Reason(ReasonCode.THROTTLED, "SM clock fell to 345 MHz")
    killed = Reason(ReasonCode.SIGNAL, "killed by signal 9")
    with Store.open(f"sqlite:///{folder}/x.db") as store:
        sweep = str(uuid.uuid4())
        store.begin_sweep(
            id=sweep,
            cluster="lab",
            profile="quick",
            trigger="manual",
            seed=plan.seed,
            tool_version="0.1.0",
            started_at=START,
            estimated_seconds=plan.estimated_seconds,
            warnings=["one warning"],
            hosts=[host],
            cells=plan.cells,
        )
        for number, cell in enumerate(c for c in plan.cells if c.status is Status.PLANNED):
            if number % 10 == 0:
                store.put_run(run_of(cell, Status.INVALID, throttled, 7.777e9))
            elif number % 11 == 0:
                store.put_run(run_of(cell, Status.FAILED, killed, 0.0))
            else:
                store.put_run(run_of(cell, Status.OK, None, 50e9))
        return store.sweep_document(sweep)


def test_a_stored_sweep_fits_its_schema_and_is_drawn_whole(tmp_path: Path) -> None:
    document = stored(tmp_path)
    assert errors("probe", wrap("probe", document)) == []
    shown = printed(render_sweep(document))
    assert "HOST\n" in shown
    assert "GPU 0-7" in shown
    assert "INVALID host_to_device" in shown
    assert "raw, not to be used: bandwidth 7.7" in shown
    assert "FAILED host_to_device" in shown
    assert "log: Killed" in shown
    measured = shown.split("MEASURED")[1].split("FAILED OR INVALID")[0]
    assert "7.7" not in measured
    assert "warning: one warning" in shown


def test_documents_written_by_hand_have_the_keys_of_stored_ones(tmp_path: Path) -> None:
    """So that the other tests of reports cannot drift from what the store gives."""
    real, ours = stored(tmp_path), documents.troubled_sweep()
    assert ours.keys() == real.keys()
    assert ours["sweep"].keys() <= real["sweep"].keys()
    assert ours["hosts"][0].keys() <= real["hosts"][0].keys()
    assert ours["hosts"][0]["description"].keys() == real["hosts"][0]["description"].keys()
    assert ours["hosts"][0]["facts"].keys() <= real["hosts"][0]["facts"].keys()
    assert ours["cells"][0].keys() <= real["cells"][0].keys()
    by_status = {c["status"]: c for c in real["cells"]}
    good, invalid = by_status["ok"]["readings"][0], by_status["invalid"]["readings"][0]
    assert ours["cells"][0]["readings"][0].keys() <= good.keys()
    assert "raw_value" in invalid
    assert invalid["median"] is None
