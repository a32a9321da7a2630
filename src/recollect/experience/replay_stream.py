"""Where the steps of a rollout go in the streams of a replay: positions, episodes, final slots.

The stream of a row holds its valid steps, one slot each, and after a truncated step a *final slot* with
the final observation, which is no step. So within an episode the observation after a step is always in the
next slot. The position of a slot is its index in the whole stream, from 0.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Placement(NamedTuple):
    """The positions of T steps of B rows in their streams."""

    position: Tensor
    """[T, B] int64, of the valid steps."""
    start: Tensor
    """[T, B] int64: position of the first slot of the step's episode, which identifies the episode."""
    has_final: Tensor
    """[T, B] bool: the slot after the step is a final slot."""
    was_abandoned: Tensor
    """[T, B] bool: the step opens an episode, and the slot before it is in the middle of another one."""
    head: Tensor
    """[B] int64: number of slots written to each stream, these included."""
    open_start: Tensor
    """[B] int64: ``start`` of the episode that the row is in; -1: it is in none."""


def place(
    *,
    valid: Tensor,
    first: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    head: Tensor,
    open_start: Tensor,
) -> Placement:
    """Continue the streams of B rows by T steps. Flags [T, B]; ``head``, ``open_start`` [B] before them."""
    has_final = valid & truncated & ~terminated
    taken = valid.long() + has_final.long()
    total = taken.cumsum(0)
    position = head + total - taken

    # Whether the row is inside an episode before each step, and after the last one.
    steps = torch.arange(1, len(valid) + 1, device=valid.device).unsqueeze(1)
    latest = torch.where(valid, steps, 0).cummax(0).values  # 1 + the latest valid step up to here, or 0
    continues = torch.cat([(open_start >= 0).unsqueeze(0), ~(terminated | truncated)])
    is_open = continues.gather(0, torch.cat([torch.zeros_like(latest[:1]), latest]))

    begins = valid & (first | ~is_open[:-1])
    start = torch.where(begins, position, open_start).cummax(0).values
    return Placement(
        position=position,
        start=start,
        has_final=has_final,
        was_abandoned=begins & is_open[:-1],
        head=head + total[-1],
        open_start=start[-1].masked_fill(~is_open[-1], -1),
    )
