"""Worlds for worker processes, and what they give in one process and in several."""

from __future__ import annotations

import ctypes
import functools
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces as gym_spaces

from recollect.base import spaces, tree
from recollect.base.types import Step
from recollect.config.train import TrainConfig
from recollect.envs import BatchedEnv, make_env
from recollect.envs.env_names import portable
from recollect.envs.workers import WorkerEnv
from recollect.runtimes.actor_envs import make_slots


class Noise(gym.Env):
    """Random sights of any space, that also depend on what was done; episodes of 1 to 5 steps."""

    def __init__(self, observation_space: gym.Space, action_space: gym.Space):
        self.observation_space, self.action_space = observation_space, action_space

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        self.left = int(self.np_random.integers(1, 6))
        return self._see(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        assert self.action_space.contains(action), action
        self.left -= 1
        done = np.asarray(gym_spaces.flatten(self.action_space, action), np.float64).sum()
        terminated, truncated = ((True, False), (False, True), (True, True))[self.np_random.integers(3)]
        over = self.left == 0
        return self._see(), float(done + self.np_random.normal()), over and terminated, over and truncated, {}

    def _see(self) -> Any:
        seen = spaces.sample(self.observation_space, 1, self.np_random)
        return tree.map(lambda leaf: leaf[0].numpy(), seen)


IMAGES = functools.partial(Noise, gym_spaces.Box(0, 255, (9, 8, 3), np.uint8), gym_spaces.Discrete(4))
MIXED = functools.partial(
    Noise,
    gym_spaces.Dict(
        {
            "a": gym_spaces.Box(-np.inf, np.inf, (3,), np.float64),
            "b": gym_spaces.Tuple((gym_spaces.Discrete(5, start=2), gym_spaces.MultiBinary(3))),
        }
    ),
    gym_spaces.Dict(
        {
            "move": gym_spaces.Box(-1, 1, (2,), np.float32),
            "talk": gym_spaces.MultiDiscrete([3, 4]),
            "turn": gym_spaces.Discrete(3),
        }
    ),
)


class Trouble(gym.Env):
    """Does, in step ``at`` of one of its envs, what it is told; only once if ``once`` is a path."""

    observation_space = gym_spaces.Box(-1, 100, (2,), np.float32)
    action_space = gym_spaces.Discrete(2)
    made = 0
    """Envs of this process."""

    def __init__(self, what: str = "", at: int = 3, once: str | None = None, number: int = 0):
        self.what = what if Trouble.made == number else ""
        Trouble.made += 1
        self.at, self.once = at, None if once is None else Path(once)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        self.t = 0
        return np.full(2, self.np_random.random(), np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        self.t += 1
        if self.what and self.t == self.at and (self.once is None or not self.once.exists()):
            if self.once is not None:
                self.once.touch()
            self.misbehave()
        return np.full(2, self.t, np.float32), 1.0, self.t == 20, False, {}

    def misbehave(self) -> None:
        if self.what == "sleep":
            time.sleep(1000)
        elif self.what == "hold the interpreter":
            ctypes.PyDLL(None).sleep(1000)  # unlike CDLL it keeps the interpreter lock
        elif self.what == "exit":
            os._exit(7)
        elif self.what == "raise":
            raise ValueError("the lights went out")


class Pairs:
    """A BatchedEnv of slots with two agents, that reports numbers; row r of slot s counts from 10 s + r."""

    agents = 2
    device = torch.device("cpu")
    observation_space: Any = gym_spaces.Box(0, 1e6, (1,), np.float32)
    action_space: Any = gym_spaces.Discrete(3)

    def __init__(self, first_slot: int, count: int):
        self.num_envs = count
        slot = torch.arange(first_slot, first_slot + count).repeat_interleave(2)
        self.base = 10.0 * slot + torch.arange(2).repeat(count)

    def reset(self, seed: int) -> torch.Tensor:
        self.now = self.base + 1000 * seed
        return self.now[:, None].clone()

    def step(self, action: Any) -> Step:
        self.now += action
        none = torch.zeros(len(self.now), dtype=torch.bool)
        obs = self.now[:, None].clone()
        info = {"speed": action.double()} | ({"late": self.now.clone()} if self.base[0] == 0 else {})
        return Step(obs, none, self.now.clone(), none, none, obs, ~none, info)

    def close(self) -> None: ...


def in_workers(
    env: Any, num_envs: int, workers: int, *, timeout: float | None = 60.0, **kwargs: Any
) -> WorkerEnv:
    """An env by name or maker in worker processes."""
    make = functools.partial(make_slots, portable(env), TrainConfig(env_kwargs=kwargs), 0)
    return WorkerEnv(make, num_envs, workers=workers, timeout=timeout)


def stream(env: BatchedEnv, steps: int, seed: int) -> list[dict[str, torch.Tensor]]:
    """All that the contract defines of ``steps`` steps with random actions, by name."""
    rng = np.random.default_rng(seed)
    found = [dict(tree.named_leaves(tree.clone(env.reset(seed)), "obs"))]
    for _ in range(steps):
        found.append(seen(env.step(spaces.sample(env.action_space, env.num_envs * env.agents, rng))))
    return found


def seen(step: Step) -> dict[str, torch.Tensor]:
    """What the contract defines of a step."""
    ended = step.terminated | step.truncated
    names = ("first", "reward", "terminated", "truncated", "valid")
    final = tree.zero_where(~ended, step.final_obs)
    parts: dict[str, Any] = {"obs": step.obs, "final_obs": final, **step.info}
    return dict(tree.named_leaves(tree.clone(parts | {name: getattr(step, name) for name in names})))


def assert_same(one: list[dict[str, torch.Tensor]], other: list[dict[str, torch.Tensor]]) -> None:
    """Bit for bit."""
    assert len(one) == len(other)
    for t, (a, b) in enumerate(zip(one, other)):
        assert a.keys() == b.keys()
        for name in a:
            assert a[name].dtype == b[name].dtype
            assert torch.equal(a[name], b[name]), f"{name} after {t} steps"


def plain(env: Any, num_envs: int, **kwargs: Any) -> BatchedEnv:
    """The same env in this process."""
    return make_env(env, num_envs, env_kwargs=kwargs)


def env_pids(parent: int | None = None) -> list[int]:
    """The env workers among the children of a process."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            stat, words = (entry / "stat").read_text(), (entry / "cmdline").read_text()
            words += (entry / "comm").read_text()  # of children from tests/support/warm.py
        except OSError:
            continue  # it ended just now
        is_child = int(stat.rpartition(")")[2].split()[1]) == (parent or os.getpid())
        if is_child and "env worker" in words:
            found.append(int(entry.name))
    return sorted(found)


def is_running(pid: int) -> bool:
    """Whether there is such a process that is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_for(what: Callable[[], bool], seconds: float = 60.0) -> None:
    """Until it is so; fails if it is not so in a long time."""
    ends = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < ends, "it did not happen"
        time.sleep(0.02)
