"""Mamba from its equations, channel by channel as the paper writes them, one step after another."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def mamba(core, x: Tensor, state, first: Tensor):
    """x [T, B, D], state {"conv": [B, K-1, I], "ssm": [B, N, I]}, first [T, B] -> y, state."""
    rank, N, _ = core.split
    window, h = list(state["conv"].unbind(1)), state["ssm"]
    y = []
    for t in range(x.shape[0]):
        new = first[t][:, None]
        window = [torch.where(new, 0.0, old) for old in window]
        h = torch.where(new[:, :, None], 0.0, h)

        u, z = torch.tensor_split(x[t] @ core.in_proj.weight.T, 2, dim=1)
        window.append(u)
        u = sum((old * w for old, w in zip(window, core.conv_weight)), start=core.conv_bias)
        window = window[1:]
        u = u * torch.sigmoid(u)

        chosen = u @ core.x_proj.weight.T
        write, read = chosen[:, rank : rank + N], chosen[:, rank + N :]
        dt = torch.log1p(torch.exp(chosen[:, :rank] @ core.dt_proj.weight.T + core.dt_proj.bias))  # [B, I]
        decay = torch.exp(-torch.einsum("bi,ni->bni", dt, torch.exp(core.A_log)))
        h = decay * h + torch.einsum("bi,bn,bi->bni", dt, write, u)
        out = (torch.einsum("bn,bni->bi", read, h) + core.D * u) * z * torch.sigmoid(z)
        y.append(
            F.layer_norm(out @ core.out_proj.weight.T, (core.output_size,), core.norm.weight, core.norm.bias)
        )
    conv = torch.stack(window, 1) if window else state["conv"]
    return torch.stack(y), {"conv": conv, "ssm": h}
