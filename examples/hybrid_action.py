"""A hybrid action: choose one of several things and a quantity, in one step.

The first observation is an order: a bottle and an amount. Some steps later the agent pours. The action is
a Dict of a Discrete and a Box; the policy gets one head with a categorical and a Gaussian part, whose
log-probs add up.

    python examples/hybrid_action.py               # about half a minute
    python examples/hybrid_action.py --steps 4096  # only to see that it runs
"""

from __future__ import annotations

import argparse
from typing import Any

import gymnasium as gym
import numpy as np

import recollect as rc

BOTTLES, WALK = 3, 4


class Bar(gym.Env):
    """One order per episode: observed in the first step, poured in the last, ``WALK`` steps later.

    Observation, Box [BOTTLES + 2]: the ordered bottle one-hot and the amount, both only in the first
    step; then a flag: pour now. Action, Dict: ``bottle``, Discrete; ``amount``, Box [1] in [-1, 1].
    The right bottle earns 1 - |amount - ordered amount|, a wrong one nothing.
    """

    observation_space = gym.spaces.Box(-1.0, 1.0, (BOTTLES + 2,), np.float32)
    action_space = gym.spaces.Dict(
        bottle=gym.spaces.Discrete(BOTTLES),
        amount=gym.spaces.Box(-1.0, 1.0, (1,), np.float32),
    )

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        """A new order."""
        super().reset(seed=seed)
        self.bottle = int(self.np_random.integers(BOTTLES))
        self.amount = float(self.np_random.uniform(-1, 1))
        self.age = 0
        return self._see(), {}

    def step(self, action: dict[str, Any]):
        """Walk, or pour and get the reward."""
        pours = self.age == WALK
        self.age += 1
        reward = 0.0
        if pours and int(action["bottle"]) == self.bottle:
            reward = 1.0 - abs(float(action["amount"][0]) - self.amount)
        return self._see(), reward, pours, False, {}

    def _see(self) -> np.ndarray:
        seen = np.zeros(BOTTLES + 2, np.float32)
        if self.age == 0:
            seen[self.bottle], seen[BOTTLES] = 1.0, self.amount
        seen[-1] = self.age == WALK
        return seen


def main(argv: list[str] | None = None) -> None:
    """Train, evaluate, and play three orders."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200_000, help="env steps to train for (%(default)s)")
    args = parser.parse_args(argv)

    agent = rc.train(Bar, steps=args.steps, seed=0)
    print("Tips:", agent.evaluate(episodes=300))
    print("The best is 1; a random bottle with the middle amount earns 1/3 * 1/2 = 0.17.")

    env, live = Bar(), agent.session()
    for seed in range(3):
        obs, _ = env.reset(seed=seed)
        live.reset()  # a new episode: the memory of the last order is reset
        action: Any = None
        for _ in range(WALK + 1):
            action = live.act(obs)
            obs, *_ = env.step(action)
        print(
            f"ordered bottle {env.bottle}, {env.amount:+.2f}; "
            f"poured bottle {int(action['bottle'])}, {float(action['amount'][0]):+.2f}"
        )


if __name__ == "__main__":
    main()
