"""Updates from rollouts: padding weighs nothing, statistics are frozen and bounded, memory use is flat."""

from __future__ import annotations

import copy
import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from recollect.algos.catalog import make_learner
from recollect.audit.gradient_checks import chunks_with_targets
from recollect.audit.recorded_rollouts import RecordedRollout
from recollect.audit.results import Passed, Problem, Skip
from recollect.base import tree
from recollect.base.formatting import tiny
from recollect.base.spaces import ACTION_MASK
from recollect.base.types import Tree
from recollect.config.algo_shared import LearnerConfig
from recollect.experience.chunks import Chunks
from recollect.experience.rollout import Rollout
from recollect.learning.ranks import ALONE
from recollect.policy.policy import Policy

POISON = 30.0
"""Stands in padding. Finite: padding is cleared before it reaches a loss."""
MOST_UPDATES = 3
"""Updates between two counts of all tensors."""


def padding(rollouts: Sequence[RecordedRollout]) -> Passed:
    """Invalid steps have no weight in the loss, its gradient, the targets or the statistics."""
    one = rollouts[-1]
    chunks = chunks_with_targets(one)
    length = len(chunks.valid)
    if length < 2:
        raise Skip("chunks of one step have no padding")
    cut = chunks.valid.clone()
    cut[length - max(1, length // 4) :, ::2] = False  # the end of every other chunk
    if not cut.any():
        raise Skip("no valid step is left")
    base = _gradient(one, replace(chunks, valid=cut))
    poisoned = _gradient(one, _poisoned(chunks, cut))
    gap = float((base - poisoned).abs().max() / base.abs().max().clamp(min=1e-12))
    tolerance = 1e-5
    if not gap <= tolerance:
        raise Problem(
            f"numbers at {int((~cut).sum())} invalid steps change the gradient of the loss by {gap:.1e} of "
            "its size",
            "Likely cause: padding counts in the loss or the entropy",
            "Fix: multiply every term by valid, and divide by the number of valid steps",
            measured=gap,
            tolerance=tolerance,
        )
    shorter = _gradient(one, _first_steps(chunks, cut))
    gap_count = float((base - shorter).abs().max() / base.abs().max().clamp(min=1e-12))
    if not gap_count <= 1e-3:
        raise Problem(
            f"the gradient with padding differs by {gap_count:.1e} of its size from the one without",
            "Likely cause: the loss is divided by all steps, padding included",
            "Fix: divide by the number of valid steps",
            measured=gap_count,
            tolerance=1e-3,
        )
    _check_targets(one)
    return Passed(
        f"{int((~cut).sum())} of {cut.numel()} steps invalid: the gradient changes by {tiny(gap)} with their "
        "numbers; targets and statistics do not",
        gap,
        tolerance,
    )


def _poisoned(chunks: Chunks, valid: Tensor) -> Chunks:
    def poison(leaf: Tensor) -> Tensor:
        if not leaf.is_floating_point():
            return leaf
        wide = valid.reshape(valid.shape + (1,) * (leaf.dim() - 2))
        return torch.where(wide, leaf, POISON)

    data = {name: poison(x) for name, x in chunks.data.items()}
    # The record stays: its numbers at invalid steps go through a ratio, which must stay finite.
    data |= {name: chunks.data[name] for name in ("log_prob",) if name in chunks.data}
    return replace(chunks, valid=valid, data=data, obs=_poisoned_obs(chunks.obs, poison))


def _poisoned_obs(obs: Tree, poison: Any) -> Tree:
    if isinstance(obs, dict):
        return {key: sub if key == ACTION_MASK else tree.map(poison, sub) for key, sub in obs.items()}
    return tree.map(poison, obs)


def _first_steps(chunks: Chunks, valid: Tensor) -> Chunks:
    """The same valid steps in a batch with more padding: two more columns without any."""
    extra = chunks.take(torch.arange(chunks.count, device=valid.device).repeat(2))
    none = torch.zeros_like(valid)
    return replace(extra, valid=torch.cat([valid, none], 1))


def _gradient(one: RecordedRollout, chunks: Chunks) -> Tensor:
    policy = one.policy
    weights = [p for p in policy.parameters() if p.requires_grad]
    count = chunks.valid.sum().clamp(min=1)
    config = replace(one.algo, recompute_activations=False)
    with policy.computing():
        loss = one.learner.algorithm.loss(policy, chunks, config, 0.01, count)[0]
        grads = torch.autograd.grad(loss, weights, allow_unused=True)
    return torch.cat([torch.zeros(1)] + [g.detach().flatten().double().cpu() for g in grads if g is not None])


def _check_targets(one: RecordedRollout) -> None:
    """Targets of valid steps, and statistics of returns and observations, with poison at invalid steps."""
    rollout = with_invalid_end(one.rollout)
    if rollout is None:
        return
    found = [_targets(one, version) for version in (rollout, _poisoned_end(rollout))]
    for name in found[0]:
        gap = float((found[0][name] - found[1][name]).abs().max())
        size = float(found[0][name].abs().max().clamp(min=1))
        if not gap <= 1e-4 * size:
            raise Problem(
                f"numbers at invalid steps change {name} by {gap:.1e}",
                "Likely cause: mean and spread are those of all steps, dead agents and fillers included",
                "Fix: take statistics over valid steps",
                measured=gap / size,
                tolerance=1e-4,
            )


def with_invalid_end(rollout: Rollout) -> Rollout | None:
    """A rollout whose first row ends early; its later steps are invalid, like those of a dead agent."""
    if rollout.steps < 4 or rollout.rows < 2:
        return None
    t = rollout.steps - 3
    terminated, truncated, valid = (
        rollout.terminated.clone(),
        rollout.truncated.clone(),
        rollout.valid.clone(),
    )
    terminated[t, 0], truncated[t, 0], valid[t + 1 :, 0] = True, False, False
    terminated[t + 1 :, 0] = truncated[t + 1 :, 0] = False
    if not valid.any():
        return None
    return replace(rollout, terminated=terminated, truncated=truncated, valid=valid)


def _poisoned_end(rollout: Rollout) -> Rollout:
    bad = (~rollout.valid).nonzero(as_tuple=True)
    reward, obs = rollout.reward.clone(), tree.clone(rollout.obs)
    reward[bad] = POISON
    for leaf in tree.leaves(obs):
        if leaf.is_floating_point():
            leaf[:-1][bad] = POISON
    record = {name: x.clone() for name, x in rollout.record.items()}
    if "value" in record:
        record["value"][bad] = POISON
    return replace(rollout, reward=reward, obs=obs, record=record)


def _targets(one: RecordedRollout, rollout: Rollout) -> dict[str, Tensor]:
    policy = copy.deepcopy(one.policy)
    found = one.learner.algorithm.targets(policy, rollout, one.algo, ALONE)
    valid = rollout.valid
    numbers = {f"the {name} of valid steps": x[valid].double() for name, x in found.data.items()}
    if policy.obs_norm is not None:
        seen = tree.index(rollout.obs, slice(rollout.steps))
        policy.obs_norm.update(seen, valid)
    for name, buffer in policy.named_buffers():
        if buffer.is_floating_point():
            numbers[f"the statistic {name}"] = buffer.double()
    return numbers


def normalisers(rollouts: Sequence[RecordedRollout]) -> str:
    """Statistics do not move between acting and learning from what was acted, and stay bounded."""
    one = rollouts[-1]
    policy = copy.deepcopy(one.policy)
    norm, value_norm = policy.obs_norm, policy.value_norm
    if norm is None and value_norm is None:
        raise Skip("nothing is normalised")
    if norm is not None:
        _check_frozen(one, policy)
    _check_bounded(policy, one)
    kept = "observations are scaled alike in acting and in every epoch" if norm is not None else "no scaling"
    return f"{kept}; statistics stay finite with constant and with huge numbers"


def _check_frozen(one: RecordedRollout, policy: Policy) -> None:
    """The scaling of observations at each pass of the network in an update."""
    norm = policy.obs_norm
    assert norm is not None
    before = {name: leaf.clone() for name, leaf in norm.state_dict().items()}
    learner = make_learner(policy, one.setup.config.algo, rows=one.rollout.rows, seed=0)
    moved: list[str] = []
    with _watching(norm, before, moved):
        learner.update(one.rollout, lag=1)
    if moved:
        raise Problem(
            f"within an update the scaling of observations is not the one that acted ({moved[0]})",
            "Likely cause: running statistics are updated before or while the rollout is learned from",
            "Fix: update them after the last epoch",
        )


@contextmanager
def _watching(norm: Any, before: dict[str, Tensor], moved: list[str]) -> Iterator[None]:
    def watch(module: Any, inputs: Any) -> None:
        if not torch.is_grad_enabled():  # a metric after the update has the next scaling
            return
        moved.extend(n for n, leaf in module.state_dict().items() if not torch.equal(leaf, before[n]))

    handle = norm.register_forward_pre_hook(watch)
    try:
        yield
    finally:
        handle.remove()


def _check_bounded(policy: Policy, one: RecordedRollout) -> None:
    """Scaled observations after constant and huge ones, and the critic after constant and huge returns."""
    norm, value_norm = policy.obs_norm, policy.value_norm
    valid = torch.ones_like(one.rollout.valid)
    seen = tree.index(one.rollout.obs, slice(one.rollout.steps))
    for size in (0.0, 1e6):
        if norm is not None:
            norm = copy.deepcopy(norm)
            same = tree.map(lambda x, s=size: torch.full_like(x, s) if x.is_floating_point() else x, seen)
            for _ in range(3):
                norm.update(same, valid)
            bad = [
                path
                for path, leaf in tree.named_leaves(norm(same), "obs")
                if leaf.is_floating_point() and not torch.isfinite(leaf).all()
            ]
            buffers = [name for name, x in norm.named_buffers() if not torch.isfinite(x.double()).all()]
            if bad or buffers:
                raise Problem(
                    f"after constant observations of {size:g} {(bad + buffers)[0]} is not finite",
                    "Likely cause: a division by a spread of zero, or a variance that cancels",
                    "Fix: add a small number to the spread, and merge variances in float64",
                )
        if value_norm is not None:
            fresh = copy.deepcopy(policy)
            assert fresh.value_norm is not None
            returns = torch.full((64,), size, device=policy.device)
            for _ in range(3):
                fresh.value_norm.update(returns, fresh.critic)
            std = float(fresh.value_norm.std)
            weights = all(bool(torch.isfinite(p).all()) for p in fresh.critic.parameters())
            if not (0 < std < float("inf") and weights):
                raise Problem(
                    f"after constant returns of {size:g} the spread of the returns is {std:g}, or the "
                    "critic's weights are not finite",
                    "Likely cause: the spread of equal returns is 0, and the critic is divided by it",
                    "Fix: give the spread a lower bound",
                )


def flat_memory(rollouts: Sequence[RecordedRollout]) -> str:
    """Tensors that exist after an update do not become more from update to update."""
    one = rollouts[-1]
    policy = copy.deepcopy(one.policy)
    learner = make_learner(policy, one.setup.config.algo, rows=one.rollout.rows, seed=0)
    is_rollout = isinstance(one.setup.config.algo, LearnerConfig)
    sizes = []
    for number in range(2 + MOST_UPDATES):
        rollout = replace(one.rollout, **tree.clone(one.rollout.tensors()))
        learner.update(rollout, lag=1)
        del rollout
        if number in (1, 1 + MOST_UPDATES):  # the first updates allocate the optimiser's moments
            sizes.append(len(live_tensors()))
    growth = (sizes[1] - sizes[0]) // MOST_UPDATES
    if is_rollout and growth > 0:
        raise Problem(
            f"every update leaves {growth} tensors more than the one before",
            "Likely cause: rollouts, losses or graphs are kept: a metric that was not detached, a state "
            "without detach, or a list that grows",
            "Fix: keep numbers, not tensors; detach what outlives an update",
            measured=float(growth),
            tolerance=0.0,
        )
    return f"{sizes[-1]} tensors after each of {MOST_UPDATES} updates"


def live_tensors() -> list[Tensor]:
    """The tensors of this process that something refers to."""
    gc.collect()
    return [found for found in gc.get_objects() if issubclass(type(found), Tensor)]
