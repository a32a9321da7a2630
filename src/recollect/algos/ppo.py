"""Recurrent proximal policy optimisation.

Schulman et al. 2017, *Proximal Policy Optimization Algorithms*; with memory, minibatches are drawn
over rows x chunks, and each chunk is unrolled from the state that its first action was chosen in.

::

    r      = pi(a | o, h) / pi_old(a | o, h)
    L_clip = -E[min(r A, clip(r, 1 - clip, 1 + clip) A)]
    L_V    = 1/2 E[((V - R) / sigma)^2]            sigma: the returns' spread (PopArt), else 1
    L      = L_clip + value_coef L_V - entropy E[H]

Expectations are over valid steps only. Advantages A and returns R come from GAE over the whole
rollout, in real units, before any chunking; A is normalised once per batch.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from recollect import gauges, tree
from recollect.algos.ppo_config import PPOConfig, RecurrentMode
from recollect.policy.policy import Policy
from recollect.refresh import refresh
from recollect.returns import gae
from recollect.rollout import Chunks, Rollout, make_chunks, minibatches
from recollect.schedules import scheduled

__all__ = ["PPO", "PPOConfig", "RecurrentMode", "loss", "normalise", "parameter_groups"]

Stats = dict[str, Tensor]


def loss(
    policy: Policy, batch: Chunks, config: PPOConfig, entropy_coef: float, count: Tensor
) -> tuple[Tensor, Stats]:
    """The PPO loss of a minibatch of chunks, and what is worth knowing of it.

    ``count`` is the number of valid steps that the sums are divided by.
    """
    log_prob, entropy, value = policy.evaluate_actions(batch.obs, batch.action, batch.state, batch.first)
    data = batch.data
    # A product, not a selection: what invalid steps hold is finite, because make_chunks cleared it.
    weight = batch.valid.flatten() / count

    def mean(x: Tensor) -> Tensor:
        return torch.dot(x.flatten(), weight)

    log_ratio = (log_prob - data["log_prob"]).masked_fill(~batch.valid, 0)
    ratio = log_ratio.exp()
    advantage = data["advantage"]
    clipped = ratio.clamp(1 - config.clip, 1 + config.clip)
    policy_loss = -mean(torch.minimum(ratio * advantage, clipped * advantage))
    value_loss = 0.5 * mean(_squared_error(value, data, policy.value_scale, config.value_clip))
    entropy_mean = mean(entropy)
    total = policy_loss + config.value_coef * value_loss - entropy_coef * entropy_mean
    with torch.no_grad():
        stats = {
            "loss/policy": policy_loss.detach(),
            "loss/value": value_loss.detach(),
            "entropy": entropy_mean.detach(),
            "kl": mean(log_ratio.expm1() - log_ratio),  # k3: unbiased and never negative
            "clip_fraction": mean((ratio != clipped).float()),
            "deviation/log_prob": log_ratio.abs().max(),
            "deviation/value": (value - data["value"]).masked_fill(~batch.valid, 0).abs().max(),
        }
    return total, stats


def _squared_error(
    value: Tensor, data: dict[str, Tensor], scale: Tensor | float, value_clip: float | None
) -> Tensor:
    """((V - R) / sigma)^2, the larger of the plain and the clipped one if ``value_clip`` is set."""
    error = ((value - data["return"]) / scale).square()
    if value_clip is None:
        return error
    moved = ((value - data["value"]) / scale).clamp(-value_clip, value_clip)
    return torch.maximum(error, ((data["value"] - data["return"]) / scale + moved).square())


class PPO:
    """The learner: ``update`` turns a rollout into better weights."""

    def __init__(self, policy: Policy, config: PPOConfig, *, seed: int = 0):
        self.policy, self.config = policy, config
        self.optimizer = torch.optim.Adam(parameter_groups(policy, config), eps=1e-5, fused=True)
        self._parameters = list(policy.parameters())  # to walk the modules costs more than to clip
        self.generator = torch.Generator(self._parameters[0].device).manual_seed(seed)
        self.updates = 0
        self._is_checked = False

    def update(self, rollout: Rollout, progress: float = 0.0) -> dict[str, float]:
        """One iteration on one rollout; ``progress`` in [0, 1] drives the schedules."""
        config, policy = self.config, self.policy
        gauges.check_finite_rollout(rollout)
        entropy_coef = self._schedule(progress)
        data, metrics = self._targets(rollout)
        chunks = self._cut(rollout, data)
        if not self._is_checked:
            # Everything, before the first step of all. Later updates look at their first minibatch, a
            # random sample that the loss recomputes anyway.
            self._check_deviation(metrics | self._deviation(chunks))
            self._is_checked = True
        steps: list[Stats] = []
        stale: list[Tensor] = []
        for epoch in range(config.epochs):
            if epoch > 0 and (config.refresh_states or config.recompute_advantages):
                rollout, data = self._refresh(rollout, data)
                chunks = self._cut(rollout, data)
            finished = self._epoch(chunks, entropy_coef, steps, metrics)
            if self._is_gauged:
                stale.append(gauges.staleness(policy, rollout))
            if not finished:
                break
        if policy.obs_norm is not None:
            # Only now: the statistics are frozen for a rollout and its update.
            seen = tree.map(lambda leaf: leaf[: rollout.steps], rollout.obs)
            policy.obs_norm.update(seen, rollout.valid)
        metrics |= gauges.summarise(steps, stale, config.max_grad_norm)
        metrics |= gauges.state_norms(rollout)
        numbers = gauges.read(metrics)
        numbers["learning_rate"] = self.optimizer.param_groups[0]["lr"]
        numbers["entropy_coef"] = entropy_coef
        gauges.check_gradient(numbers, policy, self.updates)
        self.updates += 1
        return numbers

    def _epoch(self, chunks: Chunks, entropy_coef: float, steps: list[Stats], metrics: Stats) -> bool:
        """One pass over all chunks. False if the KL, or a gradient that is not finite, ended it."""
        config, policy = self.config, self.policy
        for which in minibatches(chunks.count, config.minibatches, self.generator):
            batch = self._burn_in(chunks.take(which))
            count = batch.valid.sum().clamp(min=1)
            total, stats = loss(policy, batch, config, entropy_coef, count)
            if not steps:
                self._check_deviation(metrics | stats)
            steps.append(stats)
            if config.target_kl is not None and stats["kl"] > config.target_kl:
                return False
            self.optimizer.zero_grad(set_to_none=True)
            total.backward()
            grads = [p.grad for p in self._parameters if p.grad is not None]
            norm = torch.linalg.vector_norm(torch.cat([grad.flatten() for grad in grads]))
            stats["grad_norm"] = norm
            if not torch.isfinite(norm):  # before clipping, which would spread the NaN
                return False
            scale = (config.max_grad_norm / (norm + 1e-6)).clamp(max=1)
            for grad in grads:
                grad.mul_(scale)
            self.optimizer.step()
        return True

    def _check_deviation(self, metrics: Stats) -> None:
        gauges.check_deviation(gauges.read(metrics), self.config.tolerance, self.updates)

    @torch.no_grad()
    def _deviation(self, chunks: Chunks) -> Stats:
        """How far what the learner recomputes of these chunks is from what was recorded."""
        _, stats = loss(self.policy, self._burn_in(chunks), self.config, 0.0, chunks.valid.sum())
        return {name: value for name, value in stats.items() if name.startswith("deviation/")}

    def _targets(self, rollout: Rollout) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Advantages and returns of a fresh rollout, and their metrics; moves the value statistics."""
        policy, value = self.policy, rollout.record["value"]
        advantage, returns = self._gae(rollout, value, rollout.final_value, rollout.bootstrap)
        metrics = gauges.describe(rollout, advantage, returns)
        if policy.value_norm is not None:
            scale, shift = policy.value_norm.update(returns[rollout.valid], policy.critic)
            value = value * scale + shift
            metrics["value_scale"] = policy.value_norm.std.clone()
        return self._data(rollout, advantage, returns) | {"value": value}, metrics

    def _refresh(self, rollout: Rollout, data: dict[str, Tensor]) -> tuple[Rollout, dict[str, Tensor]]:
        """The rollout and its targets under the current weights, as far as the config asks."""
        fresh = refresh(self.policy, rollout)
        if self.config.recompute_advantages:
            targets = self._gae(rollout, fresh.value, fresh.final_value, fresh.bootstrap)
            data = data | self._data(rollout, *targets)
        if self.config.refresh_states:
            rollout = replace(rollout, states=fresh.states)
        return rollout, data

    def _data(self, rollout: Rollout, advantage: Tensor, returns: Tensor) -> dict[str, Tensor]:
        if self.config.normalise_advantages:
            advantage = normalise(advantage, rollout.valid)
        return {"advantage": advantage, "return": returns}

    def _gae(
        self, rollout: Rollout, value: Tensor, final_value: Tensor, bootstrap: Tensor
    ) -> tuple[Tensor, Tensor]:
        config = self.config
        reward = rollout.reward * config.reward_scale
        if config.reward_clip is not None:
            reward = reward.clamp(-config.reward_clip, config.reward_clip)
        return gae(
            reward=reward,
            value=value,
            terminated=rollout.terminated,
            truncated=rollout.truncated,
            final_value=final_value,
            bootstrap=bootstrap,
            gamma=config.gamma,
            gae_lambda=config.gae_lambda,
            valid=rollout.valid,
        )

    def _cut(self, rollout: Rollout, data: dict[str, Tensor]) -> Chunks:
        return make_chunks(rollout, self.config.chunk_length, data, self.config.burn_in_steps)

    def _burn_in(self, batch: Chunks) -> Chunks:
        """The batch with the states that its chunks start from after their burn-in, if there is one."""
        prefix = batch.prefix
        if prefix is None:
            return batch
        with torch.no_grad():
            _, _, burnt = self.policy.unroll(prefix.obs, prefix.state, prefix.first)
        return replace(batch, state=tree.select(prefix.exists, burnt, batch.state))

    def _schedule(self, progress: float) -> float:
        """Set the learning rate of every group; return the entropy coefficient."""
        config = self.config
        rate = scheduled(
            config.learning_rate_end, config.learning_rate_schedule, progress, config.learning_rate_warmup
        )
        for group in self.optimizer.param_groups:
            group["lr"] = group["base_lr"] * rate
        return config.entropy * scheduled(
            config.entropy_end, config.entropy_schedule, progress, config.entropy_warmup
        )

    @property
    def _is_gauged(self) -> bool:
        every = self.config.gauge_every
        return every > 0 and self.updates % every == 0 and self.policy.has_memory


def normalise(advantage: Tensor, valid: Tensor) -> Tensor:
    """Mean 0 and spread 1 over the valid steps [T, B]; 0 where invalid, or where all are equal."""
    count = valid.sum().clamp(min=1)
    mean = advantage.masked_fill(~valid, 0).sum() / count
    centred = (advantage - mean).masked_fill(~valid, 0)
    std = (centred.square().sum() / count).sqrt()
    return centred / (std + 1e-8)


def parameter_groups(policy: Policy, config: PPOConfig) -> list[dict]:
    """Every parameter in exactly one group: the heads that have a rate of their own, and the rest."""
    own = {
        "actor": (list(policy.head.parameters()), config.actor_learning_rate),
        "critic": (list(policy.critic.parameters()), config.critic_learning_rate),
    }
    own = {name: (ps, rate) for name, (ps, rate) in own.items() if rate is not None}
    taken = {id(p) for ps, _ in own.values() for p in ps}
    rest = [p for p in policy.parameters() if id(p) not in taken]
    groups = {"trunk": (rest, config.learning_rate)} | own
    return [{"params": ps, "lr": lr, "base_lr": lr, "name": name} for name, (ps, lr) in groups.items() if ps]
