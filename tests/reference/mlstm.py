"""The mLSTM from its equations, one head and one step after another."""

from __future__ import annotations

import torch
from torch import Tensor


def mlstm(core, x: Tensor, state, first: Tensor):
    """x [T, B, D], state {"C": [B, heads, d, d], "n": [B, heads, d], "m": [B, heads]}, first [T, B]."""
    heads, d = core.config.heads, core.config.hidden // core.config.heads
    cells = [[state[name][:, head] for name in ("C", "n", "m")] for head in range(heads)]
    window = list(state["conv"].unbind(1)) if core.config.conv > 1 else []
    y = []
    for t in range(x.shape[0]):
        seen = x[t]
        if core.config.conv > 1:
            window = [*(_start(first[t], old) for old in window), x[t]]
            seen = sum((old * w for old, w in zip(window, core.conv_weight)), start=core.conv_bias)
            seen = seen * torch.sigmoid(seen)
            window = window[1:]
        q_all, k_all, o_all = torch.tensor_split(
            seen @ core.window_proj.weight.T + core.window_proj.bias, 3, 1
        )
        z = x[t] @ core.in_proj.weight.T + core.in_proj.bias
        v_all, i, f = torch.split(z, [heads * d, heads, heads], dim=1)
        out = []
        for head in range(heads):
            q, k, v, o = (part[:, head * d : (head + 1) * d] for part in (q_all, k_all, v_all, o_all))
            cell = [_start(first[t], leaf) for leaf in cells[head]]
            read, cells[head] = _cell(q, k, v, 15 * torch.tanh(i[:, head] / 15), f[:, head], *cell)
            out.append(torch.sigmoid(o) * read / torch.sqrt(read.square().mean(1, keepdim=True) + 1e-2))
        y.append(torch.cat(out, 1) @ core.out_proj.weight.T + core.out_proj.bias)
    ends = [torch.stack(leaf, 1) for leaf in zip(*cells)]
    end = dict(zip(("C", "n", "m"), ends))
    return torch.stack(y), {**end, "conv": torch.stack(window, 1)} if window else end


def _start(first: Tensor, leaf: Tensor) -> Tensor:
    return torch.where(first.reshape(-1, *[1] * (leaf.dim() - 1)), torch.zeros_like(leaf), leaf)


def _cell(q, k, v, i, f, C, n, m):
    """q, k, v [B, d], i and f [B] before their nonlinearities, C [B, d, d], n [B, d], m [B]."""
    k = k / k.shape[1] ** 0.5
    log_f = -torch.log1p(torch.exp(-f))
    m_new = torch.maximum(log_f + m, i)
    keep, write = torch.exp(log_f + m - m_new)[:, None], torch.exp(i - m_new)[:, None]
    C = keep[:, :, None] * C + torch.einsum("bk,bv->bkv", write * k, v)
    n = keep * n + write * k
    below = torch.maximum((n * q).sum(1).abs(), torch.exp(-m_new))
    return torch.einsum("bkv,bk->bv", C, q) / below[:, None], [C, n, m_new]
