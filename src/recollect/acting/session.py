"""Sessions: a trained agent in use, with the live memory of every env."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from recollect.acting import numpy_conversion
from recollect.base import row_threads, tree
from recollect.base.types import State
from recollect.errors import StateError
from recollect.policy.noisy import means
from recollect.policy.policy import Policy

Memory = dict[str, Any]
"""Result of ``get_memory``: copies of ``state``, ``first`` and the RNG state."""
Rows = Sequence[int] | np.ndarray | Tensor
"""Indices of envs, or a mask over all envs."""


class Session:
    """Envs with their memories. Every env begins at the start of an episode."""

    def __init__(self, policy: Policy, num_envs: int, *, deterministic: bool = True, seed: int = 0):
        if num_envs < 1:
            raise StateError(f"a session needs at least one env, not {num_envs}")
        self.policy, self.num_envs, self.deterministic = policy.actor_only(), num_envs, deterministic
        self._device = next(policy.parameters()).device
        self._generator = torch.Generator(self._device).manual_seed(seed)
        self._state: State = self.policy.initial_state(num_envs)
        self._first = torch.ones(num_envs, dtype=torch.bool, device=self._device)

    def act(self, obs: Any, rows: Rows | None = None) -> Any:
        """Actions for the observations of all envs, or of the envs ``rows``.

        ``obs`` is [rows, ...]; for one env it may also be a single observation, and then the action is
        single, too.
        """
        which = self._rows(rows)
        batch, is_single = numpy_conversion.observations(self.policy, obs)
        given = tree.leaves(batch)[0].shape[0]
        if given != len(which):
            raise StateError(
                f"{given} observations for {len(which)} envs: pass one for each, or name the envs by rows="
            )
        first = self._first[which]
        with row_threads.acting_threads(given), means():
            state = tree.index(self._state, which)
            acted, state = self.policy.act(batch, state, first, self._generator, self.deterministic)
            self._state = tree.put(self._state, which, state)
            action = self.policy.to_env(acted.action)
        self._first[which] = False
        return numpy_conversion.actions(self.policy.action_space, action, is_single)

    def reset(self, rows: Rows | None = None) -> None:
        """The next observation of the envs ``rows`` (None: all) opens an episode."""
        self._first[self._rows(rows)] = True

    @property
    def has_memory(self) -> bool:
        """Whether the policy has a state."""
        return self.policy.has_memory

    def get_memory(self) -> Memory:
        """Copies of all that determines the next actions: memory, pending resets, RNG."""
        return {
            "state": tree.clone(self._state),
            "first": self._first.clone(),
            "rng": self._generator.get_state(),
        }

    def set_memory(self, memory: Memory) -> None:
        """Continue from the result of ``get_memory``. If it does not fit, raise and change nothing."""
        own = self.get_memory()
        if missing := own.keys() - memory.keys():
            raise StateError(f"the memory lacks {', '.join(sorted(missing))}: pass what get_memory returned")
        given = {name: memory[name] for name in own}
        want, got = tree.spec(own, lead=0), tree.spec(given, lead=0)
        if want != got:
            raise StateError(
                f"the memory has leaves {got}, this session {want}: it is of another policy, of another "
                "number of envs, or its random stream is of another kind of device"
            )
        self._generator.set_state(given["rng"].cpu())
        self._state = tree.to(tree.clone(given["state"]), self._device)
        self._first = given["first"].to(self._device, copy=True)

    def reset_memory(self, rows: Rows | None = None) -> None:
        """Reset the memory of the envs ``rows`` (None: all) now; their next step opens an episode."""
        which = self._rows(rows)
        self._state = tree.put(self._state, which, self.policy.initial_state(len(which)))
        self._first[which] = True

    def _rows(self, rows: Rows | None) -> Tensor:
        if rows is None:
            return torch.arange(self.num_envs, device=self._device)
        given = np.asarray(rows.cpu() if isinstance(rows, Tensor) else rows).reshape(-1)
        if given.dtype == bool:  # a mask over all envs, such as terminated | truncated
            if len(given) != self.num_envs:
                raise StateError(f"a mask of {len(given)} rows for {self.num_envs} envs: one flag for each")
            given = given.nonzero()[0]
        elif given.size and given.dtype.kind not in "iu":
            raise StateError(f"rows of dtype {given.dtype}: give the numbers of envs, or a mask of bools")
        if len(set(given.tolist()) & set(range(self.num_envs))) != len(given):
            raise StateError(f"rows {given.tolist()}: each of 0 to {self.num_envs - 1} at most once")
        return torch.as_tensor(given.astype(np.int64), device=self._device)
