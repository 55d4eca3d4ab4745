"""The fleet for Prometheus: verdict and age of each host, and the newest sweep of each cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, generate_latest, write_to_textfile
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from topobench import __version__
from topobench.errors import StoreError, TopobenchError
from topobench.verdict_words import SEVERITY, Level

if TYPE_CHECKING:
    from topobench.db.store import Store
    from topobench.web.site import Site

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
VALUES = {level.value: value for level, value in SEVERITY.items()}
"""Level -> its number: the higher, the graver; 0 says that nothing could be judged."""


def exposition(site: Site) -> bytes:
    """All metrics, read from the store now."""
    return generate_latest(_registry([site]))


def of_look(wrong: Sequence[str], spool: Mapping[str, int]) -> list[Metric]:
    """
    What no store tells of a fleet.

    Args:
        wrong: Clusters that cannot be swept for their mistakes.
        spool: Files of the spool that are in no store, by state.
    """
    mistaken = GaugeMetricFamily(
        "topobench_cluster_wrong",
        "1 for each cluster of the fleet whose file or entry has mistakes: it is not swept",
        labels=["cluster"],
    )
    for cluster in wrong:
        mistaken.add_metric([cluster], 1)
    files = GaugeMetricFamily(
        "topobench_spool_files",
        "Spooled files that are in no store: waiting for it, or broken",
        labels=["state"],
    )
    for state, number in spool.items():
        files.add_metric([state], number)
    return [mistaken, files]


def write_textfile(sites: Sequence[Site], path: Path, more: Iterable[Metric] = ()) -> None:
    """
    Write the same metrics of several stores as a file, never seen half written.

    Args:
        more: Written behind them.

    Raises:
        TopobenchError: It cannot be written.
    """
    try:
        write_to_textfile(str(path), _registry(sites, more))
    except OSError as error:
        raise TopobenchError(f"cannot write {path}: {error.strerror}") from error


def _registry(sites: Sequence[Site], more: Iterable[Metric] = ()) -> CollectorRegistry:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Fleet(sites, more))
    return registry


class _Fleet(Collector):
    """No counters of this process: everything is a gauge of what is stored."""

    def __init__(self, sites: Sequence[Site], more: Iterable[Metric]) -> None:
        self._sites = sites
        self._more = more

    def describe(self) -> list[Metric]:
        """Nothing: names are told when they are asked for."""
        return []

    def collect(self) -> Iterator[Metric]:
        """The gauges; of a store that is away, only that it is."""
        yield _single("topobench_build_info", "Version of topobench", {"version": __version__}, 1)
        found: list[Metric] = []
        up = 1
        for site in self._sites:
            try:
                found += list(_of_store(site.store()))
            except StoreError as error:
                site.lost(error)
                up = 0
        yield _single("topobench_store_up", "Whether the store can be read", {}, up)
        yield from _merged(found)
        yield from self._more


def _of_store(store: Store) -> Iterator[Metric]:
    from topobench.db import look

    look.check_keys(store)
    hosts = look.fleet(store)
    measured = GaugeMetricFamily(
        "topobench_host_last_measured_timestamp_seconds",
        "When a host was last measured, since 1970; alert on its age",
        labels=["cluster", "host", "synthetic"],
    )
    verdict = GaugeMetricFamily(
        "topobench_host_verdict_level",
        "Newest verdict: 0 unknown, 1 learning, 2 ok, 3 watch, 4 degraded, 5 fail",
        labels=["cluster", "host", "synthetic"],
    )
    totals = GaugeMetricFamily(
        "topobench_hosts", "Hosts by newest verdict", labels=["cluster", "verdict"]
    )
    shared = Counter((h["cluster"], h["name"]) for h in hosts)
    for host in hosts:
        name = host["name"]
        if shared[host["cluster"], name] > 1:  # two hosts of one name stay two series
            name = f"{name} ({host['key']})"
        labels = [host["cluster"], name, str(int(host["synthetic"]))]
        if host["measured_unix_seconds"] is not None:
            measured.add_metric(labels, host["measured_unix_seconds"])
        if host["level"] is not None:
            verdict.add_metric(labels, VALUES[host["level"]])
    counts = Counter((h["cluster"], h["level"] or "not_judged") for h in hosts)
    levels = [*(level.value for level in Level), "not_judged"]
    for cluster in sorted({h["cluster"] for h in hosts}):
        for level in levels:
            totals.add_metric([cluster, level], counts[cluster, level])
    yield from (measured, verdict, totals)
    yield from _sweeps(store)
    yield from _schedules(store)


def _sweeps(store: Store) -> Iterator[Metric]:
    """The newest sweep of each cluster: when it began, and its cells by status."""
    from topobench.db import look

    started = GaugeMetricFamily(
        "topobench_sweep_started_timestamp_seconds",
        "When the newest sweep of a cluster began, since 1970",
        labels=["cluster", "status"],
    )
    cells = GaugeMetricFamily(
        "topobench_sweep_cells",
        "Cells of the newest sweep of a cluster",
        labels=["cluster", "status"],
    )
    for sweep in look.newest_sweeps(store):
        started.add_metric([sweep["cluster"], sweep["status"]], sweep["started_unix_seconds"])
        for status, number in sorted(sweep["counts"].items()):
            cells.add_metric([sweep["cluster"], status], number)
    yield from (started, cells)


def _schedules(store: Store) -> Iterator[Metric]:
    """When each schedule of a fleet was last tried, and what that gave."""
    from topobench.db import schedules

    tried = GaugeMetricFamily(
        "topobench_schedule_last_try_timestamp_seconds",
        "When a schedule was last tried, since 1970; alert on its age",
        labels=["cluster", "schedule"],
    )
    codes = GaugeMetricFamily(
        "topobench_schedule_exit_code",
        "Exit code of the last try that ended, as of topobench probe",
        labels=["cluster", "schedule"],
    )
    missed = GaugeMetricFamily(
        "topobench_schedule_missed_times",
        "Times of a schedule that went by since its last sweep without one",
        labels=["cluster", "schedule"],
    )
    for state in schedules.every(store):
        labels = [state.cluster, state.schedule]
        missed.add_metric(labels, state.missed)
        tried.add_metric(labels, state.tried_at.timestamp())
        if state.exit_code is not None:
            codes.add_metric(labels, state.exit_code)
    yield from (tried, codes, missed)


def _merged(metrics: Iterable[Metric]) -> Iterable[Metric]:
    """Each name once; of two stores that tell of the same host the first counts."""
    found: dict[str, Metric] = {}
    for metric in metrics:
        known = found.setdefault(metric.name, metric)
        if known is not metric:
            told = {tuple(sample.labels.items()) for sample in known.samples}
            known.samples += [s for s in metric.samples if tuple(s.labels.items()) not in told]
    return found.values()


def _single(name: str, help_text: str, labels: dict[str, str], value: float) -> Metric:
    family = GaugeMetricFamily(name, help_text, labels=list(labels))
    family.add_metric(list(labels.values()), value)
    return family
