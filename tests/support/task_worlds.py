"""Ways to play a task in tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import torch
from torch import Tensor

from recollect.base import spaces, tree
from recollect.base.types import Step, Tree
from recollect.tasks import TASKS, Task, make_task
from recollect.tasks.mech import MechArena

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
    "recall-duel": {"cues": 3, "delay": 1},
    "mech": {"mechs": 2, "limit": 3, "maps": 2},
}
"""Options for each task with which an episode is short, where it can be."""
BRAWL = "mech brawl"
"""``Brawl``, in the tests of what every task owes."""
NAMES = [*TASKS, BRAWL]

Choice = Callable[[Tensor, Tensor], Tensor]
"""(obs [B, ...], first [B]) -> action [B, ...]."""


class Brawl(MechArena):
    """Two weak mechs of each side start near the centre, and a third is absent: agents die in each game."""

    def __init__(self, num_envs: int, device: torch.device | str = "cpu", **options: Any) -> None:
        super().__init__(num_envs, device, **{"mechs": 3, "team": 2, "limit": 3, "maps": 2} | options)

    def _begin(self, key: Tensor) -> dict[str, Tensor]:
        fields = super()._begin(key)
        near = {name: fields[name] * 0.05 for name in ("x", "y")}
        return fields | near | {"hp": fields["hp"] * 0.2}


def small(name: str, num_envs: int, device: str = "cpu") -> Task:
    if name == BRAWL:
        return Brawl(num_envs, device)
    return make_task(name, num_envs, device, **SMALL[name])


def enough(task: Task) -> int:
    """Steps in which two episodes of most slots end, where the rules do not take too long for a test."""
    return min(2 * task.max_episode_steps + 6, 230)


def random_actions(task: Task, steps: int, seed: int = 0, rows: int | None = None) -> list[Tree]:
    """The actions [rows, ...] of each step; row i is the same for every number of rows."""
    total, rows = 64 * task.agents, rows or task.num_envs * task.agents
    generator = torch.Generator().manual_seed(seed)

    def draw(space: gym.Space) -> Tensor:
        shape = (steps, total, *(space.shape or ()))
        if isinstance(space, gym.spaces.Box):  # also outside of its bounds
            low, high = torch.from_numpy(space.low), torch.from_numpy(space.high)
            return (torch.rand(shape, generator=generator) * (high - low) + low) * 1.1
        most = 2 if isinstance(space, gym.spaces.MultiBinary) else int(getattr(space, "n", 0))
        drawn = torch.randint(0, most, shape, generator=generator)
        return drawn.to(torch.int8) if isinstance(space, gym.spaces.MultiBinary) else drawn

    drawn = spaces.map(draw, task.action_space)
    return [tree.map(lambda leaf: leaf[:rows].contiguous(), tree.index(drawn, t)) for t in range(steps)]


def copied(step: Step) -> dict[str, Tensor]:
    """Copies of all tensors of a step by name, but for ``info``."""
    names = ("obs", "first", "reward", "terminated", "truncated", "valid", "final_obs")
    return dict(tree.named_leaves(tree.clone({name: getattr(step, name) for name in names})))


def seen(step: dict[str, Tensor]) -> dict[str, Tensor]:
    """All but ``final_obs``, which is anything where nothing ended."""
    return {name: value for name, value in step.items() if not name.startswith("final_obs")}


def same(a: Tree, b: Tree) -> bool:
    """Whether two trees, or lists of them, are equal in every bit."""
    if isinstance(a, list):
        return all(same(one, two) for one, two in zip(a, b, strict=True))
    one, two = (dict(tree.named_leaves(each)) for each in (a, b))
    return one.keys() == two.keys() and all(torch.equal(value, two[name]) for name, value in one.items())


def record(task: Task, actions: list[Tree]) -> list[dict[str, Tensor]]:
    return [copied(task.step(action)) for action in actions]


def contained(space: gym.Space, values: Tree) -> bool:
    """Whether each row of a batch is in ``space``."""
    rows = len(tree.leaves(values)[0])
    every = (spaces.map(lambda _, leaf: leaf.numpy(), space, tree.index(values, i)) for i in range(rows))
    return all(space.contains(row if isinstance(row, dict) else row[()]) for row in every)


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
