"""Advice for a terminal: gains first, what is missing last."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from topobench.report.safe import clean, command
from topobench.report.sheet import Prose, facts
from topobench.report.words import minute
from topobench.units import count

Item = Mapping[str, Any]

_TITLES = (
    ("found", "TAKE OUT OF SERVICE (printed, never run)", "red"),
    ("gain", "WORTH DOING", "green"),
    ("no measurable gain", "NO MEASURABLE GAIN", ""),
    ("not decided", "NOT DECIDED", "yellow"),
    ("not measured", "NOT MEASURED", "dim"),
    ("does not apply", "DOES NOT APPLY", "dim"),
)
_WORDS = {
    "binding": "binding",
    "order": "order",
    "ring": "ring",
    "nic": "NIC",
    "chunk": "chunk",
    "pinned": "pinned memory",
    "readers": "threads",
    "out_of_service": "host",
}


def render_advice(data: Mapping[str, Any]) -> RenderableType:
    """
    What ``topobench advise`` found.

    Args:
        data: Of ``topobench advise --format json`` (docs/schemas/advise.json).
    """
    return Group(*_parts(data))


def _parts(data: Mapping[str, Any]) -> Iterator[RenderableType]:
    host, status = data["host"], data["sweep_status"]
    ended = "" if status == "done" else f", {clean(status)}: what it measured so far"
    yield Text(f"topobench advice for {clean(host['name'])}", style="bold")
    yield facts(
        [
            ("cluster", clean(host["cluster"])),
            ("hardware", clean(host["sku"] or "")),
            (
                "measured",
                f"sweep {clean(data['sweep'])[:8]}, {minute(data['measured_at'])} UTC{ended}",
            ),
            ("data", "SYNTHETIC: made by topobench demo" if data["synthetic"] else ""),
        ]
    )
    for outlook, title, style in _TITLES:
        chosen = [a for a in data["advice"] if a["outlook"] == outlook]
        if chosen:
            yield Text(f"\n{title}", style=f"bold {style}".strip())
            yield from _together(chosen)
    yield from _roofline(data["roofline"])


def _roofline(found: Mapping[str, Any]) -> Iterator[RenderableType]:
    """What bounds each work on these GPUs, by the words of the report."""
    if any(found.values()):
        yield Text("\nROOFLINE", style="bold")
    for ceiling in found["ceilings"]:
        yield Prose(f"{clean(ceiling['on'])}: {clean(ceiling['text'])}")
    for item in (*found["bounds"], *found["unknown"]):
        yield Prose(clean(item["text"]))
        for line in item.get("lines", ()):
            yield command(f"  {line}")


def _together(items: Sequence[Item]) -> Iterator[RenderableType]:
    """Items that say the same of several GPUs are told once."""
    if nics := [i for i in items if i["kind"] == "nic"]:
        named = "; ".join(f"{clean(i['subject'])}: {clean(i['text'])}" for i in nics)
        yield Prose(f"NIC, {named}")
        yield Prose(f"from {clean(nics[0]['evidence'])}", indent=4, style="dim")
        items = [i for i in items if i["kind"] != "nic"]
    alike: dict[tuple[str, str, tuple[str, ...]], list[Item]] = {}
    for item in items:
        lines = () if item["kind"] == "binding" and item["outlook"] == "gain" else item["lines"]
        alike.setdefault((item["kind"], item["text"], tuple(lines)), []).append(item)
    for (kind, text, _), found in alike.items():
        subjects = ", ".join(clean(i["subject"]) for i in found[:8])
        more = f" and {count(len(found) - 8, 'other')}" if len(found) > 8 else ""
        yield Prose(f"{_WORDS.get(kind, clean(kind))}, {subjects}{more}: {clean(text)}")
        if evidence := found[0]["evidence"]:
            yield Prose(f"from {clean(evidence)}", indent=4, style="dim")
        for line in dict.fromkeys(line for i in found for line in i["lines"]):
            yield command(f"  {line}")
        for item in found:
            if item["file"]:
                yield Prose(f"written: {clean(item['file'])}", indent=4)
                yield Prose(f"valid only for {', '.join(item['valid_for'])}", indent=4)
