"""Games of a run in the mech arena, in ``RUN/replays``: a replay and its viewer each, which reports link."""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path
from urllib.parse import quote

from recollect.agent import Agent
from recollect.base import files
from recollect.base.run_files import REPLAYS, check_own
from recollect.errors import RecollectError
from recollect.play.mech import record_run
from recollect.policy.policies import Policies
from recollect.reports.mech_viewer import write_viewer
from recollect.reports.read_run import read_json
from recollect.reports.thinning import Row, mapping
from recollect.tasks.mech.replays import load
from recollect.training.recorded_episodes import SEED, is_from

GAMES = 2
"""Games of a run."""
SECONDS = 60.0
"""Seconds after which no further decision is played: then there are fewer games."""
INDEX = "index.json"
"""Env steps and weights of the checkpoint that played, and the names of the files."""
_FILE = re.compile(r"game-[0-9]+\.json")
RESULTS = {1: "blue wins", -1: "red wins", 0: "a draw"}


def has_games(run: Path, source: Row) -> bool:
    """Whether the run has the games of this checkpoint."""
    return bool(_names(run)) and is_from(mapping(read_json(run / REPLAYS / INDEX)), source)


def record_games(run: Path, agent: Agent, source: Row) -> None:
    """Play games and write their replays, viewers and index, in place of earlier ones."""
    if isinstance(agent.network, Policies):
        return
    ends = time.monotonic() + SECONDS
    replays = record_run(
        agent,
        name=run.resolve().name,
        games=GAMES,
        seed=SEED,
        deterministic=agent.config.primary_mode == "greedy",
        cancelled=lambda: time.monotonic() > ends,
    )
    check_own(run)
    place = run / REPLAYS
    with files.writing(f"{place} could not be written"):
        place.mkdir(exist_ok=True)
        for name in _names(run):
            (place / name).unlink(missing_ok=True)
            (place / name).with_suffix(".html").unlink(missing_ok=True)
    names = []
    for number, replay in enumerate(replays, 1):
        file = replay.save(place / f"game-{number}.json")
        write_viewer(file)
        names.append(file.name)
    files.write_atomically(place / INDEX, json.dumps({"format": 1, **source, "files": names}))


def links(run: Path, page: Path) -> list[Row]:
    """The address of every viewer, seen from the folder of ``page``, and what happens in its game."""
    found = []
    for name in _names(run):
        viewer = (run / REPLAYS / name).with_suffix(".html")
        try:
            replay = load(viewer.with_suffix(".json"))
        except RecollectError:
            continue
        if viewer.is_file():
            blue, red = replay.players
            words = (
                f"{blue} against {red}: {RESULTS[replay.won]}, {replay.score[0]:.2f} to {replay.score[1]:.2f}"
            )
            address = os.path.relpath(viewer, page.parent).replace(os.sep, "/")
            found.append({"href": quote(address), "text": words})
    return found


def _names(run: Path) -> list[str]:
    """The files in the index, if all of their names are of games."""
    index = mapping(read_json(run / REPLAYS / INDEX))
    names = index.get("files")
    if index.get("format") != 1 or not isinstance(names, list):
        return []
    return names if all(isinstance(name, str) and _FILE.fullmatch(name) for name in names) else []
