"""
What comparisons are able to see, and what one costs.

Prints the table of minimum detectable effects of docs/statistics.md. Bar: 3 ms of CPU for a
comparison of 6 against 6 processes, all its caches warm. Run ``python -m
benchmarks.stats_bar`` from the root of the repository; the exit code is 1 when the bar is
missed.
"""

from __future__ import annotations

import random
import time
from typing import Any

from topobench.comparison import compare, detectable_centre, detectable_shift
from topobench.reading import Better, CiLevel

BAR_SECONDS = 0.003
SIZES = (6, 7, 8, 10, 12, 15, 20, 30, 60)
REPEATS = 300


def main() -> int:
    """Print the table and the cost of a comparison."""
    print("in standard deviations between processes (or of block effects), power 0.9")
    print("   n    95 %    99 %   paired 95 %")
    for n in SIZES:
        shifts = (detectable_shift(n, n), detectable_shift(n, n, 0.99), detectable_centre(n))
        print(f"{n:4d}" + "".join("       -" if s is None else f"{s:8.2f}" for s in shifts))
    seconds = comparison_seconds()
    print(f"one comparison of 6 against 6: {1e3 * seconds:.2f} ms; bar {1e3 * BAR_SECONDS} ms")
    return int(seconds > BAR_SECONDS)


def comparison_seconds() -> float:
    """CPU time of one comparison."""
    generator = random.Random(1)
    groups = [[generator.gauss(100, 1) for _ in range(6)] for _ in range(2 * REPEATS)]
    rule: dict[str, Any] = {"tolerance": 0.03, "better": Better.HIGHER, "level": CiLevel.BETWEEN}
    compare(*groups[:2], **rule)
    started = time.process_time()
    for a, b in zip(groups[::2], groups[1::2], strict=True):
        compare(a, b, **rule)
    return (time.process_time() - started) / REPEATS


if __name__ == "__main__":
    raise SystemExit(main())
