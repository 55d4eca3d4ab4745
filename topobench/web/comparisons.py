"""Comparisons that take long: each made once, by a process of its own, a few at a time."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import threading
import time
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from topobench.errors import RefusedError, TopobenchError, UsageError
from topobench.web import child
from topobench.web.child import Ended
from topobench.web.comparison import KINDS

AT_ONCE = 2
MOST_WAITING = 16
KEPT = 24
"""Comparisons that are kept, found ones and refused ones."""
FRESH_SECONDS = 60.0
"""So long one is shown although another run was stored: a sweep under way stores one a second."""
UNASKED_SECONDS = 180.0
"""One that nobody asked for in this time is ended; browsers ask once a minute in the background."""
LONGEST_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class Question:
    """What a visitor wants to have compared."""

    a: str
    b: str
    synthetic: bool = False
    imported: bool = False
    force: bool = False


@dataclass(slots=True)
class Job:
    """
    A comparison that was asked for.

    Args:
        newest_run: Id of the newest run in the store when it was asked for.
        asked: When somebody asked last, monotonic seconds.
        begun: When its process was started; None while it waits for others.
        ended: When it was found or failed.
        data: As ``compare --format json`` gives it; None until it is found.
    """

    question: Question
    newest_run: int
    asked: float
    begun: float | None = None
    ended: float | None = None
    data: dict[str, Any] | None = None
    error: TopobenchError | None = None

    def is_current(self, newest_run: int) -> bool:
        """Whether it still answers, or soon will."""
        if self.ended is None or newest_run == self.newest_run:
            return True
        return time.monotonic() < self.ended + FRESH_SECONDS


class Comparisons:
    """
    Those of one store.

    A process and no thread compares: it takes seconds of an interpreter, in which no page would
    be made, and its memory goes with it.

    Args:
        url: Of the store; it may hold a password.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._lock, self._stopped = threading.Lock(), False
        self._jobs: OrderedDict[Question, Job] = OrderedDict()
        self._threads = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="comparison")

    def ask(self, question: Question, newest_run: int) -> Job:
        """
        The comparison as far as it is; begun if nobody asked before.

        Raises:
            RefusedError: Too many wait already.
        """
        with self._lock:
            job = self._jobs.get(question)
            if job is None or not job.is_current(newest_run):
                if sum(j.ended is None for j in self._jobs.values()) >= AT_ONCE + MOST_WAITING:
                    raise RefusedError("many comparisons are under way; ask again in a moment")
                job = self._jobs[question] = Job(question, newest_run, time.monotonic())
                self._threads.submit(self._run, job)
            self._jobs.move_to_end(question)
            job.asked = time.monotonic()
            self._forget_oldest()
            return job

    def waited_for(self, question: Question) -> Job | None:
        """A comparison that was asked for before; None if it is not known any more."""
        with self._lock:
            job = self._jobs.get(question)
            if job is not None:
                job.asked = time.monotonic()
            return job

    def told(self, job: Job) -> None:
        """Its error was shown: it is tried again next time, unless the question was wrong."""
        with self._lock:
            if not isinstance(job.error, UsageError) and self._jobs.get(job.question) is job:
                del self._jobs[job.question]

    def forget(self) -> None:
        """Answer nothing from before: another store took the place of this one."""
        with self._lock:
            self._jobs.clear()

    def stop(self) -> None:
        """End those that are under way, without waiting."""
        self._stopped = True

    def close(self) -> None:
        """End those that are under way."""
        self.stop()
        self._threads.shutdown(cancel_futures=True)

    def _forget_oldest(self) -> None:
        ended = [q for q, job in self._jobs.items() if job.ended is not None]
        for question in ended[: max(0, len(ended) - KEPT)]:
            del self._jobs[question]

    def _run(self, job: Job) -> None:
        try:
            job.data = self._made(job)
        except TopobenchError as error:
            job.error = error
        except OSError as error:
            job.error = TopobenchError(f"no process could be started to compare: {error.strerror}")
        finally:
            job.ended = time.monotonic()

    def _made(self, job: Job) -> dict[str, Any]:
        self._check(job)
        job.begun = time.monotonic()
        question = dataclasses.asdict(job.question)
        whole = {"store": self._url, "parent": os.getpid(), "question": question}
        command = [sys.executable, "-m", "topobench.web.comparison"]
        given = json.dumps(whole).encode()
        return _answer(child.run(command, lambda: self._check(job), given=given))

    def _check(self, job: Job) -> None:
        """
        Whether to go on.

        Raises:
            RefusedError: The server ends, or nobody waits for it.
            TopobenchError: It takes too long.
        """
        if self._stopped:
            raise RefusedError("the server is ending")
        if time.monotonic() > job.asked + UNASKED_SECONDS:
            raise RefusedError("nobody asked for this comparison any more; ask again")
        if job.begun is not None and time.monotonic() > job.begun + LONGEST_SECONDS:
            raise TopobenchError(
                f"the comparison took longer than {LONGEST_SECONDS:g} s; narrow it with "
                "date:FIRST..LAST, or use topobench compare, which has no such limit"
            )


def _answer(ended: Ended) -> dict[str, Any]:
    """What the process found, or the error that it met."""
    if ended.code:
        killed = f"was killed by signal {-ended.code}"
        how = killed if ended.code < 0 else f"ended with code {ended.code}"
        raise TopobenchError(
            f"the process that compared {how}: {ended.last_words() or 'it said nothing'}"
        )
    answer = json.loads(ended.output)
    if "error" in answer:
        raise KINDS[answer["error"]](answer["text"])
    found: dict[str, Any] = answer["found"]
    return found
