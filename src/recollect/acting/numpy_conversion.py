"""Conversion between a user's NumPy values and the policy's tensors, single or batched."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces as gym_spaces

from recollect.base import spaces, tree
from recollect.base.types import Tree
from recollect.envs import space_values
from recollect.errors import SpaceError
from recollect.policy.critic_obs import obs_without
from recollect.policy.policy import Policy


def observations(policy: Policy, obs: Any) -> tuple[Tree, bool]:
    """Validate ``obs``. Returns it as tensors [B, ...], and whether it was a single observation.

    With ``policy.actor_only()``, keys that only the critic sees are left out.
    """
    space = policy.observation_space
    if isinstance(obs, dict) and space is policy.actor_space:
        obs = obs_without(obs, policy.config.critic_obs)
    leaf_space, leaf = _first_leaf(space, obs)
    shape, inner = np.shape(leaf), leaf_space.shape or ()
    is_single = len(shape) == len(inner)
    rows = 1 if is_single else shape[0] if len(shape) == len(inner) + 1 else 0
    if rows == 0:
        raise SpaceError(
            f"an observation has shape {shape}, and its space says {inner}: pass one observation of that "
            "shape, or a batch of them with rows first"
        )
    arrays = spaces.buffers(space, rows)
    space_values.write_row(space, arrays, 0 if is_single else ..., obs)
    batch = space_values.to_tensors(space, arrays)
    for name, leaf in tree.named_leaves(batch, "obs"):
        if leaf.is_floating_point() and not torch.isfinite(leaf).all():
            row = int((~torch.isfinite(leaf)).nonzero()[0, 0])
            raise SpaceError(f"{name} has NaN or Inf in row {row}: the memory would never recover from it")
    return tree.to(batch, policy.device), is_single


def actions(space: gym.Space, action: Tree, is_single: bool) -> Any:
    """An action tree [B, ...] as NumPy values: a batch, or its only row."""
    rows = tree.leaves(action)[0].shape[0]
    return (
        space_values.to_rows(space, action, rows)[0]
        if is_single
        else space_values.to_batch(space, action, rows)
    )


def _first_leaf(space: gym.Space, obs: Any) -> tuple[gym.Space, Any]:
    while isinstance(space, gym_spaces.Dict | gym_spaces.Tuple):
        parts: Any = space.spaces
        key = next(iter(parts)) if isinstance(parts, dict) else 0
        try:
            space, obs = parts[key], obs[key]
        except (KeyError, IndexError, TypeError):
            raise SpaceError(f"the observation lacks {key!r}, which its space {space} has") from None
    return space, obs
