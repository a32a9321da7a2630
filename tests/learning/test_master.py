"""Master test M: what the learner recomputes is what the actor recorded.

Right after a rollout and before any update, for every head, core, autoreset mode, chunk length and
normaliser, over several rollouts with real updates in between. Episodes end inside chunks, at their
ends and at the rollout's, by termination, by truncation and by both.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from recollect.algos.catalog import make_learner
from recollect.base import tree
from recollect.config.ppo import PPOConfig
from recollect.cores import GRUConfig, LSTMConfig
from recollect.envs import make_env
from recollect.policy.policy import Policy
from tests.support.helpers import (
    GYM_WORLDS,
    ArenaWorld,
    ScriptedEnv,
    TensorWorld,
    all_pairs,
    as_rows,
    assert_reproduced,
    deviation,
    keep,
    make_actor,
    make_policy,
)

T, ROWS = 23, 3

CORES: dict[str, Any] = {
    "lstm": LSTMConfig(hidden=16),
    "gru": GRUConfig(hidden=16),
    "lstm-2": LSTMConfig(hidden=16, layers=2),
    "lstm-learned": LSTMConfig(hidden=16, learned_initial_state=True),
    "gru-learned": GRUConfig(hidden=16, learned_initial_state=True),
    "none": "none",
}

HYBRID = spaces.Dict(
    {
        "fire": spaces.MultiBinary(2),
        "move": spaces.Box(-1.0, 1.0, (2,), np.float32),
        "target": spaces.Discrete(4),
    }
)
HEADS: dict[str, dict[str, Any]] = {
    "discrete": {"action_space": spaces.Discrete(3, start=-1)},
    "masked": {"action_space": spaces.Discrete(5), "masked": True},
    "multi-discrete": {"action_space": spaces.MultiDiscrete([2, 4, 3])},
    "multi-binary": {"action_space": spaces.MultiBinary(3)},
    "gaussian": {"action_space": spaces.Box(-np.inf, np.inf, (2,), np.float32)},
    "clipped": {"action_space": spaces.Box(-0.5, 0.5, (1,), np.float32), "squash": False},
    "squashed": {"action_space": spaces.Box(-2.0, 1.0, (2,), np.float32)},
    "hybrid": {"action_space": HYBRID},
    "hybrid-masked": {"action_space": HYBRID, "masked": True},
    "tuple": {"action_space": spaces.Tuple((spaces.Discrete(3), spaces.Box(-1.0, 1.0, (1,), np.float32)))},
}

CASES = all_pairs(
    head=HEADS,
    core=CORES,
    world=GYM_WORLDS,
    chunk=(7, 1, T),
    value=(True, False),
    seen=(True, False),
)
"""Every value of each axis with every value of each other; ``value`` and ``seen`` are the normalisers."""


def name(case: dict[str, Any]) -> str:
    return "-".join(str(part) for part in case.values())


def scripted(head: str, world: str) -> tuple[Any, Any]:
    """The env with this head's action space, and the head's ``squash``."""
    options = dict(HEADS[head])
    squash = options.pop("squash", "auto")
    return as_rows([functools.partial(ScriptedEnv, **options)] * ROWS, world), squash


def check(env: Any, policy: Policy, chunk: int, *, rollouts: int = 3, rollout: int = T) -> None:
    """M over several rollouts, each followed by a real update."""
    actor = make_actor(env, policy, rollout=rollout, chunk=chunk)
    config = PPOConfig(
        rollout=rollout, chunk=chunk, epochs=2, minibatches=2, learning_rate=0.01, tolerance=1e-5
    )
    learner = make_learner(policy, config)
    met = {"terminated": 0, "truncated": 0}
    for _ in range(rollouts):
        weights = [p.detach().clone() for p in policy.parameters()]
        seen = actor.collect()
        met = {flag: count + int(getattr(seen, flag).sum()) for flag, count in met.items()}
        assert_reproduced(policy, seen, chunk)
        if policy.has_memory and chunk < rollout:
            assert max(deviation(policy, seen, chunk, forget=True)) > 1e-3, "the memory does not matter"
        learner.update(seen)
        assert any(not torch.equal(a, b) for a, b in zip(weights, policy.parameters()))
    assert met["terminated"] or met["truncated"], "no episode ended"


@pytest.mark.parametrize("case", CASES, ids=name)
def test_every_head_core_and_autoreset_mode(case):
    """M, S000-8, S000-11, S000-16, S002-3, S002-4, S002-6, S002-18, S004-1, S001-20 (M with it on)."""
    env, squash = scripted(case["head"], case["world"])
    policy = make_policy(
        env,
        CORES[case["core"]],
        squash=squash,
        normalise_value=case["value"],
        normalise_observations=case["seen"],
    )
    check(env, policy, case["chunk"])
    if case["seen"]:
        assert any(moments.offset.abs().max() > 0.1 for moments in policy.obs_norm.scalings.values())
    env.close()


TASK_CASES = all_pairs(
    task=("t-maze", "position-cartpole", "position-pendulum", "repeat-previous", "delayed-cue"),
    core=CORES,
    chunk=(7, 1, T),
)
SHORT = {"t-maze": {"length": 5}, "delayed-cue": {"horizon": 6}}


@pytest.mark.parametrize("case", TASK_CASES, ids=name)
def test_the_built_in_tasks(case):
    """M on the tasks, whose tensors never leave torch."""
    env = make_env(case["task"], 4, env_kwargs=SHORT.get(case["task"], {}))
    policy = make_policy(env, CORES[case["core"]], normalise_observations=True)
    is_long = case["task"] in ("position-pendulum", "repeat-previous")
    rollout = 67 if is_long else T
    check(
        env,
        policy,
        rollout if case["chunk"] == T else case["chunk"],
        rollouts=4 if is_long else 3,
        rollout=rollout,
    )


@pytest.mark.parametrize("core", CORES)
def test_an_env_that_reuses_its_tensors(core):
    """M where every tensor of the env is overwritten by its next step."""
    env = TensorWorld(ROWS)
    check(env, make_policy(env, CORES[core]), 7)


@pytest.mark.parametrize("core", CORES)
def test_dead_agents(core):
    """S001-29: M with two agents a slot, one of them dead and NaN for a while."""
    env = ArenaWorld(3)
    policy = make_policy(env, CORES[core], normalise_observations=True)
    check(env, policy, 7)
    assert all(torch.isfinite(p).all() for p in policy.parameters())


MODES = [
    {"recurrent_mode": "stored_state", "chunk": 7},
    {"recurrent_mode": "full"},
    {"recurrent_mode": "burn_in", "chunk": 7, "burn_in_steps": 7},
    {"recurrent_mode": "burn_in", "chunk": 7, "burn_in_steps": 3},
]


@pytest.mark.parametrize("world", GYM_WORLDS)
@pytest.mark.parametrize("mode", MODES, ids=lambda mode: "-".join(map(str, mode.values())))
def test_every_recurrent_mode(mode, world):
    """M, S004-2: the learner's own path, burn-in included, reproduces what was recorded."""
    env, _ = scripted("discrete", world)
    policy = make_policy(env, CORES["lstm"], normalise_observations=True)
    config = PPOConfig(rollout=T, epochs=1, minibatches=1, learning_rate=0.01, **mode)
    learner = make_learner(policy, config)
    actor = make_actor(env, policy, rollout=T, chunk=config.chunk_length, burn_in=config.burn_in_steps)
    for _ in range(3):  # with one minibatch, the gauge looks at everything
        metrics = learner.update(actor.collect())
        assert metrics["deviation/log_prob"] <= 1e-5
        assert metrics["deviation/value"] <= 1e-5 * max(1, metrics["value_scale"])


@pytest.mark.parametrize("core", ["lstm", "gru-learned", "lstm-2"])
def test_episodes_longer_than_rollouts(core):
    """S004-18: over 8 rollouts, the memory is that of one long unroll at fixed weights."""
    env = TensorWorld(ROWS, lengths=(160, 9, 75))
    policy = make_policy(env, CORES[core])
    actor = make_actor(env, policy, rollout=T, chunk=7)
    rollouts = [keep(actor.collect()) for _ in range(8)]
    assert not any(r.first[1:, 0].any() for r in rollouts[:6])  # row 0 is inside one episode
    obs = torch.cat([r.obs[:T] for r in rollouts])
    first = torch.cat([r.first[:T] for r in rollouts])
    with torch.no_grad():
        dist, value, state = policy.unroll(obs, policy.initial_state(ROWS), first)
    log_prob = dist.log_prob(torch.cat([r.action for r in rollouts]))
    torch.testing.assert_close(value, torch.cat([r.record["value"] for r in rollouts]), atol=1e-5, rtol=0)
    recorded = torch.cat([r.record["log_prob"] for r in rollouts])
    torch.testing.assert_close(log_prob, recorded, atol=1e-5, rtol=0)
    for end, live in zip(tree.leaves(state), tree.leaves(actor.state)):
        torch.testing.assert_close(end, live, atol=1e-5, rtol=0)


def test_given_actions_are_evaluated():
    """S002-18: evaluating draws no random number, and sampling gives more than one action."""
    env = TensorWorld(ROWS)
    policy = make_policy(env, CORES["lstm"])
    rollout = make_actor(env, policy, rollout=T, chunk=7).collect()
    assert len(rollout.action.unique()) == 3
    before = torch.get_rng_state()
    assert deviation(policy, rollout, 7) == deviation(policy, rollout, 7)
    assert torch.equal(before, torch.get_rng_state())
