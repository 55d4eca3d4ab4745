"""What is changed inside Ray while it starts."""

from __future__ import annotations

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
