"""Recorded episodes with the env's rendered frames."""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np

from recollect.config.tasks import task_name
from recollect.envs.env_names import display_name, resolve_env
from recollect.envs.factory import is_made, makes_batches, parameters
from recollect.envs.gym_loop import env_name
from recollect.envs.pettingzoo import PREFIX, as_parallel, find_pettingzoo, is_pettingzoo, maker
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
    """For each trace, a frame before each step and one after the last."""
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
    agents: Sequence[str | int] | None = None,
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
            agents=agents,
            env=None if make is None else lambda: _filmed(make(), reels),
            env_kwargs=kwargs if make is None else None,
        )
    except EnvError as error:  # the adapter wraps every error of an env
        if isinstance(error.__cause__, NoFramesError):
            raise error.__cause__ from None
        raise
    if make is None:
        return Film(traces)
    shown = [
        reels[trace.episode][trace.start : trace.start + len(trace) + 1] for trace in traces
    ]  # an agent may appear later, or die before the episode is over
    return Film([replace(trace, env=display_name(agent.env)) for trace in traces], shown, fps)


def _filmed(env: Any, reels: list[list[Frame]]) -> Any:
    """The env, which adds a frame to the last of ``reels`` at every reset and after every step."""
    return _FilmedParallel(as_parallel(env), reels) if is_pettingzoo(env) else _Filmed(env, reels)


class _Filmed(gym.Wrapper):
    """A Gymnasium env that films itself."""

    def __init__(self, env: gym.Env, reels: list[list[Frame]]):
        super().__init__(env)
        self.reels = reels

    def reset(self, **kwargs: Any) -> Any:
        result = self.env.reset(**kwargs)
        _begin(self.reels, _frame(self.env))
        return result

    def step(self, action: Any) -> Any:
        result = self.env.step(action)
        self.reels[-1].append(_frame(self.env))
        return result


class _FilmedParallel:
    """A parallel PettingZoo env that films itself."""

    def __init__(self, env: Any, reels: list[list[Frame]]):
        self.env, self.reels = env, reels

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)

    def reset(self, **kwargs: Any) -> Any:
        result = self.env.reset(**kwargs)
        _begin(self.reels, _frame(self.env))
        return result

    def step(self, actions: Any) -> Any:
        result = self.env.step(actions)
        self.reels[-1].append(_frame(self.env))
        return result


def _begin(reels: list[list[Frame]], frame: Frame) -> None:
    """Start a new reel, in place of one without a step: an env may be reset twice."""
    if reels and len(reels[-1]) == 1:
        reels.pop()
    reels.append([frame])


def _frame(env: Any) -> Frame:
    name = env_name(env) if isinstance(env, gym.Env) else type(env.unwrapped).__name__
    try:
        image = env.render()
    except gym.error.DependencyNotInstalled as error:
        raise NoFramesError(
            f"{name} cannot render its frames here: {error}. Or play as text, with --text"
        ) from None
    array = np.asarray(image)
    if array.dtype != np.uint8 or array.ndim != 3 or array.shape[2] != 3:
        found = "nothing" if image is None else f"{array.dtype} {list(array.shape)}"
        raise NoFramesError(
            f"render() of {name} returned {found}, but render_mode {MODE} means uint8 [height, width, 3]. "
            "Correct it, or play as text, with --text"
        )
    return Frame(array)


def _maker(env: Any, kwargs: dict[str, Any]) -> tuple[Callable[[], Any] | None, float | None]:
    """A factory of ``env`` with rendering and its ``render_fps``; None if it cannot render."""
    if isinstance(env, ModuleType):
        env = maker(env)
    elif isinstance(env, str):
        env = find_pettingzoo(env) if env.startswith(PREFIX) else resolve_env(env)
    make = functools.partial(gym.make, env, disable_env_checker=True) if isinstance(env, str) else env
    # An env instance keeps its render mode.
    if task_name(env) or is_made(env) or makes_batches(env) or not _takes_render_mode(make):
        return None, None
    try:
        probe = make(**kwargs)
    except Exception:
        return None, None  # opening the env without frames reports the error
    metadata = getattr(probe, "metadata", {})
    probe.close()
    if MODE not in metadata.get("render_modes", ()):
        return None, None
    return functools.partial(make, **kwargs | {"render_mode": MODE}), metadata.get("render_fps")


def _takes_render_mode(make: Callable[..., Any]) -> bool:
    names = parameters(make)
    return "render_mode" in names or any(p.kind is p.VAR_KEYWORD for p in names.values())
