"""Treasure hunt: agents that see only nearby cells share a grid in which treasures appear."""

from __future__ import annotations

from math import isqrt
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box, Discrete
from torch import Tensor

from recollect.config.tasks import TreasureHuntOptions
from recollect.errors import ConfigError
from recollect.tasks import random
from recollect.tasks.base import Task

UP, DOWN, LEFT, RIGHT = 0, 1, 2, 3
"""The actions."""

EMPTY, GEM, BONE, FOOD, WALL, AGENT = range(6)
"""The kinds of cells. From WALL on they block a move."""
VALUES = (0.0, 10.0, -10.0, 5.0, -1.0, 0.0)
"""The reward for a move to a cell, by its kind."""
FEATURES = (None, 2, 3, 4, 1, 5)
"""The index of each kind in the one-hot observation of a cell; an empty cell is all zeros."""
COLOURS = (
    (255, 255, 255),
    (38, 139, 210),
    (133, 94, 66),
    (60, 160, 75),
    (70, 76, 86),
    (222, 94, 30),
)
"""The colour of each kind."""
NAMES = ("", "gem", "bone", "food", "wall", "agent")
PIXELS = 8
"""Side of a cell in the picture: small, so that it is enlarged by a whole number."""
SEEN = (255, 244, 204)
"""The colour of empty cells that agent 0 sees, in the picture."""


class TreasureHunt(Task):
    """A grid of ``side`` x ``side`` cells, of which the outer ring is wall, with ``agents`` agents.

    An episode starts without items; the agents start on distinct cells, drawn uniformly. In a turn:

    * The agents move one after another, by ``order``: agent 0 first ("index"), or in a new random order in
      each turn ("random"). Action, Discrete(4): up, down, left, right, one cell. Walls and other agents block
      a move, and the agent stays. An agent collects the item that it steps on.
    * Then every empty cell turns into an item with probability ``spawn``, uniformly one of the kinds
      (``items`` = 1: gems; 2: gems and bones; 3: gems, bones and food).
    * Then every agent observes the cells around it.

    The reward is the value of the cell that the agent moves to, also if the move is blocked: gem 10, food 5,
    bone -10, empty 0, wall -1, another agent 0. The episode is truncated after ``length`` turns.

    Observation, Box [(2 * view + 1)^2 * n] from 0 to 1: the window of cells around the agent, row by row.
    Cells outside of the grid are walls; in the middle is the agent itself. ``obs`` = "onehot": n = 6
    (empty, wall, gem, bone, food, agent), but an empty cell is all zeros; "rgb": n = 3, its colour.

    The best returns are not known. Summed over all agents, random actions get 20 at the size large and 248 at
    the size small; a hand-written agent without memory, which walks to the best item in view and else at
    random, gets 342 and 515. Alone in the small grid they get 79 and 269. By index order, agent 0 comes first
    to an item that two agents want.

    Metrics: ``info/agent_0_return`` and so on for each agent, and ``info/team_return``, their sum: the mean
    reward of the rollout's steps, times ``length``.
    """

    Options = TreasureHuntOptions
    has_time_limit = True

    board: Tensor
    """[E, cells] uint8: the kinds of all cells. Between the rows, above and below are ``view`` walls."""
    cells: Tensor
    """[E, agents]: where the agents are, as indices of ``board``."""

    def __init__(self, num_envs: int, device: torch.device | str = "cpu", **options: Any) -> None:
        chosen = TreasureHuntOptions(**options)
        self.side, self.agents, self.view, self.items, self.spawn, length = chosen.numbers()
        self.obs, self.order = chosen.choice("obs"), chosen.choice("order")
        room = (self.side - 2) ** 2
        if self.agents > room:
            raise ConfigError(
                f"{self.name}: agents is {self.agents}, and a side of {self.side} has room for {room} inside "
                "of its walls: raise side"
            )
        sights = _sights(self.obs)
        observed = Box(0.0, 1.0, ((2 * self.view + 1) ** 2 * sights.shape[1],), np.float32)
        super().__init__(num_envs, device, observed, Discrete(4), length)
        self.horizon = 2 * self.view + 1  # after as many moves the view is another one
        self._make_tables(sights)

    def _make_tables(self, sights: Tensor) -> None:
        """Make the lookup tables and constants."""
        inside, view = self.side - 2, self.view
        stride = inside + view  # the walls between two rows belong to both
        first = view + view * stride
        rows = torch.arange(inside).unsqueeze(1)
        places = (first + rows * stride + torch.arange(inside)).flatten()
        walls = torch.full((1, view + (inside + 2 * view) * stride), WALL, dtype=torch.uint8)
        around = torch.arange(-view, view + 1)
        # A random word has a lane of 32 bits for each of two cells. The cells of all rows in one piece,
        # with the walls between them, on which nothing appears.
        words = (inside * stride - view + 1) // 2
        self._field = slice(first, first + 2 * words)
        self._turn_words = random.constant(words + self.agents)
        levels = [round(self.spawn * 2**32 * k / self.items) - 1 - 2**31 for k in range(self.items, 0, -1)]
        self._levels = [random.constant(max(level, -(2**31))) for level in levels]
        on = self.device
        self._places = places.to(on)
        self._ground = walls.index_fill(1, places, EMPTY).to(on)
        self._window = (around.unsqueeze(1) * stride + around).flatten().to(on)
        self._moves = torch.tensor([-stride, stride, -1, 1]).to(on)
        self._values = torch.tensor(VALUES).to(on)
        self._sights = sights.to(on)
        self._starts = torch.arange(self.agents, device=on)
        self._lanes = torch.arange(words, device=on)
        self._order_lanes = self._starts + words

    def _begin(self, key: Tensor) -> dict[str, Tensor]:
        free = torch.ones(self.num_envs, len(self._places), dtype=torch.bool, device=self.device)
        cells = []
        for word in random.bits(key.unsqueeze(1), self._starts).unbind(1):
            at = random.choice(free, word)
            free.scatter_(1, at.unsqueeze(1), False)
            cells.append(self._places.index_select(0, at))
        cells = torch.stack(cells, 1)
        return {"cells": cells, "board": self._ground.repeat(self.num_envs, 1).scatter_(1, cells, AGENT)}

    def _advance(self, action: Tensor) -> tuple[Tensor, Tensor]:
        # Counters below ``agents`` are those of the start: the first turn has age 1.
        key = random.ahead(self.key, self.age * self._turn_words).unsqueeze(1)
        reward = self._move(action.view(self.cells.shape), key)
        lanes = random.bits(key, self._lanes).view(torch.int32)  # [E, words] -> [E, 2 * words]
        appears = (lanes <= self._levels[0]).to(torch.uint8)
        for level in self._levels[1:]:
            appears += lanes <= level
        field = self.board[:, self._field]
        field += appears.mul_(field == EMPTY)
        return reward.view(-1), self._never

    def _move(self, action: Tensor, key: Tensor) -> Tensor:
        """Move the agents by ``action`` [E, agents], one after another. Returns their rewards."""
        cells = self.cells
        targets = cells + self._moves.index_select(0, action.flatten()).view(cells.shape)
        turns = None
        if self.order == "random":
            turns = random.bits(key, self._order_lanes).argsort(1)
            cells, targets = cells.gather(1, turns), targets.gather(1, turns)
        after, found = [], []
        for here, target in zip(cells.split(1, 1), targets.split(1, 1)):
            kind = self.board.gather(1, target)
            there = torch.where(kind >= WALL, here, target)
            self.board.scatter_(1, here, EMPTY).scatter_(1, there, AGENT)
            after.append(there)
            found.append(kind)
        rewards = self._values.index_select(0, torch.cat(found, 1).flatten().int()).view(cells.shape)
        if turns is None:
            torch.cat(after, 1, out=self.cells)
            return rewards
        self.cells.scatter_(1, turns, torch.cat(after, 1))
        return torch.empty_like(rewards).scatter_(1, turns, rewards)

    def _observe(self) -> Tensor:
        around = (self.cells.unsqueeze(2) + self._window).flatten(1)
        kinds = self.board.gather(1, around).flatten().int()
        return self._sights.index_select(0, kinds).view(self.num_envs * self.agents, -1)

    def _info(self, reward: Tensor) -> dict[str, Tensor]:
        # The mean over the steps of an episode is its return.
        shape = self.num_envs, self.agents, self.agents
        each = (reward * self.max_episode_steps).view(-1, 1, self.agents).expand(shape).reshape(-1, shape[2])
        names = [f"{name}_return" for name in self.agent_names]
        return dict(zip(names, each.unbind(1))) | {"team_return": each.sum(1)}

    def picture(self) -> np.ndarray:
        """The grid of slot 0; the view of agent 0 is lighter, and the agent itself has a dot."""
        inside, view = self.side - 2, self.view
        cells = self.board[0].index_select(0, self._places).view(inside, inside)
        kinds = np.pad(cells.cpu().numpy(), 1, constant_values=WALL)
        row, column = divmod(int((self._places == self.cells[0, 0]).nonzero()), inside)
        row, column = row + 1, column + 1
        ground = np.full((*kinds.shape, 3), COLOURS[EMPTY], np.uint8)
        ground[max(row - view, 0) : row + view + 1, max(column - view, 0) : column + view + 1] = SEEN
        shown = _shapes()[kinds]
        shown[row, column, 3:5, 3:5] = False
        colours = np.array(COLOURS, np.uint8)[kinds]
        image = np.where(shown[..., None], colours[:, :, None, None], ground[:, :, None, None])
        return image.swapaxes(1, 2).reshape(self.side * PIXELS, self.side * PIXELS, 3)

    @staticmethod
    def describe(obs: np.ndarray) -> str:
        """The cells in view that are not empty, the nearest first; of walls only those straight ahead."""
        channels = 6 if 6 * isqrt(len(obs) // 6) ** 2 == len(obs) else 3
        sights = _sights("onehot" if channels == 6 else "rgb")
        kinds = (torch.from_numpy(obs).view(-1, 1, channels) - sights).abs().sum(2).argmin(1)
        view = isqrt(len(kinds)) // 2
        around = [(x, y) for y in range(-view, view + 1) for x in range(-view, view + 1)]
        items: list[str] = []
        walls: dict[tuple[bool, ...], str] = {}  # the nearest in each direction
        for (x, y), kind in sorted(zip(around, kinds.tolist()), key=lambda cell: _distance(*cell[0])):
            words = f"{NAMES[kind]} {_way(x, y)}"
            if kind == WALL and not (x and y):
                walls.setdefault((x > 0, y > 0, x == 0), words)
            elif kind not in (EMPTY, WALL) and (x or y):
                items.append(words)
        return ", ".join([*items, *walls.values()]) or "nothing"


def _distance(x: int, y: int) -> int:
    return abs(x) + abs(y)


def _way(x: int, y: int) -> str:
    """Such as ``2 right 1 up``."""
    steps = ((abs(x), "right" if x > 0 else "left"), (abs(y), "down" if y > 0 else "up"))
    return " ".join(f"{count} {way}" for count, way in steps if count)


def _sights(obs: str) -> Tensor:
    """[kinds, n] float32: what each kind of cell looks like."""
    if obs == "rgb":
        return torch.tensor(COLOURS) / 255
    table = torch.zeros(len(FEATURES), len(FEATURES))
    for kind, feature in enumerate(FEATURES):
        if feature is not None:
            table[kind, feature] = 1.0
    return table


def _shapes() -> np.ndarray:
    """[kinds, PIXELS, PIXELS] bool: a diamond, a bar, a square, a full cell, and a disc."""
    middle = (PIXELS - 1) / 2
    y, x = np.abs(np.arange(PIXELS) - middle)[:, None], np.abs(np.arange(PIXELS) - middle)
    empty = np.zeros((PIXELS, PIXELS), bool)
    return np.stack([empty, x + y < 4, (x < 3) & (y < 1), (x < 2) & (y < 2), ~empty, x**2 + y**2 < 13])
