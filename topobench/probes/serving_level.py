"""
A load held on a server while windows are cut out of it, one after the other.

Closed loop: so many requests are always in flight. Open loop: requests are due by a clock,
whatever became of those before; how late one is counts as its time. A request belongs to the
window that it was due in, and the load goes on until the last request of the last window has
ended, so that none of them met an easier server.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import math
import os
import random
import time
from array import array
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from topobench import stats
from topobench.probes import serving_facts, serving_windows
from topobench.probes.serving_client import Client
from topobench.probes.serving_http import clock
from topobench.probes.serving_load import Lengths, Prompts, Scale, arrivals
from topobench.probes.serving_windows import Collected, Flow, Health, Limits, Window

MOST_IN_FLIGHT = 20_000
"""Requests in flight at which an open loop is beyond any server, and is given up."""
LATEST_SECONDS = 2.0
"""A client that is so late with its sending would only make it worse by catching up."""
_TICK_SECONDS = 0.005
_FACTS_SECONDS = 2.0
_LOOK_SECONDS = 0.02
_BACK_OFF_SECONDS = 0.05
"""After a failed request in a closed loop: a server that refuses at once must not be flooded."""


@dataclass(frozen=True, slots=True)
class Shape:
    """
    What every request of a cell looks like, and how windows are cut.

    Args:
        arrivals: ``closed``, ``constant``, ``poisson`` or ``gamma``.
        scale: Units of a prompt -> tokens that the server counts.
        as_ids: Prompts are token ids.
        ramp_seconds: Of each load, before its first window.
        window_seconds: Shortest window; it goes on until it holds ``limits.requests`` ...
        most_seconds: ... or is that long.
    """

    arrivals: str
    burstiness: float
    input: Lengths
    output: Lengths
    scale: Scale
    as_ids: bool
    vocabulary: int
    reuse: float
    ramp_seconds: float
    window_seconds: float
    most_seconds: float
    seed: int
    limits: Limits

    @property
    def open_loop(self) -> bool:
        """Whether requests are due by a clock."""
        return self.arrivals != "closed"


class Level:
    """
    One load on one server.

    Args:
        load: Requests in flight (closed loop) or a second (open loop).
        facts: The server has a page of metrics to read.
    """

    def __init__(self, client: Client, shape: Shape, load: float, *, facts: bool) -> None:
        self._client = client
        self._shape = shape
        self._load = load
        self._has_facts = facts
        self._rng = random.Random(f"{shape.seed}/{load}")
        self._prompts = Prompts(
            as_ids=shape.as_ids,
            vocabulary=shape.vocabulary,
            nonce=int.from_bytes(os.urandom(8), "big"),
            reuse=shape.reuse,
        )
        self._windows: list[_Open] = []
        self._due = 0.0
        self._meter = _InFlight()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._error: BaseException | None = None
        self._stop = asyncio.Event()
        self.given_up = False
        self._late = 0.0

    async def windows(self, purpose: str, count: int) -> list[Window]:
        """Hold the load for the ramp and so many windows; then let it go."""
        began = clock()
        self._meter.reset(began)
        source = self._task(self._open(began) if self._shape.open_loop else self._closed())
        cut: list[_Cut] = []
        try:
            await self._wait(self._shape.ramp_seconds)
            for _ in range(count):
                cut.append(await self._cut(began))
                if self.given_up:
                    break
            await self._settle()
        finally:
            self._stop.set()
            await _end([source, *self._tasks])
        if self._error is not None:
            raise self._error
        return [self._judged(c, purpose) for c in cut]

    async def _cut(self, began: float) -> _Cut:
        """One window, from now until it is long and full enough."""
        collected, start = Collected(began), clock()
        self._windows.append(window := _Open(collected, start))
        started_at = datetime.datetime.now(datetime.UTC).isoformat()
        self._meter.reset(start)
        spent = time.process_time()
        async with _lags() as lags, self._pages() as pages:
            while not self._long_enough(clock() - start, collected):
                await asyncio.sleep(_LOOK_SECONDS)
        window.end = end = clock()
        return _Cut(
            collected,
            self._meter.flow(start, end),
            _health([self._late, *lags], (time.process_time() - spent) / (end - start)),
            started_at,
            serving_facts.between(pages),
            (start, end),
        )

    def _long_enough(self, seconds: float, collected: Collected) -> bool:
        shape = self._shape
        if self.given_up or seconds >= shape.most_seconds:
            return True
        full = collected.started >= shape.limits.requests
        return seconds >= shape.window_seconds and full

    async def _wait(self, seconds: float) -> None:
        until = clock() + seconds
        while (left := until - clock()) > 0 and not self.given_up:
            await asyncio.sleep(min(left, _LOOK_SECONDS))

    async def _settle(self) -> None:
        """Wait for the last request of every window; their own time-outs bound it."""
        windows = [w.collected for w in self._windows]
        end = max((w.end for w in self._windows), default=0.0)
        while not self.given_up and (
            self._due < end or any(w.finished < w.started for w in windows)
        ):
            await asyncio.sleep(_LOOK_SECONDS)
        for window in windows:
            if lost := window.started - window.finished:
                window.errors["given_up"] += lost

    def _window_of(self, due: float) -> Collected | None:
        """The window that a request is due in, be it sent later; None for the others."""
        for window in reversed(self._windows):
            if window.start <= due < window.end:
                return window.collected
            if due >= window.end:
                break
        return None

    async def _closed(self) -> None:
        """Keep so many requests in flight."""

        async def one_after_the_other() -> None:
            while not self._stop.is_set():
                if not await self._one(None):
                    await asyncio.sleep(_BACK_OFF_SECONDS)

        await asyncio.gather(*(one_after_the_other() for _ in range(round(self._load))))

    async def _open(self, began: float) -> None:
        """Send each request when it is due, whatever became of those before."""
        shape = self._shape
        for offset in arrivals(shape.arrivals, self._load, shape.burstiness, self._rng):
            due = began + offset
            while (left := due - clock()) > 0:
                await asyncio.sleep(left)
            late = clock() - due
            if late > max(LATEST_SECONDS, shape.limits.lag):
                self.given_up, self._late = True, late
            if self.given_up or len(self._tasks) >= MOST_IN_FLIGHT:
                self.given_up = True
                return
            self._due = due
            self._tasks.add(self._task(self._one(due)))

    def _task(self, what: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """A task whose failure ends the load, which would wait for it in vain."""
        task = asyncio.create_task(what)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._error, self.given_up = error, True

    async def _one(self, due: float | None) -> bool:
        """One request, from its making to its record; whether it ended well."""
        shape = self._shape
        if due is None:
            self._due = clock()
        window = self._window_of(self._due if due is None else due)
        wanted = shape.input.draw(self._rng)
        served = self._client.new(due, wanted, shape.output.draw(self._rng))
        prompt = self._prompts.make(shape.scale.units(wanted))
        if window is not None:
            window.started += 1
        served.sent = clock()
        self._meter.begin(served.sent)
        try:
            await self._client.send(served, prompt, window.gap if window else _nowhere)
        finally:
            if served.ended == 0.0:  # it was let go with the load
                served.ended, served.error = clock(), "given_up"
            self._meter.end(served.ended, served.ended - served.sent)
        if due is None:
            served.due = served.sent
        if window is not None:
            window.finish(served)
        return served.error is None

    @contextlib.asynccontextmanager
    async def _pages(self) -> AsyncIterator[list[Mapping[str, float]]]:
        """The server's metrics now, every few seconds, and at the end."""
        pages: list[Mapping[str, float]] = []
        if not self._has_facts:
            yield pages
            return

        async def look() -> None:
            with contextlib.suppress(Exception):  # facts stand beside; they never spoil a window
                status, text = await self._client.get("/metrics")
                if status == 200:
                    pages.append(serving_facts.read(text))

        async def keep_looking() -> None:
            while True:
                await asyncio.sleep(_FACTS_SECONDS)
                await look()

        await look()
        task = asyncio.create_task(keep_looking())
        try:
            yield pages
        finally:
            await _end([task])
            await look()

    def _judged(self, cut: _Cut, purpose: str) -> Window:
        shape = self._shape
        window = serving_windows.judge(
            cut.collected,
            cut.flow,
            cut.health,
            shape.limits,
            purpose=purpose,
            load=self._load,
            open_loop=shape.open_loop,
            started_at=cut.started_at,
            unique=shape.reuse == 0,
            counted=shape.scale.known,
            facts=cut.facts,
            given_up=self.given_up,
        )
        return replace(window, span=cut.span)


@dataclass(slots=True)
class _Open:
    """A window that requests go to, by when they are due."""

    collected: Collected
    start: float
    end: float = math.inf


@dataclass(frozen=True, slots=True)
class _Cut:
    """A window before it is judged."""

    collected: Collected
    flow: Flow
    health: Health
    started_at: str
    facts: Mapping[str, Any]
    span: tuple[float, float]


class _InFlight:
    """Counts requests in flight and integrates them over time."""

    def __init__(self) -> None:
        self._now = 0
        self._from = self._at = self._area = 0.0
        self._ended, self._seconds = 0, 0.0

    def reset(self, at: float) -> None:
        """Begin to integrate; what is in flight stays."""
        self._from = self._at = at
        self._area, self._ended, self._seconds = 0.0, 0, 0.0

    def begin(self, at: float) -> None:
        """A request is sent."""
        self._step(at)
        self._now += 1

    def end(self, at: float, seconds: float) -> None:
        """A request ended, after so long in flight; it may be told a little later."""
        self._step(at)
        self._area -= self._at - max(at, self._from)
        self._now -= 1
        self._ended += 1
        self._seconds += seconds

    def flow(self, start: float, end: float) -> Flow:
        """What was counted since the reset."""
        self._step(end)
        return Flow(end - start, self._area, self._ended, self._seconds)

    def _step(self, at: float) -> None:
        at = max(at, self._at)
        self._area += self._now * (at - self._at)
        self._at = at


@contextlib.asynccontextmanager
async def _lags() -> AsyncIterator[array[float]]:
    """How late this event loop wakes, looked at all the time."""
    found = array("d")

    async def look() -> None:
        while True:
            asleep = clock()
            await asyncio.sleep(_TICK_SECONDS)
            found.append(max(0.0, clock() - asleep - _TICK_SECONDS))

    task = asyncio.create_task(look())
    try:
        yield found
    finally:
        await _end([task])


def _health(lags: Sequence[float], cpu_ratio: float) -> Health:
    """Of how late its loop woke; the first is how late it was when it gave up, and counts whole."""
    return Health(max(lags[0], stats.percentile(lags, 0.99)), max(lags), cpu_ratio)


async def _end(tasks: list[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _nowhere(_: float) -> None:
    """Gaps of requests that belong to no window."""
