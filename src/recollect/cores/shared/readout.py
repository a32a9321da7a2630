"""The output layer of linear recurrences, whose states are linear in the inputs and unbounded.

As in Fast and Forgetful Memory (Morad et al. 2023), a gate on the input mixes memory and input:

    g = sigmoid(G x + c),   y = g LN(F f + d) + (1 - g) (V x + e)

with f [..., F] the features of the memory. The layer norm gives y the same scale after one step and after a
thousand; the second term lets the present input bypass the memory.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Readout(nn.Module):
    """f [..., features], x [..., input_size] -> y [..., hidden]."""

    def __init__(self, features: int, input_size: int, hidden: int):
        super().__init__()
        self.memory = nn.Linear(features, hidden)
        self.norm = nn.LayerNorm(hidden)
        self.gate = nn.Linear(input_size, hidden)
        self.around = nn.Linear(input_size, hidden)
        for layer in (self.memory, self.gate, self.around):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, f: Tensor, x: Tensor) -> Tensor:
        """The output of every step."""
        # Three layers, not one that is chunked: the gradient of a chunk would copy the whole.
        return torch.lerp(self.around(x), self.norm(self.memory(f)), torch.sigmoid(self.gate(x)))
