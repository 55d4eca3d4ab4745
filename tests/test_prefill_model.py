"""The model of the probe ``prefill`` against one written here in plain float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from topobench.errors import ProbeUnavailable, ResultInvalid
from topobench.probes import attention, bench
from topobench.probes.precisions import PRECISIONS, Products
from topobench.probes.reference import Reference
from topobench.probes.shapes import SHAPES
from topobench.probes.transformer import Place, Transformer

TINY, EXPERTS = SHAPES["tiny"], SHAPES["tiny-experts"]
TOKENS = 48
ALONE = Place("cpu")
Array = NDArray[np.float64]


def made(name: str = "fp32", shape: Any = TINY, place: Place = ALONE) -> Transformer:
    model = Transformer(torch, shape, PRECISIONS[name], place)
    model.backend = "math"
    return model


def prompt(shape: Any = TINY, batch: int = 2) -> torch.Tensor:
    generator = torch.Generator().manual_seed(7)
    return torch.randint(shape.vocabulary, (batch, TOKENS), generator=generator)


def logits(model: Transformer, ids: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model.forward(ids, model.cache(*ids.shape)).float()
    return found


def plain(model: Transformer, ids: list[int]) -> Array:
    """Logits of one prompt, head by head and token by token, from the model's own weights."""
    table, head, last = (t.double().numpy() for t in (model.embedding, model.head, model.norm))
    stream = table[ids]
    for layer in model.layers:
        w = {name: packed[0].double().numpy() for name, packed in layer.items()}
        stream = stream + _attend(_norm(stream, w["attention_norm"]) @ w["qkv"].T) @ w["output"].T
        gate, up = np.split(_norm(stream, w["mlp_norm"]) @ w["gate_up"].T, 2, axis=1)
        stream = stream + (gate / (1 + np.exp(-gate)) * up) @ w["down"].T
    found: Array = _norm(stream[-1:], last)[0] @ head.T
    return found


def _norm(x: Array, weight: Array) -> Array:
    found: Array = x / np.sqrt((x * x).mean(axis=1, keepdims=True) + 1e-5) * weight
    return found


def _attend(joint: Array) -> Array:
    width, heads, groups = TINY.head_width, TINY.heads, TINY.heads // TINY.kv_heads
    parts = joint.reshape(len(joint), -1, width)
    found = np.zeros((len(joint), heads, width))
    for head in range(heads):
        query = _turned(parts[:, head])
        key = _turned(parts[:, heads + head // groups])
        value = parts[:, heads + TINY.kv_heads + head // groups]
        for token in range(len(joint)):
            score = np.exp(key[: token + 1] @ query[token] / np.sqrt(width))
            found[token, head] = score / score.sum() @ value[: token + 1]
    return found.reshape(len(joint), -1)


def _turned(x: Array) -> Array:
    half = x.shape[1] // 2
    angle = np.outer(np.arange(len(x)), 500_000.0 ** (-np.arange(half) / half))
    pairs = (x[:, :half] + 1j * x[:, half:]) * np.exp(1j * angle)
    return np.concatenate([pairs.real, pairs.imag], axis=1)


def far(found: Any, wanted: Any) -> float:
    found, wanted = (np.asarray(x, dtype=np.float64) for x in (found, wanted))
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))


def test_the_model_and_its_reference_are_the_plain_formula() -> None:
    model, ids = made(), prompt()
    found, reference = logits(model, ids), Reference(torch, TINY, "cpu").logits(ids)
    for row, one in enumerate(ids.tolist()):
        wanted = plain(model, one)
        assert far(found[row], wanted) < 1e-5
        assert far(reference[row], wanted) < 1e-5


def test_experts_and_latent_attention_are_their_reference() -> None:
    ids = prompt(EXPERTS)
    wanted = Reference(torch, EXPERTS, "cpu").logits(ids)
    assert far(logits(made(shape=EXPERTS), ids), wanted) < 1e-5


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [
        ("bf16", 1e-3, 0.03),
        ("fp16", 1e-4, 0.004),
        ("fp8", 0.02, 0.25),
        ("int8", 0.005, 0.08),
        ("int4", 0.1, 0.5),
    ],
)
def test_each_type_is_off_by_what_it_must(name: str, least: float, most: float) -> None:
    model = made(name)
    found = bench.errors_of(torch, model)
    assert least < found.logits < most
    assert set(found.modules) == {"qkv", "attention", "output", "mlp", "head"}
    assert 0 < max(found.modules.values()) < most


def test_four_bit_weights_come_back_within_half_a_step() -> None:
    weight = torch.randn(64, 256)
    products = Products(torch, PRECISIONS["int4"])
    halves, scale, zero = products.pack(weight)
    assert (halves.dtype, halves.numel()) == (torch.uint8, weight.numel() // 2)
    back = products(torch.eye(256, dtype=torch.bfloat16), (halves, scale, zero)).t().float()
    step = scale.float().expand(-1, -1, 128).reshape(64, 256)
    assert ((back - weight).abs() <= 0.55 * step).all()


def test_keys_and_values_are_kept_for_every_token() -> None:
    model, ids = made(), prompt()
    cache = model.cache(*ids.shape)
    with torch.no_grad():
        model.forward(ids, cache)
        shorter = model.cache(2, TOKENS - 1)
        model.forward(ids[:, :-1], shorter)
    for whole, part in zip(cache.layers, shorter.layers, strict=True):
        for kept, fewer in zip(whole, part, strict=True):
            assert kept.shape == (2, TOKENS, TINY.kv_heads, TINY.head_width)
            assert kept.abs().amin(dim=(2, 3)).max() > 0
            assert torch.allclose(kept[:, :-1], fewer, atol=1e-5)


@pytest.mark.parametrize("shape", [TINY, EXPERTS], ids=["tiny", "experts"])
@pytest.mark.parametrize("name", ["fp32", "bf16"])
def test_two_ranks_add_up_to_one_model(name: str, shape: Any) -> None:
    """Rank by rank here; what each adds is summed as the all-reduce does."""
    ids = prompt(shape)
    whole = logits(made(name, shape), ids)
    ranks = [made(name, shape, Place("cpu", rank, 2)) for rank in range(2)]
    caches = [model.cache(*ids.shape) for model in ranks]
    with torch.no_grad():
        x = ranks[0].embedding[ids]
        change = torch.zeros_like(x)
        for number in range(shape.layers):

            def summed(half: Callable[..., Any]) -> tuple[Any, Any]:
                found = [half(m, c) for m, c in zip(ranks, caches, strict=True)]
                return found[0][0], sum(f[1] for f in found)

            layer, before, given = number, change, x
            x, change = summed(
                lambda m, c, g=given, b=before, n=layer: m.attend(
                    g, b, m.layers[n], c.layers[n], c.rotation
                )
            )
            given, before = x, change
            x, change = summed(lambda m, c, g=given, b=before, n=layer: m.feed(g, b, m.layers[n]))
        found = ranks[0].answer(x[:, -1] + change[:, -1]).float()
    assert far(found, whole) < PRECISIONS[name].tolerance / 2
    assert (
        ranks[0].layers[0]["output"][0].shape[1] * 2
        == made(name, shape).layers[0]["output"][0].shape[1]
    )


def test_each_stage_ends_once_a_layer() -> None:
    marks: list[str] = []
    model, ids = made(), prompt()
    with torch.no_grad():
        model.forward(ids, model.cache(*ids.shape), marks.append)
    assert marks == [*["qkv", "attention", "output", "mlp"] * 2, "head"]


def test_one_wrong_weight_is_found() -> None:
    model = made()
    model.layers[1]["down"][0].copy_(model.layers[1]["down"][0].roll(1, 0))
    found = bench.errors_of(torch, model)
    assert found.modules["mlp"] > 1 > 1e-5 > found.modules["qkv"]
    with pytest.raises(ResultInvalid, match="wrong_data: logits in fp32 are off by"):
        bench.require_close(found.logits, PRECISIONS["fp32"], "its float32 reference")


def test_attention_that_sees_later_tokens_is_found() -> None:
    torch.manual_seed(3)
    query, key, value = (torch.randn(1, heads, 40, 16) for heads in (4, 2, 2))
    attend = torch.nn.functional.scaled_dot_product_attention
    right = attend(query, key, value, is_causal=True, enable_gqa=True)
    attention.check(torch, (query, key, value), right)
    with pytest.raises(ResultInvalid, match="wrong_data: attention of 40 tokens is off by"):
        attention.check(torch, (query, key, value), attend(query, key, value, enable_gqa=True))
    with pytest.raises(ResultInvalid, match="wrong_data: attention of 40 tokens is off by"):
        attention.check(torch, (query, key, value), right.roll(1, 1))


class TestChoice:
    """Which attention runs, where each candidate takes the seconds given here or refuses."""

    def chosen(self, asked: str, **seconds: float | str) -> str:
        def timed(backend: str) -> float:
            found = seconds.get(backend, "No available kernel.\nmore")
            if isinstance(found, str):
                raise RuntimeError(found)
            return found

        return attention.choose(torch, "cuda", asked, timed)[0]

    def test_the_first_wins_unless_another_is_clearly_faster(self) -> None:
        assert self.chosen("auto", cudnn=1.0, flash=0.97, efficient=2.0) == "cudnn"
        assert self.chosen("auto", cudnn=1.0, flash=0.9, efficient=2.0) == "flash"

    def test_math_is_the_last_resort(self) -> None:
        assert self.chosen("auto", efficient=2.0, math=0.1) == "efficient"
        assert self.chosen("auto", math=0.1) == "math"

    def test_one_by_name_is_never_replaced(self) -> None:
        assert self.chosen("flash", cudnn=0.1, flash=1.0) == "flash"
        with pytest.raises(ProbeUnavailable, match=r"here: efficient: No available kernel\.$"):
            self.chosen("efficient", cudnn=0.1)

    def test_memory_that_runs_out_is_no_refusal(self) -> None:
        with pytest.raises(RuntimeError, match="out of memory"):
            self.chosen("auto", cudnn="CUDA out of memory", flash=1.0)
