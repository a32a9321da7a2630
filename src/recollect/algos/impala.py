"""IMPALA: an actor-critic that corrects for the age of its experience.

Espeholt et al. 2018, *IMPALA: Scalable Distributed Deep-RL with Importance Weighted Actor-Learner
Architectures*. mu is the policy that acted, pi the one that learns; between them lie the updates that
the actors did not hear of.

::

    rho    = min(rho_clip, pi(a | o, h) / mu(a | o, h))
    c      = lambda min(c_clip, pi / mu)
    delta  = rho (r + gamma V' - V)                 V': 0 after a death, V of what was seen last after a cut
    vs     = V + delta + gamma c (vs' - V')         up to the episode's end, or V(o_T, h_T) at the rollout's
    A      = rho (r + gamma (V' + lambda (vs' - V')) - V)
    L_pi   = -E[A / sigma log pi]                   sigma: the returns' spread (PopArt), else 1
    L_V    = 1/2 E[((V - vs) / sigma)^2]
    L      = L_pi + value_coef L_V - entropy E[H] [+ l2_init |w - w0|^2] [+ next_obs_coef L_next]

pi, V and the memory h that they are taken in come from one replay of the rollout from its first stored
state, with the weights as they are when the update begins. Where weights have moved on since the rollout
was made, chunks start from the states of that replay, too. Without a lag pi is mu, and A and vs are what
GAE gives. Dividing by sigma (Hessel et al. 2019, *Multi-task Deep RL with PopArt*) makes learning rate and
entropy mean the same whatever the size of the rewards.

With ``clip`` the policy's loss is PPO's, after Petrenko et al. 2020 (APPO)::

    r      = pi(a | o, h) / pi_0(a | o, h)          pi_0: the policy when the update begins
    L_clip = -E[min(r A, clip(r, 1 - clip, 1 + clip) A)] / sigma

Its gradient is that of L_pi at the first step of an update, and stops where an update has moved far
enough. The ratio is to pi_0 and not to mu, as in Hilton et al. 2022, *Batch size-invariance for policy
optimization*; rho, which is part of A, makes up for the difference between those two.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from recollect.base import devices
from recollect.config.learner import LearnerConfig, require
from recollect.experience.returns import vtrace
from recollect.experience.rollout import Chunks, Rollout
from recollect.learning import diagnostics
from recollect.learning.learner import Data, Learner, Stats, squared_error
from recollect.learning.recompute import evaluate
from recollect.learning.refresh import Refreshed, refresh
from recollect.policy.policy import Policy

START = "start_log_prob"
"""The name of log pi_0 among what is cut into sequences."""
ROUNDING = 1e-3
"""A ratio this little above a clip does not count as clipped: 1 is often computed as 1.0000001."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImpalaConfig(LearnerConfig):
    """The settings of IMPALA. docs/algorithms.md says how the defaults were chosen."""

    rollout: int = 32
    """T: steps that every row records between two updates."""
    epochs: int = 1
    """Passes over each rollout; more than one make sense with ``clip``."""
    rho_clip: float = 1.0
    """The most that a step counts for, as the ratio of its probability now and when it was taken."""
    c_clip: float = 1.0
    """The most that a step passes on of what came after it; at most ``rho_clip``."""
    clip: float | None = None
    """If set, PPO's clip: how far a probability ratio may move in an update before its gradient stops."""
    normalise_advantages: bool = False
    """Advantages to mean 0 and spread 1, once over all valid steps of the batch."""

    def __post_init__(self) -> None:
        """Refuse what cannot be meant."""
        LearnerConfig.__post_init__(self)  # no super(): slots make the class anew
        self.require_positive("rho_clip", "c_clip", "clip")
        require(
            self.c_clip <= self.rho_clip,
            f"c_clip = {self.c_clip} is above rho_clip = {self.rho_clip}: V-trace needs it at most that",
        )

    @property
    def needs_finals(self) -> bool:
        """Always: the rollout is replayed as a whole."""
        return True


def loss(
    policy: Policy,
    batch: Chunks,
    config: ImpalaConfig,
    entropy_coef: float | Tensor,
    count: Tensor,
    features: list[Tensor] | None = None,
) -> tuple[Tensor, Stats]:
    """The loss of a minibatch of chunks, and what is worth knowing of it.

    ``count`` is the number of valid steps that the sums are divided by. What the heads saw, [L, N, D], is
    added to ``features`` if that is given.
    """
    log_prob, entropy, value = evaluate(policy, batch, config.recompute_activations, features)
    data, invalid = batch.data, ~batch.valid
    # A product, not a selection: what invalid steps hold is finite, because make_chunks cleared it.
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
        } | diagnostics.deviation(log_prob, value, batch)
    return total, stats


class Impala(Learner[ImpalaConfig]):
    """The learner."""

    def _prepare(self, rollout: Rollout, lag: int) -> tuple[Rollout, Data, Stats]:
        fresh = refresh(self.policy, rollout)
        data, metrics = self._described(rollout, *self._estimate(rollout, fresh))
        metrics |= self._ratios(rollout, fresh)
        if lag > 0:  # else those that were stored are the same, and proof that they are
            rollout = replace(rollout, states=fresh.states)
        return rollout, data | {START: fresh.log_prob}, metrics

    def _retarget(self, rollout: Rollout, fresh: Refreshed) -> Data:
        return self._data(rollout, *self._estimate(rollout, fresh)) | {START: fresh.log_prob}

    def _data(self, rollout: Rollout, advantage: Tensor, returns: Tensor) -> Data:
        return Learner._data(self, rollout, advantage / self.policy.value_scale, returns)

    def _estimate(self, rollout: Rollout, made: Refreshed) -> tuple[Tensor, Tensor]:
        config = self.config
        return vtrace(
            log_ratio=made.log_prob - rollout.record["log_prob"],
            reward=self._reward(rollout),
            value=made.value,
            terminated=rollout.terminated,
            truncated=rollout.truncated,
            final_value=made.final_value,
            bootstrap=made.bootstrap,
            gamma=config.gamma,
            gae_lambda=config.gae_lambda,
            rho_clip=config.rho_clip,
            c_clip=config.c_clip,
            valid=rollout.valid,
        )

    def _ratios(self, rollout: Rollout, fresh: Refreshed) -> Stats:
        """How far pi is from mu over the valid steps of all ranks, as V-trace sees it."""
        config = self.config
        log_ratio, valid = self.ranks.gather(fresh.log_prob - rollout.record["log_prob"], rollout.valid)
        if devices.synchronises(valid):  # by selection, which reads nothing
            ratio, count = log_ratio.masked_fill(~valid, -torch.inf).exp(), valid.sum().clamp(min=1)
        else:
            ratio = log_ratio[valid].exp()
            count = ratio.numel()
        found = {
            "rho/mean": ratio.clamp(max=config.rho_clip),
            "rho/clipped": (ratio > config.rho_clip + ROUNDING).float(),
            "c/clipped": (ratio > config.c_clip + ROUNDING).float(),
        }
        return {name: x.sum() / count for name, x in found.items()}

    def _objective(
        self, batch: Chunks, entropy_coef: float | Tensor, count: Tensor, features: list[Tensor] | None = None
    ) -> tuple[Tensor, Stats]:
        return loss(self.policy, batch, self.config, entropy_coef, count, features)
