"""Every core and every policy trains: a short run with two actors, and a resume in the middle."""

from __future__ import annotations

import math

import pytest
import torch

import recollect as rc
from recollect.base import tree
from recollect.config.core_choice import known
from recollect.config.policy import POLICIES
from tests.support.core_cases import CASES

STEPS = 5_000


def check(agent: rc.Agent, start: list[torch.Tensor]) -> None:
    """It has learned something, whatever it was, and every number is one."""
    assert agent.steps >= STEPS
    last = agent.history.rows[-1]
    # No two stored states are of one episode, so that there is no drift between them.
    assert all(math.isfinite(value) for name, value in last.items() if name != "state/drift")
    assert last["deviation/log_prob"] < 1e-4
    moved = [not torch.equal(a, b) for a, b in zip(start, agent.policy.parameters(), strict=True)]
    assert sum(moved) > len(moved) // 2
    assert all(parameter.isfinite().all() for parameter in agent.policy.parameters())


def trained(env: str, **settings) -> tuple[rc.Agent, list[torch.Tensor]]:
    start: list[torch.Tensor] = []

    class Remember(rc.Callback):
        def on_start(self, training):
            start.extend(p.detach().clone() for p in training.agent.policy.parameters())

    settings = {"rollout": 32, "chunk": 16, "num_envs": 16, "actors": 2, "epochs": 2, "threads": 1} | settings
    return rc.train(env, steps=STEPS, progress=False, callbacks=[Remember()], **settings), start


@pytest.mark.parametrize("core", list(known))
def test_every_core(core):
    """S002-14: 5,000 steps of a memory task at the default size of the core."""
    agent, start = trained(
        "delayed-cue", core=core, recurrent_mode="none" if core == "none" else "stored_state"
    )
    check(agent, start)
    assert len(agent.evaluate(episodes=8).returns) == 8


# The largest differs from the next smaller one only in its sizes, and takes as long as all others together.
@pytest.mark.parametrize(
    "policy",
    [pytest.param(name, marks=[pytest.mark.slow] if name == "latent_attn_med" else []) for name in POLICIES],
)
def test_every_token_policy(policy):
    """S002-8, S002-14: 5,000 steps of foraging; in few large batches, as the largest is a slow one."""
    batches = {"num_envs": 64, "rollout": 16, "epochs": 1, "minibatches": 1}
    agent, start = trained("forage", policy=policy, **batches)
    check(agent, start)
    assert agent.policy.config.encoder.tokens == policy
    assert len(agent.evaluate(episodes=2).returns) == 2


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if "-" in name else []) for name in CASES]
)
def test_every_core_resumes_bit_for_bit(name, tmp_path):
    """S004-15, S002-7: the state of every core is stored, checkpointed and restored like any other."""
    settings = {
        "rollout": 16,
        "chunk": 8,
        "num_envs": 4,
        "threads": 1,
        "progress": False,
        "core": CASES[name],
    }
    if name == "none":
        settings["recurrent_mode"] = "none"
    path = tmp_path / "run"
    whole = rc.train("t-maze", steps=256, run=str(path), checkpoint_every=128, **settings)
    half = rc.resume(path, checkpoint=128, progress=False)
    assert half._trainer.is_exact
    assert half.config.policy == whole.config.policy
    for a, b in zip(whole.policy.parameters(), half.policy.parameters(), strict=True):
        assert torch.equal(a, b)
    actors = [agent._trainer.collector.actors for agent in (whole, half)]
    live = [tree.leaves(tuple(actor.state for actor in each)) for each in actors]
    assert all(torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(*live, strict=True))
