"""What is changed inside Ray while it starts, and hosts that never answer."""

from __future__ import annotations

import time
import types
from typing import Any

import pytest


def test_a_ray_with_other_names_of_ports_keeps_its_agents(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without them no note could be left that the agents serve at no port."""
    import ray

    from topobench.agents import ray_start

    services: Any = ray._private.services
    own, found = services.start_ray_process, []
    monkeypatch.setattr("ray.init", lambda **_: found.append(services.start_ray_process))
    ray_start.init("local")
    monkeypatch.delattr(ray._raylet, "RUNTIME_ENV_AGENT_PORT_NAME")
    ray_start.init("local")
    assert [start is own for start in found] == [False, True]
    assert services.start_ray_process is own


def test_many_silent_hosts_are_waited_for_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """First all agents, then all tasks that tell why there is none."""
    import ray

    from topobench.agents import ray_agent
    from topobench.agents.service import HostRequest
    from topobench.agents.targets import Target

    now, killed = [0.0], list[object]()

    def get(answer: object, timeout: float) -> None:
        now[0] += timeout
        raise ray.exceptions.GetTimeoutError("no answer")

    call = types.SimpleNamespace(remote=object)
    task = types.SimpleNamespace(options=lambda **_: call)
    clock = types.SimpleNamespace(monotonic=lambda: now[0], time=time.time)
    monkeypatch.setattr(ray_agent, "time", clock)
    monkeypatch.setattr("ray.get", get)
    monkeypatch.setattr("ray.kill", killed.append)
    monkeypatch.setattr("ray.remote", lambda **_: lambda function: task)
    targets = [
        Target(f"{i + 1:056x}", f"10.0.0.{i}", f"n{i}", HostRequest(sweep="s")) for i in range(5)
    ]
    actors = [(t, types.SimpleNamespace(greet=call)) for t in targets]
    failures, notes = ray_agent._greet(actors)
    assert [f.address for f in failures] == [t.address for t in targets]
    assert failures[0].text.startswith("no answer from n0")
    assert (notes, killed) == ([], [a for _, a in actors])
    assert now[0] == ray_agent.DESCRIBE_SECONDS + ray_agent.TASK_SECONDS
