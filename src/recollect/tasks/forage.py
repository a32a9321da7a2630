"""Forage: carry food from bushes to a nest, through a world of which only the next cells are seen."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from recollect.config.tasks import ForageOptions
from recollect.errors import ConfigError
from recollect.tasks import random
from recollect.tasks.base import Task

UP, DOWN, LEFT, RIGHT = 0, 1, 2, 3
"""The actions."""

APART = 5
"""Bushes are at least so many steps from the nest."""
REACH = 1
"""Food is taken from so far, also diagonally."""
EDGE = 5
"""Tokens have room for so many cells to each side: their coordinates go from 0 to 10."""
MOST_KINDS = 9

PADDING = (0xFF, 0, 0)
HERE = EDGE << 4 | EDGE
"""The coordinate byte of the agent's own cell."""
WALL, NEST, LADEN, BUSH = 0, 1, 2, 3
"""Features; from BUSH on the kinds of bushes, then as many wishes."""


class Forage(Task):
    """A world of ``side`` x ``side`` cells with a wall around it, a nest in the middle and ``kinds`` bushes.

    The nest is at column and row side // 2, counted from 0. There is one bush of each kind. Bushes stay where
    they are for an episode, and are drawn anew for the next: one after another, uniformly over the cells
    without a bush that are at least 5 steps from the nest. The agent starts in any cell, uniformly drawn,
    with empty hands, and wants one of the kinds, uniformly drawn.

    Action, Discrete(4): up, down, left, right, one cell; against the wall the agent stays. It can stand on
    bushes and on the nest. After the move:

    * With empty hands, if the bush of the wanted kind is at most one cell away, also diagonally: it takes
      food from there, +1. A bush never runs out.
    * With food, if it is on the nest: it puts the food down, +1, and wants one of the kinds, uniformly drawn.

    Nothing else is rewarded. After ``limit`` steps the episode is truncated.

    Observation, Box [M, 3] of uint8: a set of tokens (coordinates, feature, value), in no order that means
    anything. The coordinate byte has x (to the right) in the high and y (down) in the low four bits of a
    window of 11 x 11 cells with the agent at (5, 5); 255 is padding, whose other bytes are 0. All values are
    1. The features, of which there are 3 + 2 * kinds:

    * 0: a wall, and 3 to 2 + kinds: a bush of that kind, where at most ``view`` cells away, also diagonally.
    * 1: the nest, which is seen from everywhere.
    * At (5, 5), 2: the agent carries food, or 3 + kinds to 2 + 2 * kinds: the kind that it wants.

    M = 3 * view^2 + 2 * view (the most walls in view) + 2 + kinds.

    Who remembers where a bush was walks there from the nest; who does not has to search for it every time.
    The best returns are not known. Written by hand, an agent with memory gets 23, 16 and 34 at the sizes
    easy, medium and hard; one without, on a round trip that sees every cell, 12, 7 and 14; at random it is
    0.9, 0.6 and 1.
    """

    Options = ForageOptions

    cell: Tensor
    """[B]: where the agent is, as row * stride + column."""
    goals: Tensor
    """[B, kinds + 1]: the cells of the bushes, then that of the nest."""
    errand: Tensor
    """[B]: which of the goals to go to: the kind that is wanted, or the nest."""

    def __init__(self, num_envs: int, device: torch.device | str = "cpu", **options: Any) -> None:
        self.side, self.kinds, self.view, self.limit = ForageOptions(**options).numbers()
        self._check()
        walls = _most_walls(self.view)
        high = np.array([0xFF, BUSH + 2 * self.kinds - 1, 1], np.uint8)
        high = np.tile(high, (walls + 2 + self.kinds, 1))
        super().__init__(
            num_envs,
            device,
            observation_space=gym.spaces.Box(np.zeros_like(high), high, dtype=np.uint8),
            action_space=gym.spaces.Discrete(4),
            max_episode_steps=self.limit,
            time_limit=True,
        )
        # Once round all kinds: there and back, each as far away as can be.
        self.horizon = self.kinds * 2 * (self.side - 1)
        self._walls = walls
        self._lanes = torch.arange(self.kinds + 2, device=self.device)
        self._drawn = random.constant(self.kinds + 1)  # a start uses up counters 0 to this one
        self._wishes = random.constant(self.kinds)
        # On the device: where copies a constant there, which a CUDA graph cannot capture.
        self._home = torch.full((num_envs,), self.kinds, device=self.device)
        self._make_tables()

    def _check(self) -> None:
        """Raise for options that the tokens or the world have no room for."""
        if self.view > EDGE:
            raise ConfigError(f"{self.name}: view is {self.view}; tokens have room for at most {EDGE}")
        if self.side > 2 * EDGE + 1:
            most = 2 * EDGE + 1
            raise ConfigError(f"{self.name}: side is {self.side}; the nest can be seen only up to {most}")
        room = int(_distant(self.side).sum())
        if self.kinds > min(room, MOST_KINDS):
            raise ConfigError(
                f"{self.name}: kinds is {self.kinds}; there is room for {min(room, MOST_KINDS)}"
                + (": raise side" if room < MOST_KINDS else "")
            )

    def _make_tables(self) -> None:
        """Everything that does not change, as tables to look up.

        With a stride of twice the side no two offsets between cells are the same number, so that what is seen
        of a thing can be looked up by its cell minus the agent's.
        """
        side, stride = self.side, 2 * self.side - 1
        cells = torch.arange(side).unsqueeze(1) * stride + torch.arange(side)
        nest = cells[side // 2, side // 2]
        tables = {
            "_cells": cells.flatten(),
            "_distant": _distant(side).flatten(),
            "_nest": nest.expand(self.num_envs, 1),
            "_moves": _moves(side, stride),
            "_ground": _ground(side, stride, self.view, self.kinds),
            "_sights": _sights(side, stride, self.view, self.kinds),
            "_reach": _reach(side, stride, self.kinds),
            "_origins": torch.arange(self.kinds + 1) * stride**2 + (side - 1) * (stride + 1),
            "_errands": _errands(self.kinds),
        }
        for name, table in tables.items():
            setattr(self, name, table.to(self.device))

    _cells: Tensor
    """[side^2]: row * stride + column."""
    _distant: Tensor
    """[side^2]: whether a bush can be there."""
    _nest: Tensor
    """[B, 1]: its cell."""
    _moves: Tensor
    """The next cell, over cell * 4 + action."""
    _ground: Tensor
    """[., M, 3]: the walls as seen from each cell, then padding."""
    _sights: Tensor
    """[., 3]: the token of each goal, over offsets."""
    _reach: Tensor
    """[.]: whether that is close enough."""
    _origins: Tensor
    """[kinds + 1]: the offset 0 of each goal in these two."""
    _errands: Tensor
    """[kinds + 1, 3]: the token that says where to go."""

    def _begin(self, key: Tensor) -> dict[str, Tensor]:
        *places, start, wish = random.bits(key.unsqueeze(1), self._lanes).unbind(1)
        free = self._distant.repeat(self.num_envs, 1)
        goals = []
        for place in places:
            at = _draw(free, place)
            goals.append(self._cells.index_select(0, at).unsqueeze(1))
            free.scatter_(1, at.unsqueeze(1), False)
        return {
            "cell": self._cells.index_select(0, random.integers(start, len(self._cells))),
            "goals": torch.cat((*goals, self._nest), 1),
            "errand": random.integers(wish, self.kinds),
        }

    def _advance(self, action: Tensor) -> tuple[Tensor, Tensor]:
        torch.index_select(self._moves, 0, torch.add(action, self.cell, alpha=4), out=self.cell)
        near = self._reach.index_select(0, self._offsets()).view(self.goals.shape)
        there = near.gather(1, self.errand.unsqueeze(1)).squeeze(1)
        wish = random.integers(random.bits(self.key, self.age + self._drawn), self._wishes)
        # From a bush to the nest, which is the last goal; from the nest to a bush.
        following = torch.where(self.errand == self._wishes, wish, self._home)
        torch.where(there, following, self.errand, out=self.errand)
        return there.float(), self._never

    def _observe(self) -> Tensor:
        tokens = self._ground.index_select(0, self.cell)
        sights = self._sights.index_select(0, self._offsets())
        tokens[:, self._walls] = self._errands.index_select(0, self.errand)
        tokens[:, self._walls + 1 :] = sights.view(self.num_envs, -1, 3)
        return tokens

    def _offsets(self) -> Tensor:
        """[B * (kinds + 1)]: where each goal is from the agent, as an index of the tables."""
        return (self.goals - self.cell.unsqueeze(1)).add_(self._origins).view(-1)

    @staticmethod
    def describe(obs: np.ndarray) -> str:
        """The view as text, with ``@`` or a capital in the middle, then where the nest is and what to do.

        ``#`` is a wall, ``n`` the nest, ``a`` to ``i`` are bushes; a capital is what the agent stands on.
        """
        view = max(v for v in range(1, EDGE + 1) if _most_walls(v) + 3 <= len(obs))
        kinds = len(obs) - 2 - _most_walls(view)
        window = np.full((2 * EDGE + 1, 2 * EDGE + 1), ".")
        window[EDGE, EDGE] = "@"
        nest = errand = ""
        for coordinates, feature, _ in obs.tolist():
            if coordinates == PADDING[0]:
                continue
            x, y = coordinates >> 4, coordinates & 0xF
            if feature == NEST:
                nest = f"nest {_way(x - EDGE, 'left', 'right')} {_way(y - EDGE, 'up', 'down')}"
            if feature == LADEN:
                errand = "carries food"
            elif feature >= BUSH + kinds:
                errand = f"wants {_letter(feature - BUSH - kinds)}"
            else:
                letter = {WALL: "#", NEST: "n"}.get(feature, _letter(feature - BUSH))
                window[y, x] = letter.upper() if coordinates == HERE else letter
        seen = window[EDGE - view : EDGE + view + 1, EDGE - view : EDGE + view + 1]
        return "\n".join(["".join(row) for row in seen] + [f"{nest}, {errand}"])


def _letter(kind: int) -> str:
    return chr(ord("a") + kind)


def _way(steps: int, back: str, forth: str) -> str:
    """Such as ``3 left``."""
    return f"{abs(steps)} {back if steps < 0 else forth}"


def _draw(allowed: Tensor, word: Tensor) -> Tensor:
    """[B]: one of the cells that ``allowed`` [B, cells] has in each row, by the random ``word`` [B]."""
    rank = allowed.cumsum(1)
    chosen = random.integers(word, rank[:, -1])
    return (rank <= chosen.unsqueeze(1)).sum(1)


def _most_walls(view: int) -> int:
    """Wall cells in view from a corner, where there are most."""
    return (2 * view + 1) ** 2 - (view + 1) ** 2


def _byte(x: int, y: int) -> int:
    """The coordinate byte of the cell ``x`` to the right of the agent and ``y`` below it."""
    return (EDGE + x) << 4 | (EDGE + y)


def _distant(side: int) -> Tensor:
    """[side, side]: whether a bush can be there."""
    steps = (torch.arange(side) - side // 2).abs()
    return steps.unsqueeze(1) + steps >= APART


def _moves(side: int, stride: int) -> Tensor:
    """The next cell, over cell * 4 + action."""
    row, column = torch.arange(side).view(-1, 1), torch.arange(stride).view(1, -1)
    after = torch.empty(side, stride, 4, dtype=torch.int64)
    after[..., UP] = (row - 1).clamp(min=0) * stride + column
    after[..., DOWN] = (row + 1).clamp(max=side - 1) * stride + column
    after[..., LEFT] = row * stride + (column - 1).clamp(min=0)
    after[..., RIGHT] = row * stride + (column + 1).clamp(max=side - 1)
    return after.flatten()


def _ground(side: int, stride: int, view: int, kinds: int) -> Tensor:
    """[side * stride, M, 3]: the walls as seen from each cell, then padding."""
    tokens = np.empty((side, stride, _most_walls(view) + 2 + kinds, 3), np.uint8)
    tokens[:] = PADDING
    window = range(-view, view + 1)
    inside = range(side)
    for row in inside:
        for column in inside:
            walls = [
                (_byte(x, y), WALL, 1)
                for y in window
                for x in window
                if row + y not in inside or column + x not in inside
            ]
            tokens[row, column, : len(walls)] = np.array(walls, np.uint8).reshape(-1, 3)
    return torch.from_numpy(tokens).flatten(0, 1)


def _sights(side: int, stride: int, view: int, kinds: int) -> Tensor:
    """[(kinds + 1) * stride^2, 3]: the token of each goal, by how far it is from the agent."""
    tokens = np.empty((kinds + 1, stride, stride, 3), np.uint8)
    tokens[:] = PADDING
    middle = side - 1
    for goal in range(kinds + 1):
        feature, seen = (BUSH + goal, view) if goal < kinds else (NEST, EDGE)
        for y in range(max(-seen, -middle), min(seen, middle) + 1):
            for x in range(max(-seen, -middle), min(seen, middle) + 1):
                tokens[goal, middle + y, middle + x] = (_byte(x, y), feature, 1)
    return torch.from_numpy(tokens).view(-1, 3)


def _reach(side: int, stride: int, kinds: int) -> Tensor:
    """[(kinds + 1) * stride^2]: whether a goal is reached, by how far it is from the agent."""
    middle = side - 1
    far = (torch.arange(stride) - middle).abs()
    near = torch.maximum(far.unsqueeze(1), far) <= REACH
    nest = torch.zeros_like(near)
    nest[middle, middle] = True
    return torch.cat((near.flatten().repeat(kinds), nest.flatten()))


def _errands(kinds: int) -> Tensor:
    """[kinds + 1, 3]: the token that says which kind is wanted, or that the agent carries food."""
    features = [BUSH + kinds + kind for kind in range(kinds)] + [LADEN]
    return torch.tensor([(HERE, feature, 1) for feature in features], dtype=torch.uint8)
