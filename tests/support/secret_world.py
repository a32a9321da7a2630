"""An env with a key that only the critic may see, and small settings for it."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from recollect.config.policy import EncoderConfig, HeadConfig
from recollect.cores import LSTMConfig
from tests.support.helpers import ScriptedEnv, as_rows

SEPARATE: dict[str, Any] = {"critic": "separate", "critic_obs": ("secret",)}
SMALL: dict[str, Any] = {
    "num_envs": 3,
    "rollout": 23,
    "chunk": 7,
    "epochs": 2,
    "minibatches": 2,
    "learning_rate": 1e-2,
    "core": LSTMConfig(hidden=8),
    "encoder": EncoderConfig(hidden=(8,)),
    "head": HeadConfig(gain=1.0),
    "threads": 1,
    "steps": 3 * 69,
    "progress": False,
}


class SecretEnv(ScriptedEnv):
    """Noise to be remembered; the observation has "seen", and before it "secret"."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Dict(
            secret=spaces.Box(-np.inf, np.inf, (2,), np.float32), seen=self.observation_space
        )

    def _observe(self) -> Any:
        return {"secret": self.np_random.normal(size=2).astype(np.float32), "seen": super()._observe()}


class OpenEnv(SecretEnv):
    """The same env without the secret, which is drawn all the same."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Dict(seen=self.observation_space["seen"])

    def _observe(self) -> Any:
        return {"seen": super()._observe()["seen"]}


def secret_rows(rows: int = 3, world: str = "same_step") -> Any:
    """Rows of ``SecretEnv``."""
    return as_rows([SecretEnv] * rows, world)
