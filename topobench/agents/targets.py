"""Which Ray nodes get an agent, and what is to be said of the others; imports no ray."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from topobench.agents.service import HostRequest
from topobench.errors import AgentError

REACH_SECONDS = 5.0
"""Longest wait for the head's port."""
CLOCK_SECONDS = 1.0
"""Clocks of two hosts may differ by that much unremarked."""


@dataclass(frozen=True, slots=True)
class Target:
    """A Ray node to put an agent on."""

    node_id: str
    address: str
    name: str
    request: HostRequest


@dataclass(frozen=True, slots=True)
class Failure:
    """A host that could not take part, with what would mend it."""

    address: str
    text: str
    id: str | None = None


def choose(
    nodes: Sequence[Mapping[str, Any]],
    base: HostRequest,
    hosts: Sequence[HostRequest],
    address: str,
) -> tuple[list[Target], list[Failure]]:
    """
    Alive Ray nodes to use; hosts wanted that are none of them, or not one, are failures.

    Args:
        nodes: As ``ray.nodes()`` lists them.
        base: What every host is asked.
        hosts: Hosts wanted, by name or address; empty for every alive node.
        address: Of Ray's head, or ``local``.
    """
    alive = [n for n in nodes if n["Alive"]]  # a restarted host is listed dead, too
    if not hosts:
        return [_target(n, base) for n in alive], []
    by_name: dict[str, list[Mapping[str, Any]]] = {}
    for node in alive:
        for name in {node["NodeManagerHostname"].lower(), node["NodeManagerAddress"].lower()}:
            by_name.setdefault(name, []).append(node)
    if address == "local" and alive:
        by_name.update({"localhost": [alive[0]], "127.0.0.1": [alive[0]]})
    known = _listed(alive) or "none"
    targets: dict[str, Target] = {}
    missing = []
    for wanted in hosts:
        found = by_name.get(wanted.address.lower(), [])
        if len(found) != 1:
            text = f"host {wanted.address} is not an alive Ray node; Ray knows {known}"
            if found:
                text = (
                    f"host {wanted.address} is the name of several Ray nodes: {_listed(found)}; "
                    "write the address of the one that is meant"
                )
            missing.append(Failure(wanted.address, text, wanted.id))
        elif found[0]["NodeID"] in targets:
            text = f"host {wanted.address} is a Ray node that another entry of hosts: names, too"
            missing.append(Failure(wanted.address, text, wanted.id))
        else:
            env = {**base.env, **wanted.env}
            settled = replace(wanted, env=env, lock=base.lock, idle=base.idle, health=base.health)
            targets[found[0]["NodeID"]] = _target(found[0], settled)
    return list(targets.values()), missing


def narrow(
    targets: Sequence[Target], missing: Sequence[Failure], only: Sequence[str]
) -> tuple[list[Target], list[Failure]]:
    """
    Those of :func:`choose` that ``--hosts`` names.

    Args:
        only: Names, addresses or ids; empty for all. One that is nobody's here may be a key, which
            a host's agent alone can tell; then none is left out.
    """
    wanted = {name.lower() for name in only}
    names = [{t.name, t.address, t.request.id or ""} for t in targets]
    lost = [{f.address, f.id or ""} for f in missing]
    if not wanted or not wanted <= {name.lower() for each in (*names, *lost) for name in each}:
        return list(targets), list(missing)

    def meant(each: set[str]) -> bool:
        return not wanted.isdisjoint(name.lower() for name in each)

    return (
        [t for t, each in zip(targets, names, strict=True) if meant(each)],
        [f for f, each in zip(missing, lost, strict=True) if meant(each)],
    )


def _listed(nodes: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(sorted(n["NodeManagerAddress"] for n in nodes))


def _target(node: Mapping[str, Any], request: HostRequest) -> Target:
    address = node["NodeManagerAddress"]
    name = node["NodeManagerHostname"]
    return Target(node["NodeID"], address, name, replace(request, address=address))


def check_reachable(address: str) -> None:
    """
    Whether anybody listens where a Ray head should be; Ray itself would try for minutes.

    Args:
        address: ``HOST:PORT``.

    Raises:
        AgentError: Nobody does.
    """
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=REACH_SECONDS).close()
    except (OSError, ValueError) as error:
        raise AgentError(
            f"nobody answers at {address} ({getattr(error, 'strerror', None) or error}); is that "
            "ray.address of the cluster, is Ray's head running there, and do firewalls let that "
            "port through?"
        ) from error


def not_let_in(address: str, error: str) -> str:
    """Why Ray cannot be attached to although somebody listens there."""
    return (
        f"could not attach to Ray at {address}: {error}; somebody listens there, so either the "
        "token is another one or missing (RAY_AUTH_MODE=token, RAY_AUTH_TOKEN_PATH as on the "
        "cluster), or its Ray has another version, or it is no Ray"
    )


def unheard(target: Target) -> str:
    """What is said of a host that can be called and whose results do not come."""
    return (
        f"host {target.name} ({target.address}) answers, but what it sends does not reach this "
        "driver: open the ports of Ray's workers (ray start --min-worker-port, "
        "--max-worker-port) between the hosts both ways, or run topobench on a host of the "
        "cluster that they reach"
    )


def clock_note(name: str, told: float, asked: float, answered: float) -> str | None:
    """
    A warning if a host's clock is off by more than a second; times of runs are the hosts' own.

    Args:
        told: The host's clock at some moment between ``asked`` and ``answered``.
    """
    off = told - asked if told < asked else told - answered if told > answered else 0.0
    if abs(off) <= CLOCK_SECONDS:
        return None
    way = "behind" if off < 0 else "ahead of"
    return (
        f"clock_skew: the clock of host {name} is at least {abs(off):.1f} s {way} the driver's; "
        "synchronise them (chrony, systemd-timesyncd), or times of runs will mislead"
    )


def difference(target: Target, ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> str:
    """How a host's topobench differs from the driver's, and the line that mends it."""
    anew = ""
    if theirs["topobench"] is None:
        found = "has no topobench"
    elif theirs["topobench"] != ours["topobench"]:
        found = f"has topobench {theirs['topobench']}"
    else:
        found = f"has other sources of topobench {theirs['topobench']}"
        anew = "--force-reinstall --no-deps "  # pip takes the same version for the same thing
    wheel = f"{anew}topobench-{ours['topobench']}-py3-none-any.whl"
    return (
        f"host {target.name} ({target.address}) {found}; this driver is {ours['topobench']}. "
        f"Install the same wheel there: {theirs['interpreter']} -m pip install {wheel}, or send "
        "this one with  ray: {ship: true}"
    )
