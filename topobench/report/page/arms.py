"""What a binding is worth: every arm against one reference, with intervals."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from topobench.comparison import Change, Comparison
from topobench.effects import ArmEffect, Bench, arm_effects, bare_name, benches
from topobench.probes.metrics import BUSBW, LATENCY
from topobench.report import figures
from topobench.report.gangs import MIDDLE
from topobench.report.page import plots
from topobench.report.page.parts import Figure, Head, Part, Table
from topobench.report.records import Places
from topobench.report.safe import clean
from topobench.units import format_percent

MOST_LINES = 24
"""Lines of the figure: the cases that differ most."""
_APART = 0.2
"""Between the arms of a line."""
_SIZES = 3
_SYMBOLS = {Change.INCONCLUSIVE: "circle-open", Change.EQUIVALENT: "circle"}


def arms(name: str, cells: Sequence[Mapping[str, Any]], places: Places) -> Iterator[Part]:
    """
    The figure of binding arms of one host; nothing where one arm was measured.

    Args:
        cells: Of any probe; ring arms are shown with the collectives.
    """
    effects = list(_effects([c for c in cells if c.get("ring") in (None, "auto")]))
    if effects:
        yield _figure(name, effects, places)


def _effects(cells: Sequence[Mapping[str, Any]]) -> Iterator[ArmEffect]:
    found = benches(cells)
    kept = _few_sizes(found)
    told = _told_once([b for b in found if b.param("bytes") in kept[_family(b)]])
    return arm_effects(told)


def _told_once(found: Sequence[Bench]) -> list[Bench]:
    """Of collectives the time of small messages or the bandwidth of large: one says the other."""
    both = {_case(b) for b in found if b.metric == BUSBW.name}
    left_out = {
        _case(b): BUSBW.name if int(b.param("bytes") or 0) < MIDDLE else LATENCY.name
        for b in found
        if _case(b) in both
    }
    return [b for b in found if left_out.get(_case(b)) != b.metric]


def _case(bench: Bench) -> Any:
    return bench.host, bench.probe, bench.params, bench.devices, bench.ranks


def _few_sizes(found: Sequence[Bench]) -> dict[Any, set[Any]]:
    """Of each series of sizes the smallest, the middle and the largest."""
    sizes: dict[Any, set[Any]] = {}
    for bench in found:
        sizes.setdefault(_family(bench), set()).add(bench.param("bytes"))
    kept = {}
    for family, values in sizes.items():
        known = sorted(v for v in values if v is not None)
        ends = {known[n * (len(known) - 1) // (_SIZES - 1)] for n in range(_SIZES)} if known else ()
        kept[family] = {*ends, *(v for v in values if v is None)}
    return kept


def _family(bench: Bench) -> Any:
    fixed = tuple((k, v) for k, v in bench.params if k != "bytes")
    return bench.probe, fixed, bench.devices, bench.ranks, bench.metric


def _figure(name: str, effects: Sequence[ArmEffect], places: Places) -> Figure:
    strongest: dict[str, float] = {}
    for effect in effects:
        label, size = _label(effect.bench), abs(effect.found.effect_ratio)
        strongest[label] = max(size, strongest.get(label, 0.0))
    kept = sorted(strongest, key=lambda n: -strongest[n])[:MOST_LINES]
    lines = [label for label in strongest if label in kept]
    names = list(dict.fromkeys(e.arm for e in effects))
    traces = []
    for number, arm in enumerate(names):
        own = [e for e in effects if e.arm == arm and _label(e.bench) in kept]
        offset = (number - (len(names) - 1) / 2) * _APART
        if own:
            heights = [lines.index(_label(e.bench)) + offset for e in own]
            traces.append(_trace(arm, own, heights, plots.colour(number), places))
    return Figure(
        name=f"{name}-arms",
        title="What each arm is worth",
        lead=_lead(effects, len(strongest) - len(kept)),
        traces=traces,
        layout={
            "height": 130 + 34 * len(lines),
            "xaxis": plots.effect_axis(
                "better than the reference, %",
                [100 * x for e in effects for x in _reach(e.found)],
            ),
            "yaxis": {
                "tickvals": list(range(len(lines))),
                "ticktext": lines,
                "range": [len(lines) - 0.5, -0.5],
                "zeroline": False,
                "tickfont": {"size": 11},
            },
        },
        table=Table(_HEADS, [_row(e, places) for e in effects]).limited(),
    )


def _lead(effects: Sequence[ArmEffect], left: int) -> str:
    references = " or ".join(dict.fromkeys(bare_name(e.reference) for e in effects))
    text = (
        f"Each arm against arm {references} on the same devices, paired block by block; right is "
        "better. A point for each GPU or set of GPUs, bars are 95 % intervals over blocks."
    )
    undecided = sum(e.found.lo is None for e in effects)
    if undecided:
        text += (
            f" {undecided} of {len(effects)} comparisons have no interval: fewer than six blocks "
            "decide nothing."
        )
    text += " Hollow: inconclusive; round: equivalent; diamonds: better or worse."
    return f"{text} {left} cases with smaller effects are in the table." if left > 0 else text


_HEADS = (
    Head("what"),
    Head("on"),
    Head("arm"),
    Head("against"),
    Head("median", number=True),
    Head("reference", number=True),
    Head("effect", number=True),
    Head("95 % interval", number=True),
    Head("could be seen from", number=True),
    Head("blocks", number=True),
    Head("verdict"),
)


def _row(effect: ArmEffect, places: Places) -> list[str]:
    bench, found = effect.bench, effect.found
    return [
        _label(bench),
        places.devices(bench.devices),
        effect.arm,
        effect.reference,
        figures.quantity(bench.metric, effect.median),
        figures.quantity(bench.metric, bench.median(effect.reference)),
        figures.signed_percent(found.effect_ratio),
        _ends(found),
        figures.UNKNOWN if found.mde is None else format_percent(found.mde),
        str(found.n_b),
        found.verdict.value,
    ]


def _label(bench: Bench) -> str:
    """``host_to_device h2d 64 KiB, queued bandwidth``: all but the devices."""
    metric = figures.label(bench.metric) + (f" {clean(bench.part)}" if bench.part else "")
    return f"{clean(bench.words)}, {metric}"


def _trace(
    arm: str,
    own: Sequence[ArmEffect],
    heights: Sequence[float],
    shade: str,
    places: Places,
) -> dict[str, Any]:
    middles = [e.found.effect_ratio for e in own]
    highs = [x if e.found.hi is None else e.found.hi for e, x in zip(own, middles, strict=True)]
    lows = [x if e.found.lo is None else e.found.lo for e, x in zip(own, middles, strict=True)]
    return plots.dots(
        arm,
        [round(100 * x, 3) for x in middles],
        heights,
        shade=shade,
        error=(
            [round(100 * (h - x), 3) for h, x in zip(highs, middles, strict=True)],
            [round(100 * (x - low), 3) for low, x in zip(lows, middles, strict=True)],
        ),
        text=[
            f"{places.devices(e.bench.devices)}: {figures.signed_percent(e.found.effect_ratio)} "
            f"({_ends(e.found)}), {e.found.verdict}"
            for e in own
        ],
        symbols=[_SYMBOLS.get(e.found.verdict, "diamond") for e in own],
    )


def _reach(found: Comparison) -> Iterator[float]:
    """The effect with the ends of its interval, where it has one."""
    yield found.effect_ratio
    yield from (x for x in (found.lo, found.hi) if x is not None)


def _ends(found: Comparison) -> str:
    if found.lo is None or found.hi is None:
        return "none"
    return f"{100 * found.lo:+.1f} to {100 * found.hi:+.1f} %"
