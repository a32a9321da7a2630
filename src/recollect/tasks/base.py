"""Base class of the tasks: counters, randomness, autoreset, snapshots, validation of actions.

A task defines three functions over all E slots. Each slot has ``agents`` rows, B = E * agents:

* ``_begin(key) -> fields``: the state [E, ...] of a new episode in every slot, from the episode's key [E].
  The base class stores each field as an attribute of the same name, in the slots that start an episode.
* ``_advance(action) -> reward, terminated``: the rules. Changes the fields in place.
* ``_observe() -> obs``: the current observation of every row, as new tensors.

An episode starts and ends for all agents of a slot together. In a task that defines ``_living``, rows may
be absent from an episode, and an agent may die before its end: its row terminates.

Fields change in place and resets select by ``where``, so that every step runs the same operations and can be
captured in a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from recollect.base import devices, spaces, tree
from recollect.base.types import Step, Tree
from recollect.config.tasks import TaskOptions
from recollect.envs.space_values import is_like
from recollect.errors import ConfigError, EnvError
from recollect.tasks import random


class Task:
    """A ``Resumable`` and ``Capturable`` ``BatchedEnv`` with same-step autoreset.

    Every random number is a function of (seed, slot, episode, step); see ``tasks/random.py``.
    """

    Options: ClassVar[type[TaskOptions]]
    """The class of its options."""
    name: ClassVar[str]
    """The short name, as in ``recollect train NAME``."""
    id: ClassVar[str]
    """The id in Gymnasium."""
    has_time_limit: ClassVar[bool] = False
    """Whether episodes are truncated after ``max_episode_steps``; else the rules terminate them by then."""

    agents: int = 1
    """Agents per slot. Those of a task with ``Options.has_agents`` share a policy or have their own."""

    max_return: float | None = None
    """The best expected return of an episode, with memory; None: unknown."""
    memoryless_return: float | None = None
    """The best expected return of a policy that sees only the current observation; None: unknown."""
    horizon: int
    """Number of steps over which the policy has to remember something."""
    first_slot: int = 0
    """The number of the first slot, for the keys of (seed, slot), if the slots are part of a larger env."""

    on_end: Callable[[], None] | None = None
    """Called on the CPU before slots whose episode ended start the next one, to draw its last state."""

    age: Tensor
    """[E] int64: steps made in the episode, including the one in progress."""
    key: Tensor
    """[E] int64: the random key of the episode; draw with ``random.bits(self.key, counter)``."""

    def __init_subclass__(cls) -> None:
        """Take name and id from the options."""
        cls.name, cls.id = cls.Options.name, cls.Options.id

    def __init__(
        self,
        num_envs: int,
        device: torch.device | str,
        observation_space: gym.Space,
        action_space: gym.Space,
        max_episode_steps: int,
    ) -> None:
        if num_envs < 1:
            raise ConfigError(f"num_envs is {num_envs} ({type(self).__name__}); it must be at least 1")
        self.num_envs = num_envs
        self.device = torch.empty(0, device=device).device  # "cuda" becomes "cuda:0"
        self.observation_space = observation_space
        self.action_space = action_space
        self.max_episode_steps = max_episode_steps
        self._limit = random.constant(max_episode_steps)
        self._action_like = spaces.zeros(action_space, num_envs * self.agents, self.device)
        self._never = torch.zeros(num_envs, dtype=torch.bool, device=self.device)
        self._always = ~self._never
        self._no_rows, self._all_rows = self._of_rows(self._never), self._of_rows(self._always)
        self._slots = torch.arange(num_envs, device=self.device)
        # ``_root`` is the key of (seed, slot).
        self._root, self._episode, self.age, self.key = (torch.zeros_like(self._slots) for _ in range(4))
        self._field_names: tuple[str, ...] = ()  # known after the first reset

    @property
    def agent_names(self) -> tuple[str, ...]:
        """The names of a slot's agents, in the order of its rows."""
        return tuple(f"agent_{i}" for i in range(self.agents))

    @property
    def truncation_gap(self) -> int | None:
        """Minimum number of steps between two truncations of a row; None: the task never truncates."""
        return self.max_episode_steps if self.has_time_limit else None

    def _begin(self, key: Tensor) -> dict[str, Tensor]:
        """The fields [E, ...] of a new episode in every slot, from its key [E]."""
        raise NotImplementedError

    def _advance(self, action: Any) -> tuple[Tensor, Tensor]:
        """Apply the rules in place, with ``action`` [B, ...]; ``age`` includes this step.

        Returns reward [B] float32, zero in rows that did not live before it, and terminated [E] bool.
        """
        raise NotImplementedError

    def _living(self) -> Tensor | None:
        """[B] bool: the rows that take part now, as new memory; None: always all rows."""
        return None

    def _info(self, reward: Tensor) -> dict[str, Tensor]:
        """Values to log, [B] each, after a step with ``reward`` [B]."""
        return {}

    def _observe(self) -> Any:
        """The current observation [B, ...], in memory separate from the fields."""
        raise NotImplementedError

    def present(self) -> Tensor:
        """[B] bool: the rows that take part now; others are absent from the episode, or dead."""
        living = self._living()
        return self._all_rows if living is None else living

    @staticmethod
    def describe(obs: Any) -> str:
        """One observation, a tree of arrays, in words."""
        return np.array2string(np.asarray(obs), precision=3)

    def describe_row(self, obs: Tree) -> str:
        """The observation of row 0 in words."""
        return str(self.describe(tree.map(lambda leaf: leaf[0].cpu().numpy(), obs)))

    def picture(self) -> np.ndarray | None:
        """All of slot 0 as an image, uint8 [height, width, 3]; None: the task has no picture."""
        return None

    def reset(self, seed: int) -> Tree:
        """Restart all slots, slot i with the key of (seed, first_slot + i). Returns obs [B, ...]."""
        self._root.copy_(random.row_keys(seed, self._slots + self.first_slot))
        self._episode.zero_()
        self._renew(self._always)
        return self._observe()

    def reset_slots(self, slots: Tensor, seeds: Tensor | None = None) -> Tree:
        """Start the next episode in ``slots`` [E] bool only. Returns obs [B, ...].

        With ``seeds`` [E] int64, these slots restart their random stream, each as slot 0 of its seed, as in
        Gymnasium's vector envs.
        """
        if seeds is None:
            self._need_reset("reset_slots")
            self._episode += slots
        else:
            fresh = random.row_keys(seeds, torch.zeros_like(self._slots))
            self._root.copy_(torch.where(slots, fresh, self._root))
            self._episode.masked_fill_(slots, 0)
        self._renew(slots)
        return self._observe()

    def step(self, action: Tree) -> Step:
        """Apply ``action`` [B, ...]; a slot whose episode ended starts its next one in the same step."""
        action = self._checked(action)
        self.age.add_(random.ONE)
        valid = self._living()
        reward, terminated = self._advance(action)
        died = None if valid is None else valid.gt(self.present())  # and not
        if not self.has_time_limit:
            truncated, ended = self._never, terminated
        elif terminated is self._never:
            truncated = ended = self.age >= self._limit
        else:
            # gt on bools is "and not": a terminated episode is not truncated as well.
            truncated = (self.age >= self._limit).gt(terminated)
            ended = terminated | truncated
        obs = final_obs = self._observe()
        if devices.synchronises(ended) or ended.any():
            if self.on_end is not None:
                self.on_end()
            self._episode += ended
            self._renew(ended)
            obs = self._observe()
            flags = map(self._of_rows, (ended, terminated, truncated))
        else:
            flags = (self._no_rows,) * 3
        first, terminated, truncated = flags
        if valid is None or died is None:
            valid = self._all_rows
        else:
            first = first & self.present()
            terminated = (terminated & valid) | died
            truncated = (truncated & valid).gt(died)
        info = self._info(reward)
        return Step(obs, first, reward, terminated, truncated, final_obs, valid, info)

    def snapshot(self) -> dict[str, Tensor]:
        """Copies of all tensors that determine the following steps."""
        self._need_reset("snapshot")
        return {name: tensor.clone() for name, tensor in self._everything().items()}

    def restore(self, snapshot: dict[str, Tensor]) -> Tree:
        """Continue from a snapshot of the same task. Returns the obs [B, ...] to act on next."""
        if not self._field_names:
            self.reset(0)  # makes the fields
        mine = self._everything()
        shapes, given = ({name: tuple(t.shape) for name, t in held.items()} for held in (mine, snapshot))
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

    def _of_rows(self, flag: Tensor) -> Tensor:
        """A flag [E] of the slots as [B]: that of each row's slot."""
        return flag if self.agents == 1 else flag.unsqueeze(1).expand(-1, self.agents).reshape(-1)

    def _renew(self, slots: Tensor) -> None:
        """Put ``slots`` [E] bool at the start of their episode number ``_episode``."""
        # In other slots the episode has not changed, and neither does the key.
        self.key.copy_(random.episode_keys(self._root, self._episode))
        self.age.masked_fill_(slots, 0)
        fresh = self._begin(self.key)
        if not self._field_names:
            self._field_names = tuple(fresh)
            for name, value in fresh.items():
                setattr(self, name, value.clone(memory_format=torch.contiguous_format))
            return
        for name, value in fresh.items():
            field: Tensor = getattr(self, name)
            torch.where(slots.view(-1, *(1,) * (field.dim() - 1)), value, field, out=field)

    def _outliving(self, **fresh: Tensor) -> dict[str, Tensor]:
        """Fields that keep their values when an episode ends; ``fresh`` in the first one of a stream."""
        if not self._field_names:
            return fresh
        is_first = self._episode == 0
        return {name: torch.where(is_first, new, getattr(self, name)) for name, new in fresh.items()}

    def _everything(self) -> dict[str, Tensor]:
        own = {"root": self._root, "episode": self._episode, "age": self.age, "key": self.key}
        return own | {name: getattr(self, name) for name in self._field_names}

    def _need_reset(self, what: str) -> None:
        if not self._field_names:
            raise EnvError(f"{type(self).__name__}.{what} came before reset(seed): call reset first")

    def _checked(self, action: Any) -> Any:
        """Validate type, shape, dtype and device of ``action``, not its values: that would be a host read."""
        if not self._field_names:
            self._need_reset("step")
        is_here = is_like(action, self._action_like)
        if not (is_here and all(leaf.device == self.device for leaf in tree.leaves(action))):
            rows = self.num_envs * self.agents
            expected = tree.map(_described, self._action_like)
            given = tree.map(_described, action) if isinstance(action, Tensor | dict | tuple) else None
            raise EnvError(
                f"{type(self).__name__}.step got {given or f'a {type(action).__name__}'} as action, expected "
                f"{expected}, one of {self.action_space} for each of {rows} rows: was the batch made for "
                "another num_envs, or is it still on another device?"
            )
        return tree.map(lambda leaf: leaf.detach() if leaf.requires_grad else leaf, action)


def _described(leaf: Any) -> Any:
    """A tensor in words: dtype, shape and device."""
    return f"{leaf.dtype} {list(leaf.shape)} on {leaf.device}" if isinstance(leaf, Tensor) else leaf
