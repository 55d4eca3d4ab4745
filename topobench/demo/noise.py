"""
How measurements of the synthetic fleet vary: seeded, pure, numpy.

Speeds are relative: 1 is a typical host. A host keeps its own deviation for ever, has
another one every night, with tails that normal noise does not have, and a small one in
every process and sample.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from topobench import stats
from topobench.reading import Summary

Floats = npt.NDArray[np.float64]

T4_SD = 2**0.5
"""Standard deviation of Student's t with four degrees of freedom."""
SLOWEST, FASTEST = 0.5, 1.5
"""No single night takes a host further than that from its mean."""
SAMPLES = 20


@dataclass(frozen=True, slots=True)
class Noise:
    """
    Standard deviations, as shares of the speed.

    Args:
        host: Between hosts, for ever.
        night: Between nights of a host, by Student's t with four degrees of freedom.
        process: Between processes of one night.
        sample: Between samples of one process.
    """

    host: float = 0.005
    night: float = 0.005
    process: float = 0.001
    sample: float = 0.003


def speeds(seed: Sequence[int], nights: int, hosts: int, series: int, noise: Noise) -> Floats:
    """Speeds by night, host and series, before anything is planted."""
    random = np.random.default_rng(seed)
    lasting = random.normal(0.0, noise.host, (hosts, series))
    nightly = random.standard_t(4, (nights, hosts, series)) * (noise.night / T4_SD)
    return np.clip(1.0 + lasting + nightly, SLOWEST, FASTEST)


def samples(random: np.random.Generator, middle: Floats, noise: Noise) -> Floats:
    """Speeds of the samples of one process each: (processes, :data:`SAMPLES`)."""
    process = middle * (1.0 + random.normal(0.0, noise.process, middle.shape))
    spread = random.normal(0.0, noise.sample, (len(middle), SAMPLES))
    return np.asarray(process[:, None] * (1.0 + spread))


def summaries(values: Floats) -> list[Summary]:
    """What ``stats.summarise`` says of each row, for all rows at once."""
    ordered = np.sort(values, axis=1)
    count = values.shape[1]
    ranks = stats.interval_ranks(count)
    assert ranks is not None
    median = np.median(ordered, axis=1)
    columns = {
        "median": median,
        "minimum": ordered[:, 0],
        "maximum": ordered[:, -1],
        "mad": np.median(np.abs(values - median[:, None]), axis=1),
        "ci_lo": ordered[:, ranks[0] - 1],
        "ci_hi": ordered[:, ranks[1] - 1],
        "p90": ordered[:, -(-9 * count // 10) - 1],
    }
    rows = zip(*(c.tolist() for c in columns.values()), strict=True)
    names = tuple(columns)
    return [
        Summary(n=count, stop_reason="converged", **dict(zip(names, row, strict=True)))
        for row in rows
    ]
