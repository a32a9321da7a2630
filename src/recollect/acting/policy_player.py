"""``PolicyPlayer``: a policy with fixed weights as a player of some rows of an env."""

from __future__ import annotations

import torch
from torch import Tensor

from recollect.base.types import State, Tree
from recollect.policy.policy import Policy


class PolicyPlayer:
    """A policy with fixed weights, with a memory of its own for each row. It always plays the same rows."""

    def __init__(
        self, policy: Policy, device: torch.device | str, seed: int = 0, *, deterministic: bool = False
    ) -> None:
        """``policy``: in eval mode, on ``device``. ``seed``: of sampled actions."""
        self.deterministic = deterministic
        """Whether to take the mode of each distribution instead of a sample."""
        self._policy = policy.actor_only()
        self._state: State | None = None
        self._generator = torch.Generator(device).manual_seed(seed)

    def act(self, rows: Tensor, obs: Tree, first: Tensor) -> Tree:
        """The actions [R, ...] of ``rows`` [R], the same ones in every call."""
        if self._state is None:
            self._state = self._policy.initial_state(len(rows))
        with torch.no_grad():
            acted, self._state = self._policy.act(
                obs, self._state, first, self._generator, self.deterministic
            )
        return self._policy.to_env(acted.action)
