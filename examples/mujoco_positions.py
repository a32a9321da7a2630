"""MuJoCo robots that do not feel their speed: the observation holds positions and angles, no velocities.

The agent has to estimate velocities from what it remembers. For MuJoCo: `pip install "gymnasium[mujoco]"`.

    recollect train --config configs/mujoco_positions.yaml
    python examples/mujoco_positions.py --env Hopper-v5 --steps 1000000
"""

from __future__ import annotations

import argparse

import gymnasium as gym
import numpy as np

import recollect as rc


class Positions(gym.ObservationWrapper):
    """Gymnasium's MuJoCo envs observe positions first and then velocities: keep the positions."""

    def __init__(self, env: gym.Env):
        super().__init__(env)
        velocities = env.unwrapped.model.nv
        space = env.observation_space
        if not isinstance(space, gym.spaces.Box) or space.shape[0] > 2 * velocities:
            raise ValueError(
                f"{env.spec.id if env.spec else env} observes more than positions and velocities"
            )
        self.kept = space.shape[0] - velocities
        self.observation_space = gym.spaces.Box(
            space.low[: self.kept], space.high[: self.kept], dtype=np.float32
        )

    def observation(self, observation: np.ndarray) -> np.ndarray:
        """The positions."""
        return observation[: self.kept].astype(np.float32)


def main(argv: list[str] | None = None) -> None:
    """Train with memory and without."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--env", default="HalfCheetah-v5", help="a MuJoCo env of Gymnasium (%(default)s)")
    parser.add_argument("--steps", type=int, default=1_000_000, help="env steps to train for (%(default)s)")
    args = parser.parse_args(argv)

    def env() -> gym.Env:
        return Positions(gym.make(args.env))

    for core in ("gru", "none"):
        agent = rc.train(env, core=core, steps=args.steps, gamma=0.99, entropy=0.0, seed=0)
        print(f"{args.env} without velocities, core {core}:", agent.evaluate(episodes=20))


if __name__ == "__main__":
    main()
