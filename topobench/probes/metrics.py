"""Metrics that several probes measure, defined once; docs/metrics.md tells their meaning."""

from __future__ import annotations

from topobench.reading import Better, Metric

BANDWIDTH = Metric(
    "bandwidth_bytes_per_second", Better.HIGHER, "sustained bandwidth, limited by the hardware"
)
PER_CALL_BANDWIDTH = Metric(
    "per_call_bandwidth_bytes_per_second",
    Better.HIGHER,
    "bandwidth of single calls, each waited for, by the host's clock",
)
LATENCY = Metric("latency_seconds", Better.LOWER, "time of one operation")
FLOP = Metric("flop_per_second", Better.HIGHER, "arithmetic operations by time")
DURATION = Metric("duration_seconds", Better.LOWER, "time of a whole piece of work")
ALGBW = Metric("algbw_bytes_per_second", Better.HIGHER, "payload bytes by time of a collective")
BUSBW = Metric("busbw_bytes_per_second", Better.HIGHER, "algbw times the factor of the collective")
LOCALITY = Metric(
    "locality_ratio",
    Better.HIGHER,
    "share of the measured buffer's pages on the NUMA nodes asked for",
)
"""The worker adds it to runs of every probe that shows it a host buffer."""
COMMON = (BANDWIDTH, PER_CALL_BANDWIDTH, LATENCY, ALGBW, BUSBW, LOCALITY)
"""Known by name whichever probe measured them: results may come from elsewhere."""
