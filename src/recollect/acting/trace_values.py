"""Converts observations, actions and distributions to JSON values, and images to PNG."""

from __future__ import annotations

import base64
import math
import struct
import zlib
from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces as gym_spaces
from torch import Tensor

from recollect.base import spaces, tree
from recollect.base.types import Tree
from recollect.policy.distributions import (
    Bernoulli,
    Categorical,
    Distribution,
    Gaussian,
    Joint,
    MultiCategorical,
    Shaped,
    TanhGaussian,
)
from recollect.policy.policy import Policy


def rounded(values: Any, digits: int = 9) -> list[float | None]:
    """Numbers with this many significant digits (9 keep a float32); NaN and Inf become None."""
    flat = np.asarray(values, dtype=float).reshape(-1).tolist()
    return [float(f"{x:.{digits}g}") if math.isfinite(x) else None for x in flat]


def action_json(space: gym.Space, action: Tree, index: int = 0) -> Any:
    """One row of an env's action [B, ...] as numbers, lists and dicts."""
    if isinstance(space, gym_spaces.Dict):
        return {key: action_json(sub, action[key], index) for key, sub in space.spaces.items()}
    if isinstance(space, gym_spaces.Tuple):
        return [action_json(sub, action[i], index) for i, sub in enumerate(space.spaces)]
    row = action[index].cpu().numpy()
    if row.dtype.kind != "f":
        return row.tolist()
    numbers = np.array(rounded(row, 6), dtype=object)
    return numbers.reshape(row.shape).tolist() if row.ndim else numbers[0]


def observation_parts(space: gym.Space, obs: Tree) -> list[dict[str, Any]]:
    """Row 0 of an observation [B, ...], leaf by leaf: a vector, an image, or one of n (from 0)."""
    leaves = zip(spaces.walk(space), tree.leaves(obs))
    return [{"name": name, **_observation(leaf_space, leaf[0])} for (name, leaf_space), leaf in leaves]


def _observation(space: gym.Space, leaf: Tensor) -> dict[str, Any]:
    value = leaf.cpu().numpy()
    if isinstance(space, gym_spaces.Discrete):
        return {"kind": "discrete", "value": int(value) - int(space.start), "n": int(space.n)}
    if isinstance(space, gym_spaces.Box) and (spaces.is_image(space) or spaces.is_symbols(space)):
        image = _channels_last(_bytes(space, value))
        if spaces.is_symbols(space):  # small numbers, which would all be black
            image = image * (255 // max(1, int(image.max())))
        return image_part(image)
    return {"kind": "vector", "values": rounded(value, 6)}


def image_part(image: np.ndarray) -> dict[str, Any]:
    """A uint8 image [H, W, C]."""
    return {"kind": "image", "shape": list(image.shape), "png": base64.b64encode(png(image)).decode()}


def _bytes(space: gym_spaces.Box, value: np.ndarray) -> np.ndarray:
    """The image as uint8; other dtypes are scaled from their bounds, or from their range."""
    if value.dtype == np.uint8:
        return value
    low, high = float(np.min(space.low)), float(np.max(space.high))
    if not (math.isfinite(low) and math.isfinite(high) and high < 1e6):
        low, high = float(np.nanmin(value)), float(np.nanmax(value))
    scaled = (value.astype(float) - low) / max(high - low, 1e-12)
    return np.nan_to_num(scaled * 255).clip(0, 255).round().astype(np.uint8)


def _channels_last(image: np.ndarray) -> np.ndarray:
    """The image as [H, W, C]; the channel axis is the shortest, as in the encoders."""
    return image if image.shape[2] == min(image.shape) else np.moveaxis(image, int(np.argmin(image.shape)), 2)


def png(image: np.ndarray) -> bytes:
    """A uint8 image [H, W, C] as a PNG file: colour if C is 3, else grey with the channels side by side."""
    height, width, channels = image.shape
    if channels != 3:
        image = np.moveaxis(image, 2, 1).reshape(height, channels * width, 1)  # [H, W, C] -> [H, C * W, 1]
    size = struct.pack(">2I5B", image.shape[1], height, 8, 2 if channels == 3 else 0, 0, 0, 0)
    lines = np.concatenate([np.zeros((height, 1), np.uint8), image.reshape(height, -1)], 1)  # no filter
    chunks = ((b"IHDR", size), (b"IDAT", zlib.compress(lines.tobytes())), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )


def distribution_parts(policy: Policy, dist: Distribution) -> list[dict[str, Any]]:
    """A distribution over the actions of one row [1], by part of the action space.

    A Discrete is one ``categorical`` part, a MultiDiscrete one per choice (``NAME.0``, ...), with ``start``
    if its actions do not start at 0. A MultiBinary is a ``bernoulli`` part, a Box a ``normal`` one. A
    squashed Box is in units of the env: ``mean`` is the squashed mean, ``std`` half the distance between the
    squashed mean - std and mean + std.
    """
    named = list(spaces.walk(policy.action_space))
    leaves = list(_leaves(dist))
    low, middle, high = (tree.leaves(policy.to_env(_shifted(dist, deviations))) for deviations in (-1, 0, 1))
    parts: list[dict[str, Any]] = []
    for i, ((name, space), leaf) in enumerate(zip(named, leaves)):
        if isinstance(leaf, TanhGaussian):
            parts.append(_normal(name, middle[i], (high[i] - low[i]) / 2))
        elif isinstance(leaf, Gaussian):
            parts.append(_normal(name, leaf.mean, leaf.std))
        elif isinstance(leaf, Bernoulli):
            probs = rounded(leaf.logits.sigmoid().cpu(), 6)
            parts.append({"part": name, "kind": "bernoulli", "probs": probs})
        elif isinstance(leaf, MultiCategorical):
            assert isinstance(space, gym_spaces.MultiDiscrete)
            table = leaf.parts.log_probs.exp().reshape(-1, leaf.parts.log_probs.shape[-1])
            for k, (n, start) in enumerate(zip(space.nvec.reshape(-1), space.start.reshape(-1))):
                parts.append(_categorical(f"{name}.{k}" if name else str(k), table[k, :n], start))
        elif isinstance(leaf, Categorical):
            assert isinstance(space, gym_spaces.Discrete)
            parts.append(_categorical(name, leaf.log_probs.exp(), space.start))
    return parts


def value_parts(space: gym.Space, q: Tensor) -> list[dict[str, Any]]:
    """The values of all actions of one row, q [1, sum(nvec)], as ``distribution_parts`` has probabilities.

    Parts of the kind ``values``; masked actions have None.
    """
    if isinstance(space, gym_spaces.Discrete):
        return [_values("", q[0], space.start)]
    assert isinstance(space, gym_spaces.MultiDiscrete)
    nvec = space.nvec.reshape(-1)
    columns = zip(q[0].split(nvec.tolist()), space.start.reshape(-1))
    return [_values(str(k), values, start) for k, (values, start) in enumerate(columns)]


def _values(name: str, q: Tensor, start: Any) -> dict[str, Any]:
    part = {"part": name, "kind": "values", "q": rounded(q.float().cpu(), 6)}
    return part | {"start": int(start)} if start else part


def _categorical(name: str, probs: Tensor, start: Any) -> dict[str, Any]:
    part = {"part": name, "kind": "categorical", "probs": rounded(probs.cpu(), 6)}
    return part | {"start": int(start)} if start else part


def _normal(name: str, mean: Tensor, std: Tensor) -> dict[str, Any]:
    return {"part": name, "kind": "normal", "mean": rounded(mean.cpu(), 6), "std": rounded(std.cpu(), 6)}


def _leaves(dist: Distribution) -> Iterator[Distribution]:
    """The distributions of the leaves of the action space, in its order."""
    if isinstance(dist, Joint):
        for part in dist.parts:
            yield from _leaves(part)
    else:
        yield dist.base if isinstance(dist, Shaped) else dist


def _shifted(dist: Distribution, deviations: int) -> Tree:
    """The mode, with normal parts ``deviations`` standard deviations from their mean."""
    if isinstance(dist, Joint):
        parts = [_shifted(part, deviations) for part in dist.parts]
        return tuple(parts) if dist.keys is None else dict(zip(dist.keys, parts))
    if isinstance(dist, Shaped) and isinstance(dist.base, Gaussian):
        return _shifted(dist.base, deviations).reshape((*dist.base.mean.shape[:-1], *dist.shape))
    if isinstance(dist, Gaussian):
        return dist.mean + deviations * dist.std
    return dist.mode()
