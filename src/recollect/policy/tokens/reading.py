"""What the bytes of a token mean, read once for all networks.

An observation is a set of M tokens, uint8 [M, 3], in any order:

==========  ==========================================================================================
byte        meaning
==========  ==========================================================================================
coordinate  x in the high four bits, y in the low four, both 0 to 10; 0xFF: no token, only padding
feature     what stands there: 0 to F - 1
value       how much of it: 0 to the largest, which is divided out, in floats
==========  ==========================================================================================

F - 1 and the largest value are ``high[:, 1].max()`` and ``high[:, 2].max()`` of the Box.

One rule for everything that is out of range: a token whose x or y is above 10 (0xFF has both at 15) or
whose feature is not below F is no token. Its other bytes are never looked at. A value above the largest
counts as the largest. Nothing raises, nothing wraps around, and no other token changes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import gymnasium as gym
import torch
from gymnasium import spaces
from torch import Tensor

from recollect.base.spaces import is_tokens
from recollect.errors import SpaceError

SIDE = 11
"""Cells in each direction: x and y are below it."""
PAD = 0xFF
"""The coordinate of padding."""


class Tokens(NamedTuple):
    """Tokens [N, M] taken apart; all zero where one is not ``present``."""

    x: Tensor
    """[N, M] int64, 0 to 10."""
    y: Tensor
    """[N, M] int64, 0 to 10."""
    feature: Tensor
    """[N, M] int64, 0 to F - 1."""
    value: Tensor
    """[N, M] int64, 0 to ``TokenSpace.largest``: divide by it for a number in [0, 1]."""
    present: Tensor
    """[N, M] bool: false for padding and for what is out of range."""


@dataclass(frozen=True, slots=True)
class TokenSpace:
    """What a Box of tokens says about them."""

    features: int
    """F, the number of features."""
    largest: int
    """The largest value, at least 1."""

    @classmethod
    def of(cls, space: gym.Space) -> TokenSpace:
        """Read off a Box."""
        if not isinstance(space, spaces.Box) or not is_tokens(space):
            raise SpaceError(
                f"{space} is no set of tokens: that is an 8-bit Box of shape (M, 3), "
                "Box(0, high, (M, 3), uint8); another encoder fits what this one is"
            )
        return cls(int(space.high[:, 1].max()) + 1, max(int(space.high[:, 2].max()), 1))

    def read(self, obs: Tensor) -> Tokens:
        """Take obs, uint8 [N, M, 3], apart. M may be another than the space's; obs is not written to."""
        if obs.dim() != 3 or obs.shape[2] != 3 or obs.dtype != torch.uint8:
            raise SpaceError(
                f"the tokens are {obs.dtype} {tuple(obs.shape)}, wanted uint8 (N, M, 3): one leading "
                "dimension, the tokens, the three bytes of each: were they transposed, or normalised?"
            )
        coordinate, feature, value = obs.unbind(2)
        coordinate = coordinate.long()  # before the shift: ONNX takes that of a byte for a signed one
        x, y = coordinate >> 4, coordinate & 15
        present = (x < SIDE) & (y < SIDE)
        if self.features <= PAD:  # else every byte is a feature
            present &= feature < self.features
        absent = ~present
        return Tokens(
            x.masked_fill_(absent, 0),
            y.masked_fill_(absent, 0),
            feature.long().masked_fill_(absent, 0),
            value.clamp(max=self.largest).long().masked_fill_(absent, 0),
            present,
        )
