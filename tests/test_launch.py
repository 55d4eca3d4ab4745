"""Whatever a worker does, its cell gets one stored run with a reason, and nothing is left."""

from __future__ import annotations

import dataclasses
import math
import threading
import uuid
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from launching import Lab, cell, host
from topobench.agents import worker_process
from topobench.errors import AgentError
from topobench.reading import ReasonCode, Run, Status, to_json


class TestSoundWorkers:
    def test_cells_of_a_batch_share_one_process(self, lab: Lab) -> None:
        runs = lab.run(cell("steady", value=1.5), cell("steady", value=2.5))
        assert [r.status for r in runs] == [Status.OK, Status.OK]
        assert [r.readings[0].samples for r in runs] == [(1.5,), (2.5,)]
        assert runs[0].conditions["pid"] == runs[1].conditions["pid"] == runs[0].members[0].pid
        assert [run.conditions["cells_before"] for run in runs] == [*range(len(runs))]

    def test_pairs_of_one_worker_know_their_own_gpus(self, lab: Lab) -> None:
        """The worker sees every GPU; each cell measures two of them."""
        every = ("GPU-a", "GPU-b", "GPU-c")
        pairs = [("GPU-a", "GPU-c"), ("GPU-c", "GPU-b")]
        cells = [dataclasses.replace(cell("steady"), devices=pair, visible=every) for pair in pairs]
        runs = lab.run(*cells)
        assert [tuple(r.conditions["devices"]) for r in runs] == pairs
        assert runs[0].conditions["pid"] == runs[1].conditions["pid"]
        seen = {r.conditions["environment"]["CUDA_VISIBLE_DEVICES"] for r in runs}
        assert seen == {",".join(every)}

    def test_each_batch_gets_a_fresh_process(self, lab: Lab) -> None:
        (first,), (second,) = lab.run(cell("steady")), lab.run(cell("steady"))
        assert first.conditions["pid"] != second.conditions["pid"]

    def test_a_run_says_when_where_and_how_long(self, lab: Lab) -> None:
        (run,) = lab.run(cell("sleeper", seconds=0.2))
        assert datetime.fromisoformat(run.started_at).utcoffset() is not None
        assert run.started_at.endswith("Z")
        assert len(run.started_at) == len("2026-01-01T00:00:00.000000Z")
        assert 0.2 <= run.duration_seconds < 10
        assert (run.members[0].host, run.members[0].rank) == ("key", 0)
        assert uuid.UUID(run.id).version == 4
        assert Run.from_json(to_json(run)) == run

    def test_attempts_are_numbered_by_cell(self, lab: Lab) -> None:
        cells = [cell("steady"), cell("steady")]
        attempts = {cells[0].id: 3, cells[1].id: 4}
        runs = list(lab.launcher().run(cells, stop=lab.stop, attempt=attempts))
        assert [r.attempt for r in runs] == [3, 4]

    def test_the_log_is_kept_by_cell(self, lab: Lab) -> None:
        first, second = lab.run(cell("steady"), cell("values", value="1"))
        assert first.log_tail == "steady says hello"
        assert second.log_tail == ""

    def test_a_probe_knows_its_deadline(self, lab: Lab) -> None:
        (run,) = lab.run(cell("steady", estimate=100.0))
        assert 105 < run.conditions["deadline"] <= 110  # 1 x estimate + 10 s, minus what passed

    def test_no_cells_are_no_runs(self, lab: Lab) -> None:
        assert lab.run() == []

    def test_a_foreign_probe_is_found_by_name_or_refused_by_name(self, lab: Lab) -> None:
        (run,) = lab.run(cell("no_such_probe"))
        assert run.status is Status.FAILED
        assert "no probe named 'no_such_probe'" in str(run.reason)

    def test_torch_is_named_only_if_a_probe_used_it(self, lab: Lab) -> None:
        (run,) = lab.run(cell("steady"))
        assert "torch" not in run.environment
        assert run.environment["python"].count(".") == 2

    def test_cells_that_cannot_share_a_worker_are_refused(self, lab: Lab) -> None:
        one = cell("steady")
        other = dataclasses.replace(cell("steady"), process_no=1)
        with pytest.raises(AgentError, match="must share host"):
            lab.launcher().run([one, other], stop=lab.stop)


class TestBadEnds:
    """The bad cell has its reason; the cells after it get a fresh worker."""

    @pytest.mark.parametrize(
        ("how", "code", "words"),
        [
            ("exit0", ReasonCode.CRASHED, "exit code 0 before it gave a result"),
            ("exit3", ReasonCode.CRASHED, "exit code 3 before it gave a result: last words"),
            ("sys.exit", ReasonCode.CRASHED, "exit code 0"),
            ("SIGKILL", ReasonCode.SIGNAL, "SIGKILL"),
            ("SIGTERM", ReasonCode.SIGNAL, "SIGTERM"),
            ("null", ReasonCode.SIGNAL, "SIGSEGV"),
        ],
    )
    def test_a_worker_that_dies(self, lab: Lab, how: str, code: ReasonCode, words: str) -> None:
        dead, after = lab.run(cell("crasher", how=how), cell("steady"))
        assert dead.status is Status.FAILED
        assert dead.reason is not None
        assert dead.reason.code is code
        assert words in dead.reason.text
        assert dead.readings[0].samples == (5.0,), "what came before is kept as evidence"
        assert dead.members[0].cpus is not None
        assert after.status is Status.OK
        assert after.members[0].pid != dead.members[0].pid

    def test_a_crash_in_native_code_leaves_its_stack_in_the_log(self, lab: Lab) -> None:
        (run,) = lab.run(cell("crasher", how="null"))
        assert "Segmentation fault" in run.log_tail
        assert "worker_probes.py" in run.log_tail

    @pytest.mark.parametrize(
        ("how", "words"),
        [
            ("garbage", "no message"),
            ("array", "no message"),
            ("other_type", "'surprise' cannot be read"),
            ("bad_reading", "'reading' cannot be read"),
            ("bad_end", "'end' cannot be read"),
        ],
    )
    def test_a_worker_that_writes_nonsense(self, lab: Lab, how: str, words: str) -> None:
        bad, after = lab.run(cell("scribbler", how=how), cell("steady"))
        assert bad.status is Status.FAILED
        assert bad.reason is not None
        assert bad.reason.code is ReasonCode.PARSE
        assert words in bad.reason.text
        assert after.status is Status.OK

    def test_a_worker_that_closes_its_pipe_and_lives_on(self, lab: Lab) -> None:
        bad, after = lab.run(cell("scribbler", how="close"), cell("steady"))
        assert bad.reason is not None
        assert (bad.status, bad.reason.code) == (Status.FAILED, ReasonCode.CRASHED)
        assert "closed its result pipe but lives on" in bad.reason.text
        assert after.status is Status.OK

    def test_a_worker_that_never_ends_its_line(
        self, lab: Lab, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(worker_process, "RESULT_LIMIT_BYTES", 4 << 20)
        bad, after = lab.run(cell("scribbler", how="endless"), cell("steady"))
        assert bad.reason is not None
        assert bad.reason.code is ReasonCode.PARSE
        assert "more than 4 MiB" in bad.reason.text
        assert after.status is Status.OK

    def test_a_worker_that_floods_its_log(self, lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(worker_process, "LOG_LIMIT_BYTES", 4 << 20)
        bad, after = lab.run(cell("sleeper", how="flood"), cell("steady"))
        assert bad.reason is not None
        assert (bad.status, bad.reason.code) == (Status.FAILED, ReasonCode.CRASHED)
        assert "more than 4 MiB of log" in bad.reason.text
        assert len(bad.log_tail) <= 8192
        assert after.status is Status.OK

    @pytest.mark.parametrize("how", ["plain", "locked", "family"])
    def test_a_worker_that_is_late(self, lab: Lab, how: str) -> None:
        """Also one whose native code holds the interpreter's lock, or with children."""
        late, after = lab.run(cell("sleeper", how=how), cell("steady"), seconds=0.0, start=4.0)
        assert late.reason is not None
        assert (late.status, late.reason.code) == (Status.TIMEOUT, ReasonCode.DEADLINE)
        assert late.reason.text == "the worker gave no result within 4 s and was ended"
        assert late.duration_seconds >= 4.0
        assert after.status is Status.OK
        lab.assert_nothing_left()

    def test_a_worker_that_never_starts(self, lab: Lab, tmp_path: Path) -> None:
        """Two in a row speak for the rest: a batch of 100 must not wait 100 times."""
        (tmp_path / "sitecustomize.py").write_text("import time; time.sleep(60)")
        launcher = lab.launcher(env={"PYTHONPATH": str(tmp_path)}, start=1.0)
        runs = list(launcher.run([cell("steady") for _ in range(5)], stop=lab.stop))
        assert [r.status for r in runs] == [Status.TIMEOUT] * 5
        assert {str(r.reason) for r in runs} == {
            "deadline: the worker said nothing for 1 s after its start"
        }

    def test_an_interpreter_that_is_not_there(self, lab: Lab) -> None:
        here = host()
        gone = dataclasses.replace(here.facts, interpreter="/no/such/python")
        runs = lab.run(cell("steady"), cell("steady"), on=dataclasses.replace(here, facts=gone))
        assert [r.status for r in runs] == [Status.FAILED] * 2
        assert str(runs[0].reason) == (
            "crashed: /no/such/python cannot be started: No such file or directory"
        )


class TestWhatProbesRaise:
    @pytest.mark.parametrize(
        ("what", "status", "reason"),
        [
            ("unavailable", Status.SKIPPED, "no_package: there is no numba here"),
            ("wrong_data", Status.INVALID, "wrong_data: byte 3 is wrong"),
            ("nothing", Status.FAILED, "internal: the probe ended without any reading"),
            (
                "internal",
                Status.FAILED,
                "internal: ZeroDivisionError: password=*** at https://me:***@",
            ),
            ("undeclared", Status.FAILED, "internal: ValueError: probe raiser gave the undeclared"),
        ],
    )
    def test_the_worker_goes_on(self, lab: Lab, what: str, status: Status, reason: str) -> None:
        run, after = lab.run(cell("raiser", what=what), cell("steady"))
        assert run.status is status
        assert str(run.reason).startswith(reason)
        assert after.members[0].pid == run.members[0].pid

    @pytest.mark.parametrize(
        ("what", "code"), [("memory", ReasonCode.OOM), ("cuda", ReasonCode.CUDA_ERROR)]
    )
    def test_a_spoilt_process_measures_nothing_more(
        self, lab: Lab, what: str, code: ReasonCode
    ) -> None:
        run, after = lab.run(cell("raiser", what=what), cell("steady"))
        assert run.reason is not None
        assert (run.status, run.reason.code) == (Status.FAILED, code)
        assert "\n" not in run.reason.text
        assert after.status is Status.OK
        assert after.members[0].pid != run.members[0].pid

    def test_the_traceback_is_in_the_log_without_secrets(self, lab: Lab) -> None:
        (run,) = lab.run(cell("raiser"))
        assert "ZeroDivisionError" in run.log_tail
        assert "in measure" in run.log_tail
        assert "hunter" not in run.log_tail


class TestValues:
    @pytest.mark.parametrize("value", ["nan", "inf", "-inf", "-1"])
    def test_values_no_counter_can_give_are_invalid_and_kept(self, lab: Lab, value: str) -> None:
        bad, after = lab.run(cell("values", value=value), cell("steady"))
        assert bad.reason is not None
        assert (bad.status, bad.reason.code) == (Status.INVALID, ReasonCode.INVALID_VALUE)
        (kept,) = bad.readings[0].samples
        assert kept == float(value) or (math.isnan(kept) and value == "nan")
        assert after.members[0].pid == bad.members[0].pid

    def test_no_time_is_no_duration(self, lab: Lab) -> None:
        (run,) = lab.run(cell("values", value="0", metric="time"))
        assert run.reason is not None
        assert (run.status, run.reason.code) == (Status.INVALID, ReasonCode.INVALID_VALUE)

    def test_a_rate_of_zero_may_be_true(self, lab: Lab) -> None:
        (run,) = lab.run(cell("values", value="0"))
        assert run.status is Status.OK

    def test_a_step_of_the_wall_clock_is_flagged_and_moves_no_duration(self, lab: Lab) -> None:
        (run,) = lab.run(cell("clockstep"))
        assert run.status is Status.OK
        (warning,) = run.warnings
        assert warning.startswith("clock_step: the wall clock moved by -3600.0")
        assert 0 < run.duration_seconds < 60


class TestStop:
    @pytest.mark.parametrize("how", ["plain", "locked", "family"])
    def test_stop_ends_the_worker_and_aborts_what_is_left(self, lab: Lab, how: str) -> None:
        threading.Timer(1.0, lab.stop.set).start()
        done, current, left = lab.run(
            cell("steady"), cell("sleeper", how=how), cell("steady"), seconds=60.0
        )
        assert done.status is Status.OK
        assert current.status is left.status is Status.ABORTED
        assert str(current.reason) == str(left.reason) == "cancelled: the sweep was stopped"
        assert lab.alive() == [], "gone when the run is handed out"

    def test_stop_before_the_start_starts_nothing(self, lab: Lab) -> None:
        lab.stop.set()
        runs = lab.run(cell("steady"), cell("steady"))
        assert {r.status for r in runs} == {Status.ABORTED}
        assert not lab.logs.exists()

    def test_closing_the_iterator_ends_the_worker(self, lab: Lab) -> None:
        runs = lab.launcher().run([cell("steady"), cell("steady")], stop=lab.stop)
        next(runs)
        assert lab.alive()
        assert isinstance(runs, Iterator)
        runs.close()  # type: ignore[attr-defined]
        assert lab.alive() == []

    def test_close_ends_a_worker_that_waits_for_its_next_cell(self, lab: Lab) -> None:
        launcher = lab.launcher()
        runs = launcher.run([cell("steady"), cell("steady")], stop=lab.stop)
        next(runs)
        lab.stop.set()
        launcher.close()
        assert lab.alive() == []
        assert [r.status for r in runs] == [Status.ABORTED]

    def test_logs_of_silent_workers_are_removed(self, lab: Lab) -> None:
        lab.run(cell("values", value="1"))
        assert list(lab.logs.iterdir()) == []
