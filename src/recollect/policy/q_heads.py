"""Heads that estimate action values, for the algorithms on replay.

=============  ============================================  ==========================================
head           estimates                                     paper
=============  ============================================  ==========================================
QHead          Q(a), the expected return of every action     Wang et al., "Dueling network
                                                             architectures" (2016)
QuantileHead   Z_tau(a), quantiles of the return of every    Dabney et al., "Implicit quantile networks
               action, whose mean is Q(a)                    for distributional RL" (2018)
=============  ============================================  ==========================================

Discrete and MultiDiscrete actions, stored as ``policy.heads`` stores them. A MultiDiscrete action has D
components, and its value is the sum of theirs, so the best joint action has the best choice of every
component. With dueling streams V and A

    q_d(a) = V / D + A_d(a) - mean of A_d over the allowed choices of component d
    Q(a_1, ..., a_D) = q_1(a_1) + ... + q_D(a_D)

so that V enters Q once. Values are in real units and float32. The value of a masked choice is -inf; a mask
that allows nothing counts as one that allows everything, as in ``policy.distributions``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import cast

import gymnasium as gym
import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.nn import functional as F

from recollect.base.types import Tree
from recollect.config.q_heads import QHeadConfig, QuantileHeadConfig
from recollect.errors import SpaceError
from recollect.kernels import exact_linear
from recollect.policy import precision
from recollect.policy.head_contract import Field, Head, Outputs
from recollect.policy.layers import ACTIVATIONS, orthogonal
from recollect.policy.masks import check_mask
from recollect.policy.noisy import NoisyLinear

FORBIDDEN = float("-inf")


class QHead(Head):
    """Action values; see the module's docstring.

    Hidden layers begin with orthogonal weights that preserve the scale, the last ones with small weights
    (``QHeadConfig.gain``), so that all values begin near 0. Biases begin at 0.
    """

    record_spec: Mapping[str, Field] = {"q": Field()}
    epsilon: Tensor
    start: Tensor
    offset: Tensor
    padded: Tensor
    unpadded: Tensor
    exists: Tensor

    def __init__(self, space: gym.Space, features: int, config: QHeadConfig | None = None):
        """For a Discrete or MultiDiscrete ``space`` and a core with ``features`` outputs."""
        super().__init__()
        self.space, self.config = space, config or QHeadConfig()
        with torch.device("cpu"):  # host reads, also of a head that is built for its shapes alone
            self.nvec, start, self.shape = _choices(space, type(self).__name__)
            self.starts_at_zero = not start.any()
            sizes, largest = torch.tensor(self.nvec), max(self.nvec)
            self.size = int(sizes.sum())
            self.is_padded = len(self.nvec) * largest != self.size
            offset = sizes.cumsum(0) - sizes
            exists = torch.arange(largest) < sizes.unsqueeze(1)  # [D, largest]
            padded = torch.where(exists, offset.unsqueeze(1) + torch.arange(largest), self.size)
            unpadded = exists.flatten().nonzero().squeeze(1)
        constants = {"start": start, "offset": offset, "exists": exists, "padded": padded.flatten()}
        for name, value in {**constants, "unpadded": unpadded}.items():
            # Not persistent: they follow from the space, which a checkpoint contains.
            self.register_buffer(name, value, persistent=False)
        self.register_buffer("epsilon", torch.ones((), dtype=torch.float32))
        """The share of random actions; the learner sets it, and it travels with the weights."""
        self.advantage = Stream(features, self.size, self.config)
        self.value = Stream(features, 1, self.config) if self.config.dueling else None

    # Values ----------------------------------------------------------------------------------------

    def forward(self, y: Tensor, mask: Tree | None = None) -> tuple[Tensor]:
        """Core outputs y [..., features], masks [..., sum(nvec)] -> (q [..., sum(nvec)],)."""
        with precision.exact(y):
            return (self._values(precision.widen(y), self._mask(mask)),)

    def _mask(self, mask: Tree | None) -> Tensor | None:
        check_mask(mask, self.size, "the action space")
        return cast(Tensor | None, mask)

    def _values(self, y: Tensor, mask: Tensor | None) -> Tensor:
        """Inputs of the streams y [..., features] -> q [..., sum(nvec)]."""
        q, allowed = self._by_component(self.advantage(y), 0.0), self._allowed(mask)
        if self.value is not None:
            if allowed is None:
                mean = q.mean(-1, keepdim=True)
            else:
                total = q.masked_fill(~allowed, 0).sum(-1, keepdim=True)
                mean = total / allowed.sum(-1, keepdim=True)
            # V [..., 1] / D as [..., 1, 1], beside q [..., D, largest]
            q = q - mean + (self.value(y) / len(self.nvec)).unsqueeze(-1)
        if allowed is not None:
            q = q.masked_fill(~allowed, FORBIDDEN)
        q = q.flatten(-2)  # [..., D, largest] -> [..., D * largest]
        return q.index_select(-1, self.unpadded) if self.is_padded else q

    def _by_component(self, x: Tensor, fill: float) -> Tensor:
        """x [..., sum(nvec)] -> [..., D, largest], with ``fill`` where a component has fewer choices."""
        if self.is_padded:
            x = F.pad(x, (0, 1), value=fill).index_select(-1, self.padded)
        return x.unflatten(-1, self.exists.shape)

    def _allowed(self, mask: Tensor | None) -> Tensor | None:
        """Which choices exist and are allowed [..., D, largest]; None: all."""
        if mask is None:
            return self.exists if self.is_padded else None
        allowed = self._by_component(mask.bool(), False)
        return (allowed | ~allowed.any(-1, keepdim=True)) & self.exists

    # Actions ---------------------------------------------------------------------------------------

    def choose(
        self,
        outputs: Outputs,
        generator: torch.Generator | None = None,
        deterministic: bool = False,
        exploration: Tensor | None = None,
    ) -> Tensor:
        """The best actions. With ``exploration`` [B], a row takes a random allowed action with the
        probability ``epsilon * exploration``; all its components are then random."""
        (q,) = outputs
        best = self.greedy(q)
        if deterministic or exploration is None:
            return best
        drawn = torch.empty(q.shape[:-1], device=q.device).uniform_(generator=generator)
        explores = drawn < self.epsilon * exploration
        forbidden = self._by_component(q, FORBIDDEN) == FORBIDDEN
        order = torch.empty(forbidden.shape, device=q.device).uniform_(generator=generator)
        other = self._action(order.masked_fill(forbidden, -1).argmax(-1))
        return torch.where(explores.reshape(explores.shape + (1,) * len(self.shape)), other, best)

    def greedy(self, q: Tensor) -> Tensor:
        """The best actions, as stored, for q [..., sum(nvec)]."""
        return self._action(self._by_component(q, FORBIDDEN).argmax(-1))

    def _action(self, choices: Tensor) -> Tensor:
        """Choices [..., D] as the action is stored, [..., *shape]."""
        return choices.reshape(choices.shape[:-1] + self.shape)

    def best(self, q: Tensor) -> Tensor:
        """max_a Q(a) [...] for q [..., sum(nvec)]."""
        return self._by_component(q, FORBIDDEN).amax(-1).sum(-1)

    def of(self, q: Tensor, action: Tree) -> Tensor:
        """The values of stored actions [..., shape] for q [..., sum(nvec)], or quantiles of them for
        q [..., N, sum(nvec)]."""
        lead = action.shape[: action.dim() - len(self.shape)]
        more = (1,) * (q.dim() - 1 - len(lead))
        index = action.reshape(*lead, *more, len(self.nvec)) + self.offset
        return q.gather(-1, index.expand(*q.shape[:-1], -1)).sum(-1)

    def record(self, outputs: Outputs, action: Tree) -> dict[str, Tensor]:
        """The values of the actions."""
        return {"q": self.of(outputs[0], action)}

    def to_env(self, action: Tree) -> Tree:
        """The env's action: counted from the ``start`` of its space."""
        return action if self.starts_at_zero else action + self.start

    # Noise -----------------------------------------------------------------------------------------

    def draw_noise(self, generator: torch.Generator | None = None) -> None:
        """Draw the noise of all noisy layers, in their order; without noisy layers nothing happens."""
        for module in self.modules():
            if isinstance(module, NoisyLinear):
                module.draw_noise(generator)


class QuantileHead(QHead):
    """Quantiles of the return; see the module's docstring.

    With y the output of the core, and f the streams of the action values:

        psi = activation(W y + b)                             ``base`` units; y itself without ``base``
        phi_j(tau) = relu(sum_i cos(pi i tau) w_ij + b_j),    i = 0 .. embedding - 1
        Z_tau(a) = f(psi * phi(tau))_a
        Q(a) = mean of Z_tau(a) over the fractions tau = (i + 0.5) / quantiles

    The paper draws the fractions of Q(a) at random. Fixed ones let the learner reproduce recorded values. It
    also has its hidden layer in f, after the product, where it is computed for every fraction
    (``base=0, hidden=(128,)``).
    """

    def __init__(self, space: gym.Space, features: int, config: QuantileHeadConfig | None = None):
        """For a Discrete or MultiDiscrete ``space`` and a core with ``features`` outputs."""
        config = config or QuantileHeadConfig()
        width = config.base or features
        super().__init__(space, width, config)
        self.quantile_count, self.cosines = config.quantiles, config.embedding
        self.activation, gain = ACTIVATIONS[config.activation]
        self.base = linear(features, width, config) if config.base else None
        if self.base is not None:
            orthogonal(self.base, gain)
        self.embed = nn.Linear(config.embedding, width)
        orthogonal(self.embed, ACTIVATIONS["relu"][1])

    def forward(self, y: Tensor, mask: Tree | None = None) -> tuple[Tensor]:
        """Core outputs y [..., features], masks [..., sum(nvec)] -> (q [..., sum(nvec)],)."""
        place = torch.arange(self.quantile_count, dtype=self.embed.weight.dtype, device=y.device)
        return (self.quantiles(y, (place + 0.5) / self.quantile_count, mask).mean(-2),)

    def quantiles(self, y: Tensor, fractions: Tensor, mask: Tree | None = None) -> Tensor:
        """Quantiles of the return of every action.

        Args:
            y: core outputs [..., features].
            fractions: [..., N] in (0, 1), or [N] for all rows.
            mask: [..., sum(nvec)].

        Returns:
            [..., N, sum(nvec)]; -inf for masked choices.
        """
        allowed = self._mask(mask)
        with precision.exact(y):
            i = torch.arange(self.cosines, device=y.device)
            cosines = torch.cos(math.pi * fractions.unsqueeze(-1) * i)  # [..., N, embedding]
            phi = exact_linear.through(self.embed, cosines).relu()
            psi = precision.widen(y)
            if self.base is not None:
                psi = self.activation(exact_linear.through(self.base, psi))
            x = psi.unsqueeze(-2) * phi
            return self._values(x, None if allowed is None else allowed.unsqueeze(-2))


class Stream(nn.Module):
    """Layers from the core's output to values, [..., inputs] -> [..., outputs]; the last one is linear."""

    def __init__(self, inputs: int, outputs: int, config: QHeadConfig):
        super().__init__()
        self.activation, gain = ACTIVATIONS[config.activation]
        sizes = list(pairwise((inputs, *config.hidden, outputs)))
        self.layers = nn.ModuleList(linear(n, m, config) for n, m in sizes)
        gains = [gain] * len(config.hidden) + [config.gain]
        for layer, one in zip(self.layers, gains, strict=True):
            orthogonal(cast(nn.Linear, layer), one)

    def forward(self, x: Tensor) -> Tensor:
        """X [..., inputs] -> [..., outputs]."""
        *hidden, last = self.layers
        for layer in hidden:
            x = self.activation(exact_linear.through(layer, x))
        return exact_linear.through(last, x)


def linear(inputs: int, outputs: int, config: QHeadConfig) -> nn.Linear:
    """A layer, with noise if the head is noisy."""
    if config.noisy:
        return NoisyLinear(inputs, outputs, config.noise_scale)
    return nn.Linear(inputs, outputs)


def _choices(space: gym.Space, head: str) -> tuple[tuple[int, ...], Tensor, tuple[int, ...]]:
    """The sizes of the components, their starts, and the shape of an action."""
    if isinstance(space, spaces.Discrete):
        return (int(space.n),), torch.tensor(int(space.start)), ()
    if isinstance(space, spaces.MultiDiscrete):
        start = torch.as_tensor(space.start, dtype=torch.int64)
        return tuple(int(n) for n in space.nvec.reshape(-1)), start, tuple(space.nvec.shape)
    raise SpaceError(
        f"{head} estimates the value of every action, and the action space {space} is no Discrete or "
        "MultiDiscrete: use algo='ppo' or 'impala', which support it, or make the actions discrete in a "
        "wrapper of the env"
    )
