"""Power and memory of GPUs while a server is loaded, by the driver's own nvidia-smi."""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

PROGRAM = "nvidia-smi"
PERIOD_SECONDS = 0.2
_GAP_SECONDS = PERIOD_SECONDS / 2
"""Lines that lie further apart are not of one round."""
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class GpuReading:
    """
    A GPU at one moment.

    Args:
        at: By ``perf_counter``.
        device: UUID.
        watts: None where the GPU does not tell; likewise the bytes in use.
    """

    at: float
    device: str
    watts: float | None
    used_bytes: float | None


@dataclass(slots=True)
class GpuMeter:
    """
    What some GPUs told, in the order it was read.

    Args:
        devices: UUIDs.
        problem: Why nothing could be read.
    """

    devices: Sequence[str]
    readings: list[GpuReading] = field(default_factory=list)
    problem: str | None = None

    def line(self, text: str, now: float) -> None:
        """Take one line of nvidia-smi; one that is no reading of a GPU is left out."""
        parts = [p.strip() for p in text.split(",")]
        if len(parts) == 3 and parts[0] in self.devices:
            watts, mib = (_number(p) for p in parts[1:])
            used = None if mib is None else mib * _MIB
            self.readings.append(GpuReading(now, parts[0], watts, used))

    def watts(self, start: float, end: float) -> list[float]:
        """Power of all GPUs together, one value a round of readings, inside a span of time."""
        found = []
        for readings in self._rounds():
            watts = [r.watts for r in readings if r.watts is not None]
            inside = start <= readings[0].at and readings[-1].at < end
            if inside and len(watts) == len(self.devices):
                found.append(math.fsum(watts))
        return found

    def _rounds(self) -> list[list[GpuReading]]:
        """What was read at once; a GPU that tells nothing, or is gone, mixes no two rounds."""
        rounds: list[list[GpuReading]] = []
        for reading in self.readings:
            last = rounds[-1] if rounds else []
            again = any(r.device == reading.device for r in last)
            if not last or again or reading.at - last[-1].at > _GAP_SECONDS:
                rounds.append(last := [])
            last.append(reading)
        return rounds

    def peak_bytes(self, start: float, end: float) -> float | None:
        """The most memory in use on one of them; None if nothing was read."""
        found = (r.used_bytes for r in self.readings if start <= r.at < end)
        return max((used for used in found if used is not None), default=None)


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


@contextlib.contextmanager
def metered(devices: Sequence[str], env: Mapping[str, str]) -> Iterator[GpuMeter]:
    """Read those GPUs until the block ends; ``problem`` says why none could be read."""
    meter = GpuMeter(devices)
    program = shutil.which(PROGRAM, path=env.get("PATH")) if devices else None
    if program is None:
        meter.problem = f"there is no {PROGRAM} on this host" if devices else None
        yield meter
        return
    argv = [program, "--query-gpu=uuid,power.draw,memory.used", f"--id={','.join(devices)}"]
    argv += ["--format=csv,noheader,nounits", f"--loop-ms={round(PERIOD_SECONDS * 1000)}"]
    try:
        process, terminal = _started(argv, env)
    except OSError as error:
        meter.problem = f"{PROGRAM} cannot be started: {error.strerror}"
    if meter.problem is not None:
        yield meter
        return
    with process:
        thread = threading.Thread(target=_read, args=(terminal, meter), daemon=True)
        thread.start()
        try:
            yield meter
        finally:
            process.kill()
            thread.join(5.0)
    if not meter.readings and meter.problem is None:
        meter.problem = f"{PROGRAM} told nothing"


def _started(argv: Sequence[str], env: Mapping[str, str]) -> tuple[subprocess.Popen[bytes], int]:
    """
    The program and the terminal that it writes to.

    It may keep back lines that go to a pipe; to a terminal it writes each at once.
    """
    terminal, its_end = os.openpty()
    try:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=its_end, stderr=its_end, env=dict(env)
        )
    except OSError:
        os.close(terminal)
        raise
    finally:
        os.close(its_end)
    return process, terminal


def _read(terminal: int, meter: GpuMeter) -> None:
    """Take lines until the program has ended and all of them are read."""
    kept = b""
    with open(terminal, "rb", buffering=0) as file, contextlib.suppress(OSError):  # its end: EIO
        while data := file.read(1 << 16):
            now = time.perf_counter()
            *lines, kept = (kept + data).split(b"\n")
            for line in (raw.decode(errors="replace").strip() for raw in lines):
                before = len(meter.readings)
                meter.line(line, now)
                if len(meter.readings) == before and line:
                    meter.problem = f"{PROGRAM} said: {line[:200]}"
