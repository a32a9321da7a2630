"""Limits of the numbers in a run folder, which may be damaged or malicious.

They are far beyond those of any real run. A network is limited by the size of its weights file
(``recollect.policy.meta_device``).
"""

from __future__ import annotations

from typing import Any

from recollect.config.train import TrainConfig
from recollect.errors import ConfigError

MOST_ROWS = MOST_STEPS = 2**24
"""Env slots; steps of a rollout, and episodes to average over."""
MOST_PROCESSES = 4096
"""Actors, env workers and learners together, and CPU threads."""
MOST_UNITS = 2**20
"""Any whole number in the config of a network."""
MOST_LETTERS = 1000
"""In the name of an env."""


def check_sizes(config: TrainConfig) -> None:
    """Raise if a size in the config of a folder is beyond its limit."""
    processes = config.actors * (1 + config.env_workers) + config.learners
    for name, value, most in (
        ("num_envs", config.num_envs, MOST_ROWS),
        ("rollout", config.algo.rollout, MOST_STEPS),
        ("target_episodes", config.target_episodes, MOST_STEPS),
        ("actors, env_workers and learners together", processes, MOST_PROCESSES),
        ("threads", config.threads or 0, MOST_PROCESSES),
    ):
        if value > most:
            raise ConfigError(f"{name} = {value}: at most {most} is taken from a folder")


def check_numbers(config: Any) -> None:
    """Raise if a whole number in the config of a network is beyond its limit."""
    parts = config.values() if isinstance(config, dict) else config if isinstance(config, list) else ()
    for part in parts:
        check_numbers(part)
    if isinstance(config, int) and config > MOST_UNITS:
        raise ConfigError(f"{config}: at most {MOST_UNITS} is taken from a folder")
