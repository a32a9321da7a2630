"""Networks for observations that are sets of tokens; ``reading`` defines a token.

A network is built from the Box, has an ``output_size``, and maps uint8 [N, M, 3] to [N, output_size]. Its
result must not depend on the order of the tokens, on padding, or on M; tests/policy/test_zoo.py checks this
for every network of ``NETWORKS``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import gymnasium as gym
from torch import nn

from recollect.policy.tokens.example import Example
from recollect.policy.tokens.fast import Fast
from recollect.policy.tokens.latent import SIZES, LatentAttention
from recollect.policy.tokens.token_format import PAD, SIDE, Tokens, TokenSpace

__all__ = ["NETWORKS", "PAD", "SIDE", "TokenSpace", "Tokens"]

NETWORKS: dict[str, Callable[[gym.Space], nn.Module]] = {
    "fast": Fast,
    "latent_attn_tiny": partial(LatentAttention, size=SIZES["tiny"]),
    "latent_attn_small": partial(LatentAttention, size=SIZES["small"]),
    "latent_attn_med": partial(LatentAttention, size=SIZES["med"]),
    "example": Example,
}
"""The token networks by name; the first is the default."""
