"""Seeded noise of three shapes, for simulations that ask how often an interval is right."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

SHAPES = ("normal", "lognormal", "t4")
"""Calm, skewed, and heavy-tailed."""


def noise(shape: str, generator: np.random.Generator, size: tuple[int, ...]) -> NDArray[np.float64]:
    """Noise whose median is 0 and whose spread is about 1."""
    if shape == "normal":
        return generator.standard_normal(size)
    if shape == "lognormal":
        skewed: NDArray[np.float64] = (np.exp(0.75 * generator.standard_normal(size)) - 1) / 0.75
        return skewed
    return generator.standard_t(4, size)


def process_medians(
    shape: str, generator: np.random.Generator, size: tuple[int, ...], *, samples: int = 21
) -> NDArray[np.float64]:
    """
    Medians of processes: 1 % between them, 0.3 % between the samples of each.

    Within-process noise is symmetric, so that the truth is the median of the process levels.
    """
    levels = 1 + 0.01 * noise(shape, generator, size)
    inside = 0.003 * generator.standard_normal((*size, samples))
    medians: NDArray[np.float64] = 100 * levels * np.exp(np.median(inside, axis=-1))
    return medians
