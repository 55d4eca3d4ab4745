"""
The pinned worker: a fresh process that runs the cells of one arm in turn.

``python -m topobench.probes.worker RESULT_FD LAUNCHER_PID GUARD_FD`` is started by
``agents.launch``, never by hand. Both ways speak JSON, one object a line:

* stdin, held open by the launcher as the life line: the spec first (rank, ranks,
  binding, interface, denied), then ``{"type": "go", ...}`` for each cell,
  ``{"type": "address", ...}`` from rank 0 of a gang, and ``{"type": "bye"}``;
* the private pipe RESULT_FD: ``got`` (what the kernel granted) or ``refused``, then for
  each cell ``publish`` (rank 0 of a gang), ``so_far`` (samples that no reading holds yet),
  ``reading`` ... and ``end``, at last ``bye``;
* the pipe GUARD_FD is held by the worker's guard alone (``probes.lifeline``).

stdout and stderr go to a log file. Nothing heavy is imported before the binding holds.
"""

from __future__ import annotations

import contextlib
import dataclasses
import faulthandler
import gc
import json
import math
import os
import platform
import sys
import time
import traceback
from collections.abc import Generator, Mapping
from typing import Any

from topobench import processes
from topobench.errors import ProbeError
from topobench.probes import lifeline, registry, so_far
from topobench.probes.protocol import Probe, WorkerContext, build, check_metrics
from topobench.probes.worker_binding import Grip
from topobench.probes.worker_checks import Failure, Placement, check_values, explain
from topobench.reading import Binding, Reading, ReasonCode, Status, to_json

_CLOCK_STEP_SECONDS = 0.25
_CLOCK_SLEW_RATIO = 0.001  # an NTP client may stretch the wall clock that much


class Channel:
    """JSON lines from stdin, JSON lines to the private pipe."""

    def __init__(self, result_fd: int) -> None:
        os.set_inheritable(result_fd, False)
        self._out = result_fd
        self._buffer = b""

    def send(self, kind: str, **fields: Any) -> None:
        """Write one message."""
        data = json.dumps({"type": kind, **to_json(fields)}).encode() + b"\n"
        while data:
            data = data[os.write(self._out, data) :]

    def receive(self) -> dict[str, Any]:
        """
        Wait for the next message.

        Raises:
            SystemExit: The launcher closed the life line.
        """
        while b"\n" not in self._buffer:
            data = os.read(0, 65536)
            if not data:
                raise SystemExit("the launcher is gone")
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        return message


class Worker:
    """Runs cells as the launcher names them, and reports what really happened."""

    def __init__(self, channel: Channel, line: lifeline.Lifeline, spec: Mapping[str, Any]) -> None:
        self._channel = channel
        self._line = line
        self._rank: int = spec["rank"]
        self._ranks: int = spec["ranks"]
        self._local_rank: int = spec["local_rank"]
        self._interface: str | None = spec["interface"]
        self._binding = Binding.from_json(spec["binding"])
        self._grip = Grip(self._binding, denied=spec["denied"])
        self._cells_before = 0

    def run(self) -> None:
        """Take hold of the binding, then run cells until told to leave."""
        try:
            self._grip.take()
        except ProbeError as refused:
            self._channel.send("refused", reason=f"{refused.code}: {refused.text}")
            return
        self._channel.send(
            "got",
            cpus=self._grip.cpus,
            memory_policy=self._grip.policy(),
            devices=os.environ.get("CUDA_VISIBLE_DEVICES", ""),
            python=platform.python_version(),
            inherited=self._grip.inherited,
            warnings=self._grip.warnings,
        )
        while (message := self._channel.receive())["type"] != "bye":
            if message["type"] == "go" and self._run_cell(message):
                break
        self._channel.send("bye")

    def _run_cell(self, go: Mapping[str, Any]) -> bool:
        """Run one cell; true if this process must not measure any more."""
        began, wall = time.monotonic(), time.time()
        self._line.allow(go["deadline_seconds"] + lifeline.SLACK_SECONDS)
        attempt = Attempt(self._channel, go["cell"], self._binding, self._rank, began)
        waited = cpu_wait_seconds()
        failure = self._measure(go, attempt, began)
        if self._rank == 0 and waited is not None:
            attempt.note("cpu_wait_seconds", round((cpu_wait_seconds() or waited) - waited, 6))
        self._cells_before += 1
        self._line.allow(math.inf)  # the next cell comes when the launcher likes
        seconds = time.monotonic() - began
        moved = time.time() - wall - seconds
        if abs(moved) > _CLOCK_STEP_SECONDS + _CLOCK_SLEW_RATIO * seconds:
            attempt.warn(
                f"{ReasonCode.CLOCK_STEP}: the wall clock moved by {moved:+.3f} s against the "
                "monotonic clock during this run; durations are not affected"
            )
        self._channel.send(
            "end",
            cell=go["cell"],
            status=failure.status if failure else Status.OK,
            reason=failure.reason if failure else None,
            seconds=seconds,
            conditions=attempt.conditions,
            warnings=attempt.warnings,
            member=self._member(attempt),
            environment=_versions(),
            leaving=(leaving := failure is not None and failure.fatal),
        )
        return leaving

    def _measure(self, go: Mapping[str, Any], attempt: Attempt, began: float) -> Failure | None:
        """Measure a cell; None if every number may be used."""
        try:
            self._grip.verify("before")
            probe = _probe(go)
            failure = attempt.measure(probe, self._context(go, attempt, began))
            self._grip.verify("after")
            attempt.prove_placement(bound=self._grip.memory_bound)
        except Exception as error:  # whatever a probe raises becomes a stored reason
            return explain(error)
        return failure

    def _context(self, go: Mapping[str, Any], attempt: Attempt, began: float) -> WorkerContext:
        def wait() -> str:
            while True:
                message = self._channel.receive()
                if message["type"] == "address" and message["cell"] == go["cell"]:
                    return str(message["address"])

        def publish(address: str) -> None:
            self._channel.send("publish", cell=go["cell"], address=address)

        return WorkerContext(
            binding=self._binding,
            devices=tuple(go["devices"]),
            rank=self._rank,
            ranks=self._ranks,
            local_rank=self._local_rank,
            publish=publish,
            wait=wait,
            interface=self._interface,
            deadline_seconds=go["deadline_seconds"] - (time.monotonic() - began),
            buffer_ready=attempt.buffer_ready,
            note=attempt.note,
            warn=attempt.warn,
            cells_before=self._cells_before,
        )

    def _member(self, attempt: Attempt) -> dict[str, Any]:
        return {
            "cpus": self._grip.cpus,
            "cpu_node": self._grip.cpu_node,
            "memory_node": attempt.placement.node,
            "memory_policy": self._grip.policy(),
        }


class Attempt:
    """
    What one cell gathers while it runs.

    Args:
        began: Monotonic clock at the cell's start.
    """

    def __init__(
        self, channel: Channel, cell: str, binding: Binding, rank: int, began: float
    ) -> None:
        self._channel = channel
        self._cell = cell
        self._rank = rank
        self._began = began
        self._teller: so_far.Teller | None = None
        self.placement = Placement(binding)
        self.conditions: dict[str, Any] = {}
        self.warnings: list[str] = []

    def note(self, key: str, value: Any) -> None:
        """
        Keep a condition of this run.

        Raises:
            TypeError: The value is no plain JSON value (a NumPy scalar, say).
        """
        json.dumps(value)
        self.conditions[key] = value

    def warn(self, text: str) -> None:
        """Keep a warning of this run, once."""
        if text not in self.warnings:
            self.warnings.append(text)

    def buffer_ready(self, address: int, size_bytes: int) -> None:
        """Look where the pages of a measured buffer lie."""
        try:
            self.placement.look(address, size_bytes)
        except OSError as error:
            self.warn(f"locality_unknown: the kernel does not say where pages lie ({error})")

    def measure(self, probe: Probe, context: WorkerContext) -> Failure | None:
        """
        Send each reading as it comes; the first value that cannot be is the result.

        Samples come before their reading, and where it fails without one.

        Raises:
            ValueError: A metric that the probe did not declare.
            ProbeError: No reading at all.
        """
        failure, count = None, 0
        if self._rank == 0:
            self._teller = so_far.Teller(self._tell, {m.name for m in probe.metrics})
        with so_far.listening(self._teller):
            readings = probe.measure(context)
            try:
                for reading in readings:
                    check_metrics(type(probe), [reading])
                    failure = failure or check_values(reading)
                    self._report(reading)
                    count += 1
            except Exception:
                if self._teller is not None:
                    self._teller.flush()
                raise
            finally:
                if isinstance(readings, Generator):
                    readings.close()
        if not count and self._rank == 0:
            raise ProbeError(ReasonCode.INTERNAL, "the probe ended without any reading")
        return failure

    def prove_placement(self, *, bound: bool) -> None:
        """
        Send where the measured buffers lay.

        Args:
            bound: The kernel took the memory policy, so they must lie there.

        Raises:
            ResultInvalid: They do not.
        """
        reading, conditions = self.placement.proof()
        self.conditions.update(conditions)
        if reading is not None:
            self._report(reading)
        if bound:
            self.placement.verify()

    def _tell(self, news: Mapping[str, Any]) -> None:
        self._channel.send("so_far", cell=self._cell, **news)

    def _report(self, reading: Reading) -> None:
        if self._teller is not None:
            self._teller.settle(reading)
            times = tuple(round(at - self._began, 6) for at in reading.times)
            told = dataclasses.replace(reading, times=times)
            self._channel.send("reading", cell=self._cell, reading=told)


def cpu_wait_seconds(path: str = "/proc/thread-self/schedstat") -> float | None:
    """How long this thread was ready to run and had no CPU; None if the kernel does not count."""
    try:
        with open(path) as file:
            _, waited, times_run = map(int, file.read().split())
    except (OSError, ValueError):
        return None
    return waited / 1e9 if times_run else None  # a thread that reads this has run


def _probe(go: Mapping[str, Any]) -> Probe:
    return build(registry.load(go["probe"], target=go["target"]), go["params"])


def _versions() -> dict[str, Any]:
    """Versions that explain a number; torch only if a probe imported it."""
    found: dict[str, Any] = {"python": platform.python_version()}
    torch = sys.modules.get("torch")
    if torch is None:
        return found
    found |= {"torch": str(torch.__version__), "cuda": torch.version.cuda}
    if torch.version.cuda and torch.cuda.is_initialized():
        with contextlib.suppress(Exception):  # a build without NCCL or cuDNN
            found["cudnn"] = torch.backends.cudnn.version()
            found["nccl"] = ".".join(str(n) for n in torch.cuda.nccl.version())
    return found


def main(arguments: list[str]) -> None:
    """Run as a worker; the process ends without the interpreter's own clean-up."""
    code = 1
    try:
        result_fd, launcher, held = map(int, arguments)
        channel = Channel(result_fd)
        line = lifeline.start(launcher, os.environ.get(processes.WORKER, ""), held)
        # Imports make what stays: looking for garbage in it delays torch, and disturbs timings.
        gc.set_threshold(20_000, 20, 100)
        faulthandler.enable()
        Worker(channel, line, channel.receive()).run()
        line.end()
        code = 0
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else 1
        sys.stderr.write("" if isinstance(leaving.code, int) else f"{leaving.code}\n")
    except BaseException:
        traceback.print_exc()
    finally:
        # Tearing down CUDA and NCCL may hang or crash; every result is out by now.
        with contextlib.suppress(OSError):  # a full disk
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main(sys.argv[1:])
