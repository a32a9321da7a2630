"""The log-probs, values and states that the present weights give for a rollout.

They come from a replay of the rollout from its first stored state, which is not refreshed itself. The actor's
live state is never changed.
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
"""Steps whose states are in memory at a time, where a host read of the truncated steps synchronises."""


@dataclass(frozen=True, slots=True)
class Outputs:
    """The parts of a rollout that depend on the weights."""

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


def recorded(rollout: Rollout) -> Outputs:
    """The outputs of the weights that acted."""
    record = rollout.record
    return Outputs(
        record["log_prob"], record["value"], rollout.final_value, rollout.bootstrap, rollout.states
    )


@torch.no_grad()
def refresh(policy: Policy, rollout: Rollout) -> Outputs:
    """The outputs of the present weights."""
    T, finals = rollout.steps, rollout.finals
    if finals is not None and devices.synchronises(finals.time):
        log_prob, value, stored, cut, end = _replay_in_spans(policy, rollout, finals)
    else:
        log_prob, value, stored, cut, end = _replay(policy, rollout, finals)
    final_value = torch.zeros_like(rollout.final_value)
    if finals is not None:
        inside = torch.zeros(len(finals.row), dtype=torch.bool, device=finals.row.device)
        final_value[finals.time, finals.row] = policy.value(finals.obs, cut, inside)
    bootstrap = policy.value(tree.index(rollout.obs, T), end, rollout.first[T])
    return Outputs(log_prob, value, final_value, bootstrap, tree.stack(stored))


Replayed = tuple[Tensor, Tensor, list[State], State, State]
"""Log-probs and values [T, B]; the states at the rollout's ``state_steps``; those after the truncated steps
of ``finals`` [N, ...]; and those after the last step."""


def _replay(policy: Policy, rollout: Rollout, finals: Finals | None) -> Replayed:
    """The whole rollout in one unroll, split at the steps whose states are needed."""
    T = rollout.steps
    after_truncations = [] if finals is None else (finals.time + 1).unique().tolist()
    times = sorted({*rollout.state_steps, *after_truncations, T})
    obs = tree.index(rollout.obs, slice(T))
    dist, value, states = policy.unroll_with_states(obs, rollout.state_at(0), rollout.first[:T], times)
    at, cut = dict(zip(times, states)), ()
    if finals is not None:
        places = zip(finals.time.tolist(), finals.row.tolist())
        cut = tree.stack([tree.index(at[t + 1], row) for t, row in places])
    return dist.log_prob(rollout.action), value, [at[step] for step in rollout.state_steps], cut, at[T]


def _replay_in_spans(policy: Policy, rollout: Rollout, finals: Finals) -> Replayed:
    """``_replay`` without a host read of the truncated steps: it computes every state, a span at a time."""
    T, state = rollout.steps, rollout.state_at(0)
    log_probs, values, stored = [], [], []
    cut = tree.map(lambda leaf: leaf.index_select(0, finals.row), state)  # [N, ...], to be filled
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
        cut = tree.select((place >= 0) & (place < steps), found, cut)
        state = states[-1]
    return torch.cat(log_probs), torch.cat(values), stored, cut, state
