"""One run of a sweep: where it is, how far it is, what is left to do."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from recollect.base import files
from recollect.config.tasks import task_name
from recollect.config.train import TrainConfig
from recollect.envs.named import is_importing
from recollect.errors import RecollectError
from recollect.sweep.plan import Variant
from recollect.training import trust
from recollect.training.parsed import parse_config
from recollect.training.run_folder import Run

Left = Literal["train", "resume", "evaluate", "nothing"]
"""What is left to do for a run."""
EVALUATE = "import sys; from recollect.sweep.member import evaluate; evaluate(*sys.argv[1:])"


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is; None for what is not known yet."""

    steps: int = 0
    end: int | None = None
    seconds: float = 0.0
    mean_return: float | None = None
    evaluation: float | None = None
    """The mean return of the last evaluation."""

    @property
    def fraction(self) -> float:
        """Of the training."""
        return min(1.0, self.steps / self.end) if self.end else 0.0

    @property
    def left(self) -> float | None:
        """Seconds, at the speed so far."""
        return self.seconds * (1 / self.fraction - 1) if self.fraction > 0 else None


@dataclass(frozen=True, slots=True)
class Member:
    """One variant with one seed."""

    variant: Variant
    seed: int
    path: Path
    """The run's folder."""
    flags: tuple[str, ...]
    """The variant's, with the config files where they are kept."""
    threads: int | None = None
    """CPU threads, if the user did not choose."""

    @property
    def name(self) -> str:
        """As people call it."""
        return f"{self.variant.name} seed {self.seed}"

    @property
    def log(self) -> Path:
        """What its processes printed."""
        return self.path.with_name(f"{self.path.name}.log")

    def left(self) -> Left:
        """What is left to do, by what is in its folder. Raises RecollectError if that is damaged."""
        run = self._run()
        if run is None or not run.checkpoints():
            return "train"
        status = run.status
        # "time" and the like: it was stopped by its own settings, and is whole.
        has_stopped_itself = status["state"] == "stopped" and status["reason"] != "interrupt"
        if status["state"] != "finished" and not has_stopped_itself:
            return "resume"
        return "nothing" if self._final().get("steps") == status["steps"] else "evaluate"

    def is_over(self) -> bool:
        """Whether nothing is left to do. A damaged run is not over: it fails when its turn comes."""
        try:
            return self.left() == "nothing"
        except (RecollectError, OSError):
            return False

    def is_readable(self) -> bool:
        """Whether there is a run in its folder, and not a damaged one."""
        try:
            return self._run() is not None
        except (RecollectError, OSError):
            return False

    def score(self) -> float | None:
        """The mean return of its final evaluation; None until there is one, or if it is no number."""
        return self._final().get("mean") if self.is_over() else None

    def progress(self) -> Progress:
        """How far it is, from the last lines of its files."""
        status = _numbers(_read(self.path / "status.json"))
        metrics = _numbers(last_row(self.path / "metrics.jsonl"))
        return Progress(
            steps=int(metrics.get("steps") or status.get("steps") or 0),
            end=status.get("end"),
            seconds=float(metrics.get("seconds") or 0.0),
            mean_return=metrics.get("return"),
            evaluation=self._final().get("mean"),
        )

    # For work.py

    def is_busy(self) -> bool:
        """Whether another process still trains in its folder."""
        run = self._run()
        return run is not None and run.is_active

    def command(self) -> list[str] | None:
        """What to start for it; None: nothing is left to do."""
        threads = [] if self.threads is None else [f"--threads={self.threads}"]
        code = [self.variant.env] if is_importing(self.variant.env) else []
        quiet = ["--quiet", "--no-report"]
        match self.left():
            case "train":
                own = [f"--seed={self.seed}", *threads, f"--run={self.path}"]
                return [*_recollect("train"), self.variant.env, *self.flags, *own, *quiet]
            case "resume":
                env = [f"--env={name}" for name in code]
                return [*_recollect("resume"), str(self.path), *env, *self.named(), *threads, *quiet]
            case "evaluate":
                options = json.dumps(self._options(self._config()))
                return [sys.executable, "-c", EVALUATE, str(self.path), options, *code]
            case "nothing":
                return None

    def named(self) -> list[str]:
        """The settings that a run's folder alone may not choose, as the sweep has them: words for resume."""
        config = self._config()
        words = trust.option_flags(self._options(config))
        if config.ray_address is not None:
            words.append(f"--ray-address={config.ray_address}")
        if set(config.sinks) & set(trust.REMOTE_SINKS):
            words.append(f"--sinks={','.join(config.sinks)}")
        return words

    def _config(self) -> TrainConfig:
        return parse_config(list(self.flags), env=self.variant.env).config

    def _options(self, config: TrainConfig) -> dict[str, Any]:
        """Of an env that is not Recollect's own."""
        return {} if task_name(self.variant.env) else config.env_kwargs

    def _run(self) -> Run | None:
        """What is in its folder, if anything is."""
        if not Run.is_run(self.path):
            return None
        try:
            return Run(self.path)
        except RecollectError as error:
            raise RecollectError(f"{error}, or remove {self.path} to train this run anew") from None

    def _final(self) -> dict[str, Any]:
        return _numbers(last_row(self.path / "evaluations.jsonl"))


def evaluate(path: str, options: str = "{}", env: str | None = None) -> None:
    """The evaluation at the end of a run that ended before it came to that.

    ``options`` of its env, as JSON, if that is not Recollect's own; ``env``: if it is code.
    """
    from recollect.api import load

    with load(path, env=env, env_kwargs=json.loads(options), checkpoint="last") as agent:
        Run(path).add_evaluation(agent.steps, agent.evaluate(agent.config.eval_episodes))


def last_row(file: Path) -> Any:
    """The last whole line of a JSONL file, without reading all of it; empty if there is none to be read."""
    size = 4096
    try:
        if not file.is_file():
            return {}
        with file.open("rb") as handle:
            end = handle.seek(0, os.SEEK_END)
            while True:
                start = max(0, end - size)
                handle.seek(start)
                lines = handle.read(end - start).split(b"\n")
                # What follows the last newline is being written; what comes before the first may be cut.
                whole = lines[0 if start == 0 else 1 : -1]
                if whole:
                    return json.loads(whole[-1])
                if start == 0 or size > files.LARGEST:
                    return {}
                size *= 4
    except (OSError, ValueError, RecursionError):
        return {}


def _read(file: Path) -> Any:
    try:
        return files.read_json(file)
    except RecollectError:
        return {}


def _numbers(found: Any) -> dict[str, Any]:
    """What counts as a number in what was read; all else, in a damaged file, is as if it was not there."""
    items = found.items() if isinstance(found, dict) else ()
    return {name: value for name, value in items if files.is_number(value)}


def _recollect(command: str) -> list[str]:
    return [sys.executable, "-m", "recollect", command]
