"""Returns: pure functions of recorded experience, without autograd.

Alignment (design: *Alignment, exactly*): everything is ``[T, B]``; ``value[t]`` is V of the
observation that action t was chosen on; ``terminated[t]`` and ``truncated[t]`` are the outcome of
action t. Two masks, never one: only ``terminated`` stops the bootstrap, while either one cuts the
lambda-trace, because the env resets either way.
"""

from __future__ import annotations

import torch
from torch import Tensor

from recollect.errors import RecollectError


@torch.no_grad()
def gae(
    *,
    reward: Tensor,
    value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    final_value: Tensor,
    bootstrap: Tensor | None,
    gamma: float,
    gae_lambda: float,
    valid: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimation (Schulman et al. 2016) with truncation and invalid rows.

    ::

        next_value[t] = 0 if terminated[t], final_value[t] if truncated[t], else value[t + 1]
        delta[t]      = reward[t] + gamma * next_value[t] - value[t]
        A[t]          = delta[t] + gamma * lambda * (not ended[t]) * A[t + 1]

    Args:
        reward, value, terminated, truncated, final_value: [T, B].
        bootstrap: [B], V(obs[T], state after step T-1); may be None only if every row ends at T-1.
        gamma: discount.
        gae_lambda: decay of the trace.
        valid: [T, B]; advantages are 0 where it is false. An invalid step follows an end, so the
            trace is already cut there.

    Returns:
        advantages [T, B] and returns [T, B] = advantages + value, in the units of ``reward``.
    """
    _check_shapes(reward, value, terminated, truncated, final_value)
    ended = terminated | truncated
    inside = ~ended[-1] if valid is None else ~ended[-1] & valid[-1]
    if bootstrap is None:
        if inside.any():
            raise RecollectError(
                f"gae: no bootstrap value, but {int(inside.sum())} rows are still inside an episode "
                "after the last step: pass V(obs[T], state); it is never taken to be 0"
            )
        bootstrap = torch.zeros_like(reward[0])
    if bootstrap.shape != reward.shape[1:]:
        raise RecollectError(
            f"gae: bootstrap has shape {tuple(bootstrap.shape)}, wanted {tuple(reward.shape[1:])}"
        )
    following = torch.cat([value[1:], bootstrap.unsqueeze(0)])
    next_value = torch.where(truncated, final_value, following).masked_fill(terminated, 0)
    delta = reward + gamma * next_value - value
    decay = torch.full_like(delta, gamma * gae_lambda).masked_fill(ended, 0)
    if valid is not None:
        # Selected, not multiplied: whatever an invalid step holds must not leak out as NaN.
        delta = delta.masked_fill(~valid, 0)
        decay = decay.masked_fill(~valid, 0)
    advantage = _scan_backward(delta, decay)
    return advantage, advantage + value


def _scan_backward(delta: Tensor, decay: Tensor) -> Tensor:
    """A[t] = delta[t] + decay[t] * A[t + 1] by doubling: log2(T) passes in place of T steps."""
    total, factor = delta.clone(), decay.clone()
    span = 1
    while span < total.shape[0]:
        total[:-span] += factor[:-span] * total[span:]
        factor[:-span] = factor[:-span] * factor[span:]
        span *= 2
    return total


def _check_shapes(reward: Tensor, *others: Tensor) -> None:
    if reward.dim() != 2 or reward.shape[0] == 0:
        raise RecollectError(f"gae: reward has shape {tuple(reward.shape)}, wanted [T, B] with T >= 1")
    for tensor in others:
        if tensor.shape != reward.shape:
            raise RecollectError(
                f"gae: shapes {tuple(tensor.shape)} and {tuple(reward.shape)} differ; every argument "
                "but bootstrap [B] is [T, B]"
            )
