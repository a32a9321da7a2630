"""Your own env: watch a row of lights, then press the buttons in the same order.

A minimal env of your own. It shows three things that matter with memory: the env hides what it showed
earlier, `terminated` and `truncated` differ, and `check_batched_env` finds mistakes before a long
training.

    python examples/own_env.py               # about half a minute
    python examples/own_env.py --steps 4096  # only to see that it runs
"""

from __future__ import annotations

import argparse
from typing import Any

import gymnasium as gym

import recollect as rc
from recollect.envs import make_env
from recollect.envs.checks import check_batched_env

COLOURS, LIGHTS, PATIENCE = 3, 4, 6


class Lights(gym.Env):
    """``LIGHTS`` lights flash one after another; then they stay dark, and the agent repeats them.

    Observation, Discrete: the colour that flashes now, or ``COLOURS`` for darkness. Actions,
    Discrete: a button for each colour, and one to wait. In the dark every button is compared with the
    next light of the row: 1 / LIGHTS if it is right. After ``LIGHTS`` buttons the game is over.
    """

    observation_space = gym.spaces.Discrete(COLOURS + 1)
    action_space = gym.spaces.Discrete(COLOURS + 1)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        """A new row of lights, from the env's own random stream, which the seed sets."""
        super().reset(seed=seed)
        self.row = self.np_random.integers(COLOURS, size=LIGHTS)
        self.seen, self.pressed, self.age = 0, 0, 0
        return self._see(), {}

    def step(self, action: int):
        """The next light flashes, or the pressed button is judged."""
        self.age += 1
        reward, terminated = 0.0, False
        if self.seen < LIGHTS:
            self.seen += 1  # still watching: buttons do nothing
        elif action < COLOURS:
            reward = float(action == self.row[self.pressed]) / LIGHTS
            self.pressed += 1
            terminated = self.pressed == LIGHTS
        # The game is over when the rules say so (terminated). Patience running out is no rule of the
        # game but a limit of ours (truncated): the agent's value estimate does not end there.
        truncated = not terminated and self.age >= LIGHTS + PATIENCE
        return self._see(), reward, terminated, truncated, {}

    def _see(self) -> int:
        return int(self.row[self.seen]) if self.seen < LIGHTS else COLOURS


def main(argv: list[str] | None = None) -> None:
    """Check the env, train on it, evaluate, show one game."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200_000, help="env steps to train for (%(default)s)")
    args = parser.parse_args(argv)

    met = check_batched_env(make_env(Lights, 4), steps=300)
    print(f"The env keeps its contract: {met.terminated} games ended, {met.truncated} were cut by time.")

    agent = rc.train(Lights, steps=args.steps, seed=0)
    print("Trained with memory:", agent.evaluate(episodes=200))
    print(f"All right is 1; to guess each light would earn {1 / COLOURS:.2f}.")

    env, live = Lights(), agent.session()
    obs, _ = env.reset(seed=3)
    buttons = []
    for _ in range(LIGHTS + PATIENCE):
        watching = env.seen < LIGHTS
        action = live.act(obs)
        if not watching and action < COLOURS:
            buttons.append(int(action))
        obs, _, terminated, truncated, _ = env.step(action)
        if terminated or truncated:
            break
    print(f"One game: the lights were {env.row.tolist()}, it pressed {buttons}.")


if __name__ == "__main__":
    main()
