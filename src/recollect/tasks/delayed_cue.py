"""Delayed cue: see one of a few cues, wait, name it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box, Discrete
from torch import Tensor

from recollect.config.tasks import DelayedCueOptions
from recollect.tasks import random
from recollect.tasks.base import Task


class DelayedCue(Task):
    """An episode has ``horizon + 2`` steps.

    * t = 0: the cue, drawn uniformly from ``cues`` kinds.
    * t = 1 .. horizon: blanks.
    * t = horizon + 1: the query. The action is the answer: +1 if it names the cue, else 0, and the episode
      terminates. All other actions have no effect, all other rewards are 0.

    Observation, Box [cues + 1] of 0 and 1: the cue one-hot, zero except at t = 0; then the query flag. The
    time is not observed. Action, Discrete(cues).

    The best return is 1 with memory, and 1 / cues without, by guessing.
    """

    Options = DelayedCueOptions

    max_return = 1.0

    cue: Tensor

    def __init__(self, num_envs: int, device: torch.device | str = "cpu", **options: Any) -> None:
        self.cues, self.horizon = DelayedCueOptions(**options).numbers()
        observed = Box(0.0, 1.0, (self.cues + 1,), np.float32)
        super().__init__(num_envs, device, observed, Discrete(self.cues), self.horizon + 2)
        self.memoryless_return = 1.0 / self.cues
        # The observation at each age: 0 the cue, 1 a blank, 2 the query.
        scene = torch.ones(self.max_episode_steps + 1, dtype=torch.int64, device=self.device)
        scene[0], scene[-2] = 0, 2
        self._scene = scene
        sights = torch.zeros(3, self.cues, self.cues + 1, device=self.device)
        sights[0, :, :-1] = torch.eye(self.cues)
        sights[2, :, -1] = 1.0
        self._sights = sights.view(3 * self.cues, self.cues + 1)

    def _begin(self, key: Tensor) -> dict[str, Tensor]:
        return {"cue": random.integers(random.bits(key, 0), self.cues)}

    def _advance(self, action: Tensor) -> tuple[Tensor, Tensor]:
        answered = self.age == self._limit
        return (answered & (action == self.cue)).float(), answered

    def _observe(self) -> Tensor:
        scene = self._scene.index_select(0, self.age)
        return self._sights.index_select(0, torch.add(self.cue, scene, alpha=self.cues))

    @staticmethod
    def describe(obs: np.ndarray) -> str:
        """Such as ``cue 1``, ``blank`` or ``query``."""
        if not obs.any():
            return "blank"
        seen = int(obs.argmax())
        return "query" if seen == len(obs) - 1 else f"cue {seen}"
