"""Your own policy for tokens: a network of 25 lines, with any memory behind it.

The observation is a set of tokens (cell, feature, value), whose number changes from step to step. This
network encodes each token by itself and takes the sum and the maximum; the core behind it is the memory.
docs/own-policy.md builds it step by step.

    python examples/own_policy.py                 # about a minute
    python examples/own_policy.py --core gru      # another memory
    python examples/own_policy.py --steps 4096    # only to see that it runs
"""

from __future__ import annotations

import argparse

import gymnasium as gym
import torch
from torch import Tensor, nn

import recollect as rc
from recollect.envs import make_env
from recollect.policy.tokens import TokenSpace

TASK = "forage"


class Mine(nn.Module):
    """Encodes every token by itself, then takes the sum and the maximum over all that are present."""

    output_size = 128

    def __init__(self, space: gym.Space):
        super().__init__()
        self.tokens = TokenSpace.of(space)
        self.what = nn.Embedding(self.tokens.features, 64)
        self.where = nn.Linear(3, 64)
        self.all = nn.Sequential(nn.Linear(2 * 64, self.output_size), nn.Tanh())

    def forward(self, obs: Tensor) -> Tensor:
        """Obs, uint8 [N, M, 3] -> [N, 128]."""
        x, y, feature, value, present = self.tokens.read(obs)  # [N, M] each
        numbers = torch.stack([x / 5, y / 5, 2 * value / self.tokens.largest], 2) - 1
        seen = torch.tanh(self.what(feature) * self.where(numbers))  # [N, M, 64]
        absent = ~present.unsqueeze(2)
        count = present.sum(1, keepdim=True).clamp(min=1)  # a row without tokens must not divide by 0
        total = seen.masked_fill(absent, 0).sum(1) / count.sqrt()
        most = seen.masked_fill(absent, -1).amax(1)
        return self.all(torch.cat([total, most], 1))


def main(argv: list[str] | None = None) -> None:
    """Read the tokens, check the network, train it, compare it with an untrained one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=100_000, help="env steps to train for (%(default)s)")
    parser.add_argument("--core", default="lstm", help="the memory (%(default)s)")
    args = parser.parse_args(argv)

    env = make_env(TASK, 4)
    obs = env.reset(seed=0)
    mine = Mine(env.observation_space)
    torch.testing.assert_close(mine(obs.flip(1)), mine(obs))
    print(f"{mine.tokens.features} features in up to {obs.shape[1]} tokens; their order does not matter.")

    agent = rc.train(TASK, encoder=Mine, core=args.core, steps=args.steps, seed=0)
    # Actions are sampled, as in training: early in training a greedy policy gets stuck.
    print("Trained:", agent.evaluate(episodes=200, eval_mode="sampled"))
    print("Untrained:", untrained(args.core).evaluate(episodes=200, eval_mode="sampled"))


def untrained(core: str) -> rc.Agent:
    """An agent that has learned next to nothing: one update."""
    return rc.train(TASK, encoder=Mine, core=core, steps=1, num_envs=4, rollout=8, chunk=8, progress=False)


if __name__ == "__main__":
    main()
