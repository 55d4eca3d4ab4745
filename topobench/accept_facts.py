"""What discovery says of hosts and GPUs against a limit: exact, without a measurement. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from topobench import ceilings
from topobench.accept_criteria import Rule
from topobench.accept_words import AcceptHost, Answer, Found, subject_name


def facts(rule: Rule, hosts: Sequence[AcceptHost]) -> Iterator[Found]:
    """An answer for each host or GPU; what discovery does not know is not measured."""
    for host in hosts:
        told = _told(rule.metric.name, host)
        if not told:
            reason = "no GPU was discovered" if rule.each == "gpu" else "no topology is stored"
            yield Found(Answer.NOT_MEASURED, reason, subject=host.name, host=host.name)
        for devices, value in told:
            yield _fact(rule, host, devices, value)


def _fact(rule: Rule, host: AcceptHost, devices: tuple[str, ...], value: float | None) -> Found:
    assert rule.value is not None
    subject = subject_name(host, devices) if devices else host.name
    found = Found(Answer.NOT_MEASURED, "discovery does not know it", subject, host.name, devices)
    if value is None:
        return found
    met = value >= rule.value if rule.op == ">=" else value <= rule.value
    return replace(
        found,
        answer=Answer.PASS if met else Answer.FAIL,
        reason="discovered, exact",
        value=value,
        unit_of="facts",
        n=1,
    )


def _told(metric: str, host: AcceptHost) -> list[tuple[tuple[str, ...], float | None]]:
    """What discovery says, by devices; a value that it does not know is None."""
    topology = host.topology
    if topology is None:
        return []
    gpus = [g for g in topology.gpus if not g.is_slice]
    if metric == "gpus_count":
        return [((), float(len([g for g in gpus if g.state != "lost"])))]
    if metric == "memory_bytes":
        sizes = [n.memory_bytes for n in topology.numa_nodes if n.memory_bytes and n.gpu is None]
        return [((), float(sum(sizes)) if sizes else None)]
    if metric == "gpu_memory_bytes":
        return [((g.key,), _number(g.memory_bytes)) for g in gpus]
    if metric == "nvlinks_count":
        return [((g.key,), None if g.nvlink is None else float(g.nvlink.active)) for g in gpus]
    return [((g.key,), ceilings.slot_bytes_per_second(g, topology)) for g in gpus]


def _number(value: int | None) -> float | None:
    return None if value is None else float(value)
