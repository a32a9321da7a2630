"""How much memory a run takes: known before it starts."""

from __future__ import annotations

import pytest

from recollect import tree
from recollect.actor import allocate
from recollect.cores import GRUConfig, LSTMConfig
from recollect.rollout import rollout_bytes
from tests.agents import ACTIONS, OBSERVATIONS, AnySpace, small_agent
from tests.helpers import as_rows, make_policy


@pytest.mark.parametrize("observation", OBSERVATIONS)
@pytest.mark.parametrize("action", ["discrete", "dict"])
def test_memory_use_is_known_before(observation, action):
    """S004-10: the estimate is within 5% of what is allocated, and so is the share of the states."""
    env = as_rows([lambda: AnySpace(OBSERVATIONS[observation], ACTIONS[action])] * 3, "loop")
    for core, stored in (
        (LSTMConfig(hidden=32, layers=2), (0, 10, 20)),
        (GRUConfig(hidden=8), (0,)),
        ("none", (0,)),
    ):
        policy = make_policy(env, core)
        rollout = allocate(policy, 3, 25, stored)
        parts = [rollout.obs, rollout.first, rollout.action, rollout.record, rollout.reward, rollout.valid]
        parts += [
            rollout.terminated,
            rollout.truncated,
            rollout.final_value,
            rollout.bootstrap,
            rollout.states,
        ]
        measured = sum(leaf.untyped_storage().nbytes() for leaf in tree.leaves(tuple(parts)))
        size = rollout_bytes(
            env.observation_space,
            env.action_space,
            policy.initial_state(1),
            rows=3,
            steps=25,
            stored=len(stored),
        )
        assert size.total == pytest.approx(measured, rel=0.05)
        assert size.states == tree.size_bytes(rollout.states)


def test_only_chunk_starts_are_stored():
    """S004-10: a state for each chunk, not for each step."""
    agent = small_agent(rollout=32, chunk=8)
    assert agent.config.algo.state_steps == (0, 8, 16, 24)
    assert agent._trainer.crew.actors[0].collect().states[0].shape[:2] == (4, 2)


def test_the_opening_says_sizes_and_horizon(capsys):
    """S004-10, S001-24: memory use, weights and effective horizon stand before the first step."""
    agent = small_agent(gamma=0.95)
    agent.train(16, progress="plain")
    said = " ".join(capsys.readouterr().err.split())
    weights = sum(p.numel() for p in agent.policy.parameters())
    assert f"{weights:,} weights; a rollout of 8 steps x 2 rows takes 0.00" in said
    assert "of it stored states; effective horizon 20 steps" in said
