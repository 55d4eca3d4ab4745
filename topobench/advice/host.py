"""All advice on one host, in the order in which it is shown."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from topobench.advice.binding import bindings
from topobench.advice.copies import copies
from topobench.advice.readers import readers
from topobench.advice.ring import rings
from topobench.advice.words import ONE_GPU, Advice, Cell, Outlook
from topobench.effects import benches
from topobench.topology import Topology, format_cpu_list
from topobench.verdict_words import OVERALL, Level

_NEAR = ("PIX", "PXB", "PHB", "NODE", "SYS")
"""Path classes, nearest first."""


def advise(
    document: Mapping[str, Any],
    topology: Topology | None,
    verdicts: Sequence[Mapping[str, Any]] = (),
) -> list[Advice]:
    """
    What to do with the host of a sweep document.

    Args:
        document: A sweep document of one host.
        topology: Its wiring, if it is stored.
        verdicts: Those on this host, as ``db.look.verdicts`` gives them.
    """
    host, cells = document["hosts"][0], document["cells"]
    gpus = [
        (d["key"], f"GPU {d['index']}" if d["index"] is not None else d["key"])
        for d in host["description"].get("devices", ())
    ]
    return [
        *_out_of_service(host["name"], verdicts),
        *(_of_gpus(gpus, cells, host) if gpus else _no_gpus()),
        *(_nics(gpus, topology) if gpus else ()),
    ]


def _no_gpus() -> Iterator[Advice]:
    text = "this host has no GPU that could be measured; there is nothing to advise"
    yield Advice("binding", "host", (), Outlook.NOT_MEASURED, text, ("topobench doctor",))


def _of_gpus(
    gpus: Sequence[tuple[str, str]], cells: Sequence[Cell], host: Mapping[str, Any]
) -> Iterator[Advice]:
    found = benches(cells)
    names = dict(gpus)
    sets = {b.devices: _set_name([names.get(d, d) for d in b.devices]) for b in found}
    yield from bindings(gpus, found, cells, host["description"].get("numa_nodes"))
    yield from copies(gpus, cells)
    yield from readers(cells)
    if len(gpus) > 1:
        yield from rings(found, cells, sets, host["name"])
    else:
        yield Advice("ring", "all-reduce", (), Outlook.NOT_APPLICABLE, ONE_GPU)


def _set_name(names: Sequence[str]) -> str:
    """``GPU 0-3``."""
    indices = [n.removeprefix("GPU ") for n in names]
    if all(i.isdigit() for i in indices):
        return f"GPU {format_cpu_list(map(int, indices))}"
    return ", ".join(names)


def _nics(gpus: Sequence[tuple[str, str]], topology: Topology | None) -> Iterator[Advice]:
    """The nearest NICs of each GPU: found by discovery, measured by no probe here."""
    if topology is None or not topology.nics:
        return
    keys = {g.key: g.name for g in topology.gpus}
    for uuid, name in gpus:
        classes = _paths(topology, keys.get(uuid, ""))
        best = min((_NEAR.index(c) for c in classes.values() if c in _NEAR), default=None)
        if best is None:
            continue
        near = sorted(nic for nic, c in classes.items() if c == _NEAR[best])
        text = f"{', '.join(near)} ({_NEAR[best]})"
        yield Advice(
            kind="nic",
            subject=name,
            devices=(uuid,),
            outlook=Outlook.NOT_MEASURED,
            text=text,
            evidence="the wiring: the nearest are named; what that is worth no probe measured",
        )


def _paths(topology: Topology, gpu: str) -> dict[str, str | None]:
    """NIC -> class of its path to a GPU."""
    found = {}
    for path in topology.paths:
        ends = {path.a, path.b}
        if gpu in ends:
            for end in ends - {gpu}:
                if end.startswith("nic:"):
                    found[end.removeprefix("nic:")] = path.smi
    return found


def _out_of_service(name: str, verdicts: Sequence[Mapping[str, Any]]) -> Iterator[Advice]:
    """Lines that take a failed host out; printed, never run."""
    failed = [v for v in verdicts if v["level"] == Level.FAIL]
    if not failed:
        return
    whole = [v for v in failed if v["check"] == OVERALL and v["device"] is None]
    told = (whole or failed)[0]
    node = shlex.quote(name)
    lines = (told["action"] or "").splitlines() or [
        f"scontrol update NodeName={node} State=DRAIN Reason='topobench: fail'",
        f"kubectl cordon {node}",
    ]
    reasons = [v["reason"] for v in failed if v["check"] != OVERALL] or [told["reason"]]
    yield Advice(
        kind="out_of_service",
        subject=name,
        devices=(),
        outlook=Outlook.FOUND,
        text=f"the host failed: {reasons[0]}",
        lines=tuple(lines),
        evidence=f"verdict of policy {told['policy_version']}, as of {told['as_of']}",
    )
