"""
An inference server under load: times of tokens, rates, and the largest load within a limit.

Any server that speaks the OpenAI API and streams: one that runs somewhere, or one that is
started under the worker's binding. The client is part of the measurement: a window in which it
was late itself, or in which Little's law does not hold, has no numbers.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from topobench.errors import ProbeError, ProbeUnavailable
from topobench.probes import foreign, serving_checks, serving_gpu, serving_servers, serving_session
from topobench.probes import serving_metrics as metrics
from topobench.probes.protocol import Arms, Kind, WorkerContext, parameter
from topobench.probes.serving_client import Target
from topobench.probes.serving_level import Shape
from topobench.probes.serving_load import ARRIVALS, LENGTHS_HELP, Lengths, Scale
from topobench.probes.serving_results import conditions, level_readings, search_readings
from topobench.probes.serving_search import Search
from topobench.probes.serving_servers import Running
from topobench.probes.serving_session import Job, Result
from topobench.probes.serving_windows import Limits
from topobench.reading import Metric, Reading, ReasonCode
from topobench.server_definition import PROBE, Server
from topobench.user_command import GPUS

END_SECONDS = 15.0
"""Left to end the server and send the readings before the launcher ends the worker."""
SEARCH_WINDOWS = 10
"""About how many windows a search takes."""
LADDER = "1 4 8"
MOST_LADDER = 100


@dataclass(frozen=True, slots=True)
class Serving:
    """Load a server of ``servers:``; its windows are kept apart from the readings."""

    name: ClassVar[str] = PROBE
    version: ClassVar[int] = 1
    summary: ClassVar[str] = "an inference server: times of tokens, most load within a limit"
    needs: ClassVar[frozenset[str]] = frozenset()
    metrics: ClassVar[tuple[Metric, ...]] = metrics.METRICS
    arms: ClassVar[Arms] = Arms.BINDINGS

    server: str | None = parameter(
        None, kind=Kind.TEXT, help="names of the section servers:; none: all of them"
    )
    arguments: str | None = parameter(
        None, kind=Kind.TEXT, help="the point of its grid; set by servers:"
    )
    digest: str | None = parameter(None, kind=Kind.TEXT, help="of the definition; set by servers:")
    gpus: str = parameter(
        "none", kind=Kind.CHOICE, choices=GPUS, help="which GPUs it sees; set by servers:"
    )
    server_definition: str | None = parameter(
        None, kind=Kind.TEXT, help="the whole definition as JSON; set by servers:"
    )
    mode: str = parameter(
        "fixed",
        kind=Kind.CHOICE,
        choices=("fixed", "ladder", "search"),
        help="one load, several in turn on one start of the server, or the largest in the limit",
    )
    arrivals: str = parameter(
        "closed",
        kind=Kind.CHOICE,
        choices=ARRIVALS,
        help="so many requests in flight, or so many a second: even, random, in bursts",
    )
    concurrency: int | None = parameter(
        None, minimum=1, maximum=10_000, help="requests in flight (closed); none: 1", later=True
    )
    rate: float | None = parameter(
        None,
        kind=Kind.NUMBER,
        minimum=0.001,
        maximum=100_000,
        help="requests a second (open); none: 1",
        later=True,
    )
    burstiness: float = parameter(
        1.0,
        kind=Kind.NUMBER,
        minimum=0.01,
        maximum=100,
        help="of gamma arrivals: 1 is poisson, less comes in bursts",
        later=True,
    )
    ladder: str | None = parameter(
        None,
        kind=Kind.TEXT,
        help=f"loads of mode ladder, in turn; none: {LADDER}",
        later=True,
    )
    start_load: float = parameter(
        8.0,
        kind=Kind.NUMBER,
        minimum=0.001,
        maximum=100_000,
        help="first load of mode search",
        later=True,
    )
    most_load: float = parameter(
        4096.0,
        kind=Kind.NUMBER,
        minimum=1,
        maximum=100_000,
        help="largest load of mode search",
        later=True,
    )
    tolerance: float = parameter(
        0.05,
        kind=Kind.NUMBER,
        minimum=0.005,
        maximum=0.5,
        help="of the load found, its share",
        later=True,
    )
    in_a_row: int = parameter(
        3, minimum=1, maximum=20, help="windows that the load found must hold", later=True
    )
    limit: float = parameter(
        0.35,
        kind=Kind.SECONDS,
        minimum=0.0001,
        maximum=3600,
        help="that the P99 must keep",
        later=True,
    )
    limit_on: str = parameter(
        "ttft",
        kind=Kind.CHOICE,
        choices=("ttft", "e2e"),
        help="which latency the limit is of",
        later=True,
    )
    most_errors: float = parameter(
        0.001,
        kind=Kind.NUMBER,
        minimum=0,
        maximum=1,
        help="share of failed requests within it",
        later=True,
    )
    ttft_limit: float | None = parameter(
        None,
        kind=Kind.SECONDS,
        minimum=0.0001,
        maximum=3600,
        help="of a good request (goodput)",
        later=True,
    )
    tpot_limit: float | None = parameter(
        None,
        kind=Kind.SECONDS,
        minimum=0.00001,
        maximum=3600,
        help="of a good request (goodput)",
        later=True,
    )
    e2e_limit: float | None = parameter(
        None,
        kind=Kind.SECONDS,
        minimum=0.0001,
        maximum=3600,
        help="of a good request (goodput)",
        later=True,
    )
    api: str = parameter(
        "completions",
        kind=Kind.CHOICE,
        choices=("completions", "chat"),
        help="which is spoken",
        later=True,
    )
    input_tokens: str = parameter("512", kind=Kind.TEXT, help=f"of a prompt: {LENGTHS_HELP}")
    output_tokens: str = parameter("128", kind=Kind.TEXT, help="of an answer, likewise")
    prompts: str = parameter(
        "auto",
        kind=Kind.CHOICE,
        choices=("auto", "ids", "words"),
        help="token ids where the server takes them, or words",
        later=True,
    )
    vocabulary: int = parameter(
        30_000, minimum=100, maximum=1_000_000, help="token ids are drawn below it", later=True
    )
    reuse: float = parameter(
        0.0,
        kind=Kind.NUMBER,
        minimum=0,
        maximum=1,
        help="share of prompts that are sent again",
        later=True,
    )
    ignore_eos: bool = parameter(
        True,
        kind=Kind.FLAG,
        help="ask for answers of the whole length, where that is taken",
        later=True,
    )
    window: float = parameter(
        60.0, kind=Kind.SECONDS, minimum=0.5, maximum=86_400, help="shortest window", later=True
    )
    requests: int = parameter(
        300,
        minimum=1,
        maximum=10_000_000,
        help="fewest requests by which a P99 is judged",
        later=True,
    )
    windows: int = parameter(
        1, minimum=1, maximum=1000, help="of each load (fixed, ladder)", later=True
    )
    most_window: float = parameter(
        300.0, kind=Kind.SECONDS, minimum=0.5, maximum=86_400, help="longest window", later=True
    )
    ramp: float = parameter(
        5.0,
        kind=Kind.SECONDS,
        minimum=0,
        maximum=3600,
        help="of each load, before its windows",
        later=True,
    )
    request_timeout: float = parameter(
        60.0,
        kind=Kind.SECONDS,
        minimum=0.1,
        maximum=3600,
        help="of a request, to its last token",
        later=True,
    )
    lag_limit: float = parameter(
        0.02,
        kind=Kind.SECONDS,
        minimum=0.001,
        maximum=10,
        help="of the client's own event loop",
        later=True,
    )
    seed: int = parameter(
        1, maximum=2**31, help="of arrivals and lengths; prompts are always new", later=True
    )

    def __post_init__(self) -> None:
        for spec in (self.input_tokens, self.output_tokens):
            if not spec.startswith("file:"):  # the file is on the host that measures
                Lengths.parse(spec)
        if self.most_window < self.window:
            raise ValueError("most_window is shorter than window")
        if self.mode == "ladder":
            _loads(self)

    def measure(self, context: WorkerContext) -> Iterator[Reading]:
        """
        Start the server if it is one to start, meet it, load it.

        Raises:
            ProbeUnavailable: ``not_selected``, ``no_binary``.
            ProbeError: The server is away, refuses, does not stream, has no end, crashes.
            ResultInvalid: No window may be used: the client was late, the load not steady,
                a prefix cache helped, token counts contradict themselves, requests failed.
        """
        if self.server_definition is None:
            text = "no server is described; see the section servers: of the configuration"
            raise ProbeUnavailable(ReasonCode.NOT_SELECTED, text)
        server = Server.from_text(self.server_definition)
        devices = context.devices if server.argv else ()
        with (
            serving_servers.running(server) as found,
            serving_gpu.metered(devices, foreign.environment()) as meter,
        ):
            result = asyncio.run(self._session(server, found, context.deadline_seconds))
        told = conditions(result, meter)
        for key, value in told.items():
            context.note(key, value)
        for warning in serving_checks.warnings(result):
            context.warn(warning)
        if meter.problem is not None and not meter.readings:
            context.warn(f"gpus_not_read: power and memory are not known: {meter.problem}")
        if result.search is not None:
            yield from search_readings(result.windows, result.search, meter)
        else:
            yield from level_readings(result.windows, meter, ladder=self.mode == "ladder")
        serving_checks.refuse(result)

    def estimated_seconds(self) -> float:
        """
        The server's start, and every window with its ramp.

        A closed loop may take longer, to :attr:`most_window`: how quick a server is nobody knows.
        """
        start = 2.0
        if self.server_definition is not None:
            server = Server.from_text(self.server_definition)
            start += server.start_seconds if server.argv else 0.0
        if self.mode == "search":
            return start + SEARCH_WINDOWS * (self.ramp + self.window)
        lengths = [self.window] * len(_loads(self))
        if self.arrivals != "closed":
            lengths = [max(self.window, self.requests / rate) for rate in _loads(self)]
        most = self.most_window
        return start + sum(self.ramp + self.windows * min(length, most) for length in lengths)

    async def _session(self, server: Server, found: Running, deadline: float) -> Result:
        target = Target(
            base=found.base,
            model=server.model or "",
            api=self.api,
            key=serving_servers.key_of(server),
            body=server.body,
            ca_file=server.ca_file,
            timeout_seconds=self.request_timeout,
        )
        limit = max(1.0, deadline - END_SECONDS)
        try:
            async with asyncio.timeout(limit):
                return await serving_session.measure(self.job(), server, found, target)
        except TimeoutError as error:
            text = f"not done after {limit:.0f} s; take shorter windows, or fewer requests in them"
            raise ProbeError(ReasonCode.DEADLINE, text) from error

    def job(self) -> Job:
        """
        What its parameters ask of a server.

        Raises:
            ProbeUnavailable: ``unsupported``: a file of lengths is not on this host.
        """
        limits = Limits(
            on=self.limit_on,
            slo=self.limit,
            requests=self.requests,
            errors=self.most_errors,
            lag=self.lag_limit,
            ttft=self.ttft_limit,
            tpot=self.tpot_limit,
            e2e=self.e2e_limit,
        )
        shape = Shape(
            arrivals=self.arrivals,
            burstiness=self.burstiness,
            input=_lengths(self.input_tokens),
            output=_lengths(self.output_tokens),
            scale=Scale(),
            as_ids=False,
            vocabulary=self.vocabulary,
            reuse=self.reuse,
            ramp_seconds=self.ramp,
            window_seconds=self.window,
            most_seconds=self.most_window,
            seed=self.seed,
            limits=limits,
        )
        search = self._search() if self.mode == "search" else None
        loads = () if search else _loads(self)
        return Job(shape, self.prompts, self.ignore_eos, loads, self.windows, search)

    def _search(self) -> Search:
        return Search(
            start=self.start_load,
            most=self.most_load,
            tolerance=self.tolerance,
            in_a_row=self.in_a_row,
            limit=self.limit,
            whole=self.arrivals == "closed",
        )


def _lengths(spec: str) -> Lengths:
    try:
        return Lengths.parse(spec)
    except ValueError as error:
        raise ProbeUnavailable(ReasonCode.UNSUPPORTED, str(error)) from error


def _loads(probe: Serving) -> tuple[float, ...]:
    """
    The loads of a cell, in turn.

    Raises:
        ValueError: One is no number above 0, or there are too many.
    """
    if probe.mode != "ladder":
        return (float((probe.concurrency if probe.arrivals == "closed" else probe.rate) or 1),)
    words = (probe.ladder or LADDER).replace(",", " ").split()
    try:
        found = tuple(float(word) for word in words)
    except ValueError as error:
        raise ValueError(f"ladder {probe.ladder!r}: {error}") from error
    if not 0 < len(found) <= MOST_LADDER or not all(0 < x <= 100_000 for x in found):
        raise ValueError(f"ladder {probe.ladder!r} must hold 1 to {MOST_LADDER} loads above 0")
    if probe.arrivals == "closed" and any(x != math.floor(x) for x in found):
        raise ValueError(f"ladder {probe.ladder!r}: a concurrency is a whole number")
    return found
