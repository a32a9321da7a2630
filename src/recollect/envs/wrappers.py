"""BatchedEnvs around BatchedEnvs: keys added to what is seen."""

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
from recollect.envs.contract import BatchedEnv, Capturable, Describes, Resumable, Split, Telling
from recollect.errors import SpaceError

ACTION, REWARD = "last_action", "last_reward"


class LastActionReward:
    """Adds ``last_action`` [B, D] and ``last_reward`` [B, 1] to ``obs`` and ``final_obs`` alike.

    Both are zero at an episode's start. In ``final_obs`` they are the action and reward just made. In a
    row that is not valid the action was not used: there they stay what the last real step had, until
    the next episode starts. An observation that is no Dict becomes one, under the key ``obs``.

    ``last_action`` is one float vector, the parts of the action one after another, in such a form
    that no action yet, all zeros, is unlike every discrete action:

    ==============  ======================================================
    Discrete        one-hot
    MultiDiscrete   one-hots, one after another
    MultiBinary     -1 for off, 1 for on
    Box             the numbers themselves (zero may be an action, too)
    ==============  ======================================================
    """

    def __init__(self, env: BatchedEnv) -> None:
        self.env = env
        self.num_envs, self.agents, self.device = env.num_envs, env.agents, env.device
        self.action_space = env.action_space
        self.observation_space = _with_keys(env.observation_space, env.action_space)
        self._is_dict = isinstance(env.observation_space, gym_spaces.Dict)
        self._leaves = list(spaces.walk(env.action_space))
        rows = env.num_envs * env.agents
        self._action = torch.zeros(rows, _width(env.action_space), device=env.device)
        self._reward = torch.zeros(rows, 1, device=env.device)
        if isinstance(env, Resumable):  # so that the wrapper is Resumable just where the env is
            self.snapshot, self.restore = self._snapshot, self._restore
        if isinstance(env, Capturable):
            self.truncation_gap = env.truncation_gap
        if isinstance(env, Telling):
            self.cut_rows = env.cut_rows
        self._split = env if isinstance(env, Split) else None
        if self._split is not None:  # likewise
            self.send, self.receive = self._send, self._receive
        self._sent: Tensor | None = None

    def describe_row(self, obs: Tree) -> str | None:
        """The observation of row 0 in the words of the env inside."""
        if not isinstance(self.env, Describes):
            return None
        own = (ACTION, REWARD)
        inner = {key: leaf for key, leaf in obs.items() if key not in own} if self._is_dict else obs["obs"]
        return self.env.describe_row(inner)

    def reset(self, seed: int) -> Tree:
        """Start all rows anew, with nothing done and nothing earned."""
        obs = self.env.reset(seed)
        self._action.zero_()
        self._reward.zero_()
        return self._joined(obs, self._action.clone(), self._reward.clone())

    def step(self, action: Tree) -> Step:
        """Apply ``action`` [B, ...] and show it, with what it earned, in the next observation."""
        step = self.env.step(action)
        return self._shown(step, self._encoded(action))

    def close(self) -> None:
        """Close the env inside."""
        self.env.close()

    def _send(self, action: Tree) -> None:
        assert self._split is not None
        self._split.send(action)
        self._sent = self._encoded(action)

    def _receive(self) -> Step:
        assert self._split is not None
        step = self._split.receive()  # says so if nothing was sent
        assert self._sent is not None
        return self._shown(step, self._sent)

    def _shown(self, step: Step, done: Tensor) -> Step:
        """The step with what was done [B, D] and earned in it."""
        valid, first = step.valid.unsqueeze(1), step.first.unsqueeze(1)
        done_now = torch.where(valid, done, self._action)
        earned_now = torch.where(valid, step.reward.unsqueeze(1), self._reward)
        done_next, earned_next = done_now.masked_fill(first, 0), earned_now.masked_fill(first, 0)
        self._action.copy_(done_next)  # in place: a CUDA graph knows tensors by where they are
        self._reward.copy_(earned_next)
        return replace(
            step,
            obs=self._joined(step.obs, done_next, earned_next),
            final_obs=self._joined(step.final_obs, done_now, earned_now),
        )

    def _snapshot(self) -> dict[str, Tensor]:
        assert isinstance(self.env, Resumable)
        own = {f"{ACTION}_wrapper": self._action.clone(), f"{REWARD}_wrapper": self._reward.clone()}
        return {**self.env.snapshot(), **own}

    def _restore(self, snapshot: dict[str, Tensor]) -> Tree:
        assert isinstance(self.env, Resumable)
        inner = dict(snapshot)
        self._action.copy_(inner.pop(f"{ACTION}_wrapper"))
        self._reward.copy_(inner.pop(f"{REWARD}_wrapper"))
        return self._joined(self.env.restore(inner), self._action.clone(), self._reward.clone())

    def _joined(self, obs: Tree, action: Tensor, reward: Tensor) -> Tree:
        parts = obs if self._is_dict else {"obs": obs}
        parts = {**parts, ACTION: action, REWARD: reward}
        return {key: parts[key] for key in self.observation_space.spaces}  # in the order of the space

    def _encoded(self, action: Tree) -> Tensor:
        """The action [B, ...] as one float32 vector [B, D]."""
        parts: list[Tensor] = []
        spaces.map(lambda space, leaf: parts.append(_encode(space, leaf)), self.action_space, action)
        return parts[0] if len(parts) == 1 else torch.cat(parts, 1)


def _encode(space: gym.Space, action: Tensor) -> Tensor:
    """A leaf [B, ...] as [B, D]."""
    action = action.to(torch.float32) if isinstance(space, gym_spaces.Box) else action
    if isinstance(space, gym_spaces.Discrete):
        return F.one_hot(action - int(space.start), int(space.n)).float()
    if isinstance(space, gym_spaces.MultiDiscrete):
        kinds = zip(
            action.flatten(1).unbind(1), space.start.flatten().tolist(), space.nvec.flatten().tolist()
        )
        return torch.cat([F.one_hot(column - start, n) for column, start, n in kinds], 1).float()
    if isinstance(space, gym_spaces.MultiBinary):
        return action.flatten(1).float() * 2 - 1
    return action.reshape(len(action), -1)


def _width(space: gym.Space) -> int:
    """D, the length of an encoded action."""
    width = 0
    for _, leaf in spaces.walk(space):
        if isinstance(leaf, gym_spaces.Discrete):
            width += int(leaf.n)
        elif isinstance(leaf, gym_spaces.MultiDiscrete):
            width += int(leaf.nvec.sum())
        else:
            width += int(np.prod(leaf.shape or ()))
    return width


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
