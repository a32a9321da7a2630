"""Steps of the optimiser against Adam written out in float64, one parameter at a time."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from recollect.algos.catalog import make_learner
from recollect.audit.recorded_rollouts import RecordedRollout
from recollect.audit.results import Passed, Problem
from recollect.base.formatting import tiny

RATES = {"trunk": 1e-3, "actor": 2e-3, "critic": 5e-3}
"""Learning rates that are tried, where an algorithm has several."""
LIMIT = 0.5
"""The norm that gradients are clipped to."""
DECAY, SQUARE_DECAY, LEAST_DIVISOR = 0.9, 0.999, 1e-5
TOLERANCE = 2e-3
"""Of a step, in units of the learning rate."""
STEPS: tuple[tuple[float, float | None, float], ...] = (
    (1e-4, None, 1.0),
    (10.0, None, 0.8),
    (10.0, 1.0, 0.5),
    (10.0, 0.0, 0.5),
    (1e-2, None, 0.1),
)
"""(norm of the gradient, the flag on the device that skips the step, share of the learning rate) of each."""


def optimiser(rollouts: Sequence[RecordedRollout]) -> Passed:
    """Every weight moves by Adam's step, with the rate of its group and the whole gradient's norm clipped."""
    one = rollouts[-1]
    policy = copy.deepcopy(one.policy)
    config: Any = _with_rates(one.setup.config.algo, has_critic=policy.has_critic)
    learner = make_learner(policy, config, rows=one.rollout.rows, seed=0)
    named = {name: p for name, p in learner.named_parameters() if p.requires_grad}
    plain = {name: _Plain(p) for name, p in named.items()}
    rates, generator, largest = _rates(policy, config), torch.Generator().manual_seed(3), 0.0
    for number, (norm, skip, share) in enumerate(STEPS):
        made = [torch.randn(p.shape, generator=generator).to(p) for p in named.values()]
        size = float(torch.cat([grad.flatten() for grad in made]).norm())
        for p, grad in zip(named.values(), made):
            p.grad = grad * (norm / size)
        grads = {name: p.grad.double().cpu() for name, p in named.items() if p.grad is not None}
        learner.optimizer.set_rates(share)
        flag = None if skip is None else torch.full((), skip, device=policy.device)
        learner.optimizer.clipped_step(learner.optimizer.norm(), LIMIT, skip=flag)
        for name, p in named.items():
            rate = float(rates.get(id(p)) or config.learning_rate)
            if not skip:
                plain[name].step(grads[name] * min(1.0, LIMIT / norm), rate * share)
            gap = float((p.detach().double().cpu() - plain[name].weight).abs().max()) / rate
            largest = max(largest, gap)
            if not gap <= TOLERANCE:
                raise Problem(
                    f"after step {number + 1} of the optimiser {name} is {gap:.1e} learning rates off Adam's "
                    "step",
                    _cause(skip, is_clipped=norm > LIMIT, is_first=number == 0),
                    "Fix: compare with torch.optim.Adam on a copy, step by step",
                    measured=gap,
                    tolerance=TOLERANCE,
                )
    return Passed(
        f"{len(STEPS)} steps of {len(named)} parameters, clipped and skipped ones too, are Adam's to "
        f"{tiny(largest)} learning rates",
        largest,
        TOLERANCE,
    )


def _with_rates(config: Any, *, has_critic: bool) -> Any:
    found = {"learning_rate": RATES["trunk"]}
    for name in ("actor", "critic"):
        if hasattr(config, f"{name}_learning_rate") and (has_critic or name == "actor"):
            found[f"{name}_learning_rate"] = RATES[name]
    return replace(config, **found)


def _rates(policy: Any, config: Any) -> dict[int, float]:
    """The learning rate of parameters that have one of their own: those of the heads, and of the critic's
    own network."""
    found: dict[int, float] = {}
    critic: list[nn.Module] = [policy.critic, *policy.trunks[1:]] if policy.has_critic else []
    for name, parts in (("actor", [policy.head]), ("critic", critic)):
        rate = getattr(config, f"{name}_learning_rate", None)
        if rate is not None:
            found |= {id(p): rate for part in parts for p in part.parameters()}
    return found


class _Plain:
    """One parameter in float64, with its moments."""

    def __init__(self, weight: Tensor) -> None:
        self.weight = weight.detach().double().cpu().clone()
        self.mean, self.square, self.count = torch.zeros_like(self.weight), torch.zeros_like(self.weight), 0

    def step(self, grad: Tensor, rate: float) -> None:
        self.count += 1
        self.mean = DECAY * self.mean + (1 - DECAY) * grad
        self.square = SQUARE_DECAY * self.square + (1 - SQUARE_DECAY) * grad**2
        mean = self.mean / (1 - DECAY**self.count)
        root = (self.square / (1 - SQUARE_DECAY**self.count)).sqrt()
        self.weight = self.weight - rate * mean / (root + LEAST_DIVISOR)


def _cause(skip: float | None, *, is_clipped: bool, is_first: bool) -> str:
    if skip:
        return "Likely cause: a step that is to be skipped is made, or counts"
    if is_clipped:
        return (
            "Likely cause: the gradient is not clipped by its norm over all parameters, moments or their "
            "corrections are wrong, or a skipped step has counted"
        )
    if is_first:
        return (
            "Likely cause: the sign, the learning rate of the parameter's group, the bias correction, weight "
            "decay, or a wrong smallest divisor"
        )
    return "Likely cause: wrong decay rates, a wrong count of steps, or a skipped step that has counted"
