"""Long episodes seen as images: chop trees for 8,000 steps, with rollouts of 2,048 and chunks of 64.

A small version of tree chopping in Minecraft: an image at every step, an action that must be repeated, and
episodes much longer than a rollout, so that the agent's memory must be carried from one rollout to the
next. `configs/long_episode_recurrent.yaml` has the settings.

    python examples/long_episodes.py                                          # some minutes
    python examples/long_episodes.py --steps 2048 --rollout 128 --limit 400   # only to see that it runs
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

import recollect as rc
from recollect.config.toml_yaml import read_config

CONFIG = Path(__file__).resolve().parent.parent / "configs" / "long_episode_recurrent.yaml"
SIDE, TREES, HITS = 12, 24, 3
VIEW, PIXELS, FRAME = 7, 6, 3
"""7 x 7 cells of 6 x 6 pixels with a frame of 3: 48 x 48."""
SHOWN = 5
"""Steps for which a new order is shown."""
GRASS, WALL, OAK, BIRCH = range(4)
COLOURS = np.array([(60, 120, 40), (40, 40, 40), (110, 70, 30), (220, 210, 190)], np.uint8)
MOVES = ((-1, 0), (1, 0), (0, -1), (0, 1))
CHOP = len(MOVES)


class TreeChopping(gym.Env):
    """A walled clearing of ``SIDE`` x ``SIDE`` cells with oaks and birches; the agent sees 7 x 7 of them.

    Every ``order`` steps one of the two kinds is ordered at random. The frame of the image shows its colour
    for the first ``SHOWN`` steps and is dark after that, so the agent must remember the order.

    Observation, uint8 [48, 48, 3]: the agent is in the middle, and the side that it faces is light.
    Action, Discrete(5): up, down, left and right turn the agent and move it one cell if the cell is free;
    chop hits the tree in front. ``HITS`` hits in a row fell it: +1 if its kind is ordered, else -0.5. A
    tree of the same kind then grows elsewhere. No rule ends an episode; it is truncated after ``limit``
    steps.

    An agent that chops without memory of the order earns 0.25 per tree on average, one with memory 1.
    """

    observation_space = gym.spaces.Box(0, 255, (VIEW * PIXELS + 2 * FRAME,) * 2 + (3,), np.uint8)
    action_space = gym.spaces.Discrete(CHOP + 1)

    def __init__(self, limit: int = 8000, order: int = 100):
        self.limit, self.order = limit, order

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        """A new clearing, from the env's own random stream, which the seed sets."""
        super().reset(seed=seed)
        margin = VIEW // 2  # of wall cells, so that the view never leaves the map
        self.map = np.full((SIDE + 2 * margin,) * 2, WALL)
        self.map[margin:-margin, margin:-margin] = GRASS
        self.place = (margin + SIDE // 2,) * 2
        self.facing, self.hits, self.age = 0, 0, 0
        for tree in range(TREES):
            self._grow(OAK if tree % 2 else BIRCH)
        self.wanted = self._draw_order()
        return self._see(), {}

    def step(self, action: int):
        """Turn and move, or hit; after ``order`` steps draw the next order."""
        self.age += 1
        reward = self._chop() if action == CHOP else self._go(int(action))
        if self.age % self.order == 0:
            self.wanted = self._draw_order()
        return self._see(), reward, False, self.age >= self.limit, {}

    def _go(self, direction: int) -> float:
        self.facing, self.hits = direction, 0
        if self.map[self._front()] == GRASS:
            self.place = self._front()
        return 0.0

    def _chop(self) -> float:
        front = self._front()
        kind = int(self.map[front])
        if kind not in (OAK, BIRCH):
            return 0.0
        self.hits += 1
        if self.hits < HITS:
            return 0.0
        self.hits = 0
        self.map[front] = GRASS
        self._grow(kind)
        return 1.0 if kind == self.wanted else -0.5

    def _grow(self, kind: int) -> None:
        free = np.argwhere(self.map == GRASS)
        free = free[(free != self.place).any(1)]
        self.map[tuple(free[self.np_random.integers(len(free))])] = kind

    def _draw_order(self) -> int:
        return OAK if self.np_random.random() < 0.5 else BIRCH

    def _front(self) -> tuple[int, int]:
        down, right = MOVES[self.facing]
        return self.place[0] + down, self.place[1] + right

    def _see(self) -> np.ndarray:
        picture = np.zeros(self.observation_space.shape, np.uint8)
        if self.age % self.order < SHOWN:
            picture[:] = COLOURS[self.wanted]
        reach = VIEW // 2
        rows, columns = (slice(at - reach, at + reach + 1) for at in self.place)
        cells = COLOURS[self.map[rows, columns]].repeat(PIXELS, 0).repeat(PIXELS, 1)
        middle = cells[reach * PIXELS : (reach + 1) * PIXELS, reach * PIXELS : (reach + 1) * PIXELS]
        middle[:] = (200, 30, 30)
        (middle if self.facing < 2 else middle.swapaxes(0, 1))[-(self.facing % 2)] = 255
        picture[FRAME:-FRAME, FRAME:-FRAME] = cells
        return picture


def main(argv: list[str] | None = None) -> None:
    """Train with the settings of the config file, and print the return of an episode."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200_000, help="env steps to train for (%(default)s)")
    parser.add_argument("--rollout", type=int, default=2048, help="steps between two updates (%(default)s)")
    parser.add_argument("--limit", type=int, default=8000, help="steps of an episode (%(default)s)")
    args = parser.parse_args(argv)

    settings = read_config(CONFIG) | {"env": TreeChopping, "env_kwargs": {"limit": args.limit}}
    agent = rc.train(**settings | {"steps": args.steps, "rollout": args.rollout})
    result = agent.evaluate(episodes=2, eval_mode="sampled")
    print(f"An episode of {args.limit} steps earns {result.mean:.1f}: 1 for a right tree, -0.5 for a wrong.")


if __name__ == "__main__":
    main()
