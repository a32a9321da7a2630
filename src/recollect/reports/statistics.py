"""Statistics over seeds: the interquartile mean and its bootstrap interval, curves on a common grid.

Agarwal et al. 2021, *Deep Reinforcement Learning at the Edge of the Statistical Precipice*: with few seeds
the interquartile mean (IQM) is robust and efficient, and a percentile bootstrap that resamples runs within
each task (stratified) gives its confidence interval.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import numpy as np

Statistic = Callable[[np.ndarray], np.ndarray]
"""Reduces the first axis: scores [N, ...] -> [...]."""


def iqm(scores: np.ndarray | Sequence[float]) -> np.ndarray:
    """The mean of the middle half: scores [N, ...] -> [...].

    A quarter of the scores, rounded down, is dropped at each end; for up to three scores it is the mean.
    """
    ordered = np.sort(np.asarray(scores, dtype=np.float64), axis=0)
    drop = len(ordered) // 4
    return ordered[drop : len(ordered) - drop].mean(axis=0)


def bootstrap_interval(
    scores: np.ndarray | Sequence[float],
    *,
    strata: Sequence[Hashable] | None = None,
    statistic: Statistic = iqm,
    level: float = 0.95,
    samples: int = 2000,
    seed: int = 0,
) -> tuple[np.ndarray, np.ndarray]:
    """The percentile bootstrap interval of a statistic of scores [N, ...]: low [...], high [...].

    Args:
        scores: one score or curve per run.
        strata: the stratum of each run, such as its task; runs are resampled within it. None: one stratum.
        statistic: reduces the first axis.
        level: confidence level.
        samples: number of resamplings.
        seed: seed of the resampling.
    """
    values = np.asarray(scores, dtype=np.float64)
    if len(values) == 0:
        raise ValueError("bootstrap_interval: there are no scores")
    labels = list(strata) if strata is not None else [None] * len(values)
    if len(labels) != len(values):
        raise ValueError(f"bootstrap_interval: {len(values)} scores, but {len(labels)} strata")
    rng = np.random.default_rng(seed)
    picks = np.empty((samples, len(values)), dtype=np.int64)
    for label in dict.fromkeys(labels):
        members = np.array([i for i, other in enumerate(labels) if other == label])
        picks[:, members] = rng.choice(members, size=(samples, len(members)))
    # One resampling at a time, because all curves at once may not fit into memory.
    drawn = np.stack([statistic(values[pick]) for pick in picks])
    tail = (1 - level) / 2
    low, high = np.quantile(drawn, [tail, 1 - tail], axis=0)
    return low, high


@dataclass(frozen=True, slots=True)
class Curve:
    """One metric over one run, G points ordered by steps."""

    steps: np.ndarray
    """[G]"""
    values: np.ndarray
    """[G], all finite."""


@dataclass(frozen=True, slots=True)
class Band:
    """The aggregate of several curves on a common grid of G points."""

    steps: np.ndarray
    """[G]"""
    middle: np.ndarray
    """[G] the interquartile mean over runs."""
    low: np.ndarray
    """[G] the 95% bootstrap interval; equal to ``middle`` for a single run."""
    high: np.ndarray
    """[G]"""


def common_band(curves: Sequence[Curve], *, points: int = 200, samples: int = 500) -> Band | None:
    """The interquartile mean of curves, interpolated linearly to a common grid of steps.

    The grid covers the steps that all curves share, so nothing is extrapolated. None if they do not overlap.
    """
    curves = [curve for curve in curves if len(curve.steps)]
    if not curves:
        return None
    start = max(float(curve.steps[0]) for curve in curves)
    end = min(float(curve.steps[-1]) for curve in curves)
    if end < start:
        return None
    grid = np.linspace(start, end, points) if end > start else np.array([start])
    values = np.stack([np.interp(grid, curve.steps, curve.values) for curve in curves])
    middle = iqm(values)
    if len(values) == 1:
        return Band(grid, middle, middle, middle)
    low, high = bootstrap_interval(values, samples=samples)
    return Band(grid, middle, low, high)
