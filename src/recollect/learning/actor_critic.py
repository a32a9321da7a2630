"""Parts of targets and losses that actor-critic algorithms share."""

from __future__ import annotations

import torch
from torch import Tensor

from recollect.config.algo_shared import AlgoConfig, LearnerConfig
from recollect.experience.rollout import Rollout
from recollect.learning import diagnostics
from recollect.learning.algorithm import Data, Stats
from recollect.learning.ranks import ALONE, Ranks
from recollect.policy.policy import Policy

RECORD = ("log_prob", "value")
"""The fields of the record that actor-critic algorithms need."""


def scaled_reward(rollout: Rollout, config: LearnerConfig) -> Tensor:
    """The rewards [T, B], scaled and then clipped."""
    return scaled(rollout.reward, config)


def scaled(reward: Tensor, config: AlgoConfig) -> Tensor:
    """Rewards of any shape, scaled and then clipped."""
    reward = reward * config.reward_scale
    if config.reward_clip is not None:
        reward = reward.clamp(-config.reward_clip, config.reward_clip)
    return reward


def update_value_statistics(
    policy: Policy, rollout: Rollout, advantage: Tensor, returns: Tensor, ranks: Ranks
) -> tuple[Tensor, Stats]:
    """Update PopArt with the returns [T, B] of a new rollout.

    Returns the recorded values [T, B] as the rescaled critic would have given them, and metrics of the
    rollout and its advantages and returns.
    """
    value = rollout.record["value"]
    metrics = diagnostics.describe(rollout, advantage, returns, ranks)
    if policy.value_norm is not None:
        valid, targets = ranks.gather(rollout.valid, returns)
        scale, shift = policy.value_norm.update(targets, policy.critic, valid)
        value = value * scale + shift
        metrics["value_scale"] = policy.value_norm.std.clone()
    return value, metrics


def normalise(advantage: Tensor, valid: Tensor, ranks: Ranks = ALONE) -> Tensor:
    """Mean 0 and spread 1 over the valid steps [T, B] of all ranks; 0 where invalid, or if all are equal."""
    advantage, valid = ranks.gather(advantage, valid)
    count = valid.sum().clamp(min=1)
    mean = advantage.masked_fill(~valid, 0).sum() / count
    centred = (advantage - mean).masked_fill(~valid, 0)
    std = (centred.square().sum() / count).sqrt()
    return ranks.own(centred / (std + 1e-8))


def squared_error(
    value: Tensor, data: Data, scale: Tensor | float, value_clip: float | None = None
) -> Tensor:
    """((V - R) / sigma)^2, or, with ``value_clip``, the maximum of it and the error of the clipped value."""
    error = ((value - data["return"]) / scale).square()
    if value_clip is None:
        return error
    moved = ((value - data["value"]) / scale).clamp(-value_clip, value_clip)
    return torch.maximum(error, ((data["value"] - data["return"]) / scale + moved).square())
