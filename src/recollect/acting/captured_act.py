"""``policy.act`` as a CUDA graph, for envs that step outside of the graph."""

from __future__ import annotations

import torch
from torch import Tensor

from recollect.base import tree
from recollect.base.cuda_graphs import Graphs
from recollect.base.types import State, Tree
from recollect.policy.policy import Acted, Policy


class CapturedAct:
    """``policy.act``, captured in a CUDA graph.

    The next call overwrites the returned state, but not the returned ``Acted``.
    """

    def __init__(
        self,
        policy: Policy,
        obs: Tree,
        state: State,
        first: Tensor,
        generator: torch.Generator,
        graphs: Graphs,
    ):
        """``obs``, ``state`` and ``first`` of B rows give the shapes."""
        self._obs, self._state, self._first = tree.clone(obs), tree.clone(state), first.clone()

        def act() -> Acted:
            acted, after = policy.act(self._obs, self._state, self._first, generator)
            tree.copy_(self._state, after)
            return acted

        self._act = graphs.captured(act, "choosing actions", policy, [generator])

    def __call__(self, obs: Tree, state: State, first: Tensor) -> tuple[Acted, State]:
        """obs [B, ...], state, first [B] -> actions and the next state."""
        tree.copy_(self._obs, obs)
        self._first.copy_(first)
        if state is not self._state:
            tree.copy_(self._state, state)
        acted = self._act()
        if self._act.is_graph:
            acted = Acted(*(tree.clone(part) for part in acted))
        return acted, self._state
