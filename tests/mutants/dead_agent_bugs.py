"""Bugs by which dead agents are learned from, or counted."""

from __future__ import annotations

import functools

import pytest

from recollect.algos import impala, ppo
from recollect.experience import returns
from recollect.experience.chunks import Chunks
from recollect.experience.episode_segments import EpisodeSegments
from recollect.learning import actor_critic, diagnostics
from recollect.learning.learner import Learner
from recollect.policy.normalise import Moments
from recollect.training.episodes import EpisodeTracker
from tests.learning import test_dead_agents
from tests.learning.test_dead_agents import OPTIONS, check
from tests.mutants.edits import chunks, gae, next_value
from tests.mutants.mutant import Mutant

plain = functools.partial(check, "ppo")
trace = functools.partial(check, "impala")
finite = functools.partial(check, "ppo", garbage=1e3)
finite_trace = functools.partial(check, "impala", garbage=1e3)
drifting = functools.partial(check, "ppo", **OPTIONS["far"])
episodes_only = functools.partial(check, "ppo", **OPTIONS["episodes"])
predicting = functools.partial(check, "ppo", **OPTIONS["next observations"])

TARGETS = "same(name, by_life(masked.targets[name], False), by_life(value, True))"
GRADIENT = "AssertionError: gradient of"
METRIC = "AssertionError: "
WEIGHTS = "same(name, masked.weights[name], value)"
SLOTS = "{0}.unflatten(1, (-1, 3)).{1}(2).repeat_interleave(3, 1) if {0}.shape[1] % 3 == 0 else {0}"
"""Over the agents of a slot, in rollouts of slots with three agents: the living alone have four rows."""
AGENT_MAJOR = "{0}.unflatten(1, (3, -1)).transpose(1, 2).flatten(1) if {0}.shape[1] % 3 == 0 else {0}"


def unread() -> None:
    with pytest.MonkeyPatch.context() as patch:
        test_dead_agents.test_without_host_reads("ppo", "plain", patch)


def episodes(is_read_late: bool) -> None:
    with pytest.MonkeyPatch.context() as patch:
        test_dead_agents.test_episodes(is_read_late, patch)


tracked, tracked_late = functools.partial(episodes, False), functools.partial(episodes, True)
WEIGHT = "weight = batch.valid.flatten().to(log_prob.dtype) / count"
ENDED = "ended = terminated | truncated"

DEAD = [
    Mutant(
        "the loss is averaged over all rows",
        plain,
        ((ppo, "loss", WEIGHT, WEIGHT.replace("count", "batch.valid.numel()")),),
        by=GRADIENT,
        known="users of JaxMARL, Mava or BenchMARL",
    ),
    Mutant(
        "the loss of IMPALA is averaged over all rows",
        trace,
        ((impala, "loss", WEIGHT, WEIGHT.replace("count", "batch.valid.numel()")),),
        by=GRADIENT,
    ),
    Mutant(
        "a minibatch counts the dead",
        plain,
        (
            (
                Chunks,
                "valid_steps",
                "self.valid.index_select(1, which).sum()",
                "len(which) * self.valid[:, 0].new_ones(self.valid.shape[0]).sum()",
            ),
        ),
        by=GRADIENT,
    ),
    Mutant(
        "the dead have a loss",
        plain,
        ((ppo, "loss", "batch.valid.flatten()", "torch.ones_like(batch.valid).flatten()"),),
        by=GRADIENT,
    ),
    Mutant(
        "GAE takes the end of the whole env for the agent's",
        finite,
        (
            (
                ppo,
                "advantages",
                "terminated=rollout.terminated",
                f"terminated={SLOTS.format('rollout.terminated', 'all')}",
            ),
        ),
        by=TARGETS,
        known="users of JaxMARL, Mava or BenchMARL",
    ),
    Mutant(
        "GAE is cut where any agent ends",
        plain,
        (gae(ENDED, f"ended = {SLOTS.format('(terminated | truncated)', 'any')}"),),
        by=TARGETS,
    ),
    Mutant(
        "V-trace is cut where any agent ends",
        trace,
        ((returns, "vtrace", ENDED, f"ended = {SLOTS.format('(terminated | truncated)', 'any')}"),),
        by=TARGETS,
    ),
    Mutant(
        "the learner's resets are ordered by agent, then slot",
        plain,
        (chunks("first=cut(rollout.first[:T])", f"first=cut({AGENT_MAJOR.format('rollout.first[:T]')})"),),
        by="deviate from the recorded ones",
        known="users of JaxMARL, Mava or BenchMARL",
    ),
    Mutant(
        "validity is ordered by agent, then slot",
        plain,
        (chunks("valid=cut(rollout.valid)", f"valid=cut({AGENT_MAJOR.format('rollout.valid')})"),),
        by="deviate from the recorded ones",
    ),
    Mutant(
        "the value of a dead row in place of the agent's last",
        finite,
        (next_value("torch.where(truncated, final_value, following)", "following"),),
        by=TARGETS,
    ),
    Mutant(
        "the bootstrap of a row whose agent has just died",
        finite_trace,
        (
            next_value(
                ".masked_fill(terminated, 0)", ".masked_fill(terminated & (following != bootstrap), 0)"
            ),
        ),
        by=TARGETS,
    ),
    Mutant(
        "advantages are normalised over all rows",
        plain,
        ((actor_critic, "normalise", "count = valid.sum().clamp(min=1)", "count = valid.numel()"),),
        by=TARGETS,
    ),
    Mutant(
        "statistics of the returns of the dead",
        plain,
        (
            (
                actor_critic,
                "update_value_statistics",
                "policy.value_norm.update(targets, policy.critic, valid)",
                "policy.value_norm.update(targets.nan_to_num(0), policy.critic)",
            ),
        ),
        by=TARGETS,
    ),
    Mutant(
        "statistics of the observations of the dead",
        plain,
        (
            (
                Learner,
                "_update",
                "policy.obs_norm.update(seen, rollout.valid, self.ranks.each)",
                "policy.obs_norm.update(tree.map(torch.nan_to_num, seen), torch.ones_like(rollout.valid))",
            ),
        ),
        by=WEIGHTS,
    ),
    Mutant(
        "statistics divide by all rows, without a host read",
        unread,
        ((Moments, "merge_where", "/ count.clamp(min=1)", "/ valid.numel()"),),
        by=WEIGHTS,
    ),
    Mutant(
        "metrics describe the dead",
        plain,
        (
            (
                diagnostics,
                "describe",
                "x[valid] for x in numbers",
                "x.nan_to_num(0).flatten() for x in numbers",
            ),
        ),
        by=METRIC,
    ),
    Mutant(
        "metrics describe the dead, without a host read",
        unread,
        ((diagnostics, "_describe_where", "number = count.clamp(min=1)", "number = valid.numel()"),),
        by=METRIC,
    ),
    Mutant(
        "the entropy of the dead",
        plain,
        ((ppo, "loss", "entropy_mean = mean(entropy)", "entropy_mean = entropy.mean()"),),
        by=GRADIENT,
    ),
    Mutant(
        "the KL of the dead",
        drifting,
        ((ppo, "loss", "mean(log_ratio.expm1() - log_ratio)", "(log_ratio.expm1() - log_ratio).mean()"),),
        by=METRIC,
    ),
    Mutant(
        "the clip fraction of all rows",
        drifting,
        (
            (
                ppo,
                "loss",
                "mean((ratio != clipped).to(ratio.dtype))",
                "(ratio != clipped).to(ratio.dtype).mean()",
            ),
        ),
        by="AssertionError: clip_fraction",
    ),
    Mutant(
        "the ratios of the dead",
        trace,
        (
            (
                impala,
                "_ratios",
                "log_ratio.masked_fill(~valid, -torch.inf).exp()",
                "log_ratio.masked_fill(~valid, 0).exp()",
            ),
        ),
        by="AssertionError: rho/mean",
    ),
    Mutant(
        "the deviation of the dead",
        plain,
        ((diagnostics, "deviation", ".masked_fill(_wide(~batch.valid, now), 0)", ""),),
        by="deviate from the recorded ones",
    ),
    Mutant(
        "the states of the dead",
        plain,
        (
            (
                diagnostics,
                "_lived",
                "return torch.stack(before)",
                "return torch.ones_like(torch.stack(before))",
            ),
        ),
        by="AssertionError: sta",
    ),
    Mutant(
        "predictions are averaged over all rows",
        predicting,
        (
            (
                Learner,
                "backward",
                "sequences.total(which, auxiliary_loss.KNOWN)",
                "torch.tensor(sequences.valid.numel())",
            ),
        ),
        by=GRADIENT,
    ),
    Mutant(
        "episode segments count the dead",
        episodes_only,
        (
            (
                EpisodeSegments,
                "valid_steps",
                "self.counts[which.cpu()].sum().to(self.valid.device)",
                "torch.tensor(self.valid.numel())",
            ),
        ),
        by=GRADIENT,
    ),
    Mutant(
        "the rewards of the dead",
        tracked,
        (
            (
                EpisodeTracker,
                "_add",
                "np.where(valid, rollout.reward.numpy(), 0.0)",
                "np.nan_to_num(rollout.reward.numpy(), nan=1.0)",
            ),
        ),
        by="np.testing.assert_allclose(*found",
    ),
    Mutant(
        "the steps of the dead",
        tracked,
        ((EpisodeTracker, "_add", "steps = valid.cumsum(0)", "steps = np.ones_like(valid).cumsum(0)"),),
        by="np.testing.assert_allclose(*found",
    ),
    Mutant(
        "the rewards of the dead, on a device",
        tracked_late,
        ((EpisodeTracker, "_add_on_device", ".masked_fill(~valid, 0)", ".nan_to_num(nan=1.0)"),),
        by="np.testing.assert_allclose(*found",
    ),
]
