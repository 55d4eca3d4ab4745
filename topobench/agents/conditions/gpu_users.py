"""Who else computes on a GPU while a worker of ours measures on it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from topobench import processes
from topobench.agents.conditions.nvml_counters import GpuProcess


@dataclass
class GpuUsers:
    """
    Sorts the processes that NVML lists into ours and strangers.

    Ours carry the marks of this sweep. A pid that this host's /proc does not know belongs
    to another pid namespace, or has just ended: it counts as a stranger once it was listed
    again, and only if NVML has listed a process of ours by its own pid, so that its pids
    are known to be the pids that we see.

    Args:
        sweep: UUID of the sweep.
    """

    sweep: str
    own: set[int] = field(default_factory=set)
    strangers: dict[int, dict[str, Any]] = field(default_factory=dict)
    _listed: set[int] = field(default_factory=set)
    _absent: dict[int, int] = field(default_factory=dict)
    _memory: dict[int, int | None] = field(default_factory=dict)

    def begin(self) -> None:
        """Forget strangers that are gone; whoever is still there is found again."""
        self.strangers.clear()
        self._listed.clear()
        self._absent.clear()

    def look(self, running: Sequence[GpuProcess]) -> None:
        """Take in what NVML lists now."""
        self._listed |= self.own.intersection(p.pid for p in running)
        for process in running:
            if process.pid in self.own or process.pid in self.strangers:
                continue
            if processes.find(process.pid) is None:
                self._absent[process.pid] = self._absent.get(process.pid, 0) + 1
                self._memory[process.pid] = process.memory_bytes
            elif self._is_ours(process.pid):
                self.own.add(process.pid)
                self._listed.add(process.pid)
            else:
                self.strangers[process.pid] = _told(process.pid, process.memory_bytes)

    def told(self) -> dict[str, Any]:
        """
        What a run's conditions keep.

        Keys: visible (NVML lists processes by pids that we see; None if it listed none at
        all), own (how many of ours in this run), foreign ([{pid, name, memory_bytes}]).
        """
        foreign = list(self.strangers.values())
        unresolved = sorted(pid for pid, times in self._absent.items() if times > 1)
        if self.own:
            foreign += [
                {"pid": pid, "name": None, "memory_bytes": self._memory[pid]} for pid in unresolved
            ]
        visible = True if self.own or self.strangers else False if unresolved else None
        return {"visible": visible, "own": len(self._listed), "foreign": foreign}

    def _is_ours(self, pid: int) -> bool:
        return (
            processes.marker(pid, processes.SWEEP) == self.sweep
            and processes.marker(pid, processes.WORKER) is not None
        )


def _told(pid: int, memory_bytes: int | None) -> dict[str, Any]:
    try:
        with open(f"/proc/{pid}/comm", "rb") as file:
            name: str | None = os.fsdecode(file.read()).strip()
    except OSError:
        name = None
    return {"pid": pid, "name": name, "memory_bytes": memory_bytes}
