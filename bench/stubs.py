"""Actors that do not act: in place of env and policy they write as many bytes. All else is real.

An env maker of this module replaces ``ActorServer.collect`` in the process where it is unpickled: that of an
actor, in any runtime.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from recollect.base import tree
from recollect.base.types import Tree
from recollect.config.policy import EncoderConfig
from recollect.config.train import TrainConfig
from recollect.cores.lstm import LSTMConfig
from recollect.experience.rollout import Rollout
from recollect.runtimes.actor_server import ActorServer, Report

STEPS, ROWS = 128, 8
"""Of a rollout of one actor."""


class Still(gym.Env):
    """Observations of ``size`` floats, never stepped."""

    def __init__(self, size: int):
        self.observation_space = gym.spaces.Box(-1.0, 1.0, (size,), np.float32)
        self.action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        return np.zeros(self.observation_space.shape or (), np.float32), {}


class WritesOnly:
    """Makes ``Still``; an actor that gets one writes rollouts without acting."""

    def __init__(self, size: int):
        self.size = size

    def __call__(self) -> gym.Env:
        return Still(self.size)

    def __reduce__(self) -> tuple[Any, ...]:
        return _arrived, (self.size,)


def _arrived(size: int) -> WritesOnly:
    ActorServer.collect = write
    return WritesOnly(size)


def write(self: ActorServer, ticket: int, load: Callable[[], int], buffer: int = 0) -> tuple[Rollout, Report]:
    """``ActorServer.collect`` without env and policy: real weights are loaded, a whole rollout is written."""
    idle = time.monotonic() - self._idle_since
    began = time.monotonic()
    version = load()
    loaded = time.monotonic()
    is_new = self.actor is None
    actor = self._ready_actor(version)
    rollout = actor._buffers[buffer].rollout
    source = _source(rollout)
    writing = time.monotonic()
    tree.copy_(rollout.tensors(), source)
    ended = time.monotonic()
    rollout.version, rollout.sequence, rollout.finals = version, actor.sequence, None
    actor.sequence += 1
    seconds = {"env": 0.0, "act": ended - writing, "weights": loaded - began, "idle": idle}
    self._idle_since = time.monotonic()
    steps = int(rollout.valid.sum())
    return rollout, Report(ticket, steps, {}, seconds, is_new)


_SOURCES: dict[int, Tree] = {}


def _source(rollout: Rollout) -> Tree:
    """A rollout of these sizes in private memory, made once."""
    found = _SOURCES.get(rollout.rows)
    if found is None:
        found = _SOURCES[rollout.rows] = filled(rollout)
    return found


def filled(rollout: Rollout) -> Tree:
    """Tensors like those of the rollout: all steps valid, no episode ends."""
    source = tree.clone(rollout.tensors())
    source["valid"].fill_(True)
    for name in ("first", "terminated", "truncated"):
        source[name].fill_(False)
    for name in ("reward", "bootstrap", "final_value"):
        source[name].zero_()
    return source


def settings(actors: int, **given: Any) -> TrainConfig:
    """A config with a policy so small that its weights do not matter."""
    small = {"encoder": EncoderConfig(hidden=(8,)), "core": LSTMConfig(hidden=8)}
    config = TrainConfig().override(num_envs=actors * ROWS, actors=actors, rollout=STEPS, **small, **given)
    torch.set_num_threads(1)
    return config


def floats_for(size: int) -> int:
    """Floats of an observation that make a rollout of ``size`` bytes, about."""
    beside = 30  # bytes of a step beside its observation
    return max(1, round((size / (STEPS * ROWS) - beside) / 4))
