"""Chunks, pinned memory and the order of GPUs: what copies between host and device tell."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from topobench.advice.enough import TOLERANCE, Apart, enough, paired
from topobench.advice.words import ONE_GPU, Advice, Cell, Outlook, outlook_of, signed
from topobench.comparison import Comparison, compare
from topobench.fit import PEAK_SHARE
from topobench.probes.metrics import BANDWIDTH, PER_CALL_BANDWIDTH
from topobench.reading import MEASURED, Better, CiLevel
from topobench.units import format_bytes

Pairs = dict[tuple[int, int], float]
"""Median of each process, by block and number of the process."""

USUAL_CHUNK = 1 << 20
"""What a loader takes who measured nothing."""
_MEASURE = "topobench probe --probes host_to_device --profile full"
"""Every chunk on every GPU, in eight blocks: fewer than six decide nothing."""
_ARMS = ("local", "none")


def copies(gpus: Sequence[tuple[str, str]], cells: Sequence[Cell]) -> Iterator[Advice]:
    """
    Advice on the chunk, on pinned memory, and on which GPUs come first.

    Args:
        gpus: UUID and name of each.
    """
    own = _of_one_way(
        [c for c in cells if c["probe"] == "host_to_device" and c["status"] in MEASURED]
    )
    yield _chunk(gpus, own)
    yield _pinned(own)
    yield _order(gpus, own)


def _chunk(gpus: Sequence[tuple[str, str]], cells: Sequence[Cell]) -> Advice:
    sizes = {
        size: _of_all(cells, "h2d", "pinned", size, PER_CALL_BANDWIDTH.name)
        for size in _sizes(cells)
    }
    best = enough(sizes, USUAL_CHUNK)
    if best is None:
        text = "fewer than three chunks of pinned memory were measured on the same GPUs"
        return Advice("chunk", "copies to GPUs", (), Outlook.NOT_MEASURED, text, (_MEASURE,))
    usual, found = format_bytes(best.usual), best.found
    text = f"{format_bytes(best.best)} is the smallest measured chunk that reaches "
    text += (
        f"{100 * PEAK_SHARE:.0f} % of the peak of {best.peak / 1e9:.1f} GB/s a GPU, copy by copy"
    )
    if best.usual >= best.best:
        text += f"; chunks of {usual} are large enough"
    elif found is not None:
        text += f"; {signed(found)} against {usual}"
    return Advice(
        kind="chunk",
        subject="copies to GPUs",
        devices=(),
        outlook=best.outlook,
        text=text,
        lines=(_MEASURE,) if best.outlook is Outlook.UNDECIDED else (),
        evidence=_copies_text(best.settings, best.gpus),
    ).showing(found)


def _copies_text(sizes: int, gpus: int) -> str:
    where = f"{gpus} GPU{'' if gpus == 1 else 's'}"
    return f"host_to_device h2d, {PER_CALL_BANDWIDTH.name}, {sizes} chunks, {where}"


def _pinned(cells: Sequence[Cell]) -> Advice:
    measure = (
        "topobench probe --probes host_to_device --profile full "
        "--set host_to_device.memory=pinned,pageable"
    )
    kinds = {
        kind: {
            s: p
            for s in _sizes(cells)
            if (p := _of_all(cells, "h2d", kind, s, PER_CALL_BANDWIDTH.name))
        }
        for kind in ("pinned", "pageable")
    }
    both = kinds["pinned"].keys() & kinds["pageable"].keys()
    if not both:
        text = "pinned and pageable memory were not both measured"
        return Advice("pinned", "copies to GPUs", (), Outlook.NOT_MEASURED, text, (measure,))
    size = max(both)
    found = paired(kinds["pageable"][size], kinds["pinned"][size])
    if found is None:
        text = "pinned and pageable memory were not measured in the same blocks"
        return Advice("pinned", "copies to GPUs", (), Outlook.UNDECIDED, text, (measure,))
    outlook = outlook_of(found)
    text = f"pin host memory: {signed(found)} at {format_bytes(size)} against pageable"
    if outlook is not Outlook.GAIN:
        text = f"{outlook} from pinned memory at {format_bytes(size)}: {signed(found)}"
    return Advice(
        kind="pinned",
        subject="copies to GPUs",
        devices=(),
        outlook=outlook,
        text=text,
        lines=(measure,) if outlook is Outlook.UNDECIDED else (),
        evidence=f"host_to_device h2d {format_bytes(size)}, {found.n_b} blocks",
    ).showing(found)


def _order(gpus: Sequence[tuple[str, str]], cells: Sequence[Cell]) -> Advice:
    """Which GPUs to name first: the slow ones last, so that a smaller job leaves them out."""
    sizes = _sizes(cells)
    rates = {
        uuid: pairs
        for uuid, _ in gpus
        if sizes and (pairs := _of_gpu(cells, uuid, "h2d", "pinned", max(sizes), BANDWIDTH.name))
    }
    subject = "order of GPUs"
    if len(gpus) < 2:
        return Advice("order", subject, (), Outlook.NOT_APPLICABLE, ONE_GPU)
    if len(rates) < len(gpus):
        text = "copies to each of the GPUs were not measured"
        return Advice("order", subject, (), Outlook.NOT_MEASURED, text, (_MEASURE,))
    against = {uuid: _against_rest(uuid, rates) for uuid in rates}
    slow = [u for u, c in against.items() if c.hi is not None and c.hi < -TOLERANCE]
    size = format_bytes(max(sizes))
    names = dict(gpus)
    worst = min(against, key=lambda u: against[u].effect_ratio)
    found = against[worst]
    lines: tuple[str, ...] = ()
    if slow:
        order = [*(u for u, _ in gpus if u not in slow), *slow]
        text = f"name {', '.join(names[u] for u in slow)} last: {signed(found)} against the others"
        outlook, lines = Outlook.GAIN, (f"CUDA_VISIBLE_DEVICES={','.join(order)}",)
    elif found.lo is None:
        text = f"slowest is {names[worst]}: {signed(found)} against the others"
        outlook, lines = Outlook.UNDECIDED, (_MEASURE,)
    else:
        text = f"keep the usual order: the slowest, {names[worst]}, is {signed(found)}"
        outlook = Outlook.NO_GAIN
    return Advice(
        kind="order",
        subject=subject,
        devices=tuple(u for u, _ in gpus),
        outlook=outlook,
        text=text,
        lines=lines,
        evidence=f"host_to_device h2d {size}, {BANDWIDTH.name}, {found.n_b} processes of it "
        f"against {found.n_a} of the others",
    ).showing(found)


def _against_rest(uuid: str, rates: Mapping[str, Pairs]) -> Comparison:
    """A GPU against the median of the others, process by process."""
    others: dict[tuple[int, int], list[float]] = {}
    for other, pairs in rates.items():
        for key, value in pairs.items():
            if other != uuid:
                others.setdefault(key, []).append(value)
    a = [statistics.median(v) for v in others.values()]
    b = [*rates[uuid].values()]
    return compare(a, b, tolerance=TOLERANCE, better=Better.HIGHER, level=CiLevel.BETWEEN)


def _of_one_way(cells: Sequence[Cell]) -> list[Cell]:
    """
    Those of one arm, on all GPUs at once or on each alone: else arms would be compared, too.

    Of the way in which most kinds and sizes were measured.
    """
    ways = [
        [c for c in cells if c["arm"] == arm and c["params"].get("at_once", "one") == together]
        for arm in _ARMS
        for together in ("all", "one")
    ]
    return max(ways, key=lambda way: len({_kind(c) for c in way}))


def _kind(cell: Cell) -> tuple[Any, ...]:
    return tuple(cell["params"].get(name) for name in ("direction", "memory", "bytes"))


def _sizes(cells: Sequence[Cell]) -> list[int]:
    return sorted({s for c in cells if isinstance(s := c["params"].get("bytes"), int)})


def _of_all(cells: Sequence[Cell], direction: str, memory: str, size: int, metric: str) -> Apart:
    """Every GPU of each process."""
    found: Apart = {}
    for key, device, value in _values(cells, direction, memory, size, metric):
        found.setdefault(key, {})[device] = value
    return found


def _of_gpu(
    cells: Sequence[Cell], uuid: str, direction: str, memory: str, size: int, metric: str
) -> Pairs:
    return {
        key: value
        for key, device, value in _values(cells, direction, memory, size, metric)
        if device == uuid
    }


def _values(
    cells: Sequence[Cell], direction: str, memory: str, size: int, metric: str
) -> Iterator[tuple[tuple[int, int], str, float]]:
    """Block and process, GPU, median."""
    chosen = [c for c in cells if _kind(c) == (direction, memory, size)]
    yield from _medians(chosen, metric)


def _medians(cells: Sequence[Cell], metric: str) -> Iterator[tuple[tuple[int, int], str, float]]:
    for cell in cells:
        alone = cell["devices"][0] if len(cell["devices"]) == 1 else None
        for reading in cell["readings"]:
            device = reading["point"].get("device", alone)
            if reading["metric"] == metric and reading["median"] and device:
                yield (cell["block"], cell["process_no"]), device, reading["median"]
