"""``latent_attn_tiny``, ``_small``, ``_med``: a few learned queries attend to all tokens.

A token is a vector u of C numbers: Fourier features of x, y and the value, and its feature as a one-hot
vector (a column of K and V is the embedding of a feature). The latents Z start as learned queries and pass
through pre-norm layers of cross-attention, each with an MLP of twice the width::

    Z <- Z + O softmax(Q norm(Z) (K u)^T / sqrt(d)) (V u)
    Z <- Z + MLP(norm(Z))

then through layers of self-attention between latents. All latents, concatenated and normalised, give 128
features.

All cross-attention layers share K and V. Because u has no gradient, K and V are applied to queries and sums
rather than to every token: q . K u = (K^T q) . u, and sum p V u = V (sum p u). There are fewer queries than
tokens, and the backward pass skips keys and values; with 200 tokens, training of ``tiny`` and ``small`` takes
half the time, that of ``med`` the same. K needs no bias: it would shift all logits of a query equally.

An absent token has u = 0 and a logit far below all others. If all are absent, Z gets V's bias: outputs and
gradients are finite and independent of padding.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import gymnasium as gym
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from recollect.policy.layers import Dense, orthogonal
from recollect.policy.tokens.token_format import SIDE, TokenSpace

ABSENT = -3e4
"""Added to the logit of an absent token: exp of it is 0, and it is finite in half precision too."""
PLACE_WAVES, VALUE_WAVES = 3, 5
"""Numbers of frequencies, each double the one before; the first has half a period over the range."""


@dataclass(frozen=True, slots=True)
class Size:
    """The size of a network."""

    queries: int
    width: int
    heads: int
    cross: int
    """Layers of cross-attention from latents to tokens."""
    among: int
    """Layers of self-attention between latents, after those."""


SIZES = {
    "tiny": Size(queries=1, width=32, heads=4, cross=2, among=0),
    "small": Size(queries=10, width=64, heads=4, cross=1, among=2),
    "med": Size(queries=10, width=128, heads=8, cross=3, among=3),
}


class LatentAttention(nn.Module):
    """Tokens [N, M, 3] -> [N, 128]; see the module's docstring."""

    output_size = 128
    places: Tensor
    values: Tensor
    features: Tensor

    def __init__(self, space: gym.Space, size: Size):
        super().__init__()
        self.tokens = TokenSpace.of(space)
        self.size = size
        # Vectors for every value of a byte: u is looked up, not computed.
        places = torch.arange(SIDE) / (SIDE - 1)
        values = torch.arange(self.tokens.largest + 1) / self.tokens.largest
        features = torch.eye(self.tokens.features)
        self.register_buffer("places", standard(waves(places, PLACE_WAVES)), persistent=False)
        self.register_buffer("values", standard(waves(values, VALUE_WAVES)), persistent=False)
        features = standard(features) if len(features) > 1 else features
        self.register_buffer("features", features, persistent=False)
        inputs = 2 * self.places.shape[1] + self.values.shape[1] + self.features.shape[1]
        self.queries = nn.Parameter(torch.randn(size.queries, size.width))
        self.key = nn.Linear(inputs, size.width, bias=False)
        self.value = nn.Linear(inputs, size.width)
        self.cross = nn.ModuleList(CrossLayer(size) for _ in range(size.cross))
        self.among = nn.ModuleList(SelfLayer(size) for _ in range(size.among))
        self.norm = nn.LayerNorm(size.queries * size.width)
        self.out = Dense(size.queries * size.width, self.output_size, "tanh")
        # Keys and queries of length sqrt(width) give logits of order 1. With the usual, smaller weights every
        # row would start with the same average over all tokens.
        for linear in (self.key, self.value):
            nn.init.normal_(linear.weight, std=inputs**-0.5)
        nn.init.zeros_(self.value.bias)

    def forward(self, obs: Tensor) -> Tensor:
        """Obs, uint8 [N, M, 3] -> [N, 128]."""
        u, absent = self._vectors(obs)
        z = self.queries.expand(obs.shape[0], -1, -1)  # [N, queries, width]
        for layer in self.cross:
            z = layer(z, u, absent, self.key, self.value)
        for layer in self.among:
            z = layer(z)
        return self.out(self.norm(z.flatten(1)))

    def _vectors(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """The vectors u [N, M, C] of obs [N, M, 3], and the mask to add to their logits, [N, 1, M]."""
        x, y, feature, value, present = self.tokens.read(obs)
        u = torch.cat([self.places[x], self.places[y], self.values[value], self.features[feature]], 2)
        absent = (~present).to(u.dtype)
        return u.mul_(present.unsqueeze(2)), absent.mul_(ABSENT).unsqueeze(1)


class CrossLayer(nn.Module):
    """Cross-attention of Z [N, queries, width] to tokens u [N, M, C] with shared ``key`` and ``value``."""

    def __init__(self, size: Size):
        super().__init__()
        self.heads = size.heads
        self.norm = nn.LayerNorm(size.width)
        self.query = nn.Linear(size.width, size.width)
        self.out = nn.Linear(size.width, size.width)
        self.mlp = Feed(size.width)
        orthogonal(self.query, 1.5)
        orthogonal(self.out, 2.0)

    def forward(self, z: Tensor, u: Tensor, absent: Tensor, key: nn.Linear, value: nn.Linear) -> Tensor:
        """The latents, one layer on."""
        rows, queries, width = z.shape
        heads, depth = self.heads, width // self.heads
        # One matrix product for each head: [heads, N * queries, depth] with [heads, depth, C].
        q = self.query(self.norm(z)).view(rows * queries, heads, depth).transpose(0, 1)
        asked = torch.matmul(q, key.weight.view(heads, depth, -1))  # [heads, N * queries, C]
        # -> [N, heads * queries, C], against u of the same row
        asked = asked.view(heads, rows, queries, -1).transpose(0, 1).reshape(rows, heads * queries, -1)
        logits = torch.baddbmm(absent, asked, u.transpose(1, 2), alpha=1 / math.sqrt(depth))
        seen = torch.bmm(logits.softmax(2), u)  # [N, heads * queries, C]
        # and back: [heads, N * queries, C] with [heads, C, depth]
        seen = seen.view(rows, heads, queries, -1).transpose(0, 1).reshape(heads, rows * queries, -1)
        seen = torch.matmul(seen, value.weight.view(heads, depth, -1).transpose(1, 2))
        seen = seen.transpose(0, 1).reshape(rows, queries, width) + value.bias
        return self.mlp(z + self.out(seen))


class SelfLayer(nn.Module):
    """Self-attention of Z [N, queries, width]."""

    def __init__(self, size: Size):
        super().__init__()
        self.heads = size.heads
        self.norm = nn.LayerNorm(size.width)
        self.qkv = nn.Linear(size.width, 3 * size.width)
        self.out = nn.Linear(size.width, size.width)
        self.mlp = Feed(size.width)

    def forward(self, z: Tensor) -> Tensor:
        """The latents, one layer on."""
        rows, queries, width = z.shape
        # [N, queries, 3 * width] -> three of [N, heads, queries, depth]
        qkv = self.qkv(self.norm(z)).view(rows, queries, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(*qkv.unbind(0))
        seen = seen.transpose(1, 2).reshape(rows, queries, width)  # heads side by side again
        return self.mlp(z + self.out(seen))


class Feed(nn.Module):
    """The MLP half of a layer, with its residual."""

    def __init__(self, width: int):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, z: Tensor) -> Tensor:
        """Z + MLP(norm(Z))."""
        return z + self.down(F.silu(self.up(self.norm(z))))


def waves(numbers: Tensor, count: int) -> Tensor:
    """Sines and cosines [K, 2 * count] of numbers [K] in [0, 1], at 1, 2, 4 ... half periods."""
    angles = numbers.unsqueeze(1) * (math.pi * 2.0 ** torch.arange(count))
    return torch.cat([angles.sin(), angles.cos()], 1)


def standard(table: Tensor) -> Tensor:
    """Every column of table [K, C] with mean 0 and variance 1 over its rows."""
    return (table - table.mean(0)) / table.std(0, correction=0).clamp(min=1e-6)
