"""What the benchmarks on a GPU share.

Their arguments, agents by flat settings, clocks that wait for the device, and results that are written after
every case.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import fields
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import common
import torch

import recollect as rc
from recollect.agent import Agent
from recollect.config.algo_choice import algo_fields
from recollect.config.policy import PolicyConfig
from recollect.config.train import TrainConfig
from recollect.errors import ConfigError
from recollect.training.trainer import Trainer

SMALL = {"num_envs": 8, "rollout": 8, "chunk": 8, "minibatches": 2, "epochs": 2}
"""Settings of a try on the CPU, ``--tiny``."""


def arguments(doc: str | None, out: str) -> argparse.ArgumentParser:
    """The options that all of them have."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--quick", action="store_true", help="fewer cases")
    parser.add_argument("--tiny", action="store_true", help="tiny sizes: only to see that it runs")
    parser.add_argument("--minutes", type=float, default=9.0, help="ends in good order after so many")
    parser.add_argument("--commit", help="what was measured, where there is no git")
    parser.add_argument("--out", type=Path, default=Path("bench/results") / out, help="write JSON here")
    return parser


class Deadline:
    """A moment after which nothing new is begun."""

    def __init__(self, minutes: float):
        self.at = time.time() + 60 * minutes

    @property
    def left(self) -> float:
        """Seconds."""
        return self.at - time.time()

    @property
    def is_over(self) -> bool:
        return self.left <= 0


class Book:
    """The results so far, in a file that is whole after every ``write``."""

    def __init__(self, path: Path, name: str, commit: str | None = None):
        self._path, self._name = path, name
        self.context = context() | ({"commit": commit} if commit else {})

    def write(self, results: Any) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"benchmark": self._name, **self.context, "results": results}, indent=1)
        part = self._path.with_suffix(".part")
        part.write_text(text + "\n")
        part.replace(self._path)

    def read(self) -> Any:
        """What an earlier call wrote; None if there is nothing."""
        return json.loads(self._path.read_text())["results"] if self._path.exists() else None


def context() -> dict[str, Any]:
    """Hardware, versions and commit, with what matters on a GPU."""
    found = common.context() | {"cuda": torch.version.cuda, "triton": None}
    with suppress(ImportError):
        found["triton"] = import_module("triton").__version__
    if torch.cuda.is_available():
        found["gpu_gb"] = round(torch.cuda.get_device_properties(0).total_memory / 1e9, 1)
    return found


def failed(error: Exception) -> str:
    """What went wrong, for the results; where it did is printed."""
    traceback.print_exception(error, limit=-4)
    return f"{type(error).__name__}: {error}"[:2000]


# Agents -------------------------------------------------------------------------------------------------


def make(env: Any, *, device: str, **settings: Any) -> Agent:
    """A new agent by flat settings, without a preset. Settings that are not there yet are left out."""
    own = {name: value for name, value in settings.items() if is_setting(name)}
    if own.keys() != settings.keys():
        print(f"(without {', '.join(sorted(settings.keys() - own.keys()))})", file=sys.stderr)
    if device == "cpu" and "precision" in own:
        own["precision"] = "fp32"  # nothing else is meant for a CPU here
    return Agent.create(env, TrainConfig().override(device=device, **own))


def is_setting(name: str) -> bool:
    """Whether ``rc.train`` takes it."""
    own = {field.name for part in (TrainConfig, PolicyConfig) for field in fields(part)}
    return name in own or name in algo_fields()


def is_precision(name: str) -> bool:
    """Whether a policy can compute in it."""
    try:
        PolicyConfig(precision=name)  # pyright: ignore
    except ConfigError:
        return False
    return True


def trainer_of(agent: Agent) -> Trainer:
    """The one that iterates."""
    return agent.need_trainer()


def core(name: str, hidden: int) -> Any:
    """The config of an LSTM or GRU of this width."""
    return {"lstm": rc.LSTMConfig, "gru": rc.GRUConfig}[name](hidden=hidden)


def clear() -> None:
    """Give back what a closed agent held, which nobody may hold any more: the next finds an empty GPU."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


# Time ---------------------------------------------------------------------------------------------------


def sync(device: str) -> None:
    """Wait until the device has done all that it was given."""
    if device == "cuda":
        torch.cuda.synchronize()


def now(device: str) -> float:
    """The clock, once the device is done."""
    sync(device)
    return time.perf_counter()


def iterate(
    trainer: Trainer,
    count: int,
    device: str,
    *,
    deadline: Deadline | None = None,
    notes: list[str] | None = None,
) -> list[float]:
    """Seconds of each of ``count`` iterations. The device is waited for at the two ends only.

    What the user would hear of them is added to ``notes``.
    """
    marks = [now(device)]
    for _ in range(count):
        iteration = trainer.iterate()
        marks.append(time.perf_counter())
        if notes is not None:
            notes += iteration.warnings
        if deadline is not None and deadline.is_over:
            break
    marks[-1] = now(device)
    return [after - before for before, after in pairwise(marks)]


@contextmanager
def bordered(trainer: Trainer, around: Callable[[str], AbstractContextManager[Any]]) -> Iterator[None]:
    """For a while every rollout is collected within ``around("acting")``, and learned from in "update"."""
    updater: Any = getattr(trainer, "_updater", trainer.learner)
    places: tuple[tuple[Any, str, str], ...] = (
        (trainer.collector, "collect", "acting"),
        (updater, "update", "update"),
    )

    def wrapped(call: Callable[..., Any], name: str) -> Callable[..., Any]:
        def inside(*args: Any, **kwargs: Any) -> Any:
            with around(name):
                return call(*args, **kwargs)

        return inside

    for owner, method, name in places:
        setattr(owner, method, wrapped(getattr(owner, method), name))
    try:
        yield
    finally:
        for owner, method, _ in places:
            delattr(owner, method)


def parts(trainer: Trainer, count: int, device: str) -> dict[str, float]:
    """Median seconds of acting, of the update and of the whole, waiting for the device at every border."""
    taken: dict[str, list[float]] = {"acting": [], "update": [], "whole": []}

    @contextmanager
    def clocked(name: str) -> Iterator[None]:
        began = now(device)
        yield
        taken[name].append(now(device) - began)

    with bordered(trainer, clocked):
        for _ in range(count):
            with clocked("whole"):
                trainer.iterate()
    return {name: statistics.median(values) for name, values in taken.items() if values}


def gigabytes() -> dict[str, float] | None:
    """The most of the GPU's memory that this process has used, and what it holds; None without one."""
    if not torch.cuda.is_available():
        return None
    held = torch.cuda.max_memory_reserved()
    return {"used": round(torch.cuda.max_memory_allocated() / 1e9, 3), "held": round(held / 1e9, 3)}


def table(heads: list[str], rows: list[list[str]]) -> None:
    """Print columns, the first to the left."""
    widths = [max(len(row[i]) for row in [heads, *rows]) for i in range(len(heads))]
    for row in [heads, *rows]:
        first, *others = (f"{cell:>{width}}" for cell, width in zip(row, widths))
        print("  ".join([f"{row[0]:<{widths[0]}}" if first else "", *others]), flush=True)
