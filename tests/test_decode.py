"""The probe ``decode`` on CPUs: against prefill and float32, its readings, and its refusals."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch

from planning import configured, dual, host, planned, small
from probing import Listener, measure
from topobench.errors import ProbeUnavailable, ResultInvalid
from topobench.plan import make_plan
from topobench.probes import decode_work, footprint
from topobench.probes.decode import Decode
from topobench.probes.decode_case import KNOWN, bound_by, check_attention
from topobench.probes.decode_step import Decoder, split_attention
from topobench.probes.decode_work import KEPT
from topobench.probes.precisions import PRECISIONS
from topobench.probes.shapes import SHAPES, shape_of
from topobench.probes.transformer import Place, Transformer
from topobench.reading import Reading

TINY, LLAMA_8B = SHAPES["tiny"], SHAPES["llama3-8b"]
TOKENS = 48


def prompt() -> torch.Tensor:
    return torch.randint(TINY.vocabulary, (3, TOKENS), generator=torch.Generator().manual_seed(7))


def made(name: str = "fp32") -> Transformer:
    return Transformer(torch, TINY, PRECISIONS[name], Place("cpu"))


def stepped(model: Transformer, kept: str, ids: torch.Tensor, first: int) -> torch.Tensor:
    """Logits of the last token, all from ``first`` on fed one by one over a growing cache."""
    with torch.no_grad():
        full = model.cache(*ids.shape)
        model.forward(ids, full)
        for length in range(first + 1, ids.shape[1] + 1):
            decoder = Decoder(model, KEPT[kept], length)
            cache = decoder.cache(len(ids), 1)
            for pair, numbers in zip(cache.layers, full.layers, strict=True):
                for held, known in zip(pair, numbers, strict=True):
                    place = tuple(tensor[:, :, :-1] for tensor in held)
                    decoder.keep(place, known[:, : length - 1].transpose(1, 2))
            logits = decoder.forward(ids[:, length - 1 : length], cache)
            for pair, numbers in zip(cache.layers, full.layers, strict=True):
                for held, known in zip(pair, numbers, strict=True):
                    known[:, length - 1] = held[0][:, :, -1]
    found: torch.Tensor = logits
    return found


def far(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((found.float() - wanted.float()).norm() / wanted.float().norm())


def test_token_by_token_gives_what_one_pass_over_the_prompt_gives() -> None:
    """Each step's own key and value take part in the steps after it."""
    model, ids = made(), prompt()
    with torch.no_grad():
        wanted = model.forward(ids, model.cache(*ids.shape))
    assert far(stepped(model, "fp32", ids, TOKENS - 3), wanted) < 1e-5


@pytest.mark.parametrize("kept", ["fp32", "fp8", "int8"])
def test_attention_that_leaves_out_the_end_of_a_long_context_is_found(kept: str) -> None:
    """Whatever the type of the cache, in the first sequence or the last."""
    decoder = Decoder(made(), KEPT[kept], 1000)
    query, keys, values = decoder.sample(3)
    found = decoder.read(query, keys, values)
    check_attention(query, keys, values, found)
    short = Decoder(made(), KEPT[kept], 990)
    cut = [tuple(tensor[:, :, :990] for tensor in held) for held in (keys, values)]
    found[-1] = short.read(query, *cut)[-1]
    with pytest.raises(ResultInvalid, match="attention of 1000 tokens is off by"):
        check_attention(query, keys, values, found)


def test_a_kernel_that_does_not_compute_attention_gives_no_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    right = Decoder.read
    monkeypatch.setattr(Decoder, "read", lambda *given: 1.1 * right(*given))
    with pytest.raises(ResultInvalid, match="attention of 32 tokens is off by"):
        measure(Decode(shape="tiny", dtype="fp32", kv_dtype="fp32", context=32, batch=2),
                Listener().context())  # fmt: skip


@pytest.mark.parametrize(("kept", "least", "most"), [("fp8", 0.003, 0.1), ("int8", 5e-4, 0.03)])
def test_a_narrow_cache_is_off_by_what_it_must(kept: str, least: float, most: float) -> None:
    model, ids = made(), prompt()
    with torch.no_grad():
        wanted = model.forward(ids, model.cache(*ids.shape))
    assert least < far(stepped(model, kept, ids, TOKENS - 1), wanted) < most


@pytest.mark.parametrize(("kept", "step"), [("fp8", 1 / 8), ("int8", 1 / 127)])
def test_what_is_kept_comes_back_within_a_rounding(kept: str, step: float) -> None:
    decoder = Decoder(made(), KEPT[kept], TOKENS)
    numbers = torch.randn(2, 2, TOKENS, 32)
    (held, _), *_ = decoder.cache(2, 1).layers
    decoder.keep(held, numbers)
    back = held[0].float() * (held[1].unsqueeze(-1) if kept == "int8" else 1.0)
    scale = numbers.abs().amax(dim=-1, keepdim=True) if kept == "int8" else numbers.abs()
    assert ((back - numbers).abs() <= 0.51 * step * scale + 1e-3).all()
    assert held[0].element_size() == 1


def test_a_full_cache_holds_normal_numbers_of_each_sequence() -> None:
    decoder = Decoder(made("bf16"), KEPT["int8"], 256)
    layers = decoder.cache(2, 1).layers
    decoder.fill(layers)
    for held in (held for pair in layers for held in pair):
        numbers = held[0].float() * held[1].unsqueeze(-1)
        assert float(numbers.std()) == pytest.approx(1.0, abs=0.02)
    assert not torch.equal(layers[0][0][0], layers[1][0][0])


@functools.cache
def measured() -> tuple[dict[tuple[str, str], Reading], Listener]:
    """Readings of one case by metric and point, and what the probe told."""
    listener = Listener()
    probe = Decode(shape="tiny", dtype="fp32", kv_dtype="fp32", batch=2, context=128)
    readings = measure(probe, listener.context())
    points = [(r.metric, ",".join(map(str, r.point.values()))) for r in readings]
    return dict(zip(points, readings, strict=True)), listener


def value(metric: str, point: str = "") -> float:
    return measured()[0][metric, point].summary.median


def test_rates_are_amounts_by_the_time_of_the_same_steps() -> None:
    seconds = measured()[0]["tpot_seconds", ""].samples
    weights = 4 * (2 * (128 * 256 + 128 * 128 + 3 * 128 * 256) + 512 * 128)
    kept = 2 * 128 * (2 * 2 * 2 * 32 * 4)
    assert (value("kv_bytes"), value("step_read_bytes")) == (kept, weights + kept)
    for metric, amount in (("tokens_per_second", 2), ("read_bytes_per_second", weights + kept)):
        found = measured()[0][metric, ""].samples
        assert found == pytest.approx([amount / s for s in seconds])
    assert value("tpot_wall_seconds") > 0


def test_a_step_is_told_with_its_error_stages_and_memory() -> None:
    found, listener = measured()
    assert 0 < value("relative_error_ratio") < 1e-5
    assert {p for m, p in found if m == "stage_seconds"} == {
        "qkv", "attention", "output", "mlp", "head",
    }  # fmt: skip
    assert value("kv_token_bytes") == 1024
    assert value("predicted_peak_bytes") > listener.notes["weights_bytes"] == 1_703_936
    assert (listener.notes["attention"], listener.notes["layers"]) == ("flash", "2 of 2")
    absent = {"mbu_ratio", "mbu_measured_ratio", "memory_bytes_per_second", "mfu_ratio"}
    assert not {m for m, _ in found} & {*absent, "peak_allocated_bytes", "host_share_ratio"}
    assert "bound_by" not in listener.notes


def test_latent_attention_folded_is_latent_attention_unfolded() -> None:
    """The probe holds the step against float32, which unfolds keys and values of every head."""
    listener = Listener()
    probe = Decode(shape="tiny-experts", dtype="fp32", kv_dtype="fp32", context=64)
    found = {r.metric: r.summary.median for r in measure(probe, listener.context())}
    assert 0 < found["relative_error_ratio"] < 1e-5
    assert listener.notes["attention"] == "latent, folded into the queries"
    assert found["kv_bytes"] == 64 * 2 * (32 + 16) * 4


def test_a_narrow_cache_on_cpus_is_widened_and_says_so() -> None:
    listener = Listener()
    probe = Decode(shape="tiny-slice1", kv_dtype="int8", context=64)
    found = {r.metric: r.summary.median for r in measure(probe, listener.context())}
    assert listener.notes["attention"] == "flash, keys and values widened first"
    assert found["kv_token_bytes"] == 2 * 2 * (32 + 4)
    assert found["tpot_seconds"] < found["whole_model_seconds"] < 2 * found["tpot_seconds"]


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"shape": "llama3-8b"}, "unsupported: llama3-8b is too large for CPUs; tiny is not"),
        ({"shape": "tiny-experts", "kv_dtype": "int8"}, "whose cache is not decoded in int8"),
        ({"shape": "tiny-experts", "attention": "flash"}, "which no kernel computes folded"),
        ({"kv_dtype": "fp16"}, "keys and values of bf16 products are bfloat16"),
        ({"dtype": "int8"}, "int8 products need 17 tokens or more"),
        ({"attention": "split"}, "no such attention here: split: our kernel needs a GPU"),
        (
            {"context": 1 << 20, "batch": 512},
            r"not_enough_memory: .* GiB needed \(832 KiB weights, 256 GiB keys and values, "
            r".* activations\); .* are free",
        ),
    ],
)
def test_what_cannot_be_measured_is_skipped_with_the_reason(
    params: dict[str, Any], words: str
) -> None:
    case = {"shape": "tiny", "context": 64, **params}
    with pytest.raises(ProbeUnavailable, match=words):
        measure(Decode(**case), Listener().context())


def test_a_type_that_multiplies_no_single_row_is_held_against_float32_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As on GPUs, which refuse products of whole numbers of 16 rows or fewer."""
    multiplied = torch._int_mm

    def as_on_gpus(rows: torch.Tensor, columns: torch.Tensor, **given: Any) -> torch.Tensor:
        assert len(rows) > 16
        return multiplied(rows, columns, **given)

    monkeypatch.setattr(torch, "_int_mm", as_on_gpus)
    probe = Decode(shape="tiny", dtype="int8", batch=17, context=32)
    found = {r.metric: r.summary.median for r in measure(probe, Listener().context())}
    assert 0.001 < found["relative_error_ratio"] < 0.15


def test_a_step_far_from_float32_is_invalid(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache whose last place is never written: the new token does not see itself."""
    KNOWN.errors.clear()
    monkeypatch.setattr(
        Decoder, "keep", lambda self, place, numbers: place[0].copy_(numbers.roll(1, -1))
    )
    with pytest.raises(ResultInvalid, match="wrong_data: logits in bf16 are off by"):
        measure(Decode(shape="tiny", context=64), Listener().context())
    KNOWN.errors.clear()


def test_heads_that_no_kernel_of_ours_takes_are_told() -> None:
    with pytest.raises(NotImplementedError, match="heads of width 48: not a power of two"):
        split_attention(torch, 48)


def test_what_a_step_of_an_8b_model_reads_by_hand() -> None:
    """7.5 G weights of layers and head in bf16; 128 KiB a token, 64 KiB and scales in int8."""
    bf16 = PRECISIONS["bf16"]
    weights = 2 * (32 * (4096 * 6144 + 4096 * 4096 + 3 * 4096 * 14336) + 128256 * 4096)
    one = decode_work.read_bytes(LLAMA_8B, bf16, KEPT["bf16"], 8192, 1)
    assert one == weights + 8192 * 131072
    assert decode_work.token_bytes(LLAMA_8B, KEPT["fp8"]) == 65536
    assert decode_work.token_bytes(LLAMA_8B, KEPT["int8"]) == 32 * (2048 + 2 * 8 * 4)
    many = decode_work.read_bytes(LLAMA_8B, bf16, KEPT["fp8"], 8192, 8)
    assert many == weights + 8 * 8192 * 65536


def test_a_footprint_of_a_step_by_hand() -> None:
    """Keys and values of 32 sequences of 4096 tokens in int8 with their scales, each 4 MiB."""
    found = decode_work.footprint(
        LLAMA_8B, PRECISIONS["bf16"], KEPT["int8"], 4096, 32, unpacked=False
    )
    assert found.kv == 32 * 4096 * 32 * (2048 + 2 * 8 * 4)
    layer = 32 * (4 * 4096 + 3 * 14336)
    outer = 65 * 4096 + 2 * 128 + 3 * 32 * 128256
    scales = 64 * ((4 << 20) // 19)
    parts = (32 * 8 + decode_work.PARTS_BESIDE) * 4 * (128 + 2)
    assert found.work == 2 * (layer + outer) + scales + 4 * parts + footprint.LIBRARY_BYTES
    wide = decode_work.footprint(
        LLAMA_8B, PRECISIONS["bf16"], KEPT["int8"], 4096, 32, unpacked=True
    )
    assert wide.work - found.work == 8 * 32 * 4096 * 2048


def test_arithmetic_of_a_step_by_hand() -> None:
    shape = shape_of("own layers=2 width=8 heads=4 kv_heads=2 head_width=2 ffn=16 vocabulary=10")
    matrices = 8 * (8 + 4 + 4) + 8 * 8 + 3 * 8 * 16
    attention = 2 * 4 * 2 * 2 * 5
    assert decode_work.flop(shape, 5, 3) == 3 * (2 * (2 * matrices + attention) + 2 * 8 * 10)
    latent, heads = SHAPES["deepseek-v3"], 61 * 128
    more = decode_work.flop(latent, 1001, 1) - decode_work.flop(latent, 1, 1)
    assert more == 2 * heads * (512 + 64 + 512) * 1000


def test_few_tokens_meet_few_experts() -> None:
    """One token of DeepSeek-V3 meets 8 of 256; 64 tokens meet 87 % of them."""
    shape, bf16 = SHAPES["deepseek-v3"], PRECISIONS["bf16"]
    stacks = shape.layers * 256 * 3 * 2048 * 7168 * 2
    one, many = (decode_work.read_bytes(shape, bf16, KEPT["bf16"], 2, n) for n in (1, 64))
    assert (many - one) / stacks == pytest.approx(1 - (1 - 8 / 256) ** 64 - 8 / 256, rel=1e-3)


def test_what_bounds_a_step_takes_half_of_its_time() -> None:
    assert bound_by({"memory": 0.85, "arithmetic": 0.1}) == "memory"
    assert bound_by({"memory": 0.3, "arithmetic": 0.6}) == "arithmetic"
    assert bound_by({"memory": 0.3, "arithmetic": 0.1}) == "neither"


class TestPlan:
    """What the planner makes of it."""

    def test_each_host_gets_a_model_that_suits_it(self) -> None:
        chosen = configured(probes="decode", bindings="none")
        for here, wanted in (
            (small(), {"shape": "tiny", "mode": "eager", "context": 256, "at_once": "one"}),
            (dual(), {"shape": "llama3-8b", "mode": "graph", "context": 2048}),
        ):
            cell, *_ = planned(list(make_plan(chosen, [host(here)], seed=1).cells))
            assert {k: cell.case.params[k] for k in wanted} == wanted
