"""The slow truth about the external memory, from that about its controller."""

from __future__ import annotations

import torch

TINY = 1e-6


def _cosines(key, slots):
    """key [B, width], slots [B, n, width] -> [B, n]."""
    dots = (slots * key[:, None]).sum(2)
    return dots / ((slots**2).sum(2) + TINY).sqrt() / ((key**2).sum(1, keepdim=True) + TINY).sqrt()


def _softplus(x):
    return torch.logaddexp(x, torch.zeros_like(x))


def pmm(reference):
    """The function for an external memory, given ``reference``: those of all cores by their class."""

    def run(core, x, state, first):
        config = core.config
        R, width = config.read_heads, config.width
        c, controller = reference[type(core.controller)](core.controller, x, state["controller"], first)
        memory, y = state["memory"], []
        for t in range(x.shape[0]):
            memory = torch.where(first[t][:, None, None], 0.0, memory)
            orders = c[t] @ core.orders.weight.T + core.orders.bias
            keys = orders[:, : (R + 1) * width].reshape(-1, R + 1, width)
            strength = 1 + _softplus(orders[:, (R + 1) * width : (R + 1) * (width + 1)])
            erase, add = torch.sigmoid(orders[:, -2 * width : -width]), torch.tanh(orders[:, -width:])
            weights = [
                torch.softmax(strength[:, i, None] * _cosines(keys[:, i], memory + core.slot_keys), 1)
                for i in range(R + 1)
            ]
            reads = [(weights[i][:, :, None] * memory).sum(1) for i in range(R)]
            written = weights[R][:, :, None]
            memory = memory * (1 - written * erase[:, None]) + written * add[:, None]
            h = torch.cat((c[t], *reads), 1) @ core.out.weight.T + core.out.bias
            centred = h - h.mean(1, keepdim=True)
            spread = (centred.square().mean(1, keepdim=True) + core.norm.eps).sqrt()
            y.append(centred / spread * core.norm.weight + core.norm.bias)
        return torch.stack(y), {"controller": controller, "memory": memory}

    return run
