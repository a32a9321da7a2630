"""The mLSTM: an LSTM whose cell is a matrix that stores values under keys.

Beck et al., "xLSTM: Extended Long Short-Term Memory", 2024. Per step, in each of ``heads`` heads of
size d = hidden / heads, with one input and one forget gate a head:

    u = silu(causal convolution of the input over ``conv`` steps, each feature by itself)
    q, k, o = W u + b,  v = W_v input + b,  k / sqrt(d)          [d] each
    i = cap(w_i input + b_i),  log f = log sigmoid(w_f input + b_f)
    m' = max(log f + m, i)                                       the stabiliser
    C' = exp(log f + m - m') C + exp(i - m') k v^T               [d, d]
    n' = exp(log f + m - m') n + exp(i - m') k                   [d]
    r  = C'^T q / max(|n' . q|, exp(-m'))
    y  = W_out (sigmoid(o) norm(r)) + b                          norm: of each head by itself

The memory is C exp(m): m only keeps the exponentials in range, and the output does not depend on it. C does
not feed back into the gates, so many steps are computed at once, as a masked product of queries and keys
(``kernels.cpu.matrix_memory``).

Differences from the paper: the exponent of the input gate is capped, cap(v) = 15 tanh(v / 15), as in xLSTM 7B
(2025). There is no up-projection and no skip around the cell; the output gate sees the convolution, as
queries and keys do in the paper's block. The norm divides by a root mean square with a large epsilon: right
after a reset the read is a multiple of one v, and a small epsilon would amplify its rounding errors.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from recollect.base import devices, tree
from recollect.config.cores import MLSTMConfig
from recollect.cores.contract import Core
from recollect.kernels.cpu.causal_conv import causal_conv
from recollect.kernels.cpu.matrix_memory import matrix_memory

MLSTMState = dict[str, Tensor]
CAP = 15.0
"""Bound on the absolute exponent of the input gate."""
EPS = 1e-2
"""Added to the mean square in the norm of a head, so that faint reads are not amplified."""


class MLSTM(Core):
    """State {"C": [B, heads, d, d] (keys, values), "n": [B, heads, d], "m": [B, heads]} and, with a
    convolution, "conv": [B, conv - 1, D], the oldest input first. See the module's docstring."""

    starts_at_zero = True

    def __init__(self, input_size: int, config: MLSTMConfig):
        super().__init__(input_size, config.hidden)
        self.config = config
        heads, size = config.heads, config.hidden // config.heads
        if config.conv > 1:
            self.conv_weight = nn.Parameter(torch.empty(config.conv, input_size))
            self.conv_bias = nn.Parameter(torch.empty(input_size))
        self.window_proj = nn.Linear(input_size, 3 * config.hidden)  # q, k, o
        self.in_proj = nn.Linear(input_size, config.hidden + 2 * heads)  # v, i, f
        self.out_proj = nn.Linear(config.hidden, config.hidden)
        shapes = {"C": (heads, size, size), "n": (heads, size), "m": (heads,)}
        if config.conv > 1:
            shapes["conv"] = (config.conv - 1, input_size)
        self.leaves = tuple(shapes)
        for name, shape in shapes.items():
            self.register_buffer(f"initial_{name}", torch.zeros(1, *shape), persistent=False)
        self._init_weights()

    @torch.no_grad()
    def _init_weights(self) -> None:
        H, heads = self.config.hidden, self.config.heads
        if self.config.conv > 1:
            nn.init.uniform_(self.conv_weight, -(self.config.conv**-0.5), self.config.conv**-0.5)
            nn.init.zeros_(self.conv_bias)
        # The silu scales its input to about a third; this makes queries and keys of order 1.
        scale = self.input_size**-0.5
        nn.init.normal_(self.window_proj.weight[: 2 * H], std=2 * scale)
        nn.init.normal_(self.window_proj.weight[2 * H :], std=scale)
        nn.init.normal_(self.in_proj.weight[:H], std=scale)
        self.in_proj.weight[H:].mul_(0.1)  # gates start close to their biases
        nn.init.orthogonal_(self.out_proj.weight, math.sqrt(2))
        for linear in (self.window_proj, self.in_proj, self.out_proj):
            nn.init.zeros_(linear.bias)
        forget = torch.linspace(self.config.forget_min, self.config.forget_max, heads)
        self.in_proj.bias[-heads:].copy_(forget)

    def initial_state(self, batch: int) -> MLSTMState:
        """Zeros, as expanded views."""
        initial = {name: getattr(self, f"initial_{name}") for name in self.leaves}
        return {name: leaf.expand(batch, *leaf.shape[1:]) for name, leaf in initial.items()}

    def _project(self, x: Tensor, window: Tensor) -> tuple[Tensor, ...]:
        """x and its convolution [..., D] -> q, k, v [..., heads, d], sigmoid(o) [..., hidden], i and log f
        [..., heads]."""
        H, heads = self.config.hidden, self.config.heads
        q, k, o = self.window_proj(window).chunk(3, -1)
        v, i, f = self.in_proj(x).split([H, heads, heads], -1)
        q, k, v = (part.unflatten(-1, (heads, -1)) for part in (q, k, v))
        i = torch.tanh(i * (1 / CAP)) * CAP
        return q, k * k.shape[-1] ** -0.5, v, torch.sigmoid(o), i, F.logsigmoid(f)

    def _output(self, read: Tensor, gate: Tensor) -> Tensor:
        """read [..., heads, d], gate [..., hidden] -> y [..., hidden]."""
        return self.out_proj(F.rms_norm(read, read.shape[-1:], eps=EPS).flatten(-2) * gate)

    def _step(self, x: Tensor, state: MLSTMState) -> tuple[Tensor, MLSTMState]:
        after, window = {}, x
        if self.config.conv > 1:
            inputs = torch.cat((state["conv"], x.unsqueeze(1)), 1)  # [B, conv, D]
            window = F.silu((inputs * self.conv_weight).sum(1) + self.conv_bias)
            after["conv"] = inputs[:, 1:]
        q, k, v, gate, i, log_f = self._project(x, window)
        kept = log_f + state["m"]
        m = torch.maximum(kept, i)
        keep, write = torch.exp(kept - m).unsqueeze(2), torch.exp(i - m).unsqueeze(2)  # [B, heads, 1]
        k = k * write
        C = torch.addcmul(state["C"] * keep.unsqueeze(3), k.unsqueeze(3), v.unsqueeze(2))
        n = torch.addcmul(k, state["n"], keep)
        size = torch.maximum((n * q).sum(2).abs(), torch.exp(-m))
        read = (q.unsqueeze(2) @ C).squeeze(2) / size.unsqueeze(2)
        return self._output(read, gate), {"C": C, "n": n, "m": m, **after}

    def _unroll(self, x: Tensor, state: MLSTMState, first: Tensor) -> tuple[Tensor, MLSTMState]:
        state = self.reset(state, first[0])
        # Steps outside of the episode have weight zero, and zero times NaN is NaN.
        if not devices.synchronises(x) and all(
            bool(t.detach().sum().isfinite()) for t in (x, *state.values())
        ):
            return self._unroll_finite(x, state, first)
        lost = _lost(x, state, first)
        zeroed = {name: leaf.where(leaf.isfinite(), 0) for name, leaf in state.items()}
        y, end = self._unroll_finite(x.where(x.isfinite(), 0), zeroed, first)
        y = y.masked_fill(lost.unsqueeze(2), torch.nan)
        return y, tree.select(lost[-1], tree.map(lambda leaf: torch.full_like(leaf, torch.nan), end), end)

    def _unroll_finite(self, x: Tensor, state: MLSTMState, first: Tensor) -> tuple[Tensor, MLSTMState]:
        """``_unroll`` of finite numbers, with ``first[0]`` applied."""
        after, window = {}, x
        if self.config.conv > 1:
            window, after["conv"] = causal_conv(x, state["conv"], self.conv_weight, first, self.conv_bias)
        q, k, v, gate, i, log_f = self._project(x, window)
        read, C, n, m = matrix_memory(q, k, v, i, log_f, state["C"], state["n"], state["m"], first)
        return self._output(read, gate), {"C": C, "n": n, "m": m, **after}


def _lost(x: Tensor, state: MLSTMState, first: Tensor) -> Tensor:
    """[T, B] whether the episode holds a NaN or infinity up to and including each step."""
    before = torch.stack([~leaf.flatten(1).isfinite().all(1) for leaf in state.values()]).any(0)
    time = torch.arange(len(x), device=x.device).unsqueeze(1)
    opened = torch.where(first, time, -1).cummax(0).values  # the step that opened the episode
    bad = torch.where(~x.isfinite().all(2), time, torch.where(before, -1, -2)).cummax(0).values
    return bad >= opened
