"""
One host's ranks of a gang over several hosts, a cell at a time.

The driver calls every part's agent for each cell, carries the address that rank 0 publishes,
and tells the others when one part is lost. Workers go on from cell to cell until the driver
asks for fresh ones, because a gang is only as sound as all its parts.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Mapping
from dataclasses import replace

from topobench.agents import environment
from topobench.agents.environment import Environment
from topobench.agents.gang import CANCELLED, Gang, Meeting, Outcome
from topobench.agents.launch import Batch, Launcher, disturbance
from topobench.agents.nccl_run import NcclRun
from topobench.reading import Cell, Reason, ReasonCode, Run, Status

_NAMED_BY = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


class Part:
    """
    Runs this host's share of cells whose ranks are on several hosts.

    Args:
        address: Of this host, as the cluster knows it: where rank 0 can be met.
    """

    def __init__(self, launcher: Launcher, address: str) -> None:
        self._launcher = launcher
        self._address = address
        self._gang: Gang | None = None
        self._given = NcclRun()
        self._kept = contextlib.ExitStack()
        self.meeting = Meeting()
        self._running = threading.RLock()

    def run(
        self, cell: Cell, *, host: str, attempt: int, fresh: bool, stop: threading.Event
    ) -> tuple[Run, bool]:
        """
        Run one cell's ranks of this host.

        Args:
            host: This host's key, as the cell names it.
            fresh: Not with the workers of the cell before.

        Returns:
            Its run, as far as this host can tell, and whether these workers may go on.
        """
        with self._running:
            return self._run(own_share(cell, host), cell, attempt, fresh, stop)

    def end(self) -> None:
        """End the workers, if there are any; waits for a cell that is being stopped."""
        with self._running:
            gang, self._gang = self._gang, None
            if gang is not None:
                gang.finish()
            self._kept.close()

    def _run(
        self, own: Cell, cell: Cell, attempt: int, fresh: bool, stop: threading.Event
    ) -> tuple[Run, bool]:
        batch = Batch([own], self._launcher.environment(own), {cell.id: attempt})
        if fresh:  # else a rank lost since the cell before is told: the other parts need to know
            self.end()
        try:
            outcome = self._measured(cell, own, batch.setting, stop)
        finally:
            self.meeting.publish(cell.id, None)
        if not self._usable():
            self.end()
        return batch.record(own, outcome), self._usable()

    def _measured(
        self, cell: Cell, own: Cell, setting: Environment, stop: threading.Event
    ) -> Outcome:
        if stop.is_set():
            return CANCELLED
        if self._gang is None and (refused := self._start(cell, own, setting, stop)):
            return refused
        assert self._gang is not None
        with self._launcher.watch(own) as seen:
            outcome = self._gang.measure(
                self._launcher.go(own), self._launcher.limits.of(own), stop, disturbance(seen)
            )
        outcome = replace(outcome, conditions={**outcome.conditions, **seen})
        return self._given.judged(own, outcome, setting.mask)

    def _start(
        self, cell: Cell, own: Cell, setting: Environment, stop: threading.Event
    ) -> Outcome | None:
        """Start workers; the outcome of the cell if they cannot be had."""
        if (reason := environment.conflict(own, os.environ, setting)) is not None:
            return Outcome(Status.NOT_APPLICABLE, reason)
        ranks = [rank for rank, host in enumerate(cell.hosts) if host == own.host]
        interface = self._interface(setting.variables) if 0 in ranks else None
        if isinstance(interface, Reason):
            return Outcome(Status.SKIPPED, interface)
        given = self._kept.enter_context(self._launcher.given(own, setting, stop))
        if isinstance(given, Outcome):
            return given
        self._given = given
        seats = self._launcher.seats(own, ranks, interface)
        variables = {**setting.variables, **given.variables}
        gang = self._gang = Gang(seats, variables, self.meeting)
        self._kept.callback(gang.end)
        return gang.ready(self._launcher.limits.start_up(own), stop)

    def _usable(self) -> bool:
        return self._gang is not None and self._gang.usable()

    def _interface(self, variables: Mapping[str, str]) -> str | Reason:
        """The interface on which the other hosts reach rank 0; the site may name it."""
        for name in _NAMED_BY:
            named = variables.get(name, "").removeprefix("=")
            if named and not set(named) & set("^,:"):
                return named
        found = interface_of(self._address)
        if found is None or self._address.startswith("127."):
            return Reason(
                ReasonCode.UNSUPPORTED,
                f"the address {self._address} that Ray gave this host is on no interface that "
                f"others reach; start Ray with --node-ip-address, or name the interface: "
                f"env: {{{_NAMED_BY[0]}: ...}}",
            )
        return found


def own_share(cell: Cell, host: str) -> Cell:
    """The cell as one of its hosts sees it: with that host's devices alone."""
    devices = tuple(d for d, h in zip(cell.devices, cell.hosts, strict=False) if h == host)
    return replace(cell, host=host, devices=devices, visible=())


def interface_of(address: str) -> str | None:
    """Name of the interface that has an address; None if none has."""
    import psutil

    for name, entries in psutil.net_if_addrs().items():
        if any(e.address.partition("%")[0] == address for e in entries):
            return name
    return None
