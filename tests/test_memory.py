"""Training for long takes no more memory than training for a little."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import pytest
import torch

from recollect.algos.ppo import PPO, PPOConfig
from recollect.cores import GRUConfig, LSTMConfig
from recollect.metrics import EpisodeTracker, History
from tests.helpers import TensorWorld, make_actor, make_policy

CORES = {
    "lstm": LSTMConfig(16),
    "gru": GRUConfig(16, learned_initial_state=True),
    "lstm-2": LSTMConfig(16, layers=2),
    "none": "none",
}
UPDATES, WARM_UP = 220, 80
LIMIT = 3 * 2**20
"""Bytes that the allocator may keep or lose. One kept graph an update would be several times as much."""


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def live_tensors() -> int:
    return sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())


def measure() -> tuple[int, int]:
    gc.collect()
    return resident(), live_tensors()


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
@pytest.mark.parametrize(
    "core", [pytest.param(core, marks=[pytest.mark.slow] if core == "lstm-2" else []) for core in CORES]
)
def test_memory_is_flat(core):
    """S002-12, S002-17, S001-2: 220 updates, and neither resident size nor live tensors grow."""
    env = TensorWorld(3)
    policy = make_policy(env, CORES[core], normalise_observations=True)
    actor = make_actor(env, policy, rollout=8, chunk=3)
    config = PPOConfig(
        rollout=8, chunk=3, epochs=2, minibatches=2, refresh_states=True, recompute_advantages=True
    )
    learner, episodes, history = PPO(policy, config), EpisodeTracker(3), History(limit=20)
    before = measure()
    for update in range(UPDATES):
        rollout = actor.collect()
        metrics = learner.update(rollout)
        episodes.add(rollout)
        history.add(metrics)
        if update + 1 == WARM_UP:
            before = measure()
    after = measure()
    assert after[1] <= before[1], f"{after[1] - before[1]} more tensors live"
    assert after[0] - before[0] < LIMIT, f"{(after[0] - before[0]) / 2**20:.1f} MiB more resident"
