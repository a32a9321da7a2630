"""Rollouts with all that can be invalid, for tests of what must neither read nor upload numbers."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces as gym_spaces
from torch import Tensor
from torch.overrides import TorchFunctionMode

from recollect.base import spaces, tree
from recollect.config.algo_shared import state_steps
from recollect.config.policy import EncoderConfig, HeadConfig, PolicyConfig
from recollect.experience.rollout import Finals, Rollout
from recollect.policy.policy import Policy

T, B, CHUNK, BURN_IN = 23, 5, 7, 3
FLOATS = gym_spaces.Box(-np.inf, np.inf, (3,), np.float32)
KINDS = ("all valid", "fillers", "dead rows", "one step")
every_kind = pytest.mark.parametrize("kind", KINDS)
CORE = {"name": "mingru", "hidden": 8}


class Settled(TorchFunctionMode):
    """Raises where a constant would be copied to the device: once is enough, before anything is recorded."""

    UPLOADS = (torch.tensor, torch.as_tensor, torch.from_numpy, torch.asarray)

    def __torch_function__(self, func, types, args=(), kwargs=None):
        assert func not in self.UPLOADS, f"{func} copies from the host: everything would wait for it"
        return func(*args, **(kwargs or {}))


def make_rollout(policy: Policy, kind: str, seed: int = 0) -> Rollout:
    """T steps with ends of every kind; NaN wherever nothing was experienced."""
    torch.manual_seed(seed)
    obs = draw(policy.observation_space, (T + 1, B))
    terminated, truncated = torch.rand(T, B) < 0.1, torch.rand(T, B) < 0.1
    truncated[:, 0] = terminated[:, 0] = False
    first = torch.cat([torch.rand(1, B) < 0.5, terminated | truncated])
    valid = torch.ones(T, B, dtype=torch.bool)
    if kind == "fillers":
        valid = torch.rand(T, B) < 0.7
    elif kind == "dead rows":
        valid[:, 1:3] = False
        valid[9:, 4] = False
    elif kind == "one step":
        valid[:] = False
        valid[5, 2] = True
    steps = state_steps(T, CHUNK, BURN_IN)
    start = policy.initial_state(B)
    with torch.no_grad():
        seen = tree.index(obs, slice(T))
        dist, value, states = policy.unroll_with_states(seen, start, first[:T], [*steps, T])
        action = dist.sample()
        log_prob = dist.log_prob(action)
        bootstrap = policy.value(tree.index(obs, T), states[-1], first[T])
    cut = truncated & ~terminated
    time, row = cut.nonzero(as_tuple=True)
    final_obs = tree.map(lambda leaf: torch.randn(len(time), *leaf.shape[2:]).to(leaf.dtype), obs)
    final_value = torch.randn(T, B).masked_fill(~cut, 0)
    reward = torch.randn(T, B) * 2 + 0.5
    for leaf in (reward, value, log_prob, *tree.leaves(seen)):
        if leaf.is_floating_point():
            leaf[~valid] = torch.nan
    return Rollout(
        obs=obs,
        first=first,
        action=action,
        record={"log_prob": log_prob, "value": value},
        reward=reward,
        terminated=terminated,
        truncated=truncated,
        valid=valid,
        final_value=final_value,
        bootstrap=bootstrap,
        state_steps=steps,
        states=tree.stack(states[:-1]),
        finals=Finals(time, row, final_obs) if len(time) else None,
    )


def make_policy(observations: gym.Space = FLOATS, actions: gym.Space | None = None, **config: Any) -> Policy:
    torch.manual_seed(0)
    head = HeadConfig(gain=1.0)
    config = {
        "encoder": EncoderConfig(hidden=(8,)),
        "core": CORE,
        "head": head,
        "precision": "fp32",
        **config,
    }
    return PolicyConfig(**config).build(observations, actions or gym_spaces.Discrete(3))


def draw(space: gym.Space, lead: tuple[int, int]) -> Any:
    """Observations [*lead, ...] of any space, some of them out of its range."""

    def noise(leaf: Tensor) -> Tensor:
        return (
            (torch.randn(leaf.shape) * 3 + 1)
            .clamp(min=0 if leaf.dtype == torch.uint8 else -100)
            .to(leaf.dtype)
        )

    return tree.map(lambda leaf: noise(leaf).unflatten(0, lead), spaces.zeros(space, lead[0] * lead[1]))


def assert_same(got: Any, want: Any, rtol: float = 1e-6) -> None:
    """Trees, equal but for rounding, NaN where NaN."""
    named = dict(tree.named_leaves(want))
    assert dict(tree.named_leaves(got)).keys() == named.keys()
    for name, leaf in tree.named_leaves(got):
        how: dict[str, Any] = {"rtol": rtol, "atol": rtol, "equal_nan": True, "check_dtype": False}
        torch.testing.assert_close(leaf, named[name], **how, msg=lambda text, name=name: f"{name}: {text}")


def assert_near(got: Any, want: Any, part: float) -> None:
    """Trees whose leaves differ by at most this part of their own largest number."""
    named = dict(tree.named_leaves(want))
    assert dict(tree.named_leaves(got)).keys() == named.keys()
    for name, leaf in tree.named_leaves(got):
        expected = named[name].double()
        gap, size = (leaf.double() - expected).abs().max(), expected.abs().max()
        assert gap <= part * size, f"{name} is off by {gap:.1e}, its largest number is {size:.1e}"
