"""
What the makers say a GPU can calculate: dense products, FLOP a second. Pure.

Sources: NVIDIA's data sheets of each GPU (figures with sparsity halved), as of 2026-11.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_TERA = 1e12
_HOPPER_SXM = {"fp32": 67, "tf32": 494.7, "bf16": 989.4, "fp16": 989.4, "fp8": 1979, "int8": 1979}
_AMPERE = {"fp32": 19.5, "tf32": 156, "bf16": 312, "fp16": 312, "int8": 624}
PEAKS: Mapping[str, Mapping[str, float]] = {
    r"NVIDIA GH200.*": _HOPPER_SXM,
    r"NVIDIA H200 NVL": {
        "fp32": 60, "tf32": 417.5, "bf16": 835.5, "fp16": 835.5, "fp8": 1671, "int8": 1671,
    },
    r"NVIDIA H200": _HOPPER_SXM,
    r"NVIDIA H100 80GB HBM3": _HOPPER_SXM,
    r"NVIDIA H100 NVL": {
        "fp32": 60, "tf32": 417.5, "bf16": 835.5, "fp16": 835.5, "fp8": 1671, "int8": 1671,
    },
    r"NVIDIA H100 PCIe": {
        "fp32": 51, "tf32": 378, "bf16": 756, "fp16": 756, "fp8": 1513, "int8": 1513,
    },
    r"NVIDIA A100.*": _AMPERE,
    r"NVIDIA B200": {"fp32": 75, "tf32": 1100, "bf16": 2250, "fp16": 2250, "fp8": 4500,
                     "int8": 4500},
    r"NVIDIA L40S": {"fp32": 91.6, "tf32": 183, "bf16": 362, "fp16": 362, "fp8": 733, "int8": 733},
    r"NVIDIA L4": {"fp32": 30.3, "tf32": 60, "bf16": 121, "fp16": 121, "fp8": 242.5,
                   "int8": 242.5},
}  # fmt: skip
"""NVML's name of a GPU, a regular expression over the whole of it -> type -> TFLOP a second."""


def peak(model: str | None, product: str) -> float | None:
    """
    Dense FLOP a second of a GPU; None where no data sheet is known.

    Args:
        model: NVML's name; None of CPUs.
        product: Type of the operands, as in the probe ``gemm``.
    """
    for pattern, rates in PEAKS.items():
        if model is not None and re.fullmatch(pattern, model) and product in rates:
            return rates[product] * _TERA
    return None
