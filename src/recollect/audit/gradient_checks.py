"""Gradient flow: to every weight, through time inside a chunk and an episode, and no further."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from recollect.algos.impala import START
from recollect.audit.recorded_rollouts import LEAST, RecordedRollout
from recollect.audit.results import Doubt, Passed, Problem, Skip
from recollect.base import tree
from recollect.base.formatting import tiny
from recollect.base.spaces import ACTION_MASK
from recollect.base.tolerances import on_device
from recollect.base.types import Tree
from recollect.experience.chunks import Chunks
from recollect.learning.ranks import ALONE
from recollect.learning.refresh_rollout import recorded
from recollect.learning.sequences import burn_in
from recollect.policy.policy import Policy

MOST_STEPS = 10
"""Steps of a chunk whose loss is differentiated one by one."""
MOST_CHUNKS = 8
"""Chunks that this is done for."""
STEPS, NOISE, SMALL, SLOPE_TOLERANCE = (1e-2, 3e-3, 1e-3, 3e-4), 3e-7, 1e-3, 0.015
"""Of slopes: lengths of steps, the rounding of a loss, and the least gradient beside the largest."""
LOSS_TOLERANCE = 1e-4


def parameters(rollouts: Sequence[RecordedRollout]) -> str:
    """The loss of the first rollout has a finite, nonzero gradient for every weight."""
    one = rollouts[0]
    chunks = chunks_with_targets(one)

    def loss(noise: bool) -> Tensor:
        used = replace(chunks, obs=with_noise(chunks.obs)) if noise else chunks
        count = used.valid.sum().clamp(min=1)
        return one.learner.algorithm.loss(one.policy, used, one.algo, one.algo.entropy, count)[0]

    return check_parameters(one.policy, loss, is_critic_used=one.algo.value_coef > 0)


def check_parameters(policy: Policy, loss: Callable[[bool], Tensor], *, is_critic_used: bool = True) -> str:
    """``loss(noise)`` has a gradient for every weight. ``noise``: whether observations get noise added."""
    grads = _gradients(policy, loss(False))
    bad = [name for name, grad in grads.items() if grad is not None and not torch.isfinite(grad).all()]
    if bad:
        raise Problem(
            f"the gradient of {bad[0]} is NaN or Inf (and of {len(bad) - 1} more)",
            "Likely cause: a division by zero, a log or a square root of zero, or huge observations",
            "Fix: check the encoder and the scale of the env's observations",
        )
    missing = _without_gradient(grads)
    if not is_critic_used:
        missing = [name for name in missing if not name.startswith("critic.")]
    if missing:
        _explain_missing(policy, loss, missing)
    sizes = {name: float(grad.abs().max()) for name, grad in grads.items() if grad is not None}
    smallest = min(sizes, key=lambda name: sizes[name])
    frozen = sum(not p.requires_grad for p in policy.parameters())
    also = f" ({frozen} are frozen)" if frozen else ""
    return (
        f"gradient reaches all {len(grads)} of encoder, core and heads{also}; the smallest is "
        f"{tiny(sizes[smallest])}, of {smallest}"
    )


def slopes(rollouts: Sequence[RecordedRollout]) -> Passed:
    """The gradient of each weight is the slope of the loss, measured by two losses beside it."""
    one = rollouts[0]
    policy, chunks = copy.deepcopy(one.policy), chunks_with_targets(one)
    if (
        on_device(policy.config.precision, policy.device.type) != "fp32"
        or one.algo.recurrent_mode == "burn_in"
    ):
        raise Skip("only of float32, and without burn-in, whose gradient is cut")
    count, generator = chunks.valid.sum().clamp(min=1), torch.Generator().manual_seed(7)

    def loss() -> Tensor:
        return one.learner.algorithm.loss(policy, chunks, one.algo, one.algo.entropy, count)[0]

    kept = tree.clone(policy.state_dict())
    with torch.no_grad():
        for weight in policy.parameters():  # no bias is 0
            weight += 0.03 * torch.randn(weight.shape, generator=generator).to(weight.device)
    with_graph = float(loss().detach())
    with torch.no_grad():
        if (without := float(loss())) != float(loss()):
            raise Skip("the loss is random")
    if not abs(with_graph - without) <= LOSS_TOLERANCE * max(1.0, abs(without)):
        raise Problem(
            f"the loss is {with_graph:.6g} with a graph and {without:.6g} without",
            "Likely cause: a kernel of its own for gradients computes something else",
            "Fix: compare its forward pass with the plain operations",
        )
    policy.load_state_dict(kept)
    worst, where = _worst_slope(policy, loss)
    if not worst <= SLOPE_TOLERANCE:
        raise Problem(
            f"the gradient of {where} is {worst:.0%} off the slope of the loss",
            "Likely cause: a backward pass of its own, or a detach",
            "Fix: compare it with torch.autograd.gradcheck in float64",
            measured=worst,
            tolerance=SLOPE_TOLERANCE,
        )
    weights = len(list(policy.parameters()))
    return Passed(f"gradients of {weights} weights are slopes of the loss", worst, SLOPE_TOLERANCE)


def _worst_slope(policy: Policy, loss: Callable[[], Tensor]) -> tuple[float, str]:
    """The largest difference of a gradient's length and the slope along it, beyond rounding and kinks."""
    total = loss()
    grads = {name: grad for name, grad in _gradients(policy, total).items() if grad is not None}
    size = max(float(grad.norm()) for grad in grads.values())
    with torch.no_grad():
        rounding = NOISE * max(0.3, abs(float(total.detach())))
        worst, where = 0.0, ""
        for name, weight in policy.named_parameters():
            if name not in grads or not (length := float(grads[name].norm())) > SMALL * size:
                continue
            kept, gap = weight.clone(), float("inf")
            for step in STEPS:  # a shorter one has fewer kinks beside it, and more rounding
                sides = []
                for sign in (1, -1):
                    weight.copy_(kept + sign * step * grads[name] / length)
                    sides.append(float(loss()))
                slope = (sides[0] - sides[1]) / (2 * step)
                gap = min(gap, (abs(slope - length) - rounding / step) / length)
                if gap <= SLOPE_TOLERANCE / 5:
                    break
            weight.copy_(kept)
            if gap > worst:
                worst, where = gap, name
    return worst, where


def _explain_missing(policy: Policy, loss: Callable[[bool], Tensor], missing: list[str]) -> None:
    """Raise with the cause: the network, or observations that are zero or constant."""
    noisy = _without_gradient(_gradients(policy, loss(True)))
    still = [name for name in noisy if name in missing]
    said = f"{', '.join(missing[:3])}{f' and {len(missing) - 3} more' if len(missing) > 3 else ''}"
    if not still:
        raise Doubt(
            f"no gradient reaches {said} on this env's observations; with noise added it does",
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
        f"no gradient reaches {said}: {len(still)} of {len(list(policy.parameters()))} parameters",
        f"Likely cause: {cause}",
        "Fix: freeze weights that need not learn (requires_grad_(False)), and do not detach the others",
    )


def _gradients(policy: Policy, total: Tensor) -> dict[str, Tensor | None]:
    """The gradient of a loss for every parameter that is not frozen."""
    named = {name: p for name, p in policy.named_parameters() if p.requires_grad}
    if not total.requires_grad:
        return dict.fromkeys(named)
    return dict(zip(named, torch.autograd.grad(total, list(named.values()), allow_unused=True)))


def _without_gradient(grads: dict[str, Tensor | None]) -> list[str]:
    return [name for name, grad in grads.items() if grad is None or not grad.any()]


def chunks_with_targets(one: RecordedRollout) -> Chunks:
    """The chunks of a rollout with random targets, such as advantages, different at every step."""
    rollout = one.rollout
    generator = torch.Generator().manual_seed(5)
    shape, device = (rollout.steps, rollout.rows), rollout.reward.device
    made = {name: torch.randn(shape, generator=generator).to(device) for name in ("advantage", "return")}
    unit = float(rollout.record["value"][rollout.valid].abs().max().clamp(min=1))
    made["return"] = rollout.record["value"] + unit * made["return"]
    made[START] = rollout.record["log_prob"]  # for the ratio of IMPALA
    algorithm, outputs = one.learner.algorithm, recorded(rollout)  # with outputs no statistics change
    for name in algorithm.targets(one.policy, rollout, one.algo, ALONE, outputs=outputs).data:
        if name not in made:  # of an algorithm of the user's own
            made[name] = torch.randn(shape, generator=generator).to(device)
    return burn_in(one.policy, one.learner.sequences(rollout, made).whole())


def with_noise(obs: Tree) -> Tree:
    """The observations with noise in all floats except action masks."""
    generator = torch.Generator().manual_seed(6)

    def noisy(leaf: Tensor) -> Tensor:
        if not leaf.is_floating_point():
            return leaf
        return leaf + torch.randn(leaf.shape, generator=generator).to(leaf.device)

    if isinstance(obs, dict):
        return {key: sub if key == ACTION_MASK else tree.map(noisy, sub) for key, sub in obs.items()}
    return tree.map(noisy, obs)


def through_time(rollouts: Sequence[RecordedRollout]) -> str:
    """The loss of a step depends on earlier steps of its chunk and episode, and on nothing else."""
    totals: Counter[str] = Counter()
    reach, has_memory = 0, rollouts[0].policy.has_memory
    for one in reversed(rollouts[-LEAST:]):  # an episode ended inside the last one, if inside any
        if totals["across resets"]:
            break
        chunks = _few(chunks_with_targets(one))
        if any(leaf.requires_grad for leaf in tree.leaves(chunks.state)):
            raise Problem(
                "the chunks' states carry a graph: gradients would flow into the previous rollout",
                "Fix: detach the stored states",
            )
        length = len(chunks.valid)
        picked = sorted({0, 1, length - 1, *range(0, length, max(1, length // (MOST_STEPS - 2)))})
        for step in (s for s in picked if s < length):
            for parity in (0, 1):  # even or odd chunks, so that the others must have no influence
                chosen = torch.zeros_like(chunks.valid)
                chosen[step, parity::2] = chunks.valid[step, parity::2]
                if chosen.any():
                    influences = _influences(one, replace(chunks, valid=chosen))
                    counts, steps_back = check_influence(one.policy, influences, chunks.first, step, chosen)
                    totals, reach = totals + counts, max(reach, steps_back)
    return reached(totals, reach, has_memory=has_memory)


def reached(totals: Counter[str], reach: int, *, has_memory: bool) -> str:
    """The finding, from the counts of ``check_influence`` and the largest number of steps back."""
    kept = f"exactly 0 over {totals['other chunks']} other chunks"
    if not has_memory:
        return f"none, as the core has no memory; {kept}"
    if not totals["inside"]:
        raise Skip("no chunk has two steps of one episode")
    resets = " (no episode ended inside a chunk)"
    if totals["across resets"]:
        resets = f" and {totals['across resets']} steps before a reset"
    return f"a loss reaches back {reach} steps inside a chunk, {kept}{resets}"


def check_influence(
    policy: Policy, influences: list[Tensor], first: Tensor, step: int, chosen: Tensor
) -> tuple[Counter[str], int]:
    """Check the gradients of the losses of ``step`` in the ``chosen`` chunks by the features of all steps.

    Args:
        policy: the policy.
        influences: for each trunk [L, N]: the absolute gradient.
        first: [L, N] bool.
        step: the step whose loss was differentiated.
        chosen: [L, N] bool: true at ``step`` of the chunks whose losses were.

    Returns counts of checked influences, and the number of steps that the gradient reaches back.
    """
    influence = torch.stack(influences).sum(0)
    columns = chosen[step]
    steps = torch.arange(len(influence), device=influence.device).unsqueeze(1)
    episode = first.long().cumsum(0)
    together = (episode == episode[step]) & (steps <= step) & columns
    wrong = influence.masked_fill(together, 0)
    if wrong[:, ~columns].any():
        at, chunk = wrong.masked_fill(columns, 0).nonzero()[0].tolist()
        raise Problem(
            f"the loss of step {step} depends on step {at} of another chunk ({chunk})",
            "Likely cause: the network mixes rows or chunks (batch statistics, attention over rows)",
            "Fix: process each row separately",
        )
    if wrong[step + 1 :].any():
        raise Problem(
            f"the loss of step {step} depends on a later step",
            "Likely cause: the core reads later steps, which do not exist while acting",
        )
    if wrong.any():
        raise Problem(
            f"the loss of step {step} depends on step {int(wrong.nonzero()[0, 0])}, which belongs to an "
            "earlier episode",
            "Likely cause: a reset inside the chunk does not cut the gradient: it is missed, or applied as a "
            "product",
            "Fix: select the initial state where `first`, at the first step of the episode",
        )
    if not influence[step, columns].all():
        raise Problem(
            f"the loss of step {step} does not depend on its own observation",
            "Likely cause: the features are detached",
        )
    if not policy.has_memory and influence[:step].any():
        raise Problem(f"the core has no memory, but the loss of step {step} depends on earlier steps")
    counts = Counter(
        {
            "other chunks": int((~columns).sum()),
            "across resets": int(((episode != episode[step]) & (steps < step) & columns).sum()),
        }
    )
    back = together[:step]
    # Only the previous step must have an influence, in at least one chunk: gates may close, windows end.
    if not policy.has_memory or not back[-1:].any():
        return counts, 0
    for trunk, own in zip(policy.trunks, influences):
        if not trunk.core.has_memory or (own[step - 1] * back[-1]).any():
            continue
        raise Problem(
            f"the loss of step {step} does not depend on the step before it",
            "Likely cause: the state is detached between the steps of a chunk, so that nothing is learned "
            "through time",
            "Fix: detach at chunk starts only",
        )
    counts["inside"] = int(back.sum())
    at = (influence[:step].bool() & back).nonzero()
    return counts, step - int(at[:, 0].min())


def _few(chunks: Chunks) -> Chunks:
    """Some of the chunks, those with a reset inside first."""
    resets = chunks.first[1:].sum(0)
    return chunks.take(resets.argsort(descending=True, stable=True)[:MOST_CHUNKS])


def _influences(one: RecordedRollout, chunks: Chunks) -> list[Tensor]:
    """For each trunk, [L, N]: absolute gradient of the loss of the valid steps by the features of a step."""
    config = replace(one.algo, recompute_activations=False)  # the graph must contain the kept features

    def loss() -> Tensor:
        return one.learner.algorithm.loss(one.policy, chunks, config, 1.0, chunks.valid.sum())[0]

    return influences_of(one.policy, loss, chunks.first)


def influences_of(policy: Policy, loss: Callable[[], Tensor], first: Tensor) -> list[Tensor]:
    """For each trunk, [L, N]: absolute gradient of a loss by the features of a step; ``first`` [L, N]."""
    with _features(policy) as kept:
        total = loss()
    if len(kept) < len(policy.trunks):
        raise Skip("the policy does not use its encoder")
    if not total.requires_grad:
        raise Problem("the loss has no gradient at all", "Likely cause: torch.no_grad around the unroll")
    grads = torch.autograd.grad(total, list(kept.values()), allow_unused=True)
    nothing = torch.zeros(*first.shape, 1, device=first.device)
    return [(nothing if grad is None else grad.reshape(*first.shape, -1)).abs().sum(-1) for grad in grads]


@contextmanager
def _features(policy: Policy) -> Iterator[dict[nn.Module, Tensor]]:
    """The last output of each encoder within the context, as a leaf to differentiate by."""
    kept: dict[nn.Module, Tensor] = {}

    def keep(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        kept[module] = output.detach().requires_grad_(True)
        return kept[module]

    handles = [trunk.encoder.register_forward_hook(keep) for trunk in policy.trunks]
    try:
        yield kept
    finally:
        for handle in handles:
            handle.remove()
