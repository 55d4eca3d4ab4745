"""
A mixture of experts: each token goes to a few of many small MLPs, and to the shared one.

A random router sends about as many tokens to each expert: the best case. Nothing waits for the
host, so that the layer can be a part of a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SCALE = 2.5
"""Of the sum over the experts chosen, as DeepSeek-V3 has it."""


def mixture(torch: Any, model: Any, x: Any, weights: Mapping[str, Any]) -> Any:
    """
    What the experts add to (batch, tokens, width).

    Args:
        model: The ``Transformer``.
    """
    flat = x.flatten(0, 1)
    chosen, shares = routed(torch, model.shape.experts, flat, weights["router"][0])
    order = chosen.flatten().argsort(stable=True)
    ends = expert_ends(torch, chosen, model.shape.experts.count)
    (gate_up,), (down,) = weights["gate_up"], weights["down"]
    rows = flat[order // chosen.shape[1]]
    wide = torch._grouped_mm(rows, gate_up.transpose(1, 2), offs=ends)
    narrow = torch._grouped_mm(model.gate(wide), down.transpose(1, 2), offs=ends)
    back = narrow[order.argsort()].view(*chosen.shape, -1)
    routed_sum = (back * shares.unsqueeze(-1)).sum(dim=1)
    shared = model.gated(flat, weights["shared_gate_up"], weights["shared_down"])
    return (routed_sum + shared).view(x.shape)


def routed(torch: Any, experts: Any, flat: Any, router: Any) -> tuple[Any, Any]:
    """Experts of each token and their shares, each (tokens, chosen)."""
    scores = torch.nn.functional.linear(flat, router).float().sigmoid()
    shares, chosen = scores.topk(experts.chosen, dim=-1)
    shares = SCALE * shares / shares.sum(dim=-1, keepdim=True)
    return chosen, shares.to(flat.dtype)


def expert_ends(torch: Any, chosen: Any, count: int) -> Any:
    """Where the rows of each expert end among the rows sorted by expert."""
    rows = torch.zeros(count, dtype=torch.int32, device=chosen.device)
    ones = torch.ones_like(chosen.flatten(), dtype=torch.int32)
    return rows.scatter_add_(0, chosen.flatten(), ones).cumsum(0, dtype=torch.int32)
