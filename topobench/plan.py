"""
Turn configuration and hosts into cells: what runs, in which order, and what does not and why.

Pure: the same configuration, hosts and seed give the same cells in the same order (only their
UUIDs are new). Arms that are compared run in complete blocks in seeded order, every second
block the mirror of the one before it (A B C, C B A), so that a slow drift cancels out.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import gc
import itertools
import random
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from topobench import budget, costs
from topobench.bindings import allowed_cpus
from topobench.choice import Choice, Timed
from topobench.config import ClusterConfig
from topobench.errors import UsageError
from topobench.health import Action
from topobench.host import Host
from topobench.layout import Site, lay_out
from topobench.layout_hosts import lay_out_together
from topobench.masking import mask_urls
from topobench.reading import Cell, ReasonCode, Status, to_json
from topobench.selection import Lack, absent_hosts, check_devices, select_hosts, unfit_gpus
from topobench.sku import sku_name
from topobench.topology import parse_cpu_list
from topobench.units import format_bytes, format_limit, format_span

LEAST_DISK_BYTES = 1 << 30
"""Of a host's folder for temporary files: with less, logs and spools may be lost."""


@dataclass(frozen=True, slots=True)
class Plan:
    """
    What a sweep will run.

    Args:
        cells: Host by host, in the order they will run; those not run carry a reason.
        estimated_seconds: Of the slowest host, since hosts work side by side; then of what
            several hosts measure together.
        gpu_hours: GPUs of each host times its time: what nobody else can use meanwhile.
        absent_hosts: Hosts that the configuration names and that are not alive.
        short_hosts: Hosts with fewer GPUs than the configuration says.
        ailing_hosts: Hosts with a GPU that is left out because something is wrong with it.
        counts: Cells by status.
        site: What it was laid out from, so that pairs of hosts can be added while it runs;
            None if it repeats an earlier sweep.
    """

    cells: tuple[Cell, ...]
    seed: int
    estimated_seconds: float
    gpu_hours: float
    counts: Mapping[str, int]
    absent_hosts: tuple[str, ...] = ()
    short_hosts: tuple[str, ...] = ()
    ailing_hosts: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    site: Site | None = None


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """
    Let the garbage collector wait.

    A plan is up to a million objects and has no cycles; to look through all of them again and
    again takes a third of the time.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@_uncollected()
def make_plan(config: ClusterConfig, hosts: Sequence[Host], *, seed: int | None = None) -> Plan:
    """
    Lay out every cell of a sweep.

    Args:
        hosts: Alive hosts, as their agents described them.
        seed: Of the order; the configuration's, else drawn, when None.

    Raises:
        UsageError: No probe or host is selected, a device or host is unknown, or the budget
            has no room for a single cell.
    """
    check_selection(config)
    chosen = select_hosts(config, hosts)
    if not chosen:
        here = ", ".join(sorted(f"{h.name} ({h.address})" for h in hosts)) or "none"
        named = ", ".join(absent_hosts(config, hosts)) or "none"
        raise UsageError(f"no host is selected: hosts: names {named}; hosts here: {here}")
    check_devices(config, chosen)
    seed = config.seed if seed is None else seed
    used_seed = random.SystemRandom().randrange(2**31) if seed is None else seed
    site = Site(config, tuple(Choice(c) for c in config.probes), len(chosen), used_seed)
    together = lay_out_together(site, chosen)
    own, joint = _in_budget([lay_out(site, h) for h in chosen], together.cells, config)
    last = estimate_together(joint)
    seconds = [estimate(found) + last for found in own]
    gpus = [len(host.topology.gpus) for host in chosen]
    flat = (*itertools.chain.from_iterable(own), *joint)
    _check_room(flat, config)
    absent = absent_hosts(config, hosts)
    return Plan(
        cells=flat,
        seed=used_seed,
        estimated_seconds=max(seconds),
        gpu_hours=sum(s * n for s, n in zip(seconds, gpus, strict=True)) / 3600,
        counts=_counts(flat),
        absent_hosts=absent,
        short_hosts=tuple(h.name for h in chosen if _too_few_gpus(config, h)),
        ailing_hosts=tuple(h.name for h in chosen if unfit_gpus(config, h)),
        warnings=(
            *_host_warnings(config, chosen, absent),
            *together.warnings,
            *_budget_warnings(flat, config),
        ),
        site=site,
    )


def plan_like(
    config: ClusterConfig, hosts: Sequence[Host], cells: Sequence[Cell], seed: int
) -> Plan:
    """
    The cells of an earlier sweep once more, in the same order.

    Args:
        cells: As that sweep stored them; what it left out stays out.
        seed: That sweep's.

    Raises:
        UsageError: None of them was measured on these hosts.
    """
    chosen = {h.key for h in select_hosts(config, hosts)}
    wanted = [c for c in cells if c.status not in (Status.SKIPPED, Status.NOT_APPLICABLE)]
    found = [c for c in wanted if c.host in chosen and chosen.issuperset(c.hosts)]
    if not found:
        raise UsageError("--like: that sweep measured nothing on the hosts that are here")
    unfit = {key: lack for h in hosts for key, lack in unfit_gpus(config, h).items()}
    again = tuple(_again(c, unfit) for c in found)
    gpus = sum(len(h.topology.gpus) for h in hosts if h.key in chosen)
    seconds = estimate_all(again)
    absent = absent_hosts(config, hosts)
    left = len(wanted) - len(found)
    notes = [f"--like: {left} of {len(wanted)} cells are of other hosts"] if left else []
    return Plan(
        cells=again,
        seed=seed,
        estimated_seconds=seconds,
        gpu_hours=seconds * gpus / 3600,
        counts=_counts(again),
        absent_hosts=absent,
        short_hosts=tuple(h.name for h in hosts if _too_few_gpus(config, h)),
        ailing_hosts=tuple(h.name for h in hosts if unfit_gpus(config, h)),
        warnings=(*_host_warnings(config, hosts, absent), *notes),
    )


def _again(cell: Cell, unfit: Mapping[str, Lack]) -> Cell:
    """A cell once more, if all its GPUs are fit for it."""
    lack = next((unfit[key] for key in cell.worker_devices if key in unfit), None)
    status, reason = (Status.PLANNED, None) if lack is None else (lack.status, lack.reason)
    return dataclasses.replace(cell, id=str(uuid.uuid4()), status=status, reason=reason)


def check_selection(config: ClusterConfig) -> None:
    """
    Whether there is anything to lay out; known before any host is asked.

    Raises:
        UsageError: No probe is selected.
    """
    if not config.probes:
        raise UsageError("no probe is selected; see --probes and the key probes:")


def batches(cells: Sequence[Cell]) -> list[tuple[Cell, ...]]:
    """
    Planned cells by the worker (or gang) that will run them, in order.

    One worker runs every cell of the same host, GPUs it sees, arm, ranks, process and block.
    """
    found: dict[Any, list[Cell]] = {}
    group: list[Cell] = []
    last: Cell | None = None
    for cell in cells:
        if cell.status is not Status.PLANNED:
            continue
        if last is None or not _follows(cell, last):
            group = found.setdefault(_worker_key(cell), [])
        group.append(cell)
        last = cell
    return [tuple(group) for group in found.values()]


def estimate(cells: Sequence[Cell]) -> float:
    """Seconds to run the planned ones of one host's cells, workers in turn."""
    dumped: set[tuple[str, ...]] = set()
    return sum(_seconds(batch, dumped) for batch in batches(cells))


def estimate_together(cells: Sequence[Cell]) -> float:
    """Seconds to run the planned ones that span hosts; those of different hosts side by side."""
    free: dict[str, float] = {}
    dumped: set[tuple[str, ...]] = set()
    for batch in batches([c for c in cells if c.hosts]):
        began = max(free.get(h, 0.0) for h in batch[0].hosts)
        ended = began + _seconds(batch, dumped)
        free.update(dict.fromkeys(batch[0].hosts, ended))
    return max(free.values(), default=0.0)


def _seconds(batch: Sequence[Cell], dumped: set[tuple[str, ...]]) -> float:
    return costs.beside(batch, dumped) + sum(c.estimated_seconds for c in batch)


def estimate_all(cells: Sequence[Cell]) -> float:
    """Seconds to run the planned ones of a whole sweep."""
    by_host: dict[str, list[Cell]] = {}
    for cell in cells:
        if not cell.hosts:
            by_host.setdefault(cell.host, []).append(cell)
    own = max((estimate(found) for found in by_host.values()), default=0.0)
    return own + estimate_together(cells)


def plan_document(plan: Plan, config: ClusterConfig, hosts: Sequence[Host]) -> dict[str, Any]:
    """The ``data`` of ``topobench plan --format json`` (docs/schemas/plan.json)."""
    used = {c.host for c in plan.cells}
    return {
        "cluster": config.name,
        "profile": config.profile,
        "seed": plan.seed,
        "store": mask_urls(config.store),
        "estimated_seconds": plan.estimated_seconds,
        "gpu_hours": plan.gpu_hours,
        "counts": dict(plan.counts),
        "absent_hosts": list(plan.absent_hosts),
        "warnings": list(plan.warnings),
        "hosts": [
            {"key": h.key, "name": h.name, "address": h.address, "sku": sku_name(h.topology)}
            for h in hosts
            if h.key in used
        ],
        "cells": [_cell_json(cell) for cell in plan.cells],
    }


def _in_budget(
    own: list[list[Cell]], joint: Sequence[Cell], config: ClusterConfig
) -> tuple[list[list[Cell]], list[Cell]]:
    """What fits; cells over several hosts get half of the time, if there are others."""
    seconds = config.budget_seconds
    own = [budget.without_too_long(found, seconds) for found in own]
    joint = budget.without_too_long(list(joint), seconds)
    if seconds is None:
        return own, joint
    times: dict[int, Timed] = {}
    alone = any(c.status is Status.PLANNED for found in own for c in found)
    together = _fit(joint, seconds / 2 if alone else seconds, estimate_together, times)
    left = seconds - estimate_together(together)
    return [_fit(found, left, estimate, times) for found in own], together


def _fit(
    cells: Sequence[Cell],
    seconds: float,
    cost: Callable[[Sequence[Cell]], float],
    times: dict[int, Timed],
) -> list[Cell]:
    """What fits; what is left carries the starts of those left out."""
    return _anew(budget.fit(cells, seconds, lambda kept: cost(_anew(kept, times))), times)


def _anew(cells: Sequence[Cell], times: dict[int, Timed]) -> list[Cell]:
    """The same cells, each with the seconds it takes among those that will run."""
    found = (pair for batch in batches(cells) for pair in costs.anew(batch, times))
    longer = {c.id: seconds for c, seconds in found if seconds != c.estimated_seconds}
    return [
        dataclasses.replace(c, estimated_seconds=longer[c.id]) if c.id in longer else c
        for c in cells
    ]


def _check_room(cells: Sequence[Cell], config: ClusterConfig) -> None:
    """Refuse a budget in which nothing at all can be measured."""
    if config.budget_seconds is None:
        return
    over = _over_budget(cells)
    if over and not any(c.status is Status.PLANNED for c in cells):
        alone = ([dataclasses.replace(c, status=Status.PLANNED)] for c in over)
        times: dict[int, Timed] = {}
        least = min(estimate(_anew(cell, times)) for cell in alone)
        raise UsageError(
            f"--budget: {format_limit(config.budget_seconds)} has no room for a single cell; "
            f"the shortest takes {format_span(least)} with its start-up"
        )


def _host_warnings(
    config: ClusterConfig, hosts: Sequence[Host], absent: Sequence[str]
) -> Iterator[str]:
    for name in absent:
        yield f"{name}: named in hosts: but takes no part; nothing is measured there"
    for host in hosts:
        online = len(parse_cpu_list(host.topology.cpus.online))
        allowed = len(allowed_cpus(host.topology))
        if allowed < online:
            yield f"{host.name}: {allowed} of {online} CPUs may be used; bindings are cut to them"
        inherited = parse_cpu_list(host.facts.inherited_cpus)
        if inherited and not allowed_cpus(host.topology) <= set(inherited):
            yield (
                f"{host.name}: started on CPUs {host.facts.inherited_cpus} (taskset, a launcher), "
                "and measured on all that its cpuset allows; a cpuset keeps a sweep off the others"
            )
        free = host.facts.free_disk_bytes
        if free is not None and free < LEAST_DISK_BYTES:
            yield f"{host.name}: {format_bytes(free)} of disk left for temporary files and logs"
        expected, found = _expected_gpus(config, host), _whole_gpus(host)
        if expected not in (None, found):
            yield f"{host.name}: {expected} GPUs expected, {found} found"
        yield from _health_warnings(config, host)
    blind = [h for h in hosts if "xid" in h.facts.health_unread]
    if blind and config.health.xid is not Action.OFF:
        names = ", ".join(h.name for h in blind[:8]) + (" ..." if len(blind) > 8 else "")
        yield (
            f"Xid errors cannot be seen on {len(blind)} of {len(hosts)} hosts ({names}): "
            f"{blind[0].facts.health_unread['xid']}; sysctl kernel.dmesg_restrict=0 lets everybody "
            "read the kernel's log, health: {xid: off} gives up on it"
        )


def _health_warnings(config: ClusterConfig, host: Host) -> Iterator[str]:
    for trouble in host.facts.health:
        action = config.health.of(trouble)
        if action is not Action.OFF:
            done = "not measured" if action is Action.SKIP else "measured all the same"
            yield f"{host.name}: {trouble} ({trouble.code}, {done})"


def _too_few_gpus(config: ClusterConfig, host: Host) -> bool:
    return (_expected_gpus(config, host) or 0) > _whole_gpus(host)


def _expected_gpus(config: ClusterConfig, host: Host) -> int | None:
    expectation = config.expectation_for(host)
    return None if expectation is None else expectation.gpus


def _whole_gpus(host: Host) -> int:
    """GPUs that answer; the slices of one count as it does."""
    return sum(1 for g in host.topology.gpus if not g.is_slice and g.state != "lost")


def _budget_warnings(cells: Sequence[Cell], config: ClusterConfig) -> Iterator[str]:
    over = _over_budget(cells)
    if not over:
        return
    why = collections.Counter(c.reason.text.partition(": ")[2] for c in over if c.reason)
    listed = ", ".join(f"{name} ({count})" for name, count in why.items())
    seconds = config.budget_seconds
    limit = "no budget" if seconds is None else f"budget of {format_limit(seconds)}"
    yield f"{limit}: {len(over)} of {len(cells)} cells left out: {listed}"


def _over_budget(cells: Sequence[Cell]) -> list[Cell]:
    return [c for c in cells if c.reason and c.reason.code is ReasonCode.OVER_BUDGET]


def _counts(cells: Sequence[Cell]) -> dict[str, int]:
    found = collections.Counter(c.status for c in cells)
    return {status.value: count for status, count in found.items()}


def _cell_json(cell: Cell) -> dict[str, Any]:
    return {
        "id": cell.id,
        "host": cell.host,
        "probe": cell.case.probe,
        "version": cell.case.version,
        "params": dict(cell.case.params),
        "arm": cell.arm.name,
        "binding": to_json(cell.arm.binding),
        "ring": cell.arm.ring,
        "env": dict(cell.arm.env),
        "devices": list(cell.devices),
        "hosts": list(cell.hosts),
        "ranks": cell.ranks,
        "process_no": cell.process_no,
        "block": cell.block,
        "order_in_block": cell.order_in_block,
        "estimated_seconds": cell.estimated_seconds,
        "status": cell.status.value,
        "reason": str(cell.reason) if cell.reason else None,
    }


def _follows(cell: Cell, last: Cell) -> bool:
    """Whether the planner laid out both for one worker; False where that is not seen at once."""
    return (
        cell.arm is last.arm
        and cell.devices is last.devices
        and cell.visible is last.visible
        and cell.hosts is last.hosts
        and cell.host == last.host
        and cell.process_no == last.process_no
        and cell.block == last.block
        and cell.ranks == last.ranks
    )


def _worker_key(cell: Cell) -> Any:
    place = (cell.host, cell.hosts, cell.worker_devices, cell.ranks, cell.process_no, cell.block)
    return (*place, costs.worker_key(cell.arm))
