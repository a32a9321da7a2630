"""What a report plays itself: a few episodes, and success by the length of the memory. Both are kept."""

from __future__ import annotations

import contextlib
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium

from recollect.base.files import finite
from recollect.base.own_files import CHECKPOINTS, check_own
from recollect.errors import RecollectError
from recollect.reports.episodes import INDEX
from recollect.reports.folder import Folder, Row, read_json
from recollect.reports.thinning import number
from recollect.reports.worlds import LONGEST, known_task, levels, memory_lengths
from recollect.training import checkpoints
from recollect.training.run_folder import Run

if TYPE_CHECKING:
    from recollect.agent import Agent

EPISODES = 3
"""How many are recorded."""
EVALUATED = 100
"""Episodes for each length of memory."""
SEED = 1_000_003
"""That of evaluations: other episodes than those of training."""
EPISODES_FOLDER = "episodes"
LENGTHS = "memory_lengths.json"
WEIGHTS = "weights"
"""The key of the checksum of the weights that something was made with."""


def play(folder: Folder, env_kwargs: dict[str, Any] | None = None) -> list[str]:
    """Record episodes and measure success by memory length, unless the run has them already.

    ``env_kwargs``: options of the env that the user has named, and not only the folder.

    Returns a sentence on each thing that could not be made. Nothing that an env or a checkpoint does
    may keep the report from being written.
    """
    if not _is_playable(folder.env):
        return [f"The env {folder.env or '(made by code)'} cannot be made by name, so nothing was played."]
    checkpoint = find_checkpoint(folder)
    if checkpoint is None:
        return ["Nothing was played: this run has no checkpoint."]
    source = _source(checkpoint)
    todo = [
        what
        for what, is_there in (
            (_record, _has_episodes(folder, source)),
            (_measure, _has_lengths(folder, source)),
        )
        if not is_there
    ]
    if not todo:
        return []
    try:
        check_own(folder.path)
        agent = _load(checkpoint, env_kwargs)
        for what in todo:
            what(folder, agent, source)
    except Exception as error:  # an env is anybody's code
        return [f"Playing with checkpoint {int(checkpoint.name):,} failed ({type(error).__name__}: {error})."]
    return []


def find_checkpoint(folder: Folder) -> Path | None:
    """The best checkpoint by evaluation, else the last; None if there is none."""
    run = Run(folder.path)
    for which in ("best", "last"):
        with contextlib.suppress(RecollectError, KeyError, TypeError, ValueError):
            return run.checkpoint(which)
    return None


def is_outdated(folder: Folder, made: Row) -> bool:
    """Whether the run went back since this was made: the checkpoint it names holds other weights, or is
    beyond the last."""
    steps, known = number(made.get("checkpoint_steps")), Run(folder.path).checkpoints()
    if math.isnan(steps) or not known or made.get(WEIGHTS) is None:
        return False
    if steps > int(known[-1].name):
        return True
    weights = _source(folder.path / CHECKPOINTS / f"{int(steps):012d}")[WEIGHTS]
    return weights is not None and weights != made[WEIGHTS]


def outdated_episodes(folder: Folder) -> list[str]:
    """The files of the episodes that a report played before the run went back."""
    index = _read_index(folder)
    return index["files"] if is_outdated(folder, index) else []


def read_lengths(folder: Folder) -> Row | None:
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


def _source(checkpoint: Path) -> Row:
    """Where something comes from: its env steps and weights. A run that went back and made the same
    steps again has others."""
    about = read_json(checkpoint / "agent.json")
    sums = about.get("sha256") if isinstance(about, dict) else None
    weights = sums.get("weights.safetensors") if isinstance(sums, dict) else None
    return {"checkpoint_steps": int(checkpoint.name), WEIGHTS: weights if isinstance(weights, str) else None}


def _is_from(made: Row, source: Row) -> bool:
    return source[WEIGHTS] is not None and all(made.get(name) == value for name, value in source.items())


def _read_index(folder: Folder) -> Row:
    """Which episodes a report played last, and with what."""
    index = read_json(folder.path / EPISODES_FOLDER / INDEX)
    is_ours = isinstance(index, dict) and index.get("format") == 1 and isinstance(index.get("files"), list)
    return index if is_ours else {"files": []}


def _has_episodes(folder: Folder, source: Row) -> bool:
    index = _read_index(folder)
    if not index["files"] or not _is_from(index, source):
        return False
    traces = [read_json(folder.path / EPISODES_FOLDER / str(name)) for name in index["files"]]
    steps = source["checkpoint_steps"]
    return all(isinstance(trace, dict) and trace.get("checkpoint_steps") == steps for trace in traces)


def _has_lengths(folder: Folder, source: Row) -> bool:
    task = known_task(folder.env, folder.env_kwargs)
    if task is None or not memory_lengths(task)[2]:
        return True
    data = read_lengths(folder)
    return data is not None and _is_from(data, source)


def _load(checkpoint: Path, env_kwargs: dict[str, Any] | None) -> Agent:
    from recollect.api import load

    return load(checkpoint, device="cpu", env_kwargs=env_kwargs)


def _record(folder: Folder, agent: Agent, source: Row) -> None:
    from recollect.play.trace import record

    traces = record(agent, episodes=EPISODES, seed=SEED)
    place = folder.path / EPISODES_FOLDER
    for old in (INDEX, *(f"report-{i}.json" for i in range(EPISODES))):
        (place / old).unlink(missing_ok=True)  # this time there may be fewer
    files = [trace.save(place / f"report-{i}.json").name for i, trace in enumerate(traces)]
    checkpoints.write_atomically(place / INDEX, json.dumps({"format": 1, **source, "files": files}))


def _measure(folder: Folder, agent: Agent, source: Row) -> None:
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
        **source,
        "option": option,
        "trained": trained,
        "episodes": EVALUATED,
        "points": points,
    }
    checkpoints.write_atomically(folder.path / LENGTHS, json.dumps(finite(data)))
