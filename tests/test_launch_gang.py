"""One worker per rank: they meet, go in step, and end together."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import pytest

from launching import CPUS, Lab, cell
from topobench.agents.launch import rank_binding
from topobench.reading import Arm, Binding, Cell, ReasonCode, Status

pytest.importorskip("torch", reason="the ranks meet with torch.distributed")


def test_ranks_meet_and_rank_0_reports(lab: Lab) -> None:
    first, second = lab.run(cell("meeting", ranks=3), cell("meeting", ranks=3), seconds=60.0)
    for run in (first, second):
        assert run.status is Status.OK, run.reason
        assert len(run.readings) == 20
        assert [m.rank for m in run.members] == [0, 1, 2]
    assert len({m.pid for m in first.members}) == 3
    assert [m.pid for m in first.members] == [m.pid for m in second.members]


def test_a_rank_that_is_killed_ends_the_gang(lab: Lab) -> None:
    """C39: the reason names the rank, earlier cells are kept, the next gang works."""
    sound, lost, after = (
        cell("meeting", ranks=3),
        cell("meeting", ranks=3, die=1, die_at=5),
        cell("meeting", ranks=2),
    )
    began = time.monotonic()
    runs = lab.run(sound, lost, seconds=60.0)
    assert time.monotonic() - began < 40.0, "the peers must not wait for their deadline"
    assert runs[0].status is Status.OK
    assert runs[1].reason is not None
    assert (runs[1].status, runs[1].reason.code) == (Status.FAILED, ReasonCode.RANK_LOST)
    assert runs[1].reason.text.startswith("rank 1 of 3 was lost: signal: ")
    assert "SIGKILL" in runs[1].reason.text
    assert len(runs[1].readings) == 5, "what rank 0 had measured is kept as evidence"
    lab.assert_nothing_left()
    (again,) = lab.run(after, seconds=60.0)
    assert again.status is Status.OK


def test_what_an_all_reduce_saw_before_a_rank_was_lost_is_kept(lab: Lab) -> None:
    """C39 with the real probe: its times so far, no bandwidth, and the survivors go on."""

    def reduced(ranks: int, **params: Any) -> Cell:
        made = cell("lostreduce", bytes=1 << 20, backend="gloo", **params)
        case = dataclasses.replace(made.case, params={**made.case.params, "ranks": ranks})
        return dataclasses.replace(made, case=case, ranks=ranks)

    lost, after = lab.run(reduced(3, die=1), seconds=60.0) + lab.run(reduced(2), seconds=60.0)
    assert lost.reason is not None
    assert (lost.status, lost.reason.code) == (Status.FAILED, ReasonCode.RANK_LOST)
    assert lost.reason.text.startswith("rank 1 of 3 was lost: signal: ")
    ((metric, summary),) = ((r.metric, r.summary) for r in lost.readings)
    assert (metric, summary.stop_reason) == ("latency_seconds", "aborted")
    assert summary.n >= 1
    assert summary.median > 0
    assert after.status is Status.OK
    assert after.environment["torch"]
    assert {r.metric for r in after.readings} >= {"busbw_bytes_per_second"}


def test_rank_0_may_be_the_lost_one_and_the_rest_gets_a_fresh_gang(lab: Lab) -> None:
    lost, after = lab.run(
        cell("meeting", ranks=2, die=0, die_at=2, how="SIGABRT"),
        cell("meeting", ranks=2),
        seconds=60.0,
    )
    assert lost.reason is not None
    assert lost.reason.code is ReasonCode.RANK_LOST
    assert "rank 0 of 2 was lost: signal: the worker was ended by SIGABRT" in lost.reason.text
    assert after.status is Status.OK
    assert {m.pid for m in after.members}.isdisjoint(m.pid for m in lost.members)


def test_a_rank_that_raises_is_named(lab: Lab) -> None:
    """Its peers see only a closed connection; the cause is what counts."""
    (run,) = lab.run(cell("reduced", ranks=2, die=1, die_at=3, how="raise"), seconds=60.0)
    assert run.status is Status.FAILED
    assert run.reason is not None
    assert str(run.reason) == "internal: rank 1: ValueError: this rank has had enough"
    assert "in _die" in run.log_tail


def test_a_gang_that_agrees_to_skip_is_skipped_and_goes_on(lab: Lab) -> None:
    skipped, after = lab.run(
        cell("meeting", ranks=2, how="skip"), cell("meeting", ranks=2), seconds=60.0
    )
    assert (skipped.status, str(skipped.reason)) == (
        Status.SKIPPED,
        "unsupported: no collectives here",
    )
    assert after.status is Status.OK
    assert [m.pid for m in after.members] == [m.pid for m in skipped.members]


@pytest.mark.skipif(len(CPUS) < 2, reason="needs two CPUs")
def test_each_rank_has_its_own_cpus_if_there_are_enough(lab: Lab) -> None:
    here = f"{CPUS[0]},{CPUS[1]}"
    own, shared = (
        lab.run(cell("meeting", ranks=ranks, binding=Binding("local", cpus=here)), seconds=60.0)[0]
        for ranks in (2, 3)
    )
    assert [m.cpus for m in own.members] == [str(CPUS[0]), str(CPUS[1])]
    assert own.conditions["affinity"] == [CPUS[0]]
    assert own.conditions["rank_cpus"] == "own"
    assert {m.cpus for m in shared.members} == {f"{CPUS[0]}-{CPUS[1]}"}
    assert shared.conditions["rank_cpus"] == "shared"


def test_hyper_threads_of_a_core_stay_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """CPU 64 is the second thread of CPU 0's core, as on most servers."""
    monkeypatch.setattr("topobench.agents.launch._core", lambda cpu: cpu % 64)
    binding = Binding("local", cpus="0-3,64-67")
    parts = [rank_binding(Arm(binding), rank, 2, gpus=False).cpus for rank in range(2)]
    assert parts == ["0-1,64-65", "2-3,66-67"]


def test_slices_are_disjoint_and_gpu_ranks_keep_the_whole_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("topobench.agents.launch._core", lambda cpu: cpu)
    binding = Binding("local", cpus="0-3,8-12")
    parts = [rank_binding(Arm(binding), rank, 4, gpus=False).cpus for rank in range(4)]
    assert parts == ["0-1", "2-3", "8-9", "10-11"]
    assert rank_binding(Arm(binding), 1, 4, gpus=True) == binding
    assert rank_binding(Arm(binding), 0, 1, gpus=False) == binding
    assert rank_binding(Arm(Binding("none")), 1, 2, gpus=False) == Binding("none")


def test_ranks_of_gpus_on_several_nodes_are_bound_apart(lab: Lab) -> None:
    """Each worker really runs on its own CPUs, whatever its peers have."""
    parts = tuple(Binding("local", cpus=str(cpu)) for cpu in (CPUS[1], CPUS[0]))
    arm = Arm(Binding("local", cpus=f"{CPUS[0]},{CPUS[1]}"), rank_bindings=parts)
    asked = dataclasses.replace(cell("meeting", ranks=2), arm=arm)
    (run,) = lab.run(asked, seconds=60.0)
    assert run.status is Status.OK, run.reason
    assert [m.cpus for m in run.members] == [str(CPUS[1]), str(CPUS[0])]
    assert run.conditions["rank_cpus"] == "of its GPU's arm"
