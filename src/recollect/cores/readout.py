"""From what a linear recurrence carries to what the heads of a policy can use.

The recurrences of this package are linear in what they carry, and what they carry has no bounds. So their
cores end as Fast and Forgetful Memory does (Morad et al. 2023), with a gate that looks at the input:

    g = sigmoid(G x + c),   y = g LN(F f + d) + (1 - g) (V x + e)

with f [..., F] the features of the memory. The layer norm gives y the same scale whether the memory holds
one step or a thousand of them; what is seen now need not pass through the memory.
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
        # Layers of their own: the gradient of a chunk of one would copy all of it.
        return torch.lerp(self.around(x), self.norm(self.memory(f)), torch.sigmoid(self.gate(x)))
