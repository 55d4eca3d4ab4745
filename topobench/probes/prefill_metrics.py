"""
What running a transformer measures. Pure.

Only times and token rates have a direction: what is derived from them would count the same
change twice in a verdict.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from topobench import stats
from topobench.reading import Better, Metric, Reading, Scalar

DEVICE_TIME = Metric(
    "prefill_device_seconds", Better.LOWER, "one forward pass by the device's clock"
)
WALL_TIME = Metric(
    "prefill_wall_seconds", Better.LOWER, "from token numbers in host memory to the next token"
)
TOKENS = Metric("tokens_per_second", Better.HIGHER, "prompt tokens by device time")
HOST_SHARE = Metric(
    "host_share_ratio", Better.NEITHER, "share of the wall time that is not device time"
)
MFU = Metric("mfu_ratio", Better.NEITHER, "arithmetic rate by the data sheet's of the device")
MFU_MEASURED = Metric(
    "mfu_measured_ratio", Better.NEITHER, "arithmetic rate by that of matrix products"
)
CEILING = Metric(
    "gemm_flop_per_second", Better.NEITHER, "matrix products under steady load, same process"
)
STAGE = Metric("stage_seconds", Better.NEITHER, "device time of a stage, over all layers")
PART = Metric("host_part_seconds", Better.NEITHER, "a part of what the host does")
COMPILE = Metric("compile_seconds", Better.NEITHER, "first compiled pass, compiling included")
FIRST = Metric(
    "first_pass_seconds", Better.NEITHER, "from the worker's start to the end of its first pass"
)
ERROR = Metric("relative_error_ratio", Better.NEITHER, "distance from float32")
WORK = Metric("work_flop_count", Better.NEITHER, "arithmetic operations of one pass")
LAUNCHES = Metric("kernel_launch_count", Better.NEITHER, "kernels of one pass")
ALLOCATED = Metric("peak_allocated_bytes", Better.NEITHER, "most device memory in use")
RESERVED = Metric("peak_reserved_bytes", Better.NEITHER, "most device memory that torch held")
PREDICTED = Metric("predicted_peak_bytes", Better.NEITHER, "weights, cache and activations")
KV_TOKEN = Metric("kv_token_bytes", Better.NEITHER, "cache of one token over all layers")
WHOLE = Metric("whole_model_seconds", Better.NEITHER, "estimate for all layers, from a slice")

APART = Metric("prefill_apart_seconds", Better.NEITHER, "the same pass without its all-reduces")
COMMUNICATION = Metric(
    "communication_share_ratio", Better.NEITHER, "share of the device time that all-reduces take"
)
MESSAGE = Metric("all_reduce_bytes", Better.NEITHER, "what each all-reduce of a pass adds up")
MESSAGES = Metric("all_reduce_count", Better.NEITHER, "all-reduces of a pass")


def unstaged(mode: str) -> str:
    """Why a pass in a mode has no times of stages, where it has none."""
    if mode == "compile":
        return "not measured: compiled kernels cross them"
    return "not measured: launching outlasted every spin"


def staged(found: Mapping[str, Sequence[float]]) -> Iterator[Reading]:
    """A reading of each stage, from its seconds in each pass."""
    for stage, seconds in found.items():
        yield several(STAGE, tuple(seconds), stage=stage)


def single(metric: Metric, value: float, **point: Scalar) -> Reading:
    """A reading of one value that no sampling is behind."""
    summary = stats.summarise((value,), stop_reason="fixed")
    return Reading(metric.name, summary, (value,), point)


def several(metric: Metric, values: tuple[float, ...], **point: Scalar) -> Reading:
    """A reading of a fixed number of values."""
    return Reading(metric.name, stats.summarise(values, stop_reason="fixed"), values, point)
