"""The code that all contenders share: the worlds, the sizes of the work, and the measurement.

Needs only gymnasium and numpy, and the package of the chosen world, so that it runs in every library's own
virtual environment.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

import gymnasium as gym
import numpy as np

CURVE_POINTS = 40
"""About the number of points of a learning curve."""


class Positions(gym.ObservationWrapper):
    """CartPole's x and theta, without the velocities: the agent has to remember."""

    def __init__(self, env: gym.Env):
        super().__init__(env)
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)

    def observation(self, observation):
        return observation[::2]


class LastActionReward(gym.Wrapper):
    """One vector: the observation's one-hots, those of the last action, and the last reward.

    Recollect's ``last_action_reward`` for libraries without one; zeros at the start of an episode.
    """

    def __init__(self, env: gym.Env):
        super().__init__(env)
        assert isinstance(env.action_space, gym.spaces.Discrete)
        self.actions = int(env.action_space.n)
        size = gym.spaces.flatdim(env.observation_space) + self.actions + 1
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (size,), np.float32)

    def reset(self, **options):
        observation, info = self.env.reset(**options)
        return self._joined(observation, np.zeros(self.actions), 0.0), info

    def step(self, action):
        observation, reward, terminated, truncated, info = self.env.step(action)
        joined = self._joined(observation, np.eye(self.actions)[action], float(reward))
        return joined, reward, terminated, truncated, info

    def _joined(self, observation, last_action: np.ndarray, last_reward: float) -> np.ndarray:
        flat = gym.spaces.flatten(self.env.observation_space, observation)
        return np.concatenate([flat, last_action, [last_reward]]).astype(np.float32)


def position_cartpole() -> gym.Env:
    """CartPole without velocities."""
    return Positions(gym.make("CartPole-v1", disable_env_checker=True))


def minigrid_memory() -> gym.Env:
    """MiniGrid's memory task; the observation is the agent's view, 7 x 7 cells with 3 ids each."""
    from minigrid.wrappers import ImgObsWrapper

    return ImgObsWrapper(gym.make("MiniGrid-MemoryS7-v0", disable_env_checker=True))


def count_recall() -> gym.Env:
    """POPGym's CountRecall: how often was this card dealt?"""
    import popgym  # noqa: F401  # registers its envs

    return gym.make("popgym-CountRecallEasy-v0", disable_env_checker=True)


@dataclass(frozen=True, slots=True)
class World:
    """An env and the work on it: the same for all contenders."""

    make: Callable[[], gym.Env]
    """Makes one env, of the same Python class for all."""
    packages: tuple[str, ...]
    """Besides Gymnasium."""
    steps: int
    """The cap on env steps, unless ``--steps`` says otherwise."""
    target: float
    """Solved: the mean return of the last ``episodes`` training episodes is at least this."""
    episodes: int
    num_envs: int
    rollout: int
    epochs: int
    minibatches: int
    gamma: float
    gae_lambda: float
    encoder: int
    """Width of the layer before the LSTM."""
    learning_rate: float
    """Of Recollect, and of the ``tuned`` variants of the others."""
    entropy: float | None = None
    """Coefficient of the entropy bonus; None: each library's default."""
    chunk: int | None = None
    """Steps of backpropagation through time in Recollect; None: the whole rollout."""
    has_numbers: bool = False
    """Whether observations are numbers, which a library may normalise, rather than names of things."""
    last_action_reward: bool = False
    """Whether the last action and reward are a part of the observation."""
    hidden: int = 128
    """Size of the LSTM."""

    @property
    def batch(self) -> int:
        """Env steps between two updates."""
        return self.num_envs * self.rollout

    @property
    def steps_to_target(self) -> str:
        """Key of a result: env steps until the target."""
        return f"steps_to_{self.target:g}"

    @property
    def seconds_to_target(self) -> str:
        """Key of a result: seconds until the target."""
        return f"seconds_to_{self.target:g}"

    @property
    def last_return(self) -> str:
        """Key of a result: the mean return of the last episodes."""
        return f"return_last_{self.episodes}"

    def make_flat(self) -> gym.Env:
        """One env for a library that cannot add the last action and reward itself."""
        return LastActionReward(self.make()) if self.last_action_reward else self.make()


WORLDS = {
    "position-cartpole": World(
        make=position_cartpole,
        packages=(),
        steps=200_000,
        target=400.0,
        episodes=50,
        num_envs=16,
        rollout=128,
        epochs=4,
        minibatches=4,
        gamma=0.99,
        gae_lambda=0.95,
        encoder=128,
        learning_rate=1e-3,
        chunk=32,
        has_numbers=True,
    ),
    "minigrid-memory": World(
        make=minigrid_memory,
        packages=("minigrid",),
        steps=1_000_000,
        target=0.9,
        episodes=100,
        num_envs=32,
        rollout=128,
        epochs=8,
        minibatches=4,
        gamma=0.99,
        gae_lambda=0.95,
        encoder=64,
        learning_rate=1e-3,
        entropy=0.02,
    ),
    "count-recall": World(
        make=count_recall,
        packages=("popgym",),
        steps=1_000_000,
        target=0.9,
        episodes=100,
        num_envs=32,
        rollout=102,
        epochs=8,
        minibatches=4,
        gamma=0.5,
        gae_lambda=0.5,
        encoder=64,
        learning_rate=2e-3,
        entropy=0.01,
        last_action_reward=True,
    ),
}
"""The worlds by name, with all settings of the work."""
DEFAULT_WORLD = "position-cartpole"


class Meter:
    """Is told of every episode and every update; knows when the run has shown enough.

    Speed is measured over one window of steps, the same for all: from the end of the warm-up to
    ``window_end``. The run continues until the target is reached, and at least to the end of the window;
    the caps on steps and seconds end it in any case. All of this is checked after an update only, so that
    steps are multiples of a rollout.
    """

    def __init__(self, args: argparse.Namespace):
        self.world: World = args.world
        self.cap, self.max_seconds = args.steps, args.max_seconds
        self.warm_at = args.warmup_updates * self.world.batch
        self.window_end = self.warm_at + args.window_updates * self.world.batch
        self.recent: deque[float] = deque(maxlen=self.world.episodes)
        self.episodes = 0
        self.steps, self.seconds = 0, 0.0
        self.is_over = False
        self._started = 0.0
        self._first_update: float | None = None
        self._warm: tuple[int, float] | None = None
        self._window: tuple[int, float] | None = None
        self._reached: tuple[int, float] | None = None
        self._curve: list[tuple[int, float, float]] = []

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
        if mean is None and len(self.recent) == self.world.episodes:
            mean = sum(self.recent) / self.world.episodes
        if mean is not None:
            self._curve.append((steps, round(self.seconds, 2), round(mean, 3)))
            if self._reached is None and mean >= self.world.target:
                self._reached = now
        is_spent = steps >= self.cap or (self.max_seconds is not None and self.seconds >= self.max_seconds)
        self.is_over = is_spent or (self._reached is not None and self._window is not None)
        return self.is_over

    def result(self) -> dict[str, Any]:
        """The numbers; None where the run did not get so far."""
        speed = None
        if self._warm is not None:
            end = self._window or (self.steps, self.seconds)
            if end[0] > self._warm[0]:
                speed = round((end[0] - self._warm[0]) / (end[1] - self._warm[1]), 1)
        means = [mean for _, _, mean in self._curve]
        return {
            "steps_per_second": speed,
            self.world.steps_to_target: None if self._reached is None else self._reached[0],
            self.world.seconds_to_target: None if self._reached is None else round(self._reached[1], 2),
            self.world.last_return: means[-1] if means else None,
            f"best_{self.world.last_return}": max(means, default=None),
            "steps": self.steps,
            "seconds": round(self.seconds, 2),
            "first_update_seconds": None if self._first_update is None else round(self._first_update, 2),
            "curve": self._short_curve(),
        }

    def _short_curve(self) -> list[tuple[int, float, float]]:
        """Every so many points of (steps, seconds, mean return), the last one included."""
        every = -(-len(self._curve) // CURVE_POINTS) or 1
        return self._curve[::-every][::-1]


def parser(description: str | None) -> argparse.ArgumentParser:
    """The options that all contenders have; ``parse`` reads them."""
    made = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--world", choices=list(WORLDS), default=DEFAULT_WORLD, help="the env and its work")
    made.add_argument("--seed", type=int, default=0)
    made.add_argument("--steps", type=int, help="the cap on env steps; by default the world's")
    made.add_argument("--max-seconds", type=float, help="the cap on seconds of training; by default none")
    made.add_argument("--threads", type=int, help="CPU threads of torch; by default the library's own choice")
    made.add_argument("--warmup-updates", type=int, default=3, help="updates before the speed counts")
    made.add_argument("--window-updates", type=int, default=30, help="updates over which the speed counts")
    return made


def parse(made: argparse.ArgumentParser) -> argparse.Namespace:
    """The options, with the world itself for its name and the world's cap on steps where none is given."""
    args = made.parse_args()
    args.world_name, args.world = args.world, WORLDS[args.world]
    for package in args.world.packages:
        if find_spec(package) is None:
            made.error(
                f"--world {args.world_name} needs the package {package} in this virtual environment: "
                "bench/others/README.md says how to install it"
            )
    if args.steps is None:
        args.steps = args.world.steps
    return args


def report(library: str, args: argparse.Namespace, meter: Meter, settings: dict[str, Any]) -> None:
    """Print the result as one line of JSON, the last that a contender prints."""
    line = {
        "library": library,
        "version": version(library),
        "world": args.world_name,
        **meter.result(),
        "seed": args.seed,
        "warmup_steps": meter.warm_at,
        "window_end": meter.window_end,
        "python": platform.python_version(),
        **{name: version(name) for name in ("torch", "gymnasium", "numpy", *args.world.packages)},
        "settings": settings,
    }
    print(json.dumps(line), flush=True)
