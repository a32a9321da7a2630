"""The tasks as PettingZoo envs: ``parallel_env("recollect/TreasureHunt-v0", size="small")``.

Tasks of several agents are also in PettingZoo's registry, where it has one:
``pettingzoo.make("parallel", "recollect/TreasureHunt-v0")``. An env reset with seed s plays slot 0 of s, as
the task's single env in Gymnasium does; ``reset()`` without a seed starts the stream's next episode.
"""

from __future__ import annotations

from math import isnan
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium.utils import seeding

from recollect.base import spaces
from recollect.base.types import Tree
from recollect.envs.space_values import to_rows, to_tensors, write_row
from recollect.errors import ConfigError, EnvError
from recollect.tasks import random
from recollect.tasks.catalog import make_task

try:
    from pettingzoo import ParallelEnv
except ModuleNotFoundError as error:
    raise ConfigError("the tasks as PettingZoo envs need it: pip install 'recollect[pettingzoo]'") from error


def parallel_env(task: str, render_mode: str | None = None, **options: Any) -> TaskParallelEnv:
    """One env of a task, by its short name or id."""
    return TaskParallelEnv(task, render_mode, **options)


class TaskParallelEnv(ParallelEnv[str, Any, Any]):
    """One slot of a task as a ``pettingzoo.ParallelEnv``.

    ``agents`` are those that take part: an agent that is absent from an episode, or has died in it, is not.
    """

    def __init__(self, task: str, render_mode: str | None = None, **options: Any) -> None:
        self.task = made = make_task(task, 1, **options)
        self.metadata = {
            "name": made.id.rpartition("/")[2],
            "render_modes": ["ansi", "rgb_array"],
            "render_fps": 4,
            "is_parallelizable": True,
        }
        self.possible_agents = list(made.agent_names)
        self._action_space = made.action_space
        if isinstance(made.action_space, gym.spaces.Dict):
            self._action_space = _MaskedInPart(made.action_space)
        self.agents: list[str] = []
        self.render_mode = render_mode
        self._all = torch.ones(1, dtype=torch.bool)
        self._is_seeded = False
        self._is_over = False
        self._next_obs: Tree = None
        """The obs of the next episode, which the task has started in the step that ended the last one."""
        self._seen: dict[str, Any] = {}
        self._last_picture: np.ndarray | None = None
        if render_mode == "rgb_array":
            made.on_end = self._draw_last

    def observation_space(self, agent: str) -> gym.Space:
        """The space of every agent."""
        return self.task.observation_space

    def action_space(self, agent: str) -> gym.Space:
        """The space of every agent."""
        return self._action_space

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        """Start the next episode; with ``seed``, the first one of that seed's stream."""
        if seed is None and not self._is_seeded:
            seed = seeding.np_random(None)[1]  # from the system's entropy
        if seed is not None:
            self._is_seeded = True
            obs = self.task.reset_slots(self._all, torch.tensor([random.as_int64(seed)]))
        else:
            obs = self._next_obs if self._is_over else self.task.reset_slots(self._all)
        self._is_over = False
        self.agents = [self.possible_agents[i] for i in self._living_rows()]
        self._seen = self._by_agent(obs)
        return self._seen, {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """One turn of all agents; after the end of an episode ``reset`` has to be called."""
        if not self.agents:
            raise EnvError(f"{self.task.name}: there is no episode in progress: call reset() first")
        if actions.keys() != set(self.agents):
            raise EnvError(
                f"{self.task.name}.step got actions of {', '.join(actions) or 'no agent'}: give one of each "
                f"of {', '.join(self.agents)}"
            )
        space = self.task.action_space
        rows = self._living_rows()  # those of self.agents
        batch = spaces.buffers(space, len(self.possible_agents))
        for row, agent in zip(rows, self.agents):
            if not space.contains(actions[agent]):
                raise EnvError(f"the action {actions[agent]!r} of {agent} is not in {space}")
            write_row(space, batch, row, actions[agent], f"the action of {agent}")
        step = self.task.step(to_tensors(space, batch))
        self._seen = self._by_agent(step.final_obs)
        rewards, terminated, truncated = (
            {agent: values[row] for agent, row in zip(self.agents, rows)}
            for values in (step.reward.tolist(), step.terminated.tolist(), step.truncated.tolist())
        )
        infos = {}
        for agent, row in zip(self.agents, rows):
            numbers = {name: float(values[row % len(values)]) for name, values in step.info.items()}
            infos[agent] = {name: number for name, number in numbers.items() if not isnan(number)}
        self._is_over = all(terminated[agent] or truncated[agent] for agent in self.agents)
        if self._is_over:
            self._next_obs = step.obs
        self.agents = [agent for agent in self.agents if not (terminated[agent] or truncated[agent])]
        return self._seen, rewards, terminated, truncated, infos

    def render(self) -> Any:
        """The agents' last observations in words ("ansi"), or a picture of the whole env ("rgb_array")."""
        if self.render_mode == "ansi":
            return "\n".join(f"{agent}: {self.task.describe(obs)}" for agent, obs in self._seen.items())
        if self.render_mode == "rgb_array":
            return self._last_picture if self._is_over else self.task.picture()
        return None

    def _draw_last(self) -> None:
        self._last_picture = self.task.picture()

    def _living_rows(self) -> list[int]:
        return self.task.present().nonzero().flatten().tolist()

    def _by_agent(self, obs: Tree) -> dict[str, Any]:
        """The observations [agents, ...] of ``self.agents``, as Gymnasium's values."""
        seen = dict(
            zip(self.possible_agents, to_rows(self.task.observation_space, obs, len(self.possible_agents)))
        )
        return {agent: seen[agent] for agent in self.agents}


class _MaskedInPart(gym.spaces.Dict):
    """An action space of parts whose ``sample`` takes the masks of an observation, which some parts lack."""

    def __init__(self, space: gym.spaces.Dict) -> None:
        super().__init__(list(space.spaces.items()))

    def sample(self, mask: Any = None, probability: Any = None) -> dict[str, Any]:
        """A random action; ``mask`` has the masks of any parts."""
        if mask is not None:
            mask = {name: mask.get(name) for name in self.spaces}
        return super().sample(mask, probability)
