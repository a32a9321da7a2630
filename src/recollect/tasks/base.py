"""What all tasks share: counters, randomness, autoreset, snapshots, checks of actions.

A task is written as three functions over all rows at once:

* ``_begin(key) -> fields``: the state of a new episode in every row, from the episode's key [B].
  The base keeps each field as an attribute of the same name and decides by ``where`` which rows
  take it.
* ``_advance(action) -> reward, terminated``: the rules. Changes the fields in place.
* ``_observe() -> obs``: what is seen now, as new tensors.

Fields change in place and resets select, so that nothing depends on data but the numbers: a step
can be captured in a CUDA graph.
"""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from recollect.base import devices, spaces, tree
from recollect.base.types import Step, Tree
from recollect.config.tasks import TaskOptions
from recollect.errors import ConfigError, EnvError
from recollect.tasks import random

_ONE = random.constant(1)


class Task:
    """A ``BatchedEnv`` and ``Resumable`` with one agent in each slot and same-step autoreset.

    Every random number is a function of (seed, row, episode, step); see ``tasks/random.py``.
    """

    Options: ClassVar[type[TaskOptions]]
    """The class of its options."""
    name: ClassVar[str]
    """The short name, as in ``recollect train NAME``."""
    id: ClassVar[str]
    """The id in Gymnasium."""

    agents = 1

    max_return: float | None = None
    """The best expected return of an episode, with memory; None where it is not known."""
    memoryless_return: float | None = None
    """The best expected return of a policy that sees only the current observation; None if unknown."""
    horizon: int
    """Over how many steps something has to be remembered."""
    first_slot: int = 0
    """The number of row 0, for the keys of (seed, row), where the rows are part of a larger env."""

    age: Tensor
    """[B] int64: steps made in the episode, the one in progress included."""
    key: Tensor
    """[B] int64: the key of the episode's randomness; draw with ``random.bits(self.key, counter)``."""

    def __init_subclass__(cls) -> None:
        """Take name and id from the options."""
        cls.name, cls.id = cls.Options.name, cls.Options.id

    def __init__(
        self,
        num_envs: int,
        device: torch.device | str,
        *,
        observation_space: gym.Space,
        action_space: gym.Space,
        max_episode_steps: int,
        time_limit: bool,
    ) -> None:
        """``time_limit``: an episode that reaches ``max_episode_steps`` is truncated there.

        Without it the rules of the task end every episode by themselves.
        """
        if num_envs < 1:
            raise ConfigError(f"num_envs is {num_envs} ({type(self).__name__}); it must be at least 1")
        self.num_envs = num_envs
        self.device = torch.empty(0, device=device).device  # "cuda" becomes "cuda:0"
        self.observation_space = observation_space
        self.action_space = action_space
        self.max_episode_steps = max_episode_steps
        self._time_limit = time_limit
        self._limit = random.constant(max_episode_steps)
        like = spaces.zeros(action_space, num_envs, self.device)
        self._action_shape, self._action_dtype = like.shape, like.dtype
        self._never = torch.zeros(num_envs, dtype=torch.bool, device=self.device)
        self._always = ~self._never
        self._rows = torch.arange(num_envs, device=self.device)
        self._episode = torch.zeros_like(self._rows)
        self._root = torch.zeros_like(self._rows)  # the key of (seed, row)
        self.age = torch.zeros_like(self._rows)
        self.key = torch.zeros_like(self._rows)
        self._field_names: tuple[str, ...] = ()  # known after the first reset

    @property
    def truncation_gap(self) -> int | None:
        """The least number of steps between two truncations of the same row; None: there are none."""
        return self.max_episode_steps if self._time_limit else None

    # What a task writes

    def _begin(self, key: Tensor) -> dict[str, Tensor]:
        """The fields [B, ...] of a new episode in every row, from its key [B]."""
        raise NotImplementedError

    def _advance(self, action: Tensor) -> tuple[Tensor, Tensor]:
        """Apply the rules in place; ``age`` counts this step.

        Returns reward [B] float32 and terminated [B] bool.
        """
        raise NotImplementedError

    def _observe(self) -> Tensor:
        """What is seen now [B, ...], sharing no memory with the fields."""
        raise NotImplementedError

    @staticmethod
    def describe(obs: np.ndarray) -> str:
        """One observation in words, for people."""
        return np.array2string(np.asarray(obs), precision=3)

    def describe_row(self, obs: Tree) -> str:
        """The observation of row 0 in words."""
        return str(self.describe(tree.map(lambda leaf: leaf[0].cpu().numpy(), obs)))

    # What the world calls

    def reset(self, seed: int) -> Tensor:
        """Start all rows anew, row i keyed by (seed, first_slot + i). Returns obs [B, ...]."""
        self._root.copy_(random.row_keys(seed, self._rows + self.first_slot))
        self._episode.zero_()
        self._renew(self._always)
        return self._observe()

    def reset_rows(self, rows: Tensor, seeds: Tensor | None = None) -> Tensor:
        """Start the next episode in ``rows`` [B] bool; the others go on. Returns obs [B, ...].

        With ``seeds`` [B] int64 those rows start their stream anew, each as row 0 of its seed: the
        way in which Gymnasium's vector envs are seeded.
        """
        if seeds is None:
            self._need_reset("reset_rows")
            self._episode += rows
        else:
            fresh = random.row_keys(seeds, torch.zeros_like(self._rows))
            self._root.copy_(torch.where(rows, fresh, self._root))
            self._episode.masked_fill_(rows, 0)
        self._renew(rows)
        return self._observe()

    def step(self, action: Tensor) -> Step:
        """Apply ``action`` [B, ...]; rows whose episode ended are already in their next one."""
        action = self._checked(action)
        self.age.add_(_ONE)
        reward, terminated = self._advance(action)
        if not self._time_limit:
            truncated, ended = self._never, terminated
        elif terminated is self._never:
            truncated = ended = self.age >= self._limit
        else:
            # gt on bools is "and not": an episode that ends by the rules is not cut as well.
            truncated = (self.age >= self._limit).gt(terminated)
            ended = terminated | truncated
        final_obs = self._observe()
        if not devices.waits(ended) and not ended.any():
            return Step(final_obs, self._never, reward, terminated, truncated, final_obs, self._always)
        self._episode += ended
        self._renew(ended)
        return Step(self._observe(), ended, reward, terminated, truncated, final_obs, self._always)

    def snapshot(self) -> dict[str, Tensor]:
        """Everything that decides the future, as copies."""
        self._need_reset("snapshot")
        return {name: tensor.clone() for name, tensor in self._everything().items()}

    def restore(self, snapshot: dict[str, Tensor]) -> Tensor:
        """Continue from a snapshot of the same task. Returns the obs [B, ...] to act on next."""
        if not self._field_names:
            self.reset(0)  # makes the fields
        mine = self._everything()
        shapes = {name: tuple(tensor.shape) for name, tensor in mine.items()}
        given = {name: tuple(tensor.shape) for name, tensor in snapshot.items()}
        if shapes != given:
            raise EnvError(
                f"{type(self).__name__}.restore got {given}, this task holds {shapes}: was the "
                "snapshot taken from another task, with other options or another num_envs?"
            )
        for name, tensor in mine.items():
            tensor.copy_(snapshot[name])
        return self._observe()

    def close(self) -> None:
        """Nothing to release."""

    # Machinery

    def _renew(self, rows: Tensor) -> None:
        """Put ``rows`` [B] bool at the start of the episode that ``_episode`` names."""
        # Where no episode begins, key and episode are as before: the key needs no where.
        self.key.copy_(random.episode_keys(self._root, self._episode))
        self.age.masked_fill_(rows, 0)
        fresh = self._begin(self.key)
        if not self._field_names:
            self._field_names = tuple(fresh)
            for name, value in fresh.items():
                setattr(self, name, value.clone(memory_format=torch.contiguous_format))
            return
        for name, value in fresh.items():
            field: Tensor = getattr(self, name)
            mask = rows if field.dim() == 1 else rows.view(-1, *(1,) * (field.dim() - 1))
            torch.where(mask, value, field, out=field)

    def _everything(self) -> dict[str, Tensor]:
        own = {"root": self._root, "episode": self._episode, "age": self.age, "key": self.key}
        return own | {name: getattr(self, name) for name in self._field_names}

    def _need_reset(self, what: str) -> None:
        if not self._field_names:
            raise EnvError(f"{type(self).__name__}.{what} came before reset(seed): call reset first")

    def _checked(self, action: Any) -> Tensor:
        """``action`` if it fits. Its numbers are not looked at: that would cost a wait on a GPU."""
        if not self._field_names:
            self._need_reset("step")
        if (
            not isinstance(action, Tensor)
            or action.shape != self._action_shape
            or action.dtype != self._action_dtype
            or action.device != self.device
        ):
            given = (
                f"{action.dtype} {list(action.shape)} on {action.device}"
                if isinstance(action, Tensor)
                else f"a {type(action).__name__}"
            )
            raise EnvError(
                f"{type(self).__name__}.step got {given} as action, expected {self._action_dtype} "
                f"{list(self._action_shape)} on {self.device}, one of {self.action_space} a row: "
                "was the batch made for another num_envs, or is it still on another device?"
            )
        return action.detach() if action.requires_grad else action
