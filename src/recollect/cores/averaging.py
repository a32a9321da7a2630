"""What minGRU and minLSTM have in common: a memory that is an average of what was seen, unit by unit.

    v_t = convolution(x)_t,   c_t = W_c v_t + b_c,   h_t = (1 - s_t) h_{t-1} + s_t c_t
    y_t = readout(h_t, v_t)

s_t, the share of the new, is a function of v_t alone. So nothing but the average runs over time, and that
is a scan (``recollect.kernels.linear_scan``). No h ever leaves the range of the c that went into it.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from recollect.cores.convolution import Convolution
from recollect.cores.readout import Readout
from recollect.kernels.linear_scan import scan

AverageState = tuple[Tensor, ...]
"""h [B, H] and, with a convolution, the inputs that it still needs [B, K - 1, D]."""


class Average(nn.Module):
    """Everything but the share, which both methods take as a function of v [..., D] -> [..., H]."""

    initial_h: Tensor
    initial_recent: Tensor

    def __init__(self, input_size: int, hidden: int, width: int, learned_initial_state: bool):
        super().__init__()
        self.convolution = Convolution(input_size, width) if width > 1 else None
        self.new = nn.Linear(input_size, hidden)
        nn.init.xavier_uniform_(self.new.weight)
        nn.init.zeros_(self.new.bias)
        self.readout = Readout(hidden, input_size, hidden)
        self.learned = learned_initial_state
        if learned_initial_state:
            self.initial_h = nn.Parameter(torch.zeros(1, hidden))
        else:
            self.register_buffer("initial_h", torch.zeros(1, hidden), persistent=False)
        self.register_buffer("initial_recent", torch.zeros(1, width - 1, input_size), persistent=False)

    def initial_state(self, batch: int) -> AverageState:
        """Zeros, or the learned h, as expanded views."""
        h = self.initial_h.expand(batch, -1)
        return (h,) if self.convolution is None else (h, self.initial_recent.expand(batch, -1, -1))

    def step(
        self, x: Tensor, state: AverageState, share: Callable[[Tensor], Tensor]
    ) -> tuple[Tensor, AverageState]:
        """x [B, D] -> y [B, H], state."""
        h, *rest = state
        if self.convolution is not None:
            x, *rest = self.convolution.step(x, rest[0])
        h = torch.lerp(h, self.new(x), share(x))
        return self.readout(h, x), (h, *rest)

    def unroll(
        self, x: Tensor, state: AverageState, first: Tensor, share: Callable[[Tensor], Tensor]
    ) -> tuple[Tensor, AverageState]:
        """x [T, B, D], the raw state at step 0, first [T, B] -> y [T, B, H], state."""
        h, *rest = state
        if self.convolution is not None:
            x, *rest = self.convolution.unroll(x, rest[0], first)
        s = share(x)
        h = scan(1 - s, s * self.new(x), h, first, self.initial_h if self.learned else None)
        return self.readout(h, x), (h[-1], *rest)


GATE_GAIN = 3.0
"""Of the initial weights of gates. A unit keeps an event that its gate opens for better than the others: with
1, where an event weighs in the average hardly more than a blank, minGRU found the cue of delayed-cue within
90k steps at a horizon of 100 with no seed out of three, with 3 with two."""


def spread_bias(hidden: int, longest: int) -> Tensor:
    """[hidden] biases b of gates that keep sigmoid(b) at every step, for 1 to ``longest`` steps.

    A unit keeps for about 1 + e^b steps. Evenly spread in the logarithm, where Tallec and Ollivier's are
    spread in the steps: of a hundred of those, one forgets within the few steps that order needs.
    """
    times = torch.linspace(0, math.log(longest), hidden) if hidden > 1 else torch.tensor([math.log(longest)])
    return torch.expm1(times).clamp_(min=0.1).log_()
