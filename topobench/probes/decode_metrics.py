"""
What decoding measures, beside what running a transformer measures anyway. Pure.

Only times and token rates have a direction, as in ``probes.prefill_metrics``.
"""

from __future__ import annotations

from topobench.reading import Better, Metric

TPOT = Metric("tpot_seconds", Better.LOWER, "one step by the device's clock: a token a sequence")
WALL_TIME = Metric(
    "tpot_wall_seconds", Better.LOWER, "from a token in host memory to the next one there"
)
TOKENS = Metric("tokens_per_second", Better.HIGHER, "new tokens of all sequences by device time")
READ = Metric("step_read_bytes", Better.NEITHER, "weights, keys and values that a step reads")
READ_RATE = Metric(
    "read_bytes_per_second", Better.NEITHER, "weights, keys and values by device time"
)
MEMORY = Metric("memory_bytes_per_second", Better.NEITHER, "a copy within the memory, same process")
MBU = Metric("mbu_ratio", Better.NEITHER, "reading rate by what clock and width of memory allow")
MBU_MEASURED = Metric(
    "mbu_measured_ratio", Better.NEITHER, "reading rate by the memory bandwidth measured"
)
KV = Metric("kv_bytes", Better.NEITHER, "keys and values of all sequences")
