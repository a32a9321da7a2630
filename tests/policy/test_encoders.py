"""Encoders: what the network sees of each space, and what it refuses."""

from __future__ import annotations

import copy
import pickle

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

from recollect.base import spaces as rspaces
from recollect.base import tree
from recollect.config.policy import EncoderConfig
from recollect.errors import ConfigError, SpaceError
from recollect.policy.encoders import Encoder, make_encoder
from recollect.policy.layers import ACTIVATIONS

RAW = EncoderConfig(hidden=())
"""No layers: shows what the network would see."""

SPACES: dict[str, gym.Space] = {
    "vector": spaces.Box(-1.0, 1.0, (5,)),
    "scalar": spaces.Box(-1.0, 1.0, ()),
    "matrix": spaces.Box(-1.0, 1.0, (3, 4)),
    "ram": spaces.Box(0, 255, (12,), np.uint8),
    "discrete": spaces.Discrete(4, start=2),
    "multi": spaces.MultiDiscrete([[2, 3], [4, 2]]),
    "binary": spaces.MultiBinary([2, 3]),
    "hwc": spaces.Box(0, 255, (12, 10, 3), np.uint8),
    "chw": spaces.Box(0.0, 1.0, (3, 24, 9), np.float32),
    "grid": spaces.Box(0, 255, (7, 7, 3), np.uint8),
    "grid chw": spaces.Box(0, 255, (2, 5, 9), np.uint8),
    "tuple": spaces.Tuple((spaces.Discrete(3), spaces.Box(-1.0, 1.0, (2,)))),
    "nested": spaces.Dict(
        camera=spaces.Box(0, 255, (9, 9, 1), np.uint8),
        body=spaces.Dict(speed=spaces.Box(-1.0, 1.0, (2,)), gear=spaces.Discrete(5)),
        flags=spaces.Tuple((spaces.MultiBinary(3), spaces.Box(0, 255, (8, 8, 4), np.uint8))),
        action_mask=spaces.MultiBinary(7),
    ),
}


def sample(space: gym.Space, rows: int, seed: int = 0):
    """Observations [rows, ...] of a space, as a tree of tensors."""
    space.seed(seed)
    trees = [
        rspaces.map(lambda leaf, x: torch.as_tensor(np.asarray(x, rspaces.numpy_dtype(leaf))), space, x)
        for x in (space.sample() for _ in range(rows))
    ]
    return tree.stack(trees)


# What the network sees ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", SPACES)
@pytest.mark.parametrize("hidden", [(), (8,), (16, 6)])
def test_every_space_gives_finite_features_of_the_declared_size(name: str, hidden: tuple[int, ...]):
    encoder = EncoderConfig(hidden=hidden, layer_norm=len(hidden) > 1).build(SPACES[name])
    obs = sample(SPACES[name], 6)
    encoder.check(obs)
    features = encoder(obs)
    assert features.shape == (6, encoder.output_size)
    assert features.dtype is torch.float32
    assert features.isfinite().all()
    assert encoder(tree.index(obs, slice(2, 3))).shape == (1, encoder.output_size)


@pytest.mark.parametrize("name", SPACES)
def test_rows_do_not_mix_and_observations_stay(name: str):
    """S002-19: a row's features depend on that row alone, and observations are never written to."""
    encoder = make_encoder(None, SPACES[name])
    obs = sample(SPACES[name], 6)
    before = tree.clone(obs)
    features = encoder(obs)
    for a, b in zip(tree.leaves(before), tree.leaves(obs)):
        assert torch.equal(a, b)
    backwards = encoder(tree.map(lambda leaf: leaf.flip(0), obs)).flip(0)
    torch.testing.assert_close(features, backwards, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", SPACES)
def test_every_parameter_learns(name: str):
    encoder = EncoderConfig(layer_norm=True).build(SPACES[name])
    (encoder(sample(SPACES[name], 16)) * torch.randn(encoder.output_size)).sum().backward()
    for parameter_name, parameter in encoder.named_parameters():
        assert parameter.grad is not None, parameter_name
        assert parameter.grad.abs().sum() > 0, parameter_name


def test_one_hot_respects_start():
    encoder = RAW.build(spaces.Discrete(3, start=2))
    assert encoder(torch.tensor([2, 4])).tolist() == [[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]
    encoder = RAW.build(spaces.MultiDiscrete([2, 3], start=[0, -1]))
    assert encoder(torch.tensor([[1, -1], [0, 1]])).tolist() == [[0, 1, 1, 0, 0], [1, 0, 0, 0, 1]]


def test_one_hot_of_a_matrix_goes_row_by_row():
    encoder = RAW.build(spaces.MultiDiscrete([[2, 2], [3, 2]]))
    seen = encoder(torch.tensor([[[1, 0], [2, 1]]]))
    assert seen.tolist() == [[0, 1, 1, 0, 0, 0, 1, 0, 1]]


def test_ids_out_of_range_are_zeros_and_the_checked_path_says_so():
    """S002-19: on the fast path such an id is an empty vector; ``check`` names row and value."""
    encoder = RAW.build(spaces.Dict(card=spaces.Discrete(3)))
    obs = {"card": torch.tensor([0, 3])}
    assert encoder(obs).tolist() == [[1, 0, 0], [0, 0, 0]]
    with pytest.raises(SpaceError, match=r"obs\.card is 3 in row 1"):
        encoder.check(obs)
    encoder = RAW.build(spaces.MultiDiscrete([2, 2]))
    with pytest.raises(SpaceError, match=r"\[0, 2\] in row 0"):
        encoder.check(torch.tensor([[0, 2]]))


def test_floats_and_flat_integers_are_not_rescaled():
    box = RAW.build(spaces.Box(-500.0, 500.0, (2,)))
    assert box(torch.tensor([[300.0, -7.0]])).tolist() == [[300.0, -7.0]]
    ram = RAW.build(SPACES["ram"])
    assert ram(torch.full((1, 12), 200, dtype=torch.uint8)).tolist() == [[200.0] * 12]


def test_8_bit_images_are_scaled_in_float():
    """S002-19: 255 becomes 1.0, with or without conv; a float image is taken as it is."""
    image = torch.full((1, 12, 10, 3), 255, dtype=torch.uint8)
    flat = EncoderConfig(hidden=(), images="never").build(SPACES["hwc"])
    torch.testing.assert_close(flat(image), torch.ones(1, 360))
    torch.manual_seed(0)
    conv = make_encoder("conv", SPACES["hwc"])
    torch.manual_seed(0)
    floats = make_encoder("conv", spaces.Box(0.0, 1.0, (12, 10, 3)))
    torch.testing.assert_close(conv(image), floats(torch.ones(1, 12, 10, 3)))


def test_channels_first_and_last_agree():
    """The smallest dimension is the channels, so both layouts give the same features."""
    torch.manual_seed(0)
    last = make_encoder(None, spaces.Box(0.0, 1.0, (14, 11, 3)))
    torch.manual_seed(0)
    first = make_encoder(None, spaces.Box(0.0, 1.0, (3, 14, 11)))
    image = torch.rand(2, 14, 11, 3)
    torch.testing.assert_close(last(image), first(image.permute(0, 3, 1, 2)))
    with pytest.raises(SpaceError, match="in the middle"):
        make_encoder(None, spaces.Box(0.0, 1.0, (14, 3, 11)))


def test_action_mask_is_not_encoded():
    """The mask goes to the head: features do not depend on it, nor does the encoder need it."""
    encoder = make_encoder(None, SPACES["nested"])
    obs = sample(SPACES["nested"], 4)
    without = {key: value for key, value in obs.items() if key != "action_mask"}
    assert torch.equal(encoder(obs), encoder(without))
    with pytest.raises(SpaceError, match="nothing to encode"):
        make_encoder(None, spaces.Dict(action_mask=spaces.MultiBinary(3)))


def test_vectors_share_one_mlp_and_images_have_their_own():
    encoder = EncoderConfig(hidden=(10,)).build(SPACES["nested"])
    assert encoder.output_size == 10 + 2 * 10
    linears = [m.in_features for m in encoder.modules() if isinstance(m, nn.Linear)]
    assert linears.count(2 + 5 + 3) == 1
    assert len(linears) == 3


# Building -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("side", [8, 9, 16, 33, 64, 100])
@pytest.mark.parametrize("other", [8, 40])
def test_small_conv_takes_any_image(side: int, other: int):
    encoder = EncoderConfig(hidden=()).build(spaces.Box(0, 255, (side, other, 3), np.uint8))
    assert encoder(torch.zeros(1, side, other, 3, dtype=torch.uint8)).shape == (1, encoder.output_size)
    assert encoder.output_size <= 32 * 8 * 8


def test_nature_conv_is_dqns_and_has_a_smallest_image():
    encoder = EncoderConfig(hidden=(), conv="nature").build(spaces.Box(0, 255, (4, 84, 84), np.uint8))
    assert encoder.output_size == 3136
    EncoderConfig(conv="nature").build(spaces.Box(0, 255, (36, 40, 3), np.uint8))
    with pytest.raises(SpaceError, match=r"obs is an image of 35 x 84.* at least 36 x 36"):
        EncoderConfig(conv="nature").build(spaces.Box(0, 255, (35, 84, 3), np.uint8))


@pytest.mark.parametrize("activation", list(ACTIVATIONS))
def test_weights_are_orthogonal_with_the_gain_of_the_activation(activation):
    encoder = EncoderConfig(hidden=(32,), activation=activation).build(spaces.Box(-1, 1, (8,)))
    weight, gain = dict(encoder.named_parameters())["mlp.weight"], ACTIVATIONS[activation][1]
    torch.testing.assert_close(weight.T @ weight, gain**2 * torch.eye(8), rtol=0, atol=1e-5)
    x = torch.randn(3, 8)
    torch.testing.assert_close(encoder(x), getattr(nn.functional, activation)(x @ weight.T))


def has(encoder: nn.Module, kind: type[nn.Module]) -> bool:
    return any(isinstance(module, kind) for module in encoder.modules())


def test_small_images_by_name():
    """A 7 x 7 view is a grid of symbols by itself, and an image or a vector if asked."""
    view = spaces.Box(0, 255, (7, 7, 3), np.uint8)
    for name, table, conv in (("auto", True, True), ("conv", False, True), ("mlp", False, False)):
        encoder = make_encoder(name, view)
        assert has(encoder, nn.Conv2d) == conv, name
        assert any("table" in key for key, _ in encoder.named_parameters()) == table, name
    assert not has(make_encoder("mlp", SPACES["hwc"]), nn.Conv2d)
    with pytest.raises(SpaceError, match="no three-dimensional Box"):
        make_encoder("conv", SPACES["vector"])


@pytest.mark.parametrize(
    ("space", "symbols", "is_grid"),
    [
        (spaces.Box(0, 255, (7, 7, 3), np.uint8), "auto", True),
        (spaces.Box(0, 255, (7, 7, 3), np.uint8), "never", False),
        (spaces.Box(0, 255, (19, 19, 3), np.uint8), "auto", False),
        (spaces.Box(0, 255, (19, 19, 3), np.uint8), "always", True),
        (spaces.Box(0.0, 1.0, (7, 7, 3), np.float32), "always", False),
        (spaces.Box(0, 255, (1, 20, 1), np.uint8), "auto", False),
    ],
)
def test_which_boxes_are_grids_of_symbols(space, symbols, is_grid):
    encoder = EncoderConfig(symbols=symbols).build(space)
    assert any("table" in key for key, _ in encoder.named_parameters()) == is_grid


def test_symbols_are_names_and_not_amounts():
    """Every value of every channel has a vector of its own, in both layouts, and no value is scaled."""
    last = EncoderConfig().build(SPACES["grid"])
    obs = torch.randint(0, 11, (4, 7, 7, 3), dtype=torch.uint8)
    last(obs).square().sum().backward()
    table = dict(last.named_parameters())["images.0.table"]
    used = table.grad.abs().sum(1) > 0
    seen = {int(value) + 256 * channel for channel in range(3) for value in obs[..., channel].unique()}
    assert set(used.nonzero().flatten().tolist()) == seen
    first = EncoderConfig().build(spaces.Box(0, 255, (3, 7, 7), np.uint8))
    first.load_state_dict(last.state_dict())
    assert torch.equal(first(obs.permute(0, 3, 1, 2)), last(obs))


def test_encoder_computes_in_the_dtype_of_its_weights():
    for name, space in SPACES.items():
        assert make_encoder(None, space).double()(sample(space, 2)).dtype is torch.float64, name


def test_encoder_copies_and_pickles():
    """Actors in other processes get their policy by either way."""
    encoder = make_encoder(None, SPACES["nested"])
    obs = sample(SPACES["nested"], 2)
    assert torch.equal(copy.deepcopy(encoder)(obs), encoder(obs))
    assert torch.equal(pickle.loads(pickle.dumps(encoder))(obs), encoder(obs))
    assert not any("column" in key or "unit" in key for key in encoder.state_dict())


# A user's own -------------------------------------------------------------------------------------


class Own(nn.Module):
    def __init__(self, space: gym.Space):
        super().__init__()
        self.output_size = 3

    def forward(self, obs: Tensor) -> Tensor:
        return obs[:, :3]


def test_specs_of_every_kind():
    space = SPACES["vector"]
    for spec in (None, "auto", "mlp", EncoderConfig()):
        encoder = make_encoder(spec, space)
        assert isinstance(encoder, Encoder)
        assert encoder.output_size == 64
    assert isinstance(make_encoder(Own, space), Own)
    assert make_encoder(lambda space: Own(space), space).output_size == 3


def test_specs_that_cannot_be_meant_raise():
    space = SPACES["vector"]
    with pytest.raises(ConfigError, match="did you mean 'conv'"):
        make_encoder("convv", space)
    with pytest.raises(ConfigError, match="lambda space"):
        make_encoder(Own(space), space)
    with pytest.raises(ConfigError, match="output_size None"):
        make_encoder(lambda space: nn.Linear(5, 3), space)
    with pytest.raises(ConfigError, match="EncoderConfig"):
        make_encoder(3, space)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    "options",
    [{"hidden": (0,)}, {"hidden": (2.5,)}, {"activation": "tan"}, {"conv": "big"}, {"images": "no"}],
)
def test_config_that_cannot_be_meant_raises(options: dict):
    with pytest.raises(ConfigError, match=rf"encoder\.{next(iter(options))}"):
        EncoderConfig(**options)


def test_unsupported_space_is_named():
    with pytest.raises(SpaceError, match=r"obs\.note\.0 is a Text"):
        make_encoder(None, spaces.Dict(note=spaces.Tuple((spaces.Text(3),))))


def test_check_names_the_wrong_shape():
    encoder = make_encoder(None, SPACES["nested"])
    obs = sample(SPACES["nested"], 2)
    obs["body"]["speed"] = torch.zeros(2, 3)
    with pytest.raises(SpaceError, match=r"obs\.body\.speed has shape \(2, 3\), wanted \(N, 2\)"):
        encoder.check(obs)
