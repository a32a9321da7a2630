"""Prediction of the next observation: an auxiliary loss for the memory.

::

    p_t = predictor(y_t, a_t)        y_t: the input of the heads, a_t: the stored action
    L   = E[error(p_t, o_(t+1))]     added to the loss with the weight ``next_obs_coef``

Its gradient reaches core and encoder through y_t, and trains them to remember what future observations
depend on, also where rewards are sparse. The predictor (one hidden layer) belongs to the learner: it is
trained, clipped and checkpointed with the policy, and acting does not need it.

The target is o_(t+1) after the observation normaliser, leaf by leaf:

============================  =====================================================================
leaf                          error, averaged over the items in brackets
============================  =====================================================================
Box                           squared, of the normalised numbers within +-10 [its numbers]
Box that is an image          squared, of the image averaged down to 8 x 8 at most [its numbers]
Discrete, MultiDiscrete       cross-entropy in nats [its choices]
MultiBinary                   binary cross-entropy [its bits]
set of tokens                 binary cross-entropy of occupied cells of the 11 x 11 [cells], and of
                              present features [features]; squared, of the mean value of present features
                              [features]; the mean of the three
============================  =====================================================================

and over all leaves except an action mask. The error of an id out of range is 0.

The expectation is over valid steps t that do not end their episode: after an end, o_(t+1) is the first
observation of the next episode, which cannot be predicted. o_T of a rollout is a target, too. Targets are
computed once per rollout, as numbers [T, B, K], and split into sequences along with the rollout.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces as gym_spaces
from torch import Tensor, nn
from torch.nn import functional as F

from recollect.base import spaces, tree
from recollect.base.types import Tree
from recollect.experience.chunks import Chunks
from recollect.experience.rollout import Rollout
from recollect.policy.layers import mlp, orthogonal
from recollect.policy.policy import Policy
from recollect.policy.tokens import SIDE, TokenSpace

TARGET = "next_obs"
"""The name of the targets in ``batch.data``."""
KNOWN = "next_obs_known"
"""The name of the mask of steps with a target."""
LIMIT = 10.0
"""Numbers are clipped to +- this, as in the observation normaliser."""
POOLED = 8
"""The largest side of an image's target."""
HIDDEN = 128
"""The width of the predictor's hidden layer."""


class NextObs(nn.Module):
    """The predictor; see the module's docstring."""

    def __init__(self, policy: Policy, seed: int):
        """For the spaces and the core of ``policy``; ``seed``: of its initial weights."""
        super().__init__()
        self.leaves = {
            name: _leaf(space)
            for name, space in spaces.walk(policy.actor_space)
            if name.split(".")[0] != spaces.ACTION_MASK
        }
        self.actions = {name: _leaf(space, counts=True) for name, space in spaces.walk(policy.action_space)}
        inputs = policy.core.output_size + sum(leaf.size for leaf in self.actions.values())
        self.sizes = [leaf.size for leaf in self.leaves.values()]
        with torch.random.fork_rng(devices=[]):  # leaves the global random stream unchanged
            torch.default_generator.manual_seed(seed)
            self.hidden = mlp(inputs, (HIDDEN,), "silu")
            self.last = nn.Linear(HIDDEN, sum(self.sizes))
            orthogonal(self.last, 0.01)
        self.to(policy.device, policy.dtype)

    @torch.no_grad()
    def targets(self, policy: Policy, rollout: Rollout) -> dict[str, Tensor]:
        """Targets [T, B, K], 0 at steps without one, and the mask [T, B] of steps with one."""
        T, B = rollout.steps, rollout.rows
        known = rollout.valid & ~(rollout.terminated | rollout.truncated) & ~rollout.first[1:]
        known[:-1] &= rollout.valid[1:]
        obs = tree.map(lambda leaf: leaf[1 : T + 1].flatten(0, 1), rollout.obs)  # [T, B, ..] -> [T * B, ..]
        seen = dict(tree.named_leaves(obs if policy.obs_norm is None else policy.obs_norm(obs)))
        columns = [leaf.columns(seen[name]) for name, leaf in self.leaves.items()]
        target = torch.cat(columns, 1).view(T, B, -1)  # [T * B, K] -> [T, B, K]
        return {TARGET: target.masked_fill(~known.unsqueeze(2), 0), KNOWN: known}

    def forward(self, y: Tensor, action: Tree) -> Tensor:
        """y [N, D] and stored actions [N, ...] -> predictions [N, K]."""
        chosen = dict(tree.named_leaves(action))
        columns = [leaf.columns(chosen[name]).to(y.dtype) for name, leaf in self.actions.items()]
        return self.last(self.hidden(torch.cat([y, *columns], 1)))

    def loss(self, y: Tensor, batch: Chunks, count: Tensor) -> Tensor:
        """The error of a batch, y [L, N, D], as a sum over steps divided by ``count``."""

        def rows(leaf: Tensor) -> Tensor:
            return leaf.flatten(0, 1)  # [L, N, ...] -> [L * N, ...]

        predicted = self(rows(y), tree.map(rows, batch.action))
        targets = rows(batch.data[TARGET]).to(predicted.dtype)
        parts = zip(self.leaves.values(), predicted.split(self.sizes, 1), targets.split(self.sizes, 1))
        error = torch.stack([leaf.error(p, target) for leaf, p, target in parts]).mean(0)
        return torch.dot(error, rows(batch.data[KNOWN]).to(error.dtype) / count)


# Leaves --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Leaf:
    """How one leaf of a space becomes numbers, and the error of their prediction."""

    size: int
    columns: Callable[[Tensor], Tensor]
    """[N, *shape] -> [N, size], floating."""
    error: Callable[[Tensor, Tensor], Tensor]
    """Predictions and targets [N, size] -> [N]."""


def _leaf(space: gym.Space, *, counts: bool = False) -> _Leaf:
    """``counts``: ids count from 0 and not from the space's ``start``, as those of stored actions do."""
    if isinstance(space, gym_spaces.Discrete | gym_spaces.MultiDiscrete):
        return _choices(space, counts)
    size = int(np.prod(space.shape or ()))
    if isinstance(space, gym_spaces.MultiBinary):
        return _Leaf(size, lambda leaf: leaf.reshape(len(leaf), size).float(), _bits_error)
    assert isinstance(space, gym_spaces.Box)
    if spaces.is_tokens(space):
        return _tokens(space)
    if spaces.is_image(space):
        return _image(space)
    return _Leaf(size, lambda leaf: _bounded(leaf.reshape(len(leaf), size)), _squared_error)


def _bounded(numbers: Tensor) -> Tensor:
    return (numbers if numbers.is_floating_point() else numbers.float()).clamp(-LIMIT, LIMIT)


def _squared_error(predicted: Tensor, target: Tensor) -> Tensor:
    return (predicted - target).square().mean(1)


def _bits_error(predicted: Tensor, target: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(predicted, target, reduction="none").mean(1)


def _choices(space: gym_spaces.Discrete | gym_spaces.MultiDiscrete, counts: bool) -> _Leaf:
    """One-hot vectors, one after another."""
    sizes = np.atleast_1d(space.n if isinstance(space, gym_spaces.Discrete) else space.nvec).reshape(-1)
    starts = np.broadcast_to(np.asarray(space.start).reshape(-1) * (not counts), sizes.shape)
    widths, begins = sizes.tolist(), starts.tolist()

    def columns(leaf: Tensor) -> Tensor:
        chosen = leaf.reshape(len(leaf), len(widths)).split(1, 1)
        ids = [torch.arange(s, s + n, device=leaf.device) for s, n in zip(begins, widths)]
        return torch.cat([one == known for one, known in zip(chosen, ids)], 1).float()

    def error(predicted: Tensor, target: Tensor) -> Tensor:
        logs = torch.cat([part.log_softmax(1) for part in predicted.split(widths, 1)], 1)
        return -(target * logs).sum(1) / len(widths)

    return _Leaf(int(sizes.sum()), columns, error)


def _image(space: gym_spaces.Box) -> _Leaf:
    shape = space.shape
    channel = 2 if shape[2] == min(shape) else int(np.argmin(shape))  # last, as in Gymnasium, if possible
    sides = [side for axis, side in enumerate(shape) if axis != channel]
    height, width = (min(POOLED, side) for side in sides)
    scale = 1 / 255 if space.dtype == np.uint8 else 1.0

    def columns(leaf: Tensor) -> Tensor:
        pooled = F.adaptive_avg_pool2d(leaf.movedim(1 + channel, 1).float() * scale, (height, width))
        return _bounded(pooled.flatten(1))

    return _Leaf(shape[channel] * height * width, columns, _squared_error)


def _tokens(space: gym_spaces.Box) -> _Leaf:
    reading, cells = TokenSpace.of(space), SIDE * SIDE
    features = reading.features

    def columns(leaf: Tensor) -> Tensor:
        tokens = reading.read(leaf)
        there = tokens.present.float()

        def summed(where: Tensor, what: Tensor, size: int) -> Tensor:
            return what.new_zeros(len(leaf), size).scatter_add_(1, where, what)

        occupied = summed(tokens.y * SIDE + tokens.x, there, cells).clamp(max=1)
        count = summed(tokens.feature, there, features)
        value = summed(tokens.feature, tokens.value.float() / reading.largest, features)
        return torch.cat([occupied, count.clamp(max=1), value / count.clamp(min=1)], 1)

    def error(predicted: Tensor, target: Tensor) -> Tensor:
        sizes = [cells, features, features]
        cell, seen, value = zip(predicted.split(sizes, 1), target.split(sizes, 1))
        wrong = ((value[0] - value[1]) * seen[1]).square().mean(1)  # absent features have no value
        return (_bits_error(*cell) + _bits_error(*seen) + wrong) / 3

    return _Leaf(cells + 2 * features, columns, error)
