"""Normalisation of observations and values by running statistics, which are part of the policy's weights.

Both are frozen while a rollout is collected and learned from, so that the learner reproduces the actor's
inputs. Only the learner updates them, between rollouts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import torch
from gymnasium import spaces as gym_spaces
from torch import Tensor, nn

from recollect.base import devices, spaces, tree
from recollect.base.types import Tree
from recollect.errors import ConfigError

Gather = Callable[[Tensor], Sequence[Tensor]]
"""From the tensor of this learner to those of all learners that share a batch (``learning.ranks``)."""


def alone(tensor: Tensor) -> list[Tensor]:
    """The ``Gather`` of a single learner."""
    return [tensor]


class Moments(nn.Module):
    """Count, mean and variance of a stream, merged batch by batch (Chan et al. 1979) in float64."""

    count: Tensor
    mean: Tensor
    m2: Tensor

    def __init__(self, shape: tuple[int, ...]):
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        self.register_buffer("mean", torch.zeros(shape, dtype=torch.float64))
        self.register_buffer("m2", torch.zeros(shape, dtype=torch.float64))

    @torch.no_grad()
    def merge(self, x: Tensor, gather: Gather = alone) -> None:
        """Add the samples x [N, *shape] of all learners."""
        x = x.double()
        mean = x.mean(0) if x.shape[0] else torch.zeros_like(self.mean)
        m2 = (x - mean).square().sum(0)
        self._add(torch.full_like(self.count, x.shape[0]), mean, m2, gather)

    @torch.no_grad()
    def merge_where(self, x: Tensor, valid: Tensor, gather: Gather = alone) -> None:
        """``merge(x[valid], gather)``, given x [T, B, *shape] and valid [T, B], without reading ``valid``."""
        x = x.double().flatten(0, 1)  # [T, B, ...] -> [T * B, ...]
        invalid, count = ~valid.flatten(), valid.sum(dtype=torch.float64)
        mean = tree.zero_where(invalid, x).sum(0) / count.clamp(min=1)
        m2 = tree.zero_where(invalid, x - mean).square_().sum(0)
        self._add(count, mean, m2, gather)

    def _add(self, count: Tensor, mean: Tensor, m2: Tensor, gather: Gather) -> None:
        """Merge count, mean and squared deviations of each learner's samples; a count of 0 has no effect."""
        sizes = (1, mean.numel(), m2.numel())
        for found in gather(torch.cat([count.reshape(1), mean.flatten(), m2.flatten()])):
            number, means, squares = found.split(sizes)
            count, mean, m2 = number.squeeze(0), means.view_as(mean), squares.view_as(m2)
            total = self.count + count
            divisor = total.clamp(min=1)
            shift = mean - self.mean
            self.m2 += m2 + shift.square() * (self.count * count / divisor)
            self.mean += shift * (count / divisor)
            self.count.copy_(total)

    @property
    def variance(self) -> Tensor:
        """The variance of the whole stream; 1 before the first sample."""
        return torch.where(self.count > 0, self.m2 / self.count.clamp(min=1), torch.ones_like(self.m2))


class Scaling(Moments):
    """Moments, and the float32 offset and scale in use, fixed until the next ``publish``."""

    offset: Tensor
    scale: Tensor

    def __init__(self, shape: tuple[int, ...]):
        super().__init__(shape)
        self.register_buffer("offset", torch.zeros(shape))
        self.register_buffer("scale", torch.ones(shape))

    def publish(self) -> None:
        """Set offset and scale from the moments so far."""
        self.offset.copy_(self.mean)
        self.scale.copy_((self.variance + 1e-8).rsqrt())


def _invalidate(module: ObservationNorm, _: Any) -> None:
    module._has_seen = None


class ObservationNorm(nn.Module):
    """Normalises Box leaves that hold amounts to mean 0 and variance 1, clipped to +-``clip``.

    Before the first update, observations pass unchanged. All other leaves always do: images, grids of
    symbols, tokens, and the one-hots of the last action unless ``last_action`` is true.
    """

    def __init__(self, space: gym.Space, clip: float = 10.0, *, last_action: bool = False):
        super().__init__()
        self.clip = clip
        leaves = [(name, leaf) for name, leaf in spaces.walk(space) if _is_scaled(name, leaf, last_action)]
        self.scalings: Any = nn.ModuleDict({_key(name): Scaling(leaf.shape or ()) for name, leaf in leaves})
        self.is_one_path = False
        """Whether to run the same operations with and without statistics, for a compiler."""
        self._has_seen: bool | None = None  # cached: whether there are statistics; None: unknown
        self.register_load_state_dict_post_hook(_invalidate)

    def forward(self, obs: Tree) -> Tree:
        """Normalise obs [..., *shape], leaf by leaf."""
        scalings = list(self.scalings.values())
        if self.is_one_path or any(devices.synchronises(scaling.count) for scaling in scalings[:1]):
            return self._map(obs, "", True)
        return self._map(obs, "", False) if self.has_statistics else obs

    @property
    def has_statistics(self) -> bool:
        """Whether there was an update. A host read."""
        if self._has_seen is None:
            self._has_seen = any(bool(scaling.count > 0) for scaling in self.scalings.values())
        return self._has_seen

    @torch.no_grad()
    def update(self, obs: Tree, valid: Tensor, gather: Gather = alone) -> None:
        """Merge the valid steps of obs [T, B, ...] of all learners, and publish the result."""
        for name, leaf in tree.named_leaves(obs):
            if _key(name) in self.scalings:
                scaling: Scaling = self.scalings[_key(name)]
                if devices.synchronises(valid):
                    scaling.merge_where(leaf, valid, gather)
                else:
                    scaling.merge(leaf[valid], gather)
                scaling.publish()
        self._has_seen = None

    def _map(self, obs: Tree, name: str, one_path: bool) -> Tree:
        if isinstance(obs, dict):
            return {k: self._map(v, f"{name}.{k}" if name else str(k), one_path) for k, v in obs.items()}
        if isinstance(obs, tuple):
            parts = enumerate(obs)
            return tuple(self._map(v, f"{name}.{i}" if name else str(i), one_path) for i, v in parts)
        key = _key(name)
        if key not in self.scalings:
            return obs
        scaling: Scaling = self.scalings[key]
        scaled = (obs - scaling.offset) * scaling.scale
        if one_path:  # without statistics the scale is 1 and nothing is clipped
            limit = torch.where(scaling.count > 0, self.clip, torch.inf).to(scaled.dtype)
            return scaled.clamp(-limit, limit)
        return scaled.clamp_(-self.clip, self.clip)


class PopArt(nn.Module):
    """Value normalisation that preserves outputs (van Hasselt et al. 2016).

    The critic's last layer predicts in normalised units; ``denormalise`` converts them to real units. When
    the statistics change, the layer is rescaled so that predictions in real units stay the same. The first
    statistics are set *without* rescaling: preserving the outputs of an untrained head would start it far
    from its targets and stall learning.
    """

    mean: Tensor
    mean_square: Tensor
    std: Tensor
    weight: Tensor

    def __init__(self, decay: float = 0.99, min_std: float = 1e-4):
        super().__init__()
        if not 0 <= decay < 1:
            raise ConfigError(f"value_decay = {decay}: it must be in [0, 1)")
        self.decay = decay
        self.min_std = min_std
        # float64: mean_square - mean^2 cancels badly in float32. A scalar does not widen float32 tensors.
        for name, start in {"mean": 0.0, "mean_square": 1.0, "std": 1.0, "weight": 0.0}.items():
            self.register_buffer(name, torch.tensor(start, dtype=torch.float64))

    def denormalise(self, value: Tensor) -> Tensor:
        """From the critic's units to real units."""
        return torch.addcmul(self.mean, value, self.std)

    @torch.no_grad()
    def update(self, returns: Tensor, head: nn.Linear, valid: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Update the statistics with ``returns`` [N], preserving the outputs of ``head``.

        The mean and the mean square are exponential averages over updates with rate ``decay``, corrected for
        their start. ``valid``, shaped like ``returns``, selects the returns to use; with none, nothing
        changes.

        Returns:
            (scale, shift) that convert a value recorded before into the head's present prediction: (1, 0),
            except after the first update, which preserves nothing.
        """
        found, squares, is_any = _averages(returns.double(), valid)
        is_first = self.weight == 0
        weight = self.decay * self.weight + (1 - self.decay)
        rate = (1 - self.decay) / weight
        mean = torch.where(is_any, self.mean + rate * (found - self.mean), self.mean)
        moved = self.mean_square + rate * (squares - self.mean_square)
        mean_square = torch.where(is_any, moved, self.mean_square)
        std = (mean_square - mean.square()).clamp(min=0).sqrt().clamp(min=self.min_std)
        weight, std = torch.where(is_any, weight, self.weight), torch.where(is_any, std, self.std)
        old_mean, old_std = self.mean.clone(), self.std.clone()
        ratio = torch.where(is_first, torch.ones_like(std), old_std / std)
        offset = torch.where(is_first, torch.zeros_like(std), (old_mean - mean) / std)
        head.weight.mul_(ratio)
        head.bias.copy_(head.bias * ratio + offset)
        found = (mean, mean_square, std, weight)
        for buffer, value in zip((self.mean, self.mean_square, self.std, self.weight), found):
            buffer.copy_(value)
        # Recorded v = old_std * n + old_mean; the head now predicts std * (n * ratio + offset) + mean.
        scale = std * ratio / old_std
        return scale, mean + std * offset - scale * old_mean


def _averages(x: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """The means of x and of x^2 where ``valid``, or of all, and whether there are any; else undefined."""
    if valid is not None and devices.synchronises(x):
        x, count = x.masked_fill(~valid, 0), valid.sum()
        return x.sum() / count, x.square().sum() / count, count > 0
    x = x if valid is None else x[valid]
    is_any = torch.full((), x.numel() > 0, dtype=torch.bool, device=x.device)
    return x.mean(), x.square().mean(), is_any


def _is_scaled(name: str, space: gym.Space, last_action: bool) -> bool:
    unscaled = (spaces.is_image, spaces.is_symbols, spaces.is_tokens)
    if not isinstance(space, gym_spaces.Box) or any(kind(space) for kind in unscaled):
        return False
    # An action of a Box has amounts and no bounds here; any other has one-hots, which name things.
    return last_action or name != spaces.LAST_ACTION or not space.is_bounded()


def _key(name: str) -> str:
    """A submodule name without dots that never clashes with an attribute of a module, such as ``items``."""
    return f"obs/{name.replace('.', '/')}" if name else "obs"
