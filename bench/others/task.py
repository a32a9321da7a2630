"""What all contenders share: the env, the sizes of the work, and how it is measured.

Needs only gymnasium and numpy, so that it runs in every library's own environment.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections import deque
from importlib.metadata import version
from typing import Any

import gymnasium as gym
import numpy as np

NUM_ENVS = 16
ROLLOUT = 128
EPOCHS = 4
MINIBATCHES = 4
HIDDEN = 128
GAMMA = 0.99
GAE_LAMBDA = 0.95
BATCH = NUM_ENVS * ROLLOUT
"""Env steps between two updates."""
TARGET_RETURN = 400.0
TARGET_EPISODES = 50


class Positions(gym.ObservationWrapper):
    """CartPole's x and theta, without the velocities: the agent has to remember."""

    def __init__(self, env: gym.Env):
        super().__init__(env)
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)

    def observation(self, observation):
        return observation[::2]


def position_cartpole() -> gym.Env:
    """One env, the same Python code for everybody."""
    return Positions(gym.make("CartPole-v1", disable_env_checker=True))


class Meter:
    """Is told of every episode and every update; knows when the run has shown enough.

    Speed is measured over one window of steps, the same for all: from the end of the warm-up to
    ``window_end``. The run goes on until the target is reached or the cap, but never ends before the
    window does. Everybody is looked at after an update only, so that steps are multiples of a rollout.
    """

    def __init__(self, args: argparse.Namespace):
        self.cap = args.steps
        self.warm_at = args.warmup_updates * BATCH
        self.window_end = self.warm_at + args.window_updates * BATCH
        self.recent: deque[float] = deque(maxlen=TARGET_EPISODES)
        self.episodes = 0
        self.steps, self.seconds = 0, 0.0
        self.is_over = False
        self._started = 0.0
        self._first_update: float | None = None
        self._warm: tuple[int, float] | None = None
        self._window: tuple[int, float] | None = None
        self._reached: tuple[int, float] | None = None
        self._mean: float | None = None

    def start(self) -> None:
        """The clock runs from here: call it right before training, after all imports."""
        self._started = time.perf_counter()

    def episode(self, episode_return: float) -> None:
        """One episode has ended."""
        self.recent.append(float(episode_return))
        self.episodes += 1

    def update(self, steps: int, *, mean: float | None = None) -> bool:
        """An update is done, ``steps`` env steps after the start. True: stop; what comes later is ignored.

        ``mean``: the mean return of the last episodes, for a library that keeps them itself.
        """
        if self.is_over:
            return True
        self.steps, self.seconds = steps, time.perf_counter() - self._started
        if self._first_update is None:
            self._first_update = self.seconds
        now = (self.steps, self.seconds)
        if self._warm is None and steps >= self.warm_at:
            self._warm = now
        if self._window is None and steps >= self.window_end:
            self._window = now
        if mean is None and len(self.recent) == TARGET_EPISODES:
            mean = sum(self.recent) / TARGET_EPISODES
        self._mean = mean
        if self._reached is None and mean is not None and mean >= TARGET_RETURN:
            self._reached = now
        self.is_over = steps >= self.cap or (self._reached is not None and self._window is not None)
        return self.is_over

    def result(self) -> dict[str, Any]:
        """The numbers; None where the run did not get so far."""
        speed = None
        if self._warm is not None:
            end = self._window or (self.steps, self.seconds)
            if end[0] > self._warm[0]:
                speed = round((end[0] - self._warm[0]) / (end[1] - self._warm[1]), 1)
        return {
            "steps_per_second": speed,
            "steps_to_400": None if self._reached is None else self._reached[0],
            "seconds_to_400": None if self._reached is None else round(self._reached[1], 2),
            "return_last_50": None if self._mean is None else round(self._mean, 1),
            "steps": self.steps,
            "seconds": round(self.seconds, 2),
            "first_update_seconds": None if self._first_update is None else round(self._first_update, 2),
        }


def parser(description: str | None) -> argparse.ArgumentParser:
    """The options that all contenders have."""
    made = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--seed", type=int, default=0)
    made.add_argument("--steps", type=int, default=200_000, help="the cap, in env steps")
    made.add_argument("--threads", type=int, help="CPU threads of torch; by default the library's own choice")
    made.add_argument("--warmup-updates", type=int, default=3, help="updates before the speed counts")
    made.add_argument("--window-updates", type=int, default=30, help="updates over which the speed counts")
    return made


def report(library: str, args: argparse.Namespace, meter: Meter, settings: dict[str, Any]) -> None:
    """Print the result as one line of JSON, the last that a contender prints."""
    line = {
        "library": library,
        "version": version(library),
        **meter.result(),
        "seed": args.seed,
        "warmup_steps": meter.warm_at,
        "window_end": meter.window_end,
        "python": platform.python_version(),
        **{name: version(name) for name in ("torch", "gymnasium", "numpy")},
        "settings": settings,
    }
    print(json.dumps(line), flush=True)
