"""
Bar: host_memory within 10 % of STREAM compiled from C, side by side in one run.

Compiles a STREAM-style program with gcc in a scratch folder (its arrays on huge pages,
as ours), then alternates it with the probe, so that both see the same noise. Compares
the best pass of each, STREAM's own figure, over several rounds.

    python benchmarks/host_memory_bar.py [--threads N] [--rounds N]
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from topobench.probes.host_memory import STREAMS, HostMemory, array_bytes
from topobench.probes.protocol import WorkerContext
from topobench.reading import Binding

BAR = 0.90
PROGRAM = r"""
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}

static double *pages(size_t bytes) {
    double *p = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    madvise(p, bytes, MADV_HUGEPAGE);
    return p;
}

int main(int argc, char **argv) {
    size_t bytes = strtoull(argv[1], 0, 10);
    long n = bytes / sizeof(double);
    double *a = pages(bytes), *b = pages(bytes), *c = pages(bytes), copy = 1e9, triad = 1e9;
#pragma omp parallel for
    for (long j = 0; j < n; j++) { a[j] = 1; b[j] = 2 + j % 7; c[j] = j % 3; }
    for (int k = 0; k < 40; k++) {
        double t = seconds();
#pragma omp parallel for
        for (long j = 0; j < n; j++) c[j] = a[j];
        t = seconds() - t;
        if (k && t < copy) copy = t;
        t = seconds();
#pragma omp parallel for
        for (long j = 0; j < n; j++) a[j] = b[j] + 3.0 * c[j];
        t = seconds() - t;
        if (k && t < triad) triad = t;
    }
    printf("%.0f %.0f\n", 2.0 * bytes / copy, 3.0 * bytes / triad);
    return a[n / 2] == 0;
}
"""


def compile_stream(folder: Path) -> Path:
    """Compile the program; exits with a word where there is no gcc."""
    gcc = shutil.which("gcc")
    if gcc is None:
        sys.exit("gcc is not on PATH")
    source, program = folder / "stream.c", folder / "stream"
    source.write_text(PROGRAM)
    subprocess.run([gcc, "-O3", "-march=native", "-fopenmp", source, "-o", program], check=True)
    return program


def probed(op: str, threads: int) -> float:
    """Best pass of the probe, in bytes per second."""
    context = WorkerContext(
        binding=Binding("none", threads=threads),
        devices=(),
        rank=0,
        ranks=1,
        publish=lambda address: None,
        wait=str,
        interface=None,
        deadline_seconds=60.0,
        buffer_ready=lambda address, size: None,
        note=lambda key, value: None,
        warn=print,
    )
    (reading,) = HostMemory(op=op).measure(context)
    return reading.summary.maximum


def main() -> int:
    """Print both figures; 0 if the bar holds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    best: dict[tuple[str, str], float] = {}
    size = array_bytes(None, threads=options.threads, arrays=3)
    with tempfile.TemporaryDirectory() as folder:
        program = compile_stream(Path(folder))
        for _ in range(options.rounds):
            environment = {**os.environ, "OMP_NUM_THREADS": str(options.threads)}
            out = subprocess.run(
                [program, str(size)], env=environment, capture_output=True, text=True, check=True
            )
            stream = dict(zip(STREAMS, map(float, out.stdout.split()), strict=True))
            for op in STREAMS:
                for who, value in (("C", stream[op]), ("probe", probed(op, options.threads))):
                    best[op, who] = max(best.get((op, who), 0.0), value)
    held = True
    for op in STREAMS:
        ratio = best[op, "probe"] / best[op, "C"]
        held &= ratio >= BAR
        print(
            f"{op:6} {options.threads} threads, {size >> 20} MiB arrays: "
            f"probe {best[op, 'probe'] / 1e9:.1f} GB/s, C {best[op, 'C'] / 1e9:.1f} GB/s, "
            f"ratio {ratio:.3f} (bar {BAR})"
        )
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
