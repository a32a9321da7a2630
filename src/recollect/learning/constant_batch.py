"""Observations and rewards that are the same in every step of a minibatch: reported, once each.

A broken wrapper or a sensor without data looks like this. So do rewards that are sparse, so the run goes on.
"""

from __future__ import annotations

import torch
from torch import Tensor

from recollect.base import tree
from recollect.base.spaces import ACTION_MASK
from recollect.experience.replay_sample import Sample

PREFIX = "constant/"


class ConstantBatch:
    """Finds tensors of a minibatch that are constant, and words for each of them the first time."""

    def __init__(self) -> None:
        self._reported: set[str] = set()

    @torch.no_grad()
    def find(self, sample: Sample) -> dict[str, Tensor]:
        """For each tensor: 1 if it is the same in every step, 2 if it is 0 everywhere, else 0."""
        named = dict(tree.named_leaves(sample.obs, "observation")) | {"reward": sample.reward}
        others = ~sample.is_step
        # A window is drawn by its first learned step.
        at = sample.is_step.flatten().int().argmax()
        found = {}
        for name, leaf in named.items():
            if leaf.numel() and not name.endswith(f".{ACTION_MASK}"):
                one = leaf.flatten(0, 1).index_select(0, at.reshape(1))  # [1, ...]
                where = others.view(others.shape + (1,) * (leaf.dim() - 2))
                is_constant = ((leaf == one) | where).all()
                found[f"{PREFIX}{name}"] = is_constant.int() * (1 + (one == 0).all().int())
        return found

    def notes(self, numbers: dict[str, float]) -> list[str]:
        """Take what ``find`` found out of the metrics, and describe what is new."""
        found = [name for name in numbers if name.startswith(PREFIX)]
        kinds = {name.removeprefix(PREFIX): numbers.pop(name) for name in found}
        new = {name: kind for name, kind in kinds.items() if kind and name not in self._reported}
        self._reported |= new.keys()
        return [
            f"{name} is {'0' if kind == 2 else 'the same'} in every step of a minibatch: normal if rewards "
            "are sparse or if this part of the env never changes; else look for a wrapper that overwrites it"
            for name, kind in new.items()
        ]
