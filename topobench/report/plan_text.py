"""What a sweep would run, leave out and cost."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from topobench.reading import BENIGN, MEASURED, Status
from topobench.report import figures
from topobench.report.grid import in_order
from topobench.report.problems import left_out
from topobench.report.safe import clean
from topobench.report.sheet import Column, Prose, Sheet, facts
from topobench.report.words import counts_text, shown_params, warning_text
from topobench.units import count, format_span

Cell = Mapping[str, Any]

MOST_HOSTS = 20
MOST_VALUES = 8


def render_plan(data: Mapping[str, Any]) -> RenderableType:
    """
    The plan of a sweep.

    Args:
        data: Of ``topobench plan --format json`` (docs/schemas/plan.json).
    """
    return Group(*_parts(data))


def _parts(data: Mapping[str, Any]) -> Iterator[RenderableType]:
    yield Text("topobench plan", style="bold")
    yield facts(
        [
            ("cluster", clean(data["cluster"])),
            ("profile", clean(data["profile"])),
            ("cost", _cost(data)),
            ("seed", clean(data["seed"])),
            ("store", clean(data.get("store") or "")),
        ]
    )
    yield Text("")
    yield Text("HOSTS", style="bold")
    yield _hosts(data["hosts"])
    yield Text("")
    run = [c for c in data["cells"] if c["status"] == Status.PLANNED]
    yield Text("WOULD RUN", style="bold")
    yield from _would_run(run) if run else [Prose("Nothing.")]
    yield Text("")
    left = [c for c in data["cells"] if c["status"] in BENIGN - MEASURED]
    if left:
        yield Text("LEFT OUT", style="bold")
        yield from left_out(left, len(data["hosts"]))
        yield Text("")
    for warning in data["warnings"]:
        yield Prose(f"warning: {warning_text(warning)}", indent=0, style="yellow")
    out = {s: n for s, n in data["counts"].items() if s != Status.PLANNED}
    shown = [count(len(run), "cell") + " to run", *([counts_text(out)] if out else [])]
    yield Text(f"{', '.join(shown)}; {_cost(data)}; nothing was run", style="bold")


def _cost(data: Mapping[str, Any]) -> str:
    time = f"about {format_span(data['estimated_seconds'])}"
    hours = data["gpu_hours"]
    if not hours:
        return f"{time}, no GPU time"
    return f"{time}, {figures.number(hours, figures.Scale(1, ''))} GPU-hours"


def _hosts(hosts: Sequence[Mapping[str, Any]]) -> Sheet:
    """A few by name, many by hardware."""
    if len(hosts) <= MOST_HOSTS:
        return facts((clean(h["name"]), clean(h["sku"] or "unknown hardware")) for h in hosts)
    kinds = Counter(clean(h["sku"] or "unknown hardware") for h in hosts)
    return facts((count(n, "host"), kind) for kind, n in kinds.most_common())


def _would_run(cells: Sequence[Cell]) -> Iterator[RenderableType]:
    columns = [
        Column("probe"),
        Column("cells", number=True),
        Column("time", number=True),
        Column("what"),
    ]
    rows = []
    for probe in dict.fromkeys(c["probe"] for c in cells):
        own = [c for c in cells if c["probe"] == probe]
        rows.append([clean(probe), str(len(own)), format_span(_longest_host(own)), _what(own)])
    yield Sheet(columns, rows)
    yield Prose("time: of the busiest host, without starting the workers.", style="dim")


def _longest_host(cells: Sequence[Cell]) -> float:
    """Seconds that the busiest host spends; hosts work side by side."""
    spent: dict[str, float] = defaultdict(float)
    for cell in cells:
        spent[cell["host"]] += cell["estimated_seconds"]
    return max(spent.values())


def _what(cells: Sequence[Cell]) -> str:
    """``chunk 64 KiB, 1 MiB; direction d2h, h2d; arms none, local; 8 GPUs; 2 processes``."""
    parts = []
    for name in dict.fromkeys(n for c in cells for n in shown_params(c["params"]) if n != "ranks"):
        all_values = [v for (v,) in in_order({(c["params"].get(name),) for c in cells})]
        if values := [v for v in all_values if v is not None]:
            some = "" if values == all_values else " in some"
            parts.append(f"{figures.label(name)} {_values(name, values)}{some}")
    arms = [str(a) for (a,) in in_order({(c["arm"],) for c in cells})]
    parts.append(f"{'arm' if len(arms) == 1 else 'arms'} {_values('arm', arms)}")
    devices = {d for c in cells for d in c["devices"]}
    parts += [count(len(devices), "GPU")] if devices else []
    ranks = sorted({c["ranks"] for c in cells} - {1})
    parts += [f"{_values('ranks', ranks)} ranks"] if ranks else []
    processes = 1 + max(c["process_no"] for c in cells)
    parts += [f"{processes} processes each"] if processes > 1 else []
    blocks = 1 + max(c["block"] for c in cells)
    parts += [f"{blocks} blocks"] if blocks > 1 else []
    return "; ".join(parts)


def _values(name: str, values: Sequence[Any]) -> str:
    """Up to eight values; of more, the ends and how many."""
    shown = [figures.quantity(name, v) for v in values]
    if len(shown) > MOST_VALUES:
        return f"{shown[0]} ... {shown[-1]} ({len(shown)} values)"
    return ", ".join(shown)
