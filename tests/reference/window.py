"""The slow truth about the attention core: one query after another over a list of keys and values."""

from __future__ import annotations

import torch
from torch.nn import functional as F


def _norm(layer, x):
    return F.layer_norm(x, x.shape[-1:], layer.weight, layer.bias)


def _dense(layer, x):
    out = x @ layer.weight.T
    return out if layer.bias is None else out + layer.bias


def _gate(gate, h, new):
    new = new.clamp(min=0)
    H = h.shape[-1]
    w_r, w_z, w_n = gate.from_new.weight.split(H)
    b_r, b_z, b_n = gate.from_new.bias.split(H)
    u_r, u_z = gate.from_h.weight.split(H)
    r = torch.sigmoid(new @ w_r.T + b_r + h @ u_r.T)
    z = torch.sigmoid(new @ w_z.T + b_z + h @ u_z.T)
    n = torch.tanh(new @ w_n.T + b_n + (r * h) @ gate.from_reset_h.weight.T)
    return (1 - z) * h + z * n


def _look(block, q, pasts, d):
    """One row: q [heads, d], pasts a list of (key, value), each [heads, d], the present one last."""
    scores = []
    for age, (key, _) in enumerate(reversed(pasts)):
        r = block.positions[:, -1 - age]
        scores.append((((q / d**0.5 + block.u) * key) + ((q / d**0.5 + block.v) * r)).sum(-1))
    weights = torch.softmax(torch.stack(scores), 0)  # [ages, heads]
    values = torch.stack([value for _, value in reversed(pasts)])
    return (weights.unsqueeze(2) * values).sum(0)


def _row_step(core, x, memory, count):
    """One row, one step: x [D], for each layer keys and values [heads, W - 1, 2d], count a number."""
    config = core.config
    H, heads, d = config.hidden, config.heads, config.hidden // config.heads
    join = (lambda gate, h, new: h + new) if config.gating == "residual" else _gate
    h, after = _dense(core.project, x), []
    for block, old in zip(core.blocks, memory):
        qkv = _dense(block.attention_in, _norm(block.attention_norm, h))
        q, new = qkv[:H].reshape(heads, d), qkv[H:].reshape(heads, 1, 2 * d)
        all_steps = torch.cat((old, new), 1)
        slots = range(config.window - 1 - min(count, config.window - 1), config.window)
        seen = _look(block, q, [(all_steps[:, i, :d], all_steps[:, i, d:]) for i in slots], d)
        h = join(block.join_attention, h, _dense(block.attention_out, seen.reshape(-1)))
        new = _dense(block.mlp_out, _dense(block.mlp_in, _norm(block.mlp_norm, h)).clamp(min=0))
        h = join(block.join_mlp, h, new)
        after.append(all_steps[:, 1:])
    return _norm(core.norm, h), after, min(count + 1, config.window - 1)


def window(core, x, state, first):
    T, B, _ = x.shape
    outputs, ends, counts = [], [], []
    for b in range(B):
        memory, count, out = [leaf[b] for leaf in state["layers"]], int(state["count"][b]), []
        for t in range(T):
            if first[t, b]:
                memory, count = [torch.zeros_like(leaf) for leaf in memory], 0
            y, memory, count = _row_step(core, x[t, b], memory, count)
            out.append(y)
        outputs.append(torch.stack(out))
        ends.append(memory)
        counts.append(count)
    layers = tuple(torch.stack(leaves) for leaves in zip(*ends))
    return torch.stack(outputs, 1), {"layers": layers, "count": torch.tensor(counts)}
