"""Copy: read a few symbols, wait, write them in the same order."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box, Discrete
from torch import Tensor

from recollect.config.tasks import CopyOptions
from recollect.tasks import random
from recollect.tasks.base import Task

SYMBOLS = 8
BLANK, FLAG = SYMBOLS, SYMBOLS + 1
"""Indices of the other observations."""


class Copy(Task):
    """An episode has ``2 * length + delay`` steps.

    * t = 0 .. length - 1: the symbols, one a step, each one of 8, drawn uniformly and independently.
    * The next ``delay`` steps: blanks.
    * The last ``length`` steps: the output flag. The i-th action under the flag should name the i-th
      symbol, for a reward of 1 / length; a wrong answer gives 0. The last one terminates the episode.

    All other actions have no effect, all other rewards are 0. Answers are not observed.

    Observation, Box [9] of 0 and 1: the symbol one-hot, zero except while reading; then the output flag,
    which is the same in all output steps, so that the policy has to count. Action, Discrete(8).

    The best return is 1 with memory, and 1/8 without, by guessing.
    """

    Options = CopyOptions

    max_return = 1.0
    memoryless_return = 1.0 / SYMBOLS

    sheet: Tensor
    """[B, length + 2]: the symbols, then the constants BLANK and FLAG."""

    def __init__(self, num_envs: int, device: torch.device | str = "cpu", **options: Any) -> None:
        self.length, self.delay = CopyOptions(**options).numbers()
        observed = Box(0.0, 1.0, (SYMBOLS + 1,), np.float32)
        super().__init__(num_envs, device, observed, Discrete(SYMBOLS), 2 * self.length + self.delay)
        self.horizon = self.length + self.delay  # from seeing a symbol to naming it
        self._lanes = torch.arange(self.length, device=self.device)
        self._extra = torch.tensor([BLANK, FLAG], device=self.device).expand(num_envs, 2)
        self._share = random.constant(1.0 / self.length)
        # The columns of the sheet to show at each age, and to compare the answer with, which never is BLANK.
        shown = torch.full((self.max_episode_steps + 1, 1), self.length, device=self.device)
        asked = shown.clone()
        shown[: self.length, 0] = self._lanes
        shown[-self.length - 1 : -1] = self.length + 1
        asked[-self.length :, 0] = self._lanes
        self._shown, self._asked = shown, asked
        sights = torch.zeros(SYMBOLS + 2, SYMBOLS + 1, device=self.device)
        sights[:SYMBOLS, :SYMBOLS] = torch.eye(SYMBOLS)
        sights[FLAG, -1] = 1.0
        self._sights = sights

    def _begin(self, key: Tensor) -> dict[str, Tensor]:
        symbols = random.integers(random.bits(key.unsqueeze(1), self._lanes), SYMBOLS)
        return {"sheet": torch.cat((symbols, self._extra), 1)}

    def _advance(self, action: Tensor) -> tuple[Tensor, Tensor]:
        due = self.sheet.gather(1, self._asked.index_select(0, self.age)).squeeze(1)
        return (action == due).float().mul_(self._share), self.age == self._limit

    def _observe(self) -> Tensor:
        seen = self.sheet.gather(1, self._shown.index_select(0, self.age)).squeeze(1)
        return self._sights.index_select(0, seen)

    @staticmethod
    def describe(obs: np.ndarray) -> str:
        """Such as ``symbol 5``, ``blank`` or ``output``."""
        if not obs.any():
            return "blank"
        seen = int(obs.argmax())
        return "output" if seen == SYMBOLS else f"symbol {seen}"
