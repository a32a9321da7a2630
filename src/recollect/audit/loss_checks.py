"""Losses of PPO and IMPALA, and advantages of experience that lags, written out again in float64."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import torch
from torch import Tensor

from recollect.algos import impala
from recollect.audit.gradient_checks import chunks_with_targets
from recollect.audit.recorded_rollouts import RecordedRollout, worst
from recollect.audit.results import Passed, Problem, Skip
from recollect.audit.update_checks import with_invalid_end
from recollect.base.formatting import tiny
from recollect.config.impala import ImpalaConfig
from recollect.config.ppo import PPOConfig
from recollect.experience.chunks import Chunks
from recollect.learning.learner import Learner
from recollect.learning.refresh_rollout import Outputs, recorded

TOLERANCE = 1e-4
"""Of advantages and targets."""
EXACT = 1e-5
"""Of losses: the network's outputs are the same, and float32 rounds their sums."""
ENTROPY, CLIP, VALUE_CLIP, REWARD_SCALE, REWARD_CLIP = 0.01, 0.2, 0.3, 0.5, 0.7
"""Settings that are tried whatever the config says, so that every branch is seen."""
PARTS = ("total", "loss/policy", "loss/value", "entropy", "kl", "clip_fraction")


def losses(rollouts: Sequence[RecordedRollout]) -> Passed:
    """The loss and its parts equal their formulas, summed step by step over valid steps."""
    one = _with_scale(rollouts[-1])
    algorithm = one.known_algorithm("losses")
    largest, count = 0.0, 0
    for config in _configs(one):
        chunks = _disturbed(one)
        with torch.no_grad():
            total, stats = vars(algorithm)["loss"](one.policy, chunks, config, ENTROPY, chunks.valid.sum())
        found = {"total": total} | stats
        expected = _losses(one, chunks, config)
        for name in PARTS:
            if name not in expected or name not in found:
                continue
            gap = abs(float(found[name]) - expected[name]) / max(1.0, abs(expected[name]))
            largest, count = max(largest, gap), count + 1
            if not gap <= EXACT:
                raise Problem(
                    f"{name} is {float(found[name]):.5g}, and its formula over {int(chunks.valid.sum())} "
                    f"valid of {chunks.valid.numel()} steps gives {expected[name]:.5g}",
                    "Likely cause: a clip on one side only, a wrong sign or factor, or a sum that counts "
                    "padding or divides by it",
                    "Fix: compare with the equations of the algorithm (docs/algorithms.md)",
                    measured=gap,
                    tolerance=EXACT,
                )
    return Passed(f"{count} parts of the loss equal their formulas to {tiny(largest)}", largest, EXACT)


def _with_scale(one: RecordedRollout) -> RecordedRollout:
    """With a policy whose returns have a spread other than 1, where they are normalised."""
    policy = copy.deepcopy(one.policy)
    if policy.value_norm is not None:
        policy.value_norm.update(torch.linspace(-9, 9, 64, device=policy.device), policy.critic)
    return replace(one, policy=policy)


def _configs(one: RecordedRollout) -> list[Any]:
    config = replace(one.algo, recompute_activations=False)
    if isinstance(config, PPOConfig):
        return [config, replace(config, clip=CLIP, value_clip=VALUE_CLIP)]
    assert isinstance(config, ImpalaConfig)
    return [config, replace(config, clip=CLIP)]


def _disturbed(one: RecordedRollout) -> Chunks:
    """Chunks with ratios on both sides of 1, values on both sides of the recorded ones, and padding."""
    chunks = chunks_with_targets(one)
    generator = torch.Generator().manual_seed(8)
    data = dict(chunks.data)
    unit = float(data["value"].abs().max().clamp(min=1))
    for name, size in (("log_prob", 0.5), (impala.START, 0.5), ("value", unit)):
        if name in data:
            noise = torch.randn(data[name].shape, generator=generator).to(data[name].device)
            data[name] = data[name] + size * noise
    valid = chunks.valid.clone()
    valid[-max(1, len(valid) // 4) :, ::2] = False
    return replace(chunks, data=data, valid=valid)


@torch.no_grad()
def _losses(one: RecordedRollout, chunks: Chunks, config: Any) -> dict[str, float]:
    dist, value, _ = one.policy.unroll(chunks.obs, chunks.state, chunks.first)
    valid = chunks.valid
    data = {name: x[valid].double() for name, x in chunks.data.items()}
    log_prob, entropy, value = (
        x[valid].double() for x in (dist.log_prob(chunks.action), dist.entropy(), value)
    )
    advantage, sigma = data["advantage"], float(one.policy.value_scale)
    ratio = (log_prob - data["log_prob"]).exp()
    started = (log_prob - data[impala.START]).exp()
    squared = ((value - data["return"]) / sigma) ** 2
    found: dict[str, Tensor] = {}
    if isinstance(config, PPOConfig):
        started = ratio
        if config.value_clip is not None:
            moved = ((value - data["value"]) / sigma).clamp(-config.value_clip, config.value_clip)
            squared = torch.maximum(squared, ((data["value"] - data["return"]) / sigma + moved) ** 2)
    if config.clip is None:
        found["loss/policy"] = -(log_prob * advantage)
    else:
        low, high = 1 - config.clip, 1 + config.clip
        bounded = torch.where(started < low, low, torch.where(started > high, high, started))
        pessimistic = torch.where(started * advantage < bounded * advantage, started, bounded)
        found["loss/policy"] = -(pessimistic * advantage)
        found["clip_fraction"] = ((started < low) | (started > high)).double()
    found["loss/value"] = 0.5 * squared
    found["entropy"] = entropy
    found["kl"] = ratio - 1 - ratio.log()
    numbers = {name: float(x.mean()) for name, x in found.items()}
    policy_loss, value_loss = numbers["loss/policy"], numbers["loss/value"]
    return numbers | {"total": policy_loss + config.value_coef * value_loss - ENTROPY * numbers["entropy"]}


def lagging(rollouts: Sequence[RecordedRollout]) -> Passed:
    """Advantages and targets from outputs of newer weights: their values and, for V-trace, their ratios."""
    one = rollouts[-1]
    algorithm = one.known_algorithm("advantages")
    one.values_at_ends(one.rollout)
    config = replace(one.algo, reward_scale=REWARD_SCALE, reward_clip=REWARD_CLIP)
    if isinstance(config, ImpalaConfig):  # different clips, so that they cannot be mixed up
        config = replace(config, rho_clip=1.3, c_clip=0.8)
    reward = 2 * torch.randn(one.rollout.reward.shape, generator=torch.Generator().manual_seed(7))
    one = replace(one, rollout=replace(one.rollout, reward=reward.to(one.rollout.reward)))  # of both signs
    newer = _newer(one)
    advantage, returns = vars(algorithm)["advantages"](one.rollout, newer, config)
    expected, targets = plain_advantages(one, newer, config)
    largest = 0.0
    for name, found, right in (("advantages", advantage, expected), ("targets", returns, targets)):
        gap = (found.double().cpu() - right).abs() / right.abs().max().clamp(min=1)
        gap, t, row = worst(gap, one.rollout.valid.cpu())
        largest = max(largest, gap)
        if not gap <= TOLERANCE:
            raise Problem(
                f"with values and probabilities of newer weights {name} differ from their formula by "
                f"{gap:.1e} of their scale (step {t}, row {row})",
                "Likely cause: recorded values stand where new ones belong, a ratio is upside down or not "
                "clipped, or rewards are scaled and clipped in the wrong order",
                "Fix: see recollect.experience.returns, and pass the outputs of the weights that learn",
                measured=gap,
                tolerance=TOLERANCE,
            )
    return Passed(f"advantages and targets of newer weights to {tiny(largest)}", largest, TOLERANCE)


def _newer(one: RecordedRollout) -> Outputs:
    """Outputs as weights some updates newer would have them."""
    made, generator = recorded(one.rollout), torch.Generator().manual_seed(9)
    final_value, bootstrap = one.values_at_ends(one.rollout)

    def moved(x: Tensor, size: float) -> Tensor:
        return x + size * torch.randn(x.shape, generator=generator).to(x.device)

    record = made.record | {
        "log_prob": moved(made.record["log_prob"], 0.7),
        "value": moved(made.record["value"], 1.0),
    }
    return replace(made, record=record, final_value=moved(final_value, 1.0), bootstrap=moved(bootstrap, 1.0))


def plain_advantages(one: RecordedRollout, newer: Outputs, config: Any) -> tuple[Tensor, Tensor]:
    """[T, B] float64: V-trace step by step (Espeholt et al. 2018); with ratios of 1 it is GAE."""
    rollout = one.rollout
    is_vtrace = isinstance(config, ImpalaConfig)
    ratio = (newer.record["log_prob"] - rollout.record["log_prob"]).double().exp().tolist()
    assert newer.final_value is not None
    assert newer.bootstrap is not None
    reward, value, final, last = (
        x.double().tolist()
        for x in (rollout.reward, newer.record["value"], newer.final_value, newer.bootstrap)
    )
    terminated, truncated, valid = (
        x.tolist() for x in (rollout.terminated, rollout.truncated, rollout.valid)
    )
    advantage, targets = (torch.zeros(rollout.steps, rollout.rows, dtype=torch.float64) for _ in range(2))
    for b in range(rollout.rows):
        following, surprise = last[b], 0.0
        for t in reversed(range(rollout.steps)):
            if not valid[t][b]:
                surprise = 0.0
                continue
            r = reward[t][b] * config.reward_scale
            if config.reward_clip is not None:
                r = max(-config.reward_clip, min(config.reward_clip, r))
            v, rho, c = value[t][b], 1.0, 1.0
            if is_vtrace:
                rho, c = min(config.rho_clip, ratio[t][b]), min(config.c_clip, ratio[t][b])
            ended = terminated[t][b] or truncated[t][b]
            future = 0.0 if terminated[t][b] else final[t][b] if truncated[t][b] else following
            delta = rho * (r + config.gamma * future - v)
            later = 0.0 if ended else config.gamma * config.gae_lambda * surprise
            advantage[t, b] = delta + rho * later
            surprise, following = delta + c * later, v
            targets[t, b] = v + surprise
    return advantage, targets


def predictions(rollouts: Sequence[RecordedRollout]) -> str:
    """Next observations are predicted within an episode, and their error is a mean over those steps."""
    one = rollouts[-1]
    config = replace(one.algo, epochs=1, minibatches=1, accumulate=1, target_kl=None)
    learner = Learner(copy.deepcopy(one.policy), one.learner.algorithm, config, seed=0)
    if learner.predictor is None:
        raise Skip("no prediction of the next observation")
    rollout, predict, counts = with_invalid_end(one.rollout) or one.rollout, learner.predictor.loss, []

    def watched(y: Tensor, batch: Chunks, count: Tensor) -> Tensor:
        counts.append(int(count))
        return predict(y, batch, count)

    learner.predictor.loss = watched  # type: ignore[method-assign]
    learner.update(rollout, lag=1)
    lives, right = rollout.valid.tolist(), 0
    ends = (rollout.terminated | rollout.truncated | rollout.first[1:]).tolist()
    for t, row in product(range(rollout.steps), range(rollout.rows)):
        right += lives[t][row] and not ends[t][row] and (t + 1 == rollout.steps or lives[t + 1][row])
    if set(counts) != {right}:
        raise Problem(
            f"the error of {right} predictions of a next observation is divided by {counts[0]}",
            "Likely cause: the first observation of the next episode is predicted, or steps without a "
            "prediction count",
            "Fix: predict within episodes, and take the mean over those steps",
        )
    return f"the error is the mean of {right} predictions within episodes"
