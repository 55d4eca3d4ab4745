"""
What watching a host costs: CPU time of the reading thread, and the time before and after.

Reads the GPUs of this host; without any it tells the cost of the host's own counters.

    python benchmarks/conditions_cost.py [--seconds S] [--period S]
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

from topobench.agents.conditions.monitor import PERIOD_SECONDS, Monitor
from topobench.agents.discover import discover
from topobench.reading import Arm, Binding, Case, Cell


def cost(gpus: tuple[str, ...], seconds: float, period: float) -> dict[str, Any]:
    """One watched run in which nothing happens."""
    watching = Monitor(sweep="none", period_seconds=period)
    cell = Cell("c", Case("none", 1, {}), "h", Arm(Binding("none")), gpus)
    with watching.watch(cell):
        pass  # NVML starts, and what a GPU never tells is found out
    began, spent = time.monotonic(), time.process_time()
    with watching.watch(cell) as found:
        time.sleep(seconds)
    around = time.monotonic() - began - found["monitor"]["seconds"]
    watching.close()
    return {
        "gpus": len(gpus),
        "before_and_after_seconds": round(around, 6),
        "process_cpu_seconds": round(time.process_time() - spent, 6),
        **found["monitor"],
    }


def main() -> None:
    """Print one JSON line for no GPU, one GPU, all GPUs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--period", type=float, default=PERIOD_SECONDS)
    given = parser.parse_args()
    found = tuple(g.key for g in discover().gpus if g.state == "ok" and not g.is_slice)
    for count in sorted({0, min(1, len(found)), len(found)}):
        print(json.dumps(cost(found[:count], given.seconds, given.period)))


if __name__ == "__main__":
    main()
