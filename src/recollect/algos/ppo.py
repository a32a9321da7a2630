"""Recurrent proximal policy optimisation (PPO).

Schulman et al. 2017, *Proximal Policy Optimization Algorithms*. With memory, minibatches are drawn from
chunks of rows, and each chunk is unrolled from the state in which its first action was chosen.

::

    r      = pi(a | o, h) / pi_old(a | o, h)
    L_clip = -E[min(r A, clip(r, 1 - clip, 1 + clip) A)]
    L_V    = 1/2 E[((V - R) / sigma)^2]            sigma: the returns' spread (PopArt), else 1
    L      = L_clip + value_coef L_V - entropy E[H] [+ l2_init |w - w0|^2] [+ next_obs_coef L_next]

Expectations are over valid steps only. Advantages A and returns R are GAE's, computed over the whole rollout
in real units before it is split into chunks; A is normalised once per batch. The learner adds the terms in
brackets.
"""

from __future__ import annotations

import torch
from torch import Tensor

from recollect.config.ppo import PPOConfig
from recollect.experience.chunks import Chunks
from recollect.experience.returns import gae
from recollect.experience.rollout import Rollout
from recollect.learning import diagnostics
from recollect.learning.actor_critic import (
    RECORD,
    normalise,
    scaled_reward,
    squared_error,
    update_value_statistics,
)
from recollect.learning.algorithm import Acting, Stats, Targets
from recollect.learning.ranks import ALONE, Ranks
from recollect.learning.recompute_activations import evaluate
from recollect.learning.refresh_rollout import Outputs, recorded
from recollect.policy.policy import Policy


def acting(config: PPOConfig) -> Acting:
    """Final observations are evaluated again only if values are recomputed between epochs."""
    is_evaluated_again = config.refresh_states or config.recompute_advantages
    return Acting(config.state_steps, is_evaluated_again, record=RECORD)


def advantages(rollout: Rollout, outputs: Outputs, config: PPOConfig) -> tuple[Tensor, Tensor]:
    """A and R [T, B] by GAE, given the policy's outputs for the rollout."""
    return gae(
        reward=scaled_reward(rollout, config),
        value=outputs.record["value"],
        terminated=rollout.terminated,
        truncated=rollout.truncated,
        final_value=outputs.final_value,
        bootstrap=outputs.bootstrap,
        gamma=config.gamma,
        gae_lambda=config.gae_lambda,
        valid=rollout.valid,
    )


def targets(
    policy: Policy,
    rollout: Rollout,
    config: PPOConfig,
    ranks: Ranks = ALONE,
    *,
    lag: int = 0,
    outputs: Outputs | None = None,
) -> Targets:
    """A and R, from the recorded values of a new rollout, or from ``outputs`` between two epochs.

    A lag changes nothing: the ratio r corrects for it.
    """
    advantage, returns = advantages(rollout, outputs or recorded(rollout), config)
    data, metrics = {"return": returns}, {}
    if outputs is None:
        data["value"], metrics = update_value_statistics(policy, rollout, advantage, returns, ranks)
    data["advantage"] = (
        normalise(advantage, rollout.valid, ranks) if config.normalise_advantages else advantage
    )
    return Targets(rollout, data, metrics)


def loss(
    policy: Policy,
    batch: Chunks,
    config: PPOConfig,
    entropy_coef: float | Tensor,
    count: Tensor,
    features: list[Tensor] | None = None,
) -> tuple[Tensor, Stats]:
    """L of a minibatch of chunks, and its statistics; arguments as in ``Algorithm.loss``."""
    log_prob, entropy, value = evaluate(policy, batch, config.recompute_activations, features)
    data = batch.data
    # A product, not a selection: the numbers at invalid steps are finite, because make_chunks cleared them.
    weight = batch.valid.flatten().to(log_prob.dtype) / count

    def mean(x: Tensor) -> Tensor:
        return torch.dot(x.flatten(), weight)

    log_ratio = (log_prob - data["log_prob"]).masked_fill(~batch.valid, 0)
    ratio = log_ratio.exp()
    advantage = data["advantage"]
    clipped = ratio.clamp(1 - config.clip, 1 + config.clip)
    policy_loss = -mean(torch.minimum(ratio * advantage, clipped * advantage))
    value_loss = 0.5 * mean(squared_error(value, data, policy.value_scale, config.value_clip))
    entropy_mean = mean(entropy)
    total = policy_loss + config.value_coef * value_loss - entropy_coef * entropy_mean
    with torch.no_grad():
        stats = {
            "loss/policy": policy_loss.detach(),
            "loss/value": value_loss.detach(),
            "entropy": entropy_mean.detach(),
            "kl": mean(log_ratio.expm1() - log_ratio),  # k3: unbiased and never negative
            "clip_fraction": mean((ratio != clipped).to(ratio.dtype)),
        } | diagnostics.deviation({"log_prob": log_prob, "value": value}, batch)
    return total, stats
