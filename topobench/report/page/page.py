"""
A sweep as one HTML file that needs no network, and the sections that the web pages share.

All text is escaped by the template engine; the page's own policy lets nothing load and no
script run but the two whose digests it names.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import importlib.util
import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from topobench.errors import UsageError
from topobench.extras import install_line
from topobench.reading import BENIGN, MEASURED, Reason
from topobench.report import problems, serving, text, words
from topobench.report.conditions import conditions_section
from topobench.report.hosts import hosts_section
from topobench.report.network import network_section
from topobench.report.page import (
    arms,
    collectives,
    computing,
    copying,
    fleet,
    judged,
    limits,
    prefill,
    wiring,
)
from topobench.report.page.parts import (
    Commands,
    Figure,
    Head,
    Missing,
    Part,
    Picture,
    Section,
    Table,
    from_rich,
    kind_of,
)
from topobench.report.page.readings import every_reading, glance
from topobench.report.records import Places
from topobench.report.safe import clean
from topobench.server_definition import PROBE as SERVING
from topobench.topology import Topology
from topobench.units import count, format_span

if TYPE_CHECKING:
    from jinja2 import Environment

FOLDER = Path(__file__).parent
MOST_HOSTS = 2
"""Hosts of one page that are shown in detail, unless they are named."""

Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Sight:
    """
    What a page is made of.

    Args:
        document: A sweep document.
        topologies: Host key -> topology document, of the hosts of the sweep.
        verdicts: As ``db.look.verdicts`` gives them; empty where nothing was judged.
        only: Names or keys of the hosts to show in detail; empty: those that stand out.
    """

    document: Document
    topologies: Mapping[str, Any] = field(default_factory=dict)
    verdicts: Sequence[Mapping[str, Any]] = ()
    only: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Heading:
    """What stands at the top of a page."""

    title: str
    status: str
    line: str
    banners: Sequence[str]
    cards: Sequence[Mapping[str, str]]
    foot: str


def render_report(sight: Sight) -> str:
    """
    The whole page.

    Raises:
        UsageError: A host that was named is not in the sweep, or a package is not installed.
    """
    found = sections(sight)
    charts = any(isinstance(p, Figure) for s in found for p in s.parts)
    plotly = plotly_script() if charts else ""
    script = asset("page.js")
    scripts = [s for s in (plotly, script) if s]
    return (
        environment()
        .get_template("report.html")
        .render(
            head=heading(sight.document),
            sections=found,
            charts=charts,
            css=asset("page.css"),
            js=script,
            plotly=plotly,
            hashes=" ".join(f"'sha256-{_digest(s)}'" for s in scripts),
            version=clean(sight.document["sweep"]["tool_version"]),
        )
    )


def sections(sight: Sight) -> list[Section]:
    """The sections in order; what has nothing to show is listed in one of them."""
    document, hosts, cells = sight.document, sight.document["hosts"], sight.document["cells"]
    places = Places.of(hosts)
    apart = fleet.spreads(hosts, cells) if len(hosts) > 1 else []
    chosen = _chosen(sight, apart)
    found = [
        _section("verdicts", "Verdicts", judged.judged(sight.verdicts, places, _id(document))),
        _section("hosts", "Hosts" if len(hosts) > 1 else "Host",
                 from_rich(hosts_section(hosts, cells))),
        _section("fleet", "Between hosts", fleet.fleet(apart, places)),
        _section("network", "Network", from_rich(network_section(cells, places))),
    ]  # fmt: skip
    lacking: list[tuple[str, Missing]] = []
    for host in chosen:
        found += _host_sections(sight, host, lacking, named=len(hosts) > 1)
    found += [
        _section("readings", "Every reading", every_reading(cells, places)),
        _section("conditions", "Conditions", from_rich(conditions_section(cells, places))),
        _section("problems", "Failed or invalid", from_rich(problems.problems(cells, places))),
        _section("skipped", "Left out", from_rich(problems.left_out(cells, len(hosts)))),
        _section("warnings", "Warnings", from_rich(text.cell_warnings(cells))),
        _section("missing", "Not in this report", _lacking(lacking)),
        _section("again", "How to reproduce", _again(document)),
    ]
    return [s for s in found if s.parts]


def heading(document: Document) -> Heading:
    """Title, status, and the numbers to look at first."""
    sweep, hosts = document["sweep"], document["hosts"]
    names = [clean(h["name"]) for h in hosts]
    whose = names[0] if len(names) == 1 else count(len(names), "host")
    line = [
        f"sweep {_id(document)}",
        f"profile {clean(sweep['profile'])}",
        f"started {words.minute(sweep['started_at'])} UTC" if sweep["started_at"] else "",
        f"took {words.took(sweep)}" if words.took(sweep) else "",
        words.counts_text(document["counts"]),
    ]
    banners = [words.warning_text(w) for w in sweep["warnings"][: text.MOST_ALIKE]]
    if sweep.get("synthetic"):
        banners.insert(0, "Synthetic data: made by topobench demo, measured on no machine.")
    if str(sweep.get("source", "")).startswith("import:"):
        banners.insert(0, "Imported: measured by another tool.")
    version = clean(sweep["tool_version"])
    return Heading(
        title=f"{whose} of cluster {clean(document['cluster'])}",
        status=clean(sweep["status"]),
        line=", ".join(part for part in line if part),
        banners=list(dict.fromkeys(banners)),
        cards=glance(document["cells"], Places.of(hosts)),
        foot=f"topobench {version}. Numbers are medians; GB/s = 1e9 bytes a second; KiB, MiB, "
        f"GiB = 2^10, 2^20, 2^30 bytes. Stored in {clean(document['store'])}.",
    )


def _chosen(sight: Sight, apart: Sequence[fleet.Spread]) -> list[Document]:
    """Hosts shown in detail: those named, else the judged worst, else the furthest behind."""
    hosts = {h["key"]: h for h in sight.document["hosts"]}
    if sight.only:
        wanted = {w.lower() for w in sight.only}
        found = [h for h in hosts.values() if {h["name"].lower(), h["key"].lower()} & wanted]
        unknown = wanted - {x.lower() for h in found for x in (h["name"], h["key"])}
        if unknown:
            raise UsageError(
                f"host {sorted(unknown)[0]!r} is not in sweep {_id(sight.document)}; it has "
                f"{words.some_names([h['name'] for h in hosts.values()], 0)}"
            )
        return found
    levels = judged.host_levels(sight.verdicts)
    bad = [k for level in judged.LEVELS[:3] for k, found in levels.items() if found is level]
    behind = [s.worst for s in apart]
    measured = [c["host"] for c in sight.document["cells"] if c["status"] in MEASURED]
    order = dict.fromkeys([*bad, *behind, *measured, *hosts])
    return [hosts[k] for k in order if k in hosts][:MOST_HOSTS]


def _host_sections(
    sight: Sight, host: Document, lacking: list[tuple[str, Missing]], *, named: bool
) -> Iterator[Section]:
    """The sections of one host; those without anything go to ``lacking``."""
    key = host["key"]
    cells = [c for c in sight.document["cells"] if c["host"] == key]
    name = f"h{[h['key'] for h in sight.document['hosts']].index(key)}"
    topology = wiring.names_of({key: sight.topologies[key]} if key in sight.topologies else {})
    suffix = f" of {clean(host['name'])}" if named else ""
    for kind, title, parts in _kinds(name, host, cells, topology.get(key)):
        section = _section(f"{name}-{kind}-section", f"{title}{suffix}", parts)
        if section.parts:
            yield section
        else:
            lacking.append((f"{title}{suffix}", _missing(kind, cells)))


def _kinds(
    name: str, host: Document, cells: Sequence[Document], topology: Topology | None
) -> Iterator[tuple[str, str, list[Part]]]:
    places = Places.of([host])

    def of(probe: str) -> list[Document]:
        return [c for c in cells if c["probe"] == probe]

    yield "wiring", "Wiring", list(wiring.wiring(name, topology)) if topology else []
    yield "copies", "Copies", list(copying.copying(name, of("host_to_device"), places))
    yield "arms", "Arms", list(arms.arms(name, cells, places))
    yield "rings", "Collectives", list(collectives.collectives(name, cells, places, topology))
    peers = [*collectives.peer_matrix(name, cells, places), *collectives.hop_classes(cells, places)]
    yield "paths", "Pairs of GPUs", peers
    yield "memory", "Host memory", list(computing.memory_matrix(name, of("host_memory"), places))
    yield "compute", "GPU compute", list(computing.products(name, cells, places))
    yield "prefill", "Prefill", list(prefill.prefill(name, cells, places))
    if served := from_rich(serving.served(of(SERVING), places)):
        yield "serving", "Serving", served
    roofs = [*computing.roofline(name, cells, places), *limits.bounds(cells)]
    yield "roofline", "Roofline", roofs
    yield "sharing", "All GPUs at once", list(limits.sharing(cells, host, places))
    published = list(limits.published(name, cells, host, places))
    yield "published", "Published figures", published


_FILLED_BY = {
    "wiring": ("", "topobench probe"),
    "copies": ("host_to_device", "topobench probe --probes host_to_device --profile standard"),
    "arms": ("", "topobench probe --profile full --bindings none,local,remote,spread"),
    "rings": ("all_reduce", "topobench probe --probes all_reduce --profile standard"),
    "paths": ("peer", "topobench probe --probes peer"),
    "memory": ("host_memory", "topobench probe --probes host_memory"),
    "compute": ("gemm", "topobench probe --probes gemm,device_memory"),
    "prefill": ("prefill", "topobench probe --probes prefill"),
    "roofline": (
        "gemm",
        "topobench probe --probes kernel_launch,device_memory,gemm,host_to_device",
    ),
    "sharing": ("", "topobench probe --probes host_to_device --profile standard"),
    "published": ("", "topobench probe --probes gemm,device_memory,host_to_device"),
}
"""Section -> the probe whose cells say why it is empty, and what fills it."""


def _missing(kind: str, cells: Sequence[Document]) -> Missing:
    probe, command = _FILLED_BY[kind]
    if kind == "wiring":
        return Missing("the wiring of this host is not stored with the sweep", command)
    if kind == "arms":
        return Missing("fewer than two arms were measured on the same devices", command)
    if kind == "sharing":
        return Missing("no GPU was measured both alone and while all were busy", command)
    if kind == "published":
        return Missing("nothing that was measured is published for these GPUs", command)
    own = [c for c in cells if c["probe"] == probe]
    measured = any(c["status"] in MEASURED for c in own)
    reasons = [c["reason"] for c in own if c["reason"]]
    if reasons and not measured:
        reason = Reason.from_text(max(set(reasons), key=reasons.count))
        return Missing(clean(reason.text), command)
    if own:
        return Missing(f"{probe} gave no figure for it", command)
    return Missing(f"{probe} was not part of this sweep", command)


def _lacking(found: Sequence[tuple[str, Missing]]) -> Iterator[Part]:
    if found:
        heads = [Head("figure"), Head("why it is missing"), Head("what fills it")]
        yield Table(heads, [[title, m.text, m.command] for title, m in found]).limited()


def _again(document: Document) -> Iterator[Part]:
    sweep = document["sweep"]
    short, url = _id(document), shlex.quote(clean(document["store"]))
    resume = (f"topobench probe --resume {short} --store {url}", "run what did not end well")
    yield Commands(
        [
            *([resume] if any(c["status"] not in BENIGN for c in document["cells"]) else []),
            (f"topobench probe --like {short} --store {url}", "the same cells once more"),
            (f"topobench report {short} --store {url}", "this sweep in a terminal"),
            (f"topobench report {short} --store {url} --html report.html", "this page"),
            ("topobench query --list", "questions to ask of the data"),
        ]
    )
    facts = [
        ("sweep", clean(sweep["id"])),
        ("seed", clean(sweep["seed"])),
        ("trigger", clean(sweep["trigger"])),
        ("topobench", clean(sweep["tool_version"])),
        ("estimated", format_span(sweep["estimated_seconds"] or 0)),
    ]
    yield Table([Head(""), Head("")], facts, header=False)


def _section(name: str, title: str, parts: Any) -> Section:
    return Section(name, title, tuple(parts))


def _id(document: Document) -> str:
    return clean(document["sweep"]["id"])[:8]


@functools.cache
def environment(*more: Path) -> Environment:
    """
    The template engine, escaping everything.

    Args:
        more: Folders of templates beside ours.

    Raises:
        UsageError: Jinja2 is not installed.
    """
    try:
        import jinja2
    except ImportError as error:
        raise _not_installed("jinja2") from error
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader([FOLDER / "templates", *more]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
    )
    made.filters |= {"kind": kind_of, "data": _data, "image": _image, "verbatim": _verbatim}
    return made


def plotly_script() -> str:
    """
    Plotly's JavaScript, out of its Python package, which is not imported for it.

    Raises:
        UsageError: The package is not installed.
    """
    return plotly_file().read_text(encoding="utf-8")


def plotly_file() -> Path:
    """
    Where Plotly's JavaScript is.

    Raises:
        UsageError: The package is not installed.
    """
    spec = importlib.util.find_spec("plotly")
    if spec is None or spec.origin is None:
        raise _not_installed("plotly")
    return Path(spec.origin).parent / "package_data" / "plotly.min.js"


@functools.cache
def asset(name: str) -> str:
    """A style sheet or script of ours."""
    return (FOLDER / "static" / name).read_text(encoding="utf-8")


def _not_installed(package: str) -> UsageError:
    return UsageError(f"{package} is not installed; pages need: {install_line('web')}")


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _data(value: Any) -> Any:
    """JSON that no HTML parser mistakes for a tag."""
    written = json.dumps(value, separators=(",", ":"), allow_nan=False)
    for character in "<>&\u2028\u2029":
        written = written.replace(character, f"\\u{ord(character):04x}")
    return _verbatim(written)


def _image(picture: Picture) -> str:
    return "data:image/svg+xml;base64," + base64.b64encode(picture.svg.encode()).decode()


def _verbatim(text: str) -> Any:
    """Text of ours that goes out as it is."""
    import markupsafe

    return markupsafe.Markup(text)
