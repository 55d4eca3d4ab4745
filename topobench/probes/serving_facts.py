"""
What a server says of itself on its page of metrics, read beside the load; pure.

Names of vLLM, SGLang, TGI and llama.cpp are known; others are left alone.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

GAUGES: Mapping[str, tuple[str, ...]] = {
    "waiting_requests": (
        "vllm:num_requests_waiting",
        "sglang:num_queue_reqs",
        "tgi_queue_size",
        "llamacpp:requests_deferred",
    ),
    "running_requests": (
        "vllm:num_requests_running",
        "sglang:num_running_reqs",
        "tgi_batch_current_size",
        "llamacpp:requests_processing",
    ),
    "kv_cache_ratio": (
        "vllm:kv_cache_usage_perc",
        "vllm:gpu_cache_usage_perc",
        "sglang:token_usage",
        "llamacpp:kv_cache_usage_ratio",
    ),
}
"""What is kept -> names under which servers tell it; the first that is there counts."""
COUNTERS: Mapping[str, tuple[str, ...]] = {
    "prefix_cache_hits": ("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"),
    "prefix_cache_queries": (
        "vllm:prefix_cache_queries_total",
        "vllm:gpu_prefix_cache_queries_total",
    ),
    "preemptions": ("vllm:num_preemptions_total",),
}
_LINE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{[^}]*\})?\s+([^\s]+)")

Page = Mapping[str, float]


def read(text: str) -> dict[str, float]:
    """
    The known figures of a page in Prometheus' text format.

    Series of one name (one for each model or replica) are added up; ratios are averaged.
    """
    sums: dict[str, list[float]] = {}
    for line in text.splitlines():
        found = None if line.startswith("#") else _LINE.match(line)
        if found is None:
            continue
        try:
            value = float(found[2])
        except ValueError:
            continue
        if math.isfinite(value):
            sums.setdefault(found[1], []).append(value)
    page = {}
    for kept, names in {**GAUGES, **COUNTERS}.items():
        values = next((sums[n] for n in names if n in sums), None)
        if values is not None:
            page[kept] = math.fsum(values) / (len(values) if kept.endswith("_ratio") else 1)
    return page


def between(pages: Sequence[Page]) -> dict[str, float]:
    """What pages read during a window say: means and largest of gauges, growth of counters."""
    found: dict[str, float] = {}
    for name in GAUGES:
        values = [p[name] for p in pages if name in p]
        if values:
            found[f"{name}_mean"] = math.fsum(values) / len(values)
            found[f"{name}_most"] = max(values)
    for name in COUNTERS:
        if len(pages) > 1 and name in pages[0] and name in pages[-1]:
            found[name] = max(0.0, pages[-1][name] - pages[0][name])
    if found.get("prefix_cache_queries"):
        share = found.get("prefix_cache_hits", 0.0) / found["prefix_cache_queries"]
        found["prefix_cache_hit_ratio"] = share
    return found
