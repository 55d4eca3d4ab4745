"""The fleet for Prometheus: verdict and age of each host, and the newest sweep of each cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from topobench import __version__
from topobench.errors import StoreError
from topobench.verdict_words import SEVERITY, Level

if TYPE_CHECKING:
    from topobench.web.site import Site

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
VALUES = {level.value: value for level, value in SEVERITY.items()}
"""Level -> its number: the higher, the graver; 0 says that nothing could be judged."""


def exposition(site: Site) -> bytes:
    """All metrics, read from the store now."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Fleet(site))
    return generate_latest(registry)


class _Fleet(Collector):
    """No counters of this process: everything is a gauge of what is stored."""

    def __init__(self, site: Site) -> None:
        self._site = site

    def describe(self) -> list[Metric]:
        """Nothing: names are told when they are asked for."""
        return []

    def collect(self) -> Iterator[Metric]:
        """The gauges; of a store that is away, only that it is."""
        yield _single("topobench_build_info", "Version of topobench", {"version": __version__}, 1)
        try:
            found = list(self._of_store())
        except StoreError as error:
            self._site.lost(error)
            yield _single("topobench_store_up", "Whether the store can be read", {}, 0)
            return
        yield _single("topobench_store_up", "Whether the store can be read", {}, 1)
        yield from found

    def _of_store(self) -> Iterator[Metric]:
        from topobench.db import look

        store = self._site.store()
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
        yield from self._sweeps()
        yield from self._schedules()

    def _sweeps(self) -> Iterator[Metric]:
        """The newest sweep of each cluster: when it began, and its cells by status."""
        from topobench.db import look

        store = self._site.store()
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

    def _schedules(self) -> Iterator[Metric]:
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
        for state in schedules.every(self._site.store()):
            labels = [state.cluster, state.schedule]
            tried.add_metric(labels, state.tried_at.timestamp())
            if state.exit_code is not None:
                codes.add_metric(labels, state.exit_code)
        yield from (tried, codes)


def _single(name: str, help_text: str, labels: dict[str, str], value: float) -> Metric:
    family = GaugeMetricFamily(name, help_text, labels=list(labels))
    family.add_metric(list(labels.values()), value)
    return family
