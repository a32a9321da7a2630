"""Action masks: the actions that an observation allows.

True or 1 means allowed. Discrete(n) takes ``[..., n]``; MultiDiscrete a flat ``[..., sum(nvec)]``; a Dict a
dict in which parts may be missing or None; a Tuple a tuple in which parts may be None or (). MultiBinary and
Box take no mask.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
from gymnasium import spaces
from torch import Tensor

from recollect.base.types import Tree
from recollect.errors import SpaceError


def mask_space(space: gym.Space) -> gym.Space | None:
    """The space of an action space's masks, for the key ``action_mask`` of a Dict observation space.

    None if nothing can be masked. A Dict leaves out such parts; a Tuple has an empty Tuple for them.
    """
    if isinstance(space, spaces.Discrete):
        return spaces.MultiBinary(int(space.n))
    if isinstance(space, spaces.MultiDiscrete):
        return spaces.MultiBinary(int(space.nvec.sum()))
    if isinstance(space, spaces.Dict):
        masks = {key: mask_space(sub) for key, sub in space.spaces.items()}
        masks = {key: mask for key, mask in masks.items() if mask is not None}
        return spaces.Dict(masks) if masks else None
    if isinstance(space, spaces.Tuple):
        parts = [mask_space(sub) for sub in space.spaces]
        if any(part is not None for part in parts):
            return spaces.Tuple([spaces.Tuple(()) if part is None else part for part in parts])
    return None


def check_mask_space(action_space: gym.Space, mask: gym.Space, name: str = "action_mask") -> None:
    """Raise SpaceError unless masks of the space ``mask`` fit the action space; for build time."""
    if isinstance(mask, spaces.Tuple) and not mask.spaces:
        return
    want = mask_space(action_space)
    subs: Any = getattr(action_space, "spaces", ())
    if isinstance(want, spaces.Dict) and isinstance(mask, spaces.Dict):
        for key, sub in mask.spaces.items():
            if key not in subs:
                raise SpaceError(
                    f"{name} has a part '{key}', which is not in the action space: it has {list(subs)}"
                )
            check_mask_space(subs[key], sub, f"{name}.{key}")
        return
    if isinstance(want, spaces.Tuple) and isinstance(mask, spaces.Tuple) and len(mask.spaces) == len(subs):
        for i, (action_sub, sub) in enumerate(zip(subs, mask.spaces)):
            check_mask_space(action_sub, sub, f"{name}.{i}")
        return
    if isinstance(want, spaces.MultiBinary) and mask.shape == want.shape:
        return
    fix = "leave it out" if want is None else f"it needs {want}"
    raise SpaceError(
        f"{name} is {mask}, but the actions that it masks are {action_space}: {fix} "
        "(recollect.policy.masks.mask_space gives the space of the masks)"
    )


def check_mask(mask: Tree | None, size: int, name: str) -> None:
    """Raise SpaceError unless ``mask`` is None or a tensor [..., size]."""
    if mask is not None and (not isinstance(mask, Tensor) or mask.shape[-1:] != (size,)):
        got = tuple(mask.shape) if isinstance(mask, Tensor) else type(mask).__name__
        raise SpaceError(f"the action mask of {name} is {got}: it needs a tensor [..., {size}], 1 = allowed")


def refuse_mask(mask: Tree | None, name: str, kind: str) -> None:
    """Raise SpaceError unless ``mask`` is None: a ``kind`` takes none."""
    if mask is not None:
        raise SpaceError(
            f"{name} is a {kind}, which takes no action mask: leave its mask out, or None. "
            "Only Discrete and MultiDiscrete choices can be forbidden"
        )
