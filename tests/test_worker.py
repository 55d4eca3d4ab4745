"""The worker's end of the protocol, and what it checks before a number counts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from launching import marked
from topobench import processes
from topobench.errors import ProbeError, ProbeUnavailable, ResultInvalid
from topobench.probes import binding as kernel
from topobench.probes.worker import cpu_wait_seconds
from topobench.probes.worker_checks import Placement, check_values, explain
from topobench.reading import Binding, MemoryPolicy, Reading, ReasonCode, Status, Summary, to_json

ROOT = Path(__file__).parent.parent


class Conversation:
    """A worker that this test talks to by hand, as the launcher does."""

    def __init__(self, process: subprocess.Popen[bytes], results: int, token: str) -> None:
        self.process = process
        self.token = token
        self._results = os.fdopen(results, "rb")

    def say(self, kind: str, **fields: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"type": kind, **fields}).encode() + b"\n")
        self.process.stdin.flush()

    def spec(self, **changes: Any) -> None:
        fields = {
            "rank": 0,
            "ranks": 1,
            "local_rank": 0,
            "interface": None,
            "binding": to_json(Binding("none")),
            "denied": False,
        }
        self.say("spec", **(fields | changes))

    def go(
        self, probe: str, *, devices: Sequence[str] = (), deadline: float = 30.0, **params: Any
    ) -> None:
        name = {"clockstep": "ClockStep"}.get(probe, probe.title())
        self.say(
            "go",
            cell="c1",
            probe=probe,
            params=params,
            target=f"worker_probes:{name}",
            devices=list(devices),
            deadline_seconds=deadline,
        )

    def hear(self) -> dict[str, Any]:
        line = self._results.readline()
        assert line, "the worker closed its pipe"
        message: dict[str, Any] = json.loads(line)
        return message

    def family(self) -> list[int]:
        return [p.pid for p in marked(processes.WORKER, self.token)]

    def holders(self) -> list[int]:
        """Who of the family has the result pipe open."""
        pipe = f"pipe:[{os.fstat(self._results.fileno()).st_ino}]"
        return [
            pid
            for pid in self.family()
            if pipe in {os.readlink(fd) for fd in Path(f"/proc/{pid}/fd").iterdir()}
        ]

    def close(self) -> None:
        self._results.close()
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(10)


@contextmanager
def conversation(*, launcher: int | None = None) -> Iterator[Conversation]:
    token = uuid.uuid4().hex
    results, write_end = os.pipe()
    guard, guard_end = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-m", "topobench.probes.worker", str(write_end),
         str(launcher or os.getpid()), str(guard_end)],
        stdin=subprocess.PIPE,
        pass_fds=(write_end, guard_end),
        start_new_session=True,
        env={
            **os.environ,
            "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}",
            "OMP_NUM_THREADS": "1",
            processes.WORKER: token,
        },
    )  # fmt: skip
    os.close(write_end)
    os.close(guard_end)
    talk = Conversation(process, results, token)
    try:
        yield talk
    finally:
        os.close(guard)
        talk.close()


class TestWaitingForACpu:
    def test_what_another_process_held_the_cpu_for_is_counted(self) -> None:
        if (before := cpu_wait_seconds()) is None:
            pytest.skip("this kernel does not count how long threads wait for a CPU")
        allowed = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {min(allowed)})
        other = subprocess.Popen([sys.executable, "-c", "while True: pass"])
        try:
            deadline = time.monotonic() + 30
            while (cpu_wait_seconds() or 0) - before < 0.02:
                assert time.monotonic() < deadline, "two processes on one CPU, and none waited"
        finally:
            os.sched_setaffinity(0, allowed)
            other.kill()
            other.wait()

    @pytest.mark.parametrize("text", ["0 0 0\n", "", "120 x 1"])
    def test_a_kernel_that_does_not_count_tells_nothing(self, tmp_path: Path, text: str) -> None:
        """Built without scheduler statistics, it writes zeros even of a thread that runs."""
        (tmp_path / "schedstat").write_text(text)
        assert cpu_wait_seconds(str(tmp_path / "schedstat")) is None
        assert cpu_wait_seconds(str(tmp_path / "absent")) is None


class TestProtocol:
    def test_spec_got_go_reading_end_bye(self) -> None:
        with conversation() as worker:
            worker.spec()
            got = worker.hear()
            assert got["type"] == "got"
            assert got["memory_policy"] == "default"
            assert got["inherited"]["memory_policy"] == "default"
            (guard,) = set(worker.family()) - {worker.process.pid}
            worker.go("steady", value=2.0, deadline=1e9)  # more than poll takes at once
            reading = worker.hear()
            assert (reading["type"], reading["cell"]) == ("reading", "c1")
            assert Reading.from_json(reading["reading"]).samples == (2.0,)
            end = worker.hear()
            assert (end["type"], end["status"], end["reason"]) == ("end", "ok", None)
            assert end["leaving"] is False
            assert ("cpu_wait_seconds" in end["conditions"]) is (cpu_wait_seconds() is not None)
            assert guard in worker.family()
            processes.prctl(processes.PR_SET_CHILD_SUBREAPER, 1)  # nobody else reaps it
            try:
                worker.say("bye")
                assert worker.hear() == {"type": "bye"}
                assert worker.process.wait(10) == 0
                assert not Path(f"/proc/{guard}").exists(), "the worker reaps its guard"
            finally:
                processes.prctl(processes.PR_SET_CHILD_SUBREAPER, 0)

    def test_nothing_heavy_is_loaded_before_a_probe_asks_for_it(self) -> None:
        """Pages of a library loaded early would lie where the interpreter started."""
        code = (
            "import sys, topobench.probes.worker\n"
            "heavy = {'torch', 'numpy', 'ray', 'sqlalchemy', 'pydantic', 'scipy', 'numba'}\n"
            "print(sorted(heavy & set(sys.modules)))"
        )
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        assert done.stdout == "[]\n"

    def test_the_result_pipe_is_held_by_the_worker_alone(self) -> None:
        """A child that held it would keep the launcher waiting for an end of file."""
        with conversation() as worker:
            worker.spec()
            worker.hear()
            worker.go("sleeper", how="family", seconds=30.0)
            until = time.monotonic() + 10.0
            while len(worker.family()) < 4 and time.monotonic() < until:
                time.sleep(0.05)
            assert len(worker.family()) == 4, "worker, guard, child and grandchild"
            assert worker.holders() == [worker.process.pid]

    def test_what_a_probe_left_behind_ends_with_the_worker_that_leaves(self) -> None:
        with conversation() as worker:
            worker.spec()
            worker.hear()
            worker.go("sleeper", how="family", seconds=1.0)
            while worker.hear()["type"] != "end":
                pass
            until = time.monotonic() + 10.0
            while len(worker.family()) < 4 and time.monotonic() < until:
                time.sleep(0.05)
            assert len(worker.family()) == 4, "worker, guard, child and grandchild"
            worker.say("bye")
            assert worker.process.wait(10) == 0
            assert worker.family() == []

    def test_a_wrong_launcher_is_none(self) -> None:
        """It died before the worker came up, so nobody holds the life line."""
        with conversation(launcher=1) as worker:
            assert worker.process.wait(10) == 1

    def test_a_closed_life_line_ends_it_at_once(self) -> None:
        with conversation() as worker:
            worker.spec()
            worker.hear()
            assert worker.process.stdin is not None
            worker.process.stdin.close()
            assert worker.process.wait(10) != 0
        until = time.monotonic() + 5.0
        while worker.family() and time.monotonic() < until:
            time.sleep(0.05)
        assert worker.family() == []

    def test_one_without_its_guard_leaves_before_it_measures(self) -> None:
        """Its launcher ends it anyway; this is for the moment before."""
        with conversation() as worker:
            worker.spec()
            worker.hear()
            (guard,) = (pid for pid in worker.family() if pid != worker.process.pid)
            os.kill(guard, signal.SIGKILL)
            until = time.monotonic() + 10.0
            while guard in worker.family() and time.monotonic() < until:
                time.sleep(0.02)
            worker.go("steady")
            assert worker.process.wait(10) == processes.UNGUARDED

    def test_other_ranks_measure_but_do_not_report(self) -> None:
        with conversation() as worker:
            worker.spec(rank=1, ranks=2)
            worker.hear()
            worker.go("steady")
            end = worker.hear()
            assert (end["type"], end["status"]) == ("end", "ok")
            assert "cpu_wait_seconds" not in end["conditions"]
            worker.go("values", value="nan")
            assert worker.hear()["status"] == "invalid", "but a bad value is not passed over"

    def test_a_condition_that_is_no_plain_value_is_the_probes_fault(self) -> None:
        with conversation() as worker:
            worker.spec()
            worker.hear()
            worker.go("raiser", what="odd_note")
            end = worker.hear()
            assert end["status"] == "failed"
            assert "not JSON serializable" in end["reason"]

    def test_it_refuses_a_binding_it_cannot_have(self) -> None:
        with conversation() as worker:
            worker.spec(binding=to_json(Binding("mine", cpus="4095")))
            refused = worker.hear()
            assert refused["type"] == "refused"
            assert refused["reason"].startswith("cpu_not_allowed: the kernel allows this process")
            assert worker.process.wait(10) == 0


def reading(value: float, metric: str = "bandwidth_bytes_per_second", **more: Any) -> Reading:
    summary = Summary(
        **{"n": 1, "median": value, "minimum": value, "maximum": value, "mad": 0.0, **more}
    )
    return Reading(metric, summary, (value,))


class TestValues:
    def test_sound_ones_pass(self) -> None:
        assert check_values(reading(1.0, ci_lo=0.5, ci_hi=2.0, p90=1.0, p99=None)) is None
        assert check_values(reading(0.0)) is None
        assert check_values(reading(1e-9, "latency_seconds")) is None
        assert check_values(Reading("mfu_ratio", reading(0.5).summary)) is None

    @pytest.mark.parametrize(
        "bad",
        [
            reading(float("nan")),
            reading(float("inf")),
            reading(-1.0),
            reading(0.0, "latency_seconds"),
            reading(1.0, p99=float("nan")),
            reading(1.0, ci_lo=-0.1),
            reading(1.0, mad=float("inf")),
            reading(1.0, "duration_seconds", minimum=0.0),
            Reading("mfu_ratio", reading(0.5).summary, (0.5, float("nan"))),
        ],
    )
    def test_others_are_invalid(self, bad: Reading) -> None:
        failure = check_values(bad)
        assert failure is not None
        assert (failure.status, failure.reason.code) == (Status.INVALID, ReasonCode.INVALID_VALUE)
        assert bad.metric in failure.reason.text
        assert not failure.fatal


class OutOfMemoryError(RuntimeError):
    """As torch names it."""


class AcceleratorError(RuntimeError):
    """As torch names it since 2.8."""


class TestExceptions:
    @pytest.mark.parametrize(
        ("error", "status", "code", "fatal"),
        [
            (ProbeUnavailable("no_gpu", "x"), Status.SKIPPED, ReasonCode.NO_GPU, False),
            (ResultInvalid("wrong_data", "x"), Status.INVALID, ReasonCode.WRONG_DATA, False),
            (ResultInvalid("wrong_binding", "x"), Status.INVALID, ReasonCode.WRONG_BINDING, True),
            (ProbeError("untimeable", "x"), Status.FAILED, ReasonCode.UNTIMEABLE, False),
            (ProbeError("no such code", "x"), Status.FAILED, ReasonCode.INTERNAL, False),
            (MemoryError(), Status.FAILED, ReasonCode.OOM, True),
            (OutOfMemoryError("CUDA out of memory."), Status.FAILED, ReasonCode.OOM, True),
            (RuntimeError("CUDA error: out of memory"), Status.FAILED, ReasonCode.OOM, True),
            (RuntimeError("CUDA error: misaligned"), Status.FAILED, ReasonCode.CUDA_ERROR, True),
            (RuntimeError("CUBLAS_STATUS_X when"), Status.FAILED, ReasonCode.CUDA_ERROR, True),
            (RuntimeError("NCCL error in: x.cpp"), Status.FAILED, ReasonCode.CUDA_ERROR, True),
            (AcceleratorError("launch failure"), Status.FAILED, ReasonCode.CUDA_ERROR, True),
            (KeyError("x"), Status.FAILED, ReasonCode.INTERNAL, False),
        ],
    )
    def test_each_has_its_reason(
        self, error: Exception, status: Status, code: ReasonCode, fatal: bool
    ) -> None:
        failure = explain(error)
        assert (failure.status, failure.reason.code, failure.fatal) == (status, code, fatal)

    def test_long_messages_are_cut(self) -> None:
        assert len(explain(ValueError("x" * 5000)).reason.text) == 300


class TestPlacement:
    """Page counts as a kernel with two NUMA nodes would give them; the lab has the kernel."""

    BOUND = Binding("local", "0", (0,), MemoryPolicy.BIND, (0,))

    def look(
        self, monkeypatch: pytest.MonkeyPatch, binding: Binding, *pages: dict[int, int]
    ) -> Placement:
        from collections import Counter

        buffers = iter(pages)
        monkeypatch.setattr(kernel, "page_nodes", lambda address, size: Counter(next(buffers)))
        placement = Placement(binding)
        for _ in pages:
            placement.look(0, 1)
        return placement

    def test_the_worst_buffer_decides(self, monkeypatch: pytest.MonkeyPatch) -> None:
        placement = self.look(monkeypatch, self.BOUND, {0: 100}, {0: 98, 1: 2}, {0: 90, 1: 10})
        found, conditions = placement.proof()
        assert found is not None
        assert found.samples == (1.0, 0.98, 0.9)
        assert (found.summary.median, found.summary.minimum, found.summary.n) == (0.98, 0.9, 3)
        assert conditions["buffer_page_share"] == {"0": 288 / 300, "1": 12 / 300}
        assert placement.node is None
        with pytest.raises(ResultInvalid, match=r"only 90\.0% of a measured buffer"):
            placement.verify()

    def test_a_few_stray_pages_are_allowed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        placement = self.look(monkeypatch, self.BOUND, {0: 995, 1: 5})
        placement.verify()
        assert placement.node == 0

    def test_no_buffer_is_no_proof(self, monkeypatch: pytest.MonkeyPatch) -> None:
        placement = self.look(monkeypatch, self.BOUND)
        placement.verify()
        assert placement.proof() == (None, {})
        assert placement.node is None

    def test_untouched_pages_prove_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        placement = self.look(monkeypatch, self.BOUND, {})
        assert placement.proof() == (None, {})

    def test_unbound_memory_has_no_wanted_node(self, monkeypatch: pytest.MonkeyPatch) -> None:
        placement = self.look(monkeypatch, Binding("none", cpu_nodes=(0,)), {0: 10, 1: 30})
        assert placement.proof() == (None, {"buffer_page_share": {"0": 0.25, "1": 0.75}})
        placement.verify()
