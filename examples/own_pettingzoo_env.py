"""Two agents with a policy each: one sees a number and may say something, the other has to answer it later.

For PettingZoo: `pip install pettingzoo`.

    python examples/own_pettingzoo_env.py
    recollect train examples.own_pettingzoo_env:Whisper --policies independent
"""

from __future__ import annotations

import argparse

import numpy as np
from gymnasium.spaces import Discrete
from pettingzoo import ParallelEnv

import recollect as rc

WAIT = 3
"""Steps between the word and the answer."""


class Whisper(ParallelEnv):
    """The teller sees one of 4 numbers; what it says then is heard once. The hearer answers at the end."""

    metadata = {"name": "whisper_v0"}  # noqa: RUF012

    def __init__(self):
        self.possible_agents, self.agents = ["teller", "hearer"], []

    def observation_space(self, agent: str) -> Discrete:
        """A number or a word; 4: nothing."""
        return Discrete(5)

    def action_space(self, agent: str) -> Discrete:
        """A word, or an answer."""
        return Discrete(4)

    def reset(self, seed: int | None = None, options: dict | None = None):
        """Draw a number."""
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        self.agents, self.now = list(self.possible_agents), 0
        self.number = int(self.rng.integers(4))
        return {"teller": self.number, "hearer": 4}, {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, int]):
        """Both act; a right answer earns 1 for both."""
        self.now += 1
        is_over = self.now == WAIT
        reward = float(is_over and actions["hearer"] == self.number)
        heard = int(actions["teller"]) if self.now == 1 else 4
        results = {agent: (reward, is_over, False, {}) for agent in self.agents}
        self.agents = [] if is_over else self.agents
        rewards, terminations, truncations, infos = (
            {agent: result[part] for agent, result in results.items()} for part in range(4)
        )
        return {"teller": 4, "hearer": heard}, rewards, terminations, truncations, infos


def main(argv: list[str] | None = None) -> None:
    """Train both, and play one episode with a session each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=100_000, help="steps of both agents (%(default)s)")
    args = parser.parse_args(argv)

    settings = {"num_envs": 32, "rollout": 32, "learning_rate": 3e-3, "entropy": 0.05, "gamma": 0.9}
    agent = rc.train(Whisper, policies="independent", steps=args.steps, seed=0, **settings)
    print(agent.evaluate(episodes=200))
    env = Whisper()
    players = {name: agent[name].session() for name in agent.groups}
    obs, _ = env.reset(seed=1)
    while env.agents:
        obs, rewards, *_ = env.step({name: players[name].act(obs[name]) for name in env.agents})
    print(f"The number was {env.number}, the answer earned {rewards['hearer']:g}.")


if __name__ == "__main__":
    main()
