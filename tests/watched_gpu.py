"""A GPU that a fake NVML answers for, whose state a test changes while it is watched."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from fake_nvml import FakeNvml, field_values, gpu, links
from topobench.agents.conditions.gpu_users import GpuUsers
from topobench.agents.conditions.gpu_watch import GpuWatch
from topobench.agents.conditions.nvml_counters import Session
from topobench.reading import Arm, Binding, Case, Cell

SWEEP = "sweep-of-the-test"
GIB = 1 << 30


@dataclass
class State:
    """What NVML says now; watts, MHz, and the errors of one memory."""

    reasons: int = 0
    performance_state: int = 0
    sm_mhz: int = 1980
    temperature: int = 41
    watts: int = 300
    generation: int = 5
    width: int = 16
    best: tuple[int, int] = (5, 16)
    limit_watts: int = 700
    default_watts: int = 700
    corrected: int = 3
    uncorrected: int = 0
    replays: int = 2
    processes: list[Any] = field(default_factory=list)
    used: int = 0
    numbers: dict[int, Any] = field(default_factory=dict)

    def answers(self) -> dict[str, Any]:
        """As ``fake_nvml.gpu`` takes them."""

        def ecc(kind: int, scope: int) -> int:
            return (self.corrected, self.uncorrected)[kind] + 100 * scope

        return {
            "DeviceGetCurrentClocksEventReasons": lambda: self.reasons,
            "DeviceGetPerformanceState": lambda: self.performance_state,
            "DeviceGetClockInfo": lambda kind: self.sm_mhz if kind == 1 else 2619,
            "DeviceGetMaxClockInfo": lambda kind: 1980 if kind == 1 else 2619,
            "DeviceGetTemperature": lambda sensor: self.temperature,
            "DeviceGetPowerUsage": lambda: self.watts * 1000,
            "DeviceGetEnforcedPowerLimit": lambda: self.limit_watts * 1000,
            "DeviceGetPowerManagementDefaultLimit": lambda: self.default_watts * 1000,
            "DeviceGetCurrPcieLinkGeneration": lambda: self.generation,
            "DeviceGetCurrPcieLinkWidth": lambda: self.width,
            "DeviceGetMaxPcieLinkGeneration": lambda: self.best[0],
            "DeviceGetMaxPcieLinkWidth": lambda: self.best[1],
            "DeviceGetPcieReplayCounter": lambda: self.replays,
            "DeviceGetTotalEccErrors": ecc,
            "DeviceGetRemappedRows": (0, 0, 0, 0),
            "DeviceGetNvLinkState": links(["nvswitch"] * 2),
            "DeviceGetFieldValues": lambda wanted: field_values(self.numbers)(wanted),
            "DeviceGetComputeRunningProcesses": lambda: self.processes,
            "DeviceGetMemoryInfo": lambda version: SimpleNamespace(total=141 * GIB, used=self.used),
        }


class Watched:
    """One GPU under watch; each :meth:`run` is a run of its own."""

    def __init__(self, **changes: Any) -> None:
        self.state = State()
        self.gpu = gpu(0, "0000:1a:00.0", **{**self.state.answers(), **changes})
        self.uuid: str = self.gpu["DeviceGetUUID"]
        self.library = FakeNvml([self.gpu])
        self.session = Session(self.library)
        self.users = GpuUsers(SWEEP)

    def run(self, *moments: Callable[[State], Any]) -> dict[str, Any]:
        """The conditions of a run with one reading after each of these changes."""
        watch = GpuWatch(self.session.gpu(self.uuid), self.users)
        watch.begin()
        for change in moments:
            change(self.state)
            watch.glance(users=True)
        watch.end()
        return {"gpus": {self.uuid: watch.document(watch.began)}}

    def set(self, **values: Any) -> Callable[[State], None]:
        """A change of the state."""

        def change(state: State) -> None:
            for name, value in values.items():
                assert hasattr(state, name)
                setattr(state, name, value)

        return change


def process(pid: int, memory_bytes: int | None = 2 * GIB) -> Any:
    return SimpleNamespace(pid=pid, usedGpuMemory=memory_bytes)


NONE = Binding("none")


def cell(probe: str = "host_to_device", *devices: str, binding: Binding = NONE) -> Cell:
    return Cell("c-1", Case(probe, 1, {}), "h", Arm(binding), devices)
