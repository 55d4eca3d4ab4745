"""
Matrix products by cuBLASLt itself, with the kernel that is fastest of those it proposes.

The library that torch loaded is called through ctypes, so nothing has to be compiled. Names
and numbers are those of cublasLt.h; a returned status other than 0 ends the program.
"""

from __future__ import annotations

import ctypes
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from topobench.probes import cuda
from topobench.probes.timing import QueueTimer

COMPUTE_32F, R_32F, R_16BF = 68, 0, 14
OP_N, OP_T = 0, 1
DESC_TRANSA, DESC_TRANSB = 3, 4
PREFERENCE_WORKSPACE_BYTES = 1
WORKSPACE_BYTES = 64 << 20
PROPOSALS = 16
Operands = tuple[Any, Any, Any]


class Proposal(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t."""

    _fields_ = (
        ("algo", ctypes.c_uint64 * 8),
        ("workspace_bytes", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


@dataclass(frozen=True, slots=True)
class Products:
    """
    bf16 products ``result = left x right transposed`` of square row-major matrices.

    Args:
        sets: Operands that the products walk through.
        size: Rows and columns of each.
    """

    torch: Any
    library: ctypes.CDLL
    handle: ctypes.c_void_p
    product: ctypes.c_void_p
    layout: ctypes.c_void_p
    workspace: Any
    sets: Sequence[Operands]
    size: int

    @classmethod
    def make(cls, torch: Any, sets: Sequence[Operands], size: int) -> Products:
        """Describe the product; torch must have multiplied once, so that the library is loaded."""
        library = ctypes.CDLL(loaded("libcublasLt"))
        handle, product, layout = (ctypes.c_void_p() for _ in range(3))
        done(library.cublasLtCreate(ctypes.byref(handle)))
        done(library.cublasLtMatmulDescCreate(ctypes.byref(product), COMPUTE_32F, R_32F))
        for name, value in ((DESC_TRANSA, OP_T), (DESC_TRANSB, OP_N)):
            operation = ctypes.c_int32(value)
            done(
                library.cublasLtMatmulDescSetAttribute(
                    product, name, ctypes.byref(operation), ctypes.c_size_t(4)
                )
            )
        shape = (ctypes.c_uint64(size), ctypes.c_uint64(size), ctypes.c_int64(size))
        done(library.cublasLtMatrixLayoutCreate(ctypes.byref(layout), R_16BF, *shape))
        workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device="cuda")
        return cls(torch, library, handle, product, layout, workspace, sets, size)

    def proposals(self) -> list[Proposal]:
        """The kernels that the library's heuristic proposes for this product, best first."""
        preference, limit = ctypes.c_void_p(), ctypes.c_size_t(WORKSPACE_BYTES)
        done(self.library.cublasLtMatmulPreferenceCreate(ctypes.byref(preference)))
        done(
            self.library.cublasLtMatmulPreferenceSetAttribute(
                preference, PREFERENCE_WORKSPACE_BYTES, ctypes.byref(limit), ctypes.c_size_t(8)
            )
        )
        found, count = (Proposal * PROPOSALS)(), ctypes.c_int()
        done(
            self.library.cublasLtMatmulAlgoGetHeuristic(
                *(self.handle, self.product),
                *(self.layout,) * 4,
                *(preference, PROPOSALS, found, ctypes.byref(count)),
            )
        )
        return [p for p in found[: count.value] if p.state == 0]

    def enqueue(self, proposal: Proposal) -> Callable[[int], None]:
        """Enqueues products by one kernel, on torch's stream."""
        one, zero = ctypes.c_float(1.0), ctypes.c_float(0.0)
        stream = ctypes.c_void_p(self.torch.cuda.current_stream().cuda_stream)
        room = (ctypes.c_void_p(self.workspace.data_ptr()), ctypes.c_size_t(WORKSPACE_BYTES))
        walk = _cycle(self.sets)

        def enqueue(count: int) -> None:
            for _ in range(count):
                # Column by column, as the library reads, a row-major matrix is its transpose.
                left, right, result = (ctypes.c_void_p(m.data_ptr()) for m in next(walk))
                operands = (right, self.layout, left, self.layout)
                results = (result, self.layout, result, self.layout)
                done(
                    self.library.cublasLtMatmul(
                        *(self.handle, self.product, ctypes.byref(one), *operands),
                        *(ctypes.byref(zero), *results, ctypes.byref(proposal.algo)),
                        *(*room, stream),
                    )
                )

        return enqueue

    def best(self, count: int) -> tuple[QueueTimer, int]:
        """A timer of the fastest proposal, and how many were tried."""
        timers = []
        for proposal in self.proposals():
            timer = QueueTimer.fit(cuda.CudaQueue(self.torch), self.enqueue(proposal), count)
            if timer is not None:
                timers.append((statistics.median(timer.sample() for _ in range(5)), timer))
        if not timers:
            sys.exit("cuBLASLt proposes no kernel for this product")
        return min(timers, key=lambda pair: pair[0])[1], len(timers)


def done(status: int) -> None:
    """End the program if the library refused something."""
    if status:
        sys.exit(f"cuBLASLt answered with status {status}")


def loaded(name: str) -> str:
    """Path of a shared library that this process has loaded."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = line.rpartition(" ")[2]
        if name in path:
            return path
    sys.exit(f"torch loaded no shared {name} here, so there is nothing to compare with")


def _cycle(sets: Sequence[Operands]) -> Any:
    while True:
        yield from sets
