"""
In which types a transformer multiplies: how weights are packed, and how a product is made.

Weights are drawn in float32 and packed once. Eight-bit types round activations anew in every
product; four-bit weights are unpacked before each. Embedding, norms, attention and the head
stay in the type of the activations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from topobench.errors import ProbeUnavailable
from topobench.probes import gemm
from topobench.probes.shapes import Matrix
from topobench.reading import ReasonCode

Packed = tuple[Any, ...]
"""A matrix as tensors: the weights, and their scales where the type has some."""

Multiply = Callable[..., Any]
"""A product of activations and the tensors of a packed matrix."""

FP8_LARGEST = 440.0
"""Scaled values stay below the largest of e4m3 (448), however they are rounded."""
INT8_LARGEST, INT4_STEPS = 127.0, 15
INT8_ROWS = 17
"""torch's product of whole numbers needs more than 16 rows."""
GROUPS = (128, 64, 32)
"""Columns that share a scale and a zero of four-bit weights; the largest that divides."""


@dataclass(frozen=True, slots=True)
class Precision:
    """
    A type of weights and products.

    Args:
        activations: torch's name of the type of everything between the products.
        weight_bits: Of one weight, without scales.
        product: The type of matrix product (``gemm.PRECISIONS``) that is its ceiling.
        tolerance: Largest relative error of the logits against float32.
    """

    name: str
    activations: str
    weight_bits: int
    product: str
    tolerance: float

    @property
    def activation_bytes(self) -> int:
        """Of one activation."""
        return 4 if self.activations == "float32" else 2

    @property
    def least_rows(self) -> int:
        """Of the activations of a product."""
        return INT8_ROWS if self.name == "int8" else 1

    @property
    def plain(self) -> bool:
        """Whether weights and activations have one type."""
        return self.weight_bits == 8 * self.activation_bytes


PRECISIONS: Mapping[str, Precision] = {
    p.name: p
    for p in (
        Precision("fp32", "float32", 32, "fp32", 1e-4),
        Precision("tf32", "float32", 32, "tf32", 0.02),
        Precision("bf16", "bfloat16", 16, "bf16", 0.1),
        Precision("fp16", "float16", 16, "fp16", 0.02),
        Precision("fp8", "bfloat16", 8, "fp8", 0.6),
        Precision("int8", "bfloat16", 8, "int8", 0.4),
        Precision("int4", "bfloat16", 4, "bf16", 0.9),
    )
}


def require(precision: Precision, capability: tuple[int, int] | None, rows: int) -> None:
    """
    Refuse a type that a device does not multiply, or not so few rows of.

    Args:
        capability: Of the GPU; None on a CPU.

    Raises:
        ProbeUnavailable: ``unsupported``.
    """
    if capability is not None:
        gemm.require_capability(precision.product, capability)
    elif precision.name == "tf32":
        raise ProbeUnavailable(ReasonCode.UNSUPPORTED, "CPUs have no TF32")
    if rows < precision.least_rows:
        raise ProbeUnavailable(
            ReasonCode.UNSUPPORTED,
            f"{precision.name} products need {precision.least_rows} tokens or more; "
            f"sequence x batch is {rows}",
        )


def summed_bytes(precision: Precision, width: int, tokens: int) -> int:
    """Of the activations of so many tokens, which ranks that share a layer add up at once."""
    return tokens * width * precision.activation_bytes


def matrix_bytes(precision: Precision, matrix: Matrix) -> int:
    """Of a packed matrix with its scales."""
    size = matrix.parameters * precision.weight_bits // 8
    if precision.name == "int4":
        return size + 4 * matrix.parameters // group_of(matrix.columns)
    if precision.name == "int8":
        return size + 4 * matrix.copies * matrix.rows
    return size + (4 if precision.name == "fp8" else 0)


def scratch_bytes(precision: Precision, matrix: Matrix, tokens: int) -> int:
    """What a product takes beside its operands and its result."""
    outputs = tokens * matrix.rows
    if precision.name == "int8":
        return tokens * matrix.columns * 4 + 8 * outputs
    if precision.name == "int4":
        return 4 * matrix.rows * matrix.columns
    return 3 * tokens * matrix.columns if precision.name == "fp8" else 0


def group_of(columns: int) -> int:
    """
    Columns of a row that share a scale.

    Raises:
        ProbeUnavailable: ``unsupported``: no size of group divides them.
    """
    for group in GROUPS:
        if columns % group == 0:
            return group
    raise ProbeUnavailable(
        ReasonCode.UNSUPPORTED,
        f"int4 weights need a multiple of {GROUPS[-1]} columns; a matrix has {columns}",
    )


class Products:
    """Packs weights and multiplies by them, in one precision."""

    def __init__(self, torch: Any, precision: Precision) -> None:
        self._torch = torch
        self.precision = precision
        self.activations = getattr(torch, precision.activations)
        kinds: dict[str, Multiply] = {"fp8": self._fp8, "int8": self._int8, "int4": self._int4}
        self._multiply: Multiply = kinds.get(precision.name, self._plain)

    def pack(self, weight: Any) -> Packed:
        """
        A matrix in this precision.

        Args:
            weight: (rows, columns) in float32.
        """
        name, torch = self.precision.name, self._torch
        if name == "fp8":
            scale = _largest(torch, weight) / FP8_LARGEST
            return (weight / scale).to(torch.float8_e4m3fn), scale
        if name == "int8":
            scale = _largest(torch, weight, dim=1) / INT8_LARGEST
            return (weight / scale).round_().to(torch.int8), scale.view(-1)
        if name == "int4":
            return _pack_int4(torch, weight)
        return (weight.to(self.activations),)

    def __call__(self, x: Any, packed: Packed) -> Any:
        """
        ``x`` times the transposed matrix.

        Args:
            x: (..., columns) in the type of the activations.
        """
        return self._multiply(x, *packed)

    def _plain(self, x: Any, weight: Any) -> Any:
        return self._torch.nn.functional.linear(x, weight)

    def _fp8(self, x: Any, weight: Any, weight_scale: Any) -> Any:
        torch = self._torch
        flat = x.reshape(-1, x.shape[-1])
        scale = (_largest(torch, flat) / FP8_LARGEST).clamp(min=1e-12)
        narrow = (flat * scale.reciprocal()).to(torch.float8_e4m3fn)
        result = torch._scaled_mm(
            narrow, weight.t(), scale, weight_scale, out_dtype=x.dtype, use_fast_accum=True
        )
        return result.view(*x.shape[:-1], -1)

    def _int8(self, x: Any, weight: Any, weight_scale: Any) -> Any:
        torch = self._torch
        flat = x.reshape(-1, x.shape[-1])
        scale = (_largest(torch, flat, dim=1) / INT8_LARGEST).clamp(min=1e-12)
        whole = torch._int_mm((flat / scale).round().to(torch.int8), weight.t())
        result = torch.empty_like(whole, dtype=x.dtype)  # no float32 copy of it is written
        torch.mul(whole * scale, weight_scale, out=result)
        return result.view(*x.shape[:-1], -1)

    def _int4(self, x: Any, halves: Any, scale: Any, zero: Any) -> Any:
        torch = self._torch
        both = torch.cat((halves & 15, halves >> 4), dim=-1).to(x.dtype)
        weight = both.sub_(zero).mul_(scale).view(halves.shape[0], -1)
        return torch.nn.functional.linear(x, weight)


def _largest(torch: Any, x: Any, dim: int | None = None) -> Any:
    """Largest magnitude, of all or of each row, in float32, in one pass."""
    return torch.linalg.vector_norm(
        x, float("inf"), dim=dim, keepdim=dim is not None, dtype=torch.float32
    )


def _pack_int4(torch: Any, weight: Any) -> Packed:
    """
    Two weights a byte: the first and the second half of a group; scales and zeros by group.

    A group's sixteen numbers lie evenly between its least and its largest weight, zero among them.
    """
    rows, columns = weight.shape
    grouped = weight.view(rows, -1, group_of(columns))
    least = grouped.amin(2, keepdim=True).clamp(max=0.0)
    most = grouped.amax(2, keepdim=True).clamp(min=0.0)
    scale = ((most - least) / INT4_STEPS).clamp(min=1e-12)
    zero = (-least / scale).round_()
    whole = (grouped / scale).round_().add_(zero).clamp_(0, INT4_STEPS).to(torch.uint8)
    first, second = whole.chunk(2, dim=-1)
    return first | (second << 4), scale.to(torch.bfloat16), zero.to(torch.bfloat16)
