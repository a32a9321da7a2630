"""Recurrent replay distributed DQN (R2D2).

Kapturowski et al. 2019, *Recurrent Experience Replay in Distributed Reinforcement Learning*. Sequences of an
episode are replayed from the state stored while acting, after a burn-in of K steps without gradient.

::

    a*     = argmax_a Q(o', h', a)                  the learning network (double), or the target network
    y      = h(sum_{i<m} gamma^i r_i + gamma^m h^-1(Q_target(o', h', a*)))
    h(x)   = sign(x) (sqrt(|x| + 1) - 1) + 0.001 x  with ``rescale``, else x
    delta  = y - Q(o, h, a)
    L      = 1/2 E[w delta^2]                       w = 1 / probability^importance_exponent, at most 1
    p      = eta max|delta| + (1 - eta) mean|delta| over the learned steps of a sequence

m is n, or less where the episode ends: without the last term at a termination, with the final observation
at a time limit. Dueling values: the head ``q`` (``recollect.policy.q_heads``).
"""

from __future__ import annotations

from typing import cast

import torch

from recollect.config.r2d2 import R2D2Config
from recollect.experience.returns import n_step
from recollect.experience.rollout import Acting
from recollect.learning.replay_acting import replay_acting
from recollect.learning.replay_algorithm import Loss, Windows, features, of_steps
from recollect.learning.value_functions import double_q, rescale, undo_rescale
from recollect.policy.policy import Policy
from recollect.policy.q_heads import QHead


def acting(config: R2D2Config) -> Acting:
    """Final observations are stored in the replay."""
    return replay_acting(config)


def loss(
    policy: Policy, target: Policy, batch: Windows, config: R2D2Config, generator: torch.Generator
) -> Loss:
    """L of a minibatch of sequences; arguments as in ``ReplayAlgorithm.loss``."""
    head, length = cast(QHead, policy.head), len(batch.weight)
    y, older = features(policy, target, batch)
    mask = policy.mask(batch.obs)
    (q,) = head(y, mask)
    with torch.no_grad():
        (older,) = target.head(older, mask)
        best = double_q(head, online=q if config.double else older, target=older)
        goal = n_step(
            reward=batch.reward,
            value=undo_rescale(best) if config.rescale else best,
            terminated=batch.terminated,
            is_step=batch.is_step,
            gamma=config.gamma,
            n=config.n_step,
        )
        goal = rescale(goal) if config.rescale else goal
    chosen = head.of(q, batch.action)[:length]
    delta = (goal - chosen).masked_fill(~batch.learned, 0)
    total = 0.5 * (batch.weight * delta.square()).sum()
    return Loss(total, delta.detach().abs(), of_steps({"q/mean": chosen, "q/target": goal}, batch))
