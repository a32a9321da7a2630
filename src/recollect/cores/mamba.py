"""Mamba: a state space model whose step size, input and output matrices depend on the input.

Gu and Dao, "Mamba: Linear-Time Sequence Modeling with Selective State Spaces", 2023. Per step, with
I = expand * hidden channels and N = d_state numbers of memory in each:

    x, z    = W_in input                                          [I] each
    x       = silu(causal convolution of x over ``conv`` steps, each channel by itself)
    d, B, C = W_x x                                               [dt_rank], [N], [N]
    dt      = softplus(W_dt d + bias)                             [I]
    h       = exp(dt A) h + dt B x                                [N, I], A = -exp(A_log)
    y       = layer_norm(W_out ((C h + D x) silu(z)))             [hidden]

The state is h and the last conv - 1 inputs of the convolution; a reset clears both.

Differences from the paper: the core ends in a layer norm, because linear heads follow it and not another
block. expand is 1, not 2. Step sizes start between 0.01 and 1 (paper: 0.001 to 0.1), decays evenly spaced in
their logarithm (paper: 1 to N), B and C larger: with the paper's values a single step writes a thousandth of
D x, and agents do not learn to use it. The state has the layout [N, I], which is faster.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from recollect.config.cores import MambaConfig
from recollect.cores.contract import Core
from recollect.kernels.cpu.causal_conv import causal_conv
from recollect.kernels.cpu.selective_scan import LOG2_E, selective_scan

MambaState = dict[str, Tensor]


class Mamba(Core):
    """State {"conv": [B, conv - 1, I], the oldest input first, "ssm": [B, N, I]}; see the module."""

    starts_at_zero = True
    initial_conv: Tensor
    initial_ssm: Tensor

    def __init__(self, input_size: int, config: MambaConfig):
        super().__init__(input_size, config.hidden)
        self.config = config
        inner, N = config.expand * config.hidden, config.d_state
        rank = config.dt_rank or math.ceil(config.hidden / 16)
        self.split = [rank, N, N]
        self.in_proj = nn.Linear(input_size, 2 * inner, bias=False)
        self.conv_weight = nn.Parameter(torch.empty(config.conv, inner))
        self.conv_bias = nn.Parameter(torch.zeros(inner))
        self.x_proj = nn.Linear(inner, rank + 2 * N, bias=False)
        self.dt_proj = nn.Linear(rank, inner)
        self.A_log = nn.Parameter(torch.empty(N, inner))
        self.D = nn.Parameter(torch.ones(inner))
        self.out_proj = nn.Linear(inner, config.hidden, bias=False)
        self.norm = nn.LayerNorm(config.hidden)
        self.register_buffer("initial_conv", torch.zeros(1, config.conv - 1, inner), persistent=False)
        self.register_buffer("initial_ssm", torch.zeros(1, N, inner), persistent=False)
        self._init_weights()

    @torch.no_grad()
    def _init_weights(self) -> None:
        config, (N, inner) = self.config, self.A_log.shape
        nn.init.uniform_(self.conv_weight, -(config.conv**-0.5), config.conv**-0.5)
        decays = torch.linspace(math.log(config.a_min), math.log(config.d_state), N)
        self.A_log.copy_(decays.unsqueeze(1).expand(N, inner))
        # The silu scales x to about a third: without B and C of order 1, D x dominates the memory.
        nn.init.normal_(self.x_proj.weight[self.split[0] :], std=4 * inner**-0.5)
        nn.init.uniform_(self.dt_proj.weight, -(self.split[0] ** -0.5), self.split[0] ** -0.5)
        dt = torch.empty(inner).uniform_(math.log(config.dt_min), math.log(config.dt_max)).exp()
        self.dt_proj.bias.copy_(dt + torch.log(-torch.expm1(-dt)))  # softplus of it is dt

    def initial_state(self, batch: int) -> MambaState:
        """Zeros, as expanded views."""
        conv, ssm = (leaf.expand(batch, -1, -1) for leaf in (self.initial_conv, self.initial_ssm))
        return {"conv": conv, "ssm": ssm}

    def _step(self, x: Tensor, state: MambaState) -> tuple[Tensor, MambaState]:
        x, z = self.in_proj(x).chunk(2, 1)
        window = torch.cat((state["conv"], x.unsqueeze(1)), 1)  # [B, conv, I]
        x = F.silu((window * self.conv_weight).sum(1) + self.conv_bias)
        low, B, C = self.x_proj(x).split(self.split, 1)
        dt = F.softplus(self.dt_proj(low))
        decay = torch.exp2(dt.unsqueeze(1) * (self.A_log.exp() * -LOG2_E))  # [B, N, I]
        h = torch.addcmul((dt * x).unsqueeze(1) * B.unsqueeze(2), decay, state["ssm"])
        y = torch.addcmul((C.unsqueeze(1) @ h).squeeze(1), x, self.D) * F.silu(z)
        return self.norm(self.out_proj(y)), {"conv": window[:, 1:], "ssm": h}

    def _unroll(self, x: Tensor, state: MambaState, first: Tensor) -> tuple[Tensor, MambaState]:
        # Two products instead of one, whose gradient would have to be concatenated.
        to_x, to_z = self.in_proj.weight.chunk(2)
        z = F.linear(x, to_z)
        x, window = causal_conv(F.linear(x, to_x), state["conv"], self.conv_weight, first, self.conv_bias)
        low, B, C = self.x_proj(x).split(self.split, 2)
        A = -self.A_log.exp()
        y, h = selective_scan(x, self.dt_proj(low), z, B, C, A, self.D, state["ssm"], first)
        return self.norm(self.out_proj(y)), {"conv": window, "ssm": h}
