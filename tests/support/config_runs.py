"""Small runs for the tests of the config, and ways to see that a setting did something."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import torch

import recollect as rc
from recollect.config.policy import EncoderConfig, HeadConfig
from recollect.cores import LSTMConfig
from recollect.policy.heads import ActionHead
from tests.support.helpers import TensorWorld

BASE: dict[str, Any] = {
    "rollout": 12,
    "chunk": 4,
    "epochs": 2,
    "minibatches": 2,
    "learning_rate": 1e-2,
    "core": LSTMConfig(hidden=8),
    "encoder": EncoderConfig(hidden=(8,)),
    "head": HeadConfig(gain=1.0),
    "threads": 1,
    "steps": 72,
}
TASK = {**BASE, "num_envs": 3, "env_kwargs": {"horizon": 1}}


def trained(env: Any = None, callbacks: Any = (), **settings: Any) -> rc.Agent:
    """Two updates of 12 steps in 3 rows, unless the settings say otherwise."""
    env = TensorWorld(3) if env is None else env
    return rc.train(env, progress=False, callbacks=callbacks, **(BASE | settings))


def weights(**settings: Any) -> dict[str, torch.Tensor]:
    return {k: v.clone() for k, v in trained(**settings).policy.state_dict().items()}


def equal(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(
        a[name].shape == b[name].shape and torch.equal(a[name], b[name]) for name in a
    )


def moves_weights(name: str, value: Any, **base: Any) -> Callable[[], None]:
    """After two updates the weights differ from those with the field as in ``base``."""
    return lambda: differ(base, base | {name: value})


def reports(name: str, value: Any, metric: str, number: float, **base: Any) -> Callable[[], None]:
    """A metric says that the field is on, where the weights are the same but for rounding."""

    def check() -> None:
        assert metric not in trained(**base).history.rows[-1]
        assert trained(**base | {name: value}).history.rows[-1][metric] == number

    return check


def differ(before: dict[str, Any], after: dict[str, Any]) -> None:
    """After two updates the weights do."""
    assert not equal(weights(**before), weights(**after))


def features(space: gym.Space, **fields: Any) -> torch.Tensor:
    torch.manual_seed(0)
    encoder = EncoderConfig(**fields).build(space)
    seen = torch.from_numpy(np.stack([space.sample() for _ in range(2)])) if space.seed(1) else None
    return encoder(seen).detach()


def encodes(name: str, value: Any, shape: tuple[int, ...] = (5,)) -> Callable[[], None]:
    """The features of the same observations differ."""
    kind = {} if len(shape) == 1 else {"dtype": np.uint8}
    space = gym.spaces.Box(0, 1 if len(shape) == 1 else 255, shape, **kind)

    def check() -> None:
        plain, changed = features(space), features(space, **{name: value})
        assert plain.shape != changed.shape or not torch.allclose(plain, changed)

    return check


def acts(name: str, value: Any, log_std: float | None = None) -> Callable[[], None]:
    """The density of the same action under a head with the same seed differs."""

    def density(config: HeadConfig) -> float:
        torch.manual_seed(0)
        head = ActionHead(gym.spaces.Box(-1, 1, (2,)), 4, config)
        if log_std is not None:
            with torch.no_grad():
                head.root.log_std.fill_(log_std)
        return float(head(torch.ones(1, 4)).log_prob(torch.full((1, 2), 0.3)).detach())

    def check() -> None:
        assert density(HeadConfig()) != density(HeadConfig(**{name: value}))

    return check
