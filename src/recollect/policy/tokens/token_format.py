"""The format of tokens, and their decoding.

An observation is a set of M tokens, uint8 [M, 3], in any order:

==========  ==========================================================================================
byte        meaning
==========  ==========================================================================================
coordinate  x in the high four bits, y in the low four, both 0 to 10; 0xFF: padding
feature     0 to F - 1
value       0 to the largest value; networks divide by that
==========  ==========================================================================================

F - 1 and the largest value are ``high[:, 1].max()`` and ``high[:, 2].max()`` of the Box.

Bytes out of range do not raise: a token whose x or y is above 10 (both are 15 for 0xFF) or whose feature is F
or more is absent, and its other bytes are ignored. A value above the largest counts as the largest.
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
    """Decoded tokens, int64 [N, M] each; zero where a token is not ``present``.

    ``x`` and ``y`` are 0 to 10, ``feature`` is 0 to F - 1, ``value`` 0 to ``TokenSpace.largest``.
    """

    x: Tensor
    y: Tensor
    feature: Tensor
    value: Tensor
    present: Tensor
    """[N, M] bool: false for padding and for tokens out of range."""


@dataclass(frozen=True, slots=True)
class TokenSpace:
    """The ranges of tokens, from their Box."""

    features: int
    """F, the number of features."""
    largest: int
    """The largest value, at least 1."""

    @classmethod
    def of(cls, space: gym.Space) -> TokenSpace:
        """The ranges of a Box of tokens."""
        if not isinstance(space, spaces.Box) or not is_tokens(space):
            raise SpaceError(
                f"{space} is not a set of tokens, an 8-bit Box of shape (M, 3), Box(0, high, (M, 3), uint8): "
                "use another encoder"
            )
        return cls(int(space.high[:, 1].max()) + 1, max(int(space.high[:, 2].max()), 1))

    def read(self, obs: Tensor) -> Tokens:
        """Decode obs, uint8 [N, M, 3]; M may differ from that of the space."""
        if obs.dim() != 3 or obs.shape[2] != 3 or obs.dtype != torch.uint8:
            raise SpaceError(
                f"the tokens are {obs.dtype} {tuple(obs.shape)}, wanted uint8 (N, M, 3): one leading "
                "dimension, the tokens, the three bytes of each: were they transposed, or normalised?"
            )
        coordinate, feature, value = obs.unbind(2)
        coordinate = coordinate.long()  # before the shift, which ONNX computes as signed for bytes
        x, y = coordinate >> 4, coordinate & 15
        present = (x < SIDE) & (y < SIDE)
        if self.features <= PAD:  # otherwise every byte is a feature
            present &= feature < self.features
        absent = ~present
        return Tokens(
            x.masked_fill_(absent, 0),
            y.masked_fill_(absent, 0),
            feature.long().masked_fill_(absent, 0),
            value.clamp(max=self.largest).long().masked_fill_(absent, 0),
            present,
        )
