"""Values of the final observations of truncated episodes.

The last step of a truncated episode bootstraps from V(the observation before the reset, the state *after*
that step). Two implementations give equal values:

* ``ImmediateFinalValues`` evaluates the truncated rows after every step, where host reads are free.
* ``DeferredFinalValues`` is for devices that a host read synchronises. Every step stores the final
  observations and states of truncated rows by selection, in a fixed number of slots per row; the end of the
  rollout evaluates all slots in one batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeGuard

import torch
from torch import Tensor

from recollect.base import devices, tree
from recollect.base.types import State, Step, Tree
from recollect.envs.contract import BatchedEnv, Capturable
from recollect.errors import EnvError
from recollect.experience.rollout import Finals, Rollout
from recollect.policy.policy import Policy


class ImmediateFinalValues:
    """Evaluates truncated rows after every step."""

    def __init__(self, policy: Policy | None, truncated_rows: Callable[[Step], Tensor | None]):
        """``policy``: None if no values are needed, only the observations.

        ``truncated_rows``: returns those of a step, as in ``ReportsTruncation``.
        """
        self._policy, self._truncated_rows = policy, truncated_rows
        self._found: list[tuple[Tensor, Tensor, Tree, Tree]] = []

    def begin(self) -> None:
        """Start a rollout."""
        self._found = []

    def add(self, t: int, step: Step, state: State) -> None:
        """Add step t, with the ``state`` after it."""
        rows = self._truncated_rows(step)
        if rows is None:
            return
        obs = tree.index(step.final_obs, rows)
        value = ()
        if self._policy is not None:
            inside = torch.zeros(len(rows), dtype=torch.bool, device=rows.device)
            value = self._policy.value(obs, tree.index(state, rows), inside)  # no reset applies
        # Copies: the env overwrites the rows in its next step.
        self._found.append((torch.full_like(rows, t), rows.clone(), tree.clone(obs), value))

    def write(self, out: Rollout) -> None:
        """Write the final values of the rollout, if it has any."""
        if out.final_value is None:
            return
        out.final_value.zero_()
        if self._found:
            times, rows, _, values = zip(*self._found)
            out.final_value[torch.cat(times), torch.cat(rows)] = torch.cat(values)

    def finals(self) -> Finals | None:
        """The final observations, for later evaluation with other weights."""
        if not self._found:
            return None
        times, rows, obs, _ = zip(*self._found)
        return Finals(torch.cat(times), torch.cat(rows), tree.cat(obs))


class DeferredFinalValues:
    """Stores up to ``slots`` truncations per row and rollout, without host reads."""

    def __init__(self, policy: Policy | None, slots: int, final_obs: Tree, state: State, first: Tensor):
        """``final_obs``, ``state`` and ``first`` of B rows give the shapes.

        ``policy``: None if no values are needed, only the observations.
        """
        self._policy, self._slots = policy, slots
        state = () if policy is None else state
        self._obs, self._state = (tree.empty(like, (slots, len(first))) for like in (final_obs, state))
        self._time = first.new_zeros((slots, len(first)), dtype=torch.int64)
        self._is_used = first.new_zeros((slots, len(first)))
        self._inside = first.new_zeros(slots * len(first))
        self._lost: Tensor | None = None
        """[T, B]: truncations without a slot; None if their values show it."""

    def begin(self) -> None:
        """Start a rollout."""
        self._is_used.zero_()

    def add(self, t: int, step: Step, state: State) -> None:
        """Add step t, with the ``state`` after it."""
        truncated = step.truncated & ~step.terminated
        for slot in range(self._slots):  # each row takes its first free slot
            here = truncated if self._slots == 1 else truncated & ~self._is_used[slot]
            tree.copy_where_(tree.index(self._obs, slot), here, step.final_obs)
            if self._policy is not None:
                tree.copy_where_(tree.index(self._state, slot), here, state)
            self._time[slot].masked_fill_(here, t)
            self._is_used[slot].logical_or_(here)
            truncated = truncated & ~here

    def write(self, out: Rollout) -> None:
        """Write the final values of the rollout, if it has any."""
        truncated = out.truncated & ~out.terminated
        too_often = truncated & (truncated.sum(0) > self._slots)
        if out.final_value is None or self._policy is None:
            self._lost = too_often
            return
        out.final_value.zero_()
        # A row that truncates more often than its env declared (truncation_gap) gets NaN, which ends the run.
        out.final_value.masked_fill_(too_often, torch.nan)
        if not self._slots:
            return
        obs, state = (tree.map(lambda leaf: leaf.flatten(0, 1), kept) for kept in (self._obs, self._state))
        value = self._policy.value(obs, state, self._inside).view(self._time.shape)
        # Added to zeros: an unused slot adds zero at its stale time.
        out.final_value.scatter_add_(0, self._time, value.masked_fill(~self._is_used, 0))

    def finals(self) -> Finals | None:
        """The final observations, for later evaluation with other weights, ordered by time. A host read."""
        if self._lost is not None and self._lost.any():
            raise EnvError(
                f"row {int(self._lost.any(0).nonzero()[0])} was truncated more often than the env declares, "
                "so a final observation is lost: lower the env's truncation_gap"
            )
        if not self._slots:
            return None
        slot, row = self._is_used.nonzero(as_tuple=True)
        if len(row) == 0:
            return None
        order = self._time[slot, row].argsort(stable=True)
        slot, row = slot[order], row[order]
        return Finals(self._time[slot, row], row, tree.index(self._obs, (slot, row)))


def truncated_rows(step: Step) -> Tensor | None:
    """[n] int64: rows that a step truncated and did not terminate; None: no row. A host read."""
    if not step.truncated.any():  # the common case, at the least cost
        return None
    rows = (step.truncated & ~step.terminated).nonzero().squeeze(1)
    return rows if len(rows) > 0 else None


def truncation_slots(env: BatchedEnv, steps: int) -> int:
    """Slots per row that ``DeferredFinalValues`` needs for ``steps`` steps; 0 for other envs."""
    if not steps_without_reads(env) or env.truncation_gap is None:
        return 0
    return (steps - 1) // env.truncation_gap + 1


def steps_without_reads(env: BatchedEnv) -> TypeGuard[Capturable]:
    """Whether rollouts of this env need no host reads, so that a whole rollout can be captured."""
    return isinstance(env, Capturable) and devices.synchronises(env.device)
