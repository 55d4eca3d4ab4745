"""The probe ``prefill`` on a real GPU: small shapes in every type and mode, and llama3-8b."""

from __future__ import annotations

import functools
import statistics
from typing import Any

import pytest

from probing import Listener, measure, run_gang
from topobench.errors import ProbeUnavailable
from topobench.probes import attention, datasheets, device_work
from topobench.probes.accelerator import Gpu
from topobench.probes.bench import BENCH, distance
from topobench.probes.forward import Forward
from topobench.probes.passes import DEVICE_SECONDS
from topobench.probes.precisions import PRECISIONS
from topobench.probes.prefill import Prefill
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
    case = {"shape": SMALL, "sequence": 512, "mode": "graph", **params}
    context = listener.context(devices=DEVICES, deadline_seconds=120.0)
    readings = measure(Prefill(**case), context)
    return {r.metric: r.summary for r in readings if not r.point}, readings, listener


def value(metric: str, **params: Any) -> float:
    return figures(**params)[0][metric].median


def large(**params: Any) -> dict[str, Any]:
    if torch.cuda.get_device_properties(0).total_memory < 40 * GIB:
        pytest.skip("llama3-8b needs a GPU of 40 GiB or more")
    return {"shape": "llama3-8b", "dtype": "bf16", **params}


@pytest.mark.parametrize("dtype", ["fp32", "tf32", "bf16", "fp16", "fp8", "int8", "int4"])
def test_every_type_is_near_float32_or_unavailable_with_the_reason(dtype: str) -> None:
    if torch.cuda.get_device_capability() < (8, 9) and dtype in ("fp8",):
        with pytest.raises(ProbeUnavailable, match="fp8 products need compute capability"):
            figures(dtype=dtype)
        return
    found, readings, _ = figures(dtype=dtype)
    most = {"fp32": 1e-4, "tf32": 5e-3, "bf16": 0.05, "fp16": 0.005, "fp8": 0.4, "int8": 0.15}
    error = found["relative_error_ratio"].median
    assert 0 < error < most.get(dtype, 0.7)
    modules = {r.point["module"]: r.summary.median for r in readings if "module" in r.point}
    assert set(modules) == {"qkv", "attention", "output", "mlp", "head"}
    assert max(modules.values()) < most.get(dtype, 0.7)


def test_wider_types_are_nearer_to_float32() -> None:
    errors = [
        value("relative_error_ratio", dtype=d) for d in ("fp32", "tf32", "fp16", "bf16", "int8")
    ]
    assert errors == sorted(errors)


@pytest.mark.parametrize("mode", ["eager", "graph", "compile"])
def test_every_mode_gives_the_same_logits_and_its_own_time(mode: str) -> None:
    """Each is held against eager mode by the probe itself."""
    found, readings, listener = figures(mode=mode)
    assert 0 < found["prefill_device_seconds"].median < found["prefill_wall_seconds"].median
    assert listener.notes["device_timing"].startswith("queued")
    if mode == "eager":  # launching takes longer than so small a pass
        assert listener.notes["device_timing"] == "queued, each sample behind a spin"
        assert listener.notes["rest_share"] > 0.1
    assert ("compile_seconds" in found) is (mode == "compile")
    assert found["kernel_launch_count"].median > 4 * 8
    stages = {r.point["stage"]: r.summary.median for r in readings if "stage" in r.point}
    if mode == "compile":
        assert stages == {}
        assert found["kernel_launch_count"].median < value("kernel_launch_count", mode="eager")
        return
    assert set(stages) == {"qkv", "attention", "output", "mlp", "head"}
    # Stages are those of eager kernels, each with a mark behind it, whatever the mode.
    eager = value("prefill_device_seconds", mode="eager")
    marks = (4 * 4 + 1) * listener.notes["timer_overhead_seconds"]
    assert 0.8 * eager < sum(stages.values()) < 1.2 * eager + marks


@pytest.mark.parametrize("dtype", ["fp8", "int8", "int4"])
def test_the_compiler_joins_rounding_and_scales_of_narrow_types(dtype: str) -> None:
    if torch.cuda.get_device_capability() < (8, 9) and dtype == "fp8":
        pytest.skip("this GPU multiplies no fp8")
    compiled, plain = (
        value("kernel_launch_count", dtype=dtype, mode=mode) for mode in ("compile", "graph")
    )
    assert compiled < 0.7 * plain


def test_a_graph_hides_what_launching_costs() -> None:
    parts = {
        mode: {r.point.get("part"): r.summary.median for r in figures(mode=mode)[1]}
        for mode in ("eager", "graph")
    }
    assert parts["graph"]["launch"] < parts["eager"]["launch"] / 5
    assert value("prefill_wall_seconds", mode="graph") < value("prefill_wall_seconds", mode="eager")
    assert {"tokenise", "input_copy", "launch"} <= set(parts["graph"])


def test_a_replay_keeps_the_prompt_and_the_cache_it_reads() -> None:
    """Memory given back to the driver in between would be an illegal access."""
    context = Listener().context(devices=DEVICES)
    with device_work.site(context) as site, torch.no_grad():
        device = Gpu(site)
        model = Transformer(torch, shape_of(SMALL), PRECISIONS["bf16"], Place("cuda"))
        with attention.only(torch, "math"):
            forward = Forward(device, model, 1, 256)
            forward.eagerly()
            wanted = forward.logits.clone()
            forward.prepare("graph")
        replay, found = forward.run, forward.logits
        del forward
        found.fill_(float("nan"))
        device.forget()
        replay()
        device.wait()
        assert distance(found, wanted) < 0.01


def test_graphs_take_no_more_memory_the_more_of_them_are_made() -> None:
    context = Listener().context(devices=DEVICES)
    with device_work.site(context) as site:
        device = Gpu(site)
        left = torch.randn(512, 512, device="cuda")

        def made() -> int:
            device.captured(lambda: left @ left)()
            device.forget()
            return int(torch.cuda.memory_allocated())

        first = made()
        assert [made() for _ in range(8)] == [first] * 8


@pytest.mark.parametrize("backend", ["math", "efficient", "flash", "cudnn", "fa3", "fa4"])
def test_each_attention_is_the_one_that_ran_or_unavailable(backend: str) -> None:
    try:
        found, _, listener = figures(attention=backend)
    except ProbeUnavailable as why:
        if why.code != "unsupported" or backend in ("math", "efficient"):
            raise
        return
    assert listener.notes["attention"] == backend
    assert found["relative_error_ratio"].median < 0.05


def test_latent_attention_and_experts_run_as_a_graph() -> None:
    found, _, _ = figures(shape="tiny-experts", sequence=256)
    assert found["relative_error_ratio"].median < 0.1


def test_a_slice_is_scaled_to_the_whole() -> None:
    params = large(shape="llama3-8b-slice4", sequence=2048)
    scaled = value("whole_model_seconds", **params)
    whole = value("prefill_device_seconds", **large(sequence=2048))
    assert scaled == pytest.approx(whole, rel=0.1)


@pytest.mark.parametrize("tokens", [2048, 8192])
def test_the_peak_is_what_was_predicted(tokens: int) -> None:
    found, _, listener = figures(**large(sequence=tokens))
    peak, told = found["peak_allocated_bytes"].median, found["predicted_peak_bytes"].median
    assert peak <= told <= 1.1 * peak
    held = listener.notes["weights_bytes"] + listener.notes["kv_bytes"]
    assert held < peak <= 1.15 * held
    assert peak <= found["peak_reserved_bytes"].median


@pytest.mark.parametrize("tokens", [256, 512, 2048])
def test_passes_of_a_process_deviate_by_one_percent_at_most(tokens: int) -> None:
    found, readings, _ = figures(**large(sequence=tokens))
    warmups = found["prefill_device_seconds"].warmups
    (reading,) = [r for r in readings if r.metric == "prefill_device_seconds"]
    counted = reading.samples[warmups:]
    assert statistics.stdev(counted) <= 0.01 * statistics.mean(counted)


def test_an_8b_model_is_steady_and_near_the_products_of_its_process() -> None:
    found, readings, listener = figures(**large(sequence=4096, mode="compile"))
    times = found["prefill_device_seconds"]
    (reading,) = [r for r in readings if r.metric == "prefill_device_seconds"]
    counted = reading.samples[times.warmups :]
    assert len(counted) >= 6
    assert statistics.stdev(counted) <= 0.01 * statistics.mean(counted)
    assert found["relative_error_ratio"].median < 0.1
    assert 0.3 < found["mfu_measured_ratio"].median < 1.0
    peak = datasheets.peak(torch.cuda.get_device_name(), "bf16")
    assert ("mfu_ratio" in found) is (peak is not None)
    if peak is not None:
        assert found["gemm_flop_per_second"].median < peak
    assert listener.notes["layers"] == "32 of 32"
    assert found["work_flop_count"].median == pytest.approx(61.5e12, rel=0.02)


def test_eager_launches_are_hidden_in_an_8b_model() -> None:
    """In turns, as the probe times them: neither gets rest, which makes a GPU faster."""
    _, _, listener = figures(**large(sequence=2048, mode="eager"))
    assert (listener.notes["device_timing"], listener.notes["rest_share"]) == ("queued", 0.0)
    took: dict[str, list[float]] = {"eager": [], "graph": []}
    told = Listener()
    with device_work.site(told.context(devices=DEVICES)) as site, torch.no_grad():
        device = Gpu(site)
        model = BENCH.take(device, shape_of("llama3-8b"), PRECISIONS["bf16"], Place("cuda"))
        model.backend = listener.notes["attention"]
        with attention.only(torch, model.backend):
            forward = Forward(device, model, 1, 2048)
            forward.prepare("graph")
            calls = {"eager": forward.eagerly, "graph": forward.run}
            for name in 3 * ("eager", "graph"):
                found, how = device.times(calls[name], DEVICE_SECONDS)
                assert (how, told.notes["rest_share"]) == ("queued", 0.0), name
                took[name].extend(found.total.samples[found.total.warmups :])
    eager, graph = (statistics.median(found) for found in took.values())
    assert eager == pytest.approx(graph, rel=0.05)


def test_more_than_the_memory_is_skipped_with_the_amounts() -> None:
    with pytest.raises(ProbeUnavailable, match=r"not_enough_memory: .* GiB weights, .* are free"):
        figures(**large(sequence=1 << 20, batch=64))


def test_memory_that_runs_out_skips_its_case_and_the_next_is_measured() -> None:
    """A limit of torch's allocator stands for a neighbour that took the memory meanwhile."""
    figures(sequence=64)
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(min(1.0, 2.0 * GIB / total))
    try:
        with pytest.raises(ProbeUnavailable, match="not_enough_memory: CUDA out of memory"):
            figures(sequence=1 << 16, batch=8)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert figures(sequence=96)[0]["prefill_device_seconds"].median > 0


def test_all_gpus_prefill_at_once() -> None:
    """With too few GPUs two ranks share one."""
    devices = tuple(f"GPU-{i}" for i in range(max(2, torch.cuda.device_count())))
    case = {"shape": SMALL, "sequence": 512, "mode": "graph", "at_once": "all"}
    first, *_ = run_gang(len(devices), [case], devices=devices, probe=Prefill)
    (readings,) = first.outcomes
    rates = {
        r["point"].get("rank"): r["summary"]["median"]
        for r in readings
        if r["metric"] == "tokens_per_second"
    }
    assert rates[None] == pytest.approx(sum(rates[r] for r in range(len(devices))), rel=0.1)
