"""Acting and evaluating on the path of a GPU: any policy, any action space, no number read."""

from __future__ import annotations

from dataclasses import replace

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces as gym_spaces

from recollect.base import tree
from recollect.config.policy import POLICIES, EncoderConfig, HeadConfig
from recollect.policy.masks import mask_space
from recollect.policy.policy import Policy
from tests.policy.test_heads import SPACES
from tests.support.captured import CORE, FLOATS, Settled, assert_same, draw, make_policy
from tests.support.token_worlds import token_space

STEPS, ROWS = 4, 6


def check(policy: Policy, unread) -> None:
    """Acting, values, log-probs, entropies and gradients: once to settle, and then without an upload."""
    policy = policy.double()  # so that the order of sums hardly shows
    torch.manual_seed(1)
    obs = draw(policy.observation_space, (STEPS, ROWS))
    first = torch.rand(STEPS, ROWS) < 0.3
    state = policy.initial_state(ROWS)

    def played():
        generator = torch.Generator().manual_seed(0)
        policy.zero_grad()
        acted, after = policy.act(tree.index(obs, 0), state, first[0], generator)
        likeliest, _ = policy.act(tree.index(obs, 0), state, first[0], deterministic=True)
        value = policy.value(tree.index(obs, 1), after, first[1])
        action = tree.map(lambda leaf: leaf.expand(STEPS, *leaf.shape), acted.action)
        evaluated = policy.evaluate_actions(obs, action, state, first)
        sum(one.sum() for one in evaluated).backward()
        grads = {name: p.grad.clone() for name, p in policy.named_parameters() if p.grad is not None}
        told = policy.to_env(acted.action), likeliest.action, tuple(acted), value
        return told, after, tuple(one.detach() for one in evaluated), grads

    want = played()
    with unread():
        played()
        with Settled():
            got = played()
    assert_same(got, want, rtol=1e-9)


@pytest.mark.parametrize("name", SPACES)
def test_any_action_space(name, unread):
    """S001-7, S002-18: sampled with a generator, the likeliest, and evaluated."""
    check(make_policy(actions=SPACES[name]), unread)


@pytest.mark.parametrize("name", [name for name, space in SPACES.items() if mask_space(space) is not None])
def test_any_action_mask(name, unread):
    """S002-18: rows whose mask allows nothing among them."""
    masks = mask_space(SPACES[name])
    assert masks is not None
    check(make_policy(gym_spaces.Dict(action_mask=masks, seen=FLOATS), SPACES[name]), unread)


@pytest.mark.parametrize("squash", [True, False])
def test_spreads_of_the_features(squash, unread):
    """S001-7."""
    head = HeadConfig(gain=1.0, squash=squash, state_dependent_std=True)
    check(make_policy(actions=gym_spaces.Box(-1.0, 1.0, (3,)), head=head), unread)


OBSERVATIONS: dict[str, gym.Space] = {
    "vector": FLOATS,
    "integers": gym_spaces.Box(-5, 5, (2, 2), np.int64),
    "discrete": gym_spaces.Discrete(5, start=-1),
    "choices": gym_spaces.MultiDiscrete([[2, 3], [4, 2]]),
    "bits": gym_spaces.MultiBinary(4),
    "image": gym_spaces.Box(0, 255, (16, 16, 3), np.uint8),
    "nested": gym_spaces.Dict(
        a=FLOATS, b=gym_spaces.Tuple((gym_spaces.Discrete(3), gym_spaces.Box(0, 255, (3, 9, 9), np.uint8)))
    ),
}


@pytest.mark.parametrize("name", OBSERVATIONS)
@pytest.mark.parametrize("has_seen", [False, True])
def test_any_observation_space(name, has_seen, unread):
    """S002-14: before there are statistics of the observations, and with them."""
    policy = make_policy(OBSERVATIONS[name])
    if has_seen:
        assert policy.obs_norm is not None
        policy.obs_norm.update(draw(OBSERVATIONS[name], (9, 3)), torch.ones(9, 3, dtype=torch.bool))
    check(policy, unread)


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_of_the_zoo(name, unread):
    """S002-14."""
    torch.manual_seed(0)
    config = replace(POLICIES[name], core=CORE, head=HeadConfig(gain=1.0))
    check(config.build(token_space(), gym_spaces.Discrete(4)), unread)


@pytest.mark.parametrize("critic", ["separate", "memoryless"])
def test_a_critic_of_its_own(critic, unread):
    """S002-14."""
    space = gym_spaces.Dict(seen=FLOATS, secret=FLOATS)
    check(make_policy(space, critic=critic, critic_obs=("secret",)), unread)


def test_a_conv_stack_of_dqn(unread):
    """S002-14."""
    encoder = EncoderConfig(conv="nature", hidden=(8,), layer_norm=True)
    check(make_policy(gym_spaces.Box(0, 255, (40, 40, 1), np.uint8), encoder=encoder), unread)
