"""The settings of R2D2 beside those that all replay algorithms share."""

from __future__ import annotations

from dataclasses import dataclass

from recollect.config.replay import ReplayConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class R2D2Config(ReplayConfig):
    """Settings of R2D2. docs/tuning.md explains the defaults."""

    priority_exponent: float = 0.9
    """Sequences are drawn in proportion to their priority, the error of their steps, to this power; 0:
    uniformly."""
    epsilon: float = 0.4
    """Probability of a random action at the start of the run, of the row that explores most."""
    epsilon_end: float = 0.4
    """The same after ``epsilon_decay``, until the end."""
    epsilon_ladder: float = 7.0
    """Row i of N explores with epsilon * epsilon_end^(epsilon_ladder * i / (N - 1)): the first row most, the
    last hardly ever. 0: all rows alike."""
    rescale: bool = True
    """Learn values as h(Q) = sign(Q) (sqrt(|Q| + 1) - 1) + 0.001 Q, for returns of any size."""
