"""A Dict observation, image and numbers: a camera shows a gem once, then goes dark.

The observation has the robot's position (a vector) and the picture of a camera above it (an image). Only
in the first step of an episode the picture shows the gem; then it is dark. Recollect builds the encoder
from the space: a small conv stack for the image, an MLP for the numbers, joined before the memory.

    python examples/dict_image.py               # less than a minute
    python examples/dict_image.py --steps 4096  # only to see that it runs
"""

from __future__ import annotations

import argparse
from typing import Any

import gymnasium as gym
import numpy as np

import recollect as rc

SIDE, PIXELS, LIMIT = 5, 2, 12
MOVES = np.array([(-1, 0), (1, 0), (0, -1), (0, 1)])


class Gem(gym.Env):
    """A grid of ``SIDE`` x ``SIDE`` cells, each ``PIXELS`` pixels wide in the picture.

    Observation, Dict: ``camera``, uint8 [10, 10, 3], the gem in red, dark after the first step;
    ``position``, float32 [2] in [-1, 1]. Action, Discrete(4). The gem gives 1 and terminates; after
    ``LIMIT`` steps the episode is truncated.
    """

    observation_space = gym.spaces.Dict(
        camera=gym.spaces.Box(0, 255, (SIDE * PIXELS, SIDE * PIXELS, 3), np.uint8),
        position=gym.spaces.Box(-1.0, 1.0, (2,), np.float32),
    )
    action_space = gym.spaces.Discrete(4)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        """Gem and robot in two different cells."""
        super().reset(seed=seed)
        cells = self.np_random.choice(SIDE * SIDE, size=2, replace=False)
        self.gem, self.robot = (np.array(divmod(int(cell), SIDE)) for cell in cells)
        self.age = 0
        return self._see(), {}

    def step(self, action: int):
        """Move one cell; walls block."""
        self.age += 1
        self.robot = np.clip(self.robot + MOVES[action], 0, SIDE - 1)
        found = bool((self.robot == self.gem).all())
        return self._see(), float(found), found, not found and self.age >= LIMIT, {}

    def _see(self) -> dict[str, np.ndarray]:
        camera = np.zeros((SIDE, SIDE, 3), np.uint8)
        if self.age == 0:
            camera[tuple(self.gem)] = (255, 0, 0)
        return {
            "camera": camera.repeat(PIXELS, 0).repeat(PIXELS, 1),
            "position": (self.robot / (SIDE - 1) * 2 - 1).astype(np.float32),
        }


def main(argv: list[str] | None = None) -> None:
    """Train with and without memory, and compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=60_000, help="env steps to train for (%(default)s)")
    args = parser.parse_args(argv)

    agent = rc.train(Gem, steps=args.steps, seed=0)
    print("The encoder that the space asked for:")
    print(agent.policy.encoder)
    twin = rc.train(Gem, core="none", steps=args.steps, seed=0)
    for name, trained in (("with memory", agent), ("without", twin)):
        result = trained.evaluate(episodes=200)
        print(f"{name:>12}: the gem is found in {result.mean:.0%} of episodes,", end=" ")
        print(f"which take {result.lengths.mean():.1f} steps on average")


if __name__ == "__main__":
    main()
