"""
Ray as it is started and left: without services that nothing of ours asks, signals kept.

Beside ``ray_agent`` the only module that imports ray. All that is changed inside Ray is
changed here, and a Ray that names these parts differently goes its own way.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import signal
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import Any

import ray


def init(address: str, **options: Any) -> None:
    """
    Start a private Ray (``local``) or attach to one; what Ray raises is raised.

    The first signal that arrives meanwhile is given to the caller's handler at the end, and so
    are those that follow it closely.
    """
    _read_token_again()
    with (
        _signals_deferred(),
        _without_idle_services(),
        _without_agents_of_raylet(),
        _groups_of_their_own(),
    ):
        ray.init(
            address=address,
            namespace="topobench",
            log_to_driver=False,
            configure_logging=True,
            logging_level=logging.ERROR,
            **options,
        )


def _read_token_again() -> None:
    """
    Have Ray look at its environment anew: the cluster before had another token, or none.

    Ray reads RAY_AUTH_MODE and the token once in a process, and a fleet has many clusters.
    """
    with contextlib.suppress(AttributeError):
        ray._raylet.Config.initialize("")
        ray._raylet.AuthenticationTokenLoader.instance().reset_cache()


def shutdown() -> None:
    """Leave Ray, or end the private one."""
    with _interrupts_ignored():
        ray.shutdown()


def use_plain_values() -> None:
    """
    Spare this process what Ray imports to send values of other libraries.

    Ours are plain JSON types; pyarrow, starlette and the older pydantic take 0.5 s of CPU
    time in the driver and in each agent.
    """
    if hasattr(ray.util, "serialization_addons"):
        ray.util.serialization_addons.apply = lambda _: None


_IDLE_SERVICES = ("start_api_server", "start_log_monitor", "start_monitor")
"""Dashboard, log forwarder and autoscaler: nothing of ours asks them, and they take CPU time."""


@contextlib.contextmanager
def _without_idle_services() -> Iterator[None]:
    """An embedded Ray starts none of them; a Ray that names them differently starts them."""
    node = ray._private.node.Node
    kept = {name: getattr(node, name) for name in _IDLE_SERVICES if hasattr(node, name)}
    for name in kept:
        setattr(node, name, lambda *_, **__: None)
    try:
        yield
    finally:
        for name, method in kept.items():
            setattr(node, name, method)


_AGENTS = ("--dashboard_agent_command=", "--runtime_env_agent_command=")
_PORTS = (
    "METRICS_AGENT_PORT_NAME",
    "METRICS_EXPORT_PORT_NAME",
    "DASHBOARD_AGENT_LISTEN_PORT_NAME",
    "RUNTIME_ENV_AGENT_PORT_NAME",
)
_NO_AGENT = "sleep infinity"


@contextlib.contextmanager
def _without_agents_of_raylet() -> Iterator[None]:
    """
    An embedded raylet gets no agents for the dashboard and for run-time environments.

    Each is an interpreter that nothing of ours asks, and one of them looks at processes and
    GPUs all the time. The raylet only wants them to live, and to leave files that name their
    ports; -1 says that there is no service, as it does in a Ray without the dashboard.
    """
    services = ray._private.services
    if not all(hasattr(ray._raylet, name) for name in ("persist_port", *_PORTS)):  # another Ray
        yield
        return
    kept = services.start_ray_process, ray._private.utils.get_dashboard_dependency_error

    def start(command: list[str], process_type: str, *others: Any, **options: Any) -> Any:
        if process_type == ray._private.ray_constants.PROCESS_TYPE_RAYLET:
            command = _with_idle_agents(command)
        return kept[0](command, process_type, *others, **options)

    services.start_ray_process = start
    # It imports what the dashboard needs, to see whether its agent can have it.
    ray._private.utils.get_dashboard_dependency_error = lambda: None
    try:
        yield
    finally:
        services.start_ray_process, ray._private.utils.get_dashboard_dependency_error = kept


def _with_idle_agents(command: list[str]) -> list[str]:
    """A raylet's command whose agents do nothing; notes that they serve at no port."""
    options = dict(part.split("=", 1) for part in command if part.startswith("--") and "=" in part)
    for name in _PORTS:
        port = getattr(ray._raylet, name)
        ray._raylet.persist_port(options["--session_dir"], options["--node_id"], port, -1)
    agents = {
        part: f"{name}{_NO_AGENT}" for part in command for name in _AGENTS if part.startswith(name)
    }
    return [agents.get(part, part) for part in command]


@contextlib.contextmanager
def _groups_of_their_own() -> Iterator[None]:
    """
    Processes of an embedded Ray are in no group of the driver's.

    ``timeout``, or a terminal that closes, signals that group: Ray would end with the driver,
    which needs it to end the workers and to bring in their runs.
    """
    services = ray._private.services
    kept = getattr(services, "ConsolePopen", None)
    if kept is None:  # another Ray
        yield
        return
    services.ConsolePopen = functools.partial(kept, process_group=0)
    try:
        yield
    finally:
        services.ConsolePopen = kept


_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PATIENCE_SECONDS = 10.0
"""A signal that comes so long after the first is of somebody who no longer waits."""


@contextlib.contextmanager
def _signals_deferred() -> Iterator[None]:
    """
    Give the first signal that arrives inside to the caller's handler at the end.

    An exception in the middle of ``ray.init`` is lost inside it, or leaves a half-made Ray
    whose shutdown ends the process with SIGSEGV. One that follows closely waits as well: service
    managers send SIGTERM and SIGHUP together. A later one does not.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    arrived: list[tuple[float, int]] = []

    def note(number: int, frame: FrameType | None) -> None:
        arrived.append((time.monotonic(), number))
        if arrived[-1][0] - arrived[0][0] > _PATIENCE_SECONDS:
            previous[number](number, frame)

    with _handlers_kept() as previous, _without_handlers_of_ray():
        for number, handler in previous.items():
            if callable(handler):  # nohup stays nohup
                signal.signal(number, note)
        yield
    if arrived:
        number = arrived[0][1]
        previous[number](number, None)


@contextlib.contextmanager
def _without_handlers_of_ray() -> Iterator[None]:
    """Ray's own handler of SIGTERM leaves with ``sys.exit``, wherever its init is just then."""
    kept = ray._private.utils.set_sigterm_handler
    ray._private.utils.set_sigterm_handler = lambda _: None
    try:
        yield
    finally:
        ray._private.utils.set_sigterm_handler = kept


@contextlib.contextmanager
def _handlers_kept() -> Iterator[dict[int, Any]]:
    """Ray puts its own handlers in place of the caller's; not for longer than this."""
    if threading.current_thread() is not threading.main_thread():
        yield {}
        return
    previous: dict[int, Any] = {n: signal.getsignal(n) for n in _ENDING}
    try:
        yield previous
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _interrupts_ignored() -> Iterator[None]:
    """A second signal while Ray shuts down would leave its processes behind."""
    with _handlers_kept():
        if threading.current_thread() is threading.main_thread():
            signal.alarm(0)  # Ray's handler of SIGTERM aborts the process 3 s later
            for number in _ENDING:
                signal.signal(number, signal.SIG_IGN)
        yield
