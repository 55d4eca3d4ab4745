"""
A stand-in for pynvml on machines without a GPU: its functions, its errors, our values.

Only the library is replaced. The errors raised are pynvml's own, and every function that
is not given answers "not supported", as an old card does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pynvml

NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND, LOST = 3, 4, 6, 15


class FakeNvml:
    """
    A module like pynvml over a list of GPUs.

    Args:
        gpus: Function name without "nvml" -> value, ``Refusal``, or a function of the
            arguments after the handle. A GPU that is a ``Refusal`` gives no handle.
        system: The same for functions without a handle.
    """

    NVMLError = pynvml.NVMLError
    c_nvmlGpuFabricInfo_v2_t = pynvml.c_nvmlGpuFabricInfo_v2_t  # noqa: N815

    def __init__(self, gpus: Sequence[Any], system: dict[str, Any] | None = None) -> None:
        self.gpus = gpus
        self.system = {"SystemGetDriverVersion": "580.159.04", **(system or {})}
        self.open = 0

    def nvmlInit(self) -> None:  # noqa: N802
        self.open += 1
        if isinstance(refusal := self.system.get("Init"), Refusal):
            self.open -= 1
            raise pynvml.NVMLError(refusal.code)

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.open -= 1

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any:  # noqa: N802
        return _answer(self.gpus[index], ())

    def __getattr__(self, name: str) -> Callable[..., Any]:
        key = name.removeprefix("nvml")
        if not name.startswith("nvml"):
            raise AttributeError(name)

        def call(*args: Any) -> Any:
            if args and isinstance(args[0], dict):
                return _answer(args[0].get(key, Refusal(NOT_SUPPORTED)), args[1:])
            return _answer(self.system.get(key, Refusal(NOT_SUPPORTED)), args)

        return call


class Refusal:
    """An NVML error code in place of a value."""

    def __init__(self, code: int) -> None:
        self.code = code


def _answer(value: Any, args: tuple[Any, ...]) -> Any:
    value = value(*args) if callable(value) else value
    if isinstance(value, Refusal):
        raise pynvml.NVMLError(value.code)
    return value


def gpu(index: int, address: str, **answers: Any) -> dict[str, Any]:
    """An H100-like GPU with 18 links to switches; ``answers`` replace single functions."""
    return {
        "DeviceGetPciInfo": SimpleNamespace(busId=f"0000{address.upper()}"),
        "DeviceGetUUID": f"GPU-{index:08d}-2222-3333-4444-555555555555",
        "DeviceGetName": "NVIDIA H100 80GB HBM3",
        "DeviceGetMemoryInfo": SimpleNamespace(total=85520809984),
        "DeviceGetCudaComputeCapability": (9, 0),
        "DeviceGetMigMode": [0, 0],
        "DeviceGetNvLinkState": links(["nvswitch"] * 18),
        "DeviceGetNvLinkVersion": 6,
        "DeviceGetNvLinkRemoteDeviceType": 2,
        "DeviceGetFieldValues": fields(26562),
        "DeviceGetP2PStatus": 0,
        **answers,
    }


def links(remotes: Sequence[str | None]) -> Callable[[int], Any]:
    """State of each link: active, inactive (None), or absent beyond the list."""

    def state(link: int) -> Any:
        if link >= len(remotes):
            return Refusal(2)
        return int(remotes[link] is not None)

    return state


def fields(megabytes_per_second: int) -> Callable[[Any], Any]:
    """Answers of DeviceGetFieldValues: every field holds the same number."""

    def values(wanted: Sequence[Any]) -> list[Any]:
        value = SimpleNamespace(uiVal=megabytes_per_second)
        return [SimpleNamespace(nvmlReturn=0, value=value) for _ in wanted]

    return values


def mask(cpus: Sequence[int], words: int = 64) -> list[int]:
    """An affinity mask as NVML gives it."""
    bits = sum(1 << cpu for cpu in cpus)
    return [bits >> 64 * i & (1 << 64) - 1 for i in range(words)]
