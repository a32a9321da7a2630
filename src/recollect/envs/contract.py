"""The env interface of Recollect: rows that step together on one device, and optional capabilities."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from recollect.base.types import Step, Tree

FLAGS = ("first", "terminated", "truncated", "valid")
"""The bool tensors of a Step."""


@runtime_checkable
class BatchedEnv(Protocol):
    """An env of B = ``num_envs * agents`` rows, ordered by slot: row = slot * agents + agent.

    Rules for the steps of each row:

    * ``Step.obs`` is the observation to act on next. Where ``first``, it is the initial observation of a new
      episode, and ``final_obs`` is the last observation of the old one.
    * An episode ends with ``terminated | truncated`` of a valid step, and in no other way.
    * After an end, ``first`` follows at once or after invalid steps: the filler of next-step autoreset, or
      the steps of a dead agent. In an invalid step the action is ignored, reward and flags are zero.
    * Reward, ``terminated``, ``truncated`` and ``valid`` describe the step just made; ``obs`` and ``first``
      belong to the next step.
    * Action masks are part of the observation, under the key ``action_mask``.
    """

    @property
    def num_envs(self) -> int:
        """Number of env slots."""
        ...

    @property
    def agents(self) -> int:
        """Agents per slot; 1 for a single-agent env."""
        ...

    @property
    def observation_space(self) -> gym.Space:
        """The space of one row."""
        ...

    @property
    def action_space(self) -> gym.Space:
        """The space of one row."""
        ...

    @property
    def device(self) -> torch.device:
        """The device of all tensors."""
        ...

    def reset(self, seed: int) -> Tree:
        """Restart all rows; ``seed`` determines all steps. Returns obs [B, ...]; all rows are ``first``.

        With several agents in a slot, one may be absent: its row is invalid until ``first``.
        """
        ...

    def step(self, action: Tree) -> Step:
        """Apply ``action`` [B, ...], a tree with the structure of ``action_space`` (``base/spaces.py``)."""
        ...

    def close(self) -> None:
        """Release all resources."""
        ...


@runtime_checkable
class Resumable(Protocol):
    """An env whose complete state can be saved, so that a run can be resumed bit for bit."""

    def snapshot(self) -> dict[str, torch.Tensor]:
        """Copies of all tensors that determine the following steps."""
        ...

    def restore(self, snapshot: dict[str, torch.Tensor]) -> Tree:
        """Continue from a snapshot. Returns the obs [B, ...] to act on next."""
        ...


@runtime_checkable
class Capturable(Protocol):
    """An env on a GPU whose steps can be captured in a CUDA graph, such as the built-in tasks.

    Its state is in tensors that stay at their address, it reads no value on the host, and every step runs the
    same operations.
    """

    @property
    def truncation_gap(self) -> int | None:
        """Minimum number of steps between two truncations of a row; None: the env never truncates."""
        ...


@runtime_checkable
class BetweenRollouts(Protocol):
    """An env with work for the host, such as a log, which is done between rollouts."""

    generators: Sequence[torch.Generator]
    """The generators that its steps draw from."""

    def graph_key(self) -> Any:
        """Equal keys mean the same operations on the same tensors; after another key, steps are captured
        again."""
        ...

    def between_rollouts(self, steps: int) -> None:
        """Do that work; the next rollout has ``steps`` steps. Called before every rollout and after every
        update."""
        ...


@runtime_checkable
class ReportsTruncation(Protocol):
    """An env that steps on the host and has its tensors on a GPU. It reports truncations without a host
    read."""

    def truncated_rows(self) -> torch.Tensor | None:
        """[n] int64 on ``device``: rows that the last step truncated and did not terminate; None: no row."""
        ...


@runtime_checkable
class Describes(Protocol):
    """An env that can describe an observation in words."""

    def describe_row(self, obs: Tree) -> str | None:
        """The observation of row 0 in words; None if a wrapped env has no description."""
        ...


@runtime_checkable
class Draws(Protocol):
    """An env that can draw all of its first slot, also what no agent observes."""

    def picture(self) -> np.ndarray | None:
        """Slot 0 as an image, uint8 [height, width, 3]; None if the env, or a wrapped one, has no picture."""
        ...


@runtime_checkable
class Adjustable(Protocol):
    """An env or player with settings that a curriculum may change."""

    @property
    def adjustable(self) -> tuple[str, ...]:
        """The names of these settings."""
        ...

    def adjust(self, **settings: Any) -> None:
        """Use these settings from the next reset of each slot on; those not named are as it was made.

        An episode keeps the settings that it began with, also after a ``restore``: they are part of its
        state. For an env that is captured in a CUDA graph, they are tensors that are changed in place.
        """
        ...


class Player(Protocol):
    """A player of some rows of an env, such as the opponents of those that learn.

    It remembers what it needs of each row, and forgets it where ``first``. If it has ``snapshot()`` and
    ``restore(snapshot)``, these hold all that it remembers, with slots or rows as the first dimension;
    otherwise it remembers nothing. It draws random numbers from those of its env, or from the seed and state
    that it keeps. On a ``Capturable`` env it obeys the rules of that protocol, or it has
    ``is_capturable = False``. If it has ``reset()``, this is called after each reset of the env.

    In a league on a GPU, a scripted player is also asked for rows that another member plays, and its actions
    for these are ignored. So its actions in a slot depend on this slot alone, and change nothing in the env.
    """

    def act(self, rows: Tensor, obs: Tree, first: Tensor) -> Tree:
        """The actions [R, ...] of the env's ``rows`` [R] int64, from obs [R, ...] and first [R] bool."""
        ...


@runtime_checkable
class TwoSided(Protocol):
    """A BatchedEnv in which two sides play against each other.

    A slot has as many rows of one side as of the other, the first side's first. Episodes of a slot are games:
    they start and end for both sides together, in the step in which the slot is reset. Snapshots have slots
    or rows as the first dimension. From the first ``reset`` on it also has two tensors:

    * ``won`` [E]: the result of each slot's last finished game: 1 if the first side won, -1 if the second, 0
      for a draw;
    * ``games`` [E] int64: games that each slot has finished since ``reset``.
    """

    @property
    def sides(self) -> tuple[str, str]:
        """The names of the sides, such as ("blue", "red")."""
        ...

    @property
    def opponents(self) -> tuple[str, ...]:
        """The names of its scripted players."""
        ...

    def opponent(self, name: str, **options: Any) -> Player:
        """A scripted player for this env, of which it may read more than observations."""
        ...


@runtime_checkable
class AsyncStep(Protocol):
    """An env whose step can be started and collected later, so that the process can work in between."""

    def send(self, action: Tree) -> None:
        """Start a step with ``action``."""
        ...

    def receive(self) -> Step:
        """Wait for the end of that step."""
        ...


class EnvWrapper:
    """Base of a BatchedEnv around another one. It has the optional protocols that the inner env has.

    A wrapper that changes a method of such a protocol defines it with a leading underscore, as ``_restore``;
    other methods are those of the inner env. They become attributes of the instance, because ``isinstance``
    with a protocol finds nothing that ``__getattr__`` would forward.
    """

    def __init__(self, env: BatchedEnv, *forwarded: type) -> None:
        """``forwarded``: the protocols to offer where ``env`` has them."""
        self.env: Any = env
        self.num_envs, self.agents, self.device = env.num_envs, env.agents, env.device
        self.observation_space: gym.Space = env.observation_space
        self.action_space: gym.Space = env.action_space
        for protocol in forwarded:
            if isinstance(env, protocol):
                for name in (name for name in vars(protocol) if not name.startswith("_")):
                    setattr(self, name, getattr(self, f"_{name}", None) or getattr(env, name))

    def describe_row(self, obs: Tree) -> str | None:
        """The observation of row 0 in words, as the inner env describes it."""
        return self.env.describe_row(obs) if isinstance(self.env, Describes) else None

    def picture(self) -> np.ndarray | None:
        """Slot 0 as an image, as the inner env draws it."""
        return self.env.picture() if isinstance(self.env, Draws) else None

    def close(self) -> None:
        """Close the inner env."""
        self.env.close()
