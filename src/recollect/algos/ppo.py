"""Recurrent proximal policy optimisation.

Schulman et al. 2017, *Proximal Policy Optimization Algorithms*; with memory, minibatches are drawn
over rows x chunks, and each chunk is unrolled from the state that its first action was chosen in.

::

    r      = pi(a | o, h) / pi_old(a | o, h)
    L_clip = -E[min(r A, clip(r, 1 - clip, 1 + clip) A)]
    L_V    = 1/2 E[((V - R) / sigma)^2]            sigma: the returns' spread (PopArt), else 1
    L      = L_clip + value_coef L_V - entropy E[H] [+ l2_init |w - w0|^2] [+ next_obs_coef L_next]

Expectations are over valid steps only. Advantages A and returns R come from GAE over the whole
rollout, in real units, before any chunking; A is normalised once per batch.
"""

from __future__ import annotations

import torch
from torch import Tensor

from recollect.config.learner import RecurrentMode
from recollect.config.ppo import PPOConfig
from recollect.experience.chunks import Chunks
from recollect.experience.returns import gae
from recollect.experience.rollout import Rollout
from recollect.learning import diagnostics
from recollect.learning.learner import Data, Learner, Stats, normalise, squared_error
from recollect.learning.optimiser import parameter_groups
from recollect.learning.recompute import evaluate
from recollect.learning.refresh import Refreshed, recorded
from recollect.policy.policy import Policy

__all__ = ["PPO", "PPOConfig", "RecurrentMode", "loss", "normalise", "parameter_groups"]


def loss(
    policy: Policy,
    batch: Chunks,
    config: PPOConfig,
    entropy_coef: float | Tensor,
    count: Tensor,
    features: list[Tensor] | None = None,
) -> tuple[Tensor, Stats]:
    """The PPO loss of a minibatch of chunks, and what is worth knowing of it.

    ``count`` is the number of valid steps that the sums are divided by. What the heads saw, [L, N, D], is
    added to ``features`` if that is given.
    """
    log_prob, entropy, value = evaluate(policy, batch, config.recompute_activations, features)
    data = batch.data
    # A product, not a selection: what invalid steps hold is finite, because make_chunks cleared it.
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
        } | diagnostics.deviation(log_prob, value, batch)
    return total, stats


class PPO(Learner[PPOConfig]):
    """The learner."""

    def _prepare(self, rollout: Rollout, lag: int) -> tuple[Rollout, Data, Stats]:
        # With a lag too: the ratio corrects for it, and values are those that were recorded.
        return rollout, *self._targets(rollout)

    def _targets(self, rollout: Rollout) -> tuple[Data, Stats]:
        """Advantages and returns of a fresh rollout, and their metrics; moves the value statistics."""
        return self._described(rollout, *self._estimate(rollout, recorded(rollout)))

    def _estimate(self, rollout: Rollout, made: Refreshed) -> tuple[Tensor, Tensor]:
        return gae(
            reward=self._reward(rollout),
            value=made.value,
            terminated=rollout.terminated,
            truncated=rollout.truncated,
            final_value=made.final_value,
            bootstrap=made.bootstrap,
            gamma=self.config.gamma,
            gae_lambda=self.config.gae_lambda,
            valid=rollout.valid,
        )

    def _objective(
        self, batch: Chunks, entropy_coef: float | Tensor, count: Tensor, features: list[Tensor] | None = None
    ) -> tuple[Tensor, Stats]:
        return loss(self.policy, batch, self.config, entropy_coef, count, features)
