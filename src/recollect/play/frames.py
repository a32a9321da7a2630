"""Recorded episodes with the env's rendered frames."""

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
    except EnvError as error:  # the adapter wraps every error of an env
        raise error.__cause__ if isinstance(error.__cause__, NoFramesError) else error from None
    return Film(traces) if filmed is None else Film(traces, camera.reels[: len(traces)], camera.fps)


@dataclass(slots=True)
class Camera:
    """Records the frames of every env made through it."""

    reels: list[list[Frame]] = field(default_factory=list)
    """The frames of every episode so far, the one after the reset included."""
    fps: float | None = None

    def before(self, env: Any, kwargs: dict[str, Any]) -> Callable[[], gym.Env] | None:
        """A factory of ``env`` whose frames are recorded; None if the env does not render."""
        make = _maker(env, kwargs)
        return None if make is None else functools.partial(_Filmed, make, self)


class _Filmed(gym.Wrapper):
    """Renders a frame at every reset and after every step."""

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
                f"{_name(self.env)} cannot render its frames here: {error}. Or play it as text, with --text"
            ) from None
        array = np.asarray(image)
        if array.dtype != np.uint8 or array.ndim != 3 or array.shape[2] != 3:
            raise NoFramesError(
                f"render() of {_name(self.env)} returned {_kind(image)}, but render_mode {MODE} means uint8 "
                "[height, width, 3]. Correct it, or play as text, with --text"
            )
        return Frame(array)


def _maker(env: Any, kwargs: dict[str, Any]) -> Callable[[], gym.Env] | None:
    """A factory of ``env`` with rendering; None if it cannot render."""
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
        return None  # an env instance keeps its render mode
    try:
        probe = make(**kwargs)
    except (gym.error.Error, TypeError):
        return None  # opening the env without frames reports the error
    modes = probe.metadata.get("render_modes", ())
    probe.close()
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
