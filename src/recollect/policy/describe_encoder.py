"""How each part of the observation is encoded, in words for the start of a run."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import gymnasium as gym
from gymnasium import spaces
from torch import nn

from recollect.base.spaces import ACTION_MASK, walk
from recollect.policy.encoders import Encoder
from recollect.policy.policy import Policy

MOST_PARTS = 8
"""Parts that are described; the others are counted."""


def describe_encoder(encoder: nn.Module, observation_space: gym.Space) -> list[str]:
    """A line for each part of the observation: ``image 64x64x3 uint8: conv 16 k3, 32 k3``."""
    if not isinstance(encoder, Encoder):
        return [f"observation: encoded by {type(encoder).__name__}"]
    lines = [
        f"{name or 'observation'} {_kind(space)}: {how}"
        for name, space, how in _parts(encoder, observation_space)
    ]
    more = len(lines) - MOST_PARTS
    return [*lines[:MOST_PARTS], f"and {more} more parts"] if more > 1 else lines


def describe_critic(policy: Policy) -> list[str]:
    """A line about the critic's own network, if it has one."""
    if policy.critic_trunk is None:
        return []
    core = type(policy.critic_trunk.core).__name__
    own = f"an encoder and {core}" if policy.config.critic == "separate" else "an encoder"
    only = ", ".join(policy.config.critic_obs)
    return [f"critic: {own} of its own{f', which also sees {only}' if only else ''}"]


def _parts(encoder: Encoder, space: gym.Space) -> Iterator[tuple[str, gym.Space, str]]:
    """Name, space and encoding of each part."""
    found: dict[str, Any] = {}
    for leaf in (*encoder.vectors, *encoder.images, *encoder.tokens):
        found[".".join(map(str, leaf.path))] = leaf  # pyright: ignore[reportArgumentType, reportCallIssue]
    for name, part in walk(space):
        if name in found:
            yield name, part, _encoding(found[name], part)
        elif name.partition(".")[0] == ACTION_MASK:
            yield name, part, "masks actions, not encoded"


def _encoding(leaf: Any, space: gym.Space) -> str:
    layers = [m for m in leaf.modules() if isinstance(m, nn.Conv2d)]
    if hasattr(leaf, "network"):
        return f"token network {type(leaf.network).__name__}"
    if layers:
        conv = f"conv {', '.join(f'{m.out_channels} k{m.kernel_size[0]}' for m in layers)}"
        return f"symbols, a learned vector each, {conv}" if hasattr(leaf, "table") else conv
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        return "one-hot"
    size = math.prod(space.shape or ())
    return (
        "1 number" if size == 1 else f"{size:,} numbers{', flattened' if len(space.shape or ()) > 1 else ''}"
    )


def _kind(space: gym.Space) -> str:
    if isinstance(space, spaces.Box):
        return f"{'x'.join(map(str, space.shape)) or 'Box()'} {space.dtype}"
    if isinstance(space, spaces.Discrete):
        return f"Discrete({space.n})"
    return f"{type(space).__name__} of {'x'.join(map(str, space.shape or ()))}"
