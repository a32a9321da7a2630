"""Forage: carry food from bushes to a nest, in a grid of which only nearby cells are observed."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box, Discrete
from torch import Tensor

from recollect.config.tasks import ForageOptions
from recollect.errors import ConfigError
from recollect.tasks import random
from recollect.tasks.base import Task

UP, DOWN, LEFT, RIGHT = 0, 1, 2, 3
"""The actions."""

APART = 5
"""Minimum distance of bushes from the nest, in steps."""
REACH = 1
"""Distance in cells, also diagonally, from which the agent takes food."""
EDGE = 5
"""Largest distance in cells that a token can hold: coordinates are 0 to 10."""
MOST_KINDS = 9

PADDING = (0xFF, 0, 0)
HERE = EDGE << 4 | EDGE
"""The coordinate byte of the agent's own cell."""
WALL, NEST, LADEN, BUSH = 0, 1, 2, 3
"""Features; from BUSH on the kinds of bushes, then the kinds that the agent wants."""


class Forage(Task):
    """A grid of ``side`` x ``side`` cells with a wall around it, a nest in the middle and ``kinds`` bushes.

    The nest is at column and row side // 2, counted from 0. There is one bush of each kind. Every episode
    places the bushes one after another, uniformly over the free cells at least 5 steps from the nest. The
    agent starts in a uniformly drawn cell without food, and wants a uniformly drawn kind.

    Action, Discrete(4): up, down, left, right, one cell; against the wall the agent stays. It can stand on
    bushes and on the nest. After the move:

    * Without food, if the bush of the wanted kind is at most one cell away, also diagonally, the agent takes
      food: +1. Bushes are never empty.
    * With food, on the nest, the agent puts it down: +1, and wants a uniformly drawn kind.

    All other rewards are 0. The episode is truncated after ``limit`` steps.

    Observation, Box [M, 3] of uint8: an unordered set of tokens (coordinates, feature, value). The coordinate
    byte has x (to the right) in the high and y (down) in the low four bits, in a window of 11 x 11 cells with
    the agent at (5, 5); 255 is padding, whose other bytes are 0. All values are 1. There are 3 + 2 * kinds
    features:

    * 0: a wall; 3 to 2 + kinds: a bush of that kind; both within ``view`` cells, also diagonally.
    * 1: the nest, which is always observed.
    * At (5, 5): 2, the agent carries food; or 3 + kinds to 2 + 2 * kinds, the kind that it wants.

    M = 3 * view^2 + 2 * view (the most walls in view) + 2 + kinds.

    With memory, an agent returns to a known bush; without, it has to search each time. The best returns are
    not known. Hand-written agents reach 23, 16 and 34 with memory at the sizes easy, medium and hard; 12, 7
    and 14 without, on a round trip that sees every cell; 0.9, 0.6 and 1 at random.
    """

    Options = ForageOptions
    has_time_limit = True

    cell: Tensor
    """[B]: the cell of the agent, as row * stride + column."""
    goals: Tensor
    """[B, kinds + 1]: the cells of the bushes, then of the nest."""
    errand: Tensor
    """[B]: index of the current goal: the wanted kind, or the nest."""

    def __init__(self, num_envs: int, device: torch.device | str = "cpu", **options: Any) -> None:
        self.side, self.kinds, self.view, self.limit = ForageOptions(**options).numbers()
        self._check()
        self._walls = _most_walls(self.view)
        high = np.array([0xFF, BUSH + 2 * self.kinds - 1, 1], np.uint8)
        high = np.tile(high, (self._walls + 2 + self.kinds, 1))
        observed = Box(np.zeros_like(high), high, dtype=np.uint8)
        super().__init__(num_envs, device, observed, Discrete(4), self.limit)
        # One visit to every kind, there and back, over the largest distance.
        self.horizon = self.kinds * 2 * (self.side - 1)
        self._lanes = torch.arange(self.kinds + 2, device=self.device)
        self._drawn = random.constant(self.kinds + 1)  # a start uses the counters up to this one
        self._wishes = random.constant(self.kinds)
        # On the device: ``where`` would copy a constant there, which a CUDA graph cannot capture.
        self._home = torch.full((num_envs,), self.kinds, device=self.device)
        self._make_tables()

    def _check(self) -> None:
        """Validate the options against the range of the tokens and the size of the grid."""
        if self.view > EDGE:
            raise ConfigError(f"{self.name}: view is {self.view}; tokens have room for at most {EDGE}")
        if self.side > (most := 2 * EDGE + 1):
            raise ConfigError(f"{self.name}: side is {self.side}; the nest can be seen only up to {most}")
        room = min(int(_distant(self.side).sum()), MOST_KINDS)
        if self.kinds > room:
            fix = ": raise side" if room < MOST_KINDS else ""
            raise ConfigError(f"{self.name}: kinds is {self.kinds}; there is room for {room}{fix}")

    def _make_tables(self) -> None:
        """Make the lookup tables.

        With a stride of 2 * side - 1, every offset between two cells is a different number, so that tables
        can be indexed by the cell of an object minus that of the agent.
        """
        side, stride = self.side, 2 * self.side - 1
        cells = torch.arange(side).unsqueeze(1) * stride + torch.arange(side)
        self._cells = cells.flatten().to(self.device)  # [side^2]: row * stride + column
        self._distant = _distant(side).flatten().to(self.device)
        self._nest = cells[side // 2, side // 2].expand(self.num_envs, 1).to(self.device)
        self._moves = _moves(side, stride).to(self.device)
        self._ground = _ground(side, stride, self.view, self.kinds).to(self.device)
        self._sights = _sights(side, stride, self.view, self.kinds).to(self.device)
        self._reach = _reach(side, stride, self.kinds).to(self.device)
        # [kinds + 1]: the index of offset 0 of each goal in the last two tables.
        origins = torch.arange(self.kinds + 1) * stride**2 + (side - 1) * (stride + 1)
        self._origins = origins.to(self.device)
        self._errands = _errands(self.kinds).to(self.device)

    def _begin(self, key: Tensor) -> dict[str, Tensor]:
        *places, start, wish = random.bits(key.unsqueeze(1), self._lanes).unbind(1)
        free = self._distant.repeat(self.num_envs, 1)
        goals = []
        for place in places:
            at = random.choice(free, place)
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
        """[B * (kinds + 1)]: the offset of each goal from the agent, as an index of the tables."""
        return (self.goals - self.cell.unsqueeze(1)).add_(self._origins).view(-1)

    @staticmethod
    def describe(obs: np.ndarray) -> str:
        """The view as text, with the agent in the middle, then the direction of the nest and the errand.

        ``#`` is a wall, ``n`` the nest, ``a`` to ``i`` are bushes, ``@`` is the agent; a capital letter is
        the object at its own cell.
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


def _most_walls(view: int) -> int:
    """The most walls in view, from a corner."""
    return (2 * view + 1) ** 2 - (view + 1) ** 2


def _byte(x: int, y: int) -> int:
    """The coordinate byte of the cell ``x`` to the right of the agent and ``y`` below it."""
    return (EDGE + x) << 4 | (EDGE + y)


def _distant(side: int) -> Tensor:
    """[side, side]: whether a cell can have a bush."""
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
    """[side * stride, M, 3]: the wall tokens at each cell, then padding."""
    tokens = np.empty((side, stride, _most_walls(view) + 2 + kinds, 3), np.uint8)
    tokens[:] = PADDING
    window = range(-view, view + 1)
    inside = range(side)
    for row in inside:
        for column in inside:
            beyond = (
                (x, y) for y in window for x in window if row + y not in inside or column + x not in inside
            )
            for i, (x, y) in enumerate(beyond):
                tokens[row, column, i] = (_byte(x, y), WALL, 1)
    return torch.from_numpy(tokens).flatten(0, 1)


def _sights(side: int, stride: int, view: int, kinds: int) -> Tensor:
    """[(kinds + 1) * stride^2, 3]: the token of each goal, by its offset from the agent."""
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
    """[(kinds + 1) * stride^2]: whether a goal is reached, by its offset from the agent."""
    middle = side - 1
    far = (torch.arange(stride) - middle).abs()
    near = torch.maximum(far.unsqueeze(1), far) <= REACH
    nest = torch.zeros_like(near)
    nest[middle, middle] = True
    return torch.cat((near.flatten().repeat(kinds), nest.flatten()))


def _errands(kinds: int) -> Tensor:
    """[kinds + 1, 3]: the tokens "wants this kind" and "carries food"."""
    features = [BUSH + kinds + kind for kind in range(kinds)] + [LADEN]
    return torch.tensor([(HERE, feature, 1) for feature in features], dtype=torch.uint8)
