"""Gymnasium spaces as plain JSON, and back."""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from recollect.errors import ConfigError, SpaceError

MOST_NUMBERS = 2**26
"""Largest observation that is accepted from a file, which may be damaged."""


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
