"""The viewer of a replay of the mech arena: the game, played again, as one self-contained page."""

from __future__ import annotations

from pathlib import Path

from recollect.base.files import check_replaceable, write_atomically, writing
from recollect.errors import EnvError, RecollectError
from recollect.reports.page import render
from recollect.tasks.mech.frames import frames
from recollect.tasks.mech.recording import play_again
from recollect.tasks.mech.replays import Replay, load

SCRIPTS = (
    *(
        "base.js",
        "scales.js",
        "arena_data.js",
        "arena_words.js",
        "arena_ground.js",
        "arena_mechs.js",
        "arena_draw.js",
    ),
    *("arena_map.js", "arena_panel.js", "arena_log.js", "arena_board.js", "arena_player.js"),
)
STYLES = ("style.css", "controls.css", "episode.css", "arena.css", "narrow.css")


def write_viewer(file: Path, out: Path | None = None) -> Path:
    """Play the replay in ``file`` again and write its page, beside it unless ``out`` is given."""
    replay = load(file)
    place = file.with_suffix(".html") if out is None else out
    if place.is_dir():
        raise RecollectError(f"{place} is a folder: name a file for the page, such as {place / 'game.html'}")
    check_replaceable(place)
    try:
        data = frames(replay)
    except EnvError as error:
        raise EnvError(f"{file}: {error}") from error
    with writing(f"{place.parent} could not be made"):
        place.parent.mkdir(parents=True, exist_ok=True)
    blue, red = replay.players
    write_atomically(place, render(data, f"{blue} against {red} · Recollect", SCRIPTS, STYLES))
    return place


def check(file: Path) -> Replay:
    """Play the replay in ``file`` again. EnvError with the first decision that differs."""
    replay = load(file)
    try:
        play_again(replay)
    except EnvError as error:
        raise EnvError(f"{file}: {error}") from error
    return replay
