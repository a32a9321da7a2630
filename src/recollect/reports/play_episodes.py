"""Records episodes and measures success by memory length for a report; both are cached in the run."""

from __future__ import annotations

import contextlib
import json
import math
from pathlib import Path
from typing import Any

import gymnasium

from recollect.agent import Agent
from recollect.api import load
from recollect.base.files import finite, write_atomically
from recollect.base.import_code import is_importing
from recollect.base.run_files import CHECKPOINTS, check_own
from recollect.errors import RecollectError
from recollect.play.trace import record
from recollect.reports.episodes import INDEX
from recollect.reports.read_run import Folder, read_json
from recollect.reports.task_facts import LONGEST, known_task, levels, memory_lengths
from recollect.reports.thinning import Row, mapping, number
from recollect.training import trusted_runs
from recollect.training.run_folder import Run

EPISODES = 3
"""Number of recorded episodes."""
EVALUATED = 100
"""Episodes for each memory length."""
SEED = 1_000_003
"""The seed of evaluations, so that episodes differ from training."""
EPISODES_FOLDER = "episodes"
LENGTHS = "memory_lengths.json"
WEIGHTS = "weights"
"""The key for the checksum of the weights."""


def play(folder: Folder, env_kwargs: dict[str, Any] | None = None, **named: Any) -> list[str]:
    """Record episodes and measure success by memory length, unless the run has them already.

    ``env_kwargs`` and ``named``: arguments of ``load`` that the user has given, not only the folder.

    Returns a sentence on each failure. An error of the env or the checkpoint never prevents the report.
    """
    if not named.get("env") and not named.get("trust") and not _is_playable(folder):
        how = trusted_runs.hint(Run(folder.path).description) if is_importing(folder.env) else ""
        env = folder.env or "(made by code)"
        return [f"The env {env} cannot be made by name, so nothing was played{how}."]
    checkpoint = find_checkpoint(folder)
    if checkpoint is None:
        return ["Nothing was played: this run has no checkpoint."]
    source = _source(checkpoint)
    needs_episodes, needs_lengths = not _has_episodes(folder, source), not _has_lengths(folder, source)
    if not (needs_episodes or needs_lengths):
        return []
    try:
        check_own(folder.path)
        agent = load(checkpoint, device="cpu", env_kwargs=env_kwargs, **named)
        if needs_episodes:
            _record(folder, agent, source)
        if needs_lengths:
            _measure(folder, agent, source)
    except Exception as error:  # an env can raise anything
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
    """Whether a resume has since replaced or deleted the checkpoint that this was made with."""
    steps, known = number(made.get("checkpoint_steps")), Run(folder.path).checkpoints()
    if math.isnan(steps) or not known or made.get(WEIGHTS) is None:
        return False
    if steps > int(known[-1].name):
        return True
    weights = _source(folder.path / CHECKPOINTS / f"{int(steps):012d}")[WEIGHTS]
    return weights is not None and weights != made[WEIGHTS]


def outdated_episodes(folder: Folder) -> list[str]:
    """The files of recorded episodes whose checkpoint was replaced or deleted."""
    index = _read_index(folder)
    return index["files"] if is_outdated(folder, index) else []


def read_lengths(folder: Folder) -> Row:
    """The results of ``_measure``; its ``points`` are empty if there are none."""
    return _read_cache(folder.path / LENGTHS, "points")


def _read_index(folder: Folder) -> Row:
    """The index of the recorded episodes."""
    return _read_cache(folder.path / EPISODES_FOLDER / INDEX, "files")


def _read_cache(file: Path, name: str) -> Row:
    """A file with the list ``name``, which is empty if the file is missing or has another format."""
    data = mapping(read_json(file))
    return data if data.get("format") == 1 and isinstance(data.get(name), list) else {name: []}


def _is_playable(folder: Folder) -> bool:
    """Whether the env can be made by name; one that imports code must be trusted."""
    env = folder.env
    if is_importing(env):
        return trusted_runs.is_trusted(folder.path, Run(folder.path).description)
    return env is not None and (known_task(env, {}) is not None or env in gymnasium.registry)


def _source(checkpoint: Path) -> Row:
    """Env steps and checksum of a checkpoint; after a resume the same steps have other weights."""
    about = mapping(read_json(checkpoint / "agent.json"))
    weights = mapping(about.get("sha256")).get("weights.safetensors")
    return {"checkpoint_steps": int(checkpoint.name), WEIGHTS: weights if isinstance(weights, str) else None}


def _is_from(made: Row, source: Row) -> bool:
    return source[WEIGHTS] is not None and all(made.get(name) == value for name, value in source.items())


def _has_episodes(folder: Folder, source: Row) -> bool:
    index = _read_index(folder)
    if not index["files"] or not _is_from(index, source):
        return False
    traces = [mapping(read_json(folder.path / EPISODES_FOLDER / str(name))) for name in index["files"]]
    return all(trace.get("checkpoint_steps") == source["checkpoint_steps"] for trace in traces)


def _has_lengths(folder: Folder, source: Row) -> bool:
    task = known_task(folder.env, folder.env_kwargs)
    if task is None or not memory_lengths(task)[2]:
        return True
    return _is_from(read_lengths(folder), source)


def _record(folder: Folder, agent: Agent, source: Row) -> None:
    traces = record(agent, episodes=EPISODES, seed=SEED)
    place = folder.path / EPISODES_FOLDER
    for old in (INDEX, *(f"report-{i}.json" for i in range(EPISODES))):
        (place / old).unlink(missing_ok=True)  # there may be fewer episodes this time
    files = [trace.save(place / f"report-{i}.json").name for i, trace in enumerate(traces)]
    write_atomically(place / INDEX, json.dumps({"format": 1, **source, "files": files}))


def _measure(folder: Folder, agent: Agent, source: Row) -> None:
    """Evaluate at every memory length that keeps the spaces unchanged."""
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
        points.append({"length": length, "mean": result.mean, "low": low, "high": high, **levels(other)})
    about = {"option": option, "trained": trained, "episodes": EVALUATED}
    data = {"format": 1, **source, **about, "points": points}
    write_atomically(folder.path / LENGTHS, json.dumps(finite(data)))
