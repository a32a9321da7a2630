"""``example``: a minimal token network, to be copied; docs/own-policy.md builds it step by step."""

from __future__ import annotations

import gymnasium as gym
import torch
from torch import Tensor, nn

from recollect.policy.tokens.token_format import TokenSpace


class Example(nn.Module):
    """A small network for each token, then the sum and the maximum over all tokens."""

    output_size = 128

    def __init__(self, space: gym.Space):
        super().__init__()
        self.tokens = TokenSpace.of(space)
        self.what = nn.Embedding(self.tokens.features, 64)
        self.where = nn.Linear(3, 64)
        self.all = nn.Sequential(nn.Linear(2 * 64, self.output_size), nn.Tanh())

    def forward(self, obs: Tensor) -> Tensor:
        """Obs, uint8 [N, M, 3] -> [N, 128]."""
        x, y, feature, value, present = self.tokens.read(obs)
        what = self.what(feature)  # [N, M, 64]
        x, y, value = (number.to(what.dtype) for number in (x, y, value))
        # [N, M, 3], from -1 to 1. The product lets every feature use position and value in its own way.
        numbers = torch.stack([x / 5, y / 5, 2 * value / self.tokens.largest], 2) - 1
        seen = torch.tanh(what * self.where(numbers))  # [N, M, 64]
        absent = ~present.unsqueeze(2)  # [N, M, 1]
        count = present.sum(1, keepdim=True).clamp(min=1).to(what.dtype)
        total = seen.masked_fill(absent, 0).sum(1) / count.sqrt()  # [N, 64], with a scale independent of M
        most = seen.masked_fill(absent, -1).amax(1)  # [N, 64]; -1 without any token
        return self.all(torch.cat([total, most], 1))
