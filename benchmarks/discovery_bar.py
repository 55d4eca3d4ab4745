"""
How long discovery takes on a host of 256 CPUs, 8 GPUs, 8 ports and 8 disks.

Bar: 150 ms beyond the start of the interpreter, imports included. Run ``python -m
benchmarks.discovery_bar`` from the root of the repository; the exit code is 1 when the bar is
missed. CPU time of child processes counts, and the least of many, so that a busy machine does
not change the answer.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1] / "tests"
sys.path.insert(0, str(TESTS))

from fake_nvml import FakeNvml, gpu  # noqa: E402
from made_machine import Eight, add_pci, write  # noqa: E402
from topobench.agents.discover import read_nvml  # noqa: E402

BAR_SECONDS = 0.150
CORES, CORES_PER_L3 = 128, 8
DISCOVER = """
import pynvml  # as on a live host; its answers are the capture's
from topobench.agents.discover import discover
assert len(discover({!r}).gpus) == 8
"""


def main() -> int:
    """Discover in fresh interpreters and print the figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=15)
    arguments = parser.parse_args()
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        make_host(Path(folder))
        bare = [cpu_seconds("pass") for _ in range(arguments.times)]
        whole = [cpu_seconds(DISCOVER.format(folder)) for _ in range(arguments.times)]
    seconds = min(whole) - min(bare)
    print(
        f"256 CPUs, 8 GPUs: {seconds * 1e3:.0f} ms of CPU beyond the interpreter's own "
        f"{min(bare) * 1e3:.0f} ms; bar {BAR_SECONDS * 1e3:.0f} ms"
    )
    return int(seconds > BAR_SECONDS)


def cpu_seconds(program: str) -> float:
    """CPU time of an interpreter that runs a program."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", program], check=True, cwd=TESTS.parent)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def make_host(root: Path) -> None:
    """Two packages of 64 cores of two threads, with caches; chipset functions as on real hosts."""
    machine = Eight(root).make()
    for core in range(CORES):
        threads = core, core + CORES
        for cpu in threads:
            _add_cpu(root, cpu, f"{threads[0]},{threads[1]}", core // CORES_PER_L3)
    for number in range(200):
        chipset = ("0x088000", "0x8086", "0x09a2")
        add_pci(root, f"pci0000:fe/0000:fe:{number // 8:02x}.{number % 8}", chipset, link=None)
    answers = [gpu(i, a) for i, a in enumerate(sorted(machine.gpu_addresses))]
    facts = read_nvml(FakeNvml(answers)).to_json()
    write(root, "topobench/nvml.json", json.dumps(facts))


def _add_cpu(root: Path, cpu: int, siblings: str, cluster: int) -> None:
    base = f"sys/devices/system/cpu/cpu{cpu}"
    first = cluster * CORES_PER_L3
    shared = ",".join(f"{n}-{n + CORES_PER_L3 - 1}" for n in (first, first + CORES))
    package = "0-63,128-191" if first < CORES // 2 else "64-127,192-255"
    write(root, f"{base}/topology/core_cpus_list", siblings)
    write(root, f"{base}/topology/die_cpus_list", package)
    write(root, f"{base}/topology/package_cpus_list", package)
    caches = [("1", "Data", "48K"), ("1", "Instruction", "32K"), ("2", "Unified", "2048K")]
    for index, (level, kind, size) in enumerate([*caches, ("3", "Unified", "32768K")]):
        cache = f"{base}/cache/index{index}"
        write(root, f"{cache}/level", level)
        write(root, f"{cache}/type", kind)
        write(root, f"{cache}/size", size)
        write(root, f"{cache}/shared_cpu_list", shared if level == "3" else siblings)


if __name__ == "__main__":
    raise SystemExit(main())
