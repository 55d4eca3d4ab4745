"""The probe ``decode`` on a real GPU: our kernel, every type and mode, and llama3-8b."""

from __future__ import annotations

import functools
import math
from typing import Any

import pytest

from probing import Listener, measure, run_gang
from topobench.errors import ProbeUnavailable
from topobench.probes.decode import Decode
from topobench.probes.decode_step import Decoder
from topobench.probes.decode_work import KEPT
from topobench.probes.precisions import PRECISIONS
from topobench.probes.shapes import shape_of
from topobench.probes.transformer import Place, Transformer
from topobench.reading import Reading, Summary

torch = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no usable GPU"),
    # torch's compiler warns of a part of torch itself as it is loaded.
    pytest.mark.filterwarnings("ignore:.*torch.jit.*deprecated:DeprecationWarning"),
]

SMALL = "small layers=4 width=1024 heads=16 kv_heads=4 head_width=64 ffn=2816 vocabulary=8192"
DEVICES = ("GPU-0",)
GIB = 1 << 30


@functools.cache
def figures(**params: Any) -> tuple[dict[str, Summary], list[Reading], Listener]:
    """Summaries without a point by metric, all readings, and what the probe told."""
    listener = Listener()
    case = {"shape": SMALL, "context": 512, "batch": 4, "mode": "graph", **params}
    context = listener.context(devices=DEVICES, deadline_seconds=120.0)
    readings = measure(Decode(**case), context)
    return {r.metric: r.summary for r in readings if not r.point}, readings, listener


def value(metric: str, **params: Any) -> float:
    return figures(**params)[0][metric].median


def large(**params: Any) -> dict[str, Any]:
    if torch.cuda.get_device_properties(0).total_memory < 60 * GIB:
        pytest.skip("llama3-8b with long contexts needs a GPU of 60 GiB or more")
    return {"shape": "llama3-8b", "dtype": "bf16", **params}


def narrow(kept: str) -> None:
    if kept == "fp8" and torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("a cache in fp8 needs compute capability 8.9")


@pytest.mark.parametrize("kept", ["bf16", "fp8", "int8"])
@pytest.mark.parametrize(
    ("batch", "heads", "kv_heads", "tokens"),
    [(1, 32, 8, 8192), (3, 8, 8, 130), (2, 8, 1, 65), (64, 16, 4, 1000)],
)
def test_our_kernel_is_the_formula(
    kept: str, batch: int, heads: int, kv_heads: int, tokens: int
) -> None:
    """Against softmax of scaled scores in float64 over what the cache holds."""
    narrow(kept)
    shape = shape_of(
        f"own layers=1 width=256 heads={heads} kv_heads={kv_heads} head_width=128 ffn=256 "
        "vocabulary=256"
    )
    model = Transformer(torch, shape, PRECISIONS["bf16"], Place("cuda"))
    decoder = Decoder(model, KEPT[kept], tokens)
    query, keys, values = decoder.sample(batch)
    decoder.choose("split")
    found = decoder.read(query, keys, values).double()
    key, wide = (
        held[0].double() * (held[1].double().unsqueeze(-1) if len(held) > 1 else 1.0)
        for held in (keys, values)
    )
    shares = (query.double() @ key.transpose(-1, -2) / math.sqrt(128)).softmax(dim=-1)
    wanted = shares @ wide
    assert float((found - wanted).norm() / wanted.norm()) < 0.01


@pytest.mark.parametrize("dtype", ["fp32", "tf32", "bf16", "fp16", "fp8", "int4"])
def test_every_type_is_near_float32_or_unavailable_with_the_reason(dtype: str) -> None:
    kept = {"fp32": "fp32", "tf32": "fp32", "fp16": "fp16"}.get(dtype, "bf16")
    if torch.cuda.get_device_capability() < (8, 9) and dtype == "fp8":
        with pytest.raises(ProbeUnavailable, match="fp8 products need compute capability"):
            figures(dtype=dtype, kv_dtype=kept)
        return
    most = {"fp32": 1e-4, "tf32": 5e-3, "bf16": 0.05, "fp16": 0.005, "fp8": 0.4}.get(dtype, 0.7)
    assert 0 < value("relative_error_ratio", dtype=dtype, kv_dtype=kept) < most


def test_whole_numbers_need_a_larger_batch() -> None:
    with pytest.raises(ProbeUnavailable, match="int8 products need 17 tokens or more"):
        figures(dtype="int8", batch=16)
    assert value("relative_error_ratio", dtype="int8", batch=32) < 0.15


@pytest.mark.parametrize("kept", ["bf16", "fp8", "int8"])
@pytest.mark.parametrize("mode", ["eager", "graph", "compile"])
def test_every_mode_and_cache_gives_the_logits_of_eager_mode(mode: str, kept: str) -> None:
    """Each is held against eager mode and float32 by the probe itself."""
    narrow(kept)
    found, readings, listener = figures(mode=mode, kv_dtype=kept)
    assert 0 < found["tpot_seconds"].median < found["tpot_wall_seconds"].median
    assert ("compile_seconds" in found) is (mode == "compile")
    assert found["kernel_launch_count"].median > 4 * 5
    assert found["relative_error_ratio"].median < 0.1
    if kept != "bf16":
        assert listener.notes["attention"] == "split"
    stages = {r.point["stage"]: r.summary.median for r in readings if "stage" in r.point}
    assert set(stages) == (
        set() if mode == "compile" else {"qkv", "attention", "output", "mlp", "head"}
    )


def test_a_graph_hides_what_launching_costs() -> None:
    parts = {
        mode: {r.point.get("part"): r.summary.median for r in figures(mode=mode)[1]}
        for mode in ("eager", "graph")
    }
    assert parts["graph"]["launch"] < parts["eager"]["launch"] / 3
    assert value("tpot_wall_seconds", mode="graph") < value("tpot_wall_seconds", mode="eager")


@pytest.mark.parametrize("backend", ["math", "efficient", "flash", "cudnn", "fa3", "fa4", "split"])
def test_each_attention_is_the_one_that_ran_or_unavailable(backend: str) -> None:
    try:
        found, _, listener = figures(attention=backend)
    except ProbeUnavailable as why:
        if why.code != "unsupported" or backend in ("math", "efficient", "split"):
            raise
        return
    assert listener.notes["attention"] == backend
    assert found["relative_error_ratio"].median < 0.05


def test_latent_attention_and_experts_run_as_a_graph() -> None:
    found, _, listener = figures(shape="tiny-experts", context=256)
    assert listener.notes["attention"] == "latent, folded into the queries"
    assert found["relative_error_ratio"].median < 0.1


def test_a_slice_is_scaled_to_the_whole() -> None:
    scaled = value("whole_model_seconds", **large(shape="llama3-8b-slice4", batch=1, context=2048))
    assert scaled == pytest.approx(value("tpot_seconds", **large(batch=1, context=2048)), rel=0.15)


@pytest.mark.parametrize(("batch", "context"), [(1, 2048), (32, 4096)])
def test_an_8b_model_is_bound_by_memory(batch: int, context: int) -> None:
    found, _, listener = figures(**large(batch=batch, context=context))
    times = found["tpot_seconds"]
    assert 1.4826 * times.mad < 0.01 * times.median
    assert (listener.notes["device_timing"], listener.notes["rest_share"]) == ("queued", 0.0)
    assert listener.notes["bound_by"] == "memory"
    assert 0.5 < found["mbu_measured_ratio"].median < 1.2
    assert 0.4 < found["mbu_ratio"].median < 1.0
    assert found["tokens_per_second"].median == pytest.approx(batch / times.median, rel=1e-6)
    assert found["step_read_bytes"].median == 15_009_316_864 + batch * context * 131_072


@pytest.mark.parametrize("kept", ["bf16", "fp8", "int8"])
def test_the_peak_is_what_was_predicted(kept: str) -> None:
    narrow(kept)
    found, _, _ = figures(**large(batch=32, context=4096, kv_dtype=kept))
    peak, told = found["peak_allocated_bytes"].median, found["predicted_peak_bytes"].median
    assert peak <= told <= 1.1 * peak
    assert peak <= found["peak_reserved_bytes"].median


@pytest.mark.parametrize("kept", ["fp8", "int8"])
def test_a_narrow_cache_makes_long_contexts_faster(kept: str) -> None:
    """32 sequences of 8192 tokens: 32 GiB of keys and values in bf16 beside 15 GB of weights."""
    narrow(kept)
    wide = value("tpot_seconds", **large(batch=32, context=8192))
    assert value("tpot_seconds", **large(batch=32, context=8192, kv_dtype=kept)) < 0.9 * wide


@pytest.mark.parametrize("kept", ["bf16", "fp8"])
def test_a_compiled_step_copies_no_cache(kept: str) -> None:
    """A copy of the cache in each layer would cost as much as reading it."""
    narrow(kept)
    graph, compiled = (
        value("tpot_seconds", **large(batch=32, context=4096, kv_dtype=kept, mode=m))
        for m in ("graph", "compile")
    )
    assert compiled < 1.1 * graph


def test_more_than_the_memory_is_skipped_with_the_amounts() -> None:
    with pytest.raises(ProbeUnavailable, match=r"not_enough_memory: .* keys and values, .* free"):
        figures(**large(batch=128, context=1 << 17))
    assert value("tpot_seconds", context=640) > 0


def test_all_gpus_decode_at_once() -> None:
    """With too few GPUs two ranks share one."""
    devices = tuple(f"GPU-{i}" for i in range(max(2, torch.cuda.device_count())))
    case = {"shape": SMALL, "context": 512, "batch": 4, "mode": "graph", "at_once": "all"}
    first, *_ = run_gang(len(devices), [case], devices=devices, probe=Decode)
    (readings,) = first.outcomes
    rates = {
        r["point"].get("rank"): r["summary"]["median"]
        for r in readings
        if r["metric"] == "tokens_per_second"
    }
    assert rates[None] == pytest.approx(sum(rates[r] for r in range(len(devices))), rel=0.1)
