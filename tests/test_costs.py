"""What cells cost in their workers, held against sweeps that were measured on two real GPUs."""

from __future__ import annotations

import collections
import dataclasses
import itertools
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest

from planning import configured, dual, gpu, host, planned, small
from test_recorded import RINGS, STANDARD, document
from topobench import costs
from topobench.choice import timed
from topobench.config import Overrides, load
from topobench.plan import batches, estimate, make_plan
from topobench.probes import registry
from topobench.reading import Arm, Binding, Case, Cell

RECORDED = [STANDARD, RINGS]


def cell(stored: dict[str, Any], visible: tuple[str, ...]) -> Cell:
    """A cell of a document; those of pairs share a worker that sees all GPUs."""
    env_name = stored["arm"].partition("+")[2] or None
    binding = Binding.from_json(stored["binding"])
    arm = Arm(binding, stored["ring"], env=stored["env"], env_name=env_name)
    return Cell(
        stored["id"],
        Case(stored["probe"], stored["version"], stored["params"]),
        stored["host"],
        arm,
        tuple(stored["devices"]),
        stored["ranks"],
        stored["process_no"],
        stored["block"],
        visible=visible if stored["probe"] == "peer" else (),
    )


def estimated_anew(name: str) -> Iterator[tuple[Cell, float]]:
    """The cells of a recorded sweep with today's estimates, and the seconds each took."""
    stored = {c["id"]: c for c in document(name)["data"]["cells"] if c["seconds"] is not None}
    gpus = tuple(sorted(set(itertools.chain(*(c["devices"] for c in stored.values())))))
    for batch in batches([cell(c, gpus) for c in stored.values()]):
        first = batch[0]
        cases = [timed(registry.load(c.case.probe), c.case.params) for c in batch]
        found = costs.of_worker(
            cases,
            first.arm,
            gpus=costs.gpus_of_a_host(first),
            ranks=first.ranks,
            known=set(),
        )
        for one, (_, seconds) in zip(batch, found, strict=True):
            yield dataclasses.replace(one, estimated_seconds=seconds), stored[one.id]["seconds"]


@pytest.mark.parametrize("name", RECORDED)
def test_a_recorded_sweep_took_as_long_by_probe_as_is_estimated(name: str) -> None:
    took: dict[str, float] = collections.defaultdict(float)
    expected = took.copy()
    for found, seconds in estimated_anew(name):
        expected[found.case.probe] += found.estimated_seconds
        took[found.case.probe] += seconds
    assert expected == pytest.approx(took, rel=0.15)


@pytest.mark.parametrize("name", RECORDED)
def test_a_recorded_sweep_took_as_long_as_is_estimated(name: str) -> None:
    """With the time between its cells: starts of workers, looks at GPUs, NCCL's own rings."""
    sweep = document(name)["data"]["sweep"]
    began, ended = (datetime.fromisoformat(sweep[k]) for k in ("started_at", "ended_at"))
    expected = estimate([found for found, _ in estimated_anew(name)])
    assert expected == pytest.approx((ended - began).total_seconds(), rel=0.1)


def test_the_first_cell_of_a_worker_carries_the_start_of_its_gpus() -> None:
    one, eight = (
        planned(make_plan(configured(probes="kernel_launch"), [host(place)], seed=1).cells)
        for place in (small(cpus=16, gpus=[gpu(0)]), dual(8))
    )
    for cells, more in ((one, costs.GPU_SECONDS), (eight, None)):
        (first, *others), *_ = batches(cells)
        extra = first.estimated_seconds - others[0].estimated_seconds
        assert {c.estimated_seconds for c in others} == {others[0].estimated_seconds}
        assert extra == pytest.approx(more or costs.GPU_SECONDS + 7 * costs.NEXT_GPU_SECONDS)


def test_a_worker_makes_what_its_models_share_once_for_each_type_of_products() -> None:
    """A weight of four bits is multiplied as bf16, so that nothing is new for it."""
    sets = ("prefill.dtype=bf16,int4,fp8", "prefill.sequence=512,2048", "prefill.at_once=one")
    chosen = configured(probes="prefill", sets=sets)
    cells = planned(make_plan(chosen, [host(small(gpus=[gpu(0)]))], seed=1).cells)
    (batch,) = batches(cells)
    more = {}
    for c in batch:
        alone = timed(registry.load("prefill"), c.case.params)
        (use,) = (seconds for name, seconds in alone.first_uses if name != "torch")
        more[c.case.params["dtype"], c.case.params["sequence"]] = (
            c.estimated_seconds - alone.seconds
        ) / use
    assert more["bf16", 512] > 1  # with the start of the GPU
    del more["bf16", 512]
    assert more == pytest.approx({k: float(k == ("fp8", 512)) for k in more}, abs=1e-9)


def test_pairs_of_gpus_begin_once_in_the_worker_that_sees_them_all() -> None:
    chosen = configured(profile="full", probes="peer")
    cells = planned(make_plan(chosen, [host(dual(4))], seed=1).cells)
    longer = [c for c in cells if c.estimated_seconds > 2]
    assert [c.process_no for c in longer] == list(range(6))


def test_rings_of_ones_own_ask_once_for_those_of_nccl() -> None:
    chosen = dataclasses.replace(
        load(None, environ={}, overrides=Overrides(profile="full", bindings="none")),
        rings=("auto_ring", "identity"),
    )
    chosen = dataclasses.replace(
        chosen, probes=tuple(p for p in chosen.probes if p.name == "all_reduce")
    )
    found = batches(make_plan(chosen, [host(dual(2))], seed=1).cells)
    dumped: set[tuple[str, ...]] = set()
    seconds = {
        ring: [costs.beside(b, dumped) for b in found if b[0].arm.ring == ring]
        for ring in ("auto_ring", "identity")
    }
    plain = seconds["auto_ring"][0]
    first, *others = seconds["identity"]
    start = costs.GPU_SECONDS + costs.NEXT_GPU_SECONDS + costs.JOINING_SECONDS
    assert {*others, *seconds["auto_ring"]} == {plain}
    assert first - plain == pytest.approx(costs.READY_SECONDS + start + costs.DUMP_SECONDS)
