"""Gradient flow: to every weight, through time inside a chunk and an episode, and no further."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from recollect.algos.impala import START
from recollect.audit.recorded_rollouts import Scene, Trial
from recollect.audit.results import Doubt, Problem, Skip, small
from recollect.base import tree
from recollect.base.types import Tree
from recollect.experience.chunks import Chunks
from recollect.learning.sequences import burn_in
from recollect.policy.masks import ACTION_MASK
from recollect.policy.policy import Policy

PART = "gradient"
MOST_STEPS = 10
"""Steps of a chunk whose loss is differentiated one by one."""
MOST_CHUNKS = 8
"""Chunks that this is done for."""


class Parameters:
    """The loss of a rollout moves every weight, and by a finite amount."""

    name = "parameters"

    def __init__(self) -> None:
        self.found: str | None = None

    def look(self, scene: Scene) -> None:
        """Differentiate the loss of the first rollout, whose every row opens an episode."""
        if self.found is not None:
            return
        trial = scene.trial
        chunks = _learnable(trial, scene)
        grads = _gradients(trial, chunks)
        bad = [name for name, grad in grads.items() if grad is not None and not torch.isfinite(grad).all()]
        if bad:
            raise Problem(
                f"the gradient of {bad[0]} is NaN or Inf (and of {len(bad) - 1} more)",
                "Likely cause: a division by zero, a log or a square root of zero, or observations that "
                "are huge",
                "Fix: look at the encoder and at the scale of what the env shows",
            )
        names = _without(grads)
        if trial.algo.value_coef == 0:
            names = [name for name in names if not name.startswith("critic.")]
        frozen = sum(1 for p in trial.policy.parameters() if not p.requires_grad)
        if names:
            self._explain(trial, chunks, names)
        moved = {name: grad for name, grad in grads.items() if grad is not None}
        smallest = min(moved, key=lambda name: float(moved[name].abs().max()))
        also = f" ({frozen} are frozen)" if frozen else ""
        self.found = (
            f"gradient reaches all {len(grads)} of encoder, core and heads{also}; the smallest is "
            f"{small(float(moved[smallest].abs().max()))}, of {smallest}"
        )

    @staticmethod
    def _explain(trial: Trial, chunks: Chunks, names: list[str]) -> None:
        """Is it the network, or does the env show nothing there?"""
        noisy = replace(chunks, obs=_disturbed(chunks.obs))
        still = [name for name in _without(_gradients(trial, noisy)) if name in names]
        said = f"{', '.join(names[:3])}{f' and {len(names) - 3} more' if len(names) > 3 else ''}"
        if not still:
            raise Doubt(
                f"no gradient reaches {said} on this env's observations, with noise in them it does",
                "Part of the observation is zero or constant in all steps that were tried; those weights "
                "will not learn from it",
            )
        parts = {name.split(".")[0] for name in still}
        cause = "a detach, torch.no_grad, or a part of the network whose output is not used"
        if parts >= {"encoder", "core"}:
            cause = "the core's output is detached, or its input is; the heads learn alone"
        elif parts == {"encoder"}:
            cause = "the features are detached before the core, or a part of the encoder is not used"
        elif parts == {"core"}:
            cause = "the core's weights are not used in unroll, or it runs under torch.no_grad"
        raise Problem(
            f"no gradient reaches {said}: {len(still)} of {len(list(trial.policy.parameters()))} parameters",
            f"Likely cause: {cause}",
            "Fix: freeze what is not to learn (requires_grad_(False)), and let the rest of the graph whole",
        )

    def result(self) -> str:
        """The counts."""
        return self.found or ""


def _gradients(trial: Trial, chunks: Chunks) -> dict[str, Tensor | None]:
    """The gradient of the loss for every parameter that is to learn."""
    named = {name: p for name, p in trial.policy.named_parameters() if p.requires_grad}
    # The coefficient of the entropy may well be 0 in the config; the gradient of the rest is what counts.
    count = chunks.valid.sum().clamp(min=1)
    total, _ = trial.learner.algorithm.loss(trial.policy, chunks, trial.algo, trial.algo.entropy, count)
    if not total.requires_grad:
        return dict.fromkeys(named)
    return dict(zip(named, torch.autograd.grad(total, list(named.values()), allow_unused=True)))


def _without(grads: dict[str, Tensor | None]) -> list[str]:
    return [name for name, grad in grads.items() if grad is None or not grad.any()]


def _learnable(trial: Trial, scene: Scene) -> Chunks:
    """The chunks of a rollout with made-up advantages and returns, unlike at every step."""
    rollout = scene.rollout
    generator = torch.Generator().manual_seed(5)
    shape, device = (rollout.steps, rollout.rows), rollout.reward.device
    made = {name: torch.randn(shape, generator=generator).to(device) for name in ("advantage", "return")}
    unit = float(rollout.record["value"][rollout.valid].abs().max().clamp(min=1))
    made["return"] = rollout.record["value"] + unit * made["return"]
    made[START] = rollout.record["log_prob"]  # for the ratio of IMPALA, where it has one
    return burn_in(trial.policy, trial.learner.sequences(rollout, made).whole())


def _disturbed(obs: Tree) -> Tree:
    """The same with noise in all but the action masks."""
    generator = torch.Generator().manual_seed(6)

    def noisy(leaf: Tensor) -> Tensor:
        if not leaf.is_floating_point():
            return leaf
        return leaf + torch.randn(leaf.shape, generator=generator).to(leaf.device)

    if isinstance(obs, dict):
        return {key: sub if key == ACTION_MASK else tree.map(noisy, sub) for key, sub in obs.items()}
    return tree.map(noisy, obs)


class ThroughTime:
    """The loss of a step depends on earlier steps of its chunk and episode, and on nothing else."""

    name = "through time"

    def __init__(self) -> None:
        self.reach = self.inside = self.across_rows = self.across_resets = 0
        self.has_memory = True

    def look(self, scene: Scene) -> None:
        """Differentiate the losses of single steps with respect to the features of all steps."""
        if self.across_resets:
            return
        trial = scene.trial
        chunks = _few(_learnable(trial, scene))
        self.has_memory = trial.policy.has_memory
        if any(leaf.requires_grad for leaf in tree.leaves(chunks.state)):
            raise Problem(
                "the chunks' states carry a graph: gradients would flow into the rollout before",
                "Fix: detach the stored states",
            )
        length = chunks.valid.shape[0]
        picked = sorted({0, 1, length - 1, *range(0, length, max(1, length // (MOST_STEPS - 2)))})
        for step in (s for s in picked if s < length):
            for parity in (0, 1):
                self._look_at(trial, chunks, step, parity)

    def _look_at(self, trial: Trial, chunks: Chunks, step: int, parity: int) -> None:
        """The losses at ``step`` of every other chunk, the even or the odd ones."""
        chosen = torch.zeros_like(chunks.valid)
        chosen[step, parity::2] = chunks.valid[step, parity::2]
        if not chosen.any():
            return
        influence = _influence(trial, replace(chunks, valid=chosen))  # [L, N]
        steps = torch.arange(len(influence), device=influence.device).unsqueeze(1)
        episode = chunks.first.long().cumsum(0)
        together = (episode == episode[step]) & (steps <= step) & chosen[step]
        alone = influence.clone()
        alone[together] = 0
        if alone[:, ~chosen[step]].any():
            at, chunk = alone.masked_fill(chosen[step], 0).nonzero()[0].tolist()
            raise Problem(
                f"the loss of step {step} depends on step {at} of another chunk ({chunk})",
                "Likely cause: rows or chunks are mixed inside the network (batch statistics, attention "
                "over rows)",
                "Fix: treat every row by itself",
            )
        if alone[step + 1 :].any():
            raise Problem(
                f"the loss of step {step} depends on a later step",
                "Likely cause: the core looks ahead; acting cannot",
            )
        if alone.any():
            at, _ = alone.nonzero()[0].tolist()
            raise Problem(
                f"the loss of step {step} depends on step {at}, which belongs to an episode before",
                "Likely cause: a reset inside the chunk does not cut the gradient: it is missed, or "
                "multiplied in",
                "Fix: select the initial state where `first`, at the step where the episode opens",
            )
        self.across_rows += int((~chosen[step]).sum())
        self.across_resets += int(((episode != episode[step]) & (steps < step) & chosen[step]).sum())
        self._check_inside(influence, together, chosen[step], step)

    def _check_inside(self, influence: Tensor, together: Tensor, columns: Tensor, step: int) -> None:
        if not influence[step, columns].all():
            raise Problem(
                f"the loss of step {step} does not depend on its own observation",
                "Likely cause: the features are detached",
            )
        back = together[:step].clone()
        if not self.has_memory:
            if influence[:step].any():
                raise Problem(f"the core has no memory, and the loss of step {step} depends on earlier steps")
            return
        # The step before, where it is of the same episode, in at least one chunk; how far it goes on is the
        # core's affair: gates may close, windows end.
        if back.any() and back[step - 1].any():
            if not (influence[step - 1] * back[step - 1]).any():
                raise Problem(
                    f"the loss of step {step} does not depend on the step before it",
                    "Likely cause: the state is detached between the steps of a chunk, so that nothing "
                    "is learned through time",
                    "Fix: detach at chunk starts only",
                )
            self.inside += int(back.sum())
            reached = (influence[:step].bool() & back).nonzero()
            self.reach = max(self.reach, step - int(reached[:, 0].min()))

    def result(self) -> str:
        """How far it reaches."""
        kept = f"exactly 0 over {self.across_rows} other chunks"
        if not self.has_memory:
            return f"none, as the core has no memory; {kept}"
        if not self.inside:
            raise Skip("no chunk has two steps of one episode")
        resets = f" and {self.across_resets} steps before a reset"
        untried = " (no episode ended inside a chunk)"
        found = f"a loss reaches back {self.reach} steps inside a chunk, {kept}"
        return found + (resets if self.across_resets else untried)


def _few(chunks: Chunks) -> Chunks:
    """Some of the chunks, those with a reset inside first."""
    resets = chunks.first[1:].sum(0)
    return chunks.take(resets.argsort(descending=True, stable=True)[:MOST_CHUNKS])


def _influence(trial: Trial, chunks: Chunks) -> Tensor:
    """[L, N]: how much the loss of the valid steps depends on the features of every step."""
    config = replace(trial.algo, recompute_activations=False)  # the graph then has the features that are kept
    with _features(trial.policy) as kept:
        total, _ = trial.learner.algorithm.loss(trial.policy, chunks, config, 1.0, chunks.valid.sum())
    if not kept:
        raise Skip("the policy does not use its encoder")
    if not total.requires_grad:
        raise Problem("the loss has no gradient at all", "Likely cause: torch.no_grad around the unroll")
    (grad,) = torch.autograd.grad(total, kept, allow_unused=True)
    if grad is None:
        return torch.zeros(chunks.first.shape, device=chunks.first.device)
    return grad.reshape(*chunks.first.shape, -1).abs().sum(-1)


@contextmanager
def _features(policy: Policy) -> Iterator[list[Tensor]]:
    """The encoder's output of the calls inside, as leaves to differentiate by. Works for any observation."""
    kept: list[Tensor] = []

    def keep(module: Any, inputs: Any, output: Tensor) -> Tensor:
        leaf = output.detach().requires_grad_(True)
        kept[:] = [leaf]
        return leaf

    handle = policy.encoder.register_forward_hook(keep)
    try:
        yield kept
    finally:
        handle.remove()
