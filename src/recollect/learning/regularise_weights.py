"""Regularisers that keep weights near their initial values: weight clipping, and L2 towards the start.

Both help networks that stop learning late in a run, when weights have grown or gradients have become small:

* **Weight clipping** (Elsayed et al. 2024, *Weight Clipping for Deep Continual and Reinforcement
  Learning*): after every optimiser step each weight is clipped to +- kappa s, where s is the bound of its
  layer's initialisation.
* **L2 towards the start** (Kumar et al. 2023, *Maintaining Plasticity in Continual Learning via
  Regenerative Regularization*): ``loss + l2_init * sum (w - w0)^2``.

The paper's s is 1 / sqrt(fan-in), because it draws layers uniformly from +- that. Not all of our layers are
drawn so: action heads start a hundred times smaller, biases of gates larger. So s is

* for matrices, kernels and learned initial states: the maximum of 1 / sqrt(fan-in) and the largest initial
  weight;
* for vectors (biases, gains): the maximum of the largest s of the matrices in the same module and the largest
  initial entry; 1 for a vector of zeros in a module without matrices.

With kappa >= 1 no initial weight is clipped. The critic's last layer is excluded if values are normalised
(PopArt): its weights are then in units of the returns' spread, which changes.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from recollect.errors import ConfigError

START = "start"
"""The suffix of the names in ``Origin.tensors``: ``PARAMETER:start``."""


class Origin:
    """The policy's weights at the start of a training. Part of the learner's state, kept on resume."""

    def __init__(self, network: nn.Module, start: dict[str, Tensor] | None = None):
        """``start``: the weights by name; None: the present ones of ``network``."""
        self._now = anchored(network)
        self.start = {name: p.detach().clone() for name, p in self._now.items()} if start is None else start
        self._bounds = bounds(network, self.start)
        self._count = sum(p.numel() for p in self._now.values())

    @classmethod
    def from_tensors(cls, network: nn.Module, tensors: dict[str, Tensor]) -> Origin | None:
        """From the result of ``Origin.tensors``, possibly among other tensors; None if it is not there."""
        named = anchored(network)
        start = {n: tensors[f"{n}:{START}"] for n in named if f"{n}:{START}" in tensors}
        if not start:
            return None
        for name, parameter in named.items():
            saved = start.get(name)
            if saved is None or (saved.shape, saved.dtype) != (parameter.shape, parameter.dtype):
                raise ConfigError(
                    f"the saved initial weights do not fit this policy: {name} differs or is missing; was "
                    "it saved with another network?"
                )
            start[name] = saved.to(parameter.device, copy=True)
        return cls(network, start)

    def tensors(self) -> dict[str, Tensor]:
        """The weights by name, for ``from_tensors``."""
        return {f"{name}:{START}": value for name, value in self.start.items()}

    def squared_distance(self) -> Tensor:
        """sum (w - w0)^2 over all weights, differentiable."""
        return torch.stack([(p - self.start[name]).square().sum() for name, p in self._now.items()]).sum()

    @torch.no_grad()
    def clip_(self, kappa: float) -> Tensor:
        """Clip every weight to +- kappa times its bound; returns the share of clipped weights."""
        outside = []
        for name, parameter in self._now.items():
            limit = kappa * self._bounds[name]
            outside.append((parameter.abs() > limit).sum())
            parameter.clamp_(-limit, limit)
        return torch.stack(outside).sum() / self._count


def anchored(network: nn.Module) -> dict[str, nn.Parameter]:
    """The regularised weights by name; see the module's docstring."""
    has_moving_units = getattr(network, "value_norm", None) is not None
    named = {name: p for name, p in network.named_parameters() if p.requires_grad}
    return {n: p for n, p in named.items() if not (has_moving_units and n.startswith("critic."))}


def bounds(network: nn.Module, start: dict[str, Tensor]) -> dict[str, float]:
    """s of every parameter in ``start``; see the module's docstring."""
    own = {name: float(value.abs().max()) if value.numel() else 0.0 for name, value in start.items()}
    found = {}
    for prefix, module in network.named_modules():
        names = [name for name, _ in module.named_parameters(prefix, recurse=False) if name in start]
        matrices = [name for name in names if start[name].dim() >= 2]
        found |= {name: max(own[name], max(1, start[name][0].numel()) ** -0.5) for name in matrices}
        largest = max((found[name] for name in matrices), default=0.0)
        found |= {name: max(own[name], largest) or 1.0 for name in names if name not in matrices}
    return found
