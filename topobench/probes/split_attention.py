"""
Attention of one new token a sequence, as a kernel in Triton that reads narrow caches as they are.

torch's own kernels want keys and values in the type of the queries: a narrow cache would have
to be widened in memory first, which costs more than it saves. Each program takes a part of
one sequence for all query heads that share a key head, so that few long sequences still
keep the whole GPU busy; a second kernel joins the parts.

Importing this module imports Triton, which comes with torch's builds for GPUs.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

BLOCK = 64
"""Tokens read at once."""
LEAST_ROWS = 16
"""Of a product in Triton; query heads are filled up to them."""
PROGRAMS_EACH, MOST_PARTS = 4, 128
"""Parts for each of the GPU's processors where the context is long enough; most of one sequence."""


def attend(query: Any, keys: Any, values: Any, scale: float, processors: int) -> Any:
    """
    Softmax of scaled scores, by values.

    Args:
        query: (batch, key heads, query heads that share one, width).
        keys: (batch, key heads, tokens, width), and scales (batch, key heads, tokens) where
            the cache has some; ``values`` as well.
        processors: Of the GPU.

    Returns:
        As ``query``.
    """
    import torch

    batch, heads, shared, width = query.shape
    query = query.contiguous()
    rows, tokens = batch * heads, keys[0].shape[2]
    blocks = _upwards(tokens, BLOCK)
    parts = min(blocks, MOST_PARTS, _upwards(PROGRAMS_EACH * processors, rows))
    length = _upwards(blocks, parts) * BLOCK
    parts = _upwards(tokens, length)
    sums = torch.empty((rows, parts, shared, width), dtype=torch.float32, device=query.device)
    tops = torch.empty((rows, parts, shared, 2), dtype=torch.float32, device=query.device)
    result = torch.empty_like(query)
    scaled = len(keys) == 2
    _PART[(rows, parts)](
        query, keys[0], keys[-1], values[0], values[-1], sums, tops, scale, tokens, length, shared,
        max(LEAST_ROWS, _power_of_two(shared)), width, BLOCK, scaled,
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
    scaled: tl.constexpr,
) -> None:
    """Of one part: values by their shares, the largest score, and the sum of the shares."""
    row, part, parts = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    head, column = tl.arange(0, heads), tl.arange(0, width)
    real = head < shared
    scale = scale.to(tl.float32)  # of compiled layers it is float64, which scores may not become
    at_query = (row * shared + head[:, None]) * width + column[None, :]
    q = tl.load(query + at_query, mask=real[:, None], other=0.0)
    top = tl.full((heads,), float("-inf"), tl.float32)
    total = tl.zeros((heads,), tl.float32)
    found = tl.zeros((heads, width), tl.float32)
    end = tl.minimum((part + 1) * length, tokens)
    for start in range(part * length, end, block):
        token = start + tl.arange(0, block)
        there = token < end
        at = row * tokens + token
        k = tl.load(keys + at[None, :] * width + column[:, None], mask=there[None, :])
        score = tl.dot(q, k.to(q.dtype), input_precision="ieee") * scale
        if scaled:
            score *= tl.load(key_scales + at, mask=there, other=0.0)[None, :]
        score = tl.where(there[None, :], score, float("-inf"))
        higher = tl.maximum(top, tl.max(score, 1))
        kept, share = tl.exp(top - higher), tl.exp(score - higher[:, None])
        total = total * kept + tl.sum(share, 1)
        if scaled:
            share *= tl.load(value_scales + at, mask=there, other=0.0)[None, :]
        v = tl.load(values + at[:, None] * width + column[None, :], mask=there[:, None])
        v = tl.where(there[:, None], v.to(q.dtype), 0.0).to(q.dtype)
        found = found * kept[:, None] + tl.dot(share.to(q.dtype), v, input_precision="ieee")
        top = higher
    at_result = (row * parts + part) * shared + head
    tl.store(sums + at_result[:, None] * width + column[None, :], found, mask=real[:, None])
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
    weight = tl.exp(top - tl.max(top, 0))
    total = tl.sum(weight * tl.load(tops + at * 2 + 1, mask=there, other=0.0), 0)
    where = at[:, None] * width + column[None, :]
    found = tl.load(sums + where, mask=there[:, None], other=0.0)
    mixed = tl.sum(found * weight[:, None], 0) / total
    tl.store(result + (row * shared + head) * width + column, mixed.to(result.dtype.element_ty))


_PART, _JOIN = triton.jit(_part), triton.jit(_join)
