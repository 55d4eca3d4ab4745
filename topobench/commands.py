"""
What each command does, without printing: config in, :class:`Outcome` out.

``cli`` turns an outcome into text or JSON and the exit code.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from topobench import __version__, culprits, drivers, sweep
from topobench.config import ClusterConfig, to_yaml
from topobench.errors import TopobenchError, UsageError
from topobench.host import Host
from topobench.layout import Site
from topobench.layout_hosts import pair_again
from topobench.plan import check_selection, estimate_all, make_plan, plan_document, plan_like
from topobench.reading import Cell, Run, Status, to_json
from topobench.selection import select_hosts
from topobench.signals import Signals
from topobench.units import format_span

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from topobench.agents.ray_agent import Connection, RayAgent
    from topobench.agents.service import HostRequest
    from topobench.db.recorder import Recorder
    from topobench.topology import Topology


@dataclass(frozen=True, slots=True)
class Outcome:
    """
    What a command found.

    Args:
        data: The ``data`` of its JSON document, or a whole document (``alone``).
        draw: Makes what a person reads.
        alone: The data is a document of its own (topology/1), not enveloped.
    """

    data: Any
    draw: Callable[[], RenderableType]
    exit_code: int = 0
    status: str = "ok"
    warnings: Sequence[str] = ()
    alone: bool = False


def probe(
    config: ClusterConfig,
    *,
    console: Console | None,
    resume: str | None = None,
    like: str | None = None,
    trigger: str = "manual",
    bring_in: bool = True,
) -> Outcome:
    """
    Run one sweep.

    Args:
        console: Where progress goes (standard error); None for none.
        resume: Id, unique prefix or ``latest``: run again what did not end well there.
        like: The same of a sweep whose cells are repeated as a new sweep.
        bring_in: Bring in first what earlier sweeps spooled; a fleet did.

    Raises:
        UsageError: Both a sweep to go on with and one to repeat.
        NotFound: No such sweep is stored.
        RefusedError: Another sweep holds this host.
        AgentError: No host could be reached.
    """
    if resume is not None and like is not None:
        raise UsageError("--resume goes on with a sweep, --like repeats one: give one of them")

    from topobench.db.recorder import Recorder

    check_selection(config)
    warnings: list[str] = []
    with (
        _told_if_refused(console, warnings),
        Signals() as signals,
        Recorder.open(config.store, warn=warnings.append) as store,
    ):
        if bring_in:
            store.bring_in_earlier()
        if resume is None:
            sweep_id, failures = _new_sweep(config, store, signals, console, trigger, like)
        else:
            sweep_id, failures = _resumed_sweep(config, store, signals, console, resume)
        document = store.sweep_document(sweep_id)
    code = sweep.exit_code(document["counts"], failures)
    outcome = _sweep_outcome(document, signals.exit_code or code)
    return replace(outcome, warnings=(*outcome.warnings, *warnings))


@contextlib.contextmanager
def _told_if_refused(console: Console | None, warnings: Sequence[str]) -> Iterator[None]:
    """Tell what became of the store also where no sweep, and so no outcome, comes of it."""
    from topobench.report.safe import clean
    from topobench.report.show import show, whole_line

    try:
        yield
    except TopobenchError:
        if console is not None and warnings:
            show(console, *(whole_line(f"topobench: {clean(w)}") for w in warnings))
        raise


def _new_sweep(
    config: ClusterConfig,
    store: Recorder,
    signals: Signals,
    console: Console | None,
    trigger: str,
    like: str | None,
) -> tuple[str, int]:
    """Plan, store the plan, run it; the sweep's id and how many hosts are not as they should."""
    sweep_id = str(uuid.uuid4())
    earlier = None if like is None else store.cells_of(store.resolve_sweep(like))
    with _agents(config, sweep_id) as connection:
        here = [a.host for a in connection.agents]
        hosts = select_hosts(config, here) or here
        if earlier is None:
            plan = make_plan(config, hosts, seed=config.seed)
        else:
            cells, seed, profile = earlier
            config = replace(config, profile=profile)
            plan = plan_like(config, hosts, cells, seed)
        _mark_dead_sweeps(store, here)
        store.begin_sweep(
            id=sweep_id,
            cluster=config.name,
            profile=config.profile,
            trigger=trigger,
            seed=plan.seed,
            tool_version=__version__,
            config_text=to_yaml(config),
            started_at=sweep.utc_now(),
            estimated_seconds=plan.estimated_seconds,
            budget_seconds=config.budget_seconds,
            driver=_driver(),
            warnings=[
                *plan.warnings,
                *connection.warnings,
                *_strangers(config, store, hosts),
                *(f.text for f in connection.failures),
            ],
            hosts=hosts,
            cells=plan.cells,
        )
        _drive(sweep_id, plan.cells, connection.agents, store, signals, console, site=plan.site)
    failed = (f.address for f in connection.failures)
    return sweep_id, len({*plan.absent_hosts, *plan.short_hosts, *plan.ailing_hosts, *failed})


def _resumed_sweep(
    config: ClusterConfig,
    store: Recorder,
    signals: Signals,
    console: Console | None,
    resume: str,
) -> tuple[str, int]:
    """
    Run what did not end well in a stored sweep; its id and the hosts that failed.

    One that lost its driver after its last cell is only ended.
    """
    sweep_id = store.resolve_sweep(resume)
    cells, attempts = store.cells_to_resume(sweep_id)
    status = store.sweep_document(sweep_id)["sweep"]["status"] if not cells else ""
    if not cells and status not in ("running", "interrupted"):
        raise UsageError(f"sweep {sweep_id[:8]} has nothing left to run")
    with _agents(config, sweep_id) as connection:
        here = {h.key for h in select_hosts(config, [a.host for a in connection.agents])}
        left = [c for c in cells if not config.only_hosts or {c.host, *c.hosts} <= here]
        absent = {host for c in left for host in (c.host, *c.hosts)} - here
        if absent or (cells and not left):
            raise UsageError(_not_here(sweep_id, absent, connection))
        store.resume_sweep(sweep_id, _driver())
        _drive(sweep_id, left, connection.agents, store, signals, console, attempts=attempts)
    return sweep_id, len(connection.failures)


def _not_here(sweep_id: str, absent: Collection[str], connection: Connection) -> str:
    """Why a sweep cannot go on with the hosts that are here, and what would let it."""
    if not absent:
        return f"sweep {sweep_id[:8]} has nothing left to run on these hosts alone"
    why = "".join(f"; {f.text}" for f in connection.failures)
    return (
        f"sweep {sweep_id[:8]} has cells on hosts that are not here: "
        f"{', '.join(sorted(absent))}{why}; use the cluster file it was started with, or name "
        "those to go on with: --hosts H1,H2"
    )


def _driver() -> dict[str, Any] | None:
    """This process, so that a report can tell when a sweep has lost it."""
    found = drivers.own_driver()
    return None if found is None else found.to_json()


@contextlib.contextmanager
def _agents(config: ClusterConfig, sweep_id: str, *, lock: bool = True) -> Iterator[Connection]:
    """An agent on every host of the config, closed at the end."""
    from topobench.agents import embedded
    from topobench.agents.host_lock import HostLock

    if lock and config.ray.address == "local":
        # Its agent takes the lock for good; no Ray need start to find that another holds it.
        HostLock(sweep=sweep_id).acquire().release()
    with embedded.surroundings(config.ray.address, sweep_id) as options:
        from topobench.agents import ray_agent  # ray reads the environment as it is imported

        with ray_agent.connect(
            config.ray.address,
            sweep=sweep_id,
            options=options,
            hosts=_requests(config, sweep_id),
            only=config.only_hosts,
            env=config.env,
            require_token=config.ray.require_token,
            ship=config.ray.ship,
            lock=lock,
            idle=config.idle,
            health=config.health,
        ) as connection:
            yield connection


def _requests(config: ClusterConfig, sweep_id: str) -> list[HostRequest]:
    """The hosts of the config; none means every alive one."""
    from topobench.agents.service import HostRequest

    return [
        HostRequest(
            sweep=sweep_id,
            id=h.id,
            address=h.host,
            env=h.env,
            labels={**({"sku": h.sku} if h.sku else {}), **h.labels},
        )
        for h in config.hosts
    ]


def _strangers(config: ClusterConfig, store: Recorder, hosts: Sequence[Host]) -> Iterator[str]:
    """A warning where the cluster reached may be another than the one that is named."""
    names = {h.key: h.name for h in hosts if h.key_source in ("product_uuid", "machine_id")}
    by_cluster: dict[str, list[str]] = {}
    for key, other in store.strangers(config.name, list(names)).items():
        by_cluster.setdefault(other, []).append(names[key])
    for other, found in by_cluster.items():
        some = ", ".join(found[:8]) + (" ..." if len(found) > 8 else "")
        yield (
            f"{some}: measured as part of cluster {other} before, new in {config.name}; "
            "is ray.address that of the cluster that is named?"
        )


def _mark_dead_sweeps(store: Recorder, hosts: Sequence[Host]) -> None:
    """We hold the locks of these hosts, so a sweep that still says ``running`` is dead."""
    for host in hosts:
        for dead in store.running_sweeps(host.key):
            store.mark_interrupted(dead)


def _drive(
    sweep_id: str,
    cells: Sequence[Cell],
    agents: Sequence[RayAgent],
    store: Recorder,
    signals: Signals,
    console: Console | None,
    *,
    attempts: Mapping[str, int] | None = None,
    site: Site | None = None,
) -> None:
    """
    Run the cells and set the sweep's status, whatever ends it.

    Args:
        site: Given: pairs of hosts may be added where those measured leave a suspicion.
    """
    from topobench.report.progress import Progress

    planned = [c for c in cells if c.status is Status.PLANNED]
    names = {a.host.key: a.host.name for a in agents}
    seconds = estimate_all(planned)
    status = "failed"
    try:
        with (
            signals.soft() as stop,
            Progress(console, len(planned), seconds, names=names) as progress,
        ):
            cells_text = f"{len(planned)} cell{'' if len(planned) == 1 else 's'}"
            progress.note(f"{cells_text}, about {format_span(seconds)}")
            runs = sweep.drive(planned, agents, store, progress, stop=stop, attempts=attempts)
            more = _pairs_again(site, [a.host for a in agents], planned, runs)
            if more and not stop.is_set():
                store.plan_cells(sweep_id, more)
                progress.expect(len(more))
                sweep.drive(more, agents, store, progress, stop=stop)
        status = "done"
    finally:
        status = "interrupted" if signals.number else status
        store.end_sweep(sweep_id, status, ended_at=sweep.utc_now())


def _pairs_again(
    site: Site | None, hosts: Sequence[Host], cells: Sequence[Cell], runs: Sequence[Run]
) -> list[Cell]:
    """Pairs that settle which hosts are slow, where not all pairs were measured."""
    if site is None:
        return []
    found = culprits.find(culprits.flows(cells, runs))
    return pair_again(site, hosts, cells, culprits.suspects(found))


def plan(config: ClusterConfig) -> Outcome:
    """What ``probe`` would run, skip and cost; takes no lock and starts no worker."""
    from topobench.report.plan_text import render_plan

    check_selection(config)
    with _looking(config) as (hosts, failures):
        found = make_plan(config, hosts, seed=config.seed)
        found = replace(found, warnings=(*found.warnings, *failures))
        data = plan_document(found, config, hosts)
    return Outcome(data, lambda: render_plan(data), warnings=found.warnings)


def report(store_url: str, sweep_id: str, as_of: str | None = None) -> Outcome:
    """
    A stored sweep, as ``probe`` showed it, and the verdicts on it.

    Args:
        as_of: Nothing younger counts: neither sweeps for ``latest`` nor verdicts.
    """
    from topobench.db import look, selecting, verdicts
    from topobench.db.store import Store
    from topobench.report.text import render_sweep

    with Store.open(store_url, create=False, read_only=True) as store:
        until = None if as_of is None else selecting.moment(as_of)
        found = store.resolve_sweep(sweep_id, until)
        look.check_keys(store, found)
        document, judged = store.sweep_document(found), verdicts.overall(store, found, until)
    outcome = _sweep_outcome(document, None)
    return replace(outcome, draw=lambda: render_sweep(document, verdicts=judged))


def topo_show(root: Path, style: str) -> Outcome:
    """
    The wiring of this host, or of a captured one.

    Args:
        style: ``tree``, or a format of ``wiring.EXPORTERS``.
    """
    from topobench import wiring

    return _topology_outcome(wiring.captured_or_live(root), style)


def topo_import(kind: str, file: Path, style: str) -> Outcome:
    """The wiring that a file of another tool tells of; ``style`` as for :func:`topo_show`."""
    from topobench import wiring

    return _topology_outcome(wiring.from_file(kind, file), style)


def _topology_outcome(topology: Topology, style: str) -> Outcome:
    from topobench import wiring
    from topobench.report.topo_text import render_topology

    if style not in wiring.EXPORTERS:
        return Outcome(topology.to_json(), lambda: render_topology(topology), alone=True)
    exported = wiring.EXPORTERS[style](topology)
    return Outcome(exported.text, lambda: exported.text, warnings=exported.warnings, alone=True)


def topo_diff(a: str, b: str, *, exit_code: bool) -> Outcome:
    """
    What differs between two topologies.

    Args:
        exit_code: Whether a difference gives the exit code 1.
    """
    from topobench import wiring
    from topobench.report.topo_diff_text import render_diff

    data, found = wiring.compared(a, b)
    return Outcome(
        data,
        lambda: render_diff(found),
        exit_code=int(exit_code and bool(found.changes)),
        status="differs" if found.changes else "ok",
    )


def topo_gather(target: Path, root: Path) -> Outcome:
    """Write a tarball of what discovery reads."""
    from topobench import wiring
    from topobench.report.tables_text import render_facts

    data = wiring.gathered(target, root)
    shown = {k: v for k, v in data.items() if k != "fingerprints"}
    return Outcome(data, lambda: render_facts(shown))


def doctor() -> Outcome:
    """What this host lacks; prints mending lines, runs none."""
    from topobench.agents import doctor as checks
    from topobench.agents.service import HostRequest, describe_host
    from topobench.report.tables_text import render_doctor

    host = describe_host(HostRequest(sweep=""))
    found = checks.examine(
        topology=host.topology, facts=host.facts, env=os.environ, run=checks.run_program
    )
    data = [to_json(f) for f in found]
    bad = any(f.level is checks.Level.ERROR for f in found)
    return Outcome(
        {"host": host.name, "findings": data}, lambda: render_doctor(data), exit_code=int(bad)
    )


def demo(
    *,
    hosts: int,
    days: int,
    seed: int,
    effects: str | None,
    until: str | None,
    store: str | None,
    console: Console | None,
) -> Outcome:
    """
    Make a synthetic fleet in a file of its own.

    Args:
        effects: What to plant, as typed; None for the examples of the documentation.
        until: UTC day of the last night, as typed; None for the newest.
        store: A file or SQLite URL, as typed; None for ``topobench-demo.db``.
        console: Where progress goes (standard error); None for none.
    """
    from topobench.demo import writing
    from topobench.demo.effects import parse_effects
    from topobench.demo.fleet import Fleet, last_night, sweep_count
    from topobench.demo.told import demo_document
    from topobench.report.demo_text import demo_progress, render_demo

    planted = parse_effects(effects, hosts=hosts, nights=days)
    fleet = Fleet(hosts, days, seed, planted, last_night(until))
    path = writing.target_of(store)
    with demo_progress(console, sweep_count(fleet)) as stored:
        written = writing.write_fleet(
            path, fleet, lambda s: stored(f"{s.started_at[:10]}, cluster {s.cluster}")
        )
    data = demo_document(fleet, path, written)
    return Outcome(data, lambda: render_demo(data))


def db_info(store_url: str) -> Outcome:
    """Where the store is, how large, its schema, its newest sweep."""
    from topobench.db.store import Store
    from topobench.report.tables_text import render_facts

    with Store.open(store_url, create=False, read_only=True) as store:
        data = store.info()
    return Outcome(data, lambda: render_facts(data))


def import_results(
    tool: str,
    files: Sequence[Path],
    *,
    store_url: str | None,
    cluster: str | None = None,
    host: str | None = None,
    sku: str | None = None,
    topology: Path | None = None,
    taken_at: str | None = None,
) -> Outcome:
    """
    Foreign results, read and stored; a file's result that must not be used gives code 1.

    Args:
        tool: ``nccl-tests`` or ``nvbandwidth``.
        store_url: None: nothing is stored.
    """
    from topobench import importing
    from topobench.report.import_text import render_import

    whose = importing.origin(
        cluster=cluster, host=host, sku=sku, topology=topology, taken_at=taken_at
    )
    found = importing.import_files(tool, files, whose, store_url=store_url)
    return Outcome(
        found.to_json(),
        lambda: render_import(found.documents, found.failures),
        exit_code=found.exit_code,
        alone=True,
    )


@contextlib.contextmanager
def _looking(config: ClusterConfig) -> Iterator[tuple[list[Host], list[str]]]:
    """The hosts of a config, without a lock, and why others are none; this host needs no Ray."""
    if config.ray.address == "local":
        from topobench.agents.service import HostRequest, describe_host

        wanted = {name.lower() for name in config.only_hosts}
        requests = _requests(config, "")
        named = [r for r in requests if wanted & {r.address.lower(), (r.id or "").lower()}]
        yield [describe_host([*named, *requests, HostRequest(sweep="")][0])], []
        return
    with _agents(config, str(uuid.uuid4()), lock=False) as connection:
        yield [a.host for a in connection.agents], [f.text for f in connection.failures]


def _sweep_outcome(document: dict[str, Any], code: int | None) -> Outcome:
    """
    A sweep, run now or read again.

    Args:
        code: Of the command that ran it; None for one that only shows it.
    """
    from topobench.report.text import render_sweep

    return Outcome(
        document,
        lambda: render_sweep(document, exit_code=code),
        exit_code=code or 0,
        status=document["sweep"]["status"],
        warnings=document["sweep"]["warnings"],
    )
