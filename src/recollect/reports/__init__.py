"""Reports: a run, or a comparison of several, as one HTML file that needs no server and no network."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from recollect.base.files import check_replaceable
from recollect.errors import RecollectError
from recollect.reports.compare import gather_comparison
from recollect.reports.data import gather_run
from recollect.reports.folder import read_folder
from recollect.reports.page import render
from recollect.reports.played import play as play_missing
from recollect.reports.statistics import bootstrap_interval, iqm
from recollect.training import checkpoints
from recollect.training.run_folder import Run

__all__ = ["bootstrap_interval", "iqm", "write_report"]


def write_report(
    runs: Sequence[Run | Path | str] | Run | Path | str,
    out: Path | str | None = None,
    *,
    play: bool = True,
    env_kwargs: dict[str, Any] | None = None,
) -> Path:
    """Write the report of one run, or the comparison of several, and return its path.

    Args:
        runs: runs or their folders; of a single one, a list is not needed.
        out: the file; None: ``report.html`` in the folder of a single run, else in the current folder.
        play: for one run, let its best checkpoint play a few episodes and, in a memory task, measure how
            far the memory reaches. Both are kept in the run's folder, so that it is done once.
        env_kwargs: the options of the run's env once more, for one that is not Recollect's own.
    """
    given = [runs] if isinstance(runs, str | Path | Run) else list(runs)
    paths = list(dict.fromkeys(_path(run) for run in given))
    if not paths:
        raise RecollectError("report: no run is given. Name the folder of one, or of several to compare them")
    folders = [read_folder(path) for path in paths]
    place = Path(out) if out is not None else (paths[0] if len(paths) == 1 else Path()) / "report.html"
    if place.is_dir():  # before anything is played
        raise RecollectError(
            f"{place} is a folder, and a report is a file: name one in it, such as {place / 'report.html'}"
        )
    check_replaceable(place)
    if len(folders) == 1:
        data = gather_run(folders[0], play_missing(folders[0], env_kwargs) if play else [])
        title = f"{folders[0].name} · Recollect"
    else:
        data = gather_comparison(folders)
        title = f"{len(folders)} runs · Recollect"
    data["made"] = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    with checkpoints.writing(f"{place.parent} could not be made"):
        place.parent.mkdir(parents=True, exist_ok=True)
    checkpoints.write_atomically(place, render(data, title))
    return place


def _path(run: Run | Path | str) -> Path:
    return Path(run) if isinstance(run, str | Path) else run.path
