"""Episodes in ``RUN/episodes``: recorded step by step with one checkpoint, and shown by the report.

A report can make built-in tasks and Gymnasium's own envs itself. Any other env is code that a report does not
import (decision 024), so the training records its episodes at its end, in the process that has the env.

Files: ``report-0.json`` and so on (``acting.trace.Trace``), and ``report.json``, the index with the checksum
of the weights that played. They are JSON, of bounded size, and are read as untrusted data.
"""

from __future__ import annotations

import copy
import json
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gymnasium

from recollect.acting.recording import record_env
from recollect.acting.trace import Trace
from recollect.base import files
from recollect.base.run_files import check_own
from recollect.config.tasks import task_name
from recollect.envs.env_names import display_name, is_importing
from recollect.errors import RecollectError
from recollect.training import checkpoints, trusted_runs
from recollect.training.agent_protocol import Trainee
from recollect.training.run_folder import Run

EPISODES = 3
"""Number of recorded episodes, with a file for each agent."""
SEED = 1_000_003
"""The seed of evaluations, so that episodes differ from training."""
SIZE = 8_000_000
"""Bytes of an episode after which its recording stops."""
SECONDS = 10.0
"""Seconds after which the recording at the end of a training stops, for slow envs."""
FOLDER = "episodes"
INDEX = "report.json"
"""The index: env steps and weights of the checkpoint that played, and the names of the files."""
WEIGHTS = "weights"
"""The key for the checksum of the weights."""
_FILE = re.compile(r"report-[0-9]+\.json")
_LEFTOVER = re.compile(r"\.report(-[0-9]+)?\.json-[0-9a-f]{8}")
"""Temporary names of these files, which a killed process may leave."""

Row = dict[str, Any]


def is_makeable(env: Any, env_kwargs: dict[str, Any]) -> bool:
    """Whether a report can make this env in another process, from its name and without code of the user."""
    if not isinstance(env, str) or is_importing(env):
        return False
    if task_name(env):
        return True
    spec = gymnasium.registry.get(env)
    entry = None if spec is None else spec.entry_point
    return isinstance(entry, str) and entry.startswith("gymnasium.envs.") and not env_kwargs


def record_episodes(agent: Trainee, run: Run, *, cancelled: Callable[[], bool] = lambda: False) -> str | None:
    """Record episodes of the run's best checkpoint, unless it has them or a report can make env and policy.

    Returns the reason if that failed: an env may raise anything, and no training fails for its report.
    """
    has_own_code = agent.network.made_by is not None or trusted_runs.required(run.description)
    is_known = is_makeable(agent.env, agent.config.env_kwargs) and not has_own_code
    if is_known or not agent.can_make_env:
        return None
    ends = time.monotonic() + SECONDS
    try:
        checkpoint = run.checkpoint("best")
        source = source_of(checkpoint)
        if has_episodes(run.path, source):
            return None
        network = agent.network
        if int(checkpoint.name) != agent.steps:
            network = copy.deepcopy(network)
            checkpoints.load_weights(network, checkpoints.read(checkpoint))
        with agent.opened(1) as env:
            traces = record_env(
                network,
                env,
                episodes=EPISODES,
                seed=SEED,
                deterministic=agent.config.primary_mode == "greedy",
                max_size=SIZE,
                cancelled=lambda: cancelled() or time.monotonic() > ends,
                name=display_name(agent.env),
                checkpoint_steps=int(checkpoint.name),
            )
        save_traces(run.path, traces, source)
    except Exception as error:
        return f"no episodes were recorded for the report ({type(error).__name__}: {error})"
    return None


def save_traces(run: Path, traces: Sequence[Trace], source: Row) -> None:
    """Write the episodes, then the index; earlier ones of a report are removed."""
    check_own(run)
    place = run / FOLDER
    with files.writing(f"{place} could not be written"):
        place.mkdir(exist_ok=True)
        for old in sorted(place.iterdir()):
            if old.name == INDEX or _FILE.fullmatch(old.name) or _LEFTOVER.fullmatch(old.name):
                old.unlink()
    names = [trace.save(place / f"report-{i}.json").name for i, trace in enumerate(traces)]
    files.write_atomically(place / INDEX, json.dumps({"format": 1, **source, "files": names}))


def source_of(checkpoint: Path) -> Row:
    """Env steps and checksum of a checkpoint; after a resume the same steps have other weights."""
    sha256 = _read(checkpoint / "agent.json").get("sha256")
    weights = sha256.get("weights.safetensors") if isinstance(sha256, dict) else None
    return {"checkpoint_steps": int(checkpoint.name), WEIGHTS: weights if isinstance(weights, str) else None}


def is_from(made: Row, source: Row) -> bool:
    """Whether something was made with the checkpoint of ``source``."""
    return source[WEIGHTS] is not None and all(made.get(name) == value for name, value in source.items())


def read_index(run: Path) -> Row:
    """The index of the recorded episodes; its ``files`` are empty if there are none."""
    index = _read(run / FOLDER / INDEX)
    names = index.get("files")
    if index.get("format") != 1 or not isinstance(names, list):
        return {"files": []}
    return index if all(_FILE.fullmatch(str(name)) for name in names) else {"files": []}


def has_episodes(run: Path, source: Row) -> bool:
    """Whether the run has undamaged episodes of this checkpoint."""
    index = read_index(run)
    if not index["files"] or not is_from(index, source):
        return False
    traces = [_read(run / FOLDER / name) for name in index["files"]]
    return all(trace.get("checkpoint_steps") == source["checkpoint_steps"] for trace in traces)


def _read(file: Path) -> Row:
    try:
        return files.read_json(file)
    except RecollectError:
        return {}
