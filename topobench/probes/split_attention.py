"""
Attention of one new token a sequence, as a kernel in Triton that reads narrow caches as they are.

torch's own kernels want keys and values in the type of the queries: a narrow cache would have
to be widened in memory first, which costs more than it saves. Each program takes a part of
one sequence for all query heads that share a key head, so that few long sequences still
keep the whole GPU busy; a second kernel joins the parts.

Numbers of one byte are read in pairs, taken for 16 bits: a processor turns and moves only such
as wide for its products, byte by byte it would be busier with that than with reading. Each pair
is then widened to two numbers in float16, which holds both types exactly.

Importing this module imports Triton, which comes with torch's builds for GPUs.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

BLOCK_BYTES = 16 << 10
"""Keys read at once, and as many values."""
MOST_TOKENS, LEAST_TOKENS = 128, 16
"""Read at once."""
WARPS, STAGES = 4, 3
"""Of a program; blocks under way at once, the one that is calculated included."""
LEAST_ROWS = 16
"""Of a product in Triton; query heads are filled up to them."""
PROGRAMS_EACH, MOST_PARTS = 4, 128
"""Parts for each of the GPU's processors where the context is long enough; most of one sequence."""
LOG2_E = 1.4426950408889634

_FIRST_FLOAT = tl.constexpr(
    "{ .reg .b32 both; .reg .b16 low, high; prmt.b32 both, $1, 0, 0x4420; "
    "mov.b32 {low, high}, both; cvt.rn.f16x2.e4m3x2 $0, low; }"
)
_SECOND_FLOAT = tl.constexpr(
    "{ .reg .b32 both; .reg .b16 low, high; prmt.b32 both, $1, 0, 0x4431; "
    "mov.b32 {low, high}, both; cvt.rn.f16x2.e4m3x2 $0, low; }"
)
# A byte under the exponent of 1024 is 1024 more than it is: 128 of that make it positive.
_FIRST_WHOLE = tl.constexpr(
    "{ .reg .b32 both, more; mov.b32 more, 0x64806480; xor.b32 both, $1, 0x80808080; "
    "prmt.b32 both, both, 0x64646464, 0x4240; sub.f16x2 $0, both, more; }"
)
_SECOND_WHOLE = tl.constexpr(
    "{ .reg .b32 both, more; mov.b32 more, 0x64806480; xor.b32 both, $1, 0x80808080; "
    "prmt.b32 both, both, 0x64646464, 0x4341; sub.f16x2 $0, both, more; }"
)


def attend(query: Any, keys: Any, values: Any, scale: float, processors: int) -> Any:
    """
    Softmax of scaled scores, by values.

    Args:
        query: (batch, key heads, query heads that share one, width).
        keys: (batch, key heads, tokens, width), and scales (batch, key heads, tokens) where
            the cache has some; ``values`` as well. Of one byte: whole numbers with scales, or
            float8_e4m3fn.
        processors: Of the GPU.

    Returns:
        As ``query``.
    """
    import torch

    batch, heads, shared, width = query.shape
    query = query.contiguous()
    rows, tokens, size = batch * heads, keys[0].shape[2], keys[0].element_size()
    block = min(MOST_TOKENS, max(LEAST_TOKENS, BLOCK_BYTES // (width * size)))
    blocks = _upwards(tokens, block)
    parts = min(blocks, MOST_PARTS, _upwards(PROGRAMS_EACH * processors, rows))
    length = _upwards(blocks, parts) * block
    parts = _upwards(tokens, length)
    sums = torch.empty((rows, parts, shared, width), dtype=torch.float32, device=query.device)
    tops = torch.empty((rows, parts, shared, 2), dtype=torch.float32, device=query.device)
    result = torch.empty_like(query)
    key, value = (t[0].view(torch.int16) if size == 1 else t[0] for t in (keys, values))
    _PART[(rows, parts)](
        query, key, keys[-1], value, values[-1], sums, tops, scale * LOG2_E, tokens, length, shared,
        max(LEAST_ROWS, _power_of_two(shared)), width, block, size == 1, len(keys) == 2,
        num_warps=WARPS, num_stages=STAGES,
    )  # fmt: skip
    _JOIN[(rows, shared)](
        sums, tops, result, parts, shared, _power_of_two(parts), width,
    )  # fmt: skip
    return result


def _upwards(amount: int, by: int) -> int:
    return -(-amount // by)


def _power_of_two(least: int) -> int:
    return 1 << (least - 1).bit_length()


def _part(
    query: tl.tensor,
    keys: tl.tensor,
    key_scales: tl.tensor,
    values: tl.tensor,
    value_scales: tl.tensor,
    sums: tl.tensor,
    tops: tl.tensor,
    scale: tl.tensor,
    tokens: tl.tensor,
    length: tl.tensor,
    shared: tl.tensor,
    heads: tl.constexpr,
    width: tl.constexpr,
    block: tl.constexpr,
    paired: tl.constexpr,
    scaled: tl.constexpr,
) -> None:
    """
    Of one part: values by their shares, the largest score, and the sum of the shares.

    Scores are those of powers of two. Tokens beyond the end are read as the last one, and their
    share is none.
    """
    step: tl.constexpr = 2 if paired else 1
    wide: tl.constexpr = tl.float16 if paired else query.dtype.element_ty
    first: tl.constexpr = _FIRST_WHOLE if scaled else _FIRST_FLOAT
    second: tl.constexpr = _SECOND_WHOLE if scaled else _SECOND_FLOAT
    each: tl.constexpr = width // step
    row, part, parts = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    head, column = tl.arange(0, heads), tl.arange(0, each)
    real = head < shared
    at_query = query + (row * shared + head[:, None]) * width + column[None, :] * step
    q = tl.load(at_query, mask=real[:, None], other=0.0).to(wide)
    top = tl.full((heads,), float("-inf"), tl.float32)
    total = tl.zeros((heads,), tl.float32)
    found = tl.zeros((heads, each), tl.float32)
    if paired:
        q_second = tl.load(at_query + 1, mask=real[:, None], other=0.0).to(wide)
        found_second = tl.zeros((heads, each), tl.float32)
    # Compiled layers hand it over in float64, which scores may not become.
    scale = tl.cast(scale, tl.float32)
    end = tl.minimum((part + 1) * length, tokens)
    for start in range(part * length, end, block):
        token = start + tl.arange(0, block)
        at = row * tokens + tl.minimum(token, end - 1)
        here = at[:, None] * each + column[None, :]
        k = tl.trans(tl.load(keys + here))
        if paired:
            near = tl.inline_asm_elementwise(first, "=r,r", [k], tl.float16, is_pure=True, pack=2)
            score = tl.dot(q, near)
            near = tl.inline_asm_elementwise(second, "=r,r", [k], tl.float16, is_pure=True, pack=2)
            score = tl.dot(q_second, near, score)
        else:
            score = tl.dot(q, k, input_precision="ieee")
        score *= scale
        if scaled:
            score *= tl.load(key_scales + at)[None, :]
        score = tl.where((token < end)[None, :], score, float("-inf"))
        higher = tl.maximum(top, tl.max(score, 1))
        kept, share = tl.exp2(top - higher), tl.exp2(score - higher[:, None])
        total = total * kept + tl.sum(share, 1)
        if scaled:
            share *= tl.load(value_scales + at)[None, :]
        v = tl.load(values + here)
        part_of = share.to(wide)
        found *= kept[:, None]
        if paired:
            near = tl.inline_asm_elementwise(first, "=r,r", [v], tl.float16, is_pure=True, pack=2)
            found = tl.dot(part_of, near, found)
            near = tl.inline_asm_elementwise(second, "=r,r", [v], tl.float16, is_pure=True, pack=2)
            found_second = tl.dot(part_of, near, found_second * kept[:, None])
        else:
            found = tl.dot(part_of, v, found, input_precision="ieee")
        top = higher
    at_result = (row * parts + part) * shared + head
    at_sums = sums + at_result[:, None] * width + column[None, :] * step
    tl.store(at_sums, found, mask=real[:, None])
    if paired:
        tl.store(at_sums + 1, found_second, mask=real[:, None])
    tl.store(tops + at_result * 2, top, mask=real)
    tl.store(tops + at_result * 2 + 1, total, mask=real)


def _join(
    sums: tl.tensor,
    tops: tl.tensor,
    result: tl.tensor,
    parts: tl.tensor,
    shared: tl.tensor,
    room: tl.constexpr,
    width: tl.constexpr,
) -> None:
    """Add the parts of one query head, each by what its largest score is to that of all."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    part, column = tl.arange(0, room), tl.arange(0, width)
    there = part < parts
    at = (row * parts + part) * shared + head
    top = tl.load(tops + at * 2, mask=there, other=float("-inf"))
    weight = tl.exp2(top - tl.max(top, 0))
    total = tl.sum(weight * tl.load(tops + at * 2 + 1, mask=there, other=0.0), 0)
    where = at[:, None] * width + column[None, :]
    found = tl.load(sums + where, mask=there[:, None], other=0.0)
    mixed = tl.sum(found * weight[:, None], 0) / total
    tl.store(result + (row * shared + head) * width + column, mixed.to(result.dtype.element_ty))


_PART, _JOIN = triton.jit(_part), triton.jit(_join)
