"""PettingZoo envs that follow a script, what they give when they are stepped by hand, and GroupedEnvs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces as gym_spaces
from gymnasium.utils import seeding
from pettingzoo import ParallelEnv

from recollect.base import spaces, tree
from recollect.base.types import Step
from recollect.envs.groups import Group, GroupedEnv
from recollect.envs.space_values import env_seeds
from tests.support.worker_worlds import seen

Lives = Mapping[str, tuple[int, int, str]]
"""For each agent: the step in which it appears, its last step, and how that ends."""

TOGETHER: Lives = {"ann": (0, 3, "truncated"), "bob": (0, 3, "truncated"), "cat": (0, 3, "truncated")}
EARLY: Lives = {"ann": (0, 2, "terminated"), "bob": (0, 5, "truncated"), "cat": (0, 1, "both")}
LAST_TWO: Lives = {"ann": (0, 1, "truncated"), "bob": (0, 4, "terminated"), "cat": (0, 4, "truncated")}
LATE: Lives = {"ann": (0, 6, "terminated"), "bob": (2, 4, "truncated"), "cat": (1, 6, "terminated")}
ONE_STEP: Lives = {"ann": (0, 1, "terminated"), "bob": (0, 1, "truncated"), "cat": (0, 1, "both")}


class Camp(ParallelEnv):
    """Agents that come and go by a script. Every observation and reward says whose and when it is.

    An observation is [agent, episode, step, a number drawn from the seed, the last action]; agents in
    ``wide`` have a sixth entry and five actions instead of three.
    """

    metadata: ClassVar[dict[str, Any]] = {"name": "camp_v0", "render_modes": []}
    render_mode = None

    def __init__(self, lives: Lives = EARLY, wide: tuple[str, ...] = ()):
        self.lives, self.possible_agents, self.agents = lives, list(lives), []
        sizes = {agent: 6 if agent in wide else 5 for agent in lives}
        self._seen = {a: gym_spaces.Box(-np.inf, np.inf, (n,), np.float32) for a, n in sizes.items()}
        self._done = {a: gym_spaces.Discrete(n - 1 if n == 6 else 3) for a, n in sizes.items()}
        self.episode = -1

    def observation_space(self, agent: str) -> gym.Space:
        return self._seen[agent]

    def action_space(self, agent: str) -> gym.Space:
        return self._done[agent]

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict, dict]:
        if seed is not None:
            self.rng, self.episode = seeding.np_random(seed)[0], -1
        self.episode, self.now = self.episode + 1, 0
        self.agents = [agent for agent, (enters, _, _) in self.lives.items() if enters == 0]
        return {a: self._observe(a, -1) for a in self.agents}, {a: {} for a in self.agents}

    def step(self, actions: dict[str, Any]) -> tuple[dict, dict, dict, dict, dict]:
        assert actions.keys() == set(self.agents), "actions of the living, and of no other"
        assert all(self._done[agent].contains(action) for agent, action in actions.items())
        self.now += 1
        acting = self.agents
        ends = {a: how for a, (_, last, how) in self.lives.items() if last == self.now}
        born = [a for a, (enters, _, _) in self.lives.items() if enters == self.now]
        self.agents = [a for a in [*acting, *born] if a not in ends]
        obs = {a: self._observe(a, actions.get(a, -1)) for a in [*acting, *born]}
        rewards = {a: 1000.0 * self.possible_agents.index(a) + 10 * self.now + actions[a] for a in acting}
        terminations = {a: ends.get(a) in ("terminated", "both") for a in acting}
        truncations = {a: ends.get(a) in ("truncated", "both") for a in acting}
        infos = {a: {"step": self.now, "name": a} for a in [*acting, *born]}
        more: Any = dict.fromkeys(born, False)
        return obs, rewards | dict.fromkeys(born, 0.0), terminations | more, truncations | more, infos

    def _observe(self, agent: str, action: Any) -> np.ndarray:
        number = self.possible_agents.index(agent)
        values = [number, self.episode, self.now, self.rng.integers(1000), action, 7]
        return np.array(values[: self._seen[agent].shape[0]], np.float32)

    def render(self) -> None: ...

    def state(self) -> np.ndarray:
        return np.zeros(1)


def choose(agent: int, step: int, actions: int) -> int:
    """The action of an agent, by its number, in a step of an episode."""
    return (2 * agent + step) % actions


def by_hand(
    make: Callable[[], Camp], slots: int, steps: int, seed: int
) -> list[dict[tuple[int, str], tuple]]:
    """What each agent of each slot lived in each step, by PettingZoo's interface alone.

    (obs to act on next or None, first, (reward, terminated, truncated, final obs or None) or None).
    """
    found: list[dict] = [{} for _ in range(steps)]
    for slot, own in enumerate(env_seeds(seed, slots)):
        env = make()
        env.reset(seed=own)
        for t in range(steps):
            acting = list(env.agents)
            actions = {
                a: choose(env.possible_agents.index(a), env.now, int(env.action_space(a).n)) for a in acting
            }
            obs, rewards, terminated, truncated, _ = env.step(actions)
            lived = {}
            for a in acting:
                final = obs[a].tolist() if terminated[a] or truncated[a] else None
                lived[a] = (rewards[a], terminated[a], truncated[a], final)
            is_new = not env.agents
            if is_new:
                obs, _ = env.reset()
            for a in env.possible_agents:
                first = a in env.agents and (is_new or a not in acting)
                after = obs[a].tolist() if a in env.agents else None
                found[t][slot, a] = (after, first, lived.get(a))
    return found


def by_loop(env: GroupedEnv, steps: int, seed: int) -> list[dict[tuple[int, str], tuple]]:
    """The same of a GroupedEnv of Camps."""
    obs = tree.clone(env.reset(seed))
    found: list[dict] = []
    for _ in range(steps):
        steps_ = env.step({name: _actions(env, name, rows) for name, rows in obs.items()})
        ended = {name: step.terminated | step.truncated for name, step in steps_.items()}
        alive = {name: step.first | (step.valid & ~ended[name]) for name, step in steps_.items()}
        obs = tree.clone({name: step.obs for name, step in steps_.items()})
        found.append(_lived(env, obs, steps_, alive))
    return found


def _actions(env: GroupedEnv, name: str, obs: Any) -> torch.Tensor:
    count = int(env.groups[name].action_space.n)  # pyright: ignore[reportAttributeAccessIssue]
    return torch.tensor([choose(int(row[0]), int(row[2]), count) for row in obs])


def _lived(env: GroupedEnv, obs: Any, steps: Any, alive: Any) -> dict[tuple[int, str], tuple]:
    found = {}
    for name, group in env.groups.items():
        for row in range(env.num_envs * len(group.agents)):
            key = row // len(group.agents), group.agents[row % len(group.agents)]
            after = obs[name][row].tolist() if alive[name][row] else None
            step, lived = steps[name], None
            if step.valid[row]:
                t, u = bool(step.terminated[row]), bool(step.truncated[row])
                lived = (float(step.reward[row]), t, u, step.final_obs[row].tolist() if t or u else None)
            else:
                assert step.reward[row] == 0
                assert not step.terminated[row]
                assert not step.truncated[row]
            found[key] = (after, bool(step.first[row]), lived)
    return found


def grouped_stream(env: GroupedEnv, steps: int, seed: int) -> list[dict[str, torch.Tensor]]:
    """All that the contract defines of ``steps`` steps with random actions, by group and name."""
    rng = np.random.default_rng(seed)
    obs = tree.clone(env.reset(seed))
    found = [dict(tree.named_leaves(obs))]
    for _ in range(steps):
        actions = {
            name: spaces.sample(group.action_space, env.num_envs * len(group.agents), rng)
            for name, group in env.groups.items()
        }
        step = env.step(actions)
        found.append({f"{g}.{name}": leaf for g, part in step.items() for name, leaf in seen(part).items()})
    return found


class Duo:
    """A GroupedEnv on tensors, that can be resumed: group "big" of two agents, "small" of one.

    A slot's number grows by the sum of all actions; an episode takes four steps. The agent "b" of "big" dies
    in step 2 of every episode.
    """

    device = torch.device("cpu")

    def __init__(self, num_envs: int = 3, first_slot: int = 0):
        box = gym_spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.num_envs, self.first_slot = num_envs, first_slot
        self.groups = {
            "big": Group(("a", "b"), box, gym_spaces.Discrete(3)),
            "small": Group(("c",), gym_spaces.Box(-np.inf, np.inf, (3,), np.float32), gym_spaces.Discrete(4)),
        }
        self.is_closed = 0

    def reset(self, seed: int) -> dict[str, torch.Tensor]:
        self.sum = torch.arange(self.first_slot, self.first_slot + self.num_envs) + 100.0 * seed
        self.age = torch.zeros(self.num_envs)
        return self._obs()

    def step(self, action: Mapping[str, torch.Tensor]) -> dict[str, Step]:
        big, small = action["big"].view(-1, 2), action["small"]
        self.age += 1
        has_b = self.age <= 2
        self.sum = self.sum + big[:, 0] + big[:, 1] * has_b + 10 * small
        final, over = self._obs(), self.age == 4
        dies = self.age == 2
        self.age[over] = 0
        obs, never = self._obs(), torch.zeros(self.num_envs, dtype=torch.bool)
        pair = functools.partial(torch.stack, dim=1)
        flags = {"terminated": pair([never, dies]).flatten(), "first": pair([over, over]).flatten()}
        flags |= {"truncated": pair([over, never]).flatten(), "valid": pair([~never, has_b]).flatten()}
        reward = pair([self.sum, self.sum * has_b]).flatten()
        return {
            "big": Step(obs["big"], reward=reward, final_obs=final["big"], info={"sum": reward}, **flags),
            "small": Step(obs["small"], over, self.sum.clone(), never, over, final["small"], ~never),
        }

    def _obs(self) -> dict[str, torch.Tensor]:
        both = torch.stack([self.sum, self.age], 1)
        return {"big": both.repeat_interleave(2, 0), "small": torch.cat([both, -both[:, :1]], 1)}

    def snapshot(self) -> dict[str, torch.Tensor]:
        return {"sum": self.sum.clone(), "age": self.age.clone()}

    def restore(self, snapshot: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        self.sum, self.age = snapshot["sum"].clone(), snapshot["age"].clone()
        return self._obs()

    def close(self) -> None:
        self.is_closed += 1


def duo_slots(first_slot: int, count: int) -> Duo:
    """Slots of a ``Duo`` for a worker."""
    return Duo(count, first_slot)
