"""What one step of decoding reads, calculates and needs of memory. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from topobench.probes.footprint import (
    Footprint,
    outer_bytes,
    padding_bytes,
    weights_bytes,
    work_bytes,
)
from topobench.probes.precisions import Precision, matrix_bytes
from topobench.probes.shapes import Matrix, Shape

SCALE_BYTES = 4
PARTS_BESIDE = 1024
"""Our kernel splits few sequences, so that every processor has work: into so many parts at most
beside one for each key head of each sequence. Four of each of 256 processors."""


@dataclass(frozen=True, slots=True)
class Kept:
    """
    A type in which keys and values are kept.

    Args:
        torch_name: torch's name of the type.
        each: Bytes of one number.
        scaled: Whether each head of each token has a scale of its own.
        tolerance: What it adds to the largest relative error of the logits.
    """

    name: str
    torch_name: str
    each: int
    scaled: bool = False
    tolerance: float = 0.0

    @property
    def narrow(self) -> bool:
        """Whether attention calculates in a wider type."""
        return self.each == 1


KEPT: Mapping[str, Kept] = {
    k.name: k
    for k in (
        Kept("bf16", "bfloat16", 2),
        Kept("fp16", "float16", 2),
        Kept("fp32", "float32", 4),
        Kept("fp8", "float8_e4m3fn", 1, tolerance=0.2),
        Kept("int8", "int8", 1, scaled=True, tolerance=0.1),
    )
}


def token_bytes(shape: Shape, kept: Kept) -> int:
    """What all layers keep for one token, scales included."""
    scales = 2 * shape.kv_heads * SCALE_BYTES if kept.scaled else 0
    return shape.layers * (shape.kv_width * kept.each + scales)


def kept_bytes(shape: Shape, kept: Kept, context: int, batch: int) -> int:
    """Keys and values of all tokens of all sequences."""
    return batch * context * token_bytes(shape, kept)


def read_bytes(shape: Shape, precision: Precision, kept: Kept, context: int, batch: int) -> float:
    """
    What a step must read: every matrix once, the head, and all that is kept.

    Of experts, those that so many tokens meet if each chooses at random. Norms, activations
    and rows of the embedding are not counted.
    """
    layer = sum(_met_bytes(m, precision, batch) for m in shape.matrices())
    head = precision.activation_bytes * shape.vocabulary * shape.width
    return shape.layers * layer + head + kept_bytes(shape, kept, context, batch)


def attended_width(shape: Shape) -> int:
    """Numbers of a token that each query head is multiplied by: a key's, and a value's."""
    if shape.latent:  # both are the latent vector, the key with what is rotated
        return 2 * shape.latent.kv + shape.latent.rope
    return shape.head_width + shape.value_width


def flop(shape: Shape, context: int, batch: int) -> float:
    """Arithmetic of a step: matrix products, attention to all that is kept, and the head."""
    linear = sum(m.parameters * m.use for m in shape.matrices())
    layers = shape.layers * (2 * linear + 2.0 * shape.heads * attended_width(shape) * context)
    return batch * (layers + 2.0 * shape.width * shape.vocabulary)


def footprint(
    shape: Shape, precision: Precision, kept: Kept, context: int, batch: int, *, unpacked: bool
) -> Footprint:
    """
    What a step needs of the device's memory.

    Args:
        unpacked: Whether attention makes a wide copy of what a layer keeps.
    """
    work = work_bytes(shape, precision, 1, batch, "flash") + outer_bytes(shape, precision, 1, batch)
    tokens = batch * context
    tensors = [tokens * math.prod(size) * kept.each for size in shape.kept]
    tensors += [tokens * shape.kv_heads * SCALE_BYTES] * 2 if kept.scaled else []
    work += shape.layers * padding_bytes(tensors)
    if shape.latent:
        work += 10 * batch * shape.heads * context
    else:
        parts = batch * shape.kv_heads + PARTS_BESIDE
        work += 4 * parts * (shape.heads // shape.kv_heads) * (shape.head_width + 2)
    if unpacked:
        work += 2 * 4 * batch * context * shape.kv_width
    return Footprint(weights_bytes(shape, precision), kept_bytes(shape, kept, context, batch), work)


def _met_bytes(matrix: Matrix, precision: Precision, batch: int) -> float:
    """Bytes of a matrix, or of the copies that any of so many tokens meets."""
    if matrix.copies == 1:
        return matrix_bytes(precision, matrix)
    met = 1 - (1 - matrix.use) ** batch
    return met * matrix.parameters * precision.activation_bytes
