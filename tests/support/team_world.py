"""A team whose members see little, and whose critic may see all: a PettingZoo env."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.utils import seeding
from pettingzoo import ParallelEnv

LENGTH = 4
"""Steps of an episode."""


class Team(ParallelEnv):
    """Each agent sees a bit in the first step, and is to choose it in every step.

    The reward of all is the share of agents that do, plus a luck of -2 or 2 that holds for the whole episode.
    The key ``team`` has both bits, the luck and the step; nobody else is told of the luck.
    """

    metadata: ClassVar[dict[str, Any]] = {"name": "team_v0", "render_modes": []}
    render_mode = None
    is_open = True
    """Whether observations have the key ``team``, and the reward has the luck."""

    def __init__(self) -> None:
        self.possible_agents, self.agents = ["left", "right"], []
        parts = {"own": spaces.Box(0, 1, (2,), np.float32)}
        if self.is_open:
            parts["team"] = spaces.Box(-2, LENGTH, (4,), np.float32)
        self._space = spaces.Dict(parts)
        self._actions = {agent: spaces.Discrete(2) for agent in self.possible_agents}

    def observation_space(self, agent: str) -> gym.Space:
        return self._space

    def action_space(self, agent: str) -> gym.Space:
        return self._actions[agent]

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict, dict]:
        if seed is not None:
            self.rng = seeding.np_random(seed)[0]
        self.agents, self.age = list(self.possible_agents), 0
        self.bits = self.rng.integers(2, size=2)
        self.luck = 2 * int(self.rng.choice([-1, 1])) * self.is_open
        return self._observe(), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> tuple[dict, dict, dict, dict, dict]:
        acting = self.agents
        right = float(np.mean([actions[agent] == bit for agent, bit in zip(acting, self.bits)]))
        self.age += 1
        over = self.age == LENGTH
        found = self._observe()
        self.agents = [] if over else acting
        flags = dict.fromkeys(acting, over), dict.fromkeys(acting, False)
        return found, dict.fromkeys(acting, right + self.luck), *flags, {agent: {} for agent in acting}

    def _observe(self) -> dict[str, dict[str, np.ndarray]]:
        found = {}
        for agent, bit in zip(self.possible_agents, self.bits):
            found[agent] = {"own": np.eye(2, dtype=np.float32)[bit] * (self.age == 0)}
            if self.is_open:
                found[agent]["team"] = np.array([*self.bits, self.luck, self.age], np.float32)
        return found


class Alone(Team):
    """Without the key and without luck."""

    is_open = False
