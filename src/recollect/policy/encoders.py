"""Encoders: networks from observations to features, chosen by observation space.

=============================  =====================================================================
space                          encoding
=============================  =====================================================================
Box                            its numbers, flattened; integers become floats, nothing is rescaled
Box that is an image           a conv stack; 8-bit values become floats divided by 255
Box that is a grid of symbols  a learned vector for each value of each channel, added up; a conv stack
Box that is a set of tokens    a token network (``recollect.policy.tokens``)
Discrete, MultiDiscrete        one-hot vectors (``start`` is respected); an id out of range is all zeros
MultiBinary                    0.0 and 1.0
Dict, Tuple, nested            all vectors joined go through one MLP, every image and grid through its
                               own conv stack, every set of tokens through its own network; the results
                               are joined
=============================  =====================================================================

An image is a Box with ``spaces.is_image`` (``EncoderConfig.images`` overrides this). Its channels are the
smallest dimension, first (CHW) or last (HWC); of a cube the last, as in Gymnasium. A grid of symbols is a
Box with ``spaces.is_symbols`` (``EncoderConfig.symbols`` overrides this). Tokens are a Box with
``spaces.is_tokens``, unless ``EncoderConfig.tokens`` is "never".

The key ``action_mask`` of a Dict observation space is not encoded: it goes to the action head.

Encoders take observations with one leading dimension, ``[N, ...]``, raw or with normalised float leaves, and
never write to them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, cast

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.nn import functional as F

from recollect.base.parts import IF_OWN, part_of
from recollect.base.spaces import ACTION_MASK, is_image, is_symbols, is_tokens, walk
from recollect.base.types import Tree
from recollect.config.fields import check_fields
from recollect.config.policy import ENCODERS, EncoderConfig
from recollect.errors import ConfigError, SpaceError, nearest
from recollect.policy.layers import mlp, nature_conv, small_conv
from recollect.policy.tokens import NETWORKS

SYMBOL_SIZE = 8
"""Entries of the vector of a symbol."""


class Encoder(nn.Module):
    """Features [N, output_size] of observations [N, ...]; see the module's docstring."""

    output_size: int
    unit: Tensor

    def __init__(self, observation_space: gym.Space, config: EncoderConfig | None = None):
        super().__init__()
        self.config = config = config or EncoderConfig()
        leaves = _leaves(observation_space)
        if not leaves:
            raise SpaceError(
                "the observation space has nothing to encode: it is empty or only an action mask"
            )
        vectors, images, tokens = [], [], []
        for path, space in leaves:
            if _is_grid(space, config):
                images.append(_Symbols(cast(spaces.Box, space), path, config))
            elif _goes_through_conv(space, config):
                images.append(_Image(cast(spaces.Box, space), path, config))
            elif config.tokens != "never" and is_tokens(space):
                tokens.append(_Tokens(space, path, config))
            else:
                vectors.append(_Vector(space, path))
        if config.tokens in NETWORKS and not tokens:
            raise SpaceError(
                f"{config.tokens!r} is a network for tokens, and the observation space {observation_space} "
                "has none, that is no 8-bit Box of shape (M, 3): without a name for the policy and without "
                "encoder.tokens, the network is chosen by the space"
            )
        self.vectors, self.images, self.tokens = map(nn.ModuleList, (vectors, images, tokens))
        vector_size = sum(vector.size for vector in vectors)
        self.mlp = _mlp(vector_size, config, exact_first=True) if vectors else nn.Identity()
        if vectors and config.hidden:
            vector_size = config.hidden[-1]
        self.output_size = vector_size + sum(part.output_size for part in (*images, *tokens))
        # Tracks the dtype of the weights, to which inputs are converted.
        self.register_buffer("unit", torch.ones(()), persistent=False)
        # Fast path for the common case, one float vector.
        self.plain = len(leaves) == 1 and bool(vectors) and vectors[0].plain

    def forward(self, obs: Tree) -> Tensor:
        """Obs [N, ...] -> [N, output_size]."""
        dtype = self.unit.dtype
        if self.plain:
            return self.mlp(cast(_Leaf, self.vectors[0]).of(obs).to(dtype))
        vectors = [leaf(obs, dtype) for leaf in self.vectors]
        parts = [self.mlp(vectors[0] if len(vectors) == 1 else torch.cat(vectors, -1))] if vectors else []
        parts += [leaf(obs, dtype) for leaf in (*self.images, *self.tokens)]
        return parts[0] if len(parts) == 1 else torch.cat(parts, -1)

    def check(self, obs: Tree) -> None:
        """Raise SpaceError if obs [N, ...] does not fit the space. Reads values: too slow for every step."""
        for leaf in (*self.vectors, *self.images, *self.tokens):
            cast(_Leaf, leaf).check(obs)


class _Leaf(nn.Module):
    """The encoder of one leaf of the observations: ``forward(obs, dtype)`` -> [N, features]."""

    def __init__(self, space: gym.Space, path: tuple):
        super().__init__()
        self.path, self.name, self.shape = path, _name(path), tuple(space.shape or ())

    def of(self, obs: Tree) -> Tensor:
        """The leaf [N, *shape] of the observations."""
        for key in self.path:
            obs = obs[key]
        return obs

    def check(self, obs: Tree) -> None:
        """Raise SpaceError unless the leaf fits its space."""
        got = tuple(self.of(obs).shape)
        if got[1:] != self.shape:
            raise SpaceError(
                f"{self.name} has shape {got}, wanted (N, {', '.join(map(str, self.shape))}): one leading "
                "dimension, then the shape of the space"
            )


class _Vector(_Leaf):
    """One leaf as a float vector: [N, *shape] -> [N, size]."""

    column: Tensor
    ids: Tensor

    def __init__(self, space: gym.Space, path: tuple):
        super().__init__(space, path)
        self.size = self.columns = math.prod(self.shape)
        self.scale: float | None = None
        self.plain = self.one_hot = False
        if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
            self.one_hot = True
            column, ids = _one_hot_table(space)
            self.size = len(ids)
            self.register_buffer("column", torch.from_numpy(column), persistent=False)
            self.register_buffer("ids", torch.from_numpy(ids), persistent=False)
        elif isinstance(space, spaces.Box):
            # Images, grids and tokens are never normalised; flattened ones are scaled like images.
            kinds = (is_image, is_symbols, is_tokens)
            is_bytes = space.dtype == np.uint8 and any(kind(space) for kind in kinds)
            self.scale = 1.0 / 255.0 if is_bytes else None
            self.plain = np.dtype(space.dtype).kind == "f" and len(self.shape) == 1

    def forward(self, obs: Tree, dtype: torch.dtype) -> Tensor:
        x = self.of(obs)
        x = x.reshape(x.shape[0], self.columns)  # [N, *shape] -> [N, columns]
        if self.one_hot:
            # Unlike F.one_hot, a comparison has no range check, which would synchronise a GPU.
            x = x if self.columns == 1 else x[:, self.column]
            return (x == self.ids).to(dtype)
        x = x.to(dtype)
        return x if self.scale is None else x * self.scale

    def check(self, obs: Tree) -> None:
        super().check(obs)
        if not self.one_hot:
            return
        hit = self(obs, torch.float32).sum(-1) == self.columns
        if not hit.all():
            row = int(hit.logical_not().nonzero()[0, 0])
            raise SpaceError(
                f"{self.name} is {self.of(obs)[row].tolist()} in row {row}, out of the range of its space: "
                "does the env count from another start than the space says?"
            )


class _Image(_Leaf):
    """One image: [N, H, W, C] or [N, C, H, W] -> conv stack -> MLP -> [N, output_size]."""

    def __init__(self, space: spaces.Box, path: tuple, config: EncoderConfig):
        super().__init__(space, path)
        self.channels_last = _channels_last(self.shape, self.name)
        channels, height, width = self.shape
        if self.channels_last:
            height, width, channels = self.shape
        self.scale = 1.0 / 255.0 if space.dtype == np.uint8 else None
        if config.conv == "nature" and min(height, width) < 36:
            raise SpaceError(
                f"{self.name} is an image of {height} x {width}, and conv 'nature' needs at least 36 x 36: "
                "use conv 'small'"
            )
        build = small_conv if config.conv == "small" else nature_conv
        self.conv, flat = build((channels, height, width), config.activation)
        self.mlp = _mlp(flat, config)
        self.output_size = config.hidden[-1] if config.hidden else flat

    def forward(self, obs: Tree, dtype: torch.dtype) -> Tensor:
        x = self.of(obs)
        if self.channels_last:
            x = x.permute(0, 3, 1, 2)  # [N, H, W, C] -> [N, C, H, W]
        x = x.to(dtype)
        if self.scale is not None:
            x = x * self.scale
        return self.mlp(self.conv(x).flatten(1))


class _Symbols(_Leaf):
    """One grid of symbols: uint8 [N, H, W, C] or [N, C, H, W] -> vectors -> conv stack -> MLP."""

    channel: Tensor

    def __init__(self, space: spaces.Box, path: tuple, config: EncoderConfig):
        super().__init__(space, path)
        self.channels_last = _channels_last(self.shape, self.name)
        channels, height, width = self.shape
        if self.channels_last:
            height, width, channels = self.shape
        self.table = nn.Parameter(torch.randn(256 * channels, SYMBOL_SIZE) / math.sqrt(channels))
        """The vectors of values 0 to 255 of the first channel, then of the second one, and so on."""
        self.register_buffer("channel", 256 * torch.arange(channels), persistent=False)
        self.conv, flat = small_conv((SYMBOL_SIZE, height, width), config.activation, side=2)
        self.mlp = _mlp(flat, config)
        self.output_size = config.hidden[-1] if config.hidden else flat

    def forward(self, obs: Tree, dtype: torch.dtype) -> Tensor:
        x = self.of(obs)
        if not self.channels_last:
            x = x.permute(0, 2, 3, 1)  # [N, C, H, W] -> [N, H, W, C]
        cells = x.long() + self.channel
        x = F.embedding_bag(cells.flatten(0, 2), self.table, mode="sum")  # [N * H * W, SYMBOL_SIZE]
        x = x.view(*cells.shape[:3], -1).permute(0, 3, 1, 2)
        return self.mlp(self.conv(x).flatten(1))


class _Tokens(_Leaf):
    """One set of tokens: uint8 [N, M, 3] -> its network -> [N, output_size]."""

    def __init__(self, space: gym.Space, path: tuple, config: EncoderConfig):
        super().__init__(space, path)
        self.network: Any = (NETWORKS.get(config.tokens) or next(iter(NETWORKS.values())))(space)
        self.output_size: int = self.network.output_size

    def forward(self, obs: Tree, dtype: torch.dtype) -> Tensor:
        return self.network(self.of(obs))


# Building ---------------------------------------------------------------------------------------


def _mlp(inputs: int, config: EncoderConfig, exact_first: bool = False) -> nn.Module:
    return mlp(inputs, config.hidden, config.activation, config.layer_norm, exact_first)


def _one_hot_table(space: spaces.Discrete | spaces.MultiDiscrete) -> tuple[np.ndarray, np.ndarray]:
    """For each entry of the concatenated one-hot vectors: its input column and its id."""
    nvec = np.atleast_1d(space.n if isinstance(space, spaces.Discrete) else space.nvec).reshape(-1)
    start = np.broadcast_to(np.asarray(space.start).reshape(-1), nvec.shape)
    column = np.repeat(np.arange(len(nvec)), nvec)
    ids = np.concatenate([np.arange(first, first + n) for first, n in zip(start, nvec)])
    return column.astype(np.int64), ids.astype(np.int64)


def _leaves(space: gym.Space) -> list[tuple[tuple, gym.Space]]:
    """The leaf spaces with their paths, without the action mask."""
    if isinstance(space, spaces.Dict):
        space = spaces.Dict({key: sub for key, sub in space.spaces.items() if key != ACTION_MASK})
    return list(_paths(space, ()))


def _paths(space: gym.Space, path: tuple) -> Iterator[tuple[tuple, gym.Space]]:
    if isinstance(space, spaces.Dict | spaces.Tuple):
        named = isinstance(space, spaces.Dict)
        for key, sub in space.spaces.items() if named else enumerate(space.spaces):
            yield from _paths(sub, (*path, key))
    else:
        for _, leaf in walk(space, _name(path)):  # raises for a space that is not supported
            yield path, leaf


def _name(path: tuple) -> str:
    return ".".join(["obs", *map(str, path)])


def _goes_through_conv(space: gym.Space, config: EncoderConfig) -> bool:
    if not isinstance(space, spaces.Box) or len(space.shape) != 3:
        return False
    return config.images == "always" or (config.images == "auto" and is_image(space))


def _is_grid(space: gym.Space, config: EncoderConfig) -> bool:
    if config.symbols == "always":
        return isinstance(space, spaces.Box) and len(space.shape) == 3 and space.dtype == np.uint8
    return config.symbols == "auto" and config.images != "always" and is_symbols(space)


def _channels_last(shape: tuple[int, ...], name: str) -> bool:
    if min(shape) in (shape[0], shape[2]):
        return shape[2] == min(shape)
    raise SpaceError(
        f"{name} is an image of shape {shape} with its channels in the middle: transpose it to "
        "(H, W, C) or (C, H, W) in a wrapper"
    )


# By name, config or factory -----------------------------------------------------------------------


def make_encoder(
    spec: str | EncoderConfig | Callable[[gym.Space], nn.Module] | None, observation_space: gym.Space
) -> Any:
    """The encoder for ``spec``: a name, a config or a factory.

    None or "auto" chooses by the space; "mlp" flattens everything; "conv" treats every three-dimensional Box
    as an image. A factory takes the whole observation space and returns a module with an ``output_size`` that
    maps whole observations [N, ...] to [N, output_size].
    """
    spec = "auto" if spec is None else spec
    if isinstance(spec, str):
        if spec not in ENCODERS:
            raise ConfigError(
                f"encoder is {spec!r}{nearest(spec, ENCODERS)}: choose from {', '.join(ENCODERS)}; {IF_OWN}"
            )
        config = ENCODERS[spec]()
        if spec == "conv" and not any(
            _goes_through_conv(leaf, config) for _, leaf in _leaves(observation_space)
        ):
            raise SpaceError(
                f"the encoder is 'conv', but the observation space {observation_space} has no "
                "three-dimensional Box: use 'auto' or 'mlp'"
            )
        spec = config
    if isinstance(spec, EncoderConfig):
        return spec.build(observation_space)
    part = part_of("encoder", spec)
    if part is not None:
        config = spec
        check_fields(config)
        spec = lambda space: part.load()(space, config)  # noqa: E731
    if isinstance(spec, nn.Module) or not callable(spec):
        raise ConfigError(
            f"encoder is a {type(spec).__name__}: give a name ({', '.join(ENCODERS)}), an EncoderConfig, "
            "or a function that makes the module, such as lambda space: MyEncoder(space)"
        )
    encoder = spec(observation_space)
    size = getattr(encoder, "output_size", None)
    if not isinstance(encoder, nn.Module) or not isinstance(size, int) or size < 1:
        raise ConfigError(
            f"the encoder {part.name if part else getattr(spec, '__name__', spec)} returned a "
            f"{type(encoder).__name__} with output_size {size!r}: it must be an nn.Module whose output_size "
            "(an int) is the number of features of a row"
        )
    return encoder
