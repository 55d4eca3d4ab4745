"""
The same transformer once more, written plainly in float32: what others are held against.

Nothing is fused or cached, each layer is drawn again when its turn comes, and attention is
its formula. Slow, small in memory, and independent of ``probes.transformer``.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from topobench.probes.experts import SCALE
from topobench.probes.shapes import Shape
from topobench.probes.transformer import EPSILON, Drawn, Place, angles, norms

MODULES = ("qkv", "attention", "output", "mlp", "head")


@dataclass
class Reference:
    """
    Logits in float32, and what went into and came out of each module of the last layer.

    Args:
        seen: Module -> its input and its output.
    """

    torch: Any
    shape: Shape
    device: str
    seen: dict[str, tuple[Any, Any]] = field(default_factory=dict)

    def logits(self, ids: Any) -> Any:
        """Of the last token of each sequence (batch, vocabulary)."""
        drawn = Drawn(self.torch, self.shape, Place(self.device))
        x = drawn.embedding()[ids]
        for number in range(self.shape.layers):
            weights = self._layer(drawn, number)
            x = x + self._attention(_norm(x, weights["attention_norm"]), weights)
            x = x + self._see("mlp", _norm(x, weights["mlp_norm"]), self._mlp, weights)
        last = _norm(x[:, -1], drawn.norm("norm"))
        head = drawn.matrix(None, self.shape.head())
        self.seen["head"] = last, last @ head.T
        return self.seen["head"][1]

    def _see(self, module: str, x: Any, work: Any, *more: Any) -> Any:
        self.seen[module] = x, work(x, *more)
        return self.seen[module][1]

    def _layer(self, drawn: Drawn, number: int) -> dict[str, Any]:
        """The weights of a layer; of experts, what draws that of a number."""
        weights: dict[str, Any] = {}
        for m in self.shape.matrices():
            draw = functools.partial(drawn.matrix, number, m)
            weights[m.name] = draw if m.copies > 1 else draw()
        for name, width in norms(self.shape).items():
            weights[name] = drawn.norm(f"{number}/{name}", width)
        return weights

    def _attention(self, x: Any, weights: Mapping[str, Any]) -> Any:
        joint = self._see("qkv", x, lambda x: x @ weights["qkv"].T)
        mixed = self._see("attention", joint, self._mix, weights)
        return self._see("output", mixed, lambda x: x @ weights["output"].T)

    def _mix(self, joint: Any, weights: Mapping[str, Any]) -> Any:
        split = self._latent if self.shape.latent else self._plain
        query, key, value = split(joint, weights)
        tokens = query.shape[1]
        masked = self.torch.full((tokens, tokens), float("-inf"), device=self.device).triu(1)
        scores = self.torch.einsum("bqhd,bkhd->bhqk", query, key) / math.sqrt(query.shape[-1])
        shares = (scores + masked).softmax(dim=-1)
        mixed = self.torch.einsum("bhqk,bkhd->bqhd", shares, value)
        return mixed.reshape(*mixed.shape[:2], -1)

    def _plain(self, joint: Any, weights: Mapping[str, Any]) -> tuple[Any, Any, Any]:
        shape = self.shape
        wide, narrow = shape.heads * shape.head_width, shape.kv_heads * shape.head_width
        query, key, value = (
            part.reshape(*part.shape[:2], -1, shape.head_width)
            for part in (
                joint[..., :wide], joint[..., wide : wide + narrow], joint[..., wide + narrow :]
            )
        )  # fmt: skip
        shared = shape.heads // shape.kv_heads
        key, value = (t.repeat_interleave(shared, dim=2) for t in (self._turn(key), value))
        return self._turn(query), key, value

    def _latent(self, joint: Any, weights: Mapping[str, Any]) -> tuple[Any, Any, Any]:
        shape = self.shape
        assert shape.latent is not None
        first, second = shape.latent.query, shape.latent.query + shape.latent.kv
        plain = shape.head_width - shape.latent.rope
        narrow = _norm(joint[..., :first], weights["query_norm"])
        vector = _norm(joint[..., first:second], weights["kv_norm"])
        shared = self._turn(joint[..., None, second:])
        query = (narrow @ weights["query"].T).unflatten(-1, (shape.heads, -1))
        unfolded = (vector @ weights["key_value"].T).unflatten(-1, (shape.heads, -1))
        query = self.torch.cat((query[..., :plain], self._turn(query[..., plain:])), -1)
        key = self.torch.cat((unfolded[..., :plain], shared.repeat(1, 1, shape.heads, 1)), -1)
        return query, key, unfolded[..., plain:]

    def _turn(self, x: Any) -> Any:
        """Rotate each pair (i, i + width / 2) by its angle."""
        cosines, sines = (
            t[None, :, None] for t in angles(self.torch, x.shape[1], x.shape[-1], self.device)
        )
        one, two = x.chunk(2, dim=-1)
        return self.torch.cat((one * cosines - two * sines, two * cosines + one * sines), -1)

    def _mlp(self, x: Any, weights: Mapping[str, Any]) -> Any:
        if self.shape.experts is None:
            return _gated(x, weights["gate_up"], weights["down"])
        flat = x.flatten(0, 1)
        total = _gated(flat, weights["shared_gate_up"], weights["shared_down"])
        scores = (flat @ weights["router"].T).sigmoid()
        best = scores.argsort(dim=-1, descending=True)[:, : self.shape.experts.chosen]
        kept = self.torch.zeros_like(scores).scatter(1, best, scores.gather(1, best))
        shares = SCALE * kept / kept.sum(dim=-1, keepdim=True)
        for number in range(self.shape.experts.count):
            mine = shares[:, number].nonzero().flatten()
            found = _gated(flat[mine], weights["gate_up"](number), weights["down"](number))
            total[mine] += shares[mine, number, None] * found
        return total.view(x.shape)


def _norm(x: Any, weight: Any) -> Any:
    return x / (x.square().mean(dim=-1, keepdim=True) + EPSILON).sqrt() * weight


def _gated(x: Any, gate_up: Any, down: Any) -> Any:
    gate, up = (x @ gate_up.T).chunk(2, dim=-1)
    return (gate * gate.sigmoid() * up) @ down.T
