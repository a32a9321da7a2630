"""T-maze: a sign at the start shows where to turn at the end of a long corridor."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box, Discrete
from torch import Tensor

from recollect.config.tasks import TMazeOptions
from recollect.tasks import random
from recollect.tasks.base import Task

FORWARD, LEFT, BACK, RIGHT = 0, 1, 2, 3
"""The actions, in the order of Ni et al."""

SIGHTS = ("sign: left", "sign: right", "corridor", "junction")


class TMaze(Task):
    """The passive T-maze (Bakker 2001; Ni et al. 2023, "When Do Transformers Shine in RL?").

    The corridor has the cells 0 (the start) to ``length`` (the junction). A sign shows the arm with the goal,
    uniformly drawn; it is observed at t = 0 only, also if the agent walks back.

    Action, Discrete(4): forward, left, back, right.

    * Before the junction: forward moves one cell and gives 0. Back moves one cell back (at the start it
      stays), left and right stay; all three give -1/length.
    * At the junction: left and right terminate with 1 if the goal is there, else 0. Forward stays, back moves
      one cell back; both give -1/length.
    * The episode is truncated after ``length`` + 1 steps: an agent that loses one step cannot turn any more.

    Observation, Box [4], one-hot: sign left, sign right, corridor, junction. Neither the position in the
    corridor nor the time is observed. After the turn the junction is still observed.

    The best return is 1 with memory, and 0.5 without.
    """

    Options = TMazeOptions
    has_time_limit = True

    max_return = 1.0
    memoryless_return = 0.5

    goal: Tensor
    """[B]: 0 left, 1 right."""
    cell: Tensor

    def __init__(self, num_envs: int, device: torch.device | str = "cpu", **options: Any) -> None:
        (self.length,) = TMazeOptions(**options).numbers()
        observed = Box(0.0, 1.0, (len(SIGHTS),), np.float32)
        super().__init__(num_envs, device, observed, Discrete(4), self.length + 1)
        self.horizon = self.length
        self._junction = random.constant(self.length)
        self._sights = torch.eye(len(SIGHTS), device=self.device)
        self._moves, self._rewards, self._turns = _rules(self.length, self.device)

    def _begin(self, key: Tensor) -> dict[str, Tensor]:
        goal = random.integers(random.bits(key, 0), 2)
        return {"goal": goal, "cell": torch.zeros_like(goal)}

    def _advance(self, action: Tensor) -> tuple[Tensor, Tensor]:
        # One entry of the rules for each (action, at the junction?, goal).
        case = torch.add(self.goal, self.cell == self._junction, alpha=2)
        case.add_(action, alpha=4)
        self.cell.add_(self._moves.index_select(0, case)).clamp_(0)
        return self._rewards.index_select(0, case), self._turns.index_select(0, case)

    def _observe(self) -> Tensor:
        sight = (self.cell == self._junction).add(2)
        return self._sights.index_select(0, torch.where(self.age == random.ZERO, self.goal, sight))

    @staticmethod
    def describe(obs: np.ndarray) -> str:
        """Such as ``sign: left``, ``corridor`` or ``junction``."""
        return SIGHTS[int(obs.argmax())]


def _rules(length: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Move, reward and whether the episode ends, each [16] over (action, at the junction, goal)."""
    move = torch.zeros(4, 2, 2, dtype=torch.int64)
    move[FORWARD, 0] = 1
    move[BACK] = -1
    reward = torch.full((4, 2, 2), -1.0 / length)
    reward[FORWARD, 0] = 0.0
    reward[LEFT, 1] = torch.tensor([1.0, 0.0])
    reward[RIGHT, 1] = torch.tensor([0.0, 1.0])
    turn = torch.zeros(4, 2, 2, dtype=torch.bool)
    turn[LEFT, 1] = turn[RIGHT, 1] = True
    return move.flatten().to(device), reward.flatten().to(device), turn.flatten().to(device)
