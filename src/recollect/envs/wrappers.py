"""A wrapper that adds the last action and reward to the observation."""

from __future__ import annotations

from dataclasses import replace

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces as gym_spaces
from torch import Tensor
from torch.nn import functional as F

from recollect.base import spaces
from recollect.base.types import Step, Tree
from recollect.envs.contract import (
    Adjustable,
    AsyncStep,
    BatchedEnv,
    Capturable,
    EnvWrapper,
    ReportsTruncation,
    Resumable,
)
from recollect.errors import SpaceError

ACTION, REWARD = spaces.LAST_ACTION, "last_reward"


class LastActionReward(EnvWrapper):
    """Adds ``last_action`` [B, D] and ``last_reward`` [B, 1] to ``obs`` and ``final_obs``.

    Both are zero at the start of an episode. In ``final_obs`` they are those of the step just made. Invalid
    rows keep the values of their last valid step until the next episode starts. An observation that is not a
    Dict becomes one, with the key ``obs``.

    ``last_action`` is one float vector, the encoded parts of the action concatenated. All zeros, the
    encoding of "no action yet", differs from every discrete action:

    ==============  ======================================================
    Discrete        one-hot
    MultiDiscrete   one-hots, concatenated
    MultiBinary     -1 for off, 1 for on
    Box             the values themselves (zero may be an action, too)
    ==============  ======================================================
    """

    def __init__(self, env: BatchedEnv) -> None:
        super().__init__(env, Resumable, Capturable, ReportsTruncation, AsyncStep, Adjustable)
        self.observation_space = space = _with_keys(env.observation_space, env.action_space)
        self._keys = list(space.spaces)
        self._is_dict = isinstance(env.observation_space, gym_spaces.Dict)
        rows = env.num_envs * env.agents
        self._action = torch.zeros(rows, _width(env.action_space), device=env.device)
        self._reward = torch.zeros(rows, 1, device=env.device)
        self._sent: Tensor | None = None

    def describe_row(self, obs: Tree) -> str | None:
        """The observation of row 0 in words, without the added keys."""
        own = (ACTION, REWARD)
        inner = {key: leaf for key, leaf in obs.items() if key not in own} if self._is_dict else obs["obs"]
        return super().describe_row(inner)

    def reset(self, seed: int) -> Tree:
        """Restart all rows, with a zero last action and reward."""
        obs = self.env.reset(seed)
        self._action.zero_()
        self._reward.zero_()
        return self._joined(obs, self._action.clone(), self._reward.clone())

    def step(self, action: Tree) -> Step:
        """Apply ``action`` [B, ...] and add it, with its reward, to the observations."""
        step = self.env.step(action)
        return self._extended(step, _encoded(self.action_space, action))

    def _send(self, action: Tree) -> None:
        self.env.send(action)
        self._sent = _encoded(self.action_space, action)

    def _receive(self) -> Step:
        step = self.env.receive()  # raises if nothing was sent
        assert self._sent is not None
        return self._extended(step, self._sent)

    def _extended(self, step: Step, action: Tensor) -> Step:
        """The step with the encoded ``action`` [B, D] and its reward in the observations."""
        valid, first = step.valid.unsqueeze(1), step.first.unsqueeze(1)
        action = torch.where(valid, action, self._action)
        reward = torch.where(valid, step.reward.unsqueeze(1), self._reward)
        next_action, next_reward = action.masked_fill(first, 0), reward.masked_fill(first, 0)
        self._action.copy_(next_action)  # in place: a CUDA graph refers to tensors by address
        self._reward.copy_(next_reward)
        return replace(
            step,
            obs=self._joined(step.obs, next_action, next_reward),
            final_obs=self._joined(step.final_obs, action, reward),
        )

    def _snapshot(self) -> dict[str, Tensor]:
        own = {f"{ACTION}_wrapper": self._action.clone(), f"{REWARD}_wrapper": self._reward.clone()}
        return {**self.env.snapshot(), **own}

    def _restore(self, snapshot: dict[str, Tensor]) -> Tree:
        inner = dict(snapshot)
        self._action.copy_(inner.pop(f"{ACTION}_wrapper"))
        self._reward.copy_(inner.pop(f"{REWARD}_wrapper"))
        return self._joined(self.env.restore(inner), self._action.clone(), self._reward.clone())

    def _joined(self, obs: Tree, action: Tensor, reward: Tensor) -> Tree:
        parts = obs if self._is_dict else {"obs": obs}
        parts = {**parts, ACTION: action, REWARD: reward}
        return {key: parts[key] for key in self._keys}  # Gymnasium sorts them


def _encoded(space: gym.Space, action: Tree) -> Tensor:
    """The action [B, ...] as one float32 vector [B, D]."""
    parts: list[Tensor] = []
    spaces.map(lambda leaf_space, leaf: parts.append(_encode(leaf_space, leaf)), space, action)
    return parts[0] if len(parts) == 1 else torch.cat(parts, 1)


def _encode(space: gym.Space, action: Tensor) -> Tensor:
    """A leaf [B, ...] as [B, D]."""
    action = action.to(torch.float32) if isinstance(space, gym_spaces.Box) else action
    if isinstance(space, gym_spaces.Discrete):
        return F.one_hot(action - int(space.start), int(space.n)).float()
    if isinstance(space, gym_spaces.MultiDiscrete):
        starts, sizes = space.start.flatten().tolist(), space.nvec.flatten().tolist()
        kinds = zip(action.flatten(1).unbind(1), starts, sizes)
        return torch.cat([F.one_hot(column - start, n) for column, start, n in kinds], 1).float()
    if isinstance(space, gym_spaces.MultiBinary):
        return action.flatten(1).float() * 2 - 1
    return action.reshape(len(action), -1)


def _width(space: gym.Space) -> int:
    """D, the size of an encoded action."""
    return _encoded(space, spaces.sample(space, 1, np.random.default_rng(0))).shape[1]


def _with_keys(observation: gym.Space, action: gym.Space) -> gym_spaces.Dict:
    parts = dict(observation.spaces) if isinstance(observation, gym_spaces.Dict) else {"obs": observation}
    taken = {ACTION, REWARD} & parts.keys()
    if taken:
        raise SpaceError(f"the observation has {sorted(taken)} already: is it wrapped twice?")
    bounded = not any(isinstance(leaf, gym_spaces.Box) for _, leaf in spaces.walk(action))
    bound = 1.0 if bounded else np.inf
    parts[ACTION] = gym_spaces.Box(-bound, bound, (_width(action),), np.float32)
    parts[REWARD] = gym_spaces.Box(-np.inf, np.inf, (1,), np.float32)
    return gym_spaces.Dict(parts)
