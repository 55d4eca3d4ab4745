"""Power and memory of GPUs while a server is loaded, by the driver's own nvidia-smi."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

PERIOD_SECONDS = 0.2
_MIB = 1 << 20


@dataclass(slots=True)
class GpuMeter:
    """
    Readings of some GPUs, each (time by ``perf_counter``, UUID, watts, bytes in use).

    Args:
        devices: UUIDs.
    """

    devices: Sequence[str]
    readings: list[tuple[float, str, float, float]] = field(default_factory=list)

    def line(self, text: str, now: float) -> None:
        """Take one line of nvidia-smi; one that is no reading (not supported) is left out."""
        parts = [p.strip() for p in text.split(",")]
        with contextlib.suppress(ValueError, IndexError):
            self.readings.append((now, parts[0], float(parts[1]), float(parts[2]) * _MIB))

    def watts(self, start: float, end: float) -> list[float]:
        """Power of all GPUs together, one value a round of readings, inside a span of time."""
        rounds: list[dict[str, float]] = []
        for at, device, watts, _ in self.readings:
            if start <= at < end:
                if not rounds or device in rounds[-1]:
                    rounds.append({})
                rounds[-1][device] = watts
        return [sum(r.values()) for r in rounds if len(r) == len(self.devices)]

    def peak_bytes(self, start: float, end: float) -> float | None:
        """The most memory in use on one of them; None if nothing was read."""
        return max((m for at, _, _, m in self.readings if start <= at < end), default=None)


@contextlib.contextmanager
def metered(devices: Sequence[str], env: Mapping[str, str]) -> Iterator[GpuMeter]:
    """Read those GPUs until the block ends; no reading at all where that cannot be done."""
    meter = GpuMeter(devices)
    program = shutil.which("nvidia-smi", path=env.get("PATH")) if devices else None
    if program is None:
        yield meter
        return
    argv = [program, "--query-gpu=uuid,power.draw,memory.used", f"--id={','.join(devices)}"]
    argv += ["--format=csv,noheader,nounits", f"--loop-ms={round(PERIOD_SECONDS * 1000)}"]
    with subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, env=dict(env)
    ) as process:
        thread = threading.Thread(target=_read, args=(process, meter), daemon=True)
        thread.start()
        try:
            yield meter
        finally:
            process.kill()
            thread.join(5.0)


def _read(process: subprocess.Popen[str], meter: GpuMeter) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        meter.line(line, time.perf_counter())
