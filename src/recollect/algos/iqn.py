"""Implicit quantile networks (IQN).

Dabney et al. 2018, *Implicit Quantile Networks for Distributional Reinforcement Learning*: the network
predicts the return's quantile z_tau at any fraction tau. Sequences are replayed as by R2D2.

::

    Q(o, h, a)  = mean of z_tau(o, h, a) at N midpoints of [0, 1]
    a*          = argmax_a Q(o', h', a)             the learning network (double), or the target network
    y_j         = sum_{i<m} gamma^i r_i + gamma^m z_target,tau_j'(o', h', a*)       tau_j' uniform in [0, 1]
    delta_ij    = y_j - z_tau_i(o, h, a)                                            tau_i uniform in [0, 1]
    L           = E[w sum_i mean_j |tau_i - 1{delta_ij < 0}| huber_kappa(delta_ij) / kappa]

It acts on the fixed midpoints, so that a step can be reproduced. m, w and priorities are those of R2D2.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from recollect.base import tree
from recollect.config.iqn import IQNConfig
from recollect.experience.returns import at_slots, discounted, n_step_parts
from recollect.experience.rollout import Acting
from recollect.learning.replay_acting import replay_acting
from recollect.learning.replay_algorithm import Loss, Windows, features, of_steps
from recollect.learning.value_functions import double_q, quantile_huber
from recollect.policy.policy import Policy
from recollect.policy.q_heads import QuantileHead


def acting(config: IQNConfig) -> Acting:
    """Final observations are stored in the replay."""
    return replay_acting(config)


def loss(
    policy: Policy, target: Policy, batch: Windows, config: IQNConfig, generator: torch.Generator
) -> Loss:
    """L of a minibatch of sequences; arguments as in ``ReplayAlgorithm.loss``."""
    head, older_head = cast(QuantileHead, policy.head), cast(QuantileHead, target.head)
    length = len(batch.weight)

    def fractions(y: Tensor, count: int) -> Tensor:
        return torch.rand((*y.shape[:2], count), generator=generator, device=y.device)

    y, older = features(policy, target, batch)
    tau = fractions(y[:length], config.quantiles)
    learned = batch.learned.unsqueeze(-1)
    action = tree.map(lambda leaf: leaf[:length], batch.action)
    chosen = head.of(head.quantiles(y[:length], tau), action).masked_fill(~learned, 0)  # [L, M, N]
    with torch.no_grad():
        total, discount, at = n_step_parts(
            reward=batch.reward,
            terminated=batch.terminated,
            is_step=batch.is_step,
            gamma=config.gamma,
            n=config.n_step,
        )
        mask = policy.mask(batch.obs)
        mask = None if mask is None else tree.map(lambda leaf: at_slots(leaf, at), mask)
        y, older = at_slots(y, at), at_slots(older, at)
        (q,) = head(y, mask) if config.double else older_head(older, mask)
        z = older_head.quantiles(older, fractions(older, config.target_quantiles))
        goal = discounted(total, discount, double_q(head, online=q, target=z))
    each, error = quantile_huber(predicted=chosen, target=goal, fractions=tau, kappa=config.kappa)
    stats = of_steps({"q/mean": chosen.mean(-1), "q/target": goal.mean(-1)}, batch)
    return Loss((batch.weight * each).sum(), error.abs(), stats)
