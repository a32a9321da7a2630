"""Episodes with the pictures that the env draws of itself."""

from __future__ import annotations

import functools
import inspect
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np

from recollect.config.tasks import task_name
from recollect.envs.factory import makes_batches
from recollect.envs.named import display_name, resolve_env
from recollect.errors import EnvError
from recollect.play.trace import Trace, record_env

if TYPE_CHECKING:
    from recollect.agent import Agent

MODE = "rgb_array"
"""Gymnasium's name for frames as arrays."""


@dataclass(frozen=True, slots=True)
class Film:
    """Recorded episodes and, where the env draws, their frames."""

    traces: list[Trace]
    frames: list[list[Frame]] | None = None
    """For every episode one before each step and one after the last."""
    fps: float | None = None
    """How fast the env itself says that it runs."""


class NoFramesError(EnvError):
    """An env that promised frames and drew none."""


class Frame:
    """A picture uint8 [H, W, 3], kept small: a long episode has thousands of them."""

    __slots__ = ("_data", "shape")

    def __init__(self, image: np.ndarray):
        self.shape = image.shape
        self._data = zlib.compress(np.ascontiguousarray(image).tobytes(), 1)

    @property
    def image(self) -> np.ndarray:
        """The picture."""
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
    """Like ``trace.record``, with frames if ``frames`` and the env draws any.

    ``env_kwargs`` go on top of those trained with.
    """
    kwargs = agent.config.env_kwargs | (env_kwargs or {})
    camera = Camera()
    filmed = camera.before(agent.env, kwargs) if frames else None
    try:
        with agent.opened(1, filmed, {} if filmed is not None else kwargs) as env:
            traces = record_env(
                agent.policy,
                env,
                episodes=episodes,
                seed=seed,
                deterministic=deterministic,
                max_steps=max_steps,
                name=display_name(agent.env),
                checkpoint_steps=agent.steps,
            )
    except EnvError as error:  # the adapter tells of any error in an env as one of its reset or step
        raise error.__cause__ if isinstance(error.__cause__, NoFramesError) else error from None
    return Film(traces) if filmed is None else Film(traces, camera.reels[: len(traces)], camera.fps)


@dataclass(slots=True)
class Camera:
    """Films every env that is made through it."""

    reels: list[list[Frame]] = field(default_factory=list)
    """The frames of every episode so far, the first sight included."""
    fps: float | None = None

    def before(self, env: Any, kwargs: dict[str, Any]) -> Callable[[], gym.Env] | None:
        """A maker of ``env`` with the camera in front of it; None if the env draws no frames."""
        make = _maker(env, kwargs)
        return None if make is None else functools.partial(_Filmed, make, self)


class _Filmed(gym.Wrapper):
    """Takes a frame at every reset and after every step, the last one of an episode included."""

    def __init__(self, make: Callable[[], gym.Env], camera: Camera):
        super().__init__(make())
        self.camera = camera
        camera.fps = self.env.metadata.get("render_fps")

    def reset(self, **kwargs: Any) -> Any:
        result = self.env.reset(**kwargs)
        self.camera.reels.append([self._frame()])
        return result

    def step(self, action: Any) -> Any:
        result = self.env.step(action)
        self.camera.reels[-1].append(self._frame())
        return result

    def _frame(self) -> Frame:
        try:
            image = self.env.render()
        except gym.error.DependencyNotInstalled as error:
            raise NoFramesError(
                f"{_name(self.env)} cannot draw its frames here: {error}. Or play it as text, with --text"
            ) from None
        array = np.asarray(image)
        if array.dtype != np.uint8 or array.ndim != 3 or array.shape[2] != 3:
            raise NoFramesError(
                f"render() of {_name(self.env)} returned {_kind(image)}, and its render_mode {MODE} promises "
                "uint8 [height, width, 3]. Correct it, or play as text, with --text"
            )
        return Frame(array)


def _maker(env: Any, kwargs: dict[str, Any]) -> Callable[[], gym.Env] | None:
    """What makes ``env`` with frames, if it can."""
    make: Callable[..., Any]
    env = resolve_env(env) if isinstance(env, str) else env
    if isinstance(env, str):
        if task_name(env):
            return None
        make = functools.partial(gym.make, env, disable_env_checker=True)
    elif callable(env) and not isinstance(env, gym.Env | gym.vector.VectorEnv):
        if makes_batches(env) or not _takes(env, "render_mode"):
            return None
        make = env
    else:
        return None  # an env object: it draws in the mode that it was made in
    try:
        plain = make(**kwargs)
    except (gym.error.Error, TypeError):
        return None  # whoever opens the env next says what is wrong
    modes = plain.metadata.get("render_modes", ())
    plain.close()
    return functools.partial(make, **kwargs | {"render_mode": MODE}) if MODE in modes else None


def _takes(make: Callable[..., Any], name: str) -> bool:
    """Whether ``make`` has a parameter ``name``."""
    try:
        parameters = inspect.signature(make).parameters
    except (TypeError, ValueError):
        return False
    return name in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def _name(env: gym.Env) -> str:
    return env.spec.id if env.spec is not None else type(env.unwrapped).__name__


def _kind(image: Any) -> str:
    array = np.asarray(image)
    return "nothing" if image is None else f"{array.dtype} {list(array.shape)}"
