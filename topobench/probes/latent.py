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
