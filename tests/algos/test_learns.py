"""Both algorithms learn, with and without memory, with discrete and with continuous actions.

The world shows a target and pays for actions that meet it, in episodes of five steps. Where memory is
asked for, only the first step shows it, and whoever forgets it earns what guessing earns.
"""

from __future__ import annotations

import itertools
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces as gym_spaces
from torch import Tensor

import recollect as rc
from recollect.base.types import Step

LENGTH, KINDS = 5, 4
STEPS = {"ppo": 12_000, "impala": 30_000}
"""IMPALA sees every step once, PPO four times."""


class Targets:
    """Rows with targets: one of four kinds, or a number between -1 and 1. A perfect step earns 1."""

    def __init__(self, num_envs: int, *, discrete: bool, hidden: bool):
        self.num_envs, self.agents, self.device = num_envs, 1, torch.device("cpu")
        self.discrete, self.hidden = discrete, hidden
        width = KINDS if discrete else 1
        self.observation_space: gym.Space = gym_spaces.Box(-2.0, 2.0, (width,), np.float32)
        box = gym_spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.action_space: gym.Space = gym_spaces.Discrete(KINDS) if discrete else box

    def reset(self, seed: int) -> Tensor:
        self.generator = torch.Generator().manual_seed(seed)
        self.age = torch.arange(self.num_envs) % LENGTH  # rows end at different times
        self.target = self._draw()
        return self._seen()

    def step(self, action: Tensor) -> Step:
        if self.discrete:
            reward = (action == self.target).float()
        else:
            reward = 1 - 2 * (action.squeeze(1) - self.target).abs()
        self.age = self.age + 1
        ended = self.age == LENGTH
        final = self._seen()
        self.age = torch.where(ended, 0, self.age)
        self.target = torch.where(ended, self._draw(), self.target)
        never = torch.zeros_like(ended)
        return Step(self._seen(), ended, reward, ended, never, final, ~never)

    def close(self) -> None:
        pass

    def _draw(self) -> Tensor:
        if self.discrete:
            return torch.randint(KINDS, (self.num_envs,), generator=self.generator)
        return torch.rand(self.num_envs, generator=self.generator) * 2 - 1

    def _seen(self) -> Tensor:
        shown = torch.nn.functional.one_hot(self.target, KINDS) if self.discrete else self.target[:, None]
        return torch.where((self.age > 0)[:, None] & self.hidden, 0.0, shown.float())


def earned(algo: str, *, discrete: bool, hidden: bool, core: str) -> float:
    """The mean return of the last 100 episodes, of at most 5."""
    env = Targets(16, discrete=discrete, hidden=hidden)
    small = {"core": rc.LSTMConfig(hidden=32) if core == "lstm" else core, "rollout": 20, "chunk": 20}
    mode = {"recurrent_mode": "none"} if core == "none" else {}
    settings = {"encoder": rc.EncoderConfig(hidden=(32,)), "gamma": 0.5, "learning_rate": 5e-3, "threads": 1}
    agent = rc.train(env, steps=STEPS[algo], algo=algo, progress=False, **small | mode | settings)
    return agent.history.rows[-1]["return"]


def eight() -> list[Any]:
    """Every combination. Four are slow; in the other four any two of the choices meet."""
    found = []
    for core, discrete, algo in itertools.product(("none", "lstm"), (True, False), ("ppo", "impala")):
        is_default = (core == "lstm") ^ discrete ^ (algo == "ppo")
        name = f"{core}-{'discrete' if discrete else 'continuous'}-{algo}"
        marks = [] if is_default else [pytest.mark.slow]
        found.append(pytest.param(algo, core, discrete, id=name, marks=marks))
    return found


@pytest.mark.parametrize(("algo", "core", "discrete"), eight())
def test_all_eight_learn(algo, core, discrete):
    """S000-17: towards the optimum of 5, of which a number that is met with noise costs a part."""
    assert earned(algo, discrete=discrete, hidden=core == "lstm", core=core) > (4.0 if discrete else 3.2)


@pytest.mark.parametrize("algo", ["ppo", "impala"])
@pytest.mark.parametrize("discrete", [True, False], ids=["discrete", "continuous"])
def test_without_memory_what_is_hidden_stays_so(algo, discrete):
    """S000-17: the control. One of five steps shows the target; guessing earns 1/4 or 0 at the others."""
    assert earned(algo, discrete=discrete, hidden=True, core="none") < 2.6
