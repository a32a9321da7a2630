"""Advantages and returns: pure functions of rollouts, without autograd.

All tensors are ``[T, B]``, except in ``n_step``. ``value[t]`` is V of the observation that action t was
chosen on; ``terminated[t]`` and ``truncated[t]`` are the outcome of action t. Only ``terminated`` sets the
bootstrap value to 0; both end the lambda-trace, because the env resets in both cases.
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
    final_value: Tensor | None,
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
        reward, value, terminated, truncated, final_value: [T, B]; ``final_value`` may be None only if no step
            is truncated.
        bootstrap: [B], V(obs[T], state after step T-1); may be None only if every row ends at T-1.
        gamma: discount.
        gae_lambda: decay of the trace.
        valid: [T, B]; advantages are 0 where it is false. An invalid step follows the end of an episode,
            where the trace has ended.

    Returns:
        advantages [T, B] and returns [T, B] = advantages + value, in the units of ``reward``.
    """
    _check_shapes("gae", reward, value, terminated, truncated, final_value)
    ended = terminated | truncated
    next_value = _next_value("gae", value, terminated, truncated, final_value, bootstrap, valid)
    delta = reward + gamma * next_value - value
    decay = torch.full_like(delta, gamma * gae_lambda).masked_fill(ended, 0)
    if valid is not None:
        # Selected, not multiplied: a NaN at an invalid step must not spread.
        delta = delta.masked_fill(~valid, 0)
        decay = decay.masked_fill(~valid, 0)
    advantage = _scan_backward(delta, decay)
    return advantage, advantage + value


@torch.no_grad()
def vtrace(
    *,
    log_ratio: Tensor,
    reward: Tensor,
    value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    final_value: Tensor | None,
    bootstrap: Tensor | None,
    gamma: float,
    gae_lambda: float = 1.0,
    rho_clip: float = 1.0,
    c_clip: float = 1.0,
    valid: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """V-trace (Espeholt et al. 2018) with truncation and invalid rows.

    ::

        rho[t]   = min(rho_clip, pi / mu),  c[t] = lambda * min(c_clip, pi / mu)
        delta[t] = rho[t] * (reward[t] + gamma * next_value[t] - value[t])
        d[t]     = delta[t] + gamma * c[t] * (not ended[t]) * d[t + 1]
        vs[t]    = value[t] + d[t]
        A[t]     = delta[t] + rho[t] * gamma * lambda * (not ended[t]) * d[t + 1]

    with ``next_value`` as in ``gae``. With lambda = 1, A is the paper's rho[t] * (r + gamma * vs[t + 1] -
    V). If pi equals mu and no clip is below 1, A and vs equal the results of ``gae`` for every lambda; with
    lambda = 1, vs is the n-step return up to the rollout's end.

    Args:
        log_ratio: [T, B], log pi(a) - log mu(a): of the policy that learns, and of the one that acted.
        reward, value, terminated, truncated, final_value: [T, B]; values of the policy that learns.
            ``final_value`` as in ``gae``.
        bootstrap: [B], V(obs[T], state after step T-1); may be None only if every row ends at T-1.
        gamma: discount.
        gae_lambda: decay of the trace.
        rho_clip: the largest weight of a step's own error; it determines the policy whose values are learned.
        c_clip: the largest weight of later errors; it determines how fast values are learned.
        valid: [T, B]; as in ``gae``.

    Returns:
        policy-gradient advantages A [T, B] and value targets vs [T, B], in the units of ``reward``.
    """
    _check_shapes("vtrace", reward, log_ratio, value, terminated, truncated, final_value)
    ended = terminated | truncated
    next_value = _next_value("vtrace", value, terminated, truncated, final_value, bootstrap, valid)
    ratio = log_ratio.exp()
    rho, c = ratio.clamp(max=rho_clip), gae_lambda * ratio.clamp(max=c_clip)
    delta = rho * (reward + gamma * next_value - value)
    decay = (gamma * c).masked_fill(ended, 0)
    if valid is not None:
        delta = delta.masked_fill(~valid, 0)
        decay = decay.masked_fill(~valid, 0)
    surprise = _scan_backward(delta, decay)
    later = torch.cat([surprise[1:], torch.zeros_like(surprise[:1])]).masked_fill(ended, 0)
    advantage = delta + rho * (gamma * gae_lambda * later)
    if valid is not None:
        advantage = advantage.masked_fill(~valid, 0)
    return advantage, value + surprise


@torch.no_grad()
def n_step(
    *, reward: Tensor, value: Tensor, terminated: Tensor, is_step: Tensor, gamma: float, n: int
) -> Tensor:
    """n-step returns (Sutton and Barto 2018, chapter 7) over sequences from a replay.

    ::

        target[j] = sum over i < m of gamma^i * reward[j + i]  +  gamma^m * value[j + m]

    where m = n, or less if slot j + m is not a step: then it is the final observation of a truncated
    episode. After a terminated step the sum ends without a bootstrap value.

    Args:
        reward: [L + n, M].
        value: [L + n, M, ...], of the observation in each slot; it may have trailing dimensions.
        terminated: [L + n, M] bool.
        is_step: [L + n, M] bool: whether the slot is a step of the sequence's episode.
        gamma: discount.
        n: the largest number of rewards in a sum.

    Returns:
        targets [L, M, ...]; 0 where ``is_step`` is false.
    """
    if value.shape[:2] != reward.shape:
        raise RecollectError(
            f"n_step: value has shape {tuple(value.shape)}, wanted {tuple(reward.shape)} and any trailing "
            "dimensions: one value for each slot"
        )
    total, discount, at = n_step_parts(
        reward=reward, terminated=terminated, is_step=is_step, gamma=gamma, n=n
    )
    return discounted(total, discount, at_slots(value, at))


@torch.no_grad()
def n_step_parts(
    *, reward: Tensor, terminated: Tensor, is_step: Tensor, gamma: float, n: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The parts of ``n_step``, so that values need to be computed in one slot for each target only.

    Returns:
        the sum of rewards [L, M], gamma^m or 0 after a termination [L, M], and the slot j + m [L, M] int64.
    """
    _check_shapes("n_step", reward, terminated, is_step)
    length = reward.shape[0] - n
    if n < 1 or length < 1:
        raise RecollectError(
            f"n_step: {reward.shape[0]} slots and n = {n}: the targets of L steps need L + n slots, L and n "
            "at least 1"
        )
    total, discount = torch.zeros_like(reward[:length]), torch.zeros_like(reward[:length])
    own = torch.arange(length, device=reward.device).unsqueeze(1)
    at = own.expand(discount.shape)
    is_running = is_step[:length]
    for i in range(n + 1):
        here = slice(i, i + length)
        continues = is_running & is_step[here] if i < n else torch.zeros_like(is_running)
        stops = is_running & ~continues
        discount, at = discount.masked_fill(stops, gamma**i), torch.where(stops, own + i, at)
        total += gamma**i * torch.where(continues, reward[here], 0)
        is_running = continues & ~terminated[here]
    return total, discount, at


def discounted(total: Tensor, discount: Tensor, later: Tensor) -> Tensor:
    """total + discount * later [L, M, ...]: the target of the parts [L, M] and later values [L, M, ...]."""
    total, discount = (x.view(x.shape + (1,) * (later.dim() - 2)) for x in (total, discount))
    # Selected, not multiplied: NaN of slots that do not count must not spread.
    return total + discount * torch.where(discount > 0, later, 0)


def at_slots(x: Tensor, at: Tensor) -> Tensor:
    """x [W, M, ...] in the slots ``at`` [L, M] of each column, [L, M, ...]."""
    return x[at, torch.arange(at.shape[1], device=at.device)]


def _next_value(
    caller: str,
    value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    final_value: Tensor | None,
    bootstrap: Tensor | None,
    valid: Tensor | None,
) -> Tensor:
    """[T, B]: 0 if terminated, ``final_value`` if truncated, else the value of the next step."""
    ended = terminated[-1] | truncated[-1]
    inside = ~ended if valid is None else ~ended & valid[-1]
    if bootstrap is None:
        if inside.any():
            raise RecollectError(
                f"{caller}: no bootstrap value, but {int(inside.sum())} rows are still inside an episode "
                "after the last step: pass V(obs[T], state); it is never taken to be 0"
            )
        bootstrap = torch.zeros_like(value[0])
    if bootstrap.shape != value.shape[1:]:
        raise RecollectError(
            f"{caller}: bootstrap has shape {tuple(bootstrap.shape)}, wanted {tuple(value.shape[1:])}"
        )
    if final_value is None:
        if truncated.any():
            raise RecollectError(
                f"{caller}: no final values, but {int(truncated.sum())} steps were truncated: the "
                "algorithm's `acting` must ask for them (Acting.needs_values=True)"
            )
        final_value = torch.zeros_like(value)
    following = torch.cat([value[1:], bootstrap.unsqueeze(0)])
    return torch.where(truncated, final_value, following).masked_fill(terminated, 0)


def _scan_backward(delta: Tensor, decay: Tensor) -> Tensor:
    """A[t] = delta[t] + decay[t] * A[t + 1] by doubling: log2(T) passes in place of T steps."""
    total, factor = delta.clone(), decay.clone()
    span = 1
    while span < total.shape[0]:
        total[:-span] += factor[:-span] * total[span:]
        factor[:-span] = factor[:-span] * factor[span:]
        span *= 2
    return total


def _check_shapes(caller: str, reward: Tensor, *others: Tensor | None) -> None:
    if reward.dim() != 2 or reward.shape[0] == 0:
        raise RecollectError(f"{caller}: reward has shape {tuple(reward.shape)}, wanted [T, B] with T >= 1")
    for tensor in others:
        if tensor is not None and tensor.shape != reward.shape:
            raise RecollectError(
                f"{caller}: shapes {tuple(tensor.shape)} and {tuple(reward.shape)} differ; every argument "
                "but bootstrap [B] is [T, B]"
            )
