"""The foraging world, one at a time, from its rules; and agents written by hand that play it.

The agents see what the task shows and nothing else.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise

from tests.reference.draws import Stream

Place = tuple[int, int]
"""Column, row."""
Token = tuple[int, int, int]
MOVES = [(0, -1), (0, 1), (-1, 0), (1, 0)]


class World:
    """One episode."""

    def __init__(self, stream: Stream, side: int, kinds: int, view: int):
        self.stream, self.side, self.kinds, self.view = stream, side, kinds, view
        self.nest = (side // 2, side // 2)
        cells = [(x, y) for y in range(side) for x in range(side)]
        far = [(x, y) for x, y in cells if abs(x - self.nest[0]) + abs(y - self.nest[1]) >= 5]
        self.bushes: list[Place] = []
        for kind in range(kinds):
            self.bushes.append(far.pop(stream.below(kind, len(far))))
        self.agent = cells[stream.below(kinds, len(cells))]
        self.want = stream.below(kinds + 1, kinds)
        self.laden = False
        self.time = 0

    def step(self, action: int) -> float:
        """Move, take or put down; the reward."""
        self.time += 1
        x, y = self.agent[0] + MOVES[action][0], self.agent[1] + MOVES[action][1]
        if 0 <= x < self.side and 0 <= y < self.side:
            self.agent = (x, y)
        if self.laden:
            if self.agent != self.nest:
                return 0.0
            self.laden, self.want = False, self.stream.below(self.kinds + 1 + self.time, self.kinds)
            return 1.0
        if distance(self.agent, self.bushes[self.want]) > 1:
            return 0.0
        self.laden = True
        return 1.0

    def tokens(self) -> set[Token]:
        """What is seen, without padding."""
        own = 2 if self.laden else 3 + self.kinds + self.want
        seen = {(0x55, own, 1), self._token(self.nest, 1)}
        around = range(-self.view, self.view + 1)
        for x, y in ((self.agent[0] + dx, self.agent[1] + dy) for dx in around for dy in around):
            if not (0 <= x < self.side and 0 <= y < self.side):
                seen.add(self._token((x, y), 0))
            seen |= {self._token((x, y), 3 + kind) for kind, at in enumerate(self.bushes) if at == (x, y)}
        return seen

    def _token(self, place: Place, feature: int) -> Token:
        x, y = place[0] - self.agent[0] + 5, place[1] - self.agent[1] + 5
        return 16 * x + y, feature, 1


def distance(one: Place, other: Place) -> int:
    """Cells between, where diagonals count as one."""
    return max(abs(one[0] - other[0]), abs(one[1] - other[1]))


# Agents --------------------------------------------------------------------------------------------------


class Forager:
    """Goes straight to what it wants where it sees it, or remembers it; else round and round."""

    def __init__(self, side: int, kinds: int, view: int, *, remembers: bool):
        self.side, self.kinds, self.remembers = side, kinds, remembers
        self.after = round_trip(side, view)
        self.known: dict[int, Place] = {}

    def act(self, tokens: list[Token], first: bool) -> int:
        """The action on what is seen now."""
        things = {feature: (byte >> 4, byte & 15) for byte, feature, _ in tokens if byte != 255 and feature}
        middle = self.side // 2
        x, y = middle - things[1][0] + 5, middle - things[1][1] + 5  # by where the nest is seen
        if first or not self.remembers:
            self.known = {}
        for kind in range(self.kinds):
            if 3 + kind in things:
                self.known[kind] = (x + things[3 + kind][0] - 5, y + things[3 + kind][1] - 5)
        want = max(things) - 3 - self.kinds
        goal = (middle, middle) if 2 in things else self.known.get(want, self.after[x, y])
        return towards((x, y), goal)


def at_random(seed: int = 0) -> Callable[[list[Token], bool], int]:
    """Any action."""
    generator = random.Random(seed)
    return lambda tokens, first: generator.randrange(4)


def towards(start: Place, goal: Place) -> int:
    """The first move on a way, along the longer side."""
    x, y = goal[0] - start[0], goal[1] - start[1]
    if abs(x) >= abs(y):
        return 3 if x > 0 else 2
    return 1 if y > 0 else 0


def round_trip(side: int, view: int) -> dict[Place, Place]:
    """For every cell the one to go to next, on a closed way from which all cells are seen.

    A comb: the first column up, lanes to and fro beside it, as far apart as the view is wide. Who is not on
    the way goes to its nearest cell.
    """
    width = 2 * view + 1
    low, high = view, side - 1 - view
    count = -(-(high - low) // width) + 1
    count += count % 2  # an even number of lanes ends where it began
    lanes = [low + round(i * (high - low) / (count - 1)) for i in range(count)]
    way = [(low, low)]
    for i, y in enumerate(lanes):
        inner = low if i == count - 1 else min(low + width, high)
        way += walk(way[-1], (way[-1][0], y))
        way += walk(way[-1], (high if i % 2 == 0 else inner, y))
    way += walk(way[-1], way[0])
    after = dict(pairwise(way))
    for x in range(side):
        for y in range(side):
            if (x, y) not in after:
                after[x, y] = min(way, key=lambda at: abs(at[0] - x) + abs(at[1] - y))
    return after


def walk(start: Place, goal: Place) -> list[Place]:
    """The cells after ``start`` up to ``goal``, which is in the same row or column."""
    steps = max(abs(goal[0] - start[0]), abs(goal[1] - start[1]))
    x, y = ((goal[i] - start[i]) // max(steps, 1) for i in range(2))
    return [(start[0] + x * i, start[1] + y * i) for i in range(1, steps + 1)]
