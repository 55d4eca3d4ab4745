"""What the hosts of a sweep are: one host in detail, a few as rows, many by kind."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import RenderableType
from rich.panel import Panel
from rich.text import Text

from topobench.reading import BENIGN, MEASURED
from topobench.report.figures import UNKNOWN
from topobench.report.safe import clean, command
from topobench.report.sheet import Column, Prose, Sheet, facts
from topobench.report.words import MOST_NAMES, some_names, warning_text
from topobench.torch_builds import mending_line
from topobench.units import count, format_bytes

Host = Mapping[str, Any]

MOST_ROWS = 20


def hosts_section(
    hosts: Sequence[Host], cells: Sequence[Mapping[str, Any]]
) -> Iterator[RenderableType]:
    """What was found, what warns, and what stops GPUs from being used."""
    if len(hosts) == 1:
        yield one_host(hosts[0])
    elif len(hosts) <= MOST_ROWS:
        yield _host_rows(hosts, cells)
    else:
        yield _host_kinds(hosts)
        yield from _hosts_with_trouble(hosts, cells)
    for warning, names in _warnings(hosts).items():
        where = "" if len(hosts) == 1 else f"{some_names(names, len(hosts))}: "
        yield Prose(f"warning: {where}{warning}", style="yellow")
    yield from _torch_boxes(hosts)


def one_host(host: Host) -> Sheet:
    """A host in some lines."""
    found, runs = host["description"], host.get("facts") or {}
    if not found.get("cpus") and str(host.get("key")).startswith("import:"):
        sku = clean(host.get("sku") or UNKNOWN)  # all that is known of an imported host
        return facts([("host", name_and_address(host)), ("hardware", sku)])
    return facts(
        [
            ("host", name_and_address(host)),
            *hardware(
                {
                    **found,
                    "sku": host.get("sku") or found.get("sku"),
                    "available_memory_bytes": runs.get("available_memory_bytes"),
                }
            ),
            ("software", _software(runs)),
        ]
    )


def hardware(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What ``host.describe`` gave, as names and texts."""
    return [
        ("hardware", clean(found.get("sku") or "")),
        ("CPUs", _cpus(found)),
        ("GPUs", _gpus(found)),
        ("devices", _devices(found)),
        ("system", _system(found)),
    ]


def name_and_address(host: Host) -> str:
    """``gpu01 (10.9.0.10)``."""
    name, address = clean(host["name"]), clean(host.get("address") or "")
    return f"{name} ({address})" if address and address != name else name


def _cpus(found: Mapping[str, Any]) -> str:
    nodes = found.get("numa_nodes")
    return ", ".join(
        [
            clean(found.get("cpu_model") or "unknown model"),
            f"{found.get('cpus') or UNKNOWN} usable CPUs in {count(nodes, 'NUMA node')}"
            if nodes
            else f"{found.get('cpus') or UNKNOWN} usable CPUs, NUMA nodes unknown",
            _memory(found),
        ]
    )


def _memory(found: Mapping[str, Any]) -> str:
    """What the kernel tells, unless more is free: some guests get their memory as they use it."""
    told, free = found.get("memory_bytes"), found.get("available_memory_bytes")
    if free and free > (told or 0):
        return f"at least {format_bytes(free)} memory"
    return f"{format_bytes(told)} memory" if told else "memory size unknown"


def _gpus(found: Mapping[str, Any]) -> str:
    models = [f"{g['count']}x {clean(g['model'])}" for g in found.get("gpus") or ()]
    if not models:
        return "none found by the driver" if found.get("driver") else "none (no NVIDIA driver)"
    if links := found.get("nvlink"):
        models.append(f"up to {links} active NVLinks each")
    elif found.get("driver"):
        models.append("no NVLink")
    return ", ".join(models)


def _devices(found: Mapping[str, Any]) -> str:
    return ", ".join(
        count(found[key], one)
        for key, one in (("nics", "NIC"), ("nvme", "NVMe drive"))
        if found.get(key)
    )


def _system(found: Mapping[str, Any]) -> str:
    guest = found.get("virtualization")
    kind = "bare metal" if guest == "none" else f"virtual ({clean(guest or 'unknown')})"
    driver, cuda = found.get("driver"), found.get("cuda")
    parts = [f"Linux {clean(found['kernel'])}" if found.get("kernel") else "kernel unknown", kind]
    if driver:
        parts.append(f"driver {clean(driver)}" + (f" (CUDA {clean(cuda)})" if cuda else ""))
    if found.get("trust") == "low":
        parts.append("trust low: parts of the wiring are hidden from here")
    return ", ".join(parts)


def _software(runs: Mapping[str, Any]) -> str:
    if not runs:
        return ""
    torch = runs.get("torch")
    policy = str(runs.get("memory_policy") or "ok")
    parts = [
        f"topobench {clean(runs['topobench'])}",
        f"Python {clean(runs['python'])}",
        f"torch {clean(torch)}" if torch else "no torch",
        "numactl" if runs.get("numactl") else "no numactl",
    ]
    if policy != "ok":
        parts.append(f"memory policy {clean(policy)}")
    return ", ".join(parts)


def _host_rows(hosts: Sequence[Host], cells: Sequence[Mapping[str, Any]]) -> Sheet:
    tallies = tally(cells)
    columns = [
        Column("host"),
        Column("hardware"),
        Column("driver"),
        Column("ok", number=True),
        Column("bad", number=True),
        Column("left out", number=True),
    ]
    rows, styles = [], []
    for host in hosts:
        ok, bad, out = tallies.get(host["key"], (0, 0, 0))
        found = host["description"]
        sku, driver = host.get("sku") or found.get("sku"), found.get("driver")
        texts = [name_and_address(host), clean(sku or UNKNOWN), clean(driver or UNKNOWN)]
        rows.append([*texts, str(ok), str(bad), str(out)])
        styles.append("red" if bad else "")
    return Sheet(columns, rows, row_styles=styles)


def tally(cells: Sequence[Mapping[str, Any]]) -> dict[str, tuple[int, int, int]]:
    """Host key -> cells it took part in: measured, ended badly, left out."""
    found: dict[str, Counter[int]] = defaultdict(Counter)
    for cell in cells:
        status = cell["status"]
        for host in {cell["host"], *(cell.get("hosts") or ())}:
            found[host][0 if status in MEASURED else 2 if status in BENIGN else 1] += 1
    return {host: (c[0], c[1], c[2]) for host, c in found.items()}


def _host_kinds(hosts: Sequence[Host]) -> Sheet:
    kinds = Counter(
        tuple(
            clean(value or UNKNOWN)
            for value in (
                h.get("sku") or h["description"].get("sku"),
                h["description"].get("driver"),
                h["description"].get("kernel"),
            )
        )
        for h in hosts
    )
    columns = [Column("hosts", number=True), Column("hardware"), Column("driver"), Column("kernel")]
    return Sheet(columns, [[str(n), *kind] for kind, n in kinds.most_common()])


def _hosts_with_trouble(
    hosts: Sequence[Host], cells: Sequence[Mapping[str, Any]]
) -> Iterator[RenderableType]:
    names = {h["key"]: name_and_address(h) for h in hosts}
    tallies = tally([c for c in cells if len({*(c.get("hosts") or ())}) < 3])
    worst = sorted(
        ((t[1], names.get(key, clean(key))) for key, t in tallies.items() if t[1]),
        key=lambda pair: (-pair[0], pair[1]),
    )
    if not worst:
        return
    shown = ", ".join(f"{name}: {bad}" for bad, name in worst[:MOST_NAMES])
    more = f" and {len(worst) - MOST_NAMES} more" if len(worst) > MOST_NAMES else ""
    yield Prose(f"{count(len(worst), 'host')} with cells that ended badly: {shown}{more}")


def _warnings(hosts: Sequence[Host]) -> dict[str, list[str]]:
    """Warning -> names of the hosts that have it."""
    found: dict[str, list[str]] = {}
    for host in hosts:
        for warning in host.get("warnings") or ():
            found.setdefault(warning_text(warning), []).append(clean(host["name"]))
    return found


def _torch_boxes(hosts: Sequence[Host]) -> Iterator[RenderableType]:
    """One box per kind of "the driver has GPUs, torch cannot use them"."""
    groups: dict[tuple[str, ...], list[Host]] = {}
    for host in hosts:
        runs, found = host.get("facts") or {}, host["description"]
        if runs.get("torch_error") and found.get("gpus"):
            torch, driver, cuda = runs.get("torch"), found.get("driver"), found.get("cuda")
            key = tuple(clean(v or "") for v in (runs["torch_error"], torch, driver, cuda))
            groups.setdefault(key, []).append(host)
    for (error, torch, driver, cuda), found_on in groups.items():
        names = some_names([clean(h["name"]) for h in found_on], len(hosts))
        versions = f"torch {torch or 'not installed'}; driver {driver or 'unknown'}"
        body = Text(f"{error}\n{versions}" + (f", good for CUDA up to {cuda}" if cuda else ""))
        title = f"ERROR: torch cannot use the GPUs of {names}"
        yield Panel(body, title=Text(title), title_align="left", border_style="red", style="red")
        yield Text("  To mend it, on each such host:")
        yield command(_torch_mend(found_on[0], cuda))


def _torch_mend(host: Host, cuda: str) -> str:
    """The line that installs a torch for the driver; the doctor where none is known."""
    facts = host["facts"]
    python = facts.get("interpreter") or "python3"
    return mending_line(python, cuda, facts.get("torch")) or "topobench doctor"
