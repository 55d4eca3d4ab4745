"""
A stand-in for pynvml on machines without a GPU: its functions, its errors, our values.

Only the library is replaced. The errors raised are pynvml's own, and every function that
is not given answers "not supported", as an old card does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
    c_nvmlGpmMetricsGet_t = pynvml.c_nvmlGpmMetricsGet_t  # noqa: N815
    NVML_GPM_METRICS_GET_VERSION = pynvml.NVML_GPM_METRICS_GET_VERSION
    nvmlMemory_v2 = pynvml.nvmlMemory_v2  # noqa: N815

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

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Any:  # noqa: N802
        known = [g for g in self.gpus if isinstance(g, dict) and g["DeviceGetUUID"] == uuid]
        return _answer(known[0] if known else Refusal(NOT_FOUND), ())

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


def fields(
    megabytes_per_second: int | None, chip_links: int | None = None, chip_rate: int | None = None
) -> Callable[[Any], Any]:
    """
    Answers of DeviceGetFieldValues: speed of a link, number of chip links, speed of one.

    Other fields, and those given as None, are not supported.
    """
    known = {90: megabytes_per_second, 164: megabytes_per_second, 170: chip_links, 172: chip_rate}

    def values(wanted: Sequence[Any]) -> list[Any]:
        ids = [w[0] if isinstance(w, tuple) else w for w in wanted]
        return [
            SimpleNamespace(
                nvmlReturn=NOT_SUPPORTED if known.get(i) is None else 0,
                value=SimpleNamespace(uiVal=known.get(i) or 0),
            )
            for i in ids
        ]

    return values


def mask(cpus: Sequence[int], words: int = 64) -> list[int]:
    """An affinity mask as NVML gives it."""
    bits = sum(1 << cpu for cpu in cpus)
    return [bits >> 64 * i & (1 << 64) - 1 for i in range(words)]


def field_values(numbers: Mapping[int, int | Mapping[int, int]]) -> Callable[[Any], Any]:
    """
    Answers of DeviceGetFieldValues, as 64-bit counters.

    Args:
        numbers: Field id -> value, or link -> value; any other field is refused.
    """

    def values(wanted: Sequence[tuple[int, int]]) -> list[Any]:
        found = []
        for number, scope in wanted:
            value = numbers.get(number)
            value = value.get(scope) if isinstance(value, Mapping) else value
            answer = SimpleNamespace(ullVal=value)
            code = NOT_SUPPORTED if value is None else 0
            found.append(SimpleNamespace(nvmlReturn=code, valueType=3, value=answer))
        return found

    return values
