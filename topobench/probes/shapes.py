"""
The shapes of transformers: their matrices, arithmetic, and what they need of memory. Pure.

No weights are downloaded; a shape says how large the random ones are. A *slice* has fewer
layers than the whole model, and says so in its name.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Latent:
    """
    Widths of latent attention (MLA), as DeepSeek names them.

    Args:
        query: Rank of the queries' projection.
        kv: Rank of what is cached of keys and values.
        rope: Width of a head that is rotated; its key is shared by all heads and cached.
        value: Width of a head's values.
    """

    query: int
    kv: int
    rope: int
    value: int


@dataclass(frozen=True, slots=True)
class Experts:
    """
    A mixture of experts in place of the MLP.

    Args:
        count: Experts of a layer, each of width ``Shape.ffn``.
        chosen: Experts that each token is sent to.
        shared: Experts that see every token.
    """

    count: int
    chosen: int
    shared: int


@dataclass(frozen=True, slots=True)
class Matrix:
    """
    Weights of one product, rows x columns, as a linear layer holds them.

    Args:
        parts: Rows of each of the fused projections, which are split apart.
        split: How ranks share it: by ``rows``, by ``columns`` (their results are added), or
            not at all (``none``).
        copies: Equal matrices in one stack: experts.
        use: Share of the copies that one token meets.
    """

    name: str
    parts: tuple[int, ...]
    columns: int
    split: str = "none"
    copies: int = 1
    use: float = 1.0

    @property
    def rows(self) -> int:
        """Rows of all parts."""
        return sum(self.parts)

    @property
    def parameters(self) -> int:
        """Numbers it holds."""
        return self.copies * self.rows * self.columns


@dataclass(frozen=True, slots=True)
class Shape:
    """
    A decoder-only transformer.

    Args:
        layers: Of what is measured.
        width: Of the residual stream.
        head_width: Of a query's and key's head.
        ffn: Width of the MLP (of one expert).
        whole_layers: Of the model it is a slice of; equal to ``layers`` if it is no slice.

    Raises:
        ValueError: The numbers are no transformer.
    """

    name: str
    layers: int
    width: int
    heads: int
    kv_heads: int
    head_width: int
    ffn: int
    vocabulary: int
    whole_layers: int = 0
    latent: Latent | None = None
    experts: Experts | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "whole_layers", self.whole_layers or self.layers)
        numbers = ("layers", "width", "heads", "kv_heads", "head_width", "ffn", "vocabulary")
        for name in numbers:
            if getattr(self, name) < 1:
                raise ValueError(f"shape {self.name}: {name} must be at least 1")
        if self.heads % self.kv_heads:
            raise ValueError(
                f"shape {self.name}: {self.heads} heads cannot share {self.kv_heads} kv_heads "
                "evenly"
            )
        if self.head_width % 2:
            raise ValueError(f"shape {self.name}: head_width {self.head_width} must be even")

    @property
    def value_width(self) -> int:
        """Width of a head's values."""
        return self.latent.value if self.latent else self.head_width

    @property
    def kept(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """
        Sizes of what a layer caches for a token: keys and values (heads, width).

        Of latent attention, the vector that both are made from, and the rotated key.
        """
        if self.latent:
            return (self.latent.kv,), (self.latent.rope,)
        return (self.kv_heads, self.head_width), (self.kv_heads, self.head_width)

    @property
    def kv_width(self) -> int:
        """Numbers that a layer caches for a token."""
        return sum(math.prod(size) for size in self.kept)

    def matrices(self) -> tuple[Matrix, ...]:
        """The weights of one layer, in the order of use."""
        return (*self._attention(), *self._mlp())

    def head(self) -> Matrix:
        """What turns the last token into logits; every rank holds all of it."""
        return Matrix("head", (self.vocabulary,), self.width)

    @property
    def parameters(self) -> int:
        """Numbers of all weights: embedding, layers with their norms, head."""
        layer = sum(m.parameters for m in self.matrices()) + 2 * self.width
        if self.latent:
            layer += self.latent.query + self.latent.kv
        return self.layers * layer + 2 * self.vocabulary * self.width + self.width

    def share(self, ranks: int) -> Shape:
        """
        What one rank of a tensor-parallel group computes.

        Raises:
            ValueError: Heads, key heads or the MLP do not come out even.
        """
        for name in ("heads", "kv_heads", "ffn"):
            if getattr(self, name) % ranks:
                raise ValueError(
                    f"{name} of {self.name} are {getattr(self, name)}: not a whole number for each "
                    f"of {ranks} ranks"
                )
        return replace(
            self,
            heads=self.heads // ranks,
            kv_heads=self.kv_heads // ranks,
            ffn=self.ffn // ranks,
        )

    def _attention(self) -> Iterator[Matrix]:
        queries, keys = self.heads * self.head_width, self.kv_heads * self.head_width
        if self.latent is None:
            yield Matrix("qkv", (queries, keys, keys), self.width, "rows")
        else:
            low = (self.latent.query, self.latent.kv + self.latent.rope)
            plain = self.head_width - self.latent.rope
            yield Matrix("qkv", low, self.width)
            yield Matrix("query", (queries,), self.latent.query, "rows")
            both = self.heads * (plain + self.latent.value)
            yield Matrix("key_value", (both,), self.latent.kv, "rows")
        yield Matrix("output", (self.width,), self.heads * self.value_width, "columns")

    def _mlp(self) -> Iterator[Matrix]:
        if self.experts is None:
            yield Matrix("gate_up", (self.ffn, self.ffn), self.width, "rows")
            yield Matrix("down", (self.width,), self.ffn, "columns")
            return
        many, use = self.experts.count, self.experts.chosen / self.experts.count
        shared = self.experts.shared * self.ffn
        yield Matrix("router", (many,), self.width)
        yield Matrix("gate_up", (self.ffn, self.ffn), self.width, "rows", many, use)
        yield Matrix("down", (self.width,), self.ffn, "columns", many, use)
        yield Matrix("shared_gate_up", (shared, shared), self.width, "rows")
        yield Matrix("shared_down", (self.width,), shared, "columns")


SHAPES = {
    s.name: s
    for s in (
        Shape("tiny", 2, 128, 4, 2, 32, 256, 512),
        Shape("llama3-8b", 32, 4096, 32, 8, 128, 14336, 128256),
        Shape("llama3-70b", 80, 8192, 64, 8, 128, 28672, 128256),
        Shape(
            "deepseek-v3", 61, 7168, 128, 128, 192, 2048, 129280,
            latent=Latent(1536, 512, 64, 128), experts=Experts(256, 8, 1),
        ),
        Shape(
            "tiny-experts", 2, 128, 4, 4, 48, 64, 512,
            latent=Latent(64, 32, 16, 32), experts=Experts(8, 2, 1),
        ),
    )
}  # fmt: skip
"""By name. The first three layers of DeepSeek-V3 have an MLP as wide as nine experts: the same
active parameters and arithmetic, so all are counted as experts here."""

_SLICE = re.compile(r"(.+)-slice([1-9][0-9]{0,2})")
_OWN = re.compile(r"([A-Za-z][A-Za-z0-9._-]*)((?:\s+[a-z_]+=[0-9]+)+)")
_FIELDS = ("layers", "width", "heads", "kv_heads", "head_width", "ffn", "vocabulary")
SHAPE_HELP = (
    f"{', '.join(SHAPES)}, a slice of one such as llama3-70b-slice20, or your own such as "
    "'mine layers=4 width=1024 heads=16 kv_heads=4 head_width=64 ffn=4096 vocabulary=32000'"
)


def shape_of(text: str) -> Shape:
    """
    A shape by name, a slice of one, or one that is written out.

    Raises:
        ValueError: It is none; says what there is.
    """
    if text in SHAPES:
        return SHAPES[text]
    if match := _SLICE.fullmatch(text):
        whole, layers = SHAPES.get(match[1]), int(match[2])
        if whole is not None and layers < whole.layers:
            return replace(whole, name=text, layers=layers, whole_layers=whole.layers)
    if match := _OWN.fullmatch(text.strip()):
        return _own(match[1], dict(pair.split("=") for pair in match[2].split()))
    raise ValueError(f"no shape {text!r}; there is {SHAPE_HELP}")


def _own(name: str, values: Mapping[str, str]) -> Shape:
    if name in SHAPES:
        raise ValueError(f"shape {name!r} is a known one; give yours another name")
    wrong = sorted(set(values) ^ set(_FIELDS))
    if wrong:
        raise ValueError(
            f"shape {name!r}: {', '.join(wrong)} missing or unknown; it needs {', '.join(_FIELDS)}"
        )
    layers, width, heads, kv_heads, head_width, ffn, vocabulary = (int(values[f]) for f in _FIELDS)
    return Shape(name, layers, width, heads, kv_heads, head_width, ffn, vocabulary)


def flop(shape: Shape, sequence: int, batch: int) -> float:
    """
    Arithmetic of one prefill, a multiplication and an addition counted as two.

    Matrix products of every token, the causal half of attention, and the head for the last
    token. Norms, rotation and softmax are not counted.
    """
    linear = sum(m.parameters * m.use for m in shape.matrices())
    scores = shape.heads * (shape.head_width + shape.value_width)
    layers = shape.layers * (2 * linear * sequence + scores * sequence**2)
    return batch * (layers + 2.0 * shape.width * shape.vocabulary)


def attention_share(shape: Shape, sequence: int) -> float:
    """Share of a prefill's arithmetic that attention is, which grows with the sequence."""
    scores = shape.heads * (shape.head_width + shape.value_width)
    return shape.layers * scores * sequence**2 / flop(shape, sequence, 1)


def kv_bytes_per_token(shape: Shape, element_bytes: int) -> int:
    """What all layers cache for one token."""
    return shape.layers * shape.kv_width * element_bytes
