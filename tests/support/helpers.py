"""Small worlds whose every number is known, a core that tells what it saw, and the master comparison."""

from __future__ import annotations

import itertools
from copy import deepcopy
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces as gym_spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from torch import Tensor

from recollect.acting.actor import Actor
from recollect.base import tree
from recollect.base.types import Step
from recollect.config.algo_shared import state_steps
from recollect.config.policy import EncoderConfig, HeadConfig, PolicyConfig
from recollect.cores.contract import Core
from recollect.envs import GymLoop, GymVector
from recollect.experience.chunks import make_chunks
from recollect.experience.rollout import Rollout
from recollect.policy.masks import mask_space
from recollect.policy.policy import Policy

LENGTHS = (5, 1, 1, 8, 3, 2)
"""Episode lengths in turn: one-step episodes in a row, and some across every boundary of 7 and 23."""


def ends(episode: int) -> tuple[bool, bool]:
    """(terminated, truncated) at the end of an episode: cut, dead, both, in turn."""
    return ((False, True), (True, False), (True, True))[episode % 3]


class ScriptedEnv(gym.Env):
    """Noise to be remembered, any action space, masks, episodes of scripted lengths and ends."""

    def __init__(self, action_space: gym.Space | None = None, masked: bool = False):
        self.action_space = action_space if action_space is not None else gym_spaces.Discrete(3)
        self.observation_space: gym.Space = gym_spaces.Box(-np.inf, np.inf, (3,), np.float32)
        self.mask = mask_space(self.action_space) if masked else None
        if self.mask is not None:
            parts = {"action_mask": self.mask, "seen": self.observation_space}
            self.observation_space = gym_spaces.Dict(parts)
        self.episode = -1

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        if seed is not None:
            self.episode = int(self.np_random.integers(6))  # rows begin at different places
        self.episode += 1
        self.left = LENGTHS[self.episode % len(LENGTHS)]
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        assert self.left > 0, "an action after the end of an episode"
        assert self.action_space.contains(action), action
        assert self.mask is None or _is_allowed(action, self.shown), "a forbidden action"
        self.left -= 1
        terminated, truncated = ends(self.episode) if self.left == 0 else (False, False)
        return self._observe(), float(self.np_random.normal()) + 1.0, terminated, truncated, {}

    def _observe(self) -> Any:
        seen = self.np_random.normal(size=3).astype(np.float32) + np.float32(0.5)
        if self.mask is None:
            return seen
        self.shown = _random_mask(self.mask, self.np_random)
        return {"action_mask": self.shown, "seen": seen}


def _random_mask(space: gym.Space, rng: np.random.Generator) -> Any:
    if isinstance(space, gym_spaces.Dict):
        return {key: _random_mask(sub, rng) for key, sub in space.spaces.items()}
    mask = rng.integers(0, 2, space.shape, np.int8)
    mask[0] = 1
    return mask


def _is_allowed(action: Any, mask: Any) -> bool:
    if isinstance(mask, dict):
        return all(_is_allowed(action[key], sub) for key, sub in mask.items())
    return bool(mask[action])


class CounterEnv(gym.Env):
    """Every observation is a number that no other has: row * 512 + episode * 16 + step < 2048."""

    def __init__(self, row: int):
        self.row, self.episode, self.age = row, -1, 0
        self.observation_space = gym_spaces.Box(0, 2048, (1,), np.float32)
        self.action_space = gym_spaces.Discrete(5)
        self.made: list[tuple[int, int, int]] = []
        """(what was seen, the action, what was seen after it) of every real step."""

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        self.episode, self.age = self.episode + 1, 0
        return self._observe(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict]:
        before = self._number()
        self.age += 1
        self.made.append((before, int(action), self._number()))
        over = self.age == LENGTHS[(self.episode + self.row) % len(LENGTHS)]
        terminated, truncated = ends(self.episode) if over else (False, False)
        return self._observe(), float(action), terminated, truncated, {}

    def _number(self) -> int:
        return self.row * 512 + self.episode * 16 + self.age

    def _observe(self) -> np.ndarray:
        return np.array([self._number()], np.float32)


class TensorWorld:
    """A BatchedEnv that reuses its tensors, as the contract allows: whoever keeps one sees it change."""

    def __init__(self, num_envs: int = 3, lengths: tuple[int, ...] = LENGTHS):
        self.num_envs, self.agents, self.device = num_envs, 1, torch.device("cpu")
        self.observation_space: gym.Space = gym_spaces.Box(-np.inf, np.inf, (3,), np.float32)
        self.action_space: gym.Space = gym_spaces.Discrete(3)
        self.lengths = lengths
        self.obs, self.final_obs = torch.zeros(num_envs, 3), torch.zeros(num_envs, 3)
        self.steps = 0

    def reset(self, seed: int) -> Tensor:
        self.generator = torch.Generator().manual_seed(seed)
        self.episode = list(range(self.num_envs))
        self.left = [self.lengths[e % len(self.lengths)] for e in self.episode]
        return self.obs.copy_(self._noise())

    def step(self, action: Tensor) -> Step:
        self.steps += 1
        terminated, truncated = (torch.zeros(self.num_envs, dtype=torch.bool) for _ in range(2))
        for row in range(self.num_envs):
            self.left[row] -= 1
            if self.left[row] == 0:
                terminated[row], truncated[row] = ends(self.episode[row])
                self.episode[row] += 1
                self.left[row] = self.lengths[self.episode[row] % len(self.lengths)]
        self.final_obs.copy_(self._noise())
        first = terminated | truncated
        self.obs.copy_(torch.where(first.unsqueeze(1), self._noise(), self.final_obs))
        reward = torch.randn(self.num_envs, generator=self.generator) + 1 + action
        always = torch.ones_like(first)
        return Step(self.obs, first, reward, terminated, truncated, self.final_obs, always)

    def close(self) -> None:
        pass

    def _noise(self) -> Tensor:
        return torch.randn(self.num_envs, 3, generator=self.generator) + 0.5


class ArenaWorld(TensorWorld):
    """Slots of two agents. The second dies early and shows NaN until its slot starts anew."""

    def __init__(self, slots: int = 3):
        super().__init__(slots)
        self.agents = 2
        self.obs, self.final_obs = torch.zeros(2 * slots, 3), torch.zeros(2 * slots, 3)

    def reset(self, seed: int) -> Tensor:
        self.generator = torch.Generator().manual_seed(seed)
        self.age = torch.arange(self.num_envs)
        self.is_dead = torch.zeros(self.num_envs, dtype=torch.bool)
        return self.obs.copy_(self._noise())

    def step(self, action: Tensor) -> Step:
        self.age += 1
        over, dies = self.age % 6 == 0, self.age % 6 == 3
        alive = torch.stack([torch.ones_like(over), ~self.is_dead], 1).flatten()
        terminated = torch.stack([torch.zeros_like(over), dies & ~self.is_dead], 1).flatten()
        truncated = torch.stack([over, over & ~self.is_dead], 1).flatten()
        self.is_dead = (self.is_dead | dies) & ~over
        first = over.repeat_interleave(2)
        dead = torch.stack([torch.zeros_like(over), self.is_dead], 1).flatten()
        self.final_obs.copy_(self._noise().masked_fill(~(terminated | truncated).unsqueeze(1), torch.nan))
        self.obs.copy_(self._noise().masked_fill(dead.unsqueeze(1), torch.nan))
        reward = torch.randn(len(first), generator=self.generator).masked_fill(~alive, 0)
        return Step(self.obs, first, reward, terminated, truncated, self.final_obs, alive)

    def _noise(self) -> Tensor:
        return torch.randn(2 * self.num_envs, 3, generator=self.generator)


def as_rows(makers: list, how: str) -> GymLoop | GymVector:
    """Gymnasium envs as rows: "loop", or a VectorEnv in an autoreset mode."""
    if how == "loop":
        return GymLoop(makers)
    mode = AutoresetMode[how.upper()]
    return GymVector(SyncVectorEnv(makers, autoreset_mode=mode))


GYM_WORLDS = ("loop", "next_step", "same_step", "disabled")


class LastSeen(Core):
    """Remembers the last input of the episode: y = (x, the x before it, or -1 at the start)."""

    def __init__(self, input_size: int):
        super().__init__(input_size, 2 * input_size)

    def initial_state(self, batch: int) -> dict[str, Tensor]:
        return {"last": torch.full((1, self.input_size), -1.0).expand(batch, -1)}

    def _step(self, x: Tensor, state: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        return torch.cat([x, state["last"]], 1), {"last": x}

    def _unroll(self, x: Tensor, state: Any, first: Tensor) -> tuple[Tensor, Any]:
        outputs = []
        for x_t, first_t in zip(x, first):
            y, state = self._step(x_t, self.reset(state, first_t))
            outputs.append(y)
        return torch.stack(outputs), state


def counting_policy(env: Any) -> Policy:
    """value = 4096 * (the number seen now) + (the number seen before it, or -1), exact in float32."""
    config = PolicyConfig(encoder=EncoderConfig(hidden=()), core=lambda n: LastSeen(n), normalise_value=False)
    policy = config.build(env.observation_space, env.action_space)
    with torch.no_grad():
        policy.critic.weight.copy_(torch.tensor([[4096.0, 1.0]]))
        policy.head.linear.weight.zero_()
    return policy


def make_policy(
    env: Any, core: Any = "lstm", *, squash: Any = "auto", seed: int = 0, **config: Any
) -> Policy:
    """A small policy whose actions and values depend strongly on its memory."""
    torch.manual_seed(seed)
    head = HeadConfig(gain=1.0, squash=squash)
    config = {"encoder": EncoderConfig(hidden=(16,)), "head": head, **config}
    policy = PolicyConfig(core=core, **config).build(env.observation_space, env.action_space)
    for name, parameter in policy.core.named_parameters():
        if name.startswith("initial"):  # learned initial states start at zero, where little shows
            torch.nn.init.normal_(parameter)
    return policy


def make_actor(
    env: Any, policy: Policy, *, rollout: int, chunk: int, burn_in: int = 0, seed: int = 0
) -> Actor:
    return Actor(env, policy, rollout=rollout, state_steps=state_steps(rollout, chunk, burn_in), seed=seed)


def keep(rollout: Rollout) -> Rollout:
    """A copy that the next ``collect`` does not overwrite."""
    return deepcopy(rollout)


def uncut(x: Tensor, rollout: Rollout) -> Tensor:
    """[L, C * B, ...] of chunks back to [T, B, ...]: chunk c of row b stands at c * B + b."""
    length, rows = x.shape[0], rollout.rows
    split = x.view(length, -1, rows, *x.shape[2:])  # [L, C * B, ...] -> [L, C, B, ...]
    return split.transpose(0, 1).reshape(-1, rows, *x.shape[2:])[: rollout.steps]


@torch.no_grad()
def deviation(policy: Policy, rollout: Rollout, length: int, forget: bool = False) -> tuple[float, float]:
    """How far log-probs and values that the learner recomputes are from those recorded while acting.

    ``forget`` starts every chunk from zeros instead, to show that it would be noticed.
    """
    chunks = make_chunks(rollout, length, {})
    state = tree.map(torch.zeros_like, chunks.state) if forget else chunks.state
    log_prob, _, value = policy.evaluate_actions(chunks.obs, chunks.action, state, chunks.first)
    pairs = ((log_prob, rollout.record["log_prob"]), (value, rollout.record["value"]))
    gaps = [(uncut(again, rollout) - once)[rollout.valid].abs().max() for again, once in pairs]
    return float(gaps[0]), float(gaps[1])


def assert_reproduced(policy: Policy, rollout: Rollout, length: int) -> None:
    """Master test M for one rollout."""
    log_prob, value = deviation(policy, rollout, length)
    scale = max(1.0, float(policy.value_scale))
    assert log_prob <= 1e-5, f"log-probs deviate by {log_prob}"
    assert value <= 1e-5 * scale, f"values deviate by {value} at scale {scale}"


def all_pairs(**axes: Any) -> list[dict[str, Any]]:
    """Few combinations in which every value of every axis meets every value of every other."""
    names = list(axes)
    missing = {
        (a, i, b, j)
        for a, b in itertools.combinations(names, 2)
        for i in range(len(axes[a]))
        for j in range(len(axes[b]))
    }
    cases = []
    while missing:
        a, i, b, j = min(missing)
        case = {a: i, b: j}
        for name in names:
            if name not in case:
                case[name] = max(range(len(axes[name])), key=lambda k: _new_pairs(case | {name: k}, missing))
        missing -= _pairs({name: case[name] for name in names})
        cases.append({name: list(axes[name])[case[name]] for name in names})
    return cases


def _pairs(case: dict[str, int]) -> set:
    return {(a, case[a], b, case[b]) for a, b in itertools.combinations(case, 2)}


def _new_pairs(case: dict[str, int], missing: set) -> int:
    return len((_pairs(case) | {(b, j, a, i) for a, i, b, j in _pairs(case)}) & missing)
