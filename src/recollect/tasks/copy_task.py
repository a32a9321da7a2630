"""Copy: read a few symbols, wait, write them down in the same order."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from recollect.config.tasks import CopyOptions
from recollect.tasks import random
from recollect.tasks.base import Task

SYMBOLS = 8
BLANK, FLAG = SYMBOLS, SYMBOLS + 1
"""What else can be seen."""


class Copy(Task):
    """An episode has ``2 * length + delay`` steps.

    * t = 0 .. length - 1: the symbols, one a step, each one of 8, drawn uniformly and independently.
    * The next ``delay`` steps: blanks.
    * The last ``length`` steps: the output flag. The i-th action under the flag should name the i-th
      symbol: right gives 1 / length, wrong 0. The last one terminates the episode.

    All other actions do nothing, all other rewards are 0. What was answered is not shown.

    Observation, Box [9] of 0 and 1: the symbol one-hot, all zero but while reading; then the output flag,
    which looks the same in all its steps: which symbol is due has to be counted. Action, Discrete(8).

    With memory 1 is reached; without, every answer is a guess: 1/8.
    """

    Options = CopyOptions

    max_return = 1.0
    memoryless_return = 1.0 / SYMBOLS

    sheet: Tensor
    """[B, length + 2]: the symbols, then the constants BLANK and FLAG."""

    def __init__(self, num_envs: int, device: torch.device | str = "cpu", **options: Any) -> None:
        self.length, self.delay = CopyOptions(**options).numbers()
        super().__init__(
            num_envs,
            device,
            observation_space=gym.spaces.Box(0.0, 1.0, (SYMBOLS + 1,), np.float32),
            action_space=gym.spaces.Discrete(SYMBOLS),
            max_episode_steps=2 * self.length + self.delay,
            time_limit=False,
        )
        self.horizon = self.length + self.delay  # from seeing a symbol to naming it
        self._lanes = torch.arange(self.length, device=self.device)
        self._extra = torch.tensor([BLANK, FLAG], device=self.device).expand(num_envs, 2)
        self._share = random.constant(1.0 / self.length)
        # The columns of the sheet to show at each age, and to compare the answer with after it: a blank
        # is never answered.
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
