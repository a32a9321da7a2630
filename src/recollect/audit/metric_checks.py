"""Metrics of updates and episodes, and statistics of observations, by their formulas over valid steps."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from recollect.audit.loss_checks import plain_advantages
from recollect.audit.recorded_rollouts import RecordedRollout
from recollect.audit.results import Passed, Problem
from recollect.audit.update_checks import POISON, with_invalid_end
from recollect.base import tree
from recollect.config.impala import ImpalaConfig
from recollect.experience.rollout import Rollout
from recollect.learning.learner import Learner
from recollect.learning.refresh_rollout import Outputs, recorded, refresh
from recollect.policy.policy import Policy
from recollect.training.episodes import EpisodeTracker

TOLERANCE = 1e-3


def metrics(rollouts: Sequence[RecordedRollout]) -> Passed:
    """Means, spreads and ranges are those of the valid steps; invalid ones may hold anything."""
    one = rollouts[-1]
    algorithm = one.known_algorithm("metrics")
    one.values_at_ends(one.rollout)
    cut = with_invalid_end(one.rollout)
    rollout = one.rollout if cut is None else _spoiled(cut)
    policy = copy.deepcopy(one.policy)
    config = replace(one.algo, epochs=1, minibatches=1, accumulate=1, target_kl=None, gauge_every=1)
    outputs = refresh(policy, rollout)
    found = Learner(policy, algorithm, config, seed=0).update(rollout, lag=1)
    valid, largest = rollout.valid.cpu(), 0.0
    for name, right in _expected(replace(one, rollout=rollout), outputs, config, valid).items():
        gap = abs(found[name] - right) / max(1.0, abs(right))
        largest = max(largest, gap)
        if not gap <= TOLERANCE:
            raise Problem(
                f"{name} is {found[name]:.5g}, and over the {int(valid.sum())} valid of {valid.numel()} "
                f"steps it is {right:.5g}",
                "Likely cause: dead agents, fillers or padding count, or their numbers are read",
                "Fix: take metrics over valid steps",
                measured=gap,
                tolerance=TOLERANCE,
            )
    if policy.obs_norm is not None:
        largest = max(largest, _check_statistics(one.policy, policy, rollout))
    count = _check_episodes(rollouts)
    return Passed(f"metrics are those of valid steps, of {count} episodes too", largest, TOLERANCE)


def _spoiled(rollout: Rollout) -> Rollout:
    """With numbers that no metric may contain at invalid steps, and in the states that they leave."""
    bad, reward = ~rollout.valid, rollout.reward.clone()
    record = {name: x.clone() for name, x in rollout.record.items()}
    reward[bad] = POISON
    record["value"][bad] = POISON
    record["log_prob"][bad] = -POISON
    states = tree.clone(rollout.states)
    for number, step in enumerate(rollout.state_steps):
        for leaf in tree.leaves(states):
            if step and leaf.is_floating_point():
                leaf[number, bad[step - 1]] = POISON
    return replace(rollout, reward=reward, record=record, states=states)


def _expected(one: RecordedRollout, outputs: Outputs, config: Any, valid: Tensor) -> dict[str, float]:
    rollout = one.rollout
    made = outputs if isinstance(config, ImpalaConfig) else recorded(rollout)
    advantage, returns = plain_advantages(one, made, config)
    named = {
        "reward": rollout.reward,
        "value": rollout.record["value"],
        "advantage": advantage,
        "return": returns,
    }
    found: dict[str, float] = {}
    for name, x in named.items():
        x = x.double().cpu()[valid]
        found |= {f"{name}/mean": float(x.mean()), f"{name}/std": float(x.std(correction=0))}
        found |= {f"{name}/min": float(x.min()), f"{name}/max": float(x.max())}
    if isinstance(config, ImpalaConfig):
        log_ratio = (made.record["log_prob"] - rollout.record["log_prob"]).double().cpu()[valid]
        found["rho/mean"] = float(log_ratio.exp().clamp(max=config.rho_clip).mean())
    norms = _norms(one)
    return found | ({"state/norm": sum(norms) / len(norms), "state/norm_max": max(norms)} if norms else {})


def _norms(one: RecordedRollout) -> list[float]:
    """The norms of the stored states that a valid step has left."""
    rollout, found = one.rollout, []
    for number, step in enumerate(rollout.state_steps):
        leaves = [leaf[number].double() for leaf in tree.leaves(rollout.states) if leaf.is_floating_point()]
        for row in range(rollout.rows):
            lived = rollout.valid[step - 1, row] if step else rollout.valid[0, row] & ~rollout.first[0, row]
            if lived and leaves:
                found.append(float(sum(leaf[row].square().sum() for leaf in leaves)) ** 0.5)
    return found


def _check_statistics(before: Policy, after: Policy, rollout: Rollout) -> float:
    """Running means of observations, after an update, are those of the former and the valid steps."""
    largest = 0.0
    assert before.obs_norm is not None
    assert after.obs_norm is not None
    old, new = before.obs_norm.state_dict(), after.obs_norm.state_dict()
    seen = dict(tree.named_leaves(tree.index(rollout.obs, slice(rollout.steps)), "obs"))
    for name in [key.removesuffix(".mean") for key in new if key.endswith(".mean")]:
        leaf = seen.get(name.removeprefix("scalings."))
        if leaf is None:
            continue
        x = leaf[rollout.valid].double()
        count = float(old[f"{name}.count"])
        right = (old[f"{name}.mean"].double() * count + x.sum(0)) / (count + len(x))
        gap = float((new[f"{name}.mean"].double() - right).abs().max() / right.abs().max().clamp(min=1))
        largest = max(largest, gap)
        if not gap <= TOLERANCE:
            raise Problem(
                f"the mean of {name.removeprefix('scalings.')} is {gap:.1e} off that of the valid steps",
                "Likely cause: observations of dead agents or fillers count",
                "Fix: merge the valid steps only",
                measured=gap,
                tolerance=TOLERANCE,
            )
    return largest


def _check_episodes(rollouts: Sequence[RecordedRollout]) -> int:
    """Returns and lengths of episodes, counted over the logs row by row."""
    rows = rollouts[0].rollout.rows
    tracker = EpisodeTracker(rows)
    total, length = [0.0] * rows, [0] * rows
    found, right = list[tuple[float, int]](), list[tuple[float, int]]()
    for one in rollouts:
        made = tracker.add(_with_rewards(one.rollout))
        found += zip(made.returns.tolist(), made.lengths.tolist())
        log = one.log
        for t in range(one.rollout.steps):
            for row in range(rows):
                if log.valid[t, row]:
                    total[row], length[row] = total[row] + float(log.reward[t, row]), length[row] + 1
                if log.ended[t, row]:
                    right.append((total[row], length[row]))
                    total[row], length[row] = 0.0, 0
    gaps = [abs(a - b) + abs(n - m) for (a, n), (b, m) in zip(sorted(found), sorted(right))]
    size = max([1.0, *(abs(a) for a, _ in right)])
    if len(found) != len(right) or max(gaps, default=0.0) > TOLERANCE * size:
        raise Problem(
            f"{len(found)} episodes are counted, with other numbers than the {len(right)} of the log",
            "Likely cause: rewards or steps of dead agents or fillers count",
            "Fix: add up valid steps only",
        )
    return len(right)


def _with_rewards(rollout: Rollout) -> Rollout:
    """With rewards at invalid steps, which no return may contain."""
    return replace(rollout, actor=0, reward=rollout.reward.masked_fill(~rollout.valid, POISON))
