"""The equations that the algorithms on replay share: pure functions of values and errors.

R2D2 is Kapturowski et al., "Recurrent experience replay in distributed reinforcement learning" (2019); IQN is
Dabney et al., "Implicit quantile networks for distributional reinforcement learning" (2018).
"""

from __future__ import annotations

import torch
from torch import Tensor

from recollect.policy.q_heads import QHead


def rescale(x: Tensor, epsilon: float = 1e-3) -> Tensor:
    """h(x) = sign(x) (sqrt(|x| + 1) - 1) + epsilon x, the value rescaling of R2D2.

    Written so that small x keep their digits: sqrt(z + 1) - 1 = z / (sqrt(z + 1) + 1).
    """
    return x / ((x.abs() + 1).sqrt() + 1) + epsilon * x


def undo_rescale(x: Tensor, epsilon: float = 1e-3) -> Tensor:
    """The inverse of ``rescale``:

        h^-1(x) = sign(x) (((sqrt(1 + 4 epsilon (|x| + 1 + epsilon)) - 1) / (2 epsilon))^2 - 1)

    The paper's form loses all digits of small x in float32. With d = sqrt(h^-1(|x|) + 1) - 1, which solves
    epsilon d^2 + (1 + 2 epsilon) d = |x|, the inverse is d (d + 2), and nothing cancels.
    """
    size, b = x.abs(), 1 + 2 * epsilon
    d = 2 * size / (b + (b**2 + 4 * epsilon * size).sqrt())
    return x.sign() * (d * (d + 2))


def quantile_huber(
    *, predicted: Tensor, target: Tensor, fractions: Tensor, kappa: float = 1.0
) -> tuple[Tensor, Tensor]:
    """The loss of IQN, and the error of the mean.

        delta_ij = target_j - predicted_i
        L = sum_i mean_j |tau_i - 1{delta_ij < 0}| H(delta_ij) / kappa
        H(delta) = delta^2 / 2 if |delta| <= kappa, else kappa (|delta| - kappa / 2)

    Args:
        predicted: [..., N] quantiles of the return, the only argument that needs gradients.
        target: [..., N'].
        fractions: [..., N] of ``predicted``, tau; or [N] for all.
        kappa: above 0; up to this size an error is squared.

    Returns:
        loss [...], and mean(target) - mean(predicted) [...] without gradient, for priorities.
    """
    delta = target.unsqueeze(-2) - predicted.unsqueeze(-1)  # [..., N, N']
    size = delta.abs()
    huber = torch.where(size <= kappa, 0.5 * delta.square(), kappa * (size - 0.5 * kappa))
    weight = (fractions.unsqueeze(-1) - (delta < 0).to(delta.dtype)).abs()
    loss = (weight * huber / kappa).mean(-1).sum(-1)
    return loss, target.mean(-1) - predicted.detach().mean(-1)


def mixed_priority(*, error: Tensor, is_step: Tensor, eta: float = 0.9) -> Tensor:
    """The priority of each sequence in R2D2: p = eta max_t |delta_t| + (1 - eta) mean_t |delta_t|.

    Args:
        error: [L, M] delta; anything where ``is_step`` is false.
        is_step: [L, M] which entries are steps.
        eta: in [0, 1].

    Returns:
        [M]; 0 for a sequence without a step.
    """
    size = error.detach().abs().masked_fill(~is_step, 0)
    mean = size.sum(0) / is_step.sum(0).clamp(min=1)
    return eta * size.amax(0) + (1 - eta) * mean


def double_q(head: QHead, *, online: Tensor, target: Tensor) -> Tensor:
    """The target network's values of the actions that the online network prefers.

    Hasselt et al., "Deep reinforcement learning with double Q-learning" (2016).

    Args:
        head: the head of both networks, for its action space.
        online: [..., sum(nvec)] action values, -inf for masked choices.
        target: the same, or quantiles [..., N, sum(nvec)].

    Returns:
        [...], or [..., N].
    """
    return head.of(target, head.greedy(online))
