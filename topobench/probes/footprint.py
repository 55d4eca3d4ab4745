"""What a prefill needs of a device's memory, told before it runs. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from topobench.probes.attention import SCORE_BYTES
from topobench.probes.precisions import Precision, matrix_bytes, scratch_bytes
from topobench.probes.shapes import Shape, kv_bytes_per_token

LIBRARY_BYTES = 96 << 20
"""
Of torch's memory: work space of cuBLAS on each of two streams, of 32 MiB on large GPUs, and what
is taken to compare logits.
"""
LOGITS_HELD = 3
"""Those that all are held against, those of the last pass, and those being made."""
MIB = 1 << 20
SMALL_BYTES, LARGE_BYTES = MIB, 10 * MIB
"""Where torch's allocator begins to take memory 20 MiB at a time, and as much as asked for."""


@dataclass(frozen=True, slots=True)
class Footprint:
    """
    Bytes of device memory.

    Args:
        weights: Of the layers, embedding and head.
        kv: Keys and values of all tokens.
        work: Activations at their largest, and work space.
    """

    weights: int
    kv: int
    work: int

    @property
    def total(self) -> int:
        """The predicted peak."""
        return self.weights + self.kv + self.work


def footprint(
    shape: Shape, precision: Precision, sequence: int, batch: int, *, attention: str, ranks: int = 1
) -> Footprint:
    """
    What one of so many ranks needs.

    Args:
        attention: Backend; ``math`` writes down the scores of all pairs of tokens.

    Raises:
        ValueError: The shape does not divide by the ranks.
    """
    local, each = shape.share(ranks), precision.activation_bytes
    tokens = batch * sequence
    work = work_bytes(local, precision, sequence, batch, attention)
    work += outer_bytes(local, precision, sequence, batch)
    kept = [tokens * each * math.prod(size) for size in local.kept]
    return Footprint(
        weights_bytes(local, precision),
        tokens * kv_bytes_per_token(local, each),
        work + padding_bytes(kept) * local.layers,
    )


def weights_bytes(local: Shape, precision: Precision) -> int:
    """Of all weights of one rank but those of norms; stacks of experts are not packed."""
    outer = 2 * local.vocabulary * local.width
    return local.layers * sum(_packed(local, precision)) + precision.activation_bytes * outer


def moved_bytes(shape: Shape, precision: Precision, sequence: int, batch: int) -> float:
    """
    What a pass must at least read and write: weights once, operands and results of products.

    Of experts only those that some token meets are read: all, from a few hundred tokens on.
    Rows of the embedding are not counted, and the others are not read.
    """
    tokens, each = batch * sequence, precision.activation_bytes
    rows = sum(m.use * m.copies * (m.rows + m.columns) for m in shape.matrices())
    kept = tokens * kv_bytes_per_token(shape, each)
    read = weights_bytes(shape, precision) - each * shape.vocabulary * shape.width
    return read + kept + each * tokens * shape.layers * rows


def outer_bytes(local: Shape, precision: Precision, positions: int, batch: int) -> int:
    """
    What is held beside weights, keys and values, and a layer's work.

    Norms, angles of so many positions, logits, work space of libraries, and what the allocator
    adds to the weights.
    """
    matrices = sum(m.parameters for m in local.matrices())
    table = local.vocabulary * local.width
    norms = local.parameters - local.layers * matrices - 2 * table
    angles = 2 * positions * (local.latent.rope if local.latent else local.head_width)
    logits = LOGITS_HELD * batch * local.vocabulary
    padding = local.layers * padding_bytes(_packed(local, precision))
    padding += 2 * padding_bytes([precision.activation_bytes * table])
    return precision.activation_bytes * (norms + angles + logits) + padding + LIBRARY_BYTES


def padding_bytes(sizes: Iterable[int]) -> int:
    """What torch's allocator adds to tensors: rests of 1 MiB or less that it does not split off."""
    return sum(_padding(size) for size in sizes)


def _padding(size: int) -> int:
    if size <= SMALL_BYTES:
        return -size % 512
    if size < LARGE_BYTES:
        return size // 19  # of the two to nineteen that share 20 MiB one gets the rest
    rest = -size % (2 * MIB)
    return rest if rest <= MIB else 0


def _packed(local: Shape, precision: Precision) -> list[int]:
    """Bytes of each matrix of a layer."""
    return [
        m.parameters * precision.activation_bytes if m.copies > 1 else matrix_bytes(precision, m)
        for m in local.matrices()
    ]


def work_bytes(
    local: Shape, precision: Precision, sequence: int, batch: int, attention: str
) -> int:
    """The larger of what the two halves of a layer hold at once."""
    tokens, each = batch * sequence, precision.activation_bytes
    attend = each * tokens * (3 * local.width + _attention_width(local, attention))
    if attention == "math":
        attend += batch * local.heads * sequence**2 * SCORE_BYTES
    feed = each * tokens * (4 * local.width + _mlp_width(local))
    scratch = max(scratch_bytes(precision, m, tokens) for m in local.matrices() if m.copies == 1)
    return max(attend, feed) + scratch


def _attention_width(local: Shape, attention: str) -> int:
    """Numbers of a token: the joint product, three copies that rotating takes, the result."""
    queries, keys = local.heads * local.head_width, local.kv_heads * local.head_width
    values = local.heads * local.value_width
    if local.latent:
        unfolded = local.heads * (local.head_width + local.value_width)
        return 4 * queries + 2 * unfolded + 2 * values
    joint = queries + 2 * keys
    repeated = 2 * queries if attention in ("efficient", "math") else 0
    return joint + max(3 * (queries + keys), queries + keys + values + repeated)


def _mlp_width(local: Shape) -> int:
    """Numbers of a token: gate and up, and their product."""
    if local.experts is None:
        return 3 * local.ffn
    shared = 3 * local.experts.shared * local.ffn
    return local.experts.chosen * (4 * local.width + 3 * local.ffn) + shared
