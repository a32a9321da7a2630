"""What a rollout would hold under the current weights: log-probs, values and states, replayed.

The replay starts from the stored state at the rollout's start, which is itself not refreshed; the
actor's live state is never touched.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from recollect import tree
from recollect.policy.policy import Policy
from recollect.rollout import Finals, Rollout
from recollect.types import State


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
    after_cuts = [] if finals is None else (finals.time + 1).unique().tolist()
    times = sorted({*rollout.state_steps, *after_cuts, T})
    obs = tree.map(lambda leaf: leaf[:T], rollout.obs)
    dist, value, states = policy.unroll_with_states(obs, rollout.state_at(0), rollout.first[:T], times)
    at = dict(zip(times, states))
    last = tree.map(lambda leaf: leaf[T], rollout.obs)
    final_value = torch.zeros_like(rollout.final_value)
    if finals is not None:
        _write_final_values(final_value, policy, finals, at)
    return Refreshed(
        log_prob=dist.log_prob(rollout.action),
        value=value,
        final_value=final_value,
        bootstrap=policy.value(last, at[T], rollout.first[T]),
        states=tree.stack([at[step] for step in rollout.state_steps]),
    )


def _write_final_values(final_value: Tensor, policy: Policy, finals: Finals, at: dict[int, State]) -> None:
    """V(the observation before the reset, the state after step t) for every truncation."""
    states = [tree.index(at[t + 1], row) for t, row in zip(finals.time.tolist(), finals.row.tolist())]
    state = tree.stack(states)
    inside = torch.zeros(len(finals.row), dtype=torch.bool, device=finals.row.device)
    final_value[finals.time, finals.row] = policy.value(finals.obs, state, inside)
