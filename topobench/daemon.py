"""
What ``topobench daemon`` does: the pages of ``serve``, and a timer that starts ``sweep --due``.

The timer only knows when to look; what is due, and what was done, the child reads in the store.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import FrameType

from topobench import fleet, notify, seeing
from topobench.commands import Outcome
from topobench.errors import ConfigError
from topobench.fleet import Fleet
from topobench.units import count

RETRY_SECONDS = 300.0
"""Until the next look, after a child that could not do what was due."""
GRACE_SECONDS = 60.0
"""How long a sweep may take to store what it has after SIGTERM."""
_LONGEST_WAIT_SECONDS = 60.0
_CHILD_POLL_SECONDS = 1.0
_VERDICTS = (0, 1, 2)
_ANSWER_SECONDS = 10.0

Note = Callable[[str], None]


def run(path: Path, host: str, port: int, *, token_file: Path | None, note: Note) -> Outcome:
    """
    Serve a fleet's store and sweep what is due, until SIGINT or SIGTERM; SIGHUP rereads the file.

    Args:
        path: fleet.yaml.
        note: Is told what happens, a line each.

    Raises:
        ConfigError: The file, or one it names, is wrong.
        UsageError: Others could read the pages and no token is set; or a package is missing.
        TopobenchError: The address cannot be listened on.
    """
    timer = Timer(path, fleet.load(path), note)
    _tell_wrong(timer.fleet, note)

    def ready(where: str) -> None:
        note(f"serving {where}, {count(len(timer.fleet.schedules), 'schedule')}")
        timer.start(where)

    with _rereading(timer):
        try:
            outcome = seeing.serve(
                *(timer.fleet.store, host, port),
                token_file=token_file,
                ready=ready,
                whatever_store=True,  # sweeps of other clusters go on, or bring it up to date
            )
        finally:
            notify.notify("STOPPING=1")
            timer.stop()
    return replace(outcome, data={**outcome.data, "fleet": timer.fleet.name, "runs": timer.runs})


class Timer:
    """
    Starts ``sweep --due`` when something may be due; one child at a time.

    Attributes:
        fleet: As last read.
        runs: Children started.
    """

    def __init__(self, path: Path, found: Fleet, note: Note) -> None:
        self.fleet, self.runs = found, 0
        self._path, self._note = path, note
        self._event = threading.Event()
        self._stop = self._reread = False
        self._child: subprocess.Popen[bytes] | None = None
        self._thread: threading.Thread | None = None
        self._where = ""
        self._code = 0
        self._began = _now()

    def start(self, where: str) -> None:
        """Begin; what is due already is swept at once."""
        self._where = where
        self._thread = threading.Thread(target=self._run, name="timer", daemon=True)
        self._thread.start()

    def reread(self) -> None:
        """Read the file again soon."""
        self._reread = True
        self._event.set()

    def stop(self) -> None:
        """End the child, so that it stores what it has, and then the timer."""
        self._stop = True
        self._event.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        notify.notify("READY=1")
        beat = notify.watchdog_seconds()
        look: datetime.datetime | None = _now()
        while not self._stop:
            if self._reread:
                self._reread = False
                self._read_again()
                look = _now()  # a child that runs has the file it began with
            if self._child is not None:
                look = self._ended(look)
            elif look is not None and look <= _now():
                self._child = self._started()
            if beat is not None and self._answers():
                notify.notify("WATCHDOG=1")
            self._event.wait(self._pause(look, beat))
            self._event.clear()
        self._end_child()

    def _pause(self, look: datetime.datetime | None, beat: float | None) -> float:
        """Seconds to sleep; short ones, as clocks are set and hosts are suspended."""
        longest = _LONGEST_WAIT_SECONDS if beat is None else min(_LONGEST_WAIT_SECONDS, beat / 3)
        if self._child is not None:
            return min(longest, _CHILD_POLL_SECONDS)
        left = longest if look is None else (look - _now()).total_seconds()
        return max(0.0, min(longest, left))

    def _read_again(self) -> None:
        notify.reloading()
        try:
            found = fleet.load(self._path)
        except ConfigError as error:
            self._note(f"{self._path} is wrong, what was read before stays:\n{error}")
        else:
            if found.store != self.fleet.store:
                self._note("the pages stay with the store they began with; restart to change it")
            self.fleet = found
            _tell_wrong(found, self._note)
            self._note(f"read {self._path} again, {count(len(found.schedules), 'schedule')}")
        notify.notify("READY=1")

    def _started(self) -> subprocess.Popen[bytes]:
        self.runs += 1
        self._began = _now()
        command = [sys.executable, "-m", "topobench", "sweep", "--fleet", str(self._path)]
        env = {k: v for k, v in os.environ.items() if k not in notify.SETTINGS}
        return subprocess.Popen(
            [*command, "--due", "--check", "--trigger", "cron"],
            stdin=subprocess.DEVNULL,
            stdout=2,  # standard output is the daemon's own document
            env=env,
            start_new_session=True,  # Ctrl-C reaches it once, through us
        )

    def _ended(self, look: datetime.datetime | None) -> datetime.datetime | None:
        """When to look next; as before while the child runs."""
        code = None if self._child is None else self._child.poll()
        if code is None:
            return look
        self._child = None
        if look is not None and look > self._began:
            return look
        wakes = [w for s in self.fleet.schedules if (w := s.times.wakes(_now()))]
        if code not in _VERDICTS:
            how = f"gave exit code {code}" if code >= 0 else f"was ended by signal {-code}"
            if code != self._code:
                self._note(f"sweep --due {how}; trying again every {RETRY_SECONDS:g} s")
            wakes.append(_now() + datetime.timedelta(seconds=RETRY_SECONDS))
        self._code = code
        return min(wakes, default=None)

    def _answers(self) -> bool:
        """Whether the pages answer at all; 503 of a lost store is an answer."""
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(f"{self._where}/healthz", timeout=_ANSWER_SECONDS):
                return True
        except urllib.error.HTTPError as error:
            error.close()
            return True
        except OSError:
            return False

    def _end_child(self) -> None:
        if self._child is None:
            return
        self._child.terminate()
        try:
            self._child.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            self._note(f"the sweep did not end within {GRACE_SECONDS:g} s and was killed")
            os.killpg(self._child.pid, signal.SIGKILL)
            self._child.wait()


def _tell_wrong(found: Fleet, note: Note) -> None:
    for wrong in found.wrong:
        told = "\n".join(wrong.mistakes)
        note(f"{wrong.cluster} is not swept until this is mended and read again (SIGHUP):\n{told}")


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


@contextlib.contextmanager
def _rereading(timer: Timer) -> Iterator[None]:
    """SIGHUP reads the fleet file again."""

    def handle(_number: int, _frame: FrameType | None) -> None:
        timer.reread()

    before = signal.signal(signal.SIGHUP, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)
