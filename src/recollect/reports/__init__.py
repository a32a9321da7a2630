"""Reports: one run, or a comparison of several, as one self-contained HTML file."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from recollect.base.files import check_replaceable, write_atomically, writing
from recollect.envs.factory import EnvSpec
from recollect.errors import RecollectError
from recollect.reports.compare import gather_comparison
from recollect.reports.data import gather_run
from recollect.reports.mech_games import links
from recollect.reports.page import render
from recollect.reports.play_episodes import play as play_missing
from recollect.reports.read_run import read_folder
from recollect.reports.statistics import bootstrap_interval, iqm
from recollect.training.run_folder import Run

__all__ = ["bootstrap_interval", "iqm", "write_report"]


def write_report(
    runs: Sequence[Run | Path | str] | Run | Path | str,
    out: Path | str | None = None,
    *,
    play: bool = True,
    env: EnvSpec | None = None,
    env_kwargs: dict[str, Any] | None = None,
    **named: Any,
) -> Path:
    """Write the report of one run, or the comparison of several, and return its path.

    Args:
        runs: one or several runs, or their folders.
        out: the file; None: ``report.html`` in the folder of a single run, else in the current folder.
        play: for one run, record a few episodes of the best checkpoint and, in a memory task, measure
            success by memory length. Results are cached in the run's folder.
        env: for one run, play new episodes with this env: its name, ``module:Env``, a callable that makes it,
            or an instance. A run with an env of your own records some at its end.
        env_kwargs: the run's env options, which must be repeated if its env is not built in.
        **named: code of the run again, or ``trust=True``: see ``recollect.load``.
    """
    given = [runs] if isinstance(runs, str | Path | Run) else list(runs)
    paths = list(dict.fromkeys(run.path if isinstance(run, Run) else Path(run) for run in given))
    if not paths:
        raise RecollectError("report: no run is given. Name the folder of one run, or of several to compare")
    if env is not None and (len(paths) > 1 or not play):
        raise RecollectError("report: env is for a single run that plays: leave it out here")
    folders = [read_folder(path) for path in paths]
    place = Path(out) if out is not None else (paths[0] if len(paths) == 1 else Path()) / "report.html"
    if place.is_dir():  # before anything is played
        raise RecollectError(
            f"{place} is a folder: name a file for the report, such as {place / 'report.html'}"
        )
    check_replaceable(place)
    if len(folders) == 1:
        played = play_missing(folders[0], env, env_kwargs, **named) if play else []
        data = gather_run(folders[0], played) | {"replays": links(folders[0].path, place)}
        title = f"{folders[0].name} · Recollect"
    else:
        data = gather_comparison(folders)
        title = f"{len(folders)} runs · Recollect"
    data["made"] = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    with writing(f"{place.parent} could not be made"):
        place.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(place, render(data, title))
    return place
