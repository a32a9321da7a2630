"""The glossary of Recollect, and the record of one env step.

Every tensor of experience is time-major, ``[T, B, ...]``.

============================  =================================================================
term                          meaning
============================  =================================================================
T, B, L                       steps in a rollout; rows; steps in a chunk
slot                          one copy of the env, with one or more agents
row                           one stream of experience: one agent in one slot, with one state;
                              row = slot * agents + agent
``obs[t]``, ``first[t]``      the observation that action t is chosen on, t = 0..T (T + 1 of
                              them); whether it opens an episode
``action[t]``, ``reward[t]``  the action chosen on ``obs[t]`` and its reward, t = 0..T-1
record                        the numbers that the head gives beside the action, t = 0..T-1: ``log_prob``
                              and ``value`` of an actor-critic head
exploration                   how much each row explores, [B]; the algorithm gives it to the head
``terminated``, ``truncated`` the outcome of action t: the episode ended by the rules of the env, or
                              by a limit. If both are true, terminated wins
``final_value[t]``            V(the observation before the reset, the state after step t), where
                              ``truncated[t]``; only for algorithms that need values
``bootstrap``                 V(obs[T], the state after step T-1), for rows inside an episode; likewise
``valid[t]``                  false for rows that are not experience: dead agents, the filler rows of
                              next-step autoreset, padding
``state``, memory             any pytree of tensors, batch first in every leaf ``[B, ...]``: the
                              *input* state of the step at its index, before ``first`` applies
rollout                       T steps of B rows of one actor, acted with one version of the weights
chunk                         L consecutive steps of one row, with the state at its first step
episode segment               the steps of one row that belong to one episode, within one rollout
burn-in                       steps before a chunk that only recompute its state
stream, position              the valid steps of a row in a replay, and the index of one of them
final slot                    the slot of a stream with the observation after a truncated step; no step
window                        the positions of a stream that are sampled together, of one episode
side                          of a two-sided env: one half of a slot's rows, which play against the other half
player                        what chooses the actions of the rows that do not learn
stage                         settings of a curriculum, and the env steps from which on they hold
actor                         the loop that steps envs with a policy and owns the live state
learner                       computes targets and updates the weights from rollouts
runtime                       where actors run: in this process, in other processes, on a Ray cluster
lockstep, async               actors wait for every update; actors run ahead with a bounded lag
version, lag                  number of the weights that acted; updates since those weights
snapshot                      all tensors that determine the following steps of an env or actor
host read                     reading a tensor's value in Python; on a GPU it synchronises the device
capture                       to record GPU operations in a CUDA graph, which is launched as a whole
============================  =================================================================

The term ``done`` is not used: from the env to the loss, termination and truncation are kept apart.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

Tree = Any
"""A tensor, or a tuple or dict of trees. ``recollect.base.tree`` has functions over them."""

State = Any
"""A tree whose leaves are all batch first: ``[B, ...]``. A core without memory has ``()``."""


@dataclass(frozen=True, slots=True)
class Step:
    """The result of ``BatchedEnv.step``, for B rows.

    The tensors belong to the env and are valid until its next ``step`` or ``reset``: copy to keep them.
    """

    obs: Tree
    """[B, ...] the observation to act on next, already reset where ``first``."""
    first: Tensor
    """[B] bool: ``obs`` opens an episode."""
    reward: Tensor
    """[B] float32."""
    terminated: Tensor
    """[B] bool: the episode ended by the rules of the env; there is no future to bootstrap from."""
    truncated: Tensor
    """[B] bool: the episode was cut off; its future is not observed, but has a value."""
    final_obs: Tree
    """[B, ...] the observation before the reset, where ``terminated | truncated``; undefined elsewhere."""
    valid: Tensor
    """[B] bool: this step was real experience."""
    info: dict[str, Tensor] = field(default_factory=dict)
    """Values to log, each [B] or, of slots, [E]. NaN is no value: means leave it out."""
