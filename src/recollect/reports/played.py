"""What a report plays itself: a few episodes, and success by the length of the memory. Both are kept."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium

from recollect.errors import RecollectError
from recollect.reports.folder import Folder, read_json
from recollect.reports.page import write_atomically
from recollect.reports.worlds import LONGEST, known_task, levels, memory_lengths
from recollect.runs import Run

if TYPE_CHECKING:
    from recollect.agent import Agent

EPISODES = 3
"""How many are recorded."""
EVALUATED = 100
"""Episodes for each length of memory."""
SEED = 1_000_003
"""That of evaluations: other episodes than those of training."""
LENGTHS = "memory_lengths.json"


def play(folder: Folder) -> list[str]:
    """Record episodes and measure success by memory length, unless the run has them already.

    Returns a sentence on each thing that could not be made. Nothing that an env or a checkpoint does
    may keep the report from being written.
    """
    if not _is_playable(folder.env):
        return [f"The env {folder.env or '(made by code)'} cannot be made by name, so nothing was played."]
    checkpoint = find_checkpoint(folder)
    if checkpoint is None:
        return ["Nothing was played: this run has no checkpoint."]
    steps = int(checkpoint.name)
    todo = [
        what
        for what, is_there in (
            (_record, _has_episodes(folder, steps)),
            (_measure, _has_lengths(folder, steps)),
        )
        if not is_there
    ]
    if not todo:
        return []
    try:
        agent = _load(checkpoint)
        for what in todo:
            what(folder, agent)
    except Exception as error:  # an env is anybody's code
        return [f"Playing with checkpoint {steps:,} failed ({type(error).__name__}: {error})."]
    return []


def find_checkpoint(folder: Folder) -> Path | None:
    """The best checkpoint by evaluation, else the last; None if there is none."""
    run = Run(folder.path)
    for which in ("best", "last"):
        with contextlib.suppress(RecollectError, KeyError, TypeError, ValueError):
            return run.checkpoint(which)
    return None


def read_lengths(folder: Folder) -> dict[str, Any] | None:
    """What ``_measure`` wrote; None if there is nothing that can be read."""
    data = read_json(folder.path / LENGTHS)
    is_ours = isinstance(data, dict) and data.get("format") == 1 and isinstance(data.get("points"), list)
    return data if is_ours else None


def _is_playable(env: str | None) -> bool:
    """Whether the env can be made by name without importing anybody's module."""
    if env is None or ":" in env:
        return False
    if known_task(env, {}) is not None:
        return True
    return env in gymnasium.registry


def _has_episodes(folder: Folder, steps: int) -> bool:
    traces = map(read_json, (folder.path / "episodes").glob("*.json"))
    return any(isinstance(trace, dict) and trace.get("checkpoint_steps") == steps for trace in traces)


def _has_lengths(folder: Folder, steps: int) -> bool:
    task = known_task(folder.env, folder.env_kwargs)
    if task is None or not memory_lengths(task)[2]:
        return True
    data = read_lengths(folder)
    return data is not None and data.get("checkpoint_steps") == steps


def _load(checkpoint: Path) -> Agent:
    from recollect.api import load

    return load(checkpoint, device="cpu")


def _record(folder: Folder, agent: Agent) -> None:
    from recollect.trace import record

    for i, trace in enumerate(record(agent, episodes=EPISODES, seed=SEED)):
        trace.save(folder.path / "episodes" / f"report-{i}.json")


def _measure(folder: Folder, agent: Agent) -> None:
    """Evaluate at every length of memory that leaves the spaces as they are."""
    task = known_task(folder.env, folder.env_kwargs)
    if task is None:
        return
    option, trained, lengths = memory_lengths(task)
    points = []
    for length in lengths:
        kwargs = folder.env_kwargs | {option: length}
        other = known_task(folder.env, kwargs)
        if other is None or other.max_episode_steps > LONGEST:
            continue
        if (other.observation_space, other.action_space) != (task.observation_space, task.action_space):
            continue
        result = agent.evaluate(episodes=EVALUATED, seed=SEED, env_kwargs=kwargs, num_envs=EVALUATED)
        low, high = result.interval
        known = levels(other)
        points.append(
            {
                "length": length,
                **{"mean": result.mean, "low": low, "high": high},
                **{"best": known.best, "memoryless": known.memoryless},
            }
        )
    data = {
        "format": 1,
        "checkpoint_steps": agent.steps,
        "option": option,
        "trained": trained,
        "episodes": EVALUATED,
        "points": points,
    }
    write_atomically(folder.path / LENGTHS, json.dumps(data))
