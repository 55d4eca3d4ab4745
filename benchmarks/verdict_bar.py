"""
How often `topobench check` is wrong, and how soon it is right, on simulated fleets.

Noise: each case of each host has a permanent offset of standard deviation 0.5 %, and each
night adds 0.5 % with the tails of Student's t with 4 degrees of freedom; 60 cases, 32 hosts, 60
nights. Bars:

- 1,000 null nights of 32 hosts: no ``fail``, at most one false ``degraded`` in 1,000 host-nights;
- a host that is 3 % slow from night 45 on is ``degraded`` or worse by night 52 in 95 % of seeds;
- one GPU of 8 that is 10 % slow is named on night one in 95 % of seeds, and a GPU of 8 equal
  ones in 1 % at most;
- a link at half its width in a class of 4 hosts is ``fail`` the same night.

The null nights are run again with 0.7 % and 0.7 %, without a bar. Run ``python -m
benchmarks.verdict_bar`` from the root of the repository; the exit code is 1 when a bar is missed.
"""

from __future__ import annotations

import argparse
import math
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from topobench import policy as policies
from topobench.topology import Cpus, Gpu, Known, Machine, PciDevice, PciLink, Topology
from topobench.verdict import judge
from topobench.verdict_words import Evidence, HostEvidence, Judgement, Level, Track

HOSTS, CASES, NIGHTS = 32, 60, 60
BASE = 50e9
POLICY = policies.default()
BAD = (Level.DEGRADED, Level.FAIL)

Values = NDArray[np.float64]


def tracks(hosts: int, cases: int, gpus: int = 0) -> tuple[Track, ...]:
    """One metric of each case; of each GPU where there are any."""
    devices: list[tuple[str, ...]] = [(f"GPU-{g}",) for g in range(gpus)] or [()]
    return tuple(
        Track(h, h * cases + c, f"case {c}", d, "bandwidth_bytes_per_second", "B/s", 1, f"case {c}")
        for h in range(hosts)
        for c in range(cases)
        for d in devices
    )


def noise(
    generator: np.random.Generator, rows: int, nights: int, host: float, night: float
) -> Values:
    """Bandwidths: permanent offsets and nights with heavy tails, as standard deviations."""
    permanent = host * generator.standard_normal((rows, 1))
    nightly = night / math.sqrt(2) * generator.standard_t(4, (rows, nights))  # sd of t4: sqrt(2)
    values: Values = BASE * np.exp(permanent + nightly)
    return values


def evidence(made: tuple[Track, ...], values: Values, hosts: int) -> Evidence:
    """What a fleet of alike hosts leaves in the store."""
    days = np.arange(20_000, 20_000 + values.shape[1])
    return Evidence(
        as_of="2026-11-29T06:00:00.000000Z",
        as_of_day=int(days[-1]),
        hosts=tuple(
            HostEvidence(f"h{n}", f"h{n}", "class", None, seen_day=int(days[-1]))
            for n in range(hosts)
        ),
        tracks=made,
        days=days,
        values=values,
        stretches=np.zeros(values.shape, dtype=np.intp),
    )


def null_nights(nights: int, host: float, night: float, seed: int = 1) -> Counter[Level]:
    """Levels of hosts over consecutive nights on which nothing is wrong."""
    generator = np.random.default_rng(seed)
    made = tracks(HOSTS, CASES)
    values = noise(generator, len(made), NIGHTS + nights - 1, host, night)
    found: Counter[Level] = Counter()
    for last in range(nights):
        window = values[:, last : last + NIGHTS]
        found.update(s.level for s in judge(evidence(made, window, HOSTS), POLICY).subjects)
    return found


def slow_host(seed: int, first: int = 45, last: int = 52, slower: float = 0.03) -> int | None:
    """The night (from 1) on which a host that became slow is found; None if it is not."""
    generator = np.random.default_rng(seed)
    made = tracks(HOSTS, CASES)
    values = noise(generator, len(made), NIGHTS, 0.005, 0.005)
    guilty = int(generator.integers(HOSTS))
    values[guilty * CASES : (guilty + 1) * CASES, first - 1 :] *= 1 - slower
    for night in range(first, last + 1):
        found = judge(evidence(made, values[:, :night], HOSTS), POLICY)
        level = next(s.level for s in found.subjects if s.host == f"h{guilty}")
        if level in BAD:
            return night
    return None


def named_gpus(seed: int, slower: float, cases: int = 7) -> set[str]:
    """GPUs of an 8-GPU host that are named on its first night; GPU-5 is the slow one."""
    generator = np.random.default_rng(seed)
    made = tracks(1, cases, gpus=8)
    values = noise(generator, len(made), 1, 0.005, 0.005)
    values[[t.devices == ("GPU-5",) for t in made]] *= 1 - slower
    found = judge(evidence(made, values, 1), POLICY)
    return {s.device for s in found.subjects if s.device is not None}


def halved_link() -> Judgement:
    """Four hosts of one GPU each on their first night; the link of the third has 8 lanes."""
    made = tracks(4, CASES)
    values = noise(np.random.default_rng(1), len(made), 1, 0.005, 0.005)
    whole = evidence(made, values, 4)
    hosts = [replace(h, topology=_wiring(8 if n == 2 else 16)) for n, h in enumerate(whole.hosts)]
    return judge(replace(whole, hosts=tuple(hosts)), POLICY)


def _wiring(width: int) -> Topology:
    link = PciLink(32.0, width, 32.0, 16, 63e9 * width / 16, 63e9)
    gpu = Gpu(0, "GPU-0", "0000:01:00.0", "H200", None, Known(0, "nvml"))
    device = PciDevice(
        *("0000:01:00.0", "0x030200", "0x10de", "0x2335", "0000:00:01.0", "endpoint"),
        Known(0, "sysfs"),
        link,
    )
    return Topology(
        "2026-11-29T01:00:00.000000Z", "/", "none", "full", Machine(), Cpus(),
        gpus=(gpu,), pci=(device,),
    )  # fmt: skip


def main() -> int:
    """Print each figure beside its bar."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[1])
    parser.add_argument("--nights", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=100)
    given = parser.parse_args()
    bars: tuple[Callable[[], bool], ...] = (
        lambda: _null_bar(given.nights),
        lambda: _slow_bar(given.seeds),
        lambda: _gpu_bar(given.seeds),
        _link_bar,
    )
    held = []
    for bar in bars:
        started = time.perf_counter()
        held.append(bar())
        print(f"    ({time.perf_counter() - started:.0f} s)", flush=True)
    _null_report(given.nights, 0.007, seed=2)
    return int(not all(held))


def _null_bar(nights: int) -> bool:
    return _null_report(nights, 0.005, seed=1)


def _null_report(nights: int, sd: float, seed: int) -> bool:
    found = null_nights(nights, sd, sd, seed)
    share = 1000 * found[Level.DEGRADED] / (nights * HOSTS)
    told = ", ".join(f"{n} {level}" for level, n in sorted(found.items()))
    print(f"{nights} null nights of {HOSTS} hosts at {100 * sd:.1f} %: {told}")
    print(f"    false degraded in 1,000 host-nights: {share:.3f} (bar 1); fail: bar 0")
    return share <= 1 and not found[Level.FAIL]


def _slow_bar(seeds: int) -> bool:
    nights = [slow_host(seed) for seed in range(seeds)]
    share = sum(n is not None for n in nights) / seeds
    when = Counter(n for n in nights if n is not None)
    print(f"3 % slow from night 45: found by night 52 in {100 * share:.0f} % of {seeds} (bar 95)")
    print(f"    nights: {dict(sorted(when.items()))}")
    return share >= 0.95


def _gpu_bar(seeds: int) -> bool:
    hits = sum("GPU-5" in named_gpus(seed, 0.10) for seed in range(seeds)) / seeds
    trials = 10 * seeds
    false = sum(bool(named_gpus(1000 + seed, 0.0)) for seed in range(trials)) / trials
    print(f"a GPU of 8 10 % slow: named on night one in {100 * hits:.0f} % (bar 95)")
    print(f"    any of 8 equal GPUs named: {100 * false:.2f} % of {trials} hosts (bar 1)")
    return hits >= 0.95 and false <= 0.01


def _link_bar() -> bool:
    levels = {s.host: s.level for s in halved_link().subjects if s.device is None}
    print(f"half a link in a class of 4: {', '.join(f'{k} {v}' for k, v in levels.items())}")
    return levels["h2"] is Level.FAIL and Level.FAIL not in [levels[h] for h in ("h0", "h1", "h3")]


if __name__ == "__main__":
    raise SystemExit(main())
