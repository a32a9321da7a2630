"""The contenders of bench/compare.py: their scripts, their variants, and how long each may run."""

from __future__ import annotations

import argparse
import math
import sys
from dataclasses import dataclass
from pathlib import Path

from others import task

ROOT = Path(__file__).resolve().parents[1]
BASE = "recollect"
"""The contender that ratios are to."""
QUICK_UPDATES = 4
QUICK = ("--warmup-updates", "1", "--window-updates", str(QUICK_UPDATES - 1))
GRACE_SECONDS = 300
"""A run may take this much longer than its cap on seconds, for imports, start, last update and end."""


@dataclass(frozen=True, slots=True)
class Contender:
    """One library with one way to use it."""

    script: str
    """In bench/others."""
    venv: str | None
    """Folder of its virtual environment under the root; None: the one that runs this script."""
    options: tuple[str, ...] = ()
    """For the script."""
    takes_threads: bool = True
    """Whether its number of torch threads is a choice."""

    @property
    def python(self) -> Path:
        """Its interpreter."""
        if self.venv is None:
            return Path(sys.executable)
        return ROOT / self.venv / "bin/python"


def _recollect(chunk: int | None = None) -> Contender:
    return Contender("recollect_run.py", None, ("--chunk", str(chunk)) if chunk else ())


def _sb3(variant: str) -> Contender:
    return Contender("sb3_contrib_run.py", ".venv-sb3", ("--variant", variant))


def _sample_factory(variant: str, mode: str) -> Contender:
    options = ("--variant", variant, "--mode", mode)
    return Contender("sample_factory_run.py", ".venv-sample-factory", options, mode == "serial")


def _pufferlib(envs: str) -> Contender:
    return Contender("pufferlib_run.py", ".venv-pufferlib", ("--envs", envs))


CONTENDERS = {
    BASE: _recollect(),
    "recollect-chunk16": _recollect(16),
    "recollect-chunk128": _recollect(128),
    "sb3-contrib": _sb3("default"),
    "sb3-contrib-shared": _sb3("shared"),
    "sb3-contrib-tuned": _sb3("tuned"),
    "sample-factory": _sample_factory("default", "async"),
    "sample-factory-serial": _sample_factory("default", "serial"),
    "sample-factory-tuned": _sample_factory("tuned", "serial"),
    "pufferlib": _pufferlib("serial"),
    "pufferlib-processes": _pufferlib("processes"),
}
"""The top of each script explains its variants."""


def contenders(world: task.World) -> list[str]:
    """Those of a world unless ``--only`` chooses. Other chunks and PufferLib only where there are chunks."""
    of_chunks = (f"{BASE}-chunk", "pufferlib")
    return [name for name in CONTENDERS if world.chunk or not name.startswith(of_chunks)]


class Budgets(dict[str, float]):
    """Limits by contender: one for all under "", and others by the start of a name, such as a library's."""

    def of(self, contender: str) -> float | None:
        """The limit under the longest start of this name."""
        starts = [start for start in self if contender.startswith(start)]
        return self[max(starts, key=len)] if starts else None


def budget(text: str) -> tuple[str, float]:
    """Parse "600" or "sb3-contrib=600"."""
    start, _, number = text.rpartition("=")
    if not any(name.startswith(start) for name in CONTENDERS):
        raise argparse.ArgumentTypeError(f"no contender starts with {start!r}: see --only")
    try:
        limit = float(number)
    except ValueError:
        limit = math.nan
    if not 0 < limit < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r}: give a number above 0, or NAME=NUMBER")
    return start, limit


@dataclass(frozen=True, slots=True)
class Plan:
    """What all runs share."""

    world_name: str
    seeds: int
    steps: Budgets
    max_seconds: Budgets
    threads: int | None
    timeout: float | None
    is_quick: bool
    jobs: int = 1

    @property
    def world(self) -> task.World:
        return task.WORLDS[self.world_name]

    def cap(self, contender: str) -> int:
        """Env steps after which a run of this contender ends."""
        if self.is_quick:
            return QUICK_UPDATES * self.world.batch
        return int(self.steps.of(contender) or self.world.steps)

    def options(self, contender: str) -> list[str]:
        """Options of this contender's script, without the seed."""
        options = ["--world", self.world_name, "--steps", str(self.cap(contender))]
        seconds = self.max_seconds.of(contender)
        if seconds is not None:
            options += ["--max-seconds", f"{seconds:g}"]
        if self.threads is not None and CONTENDERS[contender].takes_threads:
            options += ["--threads", str(self.threads)]
        return [*options, *(QUICK if self.is_quick else ())]

    def time_limit(self, contender: str) -> float | None:
        """Seconds after which a run is killed."""
        seconds = self.max_seconds.of(contender)
        return self.timeout or (None if seconds is None else seconds + GRACE_SECONDS)
