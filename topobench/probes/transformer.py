"""
A lean transformer with random weights: what an inference engine computes, and nothing else.

Queries, keys and values are one product, so are gate and up; keys and values are written into
a cache; the head sees the last token alone. A layer is two halves, each of which adds what the
one before it gave and returns what is still to be added: between them ranks of a tensor-parallel
group add up their parts.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from topobench.probes import experts, latent
from topobench.probes.precisions import Packed, Precision, Products
from topobench.probes.shapes import Matrix, Shape

EPSILON = 1e-5
ROTATION_BASE = 500_000.0
DEVIATION, AT_WIDTH = 0.02, 4096
"""Of the weights of a matrix with so many columns; others keep the size of their results."""
STAGES = ("qkv", "attention", "output", "mlp", "head", "all_reduce")

Weights = Mapping[str, Packed]
Mark = Callable[[str], None]
"""Called at the end of each stage of a forward pass."""


def unmarked(stage: str) -> None:
    """A :data:`Mark` that does nothing."""


@dataclass(frozen=True, slots=True)
class Place:
    """
    Where a model lies, and which part of it.

    Args:
        device: As torch names it.
        add_up: Adds a tensor of all ranks, in place.
    """

    device: str
    rank: int = 0
    ranks: int = 1
    add_up: Callable[[Any], None] | None = None


@dataclass(frozen=True, slots=True)
class Cache:
    """
    Keys and values of every layer.

    Args:
        layers: Two tensors a layer (batch, tokens, heads, width): keys and values; of latent
            attention what both are made from, and the shared rotated key.
        rotation: Cosines and signed sines (tokens, 1, width).
    """

    layers: tuple[tuple[Any, Any], ...]
    rotation: tuple[Any, Any]


class Transformer:
    """
    A model of one shape and precision, or one rank's part of it.

    Attributes:
        backend: Of attention; ``efficient`` gets a copy of the keys and values that heads share.
        adding: Ranks add up their parts; without it results are wrong, and only times mean much.
    """

    def __init__(self, torch: Any, shape: Shape, precision: Precision, place: Place) -> None:
        self._torch = torch
        self.whole = shape
        self.shape = shape.share(place.ranks)
        self.place = place
        self.products = Products(torch, precision)
        self.backend = "math"
        self.adding = True
        drawn = Drawn(torch, shape, place)
        self.embedding = drawn.embedding().to(self.products.activations)
        self.layers = tuple(self._layer(drawn, n) for n in range(shape.layers))
        self.norm = drawn.norm("norm").to(self.products.activations)
        self.head = drawn.matrix(None, shape.head()).to(self.products.activations)

    def cache(self, batch: int, tokens: int) -> Cache:
        """Room for so many tokens of so many sequences."""
        first, second = self.shape.kept

        def room(size: tuple[int, ...]) -> Any:
            return self.embedding.new_zeros((batch, tokens, *size))

        layers = tuple((room(first), room(second)) for _ in range(self.shape.layers))
        return Cache(layers, self._rotation(tokens))

    def forward(self, ids: Any, cache: Cache, mark: Mark = unmarked) -> Any:
        """
        Logits of the last token of each sequence, (batch, vocabulary).

        Args:
            ids: Token numbers (batch, tokens).
        """
        return self.run(ids, cache, self.attend, self.feed, mark)

    def run(
        self,
        ids: Any,
        cache: Cache,
        attend: Callable[..., Any],
        feed: Callable[..., Any],
        mark: Mark = unmarked,
    ) -> Any:
        """The forward pass with the halves of a layer as given: compiled ones, say."""
        x = self._torch.nn.functional.embedding(ids, self.embedding)
        change = self._torch.zeros_like(x)
        for weights, kept in zip(self.layers, cache.layers, strict=True):
            x, change = attend(x, change, weights, kept, cache.rotation, mark)
            self._add_up(change, mark)
            x, change = feed(x, change, weights, mark)
            self._add_up(change, mark)
        logits = self.answer(x[:, -1] + change[:, -1])
        mark("head")
        return logits

    def ends(self, ids: Any) -> Any:
        """Embedding and head without the layers between them."""
        return self.answer(self._torch.nn.functional.embedding(ids, self.embedding)[:, -1])

    def answer(self, last: Any) -> Any:
        """Logits (batch, vocabulary) of last tokens (batch, width)."""
        return self._torch.nn.functional.linear(self.normed(last, self.norm), self.head)

    def attend(
        self,
        x: Any,
        change: Any,
        weights: Weights,
        kept: tuple[Any, Any],
        rotation: tuple[Any, Any],
        mark: Mark = unmarked,
    ) -> tuple[Any, Any]:
        """The first half of a layer: the new ``x``, and what attention adds to it."""
        x = x + change
        joint = self.project(self.normed(x, weights["attention_norm"][0]), weights)
        mark("qkv")
        mixed = self.mix(joint, weights, kept, rotation)
        mark("attention")
        result = self.products(mixed, weights["output"])
        mark("output")
        return x, result

    def feed(self, x: Any, change: Any, weights: Weights, mark: Mark = unmarked) -> tuple[Any, Any]:
        """The second half of a layer: the new ``x``, and what the MLP adds to it."""
        x = x + change
        result = self.mlp(self.normed(x, weights["mlp_norm"][0]), weights)
        mark("mlp")
        return x, result

    def project(self, x: Any, weights: Weights) -> Any:
        """Queries, keys and values, or what latent attention makes them from."""
        return self.products(x, weights["qkv"])

    def mix(
        self, joint: Any, weights: Weights, kept: tuple[Any, Any], rotation: tuple[Any, Any]
    ) -> Any:
        """Attention of every token to those before it and itself; fills the cache."""
        if self.shape.latent:
            heads = latent.heads(self._torch, self, joint, weights, kept, rotation)
        else:
            heads = self._heads(joint, kept, rotation)
        query, key, value = (h.transpose(1, 2) for h in heads)
        mixed = self.attention(query, key, value)
        return mixed.transpose(1, 2).flatten(2)

    def attention(self, query: Any, key: Any, value: Any) -> Any:
        """Causal attention by the backend that is switched on; (batch, heads, tokens, width)."""
        shared = query.shape[1] // key.shape[1]
        if self.backend == "efficient" and shared > 1:
            key, value = (t.repeat_interleave(shared, dim=1) for t in (key, value))
        return self._torch.nn.functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, enable_gqa=query.shape[1] != key.shape[1]
        )

    def mlp(self, x: Any, weights: Weights) -> Any:
        """Gated MLP, or the mixture of experts in its place."""
        if self.shape.experts:
            return experts.mixture(self._torch, self, x, weights)
        return self.gated(x, weights["gate_up"], weights["down"])

    def gated(self, x: Any, gate_up: Packed, down: Packed) -> Any:
        """down(silu(gate(x)) * up(x))."""
        return self.products(self.gate(self.products(x, gate_up)), down)

    def gate(self, both: Any) -> Any:
        """silu(gate) * up of the two halves."""
        gate, up = both.chunk(2, dim=-1)
        return self._torch.nn.functional.silu(gate).mul_(up)

    def normed(self, x: Any, weight: Any) -> Any:
        """RMS norm."""
        return self._torch.nn.functional.rms_norm(x, (x.shape[-1],), weight, EPSILON)

    def rotated(self, x: Any, rotation: tuple[Any, Any]) -> Any:
        """Rotary position embedding of (batch, tokens, heads, width), halves paired."""
        cosines, sines = rotation
        return self._torch.addcmul(x * cosines, x.roll(x.shape[-1] // 2, -1), sines)

    def _heads(
        self, joint: Any, kept: tuple[Any, Any], rotation: tuple[Any, Any]
    ) -> tuple[Any, Any, Any]:
        heads, kv_heads = self.shape.heads, self.shape.kv_heads
        apart = joint.unflatten(-1, (-1, self.shape.head_width))
        turned, value = apart.split([heads + kv_heads, kv_heads], dim=2)
        query, key = self.rotated(turned, rotation).split([heads, kv_heads], dim=2)
        kept[0].copy_(key)
        kept[1].copy_(value)
        return query, key, value

    def _add_up(self, change: Any, mark: Mark) -> None:
        if self.place.add_up is not None and self.adding:
            self.place.add_up(change)
            mark("all_reduce")

    def _layer(self, drawn: Drawn, number: int) -> dict[str, Packed]:
        found: dict[str, Packed] = {}
        dtype = self.products.activations
        for matrix in self.whole.matrices():
            if matrix.copies > 1:
                found[matrix.name] = (drawn.stack(number, matrix, dtype),)
            else:
                found[matrix.name] = self.products.pack(drawn.matrix(number, matrix))
        for name, width in norms(self.whole).items():
            found[name] = (drawn.norm(f"{number}/{name}", width).to(dtype),)
        return found

    def _rotation(self, tokens: int) -> tuple[Any, Any]:
        torch, shape = self._torch, self.shape
        width = shape.latent.rope if shape.latent else shape.head_width
        cosines, sines = angles(torch, tokens, width, self.place.device)
        joined = torch.cat((cosines, cosines), -1), torch.cat((-sines, sines), -1)
        first, second = (t.to(self.products.activations).unsqueeze(1) for t in joined)
        return first, second


def norms(shape: Shape) -> dict[str, int]:
    """Names and widths of a layer's norms."""
    found = {"attention_norm": shape.width, "mlp_norm": shape.width}
    if shape.latent:
        found |= {"query_norm": shape.latent.query, "kv_norm": shape.latent.kv}
    return found


def angles(torch: Any, tokens: int, width: int, device: str) -> tuple[Any, Any]:
    """Cosines and sines (tokens, width / 2) in float32."""
    steps = torch.arange(0, width, 2, dtype=torch.float64, device=device) / width
    turns = torch.outer(
        torch.arange(tokens, dtype=torch.float64, device=device), ROTATION_BASE**-steps
    )
    return turns.cos().float(), turns.sin().float()


class Drawn:
    """
    The random weights of a shape, each from a seed of its own: any can be drawn again.

    Every rank draws a whole matrix and keeps its part, so that all ranks together hold the
    same model as one GPU alone.
    """

    def __init__(self, torch: Any, shape: Shape, place: Place) -> None:
        self._torch = torch
        self._shape = shape
        self._place = place

    def embedding(self) -> Any:
        """(vocabulary, width) in float32."""
        return self._normal("embedding", (self._shape.vocabulary, self._shape.width), 1.0)

    def norm(self, name: str, width: int | None = None) -> Any:
        """Weights of a norm, about 1, in float32."""
        return self._normal(name, (width or self._shape.width,), 0.02) + 1.0

    def matrix(self, layer: int | None, matrix: Matrix, copy: int = 0) -> Any:
        """(rows, columns) of this rank's part, in float32."""
        deviation = DEVIATION * (AT_WIDTH / matrix.columns) ** 0.5
        size = (matrix.rows, matrix.columns)
        return self._part(self._normal(f"{layer}/{matrix.name}/{copy}", size, deviation), matrix)

    def stack(self, layer: int, matrix: Matrix, dtype: Any) -> Any:
        """All copies of a matrix (copies, rows, columns), drawn one by one."""
        first = self.matrix(layer, matrix)
        found = first.new_empty((matrix.copies, *first.shape), dtype=dtype)
        for copy in range(matrix.copies):
            found[copy] = self.matrix(layer, matrix, copy)
        return found

    def _part(self, whole: Any, matrix: Matrix) -> Any:
        rank, ranks = self._place.rank, self._place.ranks
        if ranks == 1 or matrix.split == "none":
            return whole
        if matrix.split == "columns":
            return whole.chunk(ranks, dim=1)[rank].contiguous()
        parts = whole.split(list(matrix.parts))
        return self._torch.cat([part.chunk(ranks)[rank] for part in parts])

    def _normal(self, name: str, size: tuple[int, ...], deviation: float) -> Any:
        device = self._place.device
        generator = self._torch.Generator(device).manual_seed(zlib.crc32(name.encode()))
        empty = self._torch.empty(size, dtype=self._torch.float32, device=device)
        return empty.normal_(0.0, deviation, generator=generator)
