"""The words of Recollect, and the records that travel between its parts.

Every tensor of experience is time-major, ``[T, B, ...]``.

============================  =================================================================
word                          meaning
============================  =================================================================
T, B, L                       steps in a rollout; rows (env slots x agents); steps in a chunk
row                           one stream of experience: one agent in one env slot, with one state
``obs[t]``, ``first[t]``      the observation that action t is chosen on, t = 0..T (T + 1 of
                              them); whether it opens an episode
``action[t]``, ``reward[t]``  what was done on ``obs[t]`` and what it earned, t = 0..T-1
``log_prob``, ``value``       as recorded while acting
``terminated``, ``truncated`` the outcome of action t; if both are true, terminated wins
``final_value[t]``            V(the observation before the reset, the state after step t), where
                              ``truncated[t]``
``bootstrap``                 V(obs[T], the state after step T-1), for rows inside an episode
``valid[t]``                  false for rows that are no experience: dead agents, the filler rows
                              of next-step autoreset, padding
``state``                     any pytree of tensors, batch first in every leaf ``[B, ...]``: the
                              *input* state of the step it stands at, before ``first`` applies
version                       the number of the weights that acted
============================  =================================================================

There is no ``done`` anywhere: a time limit is not a death, and the two are told apart from the
env to the loss.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

Tree = Any
"""A tensor, or a tuple or dict of trees. ``recollect.base.tree`` has the functions over them."""

State = Any
"""A tree whose every leaf is batch first: ``[B, ...]``. A core without memory has ``()``."""


@dataclass(frozen=True, slots=True)
class Step:
    """What one call of ``BatchedEnv.step`` brings back, for B rows.

    The tensors belong to the env and hold until its next ``step`` or ``reset``: copy to keep.
    """

    obs: Tree
    """[B, ...] what to act on next: already reset where ``first``."""
    first: Tensor
    """[B] bool: ``obs`` opens an episode."""
    reward: Tensor
    """[B] float32."""
    terminated: Tensor
    """[B] bool: the world ended; there is no future to bootstrap from."""
    truncated: Tensor
    """[B] bool: the episode was cut; the future exists but is not seen."""
    final_obs: Tree
    """[B, ...] what was seen before the reset, where ``terminated | truncated``; elsewhere anything."""
    valid: Tensor
    """[B] bool: this step was real experience."""
    info: dict[str, Tensor] = field(default_factory=dict)
    """Numbers worth logging, [B] each."""
