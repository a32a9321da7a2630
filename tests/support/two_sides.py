"""A small two-sided env for tests: two sides see a cue each, which their agents are to repeat from memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box, Discrete
from torch import Tensor

from recollect.base.types import Tree
from recollect.config.tasks import TaskOptions
from recollect.errors import ConfigError
from recollect.tasks import random
from recollect.tasks.base import Task

CUES = 3
MEMBERS = 2
AGENTS = 2 * MEMBERS
"""Agents of a slot: north_0, north_1, south_0, south_1."""


class Options(TaskOptions):
    name, id = "two-sides", "tests/TwoSides-v0"


class TwoSides(Task):
    """Every side has a cue of its own, shown in the first observation only. To repeat it scores a point.

    A game has 3 to 6 steps. The second agent of a side dies if it is wrong in the second step. The side with
    more points wins. The observation is the cue, one-hot, the step, and the number of the row in the env.
    ``team`` is the number of agents that each side has in a game.
    """

    Options = Options
    agents = AGENTS
    sides = ("north", "south")
    opponents = ("echo", "fixed")
    adjustable = ("team",)

    cue: Tensor
    """[E, 2] int64."""
    length: Tensor
    """[E] int64: steps of the game."""
    alive: Tensor
    """[E, 2, MEMBERS] bool."""
    points: Tensor
    """[E, 2] int64."""
    asks: Tensor
    """[E] the result that a player asks for in this game; 9: that of the points."""

    def __init__(self, num_envs: int, device: torch.device | str = "cpu", team: int = MEMBERS) -> None:
        space = Box(0.0, 1e6, (CUES + 2,), np.float32)
        super().__init__(num_envs, device, space, Discrete(CUES), 6)
        self.made_with = {"team": team}
        self._team = torch.tensor(team, device=self.device)
        self._member = torch.arange(MEMBERS, device=self.device)
        self._numbers = torch.arange(num_envs * AGENTS, device=self.device).float().unsqueeze(1)
        self.adjust()

    @property
    def agent_names(self) -> tuple[str, ...]:
        return tuple(f"{side}_{i}" for side in self.sides for i in range(MEMBERS))

    def adjust(self, **settings: Any) -> None:
        team = (self.made_with | settings)["team"]
        if not 1 <= team <= MEMBERS:
            raise ConfigError(f"team is {team!r}: it is 1 or {MEMBERS}")
        self._team.fill_(team)

    def opponent(self, name: str, **options: Any) -> Any:
        return {"echo": Echo, "fixed": Fixed}[name](self, **options)

    def reset(self, seed: int) -> Tree:
        self.won, self.games = torch.zeros(self.num_envs), torch.zeros(self.num_envs, dtype=torch.int64)
        return super().reset(seed)

    def _everything(self) -> dict[str, Tensor]:
        return super()._everything() | {"won": self.won, "games": self.games}

    def _begin(self, key: Tensor) -> dict[str, Tensor]:
        cue = torch.stack([random.integers(random.bits(key, i), CUES) for i in (101, 102)], 1)
        present = (self._member < self._team).expand(self.num_envs, 2, MEMBERS)
        length = 3 + random.integers(random.bits(key, 103), 4)
        asks, points = torch.full((self.num_envs,), 9.0), torch.zeros_like(cue)
        return {"cue": cue, "length": length, "alive": present, "points": points, "asks": asks}

    def _living(self) -> Tensor:
        return self.alive.flatten().clone()

    def _advance(self, action: Tensor) -> tuple[Tensor, Tensor]:
        right = action.view(-1, 2, MEMBERS) == self.cue.unsqueeze(2)
        scored = right & self.alive
        reward = scored.float() - (~right & self.alive).float()
        self.points += scored.sum(2)
        falls = (self.age == 2).view(-1, 1, 1) & ~right & (self._member == 1)
        self.alive &= ~falls
        over = self.age >= self.length
        result = (self.points[:, 0] - self.points[:, 1]).sign().float()
        result = torch.where(self.asks == 9, result, self.asks)
        self.won.copy_(torch.where(over, result, self.won))
        self.games.add_(over)
        return reward.flatten(), over

    def _info(self, reward: Tensor) -> dict[str, Tensor]:
        return {"points": reward, "age": self.age.float()}

    def _observe(self) -> Tensor:
        is_this = self.cue.unsqueeze(2) == torch.arange(CUES)  # one_hot would read on the host
        shown = is_this.float() * (self.age == 0).view(-1, 1, 1)
        age = self.age.float().view(-1, 1, 1).expand(-1, 2, 1)
        rows = torch.cat([shown, age], 2).repeat_interleave(MEMBERS, 1).flatten(0, 1)
        return torch.cat([rows, self._numbers + self.first_slot * AGENTS], 1)


class Echo:
    """Repeats the cue of its first step; with the probability ``error`` a wrong one, in a whole game."""

    adjustable = ("error",)

    def __init__(self, env: TwoSides, error: float = 0.0) -> None:
        self.env, self.made_with, self.error = env, error, error
        rows = env.num_envs * AGENTS
        self.cue = torch.zeros(rows, dtype=torch.int64)
        self.errs = torch.zeros(rows)
        """The error of each row's game."""

    def adjust(self, error: float | None = None) -> None:
        self.error = self.made_with if error is None else error

    def act(self, rows: Tensor, obs: Tree, first: Tensor) -> Tree:
        self.cue[rows] = torch.where(first, obs[:, :CUES].argmax(1), self.cue[rows])
        self.errs[rows] = torch.where(first, self.error, self.errs[rows])
        luck = random.uniform(random.bits(self.env.key[rows // AGENTS], 104))
        return (self.cue[rows] + (luck < self.errs[rows])) % CUES

    def snapshot(self) -> dict[str, Tensor]:
        return {"cue": self.cue.clone(), "errs": self.errs.clone()}

    def restore(self, snapshot: dict[str, Tensor]) -> None:
        self.cue.copy_(snapshot["cue"])
        self.errs.copy_(snapshot["errs"])


class Fixed:
    """Has every game end as it was told: its own side wins (1), loses (-1), or neither does (0)."""

    def __init__(self, env: TwoSides, result: int = 1) -> None:
        self.env, self.result = env, result

    def act(self, rows: Tensor, obs: Tree, first: Tensor) -> Tree:
        is_first_side = rows % AGENTS < MEMBERS
        self.env.asks[rows // AGENTS] = torch.where(is_first_side, self.result, -self.result).float()
        return torch.zeros(len(rows), dtype=torch.int64)
