"""Which host or path explains slow figures between hosts, in sentences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import RenderableType

from topobench import culprits
from topobench.culprits import Culprit, Fault, Finding
from topobench.reading import MEASURED
from topobench.report import figures
from topobench.report.records import Places
from topobench.report.safe import clean
from topobench.report.sheet import Prose
from topobench.units import count, format_rate

Cell = Mapping[str, Any]
_NEXT = "its NIC, its cable or its switch port"


def network_section(cells: Sequence[Cell], places: Places) -> Iterator[RenderableType]:
    """Of each kind of pair measured: the culprits by name, or that nobody stands out."""
    for title, found in _by_case(cells).items():
        flows = [flow for cell in found for flow in _flows(cell)]
        if not flows:
            continue
        finding = culprits.find(flows)
        hosts = {h for f in flows for h in (f.sender, f.receiver)}
        values = [f.value for f in flows]
        yield Prose(
            f"{title}: {count(len(flows), 'direction')} between {count(len(hosts), 'host')}, "
            f"{format_rate(min(values))} to {format_rate(max(values))}; "
            + (f"{finding.slow} slow" if finding.slow else "no host stands out")
        )
        for culprit in finding.culprits:
            yield Prose(_sentence(culprit, finding, places, found), style="bold red")


def _by_case(cells: Sequence[Cell]) -> dict[str, list[Cell]]:
    """Measured pairs by probe and the parameters beside the direction."""
    found: dict[str, list[Cell]] = {}
    for cell in cells:
        if cell["status"] in MEASURED and len(set(cell.get("hosts") or ())) == 2:
            other = [
                f"{figures.label(k)} {figures.quantity(k, v)}"
                for k, v in cell["params"].items()
                if k != "direction"
            ]
            title = f"{clean(cell['probe'])} ({', '.join(other)})"
            found.setdefault(title, []).append(cell)
    return found


def _flows(cell: Cell) -> Iterator[culprits.Flow]:
    for reading in cell["readings"]:
        if reading["metric"] == culprits.BANDWIDTH and reading["median"] is not None:
            yield from culprits.directed(cell["hosts"], cell["params"], reading["median"])


def _sentence(culprit: Culprit, finding: Finding, places: Places, cells: Sequence[Cell]) -> str:
    names = [places.hosts.get(h) or clean(h) for h in culprit.hosts]
    share = culprit.value / (finding.typical or culprit.value)
    speed = (
        f"{format_rate(culprit.value)} at best, {share:.1%} of the typical "
        f"{format_rate(finding.typical or 0.0)}"
    )
    slow = count(culprit.flows, "slow direction")
    if culprit.fault is Fault.PATH:
        text = "each is fast with others, so look at the path between them"
        return f"slow: {names[0]} to {names[1]}: {speed}; {text}"
    if culprit.fault is Fault.EITHER:
        text = "one of them is slow; a pair with a good host would tell which"
        return f"slow: {names[0]} to {names[1]}: {speed}; {text}"
    where = _interface(culprit.hosts[0], cells)
    return f"slow: {names[0]}{where} {culprit.fault} slowly: {speed}; explains {slow}: {_NEXT}"


def _interface(host: str, cells: Sequence[Cell]) -> str:
    """`` (eth0)``, as the run's conditions name it."""
    for cell in cells:
        seen = cell["conditions"]
        if cell["hosts"][0] != host:
            seen = (seen.get("hosts") or {}).get(host, {})
        if host in cell["hosts"] and (name := seen.get("interface")):
            return f" ({clean(name)})"
    return ""
