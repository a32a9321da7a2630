"""Conversion of observations and actions between Gymnasium's values and tensors, with validation.

Observations are written into preallocated arrays: a list of single ones (``write_rows``), one of them or a
batch (``write_row``). Actions become one batch (``to_batch``) or a list of single actions (``to_rows``). Only
this module reshapes values that differ from their space in dimensions of size one.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from types import EllipsisType
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces as gym_spaces
from torch import Tensor

from recollect.base import spaces
from recollect.base.types import Step, Tree
from recollect.envs.contract import FLAGS
from recollect.errors import ConfigError, SpaceError

_OBS = "the observation"

_KINDS = {"f": "fiub", "i": "iub", "u": "iub", "b": "b"}
"""Kinds of NumPy dtypes that convert to the kind of the key without a change of meaning."""
_NUMBERS = frozenset({float, int, np.float64, np.float32})
"""Reward types that need no conversion."""


class RowError(SpaceError):
    """A SpaceError in one row of a batch."""

    def __init__(self, row: int, text: str) -> None:
        super().__init__(text)
        self.row = row


class Buffers:
    """The arrays of one Step, and the Step whose CPU tensors share their memory.

    The adapters alternate between two, so that the next step does not overwrite the last Step.
    """

    def __init__(self, space: gym.Space, rows: int) -> None:
        self.obs = spaces.buffers(space, rows)
        self.final_obs = spaces.buffers(space, rows)
        self.reward = np.zeros(rows, np.float32)
        self.flags = np.zeros((3, rows), np.bool_)
        self.terminated, self.truncated, self.first = self.flags
        self.valid = np.ones(rows, np.bool_)
        columns: Any = {name: torch.from_numpy(getattr(self, name)) for name in ("reward", *FLAGS)}
        obs, final_obs = to_tensors(space, self.obs), to_tensors(space, self.final_obs)
        self.step = Step(obs=obs, final_obs=final_obs, **columns)


def step_zeros(space: gym.Space, rows: int) -> dict[str, Tree]:
    """Zeroed tensors [rows, ...] for the fields of a Step but ``final_obs`` and ``info``."""
    flags = {name: torch.zeros(rows, dtype=torch.bool) for name in FLAGS}
    return {"obs": spaces.zeros(space, rows), "reward": torch.zeros(rows), **flags}


def write_rows(space: gym.Space, arrays: Any, values: list[Any]) -> None:
    """Write one observation per row into ``arrays`` [rows, ...]. A RowError names an invalid one."""
    try:
        _write_at_once(space, arrays, values)
    except (TypeError, ValueError, LookupError):
        # Row by row, an unusual value is converted, or its error names the row.
        for row, value in enumerate(values):
            try:
                write_row(space, arrays, row, value)
            except SpaceError as error:
                raise RowError(row, str(error)) from None


def _write_at_once(space: gym.Space, arrays: Any, values: list[Any]) -> None:
    """One or two NumPy calls per leaf, which raise for any value that needs conversion."""
    if isinstance(arrays, np.ndarray):  # leaves first: isinstance is slow for Dict and Tuple, which are ABCs
        if arrays.ndim > 1:
            # [rows, n, ...] as [rows * n, ...]: np.concatenate checks all dimensions but n.
            if set(map(len, values)) != {arrays.shape[1]}:
                raise ValueError
            flat = arrays.reshape(-1, *arrays.shape[2:])
            np.concatenate(values, out=flat, casting="same_kind" if arrays.dtype.kind == "f" else "safe")
        else:
            arrays[:] = _fitted(values, arrays.dtype, arrays.shape, _OBS)
            _check_range(space, arrays, _OBS)
    elif isinstance(space, gym_spaces.Dict):
        for key, sub in space.spaces.items():
            _write_at_once(sub, arrays[key], [value[key] for value in values])
    elif isinstance(space, gym_spaces.Tuple):
        for i, sub in enumerate(space.spaces):
            _write_at_once(sub, arrays[i], [value[i] for value in values])


def write_row(space: gym.Space, arrays: Any, row: int | EllipsisType, value: Any, name: str = _OBS) -> None:
    """Validate an observation and write it into its row of ``arrays`` [rows, ...]; ``...`` writes a batch."""
    if isinstance(arrays, np.ndarray):
        fitted = _fitted(value, arrays.dtype, arrays[row].shape, name)
        _check_range(space, fitted, name)
        arrays[row] = fitted
    else:
        for key, sub, item in _items(space, value, name):
            write_row(sub, arrays[key], row, item, f"{name}[{key!r}]")


def to_batch(space: gym.Space, action: Tree, rows: int, name: str = "the action") -> Any:
    """An action tree ``[rows, ...]`` as arrays in the dtypes of ``space``.

    A copy, because an env may keep or change its action, and the tensor belongs to the rollout.
    """
    if not isinstance(space, spaces.LEAVES):
        parts = {
            key: to_batch(sub, item, rows, f"{name}[{key!r}]")
            for key, sub, item in _items(space, action, name)
        }
        return parts if isinstance(space, gym_spaces.Dict) else tuple(parts.values())
    if isinstance(action, Tensor):
        action = action.numpy(force=True)
    dtype = spaces.numpy_dtype(space)
    shape = (rows, *(space.shape or ()))
    if type(action) is not np.ndarray or action.dtype is not dtype or action.shape != shape:
        action = _fitted(action, dtype, shape, name)
    if isinstance(space, gym_spaces.Box) and space.dtype != dtype:
        return _widened(space, action)
    return action.copy()


def to_rows(space: gym.Space, action: Tree, rows: int) -> list[Any]:
    """An action tree ``[rows, ...]`` as a list of single actions, each as ``space`` samples it."""
    if (
        isinstance(space, gym_spaces.Discrete)
        and isinstance(action, Tensor)
        and action.dtype is torch.int64
        and action.shape == (rows,)
    ):
        return list(action.numpy(force=True))  # the most common case; scalars need no copy
    return _split(space, to_batch(space, action, rows))


def _split(space: gym.Space, batch: Any) -> list[Any]:
    if isinstance(space, spaces.LEAVES):
        if space.shape == () and isinstance(space, gym_spaces.Box):
            return [batch[row, ...] for row in range(len(batch))]  # 0-d arrays, as Box samples them
        return list(batch)
    if isinstance(space, gym_spaces.Dict):
        parts = [_split(sub, batch[key]) for key, sub in space.spaces.items()]
        return [dict(zip(space.spaces, row)) for row in zip(*parts)]
    assert isinstance(space, gym_spaces.Tuple)  # spaces.walk has validated it
    return list(zip(*(_split(sub, batch[i]) for i, sub in enumerate(space.spaces))))


def _widened(space: gym_spaces.Box, action: np.ndarray) -> np.ndarray:
    """float32 in the dtype of ``space``; a bound that float32 has rounded becomes exact again."""
    wide = action.astype(space.dtype)
    wide = np.where(action == space.high.astype(action.dtype), space.high, wide)
    return np.where(action == space.low.astype(action.dtype), space.low, wide).astype(space.dtype)


def is_like(action: Tree, like: Tree) -> bool:
    """Whether ``action`` consists of tensors with the structure, shapes and dtypes of ``like``."""
    if isinstance(like, Tensor):
        return isinstance(action, Tensor) and action.shape == like.shape and action.dtype == like.dtype
    if isinstance(like, dict):
        return (
            isinstance(action, dict)
            and action.keys() == like.keys()
            and all(is_like(action[key], part) for key, part in like.items())
        )
    return isinstance(action, tuple) and len(action) == len(like) and all(map(is_like, action, like))


def scalar(value: Any, kinds: str) -> Any:
    """``value`` as a Python number if it is one, or an array of one, of these kinds of dtypes, else None."""
    if isinstance(value, bool | int | float | np.generic | np.ndarray | Tensor):
        array = np.asarray(value)
        if array.size == 1 and array.dtype.kind in kinds:
            return array.item()
    return None


def write_rewards(array: np.ndarray, rewards: list[Any]) -> None:
    """Write one reward per row into ``array`` [rows]. A RowError names an invalid one."""
    if not _NUMBERS.issuperset(map(type, rewards)):
        rewards = [_number(row, reward) for row, reward in enumerate(rewards)]
    array[:] = rewards
    # A cheap test: the dot product is finite unless a reward is not, or is huge.
    if not math.isfinite(array.dot(array)) and not np.isfinite(array).all():
        row = int(np.flatnonzero(~np.isfinite(array))[0])
        raise RowError(
            row,
            f"the reward is {rewards[row]} ({array[row]} in float32): look for a division by zero or a "
            "diverged simulation in the env",
        )


def _number(row: int, reward: Any) -> float:
    value = scalar(reward, "fiub")
    if value is None:
        raise RowError(
            row, f"the reward is {reward!r} ({type(reward).__name__}), not a number: return a float"
        )
    return float(value)


def flag(name: str, value: Any) -> bool:
    """``terminated`` or ``truncated`` as a bool; SpaceError if it is none."""
    found = scalar(value, "b")
    if found is None:
        raise SpaceError(
            f"{name} is {value!r} ({type(value).__name__}), not a bool: step returns "
            "(obs, reward, terminated, truncated, info), and a lone done is not accepted"
        )
    return found


def wrong_result(result: Any) -> str:
    """The error message for a ``step`` that did not return five values."""
    expected = "step returns (obs, reward, terminated, truncated, info)"
    if not isinstance(result, tuple):
        return f"step returned a {type(result).__name__}, and {expected}"
    text = f"step returned {len(result)} values, and {expected}"
    if len(result) == 4:
        text += (
            ": a lone done is not accepted, since a time limit is not a death. Split done into terminated "
            "and truncated"
        )
    return text


def env_seeds(seed: int, count: int) -> list[int]:
    """Distinct seeds for ``count`` envs; seed i is independent of ``count``.

    They have 31 bits, because some simulators store a seed in a signed 32-bit integer.
    """
    if not isinstance(seed, int | np.integer) or seed < 0:
        raise ConfigError(f"reset(seed={seed!r}): a seed is an integer from 0 up")
    seeds: dict[int, None] = {}
    for i in range(count):
        draws = (np.random.SeedSequence((int(seed), i, attempt)) for attempt in itertools.count())
        numbers = (int(draw.generate_state(1)[0]) >> 1 for draw in draws)
        seeds[next(number for number in numbers if number not in seeds)] = None
    return list(seeds)


def _items(space: gym.Space, value: Any, name: str) -> Iterator[tuple[Any, gym.Space, Any]]:
    """(key, sub-space, sub-value) of a value, which must have the structure of ``space``."""
    assert isinstance(space, gym_spaces.Dict | gym_spaces.Tuple)
    parts: Any = space.spaces
    if isinstance(space, gym_spaces.Dict):
        is_like = isinstance(value, Mapping) and value.keys() == parts.keys()
        items = parts.items()
    else:
        is_like = isinstance(value, tuple | list) and len(value) == len(parts)
        items = enumerate(parts)
    if not is_like:
        raise SpaceError(f"{name} is {_described(value)}, and its space says {_described(parts)}")
    for key, sub in items:
        yield key, sub, value[key]


def _fitted(value: Any, dtype: np.dtype, shape: tuple[int, ...], name: str) -> np.ndarray:
    """``value`` as an array of ``dtype`` and ``shape``; SpaceError if it cannot be converted."""
    try:
        array = np.asarray(value)
    except (ValueError, TypeError) as error:
        raise SpaceError(
            f"{name} is {_described(value)} that NumPy cannot read ({error}): return NumPy arrays; "
            "an env that lives on a GPU is best written as a BatchedEnv"
        ) from None
    if array.dtype.kind not in _KINDS[dtype.kind]:
        found = f"has dtype {array.dtype}" if array.dtype.kind in "fiubc" else f"is {_described(value)}"
        raise SpaceError(
            f"{name} {found}, and its space says {dtype}: the values would not survive. Declare the "
            "space with the dtype of the values, or cast them in the env"
        )
    if array.shape != shape:
        if _squeezed(array.shape) != _squeezed(shape):
            raise SpaceError(
                f"{name} has shape {array.shape}, and its space says {shape}: "
                "does the declared space fit what the env returns?"
            )
        array = array.reshape(shape)
    if dtype.kind == "f" or np.can_cast(array.dtype, dtype):
        return array.astype(dtype, copy=False)
    limits = np.iinfo(dtype)  # another integer dtype: check the range, because NumPy would wrap around
    if array.size and (array.min() < limits.min or array.max() > limits.max):
        raise SpaceError(f"{name} has values from {array.min()} to {array.max()}, which {dtype} cannot hold")
    return array.astype(dtype)


def _check_range(space: gym.Space, array: np.ndarray, name: str) -> None:
    """Check the range of a Discrete value, which would else be an index out of bounds in the policy."""
    if isinstance(space, gym_spaces.Discrete):
        low, high = int(space.start), int(space.start + space.n) - 1
        if array.min() < low or array.max() > high:
            worst = array.min() if array.min() < low else array.max()
            raise SpaceError(f"{name} is {worst}, outside {space}: its values are {low} to {high}")


def _squeezed(shape: tuple[int, ...]) -> list[int]:
    return [size for size in shape if size != 1]


def _described(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"a dict with the keys {sorted(map(str, value))}"
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)}"
    return f"a {type(value).__name__}"


def to_tensors(space: gym.Space, arrays: Any) -> Tree:
    """A tree of arrays as tensors that share their memory."""
    return spaces.map(lambda _, array: torch.from_numpy(array), space, arrays)
