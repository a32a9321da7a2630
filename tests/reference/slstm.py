"""The slow truth about the sLSTM: the paper's cell with its c, n and stabiliser m, step by step.

The core's state has no n, which is the paper's at the scale where n = 1: it goes in like that, and what
comes out is brought back to that scale.
"""

from __future__ import annotations

import torch
from torch import Tensor

from recollect.cores import SLSTM


def slstm(core: SLSTM, x: Tensor, state, first: Tensor):
    heads = core.config.heads
    h, c, m = state
    n = torch.ones_like(c)
    y = []
    for t in range(x.shape[0]):
        again = first[t][:, None]
        h, c, m, n = (torch.where(again, begin, leaf) for begin, leaf in ((0, h), (0, c), (0, m), (1, n)))
        outs = []
        for head, weight in enumerate(core.weight.chunk(heads)):
            bias, mine = core.bias.chunk(heads)[head], h.chunk(heads, 1)[head]
            outs.append((x[t] @ weight.T + mine @ core.recurrent[head] + bias).chunk(4, 1))
        i, z, o, f = (torch.cat(parts, 1) for parts in zip(*outs))
        log_f = torch.log(torch.sigmoid(f))
        new_m = torch.maximum(log_f + m, i)
        keep, write = torch.exp(log_f + m - new_m), torch.exp(i - new_m)
        c, n, m = keep * c + write * torch.tanh(z), keep * n + write, new_m
        h = torch.sigmoid(o) * c / n
        y.append(_normalised(core, h))
    return torch.stack(y), (h, c / n, m + torch.log(n))


def _normalised(core: SLSTM, h: Tensor) -> Tensor:
    if not core.config.norm:
        return h
    parts = []
    for head in h.chunk(core.config.heads, 1):
        centred = head - head.mean(1, keepdim=True)
        parts.append(centred / torch.sqrt(centred.square().mean(1, keepdim=True) + 1e-3))
    return torch.cat(parts, 1) * core.scale + core.shift
