"""Gymnasium spaces as trees of tensors, and as JSON.

============================  ==================================================
space                         tensor for B rows
============================  ==================================================
Discrete(n)                   int64 [B] (with ``start`` where it has one)
MultiDiscrete(nvec)           int64 [B, *nvec.shape]
MultiBinary(n)                int8 [B, *n]
Box, floating                 float32 [B, *shape]
Box, integer (images, tokens) its own dtype [B, *shape]
Tuple, Dict                   tuple, dict of these
============================  ==================================================
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces

from recollect.base.types import Tree
from recollect.errors import ConfigError, SpaceError

LEAVES = (spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary, spaces.Box)
ACTION_MASK = "action_mask"
"""The key of the action mask in a Dict observation; see ``recollect.policy.masks``."""
LAST_ACTION = "last_action"
"""The key of the last action in an observation, where a wrapper adds it."""
MOST_NUMBERS = 2**26
"""Largest observation that is accepted from a file, which may be damaged."""


def walk(space: gym.Space, name: str = "") -> Iterator[tuple[str, gym.Space]]:
    """The leaf spaces with their path, in tree order. Raises SpaceError for an unsupported space."""
    if isinstance(space, spaces.Dict):
        for key, sub in space.spaces.items():
            yield from walk(sub, f"{name}.{key}" if name else str(key))
    elif isinstance(space, spaces.Tuple):
        for i, sub in enumerate(space.spaces):
            yield from walk(sub, f"{name}.{i}" if name else str(i))
    elif isinstance(space, LEAVES):
        yield name, space
    else:
        raise SpaceError(
            f"{name or 'the space'} is a {type(space).__name__}, which is not supported: wrap the env "
            "so that it becomes Box, Discrete, MultiDiscrete, MultiBinary, or a Dict or Tuple of these"
        )


def map(fn: Callable[..., Any], space: gym.Space, *trees: Any) -> Tree:  # noqa: A001
    """``fn(leaf space, *leaf values)`` over the structure of ``space``, as a tree."""
    if isinstance(space, spaces.Dict):
        return {key: map(fn, sub, *(t[key] for t in trees)) for key, sub in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(map(fn, sub, *(t[i] for t in trees)) for i, sub in enumerate(space.spaces))
    if isinstance(space, LEAVES):
        return fn(space, *trees)
    list(walk(space))  # raises an error that names the space
    raise AssertionError


def numpy_dtype(space: gym.Space) -> np.dtype:
    """The dtype of the tensors of a leaf space."""
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        return np.dtype(np.int64)
    if isinstance(space, spaces.MultiBinary):
        return np.dtype(np.int8)
    dtype = np.dtype(space.dtype)
    return np.dtype(np.float32) if dtype.kind == "f" else dtype


def buffers(space: gym.Space, rows: int) -> Any:
    """Zeroed numpy arrays ``[rows, ...]`` for values of ``space``, as a tree of arrays."""
    return map(lambda leaf: np.zeros((rows, *(leaf.shape or ())), numpy_dtype(leaf)), space)


def zeros(space: gym.Space, rows: int, device: torch.device | str = "cpu") -> Tree:
    """Zeroed tensors ``[rows, ...]`` for values of ``space``."""
    return map(lambda _, array: torch.from_numpy(array).to(device), space, buffers(space, rows))


def nearest_to_zero(space: gym.Space) -> Any:
    """The value of ``space`` that is nearest to zero, as a tree of numpy arrays."""

    def clipped(leaf: gym.Space) -> np.ndarray:
        low, high = _bounds(leaf)
        return np.clip(np.zeros(leaf.shape or (), numpy_dtype(leaf)), low, high).astype(numpy_dtype(leaf))

    return map(clipped, space)


def is_image(space: gym.Space) -> bool:
    """Whether ``space`` is a Box with two dimensions of at least 8 and one of at most 16 channels."""
    if not isinstance(space, spaces.Box) or len(space.shape) != 3:
        return False
    _, width, channels = sorted(space.shape, reverse=True)
    return width >= 8 and channels <= 16


def is_symbols(space: gym.Space) -> bool:
    """Whether ``space`` is a small grid of symbols, such as MiniGrid's view of 7 x 7 cells with 3 ids each.

    It is an 8-bit Box of three dimensions that is too small for an image: its shorter side has 2 to 7 cells.
    """
    if not isinstance(space, spaces.Box) or len(space.shape) != 3 or space.dtype != np.uint8:
        return False
    return 2 <= sorted(space.shape)[1] < 8


def is_tokens(space: gym.Space) -> bool:
    """Whether ``space`` is a set of tokens: a uint8 Box of shape (M, 3), see ``recollect.policy.tokens``."""
    if not isinstance(space, spaces.Box) or space.dtype != np.uint8:
        return False
    return space.shape[1:] == (3,) and space.shape[0] > 0


def sample(space: gym.Space, rows: int, rng: np.random.Generator) -> Tree:
    """Random values ``[rows, ...]``: uniform, normal in the unbounded dimensions of a Box."""
    return map(lambda leaf: torch.from_numpy(_sample(leaf, rows, rng)), space)


def _sample(space: gym.Space, rows: int, rng: np.random.Generator) -> np.ndarray:
    shape, dtype = (rows, *(space.shape or ())), numpy_dtype(space)
    if not isinstance(space, spaces.Box):
        low, high = _bounds(space)
        return rng.integers(low, high + 1, shape, dtype.type)
    if dtype.kind != "f":
        low, high = space.low.astype(object), space.high.astype(object)  # high + 1 may not fit the dtype
        return (low + np.floor(rng.random(shape) * (high - low + 1)).astype(object)).astype(dtype)
    low, high = space.low.astype(np.float64), space.high.astype(np.float64)
    bounded = np.isfinite(low) & np.isfinite(high)
    within = np.where(bounded, low, 0) + rng.random(shape) * np.where(bounded, high - low, 0)
    around = np.clip(rng.standard_normal(shape), low, high)
    return np.where(bounded, within, around).astype(dtype)


def outside(space: gym.Space, value: torch.Tensor) -> torch.Tensor:
    """[B] bool: rows of ``value`` [B, ...] that the leaf ``space`` does not contain. NaN is outside."""
    low, high = (torch.as_tensor(np.asarray(bound), device=value.device) for bound in _bounds(space))
    inside = (value >= low) & (value <= high)
    return ~inside.flatten(1).all(1) if inside.dim() > 1 else ~inside


def _bounds(space: gym.Space) -> tuple[Any, Any]:
    """The smallest and the largest value of a leaf space."""
    if isinstance(space, spaces.MultiBinary):
        return 0, 1
    if isinstance(space, spaces.Discrete):
        return space.start, space.start + space.n - 1
    if isinstance(space, spaces.MultiDiscrete):
        return space.start, space.start + space.nvec - 1
    assert isinstance(space, spaces.Box)
    # In the dtype of the tensors: float32 may have rounded a value past a float64 bound.
    return space.low.astype(numpy_dtype(space)), space.high.astype(numpy_dtype(space))


def space_to_json(space: gym.Space) -> dict[str, Any]:
    """A space as plain JSON."""
    if isinstance(space, spaces.Dict):
        return {"dict": {key: space_to_json(sub) for key, sub in space.spaces.items()}}
    if isinstance(space, spaces.Tuple):
        return {"tuple": [space_to_json(sub) for sub in space.spaces]}
    if isinstance(space, spaces.Discrete):
        return {"discrete": int(space.n), "start": int(space.start), "dtype": space.dtype.name}
    if isinstance(space, spaces.MultiDiscrete):
        nvec, start = space.nvec.tolist(), space.start.tolist()
        return {"multidiscrete": nvec, "start": start, "dtype": space.dtype.name}
    if isinstance(space, spaces.MultiBinary):
        # MultiBinary(5) and MultiBinary([5]) are not equal.
        return {"multibinary": space.n if isinstance(space.n, int) else list(space.shape)}
    if isinstance(space, spaces.Box):
        low, high = space.low, space.high
        is_uniform = low.size > 0 and (low == low.flat[0]).all() and (high == high.flat[0]).all()
        ends = (low.flat[0].item(), high.flat[0].item()) if is_uniform else (low.tolist(), high.tolist())
        return {"box": list(space.shape), "low": ends[0], "high": ends[1], "dtype": space.dtype.name}
    raise SpaceError(f"a {type(space).__name__} space cannot be saved")


def space_from_json(data: dict[str, Any]) -> gym.Space:
    """The space that ``space_to_json`` described."""
    _check_shape(data.get("box", data.get("multibinary", ())))
    if "dict" in data:
        # Gymnasium would sort a plain dict, and the weights are in the order of the parts.
        return spaces.Dict(OrderedDict((key, space_from_json(sub)) for key, sub in data["dict"].items()))
    if "tuple" in data:
        return spaces.Tuple([space_from_json(sub) for sub in data["tuple"]])
    if "discrete" in data:
        more = {} if data["dtype"] == "int64" else {"dtype": data["dtype"]}  # not in every Gymnasium
        return spaces.Discrete(data["discrete"], start=data["start"], **more)
    if "multidiscrete" in data:
        dtype = np.dtype(data["dtype"])
        nvec, start = np.array(data["multidiscrete"]), np.array(data["start"])
        return spaces.MultiDiscrete(nvec, dtype=dtype.type, start=start)
    if "multibinary" in data:
        return spaces.MultiBinary(data["multibinary"])
    dtype, shape = np.dtype(data["dtype"]), tuple(data["box"])
    low, high = (np.broadcast_to(np.array(data[k], dtype), shape).copy() for k in ("low", "high"))
    return spaces.Box(low, high, dtype=dtype.type)


def _check_shape(shape: Any) -> None:
    sizes = [shape] if isinstance(shape, int) else shape
    if min(sizes, default=0) < 0 or math.prod(sizes) > MOST_NUMBERS:
        raise ConfigError(f"a space of shape {shape}: at most {MOST_NUMBERS} numbers are taken from a folder")
