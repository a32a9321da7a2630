"""The slow truth about cores: one step after another from the equations, with plain autograd.

Written for reading, not for speed, and independent of ``recollect.cores``: only the parameters are
taken from the core. All shapes as in ``Core``: x [T, B, D], first [T, B], state leaves [B, layers, H].
"""

from __future__ import annotations

import torch
from torch import Tensor

from recollect.cores import GRU, LSTM, MLSTM, PMM, SLSTM, Frames, Mamba, NoMemory, Stack, Window
from tests.reference.linear import LINEAR
from tests.reference.mamba import mamba
from tests.reference.mlstm import mlstm
from tests.reference.pmm import pmm
from tests.reference.slstm import slstm
from tests.reference.stack import stack
from tests.reference.window import window


def lstm_step(x, h, c, w_ih, w_hh, b_ih, b_hh):
    i, f, g, o = (x @ w_ih.T + b_ih + h @ w_hh.T + b_hh).chunk(4, dim=-1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


def gru_step(x, h, w_ih, w_hh, b_ih, b_hh):
    r_x, z_x, n_x = (x @ w_ih.T + b_ih).chunk(3, dim=-1)
    r_h, z_h, n_h = (h @ w_hh.T + b_hh).chunk(3, dim=-1)
    r, z = torch.sigmoid(r_x + r_h), torch.sigmoid(z_x + z_h)
    n = torch.tanh(n_x + r * n_h)
    return (1 - z) * n + z * h


def _weights(rnn, layer):
    return [getattr(rnn, f"{name}_l{layer}") for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]


def _start(first: Tensor, initial: Tensor, carried: Tensor) -> Tensor:
    return torch.where(first[:, None], initial, carried)


def _norm(core, place: int, x: Tensor) -> Tensor:
    """Before layer ``place``, or behind the last one."""
    if not core.config.layer_norm:
        return x
    centred = x - x.mean(1, keepdim=True)
    even = centred / torch.sqrt(centred.square().mean(1, keepdim=True) + 1e-5)
    return even * core.norms[place].weight + core.norms[place].bias


def _lstm(core: LSTM, x: Tensor, state, first: Tensor):
    layers = core.config.layers
    h, c = ([leaf[:, layer] for layer in range(layers)] for leaf in state)
    y = []
    for t in range(x.shape[0]):
        out = _norm(core, 0, x[t])
        for layer in range(layers):
            h[layer] = _start(first[t], core.initial_h[:, layer], h[layer])
            c[layer] = _start(first[t], core.initial_c[:, layer], c[layer])
            h[layer], c[layer] = lstm_step(out, h[layer], c[layer], *_weights(core.rnn, layer))
            out = _norm(core, layer + 1, h[layer])
        y.append(out)
    return torch.stack(y), (torch.stack(h, 1), torch.stack(c, 1))


def _gru(core: GRU, x: Tensor, state, first: Tensor):
    layers = core.config.layers
    h = [state[:, layer] for layer in range(layers)]
    y = []
    for t in range(x.shape[0]):
        out = _norm(core, 0, x[t])
        for layer in range(layers):
            h[layer] = _start(first[t], core.initial_h[:, layer], h[layer])
            h[layer] = gru_step(out, h[layer], *_weights(core.rnn, layer))
            out = _norm(core, layer + 1, h[layer])
        y.append(out)
    return torch.stack(y), torch.stack(h, 1)


def _none(core: NoMemory, x: Tensor, state, first: Tensor):
    return x, ()


def _frames(core: Frames, x: Tensor, state, first: Tensor):
    """One list of inputs per row, which an episode's start fills with zeros."""
    y, rows = [], [list(row) for row in state]
    for inputs, starts in zip(x, first):
        for b, row in enumerate(rows):
            if starts[b]:
                row[:] = [torch.zeros_like(frame) for frame in row]
            row.append(inputs[b])
        y.append(torch.stack([torch.cat(row) for row in rows]))
        for row in rows:
            row.pop(0)
    return torch.stack(y), torch.stack([torch.stack(row) for row in rows])


REFERENCE = {LSTM: _lstm, GRU: _gru, NoMemory: _none, Frames: _frames, SLSTM: slstm, **LINEAR}
"""For each core the function (core, x, state, first) -> y, state."""
REFERENCE[Mamba] = mamba
REFERENCE[MLSTM] = mlstm
REFERENCE[Window] = window
REFERENCE[PMM] = pmm(REFERENCE)
REFERENCE[Stack] = stack(REFERENCE)
