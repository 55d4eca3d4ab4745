"""Workers never outlive their launcher, and take their own children with them."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from launching import Lab, cell
from topobench import processes
from topobench.agents.worker_process import WorkerProcess
from topobench.reading import ReasonCode, Status

ROOT = Path(__file__).parent.parent

AGENT = """
import sys, threading
from launching import Lab, cell
from pathlib import Path
lab = Lab(Path({folder!r}))
lab.sweep = {sweep!r}
def agent():
    for run in lab.launcher(seconds=60.0).run([cell({probe!r}, **{params!r})], stop=lab.stop):
        print(run.status, run.reason, flush=True)
thread = threading.Thread(target=agent)
thread.start()
thread.join()
"""


MEMORY_GROUPS = Path("/sys/fs/cgroup/memory")


@pytest.fixture
def small_memory() -> Iterator[Sequence[str]]:
    """Words before a command that leave it 150 MiB of memory."""
    group = MEMORY_GROUPS / f"topobench-{uuid.uuid4().hex[:8]}"
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(150 << 20))
    except OSError as error:
        pytest.skip(f"no memory cgroup (version 1) can be made here: {error}")
    yield ("sh", "-c", f'echo $$ > {group}/cgroup.procs; exec "$@"', "sh")
    group.rmdir()


def until(condition: Callable[[], object], seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "never happened"
        time.sleep(0.02)


def start_agent(
    lab: Lab, tmp_path: Path, probe: str, *, wrapper: Sequence[str] = (), **params: object
) -> subprocess.Popen[str]:
    """A process with a launcher that runs one cell."""
    text = AGENT.format(folder=str(tmp_path), sweep=lab.sweep, probe=probe, params=params)
    return subprocess.Popen(
        [*wrapper, sys.executable, "-c", text],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"},
    )


def worker_of(lab: Lab) -> int:
    """Pid of the worker: the one that leads a session and was started first."""
    return min((p.start, p.pid) for p in lab.alive() if p.pid == p.session)[1]


class TestLauncherDies:
    @pytest.mark.parametrize(
        ("how", "count"),
        [
            ("plain", 2),  # the worker and its guard
            ("locked", 2),  # native code that holds the interpreter's lock
            ("family", 4),  # children that ignore TERM, one outside the session
        ],
    )
    @pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
    def test_everything_is_gone(
        self, lab: Lab, tmp_path: Path, how: str, count: int, number: int
    ) -> None:
        with start_agent(lab, tmp_path, "sleeper", how=how) as agent:
            until(lambda: len(lab.alive()) == count)
            agent.send_signal(number)
            agent.wait()
            lab.assert_nothing_left(seconds=5.0)

    def test_a_stopped_worker_goes_too(self, lab: Lab, tmp_path: Path) -> None:
        with start_agent(lab, tmp_path, "sleeper") as agent:
            until(lambda: len(lab.alive()) == 2)
            os.kill(worker_of(lab), signal.SIGSTOP)
            agent.kill()
            agent.wait()
            lab.assert_nothing_left(seconds=5.0)

    def test_a_worker_whose_launcher_hangs_ends_at_its_deadline(
        self, lab: Lab, tmp_path: Path
    ) -> None:
        """The guard knows the deadline: a stopped agent must not hold the host for ever."""
        text = AGENT.replace("seconds=60.0", "seconds=0.0, start=3.0")
        text = text.format(
            folder=str(tmp_path), sweep=lab.sweep, probe="sleeper", params={"how": "family"}
        )
        environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}
        with subprocess.Popen([sys.executable, "-c", text], env=environment) as agent:
            until(lambda: len(lab.alive()) == 4)
            agent.send_signal(signal.SIGSTOP)
            try:
                lab.assert_nothing_left(seconds=12.0)
            finally:
                agent.kill()

    def test_a_guard_alone_is_enough_where_the_worker_was_killed_too(
        self, lab: Lab, tmp_path: Path
    ) -> None:
        with start_agent(lab, tmp_path, "sleeper", how="family") as agent:
            until(lambda: len(lab.alive()) == 4)
            worker = worker_of(lab)
            agent.kill()
            os.kill(worker, signal.SIGKILL)
            agent.wait()
            lab.assert_nothing_left(seconds=5.0)


class TestWorkerDies:
    def test_sigkill_from_outside_is_a_failed_run_and_takes_the_family(self, lab: Lab) -> None:
        def kill() -> None:
            until(lambda: len(lab.alive()) == 4)
            os.kill(worker_of(lab), signal.SIGKILL)

        killer = threading.Thread(target=kill)
        killer.start()
        dead, after = lab.run(cell("sleeper", how="family"), cell("steady"), seconds=60.0)
        killer.join()
        assert dead.status is Status.FAILED
        assert str(dead.reason) == "signal: the worker was ended by SIGKILL"
        assert after.status is Status.OK
        assert lab.alive() == []

    def test_a_worker_without_its_guard_still_ends_with_its_launcher(
        self, lab: Lab, tmp_path: Path
    ) -> None:
        """The second belt: the kernel's parent-death signal."""
        with start_agent(lab, tmp_path, "sleeper", how="locked") as agent:
            until(lambda: len(lab.alive()) == 2)
            (guard,) = (p.pid for p in lab.alive() if p.pid != p.session)
            os.kill(guard, signal.SIGKILL)
            agent.kill()
            agent.wait()
            lab.assert_nothing_left(seconds=5.0)

    def test_the_kernels_memory_killer_is_named(
        self, lab: Lab, tmp_path: Path, small_memory: Sequence[str]
    ) -> None:
        """It sends a plain SIGKILL, which says nothing by itself."""
        with start_agent(lab, tmp_path, "buffer", wrapper=small_memory, size=600 << 20) as agent:
            assert agent.stdout is not None
            said = agent.stdout.read()
        assert said.startswith("failed oom: the worker was killed while the kernel's out-of-memory")

    def test_one_that_dies_between_two_cells_costs_none(self, lab: Lab) -> None:
        """No cell is to blame: the next one gets a fresh worker."""
        runs = lab.launcher().run([cell("steady"), cell("steady")], stop=lab.stop)
        first = next(runs)
        os.kill(worker_of(lab), signal.SIGKILL)
        until(lambda: not lab.alive())
        (second,) = runs
        assert [first.status, second.status] == [Status.OK, Status.OK]
        assert first.members[0].pid != second.members[0].pid

    def test_one_that_waits_long_for_its_next_cell_stays(self, lab: Lab) -> None:
        """A slow database must not look like a late worker."""
        runs = lab.launcher(seconds=0.0, start=4.0).run(
            [cell("steady"), cell("steady")], stop=lab.stop
        )
        first = next(runs)
        time.sleep(4.0 + 5.0 + 1.0)  # past the first cell's deadline and the guard's slack
        (second,) = runs
        assert first.members[0].pid == second.members[0].pid

    def test_children_a_probe_forgot_are_ended_with_the_worker(self, lab: Lab) -> None:
        (run,) = lab.run(cell("sleeper", how="family", seconds=0.0))
        assert run.status is Status.OK
        assert lab.alive() == []


def test_a_worker_is_not_tied_to_the_thread_that_asked_for_it(lab: Lab) -> None:
    """The death signal follows the forking thread; an agent's threads come and go."""
    launcher = lab.launcher()
    runs = launcher.run([cell("steady"), cell("steady")], stop=lab.stop)
    found = []

    def first() -> None:
        found.append(next(runs))

    thread = threading.Thread(target=first)
    thread.start()
    thread.join()
    time.sleep(0.3)
    found += list(runs)
    assert [r.status for r in found] == [Status.OK, Status.OK]
    assert found[0].members[0].pid == found[1].members[0].pid


def test_every_process_of_ours_carries_the_sweep_and_no_stranger_is_touched(lab: Lab) -> None:
    with subprocess.Popen(["sleep", "30"], start_new_session=True) as stranger:
        threading.Timer(1.0, lab.stop.set).start()
        (run,) = lab.run(cell("sleeper", how="family"))
        assert run.reason is not None
        assert run.reason.code is ReasonCode.CANCELLED
        assert processes.find(stranger.pid) is not None
        stranger.kill()


def test_a_session_whose_number_was_used_again_is_not_ours() -> None:
    """The worker is long reaped; a stranger got its pid and leads a session."""
    with subprocess.Popen(["sleep", "30"], start_new_session=True) as stranger:
        found = processes.find(stranger.pid)
        assert found is not None
        ours = processes.Family(stranger.pid, "token", found.start)
        reused = processes.Family(stranger.pid, "token", found.start - 1)
        assert processes.members([ours]) == [found]
        assert processes.members([reused]) == []
        stranger.kill()


def test_a_pid_that_was_used_again_is_never_signalled() -> None:
    with subprocess.Popen(["sleep", "30"]) as child:
        found = processes.find(child.pid)
        assert found is not None
        earlier = processes.Process(found.pid, found.parent, found.session, found.start - 1)
        processes.send(earlier, signal.SIGKILL)
        assert child.poll() is None
        processes.send(found, signal.SIGKILL)
        assert child.wait(5) == -signal.SIGKILL
        assert processes.find(child.pid) is None


def test_a_worker_that_gets_no_second_pipe_leaves_no_first(tmp_path: Path) -> None:
    """The process may open three more files, and needs four."""
    before = set(os.listdir("/proc/self/fd"))
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, before)) + 20, limits[1]))
    held: list[int] = []
    try:
        with contextlib.suppress(OSError):
            while True:
                held.append(os.dup(0))
        for number in held[-3:]:
            os.close(number)
        with pytest.raises(OSError, match="Too many open files"):
            WorkerProcess([sys.executable], environment={}, log=tmp_path / "log", rank=0)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for number in held[:-3]:
            os.close(number)
    assert set(os.listdir("/proc/self/fd")) == before
