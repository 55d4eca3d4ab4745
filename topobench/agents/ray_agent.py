"""
Agents on every host, placed and reached through Ray.

``ray.address: local`` starts a private embedded Ray (see ``embedded``, which must prepare the
process before this module is imported); any other address attaches to the cluster the user
runs. Ray carries the calls and the results; it never times anything.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import (
    ActorDiedError,
    ActorUnschedulableError,
    GetTimeoutError,
    RayActorError,
    RayError,
    RayTaskError,
    TaskUnschedulableError,
)
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from topobench import processes
from topobench.agents import handshake, ray_start
from topobench.agents.service import HostRequest, HostService
from topobench.agents.targets import (
    Failure,
    Target,
    check_reachable,
    choose,
    clock_note,
    difference,
    narrow,
    not_let_in,
    unheard,
)
from topobench.errors import AgentError, RefusedError, TopobenchError
from topobench.health import STANDARD, Rules
from topobench.host import BUSY_OR_NOT, Host, Idle
from topobench.reading import Cell, Run, to_json

ray_start.use_plain_values()  # in agents as in the driver

PULSE_SECONDS = 2.0
"""Between two questions for a sign of life."""
SILENT_SECONDS = 12.0
"""A host that gave none for so long is lost."""
MISSED = 3
"""Questions that a lost host left unanswered; a driver that is late with asking proves nothing."""
_LOOK_SECONDS = 1.0
STREAM_SECONDS = 20.0
"""Longest wait for what a host streams, once it has answered."""
DESCRIBE_SECONDS = 180.0
"""Longest wait for a host's first answer; a cold torch import on a GPU host takes 60 s."""
TASK_SECONDS = 60.0
"""Longest wait for hosts without an agent to say why."""


class HostAgent:
    """The actor: a host service behind Ray calls. Values travel as plain JSON types."""

    def __init__(self, request: HostRequest) -> None:
        self._service = HostService(request)

    def greet(self) -> dict[str, Any]:
        """See :func:`handshake.greet`."""
        return handshake.greet()

    def describe(self) -> dict[str, Any]:
        """See :meth:`HostService.describe`."""
        return self._service.describe().to_json()

    def run(self, cells: list[dict[str, Any]], attempts: dict[str, int]) -> Iterator[Any]:
        """Stream the runs of a batch."""
        for run in self._service.run([Cell.from_json(c) for c in cells], attempts):
            yield to_json(run)

    def reach(self) -> Iterator[bool]:
        """Something to stream back, as runs are; see :func:`_cut_off`."""
        yield True

    def run_part(
        self, cell: dict[str, Any], *, host: str, attempt: int, fresh: bool, last: bool
    ) -> tuple[dict[str, Any], bool]:
        """See :meth:`HostService.run_part`."""
        run, usable = self._service.run_part(
            Cell.from_json(cell), host=host, attempt=attempt, fresh=fresh, last=last
        )
        return to_json(run), usable

    def published(self, cell: str, seconds: float) -> str | None:
        """See :meth:`HostService.published`."""
        return self._service.published(cell, seconds)

    def tell(self, cell: str, address: str) -> None:
        """See :meth:`HostService.tell`."""
        self._service.tell(cell, address)

    def lose(self, cell: str, text: str, seconds: float) -> None:
        """See :meth:`HostService.lose`."""
        self._service.lose(cell, text, seconds)

    def cancel(self) -> None:
        """See :meth:`HostService.cancel`."""
        self._service.cancel()

    def close(self) -> None:
        """See :meth:`HostService.close`."""
        self._service.close()

    def pid(self) -> int:
        """Process id of this agent."""
        return os.getpid()


class RayAgent:
    """The driver's end of one host's agent."""

    def __init__(self, host: Host, actor: Any) -> None:
        self.host = host
        self.lost: str | None = None
        self._actor = actor

    def run(self, cells: Sequence[Cell], attempts: Mapping[str, int]) -> Iterator[Run]:
        """
        Run a batch; yields each run as it ends.

        Raises:
            AgentError: The host or its agent is gone; cells without a run did not finish.
            RuntimeError: A fault of ours in the agent, which lives on.
        """
        stream = self._actor.run.options(num_returns="streaming").remote(
            [to_json(c) for c in cells], dict(attempts)
        )
        with self._errors_named():
            while True:
                self._wait(stream)
                try:
                    reference = next(stream)
                except StopIteration:
                    return
                self._wait(reference)
                yield Run.from_json(ray.get(reference))

    def run_part(self, cell: Cell, *, attempt: int, fresh: bool, last: bool) -> tuple[Run, bool]:
        """
        Run this host's ranks of a cell that spans several hosts.

        Args:
            fresh: With new workers.
            last: These workers are needed no more.

        Returns:
            The run as this host saw it, and whether its workers may go on.

        Raises:
            AgentError: The host or its agent is gone.
            RuntimeError: A fault of ours in the agent, which lives on.
        """
        with self._errors_named():
            answer = self._actor.run_part.remote(
                to_json(cell), host=self.host.key, attempt=attempt, fresh=fresh, last=last
            )
            self._wait(answer)
            run, usable = ray.get(answer)
        return Run.from_json(run), usable

    def published(self, cell: str, seconds: float) -> str | None:
        """
        The address that rank 0 publishes on this host; None if it does not in time.

        Raises:
            AgentError: The host or its agent is gone.
        """
        with self._errors_named():
            answer = self._actor.published.remote(cell, seconds)
            self._wait(answer)
            found: str | None = ray.get(answer)
        return found

    def tell(self, cell: str, address: str) -> None:
        """Bring the address where rank 0 of a cell's gang is met."""
        with contextlib.suppress(RayError):
            self._actor.tell.remote(cell, address)

    def lose(self, cell: str, text: str, seconds: float) -> None:
        """Say that another part of a cell's gang is lost."""
        with contextlib.suppress(RayError):
            self._actor.lose.remote(cell, text, seconds)

    def _wait(self, answer: Any) -> None:
        """Until there is an answer; a host that is cut off would never give one."""
        while not ray.wait([answer], timeout=_LOOK_SECONDS)[0]:
            if self.lost is not None:
                raise AgentError(f"host {self.host.name}: {self.lost}")

    @contextlib.contextmanager
    def _errors_named(self) -> Iterator[None]:
        try:
            yield
        except RayTaskError as error:
            if isinstance(error.cause, RayError):
                raise AgentError(f"host {self.host.name}: {_text(error.cause)}") from error
            raise RuntimeError(_text(error)) from error
        except RayError as error:
            raise AgentError(f"host {self.host.name}: {_text(error)}") from error

    def ask(self) -> Any:
        """A sign of life, as a reference that will come true."""
        return self._actor.pid.remote()

    def cancel(self) -> None:
        """End the running worker; its cells become ``aborted``."""
        with contextlib.suppress(RayError):
            self._actor.cancel.remote()

    def pid(self) -> int:
        """Process id of the agent on its host."""
        return int(ray.get(self._actor.pid.remote(), timeout=10))

    def close(self) -> None:
        """Stop workers, free the host lock, end the agent; a lost host is left alone."""
        if self.lost is not None:
            return
        with contextlib.suppress(RayError):
            ray.get(self._actor.close.remote(), timeout=10)
        with contextlib.suppress(RayError):
            ray.kill(self._actor)


class Pulse:
    """
    Asks every agent for a sign of life; one that gives none for a while is lost.

    Ray itself takes up to a minute to miss a host whose cable is cut.
    """

    def __init__(self, agents: Sequence[RayAgent]) -> None:
        self._asked: dict[Any, RayAgent] = {}
        self._heard = {agent.host.key: time.monotonic() for agent in agents}
        self._missed = dict.fromkeys(self._heard, 0)
        self._agents = agents
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pulse", daemon=True)

    def __enter__(self) -> Pulse:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(3 * PULSE_SECONDS)

    def _run(self) -> None:
        while not self._stop.wait(PULSE_SECONDS):
            waiting = set(self._asked.values())
            for agent in self._agents:
                if agent.lost is None and agent not in waiting:
                    with contextlib.suppress(RayError):
                        self._asked[agent.ask()] = agent
            if self._asked:
                answered, _ = ray.wait(
                    list(self._asked), num_returns=len(self._asked), timeout=PULSE_SECONDS
                )
                for reference in answered:
                    self._note(self._asked.pop(reference), reference)
            self._look()

    def _note(self, agent: RayAgent, reference: Any) -> None:
        try:
            ray.get(reference, timeout=1)
        except RayError as error:
            if isinstance(error, ActorDiedError):
                agent.lost = _text(error)
        else:
            self._heard[agent.host.key] = time.monotonic()
            self._missed[agent.host.key] = 0

    def _look(self) -> None:
        for agent in self._agents:
            key = agent.host.key
            self._missed[key] += 1
            silent = time.monotonic() - self._heard[key]
            if silent > SILENT_SECONDS and self._missed[key] > MISSED and agent.lost is None:
                agent.lost = f"no sign of life for {silent:.0f} s (host or network down)"


class Connection:
    """Every agent of a sweep, the hosts that could not take part, and what to know of both."""

    def __init__(
        self,
        agents: Sequence[RayAgent],
        failures: Sequence[Failure],
        warnings: Sequence[str] = (),
    ) -> None:
        self.agents = tuple(agents)
        self.failures = tuple(failures)
        self.warnings = tuple(warnings)


@contextlib.contextmanager
def connect(
    address: str,
    *,
    sweep: str,
    options: Mapping[str, Any] | None = None,
    hosts: Sequence[HostRequest] = (),
    only: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    require_token: bool = False,
    ship: bool = False,
    lock: bool = True,
    idle: Idle = BUSY_OR_NOT,
    health: Rules = STANDARD,
) -> Iterator[Connection]:
    """
    Put an agent on every host and close them all at the end.

    Args:
        address: ``local`` or ``host:port`` of a running Ray head.
        options: For ``ray.init``, from :func:`topobench.agents.embedded.surroundings`.
        hosts: Hosts wanted, by address; empty for every alive Ray node.
        only: Names, addresses or ids of those to use; empty for all of them.
        env: The site's environment for workers on every host.
        ship: Send our package to the hosts, whatever is installed there.
        lock: False for a look that measures nothing.
        idle: What to do with hosts on which somebody else is at work.
        health: What is said with the runs of GPUs that something is wrong with.

    Raises:
        AgentError: Ray cannot be started or reached, or no host could take part.
        RefusedError: The only host is held by another sweep.
    """
    carried = _shipped() if ship and address != "local" else {}
    with _ray(address, sweep, require_token, options or {}, carried):
        base = HostRequest(sweep=sweep, env=dict(env or {}), lock=lock, idle=idle, health=health)
        targets, missing = narrow(*choose(ray.nodes(), base, hosts, address), only)
        if missing and not targets:
            raise AgentError("; ".join(f.text for f in missing))
        actors = _create(targets)
        # An embedded Ray runs this interpreter and these sources, by this clock.
        differing, notes = _greet(actors) if address != "local" else ([], [])
        agents, failures = _start(actors, differing)
        try:
            with Pulse(agents):
                warnings = [*_open_to_all(address), *notes]
                yield Connection(agents, [*missing, *failures], warnings)
        finally:
            _close(agents)


@contextlib.contextmanager
def _ray(
    address: str,
    sweep: str,
    require_token: bool,
    options: Mapping[str, Any],
    carried: Mapping[str, Any],
) -> Iterator[None]:
    if address != "local":
        if require_token and not _has_token():
            raise RefusedError(
                "ray.require_token is set but no Ray token is configured; "
                "set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH as on the cluster"
            )
        check_reachable(address)
        options = {**options, "runtime_env": {"env_vars": {processes.SWEEP: sweep}, **carried}}
    try:
        _init(address, **options)
        yield
    finally:
        ray_start.shutdown()


def _shipped() -> dict[str, Any]:
    """What has Ray send our package to every host, in front of one installed there."""
    return {"py_modules": [str(Path(handshake.__file__).parents[1])]}


def _init(address: str, **options: Any) -> None:
    try:
        ray_start.init(address, **options)
    except Exception as error:  # what Ray raises for a raylet that starts too slowly
        if address == "local":
            raise AgentError(f"could not start an embedded Ray: {_text(error)}") from error
        raise AgentError(not_let_in(address, _text(error))) from error


def _open_to_all(address: str) -> Iterator[str]:
    if address != "local" and not _has_token():
        yield (
            f"Ray at {address} asks for no token: whoever reaches that port can run code on every "
            "host; start it with RAY_AUTH_MODE=token (ray.require_token refuses such a cluster)"
        )


def _has_token() -> bool:
    if os.environ.get("RAY_AUTH_MODE", "").lower() != "token":
        return False
    path = os.environ.get("RAY_AUTH_TOKEN_PATH")
    default = Path(os.path.expanduser("~/.ray/auth_token"))
    return bool(os.environ.get("RAY_AUTH_TOKEN") or (path and Path(path).exists())) or (
        default.exists()
    )


def _create(targets: Sequence[Target]) -> list[tuple[Target, Any]]:
    """An actor on every target; none has answered yet."""
    actor_class = ray.remote(HostAgent)
    return [
        (
            t,
            actor_class.options(
                num_cpus=0,
                max_restarts=0,
                max_task_retries=0,
                max_concurrency=8,
                scheduling_strategy=_on(t),
            ).remote(t.request),
        )
        for t in targets
    ]


def _on(target: Target) -> NodeAffinitySchedulingStrategy:
    return NodeAffinitySchedulingStrategy(target.node_id, soft=False)


def _start(
    actors: Sequence[tuple[Target, Any]], differing: Sequence[Failure]
) -> tuple[list[RayAgent], list[Failure]]:
    """Have every actor describe its host, but those that differ from us; all that failed."""
    failures = list(differing)
    bad = {f.address for f in failures}
    good = [(t, a) for t, a in actors if t.address not in bad]
    waiting = [
        (t, a, a.describe.remote(), a.reach.options(num_returns="streaming").remote())
        for t, a in good
    ]
    heard: list[tuple[Target, RayAgent, Any]] = []
    refused: list[TopobenchError] = []
    for target, actor, answer, stream in waiting:
        try:
            patience = DESCRIBE_SECONDS + target.request.idle.wait_seconds
            host = Host.from_json(ray.get(answer, timeout=patience))
            heard.append((target, RayAgent(host, actor), stream))
        except RayError as error:
            cause = error.cause if isinstance(error, RayTaskError) else None
            if isinstance(cause, TopobenchError):
                refused.append(cause)
            failures.append(Failure(target.address, _text(error)))
            ray.kill(actor)
    agents, cut_off = _cut_off(heard)
    failures += cut_off
    if not agents and failures:
        _close(agents)
        raise refused[0] if refused else AgentError("; ".join(f.text for f in failures))
    return _with_unique_keys(agents), failures


def _cut_off(
    heard: Sequence[tuple[Target, RayAgent, Any]],
) -> tuple[list[RayAgent], list[Failure]]:
    """
    Agents whose results reach us, and failures for those whose do not.

    Answers to calls come back on the driver's own connection; what is streamed needs one that
    the host opens, and a firewall may let only the first pass.
    """
    if not heard:
        return [], []
    streams = [stream for _, _, stream in heard]
    _, silent = ray.wait(streams, num_returns=len(streams), timeout=STREAM_SECONDS)
    agents, failures = [], []
    for target, agent, stream in heard:
        if any(stream is s for s in silent):
            failures.append(Failure(target.address, unheard(target)))
            agent.close()
        else:
            agents.append(agent)
    return agents, failures


def _greet(actors: Sequence[tuple[Target, Any]]) -> tuple[list[Failure], list[str]]:
    """Refuse hosts whose topobench is missing or differs from the driver's; compare clocks."""
    ours = handshake.greet()
    sent = time.time()
    waiting = [(t, actor, actor.greet.remote()) for t, actor in actors]
    until = time.monotonic() + DESCRIBE_SECONDS
    failures, notes, silent = [], [], []
    for target, actor, answer in waiting:
        try:
            theirs = _in_time(answer, until)
        except RayError as error:
            silent.append((target, error))
        else:
            if theirs["source_digest"] == ours["source_digest"]:
                if note := clock_note(target.name, theirs["unix_seconds"], sent, time.time()):
                    notes.append(note)
                continue
            failures.append(Failure(target.address, difference(target, ours, theirs)))
        ray.kill(actor)
    return [*failures, *_why_silent(silent, ours)], notes


def _why_silent(
    silent: Sequence[tuple[Target, RayError]], ours: Mapping[str, Any]
) -> Iterator[Failure]:
    """Why there is no agent: mostly another topobench or none, which a task without it tells."""
    if not silent:
        return
    ray.cloudpickle.register_pickle_by_value(handshake)
    task = ray.remote(num_cpus=0, max_retries=0)(handshake.greet)
    waiting = [(t, e, task.options(scheduling_strategy=_on(t)).remote()) for t, e in silent]
    until = time.monotonic() + TASK_SECONDS
    for target, error, answer in waiting:
        try:
            theirs = _in_time(answer, until)
        except RayError as second:
            error = second
        else:
            if theirs["source_digest"] != ours["source_digest"]:
                yield Failure(target.address, difference(target, ours, theirs))
                continue
        yield Failure(target.address, f"no answer from {target.name}: {_text(error)}")


def _in_time(answer: Any, until: float) -> Any:
    """What was answered; hosts are waited for together, so that many silent ones cost one wait."""
    return ray.get(answer, timeout=max(0.0, until - time.monotonic()))


def _with_unique_keys(agents: list[RayAgent]) -> list[RayAgent]:
    """Two alive hosts with one key: extend it by the address and warn."""
    counts: dict[str, int] = {}
    for agent in agents:
        counts[agent.host.key] = counts.get(agent.host.key, 0) + 1
    for agent in agents:
        host = agent.host
        if counts[host.key] > 1:
            text = f"another host has the same key {host.key} ({host.key_source}); extended"
            agent.host = replace(
                host, key=f"{host.key}@{host.address}", warnings=(*host.warnings, text)
            )
    return agents


def _close(agents: Sequence[RayAgent]) -> None:
    for agent in agents:
        agent.cancel()
    for agent in agents:
        agent.close()


def _text(error: BaseException) -> str:
    """One line that says what went wrong, without Ray's traceback."""
    if isinstance(error, GetTimeoutError):
        return "no answer in time"
    if isinstance(error, (ActorUnschedulableError, TaskUnschedulableError)):
        return "its Ray node is gone since a moment ago"
    if isinstance(error, RayActorError):
        return "its agent died (host lost, or the agent was killed)"
    cause = error.cause if isinstance(error, RayTaskError) else error
    lines = str(cause).strip().splitlines()
    return lines[0] if lines else type(cause).__name__
