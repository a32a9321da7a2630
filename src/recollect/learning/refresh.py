"""What a rollout would hold under the current weights: log-probs, values and states, replayed.

The replay starts from the stored state at the rollout's start, which is itself not refreshed; the
actor's live state is never touched.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from recollect.base import devices, tree
from recollect.base.types import State
from recollect.experience.rollout import Finals, Rollout
from recollect.policy.policy import Policy

SPAN = 8
"""Steps whose states are held at a time, where it would wait to look at which steps were cut."""


@dataclass(frozen=True, slots=True)
class Refreshed:
    """The parts of a rollout that follow from the weights."""

    log_prob: Tensor
    """[T, B] of the recorded actions."""
    value: Tensor
    """[T, B]"""
    final_value: Tensor
    """[T, B], where truncated"""
    bootstrap: Tensor
    """[B]"""
    states: State
    """[S, B, ...] at the rollout's ``state_steps``."""


def recorded(rollout: Rollout) -> Refreshed:
    """The same parts as they were recorded."""
    record = rollout.record
    return Refreshed(
        record["log_prob"], record["value"], rollout.final_value, rollout.bootstrap, rollout.states
    )


@torch.no_grad()
def refresh(policy: Policy, rollout: Rollout) -> Refreshed:
    """Replay a rollout from its first stored state, as the policy is now."""
    T = rollout.steps
    finals = rollout.finals
    if finals is not None and devices.synchronises(finals.time):
        return _refresh_unread(policy, rollout, finals)
    after_cuts = [] if finals is None else (finals.time + 1).unique().tolist()
    times = sorted({*rollout.state_steps, *after_cuts, T})
    obs = tree.map(lambda leaf: leaf[:T], rollout.obs)
    dist, value, states = policy.unroll_with_states(obs, rollout.state_at(0), rollout.first[:T], times)
    at = dict(zip(times, states))
    last = tree.map(lambda leaf: leaf[T], rollout.obs)
    final_value = torch.zeros_like(rollout.final_value)
    if finals is not None:
        cuts = zip(finals.time.tolist(), finals.row.tolist())
        state = tree.stack([tree.index(at[t + 1], row) for t, row in cuts])
        _write_final_values(final_value, policy, finals, state)
    return Refreshed(
        log_prob=dist.log_prob(rollout.action),
        value=value,
        final_value=final_value,
        bootstrap=policy.value(last, at[T], rollout.first[T]),
        states=tree.stack([at[step] for step in rollout.state_steps]),
    )


def _refresh_unread(policy: Policy, rollout: Rollout, finals: Finals) -> Refreshed:
    """The same where looking at the times of the cuts would wait: every step's state, a span at a time."""
    T, state = rollout.steps, rollout.state_at(0)
    log_probs, values, stored = [], [], []
    after_cuts = tree.map(lambda leaf: leaf.index_select(0, finals.row), state)  # [N, ...], to be filled
    for begin in range(0, T, SPAN):
        span = slice(begin, min(begin + SPAN, T))
        steps = span.stop - begin
        obs, action = tree.index(rollout.obs, span), tree.index(rollout.action, span)
        dist, value, states = policy.unroll_with_states(obs, state, rollout.first[span], range(steps + 1))
        log_probs.append(dist.log_prob(action))
        values.append(value)
        stored += [states[step - begin] for step in rollout.state_steps if begin <= step < span.stop]
        place, after = finals.time - begin, tree.stack(states[1:])  # [K, B, ...]
        found = tree.index(after, (place.clamp(0, steps - 1), finals.row))
        after_cuts = tree.select((place >= 0) & (place < steps), found, after_cuts)
        state = states[-1]
    final_value = torch.zeros_like(rollout.final_value)
    _write_final_values(final_value, policy, finals, after_cuts)
    return Refreshed(
        log_prob=torch.cat(log_probs),
        value=torch.cat(values),
        final_value=final_value,
        bootstrap=policy.value(tree.index(rollout.obs, T), state, rollout.first[T]),
        states=tree.stack(stored),
    )


def _write_final_values(final_value: Tensor, policy: Policy, finals: Finals, state: State) -> None:
    """V(the observation before the reset, the state [N, ...] after step t) for every truncation."""
    inside = torch.zeros(len(finals.row), dtype=torch.bool, device=finals.row.device)
    final_value[finals.time, finals.row] = policy.value(finals.obs, state, inside)
