"""Token policies and grids of symbols on a GPU: what they say, learn and train is what the CPU's do."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

import recollect as rc
from recollect.base import tree
from recollect.config.policy import POLICIES
from recollect.policy.policy import Policy
from tests.support.agents import AnySpace
from tests.support.captured import assert_near, make_policy
from tests.support.token_worlds import TOKENS, batch, token_space

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
STEPS, ROWS = 6, 8


def observations() -> Tensor:
    """Tokens with pads and without, no token at all, and bytes that are none."""
    obs = torch.cat([batch(STEPS * ROWS - 18), batch(10, pads=0.0), batch(4, pads=1.0)])
    torch.manual_seed(0)
    anything = torch.randint(0, 256, (4, TOKENS, 3), dtype=torch.uint8)
    return torch.cat([obs, anything]).view(STEPS, ROWS, TOKENS, 3)


def told(policy: Policy, device: str, seen: Tensor | None = None) -> Any:
    """Features, log-probs, entropies, values, states and all gradients."""
    policy = policy.to(device)
    torch.manual_seed(1)
    first, action = torch.rand(STEPS, ROWS) < 0.3, torch.randint(0, 4, (STEPS, ROWS))
    seen = observations() if seen is None else seen
    obs, first, action = (x.to(device) for x in (seen, first, action))
    state = policy.initial_state(ROWS)
    acted, after = policy.act(obs[0], state, first[0], deterministic=True)
    found = policy.evaluate_actions(obs, action, state, first)
    total = torch.stack(found).square().mean()
    grads = torch.autograd.grad(total, list(policy.parameters()))
    with policy.computing(), torch.no_grad():
        features = policy._encode(obs.flatten(0, 1))
    evaluated = tuple(one.detach() for one in found)
    return tree.to(
        (features, evaluated, grads, after, acted.action, acted.record["log_prob"], acted.record["value"]),
        "cpu",
    )


@pytest.mark.parametrize(("dtype", "close"), [(torch.float64, 1e-9), (torch.float32, 1e-3)], ids=str)
@pytest.mark.parametrize("name", POLICIES)
def test_the_encoder_is_that_of_the_cpu(name, dtype, close):
    """S002-14: its features, what follows from them, and the gradients of all weights."""
    core = {"name": "gru", "hidden": 16}
    config = {"encoder": POLICIES[name].encoder, "core": core}
    made = [make_policy(token_space(), spaces.Discrete(4), **config).to(dtype) for _ in range(2)]
    assert_near(told(made[1], "cuda"), told(made[0], "cpu"), close)


@pytest.mark.parametrize(("dtype", "close"), [(torch.float64, 1e-9), (torch.float32, 1e-3)], ids=str)
def test_symbols_are_those_of_the_cpu(dtype, close):
    """S002-14: a learned vector for each, the conv stack, and the gradients of both."""
    space = spaces.Box(0, 255, (7, 7, 3), np.uint8)
    made = [make_policy(space, spaces.Discrete(4), core={"name": "gru", "hidden": 16}) for _ in range(2)]
    seen = torch.from_numpy(np.random.default_rng(0).integers(0, 11, (STEPS, ROWS, 7, 7, 3), np.uint8))
    assert_near(told(made[1].to(dtype), "cuda", seen), told(made[0].to(dtype), "cpu", seen), close)


def test_a_world_of_symbols_trains():
    """Its updates are captured; the run would stop if it did not reproduce what it recorded."""
    env = functools.partial(AnySpace, spaces.Box(0, 255, (7, 7, 3), np.uint8))
    rows: list[dict[str, float]] = []
    settings = {"num_envs": 16, "rollout": 16, "chunk": 8, "minibatches": 2, "progress": False}
    agent = rc.train(
        env, device="cuda", steps=6 * 256, callbacks=[lambda _, metrics: rows.append(metrics)], **settings
    )
    assert len(rows) == 6
    assert all(parameter.is_cuda and parameter.isfinite().all() for parameter in agent.policy.parameters())


@pytest.mark.parametrize("precision", ["fp32", "tf32"])
@pytest.mark.parametrize("name", POLICIES)
def test_training_runs(name, precision):
    """S002-14, S002-8: foraging on the GPU; the run would stop if it did not reproduce what it recorded."""
    rows: list[dict[str, float]] = []
    start: list[Tensor] = []

    def keep(training, metrics):
        rows.append(metrics)

    class Remember(rc.Callback):
        def on_start(self, training):
            start.extend(p.detach().clone() for p in training.agent.policy.parameters())

    settings = {"num_envs": 32, "rollout": 16, "chunk": 8, "minibatches": 2, "progress": False}
    agent = rc.train(
        "forage",
        policy=name,
        precision=precision,
        device="cuda",
        steps=6 * 512,
        callbacks=[keep, Remember()],
        **settings,
    )
    assert len(rows) == 6
    assert agent.policy.config.encoder.tokens == name
    assert all(parameter.is_cuda and parameter.isfinite().all() for parameter in agent.policy.parameters())
    moved = [not torch.equal(a, b) for a, b in zip(start, agent.policy.parameters(), strict=True)]
    assert sum(moved) > len(moved) // 2
    assert len(agent.evaluate(episodes=2).returns) == 2
