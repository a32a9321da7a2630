"""The tasks as Gymnasium envs: ``gymnasium.make("recollect/TMaze-v0", size="hard")`` and ``make_vec``.

A single env reset with seed s plays row 0 of s; ``reset()`` without a seed starts the next episode
of the same stream. Row i of a vector env reset with seed s equals a single env reset with s + i, as in
Gymnasium's own vector envs, so that ``vectorization_mode`` changes only the speed. (A task used directly,
without Gymnasium, keys its rows by (seed, row): there neighbouring seeds share no rows.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

from recollect.base.types import Tree
from recollect.errors import EnvError
from recollect.tasks import random
from recollect.tasks.catalog import make_task

METADATA: dict[str, Any] = {"render_modes": ["ansi"], "render_fps": 4}


class TaskEnv(gym.Env[Any, Any]):
    """One row of a task as a ``gymnasium.Env``."""

    metadata = METADATA

    def __init__(self, task: str, render_mode: str | None = None, **options: Any) -> None:
        self.task = make_task(task, 1, **options)
        self.observation_space = self.task.observation_space
        self.action_space = self.task.action_space
        self.render_mode = render_mode
        self._all = torch.ones(1, dtype=torch.bool)
        self._next_obs: Any = None  # the initial observation of the next episode, after an end
        self._seen: Any = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start the next episode; with ``seed``, the first one of that seed's stream."""
        super().reset(seed=seed)
        if seed is None and self._seen is None:
            seed = self.np_random_seed  # drawn by Gymnasium from the system's entropy
        if seed is not None:
            self._seen = _row(self.task.reset_slots(self._all, _seeds([seed])))
        elif self._next_obs is not None:
            self._seen = self._next_obs
        else:
            self._seen = _row(self.task.reset_slots(self._all))
        self._next_obs = None
        return self._seen, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """One step; after the end of an episode ``reset`` has to be called."""
        if self._next_obs is not None:
            raise EnvError(f"{self.task.name}: the episode has ended: call reset() before the next step")
        step = self.task.step(_actions(self.task.action_space, action, ()).unsqueeze(0))
        if step.first:
            self._next_obs = _row(step.obs)
        self._seen = _row(step.final_obs)
        return self._seen, float(step.reward), bool(step.terminated), bool(step.truncated), {}

    def describe_row(self, obs: Tree) -> str:
        """The observation of row 0 in words."""
        return self.task.describe_row(obs)

    def render(self) -> str | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The last observation in words."""
        return None if self.render_mode is None else self.task.describe(self._seen)


class TaskVectorEnv(gym.vector.VectorEnv[Any, Any, np.ndarray]):
    """A task as a ``gymnasium.vector.VectorEnv`` with same-step autoreset."""

    metadata = METADATA | {"autoreset_mode": AutoresetMode.SAME_STEP}

    def __init__(self, task: str, num_envs: int = 1, render_mode: str | None = None, **options: Any) -> None:
        self.task = make_task(task, num_envs, **options)
        self.num_envs = num_envs
        self.single_observation_space = self.task.observation_space
        self.single_action_space = self.task.action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.render_mode = render_mode
        self._seen: Any = None

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start the next episode in all rows, or in those of ``options["reset_mask"]``.

        ``seed``: s for the seeds s, s + 1, ...; or one per row, None for a row that continues its stream.
        """
        super().reset(seed=seed if isinstance(seed, int) else None)
        if seed is None and self._seen is None:
            seed = self.np_random_seed
        if isinstance(seed, Sequence):
            seeds = list(seed)
        else:
            seeds = [None if seed is None else seed + row for row in range(self.num_envs)]
        if len(seeds) != self.num_envs:
            raise EnvError(f"{self.task.name}.reset got {len(seeds)} seeds for {self.num_envs} envs")
        rows = _mask(options, self.num_envs)
        seeded = rows & torch.tensor([s is not None for s in seeds])
        if self._seen is None and not seeded.all():
            raise EnvError(f"{self.task.name}: the first reset must start every row from a seed")
        self.task.reset_slots(seeded, _seeds([0 if s is None else s for s in seeds]))
        self._seen = self.task.reset_slots(rows & ~seeded).numpy()
        return self._seen.copy(), {}

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """One step of all rows. Where an episode ended, ``obs`` is reset and info has ``final_obs``."""
        step = self.task.step(_actions(self.single_action_space, actions, (self.num_envs,)))
        self._seen = step.obs.numpy()
        info: dict[str, Any] = {}
        ended = step.first.numpy().copy()
        if ended.any():
            final = np.full(self.num_envs, None, dtype=object)
            for row in np.flatnonzero(ended):
                final[row] = _row(step.final_obs, int(row))
            info = {"final_obs": final, "_final_obs": ended, "final_info": {}, "_final_info": ended.copy()}
        flags = step.terminated.numpy().copy(), step.truncated.numpy().copy()
        return self._seen.copy(), step.reward.numpy().astype(np.float64), *flags, info

    def render(self) -> tuple[str, ...] | None:
        """The last observation of each row in words."""
        if self.render_mode is None:
            return None
        return tuple(self.task.describe(obs) for obs in self._seen)


def _row(obs: torch.Tensor, row: int = 0) -> Any:
    """A copy of one row as Gymnasium expects it: an array, or np.int64 for Discrete."""
    value = obs[row].numpy()
    return value.copy() if value.ndim else value[()]


def _seeds(seeds: Sequence[int]) -> torch.Tensor:
    return torch.tensor([random.as_int64(seed) for seed in seeds])


def _mask(options: dict[str, Any] | None, rows: int) -> torch.Tensor:
    """The rows to reset, [B] bool."""
    mask = (options or {}).get("reset_mask")
    if mask is None:
        return torch.ones(rows, dtype=torch.bool)
    if not isinstance(mask, np.ndarray) or mask.shape != (rows,) or mask.dtype != np.bool_:
        raise EnvError(f'options["reset_mask"] must be a bool array of shape ({rows},)')
    return torch.from_numpy(mask.copy())


def _actions(space: gym.Space, action: Any, lead: tuple[int, ...]) -> torch.Tensor:
    """Validate ``action`` against the space of one row. Returns it as a tensor [*lead, ...]."""
    array = np.asarray(action)
    if isinstance(space, gym.spaces.Discrete):
        fits = array.shape == lead and array.dtype.kind in "iu"
        if fits and ((array < 0).any() or (array >= space.n).any()):
            raise EnvError(f"the action {action!r} is not in {space}: it must be 0 to {int(space.n) - 1}")
        dtype = np.int64
    else:
        fits = array.shape == (*lead, *(space.shape or ())) and array.dtype.kind in "fiu"
        dtype = np.float32
    if not fits:
        raise EnvError(
            f"the action has shape {array.shape} and dtype {array.dtype}, expected one of {space}"
            + (f" for each of {lead[0]} rows" if lead else "")
        )
    return torch.from_numpy(array.astype(dtype))
