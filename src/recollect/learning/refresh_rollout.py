"""The record, values and states that the present weights give for a rollout.

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

    record: dict[str, Tensor]
    """[T, B, ...] each: the head's record of the stored actions."""
    final_value: Tensor | None
    """[T, B], where truncated; None if the rollout has none."""
    bootstrap: Tensor | None
    """[B]; None if the rollout has none."""
    states: State
    """[S, B, ...] at the rollout's ``state_steps``."""


def recorded(rollout: Rollout) -> Outputs:
    """The outputs of the weights that acted."""
    return Outputs(rollout.record, rollout.final_value, rollout.bootstrap, rollout.states)


@torch.no_grad()
def refresh(policy: Policy, rollout: Rollout) -> Outputs:
    """The outputs of the present weights."""
    T, finals = rollout.steps, rollout.finals
    if finals is not None and devices.synchronises(finals.time):
        record, stored, cut, end = _replay_in_spans(policy, rollout, finals)
    else:
        record, stored, cut, end = _replay(policy, rollout, finals)
    states = tree.stack(stored)
    if rollout.final_value is None:
        return Outputs(record, None, None, states)
    final_value = torch.zeros_like(rollout.final_value)
    if finals is not None:
        inside = torch.zeros(len(finals.row), dtype=torch.bool, device=finals.row.device)
        final_value[finals.time, finals.row] = policy.value(finals.obs, cut, inside)
    bootstrap = policy.value(tree.index(rollout.obs, T), end, rollout.first[T])
    return Outputs(record, final_value, bootstrap, states)


Replayed = tuple[dict[str, Tensor], list[State], State, State]
"""The record [T, B, ...]; the states at the rollout's ``state_steps``; those after the truncated steps of
``finals`` [N, ...]; and those after the last step."""


def _replay(policy: Policy, rollout: Rollout, finals: Finals | None) -> Replayed:
    """The whole rollout in one unroll, split at the steps whose states are needed."""
    T = rollout.steps
    after_truncations = [] if finals is None else (finals.time + 1).unique().tolist()
    times = sorted({*rollout.state_steps, *after_truncations, T})
    obs = tree.index(rollout.obs, slice(T))
    *outputs, states = policy.unroll_with_states(obs, rollout.state_at(0), rollout.first[:T], times)
    at, cut = dict(zip(times, states)), ()
    if finals is not None:
        places = zip(finals.time.tolist(), finals.row.tolist())
        cut = tree.stack([tree.index(at[t + 1], row) for t, row in places])
    record = policy.head.record(outputs, rollout.action)
    return record, [at[step] for step in rollout.state_steps], cut, at[T]


def _replay_in_spans(policy: Policy, rollout: Rollout, finals: Finals) -> Replayed:
    """``_replay`` without a host read of the truncated steps: it computes every state, a span at a time."""
    T, state = rollout.steps, rollout.state_at(0)
    records: list[dict[str, Tensor]] = []
    stored = []
    cut = tree.map(lambda leaf: leaf.index_select(0, finals.row), state)  # [N, ...], to be filled
    for begin in range(0, T, SPAN):
        span = slice(begin, min(begin + SPAN, T))
        steps = span.stop - begin
        obs, action = tree.index(rollout.obs, span), tree.index(rollout.action, span)
        *outputs, states = policy.unroll_with_states(obs, state, rollout.first[span], range(steps + 1))
        records.append(policy.head.record(outputs, action))
        stored += [states[step - begin] for step in rollout.state_steps if begin <= step < span.stop]
        place, after = finals.time - begin, tree.stack(states[1:])  # [K, B, ...]
        found = tree.index(after, (place.clamp(0, steps - 1), finals.row))
        cut = tree.select((place >= 0) & (place < steps), found, cut)
        state = states[-1]
    record = {name: torch.cat([part[name] for part in records]) for name in records[0]}
    return record, stored, cut, state
