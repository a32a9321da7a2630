"""Ways to play a task in tests."""

from __future__ import annotations

from collections.abc import Callable

import gymnasium as gym
import torch
from torch import Tensor

from recollect.base.types import Step
from recollect.tasks import TASKS, Task, make_task

NAMES = list(TASKS)
ALONE = [name for name, task in TASKS.items() if not task.Options.has_agents]
"""The tasks of one agent, which are Gymnasium envs."""
SMALL = {
    "delayed-cue": {"cues": 3, "horizon": 2},
    "copy": {"length": 2, "delay": 1},
    "associative-recall": {"pairs": 2},
    "repeat-previous": {},
    "repeat-first": {},
    "t-maze": {"length": 3},
    "position-cartpole": {},
    "position-pendulum": {},
    "forage": {"limit": 30},
    "treasure-hunt": {"side": 8, "agents": 3, "view": 1, "spawn": 0.1, "length": 30},
}
"""Options for each task with which an episode is short, where it can be."""

Choice = Callable[[Tensor, Tensor], Tensor]
"""(obs [B, ...], first [B]) -> action [B, ...]."""


def small(name: str, num_envs: int) -> Task:
    return make_task(name, num_envs, **SMALL[name])


def random_actions(task: Task, steps: int, seed: int = 0, rows: int | None = None) -> Tensor:
    """[steps, rows, ...]; row i is the same for every number of rows."""
    total, rows = 64 * task.agents, rows or task.num_envs * task.agents
    generator = torch.Generator().manual_seed(seed)
    if isinstance(task.action_space, gym.spaces.Discrete):
        actions = torch.randint(0, int(task.action_space.n), (steps, total), generator=generator)
    else:
        actions = torch.rand((steps, total, 1), generator=generator) * 4.4 - 2.2
    return actions[:, :rows].contiguous()


def copied(step: Step) -> tuple[Tensor, ...]:
    fields = (step.obs, step.first, step.reward, step.terminated, step.truncated, step.final_obs)
    return tuple(tensor.clone() for tensor in fields)


def record(task: Task, actions: Tensor) -> list[tuple[Tensor, ...]]:
    return [copied(task.step(action)) for action in actions]


def returns_of(task: Task, choose: Choice, seed: int = 0) -> Tensor:
    """[B]: the return of the first episode of each row, actions by ``choose``."""
    obs = task.reset(seed)
    first = torch.ones(len(obs), dtype=torch.bool)
    running, total = first.clone(), torch.zeros(len(obs))
    while running.any():
        step = task.step(choose(obs, first))
        total += torch.where(running, step.reward, 0.0)
        running &= ~(step.terminated | step.truncated)
        obs, first = step.obs, step.first
    return total
