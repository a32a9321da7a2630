"""What acting keeps of episodes that are cut: V of what was seen last, with the memory after it.

An episode that is truncated is not over, so that its last step needs the value of the observation before the
reset, in the state *after* that step. There are two ways to keep these, which agree:

``Listed``   where it costs nothing to look: the rows that were cut in a step, evaluated at once.
``Slotted``  where looking would wait for the device: each row has a place, or a few, for what it saw when
             it was cut, which every step fills by selection; all are evaluated in one go at the end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeGuard

import torch
from torch import Tensor

from recollect.base import devices, tree
from recollect.base.types import State, Step, Tree
from recollect.envs.contract import BatchedEnv, Capturable
from recollect.experience.rollout import Finals, Rollout
from recollect.policy.policy import Policy


class Listed:
    """Evaluates the rows that were cut, step by step."""

    def __init__(self, policy: Policy, truncated_rows: Callable[[Step], Tensor | None]):
        """``truncated_rows``: those of a step, as ``ReportsTruncation`` gives them."""
        self._policy, self._truncated_rows = policy, truncated_rows
        self._found: list[tuple[Tensor, Tensor, Tree, Tensor]] = []

    def begin(self) -> None:
        """A new rollout."""
        self._found = []

    def add(self, t: int, step: Step, state: State) -> None:
        """Step t was made, and left ``state``."""
        rows = self._truncated_rows(step)
        if rows is None:
            return
        obs = tree.index(step.final_obs, rows)
        inside = torch.zeros(len(rows), dtype=torch.bool, device=rows.device)
        value = self._policy.value(obs, tree.index(state, rows), inside)  # no reset applies
        # The rows are the env's, until its next step.
        self._found.append((torch.full_like(rows, t), rows.clone(), tree.clone(obs), value))

    def write(self, out: Rollout) -> None:
        """The values of the rollout's cuts, into it."""
        out.final_value.zero_()
        if self._found:
            times, rows, _, values = zip(*self._found)
            out.final_value[torch.cat(times), torch.cat(rows)] = torch.cat(values)

    def finals(self) -> Finals | None:
        """What was seen, for evaluating it again."""
        if not self._found:
            return None
        times, rows, obs, _ = zip(*self._found)
        return Finals(torch.cat(times), torch.cat(rows), tree.cat(obs))


class Slotted:
    """Keeps what every row saw when it was cut, ``places`` times a rollout at most; reads nothing."""

    def __init__(self, policy: Policy, places: int, final_obs: Tree, state: State, first: Tensor):
        """Shapes are taken from ``final_obs``, ``state`` and ``first`` of B rows."""
        self._policy, self._places = policy, places
        self._obs, self._state = (tree.empty(like, (places, len(first))) for like in (final_obs, state))
        self._time = first.new_zeros((places, len(first)), dtype=torch.int64)
        self._is_cut = first.new_zeros((places, len(first)))
        self._inside = first.new_zeros(places * len(first))

    def begin(self) -> None:
        """A new rollout."""
        self._is_cut.zero_()

    def add(self, t: int, step: Step, state: State) -> None:
        """Step t was made, and left ``state``."""
        cut = step.truncated & ~step.terminated
        for place in range(self._places):  # the first that is free
            here = cut if self._places == 1 else cut & ~self._is_cut[place]
            tree.copy_where_(tree.index(self._obs, place), here, step.final_obs)
            tree.copy_where_(tree.index(self._state, place), here, state)
            self._time[place].masked_fill_(here, t)
            self._is_cut[place].logical_or_(here)
            cut = cut & ~here

    def write(self, out: Rollout) -> None:
        """The values of the rollout's cuts, into it."""
        out.final_value.zero_()
        # An env that cuts more often than it said has no values to show: NaN, which ends the run.
        cuts = out.truncated & ~out.terminated
        out.final_value.masked_fill_(cuts & (cuts.sum(0) > self._places), torch.nan)
        if not self._places:
            return
        obs, state = (tree.map(lambda leaf: leaf.flatten(0, 1), kept) for kept in (self._obs, self._state))
        value = self._policy.value(obs, state, self._inside).view(self._time.shape)
        # Added to zeros: a place that is not used adds nothing to whatever its time says.
        out.final_value.scatter_add_(0, self._time, value.masked_fill(~self._is_cut, 0))

    def finals(self) -> Finals | None:
        """What was seen, for evaluating it again, in order of time. Reads: not inside of a rollout."""
        if not self._places:
            return None
        place, row = self._is_cut.nonzero(as_tuple=True)
        if len(row) == 0:
            return None
        order = self._time[place, row].argsort(stable=True)
        place, row = place[order], row[order]
        return Finals(self._time[place, row], row, tree.index(self._obs, (place, row)))


def look(step: Step) -> Tensor | None:
    """The rows that a step cut, [n]; None: none. On a GPU this waits."""
    if not step.truncated.any():  # as nearly always, and this is cheaper than the rest
        return None
    rows = (step.truncated & ~step.terminated).nonzero().squeeze(1)
    return rows if len(rows) > 0 else None


def places(env: BatchedEnv, steps: int) -> int:
    """How often a row of ``env`` can be cut in ``steps`` steps, where that needs a place (``Slotted``)."""
    if not is_unread(env) or env.truncation_gap is None:
        return 0
    return (steps - 1) // env.truncation_gap + 1


def is_unread(env: BatchedEnv) -> TypeGuard[Capturable]:
    """Whether rollouts of this env are recorded without host reads."""
    return isinstance(env, Capturable) and devices.synchronises(env.device)
