"""Records episodes and measures success by memory length for a report; both are cached in the run."""

from __future__ import annotations

import contextlib
import json
import math
import shlex
from pathlib import Path
from typing import Any

import gymnasium

from recollect.agent import Agent
from recollect.api import load
from recollect.base.files import finite, write_atomically
from recollect.base.import_code import is_importing
from recollect.base.run_files import CHECKPOINTS, check_own
from recollect.config.tasks import task_name
from recollect.envs.factory import EnvSpec
from recollect.envs.pettingzoo import PREFIX
from recollect.errors import RecollectError
from recollect.play.trace import record
from recollect.reports.mech_games import has_games, record_games
from recollect.reports.read_run import Folder, read_json
from recollect.reports.task_facts import LONGEST, known_task, levels, memory_lengths
from recollect.reports.thinning import Row, mapping, number
from recollect.training import trusted_runs
from recollect.training.recorded_episodes import (
    EPISODES,
    SEED,
    SIZE,
    WEIGHTS,
    has_episodes,
    is_from,
    read_index,
    save_traces,
    source_of,
)
from recollect.training.run_folder import Run

EVALUATED = 100
"""Episodes for each memory length."""
LENGTHS = "memory_lengths.json"


def play(
    folder: Folder, env: EnvSpec | None = None, env_kwargs: dict[str, Any] | None = None, **named: Any
) -> list[str]:
    """Record episodes and measure success by memory length, unless the run has them already.

    ``env``: record new ones with this env. ``env_kwargs`` and ``named``: arguments of ``load`` that the user
    has given, not only the folder.

    Returns a sentence on each failure. An error of the env or the checkpoint never prevents the report,
    unless the user gave ``env``.
    """
    checkpoint = find_checkpoint(folder)
    if checkpoint is None:
        return ["Nothing was played: this run has no checkpoint."]
    source = source_of(checkpoint)
    is_named = env is not None or bool(env_kwargs) or any(named.values())
    if not is_named and not _is_playable(folder.env, checkpoint):
        index = read_index(folder.path)
        return [] if index["files"] and not is_outdated(folder, index) else [_why_not(folder, checkpoint)]
    needs_episodes = env is not None or not has_episodes(folder.path, source)
    needs_lengths = not _has_lengths(folder, source)
    needs_games = env is None and task_name(folder.env) == "mech" and not has_games(folder.path, source)
    if not (needs_episodes or needs_lengths or needs_games):
        return []
    try:
        check_own(folder.path)
        agent = load(checkpoint, device="cpu", env=env, env_kwargs=env_kwargs, **named)
        if needs_episodes:
            greedy = agent.config.primary_mode == "greedy"
            traces = record(agent, episodes=EPISODES, seed=SEED, deterministic=greedy, max_size=SIZE)
            save_traces(folder.path, traces, source)
        if needs_lengths:
            _measure(folder, agent, source)
        if needs_games:
            record_games(folder.path, agent, source)
    except Exception as error:  # an env can raise anything
        if env is not None:  # the user asked for these episodes
            raise
        return [f"Playing with checkpoint {int(checkpoint.name):,} failed ({type(error).__name__}: {error})."]
    return []


def _why_not(folder: Folder, checkpoint: Path) -> str:
    """Why a run has no episodes of an env that a report cannot make, and the command that adds them."""
    env, state = folder.env, folder.status.get("state")
    what = f"The env {env} is code" if env and is_importing(env) else f"The env {env} is not registered here"
    if env is None:
        what = "The env has no name: it was made by code"
    why = "so the report cannot make it, and the run has recorded no episodes"
    if state in ("running", "killed", "failed", "stopped"):
        why += f" (it does so when it ends by itself; it is {state})"
    about = mapping(read_json(checkpoint / "agent.json"))
    named = trusted_runs.flags({"env": env or "module:Env"} | trusted_runs.required(about))
    command = shlex.join(["recollect", "report", str(folder.path), *named])
    trust = ", or with --trust if you trust all of its code" if env else ""
    return f"{what}, {why}. To record some now: {command}{trust} (in Python write_report(run, env=...))."


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
    weights = source_of(folder.path / CHECKPOINTS / f"{int(steps):012d}")[WEIGHTS]
    return weights is not None and weights != made[WEIGHTS]


def outdated_episodes(folder: Folder) -> list[str]:
    """The files of recorded episodes whose checkpoint was replaced or deleted."""
    index = read_index(folder.path)
    return index["files"] if is_outdated(folder, index) else []


def read_lengths(folder: Folder) -> Row:
    """The results of ``_measure``; its ``points`` are empty if there are none."""
    return _read_cache(folder.path / LENGTHS, "points")


def _read_cache(file: Path, name: str) -> Row:
    """A file with the list ``name``, which is empty if the file is missing or has another format."""
    data = mapping(read_json(file))
    return data if data.get("format") == 1 and isinstance(data.get(name), list) else {name: []}


def _is_playable(env: str | None, checkpoint: Path) -> bool:
    """Whether the folder alone is enough to make the env: by its name, or by code that the user trusts."""
    about = mapping(read_json(checkpoint / "agent.json"))
    if env is None or trusted_runs.required(about):
        return env is not None and trusted_runs.is_trusted(checkpoint, about)
    return known_task(env, {}) is not None or env in gymnasium.registry or env.startswith(PREFIX)


def _has_lengths(folder: Folder, source: Row) -> bool:
    task = known_task(folder.env, folder.env_kwargs)
    if task is None or not memory_lengths(task)[2]:
        return True
    return is_from(read_lengths(folder), source)


def _measure(folder: Folder, agent: Agent, source: Row) -> None:
    """Evaluate at every memory length that keeps the spaces unchanged."""
    task = known_task(folder.env, folder.env_kwargs)
    if task is None:
        return
    option, trained, lengths = memory_lengths(task)
    mode, points = agent.config.primary_mode, []
    for length in lengths:
        kwargs = folder.env_kwargs | {option: length}
        other = known_task(folder.env, kwargs)
        if other is None or other.max_episode_steps > LONGEST:
            continue
        if (other.observation_space, other.action_space) != (task.observation_space, task.action_space):
            continue
        result = agent.evaluate(
            episodes=EVALUATED, seed=SEED, eval_mode=mode, env_kwargs=kwargs, num_envs=EVALUATED
        )
        low, high = result.interval
        points.append({"length": length, "mean": result.mean, "low": low, "high": high, **levels(other)})
    about = {"option": option, "trained": trained, "episodes": EVALUATED, "mode": mode}
    data = {"format": 1, **source, **about, "points": points}
    write_atomically(folder.path / LENGTHS, json.dumps(finite(data)))
