"""Distributions of actions, against torch's own in float64: densities, sums over parts, entropies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch import distributions as reference

from recollect.audit.recorded_rollouts import RecordedRollout
from recollect.audit.results import Passed, Problem, Skip
from recollect.base import tree
from recollect.base.formatting import tiny
from recollect.base.types import Tree
from recollect.errors import ConfigError
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
from recollect.policy.heads import ActionHead

DRAWS = 2_000
ROWS = 8
"""Of a rollout, whose distributions are tried."""
FAR = 8.0
SIGMAS = 6.0
"""Standard errors that a mean of draws may be off."""
DENSITY_TOLERANCE, ENTROPY_TOLERANCE = 1e-4, 2e-3


def _distribution(one: RecordedRollout) -> Distribution:
    """The distributions [N] of some steps of a rollout."""
    outputs = _outputs(one)
    found = outputs[0]
    if not all(hasattr(found, name) for name in ("sample", "log_prob", "entropy")):
        raise Skip("the head has no distribution of actions")
    return found


@torch.no_grad()
def _outputs(one: RecordedRollout) -> tuple[Any, ...]:
    seen = tree.map(lambda leaf: leaf[:-1][one.log.valid][:ROWS], one.log.obs)
    rows = len(tree.leaves(seen)[0])
    first = torch.ones(rows, dtype=torch.bool, device=one.rollout.reward.device)
    return one.policy.step(seen, one.policy.initial_state(rows), first)


def _parts(dist: Any, action: Tree) -> Iterator[tuple[Any, Tree]]:
    """The leaves of a distribution with their actions."""
    if isinstance(dist, Joint):
        keys = dist.keys or range(len(dist.parts))
        for part, key in zip(dist.parts, keys):
            yield from _parts(part, action[key])
    elif isinstance(dist, Shaped):
        yield from _parts(dist.base, action.reshape(*action.shape[: action.dim() - len(dist.shape)], -1))
    else:
        yield dist, action


def _true_log_prob(dist: Any, action: Tensor) -> Tensor:
    """[N] float64, by torch's own distributions."""
    if isinstance(dist, TanhGaussian):
        normal = reference.Normal(dist.mean.double(), dist.log_std.double().exp())
        tanh = reference.TransformedDistribution(normal, reference.TanhTransform(cache_size=1))
        u = action.double()
        return (normal.log_prob(u) - tanh.transforms[0].log_abs_det_jacobian(u, u.tanh())).sum(-1)
    if isinstance(dist, Gaussian):
        return (
            reference.Normal(dist.mean.double(), dist.log_std.double().exp())
            .log_prob(action.double())
            .sum(-1)
        )
    if isinstance(dist, Bernoulli):
        found = reference.Bernoulli(logits=dist.logits.double()).log_prob(action.double())
        return found.sum(-1)
    if isinstance(dist, MultiCategorical):
        parts = reference.Categorical(logits=dist.parts.log_probs.double())
        return parts.log_prob(action).sum(-1)
    if isinstance(dist, Categorical):
        return reference.Categorical(logits=dist.log_probs.double()).log_prob(action)
    raise Skip(f"{type(dist).__name__} is not one of Recollect's distributions")


def densities(rollouts: Sequence[RecordedRollout]) -> Passed:
    """Log-probabilities of drawn actions, squashed and of several parts, equal those of torch in float64."""
    dist, worst = _distribution(rollouts[-1]), 0.0
    generator = torch.Generator(rollouts[-1].rollout.reward.device).manual_seed(1)
    kinds: set[str] = set()
    for number in range(16):
        action = dist.sample(generator)
        if number % 2:  # far out: tanh of it is 1 in float32
            action = tree.map(lambda leaf: leaf * FAR if leaf.is_floating_point() else leaf, action)
        parts = list(_parts(dist, action))
        kinds |= {type(part).__name__ for part, _ in parts}
        truth = sum(_true_log_prob(part, own) for part, own in parts)
        assert isinstance(truth, Tensor)
        gap = (dist.log_prob(action).double() - truth).abs() / truth.abs().clamp(min=1)
        worst = max(worst, float(gap.nan_to_num(nan=torch.inf).max()))
        if not worst <= DENSITY_TOLERANCE:
            squashed = any(isinstance(part, TanhGaussian) for part, _ in parts)
            cause = "the log-probability is not that of the distribution that is drawn from"
            if squashed:
                cause = "the Jacobian of tanh is left out, or the squashed action is taken for the one before"
            elif len(parts) > 1:
                cause = "the parts of the action are not summed, or one of them is left out"
            raise Problem(
                f"log-probabilities of {' + '.join(sorted(kinds))} are off by {worst:.1e} (tolerance "
                f"{DENSITY_TOLERANCE:.0e})",
                f"Likely cause: {cause}",
                "Fix: log p(a) = sum over parts; of tanh(u): log N(u) - sum log(1 - tanh(u)^2)",
                measured=worst,
                tolerance=DENSITY_TOLERANCE,
            )
    return Passed(
        f"log-probabilities of {' + '.join(sorted(kinds))} to {tiny(worst)}", worst, DENSITY_TOLERANCE
    )


def entropies(rollouts: Sequence[RecordedRollout]) -> Passed:
    """The entropy equals the mean of -log p over draws, within its standard error."""
    dist = _distribution(rollouts[-1])
    generator = torch.Generator(rollouts[-1].rollout.reward.device).manual_seed(2)
    with torch.no_grad():
        drawn = torch.stack([-dist.log_prob(dist.sample(generator)).double() for _ in range(DRAWS)])
        entropy = dist.entropy().double()
    error = drawn.std(0) / DRAWS**0.5
    off = (entropy - drawn.mean(0)).abs() - SIGMAS * error
    worst = float(off.nan_to_num(nan=torch.inf).max())
    if not worst <= ENTROPY_TOLERANCE:
        row = int(off.argmax())
        raise Problem(
            f"the entropy of a row is {float(entropy[row]):.3f}, and the mean of -log p over {DRAWS} draws "
            f"{float(drawn[:, row].mean()):.3f} +- {float(error[row]):.3f}",
            "Likely cause: the entropy of a squashed action is that of the one before the tanh, a part is "
            "left out of the sum, or masked actions count",
            "Fix: H[tanh(u)] = H[u] + E[log(1 - tanh(u)^2)]; of several parts, the sum",
            measured=worst,
            tolerance=ENTROPY_TOLERANCE,
        )
    return Passed(
        f"entropies {float(entropy.min()):.2f} to {float(entropy.max()):.2f} agree with {DRAWS} draws",
        max(worst, 0.0),
        ENTROPY_TOLERANCE,
    )


def exploration(rollouts: Sequence[RecordedRollout]) -> str:
    """A head that draws from its distribution refuses a rate of exploration, which it would ignore."""
    one = rollouts[-1]
    if not isinstance(one.policy.head, ActionHead):
        raise Skip("the head is your own")
    outputs = _outputs(one)[:-1]
    rates = torch.ones(len(outputs[1]), device=one.rollout.reward.device)
    try:
        one.policy.head.choose(outputs, None, False, rates)
    except ConfigError:
        return "a rate of exploration is refused: actions are drawn from their distribution"
    raise Problem(
        "the head takes a rate of exploration and ignores it",
        "Likely cause: it is an argument of `choose` that nothing reads",
        "Fix: raise, or use it",
    )
