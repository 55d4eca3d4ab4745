"""What hangs ends at its deadline, and what it had measured by then is kept."""

from __future__ import annotations

import dataclasses
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from launching import Lab, cell, host
from topobench import processes
from topobench.agents.part import Part
from topobench.joint import Joint
from topobench.reading import Cell, Reading, ReasonCode, Run, Status

START_SECONDS, WORK_SECONDS = 120.0, 3.0


def by_metric(run: Run) -> dict[str, Reading]:
    return {r.metric: r for r in run.readings}


def kill_guard(lab: Lab) -> None:
    """The one process of a worker's that leads no session, once there is one."""
    until = time.monotonic() + 20.0
    while len(found := lab.alive()) < 2 and time.monotonic() < until:
        time.sleep(0.02)
    (guard,) = (p.pid for p in found if p.pid != p.session)
    os.kill(guard, signal.SIGKILL)
    while processes.find(guard) is not None and time.monotonic() < until:
        time.sleep(0.02)


class TestOneWorker:
    def test_samples_outlive_the_worker_and_the_next_cell_has_another(self, lab: Lab) -> None:
        """
        Of a cell that gives no result: never of wrong data, never beside the reading itself.

        What is stuck in native code is ended without all that a start may take, which is for
        workers that have not told any samples.
        """
        ways = ("raise", "wrong", "none", "native")
        cells = [*(cell("stuck", how=how) for how in ways), cell("steady")]
        raised, wrong, fine, hung, after = lab.run(
            *cells, seconds=WORK_SECONDS, start=START_SECONDS
        )
        for run, status in ((raised, Status.FAILED), (hung, Status.TIMEOUT)):
            assert run.status is status
            assert set(by_metric(run)) == {"bandwidth_bytes_per_second", "duration_seconds"}
            kept = by_metric(run)["duration_seconds"]
            assert kept.samples == (0.5, 1.0, 1.5, 2.0), "seconds of two operations each"
            assert kept.summary.stop_reason == "aborted"
            assert kept.summary.n == 4, "warm-ups count where there is nothing else"
            assert run.warnings == (
                "partial: the samples taken until then are kept as raw values "
                "(duration_seconds: 4)",
            )
        assert hung.reason is not None
        assert hung.reason.code is ReasonCode.DEADLINE
        assert hung.duration_seconds < START_SECONDS
        assert (wrong.status, set(by_metric(wrong))) == (
            Status.INVALID,
            {"bandwidth_bytes_per_second"},
        )
        assert fine.status is Status.OK
        assert by_metric(fine)["duration_seconds"].samples == (2.0,)
        assert fine.warnings == ()
        assert after.status is Status.OK
        assert after.members[0].pid != hung.members[0].pid

    def test_one_that_lost_its_guard_is_replaced_at_once(self, lab: Lab) -> None:
        killer = threading.Thread(target=kill_guard, args=(lab,))
        killer.start()
        lost, after = lab.run(cell("sleeper", how="locked"), cell("steady"), seconds=60.0)
        killer.join()
        assert (lost.status, str(lost.reason)) == (
            Status.FAILED,
            "signal: the worker was ended: its guard was killed, without which it may outlive its "
            "launcher",
        )
        assert lost.duration_seconds < 30.0
        assert after.status is Status.OK

    def test_a_guard_lost_between_two_cells_costs_none(self, lab: Lab) -> None:
        runs = lab.launcher().run([cell("steady"), cell("steady")], stop=lab.stop)
        first = next(runs)
        kill_guard(lab)
        (second,) = runs
        assert [first.status, second.status] == [Status.OK, Status.OK]
        assert first.members[0].pid != second.members[0].pid


class TestGang:
    def test_a_stopped_rank_ends_the_gang_and_the_next_is_fine(self, lab: Lab) -> None:
        """C39 with a rank that hangs: gloo itself would wait a minute, NCCL for ever."""
        pytest.importorskip("torch", reason="the ranks meet with torch.distributed")

        def reduced(estimate: float, **params: Any) -> Cell:
            made = cell("lostreduce", bytes=1 << 20, backend="gloo", estimate=estimate, **params)
            case = dataclasses.replace(made.case, params={**made.case.params, "ranks": 2})
            return dataclasses.replace(made, case=case, ranks=2)

        lost = reduced(WORK_SECONDS, die=1, how="SIGSTOP")
        hung, after = lab.run(lost, reduced(30.0), seconds=0.0, start=START_SECONDS)
        assert hung.reason is not None
        assert (hung.status, hung.reason.code) == (Status.TIMEOUT, ReasonCode.DEADLINE)
        assert hung.reason.text.startswith("rank 0, 1 gave no result within ")
        assert hung.reason.text.endswith(" and was ended; rank 1 was found stopped by a signal")
        assert hung.duration_seconds < START_SECONDS
        (kept,) = hung.readings
        assert (kept.metric, kept.summary.stop_reason) == ("latency_seconds", "aborted")
        assert kept.summary.n >= 1
        assert kept.summary.median > 0
        assert after.status is Status.OK
        assert "busbw_bytes_per_second" in by_metric(after)

    def test_of_several_hosts_every_part_ends_and_rank_0s_samples_are_kept(
        self, tmp_path: Path, lab: Lab
    ) -> None:
        """Each host has its own launcher and its own workers; here they share a machine."""
        hosts = {key: _Host(key, lab) for key in ("a", "b")}
        made = dataclasses.replace(cell("lostnetwork", ranks=2), host="a", hosts=("a", "b"))
        runs: list[Run] = []
        joint = Joint(hosts, {}, lambda event: runs.extend([event[1]] if event[1] else []),
                      lab.stop, {})  # fmt: skip
        joint.run([[made]])
        (run,) = runs
        assert run.reason is not None
        assert (run.status, run.reason.code) == (Status.TIMEOUT, ReasonCode.DEADLINE)
        kept = by_metric(run)
        assert set(kept) == {"latency_seconds", "bandwidth_bytes_per_second"}
        assert kept["bandwidth_bytes_per_second"].summary.stop_reason == "aborted"
        assert 1e6 < kept["bandwidth_bytes_per_second"].summary.median < 1e12
        assert run.duration_seconds < START_SECONDS
        assert [m.host for m in run.members] == ["a", "b"]


class _Host:
    """A host's agent as the driver sees it, without Ray between the two."""

    def __init__(self, key: str, lab: Lab) -> None:
        self.host = dataclasses.replace(host(), key=key, name=key)
        self.lost: str | None = None
        launcher = lab.launcher(
            on=self.host,
            seconds=WORK_SECONDS,
            start=START_SECONDS,
            env={"GLOO_SOCKET_IFNAME": "lo"},
        )
        self._part = Part(launcher, "10.0.0.1")
        self._stop = lab.stop
        self.published = self._part.meeting.published
        self.tell = self._part.meeting.tell
        self.lose = self._part.meeting.lose

    def run_part(self, cell: Cell, *, attempt: int, fresh: bool, last: bool) -> tuple[Run, bool]:
        found = self._part.run(
            cell, host=self.host.key, attempt=attempt, fresh=fresh, stop=self._stop
        )
        if last:
            self._part.end()
        return found
