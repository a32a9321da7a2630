"""The interface between the replay learner and an algorithm: ``acting`` and ``loss``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from recollect.base import tree
from recollect.base.types import State, Tree
from recollect.config.replay import ReplayConfig
from recollect.experience.replay import Sample
from recollect.experience.rollout import Acting
from recollect.learning import diagnostics
from recollect.learning.algorithm import Stats
from recollect.policy.policy import Policy


@dataclass(frozen=True, slots=True)
class Windows:
    """A minibatch of M sequences after their burn-in: L learned steps, then the n that their targets need.

    W = L + n. Numbers at positions outside of an episode are zeros.
    """

    obs: Tree
    """[W, M, ...]"""
    first: Tensor
    """[W, M] bool"""
    state: State
    """[M, ...]: the memory of the learning network before the first position."""
    target_state: State
    """[M, ...]: that of the target network."""
    action: Tree
    """[W, M, ...]"""
    reward: Tensor
    """[W, M]: scaled and clipped."""
    terminated: Tensor
    """[W, M] bool: also at time limits, unless ``bootstrap_time_limits``."""
    is_step: Tensor
    """[W, M] bool: false after the end of an episode, and for the observation after a time limit."""
    weight: Tensor
    """[L, M]: of each learned step in the loss; 0 where there is none. They sum to about 1."""

    @property
    def learned(self) -> Tensor:
        """[L, M] bool: the steps that are learned from."""
        return self.is_step[: len(self.weight)]


class Loss(NamedTuple):
    """The loss of a minibatch."""

    total: Tensor
    """A scalar."""
    error: Tensor
    """[L, M]: the absolute error of each learned step, for the priorities; not read where there is none."""
    stats: Stats
    """Scalars by the names of metrics."""


class ReplayAlgorithm(Protocol):
    """A module such as ``recollect.algos.r2d2``, or any object with these two functions."""

    def acting(self, config: Any) -> Acting:
        """The parts of a rollout that actors must record."""
        ...

    def loss(
        self, policy: Policy, target: Policy, batch: Windows, config: Any, generator: torch.Generator
    ) -> Loss:
        """The loss of a minibatch.

        Args:
            policy: learns.
            target: the target network, a copy with older weights; no gradient flows into it.
            batch: the sequences.
            config: the settings.
            generator: for random numbers of the loss.
        """
        ...


def windows(
    policy: Policy, target: Policy, sample: Sample, config: ReplayConfig, *, weight: Tensor
) -> Windows:
    """Unroll the burn-in of both networks without gradient; the rest of the sample.

    ``weight`` [M]: of each sequence.
    """
    burn_in, length = config.burn_in_steps, config.chunk

    def after(network: Policy) -> State:
        if sample.state is None:
            state = network.initial_state(len(sample.entries))
        else:
            state = sample.state
        if not burn_in:
            return state
        prefix = tree.map(lambda leaf: leaf[:burn_in], sample.obs)
        with torch.no_grad():
            return network.unroll_core(prefix, state, sample.first[:burn_in])[1]

    state = after(policy)
    obs, action = tree.map(lambda leaf: leaf[burn_in:], (sample.obs, sample.action))
    is_step, terminated = sample.is_step[burn_in:], sample.terminated[burn_in:]
    if not config.bootstrap_time_limits:
        terminated = terminated.clone()
        terminated[:-1] |= is_step[:-1] & ~is_step[1:]
    learned = is_step[:length] * weight
    return Windows(
        obs=obs,
        first=sample.first[burn_in:],
        state=state,
        target_state=state if policy.is_trunk_fixed else after(target),
        action=action,
        reward=sample.reward[burn_in:],
        terminated=terminated,
        is_step=is_step,
        weight=learned / is_step[:length].sum().clamp(min=1),
    )


def features(policy: Policy, target: Policy, batch: Windows) -> tuple[Tensor, Tensor]:
    """The inputs of the heads of both networks, [W, M, D]: one tensor if the trunk is the same for both."""
    y, _ = policy.unroll_core(batch.obs, batch.state, batch.first)
    if policy.is_trunk_fixed:
        return y, y
    with torch.no_grad():
        return y, target.unroll_core(batch.obs, batch.target_state, batch.first)[0]


@torch.no_grad()
def of_steps(named: Mapping[str, Tensor], batch: Windows) -> Stats:
    """Means of numbers [L, M] over the learned steps."""
    return {name: diagnostics.masked_mean(x, batch.learned) for name, x in named.items()}
