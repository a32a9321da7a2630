"""The slow truth about a stack of cores, from those about its parts."""

from __future__ import annotations

from torch.nn import functional as F


def stack(reference):
    """The function for a stack, given ``reference``: those of all cores by their class."""

    def run(core, x, state, first):
        h, ends = _linear(x, core.project), []
        for part, norm, out, before in zip(core.cores, core.norms, core.outs, state, strict=True):
            y, end = reference[type(part)](part, _normed(h, norm), before, first)
            h = _linear(y, out) + (h if core.config.residual else 0)
            ends.append(end)
        return _normed(h, core.norm), tuple(ends)

    return run


def _linear(x, module):
    weight = getattr(module, "weight", None)
    return x if weight is None else F.linear(x, weight, module.bias)


def _normed(x, module):
    if getattr(module, "weight", None) is None:
        return x
    centred = x - x.mean(-1, keepdim=True)
    spread = (centred.square().mean(-1, keepdim=True) + module.eps).sqrt()
    return centred / spread * module.weight + module.bias
