"""
What NVML says of a GPU around a run: glances that cost little, and counters.

Each call may be refused by itself; then its value is missing and the reason is kept.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from topobench.agents.conditions import gpm
from topobench.agents.discover import nvml

_LOST = 15
_FINAL = frozenset({3, 13})  # not supported, function not found: will not change
_VALUE_KINDS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
_SM, _MEMORY = 1, 2
_RECOVERY_ACTION = 230  # a field id of newer drivers
_MOST_LINKS = 36

# Field ids of nvml.h. Its PCIe byte counters (197, 198) are left out: on an H200 they wrap at
# 2^32, which a gen 5 x16 slot passes every 80 ms, so that no difference of them can be trusted.
_DEVICE_FIELDS = {
    "sw_power_cap_nanoseconds": 74,
    "sw_thermal_slowdown_nanoseconds": 269,
    "hw_thermal_slowdown_nanoseconds": 270,
    "hw_power_brake_nanoseconds": 271,
}


@dataclass(frozen=True, slots=True)
class _LinkField:
    """A counter of one NVLink; ``scale`` makes bytes of what is counted in KiB."""

    id: int
    name: str
    scale: int = 1


_LINK_FIELDS = (
    _LinkField(138, "sent_bytes", 1024),
    _LinkField(139, "received_bytes", 1024),
    _LinkField(202, "sent_bytes"),  # newer GPUs
    _LinkField(204, "received_bytes"),
    _LinkField(161, "replay_count"),
    _LinkField(162, "recovery_count"),
    _LinkField(163, "crc_error_count"),
)


@dataclass(frozen=True, slots=True)
class Glance:
    """
    A GPU at one moment; None where it was not told.

    Args:
        at: Monotonic clock, seconds.
        reasons: Clocks event bits (``topobench.conditions.CLOCK_REASONS``).
        performance_state: 0 is the fastest.
    """

    at: float
    reasons: int | None = None
    performance_state: int | None = None
    sm_hertz: float | None = None
    memory_hertz: float | None = None
    temperature_celsius: float | None = None
    power_watts: float | None = None
    pcie_generation: int | None = None
    pcie_width: int | None = None

    @property
    def known(self) -> bool:
        """Whether NVML told anything."""
        return any(getattr(self, name) is not None for name in self.__slots__ if name != "at")


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process that computes on a GPU, by NVML's account of pids and memory."""

    pid: int
    memory_bytes: int | None


class Session:
    """
    NVML, kept open for as long as an agent lives.

    Args:
        library: A module like pynvml; None imports pynvml itself.

    Attributes:
        error: Why NVML cannot be asked at all, or None.
    """

    def __init__(self, library: Any = None) -> None:
        self.library = library or nvml.load()
        self.error: str | None = None
        if self.library is None:
            self.error = "the Python package nvidia-ml-py is not installed"
            return
        try:
            self.library.nvmlInit()
        except self.library.NVMLError as error:
            self.error = nvml.reason(error)

    def close(self) -> None:
        """End the session; readers of it answer nothing any more."""
        if self.error is None:
            self.error = "NVML was closed"
            self.library.nvmlShutdown()

    def gpu(self, key: str) -> GpuReader:
        """A reader of one GPU, by UUID or PCI address."""
        return GpuReader(self, key)


class GpuReader:
    """
    Asks NVML about one GPU.

    Attributes:
        unavailable: What could not be read -> why.
        lost: The GPU fell off the bus.
    """

    def __init__(self, session: Session, key: str) -> None:
        self._session = session
        self._library = session.library
        self.unavailable: dict[str, str] = {}
        self.lost = False
        self._final: set[str] = set()
        self._links: tuple[int, ...] | None = None
        self._link_fields: tuple[_LinkField, ...] = _LINK_FIELDS
        self._handle: Any = None
        if session.error is not None:
            return
        if ":" in key and not key.startswith(("GPU-", "MIG-")):
            self._handle = self._call("handle", "DeviceGetHandleByPciBusId", key)
        else:
            self._handle = self._call("handle", "DeviceGetHandleByUUID", key)

    def why_not(self) -> dict[str, str]:
        """What could not be read in the end -> why."""
        if self._session.error is not None:
            return {"nvml": self._session.error, **self.unavailable}
        return dict(self.unavailable)

    def meter(self) -> gpm.Meter:
        """An activity meter of this GPU."""
        return gpm.Meter(self._library, self._handle)

    def glance(self) -> Glance:
        """The GPU now. Costs some ten microseconds for each value."""
        at, ask = time.monotonic(), self._ask
        return Glance(
            at=at,
            reasons=self._reasons(),
            performance_state=ask("performance_state", "DeviceGetPerformanceState"),
            sm_hertz=_times(ask("sm_clock", "DeviceGetClockInfo", _SM), 1e6),
            memory_hertz=_times(ask("memory_clock", "DeviceGetClockInfo", _MEMORY), 1e6),
            temperature_celsius=ask("temperature", "DeviceGetTemperature", 0),
            power_watts=_times(ask("power", "DeviceGetPowerUsage"), 1e-3),
            pcie_generation=ask("pcie_generation", "DeviceGetCurrPcieLinkGeneration"),
            pcie_width=ask("pcie_width", "DeviceGetCurrPcieLinkWidth"),
        )

    def limits(self) -> dict[str, float]:
        """What bounds the GPU: clocks, power, its slot; what is not told is left out."""
        ask = self._ask
        found = {
            "sm_hertz": _times(ask("max_sm_clock", "DeviceGetMaxClockInfo", _SM), 1e6),
            "memory_hertz": _times(ask("max_memory_clock", "DeviceGetMaxClockInfo", _MEMORY), 1e6),
            "power_watts": _times(ask("power_limit", "DeviceGetEnforcedPowerLimit"), 1e-3),
            "default_power_watts": _times(
                ask("default_power_limit", "DeviceGetPowerManagementDefaultLimit"), 1e-3
            ),
            "pcie_generation": ask("max_pcie_generation", "DeviceGetMaxPcieLinkGeneration"),
            "pcie_width": ask("max_pcie_width", "DeviceGetMaxPcieLinkWidth"),
        }
        return {name: value for name, value in found.items() if value is not None}

    def counters(self) -> dict[str, int]:
        """Counters of the whole GPU since some start; a run's share is the difference."""
        ask = self._ask
        found = {"pcie_replay_count": ask("pcie_replay", "DeviceGetPcieReplayCounter")}
        for scope, where in enumerate(("", "lifetime_")):
            for kind, name in enumerate(("corrected", "uncorrected")):
                label = f"ecc_{where}{name}"
                value = ask(label, "DeviceGetTotalEccErrors", kind, scope)
                found[f"{label}_count"] = value
        rows = ask("remapped_rows", "DeviceGetRemappedRows")
        if rows is not None:
            found["remapped_corrected_count"], found["remapped_uncorrected_count"] = rows[:2]
        values = self._fields("device_fields", [(i, 0) for i in _DEVICE_FIELDS.values()])
        found |= dict(zip(_DEVICE_FIELDS, values, strict=True))
        if self._handle is not None and "device_fields" not in self.unavailable:
            for name in (n for n in _DEVICE_FIELDS if found[n] is None):
                self.unavailable[name] = "this GPU does not count it"
        return {name: int(value) for name, value in found.items() if value is not None}

    def recovery_action(self) -> int | None:
        """What the driver asks for to bring the GPU back in order; 0 is nothing."""
        (value,) = self._fields("recovery_action", [(_RECOVERY_ACTION, 0)])
        return None if value is None else int(value)

    def row_remapping(self) -> tuple[bool, bool]:
        """Whether bad memory rows wait to be replaced, and whether one could not be."""
        rows = self._ask("remapped_rows", "DeviceGetRemappedRows")
        return (False, False) if rows is None else (bool(rows[2]), bool(rows[3]))

    def link_counters(self) -> dict[int, dict[str, int]]:
        """Bytes and errors of each active NVLink since some start."""
        links = self._active_links()
        wanted = [(field, link) for link in links for field in self._link_fields]
        values: list[float | None] = []
        for link in links:  # NVML takes few fields at a time
            values += self._fields("nvlink_counters", [(f.id, link) for f in self._link_fields])
        found: dict[int, dict[str, int]] = {link: {} for link in links}
        for (field, link), value in zip(wanted, values, strict=True):
            if value is not None:
                found[link].setdefault(field.name, int(value) * field.scale)
        if links and "nvlink_counters" not in self.unavailable:
            told = {f for (f, _), v in zip(wanted, values, strict=True) if v is not None}
            self._link_fields = tuple(f for f in self._link_fields if f in told)
            if not any(f.name == "sent_bytes" for f in told):
                self.unavailable["nvlink_bytes"] = "this GPU does not count them"
        return found

    def processes(self) -> list[GpuProcess] | None:
        """Who computes on the GPU; None where NVML does not tell."""
        running = self._ask("processes", "DeviceGetComputeRunningProcesses")
        if running is None:
            return None
        return [GpuProcess(int(p.pid), getattr(p, "usedGpuMemory", None)) for p in running]

    def utilisation_percent(self) -> int | None:
        """Share of the last moment in which a kernel ran."""
        found = self._ask("utilisation", "DeviceGetUtilizationRates")
        return None if found is None else int(found.gpu)

    def used_memory(self) -> int | None:
        """Bytes in use, without what the driver keeps for itself where that is told apart."""
        version = getattr(self._library, "nvmlMemory_v2", None)
        found = self._ask("used_memory", "DeviceGetMemoryInfo", *([version] if version else []))
        return None if found is None else int(found.used)

    def _reasons(self) -> int | None:
        value = self._ask("clock_reasons", "DeviceGetCurrentClocksEventReasons")
        if value is None and "clock_reasons" in self._final:  # a driver before 535
            value = self._ask("throttle_reasons", "DeviceGetCurrentClocksThrottleReasons")
            if value is not None:
                self.unavailable.pop("clock_reasons", None)
        return None if value is None else int(value)

    def _active_links(self) -> tuple[int, ...]:
        """Found once: a link that goes down keeps its counters."""
        if self._links is None:
            found = []
            for link in range(_MOST_LINKS):
                state = self._ask(f"nvlink_{link}", "DeviceGetNvLinkState", link)
                self.unavailable.pop(f"nvlink_{link}", None)  # a link this GPU lacks refuses
                if state:
                    found.append(link)
            self._links = tuple(found)
        return self._links

    def _fields(self, label: str, wanted: Sequence[tuple[int, int]]) -> list[float | None]:
        if not wanted:
            return []
        values = self._ask(label, "DeviceGetFieldValues", list(wanted))
        if values is None:
            return [None] * len(wanted)
        return [
            None if v.nvmlReturn else getattr(v.value, _VALUE_KINDS[v.valueType]) for v in values
        ]

    def _ask(self, label: str, name: str, *args: Any) -> Any:
        """The result of ``nvml<name>`` of this GPU, or None."""
        if self._handle is None or label in self._final or self._session.error is not None:
            return None
        return self._call(label, name, self._handle, *args)

    def _call(self, label: str, name: str, *args: Any) -> Any:
        function: Callable[..., Any] | None = getattr(self._library, f"nvml{name}", None)
        if function is None:
            self.unavailable[label] = "pynvml lacks the function"
            self._final.add(label)
            return None
        try:
            value = function(*args)
        except self._library.NVMLError as error:
            self.unavailable[label] = nvml.reason(error)
            code = getattr(error, "value", None)
            self.lost |= code == _LOST
            if code in _FINAL:
                self._final.add(label)
            return None
        self.unavailable.pop(label, None)
        return value


def differences(before: Mapping[str, int], after: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    """By how much counters grew; one that went back (a reset, a wrap) says nothing."""
    for name, value in after.items():
        if name in before and value >= before[name]:
            yield name, value - before[name]


def _times(value: Any, factor: float) -> float | None:
    return None if value is None else round(float(value) * factor, 3)
