"""Any Gymnasium VectorEnv as a BatchedEnv. All handling of autoreset modes is here.

==========  ======================================================================================
mode        at the end of an episode
==========  ======================================================================================
NEXT_STEP   ``obs`` is the final observation, ``first`` false; the step after it is a filler
            (``valid`` false, its action ignored) with the reset observation, ``first`` true
SAME_STEP   ``obs`` is the reset observation, ``first`` true; ``final_obs`` is taken from the info
DISABLED    this adapter resets the env in the same step: as SAME_STEP
==========  ======================================================================================
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from recollect.base import spaces
from recollect.base.types import Step, Tree
from recollect.envs.space_values import Buffers, env_seeds, to_batch, write_row
from recollect.errors import EnvError, SpaceError


class GymVector:
    """A BatchedEnv around a VectorEnv in any autoreset mode.

    ``autoreset_mode`` is for a VectorEnv whose metadata does not name its mode. There is no default: a wrong
    one would silently shift every episode by a step.

    In SAME_STEP mode Gymnasium keeps a reference to the final observation during the reset: an env that
    writes all its observations into one array overwrites it. Copy in the env, or use GymLoop.
    """

    agents = 1
    device = torch.device("cpu")

    def __init__(self, env: VectorEnv, *, autoreset_mode: AutoresetMode | str | None = None) -> None:
        self.env = env
        self.autoreset_mode = _mode(env, autoreset_mode)
        _check_async(env, self.autoreset_mode)
        self.num_envs = env.num_envs
        self.observation_space: gym.Space = env.single_observation_space
        self.action_space: gym.Space = env.single_action_space
        for what, space in (("observation", self.observation_space), ("action", self.action_space)):
            list(spaces.walk(space, f"single_{what}_space of {env}"))
        self._now, self._next = (Buffers(self.observation_space, self.num_envs) for _ in range(2))
        self._scratch = spaces.buffers(self.observation_space, self.num_envs)
        self._ended = np.zeros(self.num_envs, np.bool_)  # rows whose episode ended in the last step
        self._steps = -1  # since the last reset; -1 before the first one

    def reset(self, seed: int) -> Tree:
        """Reset all envs. Returns obs [B, ...].

        In Gymnasium's two VectorEnvs, which take a list of seeds, env i gets a seed derived from (seed, i);
        any other VectorEnv gets one seed derived from ``seed``.
        """
        seeds = env_seeds(seed, self.num_envs)
        takes_list = isinstance(self.env.unwrapped, SyncVectorEnv | AsyncVectorEnv)
        self._steps = 0
        self._ended[:] = False
        self._write(self._next.obs, self._reset(seed=seeds if takes_list else seeds[0]))
        self._now, self._next = self._next, self._now
        return self._now.step.obs

    def step(self, action: Tree) -> Step:
        """Apply ``action`` [B, ...]; the module's docstring describes the ends of episodes."""
        if self._steps < 0:
            raise EnvError("GymVector.step before GymVector.reset: call reset(seed) first")
        batch = to_batch(self.action_space, action, self.num_envs)
        self._steps += 1
        try:
            result = self.env.step(batch)
        except Exception as error:
            raise self._error(f"step raised {type(error).__name__}: {error}") from error
        if not isinstance(result, tuple) or len(result) != 5:
            raise self._error(
                "step does not return (obs, rewards, terminations, truncations, infos): a lone done is "
                "not accepted, since a time limit is not a death"
            )
        obs, reward, terminated, truncated, info = result
        out = self._next
        self._write(out.obs, obs)
        out.terminated[:] = self._column("terminations", terminated, "b")
        out.truncated[:] = self._column("truncations", truncated, "b")
        out.reward[:] = self._column("rewards", reward, "fiub")
        if self.autoreset_mode == AutoresetMode.NEXT_STEP:
            self._finish_next_step(out)
        else:
            np.logical_or(out.terminated, out.truncated, out=out.first)
            if out.first.any() and self.autoreset_mode == AutoresetMode.SAME_STEP:
                self._take_final_obs(out, info)
            elif out.first.any():
                _copy_rows(self.observation_space, out.final_obs, out.obs, out.first)
                self._write(self._scratch, self._reset(options={"reset_mask": out.first.copy()}))
                _copy_rows(self.observation_space, out.obs, self._scratch, out.first)
        if not np.isfinite(out.reward).all():
            i = int(np.flatnonzero(~np.isfinite(out.reward))[0])
            raise self._error(
                f"the reward of env {i} is {out.reward[i]}: look for a division by zero or a diverged "
                "simulation in the env"
            )
        self._now, self._next = out, self._now
        return out.step

    def close(self) -> None:
        """Close the VectorEnv."""
        self.env.close()

    def _finish_next_step(self, out: Buffers) -> None:
        """This step reset the envs that ended in the last one; those that end now are reset in the next."""
        filler, ended = self._ended, out.terminated | out.truncated
        if (filler & ended).any():
            i = int(np.flatnonzero(filler & ended)[0])
            raise self._error(
                f"env {i} ended in the step that should have reset it: "
                "metadata['autoreset_mode'] is NEXT_STEP, and the env seems to reset in the same step"
            )
        out.first[:] = filler
        np.logical_not(filler, out=out.valid)
        out.reward[filler] = 0.0
        if ended.any():
            _copy_rows(self.observation_space, out.final_obs, out.obs, ended)
        self._ended = ended

    def _take_final_obs(self, out: Buffers, info: Mapping[str, Any]) -> None:
        """Read Gymnasium's object array, with an observation for each env that ended, or a batch."""
        final = info.get("final_obs")
        if final is None:
            raise self._error(
                "an episode ended, and info has no 'final_obs': in SAME_STEP mode the observation "
                f"before the reset is found there (Gymnasium 1.1 or later); info has {sorted(info)}"
            )
        if isinstance(final, list) or (isinstance(final, np.ndarray) and final.dtype == object):
            for i in np.flatnonzero(out.first).tolist():
                try:
                    write_row(self.observation_space, out.final_obs, i, final[i])
                except SpaceError as error:
                    raise self._error(f"env {i}, info['final_obs']: {error}") from None
        else:
            self._write(self._scratch, final)
            _copy_rows(self.observation_space, out.final_obs, self._scratch, out.first)

    def _reset(self, **how: Any) -> Any:
        try:
            obs, _ = self.env.reset(**how)
        except Exception as error:
            raise self._error(f"reset raised {type(error).__name__}: {error}") from error
        return obs

    def _write(self, arrays: Any, obs: Any) -> None:
        try:
            write_row(self.observation_space, arrays, ..., obs)
        except SpaceError as error:
            raise self._error(str(error)) from None

    def _column(self, name: str, value: Any, kinds: str) -> np.ndarray:
        """``value`` as an array [num_envs], validated: one number of these kinds of dtypes for each env."""
        array = np.asarray(value)
        if array.dtype.kind not in kinds or array.shape != (self.num_envs,):
            raise self._error(
                f"{name} have dtype {array.dtype} and shape {array.shape}, and one "
                f"{'bool' if kinds == 'b' else 'number'} for each of {self.num_envs} envs is needed"
            )
        return array

    def _error(self, text: str) -> EnvError:
        return EnvError(f"{self.env}, step {self._steps}: {text}")


def _mode(env: VectorEnv, given: AutoresetMode | str | None) -> AutoresetMode:
    mode = given if given is not None else (env.metadata or {}).get("autoreset_mode")
    names = [mode.name for mode in AutoresetMode]
    if mode is None:
        raise EnvError(
            f"{env} does not say in metadata['autoreset_mode'] how it resets an env that ended: set it "
            f"there, or wrap it yourself, GymVector(env, autoreset_mode=...), with one of {names}"
        )
    for known in AutoresetMode:
        if mode in (known, known.name, known.value):
            return known
    raise EnvError(f"autoreset_mode of {env} is {mode!r}: it must be one of {names}")


def _check_async(env: VectorEnv, mode: AutoresetMode) -> None:
    """Reject a bug of Gymnasium 1.4: without shared memory, ``reset`` keeps a pending autoreset.

    The first step after such a reset would be a filler that looks like a valid step.
    """
    inner = env.unwrapped
    if isinstance(inner, AsyncVectorEnv) and not inner.shared_memory and mode == AutoresetMode.NEXT_STEP:
        raise EnvError(
            f"{env}: AsyncVectorEnv(shared_memory=False) in NEXT_STEP mode resets wrongly after an end: "
            "use shared_memory=True or autoreset_mode=AutoresetMode.SAME_STEP"
        )


def _copy_rows(space: gym.Space, target: Any, source: Any, mask: np.ndarray) -> None:
    """Copy the rows of ``mask`` [B] in every leaf [B, ...]."""
    spaces.map(lambda _, into, out_of: operator.setitem(into, mask, out_of[mask]), space, target, source)
