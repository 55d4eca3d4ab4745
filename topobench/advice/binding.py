"""Where a GPU's process should run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from topobench.advice.words import (
    Advice,
    Cell,
    Outlook,
    evidence_of,
    no_choice,
    outlook_of,
    signed,
)
from topobench.bindings import ONE_NODE
from topobench.comparison import Change, Comparison
from topobench.effects import Bench, compared
from topobench.reading import MEASURED

LOCAL, NONE, REMOTE = "local", "none", "remote"
MEASURE = "topobench probe --profile full --bindings none,local,remote"
"""What decides between bindings: eight blocks."""
_PROBES = ("host_to_device", "kernel_launch", "prefill", "decode")


def bindings(
    gpus: Sequence[tuple[str, str]],
    benches: Sequence[Bench],
    cells: Sequence[Cell],
    nodes: int | None,
) -> Iterator[Advice]:
    """
    A piece of advice for each GPU.

    Args:
        gpus: UUID and name of each.
        nodes: NUMA nodes of the host with CPUs.
    """
    for uuid, name in gpus:
        whole = [b for b in benches if b.probe in _PROBES and not b.part]
        own = [b for b in whole if b.devices == (uuid,)]
        why = ONE_NODE if nodes == 1 else no_choice(_bound(uuid, cells))
        yield _binding(uuid, name, [b for b in own if LOCAL in b.arms], cells, why)


def _binding(
    uuid: str, name: str, own: Sequence[Bench], cells: Sequence[Cell], why: str | None
) -> Advice:
    against = _against(own, NONE, LOCAL)
    node = _node(uuid, cells)
    if not against and why:
        return Advice("binding", name, (uuid,), Outlook.NOT_APPLICABLE, why)
    if not against or node is None:
        text = "no case was measured both unbound and bound to the GPU's own NUMA node"
        return Advice("binding", name, (uuid,), Outlook.NOT_MEASURED, text, (MEASURE,))
    line = (f"CUDA_VISIBLE_DEVICES={uuid} numactl --cpunodebind={node} --membind={node} COMMAND",)
    bench, found = _telling(against)
    outlook = outlook_of(found)
    worse = [c for _, c in against if c.verdict is Change.REGRESSED]
    if outlook is Outlook.GAIN and worse:
        outlook = Outlook.UNDECIDED
    text = {
        Outlook.GAIN: f"bind it to NUMA node {node}: {signed(found)} against no binding",
        Outlook.NO_GAIN: f"no measurable gain from binding it to NUMA node {node}: {signed(found)}",
    }.get(outlook, f"binding to NUMA node {node} is not decided: {signed(found)}")
    if worse:
        text += f"; {len(worse)} of {len(against)} cases are worse for it"
    text += _cost_of_remote(own)
    lines = {Outlook.GAIN: line, Outlook.UNDECIDED: (MEASURE,)}.get(outlook, ())
    if outlook is Outlook.NO_GAIN and "costs" in text:
        lines = line
    return Advice(
        kind="binding",
        subject=name,
        devices=(uuid,),
        outlook=outlook,
        text=text,
        lines=lines,
        evidence=evidence_of(bench, found),
    ).showing(found)


def _bound(uuid: str, cells: Sequence[Cell]) -> Iterator[Cell]:
    """Cells that would run the GPU's process near it."""
    for cell in cells:
        local = cell["arm"].partition("/")[0] == LOCAL
        if local and cell["probe"] in _PROBES and uuid in cell["devices"]:
            yield cell


def _against(own: Sequence[Bench], reference: str, arm: str) -> list[tuple[Bench, Comparison]]:
    """Every case that holds both arms in the same blocks."""
    return [
        (b, compared(b, reference, arm))
        for b in own
        if {reference, arm} <= b.arms.keys() and b.arms[reference].keys() & b.arms[arm].keys()
    ]


def _telling(found: Sequence[tuple[Bench, Comparison]]) -> tuple[Bench, Comparison]:
    """The case to speak of: a decided one before others, then the largest effect."""
    return max(found, key=lambda f: (f[1].lo is not None, abs(f[1].effect_ratio)))


def _cost_of_remote(own: Sequence[Bench]) -> str:
    """What the wrong node costs, where that was measured and decided."""
    found = [f for f in _against(own, LOCAL, REMOTE) if f[1].verdict is Change.REGRESSED]
    if not found:
        return ""
    _, worst = _telling(found)
    return f"; the farthest node costs {signed(worst)} against the near one"


def _node(uuid: str, cells: Sequence[Cell]) -> int | None:
    """The NUMA node on which the GPU's process really ran in the arm ``local``."""
    for cell in cells:
        if cell["status"] not in MEASURED or cell["arm"].partition("/")[0] != LOCAL:
            continue
        for member in cell["members"]:
            if member["device"] == uuid and member["cpu_node"] is not None:
                node: int = member["cpu_node"]
                return node
        nodes = cell["binding"]["cpu_nodes"]
        if list(cell["devices"]) == [uuid] and len(nodes) == 1:
            alone: int = nodes[0]
            return alone
    return None
