"""Files of a run and of a saved agent. Recollect deletes or replaces nothing else, and follows no link."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Any

from recollect.base import tracebacks
from recollect.base.files import is_number, refuse_links
from recollect.errors import RecollectError

TENSORS = ("weights.safetensors", "optimizer.safetensors", "trainer.safetensors")
FILES = ("agent.json", *TENSORS)
"""Files of a saved agent or a checkpoint."""
CHECKPOINTS = "checkpoints"
JSON_FILES = ("run.json", "glossary.json", "status.json", "metrics.jsonl", "evaluations.jsonl")
WRITTEN_BESIDE = (*JSON_FILES, "config.yaml")
"""Files that are written under a temporary name and renamed; a killed process may leave that name."""
LEFTOVER = re.compile(rf"\.({'|'.join(map(re.escape, WRITTEN_BESIDE))})-[0-9a-f]{{8}}")
"""Temporary names of these files."""
UNFINISHED = re.compile(r"\.[0-9]{12}-([0-9a-f]{8}|old|removed)")
"""Names of folders of checkpoints that are being written, replaced or removed."""
OWN_FILES = (*WRITTEN_BESIDE, "events.jsonl", tracebacks.FILE, "lock", "memory_lengths.json", "wandb/id.txt")
REPLAYS = "replays"
OWN_FOLDERS = (CHECKPOINTS, "league", "logs", "episodes", REPLAYS, "tensorboard", "wandb")
"""Files and folders of a run, besides the files in ``logs``, ``episodes`` and ``replays``."""
PARTIAL = re.compile(r"\.tmp[A-Za-z0-9]{6}")
"""Temporary file names of safetensors."""


def foreign_files(folder: Path) -> list[str]:
    """Names in an agent's folder, or an unfinished one (``.NAME-KEY``), that are not files of the agent."""

    def is_own(name: str) -> bool:
        return name in FILES or (folder.name.startswith(".") and bool(PARTIAL.fullmatch(name)))

    with os.scandir(folder) as entries:
        return sorted(e.name for e in entries if not is_own(e.name) or e.is_dir(follow_symlinks=False))


def is_ours(folder: Path) -> bool:
    """Whether ``folder`` is a folder, not a link, with nothing but files of an agent."""
    return folder.is_dir() and not folder.is_symlink() and not foreign_files(folder)


def remove(folder: Path) -> None:
    """Remove a complete or partial folder of an agent; a folder with other files stays."""
    if is_ours(folder):
        shutil.rmtree(folder, ignore_errors=True)


def check_own(path: Path) -> None:
    """Raise if a file or folder of a run is a link, or is of another type."""
    folders = [path / name for name in OWN_FOLDERS]
    places = [path / name for name in OWN_FILES]
    refuse_links([*folders, *places])
    for folder in folders:
        if folder.exists() and not folder.is_dir():
            raise RecollectError(f"{folder} is no folder: move it out of the run")
    for name in ("logs", "episodes", REPLAYS):
        places += (path / name).glob("*")
    refuse_links(places)
    for file in places:
        if file.exists() and not file.is_file():
            raise RecollectError(f"{file} is no file: move it out of the run")


def checked_status(status: dict[str, Any], file: Path) -> dict[str, Any]:
    """Validate the content of a status file."""
    best = status.get("best")
    texts, counts = ("state", "reason", "checkpoint"), ("steps", "start", "end", "updates", "episodes")
    wrong = [name for name in texts if not isinstance(status.get(name), str | None)]
    wrong += [name for name in counts if not _is_count(status.get(name, 0))]
    if not is_number(status.get("seconds", 0.0)):
        wrong.append("seconds")
    if "start" in status and "end" not in status:
        wrong.append("end")
    is_best = isinstance(best, dict) and _is_count(best.get("steps")) and is_number(best.get("mean"))
    if best is not None and not (is_best and best.get("checkpoint") == f"{best['steps']:012d}"):
        wrong.append("best")
    if wrong:
        raise RecollectError(
            f"{file} is damaged ({', '.join(wrong)}): take another copy of it, or remove it; the checkpoints "
            "say how far the run is"
        )
    return status


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63
