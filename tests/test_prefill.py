"""The probe ``prefill`` on CPUs: its readings, its refusals, and how it is planned."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import prefilling
from planning import configured, dual, gpu, host, planned, small
from probing import SERVER, Listener, measure
from topobench.errors import ConfigError, ProbeUnavailable, ResultInvalid, UsageError
from topobench.plan import batches, make_plan
from topobench.probes import attention, bench, decode_case
from topobench.probes.accelerator import Cpus
from topobench.probes.decode import Decode
from topobench.probes.forward import Forward
from topobench.probes.passes import process_seconds
from topobench.probes.precisions import PRECISIONS
from topobench.probes.prefill import Prefill
from topobench.probes.prefill_case import Case, saved, tokeniser
from topobench.probes.shapes import SHAPES
from topobench.probes.transformer import Place
from topobench.reading import Reading, ReasonCode, Status

STAGES = {"qkv", "attention", "output", "mlp", "head"}


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Threads that wait for each other crawl on a host whose CPUs are busy with other tests."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@functools.cache
def measured() -> tuple[dict[tuple[str, str], Reading], Listener]:
    """Readings of one case by metric and point, and what the probe told."""
    listener = Listener()
    probe = Prefill(shape="tiny", dtype="fp32", batch=2, sequence=64)
    readings = measure(probe, listener.context())
    points = [(r.metric, ",".join(map(str, r.point.values()))) for r in readings]
    return dict(zip(points, readings, strict=True)), listener


def value(metric: str, point: str = "") -> float:
    return measured()[0][metric, point].summary.median


def test_what_a_pass_saves_is_never_below_nothing() -> None:
    """A share below 0 is no value: it would spoil every number of a case that noise touched."""
    assert saved(3.0, 4.0) == 0.25
    assert saved(4.01, 4.0) == 0.0


def test_times_and_rates_speak_of_the_same_passes() -> None:
    seconds = measured()[0]["prefill_device_seconds", ""]
    for metric, amount in (("tokens_per_second", 128.0), ("flop_per_second", 79_953_920.0)):
        rates = measured()[0][metric, ""].samples
        assert rates == pytest.approx([amount / s for s in seconds.samples])
    assert value("work_flop_count") == 79_953_920.0
    assert value("prefill_wall_seconds") > 0
    ceiling = value("gemm_flop_per_second")
    assert value("mfu_measured_ratio") == pytest.approx(value("flop_per_second") / ceiling)


def test_every_stage_and_module_has_its_reading() -> None:
    points = {metric: {p for m, p in measured()[0] if m == metric} for metric, _ in measured()[0]}
    assert points["stage_seconds"] == STAGES
    assert points["relative_error_ratio"] == {"", *STAGES}
    assert points["host_part_seconds"] == {"tokenise"}
    assert value("relative_error_ratio") < 1e-5


def test_stages_that_nobody_can_tell_are_absent_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As of eager passes of more kernels than a GPU's queue takes behind a spin."""
    monkeypatch.setattr(Cpus, "stages", lambda *_: None)
    listener = Listener()
    readings = measure(Prefill(shape="tiny-slice1", sequence=64), listener.context())
    assert "stage_seconds" not in {r.metric for r in readings}
    assert listener.notes["stages"] == "not measured: launching outlasted every spin"


def test_memory_is_told_and_what_a_cpu_does_not_count_is_absent() -> None:
    found, listener = measured()
    assert value("kv_token_bytes") == 2 * 2 * 2 * 32 * 4
    assert value("predicted_peak_bytes") > listener.notes["weights_bytes"] == 1_703_936
    absent = ("peak_allocated_bytes", "kernel_launch_count", "mfu_ratio", "host_share_ratio")
    assert not {m for m, _ in found} & {*absent, "compile_seconds", "whole_model_seconds"}
    assert listener.notes["attention"] == "flash"
    assert listener.notes["device_timing"] == "host"


def test_a_slice_tells_what_the_whole_would_take() -> None:
    probe = Prefill(shape="tiny-slice1", dtype="fp32", sequence=64)
    found = {
        r.metric: r.summary.median for r in measure(probe, Listener().context()) if not r.point
    }
    one = found["prefill_device_seconds"]
    assert one < found["whole_model_seconds"] < 2 * one
    assert found["work_flop_count"] < value("work_flop_count") / 2


def test_the_tokeniser_finds_every_word() -> None:
    prompt = torch.tensor([[5, 0, 511], [16, 5, 300]])
    assert tokeniser(512, prompt)() == [5, 0, 511, 16, 5, 300]


def test_a_model_is_made_once_and_another_takes_its_place() -> None:
    device, shelf = Cpus(torch), bench.Bench()
    fp32, bf16 = (PRECISIONS[n] for n in ("fp32", "bf16"))
    first = shelf.take(device, SHAPES["tiny"], fp32, Place("cpu"))
    assert shelf.take(device, SHAPES["tiny"], fp32, Place("cpu")) is first
    assert shelf.take(device, SHAPES["tiny"], bf16, Place("cpu")) is not first
    assert not shelf.holds(SHAPES["tiny"], fp32, Place("cpu"))


def test_ceilings_checks_and_the_choice_of_attention_are_aside_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is aside within something aside would be taken off the first pass twice."""
    aside, depth, seen = bench.Bench.aside, [0], set()

    @contextlib.contextmanager
    def counted(own: bench.Bench) -> Iterator[None]:
        depth[0] += 1
        with aside(own):
            yield
        depth[0] -= 1

    def watch(owner: Any, name: str) -> None:
        work = getattr(owner, name)

        def told(*given: Any, **named: Any) -> Any:
            seen.add((name, depth[0]))
            return work(*given, **named)

        monkeypatch.setattr(owner, name, told)

    monkeypatch.setattr(bench.Bench, "aside", counted)
    monkeypatch.setattr(bench.BENCH, "ceilings", {})
    monkeypatch.setattr(bench.BENCH, "errors", {})
    monkeypatch.setattr(decode_case.KNOWN, "errors", {})
    works = [(Cpus, "ceiling"), (bench, "errors_of"), (decode_case, "step_error")]
    for owner, name in [*works, (attention, "choose"), (attention, "require_near")]:
        watch(owner, name)
    for case in (Prefill(shape="tiny", sequence=16), Decode(shape="tiny", context=16)):
        measure(case, Listener().context())
    names = ("ceiling", "errors_of", "step_error", "choose", "require_near")
    assert seen == {(name, 1) for name in names}


def test_the_first_pass_is_of_a_workers_first_cell_and_without_checks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On two H200 it held 15 s of other probes' cells: one GPU took 19 s, two took 11."""
    monkeypatch.setattr(bench.BENCH, "aside_seconds", 1e6)
    case = Prefill(shape="tiny", dtype="bf16", sequence=16)
    context = Listener().context()
    found = {r.metric: r.summary.median for r in measure(case, context)}
    assert found["first_pass_seconds"] == pytest.approx(process_seconds() - 1e6, abs=600)
    assert bench.BENCH.aside_seconds > 1e6  # products and the check against float32
    later = measure(case, dataclasses.replace(context, cells_before=1))
    assert "first_pass_seconds" not in {r.metric for r in later}


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"mode": "graph"}, "unsupported: a CUDA graph needs a GPU"),
        ({"shape": "llama3-8b"}, "unsupported: llama3-8b is too large for CPUs; tiny is not"),
        ({"shape": "tiny-experts", "dtype": "int8"}, "no stacks of experts in int8"),
        ({"attention": "cudnn"}, "unsupported: torch .* has no such attention here: cudnn: "),
        ({"attention": "fa4"}, "unsupported: FA4 cannot be activated: "),
        ({"tensor_parallel": 2}, "unsupported: tensor_parallel 2 needs as many workers"),
        (
            {"sequence": 1 << 20, "batch": 512},
            r"not_enough_memory: .* TiB needed \(1\.62 MiB weights, 512 GiB keys and values, "
            r".* activations\); .* are free",
        ),
    ],
)
def test_what_cannot_be_measured_is_skipped_with_the_reason(
    params: dict[str, Any], words: str
) -> None:
    case = {"shape": "tiny", "dtype": "fp32", "sequence": 64, **params}
    with pytest.raises(ProbeUnavailable, match=words):
        measure(Prefill(**case), Listener().context())


@pytest.mark.parametrize(("mode", "fine"), [("eager", False), ("graph", False), ("compile", True)])
def test_the_same_kernels_may_differ_by_less_than_a_coarse_type_explains(
    mode: str, fine: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of int4, 0.9 would be near enough to float32."""
    measure(Prefill(shape="tiny", dtype="int4", sequence=32), Listener().context())
    model = bench.BENCH.model
    assert model is not None
    case = Case(Cpus(torch), Listener().context(), model, 1, 32)
    case.begin(Forward(case.device, model, 1, 32))
    list(case.first())
    case.check(mode, "those of eager mode")
    answer = model.answer
    monkeypatch.setattr(model, "answer", lambda last: 1.2 * answer(last))
    expected = (
        contextlib.nullcontext() if fine else pytest.raises(ResultInvalid, match=r"off by 0\.2 ")
    )
    with expected:
        case.check(mode, "those of eager mode")


def test_logits_that_change_while_timed_are_invalid(monkeypatch: pytest.MonkeyPatch) -> None:
    measure(Prefill(shape="tiny", dtype="fp32", sequence=32), Listener().context())
    model = bench.BENCH.model
    assert model is not None
    answer, calls = model.answer, itertools.count()
    wrong = lambda last: answer(last if next(calls) < 8 else -last)  # noqa: E731
    monkeypatch.setattr(model, "answer", wrong)
    with pytest.raises(ResultInvalid, match=r"wrong_data: logits .* off by .* before timing"):
        measure(Prefill(shape="tiny", dtype="fp32", sequence=32), Listener().context())


def test_memory_that_runs_out_skips_its_case_and_the_next_is_measured() -> None:
    results = SERVER.Queue()
    process = SERVER.Process(target=prefilling.limited, args=(results,), daemon=True)
    process.start()
    try:
        short, after = results.get(timeout=120)
    finally:
        process.kill()
    assert short.startswith("ProbeUnavailable not_enough_memory: ")
    assert "allocate memory" in short
    assert after == "prefill_device_seconds"


class TestPlan:
    """What the planner makes of it."""

    def cells(self, here: Any, *sets: str, **flags: Any) -> list[Any]:
        chosen = configured(probes="prefill", sets=tuple(f"prefill.{s}" for s in sets), **flags)
        return list(make_plan(chosen, [here], seed=1).cells)

    def test_a_host_without_gpus_gets_the_tiny_shape_on_its_cpus(self) -> None:
        (cell,) = planned(self.cells(host(small()), bindings="none"))
        assert (cell.devices, cell.ranks) == ((), 1)
        wanted = {"shape": "tiny", "mode": "eager", "sequence": 256, "at_once": "one"}
        assert {k: cell.case.params[k] for k in wanted} == wanted

    def test_a_host_with_gpus_gets_a_model_that_suits_them(self) -> None:
        cells = planned(self.cells(host(dual()), bindings="none"))
        assert {c.ranks for c in cells} == {8}
        wanted = {"shape": "llama3-8b", "mode": "graph", "sequence": 2048, "at_once": "all"}
        assert {k: cells[0].case.params[k] for k in wanted} == wanted

    def test_a_broken_gpu_is_told_and_never_replaced_by_cpus(self) -> None:
        lost = host(small(gpus=[gpu(0, state="lost")]))
        (cell,) = self.cells(lost, bindings="none")
        assert (cell.status, cell.reason.code) == (
            Status.FAILED, ReasonCode.TORCH_CANNOT_USE_GPU,
        )  # fmt: skip

    def test_a_worker_makes_each_model_once(self) -> None:
        cells = self.cells(
            host(dual(gpus=1)),
            "shape=llama3-8b,llama3-70b-slice4",
            "dtype=bf16,fp8",
            "sequence=512,2048",
            bindings="none,local",
        )
        for batch in batches(planned(cells)):
            models = [(c.case.params["shape"], c.case.params["dtype"]) for c in batch]
            assert len(models) == 8
            assert models == sorted(models, key=models.index)

    def test_bindings_that_are_asked_for_are_compared_in_mirrored_blocks(self) -> None:
        names = "none,local,spread,remote"
        sets = ("at_once=one", "tensor_parallel=1", "sequence=2048")
        cells = planned(self.cells(host(dual(1)), *sets, profile="full", bindings=names))
        blocks = [[c.arm.name for c in cells if c.block == block] for block in range(8)]
        assert {tuple(sorted(block)) for block in blocks} == {tuple(sorted(names.split(",")))}
        assert blocks[::2] == [block[::-1] for block in blocks[1::2]]

    @pytest.mark.parametrize(
        ("setting", "words"),
        [
            ("dtype=fp12", "'fp12' is not known; accepted are fp32, tf32, bf16, fp16, fp8, int8"),
            ("mode=fast", "accepted are auto, eager, graph, compile"),
            ("attention=none", "accepted are auto, math, efficient, flash, cudnn, fa3, fa4"),
        ],
    )
    def test_an_unknown_choice_lists_the_known(self, setting: str, words: str) -> None:
        with pytest.raises(ConfigError, match=words):
            self.cells(host(small()), setting)

    def test_a_shape_that_is_none_is_told(self) -> None:
        with pytest.raises(UsageError, match="no shape 'llama4'; there is tiny, llama3-8b"):
            self.cells(host(dual()), "shape=llama4")


def test_a_shape_that_does_not_divide_by_its_gpus_is_told() -> None:
    with pytest.raises(ValueError, match="heads of llama3-8b are 32: not a whole number for each"):
        Prefill(shape="llama3-8b", tensor_parallel=3)
