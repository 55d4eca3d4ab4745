"""Shapes, arithmetic and memory of transformers, against figures worked out by hand."""

from __future__ import annotations

import pytest
import torch

from topobench.errors import ProbeUnavailable
from topobench.probes import datasheets, footprint, precisions, shapes
from topobench.probes.precisions import PRECISIONS
from topobench.probes.shapes import SHAPES, Shape, flop, shape_of
from topobench.probes.transformer import Place, Transformer

LLAMA_8B, LLAMA_70B, DEEPSEEK = (SHAPES[n] for n in ("llama3-8b", "llama3-70b", "deepseek-v3"))


def test_parameters_are_those_of_the_published_models() -> None:
    """8.03, 70.6 and 671 billion, as their makers say."""
    assert LLAMA_8B.parameters == 8_030_261_248
    assert LLAMA_70B.parameters == 70_553_706_496
    assert DEEPSEEK.parameters / 1e9 == pytest.approx(704, rel=0.01)  # 671 with three plain layers


def test_kept_bytes_of_a_token() -> None:
    found = [shapes.kv_bytes_per_token(s, 2) for s in (LLAMA_8B, LLAMA_70B, DEEPSEEK)]
    assert found == [131_072, 327_680, 70_272]


@pytest.mark.parametrize(
    ("shape", "tokens", "tera"),
    [
        (LLAMA_8B, 2048, 29.7),
        (LLAMA_8B, 8192, 131.9),
        (LLAMA_8B, 32768, 738.9),
        (LLAMA_70B, 8192, 1209.0),
        (DEEPSEEK, 8192, 753.0),
    ],
)
def test_arithmetic_of_a_prefill(shape: Shape, tokens: int, tera: float) -> None:
    assert flop(shape, tokens, 1) / 1e12 == pytest.approx(tera, rel=0.005)


def test_arithmetic_by_hand() -> None:
    """Two layers of width 8: 4 heads of 2 share 2 key heads, MLP of 16, 10 words, 3 x 5 tokens."""
    shape = shape_of("own layers=2 width=8 heads=4 kv_heads=2 head_width=2 ffn=16 vocabulary=10")
    matrices = 8 * (8 + 4 + 4) + 8 * 8 + 3 * 8 * 16
    attention = 2 * 4 * 2 * 5 * 5
    assert flop(shape, 5, 3) == 3 * (2 * (2 * matrices * 5 + attention) + 2 * 8 * 10)
    assert shape.parameters == 2 * (matrices + 16) + 2 * 80 + 8


def test_attention_takes_over_with_length() -> None:
    shares = [shapes.attention_share(LLAMA_8B, n) for n in (2048, 8192, 32768, 131072)]
    assert shares == pytest.approx([0.04, 0.13, 0.38, 0.71], abs=0.01)


def test_a_slice_has_fewer_layers_and_says_of_how_many() -> None:
    found = shape_of("llama3-70b-slice20")
    assert (found.name, found.layers, found.whole_layers) == ("llama3-70b-slice20", 20, 80)
    assert (found.width, found.heads) == (LLAMA_70B.width, LLAMA_70B.heads)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("llama4", "no shape 'llama4'; there is tiny, llama3-8b"),
        ("llama3-8b-slice32", "no shape 'llama3-8b-slice32'"),
        ("own layers=2 width=8", "ffn, head_width, heads, kv_heads, vocabulary missing"),
        (
            "own layers=2 width=8 heads=4 kv_heads=3 head_width=2 ffn=16 vocabulary=10",
            "4 heads cannot share 3 kv_heads evenly",
        ),
        (
            "own layers=0 width=8 heads=4 kv_heads=2 head_width=2 ffn=16 vocabulary=10",
            "layers must be at least 1",
        ),
        (
            "tiny layers=2 width=8 heads=4 kv_heads=2 head_width=2 ffn=16 vocabulary=10",
            "'tiny' is a known one",
        ),
    ],
)
def test_what_is_no_shape_is_told(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        shape_of(text)


def test_a_shape_that_does_not_divide_by_the_ranks_is_told() -> None:
    assert LLAMA_8B.share(8).kv_heads == 1
    with pytest.raises(ValueError, match="kv_heads of llama3-8b are 8: not a whole number"):
        LLAMA_8B.share(16)


@pytest.mark.parametrize("dtype", sorted(PRECISIONS))
def test_weights_take_the_bytes_that_are_told(dtype: str) -> None:
    shape, precision = SHAPES["tiny"], PRECISIONS[dtype]
    model = Transformer(torch, shape, precision, Place("cpu"))
    layers = [packed for layer in model.layers for n, packed in layer.items() if "norm" not in n]
    kinds = [tensor for packed in layers for tensor in packed]
    held = sum(t.nbytes for t in (*kinds, model.embedding, model.head))
    assert footprint.weights_bytes(shape, precision) == held


def test_a_footprint_by_hand() -> None:
    """
    8B at 8192 tokens: 16 GB of weights, 1 GiB of keys and values, the MLP's activations.

    Beside them are 65 norms, cosines and sines of 8192 positions, and logits three times.
    """
    found = footprint.footprint(LLAMA_8B, PRECISIONS["bf16"], 8192, 1, attention="cudnn")
    assert found.weights == 2 * (LLAMA_8B.parameters - 65 * 4096)
    assert found.kv == 1 << 30
    layer, outer = 8192 * (4 * 4096 + 3 * 14336), 65 * 4096 + 2 * 8192 * 128 + 3 * 128256
    assert found.work == 2 * (layer + outer) + footprint.LIBRARY_BYTES
    assert found.total < 1.15 * (found.weights + found.kv)


def test_what_the_allocator_adds_to_tensors_is_told() -> None:
    """It counts in 512 bytes, takes 2 MiB at a time, and keeps a rest of 1 MiB or less whole."""
    mib = 1 << 20
    sizes = (511, 512, 10 * mib, 10 * mib + 1, 11 * mib, 16416768)
    added = [footprint.padding_bytes([size]) for size in sizes]
    assert added == [1, 0, 0, 0, mib, 16 * mib - 16416768]
    assert footprint.padding_bytes(sizes) == sum(added)
    assert footprint.padding_bytes([6 * mib + mib // 2] * 3) == pytest.approx(mib, rel=0.05)


def test_written_scores_grow_with_the_square() -> None:
    flash, math = (
        footprint.footprint(LLAMA_8B, PRECISIONS["bf16"], 8192, 1, attention=a).work
        for a in ("flash", "math")
    )
    assert math - flash > 32 * 8192**2 * 12 - flash


def test_ranks_share_weights_and_cache() -> None:
    one, four = (
        footprint.footprint(LLAMA_8B, PRECISIONS["bf16"], 2048, 1, attention="flash", ranks=r)
        for r in (1, 4)
    )
    assert four.kv * 4 == one.kv
    layers = one.weights - 2 * 2 * 128256 * 4096
    assert four.weights == layers // 4 + 2 * 2 * 128256 * 4096


def test_data_sheets_are_found_by_the_whole_name() -> None:
    assert datasheets.peak("NVIDIA H200", "bf16") == 989.4e12
    assert datasheets.peak("NVIDIA H200 NVL", "bf16") == 835.5e12
    assert datasheets.peak("NVIDIA GH200 480GB", "fp8") == 1979e12
    assert datasheets.peak("NVIDIA A100-SXM4-80GB", "fp8") is None
    assert datasheets.peak("NVIDIA H2000", "bf16") is None
    assert datasheets.peak(None, "bf16") is None


def test_types_that_a_device_lacks_are_refused() -> None:
    with pytest.raises(ProbeUnavailable, match="unsupported: CPUs have no TF32"):
        precisions.require(PRECISIONS["tf32"], None, 128)
    with pytest.raises(ProbeUnavailable, match=r"fp8 products need compute capability 8\.9"):
        precisions.require(PRECISIONS["fp8"], (8, 0), 128)
    with pytest.raises(ProbeUnavailable, match="int8 products need 17 tokens or more"):
        precisions.require(PRECISIONS["int8"], (9, 0), 16)
    precisions.require(PRECISIONS["int4"], (9, 0), 1)
    with pytest.raises(ProbeUnavailable, match="int4 weights need a multiple of 32 columns"):
        precisions.group_of(48)
