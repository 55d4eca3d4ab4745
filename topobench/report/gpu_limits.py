"""What limits the GPUs of a sweep: measured roofs, losses by sharing, published figures."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich.console import RenderableType

from topobench import contention, expectations, roofline
from topobench.contention import Contention
from topobench.device_figures import DeviceFigure, device_figures
from topobench.expectations import Deviation, Kind
from topobench.reading import Scalar
from topobench.report.figures import quantity
from topobench.report.records import Places
from topobench.report.safe import clean
from topobench.report.sheet import Prose
from topobench.roofline import CEILINGS, Bound, Bounds, Roof, Work
from topobench.shared_paths import SharedPath
from topobench.units import count, format_bytes, format_percent, format_rate, format_seconds

Cell = Mapping[str, Any]
Host = Mapping[str, Any]

MOST_LINES = 16
WHOSE = {
    Kind.MEASURED: "others measured",
    Kind.FLOOR: "an operator asks for at least",
    Kind.THEORY: "the makers say at most",
}
"""What a published figure is, in words."""
_ORDER = tuple(Bound)
_WAYS: Mapping[Scalar, str] = {"both": "both ways", "all": "all at once"}
_LINKS = {"h2d": "to the device", "d2h": "from it", "both": "both ways"}


def roofline_section(cells: Sequence[Cell], places: Places) -> Iterator[RenderableType]:
    """The measured roof of each GPU, equal words told once, and what bounds each work."""
    figures = device_figures(cells)
    roofs = {p: r for p, r in roofline.roofs(figures).items() if _is_roof(r)}
    for text, where in _alike({p: _roof_text(r) for p, r in roofs.items()}):
        yield Prose(f"{gpus_text(where, places)}: {text}")
    for bounds, works in works_by_bound(cells).items():
        yield Prose(bounds_text(bounds, works))


def contention_section(
    cells: Sequence[Cell], hosts: Sequence[Host], places: Places
) -> Iterator[RenderableType]:
    """What GPUs lose when all are measured at once, by what they share."""
    found = losses(cells, hosts)
    for loss in found:
        yield Prose(_loss_text(loss, places), style="yellow")
    if not found and (text := kept_text(cells)):
        yield Prose(text)


def expectations_section(
    cells: Sequence[Cell], hosts: Sequence[Host], places: Places
) -> Iterator[RenderableType]:
    """Figures far from published ones; advice, never a verdict."""
    found = expectations.deviations(device_figures(cells), models_of(hosts))
    for deviation in found[:MOST_LINES]:
        yield Prose(_deviation_text(deviation, places), style="yellow")
    if len(found) > MOST_LINES:
        more = count(len(found) - MOST_LINES, "figure")
        yield Prose(f"{more} more far from a published one")


def works_by_bound(cells: Sequence[Cell]) -> dict[Bounds, list[str]]:
    """What the work of probes is bound by on the GPUs of a sweep, in words."""
    figures = device_figures(cells)
    found = [
        (bounds, figure)
        for figure, work, roof in _worked(figures)
        if (bounds := roofline.bounds_of(work, roof))
    ]
    works = _named(found)
    return {b: works[b] for b in sorted(works, key=lambda b: (len(b), [*map(_ORDER.index, b)]))}


def bounds_text(bounds: Bounds, works: Sequence[str]) -> str:
    """``bound by memory: ...``; of several bounds, that none alone is it."""
    if len(bounds) == 1:
        return f"bound by {bounds[0]}: {'; '.join(works)}"
    return f"{shared_bound(bounds)} count in {'; '.join(works)}"


def shared_bound(bounds: Bounds) -> str:
    """``no single bound: launch and host link both``."""
    *others, last = bounds
    return f"no single bound: {', '.join(others)} and {last} {'all' if others[1:] else 'both'}"


def roofline_document(cells: Sequence[Cell], places: Places) -> dict[str, Any]:
    """The same as JSON, with what was not measured and the command that would (advise)."""
    figures = device_figures(cells)
    roofs = {p: r for p, r in roofline.roofs(figures).items() if _is_roof(r)}
    return {
        "ceilings": [
            {"on": gpus_text(where, places), "text": text}
            for text, where in _alike({p: _roof_text(r) for p, r in roofs.items()})
        ],
        "bounds": [
            {"bounds": [*bounds], "work": works, "text": bounds_text(bounds, works)}
            for bounds, works in works_by_bound(cells).items()
        ],
        "unknown": [*unknown_bounds(cells)],
    }


def unknown_bounds(cells: Sequence[Cell]) -> Iterator[dict[str, Any]]:
    """Work whose bound no GPU of the sweep tells, by the ceilings that it lacks."""
    worked = [*_worked(device_figures(cells))]
    known = {_what(f) for f, work, roof in worked if not roofline.lacking(work, roof)}
    rest = [(roofline.lacking(w, r), f, w) for f, w, r in worked if _what(f) not in known]
    for lacks, works in _named((bounds, f) for bounds, f, _ in rest).items():
        own = [(f, w) for bounds, f, w in rest if bounds == lacks]
        probes = [f.probe for f, _ in own]
        probes += [CEILINGS[b] for _, w in own for b in roofline.needed(w)]
        line = f"topobench probe --probes {','.join(dict.fromkeys(probes))}"
        if Bound.COMPUTE in lacks:
            line += f" --set gemm.dtype={','.join(dict.fromkeys(w.dtype for _, w in own))}"
        yield {
            "lacks": [*lacks],
            "work": works,
            "text": f"not known, for the ceiling of {' and '.join(lacks)} was not measured: "
            f"{'; '.join(works)}",
            "lines": [line],
        }


def losses(cells: Sequence[Cell], hosts: Sequence[Host]) -> list[Contention]:
    """What GPUs lose when all are measured at once: of each path and host the worst."""
    paths = {
        h["key"]: [SharedPath.from_json(p) for p in h["description"].get("shared_paths") or ()]
        for h in hosts
    }
    return _worst_of_each_path(contention.find(device_figures(cells), paths))


def kept_text(cells: Sequence[Cell]) -> str:
    """That no GPU loses, where each was measured alone and while all were busy; else nothing."""
    kept = contention.kept(device_figures(cells))
    shares = ", ".join(f"{probe} {format_percent(share)}" for probe, share in kept.items())
    least = f"no GPU loses more than {format_percent(contention.LOSS)} while all are busy"
    return f"{least}; the least that one kept: {shares}" if kept else ""


def models_of(hosts: Sequence[Host]) -> dict[str, str]:
    """The model of a host's GPUs by host key; hosts with several models are left out."""
    return {
        h["key"]: h["description"]["gpus"][0]["model"]
        for h in hosts
        if len(h["description"].get("gpus") or ()) == 1
    }


def _is_roof(roof: Roof) -> bool:
    return any((roof.memory, roof.flop, roof.link, roof.launch))


def _roof_text(roof: Roof) -> str:
    parts = [f"memory {format_rate(roof.memory)}"] if roof.memory else []
    parts += [f"{d} {quantity('flop_per_second', v)}" for d, v in sorted(roof.flop.items())]
    parts += [
        f"host link {format_rate(roof.link[d])} {words}"
        for d, words in _LINKS.items()
        if d in roof.link
    ]
    parts += [f"launch {format_seconds(roof.launch)}"] if roof.launch else []
    for dtype in sorted(roof.flop):
        if ridge := roof.ridge(dtype):
            parts.append(f"{dtype} work is bound by compute from {ridge:.0f} FLOP a byte on")
    if size := roof.launch_bytes("h2d"):
        rounded = format_bytes(1024 * round(size / 1024))
        parts.append(f"a copy of {rounded} takes as long as a launch")
    return ", ".join(parts)


def _alike(
    texts: Mapping[tuple[str, str], str],
) -> list[tuple[str, list[tuple[str, str]]]]:
    """Places by their text, in order."""
    found: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for place, text in texts.items():
        found[text].append(place)
    shown = list(found.items())
    return shown[:MOST_LINES]


def gpus_text(where: Sequence[tuple[str, str]], places: Places) -> str:
    """``GPU 0-3`` of one host; of several, each host's."""
    by_host: dict[str, list[str]] = defaultdict(list)
    for host, device in where:
        by_host[host].append(device)
    return ", ".join(
        places.unit({"host": host, "devices": sorted(found), "ranks": len(found)})
        for host, found in by_host.items()
    )


def _worked(figures: Sequence[DeviceFigure]) -> Iterator[tuple[DeviceFigure, Work, Roof]]:
    """
    Figures of probes that the roofline knows, with the roof of their GPU.

    A model that several GPUs share also waits for their all-reduces, which no roof tells.
    """
    roofs = roofline.roofs(figures)
    for figure in figures:
        work = roofline.work_of(figure.probe, figure.params)
        if work and len(figure.devices) == 1:
            yield figure, work, roofs.get((figure.host, figure.devices[0]), Roof())


def _named(found: Iterable[tuple[Bounds, DeviceFigure]]) -> dict[Bounds, list[str]]:
    """Probes with their sizes by bounds; of each work what the first GPU says."""
    seen: set[tuple[str, int | None]] = set()
    sizes: dict[tuple[Bounds, str], list[DeviceFigure]] = defaultdict(list)
    for bounds, figure in found:
        if _what(figure) not in seen:
            seen.add(_what(figure))
            sizes[bounds, _work_name(figure)].append(figure)
    named: dict[Bounds, list[str]] = defaultdict(list)
    for (bounds, name), figures in sizes.items():
        named[bounds].append(f"{name}{_sizes_text(figures)}")
    return named


def _what(figure: DeviceFigure) -> tuple[str, int | None]:
    return _work_name(figure), _size_of(figure)


def _work_name(figure: DeviceFigure) -> str:
    keys = ("op", "direction", "shape", "dtype", "kv_dtype", "size", "mode")
    words = [clean(figure.params[k]) for k in keys if figure.params.get(k) is not None]
    words += [_WAYS[ways]] if (ways := figure.params.get("ways")) in _WAYS else []
    batch = figure.params.get("batch")
    words += [f"x {batch}"] if figure.params.get("context") or batch not in (None, 1) else []
    return " ".join([clean(figure.probe), *words])


def _size_of(figure: DeviceFigure) -> int | None:
    """Bytes that it moves, or tokens of its prompt or context."""
    found = (figure.params.get(name) for name in ("bytes", "sequence", "context"))
    return next((size for size in found if isinstance(size, int)), None)


def _sizes_text(figures: Sequence[DeviceFigure]) -> str:
    """`` 4 KiB to 1 MiB``, `` 512 to 8192 tokens``."""
    sizes = [s for f in figures if (s := _size_of(f)) is not None]
    if not sizes:
        return ""
    of_bytes = "bytes" in figures[0].params
    ends = [format_bytes(s) if of_bytes else str(s) for s in (min(sizes), max(sizes))]
    return f" {' to '.join(dict.fromkeys(ends))}" + ("" if of_bytes else " tokens")


def _worst_of_each_path(found: Sequence[Contention]) -> list[Contention]:
    """One line for each path and host: the kind of measurement that loses most."""
    worst: dict[tuple[str, SharedPath | None], Contention] = {}
    for loss in found:
        key = loss.host, loss.path
        if key not in worst or loss.share < worst[key].share:
            worst[key] = loss
    return sorted(worst.values(), key=lambda c: c.share)[:MOST_LINES]


def _loss_text(loss: Contention, places: Places) -> str:
    figure = loss.figure
    alone, together, total = (
        quantity(figure.metric, v) for v in (loss.alone, loss.together, loss.total)
    )
    devices = gpus_text([(loss.host, d) for d in loss.devices], places)
    return (
        f"{devices}: {together} each with all GPUs at once, {alone} alone "
        f"({format_percent(loss.share)}), {total} together, in {work_text(figure)}, arm "
        f"{clean(figure.arm)}; {shared_text(loss)}"
    )


def shared_text(loss: Contention) -> str:
    """``they share the PCIe switch 0000:16:00.0``."""
    if loss.figure.probe not in contention.OVER_PATHS:
        return "no path between GPUs and host carries this work: power, heat or the host"
    if loss.path is None and len(loss.devices) == 1:
        return "the others do not, so no shared path explains it"
    if loss.path is None:
        return "they share no path that is known"
    return f"they share the {loss.path.kind} {clean(loss.path.name)}"


def work_text(figure: DeviceFigure) -> str:
    """``host_to_device h2d 64 MiB``."""
    return _work_name(figure) + _sizes_text([figure])


def _deviation_text(found: Deviation, places: Places) -> str:
    figure, wanted = found.figure, found.expectation
    told, value = (quantity(figure.metric, v) for v in (figure.value, wanted.value))
    where = gpus_text([(figure.host, d) for d in figure.devices], places)
    return (
        f"{where}: {work_text(figure)}: {told} is {found.ratio:.2f} x of the {value} that "
        f"{WHOSE[wanted.kind]} "
        f"({wanted.source}, {wanted.date})"
    )
