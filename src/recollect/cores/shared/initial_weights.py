"""Initial weights of recurrent cores."""

from __future__ import annotations

import torch
from torch import Tensor, nn


@torch.no_grad()
def init_gates(rnn: nn.RNNBase) -> None:
    """Orthogonal recurrent and Xavier input matrices, gate by gate, and zero biases."""
    H = rnn.hidden_size
    for name, parameter in rnn.named_parameters():
        if name.startswith("bias"):
            nn.init.zeros_(parameter)
            continue
        init = nn.init.orthogonal_ if name.startswith("weight_hh") else nn.init.xavier_uniform_
        for gate in parameter.split(H):
            init(gate)


def chrono_bias(hidden: int, longest: int) -> Tensor:
    """[hidden] gate biases log U[1, longest - 1]: a unit with bias b forgets over about e^b steps.

    Tallec and Ollivier, "Can recurrent neural networks warp time?", ICLR 2018.
    """
    return torch.empty(hidden).uniform_(1.0, float(longest - 1)).log_()
