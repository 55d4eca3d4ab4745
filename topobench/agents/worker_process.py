"""One worker as the launcher sees it: pipes, log file, messages, death."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import selectors
import signal
import subprocess
import time
import uuid
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from topobench import processes
from topobench.processes import Family, Process
from topobench.reading import Reason, ReasonCode

RESULT_LIMIT_BYTES = 64 << 20
LOG_LIMIT_BYTES = 64 << 20
_TAIL_BYTES = 8192
_TAIL_LINES = 60
_CLOSED_PIPE_SECONDS = 2.0
_UNGUARDED_SECONDS = 0.5  # a guard goes with its worker, whose own death counts
KILL_GRACE_SECONDS = 1.0
_UNGUARDED = Reason(
    ReasonCode.SIGNAL,
    "the worker was ended: its guard was killed, without which it may outlive its launcher",
)


class WorkerProcess:
    """
    A worker and its family of processes.

    Args:
        command: Program and arguments before the two that every worker gets.
        log: File for stdout and stderr.
        rank: Its rank in the gang; 0 if alone.

    Attributes:
        messages: What it said and nobody has taken yet.
        fault: Why it can give no more results; None while it can.

    Raises:
        OSError: The program cannot be started.
    """

    def __init__(
        self, command: Sequence[str], *, environment: Mapping[str, str], log: Path, rank: int
    ) -> None:
        self.rank = rank
        self.messages: deque[dict[str, Any]] = deque()
        self.fault: Reason | None = None
        self.died = False
        self._log = log
        self._log_start = 0
        self._selector: selectors.BaseSelector | None = None
        self._parts: list[bytes] = []  # of a line whose end has not come
        self._taken = 0
        self._closed_at: float | None = None
        self._kills_before = _oom_kills()
        self._guard_gone_at: float | None = None
        token = f"{uuid.uuid4().hex}.{rank}"
        result, result_end = os.pipe()
        try:
            guard, guard_end = os.pipe()
        except OSError:
            os.close(result)
            os.close(result_end)
            raise
        given = (str(result_end), str(os.getpid()), str(guard_end))
        try:
            self._process = _spawner().submit(
                _spawn, [*command, *given], (result_end, guard_end), log,
                {**environment, processes.WORKER: token},
            ).result()  # fmt: skip
        except BaseException:
            os.close(result)
            os.close(guard)
            raise
        finally:
            os.close(result_end)
            os.close(guard_end)
        for pipe in (result, guard):
            os.set_blocking(pipe, False)
        self._pipe: int | None = result
        self._guard: int | None = guard  # nothing is ever written: its end is what counts
        found = processes.find(self._process.pid)
        self.family = Family(self._process.pid, token, found.start if found else 0)

    @property
    def pid(self) -> int:
        """Process id; also its session's."""
        return self._process.pid

    def watch(self, selector: selectors.BaseSelector) -> None:
        """Have the selector wake up when this worker says something."""
        assert self._pipe is not None
        selector.register(self._pipe, selectors.EVENT_READ, self)
        self._selector = selector

    def send(self, kind: str, **fields: Any) -> None:
        """Say something to the worker; if it is dead, :meth:`look` will tell."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps({"type": kind, **fields}).encode() + b"\n")
            self._process.stdin.flush()

    def read(self) -> bool:
        """Take one piece of what lies in the pipe; false if there is nothing."""
        if self._pipe is None:
            return False
        try:
            data = os.read(self._pipe, 1 << 20)
        except BlockingIOError:
            return False
        if not data:
            self._close_pipe()
            self._closed_at = time.monotonic()
            return False
        self._taken += len(data)
        if self._taken > RESULT_LIMIT_BYTES:
            self.reject(ReasonCode.PARSE, f"it sent more than {RESULT_LIMIT_BYTES >> 20} MiB")
            return False
        *lines, rest = data.split(b"\n")
        for line in lines:
            self._take(b"".join([*self._parts, line]))
            self._parts.clear()
        self._parts.append(rest)
        return True

    @property
    def guarded(self) -> bool:
        """Whether its guard lives, as far as :meth:`look` has seen."""
        return self._guard_gone_at is None

    def look(self) -> None:
        """Find out whether it died, lost its guard, closed its pipe, or floods its log."""
        if self.fault is not None:
            return
        self._look_at_guard()
        if self._log_size() - self._log_start > LOG_LIMIT_BYTES:
            self.reject(
                ReasonCode.CRASHED, f"it wrote more than {LOG_LIMIT_BYTES >> 20} MiB of log"
            )
        elif (code := self._process.poll()) is not None:
            while self.read():  # what it wrote before it died
                pass
            self.died = True
            self.fault = self.fault or self._cause(code)
        elif self._closed_at and time.monotonic() > self._closed_at + _CLOSED_PIPE_SECONDS:
            self.reject(ReasonCode.CRASHED, "it closed its result pipe but lives on")
        elif self._guard_gone_at and time.monotonic() > self._guard_gone_at + _UNGUARDED_SECONDS:
            self.fault = _UNGUARDED

    def reject(self, code: ReasonCode, text: str) -> None:
        """Want no more of this worker; the first cause counts."""
        self.fault = self.fault or Reason(code, f"the worker was ended: {text}")

    def begin(self) -> None:
        """Start counting for the next cell: its log tail, its limits."""
        self._taken = 0
        self._log_start = self._log_size()

    def log_tail(self) -> str:
        """The last lines since :meth:`begin`; empty if somebody removed the log."""
        with contextlib.suppress(OSError), self._log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(self._log_start, size - _TAIL_BYTES))
            text = file.read(_TAIL_BYTES).decode(errors="replace").replace("\0", "")
            return "\n".join(text.splitlines()[-_TAIL_LINES:])
        return ""

    def release(self) -> None:
        """Close the pipes and drop an empty log; the family must be gone."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        self._close_pipe()
        self._close_guard()
        self.wait(1.0)
        if self._log_size() == 0:
            self._log.unlink(missing_ok=True)

    def wait(self, seconds: float) -> bool:
        """Whether the worker itself ended within that time."""
        try:
            self._process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _log_size(self) -> int:
        try:
            return self._log.stat().st_size
        except OSError:
            return 0

    def _close_pipe(self) -> None:
        if self._pipe is not None:
            if self._selector is not None:
                self._selector.unregister(self._pipe)
            os.close(self._pipe)
            self._pipe = None

    def _look_at_guard(self) -> None:
        if self._guard is not None:
            with contextlib.suppress(BlockingIOError):
                os.read(self._guard, 1)
                self._guard_gone_at = time.monotonic()
                self._close_guard()

    def _close_guard(self) -> None:
        if self._guard is not None:
            os.close(self._guard)
            self._guard = None

    def _take(self, line: bytes) -> None:
        try:
            message = json.loads(line)
            if not isinstance(message["type"], str):
                raise TypeError("type is no text")
        except (ValueError, TypeError, KeyError):
            self.reject(ReasonCode.PARSE, f"it sent a line that is no message: {line[:120]!r}")
            return
        self.messages.append(message)

    def _cause(self, code: int) -> Reason:
        if code == -signal.SIGKILL and _oom_kills() > self._kills_before:
            text = "the worker was killed while the kernel's out-of-memory killer was at work"
            return Reason(ReasonCode.OOM, text)
        if code == processes.UNGUARDED:
            return _UNGUARDED
        if code < 0:
            return Reason(ReasonCode.SIGNAL, f"the worker was ended by {signal_name(-code)}")
        last = self.log_tail().strip().rpartition("\n")[2]
        text = f"the worker ended with exit code {code} before it gave a result"
        return Reason(ReasonCode.CRASHED, f"{text}: {last}" if last else text)


def end_all(workers: Sequence[WorkerProcess]) -> list[Process]:
    """
    End workers and everything they started: TERM, a grace, KILL until none is left.

    Returns:
        Those that even KILL does not end, because they hang inside the kernel.
    """
    families = [w.family for w in workers]
    left = processes.end(lambda: processes.members(families), grace_seconds=KILL_GRACE_SECONDS)
    for worker in workers:
        worker.release()
    return left


def signal_name(number: int) -> str:
    """``SIGKILL`` for 9; the number where it has no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


@functools.cache
def _spawner() -> ThreadPoolExecutor:
    """
    The one thread that starts workers.

    A worker's death signal fires when the *thread* that started it ends, so that thread
    must live as long as the process.
    """
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix="spawner")


def _spawn(
    argv: list[str], pipes: tuple[int, int], log: Path, environment: dict[str, str]
) -> subprocess.Popen[bytes]:
    with log.open("ab") as file:
        return subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=file,
            stderr=subprocess.STDOUT,
            env=environment,
            pass_fds=pipes,
            start_new_session=True,
        )


def _oom_kills() -> int:
    """How often the kernel killed for lack of memory since boot; 0 if it does not say."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0
