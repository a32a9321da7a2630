"""Exact, small distributions over actions.

``torch.distributions`` validates and broadcasts on every call, which costs more than the arithmetic of an
acting step. These agree with it (tests/policy/test_distributions.py) and add masks, the entropy of a squashed
Gaussian, and log-probs that depend on the stored action alone.

Parameters may have any leading dimensions ``[...]``. Computation is in float32, or in float64 for float64
parameters; half precision is widened first.

``log_prob`` depends on the action as it is stored, so the same parameters give the same bits again. Samples
carry no gradient: the score function needs none, and a reparameterised sample inside ``log_prob`` would
cancel it.
"""

from __future__ import annotations

import math
from functools import lru_cache, reduce
from typing import Protocol

import numpy as np
import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from recollect.base.types import Tree

FORBIDDEN = -1e30
"""The logit of a masked entry. Its probability is exactly 0; unlike with -inf, 0 * log 0 is 0, and the ratio
of a forbidden action to itself is 1, not NaN."""

HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)
LOG_2 = math.log(2.0)


class Distribution(Protocol):
    """A distribution over actions (trees) for every row of ``[...]``."""

    def sample(self, generator: Generator | None = None) -> Tree:
        """Draw an action for every row."""
        ...

    def mode(self) -> Tree:
        """The deterministic action, for evaluation."""
        ...

    def log_prob(self, action: Tree) -> Tensor:
        """[...] the log-probability (density) of a stored action."""
        ...

    def entropy(self) -> Tensor:
        """[...] exact or by quadrature; never by sampling."""
        ...


class Categorical:
    """One of n. logits [..., n] and, for masked actions, mask [..., n] (true = allowed).

    Actions are int64 [...]. A mask that allows nothing counts as one that allows everything: such rows are
    dead agents and padding, which no loss uses but which must stay finite.
    """

    __slots__ = ("log_probs",)

    def __init__(self, logits: Tensor, mask: Tensor | None = None):
        logits = _widen(logits)
        if mask is not None:
            allowed = mask.bool()
            forbidden = allowed < allowed.any(-1, keepdim=True)
            logits = logits.masked_fill(forbidden, FORBIDDEN)
        self.log_probs = logits.log_softmax(-1)

    def sample(self, generator: Generator | None = None) -> Tensor:
        """[...] by an exponential race: the argmax of p / E with E ~ Exp(1), in logs."""
        noise = torch.empty_like(self.log_probs, requires_grad=False).exponential_(generator=generator)
        return (self.log_probs - noise.log_()).argmax(-1)

    def mode(self) -> Tensor:
        """[...] the likeliest entry."""
        return self.log_probs.argmax(-1)

    def log_prob(self, action: Tensor) -> Tensor:
        """[...] of action [...]. A forbidden action has about -1e30, which is finite on purpose."""
        return self.log_probs.gather(-1, action.long().unsqueeze(-1)).squeeze(-1)

    def entropy(self) -> Tensor:
        """[...] in nats; forbidden entries add 0."""
        return -(self.log_probs.exp() * self.log_probs).sum(-1)


class MultiCategorical:
    """k independent choices, one of nvec[i] each. logits and mask [..., sum(nvec)], concatenated.

    Actions are int64 [..., k]. Choices of unequal size are padded with forbidden entries, so the number of
    torch calls does not grow with k.
    """

    __slots__ = ("parts",)

    def __init__(self, logits: Tensor, nvec: tuple[int, ...], mask: Tensor | None = None):
        choices, largest = len(nvec), max(nvec)
        logits = _widen(logits)
        if choices * largest != sum(nvec):
            index = _padding_index(nvec, logits.device)
            logits = F.pad(logits, (0, 1), value=FORBIDDEN).index_select(-1, index)
            if mask is not None:
                mask = F.pad(mask.bool(), (0, 1), value=False).index_select(-1, index)
        # [..., choices * largest] -> [..., choices, largest]
        logits = logits.reshape((*logits.shape[:-1], choices, largest))
        if mask is not None:
            mask = mask.reshape((*mask.shape[:-1], choices, largest))
        self.parts = Categorical(logits, mask)

    def sample(self, generator: Generator | None = None) -> Tensor:
        """[..., k]."""
        return self.parts.sample(generator)

    def mode(self) -> Tensor:
        """[..., k] the likeliest of each."""
        return self.parts.mode()

    def log_prob(self, action: Tensor) -> Tensor:
        """[...] the sum over the choices of action [..., k]."""
        return self.parts.log_prob(action).sum(-1)

    def entropy(self) -> Tensor:
        """[...] the sum over the choices."""
        return self.parts.entropy().sum(-1)


class Bernoulli:
    """k independent yes-or-no choices. logits [..., k]; actions are int8 [..., k], 0 or 1."""

    __slots__ = ("logits",)

    def __init__(self, logits: Tensor):
        self.logits = _widen(logits)

    def sample(self, generator: Generator | None = None) -> Tensor:
        """[..., k]."""
        noise = torch.empty_like(self.logits, requires_grad=False).uniform_(generator=generator)
        return (noise < self.logits.sigmoid()).to(torch.int8)

    def mode(self) -> Tensor:
        """[..., k] 1 where it is likelier than 0."""
        return (self.logits > 0).to(torch.int8)

    def log_prob(self, action: Tensor) -> Tensor:
        """[...] the sum of log sigmoid(+logit or -logit), finite for every finite logit."""
        sign = action.to(self.logits.dtype).mul_(2).sub_(1)
        return F.logsigmoid(sign * self.logits).sum(-1)

    def entropy(self) -> Tensor:
        """[...] H = softplus(l) - l sigmoid(l), summed; written with log sigmoid for large |l|."""
        likelier = self.logits.abs()
        per_choice = likelier * torch.sigmoid(-likelier) - F.logsigmoid(likelier)
        return per_choice.sum(-1)


class Gaussian:
    """Independent normals. mean [..., k]; log_std [..., k], or [k] for all rows."""

    __slots__ = ("log_std", "mean", "std")

    def __init__(self, mean: Tensor, log_std: Tensor):
        self.mean = _widen(mean)
        self.log_std = _widen(log_std)
        self.std = self.log_std.exp()

    def sample(self, generator: Generator | None = None) -> Tensor:
        """[..., k]."""
        noise = torch.empty_like(self.mean, requires_grad=False).normal_(generator=generator)
        return torch.addcmul(self.mean.detach(), self.std.detach(), noise)

    def mode(self) -> Tensor:
        """[..., k] the mean."""
        return self.mean.detach()

    def log_prob(self, action: Tensor) -> Tensor:
        """[...] of action [..., k]."""
        z = (action - self.mean) / self.std
        energy = torch.addcmul(self.log_std, z, z, value=0.5)
        return -int(self.mean.shape[-1]) * HALF_LOG_2PI - energy.sum(-1)  # int: a traced shape is a tensor

    def entropy(self) -> Tensor:
        """[...]: sum of log_std + log(2 pi e) / 2."""
        per_row = self.log_std.sum(-1) + self.mean.shape[-1] * (HALF_LOG_2PI + 0.5)
        return per_row.expand(self.mean.shape[:-1])


class TanhGaussian(Gaussian):
    """tanh of a Gaussian: the action is stored as u, before the tanh; densities are those of tanh(u).

    With a = tanh(u) in [-1, 1], log p(a) = log N(u) - log(1 - tanh(u)^2), and
    log(1 - tanh(u)^2) = 2 (ln 2 - u - softplus(-2u)) = 2 (ln 2 - log(e^u + e^-u)), which is finite and exact
    where 1 - tanh(u)^2 rounds to zero. So u is stored, not a.

    H[a] = H[u] + E[log(1 - tanh(u)^2)], with the expectation by quadrature: deterministic, differentiable in
    both parameters, and with errors below 1e-4 for log_std <= 1. Nodes are symmetric about the mean m, and
    two of them take one evaluation: 2 cosh(m + d) * 2 cosh(m - d) = 2 cosh(2m) + 2 cosh(2d). ``mode`` is
    the mean of u, whose tanh is the median action.
    """

    __slots__ = ()

    def log_prob(self, action: Tensor) -> Tensor:
        """[...] of u [..., k], as a density over [-1, 1]^k."""
        z = (action - self.mean) / self.std
        energy = torch.addcmul(self.log_std, z, z, value=0.5)
        energy = torch.sub(energy, torch.logaddexp(action, -action), alpha=2.0)
        return -int(self.mean.shape[-1]) * (HALF_LOG_2PI + 2.0 * LOG_2) - energy.sum(-1)

    def entropy(self) -> Tensor:
        """[...] at most k ln 2, that of the uniform action."""
        nodes, weights = _normal_quadrature(self.mean.dtype, self.mean.device)
        mean, deviation = 2.0 * self.mean, 2.0 * self.std.unsqueeze(-1) * nodes
        of_mean, of_deviation = torch.logaddexp(mean, -mean), torch.logaddexp(deviation, -deviation)
        # log(e^a + e^b) = a - log sigmoid(a - b); [..., k] and [..., k, nodes], or [k, nodes], of the std.
        # A sum, not a matmul, which autocast would round to half precision.
        gap = F.logsigmoid(of_mean.unsqueeze(-1) - of_deviation)
        expected = 0.5 * of_mean - (gap * weights).sum(-1)
        per_dimension = torch.sub(self.log_std, expected, alpha=2.0)
        return per_dimension.sum(-1) + self.mean.shape[-1] * (HALF_LOG_2PI + 0.5 + 2.0 * LOG_2)


class Shaped:
    """A distribution over flat actions [..., k], reshaped to actions [..., *shape] with k elements."""

    __slots__ = ("base", "shape", "size")

    def __init__(self, base: Distribution, shape: tuple[int, ...]):
        self.base = base
        self.shape = shape
        self.size = math.prod(shape)

    def _out(self, flat: Tensor) -> Tensor:
        return flat.reshape(flat.shape[:-1] + self.shape)

    def sample(self, generator: Generator | None = None) -> Tensor:
        """[..., *shape]."""
        return self._out(self.base.sample(generator))

    def mode(self) -> Tensor:
        """[..., *shape]."""
        return self._out(self.base.mode())

    def log_prob(self, action: Tensor) -> Tensor:
        """[...] of action [..., *shape]."""
        lead = action.shape[: action.dim() - len(self.shape)]
        return self.base.log_prob(action.reshape(*lead, self.size))

    def entropy(self) -> Tensor:
        """[...]."""
        return self.base.entropy()


class Joint:
    """Independent parts, in a tuple or a dict like the actions: log-probs and entropies add."""

    __slots__ = ("keys", "parts")

    def __init__(self, parts: dict[str, Distribution] | tuple[Distribution, ...]):
        self.keys = tuple(parts) if isinstance(parts, dict) else None
        self.parts = tuple(parts.values()) if isinstance(parts, dict) else parts

    def _out(self, values: list[Tree]) -> Tree:
        return tuple(values) if self.keys is None else dict(zip(self.keys, values))

    def sample(self, generator: Generator | None = None) -> Tree:
        """Draw the parts in order."""
        return self._out([part.sample(generator) for part in self.parts])

    def mode(self) -> Tree:
        """The modes of the parts."""
        return self._out([part.mode() for part in self.parts])

    def log_prob(self, action: Tree) -> Tensor:
        """[...] the sum over the parts."""
        keys = range(len(self.parts)) if self.keys is None else self.keys
        return reduce(torch.add, [part.log_prob(action[key]) for part, key in zip(self.parts, keys)])

    def entropy(self) -> Tensor:
        """[...] the sum over the parts."""
        return reduce(torch.add, [part.entropy() for part in self.parts])


def _widen(x: Tensor) -> Tensor:
    """Half precision as float32; float64, for tests and references, is kept."""
    return x if x.dtype is torch.float32 or x.dtype is torch.float64 else x.float()


# Constants are created once, outside inference mode: an inference tensor cannot be saved for a backward pass.


@lru_cache(maxsize=64)
@torch.inference_mode(False)
def _padding_index(nvec: tuple[int, ...], device: torch.device) -> Tensor:
    """[k * max(nvec)] the index of each padded entry in the flat logits; padding is one past their end."""
    index = np.full((len(nvec), max(nvec)), sum(nvec))
    index[np.arange(max(nvec)) < np.array(nvec)[:, None]] = np.arange(sum(nvec))
    return torch.from_numpy(index.reshape(-1)).to(device)


@lru_cache(maxsize=16)
@torch.inference_mode(False)
def _normal_quadrature(dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Nodes above 0 and weights [16] of E[f(z)], z ~ N(0, 1): 32 equal steps over +-5.25 standard deviations.

    For smooth f the error of equal steps falls like exp(-2 pi d / h), with d the distance of f's
    nearest singularity from the real axis: here pi / (2 std). At log_std = 1 that is 2e-5, where
    Gauss-Hermite with as many nodes is off by 1.5e-3.
    """
    nodes = np.linspace(-5.25, 5.25, 32)
    weights = np.exp(-0.5 * nodes**2)
    weights /= weights.sum()
    nodes, weights = torch.from_numpy(np.stack([nodes, weights])[:, nodes > 0]).to(device, dtype)
    return nodes, weights
