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

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from recollect import gauges, tree
from recollect.algos import next_obs, recompute
from recollect.algos.ppo_config import PPOConfig, RecurrentMode
from recollect.algos.regularise import Origin
from recollect.pieces import Pieces, make_pieces
from recollect.policy.policy import Policy
from recollect.refresh import refresh
from recollect.returns import gae
from recollect.rollout import Chunks, Rollout, make_chunks, minibatches, shares
from recollect.schedules import scheduled
from recollect.tolerances import tolerance

__all__ = ["PPO", "PPOConfig", "RecurrentMode", "loss", "normalise", "parameter_groups"]

Stats = dict[str, Tensor]
Sequences = Chunks | Pieces


def loss(
    policy: Policy,
    batch: Chunks,
    config: PPOConfig,
    entropy_coef: float,
    count: Tensor,
    features: list[Tensor] | None = None,
) -> tuple[Tensor, Stats]:
    """The PPO loss of a minibatch of chunks, and what is worth knowing of it.

    ``count`` is the number of valid steps that the sums are divided by. What the heads saw, [L, N, D], is
    added to ``features`` if that is given.
    """
    given = (batch.obs, batch.action, batch.state, batch.first, features)
    if config.recompute_activations:
        log_prob, entropy, value = recompute.evaluate_actions(policy, *given)
    else:
        log_prob, entropy, value = policy.evaluate_actions(*given)
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
    value_loss = 0.5 * mean(_squared_error(value, data, policy.value_scale, config.value_clip))
    entropy_mean = mean(entropy)
    total = policy_loss + config.value_coef * value_loss - entropy_coef * entropy_mean
    with torch.no_grad():
        stats = {
            "loss/policy": policy_loss.detach(),
            "loss/value": value_loss.detach(),
            "entropy": entropy_mean.detach(),
            "kl": mean(log_ratio.expm1() - log_ratio),  # k3: unbiased and never negative
            "clip_fraction": mean((ratio != clipped).to(ratio.dtype)),
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
        self.predictor = next_obs.NextObs(policy, seed) if config.next_obs_coef > 0 else None
        """What predicts the next observation, if the config asks for that. No part of the policy."""
        groups = parameter_groups(policy, config, self.predictor)
        self.optimizer = torch.optim.Adam(groups, eps=1e-5, fused=True)
        # A list: to walk the modules costs more than to clip.
        self._parameters = [parameter for _, parameter in self.named_parameters()]
        self.generator = torch.Generator(self._parameters[0].device).manual_seed(seed)
        self.updates = 0
        self.origin: Origin | None = None
        """The weights that the training began with, once it has begun, if the config needs them."""
        self._is_checked = False

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """All that is learned: the policy's, and those of the predictor as ``next_obs.NAME``."""
        yield from self.policy.named_parameters()
        if self.predictor is not None:
            yield from self.predictor.named_parameters("next_obs")

    def update(self, rollout: Rollout, progress: float = 0.0) -> dict[str, float]:
        """One iteration on one rollout; ``progress`` in [0, 1] drives the schedules."""
        config, policy = self.config, self.policy
        gauges.check_finite_rollout(rollout)
        if config.is_anchored and self.origin is None:
            self.origin = Origin(policy)
        entropy_coef = self._schedule(progress)
        data, metrics = self._targets(rollout)
        sequences = self._sequences(rollout, data)
        if not self._is_checked:
            # Everything, before the first step of all. Later updates look at their first minibatch, a
            # random sample that the loss recomputes anyway.
            self._check_deviation(metrics | self._deviation(sequences.whole()))
            self._is_checked = True
        steps: list[Stats] = []
        stale: list[Tensor] = []
        for epoch in range(config.epochs):
            if epoch > 0 and (config.refresh_states or config.recompute_advantages):
                rollout, data = self._refresh(rollout, data)
                sequences = self._sequences(rollout, data)
            finished = self._epoch(sequences, entropy_coef, steps, metrics)
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
        if self.origin is not None:
            metrics["weights/distance"] = self.origin.squared_distance().sqrt()
        numbers = gauges.read(metrics)
        numbers["learning_rate"] = self.optimizer.param_groups[0]["lr"]
        numbers["entropy_coef"] = entropy_coef
        numbers["sequences"] = float(sequences.count)
        numbers["encoder_bits"] = float(policy.encoder_bits)
        gauges.check_gradient(numbers, self, self.updates)
        self.updates += 1
        return numbers

    def _epoch(self, sequences: Sequences, entropy_coef: float, steps: list[Stats], metrics: Stats) -> bool:
        """One pass over all sequences. False if the KL, or a gradient that is not finite, ended it."""
        config = self.config
        for which in minibatches(sequences.count, config.minibatches, self.generator, sequences.sizes):
            self.optimizer.zero_grad(set_to_none=True)
            stats = self._backward(sequences, which, entropy_coef)
            if not steps:
                self._check_deviation(metrics | stats)
            steps.append(stats)
            if config.target_kl is not None and stats["kl"] > config.target_kl:
                return False
            grads = [p.grad for p in self._parameters if p.grad is not None]
            norm = torch.linalg.vector_norm(torch.cat([grad.flatten() for grad in grads]))
            stats["grad_norm"] = norm
            if not torch.isfinite(norm):  # before clipping, which would spread the NaN
                return False
            scale = (config.max_grad_norm / (norm + 1e-6)).clamp(max=1)
            for grad in grads:
                grad.mul_(scale)
            self.optimizer.step()
            if config.weight_clip is not None and self.origin is not None:
                stats["weights/clipped"] = self.origin.clip_(config.weight_clip)
        return True

    def _backward(self, sequences: Sequences, which: Tensor, entropy_coef: float) -> Stats:
        """Add the gradient of the minibatch ``which`` to that of the parameters; what is known of all of it.

        Part after part, so that the activations of one part at a time are alive. Every part is divided by
        the valid steps of the whole minibatch: then their sum is its mean.
        """
        config = self.config
        count = sequences.valid_steps(which).clamp(min=1)
        known = None if self.predictor is None else sequences.total(which, next_obs.KNOWN).clamp(min=1)
        parts: list[Stats] = []
        unrolled = pieces = 0
        for part in shares(which, config.accumulate, sequences.sizes):
            batch = self._burn_in(sequences.take(part))
            total, stats = self._loss(batch, entropy_coef, count, known)
            total.backward()
            parts.append(stats)
            unrolled += batch.valid.numel()
            pieces += recompute.pieces(len(batch.valid))
        stats = gauges.join(parts) | {"padding": 1 - count / unrolled}
        if config.accumulate > 1:
            stats["passes"] = torch.full_like(stats["kl"], len(parts))
        if config.recompute_activations:
            stats["recomputed"] = torch.full_like(stats["kl"], pieces / len(parts))
        if config.l2_init > 0 and self.origin is not None:
            penalty = config.l2_init * self.origin.squared_distance()
            penalty.backward()
            stats["loss/l2_init"] = penalty.detach()
        return stats

    def _loss(
        self, batch: Chunks, entropy_coef: float, count: Tensor, known: Tensor | None
    ) -> tuple[Tensor, Stats]:
        """``loss``, and that of the next observations, of which the whole minibatch has ``known``."""
        if self.predictor is None or known is None:
            return loss(self.policy, batch, self.config, entropy_coef, count)
        features: list[Tensor] = []
        total, stats = loss(self.policy, batch, self.config, entropy_coef, count, features)
        error = self.predictor.loss(features[0], batch, known)
        return total + self.config.next_obs_coef * error, stats | {"loss/next_obs": error.detach()}

    def _check_deviation(self, metrics: Stats) -> None:
        policy = self.policy
        limit = tolerance(self.config.tolerance, policy.config.precision, policy.core.rounding)
        gauges.check_deviation(gauges.read(metrics), limit, self.updates)

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
        data = self._data(rollout, advantage, returns) | {"value": value}
        if self.predictor is not None:
            data |= self.predictor.targets(policy, rollout)
        return data, metrics

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

    def _sequences(self, rollout: Rollout, data: dict[str, Tensor]) -> Sequences:
        """What minibatches are drawn over."""
        config = self.config
        if config.batching == "episodes":
            return make_pieces(rollout, data)
        return make_chunks(rollout, config.chunk_length, data, config.burn_in_steps)

    def _cut(self, rollout: Rollout, data: dict[str, Tensor]) -> Chunks:
        """All of it in one batch."""
        return self._sequences(rollout, data).whole()

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


def parameter_groups(policy: Policy, config: PPOConfig, predictor: nn.Module | None = None) -> list[dict]:
    """Every parameter in exactly one group: the heads that have a rate of their own, and the rest."""
    own = {
        "actor": (list(policy.head.parameters()), config.actor_learning_rate),
        "critic": (list(policy.critic.parameters()), config.critic_learning_rate),
    }
    own = {name: (ps, rate) for name, (ps, rate) in own.items() if rate is not None}
    taken = {id(p) for ps, _ in own.values() for p in ps}
    rest = [p for p in policy.parameters() if id(p) not in taken]
    groups = {"trunk": (rest, config.learning_rate)} | own
    if predictor is not None:
        groups["next_obs"] = (list(predictor.parameters()), config.learning_rate)
    return [{"params": ps, "lr": lr, "base_lr": lr, "name": name} for name, (ps, lr) in groups.items() if ps]
