"""
The kernels that cuBLASLt proposes for a product, each to be called by itself.

torch takes the first proposal of the library's heuristic, which need not be the fastest. The
library that torch loaded is called through ctypes; names and numbers are those of cublasLt.h.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

COMPUTE_32F, COMPUTE_32F_FAST_TF32 = 68, 77
R_32F, R_16F, R_16BF = 0, 2, 14
OP_N, OP_T = 0, 1
DESC_TRANSA, DESC_TRANSB = 3, 4
PREFERENCE_WORKSPACE_BYTES = 1
WORKSPACE_BYTES = 64 << 20
PROPOSALS = 16
TYPES = {
    "fp32": (R_32F, COMPUTE_32F),
    "tf32": (R_32F, COMPUTE_32F_FAST_TF32),
    "bf16": (R_16BF, COMPUTE_32F),
    "fp16": (R_16F, COMPUTE_32F),
}
"""Type of the operands -> (of the matrices, of the sums)."""

Multiply = Callable[[Any, Any, Any], None]
"""(left, right, result): enqueue ``result = left x right transposed`` on the current stream."""


class Refused(Exception):
    """The library answered with a status other than 0."""


class Proposal(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t."""

    _fields_ = (
        ("algo", ctypes.c_uint64 * 8),
        ("workspace_bytes", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


@dataclass(frozen=True)
class Product:
    """
    A product of square row-major matrices, as the library knows it.

    Args:
        workspace: Device memory that its kernels may use.
    """

    library: ctypes.CDLL
    handle: ctypes.c_void_p
    product: ctypes.c_void_p
    layout: ctypes.c_void_p
    workspace: Any

    @classmethod
    def make(cls, torch: Any, library: ctypes.CDLL, dtype: str, size: int) -> Product:
        """
        Describe it on the current GPU.

        Raises:
            Refused: The library does not want to.
        """
        handle, product, layout = (ctypes.c_void_p() for _ in range(3))
        matrix, sums = TYPES[dtype]
        _done(library.cublasLtCreate(ctypes.byref(handle)))
        _done(library.cublasLtMatmulDescCreate(ctypes.byref(product), sums, R_32F))
        for name, value in ((DESC_TRANSA, OP_T), (DESC_TRANSB, OP_N)):
            given = ctypes.byref(ctypes.c_int32(value))
            four = ctypes.c_size_t(4)
            _done(library.cublasLtMatmulDescSetAttribute(product, name, given, four))
        shape = (ctypes.c_uint64(size), ctypes.c_uint64(size), ctypes.c_int64(size))
        _done(library.cublasLtMatrixLayoutCreate(ctypes.byref(layout), matrix, *shape))
        workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device="cuda")
        made = cls(library, handle, product, layout, workspace)
        weakref.finalize(made, library.cublasLtDestroy, handle)
        return made

    def proposals(self) -> list[Proposal]:
        """
        The kernels that the library's heuristic proposes, best first.

        Raises:
            Refused: It knows none.
        """
        preference, limit = ctypes.c_void_p(), ctypes.c_size_t(WORKSPACE_BYTES)
        library, eight = self.library, ctypes.c_size_t(8)
        _done(library.cublasLtMatmulPreferenceCreate(ctypes.byref(preference)))
        _done(
            library.cublasLtMatmulPreferenceSetAttribute(
                preference, PREFERENCE_WORKSPACE_BYTES, ctypes.byref(limit), eight
            )
        )
        found, count = (Proposal * PROPOSALS)(), ctypes.c_int()
        matrices = (self.layout,) * 4
        _done(
            library.cublasLtMatmulAlgoGetHeuristic(
                *(self.handle, self.product, *matrices, preference),
                *(PROPOSALS, found, ctypes.byref(count)),
            )
        )
        return [p for p in found[: count.value] if p.state == 0]

    def multiply(self, torch: Any, proposal: Proposal) -> Multiply:
        """The product by one kernel."""
        one, zero = ctypes.c_float(1.0), ctypes.c_float(0.0)
        room = (ctypes.c_void_p(self.workspace.data_ptr()), ctypes.c_size_t(WORKSPACE_BYTES))
        layout = self.layout

        def multiply(left: Any, right: Any, result: Any) -> None:
            # Column by column, as the library reads, a row-major matrix is its transpose.
            first, second, out = (ctypes.c_void_p(m.data_ptr()) for m in (right, left, result))
            stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
            _done(
                self.library.cublasLtMatmul(
                    *(self.handle, self.product, ctypes.byref(one), first, layout, second, layout),
                    *(ctypes.byref(zero), out, layout, out, layout, ctypes.byref(proposal.algo)),
                    *(*room, stream),
                )
            )

        return multiply


def kernels(torch: Any, dtype: str, size: int) -> Sequence[Multiply]:
    """
    The proposed kernels for a product, best first; none where the library cannot be asked.

    Args:
        dtype: A key of :data:`TYPES`, else there are none.
        size: Rows and columns of all matrices.
    """
    path = loaded("libcublasLt")
    if path is None or dtype not in TYPES:
        return []
    try:
        product = Product.make(torch, ctypes.CDLL(path), dtype, size)
        return [product.multiply(torch, p) for p in product.proposals()]
    except (Refused, AttributeError, OSError):  # another version of it, or none at all
        return []


def loaded(name: str) -> str | None:
    """Path of a shared library that this process has loaded."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = line.rpartition(" ")[2]
        if name in path:
            return path
    return None


def _done(status: int) -> None:
    if status:
        raise Refused(f"status {status}")
