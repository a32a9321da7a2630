"""The slow truth about the linear recurrences, from their papers' equations; see ``cores``."""

from __future__ import annotations

import torch
from torch import Tensor

from recollect.cores import FFM, LRU, RTU, MinGRU, MinLSTM


def _linear(layer, x):
    return x @ layer.weight.T + layer.bias


def _readout(out, f, x):
    """g LN(F f + d) + (1 - g) (V x + e), g = sigmoid(G x + c)."""
    z = _linear(out.memory, f)
    z = z - z.mean(-1, keepdim=True)
    z = z / (z.square().mean(-1, keepdim=True) + 1e-5).sqrt() * out.norm.weight + out.norm.bias
    gate = torch.sigmoid(_linear(out.gate, x))
    return gate * z + (1 - gate) * _linear(out.around, x)


def _run(core, x, state, first, step):
    """``step(x, state) -> features, state`` over time; resets select zeros."""
    y = []
    for t in range(x.shape[0]):
        mask = first[t].view(-1, *(1,) * (state.dim() - 1))
        f, state = step(x[t], torch.where(mask, 0.0, state))
        y.append(_readout(core.readout, f, x[t]))
    return torch.stack(y), state


def _average(core, x, state, first, share):
    """h = (1 - s) h + s c of what a convolution makes of the last inputs, which are listed latest first."""
    average, y = core.average, []
    h, *rest = state
    recent = list(rest[0].unbind(1)) if rest else []
    for t in range(x.shape[0]):
        h = torch.where(first[t][:, None], average.initial_h, h)
        recent = [torch.where(first[t][:, None], 0.0, old) for old in recent]
        seen = x[t]
        if recent:
            window = [x[t], *recent]
            seen = sum(w * old for w, old in zip(average.convolution.weight, window, strict=True))
            recent = window[:-1]
        s = share(seen)
        h = (1 - s) * h + s * _linear(average.new, seen)
        y.append(_readout(average.readout, h, seen))
    return torch.stack(y), ((h, torch.stack(recent, 1)) if recent else (h,))


def mingru(core: MinGRU, x: Tensor, state, first: Tensor):
    return _average(core, x, state, first, lambda x: torch.sigmoid(_linear(core.gate, x)))


def minlstm(core: MinLSTM, x: Tensor, state, first: Tensor):
    def share(x):
        f, i = torch.sigmoid(_linear(core.keep, x)), torch.sigmoid(_linear(core.take, x))
        return i / (f + i)

    return _average(core, x, state, first, share)


def lru(core: LRU, x: Tensor, state, first: Tensor):
    factor = torch.exp(torch.complex(-core.nu.exp(), core.theta.exp()))
    B = core.gamma.exp()[:, None] * torch.complex(core.weight[::2], core.weight[1::2])

    def step(x, h):
        h = factor * torch.complex(h[..., 0], h[..., 1]) + x.to(B.dtype) @ B.T
        h = torch.stack((h.real, h.imag), -1)
        return h.flatten(1), h

    return _run(core, x, state, first, step)


def rtu(core: RTU, x: Tensor, state, first: Tensor):
    r, phi = torch.exp(-core.nu.exp()), core.theta.exp()
    gain = (1 - r**2).sqrt()

    def step(x, h):
        p, q = h[..., 0], h[..., 1]
        cos, sin = r * phi.cos(), r * phi.sin()
        h = torch.stack(
            (
                cos * p - sin * q + gain * (x @ core.weight[::2].T),
                sin * p + cos * q + gain * (x @ core.weight[1::2].T),
            ),
            -1,
        )
        return h.clamp(min=0).flatten(1), h

    return _run(core, x, state, first, step)


def ffm(core: FFM, x: Tensor, state, first: Tensor):
    m = core.config.trace
    alpha, omega = core.log_alpha.exp(), core.log_omega.exp()
    factor = torch.exp(torch.complex(-alpha[:, None].expand(-1, len(omega)), omega.expand(m, -1)))
    gain = (1 - (-2 * alpha).exp()).sqrt()

    def step(x, s):
        u = gain * _linear(core.new, x) * torch.sigmoid(_linear(core.gate, x))
        s = factor * torch.complex(s[..., 0], s[..., 1]) + u[:, :, None]
        s = torch.stack((s.real, s.imag), -1)
        return s.flatten(1), s

    return _run(core, x, state, first, step)


LINEAR = {MinGRU: mingru, MinLSTM: minlstm, LRU: lru, RTU: rtu, FFM: ffm}
