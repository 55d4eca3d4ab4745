"""The arms of a bench on one host, and the places of its NUMA matrix; pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

from topobench import env_arms, rings
from topobench.bindings import (
    MatrixArm,
    Refusal,
    equal_threads,
    numa_matrix,
    resolve,
    united,
    with_threads,
)
from topobench.choice import Choice, Timed
from topobench.config import BindingChoice
from topobench.reading import Arm, Binding, Reason, ReasonCode, Status
from topobench.selection import Lack
from topobench.topology import Gpu, Topology


def joined(arm: Arm, ring: str | None) -> Arm:
    """An arm with a ring; all but NCCL's own choice run all-reduce by rings alone."""
    settings = {} if ring in (None, rings.AUTO) else rings.RING_ONLY
    return dataclasses.replace(arm, ring=ring, env={**arm.env, **settings})


def with_settings(arm: Arm, settings: Mapping[str, str]) -> Arm:
    """An arm of a user's command, whose variables tell it apart from others; none are no more."""
    text = env_arms.text_of(settings)
    return dataclasses.replace(arm, env={**arm.env, **settings}, env_name=text or None)


def with_equal_threads(arm: Arm, threads: int) -> Arm:
    """The same arm with a number of threads for each rank."""
    ranks = tuple(with_threads(b, threads) for b in arm.rank_bindings)
    return dataclasses.replace(arm, binding=with_threads(arm.binding, threads), rank_bindings=ranks)


def matrix_places(topology: Topology) -> list[tuple[MatrixArm, Arm | None]]:
    """The places of the NUMA matrix, each with its arm if it can be measured."""
    places = numa_matrix(topology)
    bound = [place.resolved for place in places if isinstance(place.resolved, Binding)]
    threads = equal_threads(bound, topology)
    return [
        (place, Arm(with_threads(place.resolved, threads)))
        if isinstance(place.resolved, Binding)
        else (place, None)
        for place in places
    ]


def matrix_cases(choice: Choice, arm: MatrixArm) -> tuple[Timed, ...]:
    """Cases at one place of the matrix; none where the user's values leave it out."""
    place = {"cpu_node": arm.cpu_node, "memory_node": arm.memory_node}
    for name, node in place.items():
        wanted = choice.values.get(name, (None,))
        if wanted != (None,) and node not in wanted:
            return ()
    return choice.cases(**place)


def absent_nodes(choice: Choice, arms: Sequence[MatrixArm]) -> Iterator[Lack]:
    """What the user asked of NUMA nodes that this host does not have or may not use."""
    for name, code in (
        ("cpu_node", ReasonCode.CPU_NOT_ALLOWED),
        ("memory_node", ReasonCode.MEM_NOT_ALLOWED),
    ):
        usable = {getattr(arm, name) for arm in arms}
        wanted = [v for v in choice.values.get(name, ()) if v is not None]
        absent = [str(v) for v in wanted if v not in usable]
        if absent:
            known = ", ".join(map(str, sorted(usable))) or "none"
            text = f"{name} {', '.join(absent)}: not usable here; there is {known}"
            yield Lack(Status.SKIPPED, Reason(code, text))


def resolve_all(choice: BindingChoice, topology: Topology, gpus: tuple[Gpu, ...]) -> Arm | Refusal:
    """An arm of a bench; each rank is bound apart where the GPUs hang on several NUMA nodes."""
    found = []
    for gpu in gpus or (None,):
        one = resolve(choice, topology, gpu)
        if isinstance(one, Refusal):
            return one
        found.append(one)
    if all(one == found[0] for one in found):
        return Arm(found[0])
    return Arm(united(found), rank_bindings=tuple(found))
