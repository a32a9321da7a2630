"""The contract between Recollect and a world: rows that are stepped together on one device."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import gymnasium as gym
import torch

from recollect.base.types import Step, Tree


@runtime_checkable
class BatchedEnv(Protocol):
    """B = ``num_envs * agents`` rows, ordered slot by slot: row = slot * agents + agent.

    The laws, for the stream of steps of each row:

    * ``Step.obs`` is what to act on next; where ``first`` it is the new episode's first sight, and
      ``final_obs`` what was seen before the reset, so that nothing is lost to autoreset.
    * An episode ends with ``terminated | truncated`` of a valid step, and only so.
    * After an end comes ``first``, at once or after invalid steps: a filler of next-step autoreset,
      the wait of a dead agent. ``valid`` false means that the action was not used and that reward
      and flags are zero.
    * Rewards, flags and ``valid`` are about the step just made; ``obs`` and ``first`` about the next.
    * Action masks travel inside the observation, under the key ``action_mask``.
    """

    @property
    def num_envs(self) -> int:
        """Env slots."""
        ...

    @property
    def agents(self) -> int:
        """Agents in each slot; 1 for a single-agent env."""
        ...

    @property
    def observation_space(self) -> gym.Space:
        """Of one row."""
        ...

    @property
    def action_space(self) -> gym.Space:
        """Of one row."""
        ...

    @property
    def device(self) -> torch.device:
        """Where all tensors live."""
        ...

    def reset(self, seed: int) -> Tree:
        """Start all rows anew, the same for the same ``seed``. Returns obs [B, ...]; all are first."""
        ...

    def step(self, action: Tree) -> Step:
        """Apply ``action`` [B, ...], a tree that mirrors ``action_space`` (see ``spaces.py``)."""
        ...

    def close(self) -> None:
        """Release what the env holds."""
        ...


@runtime_checkable
class Resumable(Protocol):
    """An env that can hand out its whole state, so that a resumed run continues bit for bit."""

    def snapshot(self) -> dict[str, torch.Tensor]:
        """Everything that decides the future, as copies."""
        ...

    def restore(self, snapshot: dict[str, torch.Tensor]) -> Tree:
        """Continue from a snapshot. Returns the obs [B, ...] to act on next."""
        ...


@runtime_checkable
class Capturable(Protocol):
    """An env on a GPU whose steps can be recorded in a CUDA graph.

    All that it remembers is in tensors that stay where they are, and it reads no number on the host: a step
    is the same operations whatever happens in it. The built-in tasks are.
    """

    @property
    def truncation_gap(self) -> int | None:
        """The least number of steps between two truncations of the same row; None: it never truncates."""
        ...


@runtime_checkable
class Telling(Protocol):
    """An env that is stepped on the host and handed out on a GPU: what the host knows is not read back."""

    def cut_rows(self) -> torch.Tensor | None:
        """[n] int64 on ``device``: the rows that the last step truncated, not terminated; None: none."""
        ...


@runtime_checkable
class Describes(Protocol):
    """An env that can put an observation into words."""

    def describe_row(self, obs: Tree) -> str | None:
        """The observation of row 0 in words; None if an env inside of this one has no words for it."""
        ...


@runtime_checkable
class Split(Protocol):
    """An env whose step can be begun and waited for, so that others work in between."""

    def send(self, action: Tree) -> None:
        """Begin the step with ``action``."""
        ...

    def receive(self) -> Step:
        """Wait for the end of that step."""
        ...
