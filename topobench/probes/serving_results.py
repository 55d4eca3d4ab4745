"""Windows as readings and as conditions of a run; pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from topobench import stats
from topobench.probes import serving_checks
from topobench.probes import serving_metrics as metrics
from topobench.probes.serving_client import trace_text
from topobench.probes.serving_gpu import GpuMeter
from topobench.probes.serving_search import CONFIRM, Search, upper_share
from topobench.probes.serving_session import Result
from topobench.probes.serving_windows import Window, percentiles
from topobench.reading import Metric, Reading, Scalar

_LATENCIES = (
    *(metrics.TTFT, metrics.TTFT_FROM_SCHEDULE, metrics.CLIENT_QUEUE, metrics.TPOT),
    *(metrics.E2E, metrics.E2E_FROM_SCHEDULE, metrics.OFFSET),
    *(metrics.INPUT_COUNT, metrics.OUTPUT_COUNT),
)
"""Of each answered request, in the order they ended."""


def level_readings(
    windows: Sequence[Window], meter: GpuMeter, *, ladder: bool
) -> Iterator[Reading]:
    """
    What was measured at each load, of the windows that may be used; of all, if none may at all.

    Shares within the limit are of every window that was judged: one that was over it counts, too,
    though an overloaded server is never steady.

    Args:
        ladder: There are several loads: each is a point.
    """
    usable = serving_checks.usable(windows) or windows
    loads = dict.fromkeys((w.load, w.open_loop) for w in windows)
    for load, open_loop in loads:
        used = [w for w in usable if w.load == load]
        judged = [w for w in windows if w.load == load and w.n and (w.valid or w.meets is False)]
        point: dict[str, Scalar] = {}
        if ladder:
            point = {"rate_requests_per_second": load} if open_loop else {"concurrency": int(load)}
        if answered := [w for w in used if w.answered]:
            yield from _readings(answered, meter, point)
        yield from _shares(judged or [w for w in used if w.n], point)


def search_readings(
    windows: Sequence[Window], search: Search, meter: GpuMeter
) -> Iterator[Reading]:
    """The largest load, the first one over it, and what was measured while the winner held."""
    open_loop = any(w.open_loop for w in windows)
    best = metrics.MOST_RATE if open_loop else metrics.MOST_CONCURRENCY
    over = metrics.OVER_RATE if open_loop else metrics.OVER_CONCURRENCY
    if search.best is not None:
        yield _one(best, [search.best], {})
        if search.first_over is not None:
            yield _one(over, [search.first_over], {})
    last = [w for w in windows if w.purpose == CONFIRM and w.load == search.best]
    if shown := last[-search.in_a_row :] or [w for w in windows if w.answered][-1:]:
        yield from _readings(shown, meter, {})
        yield from _shares(shown, {})


def conditions(result: Result, meter: GpuMeter) -> dict[str, Any]:
    """What is kept of a cell beside its readings: the server, every window, the search."""
    told: dict[str, Any] = {
        "server": dict(result.told),
        "windows": [_document(n, w, meter, result) for n, w in enumerate(result.windows)],
    }
    if result.told.get("version"):
        told["version"] = str(result.told["version"])
    if (search := result.search) is not None:
        held = [w for w in result.windows if w.purpose == CONFIRM and w.load == search.best]
        n, over = sum(w.n for w in held), sum(w.n_over for w in held)
        told["search"] = {
            "ended": search.ended,
            "best": search.best,
            "first_over": search.first_over,
            "windows": search.windows,
            "over_share_upper": upper_share(over, n) if n else None,
        }
    return told


def _readings(
    windows: Sequence[Window], meter: GpuMeter, point: Mapping[str, Scalar]
) -> Iterator[Reading]:
    for metric in _LATENCIES:
        samples = [x for w in windows for x in w.samples.get(metric.name, ())]
        if samples:
            yield _one(metric, samples, point)
    gaps = [float(g) for w in windows for g in w.gaps]
    if gaps:
        yield Reading(metrics.ITL.name, stats.summarise(gaps), (), point)
    yield _one(metrics.INPUT_RATE, [w.rate(metrics.INPUT_COUNT.name) for w in windows], point)
    yield _one(metrics.OUTPUT_RATE, [w.rate(metrics.OUTPUT_COUNT.name) for w in windows], point)
    yield _one(metrics.REQUESTS, [w.answered / w.seconds for w in windows], point)
    if all(w.good for w in windows):
        yield _one(metrics.GOODPUT, [w.good / w.seconds for w in windows], point)
    yield _one(metrics.IN_FLIGHT, [w.flow.in_flight for w in windows], point)
    yield from _gpus(windows, meter, point)


def _shares(windows: Sequence[Window], point: Mapping[str, Scalar]) -> Iterator[Reading]:
    """Of the requests and of the windows at a load."""
    if not windows:
        return
    yield _one(metrics.GOODPUT_RATIO, [w.good / w.n for w in windows], point)
    if all(w.meets is not None for w in windows):
        within = sum(w.meets is True for w in windows) / len(windows)
        yield _one(metrics.WITHIN_WINDOWS, [within], point)
    yield _one(metrics.ERRORS, [w.error_count / w.n for w in windows], point)


def _gpus(
    windows: Sequence[Window], meter: GpuMeter, point: Mapping[str, Scalar]
) -> Iterator[Reading]:
    watts = [x for w in windows for x in meter.watts(*w.span)]
    peaks = [p for w in windows if (p := meter.peak_bytes(*w.span)) is not None]
    if watts:
        yield _one(metrics.POWER, watts, point)
    if peaks:
        yield _one(metrics.GPU_MEMORY, peaks, point)


def _one(metric: Metric, samples: Sequence[float], point: Mapping[str, Scalar]) -> Reading:
    return Reading(metric.name, stats.summarise(samples), tuple(samples), point)


def _document(number: int, window: Window, meter: GpuMeter, result: Result) -> dict[str, Any]:
    """A window as plain JSON; topobench.db stores the first keys as columns of ``slo_window``."""
    load = {"offered_per_second": window.load, "concurrency": None}
    if not window.open_loop:
        load = {"offered_per_second": None, "concurrency": window.load}
    watts = meter.watts(*window.span)
    return {
        "window_no": number,
        "purpose": window.purpose,
        **load,
        "started_at": window.started_at,
        "duration_seconds": window.seconds,
        "n": window.n,
        "n_over": window.n_over,
        "errors": window.error_count,
        "p50_seconds": window.p50,
        "p99_seconds": window.p99,
        "limit_on": window.limits.on,
        "limit_seconds": window.limits.slo,
        "in_flight": window.flow.in_flight,
        "answered_per_second": window.answered / window.seconds,
        "output_tokens_per_second": window.rate(metrics.OUTPUT_COUNT.name),
        "power_watts": sum(watts) / len(watts) if watts else None,
        "valid": window.valid,
        "meets": window.meets,
        "faults": [f"{code}: {text}" for code, text in window.faults],
        "error_classes": dict(window.errors),
        "good": window.good,
        "little_ratio": window.flow.little_ratio,
        "client": {
            "lag_p99_seconds": window.health.lag_seconds,
            "lag_most_seconds": window.health.most_lag_seconds,
            "cpu_ratio": window.health.cpu_ratio,
        },
        "exact_prompts_ratio": window.exact_ratio,
        "whole_answers_ratio": window.whole_ratio,
        "at_once": window.at_once,
        "latencies": {
            m.name: percentiles(window.samples[m.name])
            for m in _LATENCIES
            if m.name in window.samples and m is not metrics.OFFSET
        }
        | {metrics.ITL.name: percentiles(window.gaps)},
        "server_metrics": dict(window.facts),
        "slowest": [
            {"trace": trace_text(result.traces, n), "e2e_seconds": e2e, "due_seconds": due}
            for n, e2e, due in window.slowest
        ],
    }
