"""The settings of R2D2 beside those that all replay algorithms share."""

from __future__ import annotations

from dataclasses import dataclass

from recollect.config.replay import ReplayConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class R2D2Config(ReplayConfig):
    """Settings of R2D2. docs/tuning.md explains the defaults."""

    learning_rate: float = 5e-4
    """Learning rate (step size of the optimiser)."""
    replay_ratio: float = 8.0
    """Steps learned from for each step collected; every optimiser step counts as batch * chunk steps."""
    target_every: int | None = None
    """Optimiser steps between two copies of the weights to the target network; None: ``target_rate``."""
    target_rate: float | None = 0.01
    """If set, the target network moves by this share towards the weights after every optimiser step. Needs
    target_every=None."""
    priority_exponent: float = 0.6
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
