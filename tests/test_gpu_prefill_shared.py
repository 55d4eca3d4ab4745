"""Prefill of a model that two real GPUs share over NCCL, beside the same on one of them."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from probing import run_gang
from topobench.probes.prefill import Prefill

torch = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.multi_gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="torch finds fewer than two GPUs"),
]

SMALL = "small layers=4 width=1024 heads=16 kv_heads=4 head_width=64 ffn=2816 vocabulary=8192"
LARGE: dict[str, Any] = {"shape": "llama3-8b", "dtype": "bf16", "sequence": 8192, "mode": "graph"}
DEVICES = ("GPU-0", "GPU-1")


@functools.cache
def figures(count: int, **params: Any) -> dict[tuple[str, str], float]:
    """Medians by metric and point on so many GPUs."""
    case = {"shape": SMALL, "sequence": 512, "mode": "graph", **params, "tensor_parallel": count}
    results = run_gang(count, [case], devices=DEVICES[:count], probe=Prefill)
    (readings,) = results[0].outcomes
    assert isinstance(readings, list), readings
    return {
        (r["metric"], ",".join(map(str, r["point"].values()))): r["summary"]["median"]
        for r in readings
    }


def large() -> None:
    if min(torch.cuda.get_device_properties(n).total_memory for n in (0, 1)) < 40 << 30:
        pytest.skip("llama3-8b needs GPUs of 40 GiB or more")


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp8", "int8", "int4"])
def test_two_gpus_are_as_near_to_float32_as_one(dtype: str) -> None:
    """The probe holds every rank's logits against float32; splitting may not add to that much."""
    if dtype == "fp8" and torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("fp8 needs compute capability 8.9")
    one, two = (figures(n, dtype=dtype)["relative_error_ratio", ""] for n in (1, 2))
    assert 0 < two < 1.5 * one + 1e-6


@pytest.mark.parametrize("mode", ["eager", "graph", "compile"])
def test_every_mode_runs_over_nccl_and_tells_its_share_of_communication(mode: str) -> None:
    found = figures(2, dtype="bf16", mode=mode)
    assert 0 < found["communication_share_ratio", "twin"] < 1
    assert ("communication_share_ratio", "events") in found or mode == "compile"
    assert found["all_reduce_count", ""] == 8
    assert found["kernel_launch_count", ""] > 8


def test_latent_attention_and_experts_are_shared_too() -> None:
    found = figures(2, shape="tiny-experts", dtype="bf16", sequence=256)
    assert found["relative_error_ratio", ""] < 0.1


def test_two_gpus_are_faster_than_one_at_8k_tokens() -> None:
    large()
    one, two = figures(1, **LARGE), figures(2, **LARGE)
    speed_up = one["prefill_device_seconds", ""] / two["prefill_device_seconds", ""]
    assert 1.2 < speed_up < 2.1
    assert two["all_reduce_count", ""] == 64
    assert two["all_reduce_bytes", ""] == 8192 * 4096 * 2


def test_communication_has_a_share_that_both_ways_agree_on() -> None:
    large()
    found = figures(2, **LARGE)
    events = found["communication_share_ratio", "events"]
    twin = found["communication_share_ratio", "twin"]
    assert 0 < twin < 0.5
    assert events == pytest.approx(twin, abs=0.1)
    apart = found["prefill_apart_seconds", ""]
    assert apart < found["prefill_device_seconds", ""]


def test_the_peak_of_each_gpu_is_what_was_predicted() -> None:
    large()
    found = figures(2, **LARGE)
    peak, told = found["peak_allocated_bytes", ""], found["predicted_peak_bytes", ""]
    assert peak <= told <= 1.15 * peak
