"""IMPALA: an actor-critic that corrects for the age of its experience.

Espeholt et al. 2018, *IMPALA: Scalable Distributed Deep-RL with Importance Weighted Actor-Learner
Architectures*. mu is the policy that acted, pi the one that learns; pi is newer by ``lag`` updates.

::

    rho    = min(rho_clip, pi(a | o, h) / mu(a | o, h))
    c      = lambda min(c_clip, pi / mu)
    delta  = rho (r + gamma V' - V)                 V': 0 if terminated, V(final observation) if truncated
    vs     = V + delta + gamma c (vs' - V')         up to the episode's end, or V(o_T, h_T) at the rollout's
    A      = rho (r + gamma (V' + lambda (vs' - V')) - V)
    L_pi   = -E[A / sigma log pi]                   sigma: the returns' spread (PopArt), else 1
    L_V    = 1/2 E[((V - vs) / sigma)^2]
    L      = L_pi + value_coef L_V - entropy E[H] [+ l2_init |w - w0|^2] [+ next_obs_coef L_next]

pi, V and the memory h come from one replay of the rollout from its first stored state, with the weights at
the start of the update. With a lag, chunks start from the states of that replay, too. Without a lag pi is mu,
and A and vs equal GAE's. Dividing by sigma (Hessel et al. 2019, *Multi-task Deep RL with PopArt*) makes
learning rate and entropy coefficient independent of the scale of the rewards.

With ``clip`` the policy loss is PPO's, after Petrenko et al. 2020 (APPO)::

    r      = pi(a | o, h) / pi_0(a | o, h)          pi_0: the policy at the start of the update
    L_clip = -E[min(r A, clip(r, 1 - clip, 1 + clip) A)] / sigma

Its gradient equals that of L_pi at the first step of an update, and is 0 once the ratio has left the clip
range. The ratio is to pi_0 and not to mu, as in Hilton et al. 2022, *Batch size-invariance for policy
optimization*; rho, a factor of A, corrects for the difference between the two.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from recollect.config.impala import ImpalaConfig
from recollect.experience.chunks import Chunks
from recollect.experience.returns import vtrace
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
from recollect.learning.refresh_rollout import Outputs, refresh
from recollect.policy.policy import Policy

START = "start_log_prob"
"""The name of log pi_0 among the targets."""
ROUNDING = 1e-3
"""A ratio this little above a clip does not count as clipped: 1 is often computed as 1.0000001."""


def acting(config: ImpalaConfig) -> Acting:
    """Final observations are kept: every rollout is replayed."""
    return Acting(config.state_steps, keeps_finals=True, record=RECORD)


def advantages(rollout: Rollout, outputs: Outputs, config: ImpalaConfig) -> tuple[Tensor, Tensor]:
    """A and vs [T, B] by V-trace, given the policy's outputs for the rollout."""
    return vtrace(
        log_ratio=outputs.record["log_prob"] - rollout.record["log_prob"],
        reward=scaled_reward(rollout, config),
        value=outputs.record["value"],
        terminated=rollout.terminated,
        truncated=rollout.truncated,
        final_value=outputs.final_value,
        bootstrap=outputs.bootstrap,
        gamma=config.gamma,
        gae_lambda=config.gae_lambda,
        rho_clip=config.rho_clip,
        c_clip=config.c_clip,
        valid=rollout.valid,
    )


def targets(
    policy: Policy,
    rollout: Rollout,
    config: ImpalaConfig,
    ranks: Ranks = ALONE,
    *,
    lag: int = 0,
    outputs: Outputs | None = None,
) -> Targets:
    """A / sigma, vs and log pi_0, from a replay of a new rollout, or from ``outputs`` between two epochs."""
    made = outputs or refresh(policy, rollout)
    advantage, returns = advantages(rollout, made, config)
    data, metrics = {"return": returns, START: made.record["log_prob"]}, {}
    if outputs is None:
        data["value"], metrics = update_value_statistics(policy, rollout, advantage, returns, ranks)
        metrics |= _ratios(rollout, made, config, ranks)
    advantage = advantage / policy.value_scale
    data["advantage"] = (
        normalise(advantage, rollout.valid, ranks) if config.normalise_advantages else advantage
    )
    if lag > 0:  # else the stored states are the same, and the deviation check proves it
        rollout = replace(rollout, states=made.states)
    return Targets(rollout, data, metrics)


def _ratios(rollout: Rollout, made: Outputs, config: ImpalaConfig, ranks: Ranks) -> Stats:
    """Metrics of pi / mu over the valid steps of all ranks."""
    log_ratio, valid = ranks.gather(made.record["log_prob"] - rollout.record["log_prob"], rollout.valid)
    ratio, count = log_ratio.masked_fill(~valid, -torch.inf).exp(), valid.sum().clamp(min=1)
    found = {
        "rho/mean": ratio.clamp(max=config.rho_clip),
        "rho/clipped": (ratio > config.rho_clip + ROUNDING).float(),
        "c/clipped": (ratio > config.c_clip + ROUNDING).float(),
    }
    return {name: x.sum() / count for name, x in found.items()}


def loss(
    policy: Policy,
    batch: Chunks,
    config: ImpalaConfig,
    entropy_coef: float | Tensor,
    count: Tensor,
    features: list[Tensor] | None = None,
) -> tuple[Tensor, Stats]:
    """L of a minibatch of chunks, and its statistics; arguments as in ``Algorithm.loss``."""
    log_prob, entropy, value = evaluate(policy, batch, config.recompute_activations, features)
    data, invalid = batch.data, ~batch.valid
    # A product, not a selection: the numbers at invalid steps are finite, because make_chunks cleared them.
    weight = batch.valid.flatten().to(log_prob.dtype) / count

    def mean(x: Tensor) -> Tensor:
        return torch.dot(x.flatten(), weight)

    advantage = data["advantage"]
    stats: Stats = {}
    if config.clip is None:
        policy_loss = -mean(log_prob.masked_fill(invalid, 0) * advantage)
    else:
        ratio = (log_prob - data[START]).masked_fill(invalid, 0).exp()
        clipped = ratio.clamp(1 - config.clip, 1 + config.clip)
        policy_loss = -mean(torch.minimum(ratio * advantage, clipped * advantage))
        stats["clip_fraction"] = mean((ratio != clipped).to(ratio.dtype)).detach()
    value_loss = 0.5 * mean(squared_error(value, data, policy.value_scale))
    entropy_mean = mean(entropy)
    total = policy_loss + config.value_coef * value_loss - entropy_coef * entropy_mean
    with torch.no_grad():
        log_ratio = (log_prob - data["log_prob"]).masked_fill(invalid, 0)
        stats |= {
            "loss/policy": policy_loss.detach(),
            "loss/value": value_loss.detach(),
            "entropy": entropy_mean.detach(),
            "kl": mean(log_ratio.expm1() - log_ratio),  # k3: unbiased and never negative
        } | diagnostics.deviation({"log_prob": log_prob, "value": value}, batch)
    return total, stats
