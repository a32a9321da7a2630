"""Trainings that mutants are planted in: small, and of every algorithm, action space and kind of env."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv

from recollect.base import devices
from recollect.config.policy import EncoderConfig
from recollect.config.q_heads import QHeadConfig
from recollect.cores import GRUConfig, LSTMConfig
from tests.support.grouped_worlds import EARLY, LATE, Camp
from tests.support.helpers import ArenaWorld, ScriptedEnv
from tests.support.secret_world import SEPARATE, SecretEnv
from tests.support.token_worlds import TokenEnv
from tests.support.two_sides import TwoSides

SMALL: dict[str, Any] = {
    "rollout": 23,
    "chunk": 7,
    "epochs": 1,
    "minibatches": 5,
    "num_envs": 3,
    "threads": 1,
    "core": LSTMConfig(hidden=8),
    "encoder": EncoderConfig(hidden=(8,)),
}
REPLAY: dict[str, Any] = {
    **{key: SMALL[key] for key in ("num_envs", "threads", "core", "encoder")},
    "algo": "r2d2",
    "rollout": 11,
    "chunk": 6,
    "burn_in_steps": 3,
    "n_step": 2,
    "target_every": 4,
    "target_rate": None,
}
BOX = spaces.Box(-1.0, 2.0, (2,), np.float32)
HYBRID = spaces.Dict({"move": spaces.Discrete(3), "aim": BOX})
DUEL = {**SMALL, "vs": "echo"}
STAGES: dict[str, Any] = {"curriculum": {0: {"error": 0.1}, 300: {"error": 0.9}}}


class Symbols(ScriptedEnv):
    """Grids of a few random symbols."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Box(0, 255, (5, 5, 3), np.uint8)

    def _observe(self) -> Any:
        drawn = self.np_random.integers(0, 90, (5, 5, 3))
        return np.where(drawn < 9, drawn, 0).astype(np.uint8)


def masked() -> ScriptedEnv:
    return ScriptedEnv(masked=True)


def boxed() -> ScriptedEnv:
    return ScriptedEnv(BOX)


def hybrid() -> ScriptedEnv:
    return ScriptedEnv(HYBRID)


def fillers() -> Any:
    return SyncVectorEnv([ScriptedEnv] * 3)


PAIRS = {"girls": ["cat", "ann"], "boys": ["bob"]}
"""Groups of the agents of ``Camp``."""
NEVER = {"ann": (0, 4, "terminated"), "bob": (9, 9, "truncated"), "cat": (1, 4, "terminated")}
"""Bob would appear after the episode."""


class MaskedCamp(Camp):
    """With a mask that forbids the second action."""

    def observation_space(self, agent: str) -> spaces.Space:
        return spaces.Dict({"seen": self._seen[agent], "action_mask": spaces.MultiBinary(3)})

    def _observe(self, agent: str, action: Any) -> Any:
        return {"seen": super()._observe(agent, action), "action_mask": np.array([1, 0, 1], np.int8)}


MADE: frozenset[Callable[[], Any]] = frozenset({fillers, ArenaWorld})
"""The envs that are passed as objects: they have several rows."""
CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "ppo": (ScriptedEnv, SMALL),
    "ppo, normalised": (ScriptedEnv, SMALL | {"normalise_observations": True}),
    "ppo, burn-in": (ScriptedEnv, SMALL | {"recurrent_mode": "burn_in", "burn_in_steps": 3}),
    "ppo, squashed": (boxed, SMALL),
    "ppo, hybrid": (hybrid, SMALL),
    "ppo, masked": (masked, SMALL),
    "ppo, fillers": (fillers, SMALL),
    "ppo, dying agents": (ArenaWorld, SMALL),
    "ppo, learned start": (ScriptedEnv, SMALL | {"core": LSTMConfig(hidden=8, learned_initial_state=True)}),
    "ppo, critic": (ScriptedEnv, SMALL | {"critic": "separate"}),
    "ppo, mamba": (ScriptedEnv, SMALL | {"core": {"name": "mamba", "hidden": 8}}),
    "ppo, mingru": (ScriptedEnv, SMALL | {"core": {"name": "mingru", "hidden": 8}}),
    "ppo, frames": (ScriptedEnv, SMALL | {"core": "frames"}),
    "ppo, window": (ScriptedEnv, SMALL | {"core": {"name": "window", "hidden": 8, "window": 6}}),
    "impala": (ScriptedEnv, SMALL | {"algo": "impala"}),
    "impala, dying agents": (ArenaWorld, SMALL | {"algo": "impala"}),
    "ppo, as on a GPU": (ScriptedEnv, SMALL | {"normalise_observations": True}),
    "ppo, as on a GPU, dying agents": (ArenaWorld, SMALL | {"normalise_observations": True}),
    "ppo, episodes": (ScriptedEnv, SMALL | {"batching": "episodes", "minibatches": 2}),
    "ppo, episodes, dying agents": (ArenaWorld, SMALL | {"batching": "episodes", "minibatches": 2}),
    "ppo, next observations": (ScriptedEnv, SMALL | {"next_obs_coef": 0.5}),
    "ppo, next observations, dying agents": (ArenaWorld, SMALL | {"next_obs_coef": 0.5}),
    "r2d2": (ScriptedEnv, REPLAY),
    "r2d2, priorities": (ScriptedEnv, REPLAY | {"priority_exponent": 0.9}),
    "r2d2, frames": (ScriptedEnv, REPLAY | {"core": "frames", "states": "rebuilt"}),
    "r2d2, fillers": (fillers, REPLAY),
    "r2d2, soft target": (ScriptedEnv, REPLAY | {"target_every": None, "target_rate": 0.2}),
    "r2d2, noisy": (ScriptedEnv, REPLAY | {"head": QHeadConfig(hidden=(8,), noisy=True)}),
    "r2d2, stride": (ScriptedEnv, REPLAY | {"stride": 4, "rollout": 10}),
    "iqn": (ScriptedEnv, REPLAY | {"algo": "iqn"}),
    "opponent": (TwoSides, DUEL),
    "league": (TwoSides, SMALL | {"vs": "league", "core": GRUConfig(hidden=8)}),
    "learners in processes": (
        "treasure-hunt",
        REPLAY | {"policies": "independent", "env_kwargs": {"length": 8}, "learner_processes": True},
    ),
    "actors in processes": (ScriptedEnv, SMALL | {"num_envs": 4, "runtime": "processes", "actors": 2}),
    "actors that run ahead": (
        ScriptedEnv,
        SMALL | {"num_envs": 4, "runtime": "processes", "actors": 2, "mode": "async"},
    ),
    "agents that end early": (partial(Camp, EARLY), SMALL | {"policies": PAIRS}),
    "agents that come late": (partial(Camp, LATE), SMALL | {"policies": PAIRS}),
    "agents with masks": (partial(MaskedCamp, LATE), SMALL),
    "absent agents": (partial(Camp, NEVER), SMALL),
    "impala in processes": (
        ScriptedEnv,
        SMALL | {"algo": "impala", "num_envs": 4, "runtime": "processes", "actors": 2},
    ),
    "impala that runs ahead": (
        ScriptedEnv,
        SMALL | {"algo": "impala", "num_envs": 4, "runtime": "processes", "actors": 2, "mode": "async"},
    ),
    "impala, learners": (ScriptedEnv, SMALL | {"algo": "impala", "num_envs": 4, "learners": 2}),
    "learner processes": (
        partial(Camp, EARLY),
        SMALL | {"policies": PAIRS, "learner_processes": True},
    ),
    "env workers": (ScriptedEnv, SMALL | {"num_envs": 4, "env_workers": 2}),
    "env workers of actors": (
        ScriptedEnv,
        SMALL | {"num_envs": 4, "runtime": "processes", "actors": 2, "env_workers": 2},
    ),
    "learners": (ScriptedEnv, SMALL | {"num_envs": 4, "learners": 2}),
}


CASES |= {
    "ppo, keys of the critic": (SecretEnv, SMALL | SEPARATE),
    "ppo, symbols": (Symbols, SMALL | {"normalise_observations": True, "last_action_reward": True}),
    "ppo, tokens": (TokenEnv, SMALL | {"encoder": EncoderConfig(tokens="latent_attn_tiny")}),
    "ppo, wide": (ScriptedEnv, SMALL | {"encoder": EncoderConfig(hidden=(512,))}),
    "opponent, stages": (TwoSides, DUEL | STAGES),
    "opponent, actors in processes": (
        TwoSides,
        DUEL | {"num_envs": 2, "runtime": "processes", "actors": 2},
    ),
    "env workers that act": ("CartPole-v1", SMALL | {"num_envs": 4, "env_workers": 2}),
}


@contextmanager
def device_of(name: str) -> Iterator[None]:
    """Within it, a training "as on a GPU" takes the paths that make no host reads, on the CPU."""
    with pytest.MonkeyPatch.context() as patch:
        if "as on a GPU" in name:
            patch.setattr(devices, "synchronises", lambda where: True)
        yield


def made(name: str) -> tuple[Any, dict[str, Any]]:
    """The env and the settings of a case."""
    env, settings = CASES[name]
    return (env() if env in MADE else env), settings
