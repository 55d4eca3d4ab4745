"""
Environments that are compared as arms: NCCL's switches by name, and the user's own; pure.

An arm takes NCCL's own choice of rings under one binding and adds its variables. What the
surroundings forbid is never overridden by an arm.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from topobench.reading import Reason, ReasonCode

PRESETS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "nvls_on": {"NCCL_NVLS_ENABLE": "1"},
        "nvls_off": {"NCCL_NVLS_ENABLE": "0"},
        "algo_ring": {"NCCL_ALGO": "allreduce:ring"},
        "algo_tree": {"NCCL_ALGO": "allreduce:tree"},
        "proto_simple": {"NCCL_PROTO": "Simple"},
        "proto_ll": {"NCCL_PROTO": "LL"},
        "proto_ll128": {"NCCL_PROTO": "LL128"},
        "p2p_off": {"NCCL_P2P_DISABLE": "1"},
        **{f"p2p_{c.lower()}": {"NCCL_P2P_LEVEL": c} for c in ("NVL", "PIX", "PXB", "PHB", "SYS")},
        **{
            f"ctas_{n}": {"NCCL_MIN_CTAS": str(n), "NCCL_MAX_CTAS": str(n)}
            for n in (1, 2, 4, 8, 16, 32)
        },
    }
)
"""Name of an arm -> its variables; a P2P level is the farthest path that GPUs copy over."""

_PERFORMANCE_PREFIXES = (
    "NCCL_",
    "FI_",
    "UCX_",
    "CUDA_",
    "TORCH_",
    "PYTORCH_",
    "OMP_",
    "KMP_",
    "GOMP_",
    "MKL_",
    "GLOO_",
    "NVSHMEM_",
    "LD_PRELOAD",
)
_LABELS = re.compile(r"_VERSION$|_ARCH_LIST$")
"""What images and builds set for their own use: no library changes its speed by it."""

_HARMLESS = {  # values with which these three do *not* forbid NVLink multicast
    "NCCL_NVLS_ENABLE": ("", "1", "2"),
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": ("", "0"),
    "NVSHMEM_DISABLE_NVLS": ("", "0"),
}


@dataclass(frozen=True, slots=True)
class EnvArm:
    """An environment that is compared: a name, and variables on top of the site's."""

    name: str
    env: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def preset(cls, name: str) -> EnvArm:
        """
        The arm of a name of :data:`PRESETS`.

        Raises:
            KeyError: There is none.
        """
        return cls(name, PRESETS[name])


def changes_speed(variable: str) -> bool:
    """Whether a variable of that name may change what is measured."""
    return variable.startswith(_PERFORMANCE_PREFIXES) and not _LABELS.search(variable)


def text_of(env: Mapping[str, str]) -> str:
    """``A=1 B=2``, in the order of the names; empty without variables."""
    return " ".join(f"{key}={value}" for key, value in sorted(env.items()))


def forbidding(*environments: Mapping[str, str]) -> dict[str, str]:
    """Switches by which an administrator forbids multicast; nothing overrides them."""
    return {
        key: env[key]
        for env in reversed(environments)
        for key, harmless in _HARMLESS.items()
        if env.get(key, "") not in harmless
    }


def refusal(asked: Mapping[str, str], *surroundings: Mapping[str, str]) -> Reason | None:
    """
    Why an arm cannot be had: it asks for multicast, and its surroundings forbid that.

    Args:
        asked: The arm's variables.
        surroundings: The host's own environment, NCCL's files, the site's ``env:``.
    """
    forbidden = forbidding(*surroundings)
    for key in asked.keys() & _HARMLESS.keys():
        if asked[key] not in _HARMLESS[key] or not forbidden:
            continue  # it forbids multicast, too, or nobody does
        by = key if key in forbidden else min(forbidden)
        return Reason(
            ReasonCode.UNSUPPORTED,
            f"{by}={forbidden[by]} is set where this host is measured, which stays; the arm asks "
            f"for {key}={asked[key]}",
        )
    return None


def pointless(asked: Mapping[str, str], backend: str) -> Reason | None:
    """Why an arm would change nothing between ranks of a backend."""
    if backend == "gloo" and all(key.startswith("NCCL_") for key in asked):
        return Reason(ReasonCode.EQUIVALENT_ARMS, "gloo reads none of NCCL's settings")
    return None
