"""Treasure hunt, one grid at a time, from its rules; and an agent without memory that plays it.

The agent sees what the task shows and nothing else.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tests.reference.draws import Stream

Place = tuple[int, int]
"""Row, column; walls are in row and column 0."""
MOVES = [(-1, 0), (1, 0), (0, -1), (0, 1)]
VALUES = {".": 0.0, "g": 10.0, "b": -10.0, "f": 5.0, "#": -1.0, "a": 0.0}
ONEHOT = "?#gbfa"
"""The kinds in the order of the one-hot observation; an empty cell is none of them."""


class World:
    """One episode."""

    def __init__(
        self, stream: Stream, side: int, agents: int, view: int, items: int, spawn: float, order: str
    ):
        self.stream, self.side, self.view, self.items, self.spawn = stream, side, view, items, spawn
        self.order, self.time = order, 0
        inside = range(1, side - 1)
        free = [(row, column) for row in inside for column in inside]
        self.grid = {(row, column): "#" for row in range(side) for column in range(side)}
        self.grid |= dict.fromkeys(free, ".")
        self.agents = [free.pop(stream.below(i, len(free))) for i in range(agents)]
        self.grid |= dict.fromkeys(self.agents, "a")

    def step(self, actions: list[int]) -> list[float]:
        """Move all agents, then let items appear; the rewards."""
        self.time += 1
        stride = self.side - 2 + self.view
        words = ((self.side - 2) * stride - self.view + 1) // 2
        begin, count = self.time * (words + len(self.agents)), len(self.agents)
        turns = self.stream.order(begin + words, count) if self.order == "random" else range(count)
        rewards = [0.0] * count
        for agent in turns:
            here, (down, right) = self.agents[agent], MOVES[actions[agent]]
            there = (here[0] + down, here[1] + right)
            rewards[agent] = VALUES[self.grid[there]]
            if self.grid[there] not in "#a":
                self.grid[here], self.grid[there] = ".", "a"
                self.agents[agent] = there
        for (row, column), kind in self.grid.items():
            if kind == ".":
                lane = (row - 1) * stride + column - 1
                half = self.stream.word(begin + lane // 2) >> 32 * (lane % 2)
                number = (half + 2**31) % 2**32  # as a signed number, counted from the smallest
                self.grid[row, column] = self._item(number)
        return rewards

    def _item(self, number: int) -> str:
        """The kind of a cell that was empty, by a number below 2^32."""
        for k, kind in enumerate("gbf"[: self.items][::-1]):
            if number < round(self.spawn * 2**32 * (k + 1) / self.items):
                return kind
        return "."

    def seen(self, agent: int) -> str:
        """The window of an agent, row by row."""
        row, column = self.agents[agent]
        around = range(-self.view, self.view + 1)
        return "".join(self.grid.get((row + y, column + x), "#") for y in around for x in around)


def onehot(seen: str) -> list[float]:
    """The observation of a window."""
    return [float(kind == one) for kind in seen for one in ONEHOT]


def walker(obs: Tensor, generator: torch.Generator) -> Tensor:
    """[B]: a move to the item in view with the most value per step, around walls, agents and bones.

    ``obs`` [B, 150]. Without an item in view, any move that is not blocked. Equally good moves are drawn.
    """
    cells = obs.view(len(obs), 25, 6)
    away = torch.arange(-2, 3)
    y, x = away.repeat_interleave(5), away.repeat(5)
    value = (10 * cells[..., ONEHOT.index("g")] + 5 * cells[..., ONEHOT.index("f")]) / (
        y.abs() + x.abs()
    ).clamp(min=1)
    best, goal = value.max(1)
    moves = torch.tensor(MOVES)
    left = (y[goal].unsqueeze(1) - moves[:, 0]).abs() + (x[goal].unsqueeze(1) - moves[:, 1]).abs()
    beside = 12 + 5 * moves[:, 0] + moves[:, 1]
    bad = sum(cells[:, beside, ONEHOT.index(kind)] for kind in "#ab")
    chance = torch.rand(bad.shape, generator=generator) / 2
    return (left * (best > 0).unsqueeze(1) + 100 * bad + chance).argmin(1)
