"""Sets of tokens, drawn at random, and a small world that shows them."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from tests.support.helpers import ScriptedEnv

TOKENS, FEATURES, LARGEST = 12, 5, 9
"""M, F and the largest value of the small world."""


def token_space(tokens: int = TOKENS, features: int = FEATURES, largest: int = LARGEST) -> spaces.Box:
    """The Box of such sets."""
    high = np.tile(np.array([255, features - 1, largest], np.uint8), (tokens, 1))
    return spaces.Box(np.zeros_like(high), high, dtype=np.uint8)


def byte(x: Any, y: Any) -> Any:
    """The coordinate byte of a cell."""
    return x * 16 + y


def draw(space: spaces.Box, rng: np.random.Generator, pads: float = 0.4) -> np.ndarray:
    """One observation: tokens anywhere, and padding in between."""
    count = space.shape[0]
    obs = rng.integers(0, space.high.astype(int) + 1, (count, 3))
    obs[:, 0] = byte(*rng.integers(0, 11, (2, count)))
    obs[rng.random(count) < pads] = (255, 0, 0)
    return obs.astype(np.uint8)


def batch(rows: int, space: spaces.Box | None = None, seed: int = 0, pads: float = 0.4) -> Tensor:
    """Observations [rows, M, 3]."""
    rng = np.random.default_rng(seed)
    return torch.from_numpy(np.stack([draw(space or token_space(), rng, pads) for _ in range(rows)]))


class TokenEnv(ScriptedEnv):
    """Random tokens to be remembered, in episodes of scripted lengths and ends."""

    def __init__(self, action_space: gym.Space | None = None):
        super().__init__(action_space)
        self.tokens = token_space()
        self.observation_space = self.tokens

    def _observe(self) -> Any:
        return draw(self.tokens, self.np_random)
