"""Settings that suit a built-in task better than the defaults, by how far its memory must reach.

The defaults cut rollouts into chunks of 32 steps. Gradients do not cross a chunk's start, so whatever
must be kept for longer is kept by luck, and lost again as the weights drift. docs/tuning.md has the
experiments.
"""

from __future__ import annotations

from typing import Any

from recollect.algos.ppo import PPOConfig
from recollect.cores import LSTMConfig
from recollect.tasks import TASKS, make_task

LONG = 100
"""From this many steps on, forget gates that start open for that long are worth it."""


def preset(name: str, options: dict[str, Any]) -> dict[str, Any]:
    """The settings for the built-in task ``name`` with these options; none for any other env."""
    if name not in TASKS and name not in {task.id for task in TASKS.values()}:
        return {}
    horizon = make_task(name, 1, **options).horizon
    settings: dict[str, Any] = {}
    if horizon >= PPOConfig().chunk:
        # Chunks of whole rollouts; twice the rows keep the minibatches wide.
        settings |= {"recurrent_mode": "full", "num_envs": 32}
    if horizon >= LONG:
        settings |= {"core": LSTMConfig(chrono=horizon)}
    return settings
