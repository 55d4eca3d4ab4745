"""
A window of load: what was seen of its requests, what that says, whether it may be believed.

Pure. Times are of one monotonic clock, in seconds. Columns instead of objects, so that a
hundred thousand requests take a few megabytes.
"""

from __future__ import annotations

import math
import operator
import statistics
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from topobench import stats
from topobench.probes import serving_metrics as metrics
from topobench.reading import ReasonCode

LITTLE_TOLERANCE = 0.05
CPU_LIMIT = 0.90
"""Share of a CPU above which this client's own work is in the numbers."""
HIT_LIMIT = 0.01
"""Share of prompt tokens out of a prefix cache above which unique prompts are none."""
WRONG_USAGE_LIMIT = 0.01
MOST_GAPS = 200_000
"""Gaps between tokens kept of a window; of more, every second is dropped, evenly."""
P95_MIN_N = 59
SLOWEST_SHARE = 0.01
MOST_SLOWEST = 50
_TICK = 1e-9  # no clock tells a shorter time


@dataclass(slots=True)
class Served:
    """
    One request, as its client saw it.

    Args:
        due: When it should have been sent.
        first: When the first token came; 0 if none did.
        chunks: Chunks that held text.
        error: Class of what went wrong; None if nothing did.
        cached: Prompt tokens that came out of a cache, as the server says.
        arrivals: Times at which chunks with text came; those of one packet came at once.
    """

    trace: int
    due: float
    sent: float
    wanted_input: int
    wanted_output: int
    first: float = 0.0
    ended: float = 0.0
    chunks: int = 0
    input_tokens: int | None = None
    output_tokens: int | None = None
    cached: int | None = None
    error: str | None = None
    arrivals: int = 0


_COLUMNS = ("due", "sent", "first", "ended", "input_tokens", "output_tokens", "arrivals", "trace")


class Collected:
    """
    What the requests of a window leave.

    Args:
        began: Of the load; when a request was due is told from there.
    """

    def __init__(self, began: float) -> None:
        self.began = began
        self.columns = {name: array("d") for name in _COLUMNS}
        self.errors: Counter[str] = Counter()
        self.started = 0
        self.gaps = array("f")
        self.gap_count = 0
        self._gap_stride = 1
        self.reported = self.exact = self.whole = self.cached = self.prompt_tokens = 0

    @property
    def answered(self) -> int:
        """Requests that ended well."""
        return len(self.columns["due"])

    @property
    def finished(self) -> int:
        """Requests that ended."""
        return self.answered + self.errors.total()

    @property
    def spread(self) -> list[bool]:
        """Of each answer, whether it has several tokens that did not all come at once."""
        counts, arrivals = self.columns["output_tokens"], self.columns["arrivals"]
        return [n > 1 and times > 1 for n, times in zip(counts, arrivals, strict=True)]

    @property
    def at_once(self) -> int:
        """Answers whose several tokens came at once."""
        return sum(n > 1 for n in self.columns["output_tokens"]) - sum(self.spread)

    def gap(self, seconds: float) -> None:
        """Keep a gap between two arrivals of tokens."""
        if self.gap_count % self._gap_stride == 0:
            self.gaps.append(seconds)
            if len(self.gaps) > MOST_GAPS:
                self.gaps = self.gaps[::2]
                self._gap_stride *= 2
        self.gap_count += 1

    def finish(self, served: Served) -> None:
        """Keep a request that ended."""
        if served.error is not None:
            self.errors[served.error] += 1
            return
        tokens = served.output_tokens
        values = (
            *(served.due - self.began, served.sent, served.first, served.ended),
            served.wanted_input if served.input_tokens is None else served.input_tokens,
            served.chunks if tokens is None else tokens,
            served.arrivals,
            served.trace,
        )
        for name, value in zip(_COLUMNS, values, strict=True):
            self.columns[name].append(value)
        if served.input_tokens is not None:
            self.reported += 1
            self.exact += served.input_tokens == served.wanted_input
            self.whole += served.output_tokens == served.wanted_output
            self.prompt_tokens += served.input_tokens
        self.cached += served.cached or 0


@dataclass(frozen=True, slots=True)
class Flow:
    """
    The requests in flight during a window, counted as they were sent and ended.

    Args:
        seconds: Length of the window.
        in_flight_seconds: Requests in flight, integrated over the window.
        ended: Requests that ended inside it, well or not.
        ended_seconds: Their times in flight, summed.
    """

    seconds: float
    in_flight_seconds: float
    ended: int
    ended_seconds: float

    @property
    def in_flight(self) -> float:
        """Mean number of requests in flight."""
        return self.in_flight_seconds / self.seconds

    @property
    def little_ratio(self) -> float | None:
        """Rate x mean time over the mean in flight: 1 in a steady window; None if nothing was."""
        return self.ended_seconds / self.in_flight_seconds if self.in_flight_seconds > 0 else None


@dataclass(frozen=True, slots=True)
class Health:
    """
    What this client knows of itself during a window.

    Args:
        lag_seconds: 99th percentile of how late its event loop woke.
        cpu_ratio: CPU time of this process by time.
    """

    lag_seconds: float
    most_lag_seconds: float
    cpu_ratio: float


@dataclass(frozen=True, slots=True)
class Limits:
    """
    What a window is held against, seconds; None where there is no limit.

    Args:
        on: ``ttft`` or ``e2e``: the latency that ``slo`` bounds at its P99.
        requests: Fewest requests by which a P99 is judged.
        errors: Largest share of failed requests.
        lag: Largest lag of the client.
    """

    on: str = "ttft"
    slo: float = 0.35
    requests: int = 300
    errors: float = 0.001
    lag: float = 0.02
    ttft: float | None = None
    tpot: float | None = None
    e2e: float | None = None

    @property
    def goodput(self) -> dict[str, float]:
        """Latency -> bound of a good request; the limit itself where none is set."""
        found = {"ttft": self.ttft, "tpot": self.tpot, "e2e": self.e2e}
        known = {k: v for k, v in found.items() if v is not None}
        return known or {self.on: self.slo}


@dataclass(frozen=True, slots=True)
class Window:
    """
    A window and what it says.

    Args:
        samples: Metric -> values of the answered requests, in the order they ended.
        open_loop: Requests were due by a clock, not when others ended.
        facts: What the server said of itself meanwhile.
        slowest: (trace, e2e seconds, seconds from the start) of the slowest hundredth.
        exact_ratio: Share of prompts whose tokens are as many as asked; None if not told.
        whole_ratio: Share of answers of the length asked for; None likewise.
        at_once: Answers of several tokens that all came at once.
        span: Its start and end by the clock of this process.
    """

    purpose: str
    load: float
    open_loop: bool
    started_at: str
    seconds: float
    n: int
    n_over: int
    errors: Mapping[str, int]
    p50: float | None
    p99: float | None
    flow: Flow
    health: Health
    samples: Mapping[str, Sequence[float]]
    gaps: Sequence[float]
    good: int
    limits: Limits
    faults: tuple[tuple[ReasonCode, str], ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    slowest: tuple[tuple[int, float, float], ...] = ()
    exact_ratio: float | None = None
    whole_ratio: float | None = None
    at_once: int = 0
    span: tuple[float, float] = (0.0, 0.0)
    given_up: bool = False

    @property
    def answered(self) -> int:
        """Requests that ended well."""
        return self.n - self.error_count

    @property
    def error_count(self) -> int:
        """Requests that failed."""
        return sum(self.errors.values())

    @property
    def valid(self) -> bool:
        """Whether its numbers may be used."""
        return not self.faults

    @property
    def over(self) -> bool:
        """Whether too many requests failed or were over the limit."""
        return (
            self.given_up
            or self.error_count > self.limits.errors * self.n
            or 100 * self.n_over > self.n
        )

    @property
    def meets(self) -> bool | None:
        """
        Whether its P99 kept the limit; None where that cannot be told.

        A server that is offered too much is never steady: there the limit decides alone.
        """
        if any(code is not ReasonCode.UNSTEADY for code, _ in self.faults):
            return None
        if self.over:
            return False
        return True if self.valid and self.n >= self.limits.requests else None

    def rate(self, metric: str) -> float:
        """Sum of a metric's values by time."""
        return math.fsum(self.samples[metric]) / self.seconds


def judge(
    collected: Collected,
    flow: Flow,
    health: Health,
    limits: Limits,
    *,
    purpose: str,
    load: float,
    open_loop: bool,
    started_at: str,
    unique: bool,
    counted: bool = False,
    facts: Mapping[str, Any],
    given_up: bool = False,
) -> Window:
    """
    The window that the collected requests make.

    Args:
        unique: No prompt was sent twice, so that no prefix cache may have helped.
        counted: The server counted tokens when it was met.
        given_up: The load was let go before its time: more was in flight than any server takes.
    """
    samples = _samples(collected, open_loop=open_loop)
    schedule = open_loop and {"ttft": metrics.TTFT_FROM_SCHEDULE, "e2e": metrics.E2E_FROM_SCHEDULE}
    judged = (schedule or {"ttft": metrics.TTFT, "e2e": metrics.E2E})[limits.on].name
    latencies = samples[judged]
    count = collected.answered
    return Window(
        purpose=purpose,
        load=load,
        open_loop=open_loop,
        started_at=started_at,
        seconds=flow.seconds,
        n=collected.finished,
        n_over=sum(1 for x in latencies if x > limits.slo),
        errors=dict(collected.errors),
        p50=stats.percentile(latencies, 0.5) if count else None,
        p99=stats.percentile(latencies, 0.99) if count >= stats.P99_MIN_N else None,
        flow=flow,
        health=health,
        samples=samples,
        gaps=collected.gaps,
        good=_good(samples, collected.spread, limits, open_loop=open_loop),
        limits=limits,
        faults=(
            *_unsteady(flow, health, limits),
            *_wrong(collected, facts, unique=unique, counted=counted),
        ),
        facts=facts,
        slowest=_slowest(collected),
        given_up=given_up,
        exact_ratio=collected.exact / collected.reported if collected.reported else None,
        whole_ratio=collected.whole / collected.reported if collected.reported else None,
        at_once=collected.at_once,
    )


def percentiles(values: Sequence[float]) -> dict[str, float | int | None]:
    """Count, mean, standard deviation and percentiles; those that n cannot tell are None."""
    n = len(values)
    if not n:
        return {"n": 0}
    shares = (
        *(("p50", 0.5, 1), ("p90", 0.9, stats.P90_MIN_N)),
        *(("p95", 0.95, P95_MIN_N), ("p99", 0.99, stats.P99_MIN_N)),
    )
    return {
        "n": n,
        "mean": math.fsum(values) / n,
        "std": statistics.stdev(values) if n > 1 else None,
        **{name: stats.percentile(values, s) if n >= least else None for name, s, least in shares},
    }


def _samples(collected: Collected, *, open_loop: bool) -> dict[str, Sequence[float]]:
    c = collected.columns
    due = array("d", (at + collected.began for at in c["due"]))
    sent, first, ended, tokens = c["sent"], c["first"], c["ended"], c["output_tokens"]
    answers = zip(first, ended, tokens, collected.spread, strict=True)
    per_token = ((e - f) / (n - 1) for f, e, n, spread in answers if spread)
    found: dict[str, Sequence[float]] = {
        metrics.TTFT.name: _between(sent, first),
        metrics.E2E.name: _between(sent, ended),
        metrics.TPOT.name: array("d", per_token),
        metrics.OFFSET.name: c["due"],
        metrics.INPUT_COUNT.name: c["input_tokens"],
        metrics.OUTPUT_COUNT.name: tokens,
    }
    if open_loop:
        found |= {
            metrics.TTFT_FROM_SCHEDULE.name: _between(due, first),
            metrics.E2E_FROM_SCHEDULE.name: _between(due, ended),
            metrics.CLIENT_QUEUE.name: array("d", (max(_TICK, x) for x in _between(due, sent))),
        }
    return found


def _between(start: Sequence[float], end: Sequence[float]) -> array[float]:
    return array("d", map(operator.sub, end, start))


def _good(
    samples: Mapping[str, Sequence[float]],
    spread: Sequence[bool],
    limits: Limits,
    *,
    open_loop: bool,
) -> int:
    """Answered requests within every limit; one without a TPOT keeps the limit of it."""
    suffix = "_from_schedule_seconds" if open_loop else "_seconds"
    good = [True] * len(spread)
    for name, bound in limits.goodput.items():
        if name == "tpot":
            told = iter(samples[metrics.TPOT.name])
            values = [next(told) if has else 0.0 for has in spread]
        else:
            values = list(samples[f"{name}{suffix}"])
        good = [g and v <= bound for g, v in zip(good, values, strict=True)]
    return sum(good)


def _unsteady(flow: Flow, health: Health, limits: Limits) -> Iterator[tuple[ReasonCode, str]]:
    """Why its times must not be used: this client, or the load."""
    if health.lag_seconds > limits.lag:
        text = (
            f"the client's event loop woke up to {health.lag_seconds * 1e3:.1f} ms late (P99; "
            f"allowed are {limits.lag * 1e3:.1f} ms): its own work would be in the numbers"
        )
        yield ReasonCode.CLIENT_OVERLOADED, text
    if health.cpu_ratio > CPU_LIMIT:
        text = f"the client used {health.cpu_ratio:.0%} of a CPU; offer less, or free CPUs for it"
        yield ReasonCode.CLIENT_OVERLOADED, text
    ratio = flow.little_ratio
    if ratio is None or abs(ratio - 1) > LITTLE_TOLERANCE:
        told = "nothing was in flight" if ratio is None else f"rate x time is {ratio:.1%} of that"
        text = (
            f"Little's law does not hold: {flow.in_flight:.2f} requests were in flight, {told}; "
            "the load was not steady; take longer windows, or offer less"
        )
        yield ReasonCode.UNSTEADY, text


def _wrong(
    collected: Collected, facts: Mapping[str, Any], *, unique: bool, counted: bool
) -> Iterator[tuple[ReasonCode, str]]:
    """Why its counts of tokens must not be used."""
    hits = _hit_share(collected, facts)
    if unique and hits is not None and hits > HIT_LIMIT:
        text = (
            f"{hits:.1%} of the prompt tokens came from a prefix cache, though none was sent twice"
        )
        yield ReasonCode.WRONG_DATA, text
    wrong = collected.errors["wrong_usage"]
    if wrong > WRONG_USAGE_LIMIT * max(1, collected.finished):
        text = f"in {wrong} of {collected.finished} answers the token count cannot be"
        yield ReasonCode.WRONG_DATA, text
    untold = collected.answered - collected.reported
    if (counted or collected.reported) and untold > WRONG_USAGE_LIMIT * collected.answered:
        text = f"{untold} of {collected.answered} answers lack the token count that others have"
        yield ReasonCode.WRONG_DATA, text


def _hit_share(collected: Collected, facts: Mapping[str, Any]) -> float | None:
    """Share of prompt tokens out of a prefix cache, by the answers or by the server's counters."""
    if collected.cached and collected.prompt_tokens:
        return collected.cached / collected.prompt_tokens
    share: float | None = facts.get("prefix_cache_hit_ratio")
    return share


def _slowest(collected: Collected) -> tuple[tuple[int, float, float], ...]:
    c = collected.columns
    times = [e - s for s, e in zip(c["sent"], c["ended"], strict=True)]
    wanted = min(MOST_SLOWEST, math.ceil(SLOWEST_SHARE * len(times)))
    places = sorted(range(len(times)), key=times.__getitem__, reverse=True)[:wanted]
    return tuple((int(c["trace"][i]), times[i], c["due"][i]) for i in places)
