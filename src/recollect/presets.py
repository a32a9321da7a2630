"""Settings that suit a built-in task better than the defaults, by how far its memory must reach.

The defaults cut rollouts into chunks of 32 steps. Gradients do not cross a chunk's start, so whatever
must be kept for longer is kept by luck, and lost again as the weights drift. docs/tuning.md has the
experiments.
"""

from __future__ import annotations

from typing import Any

from recollect.algos.ppo import PPOConfig
from recollect.cores import CORES
from recollect.tasks import TASKS, make_task

LONG = 100
"""From this many steps on, forget gates that start open for that long are worth it."""


def preset(name: str, settings: dict[str, Any]) -> dict[str, Any]:
    """What suits the built-in task ``name`` beside the user's ``settings``, which it never contradicts.

    ``core="lstm"`` and ``core="gru"`` name a kind, not its gates: those are chosen here too. Any other
    env has no preset.
    """
    if name not in TASKS and name not in {task.id for task in TASKS.values()}:
        return {}
    horizon = make_task(name, 1, **settings.get("env_kwargs", {})).horizon
    found: dict[str, Any] = {}
    if horizon >= PPOConfig().chunk:
        # Chunks of whole rollouts; twice the rows keep the minibatches wide.
        if not settings.keys() & {"recurrent_mode", "chunk", "burn_in_steps", "ppo"}:
            found["recurrent_mode"] = "full"
        if "num_envs" not in settings:
            found["num_envs"] = 32
    core = settings.get("core", "lstm")
    if horizon >= LONG and core in ("lstm", "gru") and "policy" not in settings:
        found["core"] = CORES[core](chrono=horizon)  # pyright: ignore[reportCallIssue]
    return found
