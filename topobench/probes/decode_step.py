"""
One step of decoding: a new token of each sequence, before which all others are in the cache.

The weights and layers are those of ``probes.transformer``; only attention differs. Query heads
that share a key head are taken for so many queries of that head, so that no kernel needs a
copy of the cache for each of them.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Sequence
from typing import Any

from topobench.probes import latent
from topobench.probes.decode_work import Kept
from topobench.probes.precisions import FP8_LARGEST, INT8_LARGEST
from topobench.probes.transformer import Cache, Transformer, Weights

SPLIT = "split"
"""Our kernel of attention: reads narrow types as they are, each part of a sequence by itself."""
FILLED_AT_ONCE = 1 << 24
"""Numbers drawn at a time, so that filling the cache needs little beside it."""

Held = tuple[Any, ...]
"""Keys or values of a layer (batch, heads, tokens, width), and their scales where they have."""


class Decoder(Transformer):
    """
    A model that is there already, run a token at a time.

    Args:
        kept: The type of the cache.
        context: Tokens of each sequence, the new one included.

    Attributes:
        plain: The model itself.
    """

    def __init__(self, model: Transformer, kept: Kept, context: int) -> None:
        self.__dict__.update(vars(model))  # the weights are shared
        self.plain: Transformer = model.plain if isinstance(model, Decoder) else model
        self.kept = kept
        self.context = context
        self._split: Callable[..., Any] | None = None
        if isinstance(model, Decoder):
            self.choose(model.backend)

    def choose(self, backend: str) -> None:
        """
        Take a kernel of attention.

        Raises:
            NotImplementedError: ``split`` cannot run here; says why.
        """
        if backend == SPLIT and self._split is None:
            self._split = split_attention(self._torch, self.shape.head_width)
        self.backend = backend

    def cache(self, batch: int, tokens: int) -> Cache:
        """
        Room for the whole context, of zeros.

        Args:
            tokens: New ones of each sequence: 1.
        """
        first, second = (turn[-tokens:].clone() for turn in self._rotation(self.context))
        layers = tuple(self._rooms(batch) for _ in range(self.shape.layers))
        return Cache(layers, (first, second))

    def sample(self, batch: int) -> tuple[Any, Held, Held]:
        """Queries of a step, and the keys and values of one layer, all random."""
        shape, torch = self.shape, self._torch
        shared = shape.heads // shape.kv_heads
        query = torch.randn(
            (batch, shape.kv_heads, shared, shape.head_width),
            dtype=self.products.activations,
            device=self.place.device,
        )
        keys, values = self._rooms(batch)
        self.fill(((keys, values),))
        return query, keys, values

    def take(self, cache: Cache, full: Cache) -> None:
        """Keep what a prefill of as many tokens has in its cache, but for the last token."""
        for pair, numbers in zip(cache.layers, full.layers, strict=True):
            for held, known in zip(pair, numbers, strict=True):
                place = tuple(tensor[:, :, :-1] for tensor in held)
                by_head = known if known.dim() == 4 else known.unsqueeze(2)
                self.keep(place, by_head.transpose(1, 2)[:, :, :-1])

    def fill(self, layers: Sequence[tuple[Held, Held]]) -> None:
        """Keep random normal keys and values, as large as those of a real prompt."""
        torch, device = self._torch, self.place.device
        generator = torch.Generator(device).manual_seed(3)
        for pair in layers:
            for held in pair:
                flat = tuple(tensor.flatten(0, 2) for tensor in held)
                rows = max(1, FILLED_AT_ONCE // flat[0].shape[-1])
                for at in range(0, len(flat[0]), rows):
                    part = tuple(tensor[at : at + rows] for tensor in flat)
                    drawn = torch.empty(part[0].shape, device=device, dtype=torch.float32)
                    self.keep(part, drawn.normal_(generator=generator))

    def keep(self, place: Held, numbers: Any) -> None:
        """
        Write numbers in the type of the cache.

        Args:
            place: Where: (..., width), and (...) for scales.
        """
        if self.kept.scaled:
            largest = numbers.abs().amax(dim=-1, keepdim=True).float()
            scale = (largest / INT8_LARGEST).clamp(min=1e-12)
            place[0].copy_((numbers / scale).round())
            place[1].copy_(scale.squeeze(-1))
        elif self.kept.narrow:
            place[0].copy_(numbers.clamp(-FP8_LARGEST, FP8_LARGEST))
        else:
            place[0].copy_(numbers)

    def mix(
        self, joint: Any, weights: Weights, kept: tuple[Held, Held], rotation: tuple[Any, Any]
    ) -> Any:
        """Attention of the new token to all of its sequence; keeps its key and value."""
        if self.shape.latent:
            vectors, keys = (held[0][:, 0] for held in kept)
            return latent.step(self._torch, self, joint, weights, (vectors, keys), rotation)
        heads, kv_heads = self.shape.heads, self.shape.kv_heads
        apart = joint.unflatten(-1, (-1, self.shape.head_width))
        turned, value = apart.split([heads + kv_heads, kv_heads], dim=2)
        query, key = self.rotated(turned, rotation).split([heads, kv_heads], dim=2)
        for held, new in zip(kept, (key, value), strict=True):
            self.keep(tuple(tensor[:, :, -1] for tensor in held), new[:, 0])
        grouped = query.reshape(len(query), kv_heads, heads // kv_heads, -1)
        return self.read(grouped, *kept).reshape(len(query), 1, -1)

    def read(self, query: Any, keys: Held, values: Held) -> Any:
        """
        Attention to everything kept.

        Args:
            query: (batch, key heads, query heads that share one, width).
        """
        if self.backend == SPLIT:
            assert self._split is not None
            return self._split(query, keys, values)
        key, value = (self._wide(held) for held in (keys, values))
        return self._torch.nn.functional.scaled_dot_product_attention(query, key, value)

    def _wide(self, held: Held) -> Any:
        """Keys or values in the type of the activations: a copy if they are kept in another."""
        wide = held[0].to(self.products.activations)
        return wide.mul_(held[1].unsqueeze(-1)) if self.kept.scaled else wide

    def _rooms(self, batch: int) -> tuple[Held, Held]:
        """Of a layer; latent attention keeps one head of two widths."""
        first, second = ((1, *size)[-2:] for size in self.shape.kept)
        return self._room(batch, *first), self._room(batch, *second)

    def _room(self, batch: int, heads: int, width: int) -> Held:
        torch, device = self._torch, self.place.device
        size, dtype = (batch, heads, self.context), getattr(torch, self.kept.torch_name)
        room = torch.zeros((*size, width), dtype=dtype, device=device)
        if not self.kept.scaled:
            return (room,)
        return room, torch.zeros(size, dtype=torch.float32, device=device)


def split_attention(torch: Any, width: int) -> Callable[..., Any]:
    """
    Our kernel for the current GPU.

    Raises:
        NotImplementedError: There is no Triton, or the kernel does not suit the shape.
    """
    if width < 32 or width & (width - 1):
        raise NotImplementedError(f"heads of width {width}: not a power of two from 32 on")
    if not torch.cuda.is_available():
        raise NotImplementedError("our kernel needs a GPU")
    try:
        kernel = importlib.import_module("topobench.probes.split_attention")
    except ImportError as error:
        raise NotImplementedError(f"Triton cannot be imported: {error}") from error
    processors = torch.cuda.get_device_properties(torch.cuda.current_device())
    count = int(processors.multi_processor_count)
    scale = 1 / math.sqrt(width)
    return lambda query, keys, values: kernel.attend(query, keys, values, scale, count)
