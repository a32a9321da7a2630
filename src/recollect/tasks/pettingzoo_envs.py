"""The tasks as PettingZoo envs: ``parallel_env("recollect/TreasureHunt-v0", size="small")``.

Tasks of several agents are also in PettingZoo's registry, where it has one:
``pettingzoo.make("parallel", "recollect/TreasureHunt-v0")``. An env reset with seed s plays slot 0 of s, as
the task's single env in Gymnasium does; ``reset()`` without a seed starts the stream's next episode.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium.utils import seeding

from recollect.base.types import Tree
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
    """One slot of a task as a ``pettingzoo.ParallelEnv``. Its agents start and end together."""

    def __init__(self, task: str, render_mode: str | None = None, **options: Any) -> None:
        self.task = made = make_task(task, 1, **options)
        self.metadata = {
            "name": made.id.rpartition("/")[2],
            "render_modes": ["ansi", "rgb_array"],
            "render_fps": 4,
            "is_parallelizable": True,
        }
        self.possible_agents = list(made.agent_names)
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
        return self.task.action_space

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
        self.agents = list(self.possible_agents)
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
        for agent, action in actions.items():
            if not space.contains(action):
                raise EnvError(f"the action {action!r} of {agent} is not in {space}")
        step = self.task.step(torch.from_numpy(np.stack([actions[agent] for agent in self.agents])))
        self._seen = self._by_agent(step.final_obs)
        rewards, terminated, truncated = (
            dict(zip(self.agents, values.tolist()))
            for values in (step.reward, step.terminated, step.truncated)
        )
        infos = {
            agent: {name: float(values[i % len(values)]) for name, values in step.info.items()}
            for i, agent in enumerate(self.agents)
        }
        if step.first[0]:
            self._is_over, self._next_obs = True, step.obs
            self.agents = []
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

    def _by_agent(self, obs: torch.Tensor) -> dict[str, Any]:
        return {agent: obs[i].numpy().copy() for i, agent in enumerate(self.possible_agents)}
