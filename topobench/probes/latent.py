"""Latent attention (MLA): keys and values are kept as one narrow vector a token."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def heads(
    torch: Any,
    model: Any,
    joint: Any,
    weights: Mapping[str, Any],
    kept: tuple[Any, Any],
    rotation: tuple[Any, Any],
) -> tuple[Any, Any, Any]:
    """
    Queries, keys and values of every head (batch, tokens, heads, width), unfolded for prefill.

    Args:
        model: The ``Transformer``.
        joint: What the first product gave: narrow queries, latent vector, key to be rotated.
        kept: The cache of this layer: latent vectors and rotated keys.
    """
    shape, wide = model.shape, model.shape.latent
    plain = shape.head_width - wide.rope
    narrow, vector, turned = joint.split([wide.query, wide.kv, wide.rope], dim=-1)
    vector = model.normed(vector, weights["kv_norm"][0])
    shared = model.rotated(turned.unsqueeze(2), rotation)
    kept[0].copy_(vector)
    kept[1].copy_(shared.squeeze(2))
    query = model.products(model.normed(narrow, weights["query_norm"][0]), weights["query"])
    still, moving = query.unflatten(-1, (shape.heads, -1)).split([plain, wide.rope], dim=-1)
    unfolded = model.products(vector, weights["key_value"]).unflatten(-1, (shape.heads, -1))
    key, value = unfolded.split([plain, wide.value], dim=-1)
    query = torch.cat((still, model.rotated(moving, rotation)), dim=-1)
    key = torch.cat((key, shared.expand(-1, -1, shape.heads, -1)), dim=-1)
    return query, key, value


def step(
    torch: Any,
    model: Any,
    joint: Any,
    weights: Mapping[str, Any],
    kept: tuple[Any, Any],
    rotation: tuple[Any, Any],
) -> Any:
    """
    Attention of one new token to all that is kept, (batch, 1, heads x width of values).

    The matrix that unfolds latent vectors is folded into the queries and into the result, so
    that the cache is read as it is, once for all heads.

    Args:
        kept: Latent vectors and rotated keys (batch, tokens, width), the last place empty.
    """
    shape, wide = model.shape, model.shape.latent
    plain = shape.head_width - wide.rope
    narrow, vector, turned = joint.split([wide.query, wide.kv, wide.rope], dim=-1)
    vectors, keys = kept
    vectors[:, -1].copy_(model.normed(vector, weights["kv_norm"][0])[:, 0])
    keys[:, -1].copy_(model.rotated(turned.unsqueeze(2), rotation)[:, 0, 0])
    query = model.products(model.normed(narrow, weights["query_norm"][0]), weights["query"])
    still, moving = query.unflatten(-1, (shape.heads, -1)).split([plain, wide.rope], dim=-1)
    unfolding = weights["key_value"][0].unflatten(0, (shape.heads, -1))
    by_key, by_value = unfolding.split([plain, wide.value], dim=1)
    folded = torch.bmm(still[:, 0].transpose(0, 1), by_key).transpose(0, 1)
    scores = torch.bmm(folded, vectors.transpose(1, 2))
    scores = torch.baddbmm(scores, model.rotated(moving, rotation)[:, 0], keys.transpose(1, 2))
    shares = torch.softmax(scores * shape.head_width**-0.5, dim=-1, dtype=torch.float32)
    mixed = torch.bmm(shares.to(vectors.dtype), vectors)
    values = torch.bmm(mixed.transpose(0, 1), by_value.transpose(1, 2)).transpose(0, 1)
    return values.reshape(len(values), 1, -1)
