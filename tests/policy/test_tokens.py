"""Tokens: what their bytes mean, how they are drawn on a grid, attention from its equations, and their place
in the encoder."""

from __future__ import annotations

import math
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from recollect.base import spaces as rspaces
from recollect.config.policy import EncoderConfig
from recollect.envs.wrappers import LastActionReward
from recollect.errors import ConfigError, SpaceError
from recollect.policy.encoders import make_encoder
from recollect.policy.normalise import ObservationNorm
from recollect.policy.tokens import NETWORKS, TokenSpace
from recollect.policy.tokens.fast import Fast
from recollect.policy.tokens.latent import SIZES, LatentAttention
from tests.support.helpers import as_rows
from tests.support.token_worlds import FEATURES, LARGEST, TOKENS, TokenEnv, batch, byte, token_space

BYTES = arrays(np.uint8, (2, 7, 3), elements=st.integers(0, 255))
"""Anything at all in the bytes of two rows."""


# What a token is ------------------------------------------------------------------------------------------


def test_which_boxes_are_tokens():
    assert rspaces.is_tokens(token_space())
    others = [
        spaces.Box(0, 255, (12, 4), np.uint8),
        spaces.Box(0, 255, (3,), np.uint8),
        spaces.Box(0, 255, (4, 12, 3), np.uint8),
        spaces.Box(0.0, 1.0, (12, 3)),
        spaces.Box(0, 100, (12, 3), np.int32),
        spaces.Discrete(3),
    ]
    assert not any(rspaces.is_tokens(space) for space in others)


@given(BYTES)
def test_reading_is_by_the_rule(obs):
    """S002-19: by the definition, byte by byte; pads, coordinates and features out of range are no tokens."""
    tokens = TokenSpace.of(token_space())
    read = tokens.read(torch.from_numpy(obs))
    for row, slot in np.ndindex(obs.shape[:2]):
        coordinate, feature, value = map(int, obs[row, slot])
        x, y = divmod(coordinate, 16)
        is_token = x <= 10 and y <= 10 and feature < FEATURES
        expected = (x, y, feature, min(value, LARGEST), 1) if is_token else (0, 0, 0, 0, 0)
        assert tuple(int(part[row, slot]) for part in read) == expected


def test_a_space_with_all_bytes():
    """Where the Box names no bounds, there are 256 features, and 0xFF is one of them."""
    tokens = TokenSpace.of(spaces.Box(0, 255, (4, 3), np.uint8))
    assert (tokens.features, tokens.largest) == (256, 255)
    read = tokens.read(torch.tensor([[[0, 255, 255], [255, 255, 255]]], dtype=torch.uint8))
    assert read.present.tolist() == [[True, False]]
    assert read.feature.tolist() == [[255, 0]]


@pytest.mark.parametrize(
    "wrong",
    [
        torch.zeros(2, 3, 7, dtype=torch.uint8),
        torch.zeros(2, 7, 3),
        torch.zeros(5, 2, 7, 3, dtype=torch.uint8),
        torch.zeros(7, 3, dtype=torch.uint8),
    ],
    ids=["transposed", "floats", "time", "one"],
)
@pytest.mark.parametrize("name", NETWORKS)
def test_another_layout_raises(name, wrong):
    """S002-10: nothing is reshaped until it fits."""
    with pytest.raises(SpaceError, match=r"wanted uint8 \(N, M, 3\).*transposed, or normalised"):
        NETWORKS[name](token_space())(wrong)


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_for_tokens_wants_tokens(name):
    with pytest.raises(SpaceError, match="another encoder"):
        NETWORKS[name](spaces.Box(-1.0, 1.0, (3,)))


# The grid -------------------------------------------------------------------------------------------------


@given(BYTES)
def test_the_grid_is_the_sum_of_its_tokens(obs):
    """S002-19: token after token in Python; values in floats, so that no sum wraps at 255."""
    network = Fast(token_space()).double()
    expected = np.zeros((len(obs), FEATURES, 11, 11))
    for row, slot in np.ndindex(obs.shape[:2]):
        coordinate, feature, value = map(int, obs[row, slot])
        x, y = divmod(coordinate, 16)
        if x <= 10 and y <= 10 and feature < FEATURES:
            expected[row, feature, y, x] += 0.5 + 0.5 * min(value, LARGEST) / LARGEST
    np.testing.assert_allclose(network.grid(torch.from_numpy(obs)), expected, rtol=1e-12)


def test_the_grid_does_not_depend_on_the_order_to_the_bit():
    """Whole numbers are added, so that atomics in any order give the same floats."""
    space = token_space(200, 2, 255)
    network, obs = Fast(space), batch(4, space, pads=0.1)
    obs[:, :, 0] = byte(torch.randint(0, 2, (4, 200)), 0)  # a hundred in each of two cells
    shuffled = obs[:, torch.randperm(200)]
    assert torch.equal(network.grid(obs), network.grid(shuffled))
    assert network.grid(obs).max() > 30


def test_a_token_of_value_0_is_seen():
    network = Fast(token_space())
    nothing = torch.full((1, 4, 3), 255, dtype=torch.uint8)
    zero = nothing.clone()
    zero[0, 2] = torch.tensor([byte(3, 4), 1, 0])
    assert network.grid(nothing).abs().max() == 0
    assert network.grid(zero)[0, 1, 4, 3] == 0.5


def test_the_smallest_networks_have_the_layers_that_they_say():
    """S002-8: the sizes of the convolutions and of the attention."""
    fast = Fast(token_space())
    assert (fast.near.out_channels, fast.near.kernel_size, fast.near.stride) == (64, (5, 5), (3, 3))
    assert fast.near(fast.grid(batch(1))).shape == (1, 64, 3, 3)
    linears = [(m.in_features, m.out_features) for m in fast.modules() if isinstance(m, torch.nn.Linear)]
    assert linears == [(64 * 3 * 3, 64), (64, 128), (128, 128)]
    shape = {name: (s.queries, s.width, s.heads, s.cross, s.among) for name, s in SIZES.items()}
    assert shape == {"tiny": (1, 32, 4, 2, 0), "small": (10, 64, 4, 1, 2), "med": (10, 128, 8, 3, 3)}


# Attention ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", ["tiny", "small"])
def test_attention_is_that_of_its_equations(size):
    """S002-8: keys and values of every token, head by head, without those that are not there."""
    torch.manual_seed(0)
    network = LatentAttention(token_space(), SIZES[size]).double()
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    obs = batch(3)
    layer: Any = network.cross[0]
    u, _ = network._vectors(obs)
    present = network.tokens.read(obs).present
    width, heads = SIZES[size].width, SIZES[size].heads
    depth = width // heads
    for row in range(3):
        z = network.queries
        q = layer.query(layer.norm(z))
        seen = torch.zeros_like(z)
        for head in range(heads):
            part = slice(head * depth, (head + 1) * depth)
            k, v = network.key(u[row])[:, part], network.value(u[row])[:, part]
            logits = (q[:, part] @ k.T / math.sqrt(depth))[:, present[row]]
            seen[:, part] = logits.softmax(1) @ v[present[row]]
        z = z + layer.out(seen)
        z = z + layer.mlp.down(torch.nn.functional.silu(layer.mlp.up(layer.mlp.norm(z))))
        whole = layer(network.queries.expand(3, -1, -1), *network._vectors(obs), network.key, network.value)
        torch.testing.assert_close(whole[row], z, rtol=1e-10, atol=1e-10)


def test_keys_and_values_are_projected_once():
    """S002-8: all cross-attention layers share them."""
    network = LatentAttention(token_space(), SIZES["med"])
    inputs = network.key.in_features
    wide = [name for name, m in network.named_modules() if getattr(m, "in_features", 0) == inputs]
    assert wide == ["key", "value"]


# In the encoder -------------------------------------------------------------------------------------------

MIXED = spaces.Dict(
    camera=spaces.Box(0, 255, (9, 9, 1), np.uint8),
    speed=spaces.Box(-1.0, 1.0, (2,)),
    near=token_space(6),
    far=spaces.Tuple((token_space(4, 2, 1), spaces.Discrete(3))),
)


@pytest.mark.parametrize("name", NETWORKS)
def test_tokens_beside_other_things(name):
    """Each set has a network of its own; vectors and images go their ways; everything learns."""
    encoder = EncoderConfig(tokens=name).build(MIXED)
    assert encoder.output_size == 64 + 64 + 128 + 128
    obs = rspaces.sample(MIXED, 8, np.random.default_rng(0))
    obs["near"], obs["far"] = batch(8, token_space(6)), (batch(8, token_space(4, 2, 1)), obs["far"][1])
    encoder.check(obs)
    features = encoder(obs)
    assert features.shape == (8, encoder.output_size)
    (features * torch.randn(encoder.output_size)).sum().backward()
    for parameter_name, parameter in encoder.named_parameters():
        assert parameter.grad is not None, parameter_name
        assert parameter.grad.abs().sum() > 0, parameter_name
    obs["near"] = obs["near"][:, :5]
    with pytest.raises(SpaceError, match=r"obs\.near has shape \(8, 5, 3\), wanted \(N, 6, 3\)"):
        encoder.check(obs)


def test_the_last_action_and_reward_go_with_tokens():
    env = LastActionReward(as_rows([TokenEnv] * 2, "loop"))
    encoder = make_encoder(None, env.observation_space)
    assert encoder(env.reset(0)).shape == (2, 128 + 64)
    assert type(encoder.tokens[0].network) is Fast


def test_plain_numbers_on_request():
    """``never``, and the encoder "mlp": the bytes, flattened and divided by 255."""
    for spec in (EncoderConfig(hidden=(), tokens="never"), EncoderConfig(hidden=(), images="never")):
        encoder = make_encoder(spec, token_space())
        assert encoder.output_size == (3 * TOKENS if spec.tokens == "never" else 128)
    obs = batch(2)
    flat = EncoderConfig(hidden=(), tokens="never").build(token_space())
    torch.testing.assert_close(flat(obs), obs.flatten(1) / 255)
    assert make_encoder("mlp", token_space()).output_size == 64


def test_tokens_are_not_normalised():
    """S002-19: ids have no mean; the other parts of the observation are scaled as ever."""
    norm = ObservationNorm(MIXED)
    assert list(norm.scalings) == ["obs/speed"]
    obs = {"near": batch(4, token_space(6)), "speed": torch.randn(4, 2)}
    for _ in range(2):
        norm.update({key: leaf[None] for key, leaf in obs.items()}, torch.ones(1, 4, dtype=torch.bool))
        assert torch.equal(norm(obs)["near"], obs["near"])
        assert not torch.equal(norm(obs)["speed"], obs["speed"])


def test_names_that_are_none():
    with pytest.raises(ConfigError, match=r"encoder\.tokens = 'fasst' \(did you mean 'fast'\?\)"):
        EncoderConfig(tokens="fasst")  # pyright: ignore[reportArgumentType]
    for name in NETWORKS:
        with pytest.raises(SpaceError, match=rf"'{name}' is a network for tokens.* has none"):
            make_encoder(EncoderConfig(tokens=name), gym.spaces.Discrete(3))  # pyright: ignore[reportArgumentType]
