"""Training for long takes no more memory than training for a little."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from recollect import Agent, TrainConfig
from recollect.algos.catalog import make_learner
from recollect.config.ppo import PPOConfig
from recollect.cores import GRUConfig, LSTMConfig
from recollect.training.episodes import EpisodeTracker
from recollect.training.metrics import History
from tests.support.agents import SMALL
from tests.support.helpers import TensorWorld, make_actor, make_policy

CORES = {
    "lstm": LSTMConfig(16),
    "gru": GRUConfig(16, learned_initial_state=True),
    "lstm-2": LSTMConfig(16, layers=2),
    "none": "none",
}
EVERYTHING: dict[str, Any] = {
    "epochs": 2,
    "gauge_every": 1,
    "refresh_states": True,
    "recompute_advantages": True,
}
LIBC = ctypes.CDLL(None)
LIMIT = 2**20
"""Bytes that may come and go: 13 kB for each update."""


class Memory(NamedTuple):
    """What this process holds."""

    resident: int
    """Bytes, whoever allocated them."""
    tensors: int
    """Live ones."""
    blocks: int
    """Of Python's own objects: numbers, tuples, dicts."""


def measure() -> Memory:
    gc.collect()
    if hasattr(LIBC, "malloc_trim"):
        LIBC.malloc_trim(0)  # what is free is no one's
    statm = Path("/proc/self/statm")
    pages = int(statm.read_text().split()[1]) if statm.exists() else 0
    tensors = sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())
    return Memory(pages * os.sysconf("SC_PAGE_SIZE"), tensors, sys.getallocatedblocks())


def assert_flat(before: Memory, after: Memory, updates: int) -> None:
    """No tensor more, and no object that every update would leave; torch itself keeps a few hundred."""
    assert_no_more_tensors(before, after)
    assert after.blocks - before.blocks < 6 * updates, f"{after.blocks - before.blocks} more objects live"


def assert_no_more_tensors(before: Memory, after: Memory) -> None:
    assert after.tensors <= before.tensors, f"{after.tensors - before.tensors} more tensors live"


def learned(core: Any, warm_up: int, updates: int) -> tuple[Memory, Memory]:
    """What collecting and learning hold after a few updates, and after many more."""
    env = TensorWorld(3)
    policy = make_policy(env, core, normalise_observations=True)
    actor = make_actor(env, policy, rollout=8, chunk=3)
    learner = make_learner(policy, PPOConfig(rollout=8, chunk=3, minibatches=2, **EVERYTHING))
    episodes, history = EpisodeTracker(3, window=5), History(limit=1)
    found = []
    for more in (warm_up, updates):
        for _ in range(more):
            rollout = actor.collect()
            history.add(learner.update(rollout))
            episodes.add(rollout)
        found.append(measure())
    return found[0], found[1]


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
@pytest.mark.parametrize(
    "core", [pytest.param(core, marks=[pytest.mark.slow] if core != "lstm" else []) for core in CORES]
)
def test_memory_is_flat(core):
    """S002-12, S002-17, S001-2: neither resident size nor live tensors nor objects grow with updates."""
    before, after = learned(CORES[core], 70, 80)
    assert_flat(before, after, 80)
    grown = after.resident - before.resident
    assert grown < LIMIT, f"{grown / 2**20:.1f} MiB more resident"


def test_a_run_is_flat(tmp_path):
    """S002-12: with evaluations, checkpoints, metrics and episodes; two actors."""
    found = []

    def look(training, metrics):
        if training.updates in (80, 120):  # caches of torch and safetensors are filled by then
            found.append(measure())

    every = {"eval_every": 128, "eval_episodes": 1, "checkpoint_every": 256, "keep_checkpoints": 2}
    config = TrainConfig(run=str(tmp_path / "run")).override(
        **SMALL | EVERYTHING | every | {"actors": 2, "target_episodes": 2}
    )
    with Agent.create("delayed-cue", config) as agent:
        agent.history = History(limit=1)
        agent.train(120 * 16, progress=False, callbacks=[look])
    assert_flat(*found, 40)
