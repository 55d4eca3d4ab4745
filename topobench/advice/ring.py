"""Which ring an all-reduce should take, with the graph file that was measured."""

from __future__ import annotations

import base64
import binascii
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from topobench.advice.words import (
    Advice,
    Cell,
    Outlook,
    RingFile,
    evidence_of,
    no_choice,
    outlook_of,
    signed,
)
from topobench.comparison import Change, Comparison
from topobench.effects import Bench, compared
from topobench.probes.metrics import BUSBW
from topobench.reading import MEASURED
from topobench.rings import AUTO, AUTO_RING, IDENTITY, RING_ONLY, WORST
from topobench.units import format_bytes

MEASURE = "topobench probe --cluster cluster.yaml --probes all_reduce --profile full"
_SEARCHED = (AUTO, AUTO_RING)
"""NCCL's own rings: no file goes with them."""
_NEVER = (IDENTITY, WORST)
"""Arms that prove or warn; nobody wants them."""


def rings(
    benches: Sequence[Bench], cells: Sequence[Cell], names: Mapping[tuple[str, ...], str], host: str
) -> Iterator[Advice]:
    """
    A piece of advice for each set of GPUs whose rings were compared.

    Args:
        names: What a set of GPUs is called.
        host: Name of the host, for that of the file.
    """
    wanted = [b for b in benches if b.probe == "all_reduce" and b.metric == BUSBW.name]
    own = [_without_settings(b) for b in wanted if b.devices]
    sets = dict.fromkeys(b.devices for b in own if len(_ring_names(b)) > 1)
    if not sets and (why := no_choice(c for c in cells if _orders(c))):
        yield Advice("ring", "all-reduce", (), Outlook.NOT_APPLICABLE, why)
    elif not sets:
        text = "no two rings were measured on the same GPUs"
        yield Advice("ring", "all-reduce", (), Outlook.NOT_MEASURED, text, (_how(()),))
    for devices in sets:
        found = [b for b in own if b.devices == devices]
        yield _ring(devices, names[devices], found, cells, host)


def _orders(cell: Cell) -> bool:
    """Whether it would be an all-reduce along an order of the GPUs."""
    return cell["probe"] == "all_reduce" and cell["ring"] not in (None, *_SEARCHED)


def _without_settings(bench: Bench) -> Bench:
    """A bench without the arms that compare environments: they are no rings."""
    return replace(bench, arms={arm: v for arm, v in bench.arms.items() if "+" not in arm})


def _ring_names(bench: Bench) -> set[str]:
    return {arm.partition("/")[2] for arm in bench.arms}


def _ring(
    devices: tuple[str, ...],
    subject: str,
    own: Sequence[Bench],
    cells: Sequence[Cell],
    host: str,
) -> Advice:
    candidates = {
        arm: effects
        for arm in dict.fromkeys(a for b in own for a in b.arms)
        if arm.partition("/")[2] not in (AUTO, *_NEVER, "") and (effects := _effects(own, arm))
    }
    if not candidates:
        text = "no ring was measured in the same blocks as NCCL's own choice (arm auto)"
        return Advice("ring", subject, devices, Outlook.NOT_MEASURED, text, (_how(devices),))
    arm = max(candidates, key=lambda a: _merit(candidates[a]))
    bench, found = candidates[arm][-1]
    outlook = outlook_of(found)
    worse = [b for b, c in candidates[arm] if c.verdict is Change.REGRESSED]
    ring = arm.partition("/")[2]
    size = format_bytes(int(str(bench.param("bytes"))))
    text = f"ring {ring}: {signed(found)} at {size} against NCCL's own choice"
    if outlook is Outlook.NO_GAIN:
        text = f"leave the rings to NCCL: the fastest other, {ring}, is {signed(found)} at {size}"
    elif worse:
        sizes = ", ".join(format_bytes(int(str(b.param("bytes")))) for b in worse)
        text += f"; slower at {sizes}"
    file = _file(devices, arm, cells, host) if outlook is Outlook.GAIN else None
    lines = tuple(f"export {k}={v}" for k, v in RING_ONLY.items())
    if outlook is Outlook.GAIN and file is None and ring not in _SEARCHED:
        text += "; its graph file is not stored, so it must be measured again"
        lines = (_how(devices),)
    return Advice(
        kind="ring",
        subject=subject,
        devices=devices,
        outlook=outlook,
        text=text,
        lines={Outlook.GAIN: lines, Outlook.UNDECIDED: (_how(devices),)}.get(outlook, ()),
        evidence=evidence_of(bench, found),
        ring=file,
    ).showing(found)


def _how(devices: Sequence[str]) -> str:
    """The command that decides between rings of these GPUs; of two, all orders are one."""
    names = "auto, auto_ring" if len(devices) == 2 else "auto, auto_ring, best"
    return f"{MEASURE}    # with rings: [{names}] in the file"


def _effects(own: Sequence[Bench], arm: str) -> list[tuple[Bench, Comparison]]:
    """The arm against NCCL's choice under the same binding, the largest message last."""
    reference = f"{arm.partition('/')[0]}/{AUTO}"
    found = [
        (b, compared(b, reference, arm))
        for b in own
        if {reference, arm} <= b.arms.keys() and b.arms[reference].keys() & b.arms[arm].keys()
    ]
    return sorted(found, key=lambda f: int(str(f[0].param("bytes") or 0)))


def _merit(found: Sequence[tuple[Bench, Comparison]]) -> float:
    """By the largest message: what can be told for sure, else what was seen."""
    last = found[-1][1]
    return last.effect_ratio if last.lo is None else last.lo


def _file(devices: tuple[str, ...], arm: str, cells: Sequence[Cell], host: str) -> RingFile | None:
    """The graph file of an arm, as a run of it stored what NCCL was given."""
    for cell in cells:
        if cell["status"] not in MEASURED or cell["arm"] != arm:
            continue
        nccl = (cell["conditions"] or {}).get("nccl") or {}
        if tuple(cell["devices"]) != devices or "graph" not in nccl:
            continue
        channels = nccl.get("channels")
        text = _unpacked(nccl["graph"])
        if text is None or not isinstance(channels, int):
            continue
        limits = {"NCCL_MIN_CTAS": str(channels), "NCCL_MAX_CTAS": str(channels)}
        ring = arm.partition("/")[2]
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", f"ring-{host}-{len(devices)}gpus-{ring}")
        return RingFile(name[:120], text, {**RING_ONLY, **limits}, devices)
    return None


def _unpacked(packed: str) -> str | None:
    """A text that conditions keep compressed; None if it is damaged."""
    try:
        return zlib.decompress(base64.b64decode(packed, validate=True)).decode()
    except (binascii.Error, zlib.error, UnicodeDecodeError):
        return None
