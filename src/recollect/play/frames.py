"""Recorded episodes with the env's rendered frames."""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np

from recollect.config.tasks import task_name
from recollect.envs.env_names import display_name, resolve_env
from recollect.envs.factory import is_made, makes_batches, parameters
from recollect.envs.gym_loop import env_name
from recollect.errors import EnvError
from recollect.play.trace import Trace, record

if TYPE_CHECKING:
    from recollect.agent import Agent

MODE = "rgb_array"
"""Gymnasium's name for frames as arrays."""


@dataclass(frozen=True, slots=True)
class Film:
    """Recorded episodes and, if the env renders, their frames."""

    traces: list[Trace]
    frames: list[list[Frame]] | None = None
    """For each episode, a frame before each step and one after the last."""
    fps: float | None = None
    """The env's ``render_fps``."""


class NoFramesError(EnvError):
    """An env with render mode rgb_array that returned no frame."""


class Frame:
    """A compressed frame, uint8 [H, W, 3]: a long episode has thousands of them."""

    __slots__ = ("_data", "shape")

    def __init__(self, image: np.ndarray):
        self.shape = image.shape
        self._data = zlib.compress(np.ascontiguousarray(image).tobytes(), 1)

    @property
    def image(self) -> np.ndarray:
        """The frame as an array."""
        return np.frombuffer(zlib.decompress(self._data), np.uint8).reshape(self.shape)


def record_film(
    agent: Agent,
    *,
    episodes: int = 1,
    seed: int = 0,
    deterministic: bool = True,
    max_steps: int = 2000,
    env_kwargs: dict[str, Any] | None = None,
    frames: bool = True,
) -> Film:
    """Like ``trace.record``, with frames if ``frames`` is set and the env renders.

    ``env_kwargs`` are added to those of the training.
    """
    kwargs = agent.config.env_kwargs | (env_kwargs or {})
    make, fps = _maker(agent.env, kwargs) if frames else (None, None)
    reels: list[list[Frame]] = []
    try:
        traces = record(
            agent,
            episodes=episodes,
            seed=seed,
            deterministic=deterministic,
            max_steps=max_steps,
            env=None if make is None else lambda: _Filmed(make(), reels),
            env_kwargs=kwargs if make is None else None,
        )
    except EnvError as error:  # the adapter wraps every error of an env
        if isinstance(error.__cause__, NoFramesError):
            raise error.__cause__ from None
        raise
    if make is None:
        return Film(traces)
    return Film([replace(trace, env=display_name(agent.env)) for trace in traces], reels[: len(traces)], fps)


class _Filmed(gym.Wrapper):
    """Adds a frame to the last of ``reels`` at every reset, which starts a new one, and after every step."""

    def __init__(self, env: gym.Env, reels: list[list[Frame]]):
        super().__init__(env)
        self.reels = reels

    def reset(self, **kwargs: Any) -> Any:
        result = self.env.reset(**kwargs)
        self.reels.append([self._frame()])
        return result

    def step(self, action: Any) -> Any:
        result = self.env.step(action)
        self.reels[-1].append(self._frame())
        return result

    def _frame(self) -> Frame:
        try:
            image = self.env.render()
        except gym.error.DependencyNotInstalled as error:
            raise NoFramesError(
                f"{env_name(self.env)} cannot render its frames here: {error}. Or play as text, with --text"
            ) from None
        array = np.asarray(image)
        if array.dtype != np.uint8 or array.ndim != 3 or array.shape[2] != 3:
            found = "nothing" if image is None else f"{array.dtype} {list(array.shape)}"
            raise NoFramesError(
                f"render() of {env_name(self.env)} returned {found}, but render_mode {MODE} means uint8 "
                "[height, width, 3]. Correct it, or play as text, with --text"
            )
        return Frame(array)


def _maker(env: Any, kwargs: dict[str, Any]) -> tuple[Callable[[], gym.Env] | None, float | None]:
    """A factory of ``env`` with rendering and its ``render_fps``; None if it cannot render."""
    env = resolve_env(env) if isinstance(env, str) else env
    make = functools.partial(gym.make, env, disable_env_checker=True) if isinstance(env, str) else env
    # An env instance keeps its render mode.
    if task_name(env) or is_made(env) or makes_batches(env) or not _takes_render_mode(make):
        return None, None
    try:
        probe = make(**kwargs)
    except Exception:
        return None, None  # opening the env without frames reports the error
    metadata = probe.metadata
    probe.close()
    if MODE not in metadata.get("render_modes", ()):
        return None, None
    return functools.partial(make, **kwargs | {"render_mode": MODE}), metadata.get("render_fps")


def _takes_render_mode(make: Callable[..., Any]) -> bool:
    names = parameters(make)
    return "render_mode" in names or any(p.kind is p.VAR_KEYWORD for p in names.values())
