"""Errors and losses of R2D2 and IQN, written out again in float64 from both networks' values of sequences."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import product
from typing import Any, NamedTuple, cast
from unittest import mock

import torch
from torch import Tensor

from recollect.algos import iqn, r2d2
from recollect.audit.drawn_replay import COUNT, Drawn, Recorded
from recollect.audit.results import Passed, Problem, Skip
from recollect.base import tree
from recollect.config.replay import ReplayConfig
from recollect.learning.replay_algorithm import Loss, Windows, windows
from recollect.policy.policy import Policy
from recollect.policy.q_heads import QHead, QuantileHead

TOLERANCE = 1e-3
TRIED: tuple[dict[str, Any], ...] = (
    {"bootstrap_time_limits": True, "rescale": True, "double": True},
    {"bootstrap_time_limits": False, "rescale": False, "double": True},
    {
        "bootstrap_time_limits": True,
        "rescale": False,
        "double": False,
        "kappa": 0.3,
        "target_quantiles": 5,
    },
)
"""Settings that are tried whatever the config says; those that an algorithm does not have are left out."""


class Written(NamedTuple):
    """The result of a loss, and what it must be."""

    settings: str
    found: Loss
    error: Tensor
    """[L, M] float64"""
    total: float
    learned: Tensor
    """[L, M] bool"""
    unit: float
    """The size of the targets."""


def errors(rollouts: Recorded) -> Passed:
    """The errors of R2D2 and IQN equal their formula, from both networks' values of each sequence."""
    largest, tolerance = 0.0, max(TOLERANCE, rollouts.drawn.one.setup.tolerance)
    for one in _written(rollouts.drawn):
        gap = (one.found.error.double().cpu() - one.error).abs().masked_fill(~one.learned, 0)
        largest = max(largest, float(gap.nan_to_num(nan=torch.inf).max()) / one.unit)
        if not largest <= tolerance:
            raise Problem(
                f"the errors of a minibatch differ from their formula by {largest:.1e} (tolerance "
                f"{tolerance:.0e}), with {one.settings}",
                "Likely cause: a time limit counts as a termination or the other way round, the wrong "
                "network chooses or values the next action, starts from the other's state, or targets are "
                "rescaled at the wrong place",
                "Fix: see the equations of recollect.algos.r2d2 and iqn",
                measured=largest,
                tolerance=tolerance,
            )
    return Passed(f"the errors of {COUNT} sequences equal their formula", largest, tolerance)


def losses(rollouts: Recorded) -> Passed:
    """The loss equals its formula: summed over learned steps, each with the weight of its own sequence."""
    largest, tolerance = 0.0, max(TOLERANCE, rollouts.drawn.one.setup.tolerance)
    for one in _written(rollouts.drawn):
        found = float(one.found.total)
        gap = abs(found - one.total) / max(abs(one.total), 1e-6)
        largest = max(largest, gap)
        if not gap <= tolerance:
            raise Problem(
                f"the loss of {COUNT} sequences is {found:.5g}, and its formula gives {one.total:.5g}, with "
                f"{one.settings}",
                "Likely cause: the weight of a sequence goes to another, padding counts, or the fractions, "
                "sides or means of quantiles are mixed up",
                "Fix: see the equations of recollect.algos.r2d2 and iqn",
                measured=gap,
                tolerance=tolerance,
            )
    return Passed(f"the loss of {COUNT} sequences equals its formula", largest, tolerance)


def _written(drawn: Drawn) -> Iterator[Written]:
    learner, policy = drawn.learner, drawn.one.policy
    if learner.algorithm not in (r2d2, iqn) or not isinstance(policy.head, QHead):
        raise Skip("the loss of an algorithm or head of your own is not known")
    device = drawn.sample.reward.device
    generator = torch.Generator().manual_seed(6)
    target = copy.deepcopy(policy)
    with torch.no_grad():  # other weights, so that the networks cannot be mixed up
        for parameter in target.parameters():
            parameter += 0.2 * torch.randn(parameter.shape, generator=generator).to(device)
    weight = torch.rand(COUNT, generator=generator).to(device) + 0.5
    sample = replace(drawn.sample, reward=drawn.sample.reward.clone())
    sample.reward[:, ::2] *= -1  # so that errors have both signs
    for settings in TRIED:
        used = {name: value for name, value in settings.items() if hasattr(drawn.algo, name)}
        algo: Any = replace(cast(Any, drawn.algo), **used)
        batch = windows(policy, target, sample, algo, weight=weight)
        with torch.no_grad(), _fractions(policy, target) as fractions:
            found = learner.algorithm.loss(
                policy, target, batch, algo, torch.Generator(device).manual_seed(0)
            )
        formula = _iqn if learner.algorithm is iqn else _r2d2
        with torch.no_grad():
            error, each, unit = formula(drawn, batch, policy, target, algo, fractions)
        learned = batch.learned.cpu()
        total = (each * weight.cpu()).masked_fill(~learned, 0).sum() / learned.sum().clamp(min=1)
        yield Written(
            ", ".join(f"{name}={value}" for name, value in used.items()),
            found,
            error,
            float(total),
            learned,
            unit,
        )


@contextmanager
def _fractions(*networks: Policy) -> Iterator[list[Tensor]]:
    """The fractions [L, M, N] that each network's quantiles are asked for, in the order of the networks."""
    seen: list[Tensor] = [torch.empty(0)] * len(networks)

    def watching(number: int, quantiles: Any) -> Any:
        def watched(y: Tensor, fractions: Tensor, mask: Any = None) -> Tensor:
            if fractions.dim() > 1:  # not the fixed ones of action values
                seen[number] = fractions.clone()
            return quantiles(y, fractions, mask)

        return watched

    heads = [network.head for network in networks if isinstance(network.head, QuantileHead)]
    patches = [
        mock.patch.object(head, "quantiles", watching(i, head.quantiles)) for i, head in enumerate(heads)
    ]
    for patch in patches:
        patch.start()
    try:
        yield seen
    finally:
        for patch in patches:
            patch.stop()


def _unrolled(drawn: Drawn, network: Policy) -> Tensor:
    """[L + n, M, D]: the inputs of the head, unrolled over burn-in and sequence at once."""
    sample = drawn.sample
    state = network.initial_state(COUNT) if sample.state is None else sample.state
    return network.unroll_core(sample.obs, state, sample.first)[0][drawn.algo.burn_in_steps :]


def _over(drawn: Drawn, batch: Windows, algo: ReplayConfig) -> Tensor:
    """[L + n, M] bool: where targets end. That a limit was one is known from the log, not from the batch."""
    K = drawn.algo.burn_in_steps
    over, cut = (cast(Tensor, drawn.of_log(name))[K:] for name in ("terminated", "truncated"))
    return (over if algo.bootstrap_time_limits else over | cut) & batch.is_step


def _r2d2(
    drawn: Drawn, batch: Windows, policy: Policy, target: Policy, algo: Any, fractions: list[Tensor]
) -> tuple[Tensor, Tensor, float]:
    """Errors [L, M], losses [L, M] and the size of targets, in float64."""
    head, mask = cast(QHead, policy.head), policy.mask(batch.obs)
    (q,), (older,) = (
        cast(QHead, network.head)(_unrolled(drawn, network), mask) for network in (policy, target)
    )
    best = valued(head, older, preferred(head, q if algo.double else older)).double()
    if algo.rescale:  # h^-1 in the paper's form
        size = best.abs()
        best = best.sign() * ((((1 + 4e-3 * (size + 1.001)).sqrt() - 1) / 2e-3) ** 2 - 1)
    total, power, at = n_step_parts(batch, _over(drawn, batch, algo), algo)
    goal = total + power * best.cpu().gather(0, at)
    if algo.rescale:
        goal = goal.sign() * ((goal.abs() + 1).sqrt() - 1) + 1e-3 * goal
    chosen = valued(head, q, cast(Tensor, batch.action)).double().cpu()[: len(goal)]
    error = (goal - chosen).abs()
    return error, 0.5 * error.square(), float(goal.abs().max().clamp(min=1))


def _iqn(
    drawn: Drawn, batch: Windows, policy: Policy, target: Policy, algo: Any, fractions: list[Tensor]
) -> tuple[Tensor, Tensor, float]:
    """The same of IQN, at the fractions that were drawn."""
    head, older_head = cast(QuantileHead, policy.head), cast(QuantileHead, target.head)
    y, older = _unrolled(drawn, policy), _unrolled(drawn, target)
    mask, tau = policy.mask(batch.obs), fractions[0]
    q = head(y, mask)[0] if algo.double else older_head(older, mask)[0]
    total, power, at = n_step_parts(batch, _over(drawn, batch, algo), algo)
    column, at = torch.arange(at.shape[1], device=y.device), at.to(y.device)
    choices = preferred(head, q)[at, column]  # [L, M, ...]
    later = valued(head, older_head.quantiles(older[at, column], fractions[1]), choices).double().cpu()
    goal = total.unsqueeze(-1) + power.unsqueeze(-1) * later  # [L, M, N']
    action = tree.map(lambda leaf: leaf[: len(tau)], batch.action)
    z = valued(head, head.quantiles(y[: len(tau)], tau), cast(Tensor, action)).double().cpu()  # [L, M, N]
    tau, each = tau.double().cpu(), torch.zeros(total.shape, dtype=torch.float64)
    for i, j in product(range(z.shape[-1]), range(goal.shape[-1])):
        delta = goal[..., j] - z[..., i]
        size = delta.abs()
        huber = torch.where(size <= algo.kappa, size.square() / 2, algo.kappa * (size - algo.kappa / 2))
        side = torch.where(delta < 0, 1 - tau[..., i], tau[..., i])
        each += side * huber / algo.kappa / goal.shape[-1]
    error = (goal.mean(-1) - z.mean(-1)).abs()
    return error, each, float(goal.abs().max().clamp(min=1))


def preferred(head: QHead, q: Tensor) -> Tensor:
    """[..., D]: the best choice of each component, for q [..., sum(nvec)]."""
    return torch.stack([part.argmax(-1) for part in q.split(head.nvec, -1)], -1)


def valued(head: QHead, q: Tensor, choices: Tensor) -> Tensor:
    """The value of choices [..., D], or of actions as stored, for values or quantiles [..., sum(nvec)]."""
    choices = choices.reshape(*q.shape[:2], len(head.nvec))
    found = torch.zeros(q.shape[:-1], device=q.device)
    for number, part in enumerate(q.split(head.nvec, -1)):
        own = choices[..., number].reshape(*q.shape[:2], *[1] * (q.dim() - 2))
        found = found + part.gather(-1, own.expand(*q.shape[:-1], 1)).squeeze(-1)
    return found


def n_step_parts(batch: Windows, over: Tensor, algo: ReplayConfig) -> tuple[Tensor, Tensor, Tensor]:
    """Of each learned step, [L, M]: the sum of rewards, the factor of the value after it, and its slot.

    Written out step by step in float64, on the CPU.
    """
    reward, is_over, is_step = (x.tolist() for x in (batch.reward.double(), over, batch.is_step))
    L, M = batch.weight.shape
    total, power = torch.zeros(2, L, M, dtype=torch.float64)
    at = torch.zeros(L, M, dtype=torch.int64)
    for j, column in product(range(L), range(M)):
        m, ended = 0, not is_step[j][column]
        while m < algo.n_step and not ended and is_step[j + m][column]:
            total[j, column] += algo.gamma**m * reward[j + m][column]
            ended = is_over[j + m][column]
            m += 1
        power[j, column] = 0.0 if ended else algo.gamma**m
        at[j, column] = j if ended else j + m
    return total, power, at
