"""The action head: from features to a distribution over actions, for every supported action space.

=====================  =======================  ==================  ==============================
action space           distribution             stored action       the env gets (``to_env``)
=====================  =======================  ==================  ==============================
Discrete               Categorical              int64 [...], from 0 plus ``start``
MultiDiscrete          MultiCategorical         int64, from 0       plus ``start``
MultiBinary            Bernoulli                int8                the same
Box, squashed          TanhGaussian             float32, u          tanh(u) scaled to the bounds
Box, not squashed      Gaussian                 float32             clipped to the bounds
Tuple, Dict            Joint                    tuple, dict         part by part
=====================  =======================  ==================  ==============================

Stored actions have the shapes and dtypes of ``spaces.zeros(action_space, rows)``; ``log_prob`` takes stored
actions, and only the env gets the result of ``to_env``. Masks are described in ``policy/masks.py``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, cast

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from recollect.base.parts import part_of
from recollect.base.types import Tree
from recollect.config.fields import check_fields
from recollect.config.policy import HEADS, HeadConfig
from recollect.errors import ConfigError, SpaceError
from recollect.kernels import exact_linear
from recollect.policy.distributions import (
    Bernoulli,
    Categorical,
    Distribution,
    Gaussian,
    Joint,
    MultiCategorical,
    Shaped,
    TanhGaussian,
)
from recollect.policy.head_contract import Field, Head, Outputs
from recollect.policy.masks import check_mask, refuse_mask

MAX_SQUASHED_LOG_STD = 1.0
"""Up to here the quadrature of a squashed entropy is right to 1e-4."""


class ActionHead(Head):
    """The actor-critic head: one linear layer, whose outputs are split among the parts of an action space.

    With the policy's critic its outputs are the action distribution and the value.
    """

    record_spec: Mapping[str, Field] = {"log_prob": Field(unit=1.0), "value": Field()}
    needs_critic = True

    def __init__(self, space: gym.Space, features: int, config: HeadConfig | None = None):
        super().__init__()
        self.space, self.config = space, config or HeadConfig()
        self.root = _make_part(space, self.config, "the action space")
        self.linear = nn.Linear(features, self.root.size)
        nn.init.orthogonal_(self.linear.weight, self.config.gain)
        with torch.no_grad():
            self.linear.bias.copy_(self.root.initial_bias())

    def forward(self, y: Tensor, mask: Tree | None = None) -> Distribution:
        """Core outputs y [..., D] and masks [..., n] -> the distribution for every row of [...]."""
        return self.distribution(exact_linear.through(self.linear, y), mask)

    def distribution(self, outputs: Tensor, mask: Tree | None = None) -> Distribution:
        """Outputs of ``linear``, [..., outputs] -> the distribution for every row of [...]."""
        return self.root.distribution(outputs, mask)

    def choose(
        self,
        outputs: Outputs,
        generator: torch.Generator | None = None,
        deterministic: bool = False,
        exploration: Tensor | None = None,
    ) -> Tree:
        """The likeliest actions, or a sample. ``exploration`` must be None."""
        if exploration is not None:
            raise ConfigError(
                "exploration was given to an actor-critic head, which explores by sampling its own "
                "distribution: leave it None, and set the entropy bonus (`entropy`) instead"
            )
        dist = outputs[0]
        return dist.mode() if deterministic else dist.sample(generator)

    def record(self, outputs: Outputs, action: Tree) -> dict[str, Tensor]:
        """The log-prob of the actions, and the value in real units."""
        dist, value = outputs
        return {"log_prob": dist.log_prob(action), "value": value}

    def to_env(self, action: Tree) -> Tree:
        """The env's action for a stored action: shifted, scaled, clipped."""
        return self.root.to_env(action)


class _Part(nn.Module):
    """One leaf (or node) of the action space."""

    def __init__(self, name: str, size: int):
        """``size``: the number of its outputs in the linear layer."""
        super().__init__()
        self.name, self.size = name, size

    def initial_bias(self) -> Tensor:
        """[size]."""
        return torch.zeros(self.size)

    def distribution(self, outputs: Tensor, mask: Tree | None) -> Distribution:
        """Outputs [..., size] -> the distribution."""
        raise NotImplementedError

    def to_env(self, action: Tree) -> Tree:
        """The env's action for a stored action."""
        return action


class _Discrete(_Part):
    def __init__(self, space: spaces.Discrete, name: str):
        super().__init__(name, int(space.n))
        self.start = int(space.start)

    def distribution(self, outputs: Tensor, mask: Tree | None) -> Distribution:
        check_mask(mask, self.size, self.name)
        return Categorical(outputs, mask)

    def to_env(self, action: Tensor) -> Tensor:
        return action + self.start if self.start else action


class _MultiDiscrete(_Part):
    start: Tensor

    def __init__(self, space: spaces.MultiDiscrete, name: str):
        super().__init__(name, int(space.nvec.sum()))
        self.shape = tuple(space.nvec.shape)
        self.nvec = tuple(int(n) for n in space.nvec.reshape(-1))
        self.starts_at_zero = not space.start.any()
        self.register_buffer("start", torch.as_tensor(space.start, dtype=torch.int64), persistent=False)

    def distribution(self, outputs: Tensor, mask: Tree | None) -> Distribution:
        check_mask(mask, self.size, self.name)
        return _shaped(MultiCategorical(outputs, self.nvec, mask), self.shape)

    def to_env(self, action: Tensor) -> Tensor:
        return action if self.starts_at_zero else action + self.start


class _MultiBinary(_Part):
    def __init__(self, space: spaces.MultiBinary, name: str):
        super().__init__(name, math.prod(space.shape))
        self.shape = tuple(space.shape)

    def distribution(self, outputs: Tensor, mask: Tree | None) -> Distribution:
        refuse_mask(mask, self.name, "MultiBinary")
        return _shaped(Bernoulli(outputs), self.shape)


class _Box(_Part):
    low: Tensor
    high: Tensor
    middle: Tensor
    radius: Tensor

    def __init__(self, space: spaces.Box, config: HeadConfig, name: str):
        super().__init__(name, (1 + config.state_dependent_std) * math.prod(space.shape))
        if np.dtype(space.dtype).kind != "f":
            raise SpaceError(
                f"{name} is a Box of {space.dtype}, and Box actions are continuous: declare it as "
                "MultiDiscrete(high - low + 1, start=low), or as a float Box and round in the env"
            )
        self.shape, self.actions, self.config = tuple(space.shape), math.prod(space.shape), config
        low, high = np.asarray(space.low, np.float64), np.asarray(space.high, np.float64)
        self.squash = _decide_squash(config, low, high, name)
        if not config.state_dependent_std:
            self.log_std = nn.Parameter(torch.full((self.actions,), float(config.log_std_init)))
        with np.errstate(invalid="ignore"):  # inf - inf, of bounds that are not used
            middle, radius = 0.5 * low + 0.5 * high, 0.5 * high - 0.5 * low
            low, high, middle, radius = (part.astype(np.float32) for part in (low, high, middle, radius))
            # Rounding is monotone, so if the ends of the scaled range are inside the bounds, all of it is.
            spill = (middle - radius < low) | (middle + radius > high)
        for key, value in {"low": low, "high": high, "middle": middle, "radius": radius}.items():
            # Not persistent: they follow from the space, which a checkpoint contains.
            self.register_buffer(key, torch.as_tensor(value), persistent=False)
        self.clips = bool(spill.any()) if self.squash else bool(np.isfinite([low, high]).any())

    def initial_bias(self) -> Tensor:
        bias = torch.zeros(self.size)
        bias[self.actions :] = self.config.log_std_init
        return bias

    def distribution(self, outputs: Tensor, mask: Tree | None) -> Distribution:
        refuse_mask(mask, self.name, "Box")
        if self.config.state_dependent_std:
            mean, log_std = outputs[..., : self.actions], outputs[..., self.actions :]
        else:
            mean, log_std = outputs, self.log_std
        log_std = clamp_inward(log_std, self.config.log_std_min, self.config.log_std_max)
        return _shaped((TanhGaussian if self.squash else Gaussian)(mean, log_std), self.shape)

    def to_env(self, action: Tensor) -> Tensor:
        if self.squash:
            action = torch.addcmul(self.middle, self.radius, action.tanh())
        return torch.clamp(action, self.low, self.high) if self.clips else action


class _Composite(_Part):
    """A Dict or Tuple: the outputs are split among its parts, in order."""

    def __init__(self, space: spaces.Dict | spaces.Tuple, config: HeadConfig, name: str):
        named = isinstance(space, spaces.Dict)
        subs: dict[Any, gym.Space] = dict(space.spaces if named else enumerate(space.spaces))
        if not subs:
            raise SpaceError(f"{name} is an empty {type(space).__name__}: there is no action to choose")
        parts = [_make_part(sub, config, f"{name}.{label}") for label, sub in subs.items()]
        super().__init__(name, sum(part.size for part in parts))
        self.keys = tuple(subs) if named else None
        self.parts: Any = nn.ModuleList(parts)
        self.sizes = [part.size for part in parts]

    def initial_bias(self) -> Tensor:
        return torch.cat([part.initial_bias() for part in self.parts])

    def distribution(self, outputs: Tensor, mask: Tree | None) -> Distribution:
        given = zip(self.parts, outputs.split(self.sizes, -1), self._masks(mask))
        parts = [part.distribution(out, m) for part, out, m in given]
        return Joint(tuple(parts) if self.keys is None else dict(zip(self.keys, parts)))

    def _masks(self, mask: Tree | None) -> list[Tree | None]:
        if mask is None:
            return [None] * len(self.sizes)
        if self.keys is not None and isinstance(mask, dict):
            unknown = mask.keys() - set(self.keys)
            if not unknown:
                return [mask.get(key) for key in self.keys]
            raise SpaceError(
                f"the action mask has {sorted(unknown)}, which {self.name} has not; its parts: "
                f"{list(self.keys)}"
            )
        if self.keys is None and isinstance(mask, tuple) and len(mask) == len(self.sizes):
            return [None if isinstance(m, tuple) and not m else m for m in mask]
        kind = "tuple" if self.keys is None else "dict"
        raise SpaceError(
            f"the action mask of {self.name} is a {type(mask).__name__}: it needs a {kind} of its "
            f"{len(self.sizes)} parts' masks (None for a part without one)"
        )

    def to_env(self, action: Tree) -> Tree:
        if self.keys is None:
            return tuple(part.to_env(action[i]) for i, part in enumerate(self.parts))
        return {key: part.to_env(action[key]) for key, part in zip(self.keys, self.parts)}


def _make_part(space: gym.Space, config: HeadConfig, name: str) -> _Part:
    if isinstance(space, spaces.Discrete):
        return _Discrete(space, name)
    if isinstance(space, spaces.Box):
        return _Box(space, config, name)
    if isinstance(space, spaces.MultiDiscrete):
        return _MultiDiscrete(space, name)
    if isinstance(space, spaces.MultiBinary):
        return _MultiBinary(space, name)
    if isinstance(space, spaces.Dict | spaces.Tuple):
        return _Composite(space, config, name)
    raise SpaceError(
        f"{name} is a {type(space).__name__}, for which there is no head: wrap the env so that it "
        "becomes Discrete, MultiDiscrete, MultiBinary, Box, or a Dict or Tuple of these"
    )


def make_head(spec: Any, action_space: gym.Space, features: int) -> Head:
    """The head of a config, or that which a factory (action_space, features) makes."""
    part = part_of("head", spec)
    if part is not None:
        check_fields(spec)
        head = part.load()(action_space, features, spec)
    elif callable(spec) and not isinstance(spec, nn.Module):
        head = spec(action_space, features)
    else:
        raise ConfigError(
            f"head = {spec!r}: it needs a name ({', '.join(HEADS)}), a config such as HeadConfig(...), "
            "'module:Class', or a function (action_space, features) -> Head"
        )
    if not isinstance(head, Head):
        raise ConfigError(
            f"the head {part.name if part else getattr(spec, '__name__', spec)} made a "
            f"{type(head).__name__}: it must be a recollect.policy.head_contract.Head"
        )
    return head


def _decide_squash(config: HeadConfig, low: np.ndarray, high: np.ndarray, name: str) -> bool:
    bounded = bool(np.isfinite(low).all() and np.isfinite(high).all())
    if config.squash is True and not bounded:
        raise SpaceError(
            f"{name} is a Box with infinite bounds and head.squash is true: there is no range to scale "
            "the tanh to. Give the Box finite bounds, or leave squash at auto"
        )
    squash = bounded if config.squash == "auto" else bool(config.squash)
    if squash and config.log_std_max > MAX_SQUASHED_LOG_STD:
        raise ConfigError(
            f"head.log_std_max is {config.log_std_max} and {name} is squashed: beyond "
            f"{MAX_SQUASHED_LOG_STD} nearly all actions lie at the bounds and the entropy is no longer "
            "exact. Lower log_std_max, or set squash to false"
        )
    return squash


def _shaped(base: Distribution, shape: tuple[int, ...]) -> Distribution:
    return base if len(shape) == 1 else Shaped(base, shape)


# The clamp of log_std ---------------------------------------------------------------------------


class _ClampInward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, low: float, high: float) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.save_for_backward(x)
        ctx.bounds = (low, high)
        return x.clamp(low, high)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (x,) = ctx.saved_tensors
        low, high = ctx.bounds
        outward = ((x >= high) & (grad < 0)) | ((x <= low) & (grad > 0))
        return grad.masked_fill(outward, 0), None, None


def clamp_inward(x: Tensor, low: float, high: float) -> Tensor:
    """Clamp, with a gradient that can lead back inside.

    Beyond a bound, a plain clamp has no gradient: a parameter outside stays there. Here the gradient passes
    unless a descent step would move further out.
    """
    if torch.is_grad_enabled() and x.requires_grad:
        return cast(Tensor, _ClampInward.apply(x, low, high))
    return x.clamp(low, high)
